"""XMP sidecars: description, alt text, subjects and regions for photo managers, merged with what is there already.

Regions are written twice, as IPTC's ``ImageRegion`` and as MWG regions, on the image as stored, which EXIF has not
turned. Our own namespace lists digests of the values that we wrote: a later run replaces these and nothing else, and
keeps whatever another program or a person has added or changed.
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
"""What ``xmp:CreatorTool`` says, and the prefix of our namespace."""
WRITER = "saywhere, a program (draft)"
"""Who wrote a description of ours: photo managers show it as its writer."""
SURE = 0.5
"""Least probability of the boxes and words that give subjects and the description; unknown ones are taken for sure."""
PHRASES = 3
"""Phrases in a description that is made of regions."""
PEOPLE = frozenset(("Face", "Pet"))
"""MWG's types of regions whose names are of somebody."""
MARKS = frozenset(("Focus", "BarCode"))
"""MWG's types of regions that show nothing to describe."""
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
"""What an image without XMP is given, in place of a sidecar's."""
EMBEDDING = frozenset((".jpg", ".jpeg", ".jpe", ".png", ".webp"))
"""Endings of the files that XMP is written into; beside others there are sidecars."""
LONGEST = 65_000
"""Bytes of XMP that one segment of a JPEG holds."""
CONTAINERS = ("Bag", "Seq", "Alt")
TEXTS = ("dc:description", "Iptc4xmpCore:AltTextAccessibility")
KEYWORDS = (2, 25)
"""Record and number of IPTC's keywords in a file."""
BAG, TAGS, MWG, IPTC = "dc:subject", "digiKam:TagsList", "mwg-rs:Regions", "Iptc4xmpExt:ImageRegion"
KINDS = {BAG: "subject", TAGS: "tag", MWG: "mwg", IPTC: "iptc"}
"""What keys of the items of these properties begin with."""

Value = Any
"""What a property or a field has: a text, or the element that holds it."""


class Place(NamedTuple):
    """A region of a sidecar: ``x1 y1 x2 y2`` in shares of the image as stored, its text, score and MWG's type."""

    box: tuple[float, float, float, float]
    text: str
    score: float | None = None
    type: str = ""

    def key(self, kind: str) -> str:
        """Return what stands for this region among the values that we wrote."""
        return _key(kind, self.text, *(f"{value + 0:.4f}" for value in self.box))


def _key(kind: str, *parts: str) -> str:
    return f"{kind}:{short_name(chr(0).join(parts))}"


def sidecar(image: Path) -> Path:
    """Return where the sidecar of an image is written: ``a.jpg.xmp`` for ``a.jpg``."""
    return image.with_name(f"{image.name}.xmp")


def to_stored(shares: np.ndarray, orientation: int) -> np.ndarray:
    """Turn boxes ``(N, 4)`` in shares of the upright image into shares of the image as stored, by EXIF orientation."""
    return flip(shares[:, [1, 0, 3, 2]] if orientation in LYING else shares, orientation)


def subjects(regions: Regions) -> list[str]:
    """Return the nouns, by the tree of nouns, of the phrases of sure regions, in their order."""
    heads = (noun_tree().head(tokenize(phrase)).noun for phrase in _sure(regions))
    return list(dict.fromkeys(noun.name for noun in heads if noun is not None))


def _sure(regions: Regions) -> list[str]:
    found = (
        one for one in regions if one.caption and all(v is None or v >= SURE for v in (one.score, one.caption_score))
    )
    return list(dict.fromkeys(one.caption or "" for one in sorted(found, key=lambda one: -(one.score or 0))))


