"""The systems of a comparison: FCLN and the controls, and the RNN baselines, which are trained on crops first."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from saywhere.data.sample import Sample
from saywhere.engines.engine import DenseCap
from saywhere.errors import UserError
from saywhere.evaluation.dense import DenseCaptioning, Scorer
from saywhere.evaluation.region_lines import RegionLines
from saywhere.files import write_text
from saywhere.images import LoadedImage, open_image
from saywhere.models.bundle import FILES
from saywhere.models.decoding import decode
from saywhere.models.densecap import detect, rank, select
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.papers.external_proposals import ProposalMethod, Proposed
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.region_rnn import (
    Crop,
    CropTexts,
    LabelledCrops,
    RegionRnn,
    crop_features,
    fit,
    region_crops,
    sentence_crops,
)
from saywhere.regions import Regions
from saywhere.text import Vocabulary, tokenize
from saywhere.training.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from saywhere.images import LoadedImage
    from saywhere.models.encoding import Encoding

PROTOCOL = "clean"
SCORES = ("map", "detection_map", "language_meteor")


@dataclass(frozen=True)
class Cell:
    """One cell of one seed.

    Attributes:
        row: the system, such as ``region-rnn``.
        column: whose boxes: ``external``, ``rpn`` or ``gt``.
        seed: of the system.
        path: of the lines; the scores stand beside it.
    """

    row: str
    column: str
    seed: int
    path: Path

    @classmethod
    def of(cls, folder: Path, row: str, column: str, seed: int, depends: Any) -> Cell:
        """Return the cell in ``folder`` that was or will be made from ``depends`` (plain values)."""
        name = f"{row}-{column}-{seed}-{digest([row, column, seed, depends])[:10]}.jsonl"
        return cls(row, column, seed, folder / name)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write the regions of all images, whole or not at all."""
        write_lines(self.path, lines)

    def score(self, truth: RegionLines, names: Sequence[str], scorer: Scorer) -> dict[str, float]:
        """Return ``map``, ``detection_map`` and ``language_meteor`` over the images ``names``, from disk if there."""
        place = self.path.with_suffix(".json")
        if place.is_file():
            return json.loads(place.read_text())
        metric, found = DenseCaptioning(PROTOCOL), RegionLines(self.path, needs=("scores", "captions"))
        for name in names:
            ours, true = found[name], truth[name]
            scores = () if ours.scores is None else ours.scores
            phrases = [[caption] for caption in true.captions or ()]
            metric.add_arrays(ours.boxes, scores, ours.captions or (), true.boxes, phrases, name)
        result = metric.result(scorer).to_dict()
        scores = {key: result[key] for key in SCORES}
        write_text(place, json.dumps(scores, indent=2) + "\n")
        return scores


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line; the file is whole or not there."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def digest(values: Any) -> str:
    """Return a hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def checkpoint_digest(folder: Path) -> str:
    """Return a hash of the files of a model folder."""
    total = hashlib.sha256()
    for name in FILES:
        with (folder / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


REGION, FULL = "region-rnn", "full-image-rnn"
CAPTIONED_AT_ONCE = 1024
FCLN, FREQUENT, NEAREST = "fcln", "frequent-phrase", "nearest-region"
REFINED = "-refined"
"""After the name of a control: on FCLN's final boxes."""


def rpn_proposals(detector: DenseCap, encoding: Encoding, nms: float, limit: int) -> Proposed:
    """Return the RPN's boxes for systems without second scores, in pixels of the image, with its probabilities."""
    boxes, logits = propose_boxes(encoding, detector.config.proposals, detector.box_coder, sys.maxsize)
    return Proposed(encoding.to_image(boxes), 1 / (1 + np.exp(-logits))).suppressed(nms, limit)


def describe_proposals(model: Model, encoding: Encoding, boxes: np.ndarray) -> Regions:
    """Return what :meth:`saywhere.Model.describe` does, but from proposals ``(N, 4)`` in pixels of the input."""
    detector = model.require("densecap", "describe proposals")
    found = detect(detector, [encoding], proposals=[boxes])[0].regions(model.calibration.box)
    return found[rank(found, detector.config.repeat_nms)]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """True regions of training images: their embeddings ``(N, D)`` of length 1, and a phrase of each."""

    embeddings: np.ndarray
    phrases: list[str]

    @classmethod
    def of(cls, embeddings: np.ndarray, phrases: list[str]) -> Neighbours:
        """Make them of embeddings of any length."""
        return cls(_normalised(embeddings), phrases)

    def captions(self, embeddings: np.ndarray) -> tuple[str, ...]:
        """Return the phrase of the nearest region by cosine, for each of the embeddings ``(M, D)``."""
        if not len(embeddings):
            return ()
        rows = (_normalised(embeddings) @ self.embeddings.T).argmax(axis=1)
        return tuple(self.phrases[row] for row in rows.tolist())


def _normalised(embeddings: np.ndarray) -> np.ndarray:
    rows = np.asarray(embeddings, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def fcln_rows(
    model: Model,
    image: LoadedImage,
    boxes: Mapping[str, Proposed],
    limit: int,
    frequent: str,
    neighbours: Neighbours,
) -> dict[tuple[str, str], Regions]:
    """Return how FCLN and the controls describe one image, by row and column.

    With the true boxes FCLN describes just these, as they stand; all other boxes are proposals to it. The controls put
    their phrases on the boxes of the baselines, with their scores; and, as ``-refined``, on FCLN's final boxes with
    FCLN's scores, where they differ from it in the language alone.

    Args:
        model: FCLN.
        image: to describe.
        boxes: of each column, in pixels of the image.
        limit: proposals of its own.
        frequent: the phrase of the first control.
        neighbours: of the second control.
    """
    encoding, detector = model.encode(image), model.require("densecap", "be FCLN")
    rows: dict[tuple[str, str], Regions] = {}
    for column, proposed in boxes.items():
        given = model.describe(encoding, proposed.boxes)
        if column == "gt":
            refined = given
        elif column == "rpn":
            own, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, limit)
            refined = describe_proposals(model, encoding, own)
        else:
            refined = describe_proposals(model, encoding, encoding.to_input(proposed.boxes))
        rows[FCLN, column] = refined
        plain = replace(given, scores=proposed.scores)
        for regions, suffix in ((plain, ""), (refined, REFINED)):
            assert regions.features is not None
            rows[FREQUENT + suffix, column] = replace(regions, captions=(frequent,) * len(regions))
            rows[NEAREST + suffix, column] = replace(regions, captions=neighbours.captions(regions.features))
    return rows


