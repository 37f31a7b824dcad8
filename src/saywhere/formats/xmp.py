"""XMP sidecars for photo managers: description, alt text, subjects and regions, merged into existing metadata.

Regions are written twice, as IPTC's ``ImageRegion`` and as MWG regions, relative to the image as stored (before EXIF
orientation). Our own namespace lists digests of the values that we wrote: a later run replaces only these, and keeps
everything that another program or a person has added or changed.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.dom import Node, minidom
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from PIL import ImageFile, IptcImagePlugin

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import TOO_LONG, atomic_path, fits, short_name, write_atomically
from saywhere.formats.reading import OtherShape, Row, leave_out, legal, placed, reader, to_regions
from saywhere.images import (
    LYING,
    RAW_SUFFIXES,
    SUFFIXES,
    DiskSize,
    ImageError,
    MissingImageError,
    flip,
    measure,
    opened,
    to_upright,
)
from saywhere.models.nouns import noun_tree
from saywhere.regions import Regions
from saywhere.report import Report
from saywhere.text import tokenize

OURS = "saywhere"
"""Our ``xmp:CreatorTool``, and the prefix of our namespace."""
SCORES = (f"{OURS}:Score", f"{OURS}:PhraseScore")
"""Fields of a region: probabilities that its box and its text are right."""
WRITER = "saywhere, a program (draft)"
"""The author of our descriptions, as photo managers show it."""
SURE = 0.5
"""Minimum probability of boxes and words for subjects and the description; unknown probabilities count as certain."""
PHRASES = 3
"""Maximum number of phrases in a description made from regions."""
PEOPLE = frozenset(("Face", "Pet"))
"""MWG's types of regions whose names are names of individuals."""
MARKS = frozenset(("Focus", "BarCode"))
"""MWG's types of regions with nothing to describe."""
RDF, XML = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/XML/1998/namespace"
NAMESPACES = {
    "rdf": RDF,
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
    "stArea": "http://ns.adobe.com/xmp/sType/Area#",
    "stDim": "http://ns.adobe.com/xap/1.0/sType/Dimensions#",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    OURS: "urn:saywhere:xmp#",
}
EMPTY = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">\n <rdf:RDF xmlns:rdf="%s">\n </rdf:RDF>\n</x:xmpmeta>' % RDF.encode()
PACKET = b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n%s\n<?xpacket end="w"?>' % EMPTY
"""The initial XMP of an image without any; a sidecar starts with :data:`EMPTY`."""
EMBEDDING = frozenset((".jpg", ".jpeg", ".jpe", ".png", ".webp"))
"""Extensions of files that XMP can be embedded in; other files get sidecars."""
LONGEST = 65_000
"""Maximum size of XMP in one JPEG segment, in bytes."""
CONTAINERS = ("Bag", "Seq", "Alt")
TEXTS = ("dc:description", "Iptc4xmpCore:AltTextAccessibility")
KEYWORDS = (2, 25)
"""IPTC record and dataset number of keywords."""
BAG, TAGS, MWG, IPTC = "dc:subject", "digiKam:TagsList", "mwg-rs:Regions", "Iptc4xmpExt:ImageRegion"
KINDS = {BAG: "subject", TAGS: "tag", MWG: "mwg", IPTC: "iptc"}
"""Prefixes of the keys of items in these properties."""

Value = Any
"""The value of a property or field: a text, or the element that contains it."""


class Place(NamedTuple):
    """A region in a sidecar: ``x1 y1 x2 y2`` as fractions of the stored image, text, scores and MWG type."""

    box: tuple[float, float, float, float]
    text: str
    score: float | None = None
    caption_score: float | None = None
    type: str = ""

    def key(self, kind: str) -> str:
        """Return the key of this region in the list of values that we wrote."""
        return _key(kind, self.text, *(f"{value + 0:.4f}" for value in self.box))


def _key(kind: str, *parts: str) -> str:
    return f"{kind}:{short_name(chr(0).join(parts))}"


def sidecar(image: Path) -> Path:
    """Return the sidecar path of an image: ``a.jpg.xmp`` for ``a.jpg``."""
    return image.with_name(f"{image.name}.xmp")