def write_regions(place: Path, image: Path, regions: Regions, names: bool = False) -> None:
    """Write what is in an image into its sidecar, or itself if that is ``place``, instead of earlier regions.

    If there is no sidecar, what is in one beside the image is copied into it. With ``names`` phrases of MWG regions are
    in ``Name``, which programs take for a person's, and not in ``Description``. ``ValueError`` says why the image or a
    sidecar cannot be used, ``OSError`` why it cannot be written.
    """
    size = _measure(image)
    regions = Regions.from_dict(regions.to_dict())  # rounded, as those of a file of results are
    shares = geometry.scale(regions.boxes.astype(np.float64), 1 / regions.width, 1 / regions.height)
    stored = to_stored(shares, size.orientation).clip(0, 1).tolist()
    rows = zip(stored, regions, strict=True)
    places = [Place(tuple(box), _plain(one.caption), one.score) for box, one in rows]
    with _edited(place, image) as held:
        held.put_text("phrases", "; ".join(_sure(regions)[:PHRASES]))
        held.put_subjects(subjects(regions), _has_tags(image, place))
        wide = (size.height, size.width) if size.orientation in LYING else (size.width, size.height)
        held.put_regions(places, wide, names)


def _has_tags(image: Path, place: Path) -> bool:
    """Return whether an image file has tags of its own: immich reads them only if there is no ``digiKam:TagsList``."""
    with opened(image) as file:
        keywords = isinstance(file, ImageFile.ImageFile) and KEYWORDS in (IptcImagePlugin.getiptcinfo(file) or {})
    inside = b"" if place == image else embedded(image)
    return keywords or b"TagsList" in inside or b"hierarchicalSubject" in inside


def write_sentence(place: Path, image: Path, sentence: str) -> None:
    """Write a sentence about an image into its sidecar as description and alt text; errors as `write_regions`."""
    _measure(image)
    with _edited(place, image) as held:
        held.put_text("sentence", sentence)


def _plain(text: str | None) -> str:
    """A text as XML readers give it back."""
    return " ".join(legal(text).split())


def _measure(image: Path) -> DiskSize:
    try:
        return measure(image)
    except ImageError as error:
        raise ValueError(f"its file is needed, for how EXIF turns it ({_reason(error, image)})") from error


def _reason(error: ImageError, image: Path) -> str:
    return str(error).removeprefix(f"{image}: ")


def write(path: Path, images: Iterable[Regions], names: bool = False) -> dict[str, str]:
    """Write a sidecar for each image into a folder; return the images that are left out, with the reasons."""
    found = {one.image or "": (place, one) for place, one in placed(path, images, sidecar).items()}
    told = {name: refused(write_regions, place, Path(name), one, names) for name, (place, one) in found.items()}
    return {name: why for name, why in told.items() if why}


def beside(regions: Regions, names: bool = False, embed: bool = False) -> str | None:
    """Write the sidecar beside an image, or what it has into the image; return why it could not be, or None."""
    image = Path(regions.image or "")
    return refused(write_regions, place_of(image, embed), image, regions, names)


def place_of(image: Path, embed: bool = False) -> Path:
    """Return where the XMP of an image is written: its sidecar, or with ``embed`` the file itself if it can hold it."""
    return image if embed and image.suffix.lower() in EMBEDDING else sidecar(image)


def check_embed(format: str | None, out: Path | None = None) -> None:
    """Raise ``UserError`` if there is no ExifTool, which writes into images, or the format or ``out`` does not fit."""
    if format is None or not format.startswith("xmp"):
        raise UserError("--embed is for the format xmp: give it as well, by --output-format or --to")
    if out is not None:
        raise UserError(f"--embed writes into the images, and nothing to --out {out}: give one of the two")
    if shutil.which("exiftool") is None:
        raise UserError("--embed needs ExifTool: apt-get install libimage-exiftool-perl, or https://exiftool.org")


def embedded(image: Path) -> bytes:
    """Return the XMP inside an image file, empty if it has none; ``ImageError`` if the file cannot be read."""
    with opened(image) as file:
        if file.format == "PNG":
            file.load()  # it may stand behind the pixels
        found = file.info.get("xmp") or file.info.get("XML:com.adobe.xmp") or b""
    return found.encode() if isinstance(found, str) else found


