"""``saywhere evaluate TASK``: measure a model, or the answers of another program."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.printing import print_table, skip_notes
from saywhere.errors import NoSplitError, UserError, explain_oom
from saywhere.loading import Runtime, load_model
from saywhere.report import counted, progress

if TYPE_CHECKING:
    from saywhere.evaluation.captions import CaptionScores
    from saywhere.evaluation.session import Progress, Session
    from saywhere.models.model import Model

Data = Annotated[Path, typer.Option("--data", metavar="ROOT", help="Folder of the data set, or a .jsonl file.")]
EntitiesData = Annotated[
    Path, typer.Option("--data", metavar="ROOT", help="Folder of Flickr8k or Flickr30k with Flickr30k Entities.")
]
Predictions = Annotated[
    Path | None, typer.Option("--predictions", metavar="FILE", help="Score these answers instead (JSON lines).")
]
Truth = Annotated[
    Path | None, typer.Option("--truth", metavar="FILE", help="Ground truth for --predictions (JSON lines).")
]

app = typer.Typer(help="Measure a model on a data set.", no_args_is_help=True)


@app.callback()
def _evaluate() -> None:
    pass


class Task(NamedTuple):
    """An evaluation task: its name, and the options that all tasks share."""

    data: options.DataRoot
    model: options.ComparedModels = None
    format: options.DataFormat = None
    split: options.Split = None
    change: options.Set = None
    limit: options.Limit = None
    out: options.Out = Path("evaluation")
    batch: options.Batch = 8
    device: options.Device = None
    engine: options.Engine = None
    threads: options.Threads = None
    precision: options.Precision = None
    name: str = ""

    @property
    def models(self) -> Sequence[str]:
        """The named models."""
        return [self.model] if isinstance(self.model, str) else self.model or []

    @property
    def runtime(self) -> Runtime:
        """Where and how the model runs."""
        return Runtime(self.device, self.engine, self.threads, self.precision)

    def load(self, part: str | None = None, model: str | None = None) -> Model:
        """Load the task's model, or the named one; raise :class:`UserError` if it lacks the part."""
        return load_model(model or (self.models[0] if self.models else None), self.runtime, self.change, part)

    @contextlib.contextmanager
    def session(
        self, written: str = "report.json", model: str | None = None, truth: Path | None = None
    ) -> Iterator[Session]:
        """Yield an evaluation session; at its end, print what was written and left out, and exit with 1 if incomplete.

        Args:
            written: the files in ``out`` besides ``report.md``.
            truth: ground truth of the predictions, if these are scored instead of a model.
        """
        from saywhere.evaluation.session import Session

        data = truth or self.data
        assert data is not None
        name = None if truth else model or ", ".join(self.models) or DEFAULT_MODEL
        command = shlex.join(["saywhere", *sys.argv[1:]])
        with explain_oom(self.batch), _bars() as bars:
            now = Session(
                data, self.out, self.format, self.split, self.limit, self.batch, name,
                self.change or (), bars, command, self.name,
            )  # fmt: skip
            try:
                yield now
            except NoSplitError as error:
                way_out = f"; give --split {error.known[0]}" if error.known and self.split is None else ""
                raise UserError(f"{error}{way_out}") from error
        for note in [*skip_notes(now.skipped), *now.notes]:
            typer.echo(note, err=True)
        typer.echo(f"written: {self.out / 'report.md'}, {written}")
        if not now.complete:
            raise typer.Exit(1)

    def measures_model(self, predictions: Path | None, truth: Path | None, *own: object) -> bool:
        """Return whether a model is measured on ``--data``; False if predictions are scored.

        Args:
            own: the task's own options that only apply to a model.

        Raises:
            UserError: the options fit neither.
        """
        if self.data and not (predictions or truth):
            return True
        chosen = (*self.runtime, self.change)
        if predictions and truth and not any((self.data, self.models, self.format, *own, *chosen)):
            return False
        raise UserError(
            "give --data to measure a model; or --predictions and --truth, without options of a model or data set"
        )


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    """Yield a function that shows progress, with one bar at a time for each kind of work."""
    with contextlib.ExitStack() as stack:
        shown: dict[str, Callable[[], None]] = {}

        def show(what: str, done: int, total: int) -> None:
            if what in shown:
                shown[what]()
            else:
                stack.close()
                shown.clear()
                shown[what] = stack.enter_context(progress(what, total, done))

        yield show


EXIT_CODES = "Exit code: 0 success; 1 images were skipped or the data set is incomplete; 2 error."
"""The last paragraph of the help of all tasks."""


