"""XMP sidecars for photo managers: description, alt text, subjects and regions, merged into existing metadata.

Regions are written twice, as IPTC's ``ImageRegion`` and as MWG regions, relative to the image as stored (before EXIF
orientation). Our own namespace lists digests of the values that we wrote: a later run replaces only these, and keeps
everything that another program or a person has added or changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, IptcImagePlugin

from saywhere import archives
from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import TOO_LONG, atomic_path, fits, write_atomically
from saywhere.formats.rdf import (
    BAG,
    MARKS,
    OURS,
    PACKET,
    PEOPLE,
    Packet,
    Place,
    is_mwg,
    is_upright,
    plain,
    region,
    text_of,
    to_stored,
)
from saywhere.formats.reading import Row, leave_out, placed, reader, to_regions
from saywhere.images import (
    LYING,
    RAW_SUFFIXES,
    SUFFIXES,
    DiskSize,
    ImageError,
    MissingImageError,
    measure,
    opened,
    to_upright,
)
from saywhere.models.nouns import noun_tree
from saywhere.regions import Regions
from saywhere.report import Report
from saywhere.text import tokenize

SURE = 0.5
"""Minimum probability of boxes and words for subjects and the description; unknown probabilities count as certain."""
PHRASES = 3
"""Maximum number of phrases in a description made from regions."""
EMBEDDING = frozenset((".jpg", ".jpeg", ".jpe", ".png", ".webp"))
"""Extensions of files that XMP can be embedded in; other files get sidecars."""
LONGEST = 65_000
"""Maximum size of XMP in one JPEG segment, in bytes."""
CAPTION, KEYWORDS = (2, 120), (2, 25)
"""IPTC record and dataset number of a caption and of keywords."""
ImageDescription, XPComment, XPKeywords = 0x010E, 0x9C9C, 0x9C9E
"""EXIF tags."""
DEFAULTS = frozenset({
    "", "ASCII", "BEST", "COF", "DAV", "DEFAULT", "DIGITAL CAMERA", "DIGITAL STILLCAMERA", "EDF", "EXIF_JPEG_PICTURE",
    "HDR", "HDRPL", "JENOPTIK DIGITAL CAMERA", "KODAK DIGITAL STILL CAMERA", "KONICA MINOLTA DIGITAL CAMERA",
    "MINOLTA DIGITAL CAMERA", "MY BEAUTIFUL PICTURE", "OLYMPUS DIGITAL CAMERA", "OZNOR", "SAMSUNG CAMERA PICTURES",
    "SAMSUNG CSC", "SANYO DIGITAL CAMERA", "SCREENSHOT", "SONY DSC", "UNTITLED",
})  # fmt: skip
"""Descriptions that cameras write, in capitals."""
TOLERANCE = 0.02
"""Regions are refused if the shapes of their image, now and when it was described, differ by a larger share."""
AGAIN = "describe it again into a new file of results, or delete its sidecar if these are right"


def sidecar(image: Path) -> Path:
    """Return the path of a new sidecar of an image: ``a.jpg.xmp`` for ``a.jpg``."""
    return image.with_name(f"{image.name}.xmp")


def find_sidecar(image: Path) -> Path | None:
    """Return the sidecar that an image has: ``a.jpg.xmp``, or ``a.xmp`` if that is of no other image; else None."""
    for name in (image.name, image.stem):
        for end in (".xmp", ".XMP"):
            path = image.with_name(f"{name}{end}")
            if os.path.isfile(path) and (name == image.name or _belongs(path, image)):
                return path
    return None


def _belongs(path: Path, image: Path) -> bool:
    try:
        return _image_of(path, image.parent) == image
    except ValueError:
        return False


def subjects(regions: Regions) -> list[str]:
    """Return the head nouns (in the tree of nouns) of confident regions' phrases, best region first."""
    heads = (noun_tree().head(tokenize(phrase)).noun for phrase in _sure(regions))
    return list(dict.fromkeys(noun.name for noun in heads if noun is not None))


def _sure(regions: Regions) -> list[str]:
    found = (
        one for one in regions if one.caption and all(v is None or v >= SURE for v in (one.score, one.caption_score))
    )
    return list(dict.fromkeys(one.caption or "" for one in sorted(found, key=lambda one: -(one.score or 0))))