def to_stored(shares: np.ndarray, orientation: int) -> np.ndarray:
    """Convert boxes ``(N, 4)``, fractions of the upright image, to fractions of the stored one (EXIF orientation)."""
    return flip(shares[:, [1, 0, 3, 2]] if orientation in LYING else shares, orientation)


def subjects(regions: Regions) -> list[str]:
    """Return the head nouns (in the tree of nouns) of confident regions' phrases, best region first."""
    heads = (noun_tree().head(tokenize(phrase)).noun for phrase in _sure(regions))
    return list(dict.fromkeys(noun.name for noun in heads if noun is not None))


def _sure(regions: Regions) -> list[str]:
    found = (
        one for one in regions if one.caption and all(v is None or v >= SURE for v in (one.score, one.caption_score))
    )
    return list(dict.fromkeys(one.caption or "" for one in sorted(found, key=lambda one: -(one.score or 0))))


def write_regions(place: Path, image: Path, regions: Regions, names: bool = False) -> None:
    """Write an image's regions, subjects and description to ``place``, replacing earlier ones of ours.

    ``place`` is a sidecar, or the image itself. A new sidecar elsewhere starts with the content of the one beside the
    image. With ``names``, the phrases of MWG regions go into ``Name``, which programs take for a person's name, instead
    of ``Description``. Raises ``ValueError`` if the image or a sidecar cannot be used, ``OSError`` if it cannot be
    written.
    """
    size = _measure(image)
    regions = Regions.from_dict(regions.to_dict())  # rounded, like regions from a results file
    shares = geometry.scale(regions.boxes.astype(np.float64), 1 / regions.width, 1 / regions.height)
    stored = to_stored(shares, size.orientation).clip(0, 1).tolist()
    rows = zip(stored, regions, strict=True)
    places = [Place(tuple(box), _plain(one.caption), one.score, one.caption_score) for box, one in rows]
    with _edited(place, image) as held:
        held.put_text("phrases", "; ".join(_sure(regions)[:PHRASES]))
        held.put_subjects(subjects(regions), _has_tags(image, place))
        wide = (size.height, size.width) if size.orientation in LYING else (size.width, size.height)
        held.put_regions(places, wide, names)


def _has_tags(image: Path, place: Path) -> bool:
    """Return whether an image file contains tags: immich ignores these if there is a ``digiKam:TagsList``."""
    with opened(image) as file:
        keywords = isinstance(file, ImageFile.ImageFile) and KEYWORDS in (IptcImagePlugin.getiptcinfo(file) or {})
    inside = b"" if place == image else embedded(image)
    return keywords or b"TagsList" in inside or b"hierarchicalSubject" in inside


def write_sentence(place: Path, image: Path, sentence: str) -> None:
    """Write a sentence to ``place`` as the image's description and alt text; raises like :func:`write_regions`."""
    _measure(image)
    with _edited(place, image) as held:
        held.put_text("sentence", sentence)


def _plain(text: str | None) -> str:
    """Normalise a text as XML readers return it."""
    return " ".join(legal(text).split())


def _measure(image: Path) -> DiskSize:
    try:
        return measure(image)
    except ImageError as error:
        raise ValueError(f"the image is needed for its EXIF orientation ({_reason(error, image)})") from error


def _reason(error: ImageError, image: Path) -> str:
    return str(error).removeprefix(f"{image}: ")


def write(path: Path, images: Iterable[Regions], names: bool = False) -> dict[str, str]:
    """Write a sidecar for each image into a folder; return the reasons of left-out images, by name."""
    found = {one.image or "": (place, one) for place, one in placed(path, images, sidecar).items()}
    told = {name: refused(write_regions, place, Path(name), one, names) for name, (place, one) in found.items()}
    return {name: why for name, why in told.items() if why}


def beside(regions: Regions, names: bool = False, embed: bool = False) -> str | None:
    """Write the sidecar beside an image, or embed the XMP; return why that failed, or None."""
    image = Path(regions.image or "")
    return refused(write_regions, place_of(image, embed), image, regions, names)


def place_of(image: Path, embed: bool = False) -> Path:
    """Return where to write the XMP of an image: its sidecar or, with ``embed`` and a suitable format, the image."""
    return image if embed and image.suffix.lower() in EMBEDDING else sidecar(image)


