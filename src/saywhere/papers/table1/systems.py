"""The systems of a comparison, FCLN and the RNN baselines trained on crops, and their times."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
import torch

from saywhere.data.sample import Sample
from saywhere.engines.engine import DenseCap
from saywhere.errors import UserError
from saywhere.images import LoadedImage, open_image
from saywhere.models.decoding import decode
from saywhere.models.densecap import detect, rank, select
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.options import dataclass
from saywhere.papers.external_proposals import Proposed, SelectiveSearch
from saywhere.papers.table1.plan import SENTENCE_WORDS, Comparison
from saywhere.papers.table1.region_rnn import Crop, RegionRnn, crop_features, fit, region_crops, sentence_crops
from saywhere.regions import Regions
from saywhere.text import Vocabulary
from saywhere.training.progress import track

NMS = 0.5
"""IoU for the baselines' NMS on proposals; they have no second scores for a final one."""
REGION, FULL, FCLN, FCLN_EXTERNAL = "region-rnn", "full-image-rnn", "fcln", "fcln-external"
CAPTIONED_AT_ONCE = 1024
STAGES = ("proposals", "network", "language")
ROUNDS = 3
"""Timed repetitions per image; the median is used."""


# FCLN


def rpn_proposals(detector: DenseCap, encoding: Encoding, limit: int) -> Proposed:
    """Return the RPN's boxes for systems without second scores, in pixels of the image, with its probabilities."""
    boxes, logits = propose_boxes(encoding, detector.config.proposals, detector.box_coder, sys.maxsize)
    return Proposed(encoding.to_image(boxes), 1 / (1 + np.exp(-logits))).suppressed(NMS, limit)


def describe_with_fcln(
    model: Model, image: LoadedImage, boxes: Mapping[str, Proposed], limit: int
) -> dict[str, Regions]:
    """Return FCLN's descriptions of one image, by column.

    The true boxes are described as they are. All others, at most ``limit``, serve as proposals and are scored and
    refined. ``boxes`` in the column ``rpn`` are those of the baselines; FCLN uses its own.
    """
    encoding, detector = model.encode(image), model.require("densecap", "be FCLN")
    own, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, limit)
    rows = {"gt": model.describe(encoding, boxes["gt"].boxes)}
    for column, proposals in (("rpn", own), ("external", encoding.to_input(boxes["external"].boxes))):
        found = detect(detector, [encoding], proposals=[proposals])[0].regions(model.calibration.box)
        rows[column] = found[rank(found, detector.config.repeat_nms)]
    return rows


# The RNN baselines


@dataclass(frozen=True, eq=False)
class Baselines:
    """Train and run both RNN baselines of a comparison.

    Attributes:
        folder: folder of the trained baselines.
        train: training images with their regions and sentences.
        dev: images of the measured split, with phrases as in training: their loss selects the epoch.
    """

    plan: Comparison
    folder: Path
    train: Sequence[Sample]
    dev: Sequence[Sample]

    def network(self, row: str, seed: int) -> RegionRnn:
        """Return the trained network of a row and seed, from ``folder`` if it is there.

        ``UserError`` if the folder has another kind of model, or there is nothing to train on.
        """
        plan = self.plan
        depends = [row, seed, plan.half, plan.pretrained, plan.data, plan.model, plan.training, plan.crops]
        text = json.dumps(depends, sort_keys=True, default=str)
        place = self.folder / f"{row}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        if not (place / "config.json").is_file():
            self._train(row, seed, place)
        network = checkpoint.load_network(place)
        if not isinstance(network, RegionRnn):
            raise UserError(f"{place} holds another kind of model: remove it")
        return network

    def _train(self, row: str, seed: int, place: Path) -> None:
        plan, region = self.plan, row == REGION
        train, validation = (
            region_crops(samples, most) if region else sentence_crops(samples, SENTENCE_WORDS)
            for samples, most in ((self.train, plan.crops), (self.dev, None))
        )
        if not train or not validation:
            raise UserError(f"{plan.data.root}: no {'phrases' if region else 'sentences'} to train {row} on")
        vocabulary = Vocabulary.build([text for crop in train for text in crop.phrases], plan.data.min_count)
        torch.manual_seed(seed)
        config = plan.baseline(None if region else SENTENCE_WORDS)
        network = checkpoint.new_network(RegionRnn, config, vocabulary, plan.pretrained)
        features = self._features(network, train, "training crops")
        asked = self._features(network, validation, "validation crops")
        losses = fit(network, (features, train), (asked, validation), plan.training, seed, plan.half)
        about = f"{row} of the comparison {plan.name}, seed {seed}: captions of given boxes"
        card = (
            f"# {row}\n\n{about}. Trained on {len(train)} crops for {len(losses)} epochs; loss on "
            f"{len(validation)} crops of the split {plan.data.validation} {min(losses):.4f} nats a phrase.\n\n"
            + "".join(f"- {key}: {value}\n" for key, value in asdict(plan.training).items())
        )
        checkpoint.save(network, place, card, about, torch.float16)

    def _features(self, network: RegionRnn, crops: Sequence[Crop], title: str) -> torch.Tensor:
        with track(title, len(crops)) as progress:
            return crop_features(Path(self.plan.cache), network, crops, self.plan.half, progress.advance)

    def describe(
        self, network: RegionRnn, images: Mapping[str, Sample], boxes: Mapping[str, Proposed], column: str
    ) -> dict[str, Regions]:
        """Return captions of each image's boxes, by image name, with the scores of the proposals."""
        crops = [Crop.of(sample.image, box) for name, sample in images.items() for box in boxes[name].boxes]
        features = self._features(network, crops, f"crops of the boxes: {column}")
        captions = [text for part in features.split(CAPTIONED_AT_ONCE) for text in network.caption(part.float())]
        found, start = dict[str, Regions](), 0
        for name, sample in images.items():
            proposed = boxes[name]
            texts = tuple(captions[start : start + len(proposed)])
            start += len(proposed)
            found[name] = Regions(sample.width, sample.height, proposed.boxes, proposed.scores, texts)
        return found