def write_regions(place: Path, image: Path, regions: Regions, names: bool = False, fresh: bool = False) -> None:
    """Write an image's regions, subjects and description to ``place``, replacing earlier ones of ours.

    ``place`` is a sidecar, or the image itself. A new sidecar elsewhere starts with the content of the one beside the
    image. With ``names``, the phrases of MWG regions go into ``Name``, which programs take for a person's name, instead
    of ``Description``. Raises ``ValueError`` if the image or a sidecar cannot be used, or if the image was rotated or
    cropped after it was described, unless the regions are ``fresh``; ``OSError`` if it cannot be written.
    """
    size = _measure(image)
    _require_shape(regions, size)
    regions = Regions.from_dict(regions.to_dict())  # rounded, like regions from a results file
    shares = geometry.scale(regions.boxes.astype(np.float64), 1 / regions.width, 1 / regions.height)

    def places(orientation: int) -> list[Place]:
        rows = zip(to_stored(shares, orientation).clip(0, 1).tolist(), regions, strict=True)
        return [Place(tuple(box), plain(one.caption), one.score, one.caption_score) for box, one in rows]

    own = places(size.orientation)
    with _edited(place, image) as (packet, inside):
        before = packet.orientation() or size.orientation
        same_shape = (before in LYING) == (size.orientation in LYING) or size.width == size.height
        if not fresh and same_shape and packet.count_written(own) < packet.count_written(places(before)):
            raise ValueError(f"its EXIF orientation has changed since it was described; {AGAIN}")
        packet.put_text("phrases", "; ".join(_sure(regions)[:PHRASES]), inside.descriptions)
        packet.put_subjects(subjects(regions), inside.tags, inside.tagged, inside.packet)
        packet.put_regions(own, _stored(size), size.orientation, names, inside.packet)


def _require_shape(regions: Regions, size: DiskSize) -> None:
    """Raise ``ValueError`` if an image has another shape than its regions say."""
    if abs(regions.width * size.height / (regions.height * size.width) - 1) > TOLERANCE:
        was = f"{regions.width} x {regions.height}"
        raise ValueError(f"it is {size.width} x {size.height} now, and was {was} when it was described; {AGAIN}")


def _stored(size: DiskSize) -> tuple[int, int]:
    """Return width and height of an image as stored."""
    return (size.height, size.width) if size.orientation in LYING else (size.width, size.height)


class Inside(NamedTuple):
    """What an image file contains itself, and what XMP elsewhere might hide.

    Attributes:
        packet: its embedded XMP; None if it has none that can be used.
        descriptions: its descriptions outside the edited XMP.
        tags: subjects of others, outside the edited XMP.
        tagged: whether it has other tags, such as digiKam's.
    """

    packet: Packet | None
    descriptions: tuple[str, ...]
    tags: tuple[str, ...]
    tagged: bool

    @classmethod
    def of(cls, image: Path, embed: bool) -> Inside:
        """Read an image file, whose XMP is what is edited if ``embed``; its sidecar then may describe it, too."""
        with opened(image) as file:
            data = _xmp_in(file)
            exif = file.getexif()
            iptc: dict[tuple[int, int], Any] = {}
            if isinstance(file, ImageFile.ImageFile):
                with suppress(Exception):  # Pillow raises anything for damaged blocks
                    iptc = IptcImagePlugin.getiptcinfo(file) or {}
        texts = [*map(_decode, _listed(iptc.get(CAPTION)))]
        texts += [_decode(exif.get(ImageDescription, "")), _decode(exif.get(XPComment, b""), "utf-16-le")]
        tags = [*map(_decode, _listed(iptc.get(KEYWORDS)))]
        tags += [tag.strip() for tag in _decode(exif.get(XPKeywords, b""), "utf-16-le").split(";")]
        packet = None
        if embed and (beside := find_sidecar(image)) is not None:
            with suppress(OSError, ValueError, RecursionError):
                texts.append(Packet(beside.read_bytes()).text("dc:description"))
        if data and not embed:
            with suppress(ValueError, RecursionError):
                packet = Packet(data)
                texts.append(packet.text("dc:description"))
                tags = [*map(text_of, packet.items_of_others(BAG)), *tags]
        tagged = not embed and any(mark in data for mark in (b"hierarchicalSubject", b"TagsList"))
        texts = [text for text in texts if not _is_default(text)]
        return cls(packet, tuple(texts), tuple(dict.fromkeys(filter(None, map(plain, tags)))), tagged)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _decode(value: Any, encoding: str = "utf-8") -> str:
    """Decode a text of EXIF or IPTC, which often has another encoding than it says."""
    if isinstance(value, tuple):
        value = bytes(value)
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode(encoding).rstrip("\0")
    except UnicodeDecodeError:
        return value.decode("latin-1").rstrip("\0")