def check_embed(format: str | None, out: Path | None = None) -> None:
    """Raise ``UserError`` if XMP cannot be embedded: no ExifTool, another format, or an ``out`` folder."""
    if format is None or not format.startswith("xmp"):
        raise UserError("--embed is for the format xmp: give it as well, by --output-format or --to")
    if out is not None:
        raise UserError(f"--embed writes into the images, and nothing to --out {out}: give one of the two")
    if shutil.which("exiftool") is None:
        raise UserError("--embed needs ExifTool: apt-get install libimage-exiftool-perl, or https://exiftool.org")


def embedded(image: Path) -> bytes:
    """Return the XMP embedded in an image file, or empty bytes; raise ``ImageError`` if the file cannot be read."""
    with opened(image) as file:
        if file.format == "PNG":
            file.load()  # the XMP may follow the pixels
        found = file.info.get("xmp") or file.info.get("XML:com.adobe.xmp") or b""
    return found.encode() if isinstance(found, str) else found


def _embed(image: Path, data: bytes) -> None:
    """Embed XMP in an image file with ExifTool, atomically."""
    if len(data) > LONGEST:
        raise ValueError(f"its XMP would have {len(data)} bytes; at most {LONGEST} fit into an image")
    with tempfile.TemporaryDirectory() as folder, atomic_path(image) as part:
        (packet := Path(folder, "packet.xmp")).write_bytes(data)
        part.unlink(missing_ok=True)  # left over from a killed run
        told = _EXIFTOOL.run("-api", "PNGEarlyXMP=1", f"-XMP<={packet}", "-o", part.absolute(), image.absolute())
        if not part.exists() or "Error" in told or "Invalid" in told:
            raise ValueError(f"ExifTool cannot write into it ({' '.join(told.split(' - ')[0].split())})")
        shutil.copymode(image, part)