# Time


class Watch:
    """Milliseconds of the stages of one system on one image."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        yield
        self.stages[name] += 1000 * (time.perf_counter() - start)


@dataclass(frozen=True)
class Timed:
    """Systems to time, with ``limit`` boxes for each; the Full Image RNN is the same network as the Region RNN."""

    fcln: Model
    region: RegionRnn
    proposer: SelectiveSearch
    limit: int

    def systems(self) -> dict[str, Callable[[LoadedImage, Watch], None]]:
        """Return by row the function that describes an image."""
        return {FCLN: self._fcln, FCLN_EXTERNAL: self._fcln_external, REGION: self._region_rnn}

    def _external(self, image: LoadedImage, watch: Watch) -> np.ndarray:
        with watch.stage("proposals"):
            return self.proposer(image).suppressed(NMS, self.limit).boxes

    def _encode(self, image: LoadedImage, watch: Watch) -> Encoding:
        """Compute the backbone and the pyramid, which would otherwise be computed on demand."""
        with watch.stage("network"):
            encoding = self.fcln.encode(image)
            ImageMaps.pyramids([encoding.maps])
        return encoding

    def _fcln(self, image: LoadedImage, watch: Watch) -> None:
        encoding, detector = self._encode(image, watch), self.fcln.require("densecap", "be FCLN")
        with watch.stage("proposals"):
            boxes, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, self.limit)
        self._second_stage(encoding, boxes, watch)

    def _fcln_external(self, image: LoadedImage, watch: Watch) -> None:
        boxes, encoding = self._external(image, watch), self._encode(image, watch)
        self._second_stage(encoding, encoding.to_input(boxes), watch)

    def _second_stage(self, encoding: Encoding, boxes: np.ndarray, watch: Watch) -> None:
        detector = self.fcln.require("densecap", "be FCLN")
        with watch.stage("network"):
            (found,) = detector.region_head([encoding.maps], [boxes])
            _, rows = select(detector.box_coder, encoding, boxes, found, detector.config.final_nms)
        with watch.stage("language"):
            decoded = decode(detector.decoder, found.embeddings[rows], detector.config.decoding)
            for token_ids in decoded.token_ids.tolist():
                detector.vocabulary.decode(token_ids, detector.decoder.unknown)

    def _region_rnn(self, image: LoadedImage, watch: Watch) -> None:
        boxes = torch.from_numpy(self._external(image, watch))
        with watch.stage("network"):
            features = self.region.features(image, boxes)
        with watch.stage("language"):
            self.region.caption(features)


@torch.no_grad()
def take_times(timed: Timed, images: Sequence[Path], done: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Return milliseconds per image by row: of each stage, and their ``total``; opening the file is not included.

    Every system in turn describes every image :data:`ROUNDS` times, after a warm-up image. The result is the mean over
    images of the median over rounds. ``done`` is called after each description.
    """
    systems = timed.systems()
    for describe in systems.values():
        describe(open_image(images[0]), Watch())
    watches: dict[str, list[list[Watch]]] = {name: [[] for _ in images] for name in systems}
    for number, path in enumerate(images):
        for _ in range(ROUNDS):
            for name, describe in systems.items():
                watch = Watch()
                describe(open_image(path), watch)
                watches[name][number].append(watch)
                done()
    found: dict[str, dict[str, float]] = {}
    for name, of in watches.items():
        medians = {s: [median(watch.stages[s] for watch in rounds) for rounds in of] for s in STAGES}
        stages = {stage: sum(values) / len(images) for stage, values in medians.items()}
        found[name] = {**stages, "total": sum(stages.values())}
    return found
