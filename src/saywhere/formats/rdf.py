"""XMP documents: RDF that is read and changed property by property, keeping everything else as it is.

Our own namespace lists digests of the values that we wrote. A later run replaces only these; what a person or another
program has added, changed or removed stays so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from xml.dom import Node, minidom
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from saywhere import boxes as geometry
from saywhere.files import short_name
from saywhere.formats.reading import OtherShape, legal
from saywhere.images import LYING, flip, to_upright

OURS = "saywhere"
"""Our ``xmp:CreatorTool``, and the prefix of our namespace."""
SCORES = (f"{OURS}:Score", f"{OURS}:PhraseScore")
"""Fields of a region: probabilities that its box and its text are right."""
WRITER = "saywhere, a program (draft)"
"""The author of our descriptions, as photo managers show it."""
SAME = 0.7
"""Minimum IoU of one of our regions with one that somebody has corrected or drawn, in place of which it is left out."""
PAST = "was "
"""Prefix of values that we wrote in an earlier run, and replaced."""
TURN = "orientation"
"""Prefix of the EXIF orientation of the image in the list of what we wrote."""
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
_NAMESPACE = re.compile(r' xmlns:[\w-]+="[^"]*"')
CONTAINERS = ("Bag", "Seq", "Alt")
TEXTS = ("dc:description", "Iptc4xmpCore:AltTextAccessibility")
BAG, TAGS, MWG, IPTC = "dc:subject", "digiKam:TagsList", "mwg-rs:Regions", "Iptc4xmpExt:ImageRegion"
KINDS = {BAG: "subject", TAGS: "tag", MWG: "mwg", IPTC: "iptc"}
"""Prefixes of the keys of items in these properties."""

Value = Any
"""The value of a property or field: a text, or the element that contains it."""


def to_stored(shares: np.ndarray, orientation: int) -> np.ndarray:
    """Convert boxes ``(N, 4)``, fractions of the upright image, to fractions of the stored one (EXIF orientation)."""
    return flip(shares[:, [1, 0, 3, 2]] if orientation in LYING else shares, orientation)


class Place(NamedTuple):
    """A region in XMP: ``x1 y1 x2 y2`` as fractions of the stored image, text, scores and MWG type."""

    box: tuple[float, float, float, float]
    text: str
    score: float | None = None
    caption_score: float | None = None
    type: str = ""

    def key(self, kind: str) -> str:
        """Return the key of this region in the list of values that we wrote."""
        return _key(kind, self.text, *(f"{value + 0:.4f}" for value in self.box))

    def turned(self, orientation: int) -> Place:
        """Return the region on the upright image."""
        x1, y1, x2, y2 = to_upright(np.array([self.box]), orientation)[0].tolist()
        return self._replace(box=(x1, y1, x2, y2))

    def stored(self, orientation: int) -> Place:
        """Return the region on the image as stored, given that on the upright one."""
        x1, y1, x2, y2 = to_stored(np.array([self.box]), orientation)[0].tolist()
        return self._replace(box=(x1, y1, x2, y2))


def _key(kind: str, *parts: str) -> str:
    return f"{kind}:{short_name(chr(0).join(parts))}"


class Packet:
    """The XMP of an image: a sidecar, or what is embedded.

    Properties are named with the prefixes of :data:`NAMESPACES`, not with those of the file.

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
            self.written |= {text_of(item) for item in _items(value)}
        self._initial = frozenset(self.written)
        self.known = any(True for _ in self.properties(f"{OURS}:Written"))
        self._new: list[str] = []
        self._described = False
        self._turn = 1  # EXIF orientation, if MWG regions mark the upright image
        self._before = self._content()

    def descriptions(self) -> list[Any]:
        """Return the elements with the properties of the image."""
        return [one for one in _elements(self.root) if (one.namespaceURI, one.localName) == (RDF, "Description")]

    def properties(self, name: str) -> Iterator[tuple[Any, Value]]:
        """Yield the element that contains a property, and its value; more than once only in a broken sidecar."""
        for holder in self.descriptions():
            for one, value in _fields(holder):
                if one == name:
                    yield holder, value

    def text(self, name: str) -> str:
        """Return the text of a property; empty if it is missing, or if we wrote it."""
        for _, value in self.properties(name):
            text = text_of(value)
            if text and not self._is_ours(name, text):
                return text
        return ""

    def _is_ours(self, name: str, text: str) -> bool:
        return any(self._wrote(_key(f"{kind} {name}", text)) for kind in ("phrases", "sentence"))

    def _wrote(self, key: str | None) -> bool:
        """Return whether we have written a value now or in an earlier run, of which another program may have a copy."""
        return key in self.written or f"{PAST}{key}" in self.written

    # Writing

    def put_text(self, kind: str, text: str, elsewhere: Sequence[str] = ()) -> None:
        """Write description and alt text unless others have written or removed them.

        Phrases never replace a sentence as description, and only phrases are an alt text, because a sentence has not
        passed the checks of :mod:`saywhere.alt`. ``elsewhere`` are descriptions of the image outside this packet: ours
        would hide those that are not copies of it.
        """
        text = plain(text)
        described = any(one and not self._is_ours(TEXTS[0], one) for one in map(plain, elsewhere))
        for name in TEXTS:
            known = {key for key in self.written if key.rpartition(":")[0] in (f"phrases {name}", f"sentence {name}")}
            values = list(self.properties(name))
            if known and not values:  # somebody has removed it
                continue
            self.written -= known
            best = "sentence" if name == TEXTS[0] else "phrases"
            free = bool(text) and (not described if name == TEXTS[0] else kind == best)
            for holder, value in values:
                ours = {_key(f"{one} {name}", text_of(value)) for one in ("phrases", "sentence")} & known
                kept = kind != best and any(key.startswith(best) for key in ours)
                if ours and not kept and len(_items(value)) <= 1:
                    _drop(holder, name, value)
                else:
                    free = False
                    self.written |= ours or known
                    self._described |= bool(ours) and name == TEXTS[0]
            if free:
                self._described |= name == TEXTS[0]
                self._new.append(f"<{name}>{_alternative(text)}</{name}>")
                self.written.add(_key(f"{kind} {name}", text))

    def put_subjects(
        self, names: Sequence[str], theirs: Sequence[str] = (), tagged: bool = False, inside: Packet | None = None
    ) -> None:
        """Add subjects to those of others, and as digiKam's tags unless these would hide tags of others.

        Args:
            theirs: tags of others in the image file, which a new list of subjects would hide, and so repeats.
            tagged: whether the image file has other tags.
            inside: its XMP, whose digiKam's tags a new list of these repeats.
        """
        theirs = [name for name in theirs if not self._wrote(_key(KINDS[BAG], name))]
        removed = self._removed(BAG, TAGS)
        items, copies = ([f"<rdf:li>{escape(name)}</rdf:li>" for name in some] for some in (names, theirs))
        copies = self._new_copies(BAG, copies)
        self._put(BAG, items, f"<{BAG}>{{}}</{BAG}>", copies, removed)
        others = {name: self._keys_in(name) - self.written for name in (BAG, TAGS)}
        tagged = tagged or bool(others[BAG] or theirs) or any(self.properties("lr:hierarchicalSubject"))
        listed = [] if inside is None else [*map(text_of, inside.items_of_others(TAGS))]
        copies = self._new_copies(TAGS, [f"<rdf:li>{escape(plain(name))}</rdf:li>" for name in listed])
        repeated = any(key.startswith(f"copy {KINDS[TAGS]}:") for key in self.written)
        hides = tagged and not others[TAGS] and not repeated
        self._put(TAGS, [] if hides else items, f"<{TAGS}>{{}}</{TAGS}>", copies, removed, "Seq")

    def put_regions(self, places: Sequence[Place], size: tuple[int, int], orientation: int, names: bool = False,
                    inside: Packet | None = None) -> None:  # fmt: skip
        """Write MWG and IPTC regions.

        Regions of others in the packet ``inside`` the image, which new lists would hide, are repeated. Regions that
        match one of others are left out: that is a corrected one.

        Args:
            places: in the image as stored.
            size: width and height of the image as stored.
            orientation: of the image, by EXIF.
        """
        applied = self.applied()
        if inside is not None and not any(self.properties(MWG)):
            applied = inside.applied()
        turned = applied is not None and is_upright(applied, size, orientation)
        for packet in (self, inside):
            if packet is not None:
                packet._turn = orientation if turned else 1
        removed, theirs = self._removed(MWG, IPTC), self._others()
        copies: dict[str, list[str]] = {MWG: [], IPTC: []}
        if inside is not None and inside is not self:
            copies = {
                name: self._new_copies(name, [_whole(item) for item in inside.items_of_others(name)]) for name in copies
            }
            theirs = [*theirs, *(inside._others() if copies[MWG] or copies[IPTC] else [])]
        kept = [one for one in places if not _is_corrected(one, theirs)]
        own = [one.turned(orientation) for one in kept] if turned else kept
        across, down = applied if turned and applied is not None else size
        dimensions = f'stDim:w="{across:g}" stDim:h="{down:g}" stDim:unit="pixel"'
        around = f'<{MWG} rdf:parseType="Resource">\n   <mwg-rs:AppliedToDimensions {dimensions}/>\n   '
        around += f"<mwg-rs:RegionList>{{}}</mwg-rs:RegionList>\n  </{MWG}>"
        self._put(MWG, [_mwg(one, "Name" if names else "Description") for one in own], around, copies[MWG], removed)
        self._put(IPTC, [_iptc(one) for one in kept], f"<{IPTC}>{{}}</{IPTC}>", copies[IPTC], removed)
        self.written = {key for key in self.written if not key.startswith(f"{TURN}:")} | {f"{TURN}:{orientation}"}

    def orientation(self) -> int | None:
        """Return the EXIF orientation of the image when we wrote its regions, if known."""
        found = (key.partition(":")[2] for key in self.written if key.startswith(f"{TURN}:"))
        return next((int(value) for value in found if value.isdecimal()), None)

    def count_written(self, places: Sequence[Place]) -> int:
        """Return how many of these regions we have written."""
        return sum(any(one.key(KINDS[name]) in self.written for name in (MWG, IPTC)) for one in places)

    def _new_copies(self, name: str, items: Sequence[str]) -> list[str]:
        """Note and return items of others, given as XML, that a new list of ours would hide.

        None if the list has items of others already, or if they were copied before: somebody may have removed them.
        """
        kind, there = f"copy {KINDS[name]}:", self.items_of_others(name)
        if any(key.startswith(kind) for key in self.written):
            return []
        items = [item for item in items if not self._wrote(self._key_of(name, _node(item)))]
        self.written |= {f"{kind}{short_name(item)}" for item in items}
        return [] if there else items

    def items_of_others(self, name: str) -> list[Any]:
        """Return the items of a list that we have not written."""
        return [item for item in self._items_in(name) if self._key_of(name, item) not in self.written]

    def _items_in(self, name: str) -> list[Any]:
        return [item for _, value in self.properties(name) for item in _items(_bag(value, name))]

    def _keys_in(self, *names: str) -> set[str | None]:
        """Return the keys of the items in lists, without faces and the like."""
        items = ((name, item) for name in names for item in self._items_in(name))
        return {self._key_of(name, item) for name, item in items if name != MWG or not _is_person(item)}

    def _ours(self, *names: str) -> set[str]:
        """Return the keys of the items that we wrote into lists."""
        kinds = [KINDS[name] for name in names]
        return {key for key in self.written if key.partition(":")[0] in kinds}

    def _others(self) -> list[Place]:
        """Return the MWG and IPTC regions of others, without faces and the like."""
        found = [self._place_of(name, item) for name in (MWG, IPTC) for item in self.items_of_others(name)]
        return [one for one in found if one is not None and one.type not in PEOPLE | MARKS]

    def _removed(self, *names: str) -> set[str]:
        """Return the digests of items that we wrote into one of these lists, and others have removed or changed."""
        return {key.partition(":")[2] for name in names for key in self._ours(name) - self._keys_in(name)}

    def _put(self, name: str, items: Sequence[str], around: str, copies: Sequence[str] = (),
             removed: Collection[str] = (), container: str = "Bag") -> None:  # fmt: skip
        """Replace our items in a list by new ones, given as XML; items that others already have are not repeated.

        Args:
            around: XML of the property, with ``{}`` for the list.
            copies: items of others, see :meth:`_new_copies`.
            removed: digests of items that others have removed, see :meth:`_removed`.
            container: element of the list.
        """
        theirs: set[str | None] = set()
        home: Any = None
        for holder, value in list(self.properties(name)):
            bag = _bag(value, name)
            for item in _items(bag):
                if self._key_of(name, item) in self.written:
                    _remove(item)
                else:
                    theirs.add(self._key_of(name, item))
            if bag is not None and not _items(bag):
                _drop(holder, name, value)
            else:
                home = home or bag or name
        gone = {f"{KINDS[name]}:{digest}" for digest in removed}
        self.written = (self.written - self._ours(name)) | gone
        if isinstance(home, str):  # the property is not a list, and not ours to change
            return
        copied = {self._key_of(name, _node(text)) for text in copies}
        nodes = {self._key_of(name, _node(text)): text for text in items}
        own = {key: text for key, text in nodes.items() if key is not None and key not in theirs | gone | copied}
        self.written |= own.keys()
        new = [*copies, *own.values()]
        for text in new if home is not None else ():
            _append(home, _node(text))
        if new and home is None:
            listed = "\n    ".join(new)
            self._new.append(around.format(f"<rdf:{container}>\n    {listed}\n   </rdf:{container}>"))

    def has_changed(self) -> bool:
        """Return whether :meth:`data` has changed the content, and not only the order of properties."""
        return self._content() != self._before

    def _content(self) -> list[tuple[str, str]]:
        found = [(one, value if isinstance(value, str) else _xml(value)) for holder in self.descriptions()
                 for one, value in _fields(holder)]  # fmt: skip
        return sorted((name, _NAMESPACE.sub("", re.sub(r">\s+<", "><", text))) for name, text in found)

    def data(self) -> bytes:
        """Return the content of the file with all changes."""
        for holder, value in list(self.properties(f"{OURS}:Written")):
            _drop(holder, f"{OURS}:Written", value)
        signed = self._sign("xmp:CreatorTool", OURS) + self._sign("photoshop:CaptionWriter", WRITER, self._described)
        new = [*signed, *self._new]
        replaced = (key for key in self._initial - self.written if not key.startswith((PAST, TURN)))
        written = self.written | {f"{PAST}{key}" for key in replaced}
        keys = "".join(f"<rdf:li>{escape(key)}</rdf:li>" for key in sorted(written))
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
            if text_of(value) == text:
                _drop(holder, name, value)
            else:
                theirs = True
        return [] if theirs or not wanted else [f"<{name}>{text}</{name}>"]

    def _key_of(self, name: str, item: Any) -> str | None:
        """Return the key of a list item in the values that we wrote; None for a region that cannot be ours."""
        if name in (BAG, TAGS):
            return _key(KINDS[name], text_of(item))
        one = self._place_of(name, item)
        return None if one is None else one.key(KINDS[name])

    def _place_of(self, name: str, item: Any) -> Place | None:
        """Return a region in the image as stored; None if it is no box."""
        one = _region(item)
        return one.stored(self._turn) if one is not None and name == MWG else one

    # Reading

    def places(self) -> list[Value]:
        """Return the regions as elements: MWG's, which programs correct, and IPTC's that are not among these.

        If MWG's are as we wrote them and IPTC's are not, somebody has corrected IPTC's, and only these are returned.
        """
        mwg, iptc = self._items_in(MWG), self._items_in(IPTC)
        if self.known and self.is_corrected(IPTC) and not self.is_corrected(MWG):
            return iptc
        known = [_region(item) for item in mwg]
        return mwg + [item for item in iptc if not self._is_twin(_region(item), known)]

    def keys(self) -> set[str | None]:
        """Return the keys of all regions."""
        return self._keys_in(MWG, IPTC)

    def is_corrected(self, *names: str) -> bool:
        """Return whether the items of lists, or all regions, differ from those that we wrote."""
        names = names or (MWG, IPTC)
        return self._keys_in(*names) != self._ours(*names)

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
                with suppress(KeyError, ValueError):
                    return float(text_of(size["stDim:w"])), float(text_of(size["stDim:h"]))
        return None


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
    opening = text[: text.index(">")]
    used = {"rdf"} | {prefix for prefix in NAMESPACES if f"{prefix}:" in text}
    used = {prefix for prefix in used if f" xmlns:{prefix}=" not in opening}
    declared = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items() if prefix in used)
    start = min(text.find(end) for end in " >" if end in text)
    return minidom.parseString((text[:start] + declared + text[start:]).encode()).documentElement


