"""``saywhere finetune``: adapt a model to users' own images, from a data set to one model with all parts."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saywhere import DEFAULT_MODEL
from saywhere import boxes as geometry
from saywhere import data as datasets
from saywhere.calibration import MATCH
from saywhere.data import Sample
from saywhere.data.sample import digest_of
from saywhere.errors import UserError
from saywhere.files import explain_full_disk, printable, put_in_place, read_record, write_text
from saywhere.images import ImageError
from saywhere.inference.claims import locked
from saywhere.loading import load
from saywhere.models.bundle import CARD, CONFIG, INFORMATION, Bundle
from saywhere.options import dataclass
from saywhere.regions import SHOWN
from saywhere.report import counted
from saywhere.stages.calibration import UNSEEN
from saywhere.stages.kinds import copy_model
from saywhere.stages.own_words import OwnWords, find_own, kind_of
from saywhere.stages.run import model_digest
from saywhere.text import tokenize
from saywhere.training import require_training
from saywhere.training.densecap import usable
from saywhere.training.progress import kept, tracked

if TYPE_CHECKING:
    import torch

    from saywhere.models.model import Model
    from saywhere.training import heads

RECORD, RUN = "finetune.json", "run"
"""In the model folder: the record of what it was made of, and the folder that a stopped run resumes from."""
HELD_OUT = 5
"""One image in this many is held out if the data has no validation split."""
STEPS = 40
"""Minimum number of training steps: few images are trained on for more epochs."""
SHARES = {0.25: 0.7, 0.375: 0.8, 0.5: 0.8}
"""Shares of the trained weights to try, the rest being the initial ones (Wortsman et al., 2022), and for each the
minimum word F1 with the initial phrases of regions that are not annotated. On everyday photographs METEOR falls by
.006 to .015 (docs/training.md)."""


@dataclass(frozen=True)
class Finetuned:
    """Outcome of a run.

    Attributes:
        model: the model folder.
        start, end: mean word F1 of the phrases of held-out boxes with the true ones, before and after, as the model
            describes these boxes.
        losses: negative log-probability of a held-out phrase, before and after. They choose among the shares that do
            not lower the F1: with few boxes they are more informative than decoded phrases.
        learnt, held_out: number of images trained on, and measured on.
        words: the new words.
        share: weight of the trained weights in the model; 0 if none was better and kept enough of the initial answers.
        found: share of the held-out boxes that the model finds and shows, before and after.
        kept: word F1 of the phrases of regions that are not annotated with the initial ones, from 0 to 1.
        problems: what is missing or broken in the data, one line each.
        reason: why the weights are those of the start; empty if they are not.
    """

    model: Path
    start: float
    end: float
    losses: tuple[float, float]
    learnt: int
    held_out: int
    words: tuple[str, ...]
    share: float
    found: tuple[float, float]
    kept: float
    problems: tuple[str, ...] = ()
    reason: str = ""

    def lines(self) -> list[str]:
        """Return a summary table as lines of text."""
        rows = [
            (counted(self.held_out, "held-out image"), "before", "after"),
            ("words of phrases (F1)", f"{self.start:.3f}", f"{self.end:.3f}"),
            ("boxes found", f"{self.found[0]:.3f}", f"{self.found[1]:.3f}"),
            ("loss of a phrase", f"{self.losses[0]:.2f}", f"{self.losses[1]:.2f}"),
            ("other phrases kept", "1.000", f"{self.kept:.3f}"),
        ]
        return [f"{title:26}{before:>8}{after:>8}" for title, before, after in rows]


@dataclass(frozen=True)
class _Own:
    """A user's images: those to train on, and those held out."""

    learnt: list[Sample]
    held_out: list[Sample]
    name: str
    problems: tuple[str, ...]