class _ExifTool:
    """An ExifTool process that serves many images."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *words: object) -> str:
        """Run ExifTool and return its output; raise ``ValueError`` for line breaks, which separate arguments."""
        lines = [str(word) for word in words]
        if any("\n" in line for line in lines):
            raise ValueError("its name has a line break")
        if self._process is None or self._process.poll() is not None:
            command = ["exiftool", "-stay_open", "True", "-@", "-"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
            atexit.register(self.close)
        process, told = self._process, b""
        if process.stdin is None or process.stdout is None:
            raise ValueError("ExifTool has no pipes")
        text = "\n".join([*lines, "-charset", "filename=utf8", "-execute", ""])
        process.stdin.write(os.fsencode(text))
        process.stdin.flush()
        while (line := process.stdout.readline()) and line.strip() != b"{ready}":
            told += line
        return told.decode("utf-8", "replace")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate(b"-stay_open\nFalse\n")
            self._process = None


_EXIFTOOL = _ExifTool()


def refused(put: Callable[..., object], *arguments: object) -> str | None:
    """Call a function that writes a sidecar; return why that failed, or None."""
    try:
        return None if fits(put, *arguments) else TOO_LONG
    except ValueError as error:
        return str(error)
    except OSError as error:
        if not isinstance(error, PermissionError | NotADirectoryError) and error.errno != errno.EROFS:
            raise
        return f"its sidecar cannot be written ({error.strerror})"


class _Sidecar:
    """A parsed sidecar. Properties are named with the prefixes of :data:`NAMESPACES`, not with those of the file.

    Raises ``ValueError`` if it is not XMP, or has a document type, which could define entities.
    """

    def __init__(self, data: bytes) -> None:
        self.declared = not data or data.lstrip(b"\xef\xbb\xbf").startswith(b"<?xml")
        self.document = _parse(data or EMPTY)
        roots = self.document.getElementsByTagNameNS(RDF, "RDF")
        if not roots:
            raise ValueError("it has no rdf:RDF")
        self.root = roots[0]
        self.written: set[str] = set()
        for _, value in self.properties(f"{OURS}:Written"):
            self.written |= {_text(item) for item in _items(value)}
        self.known = any(True for _ in self.properties(f"{OURS}:Written"))
        self._new: list[str] = []

    def descriptions(self) -> list[Any]:
        """Return the elements with the properties of the image."""
        return [one for one in _elements(self.root) if (one.namespaceURI, one.localName) == (RDF, "Description")]

    def properties(self, name: str) -> Iterator[tuple[Any, Value]]:
        """Yield the element that contains a property, and its value; more than once only in a broken sidecar."""
        for holder in self.descriptions():
            for one, value in _fields(holder):
                if one == name:
                    yield holder, value

    # Writing

    def put_text(self, kind: str, text: str) -> None:
        """Write description and alt text unless others have written them; phrases never replace a sentence."""
        text = _plain(text)
        for name in TEXTS:
            known = {key for key in self.written if key.rpartition(":")[0] in (f"phrases {name}", f"sentence {name}")}
            self.written -= known
            free = bool(text)
            for holder, value in list(self.properties(name)):
                ours = {_key(f"{one} {name}", _text(value)) for one in ("phrases", "sentence")} & known
                kept = kind == "phrases" and any(key.startswith("sentence") for key in ours)
                if ours and not kept and len(_items(value)) <= 1:
                    _drop(holder, name, value)
                else:
                    free = False
                    self.written |= ours
            if free:
                self._new.append(f"<{name}>{_alternative(text)}</{name}>")
                self.written.add(_key(f"{kind} {name}", text))

    def put_subjects(self, names: Sequence[str], tagged: bool = False) -> None:
        """Add subjects to those of others, and as digiKam's tags unless these would hide tags of others.

        ``tagged`` says whether the image file contains tags.
        """
        items = [f"<rdf:li>{escape(name)}</rdf:li>" for name in names]
        self._put(BAG, items, f"<{BAG}>{{}}</{BAG}>")
        theirs = {_key_of(TAGS, item) for _, value in self.properties(TAGS) for item in _items(value)} - self.written
        hides = not theirs and (tagged or any(self.properties("lr:hierarchicalSubject")))
        self._put(TAGS, [] if hides else items, f"<{TAGS}>{{}}</{TAGS}>", "Seq")

    def put_regions(self, places: Sequence[Place], size: tuple[int, int], names: bool) -> None:
        """Write MWG and IPTC regions; ``size`` is that of the stored image."""
        dimensions = f'stDim:w="{size[0]}" stDim:h="{size[1]}" stDim:unit="pixel"'
        around = f'<{MWG} rdf:parseType="Resource">\n   <mwg-rs:AppliedToDimensions {dimensions}/>\n   '
        around += f"<mwg-rs:RegionList>{{}}</mwg-rs:RegionList>\n  </{MWG}>"
        self._put(MWG, [_mwg(one, "Name" if names else "Description") for one in places], around)
        self._put(IPTC, [_iptc(one) for one in places], f"<{IPTC}>{{}}</{IPTC}>")

    def _put(self, name: str, items: Sequence[str], around: str, container: str = "Bag") -> None:
        """Replace our items in a list by new ones, given as XML; items that others already have are not repeated.

        ``around`` is the XML of the property, with ``{}`` for the list, an element named ``container``.
        """
        theirs: set[str | None] = set()
        home: Any = None
        for holder, value in list(self.properties(name)):
            bag = _bag(value, name)
            for item in _items(bag):
                key = _key_of(name, item)
                if key in self.written:
                    _remove(item)
                else:
                    theirs.add(key)
            if bag is not None and not _items(bag):
                _drop(holder, name, value)
            else:
                home = home or bag or name
        self.written = {key for key in self.written if not key.startswith(f"{KINDS[name]}:")}
        if isinstance(home, str):  # the property is not a list, and not ours to change
            return
        nodes = {_key_of(name, _node(text)): text for text in items}
        new = {key: text for key, text in nodes.items() if key is not None and key not in theirs}
        self.written |= new.keys()
        for text in new.values() if home is not None else ():
            _append(home, _node(text))
        if new and home is None:
            listed = "\n    ".join(new.values())
            self._new.append(around.format(f"<rdf:{container}>\n    {listed}\n   </rdf:{container}>"))

    def data(self) -> bytes:
        """Return the content of the file with all changes."""
        for holder, value in list(self.properties(f"{OURS}:Written")):
            _drop(holder, f"{OURS}:Written", value)
        described = any(f" {TEXTS[0]}:" in key for key in self.written)
        signed = self._sign("xmp:CreatorTool", OURS) + self._sign("photoshop:CaptionWriter", WRITER, described)
        new = [*signed, *self._new]
        keys = "".join(f"<rdf:li>{escape(key)}</rdf:li>" for key in sorted(self.written))
        new.append(f"<{OURS}:Written><rdf:Bag>{keys}</rdf:Bag></{OURS}:Written>")
        about = next((one.getAttributeNS(RDF, "about") for one in self.descriptions()), "")
        inside = "\n  ".join(new)
        _append(self.root, _node(f"<rdf:Description rdf:about={quoteattr(about)}>\n  {inside}\n </rdf:Description>"))
        start = '<?xml version="1.0" encoding="UTF-8"?>\n' if self.declared else ""
        return (start + "\n".join(_xml(node) for node in self.document.childNodes) + "\n").encode()

    def _sign(self, name: str, text: str, wanted: bool = True) -> list[str]:
        """Remove our signature; return its XML if it is wanted and nobody else has signed there."""
        theirs = False
        for holder, value in list(self.properties(name)):
            if _text(value) == text:
                _drop(holder, name, value)
            else:
                theirs = True
        return [] if theirs or not wanted else [f"<{name}>{text}</{name}>"]

    # Reading

    def places(self) -> list[Value]:
        """Return the regions as elements: MWG's, which programs correct, and IPTC's that are not among these.

        If MWG's are as we wrote them and IPTC's are not, somebody has corrected IPTC's, and only these are returned.
        """
        found = {
            name: [item for _, value in self.properties(name) for item in _items(_bag(value, name))]
            for name in (MWG, IPTC)
        }
        changed: dict[str, bool] = {}
        for name, items in found.items():
            before = {key for key in self.written if key.startswith(f"{KINDS[name]}:")}
            changed[name] = {_key_of(name, item) for item in items} != before
        if self.known and changed[IPTC] and not changed[MWG]:
            return found[IPTC]
        known = [_region(item) for item in found[MWG]]
        return found[MWG] + [item for item in found[IPTC] if not self._is_twin(_region(item), known)]

    def _is_twin(self, one: Place | None, known: Collection[Place | None]) -> bool:
        if one is None:
            return False
        same = (other for other in known if other is not None and other.text == one.text)
        return one.key("iptc") in self.written or any(np.allclose(one.box, other.box, atol=0.002) for other in same)

    def applied(self) -> tuple[float, float] | None:
        """Return the size of the image that the MWG regions refer to, if given."""
        for _, value in self.properties(MWG):
            fields = dict(_fields(value))
            if "mwg-rs:AppliedToDimensions" in fields:
                size = dict(_fields(fields["mwg-rs:AppliedToDimensions"]))
                return float(_text(size["stDim:w"])), float(_text(size["stDim:h"]))
        return None


@contextmanager
def _edited(place: Path, image: Path) -> Iterator[_Sidecar]:
    """Yield the sidecar at ``place`` (or a copy of the one beside the image), or embedded XMP; write it if changed."""
    inside, empty = place == image, b""
    place = place.resolve() if place.is_symlink() else place
    source = place if inside else next((path for path in (place, sidecar(image)) if path.exists()), place)
    if inside:
        before, empty = embedded(place), PACKET
        if b"HasExtendedXMP" in before:
            raise ValueError("its XMP is in several parts, which only other programs can change")
    else:
        before = source.read_bytes() if source.exists() else b""
    try:
        held = _Sidecar(before or empty)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {'XMP' if inside else f'sidecar {source}'} cannot be used ({error})") from error
    yield held
    data = held.data()
    if inside and data.strip() != before.strip():
        _embed(place, data.strip())
    elif not inside and (data != before or source != place):
        write_atomically(place, lambda file: file.write(data))


def _parse(data: bytes) -> Any:
    """Parse XML; raise ``ValueError`` if it is not XML, or has a document type, which could define entities."""

    def refuse(*_: object) -> None:
        raise ValueError("it has a document type, which XMP must not have")

    try:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = refuse
        parser.Parse(data, True)
        return minidom.parseString(data)
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(f"it is not XML: {error}") from error


def _node(text: str) -> Any:
    """Parse an element of ours, declaring the namespaces that it needs."""
    used = {"rdf"} | {prefix for prefix in NAMESPACES if f"{prefix}:" in text}
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items() if prefix in used)
    start = min(text.find(end) for end in " >" if end in text)
    return minidom.parseString((text[:start] + declared + text[start:]).encode()).documentElement


def _alternative(text: str) -> str:
    return f'<rdf:Alt><rdf:li xml:lang="x-default">{escape(text)}</rdf:li></rdf:Alt>'


def _mwg(place: Place, tag: str) -> str:
    x1, y1, x2, y2 = place.box
    sides = zip("xywh", ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), strict=True)
    area = " ".join(f'stArea:{side}="{value:.6f}"' for side, value in sides)
    score = f"<mwg-rs:Extensions rdf:parseType='Resource'>{own}</mwg-rs:Extensions>" if (own := _scores(place)) else ""
    said = f"<mwg-rs:{tag}>{escape(place.text)}</mwg-rs:{tag}>" if place.text else ""
    return f'<rdf:li rdf:parseType="Resource"><mwg-rs:Area {area} stArea:unit="normalized"/>{said}{score}</rdf:li>'


def _iptc(place: Place) -> str:
    x1, y1, x2, y2 = place.box
    numbers = {"rbX": x1, "rbY": y1, "rbW": x2 - x1, "rbH": y2 - y1}
    fields = {"rbShape": "rectangle", "rbUnit": "relative", **{name: f"{v:.6f}" for name, v in numbers.items()}}
    inside = "".join(f"<Iptc4xmpExt:{name}>{value}</Iptc4xmpExt:{name}>" for name, value in fields.items())
    tag = "Iptc4xmpExt:RegionBoundary"
    said = f"<Iptc4xmpExt:Name>{_alternative(place.text)}</Iptc4xmpExt:Name>" if place.text else ""
    boundary = f"<{tag} rdf:parseType='Resource'>{inside}</{tag}>"
    return f'<rdf:li rdf:parseType="Resource">{boundary}{said}{_scores(place)}</rdf:li>'


def _scores(place: Place) -> str:
    values = zip(SCORES, (place.score, place.caption_score), strict=True)
    return "".join(f"<{name}>{value:.5f}</{name}>" for name, value in values if value is not None)


# RDF: a field is an attribute or an element, and a structure may be inside its own rdf:Description


def _elements(node: Any) -> list[Any]:
    return [child for child in node.childNodes if child.nodeType == Node.ELEMENT_NODE]


_PREFIXES = {uri: prefix for prefix, uri in NAMESPACES.items()}


def _fields(value: Value) -> Iterator[tuple[str, Value]]:
    """Yield the fields of a structure, named with our prefixes, except those of unknown namespaces."""
    if isinstance(value, str):
        return
    for one in list(value.attributes.values()):
        if one.namespaceURI in _PREFIXES and one.namespaceURI != RDF:
            yield f"{_PREFIXES[one.namespaceURI]}:{one.localName}", one.value
    for one in _elements(value):
        if (one.namespaceURI, one.localName) == (RDF, "Description"):
            yield from _fields(one)
        elif one.namespaceURI in _PREFIXES and one.namespaceURI != RDF:
            yield f"{_PREFIXES[one.namespaceURI]}:{one.localName}", one


def _items(value: Value) -> list[Any]:
    """Return the items of a list, given the element that contains it, or its ``rdf:Bag`` itself."""
    if value is None or isinstance(value, str):
        return []
    if value.namespaceURI == RDF and value.localName in CONTAINERS:
        return [one for one in _elements(value) if (one.namespaceURI, one.localName) == (RDF, "li")]
    return [item for one in _elements(value) if one.localName in CONTAINERS for item in _items(one)]


def _bag(value: Value, name: str) -> Any:
    """Return the list element of a property, or None."""
    if name == MWG:
        value = dict(_fields(value)).get("mwg-rs:RegionList")
    if value is None or isinstance(value, str):
        return None
    return next((one for one in _elements(value) if one.namespaceURI == RDF and one.localName in CONTAINERS), None)


def _text(value: Value) -> str:
    """Return the text of a value; of language alternatives, that of ``x-default``, otherwise the first."""
    if value is None or isinstance(value, str):
        return value or ""
    if items := _items(value):
        chosen = next((item for item in items if item.getAttributeNS(XML, "lang") == "x-default"), items[0])
        return _text(chosen)
    kinds = (Node.TEXT_NODE, Node.CDATA_SECTION_NODE)
    return "".join(child.data for child in value.childNodes if child.nodeType in kinds).strip()


def _key_of(name: str, item: Any) -> str | None:
    """Return the key of a list item in the values that we wrote; None for a region that cannot be ours."""
    if name in (BAG, TAGS):
        return _key(KINDS[name], _text(item))
    one = _region(item)
    return None if one is None else one.key(KINDS[name])


def _region(item: Any) -> Place | None:
    try:
        return _place(item, None)
    except (KeyError, ValueError):
        return None


def _place(item: Any, applied: tuple[float, float] | None) -> Place:
    """Return the region in an item of MWG's or IPTC's list; raise ``OtherShape`` or ``ValueError`` if it is no box."""
    fields = dict(_fields(item))
    if "mwg-rs:Area" in fields:
        box = _area({name: _text(value) for name, value in _fields(fields["mwg-rs:Area"])}, applied)
        text = _text(fields.get("mwg-rs:Description")) or _text(fields.get("mwg-rs:Name"))
        own = dict(_fields(fields.get("mwg-rs:Extensions", "")))
        kind = _text(fields.get("mwg-rs:Type"))
        if kind in PEOPLE and ("mwg-rs:Description" in fields or text[:1].islower()):
            kind = ""  # a phrase: digiKam gives all its regions the type Face
    else:
        bounds = {name: _text(one) for name, one in _fields(fields["Iptc4xmpExt:RegionBoundary"])}
        box, text, kind = _boundary(bounds), _text(fields.get("Iptc4xmpExt:Name")), ""
        own = fields
    score, sure = (None if (value := own.get(name)) is None else float(_text(value)) for name in SCORES)
    return Place(box, " ".join(text.split()), score, sure, kind)


def _area(area: dict[str, str], applied: tuple[float, float] | None) -> tuple[float, float, float, float]:
    if "stArea:w" not in area and "stArea:h" not in area:
        raise OtherShape("circle" if "stArea:d" in area else "point")
    x, y, w, h = (float(area[f"stArea:{side}"]) for side in "xywh")
    if area.get("stArea:unit", "normalized") == "pixel":
        if applied is None:
            raise ValueError("a region is in pixels of an unknown size")
        x, y, w, h = x / applied[0], y / applied[1], w / applied[0], h / applied[1]
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def _boundary(bounds: dict[str, str]) -> tuple[float, float, float, float]:
    shape = bounds["Iptc4xmpExt:rbShape"]
    if shape != "rectangle":
        raise OtherShape(shape)
    if bounds.get("Iptc4xmpExt:rbUnit", "relative") != "relative":
        raise ValueError("a region of IPTC's is in pixels of an unknown size")
    x, y, w, h = (float(bounds[f"Iptc4xmpExt:{side}"]) for side in ("rbX", "rbY", "rbW", "rbH"))
    return x, y, x + w, y + h


# The document: adding an element and removing it again restores the white space


def _is_space(node: Any) -> bool:
    return node is not None and node.nodeType == Node.TEXT_NODE and not node.data.strip()


def _append(parent: Any, node: Any) -> None:
    """Append an element on its own line."""
    depth, above = 0, parent
    while above is not None and above.nodeType == Node.ELEMENT_NODE:
        depth, above = depth + 1, above.parentNode
    document = parent.ownerDocument
    end = parent.lastChild if _is_space(parent.lastChild) else None
    parent.insertBefore(document.createTextNode("\n" + " " * (depth - 1)), end)
    parent.insertBefore(document.importNode(node, True), end)


def _remove(node: Any) -> None:
    """Remove an element and the white space before it."""
    parent = node.parentNode
    if _is_space(node.previousSibling):
        parent.removeChild(node.previousSibling)
    parent.removeChild(node)


def _drop(holder: Any, name: str, value: Value) -> None:
    """Remove a property from its element, and the element if nothing else is left in it."""
    if isinstance(value, str):
        prefix, _, local = name.partition(":")
        holder.removeAttributeNS(NAMESPACES[prefix], local)
    else:
        _remove(value)
    plain = all(one.namespaceURI in (RDF, "http://www.w3.org/2000/xmlns/") for one in holder.attributes.values())
    if plain and all(_is_space(child) for child in holder.childNodes):
        _remove(holder)


_IN_TEXT = {"\r": "&#13;"}
_IN_ATTRIBUTE = {**_IN_TEXT, '"': "&quot;", "\n": "&#10;", "\t": "&#9;"}


def _xml(node: Any) -> str:
    """Serialize a node with its original prefixes, escaping characters that readers would change (minidom does not)."""
    match node.nodeType:
        case Node.TEXT_NODE:
            return escape(node.data, _IN_TEXT)
        case Node.CDATA_SECTION_NODE:
            return f"<![CDATA[{node.data}]]>"
        case Node.COMMENT_NODE:
            return f"<!--{node.data}-->"
        case Node.PROCESSING_INSTRUCTION_NODE:
            return f"<?{node.target} {node.data}?>"
        case _:
            pairs = ((one.name, escape(one.value, _IN_ATTRIBUTE)) for one in node.attributes.values())
            start = node.tagName + "".join(f' {name}="{value}"' for name, value in pairs)
            inside = "".join(map(_xml, node.childNodes))
            return f"<{start}>{inside}</{node.tagName}>" if inside else f"<{start}/>"


@reader("xmp")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image whose sidecar in the folder ``path`` has regions, or was written by us.

    The sidecar of ``a.jpg`` is ``a.jpg.xmp``, or ``a.xmp`` if no other image (or no other RAW file) is called ``a``.
    Images are beside their sidecars, or in the same subfolders of ``images``. Faces without a description are left out,
    since their names are names of people; a name that begins with a lower-case letter counts as a phrase.
    """
    for file, inside in _places_below(path):
        with leave_out(report, "XMP that cannot be used" if inside else "sidecar that cannot be used",
                       file.relative_to(path)):  # fmt: skip
            image = file if inside else _image_of(file, (images or path) / file.relative_to(path).parent)
            try:
                size = measure(image)
            except MissingImageError as error:
                way = "give their folder by --images" if images is None else f"sidecars in {path} have them in {images}"
                raise ValueError(f"there is no image {image}; {way}") from error
            except ImageError as error:
                raise ValueError(_reason(error, image)) from error
            held = _Sidecar(embedded(file) if inside else file.read_bytes())
            if not (entries := held.places()) and not held.known:
                report.left_out["sidecars without regions"] += 1
                continue
            applied, orientation = held.applied(), size.orientation
            if applied and orientation in LYING and (applied[0] - applied[1]) * (size.width - size.height) > 0:
                orientation = 1  # written by a program that marked the upright image

            rows = partial(_rows, applied, size._replace(orientation=orientation), report)
            yield from to_regions(str(image), size[:2], entries, rows, report)


