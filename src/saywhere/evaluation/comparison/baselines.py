"""The RNN baselines of a comparison: trained on crops, then asked about the boxes of all columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.evaluation.comparison.cells import checkpoint_digest, digest
from saywhere.evaluation.comparison.material import Lessons, region_lessons, sentence_lessons
from saywhere.evaluation.comparison.plan import Comparison
from saywhere.models import checkpoint
from saywhere.models.region_rnn import RegionRnn
from saywhere.regions import Regions
from saywhere.text import Vocabulary
from saywhere.training.progress import track
from saywhere.training.region_rnn import Crop, Taught, crop_features, fit
from saywhere.vision.proposals import Proposed

REGION, FULL = "region-rnn", "full-image-rnn"
SAID_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Baselines:
    """Both RNN baselines of a comparison.

    Attributes:
        plan: the recipe.
        train: training pictures with their regions and sentences.
        dev: of the measured split, with phrases as in training: their loss picks the epoch.
    """

    plan: Comparison
    train: Sequence[Sample]
    dev: Sequence[Sample]

    def model(self, row: str, seed: int, folder: Path) -> tuple[RegionRnn, str]:
        """The trained model of a row and seed, from ``folder`` if it is there, and a hash of its files."""
        plan = self.plan
        wanted = digest(
            [
                row,
                seed,
                plan.half,
                plan.pretrained,
                plan.data,
                plan.model,
                plan.training,
                plan.crops,
                plan.sentence_words,
            ]
        )
        place = folder / f"{row}-{seed}-{wanted[:10]}"
        if not (place / "config.json").is_file():
            self._train(row, seed, place)
        model = checkpoint.load(place)
        if not isinstance(model, RegionRnn):
            raise UserError(f"{place} holds another kind of model: remove it")
        return model, checkpoint_digest(place)

    def lessons(self, row: str, samples: Sequence[Sample], most: int | None) -> Lessons:
        """What a row learns from."""
        if row == REGION:
            return region_lessons(samples, most)
        return sentence_lessons(samples, self.plan.sentence_words)

    def _train(self, row: str, seed: int, place: Path) -> None:
        plan = self.plan
        lessons, exam = self.lessons(row, self.train, plan.crops), self.lessons(row, self.dev, None)
        if not lessons.crops or not exam.crops:
            what = "phrases" if row == REGION else "sentences"
            raise UserError(f"{plan.data.root}: no {what} to train {row} on")
        texts = [text for several in lessons.phrases for text in several]
        vocabulary = Vocabulary.build(texts, plan.data.min_count)
        torch.manual_seed(seed)
        config = plan.baseline(0 if row == REGION else plan.sentence_words)
        model = RegionRnn(config, vocabulary, plan.pretrained)
        taught = Taught(self.features(model, lessons.crops, "training crops"), lessons.phrases)
        asked = Taught(self.features(model, exam.crops, "validation crops"), exam.phrases)

        def report(epoch: int, train: float, validation: float) -> None:
            print(f"{row} seed {seed} epoch {epoch}: train {train:.3f}, validation {validation:.3f}", file=sys.stderr)

        losses = fit(model, taught, asked, plan.training, seed, plan.half, report)
        about = f"{row} of the comparison {plan.name}, seed {seed}: captions of given boxes"
        card = (
            f"# {row}\n\n{about}. Trained on {len(lessons.crops)} crops for {len(losses)} epochs; loss on "
            f"{len(exam.crops)} crops of the split {plan.data.validation} {min(losses):.4f} nats a phrase.\n\n"
            + "".join(f"- {key}: {value}\n" for key, value in asdict(plan.training).items())
        )
        checkpoint.save(model, place, card, about, torch.float16)

    def features(self, model: RegionRnn, crops: Sequence[Crop], title: str) -> Tensor:
        """Features of crops from the cache, with a progress bar."""
        with track(title, len(crops)) as progress:
            return crop_features(Path(self.plan.cache), model, crops, self.plan.half, progress.advance)

    def say(
        self, model: RegionRnn, pictures: Mapping[str, Sample], boxes: Mapping[str, Proposed], column: str
    ) -> list[tuple[str, Regions]]:
        """Captions of the boxes of each picture, by its name, with the scores of the proposals."""
        crops = [Crop(sample.image, _tuple(box)) for name, sample in pictures.items() for box in boxes[name].boxes]
        features = self.features(model, crops, f"crops of the boxes: {column}")
        captions = [text for part in features.split(SAID_AT_ONCE) for text in model.speak(part.float())]
        said, start = [], 0
        for name, sample in pictures.items():
            proposed = boxes[name]
            texts = tuple(captions[start : start + len(proposed)])
            start += len(proposed)
            said.append((name, Regions(sample.width, sample.height, proposed.boxes, proposed.scores, texts)))
        return said


def _tuple(box: Tensor) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box.tolist()
    return x1, y1, x2, y2