def _is_default(text: str) -> bool:
    """Return whether a description is empty or that which a camera gives all its photographs."""
    text = text.strip(" \0").upper()
    return text in DEFAULTS or text.startswith(("DCIM\\", "DCIM/"))


def write_sentence(place: Path, image: Path, sentence: str) -> None:
    """Write a sentence to ``place`` as the image's description; raises like :func:`write_regions`."""
    _measure(image)
    with _edited(place, image) as (packet, inside):
        packet.put_text("sentence", sentence, inside.descriptions)


def _measure(image: Path) -> DiskSize:
    try:
        return measure(image)
    except ImageError as error:
        if archives.split(image):
            raise ValueError("images in archives cannot have sidecars") from error
        raise ValueError(f"the image is needed for its EXIF orientation ({_reason(error, image)})") from error


def _reason(error: ImageError, image: Path) -> str:
    return str(error).removeprefix(f"{image}: ")


def write(path: Path, images: Iterable[Regions], names: bool = False) -> dict[str, str]:
    """Write a sidecar for each image into a folder; return the reasons of left-out images, by name."""
    found = {one.image or "": (place, one) for place, one in placed(path, images, sidecar).items()}
    told = {name: refused(write_regions, place, Path(name), one, names) for name, (place, one) in found.items()}
    return {name: why for name, why in told.items() if why}


def beside(regions: Regions, names: bool = False, embed: bool = False, fresh: bool = False) -> str | None:
    """Write the sidecar beside an image, or embed the XMP; return why that failed, or None."""
    image = Path(regions.image or "")
    return refused(write_regions, place_of(image, embed), image, regions, names, fresh)


def place_of(image: Path, embed: bool = False) -> Path:
    """Return where to write the XMP of an image: its sidecar or, with ``embed`` and a suitable format, the image."""
    return image if embed and image.suffix.lower() in EMBEDDING else find_sidecar(image) or sidecar(image)


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
        return _xmp_in(file)


def _xmp_in(file: Image.Image) -> bytes:
    if file.format == "PNG":
        file.load()  # the metadata may follow the pixels
    found = file.info.get("xmp") or file.info.get("XML:com.adobe.xmp") or b""
    return found.encode() if isinstance(found, str) else found


def _embed(image: Path, data: bytes) -> None:
    """Embed XMP in an image file with ExifTool, atomically."""
    if len(data) > LONGEST:
        raise ValueError(f"its XMP would have {len(data)} bytes; at most {LONGEST} fit into an image")
    with tempfile.TemporaryDirectory() as folder, atomic_path(image) as part:
        Path(folder, "packet.xmp").write_bytes(data)
        words = ["exiftool", "-api", "PNGEarlyXMP=1", "-XMP<=packet.xmp", "-o", "-", "-"]  # no names, of any character
        with image.open("rb") as file:
            done = subprocess.run(words, cwd=folder, stdin=file, capture_output=True, check=False)
        if done.returncode or b"Error" in done.stderr or b"Invalid" in done.stderr:
            told = " ".join(done.stderr.decode("utf-8", "replace").split(" - ")[0].split())
            raise ValueError(f"ExifTool cannot write into it ({told or f'exit code {done.returncode}'})")
        part.write_bytes(done.stdout)
        shutil.copystat(image, part)  # its time may be the only date of a photograph
        with suppress(PermissionError):
            shutil.chown(part, image.stat().st_uid, image.stat().st_gid)


_REFUSALS = (PermissionError, NotADirectoryError, IsADirectoryError)


def refused(put: Callable[..., object], *arguments: object) -> str | None:
    """Call a function that writes a sidecar; return why that failed, or None."""
    try:
        return None if fits(put, *arguments) else TOO_LONG
    except ValueError as error:
        return str(error)
    except OSError as error:
        if not isinstance(error, _REFUSALS) and error.errno != errno.EROFS:
            raise
        return f"its sidecar cannot be written ({error.strerror})"