def _embed(image: Path, data: bytes) -> None:
    """Write XMP into an image file through ExifTool; the file is whole, the old one or the new one."""
    if len(data) > LONGEST:
        raise ValueError(f"{len(data)} bytes of XMP are more than fit into one segment")
    with tempfile.TemporaryDirectory() as folder, atomic_path(image) as part:
        (packet := Path(folder, "packet.xmp")).write_bytes(data)
        part.unlink(missing_ok=True)  # of a run that was killed
        told = _EXIFTOOL.run("-api", "PNGEarlyXMP=1", f"-XMP<={packet}", "-o", part.absolute(), image.absolute())
        if not part.exists() or "Error" in told or "Invalid" in told:
            raise ValueError(f"ExifTool cannot write into it ({' '.join(told.split())})")
        shutil.copymode(image, part)


class _ExifTool:
    """One process of ExifTool for many images."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *words: object) -> str:
        """Return what ExifTool prints; ``ValueError`` for a name with a line break, which would be two arguments."""
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
    """Call what writes a sidecar; return why it could not be written, or None."""
    try:
        return None if fits(put, *arguments) else TOO_LONG
    except ValueError as error:
        return str(error)
    except OSError as error:
        if not isinstance(error, PermissionError | NotADirectoryError) and error.errno != errno.EROFS:
            raise
        return f"its sidecar cannot be written ({error.strerror})"


class _Sidecar:
    """An opened sidecar. Properties are named with the prefixes of :data:`NAMESPACES`, whichever the file has.

    It is a ``ValueError`` if it is not XMP, or has a document type, in which entities could be.
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
        """Return the elements that hold the properties of the image."""
        return [one for one in _elements(self.root) if (one.namespaceURI, one.localName) == (RDF, "Description")]

    def properties(self, name: str) -> Iterator[tuple[Any, Value]]:
        """Yield the element that holds a property, and its value; more than one only in a broken sidecar."""
        for holder in self.descriptions():
            for one, value in _fields(holder):
                if one == name:
                    yield holder, value

    # What is written

    def put_text(self, kind: str, text: str) -> None:
        """Write description and alt text where there are none but of ours; phrases never replace a sentence."""
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
        """Write subjects beside those of others, and as digiKam's tags where these hide no tags of others.

        ``tagged`` says whether the image file has tags of its own.
        """
        items = [f"<rdf:li>{escape(name)}</rdf:li>" for name in names]
        self._put(BAG, items, f"<{BAG}>{{}}</{BAG}>")
        theirs = {_key_of(TAGS, item) for _, value in self.properties(TAGS) for item in _items(value)} - self.written
        hides = not theirs and (tagged or any(self.properties("lr:hierarchicalSubject")))
        self._put(TAGS, [] if hides else items, f"<{TAGS}>{{}}</{TAGS}>", "Seq")

    def put_regions(self, places: Sequence[Place], size: tuple[int, int], names: bool) -> None:
        """Write regions as MWG and IPTC have them; ``size`` is that of the image as stored."""
        dimensions = f'stDim:w="{size[0]}" stDim:h="{size[1]}" stDim:unit="pixel"'
        around = f'<{MWG} rdf:parseType="Resource">\n   <mwg-rs:AppliedToDimensions {dimensions}/>\n   '
        around += f"<mwg-rs:RegionList>{{}}</mwg-rs:RegionList>\n  </{MWG}>"
        self._put(MWG, [_mwg(one, "Name" if names else "Description") for one in places], around)
        self._put(IPTC, [_iptc(one) for one in places], f"<{IPTC}>{{}}</{IPTC}>")

    def _put(self, name: str, items: Sequence[str], around: str, container: str = "Bag") -> None:
        """Replace what is ours in a list by items in XML; what others have there already is not written again.

        ``around`` is the XML of the property, with ``{}`` for the list, whose element is ``container``.
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
        if isinstance(home, str):  # something else is where the list should be, and is not ours to change
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
        """Return the file, with what was put into it."""
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
        """Take our signature out, and return its XML anew if it is wanted and nobody else has signed there."""
        theirs = False
        for holder, value in list(self.properties(name)):
            if _text(value) == text:
                _drop(holder, name, value)
            else:
                theirs = True
        return [] if theirs or not wanted else [f"<{name}>{text}</{name}>"]

    # What is read

    def places(self) -> list[Value]:
        """Return the regions, as elements: those of MWG, which programs correct, and of IPTC what is not there.

        Where MWG's are as we wrote them and IPTC's are not, somebody has corrected IPTC's, and those are returned.
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
        """Return the size of the image that MWG regions are on, if the sidecar says it."""
        for _, value in self.properties(MWG):
            fields = dict(_fields(value))
            if "mwg-rs:AppliedToDimensions" in fields:
                size = dict(_fields(fields["mwg-rs:AppliedToDimensions"]))
                return float(_text(size["stDim:w"])), float(_text(size["stDim:h"]))
        return None