def most_frequent_phrase(samples: Sequence[Sample]) -> str:
    """Return the phrase that most training regions have, words compared; of equals the first in the alphabet."""
    counts = Counter(
        " ".join(tokenize(phrase)) for sample in samples for references in sample.phrases for phrase in references
    )
    return min(counts, key=lambda phrase: (-counts[phrase], phrase))


def line(name: str, regions: Regions) -> dict[str, object]:
    """Return regions as a line of JSON, without their features."""
    return {
        "image": name,
        "width": regions.width,
        "height": regions.height,
        "boxes": [[round(v, 2) for v in box] for box in regions.boxes.tolist()],
        "scores": [] if regions.scores is None else regions.scores.tolist(),
        "captions": list(regions.captions or ()),
    }


# The RNN baselines


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


STAGES = ("proposals", "network", "language")


@dataclass
class Watch:
    """Milliseconds of one system's stages on one image: wall clock, and processor time of the process."""

    wall: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        wall, processor = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + 1000 * (time.perf_counter() - wall)
        self.processor[name] = self.processor.get(name, 0.0) + 1000 * (time.process_time() - processor)


@dataclass(frozen=True)
class Timed:
    """Systems to time: FCLN and the Region RNN, with external proposals and the RPN's; ``limit`` boxes for each.

    The Full Image RNN is the same network.
    """

    fcln: Model
    region: RegionRnn
    proposer: ProposalMethod
    nms: float
    limit: int

    def systems(self) -> dict[str, Callable[[Path, Watch], None]]:
        """Return by row and column what describes an image file; opening the file is no stage of any."""
        return {
            "fcln/rpn": self._fcln,
            "fcln/external": self._fcln_external,
            "region-rnn/rpn": self._crops,
            "region-rnn/external": self._crops_external,
        }

    @property
    def _detector(self) -> DenseCap:
        return self.fcln.require("densecap", "be FCLN")

    def _encode(self, image: LoadedImage) -> Encoding:
        """The backbone and the pyramid, which otherwise waits until it is needed."""
        encoding = self.fcln.encode(image)
        ImageMaps.pyramids([encoding.maps])
        return encoding

    def _fcln(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("network"):
            encoding = self._encode(image)
        with watch.stage("proposals"):
            detector = self._detector
            boxes, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, self.limit)
        self._second_stage(encoding, boxes, watch)

    def _fcln_external(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = self.proposer(image).suppressed(self.nms, self.limit).boxes
        with watch.stage("network"):
            encoding = self._encode(image)
        self._second_stage(encoding, encoding.to_input(boxes), watch)

    def _second_stage(self, encoding: Encoding, boxes: np.ndarray, watch: Watch) -> None:
        detector = self._detector
        with watch.stage("network"):
            (found,) = detector.region_head([encoding.maps], [boxes])
            _, rows = select(detector.box_coder, encoding, boxes, found, detector.config.final_nms)
        with watch.stage("language"):
            decoded = decode(detector.decoder, found.embeddings[rows], detector.config.decoding)
            for token_ids in decoded.token_ids.tolist():
                detector.vocabulary.decode(token_ids, detector.decoder.unknown)

    def _crops(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = rpn_proposals(self._detector, self.fcln.encode(image), self.nms, self.limit).boxes
        self._describe(image, boxes, watch)

    def _crops_external(self, path: Path, watch: Watch) -> None:
        image = open_image(path)
        with watch.stage("proposals"):
            boxes = self.proposer(image).suppressed(self.nms, self.limit).boxes
        self._describe(image, boxes, watch)

    def _describe(self, image: LoadedImage, boxes: np.ndarray, watch: Watch) -> None:
        with watch.stage("network"):
            features = self.region.features(image, torch.from_numpy(boxes))
        with watch.stage("language"):
            self.region.caption(features)


@torch.no_grad()
def take_times(
    timed: Timed, images: Sequence[Path], rounds: int, done: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Return milliseconds an image: by system ``wall`` and ``processor``, of each stage and their ``total``.

    Every system describes every image in every round, one after the other, after one image to warm up; the median
    over the rounds is taken for each image, then the mean over the images.
    """
    systems = timed.systems()
    for describe in systems.values():
        describe(images[0], Watch())
    watches: dict[str, list[list[Watch]]] = {name: [] for name in systems}
    for path in images:
        for name in systems:
            watches[name].append([])
        for _ in range(rounds):
            for name, describe in systems.items():
                watch = Watch()
                describe(path, watch)
                watches[name][-1].append(watch)
                done()
    return {name: {"wall": _means(of, "wall"), "processor": _means(of, "processor")} for name, of in watches.items()}


def _means(images: Sequence[Sequence[Watch]], clock: str) -> dict[str, float]:
    stages = {
        stage: sum(median(getattr(watch, clock).get(stage, 0.0) for watch in rounds) for rounds in images) / len(images)
        for stage in STAGES
    }
    return {**stages, "total": sum(stages.values())}