def _whole(item: Any) -> str:
    """Return the XML of an element with declarations of all its namespaces."""
    item = item.cloneNode(True)
    for one in (item, *item.getElementsByTagName("*")):
        for node in (one, *one.attributes.values()):
            if node.prefix and node.prefix not in ("xml", "xmlns"):
                item.setAttribute(f"xmlns:{node.prefix}", node.namespaceURI)
    return _xml(item)


def plain(text: str | None) -> str:
    """Normalise a text as XML readers return it."""
    return " ".join(legal(text).split())


def is_upright(applied: tuple[float, float], size: tuple[int, int], orientation: int) -> bool:
    """Return whether regions that refer to an image of the size ``applied`` mark the upright image, not the stored one.

    ``size`` is that of the stored image. Only an orientation that lays it on its side tells.
    """
    return orientation in LYING and (applied[0] - applied[1]) * (size[0] - size[1]) < 0


def _is_corrected(one: Place, theirs: Iterable[Place]) -> bool:
    """Return whether a region of others is about the same box."""
    boxes = [other.box for other in theirs]
    return bool(boxes) and float(geometry.iou(np.array([one.box]), np.array(boxes)).max()) >= SAME


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


def text_of(value: Value) -> str:
    """Return the text of a value; of language alternatives, that of ``x-default``, otherwise the first."""
    if value is None or isinstance(value, str):
        return value or ""
    if items := _items(value):
        chosen = next((item for item in items if item.getAttributeNS(XML, "lang") == "x-default"), items[0])
        return text_of(chosen)
    kinds = (Node.TEXT_NODE, Node.CDATA_SECTION_NODE)
    return "".join(child.data for child in value.childNodes if child.nodeType in kinds).strip()


