"""``saywhere ground``: find the part of an image that each phrase of a text is about."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli.options import (
    PATHS,
    STDOUT,
    Batch,
    Beta,
    Chosen,
    Drawings,
    Json,
    Part,
    Regions,
    read_texts,
)
from saywhere.cli.printing import each_result, note_words, on_terminal, print_table, report_skipped
from saywhere.errors import UserError
from saywhere.loading import DeferredModel
from saywhere.options import dataclass

if TYPE_CHECKING:
    import numpy as np

    import saywhere
    from saywhere.images import LoadedImage

GREY = (128, 128, 128)
PLURALS = "Images, folders, tar archives, or quoted patterns"
ONE_PATH = PATHS.replace(PLURALS, "An image, a folder, a tar archive, or a quoted pattern")


PartName = Annotated[
    Part | None,
    typer.Option("--part", show_default="densecap if the model has it", help="Part of the model that finds the boxes."),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", min=0, max=1, metavar="P", show_default="0.5, or the model's own",
        help="Minimum probability that the image shows a phrase, for the phrase to be found.",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Grounded:
    """The phrases of a text in an image.

    Attributes:
        regions: the best region of each phrase, found or not.
        presence: ``(P,)`` probability that the image shows each phrase; None if all are found.
        least: minimum presence of a found phrase.
        names: ``(P,)`` texts to print, see :meth:`saywhere.models.layout.Layout.names`; None for the phrases.
        alignment: alignment of the words, if the text was cut where the box changes.
    """

    regions: saywhere.Regions
    presence: np.ndarray | None = None
    least: float = 0.0
    names: Sequence[str] | None = None
    alignment: saywhere.Alignment | None = None

    @property
    def width(self) -> int:
        """Width of the image."""
        return self.regions.width

    @property
    def height(self) -> int:
        """Height of the image."""
        return self.regions.height

    @property
    def there(self) -> list[bool]:
        """Whether each phrase is found."""
        return [True] * len(self.regions) if self.presence is None else (self.presence >= self.least).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return ``image, width, height, phrases``; for each phrase its words, whether it is found, and its box."""
        from saywhere.regions import TEXTS

        if self.alignment is not None:
            return self.alignment.to_dict()
        found, phrases = self.regions, list[dict[str, Any]]()
        for i, (region, there) in enumerate(zip(found, self.there, strict=True)):
            phrase: dict[str, Any] = {"words": region.caption, "found": there}
            if self.presence is not None:
                phrase["presence"] = float(f"{self.presence[i]:.5g}")
            if there:
                phrase["box"] = [round(v, 2) for v in region.box]
            if there and region.score is not None:
                phrase["score"] = float(f"{region.score:.5g}")
            if there and found.similarities is not None:
                phrase["similarity"] = float(f"{found.similarities[i]:.5g}")
            phrases.append(phrase)
        row = {"image": found.image, "width": found.width, "height": found.height, "phrases": phrases}
        return row | {name: list(texts) for name in TEXTS if (texts := getattr(found, name))}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Grounded:
        """Read the found phrases of :meth:`to_dict`, for drawing; raise ``ValueError`` if fields are missing."""
        from saywhere.regions import Regions

        try:
            found = [phrase for phrase in row["phrases"] if phrase.get("found", True)]
            boxes, words = [phrase["box"] for phrase in found], [phrase["words"] for phrase in found]
            return cls(Regions(row["width"], row["height"], boxes, captions=words, image=row["image"]))  # pyright: ignore[reportArgumentType]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"phrases with words and boxes are missing: {error}") from error

    def draw(self, image: Any) -> Any:
        """Return the image with the boxes and words of the found phrases drawn on it."""
        return replace(self.regions[self.there], scores=None).draw(image)


