"""Alternative texts of images in HTML and Markdown files: finds images without one, and inserts texts.

Texts are inserted by position; the rest of a file stays as it is, byte by byte.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import html
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhere.errors import UserError
from saywhere.images import ImageError, MissingImageError
from saywhere.models.caption_nouns import CUT_BEFORE, find_things, phrase_start, without_tinted_colours
from saywhere.models.lexicon import asked_colours
from saywhere.models.nouns import (
    STARTS,
    colour_of,
    find_nouns,
    noun_tree,
    without_loose_end,
)
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.text import tokenize, with_articles

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MARKDOWN = frozenset((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"))
TEMPLATES = frozenset((
    ".j2", ".jinja", ".jinja2", ".njk", ".twig", ".liquid", ".hbs", ".mustache", ".erb", ".ejs",
))  # fmt: skip
JSX = frozenset((".jsx", ".tsx", ".astro", ".svelte"))
HTML = TEMPLATES | JSX | frozenset((".html", ".htm", ".xhtml", ".php", ".jsp", ".vue"))
COMPONENTS = JSX | frozenset((".vue", ".mdx", ".xhtml"))
"""Endings of files where ``/>`` closes every element, and names with a capital are no elements of HTML."""
OTHERS = frozenset((".cshtml", ".razor", ".pug", ".haml", ".slim", ".rst", ".adoc"))
"""Endings of pages that are only counted in folders."""
LENGTH = 125
"""Default maximum length of an alternative text in characters; screen readers handle longer texts badly."""
CAUTIOUS = 0.1
"""``least_probability`` of the sentence: those who cannot see the image need right words more than many."""
SURE_SEX = 0.8
"""Minimum probability of a word for somebody's sex in the sentence, as in the phrases of regions."""
SURE = 0.5
"""Minimum probability of boxes, and of their captions, that are added to the sentence."""
SPACER = 8
"""Images with a shorter side, in pixels, show nothing."""
REGIONS = 3
"""Maximum number of regions that are added to the sentence."""


def _between(opens: str, closes: str) -> str:
    """Return a pattern from the last of several opening marks to the first closing one; linear in the text.

    Atomic groups, because Python before 3.11.5 matches ``*+`` of a group wrongly.
    """
    return rf"{opens}(?>(?:(?!{opens}|{closes}).)*){closes}"


def _template(opens: str, closes: str, inner: str = ".") -> str:
    """Return a pattern as ``_between`` does, without images outside strings: marks around these are no template's."""
    edge = f"{opens}|{closes}"
    strings = "|".join(rf"{quote}(?>(?:\\.|(?!{edge})[^{quote}\\])*){quote}" for quote in "\"'`")
    return rf"{opens}(?>(?:(?<![\w\\])(?:{strings})|(?!{edge}|(?i:<img\b)){inner})*){closes}"