@contextmanager
def _edited(place: Path, image: Path) -> Iterator[tuple[Packet, Inside]]:
    """Yield the sidecar at ``place`` (or a copy of the one beside the image), or embedded XMP; write it if changed.

    The second value is what the image contains elsewhere.
    """
    inside, empty = place == image, b""
    place = place.resolve() if place.is_symlink() else place
    source = place if inside or place.exists() else find_sidecar(image) or place
    if inside:
        before, empty = embedded(place), PACKET
        if b"HasExtendedXMP" in before:
            raise ValueError("its XMP is in several parts, which only other programs can change")
    else:
        before = source.read_bytes() if source.exists() else b""
    try:
        packet = Packet(before or empty)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {'XMP' if inside else f'sidecar {source}'} cannot be used ({error})") from error
    yield packet, Inside.of(image, inside)
    data = packet.data()
    if before and not packet.has_changed() and source == place:
        return
    if place.exists() and not os.access(place, os.W_OK):
        raise ValueError(f"{'it' if inside else f'its sidecar {place}'} is write-protected")
    if inside:
        _embed(place, data.strip())
    else:
        write_atomically(place, lambda file: file.write(data))


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
            held = Packet(embedded(file) if inside else file.read_bytes())
            if not inside and image.suffix.lower() in EMBEDDING and _is_corrected_inside(image, held):
                report.left_out["corrections inside images whose sidecars were read instead"] += 1
            if not (entries := held.places()) and not held.known:
                report.left_out["sidecars without regions"] += 1
                continue
            report.drafts += held.known and not held.is_corrected()
            rows = partial(_rows, held.applied(), size, report)
            yield from to_regions(str(image), size[:2], entries, rows, report)


def _is_corrected_inside(image: Path, beside: Packet) -> bool:
    """Return whether an image contains regions that somebody has corrected, and that its sidecar does not have."""
    try:
        packet = Packet(data) if (data := embedded(image)) else None
    except (ImageError, ValueError, RecursionError):
        return False
    return packet is not None and packet.known and packet.is_corrected() and packet.keys() != beside.keys()


def _places_below(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the sidecars in a folder, and images without a sidecar that contain regions, each with whether embedded."""
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() == ".xmp" and file.is_file():
            yield file, False
        elif file.suffix.lower() in EMBEDDING and has_regions(file):
            yield file, True


def has_regions(image: Path) -> bool:
    """Return whether an image without a sidecar has embedded regions, or is marked as ours."""
    try:
        data = b"" if find_sidecar(image) is not None else embedded(image)
    except (ImageError, OSError):
        return False
    return any(mark in data for mark in (b":RegionList", b":ImageRegion", f"{OURS}:Written".encode()))


def _rows(applied: tuple[float, float] | None, size: DiskSize, report: Report, item: Any) -> Iterator[Row]:
    place = region(item, applied)
    if place.type in PEOPLE | MARKS:
        report.left_out[f"regions of the type {place.type}"] += 1
        return
    upright = applied is not None and is_mwg(item) and is_upright(applied, _stored(size), size.orientation)
    box = np.array([place.box]) if upright else to_upright(np.array([place.box]), size.orientation)
    x1, y1, x2, y2 = geometry.scale(box, size.width, size.height)[0].tolist()
    yield Row((x1, y1, x2, y2), place.text, place.score, place.caption_score)


def _image_of(file: Path, folder: Path) -> Path:
    """Return the image of a sidecar; raise ``ValueError`` if there is none, or more than one."""
    named = folder / file.stem
    if named.suffix.lower() in SUFFIXES:
        return named
    names = (name for name in os.listdir(folder) if name.startswith(f"{named.name}."))
    found = [one for name in names if (one := folder / name).stem == named.name and one.suffix.lower() in SUFFIXES]
    if len(raw := [one for one in found if one.suffix.lower() in RAW_SUFFIXES]) == 1:
        return raw[0]  # programs embed XMP in a JPEG, and write it beside a RAW file
    if len(found) != 1:
        raise ValueError(f"{len(found)} images have its name, and it must be one")
    return found[0]