def ground(
    path: str = typer.Argument(metavar="PATH", help=ONE_PATH),
    texts: list[str] = typer.Argument(
        metavar="TEXT...",
        help="One text is a sentence, which is split into phrases (quotes may be left out); several are phrases.",
    ),
    part: PartName = None,
    threshold: Threshold = None,
    out: Drawings = None,
    json: Json = None,
    beta: Beta = None,
    regions: Regions = None,
    batch: Batch = 8,
    chosen: Chosen = Chosen(),
) -> None:
    """Find the box in an image that each phrase of a text is about, or say that the image does not show it.

    --beta needs a single sentence and the part aligner, and splits the sentence where the box changes.

    Exit code: 0 success; 1 images skipped because they cannot be read; 2 error.
    """
    texts = read_texts(texts, "for several images give their folder, or a pattern in quotes such as 'photos/*.jpg'")
    sentence = len(texts) == 1 and part is not Part.densecap
    if not sentence and beta is not None:
        raise UserError("--beta needs a single sentence and the part aligner")
    if beta is not None and threshold is not None:
        raise UserError("--threshold cannot choose among the phrases of --beta: all of them count as found")
    ahead = ("densecap",) if part is Part.densecap else ("aligner", "densecap", "nouns")
    deferred = chosen.deferred(Part.aligner if sentence else part, ahead, [path])
    from saywhere.inference import Outputs, ResultsFile, ensure_same_settings, find_images, note_videos
    from saywhere.inference.run import Run

    sources = find_images([path], [out] if out else [])
    if video := next((source.name for source in sources if source.is_video), None):
        raise UserError(f"{video}: is a video; to find moments in it, use saywhere index and saywhere search")
    printed, file = json == STDOUT, None if json == STDOUT else json
    question = _Question(deferred, texts, part, threshold, beta, regions)
    show = each_result(printed, file is not None or out is not None, _print_table)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(file, "phrases")) if file else None
        outputs = Outputs(lines, out, read=Grounded.from_dict)
        outputs.check(sources)
        if file is not None:
            ensure_same_settings(file, question.facts)
        undrawn = any(map(outputs.lacks_image, sources))
        summary = Run(question, deferred, outputs, None, batch, show, ("grounding", "grounded"))(sources)
    if summary.count > 1 or summary.already:
        typer.echo(str(summary), err=printed)
    written = [path for path in (file, out) if path and (summary.done or (path == out and undrawn))]
    if written:
        typer.echo(f"written: {', '.join(map(str, written))}", err=printed)
    if note := note_videos([path], [out] if out else []):
        typer.echo(note, err=True)
    report_skipped(summary.skipped)


@dataclass
class _Question:
    """The question asked of each image; the attributes are the options of :func:`ground`."""

    model: DeferredModel
    texts: Sequence[str]
    part: Part | None
    threshold: float | None
    beta: float | None
    regions: int | None
    words: dict[str, tuple[str, ...]] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that the answers depend on."""
        asked = {"text": list(self.texts), "part": self.part, "threshold": self.threshold}
        return {**self.model.facts, **asked, "beta": self.beta, "regions": self.regions}

    def __call__(self, images: list[LoadedImage], _: object) -> list[Grounded]:
        return [self._ask(self.model(), image) for image in images]

    def _ask(self, model: saywhere.Model, image: LoadedImage) -> Grounded:
        from saywhere.models.layout import Layout

        seen = model.encode(image)
        placer = model.placer(self.part.value if self.part else "aligner" if self.beta is not None else None)
        layout = placer.read(self.texts[0]) if len(self.texts) == 1 else Layout.of(self.texts)
        if self.beta is not None:
            alignment = model.align(seen, self.texts[0], beta=self.beta, regions=self.regions)
            found = Grounded(alignment.regions(), alignment=alignment)
        else:
            regions, presence, agree = placer.find(seen, layout, None, self.regions)
            least = placer.least(self.threshold)
            names = None if presence is None else layout.names(presence, agree, least)
            found = Grounded(regions, presence, least, names)
        if self.words is None:
            phrases, unused = found.regions.captions or (), found.regions.unused
            unknown, none = placer.lexicon.unknown(phrases), placer.lexicon.knows_none(phrases)
            wider = placer.lexicon.judged_as(phrases) if found.presence is not None else ()
            note_words(phrases, unknown, wider, unused, layout.without_noun, none)
            self.words = {"unknown": tuple(unknown), "judged_as": wider}
        return replace(found, regions=replace(found.regions, **self.words))


def _print_table(answer: Grounded, title: str) -> None:
    from saywhere.text import two_digits

    if title:
        typer.echo(title)
    found, there = answer.regions, answer.there
    if found.scores is None:
        shown = [] if found.similarities is None else [f"{value:.2f}" for value in found.similarities]
    else:
        write = "{:.2g}".format if answer.presence is None else two_digits  # joint probabilities are tiny
        shown = [write(value) if seen else "" for value, seen in zip(found.scores, there, strict=True)]
    rows = [
        (value, " ".join(f"{v:.0f}" for v in box) if seen else "not found", words)
        for value, box, words, seen in zip(shown, found.boxes, answer.names or found.captions or (), there, strict=True)
    ]
    colours = _colours(found, there) if on_terminal() and "NO_COLOR" not in os.environ else None
    print_table(("similarity" if found.scores is None else "score", "box", "phrase"), rows, colours)


def _colours(found: saywhere.Regions, there: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Return the colour in which each region is drawn: one per different box, grey for phrases not found."""
    from saywhere.drawing import COLOURS

    boxes = [tuple(corners) if seen else None for corners, seen in zip(found.boxes.tolist(), there, strict=True)]
    different = list(dict.fromkeys(box for box in boxes if box is not None))
    return [GREY if box is None else COLOURS[different.index(box) % len(COLOURS)] for box in boxes]
