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
from saywhere.evaluation.table1.cells import checkpoint_digest, digest
from saywhere.evaluation.table1.material import CropTexts, region_crops, sentence_crops
from saywhere.evaluation.table1.plan import Comparison
from saywhere.networks import checkpoint
from saywhere.networks.region_rnn import RegionRnn
from saywhere.networks.vision.external_proposals import Proposed
from saywhere.regions import Regions
from saywhere.text import Vocabulary
from saywhere.training.progress import track
from saywhere.training.systems.region_rnn import Crop, LabelledCrops, crop_features, fit

REGION, FULL = "region-rnn", "full-image-rnn"
CAPTIONED_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Baselines:
    """Train and ask both RNN baselines of a comparison.

    Attributes:
        plan: the recipe.
        train: training images with their regions and sentences.
        dev: of the measured split, with phrases as in training: their loss picks the epoch.
    """

    plan: Comparison
    train: Sequence[Sample]
    dev: Sequence[Sample]

    def network(self, row: str, seed: int, folder: Path) -> tuple[RegionRnn, str]:
        """Return the trained network of a row and seed, from ``folder`` if it is there, and a hash of its files.

        Raises:
            UserError: what is there is another kind of model, or there is nothing to train it on.
        """
        plan = self.plan
        depends = (plan.half, plan.pretrained, plan.data, plan.model, plan.training, plan.crops, plan.sentence_words)
        place = folder / f"{row}-{seed}-{digest([row, seed, *depends])[:10]}"
        if not (place / "config.json").is_file():
            self._train(row, seed, place)
        network = checkpoint.load_network(place)
        if not isinstance(network, RegionRnn):
            raise UserError(f"{place} holds another kind of model: remove it")
        return network, checkpoint_digest(place)

    def crops(self, row: str, samples: Sequence[Sample], most: int | None) -> CropTexts:
        """Return what a row is trained on."""
        return region_crops(samples, most) if row == REGION else sentence_crops(samples, self.plan.sentence_words)

    def _train(self, row: str, seed: int, place: Path) -> None:
        plan = self.plan
        train, validation = self.crops(row, self.train, plan.crops), self.crops(row, self.dev, None)
        if not train.crops or not validation.crops:
            what = "phrases" if row == REGION else "sentences"
            raise UserError(f"{plan.data.root}: no {what} to train {row} on")
        texts = [text for several in train.phrases for text in several]
        vocabulary = Vocabulary.build(texts, plan.data.min_count)
        torch.manual_seed(seed)
        config = plan.baseline(0 if row == REGION else plan.sentence_words)
        network = RegionRnn(config, vocabulary, pretrained_backbone=plan.pretrained)
        learnt = LabelledCrops(self.features(network, train.crops, "training crops"), train.phrases)
        asked = LabelledCrops(self.features(network, validation.crops, "validation crops"), validation.phrases)

        def report(epoch: int, loss: float, validation_loss: float) -> None:
            line = f"{row} seed {seed} epoch {epoch}: train {loss:.3f}, validation {validation_loss:.3f}"
            print(line, file=sys.stderr)

        losses = fit(network, learnt, asked, plan.training, seed, plan.half, report)
        about = f"{row} of the comparison {plan.name}, seed {seed}: captions of given boxes"
        card = (
            f"# {row}\n\n{about}. Trained on {len(train.crops)} crops for {len(losses)} epochs; loss on "
            f"{len(validation.crops)} crops of the split {plan.data.validation} {min(losses):.4f} nats a phrase.\n\n"
            + "".join(f"- {key}: {value}\n" for key, value in asdict(plan.training).items())
        )
        checkpoint.save(network, place, card, about, torch.float16)

    def features(self, network: RegionRnn, crops: Sequence[Crop], title: str) -> Tensor:
        """Return features of crops from the cache, with a progress bar."""
        with track(title, len(crops)) as progress:
            return crop_features(Path(self.plan.cache), network, crops, self.plan.half, progress.advance)

    def describe(
        self, network: RegionRnn, images: Mapping[str, Sample], boxes: Mapping[str, Proposed], column: str
    ) -> list[tuple[str, Regions]]:
        """Return captions of the boxes of each image, by its name, with the scores of the proposals."""
        crops = [Crop(sample.image, _tuple(box)) for name, sample in images.items() for box in boxes[name].boxes]
        features = self.features(network, crops, f"crops of the boxes: {column}")
        captions = [text for part in features.split(CAPTIONED_AT_ONCE) for text in network.caption(part.float())]
        found, start = [], 0
        for name, sample in images.items():
            proposed = boxes[name]
            texts = tuple(captions[start : start + len(proposed)])
            start += len(proposed)
            found.append((name, Regions(sample.width, sample.height, proposed.boxes, proposed.scores, texts)))
        return found


def _tuple(box: Sequence[float]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = (float(value) for value in box)
    return x1, y1, x2, y2