@contextmanager
def _edited(place: Path, image: Path) -> Iterator[_Sidecar]:
    """A sidecar, or what the one beside the image has, or of an image what is inside; written if it has changed."""
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
    """The document; ``ValueError`` if it is not XML, or could have entities."""

    def refuse(*_: object) -> None:
        raise ValueError("it has a document type, which XMP has not")

    try:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = refuse
        parser.Parse(data, True)
        return minidom.parseString(data)
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(f"it is not XML: {error}") from error


def _node(text: str) -> Any:
    """An element of ours, with the namespaces that it needs."""
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
    score = f"<mwg-rs:Extensions rdf:parseType='Resource'>{_score(place)}</mwg-rs:Extensions>" if _score(place) else ""
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
    return f'<rdf:li rdf:parseType="Resource">{boundary}{said}{_score(place)}</rdf:li>'


def _score(place: Place) -> str:
    return "" if place.score is None else f"<{OURS}:Score>{place.score:.5f}</{OURS}:Score>"


# RDF: a field is an attribute or an element, and a structure may lie in an rdf:Description of its own


def _elements(node: Any) -> list[Any]:
    return [child for child in node.childNodes if child.nodeType == Node.ELEMENT_NODE]


_PREFIXES = {uri: prefix for prefix, uri in NAMESPACES.items()}


def _fields(value: Value) -> Iterator[tuple[str, Value]]:
    """The fields of a structure, by their names with our prefixes; those of unknown namespaces are not yielded."""
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
    """The items of a list: of the element that holds it, or of its ``rdf:Bag`` itself."""
    if value is None or isinstance(value, str):
        return []
    if value.namespaceURI == RDF and value.localName in CONTAINERS:
        return [one for one in _elements(value) if (one.namespaceURI, one.localName) == (RDF, "li")]
    return [item for one in _elements(value) if one.localName in CONTAINERS for item in _items(one)]


def _bag(value: Value, name: str) -> Any:
    """The element with the items of a property, or None."""
    if name == MWG:
        value = dict(_fields(value)).get("mwg-rs:RegionList")
    if value is None or isinstance(value, str):
        return None
    return next((one for one in _elements(value) if one.namespaceURI == RDF and one.localName in CONTAINERS), None)


def _text(value: Value) -> str:
    """A text; of a language alternative that of ``x-default``, else the first."""
    if value is None or isinstance(value, str):
        return value or ""
    if items := _items(value):
        chosen = next((item for item in items if item.getAttributeNS(XML, "lang") == "x-default"), items[0])
        return _text(chosen)
    kinds = (Node.TEXT_NODE, Node.CDATA_SECTION_NODE)
    return "".join(child.data for child in value.childNodes if child.nodeType in kinds).strip()


def _key_of(name: str, item: Any) -> str | None:
    """What stands for an item of a list among the values that we wrote; None for a region that is not like ours."""
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
    """The region of an item of MWG's or IPTC's list; ``OtherShape``, or the error of a number, if it is none."""
    fields = dict(_fields(item))
    if "mwg-rs:Area" in fields:
        box = _area({name: _text(value) for name, value in _fields(fields["mwg-rs:Area"])}, applied)
        text = _text(fields.get("mwg-rs:Description")) or _text(fields.get("mwg-rs:Name"))
        score = dict(_fields(fields.get("mwg-rs:Extensions", ""))).get(f"{OURS}:Score")
        kind = _text(fields.get("mwg-rs:Type"))
        if kind in PEOPLE and ("mwg-rs:Description" in fields or text[:1].islower()):
            kind = ""  # a phrase: digiKam gives the type Face to all that it writes
    else:
        bounds = {name: _text(one) for name, one in _fields(fields["Iptc4xmpExt:RegionBoundary"])}
        box, text, kind = _boundary(bounds), _text(fields.get("Iptc4xmpExt:Name")), ""
        score = fields.get(f"{OURS}:Score")
    return Place(box, " ".join(text.split()), None if score is None else float(_text(score)), kind)


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