_CDATA = r"<!\[CDATA\["
_BLOCK, _END = (rf"\{{%[-~+]?\s*{name}\b" for name in ("(highlight|codeblock|raw|verbatim|comment)", r"end\1"))
_ENCLOSED = re.compile(
    "|".join(
        (
            rf"{_BLOCK}(?>(?:(?!\{{%[-~+]?\s*(?:end)?\1\b).)*){_END}[^%]*%\}}",  # Jinja, Django, Twig, Liquid
            _between(r"\{\{[<%]\s*highlight\b", r"\{\{[<%]\s*/\s*highlight\s*[>%]\}\}"),  # Hugo
            _between(r"\{#(?![^{}#\n]*\})", r"#\}"),  # not {#id} of a heading
            _between(r"\{\{~?!?--", r"--~?\}\}"),  # Handlebars, Blade
            _between(r"\{\{~?!(?!--)", r"\}\}"),
            _between(r"\{-?\s*/\*", r"\*/") + r"\s*-?\}",  # JSX, Go
            _between(r"\{\*(?![}\[])", r"\*\}"),  # Smarty
            _between(r"(?<!\w)@\*", r"\*@"),  # Razor
            _between(r"<%--", r"--%>"),
            _between(r"<%#", r"%>"),
        )
    ),
    re.DOTALL,
)
"""Code and comments between tags of templates."""
_BRACES = r"\{(?>(?:[^{}]|\{(?>[^{}]*)\})*)\}"
_TEMPLATE = re.compile(
    "|".join(
        (
            _template(r"\{\{", r"\}\}", rf"(?:[^{{}}]|{_BRACES})"),
            _template(r"\{%", r"%\}"),
            _template("<%", "%>"),
            r"<\?(?:(?i:php)\b|=).*?(?:\?>|\Z)",
            _template(r"<\?", r"(?:\?>|\Z)"),
        )
    ),
    re.DOTALL,
)
_IN_TAG = re.compile(rf"{_TEMPLATE.pattern}|\{{(?>(?:[^{{}}]|{_BRACES})*)\}}", re.DOTALL)
"""Templates outside quotes, among them expressions of JSX and Svelte."""
_EXPRESSION = re.compile(r"\{[^{}]*\}|<[%?]")
_STRING = re.compile(
    r"""(?P<comment>/\*(?>(?:(?!/\*|\*/).)*)\*/)|(?:^|[;,{(\[])[ \t]*(?P<line>//[^\n]*)|"""
    r"""(?P<string>(?<![\w\\])(?:"(?>(?:\\.|[^"\\\n])*)"|'(?>(?:\\.|[^'\\\n])*)')(?!(?:\.{0,2}/)?\w)|"""
    r"""(?:(?<=[=(\[,:?+{&|])|(?<=[=(,:?+{&|] )|(?<==> )|(?<=return )|(?<=@html ))`(?>(?:\\.|[^`\\])*)`)""",
    re.DOTALL | re.MULTILINE,
)
"""Comments and strings of JavaScript.

Behind a string stands no letter, unlike in prose: ``"a <img src="b``, ``'tis not``.
"""
_QUOTED = re.compile(r'="(?:\.{0,2}/)?\w')
"""Attributes that are in no string in double quotes, because it would end here, before a letter."""
_FOOTNOTE = re.compile(r"^ {0,3}\[\^[^]\n]+\]:", re.MULTILINE)
_BOUND = re.compile(r"(?:(?:data-)?(?:.*[^a-z-]|(?:ng|th)-(?:attr-)?|bind-))?(alt|src)(?:-title)?(?:$|[^a-z-])")
"""Names of attributes that a program sets when the page is shown, such as ``:alt``, ``[attr.alt]``, ``th:src``."""
_SPREAD = frozenset(("v-bind", "x-bind", "data-bind", "th:attr", "data-th-attr"))
"""Attributes whose value may name any attribute."""
_COMMENT = re.compile(rf"<!--.*?(?:-->|\Z)|{_between(_CDATA, ']]>')}|<!.*?(?:>|\Z)", re.DOTALL)
_BEGIN = re.compile(r"<|\{[{%]")
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
"""Elements whose content is plain text."""
_IN_STRING = re.compile(rf"<(?:img|!--|/?(?:{'|'.join(_RAW)}))")
"""Tags that change what is found if a comment or string has them."""
_NOTES = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*[\r\n].*?(?<=[\r\n])(?:\1|\.\.\.)[ \t]*(?![^\r\n])", re.DOTALL)
"""Front matter."""
_NO_MARKDOWN = re.compile(r"</?(?:[!?]|(?:pre|code|script|style|textarea)\b)", re.IGNORECASE)
"""HTML whose content is never Markdown; whether that of other elements is depends on the program."""
_CLOSED = re.compile(r"<(?:pre|script|style|textarea)\b(?=[^<>]*/>)", re.IGNORECASE)
_ON_A_LINE = re.compile(r"\{\{[^{}`\n]*\}\}|\{%[^%`\n]*%\}")
_ALT_BEHIND = re.compile(r"\{[^{}\n]*\balt\s*=")
"""Attributes behind an image in Markdown, as kramdown and Quarto know them."""
_SOURCES = ("data-src", "data-lazy-src", "data-original", "data-srcset", "data-lazy-srcset", "src", "srcset")
"""Attributes with an image, the best first: until a script loads the others, ``src`` may show a placeholder."""
_NETWORK = re.compile(r"[a-zA-Z][a-zA-Z\d+.-]+:")
_ABSOLUTE = re.compile(rf"/|{_NETWORK.pattern}")
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?([\w-]+)|<\?xml[^>]+encoding\s*=\s*[\"']([\w-]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """An image in a document.

    Attributes:
        source: its URL; None if a template generates it.
        alt: its alternative text; None without one.
        start, end: span that a new text replaces, with the strings ``around`` before and after it.
        escape: function that escapes a text for this place.
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
        text: complete content, with its line ends and byte order mark.
        encoding: encoding that turns the text back into the exact bytes of the file.
        images: images in order, without those marked as decorative.
        base: address of its ``base`` element, which URLs are relative to; empty for the folder of the file.
    """

    path: Path
    text: str
    encoding: str
    images: Sequence[Image]
    base: str = ""

    @classmethod
    def read(cls, path: Path) -> Document:
        """Read a file; ``UserError`` if it cannot be read or is not text."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        text, encoding = _decode(data)
        if "\0" in text:
            raise UserError(f"{path}: is not a text; give HTML and Markdown files, or folders of them")
        components = (ending := ending_of(path)) in COMPONENTS
        if ending in MARKDOWN:
            return cls(path, text, encoding, tuple(find_in_markdown(text, components)))
        images = find_in_jsx(text) if ending in JSX else find_in_html(text, components)
        return cls(path, text, encoding, tuple(images), value_in(text, "base", "href", components))

    def has_changed(self) -> bool:
        """Return whether the file differs from what was read, because it was edited or deleted."""
        try:
            return self.path.read_bytes() != self.text.encode(self.encoding)
        except OSError:
            return True

    def with_texts(self, texts: Sequence[tuple[Image, str]]) -> str:
        """Return the document with new alternative texts for some images, otherwise unchanged."""
        pieces, at = [], 0
        for image, text in texts:
            new = image.escape(text).encode(self.encoding, "xmlcharrefreplace").decode(self.encoding)
            pieces += [self.text[at : image.start], image.around[0], new, image.around[1]]
            at = image.end
        return "".join([*pieces, self.text[at:]])

    def lines_with(self, texts: Sequence[tuple[Image, str]]) -> Iterator[tuple[int, str]]:
        """Yield the line, from 1, of each new text in the result of :meth:`with_texts`, and the text."""
        gone = 0
        for image, text in texts:
            yield line_of(self.text, image.start) - gone, text
            gone += self.text.count("\n", image.start, image.end)

    def locate(self, url: str, root: Path | None) -> bytes | Path | None:
        """Return the file of an image, or the bytes of a ``data:`` URL; None for an address on the network.

        Args:
            url: URL as written in the document; ``ImageError`` if it cannot be resolved.
            root: folder for URLs that begin with ``/``.
        """
        if url.lower().startswith("data:"):
            head, comma, data = url[5:].partition(",")
            try:
                raw = urllib.parse.unquote_to_bytes(data)
                return base64.b64decode(raw, validate=False) if head.endswith(";base64") and comma else raw
            except binascii.Error as error:
                raise ImageError(f"{url[:40]}: damaged data URL ({error})") from error
        if not _ABSOLUTE.match(url):
            base = re.split(r"[?#]", self.base, maxsplit=1)[0]
            with contextlib.suppress(ValueError):  # a base that is no address is ignored, as browsers do
                url = urllib.parse.urljoin(base, url) if _ABSOLUTE.match(base) else base[: base.rfind("/") + 1] + url
        if url.lower().startswith("file:"):
            return _inside(url, root)
        if url.startswith("//") or _NETWORK.match(url):
            return None
        place = urllib.parse.unquote(re.split(r"[?#]", url, maxsplit=1)[0])
        if not place.startswith("/"):
            return self.path.parent / place
        if root is None:
            raise MissingImageError(f"{url}: begins at the root of the site; give its folder by --root")
        return root / place.lstrip("/")


def ending_of(path: Path) -> str:
    """Return the ending that says what a file holds: ``.md`` for ``a.md``, and for its template ``a.md.tmpl``."""
    last, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
    return inner if last in TEMPLATES | {".tmpl"} and inner in MARKDOWN | HTML else last


def _inside(url: str, root: Path | None) -> Path:
    """Return the path of a ``file:`` URL in the root folder of the site; ``MissingImageError`` for all others."""
    from urllib.request import url2pathname

    try:
        path = Path(url2pathname(urllib.parse.urlsplit(url).path))
        inside = root is not None and path.resolve().is_relative_to(root.resolve())
    except ValueError as error:  # such as a null byte
        raise MissingImageError(f"{url}: is no address of a file ({error})") from error
    if not inside:
        raise MissingImageError(f"{url}: is not in the root folder of the site; give that by --root")
    return path


def _decode(data: bytes) -> tuple[str, str]:
    """Return the text of a file, and an encoding that reproduces its exact bytes."""
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


def find_in_html(text: str, components: bool = False) -> Iterator[Image]:
    """Yield the images of an HTML document or template in order; ``components``: of a kind in ``COMPONENTS``.

    Those that ``{% raw %}`` or ``{% verbatim %}`` encloses have no source, so that they stay.
    """
    found = list[Image]()
    for name, name_end, attributes, bare in _tags(text, components):
        if name == "img" and not bare:
            image = _image(text, name_end, attributes)
            if image is not None:
                found.append(image)
    for begin, end in _enclosed(text)[1]:
        begin += 1  # into the opening tag, so that this is none
        for one in find_in_html(text[begin:end], components):
            found.append(replace(one, source=None, start=begin + one.start, end=begin + one.end))
    yield from sorted(found, key=lambda image: image.start)


def _enclosed(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return spans of code and comments between tags of templates, and of text that these show as it is."""
    spans = list[tuple[int, int]](), list[tuple[int, int]]()
    for one in _ENCLOSED.finditer(text):
        spans[one[1] in ("raw", "verbatim")].append(one.span())
    return spans


def find_in_jsx(text: str) -> Iterator[Image]:
    """Yield the images of a file with HTML in JavaScript; those in strings have no source, so that they stay."""
    code = [one for one in _STRING.finditer(text) if _IN_STRING.search(one[0])]
    inside = ((one, one.lastgroup == "string") for one in code)  # the quotes may be those of an attribute
    shown = _hide(text, ((one.start(one.lastgroup or 0) + quote, one.end() - quote) for one, quote in inside))
    found = _without_strings(shown, find_in_html(shown, True))
    strings = (one.span() for one in code if one.lastgroup == "string")
    found += [_left(one.end()) for start, end in strings for one in re.compile("<img\\b").finditer(text, start, end)]
    yield from sorted(found, key=lambda image: image.start)


def _without_strings(text: str, images: Iterable[Image]) -> list[Image]:
    """Return images, without a source if the tag may be in a string, which double quotes in it would end."""
    text = text.replace("\\\r\n", "   ").replace("\\\n", "  ")  # lines of a string; positions stay
    found = list[Image]()
    for one in images:
        start, end = text.rfind("<", 0, one.start), text.find("\n", one.start)
        before = text.rfind('"', text.rfind("\n", 0, start) + 1, start) >= 0
        after = text.find('"', one.start, end if end >= 0 else len(text)) >= 0
        quoted = before and after and not _QUOTED.search(text, start, text.find(">", one.start))
        found.append(replace(one, source=None) if quoted else one)
    return found


def _left(at: int) -> Image:
    """Return an image that is counted and left alone."""
    return Image(None, None, at, at, ("", ""), str)


def value_in(text: str, element: str, attribute: str, components: bool = False) -> str:
    """Return an attribute of the first such element of an HTML document that has it, or an empty string."""
    for name, _, attributes, bare in _tags(text, components):
        if name == element and not bare and (value := _value(text, attributes, attribute)):
            return "" if _EXPRESSION.search(value) else html.unescape(value).strip()
    return ""


def _tags(text: str, components: bool = False) -> Iterator[tuple[str, int, dict[str, tuple[int, int]], bool]]:
    """Yield each start tag: name, end of the name, spans of its attributes, and whether it has bare templates."""
    notes = _NOTES.match(text)
    code, plain = _enclosed(text)
    text = _hide(text, [*([notes.span()] if notes else []), *code, *plain])
    at, last = 0, text.rfind(">") + 1
    while begin := _BEGIN.search(text, at, last):
        at = begin.start()
        if skipped := _TEMPLATE.match(text, at) or _COMMENT.match(text, at):
            at = skipped.end()
            continue
        tag = _TAG.match(text, at)
        if tag is None:
            at += 1
            continue
        end, attributes, bare = _attributes(text, tag.end())
        if end < 0:  # an unclosed tag: skip only its name, since tags may follow
            at = tag.end()
            continue
        name = tag[1].lower()
        if text[at + 1] != "/":
            yield name, tag.end(), attributes, bare
        at = end
        closed = text[tag.start() + 1] == "/" or (components and text[end - 2] == "/")
        if not closed and (tag[1] if components else name) in _RAW:
            close = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, at)
            at = len(text) if close is None else close.start()


def _attributes(text: str, at: int) -> tuple[int, dict[str, tuple[int, int]], bool]:
    """Return the end of a tag, the spans of its attribute values with quotes, and whether it has bare templates."""
    found: dict[str, tuple[int, int]] = {}
    bare = False
    while at < len(text):
        if text[at] == ">":
            return at + 1, found, bare
        if template := _IN_TAG.match(text, at):
            bare, at = True, template.end()
        elif text[at].isspace() or text[at] == "/":
            at += 1
        elif text[at] == "<":
            return -1, found, bare
        else:
            start, at = at, _until(text, at + 1, " \t\r\n\f/>=")
            name = text[start:at].lower()
            bare = bare or name in _SPREAD or _TEMPLATE.search(name) is not None
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
    """Return the position of the first of some characters outside templates."""
    special = re.compile(f"[{ends}{{<]")
    while (found := special.search(text, at)) and found[0] not in ends:
        at = found.start()
        template = (_TEMPLATE if ends in "\"'" else _IN_TAG).match(text, at)
        at = template.end() if template else at + 1
    return found.start() if found else len(text)


def _value(text: str, attributes: dict[str, tuple[int, int]], name: str) -> str | None:
    """Return the value of an attribute without quotes; None if there is no such attribute."""
    if name not in attributes:
        return None
    start, end = attributes[name]
    raw = text[start:end]
    return raw[1:-1] if raw[:1] in ('"', "'") else raw


def _image(text: str, name_end: int, attributes: dict[str, tuple[int, int]]) -> Image | None:
    """Return the image of an ``img`` tag; None if it is decorative, or has a text as ``aria-label``."""
    value = partial(_value, text, attributes)
    alt = value("alt")
    hidden = (value("aria-hidden") or "").lower() == "true" or value("aria-label") or value("aria-labelledby")
    if (alt is not None and not alt.strip()) or hidden or (value("role") or "").lower() in ("presentation", "none"):
        return None
    given = [(name, url) for name in _SOURCES if (url := value(name))]
    name, url = next((one for one in given if _is_address(*one)), (given or [("", "")])[0])
    if name.endswith("srcset") and not _EXPRESSION.search(url):
        url = "".join(url.split()[:1]).rstrip(",")
    bound = {found[1] for name in attributes if (found := _BOUND.match(name)) and name != found[1]}
    source = (
        None if bound or "<" in url or _EXPRESSION.search(f"{url} {alt or ''}") else html.unescape(url).strip() or None
    )
    if alt is None:
        return Image(source, "bound" if "alt" in bound else None, name_end, name_end, (' alt="', '"'), html.escape)
    return Image(source, html.unescape(alt), *attributes["alt"], ('"', '"'), html.escape)


def _is_address(name: str, value: str) -> bool:
    """Return whether a source is one: scripts know ``data-original="true"``, and templates fill in sets."""
    if name in ("src", "srcset"):
        return True
    return not _EXPRESSION.search(value) if name.endswith("srcset") else re.search(r"[./{<]", value) is not None


def find_in_markdown(text: str, components: bool = False) -> Iterator[Image]:
    """Yield the images of a Markdown document in order, including those found by :func:`find_in_html`, without code.

    An empty text counts as none, because Markdown cannot mark an image as decorative. Images whose text is also a
    reference, such as ``![cat][]``, are skipped.
    """
    noted, environment = list[tuple[int, int, Any]](), dict[str, Any]()
    parser = _commonmark(noted)
    notes = _NOTES.match(text)
    hidden, found = [notes.span()] if notes else [], list[Image]()
    body = _hide(text, hidden).replace("\r\n", " \n").replace("\r", "\n")  # positions stay
    body = _ON_A_LINE.sub(lambda one: one[0].replace(" ", "_"), body)  # no address has spaces
    body = _FOOTNOTE.sub(lambda one: "x" * len(one[0]), body)  # CommonMark takes it for the address of a link
    if components:  # CommonMark does not know that these are closed
        body = _CLOSED.sub(lambda one: "<" + "x" * (len(one[0]) - 1), body)
    lines = [0, *(one.end() for one in re.finditer("\n", body)), len(body)]
    for token in parser.parse(body.removeprefix("\ufeff"), environment):
        begin, stop = (lines[number] for number in token.map or (0, 0))
        if token.type in ("fence", "code_block"):
            hidden.append((begin, stop))
        elif token.type == "inline" or (token.type == "html_block" and not _NO_MARKDOWN.search(token.content)):
            noted.clear()
            parser.inline.parse(body[begin:stop], parser, environment, [])  # marks of lists and quotes do no harm
            for start, end, made in noted:
                hidden.append((begin + start, begin + end))
                label = begin + start + 2
                close = label + len(made.content)
                if made.type != "image" or body[close : begin + end] in ("]", "][]"):
                    continue
                url, told = made.attrs["src"], made.content.strip("> \t\n") or None
                if behind := _ALT_BEHIND.match(body, begin + end):
                    url, told = "", behind[0]
                source = None if not url or _EXPRESSION.search(url) else url
                found.append(Image(source, told, label, close, ("", ""), _escape_markdown))
    text = _hide(text, hidden)
    shown, filled = (_hide(body, spans) for spans in _enclosed(text))
    found = [image for image in found if shown[image.start - 1] == "["]
    found = [image if filled[image.start - 1] == "[" else replace(image, source=None) for image in found]
    in_html = find_in_html(text, components)
    found += _without_strings(text, in_html) if components else in_html
    yield from sorted(found, key=lambda image: image.start)


def _commonmark(noted: list[tuple[int, int, Any]]) -> MarkdownIt:
    """Return a parser of blocks, whose ``inline`` notes images, code and escaped characters: start, end and token."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline, backtick, escape, image

    def noting(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
        def note(state: StateInline, silent: bool) -> bool:
            start, count, before = state.pos, len(state.tokens), len(noted)
            done = rule(state, silent)
            if len(state.tokens) > count:
                noted[before:] = [(start, state.pos, state.tokens[-1])]  # instead of those in the text of an image
            return done

        return note

    parser = MarkdownIt("commonmark", {"maxNesting": 100})
    parser.normalizeLink = lambda url: url
    parser.validateLink = lambda url: True
    parser.core.ruler.enableOnly(["normalize", "block"])
    for name, rule in (("image", image), ("backticks", backtick), ("escape", escape)):
        parser.inline.ruler.at(name, noting(rule))
    return parser


def _hide(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with spaces instead of all but the line ends of some spans."""
    pieces, at = list[str](), 0
    for start, end in sorted(spans):
        if end > at:
            start = max(start, at)
            pieces += [text[at:start], re.sub(r"[^\r\n]", " ", text[start:end])]
            at = end
    return "".join([*pieces, text[at:]])


def line_of(text: str, at: int) -> int:
    """Return the line number of a position, from 1."""
    return text.count("\n", 0, at) + 1


def checked(sentence: str, ask: Callable[[list[str]], Collection[str]]) -> str:
    """Return a caption without what its image does not show; empty if that is the first thing that it names.

    It ends before the part that names another such thing, and a colour that its thing does not have is left out.

    Args:
        ask: returns those of the given phrases that are found in the image.

    Example:
        >>> checked("a black umbrella and a dog on a bench", lambda _: ["an umbrella", "a bench"])
        'an umbrella'
    """
    words = tokenize(sentence)
    heads = find_things(words, noun_tree())
    things = [with_articles(f"a {head.noun.name}") for head in heads if head.noun is not None]
    starts = [phrase_start(words, head.start) for head in heads]
    phrases = list[str]()
    for start, head, thing in zip(starts, heads, things, strict=True):
        before = [word for word in words[start : head.start] if word not in STARTS]
        phrases.append(with_articles(" ".join(["a", *before, *thing.split()[1:]])))
    coloured = [
        bool(asked_colours(phrase)) and "or" not in words[max(start - 1, 0) : start]
        for start, phrase in zip(starts, phrases, strict=True)
    ]
    found = ask([*dict.fromkeys((*things, *compress(phrases, coloured)))]) if things else ()
    absent = next((number for number, thing in enumerate(things) if thing not in found), None)
    while absent and list(words[heads[absent - 1].stop : starts[absent]]) == ["of"]:  # the head of a porcupine
        absent -= 1
    if absent == 0:
        return ""
    wrong = set[int]()
    for start, head, phrase, colour in zip(starts, heads, phrases, coloured, strict=True):
        if colour and phrase not in found:
            wrong |= {place for place in range(start, head.start) if colour_of(words, place) is not None}
    stop = len(words) if absent is None else _cut(words, heads[0].stop, starts[absent])
    kept = without_tinted_colours(words[:stop], {place for place in wrong if place < stop})
    return with_articles(" ".join(kept if absent is None else kept[: without_loose_end(kept, len(kept))]))


def _cut(words: Sequence[str], first: int, start: int) -> int:
    """Return where a sentence ends before the part with the phrase at ``start``; at least its ``first`` words stay."""
    begins = (p for p in range(start - 1, first - 1, -1) if words[p].endswith("ing") or words[p] in CUT_BEFORE - {"of"})
    return next(begins, first)


def _names_people(text: str) -> bool:
    return any(map(noun_tree().is_person, find_nouns(text, noun_tree())))


def compose(sentence: str, regions: Regions, length: int = LENGTH) -> str:
    """Return an alternative text: the sentence, followed by as many sure regions that it does not name as fit.

    A region counts as named if the text has its noun, a kind of it, or something it is a kind of: "a white dog" adds
    nothing to "a poodle". An empty sentence is replaced by the best of the regions that are shown by default, if any,
    and so is one about people, if none of these is about people. Regions must be best first. A sentence longer than
    ``length`` is cut between words.
    """
    sentence = " ".join(sentence.split())
    seen = [*filter(None, (regions if regions.scores is None else regions.at_least()).captions or ())]
    if seen and (not sentence or (_names_people(sentence) and not any(map(_names_people, seen)))):
        sentence = seen[0]
    if not sentence:
        return ""
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
