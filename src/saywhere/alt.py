"""Alternative texts of the images in HTML and Markdown files: which have none, and the files with them put in.

Nothing of a file changes but its alternative texts: they are put in by their places, and nothing is written anew.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import urllib.parse
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from saywhere.errors import UserError
from saywhere.images import ImageError, MissingImageError
from saywhere.models.nouns import find_nouns, noun_tree
from saywhere.regions import SHOWN, Regions
from saywhere.text import tokenize

MARKDOWN = frozenset((".md", ".markdown", ".mdown", ".mkd"))
HTML = frozenset((
    ".html", ".htm", ".xhtml", ".j2", ".jinja", ".jinja2", ".njk", ".twig", ".liquid", ".hbs", ".mustache", ".erb",
    ".ejs", ".php",
))  # fmt: skip
LENGTH = 125
"""Characters of a text, at most, unless the user says otherwise: more is read out badly."""
SURE = 0.5
"""Least probability of the boxes, and of their words, that are named after the sentence."""
REGIONS = 3
"""Regions that are named after the sentence, at most."""

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|<%.*?%>|<\?.*?(?:\?>|\Z)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?\]\]>|<!.*?>", re.DOTALL)
_BEGIN = re.compile(r"<|\{[{%#]")
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
"""Elements whose content is text, whatever it looks like."""
_IMAGE = re.compile(
    r"(?<!\\)!\[((?:\\.|[^\[\]\\])*)\](?:"
    r"\([ \t]*\n?[ \t]*(<[^<>\n]*>|[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*\)"
    r"|\[((?:\\.|[^\[\]\\])+)\])"
)
_DEFINITION = re.compile(r"^ {0,3}\[((?:\\.|[^\[\]\\])+)\]:[ \t]*\n?[ \t]*(<[^<>\n]*>|\S+)", re.MULTILINE)
_LIST = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?([\w-]+)|<\?xml[^>]+encoding\s*=\s*[\"']([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """An image of a document.

    Attributes:
        source: its URL; None if a template makes it.
        alt: its alternative text; None if it has none.
        start, end: what is replaced by a new text, which ``around`` is put before and behind.
        escape: makes a text one that can stand there.
    """

    source: str | None
    alt: str | None
    start: int
    end: int
    around: tuple[str, str]
    escape: Callable[[str], str]


@dataclass(frozen=True)
class Document:
    """An HTML or Markdown file.

    Attributes:
        text: all of it, with its line ends and its byte order mark.
        encoding: by which the text is exactly the bytes of the file.
        images: in their order, but for those that are marked as decorative.
    """

    path: Path
    text: str
    encoding: str
    images: Sequence[Image]

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file; ``UserError`` if it cannot be, or is no text."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        text, encoding = _decode(data)
        if "\0" in text:
            raise UserError(f"{path}: is no text; give HTML and Markdown files, or folders of them")
        found = find_in_markdown(text) if path.suffix.lower() in MARKDOWN else find_in_html(text)
        return cls(path, text, encoding, tuple(found))

    def has_changed(self) -> bool:
        """Return whether the file is not as it was read: somebody has edited it, or it is gone."""
        try:
            return self.path.read_bytes() != self.text.encode(self.encoding)
        except OSError:
            return True

    def with_texts(self, texts: Sequence[tuple[Image, str]]) -> str:
        """Return the document with new alternative texts of some images, and nothing else changed."""
        pieces, at = [], 0
        for image, text in texts:
            new = image.escape(text).encode(self.encoding, "xmlcharrefreplace").decode(self.encoding)
            pieces += [self.text[at : image.start], image.around[0], new, image.around[1]]
            at = image.end
        return "".join([*pieces, self.text[at:]])

    def lines_with(self, texts: Sequence[tuple[Image, str]]) -> Iterator[tuple[int, str]]:
        """Yield the line, from 1, on which each new text of :meth:`with_texts` is then, and the text."""
        gone = 0
        for image, text in texts:
            yield line_of(self.text, image.start) - gone, text
            gone += self.text.count("\n", image.start, image.end)

    def locate(self, url: str, root: Path | None) -> bytes | Path | None:
        """Return the file of an image, or the bytes of a ``data:`` URL; None if it is elsewhere on the network.

        Args:
            url: as it stands in the document; one that cannot be followed is an ``ImageError``.
            root: what URLs that begin with ``/`` are below.
        """
        if url.lower().startswith("data:"):
            head, comma, data = url[5:].partition(",")
            try:
                raw = urllib.parse.unquote_to_bytes(data)
                return base64.b64decode(raw, validate=False) if head.endswith(";base64") and comma else raw
            except binascii.Error as error:
                raise ImageError(f"{url[:40]}: damaged data URL ({error})") from error
        if url.startswith("//") or re.match(r"[a-zA-Z][a-zA-Z\d+.-]+:", url):
            return None
        place = urllib.parse.unquote(re.split(r"[?#]", url, maxsplit=1)[0])
        if not place.startswith("/"):
            return self.path.parent / place
        if root is None:
            raise MissingImageError(f"{url}: begins at the root of the site; name its folder with --root")
        return root / place.lstrip("/")


def _decode(data: bytes) -> tuple[str, str]:
    """The text of a file and an encoding that gives exactly these bytes again."""
    marks = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
    declared = _CHARSET.search(data[:1024])
    names = [name for mark, name in marks if data.startswith(mark)]
    names += [(declared[1] or declared[2]).decode("ascii")] if declared else []
    for name in [*names, "utf-8"]:
        try:
            text = data.decode(name)
            if text.encode(name) == data:
                return text, name
        except (LookupError, UnicodeError):
            continue
    return data.decode("latin-1"), "latin-1"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\\[\]`*_<>&])", r"\\\1", text)


def find_in_html(text: str) -> Iterator[Image]:
    """Yield the images of an HTML document or a template of one, in their order."""
    at = 0
    while begin := _BEGIN.search(text, at):
        at = begin.start()
        if skipped := _TEMPLATE.match(text, at) or _COMMENT.match(text, at):
            at = skipped.end()
            continue
        tag = _TAG.match(text, at)
        if tag is None:
            at += 1
            continue
        end, attributes, bare = _attributes(text, tag.end())
        if end < 0:  # a tag without an end: it is left as it is, and what is in it may be tags
            at = tag.end()
            continue
        name = tag[1].lower()
        if name == "img" and text[at + 1] != "/" and not bare:
            image = _image(text, tag.end(), attributes)
            if image is not None:
                yield image
        at = end
        if name in _RAW and text[tag.start() + 1] != "/":
            close = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, at)
            at = len(text) if close is None else close.start()


def _attributes(text: str, at: int) -> tuple[int, dict[str, tuple[int, int]], bool]:
    """The end of a tag, the places of its attributes' values with their quotes, and whether it has templates bare."""
    found: dict[str, tuple[int, int]] = {}
    bare = False
    while at < len(text):
        if text[at] == ">":
            return at + 1, found, bare
        if template := _TEMPLATE.match(text, at):
            bare, at = True, template.end()
        elif text[at].isspace() or text[at] == "/":
            at += 1
        elif text[at] == "<":
            return -1, found, bare
        else:
            start, at = at, _until(text, at + 1, " \t\r\n\f/>=")
            name = text[start:at].lower()
            bare = bare or _TEMPLATE.search(name) is not None
            equals = re.compile(r"\s*=\s*").match(text, at)
            if equals is None:
                found.setdefault(name, (at, at))
                continue
            start = at = equals.end()
            if text[at : at + 1] in ('"', "'"):
                at = _until(text, at + 1, text[at]) + 1
            else:
                at = _until(text, at, " \t\r\n\f>")
            found.setdefault(name, (start, at))
    return -1, found, bare