def finetune(
    data: str | Path,
    out: str | Path | None = None,
    *,
    model: str | Path = DEFAULT_MODEL,
    format: str | None = None,
    split: str = "train",
    validation: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    restart: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> Finetuned:
    """Fine-tune a model on your own images, as ``saywhere finetune`` does; calling it again resumes a stopped run.

    Only the layers that write the phrases of regions, and the one that scores their boxes, are trained; the boxes and
    all other parts stay the same. For regions that are not annotated, the model's original answers are the target.

    Args:
        data: a data set with boxes and phrases, or class names.
        out: folder of the new model, with all parts; None for ``runs/NAME``, NAME from the data.
        model: the model to start from.
        format: format of the data; None detects it from the files.
        split: split to train on.
        validation: split to measure on; None for one that begins with dev or val, or else a fifth of the images.
        epochs: maximum number of epochs; None chooses it by the number of images.
        seed: seed of all random choices.
        restart: start over instead of resuming the run in ``out``.
        tell: called with lines about progress.

    Returns:
        The folder, and how good the model is before and after. If it is not better, the folder holds the original
        model.

    Raises:
        UserError: training is not installed, the data has too few images with boxes and words, ``out`` has another
            model or run, or the disk is full.
        KeyboardInterrupt: after Ctrl-C; the same call resumes.

    Example:
        >>> done = saywhere.finetune("my-images", out="mine")  # doctest: +SKIP
        >>> done.end > done.start  # doctest: +SKIP
        True
    """
    require_training()
    root = Path(data)
    folder = Path(out) if out is not None else Path("runs", root.resolve().stem)
    bundle = Bundle.read(model)
    if "densecap" not in bundle.configs:
        raise UserError(f"{model} has no part densecap, which is what is fine-tuned; name another with --model")
    own = _read(root, format, split, validation, bundle, seed, tell)
    settings = {
        "model": model_digest(str(model)), "split": [split, validation], "epochs": epochs, "seed": seed,
        "data": digest_of(sorted([*own.learnt, *own.held_out], key=lambda sample: sample.image)),
    }  # fmt: skip
    with explain_full_disk(folder), locked(run := folder / RUN):
        try:
            if (result := _begin(folder, settings, restart)) is not None:
                tell(f"{folder}: done before")
            else:
                result = _Run(folder, bundle, own, epochs, seed, tell)()
                record = {"settings": settings, "result": _stored(result)}
                write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{folder}: stopped; run it again to continue") from None
        except UserError:
            if [path.name for path in run.iterdir()] == ["lock"]:  # nothing was begun
                shutil.rmtree(run, ignore_errors=True)
                if not (folder / CONFIG).exists():
                    (folder / RECORD).unlink(missing_ok=True)
            raise
        shutil.rmtree(run, ignore_errors=True)
        return result


def _stored(result: Finetuned) -> dict[str, Any]:
    return {name: value for name, value in asdict(result).items() if name != "model"}


def _begin(folder: Path, settings: Mapping[str, Any], restart: bool) -> Finetuned | None:
    """Prepare the folder of a run; return its outcome if it is already done."""
    record = read_record(folder / RECORD)
    others = sorted(path.name for path in folder.iterdir() if path.name != RUN and not path.name.startswith("."))
    if others and not record:
        what = "another model" if CONFIG in others else f"{printable(others[0])}, which does not belong to a model"
        raise UserError(f"{folder} has {what}: name another folder with --out")
    if restart:
        for path in (folder / RUN).iterdir():
            shutil.rmtree(path) if path.is_dir() else None
    elif changed := [name for name, value in settings.items() if record and record["settings"].get(name) != value]:
        what = " and ".join(changed)
        raise UserError(f"{folder} has a run that differs in {what}: name another folder with --out, or add --restart")
    elif (result := record.get("result", {})).get("losses"):
        lists = {name: tuple(result[name]) for name in ("losses", "words", "problems", "found")}
        return Finetuned(folder, **{**result, **lists})
    write_text(folder / RECORD, json.dumps({"settings": dict(settings)}, indent=1) + "\n")
    return None


def _read(root: Path, format: str | None, split: str, validation: str | None, bundle: Bundle, seed: int,
    tell: Callable[[str], object],
) -> _Own:  # fmt: skip
    """Return the usable images of a data set; ``UserError`` if there are too few."""
    there = datasets.splits(root, format)
    others = [name for name in there if name != split]
    named = validation or next((name for other in UNSEEN for name in others if name.startswith(other)), None)
    if named == split:
        raise UserError(f"{root}: --split and --validation are both {split}: images that teach cannot be measured on")
    longest = bundle.configs["densecap"].decoding.max_words
    read = [datasets.read(root, format, name) for name in (split, named) if name is not None]
    if drafts := sum(samples.report.drafts for samples in read):
        tell(f"warning: the regions of {counted(drafts, 'image')} are drafts of a program that nobody has corrected")
    problems = [f"{s.split}: {line}" for s in read if not s.report.ok for line in s.report.lines()]
    for samples in read:
        for line in samples.report.lines() if samples.report.ok else ():
            tell(f"{samples.split}: {line}")
    sets = [usable(samples, longest) for samples in read]
    for samples, good in zip(read, sets, strict=True):
        if lost := sum(len(sample.boxes) for sample in samples) - sum(len(sample.boxes) for sample in good):
            tell(f"{samples.split}: {counted(lost, 'box')} left out, whose phrases have no word or more than {longest}")
    if len(sets) == 1:
        order = np.random.default_rng(seed).permutation(len(sets[0])).tolist()
        chosen = {*order[: max(1, round(len(order) / HELD_OUT))]}
        parts = [[sample for row, sample in enumerate(sets[0]) if (row in chosen) == kept] for kept in (False, True)]
    else:
        measured = {sample.image.resolve() for sample in sets[1]}
        parts = [[sample for sample in sets[0] if sample.image.resolve() not in measured], sets[1]]
        if both := len(sets[0]) - len(parts[0]):
            tell(f"{split}: {counted(both, 'image')} left out, which {named} has, too: they are measured on")
    learnt, held_out = parts
    if not learnt or not held_out:
        counts = (
            f"{named} has {len(held_out)} and {split} has {len(learnt)}" if named else f"{split} has {len(sets[0])}"
        )
        why = "; ".join([counts, *problems[:2]])
        raise UserError(
            f"{root}: fine-tuning needs images with boxes and words to learn from, and another to measure on; {why}"
        )
    return _Own(learnt, held_out, read[0].name, tuple(problems))


@dataclass(frozen=True)
class _Choice:
    """A share of the trained weights, the loss of a held-out phrase with it, and how much of the others is kept."""

    share: float
    loss: float
    kept: float


def _why_not(better: Sequence[_Choice], worse: Sequence[float], start: float) -> str:
    """Return why no share was chosen.

    Args:
        better: the shares with a lower loss.
        worse: the word F1 of those that keep enough.
        start: the word F1 of the start.
    """
    if worse:
        return (
            "with the new weights the model says fewer of the words of the held-out phrases "
            f"(F1 {start:.3f} before, {max(worse):.3f} after), although they become more probable; use more images"
        )
    if not better:
        return "no new weights give the phrases of the held-out images a higher probability; use more images"
    share, kept = better[0].share, better[0].kept
    return (
        f"already {share:g} of the new weights change too many phrases of what you did not annotate: {kept:.2f} of "
        f"their words stay, and {SHARES[share]:g} must; annotate more of what the images show, or add images "
        "without your things"
    )


class _Run:
    """One run: its steps in order, each resuming where it was stopped."""

    def __init__(
        self, folder: Path, bundle: Bundle, own: _Own, epochs: int | None, seed: int, tell: Callable[[str], object]
    ):
        from saywhere.networks import checkpoint
        from saywhere.training import heads

        self.folder, self.bundle, self.own, self.seed, self.tell = folder, bundle, own, seed, tell
        self.made = folder / RUN / "model"
        self.networks: dict[str, Any] = dict(checkpoint.load_networks(bundle.folder))
        texts = [phrase for sample in own.learnt for references in sample.phrases for phrase in references]
        self.network, self.words = heads.with_words(self.networks["densecap"], texts)
        self.networks["densecap"] = self.network
        self.new = [self.network.vocabulary.encode(word)[0] for word in self.words]
        self.skipped: list[str] = []
        self.information = checkpoint.read_information(bundle.folder, self.network.config.embed_dim + 1)
        if self.information is None:
            tell(f"scores of boxes stay: {bundle.folder} has no {INFORMATION} (saywhere calibrate --what box)")
        self.epochs = epochs or max(heads.EPOCHS, -(-STEPS // -(-len(own.learnt) // heads.BATCH)))

    def __call__(self) -> Finetuned:
        """Train, choose the share, and write the model."""
        from saywhere.training import heads
        from saywhere.training.card import replace_section

        learnt, held_out = self.own.learnt, self.own.held_out
        new = f"; new words: {', '.join(self.words)}" if self.words else ""
        self.tell(f"{self.own.name}: {counted(len(learnt), 'image')} to learn from, {len(held_out)} held out{new}")
        layers = heads.Heads(self.network).eval()
        before = copy.deepcopy(layers)
        lessons = self._lessons(before, learnt, "learnt"), self._lessons(before, held_out, "held-out")
        own = self._own_words()
        self.new = [self.network.vocabulary.encode(word)[0] for word in own.words]
        epoch = heads.train(layers, *lessons, self.epochs, self.seed, self.new)
        trained = copy.deepcopy(layers.state_dict())
        kinds = {*own.words.values()} - {""}
        initial, *tried = self._try(layers, before, trained if epoch else {}, lessons, kinds)
        start_score = copy.deepcopy(self.network.region_head.score)
        self._learn_scores(lessons)

        def make(share: float) -> Model:
            self._mix(layers, before, trained, share)
            return load(self._make(share, own, before, start_score))

        chosen, model, f1, reason = self._choose(initial, tried, make)
        found = self._found(load(self.bundle.folder)), self._found(model)  # the phrases count for the scores, too
        result = Finetuned(
            self.folder, *f1, (initial.loss, chosen.loss), len(learnt), len(held_out), self.words, chosen.share,
            found, chosen.kept, (*self.own.problems, *self.skipped), reason,
        )  # fmt: skip
        replace_section((made := self.made) / CARD, "## Fine-tuning", self._card(epoch, result))
        write_text(made / CARD, retitled((made / CARD).read_text("utf-8"), self.folder.name, self.bundle.folder.name))
        self._put_in_place(made)
        return result

    def _try(
        self,
        layers: heads.Heads,
        before: heads.Heads,
        trained: Mapping[str, Any],
        lessons: tuple[Sequence[heads.Lesson], Sequence[heads.Lesson]],
        kinds: Container[str],
    ) -> list[_Choice]:
        """Measure the start and then each of the :data:`SHARES` of the trained weights, if there are any.

        Args:
            lessons: those of the images to train on, and of the held-out ones.
            kinds: what the initial model calls the user's things. Regions with such phrases may get the user's words.
        """
        from saywhere.training import heads

        vocabulary, (learnt, held_out) = self.network.vocabulary, lessons

        def say(some: heads.Heads, regions: torch.Tensor) -> list[str]:
            return [vocabulary.decode(token_ids) for token_ids in some.say(regions).tolist()] if len(regions) else []

        def others_of(some: Sequence[heads.Lesson]) -> tuple[torch.Tensor, list[str]]:
            regions = heads.others(some)
            said = say(before, regions)
            rows = [row for row, phrase in enumerate(said) if kind_of(phrase) not in kinds]
            return regions[rows], [said[row] for row in rows]

        def loss(some: heads.Heads) -> float:
            return round(heads.measure(some, before, held_out)[0], 6)

        others, then = others_of(held_out)
        if not then:
            others, then = others_of(learnt)
        tried = [_Choice(0.0, loss(before), 1.0)]
        for share in SHARES if trained else ():
            self._mix(layers, before, trained, share)
            pairs = [(now, [old]) for now, old in zip(say(layers, others), then, strict=True)]
            same = round(float(np.mean(same_words(pairs))), 6) if pairs else 1.0
            tried.append(_Choice(share, loss(layers), same))
        return tried

    def _choose(
        self, start: _Choice, tried: Sequence[_Choice], make: Callable[[float], Model]
    ) -> tuple[_Choice, Model, tuple[float, float], str]:
        """Choose the share with the lowest loss of those that keep enough and do not lower the word F1.

        ``make`` makes the model with a share, which is 0 for the start.

        Returns:
            The share, its model, the word F1 before and after, and why it is 0, if so.
        """
        before = self._word_f1(load(self.bundle.folder))
        better = [one for one in tried if one.loss < start.loss]
        passing = [one for one in better if one.kept >= SHARES[one.share]]
        worse: list[float] = []
        for one in sorted(passing, key=lambda one: one.loss):
            after = self._word_f1(model := make(one.share))
            if after >= before:
                return one, model, (before, after), ""
            worse.append(after)
        return start, make(0.0), (before, before), _why_not(better, worse, before)

    def _word_f1(self, model: Model) -> float:
        """Return the mean word F1 of the phrases that a model gives the held-out boxes, with the true ones."""
        pairs = [pair for sample in self.own.held_out for pair in _described(model, sample)]
        return round(float(np.mean(same_words(pairs))), 6) if pairs else 0.0

    def _learn_scores(self, lessons: tuple[Sequence[heads.Lesson], Sequence[heads.Lesson]]) -> None:
        """Fit the layer that scores boxes, and keep the fit if it is better on the held-out images.

        Without the information of everyday photographs the layer stays as it is.
        """
        import torch

        from saywhere.training import heads

        layer, information = self.network.region_head.score, self.information
        if information is None:
            return
        learnt, held_out = ([lesson.regions for lesson in some] for some in lessons)
        change = heads.fit_scores(learnt, information)
        if heads.score_loss(change, held_out) >= heads.score_loss(np.zeros_like(change), held_out):
            return
        with torch.no_grad():
            layer.weight.add_(torch.from_numpy(change[None, :-1]).to(layer.weight))
            layer.bias.add_(torch.from_numpy(change[-1:]).to(layer.bias))

    def _found(self, model: Model) -> float:
        """Return the share of the held-out boxes that a model finds with a score of at least :data:`SHOWN`."""
        marks: list[bool] = []
        for sample in self.own.held_out:
            try:
                regions = model.describe(sample.image, threshold=SHOWN)
            except ImageError:  # it was there when its regions were found
                continue
            marks += (geometry.iou(sample.boxes, regions.boxes).max(axis=1, initial=0) >= MATCH).tolist()
        return round(float(np.mean(marks)), 6) if marks else 0.0

    def _own_words(self) -> OwnWords:
        """Return the words and names that the initial model does not use as the user does, and name unclear ones."""
        model = load(self.bundle.folder)
        samples = tracked("comparing with the phrases of the start", self.own.learnt)
        described = (pair for sample in samples for pair in _described(model, sample))
        own, unclear = find_own(described, self.words, self.bundle.configs["densecap"], model.nouns)
        if unclear:
            self.tell(f"ground and search will not find {', '.join(unclear)}: the model calls these things differently")
        return own

    def _mix(self, layers: heads.Heads, before: heads.Heads, trained: Mapping[str, Any], share: float) -> None:
        """Mix initial and trained weights in the layers; rows of new words take the trained ones alone."""
        import torch

        from saywhere.training.finetuning import WORD_ROWS

        start = before.state_dict()
        mixed = {
            name: torch.lerp(value, trained[name], share) if trained and value.is_floating_point() else value
            for name, value in start.items()
        }
        for name, value in mixed.items():
            if share and name.endswith(WORD_ROWS):
                value[self.new] = trained[name][self.new]
        layers.load_state_dict(mixed)

    def _lessons(self, before: heads.Heads, samples: list[Sample], kind: str) -> list[heads.Lesson]:
        """Find the regions of images, or read stored ones; remove unreadable images from the list."""
        from saywhere.training import heads

        found: list[heads.Regions] = []
        for number, sample in enumerate(tracked(f"looking at the {kind} images", list(samples))):
            path = self.folder / RUN / kind / f"{number:06}.npz"
            try:
                arrays = kept(path, lambda sample=sample: vars(heads.find_regions(self.network, sample, self.seed)))
                found.append(heads.Regions(**arrays))
            except ImageError as error:
                samples.remove(sample)
                self.skipped.append(str(error))
        if not samples:
            raise UserError(f"none of the {kind} images can be read; the first: {self.skipped[0]}")
        return heads.lessons(before, self.network.vocabulary, samples, found)

    def _make(self, share: float, own: OwnWords, before: heads.Heads, score: torch.nn.Module) -> Path:
        """Make the model in the folder of the run, all but its card: the original parts except what was trained.

        ``before`` and ``score`` are the layers of the start.
        """
        from saywhere.networks import checkpoint

        copy_model(self.bundle.folder, made := self.made)
        (made / RECORD).unlink(missing_ok=True)  # from a start that was itself fine-tuned
        if share:
            weights = {k: v for k, v in self.network.state_dict().items() if not k.startswith("trunk.")}
            if self.network.start is None:
                weights |= {f"start.{name}": value for name, value in before.state_dict().items()}
                weights |= {f"start.score.{name}": value for name, value in score.state_dict().items()}
            options = {"densecap": {"finetuned": True, "own_words": own.words, "own_names": own.names}}
            checkpoint.change_weights(made, "densecap", weights, options, self.network.vocabulary)
        return made

    def _put_in_place(self, made: Path) -> None:
        """Move the files of the model to its folder, the configuration last."""
        (self.folder / CONFIG).unlink(missing_ok=True)  # with new weights it would describe another model
        for path in sorted(made.iterdir(), key=lambda path: path.name == CONFIG):
            put_in_place(path, self.folder / path.name)

    def _card(self, epoch: int, result: Finetuned) -> str:
        if not result.share:
            what = (
                "No weights were better on the held-out images that also keep the rest, so they are those of the start."
            )
        else:
            what = f"Of the weights {result.share:g} are those after epoch {epoch}, and the rest those of the start. "
            what += (
                "Only the layers that write phrases and the one that scores boxes were trained; the boxes and the "
                "calibrations are those of the start."
            )
        about = f"{counted(result.learnt, 'image')} of {self.own.name}, seed {self.seed}"
        words = f"\n\nNew words: {', '.join(result.words)}." if result.words and result.share else ""
        figures = "\n".join(result.lines())
        return f"From {self.bundle.folder.name}, on {about}. {what}{words}\n\n```\n{figures}\n```\n"


def retitled(card: str, name: str, start: str) -> str:
    """Return the card of a model that was fine-tuned from ``start``, under its own name.

    Example:
        >>> retitled("# a\\n\\nOf a.", "b", "a").splitlines()[0]
        '# b'
    """
    rest = re.sub(r"\A# .*\n+(?:.* \[fine-tuned\]\(#fine-tuning\)\. .*\n+)?", "", card)
    about = f"The model {start}, [fine-tuned](#fine-tuning). What follows was written about {start}."
    return f"# {printable(name)}\n\n{about}\n\n{rest}"


def same_words(pairs: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return for each phrase the highest F1 of its words with those of a reference.

    Example:
        >>> same_words([("a red car", ["car", "a bus"]), ("a dog", ["the sky"])])
        [0.5, 0.0]
    """
    scores: list[float] = []
    for phrase, references in pairs:
        said = Counter(tokenize(phrase))
        true = [Counter(tokenize(reference)) for reference in references]
        scores.append(max(2 * (said & each).total() / max((said.total() + each.total()), 1) for each in true))
    return scores


def _described(model: Model, sample: Sample) -> list[tuple[str, Sequence[str]]]:
    """Return the phrase that a model gives each true box of an image, and the true phrases; none if it has gone."""
    try:
        regions = model.describe(sample.image, boxes=sample.boxes)
    except ImageError:  # it was there when its regions were found
        return []
    return list(zip(regions.captions or (), sample.phrases, strict=True))