def _places_below(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the sidecars in a folder, and images without a sidecar that contain regions, each with whether embedded."""
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() == ".xmp":
            yield file, False
        elif file.suffix.lower() in EMBEDDING and has_regions(file):
            yield file, True


def has_regions(image: Path) -> bool:
    """Return whether an image without a sidecar has embedded regions, or is marked as ours."""
    try:
        data = b"" if sidecar(image).exists() or image.with_suffix(".xmp").exists() else embedded(image)
    except (ImageError, OSError):
        return False
    return any(mark in data for mark in (b":RegionList", b":ImageRegion", f"{OURS}:Written".encode()))


def _rows(applied: tuple[float, float] | None, size: DiskSize, report: Report, item: Any) -> Iterator[Row]:
    place = _place(item, applied)
    if place.type in PEOPLE | MARKS:
        report.left_out[f"regions of the type {place.type}"] += 1
        return
    upright = to_upright(np.array([place.box]), size.orientation)
    x1, y1, x2, y2 = geometry.scale(upright, size.width, size.height)[0].tolist()
    yield Row((x1, y1, x2, y2), place.text, place.score, place.caption_score)


def _image_of(file: Path, folder: Path) -> Path:
    """Return the image of a sidecar; raise ``ValueError`` if there is none, or more than one."""
    named = folder / file.name.removesuffix(".xmp")
    if named.suffix.lower() in SUFFIXES:
        return named
    found = [one for one in folder.glob("*") if one.stem == named.name and one.suffix.lower() in SUFFIXES]
    if len(raw := [one for one in found if one.suffix.lower() in RAW_SUFFIXES]) == 1:
        return raw[0]  # programs embed XMP in a JPEG, and write it beside a RAW file
    if len(found) != 1:
        raise ValueError(f"{len(found)} images have its name, and it must be one")
    return found[0]
