"""``saywhere alt``: alternative texts for the images in HTML and Markdown files."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli.options import Chosen, check_file
from saywhere.cli.printing import on_terminal, report_skipped
from saywhere.errors import UserError
from saywhere.files import content_hash, printable, write_atomically
from saywhere.loading import DeferredModel
from saywhere.report import counted

if TYPE_CHECKING:
    from saywhere.alt import Document, Image
    from saywhere.inference import ResultsFile

DRAFT = "a draft is a program's text: read each before it is published"
GENERATED = ("node_modules", "dist", "_site", "_build")
"""Folders that are left out inside others, because programs made their pages."""
_SVG = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:[?!].*?<)?svg\b", re.DOTALL)


def alt(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="HTML and Markdown files, templates, and folders of them.")
    ],
    write: bool = typer.Option(False, "--write", help="Write the texts into the files instead of showing a diff."),
    every: bool = typer.Option(False, "--all", help="Also replace existing texts, except empty ones."),
    root: Path | None = typer.Option(
        None, metavar="DIR", help="Root folder of the site, for images whose URL begins with /."
    ),
    length: int = typer.Option(125, min=20, metavar="N", help="Maximum length of a text, in characters."),
    cache: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Keep the texts in this file (JSON lines), by image content, and reuse them.",
        callback=check_file,
    ),
    chosen: Chosen = Chosen(),
) -> None:
    """Propose alternative texts for images without one, as a diff: a sentence, then up to three confident regions.

    If nothing in an image is certain enough, it gets no text.

    With --write, the files are changed, and a line for each text says where it is. Nothing but alternative texts
    changes. Decorative images (alt=""), SVG, images on the network and images whose names a template fills in are left
    alone.

    Exit code: 0 success; 1 images are missing or cannot be read; 2 error.
    """
    from saywhere.alt import Document, value_in
    from saywhere.inference import ResultsFile, ensure_same_settings

    if root is not None and not root.is_dir():
        raise UserError(f"--root {root}: no such folder")
    skipped: dict[str, str] = {}
    documents, foreign = list[Document](), list[str]()
    for path in _files(paths):
        try:
            documents.append(Document.read(path))
        except UserError as error:
            if path in paths:
                raise
            skipped[str(path)] = str(error).removeprefix(f"{path}: ")
    deferred = chosen.deferred("captioner")
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(cache, "alt")) if cache else None
        if cache is not None:
            ensure_same_settings(cache, {**deferred.facts, "length": length})
        cautious = not any("ngrams.least_probability=" in change for change in chosen.change or ())
        texts = _Texts(deferred, lines, length, cautious)
        drafts = 0
        for document in documents:
            found = _propose(document, texts, every, root, counts, skipped)
            new, name = document.with_texts(found), printable(str(document.path))
            if new == document.text:
                continue
            if write and document.has_changed():
                skipped[str(document.path)] = "was changed while this command ran; run the same command again"
                continue
            drafts += len(found)
            if (language := value_in(document.text, "html", "lang")) and not language.lower().startswith("en"):
                foreign.append(f'{name} says lang="{printable(language)}"')
            if write:
                write_atomically(document.path, lambda file, d=document, n=new: file.write(n.encode(d.encoding)))
                typer.echo(f"written: {name}")
                for line, text in document.lines_with(found):
                    typer.echo(f"{name}:{line}: {printable(text)}")
            else:
                typer.echo(_diff(document, new, name), nl=False)
    counts.update({"skipped": len(skipped)} if skipped else {})
    made = f"{counted(drafts, 'draft')} {'written' if write else 'proposed'}"
    told = ", ".join([made, *(f"{counts[name]} {name}" for name in sorted(counts))])
    typer.echo(f"{told}; {DRAFT}" if drafts else told, err=True)
    if foreign:
        more = f", and {counted(len(foreign) - 1, 'other file')} like it" if foreign[1:] else ""
        typer.echo(f"note: the texts are English, but {foreign[0]}{more}", err=True)
    report_skipped(skipped)


def _files(paths: list[Path]) -> list[Path]:
    """Return the given files, and the HTML and Markdown files in given folders, links to others of them left out."""
    from saywhere.alt import HTML, MARKDOWN, OTHERS, ending_of

    found, others = list[Path](), Counter[str]()
    for path in paths:
        if path.is_dir():
            inside = [*_walk(path)]
            seen = [one for one in inside if ending_of(one) in HTML | MARKDOWN and one.is_file()]
            others.update(ending for one in inside if (ending := ending_of(one)) in OTHERS)
            if not seen:
                raise UserError(f"{path}: no HTML or Markdown files in this folder")
            found += seen
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path}: no such file or folder")
    if others:
        told = ", ".join(f"{count} {ending}" for ending, count in sorted(others.items()))
        typer.echo(f"note: neither HTML nor Markdown, left out: {told}", err=True)
    places = dict[Path, Path]()
    for one in sorted(found, key=Path.is_symlink):
        places.setdefault(one.resolve(), one)
    return [*places.values()]


def _walk(folder: Path) -> list[Path]:
    """Return the files in a folder, sorted, without those in hidden and generated folders inside."""
    found = list[Path]()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in GENERATED and not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found)


class _Texts:
    """Alternative texts by image content, from the cache file or from the model."""

    def __init__(self, deferred: DeferredModel, lines: ResultsFile | None, length: int, cautious: bool) -> None:
        self._deferred, self._lines, self._length, self._cautious = deferred, lines, length, cautious
        self._known: dict[str, str] = {} if lines is None else {row["image"]: row["alt"] for row in lines}

    def of(self, data: bytes, name: str) -> str | None:
        """Return the text for the bytes of an image file; raise ``ImageError`` if it cannot be read.

        It is None for a spacer, and empty if the image probably does not show what its caption is about and no region
        is sure.
        """
        from saywhere.alt import CAUTIOUS, SPACER, SURE_SEX, checked, compose
        from saywhere.images import read_image
        from saywhere.models.captioner import without_unsure_sex

        digest = content_hash(data).hex()
        if digest not in self._known:
            model: Any = self._deferred()
            image = read_image(data, name, self._deferred.long_side)
            if min(image.width, image.height) < SPACER:
                return None
            able = self._cautious and model.captioner is not None and model.captioner.ngrams is not None
            sure = CAUTIOUS if able else None
            judged = getattr(model, "nouns", None) is not None
            images: list[Any] = model.encode([image]) if judged else [image]
            (caption,) = model.caption(images, least_probability=sure, attention=False)
            (regions,) = model.describe(images, top=10)
            sentence = str(caption)
            if judged and able:
                captioner: Any = model.captioner
                sentence = without_unsure_sex(captioner, images[0], sentence, SURE_SEX)
            if judged:
                sentence = checked(sentence, lambda phrases: model.ground(images[0], phrases).captions)
            self._known[digest] = text = compose(sentence, regions, self._length)
            if self._lines is not None:
                self._lines.append({"alt": text}, digest)
        return self._known[digest]


def _propose(
    document: Document, texts: _Texts, every: bool, root: Path | None, counts: Counter[str], skipped: dict[str, str]
) -> list[tuple[Image, str]]:
    """Return the images of a document to change, each with its new text; unreadable ones go to ``skipped``."""
    from saywhere.alt import line_of
    from saywhere.images import ImageError, MissingImageError

    new: list[tuple[Image, str]] = []
    for image in document.images:
        if image.alt is not None and not every:
            counts["with a text already"] += 1
            continue
        if image.source is None:
            counts["left to templates"] += 1
            continue
        shown = image.source if len(image.source) <= 80 else image.source[:77] + "..."
        try:
            found = document.locate(image.source, root)
            if found is None:
                counts["on the network, left alone"] += 1
                continue
            if isinstance(found, Path):
                if not found.is_file():
                    raise MissingImageError(f"{shown}: no such file")
                found = found.read_bytes()
            if _SVG.match(found):
                counts["SVG, left alone"] += 1
                continue
            if (text := texts.of(found, shown)) is None:
                counts["too small, left alone"] += 1
                continue
            if not text:
                typer.echo(f"no draft, because nothing is sure: {document.path}:{line_of(document.text, image.start)}: "
                           f"{printable(shown)}", err=True)  # fmt: skip
                counts["without a draft"] += 1
                continue
        except (ImageError, OSError) as error:
            reason = error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
            where = f"{document.path}:{line_of(document.text, image.start)}: {shown}"
            skipped[where] = reason.removeprefix(f"{shown}: ")
            continue
        new.append((image, text))
    return new


def _diff(document: Document, new: str, name: str) -> str | bytes:
    """Return the changes of a document: text for a terminal, otherwise the bytes of its lines, as ``patch`` needs."""
    encoding = "utf-8" if (shown := on_terminal()) else document.encoding
    before, after = (io.BytesIO(text.encode(encoding)).readlines() for text in (document.text, new))
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, name.encode(), name.encode())
    data = b"".join(one if one.endswith(b"\n") else one + b"\n\\ No newline at end of file\n" for one in lines)
    return data.decode() if shown else data