def _until(text: str, at: int, ends: str) -> int:
    """The place of the first of some characters that is not in a template."""
    while at < len(text) and text[at] not in ends:
        template = _TEMPLATE.match(text, at) if text[at] in "{<" else None
        at = template.end() if template else at + 1
    return at


def _image(text: str, name_end: int, attributes: dict[str, tuple[int, int]]) -> Image | None:
    """The image of an ``img`` tag; None if it is decorative."""

    def value(name: str) -> str | None:
        if name not in attributes:
            return None
        start, end = attributes[name]
        raw = text[start:end]
        return raw[1:-1] if raw[:1] in ('"', "'") else raw

    alt = value("alt")
    hidden = (value("aria-hidden") or "").lower() == "true"
    if alt == "" or hidden or (value("role") or "").lower() in ("presentation", "none"):
        return None
    url = value("src") or (value("srcset") or "").strip().split(" ")[0]
    templated = _TEMPLATE.search(f"{url} {alt or ''}") is not None
    source = None if templated or not url else html.unescape(url).strip()
    if alt is None:
        return Image(source, None, name_end, name_end, (' alt="', '"'), html.escape)
    return Image(source, html.unescape(alt), *attributes["alt"], ('"', '"'), html.escape)


def find_in_markdown(text: str) -> Iterator[Image]:
    """Yield the images of a Markdown document, those in HTML among them, in their order; code is left alone.

    An empty text counts as none: Markdown cannot mark an image as decorative. Images whose text is also the name of
    what they refer to, such as ``![cat][]``, are left alone.
    """
    masked = _without_code(text)
    found = list(find_in_html(masked))
    hidden = [one.span() for one in _COMMENT.finditer(masked)]
    places = {_label(one[1]): one[2].strip("<>") for one in reversed(list(_DEFINITION.finditer(masked)))}
    for one in _IMAGE.finditer(masked):
        if any(start <= one.start() < end for start, end in hidden):
            continue
        url = places.get(_label(one[3])) if one[3] else one[2].removeprefix("<").removesuffix(">")
        source = None if not url or _TEMPLATE.search(url) else html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", url))
        found.append(Image(source, one[1] or None, *one.span(1), ("", ""), _escape_markdown))
    yield from sorted(found, key=lambda image: image.start)


