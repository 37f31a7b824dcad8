"""How captioners are trained: sentences of whole pictures, or phrases of boxes (Alignments, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy

from saywhere.data.sample import Sample
from saywhere.images import Picture
from saywhere.language.cider import Cider
from saywhere.models import checkpoint
from saywhere.models.caption_loss import CaptionCriterion, CaptionTarget
from saywhere.models.caption_reward import RewardCriterion
from saywhere.models.captioner import Captioner
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.text import END, Vocabulary, pad, tokenize
from saywhere.training.dataset import mirror_phrase
from saywhere.training.regions import PhraseTargets
from saywhere.training.regions import usable as usable_regions


@dataclass(frozen=True)
class CaptionTargets:
    """Targets of a captioner of pictures: ``count`` sentences of each, drawn anew in each epoch.

    A picture that has fewer gives some of them again.

    Attributes:
        vocabulary: of the model.
        count: see above; None takes all.
    """

    vocabulary: Vocabulary
    count: int | None

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator
    ) -> CaptionTarget:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        order = random.permutation(len(sample.sentences)).tolist()
        count = len(order) if self.count is None else self.count
        texts = [sample.sentences[order[i % len(order)]] for i in range(count)]
        words = [self.vocabulary.encode(mirror_phrase(text) if flipped else text) for text in texts]
        return CaptionTarget(pad(words), *size)


@dataclass(frozen=True)
class BoxTargets:
    """Targets of a captioner of regions: the boxes of a picture, each with one of its phrases."""

    vocabulary: Vocabulary

    def __call__(
        self, sample: Sample, size: tuple[int, int], flipped: bool, random: numpy.random.Generator
    ) -> CaptionTarget:
        """See :class:`saywhere.training.dataset.TargetMaker`."""
        target = PhraseTargets(self.vocabulary)(sample, size, flipped, random)
        return CaptionTarget(target.words, *size, target.boxes)


class CaptionerSystem:
    """See :class:`saywhere.training.systems.System`."""

    about = "says a sentence of a picture, or phrases of its regions"
    unit = "texts"
    extractor = "backbone"
    presets: Mapping[str, Callable[[], CaptionerConfig]] = MappingProxyType(
        {"default": CaptionerConfig, "original": CaptionerConfig.original}
    )

    def usable(self, samples: Sequence[Sample], config: CaptionerConfig) -> list[Sample]:
        """The samples with what is learnt of them alone: sentences or phrases of one to ``config.max_words`` words."""
        if config.regions:
            return [replace(sample, sentences=()) for sample in usable_regions(samples, config.max_words)]
        none = {"boxes": samples[0].boxes[:0], "phrases": ()} if samples else {}
        kept = [
            replace(s, **none, sentences=tuple(t for t in s.sentences if 1 <= len(tokenize(t)) <= config.max_words))
            for s in samples
        ]
        return [sample for sample in kept if sample.sentences]

    def texts(self, sample: Sample) -> Iterator[str]:
        """The sentences or, if there are none, every reference of every box."""
        yield from sample.sentences
        for references in () if sample.sentences else sample.phrases:
            yield from references

    def count(self, sample: Sample) -> int:
        """Sentences and phrases."""
        return sum(1 for _ in self.texts(sample))

    def build(self, config: CaptionerConfig, vocabulary: Vocabulary, pretrained: bool) -> Captioner:
        """The untrained model; what finds ``proposals`` is never trained here and comes from ``config.localizer``."""
        proposes = config.areas == "proposals"
        model = Captioner(config, vocabulary, pretrained and not proposes)
        if proposes:  # the backbone comes with the localizer, whose own it is
            model.take_localization(checkpoint.load(config.localizer))
            if pretrained and model.features.head is not None:
                model.features.head.load_published(config.backbone)
        return model

    def criterion(self, model: Captioner, samples: Sequence[Sample]) -> CaptionCriterion | RewardCriterion:
        """The cross entropy of a word or, with a reward, what CIDEr-D lacks; ``samples`` say which words are rare."""
        if model.config.reward == "none":
            return CaptionCriterion(model.config.smoothing)
        encode, config = model.vocabulary.encode, model.config
        cider = Cider([[*encode(text), END] for text in sample.sentences] for sample in samples)
        return RewardCriterion(cider, config.word_weight, config.smoothing)

    def targets(self, model: Captioner) -> CaptionTargets | BoxTargets:
        """Sentences, or boxes with phrases."""
        if model.config.regions:
            return BoxTargets(model.vocabulary)
        return CaptionTargets(model.vocabulary, model.config.sentences if model.config.reward == "none" else None)

    def draw(self, model: Captioner, picture: Picture) -> None:
        """Nothing: sentences are read in the terminal."""
        return None