# The document: what is put in and taken out again leaves the white space as it was


def _is_space(node: Any) -> bool:
    return node is not None and node.nodeType == Node.TEXT_NODE and not node.data.strip()


def _append(parent: Any, node: Any) -> None:
    """Add an element on a line of its own."""
    depth, above = 0, parent
    while above is not None and above.nodeType == Node.ELEMENT_NODE:
        depth, above = depth + 1, above.parentNode
    document = parent.ownerDocument
    end = parent.lastChild if _is_space(parent.lastChild) else None
    parent.insertBefore(document.createTextNode("\n" + " " * (depth - 1)), end)
    parent.insertBefore(document.importNode(node, True), end)


def _remove(node: Any) -> None:
    """Take out an element, and the white space before it."""
    parent = node.parentNode
    if _is_space(node.previousSibling):
        parent.removeChild(node.previousSibling)
    parent.removeChild(node)


def _drop(holder: Any, name: str, value: Value) -> None:
    """Take a property out of the element that holds it, and that element where nothing is left in it."""
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
    """A node as it was read: with its prefixes, and characters escaped that readers would change (minidom does not)."""
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
    """Yield the regions of each image of which a sidecar below the folder ``path`` has some, or is of ours.

    ``a.jpg.xmp`` is the sidecar of ``a.jpg``, and so is ``a.xmp`` if no other image is called ``a``, or no other RAW
    file. Images are beside their sidecars, or in the same folders below ``images``. Faces without a description are
    left out, for their names are of people; a name that begins with a small letter is taken for a phrase.
    """
    for file, inside in _places_below(path):
        with leave_out(report, "XMP that cannot be used" if inside else "sidecar that cannot be used",
                       file.relative_to(path)):  # fmt: skip
            image = file if inside else _image_of(file, (images or path) / file.relative_to(path).parent)
            try:
                size = measure(image)
            except MissingImageError as error:
                raise ValueError(f"there is no image {image}; name the folder of the images: --images DIR") from error
            except ImageError as error:
                raise ValueError(_reason(error, image)) from error
            held = _Sidecar(embedded(file) if inside else file.read_bytes())
            if not (entries := held.places()) and not held.known:
                report.left_out["sidecars without regions"] += 1
                continue
            applied, orientation = held.applied(), size.orientation
            if applied and orientation in LYING and (applied[0] - applied[1]) * (size.width - size.height) > 0:
                orientation = 1  # of a program that marked the image as it is shown

            rows = partial(_rows, applied, size._replace(orientation=orientation), report)
            yield from to_regions(str(image), size[:2], entries, rows, report)


def _places_below(path: Path) -> Iterator[tuple[Path, bool]]:
    """The sidecars below a folder, and the images there that have no sidecar and regions inside; whether inside."""
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() == ".xmp":
            yield file, False
        elif file.suffix.lower() in EMBEDDING and has_regions(file):
            yield file, True


def has_regions(image: Path) -> bool:
    """Return whether regions are read from inside an image: it has some, or is marked as ours, and has no sidecar."""
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
    yield Row((x1, y1, x2, y2), place.text, place.score)


def _image_of(file: Path, folder: Path) -> Path:
    """The image of a sidecar; ``ValueError`` if there is none, or more than one."""
    named = folder / file.name.removesuffix(".xmp")
    if named.suffix.lower() in SUFFIXES:
        return named
    found = [one for one in folder.glob("*") if one.stem == named.name and one.suffix.lower() in SUFFIXES]
    if len(raw := [one for one in found if one.suffix.lower() in RAW_SUFFIXES]) == 1:
        return raw[0]  # programs write into a JPEG, and beside a RAW file
    if len(found) != 1:
        raise ValueError(f"{len(found)} images have its name, and it must be one")
    return found[0]