def task(
    group: typer.Typer, name: str, data: Any = Data, model: Any = options.Model, omit: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a command with the options of :class:`Task` and exit codes.

    Args:
        group: the commands that it belongs to.
        name: its name, one in :data:`saywhere.evaluation.report.TASKS`.
        data: declaration of ``--data``, which is required unless it may be None.
        model: declaration of ``--model``. With :data:`saywhere.cli.options.ComparedModels` the command compares
            several models.
        omit: shared options that the command does not have.
    """
    defaults = {"out": Path("evaluation", name)} | ({"data": None} if data is options.DataRoot else {})
    shared = options.options_of(Task, {"data": data, "model": model}, **defaults)
    shared = [each for each in shared if each.name not in ("name", *omit)]
    place = [each.name for each in shared].index("change")  # between what is measured and how

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def called(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in shared}
            if model is options.ComparedModels:
                from saywhere.cli.comparing import one_or_compare

                values["model"] = one_or_compare(name, values["model"], values["out"], values["data"])
            command(Task(name=name, **values), **given)

        command.__doc__ = f"{inspect.getdoc(command)}\n\n{EXIT_CODES}"
        return group.command(name)(options.declare(called, command, [*shared[:place], *own, *shared[place:]]))

    return decorate


class Part(StrEnum):
    """The part of the model that places the phrases."""

    aligner = "aligner"


@task(app, "dense", options.DataRoot, options.ComparedModels)
def dense(
    now: Task,
    predictions: Predictions = None,
    truth: Truth = None,
    protocol: options.Protocol = typer.Option(
        options.Protocol.clean, help="clean: the paper's definition; original: as the published DenseCap program counts"
    ),
) -> None:
    """Dense captioning: mean average precision (mAP) of boxes with captions.

    Give --data for a model with a dense captioner, or --predictions and --truth.
    """
    from saywhere.evaluation.dense import run, score_files

    loaded = now.load("densecap") if now.measures_model(predictions, truth) else None
    with now.session("report.json, examples.html", truth=truth) as session:
        asked = protocol.value
        result = run(loaded, session, asked) if loaded else score_files(Path(predictions or ""), session, asked)
        typer.echo(
            f"{counted(result.images, 'image')}, protocol {result.protocol}: mAP {result.map:.4f}, "
            f"detection mAP {result.detection_map:.4f}, language METEOR {result.language_meteor:.4f}"
        )


@task(app, "caption", options.DataRoot, options.ComparedModels)
def caption(
    now: Task, beam_size: options.BeamSize = None, predictions: Predictions = None, truth: Truth = None
) -> None:
    """Captions of whole images: BLEU, METEOR, ROUGE-L and CIDEr-D.

    Give --data for a model with a captioner, or --predictions and --truth.
    """
    from saywhere.evaluation.captions import run, score_files

    loaded = now.load("captioner") if now.measures_model(predictions, truth, beam_size) else None
    with now.session("report.json, examples.html", truth=truth) as session:
        print_scores(run(loaded, session, beam_size) if loaded else score_files(Path(predictions or ""), session))


def figure(value: float | None) -> str:
    """Return a figure with three decimals, or a hyphen if there was nothing to measure."""
    return "-" if value is None else f"{value:.3f}"


def print_scores(scores: CaptionScores, what: str = "image") -> None:
    """Print the figures of all images."""
    figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
    typer.echo(f"{counted(len(scores.cider), what)}: {figures}")


@task(app, "region-captions")
def region_captions(now: Task) -> None:
    """Captions of given boxes: BLEU, METEOR, ROUGE-L and CIDEr-D.

    Also words per phrase, the number of different phrases, and how often words for a person's sex and for colours are
    right where the true phrases name them.

    Needs a model with a dense captioner, or with a captioner without attention.
    """
    from saywhere.evaluation.region_captions import run

    loaded = now.load()
    with now.session() as session:
        scores = run(loaded, session)
        print_scores(scores, "box")
        words = scores.words
        typer.echo(
            f"{words.words:.2f} words per phrase, {words.distinct} different phrases (truth: {words.distinct_true})"
        )
        for what, boxes, said, right in (
            ("sex", words.sex_boxes, words.sex_said, words.sex_right),
            ("colour", words.colour_boxes, words.colour_said, words.colour_right),
        ):
            shares = "" if said is None else f", named in {said:.4f}"
            shares += "" if right is None else f", right in {right:.4f} of these"
            typer.echo(f"{what}: {counted(boxes, 'box')}{shares}")


@task(app, "rank", model=options.ComparedModels)
def rank(now: Task) -> None:
    """Ranking of sentences per image and of images per sentence (Alignments, section 4.1).

    Needs a model with an aligner.
    """
    from saywhere.evaluation.ranking import run

    loaded = now.load("aligner")
    with now.session() as session:
        result = run(loaded, session)
        typer.echo(f"annotation: {result.image_to_text}\nsearch: {result.text_to_image}")


@task(app, "search", omit=["precision"])
def search(
    now: Task,
    among: list[Path] | None = typer.Option(
        None,
        metavar="ROOT",
        help="Data set whose images of the split train are added to the index, to measure whether the search tells "
        "what is there; may be repeated.",
    ),
) -> None:
    """Search in an index: sentences, phrases with their regions, and queries that no image shows.

    Needs a model with an aligner.
    """
    from saywhere.evaluation.search import run

    loaded = now.load("aligner")
    with now.session() as session:
        result = run(loaded, session, among=among or ())
        typer.echo(str(result.recall))
        if result.hit is not None:
            typer.echo(f"phrases: {result.hit:.3f} right in the first image ({counted(result.phrases, 'phrase')})")
        if (layout := result.layout) is not None:
            named = {"two things or one": layout.counts, "colours": layout.colours,
                     "places": layout.places, "relations": layout.relations}  # fmt: skip
            shares = ", ".join(f"{name} {share:.3f}" for name, share in named.items() if share is not None)
            typer.echo(f"accuracy: {shares}")
        if (there := result.presence) is not None:
            error = f"calibration error {there.calibration_error:.3f}"
            typer.echo(f"probabilities of hits: AUC {figure(there.auc)}, {error}")
            head = ["images", "queries", "number", "error", "AUC", "median, right", "median, absent"]
            rows = [
                [str(one.images), one.kind, str(one.queries)]
                + [figure(value) for value in (one.error, one.auc, one.right, one.absent)]
                for one in there.groups
            ]
            print_table(head, rows, left=["queries"])
            typer.echo(f"weights of the probability of hits, fitted here: {there.hit}")


@task(app, "ground", model=options.ComparedModels, omit=["format"])
def ground(
    now: Task,
    part: Part | None = typer.Option(
        None,
        show_default="all parts, as saywhere ground",
        help="Measure the aligner alone: it reads the whole sentence and is told where its phrases are.",
    ),
) -> None:
    """Grounding of phrases: accuracy at an IoU of 0.5 with the true box, and the pointing game.

    Without --part, the model is also asked for phrases of other images, and the data may be any with phrases and
    boxes. With --part they must be Flickr30k Entities.
    """
    from saywhere.evaluation.grounding import RARE, run

    chosen = None if part is None else part.value
    loaded = now.load(chosen)
    with now.session() as session:
        scores = run(loaded, session, chosen)
        for title, result in {"model": scores.model, **scores.controls}.items():
            typer.echo(
                f"{title}: accuracy {result.accuracy:.3f}, pointing {result.pointing:.3f} "
                f"({counted(result.phrases, 'phrase')})"
            )
            for kind, score in result.by_type.items():
                if kind == RARE:
                    typer.echo(f"  {kind}: accuracy {score.accuracy:.3f} ({counted(score.phrases, 'phrase')})")
        if (presence := scores.presence) is not None:
            typer.echo(
                f"phrases found or not: accuracy {figure(presence.accuracy)}, found {figure(presence.found)}, phrases "
                f"of other images refused {figure(presence.refused)} ({presence.others:,}); AUC {figure(presence.auc)}"
                f", calibration error {presence.calibration_error:.3f}"
            )
            if (boxes := presence.boxes) is not None:
                typer.echo(
                    f"scores of {counted(boxes.boxes, 'found phrase')}: calibration error {boxes.ece:.3f}, "
                    f"AUC {figure(presence.box_auc)}"
                )


@task(app, "nouns")
def nouns(now: Task) -> None:
    """Accuracy of nouns for the true boxes: from the decoder, from the classifier, and from captions.

    A noun is right if it is the noun of the true phrase, a synonym or a kind of it. A caption is right about each box
    whose noun it has.
    """
    from saywhere.evaluation.nouns import run

    loaded = now.load("densecap")
    with now.session() as session:
        result = run(loaded, session)
        for way, share in result.kinds.items():
            kinds = counted(len(result.by_kind), "kind")
            typer.echo(f"{way}: {share:.3f} mean over {kinds}, {result.objects[way]:.3f} of all boxes")


@task(app, "attention", EntitiesData, omit=["format"])
def attention(now: Task) -> None:
    """Attention correctness on Flickr30k Entities: the share of attention inside the boxes of what a word names.

    Uniform attention over the same regions is measured for comparison. Needs a captioner with attention.
    """
    from saywhere.evaluation.attention import SENTENCES, percent, run

    loaded = now.load("captioner")
    with now.session() as session:
        figures = run(loaded, session)
        for kind in SENTENCES:
            found, uniform = percent(figures[kind]), percent(figures[f"uniform_{kind}"])
            mentions = figures[f"{kind}_mentions"]
            typer.echo(f"{kind}: {found} %, uniform attention {uniform} % ({counted(mentions, 'mention')})")


@app.command("chunks")
def chunks(
    data: EntitiesData,
    split: options.Split = None,
    chunker: Path | None = typer.Option(
        None, metavar="FILE", show_default="the bundled one", help="Weights written by a stage of the kind chunker."
    ),
) -> None:
    """F1 of the phrases that sentences are split into: right if annotators marked the same words. Needs no images."""
    from saywhere.evaluation.grounding import measure_chunks
    from saywhere.evaluation.session import DEV
    from saywhere.models.chunker import TRAINED, Chunker
    from saywhere.training.chunker import read_split

    scores = measure_chunks(Chunker.load(chunker or TRAINED), read_split(data, split or DEV))
    typer.echo(
        f"F1 {scores.f1:.3f}, precision {scores.precision:.3f}, recall {scores.recall:.3f}, "
        f"visible phrases alone F1 {scores.visible_f1:.3f} ({counted(scores.phrases, 'phrase')})"
    )