def _region(item: Any) -> Place | None:
    try:
        return region(item, None)
    except (KeyError, ValueError):
        return None


def _is_person(item: Any) -> bool:
    """Return whether a region is of one of MWG's types with nothing to describe, or of an individual."""
    return (one := _region(item)) is not None and one.type in PEOPLE | MARKS


def is_mwg(item: Any) -> bool:
    """Return whether a region is one of MWG's list."""
    return "mwg-rs:Area" in dict(_fields(item))


def region(item: Any, applied: tuple[float, float] | None) -> Place:
    """Return the region in an item of MWG's or IPTC's list; raise ``OtherShape`` or ``ValueError`` if it is no box."""
    fields = dict(_fields(item))
    if "mwg-rs:Area" in fields:
        box = _area({name: text_of(value) for name, value in _fields(fields["mwg-rs:Area"])}, applied)
        text = text_of(fields.get("mwg-rs:Description")) or text_of(fields.get("mwg-rs:Name"))
        own = dict(_fields(fields.get("mwg-rs:Extensions", "")))
        kind = text_of(fields.get("mwg-rs:Type"))
        if kind in PEOPLE and ("mwg-rs:Description" in fields or text[:1].islower()):
            kind = ""  # a phrase: digiKam gives all its regions the type Face
    else:
        bounds = {name: text_of(one) for name, one in _fields(fields["Iptc4xmpExt:RegionBoundary"])}
        box, text, kind = _boundary(bounds), text_of(fields.get("Iptc4xmpExt:Name")), ""
        own = fields
    score, sure = (None if (value := own.get(name)) is None else float(text_of(value)) for name in SCORES)
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