def _label(text: str) -> str:
    return " ".join(text.split()).casefold()


def _without_code(text: str) -> str:
    """The text with spaces for code and for the notes at its beginning."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    fence, blank, listed = "", True, False
    notes = bool(lines) and lines[0].lstrip("\ufeff").rstrip() == "---"
    for number, line in enumerate(lines):
        bare = line.lstrip("\ufeff").strip()
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        indented = line.startswith(("    ", "\t")) and bool(bare)
        if notes:
            notes = number == 0 or bare not in ("---", "...")
            hide = True
        elif fence:
            hide = True
            if mark and mark[1].startswith(fence) and bare.strip(fence[0]) == "":
                fence = ""
        else:
            hide = bool(mark) or (indented and blank and not listed)
            fence = mark[1] if mark else ""
            if bare and not indented:
                listed = _LIST.match(line) is not None or (listed and line[0] == " ")
        blank = not bare or (blank and hide and not fence)
        kept.append(re.sub(r"[^\r\n]", " ", line) if hide else line)
    masked = "".join(kept)
    return re.sub(
        r"(?<![`\\])(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)",
        lambda code: re.sub(r"[^\r\n]", " ", code[0]), masked, flags=re.DOTALL,
    )  # fmt: skip


def line_of(text: str, at: int) -> int:
    """Return the number of the line of a place, from 1."""
    starts = [0, *(one.end() for one in re.finditer(r"\n", text))]
    return bisect_right(starts, at)


def _names_people(text: str) -> bool:
    person = noun_tree().named("person")
    return any(person is not None and person.row in noun.ancestors for noun in find_nouns(text, noun_tree()))


def compose(sentence: str, regions: Regions, length: int = LENGTH) -> str:
    """Return an alternative text: the sentence, then sure regions that it does not name, as many as fit.

    A region is named if the text has its noun, a kind of it, or what it is a kind of: "a white dog" adds nothing to "a
    poodle". A sentence about people gives way to the best region of which box and words have :data:`SHOWN`, if none of
    those is of people. Regions are the best first; a sentence of more than ``length`` characters is cut between words.
    """
    sentence = " ".join(sentence.split())
    seen = [*filter(None, (regions if regions.scores is None else regions.at_least(SHOWN)).captions or ())]
    if seen and _names_people(sentence) and not any(map(_names_people, seen)):
        sentence = seen[0]
    if len(sentence) > length:
        return sentence[:length].rsplit(" ", 1)[0][: length - 1].rstrip(" ,;") + "…"
    tree, text, count = noun_tree(), sentence, 0
    for region in regions:
        words = tokenize(phrase := " ".join((region.caption or "").split()))
        if not words or any(value is not None and value < SURE for value in (region.score, region.caption_score)):
            continue
        head = tree.head(words)
        named = {noun.row: noun.ancestors for noun in find_nouns(text, tree)}
        if head.noun is None:
            told = words[head.stop - 1] in tokenize(text)
        else:
            told = any(head.noun.row in above or row in head.noun.ancestors for row, above in named.items())
        if told:
            continue
        longer = f"{text}{'; ' if count == 0 else ', '}{phrase}"
        if count == REGIONS or len(longer) > length:
            break
        text, count = longer, count + 1
    return text
