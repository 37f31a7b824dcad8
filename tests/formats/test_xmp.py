"""XMP sidecars: read back by us and by ExifTool, on images turned by EXIF, merged with what others wrote."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import run
from PIL import Image, ImageOps

from saywhere import data
from saywhere.errors import UserError
from saywhere.files import TOO_LONG
from saywhere.formats import xmp
from saywhere.formats.registry import FORMATS
from saywhere.regions import Regions
from saywhere.report import Report
from tests import photographs
from tests.photographs import TURNED
from tests.stubs import StubModel, load_by

WIDTH, HEIGHT = 300, 200
BOXES = np.array([[30, 20, 120, 180], [150, 0, 300, 100]], np.float32)
TEXTS = ("a brown dog", "a man in <red> & blue")


def store(path: Path, orientation: int = 1) -> Path:
    """Save an upright image in which the first of BOXES is white, turned as EXIF says."""
    image = Image.new("RGB", (WIDTH, HEIGHT))
    image.paste((255, 255, 255), tuple(BOXES[0].astype(int).tolist()))
    stored = image.transpose(TURNED[orientation]) if orientation > 1 else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    stored.save(path, exif=exif, quality=95)
    return path


def regions_of(path: Path, texts: tuple[str, ...] = TEXTS, scores: tuple[float, ...] = (0.9, 0.6)) -> Regions:
    boxes, sure = BOXES[: len(texts)], np.array((0.75, 0.5)[: len(texts)])
    return Regions(WIDTH, HEIGHT, boxes, np.array(scores), texts, image=str(path), caption_scores=sure)


def write(path: Path, *texts: str, **options: Any) -> Path:
    assert xmp.beside(regions_of(path, texts or TEXTS, (0.9, 0.6)[: len(texts or TEXTS)]), **options) is None
    return path.with_name(f"{path.name}.xmp")


def read(folder: Path) -> tuple[list[Regions], Report]:
    report = Report()
    return list(xmp.read(folder, None, report)), report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store(tmp_path / "a.jpg")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the sidecar of that image is, or will be."""
    return tmp_path / "a.jpg.xmp"


def need_exiftool() -> None:
    if shutil.which("exiftool") is None:
        reason = "there is no ExifTool: apt-get install libimage-exiftool-perl"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def exiftool(path: Path) -> dict[str, Any]:
    need_exiftool()
    words = ["exiftool", "-json", "-struct", "-charset", "filename=utf8", str(path)]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_regions_are_on_the_image_as_stored_and_come_back_upright(orientation: int, tmp_path: Path) -> None:
    path = store(tmp_path / "a.jpg", orientation)
    write(path)
    ((found,), report) = read(tmp_path)
    assert (found.width, found.height, found.captions, report) == (WIDTH, HEIGHT, TEXTS, Report(drafts=1))
    np.testing.assert_allclose(found.boxes, BOXES, atol=0.01)
    for told, back in (([0.9, 0.6], found.scores), ([0.75, 0.5], found.caption_scores)):
        assert back is not None
        np.testing.assert_allclose(told, back, atol=1e-5)
    (sample,) = data.read(tmp_path, "xmp")
    assert (sample.image, sample.phrases) == (path, tuple((text,) for text in TEXTS))
    np.testing.assert_allclose(sample.boxes, BOXES, atol=0.01)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exiftool_reads_what_is_written(orientation: int, tmp_path: Path) -> None:
    path = store(tmp_path / "é.jpg", orientation)
    said = exiftool(write(path))
    assert said["Description"] == said["AltTextAccessibility"] == "; ".join(TEXTS)
    assert (said["Subject"], said["CreatorTool"]) == (["dog", "man"], "saywhere")
    with Image.open(path) as image:
        white = np.argwhere(np.asarray(image.convert("L")) > 128)
        width, height = image.size
    top, left = white.min(0)
    bottom, right = white.max(0) + 1
    assert said["RegionInfo"]["AppliedToDimensions"] == {"W": width, "H": height, "Unit": "pixel"}
    first, second = said["RegionInfo"]["RegionList"]
    assert (first["Description"], second["Description"]) == TEXTS
    assert not {"Name", "Type"} & (first.keys() | second.keys())
    area = first["Area"]
    x, y, w, h = (float(area[side]) * scale for side, scale in zip("XYWH", (width, height) * 2, strict=True))
    assert area["Unit"] == "normalized"
    np.testing.assert_allclose((x - w / 2, y - h / 2, x + w / 2, y + h / 2), (left, top, right, bottom), atol=1)
    iptc = said["ImageRegion"][0]
    bounds = iptc["RegionBoundary"]
    assert (bounds["RbShape"].lower(), bounds["RbUnit"].lower(), iptc["Name"]) == ("rectangle", "relative", TEXTS[0])
    x, y, w, h = (float(bounds[f"Rb{side}"]) * scale for side, scale in zip("XYWH", (width, height) * 2, strict=True))
    np.testing.assert_allclose((x, y, x + w, y + h), (left, top, right, bottom), atol=1)


LIGHTROOM = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0-c000">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"
    xmlns:mwg-rs="http://www.metadataworkinggroup.com/schemas/regions/"
    xmlns:stArea="http://ns.adobe.com/xmp/sType/Area#"
    xmlns:stDim="http://ns.adobe.com/xap/1.0/sType/Dimensions#"
   xmp:CreatorTool="Adobe Photoshop Lightroom Classic 13.0"
   crs:Notes="one&#xA;two &quot;three&quot; &lt;"
   xmp:Rating="4">
   <!-- kept -->
   <dc:subject>
    <rdf:Bag>
     <rdf:li>holiday</rdf:li>
     <rdf:li>dog</rdf:li>
    </rdf:Bag>
   </dc:subject>
   <dc:description>
    <rdf:Alt>
     <rdf:li xml:lang="x-default">Anna and Rex</rdf:li>
     <rdf:li xml:lang="de">Anna mit Rex</rdf:li>
    </rdf:Alt>
   </dc:description>
   <mwg-rs:Regions rdf:parseType="Resource">
    <mwg-rs:AppliedToDimensions stDim:w="300" stDim:h="200" stDim:unit="pixel"/>
    <mwg-rs:RegionList>
     <rdf:Bag>
      <rdf:li>
       <rdf:Description
        mwg-rs:Rotation="0.00000"
        mwg-rs:Name="Anna"
        mwg-rs:Type="Face">
       <mwg-rs:Area
        stArea:h="0.1"
        stArea:w="0.1"
        stArea:x="0.5"
        stArea:y="0.5"/>
       </rdf:Description>
      </rdf:li>
     </rdf:Bag>
    </mwg-rs:RegionList>
   </mwg-rs:Regions>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""
DIGIKAM = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:digiKam="http://www.digikam.org/ns/1.0/"
    xmlns:MP="http://ns.microsoft.com/photo/1.2/" xmlns:MPRI="http://ns.microsoft.com/photo/1.2/t/RegionInfo#"
    digiKam:PickLabel="0">
   <digiKam:TagsList><rdf:Seq><rdf:li>People/Anna</rdf:li></rdf:Seq></digiKam:TagsList>
   <MP:RegionInfo rdf:parseType="Resource"><MPRI:Regions><rdf:Bag/></MPRI:Regions></MP:RegionInfo>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""
DARKTABLE = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:darktable="http://darktable.sf.net/"
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
   darktable:xmp_version="5"
   darktable:history_end="1">
   <darktable:history>
    <rdf:Seq>
     <rdf:li
      darktable:num="0"
      darktable:operation="exposure"
      darktable:params="0000&#x9;aa"/>
    </rdf:Seq>
   </darktable:history>
   <lr:hierarchicalSubject><rdf:Seq><rdf:li>places|beach</rdf:li></rdf:Seq></lr:hierarchicalSubject>
   <darktable:note><![CDATA[a < b]]></darktable:note>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""


def pieces(text: str) -> set[str]:
    """Everything of a sidecar that must stay: without white space, entities resolved as we write them."""
    for one, other in (("&#xA;", "&#10;"), ("&#x9;", "&#9;")):
        text = text.replace(one, other)
    return {piece for piece in text.replace("/>", " ").replace(">", " ").split() if "<?xpacket" not in piece}


@pytest.mark.parametrize("theirs", [LIGHTROOM, DIGIKAM, DARKTABLE], ids=["lightroom", "digikam", "darktable"])
def test_what_others_wrote_is_kept_and_a_second_run_changes_nothing(place: Path, path: Path, theirs: str) -> None:
    place.write_text(theirs, encoding="utf-8")
    write(path)
    first = place.read_text(encoding="utf-8")
    assert pieces(theirs) <= pieces(first)
    assert all(line in first for line in theirs.splitlines() if "xpacket" in line or "<!--" in line or "CDATA" in line)
    status = place.stat()
    write(path)
    assert (place.read_text(encoding="utf-8"), place.stat().st_mtime_ns) == (first, status.st_mtime_ns)
    write(path, "a red cup")
    assert "brown" not in place.read_text(encoding="utf-8")
    write(path)
    past = re.compile("<rdf:li>was [^<]*</rdf:li>")  # what we wrote before
    assert past.sub("", place.read_text(encoding="utf-8")) == first


def test_values_of_others_come_first(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jpg.xmp").write_text(LIGHTROOM, encoding="utf-8")
    said = exiftool(write(path))
    assert (said["Description"], said["Subject"]) == ("Anna and Rex", ["holiday", "dog", "man"])
    assert said["AltTextAccessibility"] == "; ".join(TEXTS)
    assert said["CreatorTool"] == "Adobe Photoshop Lightroom Classic 13.0" and "CaptionWriter" not in said
    assert [one.get("Name", one.get("Description")) for one in said["RegionInfo"]["RegionList"]] == ["Anna", *TEXTS]
    ((found,), report) = read(tmp_path)
    assert (found.captions, report.left_out) == (TEXTS, {"regions of the type Face": 1})


def with_keyword(image: bytes, keyword: bytes) -> bytes:
    """A JPEG with one of IPTC's keywords, as Photoshop stores it."""
    entry = b"\x1c\x02\x19" + len(keyword).to_bytes(2, "big") + keyword
    block = b"Photoshop 3.0\x008BIM\x04\x04\x00\x00" + len(entry).to_bytes(4, "big") + entry + b"\0" * (len(entry) % 2)
    return image[:2] + b"\xff\xed" + (len(block) + 2).to_bytes(2, "big") + block + image[2:]


def test_tags_of_digikam_are_written_where_they_hide_none(place: Path, path: Path) -> None:
    said = exiftool(write(path))
    assert said["TagsList"] == said["Subject"] == ["dog", "man"]
    assert "<digiKam:TagsList><rdf:Seq>" in "".join(place.read_text().split("\n    "))  # as digiKam reads it
    place.write_text(DIGIKAM, encoding="utf-8")
    assert exiftool(write(path))["TagsList"] == ["People/Anna", "dog", "man"]
    write(path, "a red cup")
    assert exiftool(place)["TagsList"] == ["People/Anna", "cup"]
    place.write_text(DARKTABLE, encoding="utf-8")
    said = exiftool(write(path))
    assert "TagsList" not in said and said["Subject"] == ["dog", "man"]
    place.unlink()
    path.write_bytes(with_keyword(path.read_bytes(), b"holiday"))
    assert exiftool(path)["Keywords"] == "holiday" and "TagsList" not in exiftool(write(path))


@pytest.mark.parametrize("subject", [(), ("-XMP-dc:Subject=Anna",)])
def test_tags_of_digikam_in_the_image_are_in_its_new_list_too(
    place: Path, path: Path, subject: tuple[str, ...]
) -> None:
    change(path, "-XMP-digiKam:TagsList=People/Anna", *subject)
    own = [*(("Anna",) if subject else ()), "dog", "man"]
    for _ in range(2):
        said = exiftool(write(path))
        assert said["TagsList"] == ["People/Anna", "dog", "man"] and said["Subject"] == own
    change(place, "-XMP-digiKam:TagsList-=People/Anna")
    assert exiftool(write(path))["TagsList"] == ["dog", "man"], "what somebody removes stays away"
    place.unlink()
    embed(path)
    assert exiftool(path)["TagsList"] == ["People/Anna", "dog", "man"]


def test_a_description_in_a_sidecar_is_not_contradicted_inside_the_image(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jpg.xmp").write_text(LIGHTROOM.replace("holiday", "Anna"), encoding="utf-8")
    theirs = exiftool(tmp_path / "a.jpg.xmp").get("Description")
    embed(path)
    assert theirs and "Description" not in exiftool(path)


def test_subjects_and_descriptions_are_of_sure_regions(path: Path, tmp_path: Path) -> None:
    regions = regions_of(path, scores=(0.2, 0.7))
    assert xmp.beside(regions) is None
    said = exiftool(tmp_path / "a.jpg.xmp")
    assert (said["Description"], said["Subject"]) == (TEXTS[1], ["man"])
    assert len(said["RegionInfo"]["RegionList"]) == 2
    assert xmp.subjects(replace(regions_of(path), caption_scores=np.array([0.4, 0.5]))) == ["man"]


def test_phrases_are_names_only_when_asked_for(place: Path, path: Path, tmp_path: Path) -> None:
    text = write(path, names=True).read_text()
    assert "<mwg-rs:Name>a brown dog</mwg-rs:Name>" in text and "mwg-rs:Description" not in text
    corrected = "a black dog</mwg-rs:Name><mwg-rs:Type>Face</mwg-rs:Type>"
    place.write_text(text.replace("a brown dog</mwg-rs:Name>", corrected))
    ((found,), _) = read(tmp_path)
    assert found.captions == ("a black dog", TEXTS[1])


def test_corrections_are_read_and_survive_another_run(path: Path, tmp_path: Path) -> None:
    place = write(path)
    corrected = place.read_text().replace("<mwg-rs:Description>a brown dog", "<mwg-rs:Description>a black cat")
    place.write_text(corrected)
    assert not read(tmp_path)[1].drafts
    ((found,), _) = read(tmp_path)
    assert found.captions == ("a black cat", TEXTS[1])
    write(path, "a red cup")
    ((found,), _) = read(tmp_path)
    assert found.captions == ("a black cat",)  # the red cup would have the same box
    end = "dog</rdf:li></rdf:Alt></Iptc4xmpExt"
    place.write_text(write(store(tmp_path / "b.jpg")).read_text().replace(f"brown {end}", f"black {end}"))
    ((found, _), _) = read(tmp_path)
    assert found.captions == ("a black dog", TEXTS[1])


def embed(path: Path) -> None:
    need_exiftool()
    assert xmp.beside(regions_of(path), embed=True) is None


def change(path: Path, *words: str) -> None:
    need_exiftool()
    subprocess.run(["exiftool", "-q", "-overwrite_original", *words, path], check=True)


def test_what_somebody_removes_stays_away(path: Path, tmp_path: Path) -> None:
    place = write(path)
    change(place, "-XMP-dc:Subject-=dog", "-XMP-dc:Description=")
    for _ in range(3):
        said = exiftool(write(path))
        assert said["Subject"] == said["TagsList"] == ["man"] and "Description" not in said
        assert said["AltTextAccessibility"] == "; ".join(TEXTS) and "CaptionWriter" not in said
    xmp.write_sentence(place, path, "a man and his dog")
    assert "Description" not in exiftool(place)
    change(place, "-XMP-mwg-rs:RegionInfo=")
    for _ in range(2):
        said = exiftool(write(path))
        assert "RegionInfo" not in said and "ImageRegion" not in said
    ((found,), _) = read(tmp_path)
    assert len(found) == 0
    said = exiftool(write(path, "a red cup"))  # what was not there before is new
    assert said["Subject"] == ["cup"] and len(said["RegionInfo"]["RegionList"]) == 1


def test_a_moved_region_takes_the_place_of_the_first_one(path: Path, tmp_path: Path) -> None:
    place = write(path)
    text = place.read_text()
    first = text[text.index("<mwg-rs:Area") :].split('"')[1]
    place.write_text(text.replace(f'stArea:x="{first}"', f'stArea:x="{float(first) + 0.01:.6f}"'))
    for _ in range(2):
        ((found,), _) = read(tmp_path)
        assert found.captions == (TEXTS[1], TEXTS[0]) or found.captions == TEXTS
        assert abs(found.boxes - BOXES).max() == pytest.approx(0.01 * WIDTH, abs=0.1)
        write(path)


AGAIN = "describe it again into a new file of results, or delete its sidecar if these are right"


def turn(path: Path, orientation: int) -> None:
    """Change the EXIF orientation of an image, not its pixels."""
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(path, exif=exif)


def test_an_image_that_was_rotated_is_refused_until_it_is_described_again(
    place: Path, path: Path, tmp_path: Path
) -> None:
    whole = np.concatenate((BOXES, [[0, 0, WIDTH, HEIGHT]]))
    regions = Regions(WIDTH, HEIGHT, whole, np.array([0.9, 0.6, 0.5]), (*TEXTS, "a room"), image=str(path))
    assert xmp.beside(regions) is None
    first = place.read_bytes()
    size = f"it is {HEIGHT} x {WIDTH} now, and was {WIDTH} x {HEIGHT} when it was described"
    for orientation, told in ((6, size), (3, "its EXIF orientation has changed since it was described")):
        turn(path, orientation)
        assert xmp.beside(regions) == f"{told}; {AGAIN}"
    assert place.read_bytes() == first
    turned = replace(regions, boxes=np.array([WIDTH, HEIGHT] * 2) - regions.boxes[:, [2, 3, 0, 1]])
    assert xmp.beside(turned) is None and place.read_bytes() != first
    ((found,), _) = read(tmp_path)
    np.testing.assert_allclose(found.boxes, turned.boxes, atol=0.01)


@pytest.mark.parametrize("size", [(WIDTH // 2, HEIGHT // 2), (4000, 2667), (30, 20), (64, 43)])
def test_an_image_of_another_size_is_fine(path: Path, size: tuple[int, int]) -> None:
    regions = regions_of(path)
    with Image.open(path) as image:
        image.resize(size).save(path)
    assert xmp.beside(regions) is None
    with Image.open(path) as image:
        image.resize((size[0], int(size[1] * 0.9))).save(path)
    assert f" now, and was {WIDTH} x {HEIGHT} when it was described; {AGAIN}" in str(xmp.beside(regions))


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_an_image_that_a_program_has_put_upright_is_fine(orientation: int, tmp_path: Path) -> None:
    path = store(tmp_path / "a.png", orientation)
    write(path)
    with Image.open(path) as image:
        ImageOps.exif_transpose(image).save(path)
    write(path)
    ((found,), _) = read(tmp_path)
    np.testing.assert_allclose(found.boxes, BOXES, atol=0.01)


XP = ("-EXIF:XPKeywords=Museum;Köln", "-EXIF:XPComment=Großmutters Hund")
INSIDE = {
    "iptc": ("-codedcharacterset=utf8", "-IPTC:Caption-Abstract=Großmutters Hund", "-IPTC:Keywords=Museum",
             "-IPTC:Keywords=Köln"),
    "exif": ("-EXIF:ImageDescription=Großmutters Hund", XP[0]),
    "windows": XP,
    "xmp": ("-XMP-dc:Description=Großmutters Hund", "-XMP-dc:Subject=Museum", "-XMP-dc:Subject=Köln"),
}  # fmt: skip


@pytest.mark.parametrize("embedding", [False, True])
@pytest.mark.parametrize("kind", INSIDE)
def test_what_an_image_says_elsewhere_is_not_hidden(path: Path, kind: str, embedding: bool, tmp_path: Path) -> None:
    change(path, *INSIDE[kind])
    for _ in range(2):
        assert xmp.beside(regions_of(path), embed=embedding) is None
        said = exiftool(path if embedding else tmp_path / "a.jpg.xmp")
        assert said["Subject"] == ["Museum", "Köln", "dog", "man"] and "TagsList" not in said
        assert said.get("Description") == ("Großmutters Hund" if embedding and kind == "xmp" else None)
        assert said["AltTextAccessibility"] == "; ".join(TEXTS)


@pytest.mark.parametrize("embedding", [False, True])
def test_repeated_tags_and_faces_can_be_deleted_and_runs_change_nothing(
    path: Path, embedding: bool, tmp_path: Path
) -> None:
    place = path if embedding else tmp_path / "a.jpg.xmp"
    face = "{{Name={},Type=Face,Area={{X={},Y=0.5,W=0.1,H=0.2,Unit=normalized}}}}"
    faces = ",".join(face.format(*each) for each in (("Anna", 0.2), ("Bert", 0.4)))
    size = f"AppliedToDimensions={{W={WIDTH},H={HEIGHT},Unit=pixel}}"
    change(path, "-IPTC:Keywords=holiday", f"-XMP-mwg-rs:RegionInfo={{{size},RegionList=[{faces}]}}")

    def run_twice() -> dict[str, Any]:
        assert xmp.beside(regions_of(path), embed=embedding) is None
        first = place.read_bytes()
        assert xmp.beside(regions_of(path), embed=embedding) is None and place.read_bytes() == first
        return exiftool(place)

    def names(said: dict[str, Any]) -> list[str]:
        return [one["Name"] for one in said.get("RegionInfo", {}).get("RegionList", []) if "Name" in one]

    said = run_twice()
    assert (said["Subject"], names(said)) == (["holiday", "dog", "man"], ["Anna", "Bert"])
    change(place, "-XMP-dc:Subject-=holiday")
    assert run_twice()["Subject"] == ["dog", "man"]
    if not embedding:
        place.write_text(place.read_text().replace(">Anna<", ">Anne<"))
        assert names(run_twice()) == ["Anne", "Bert"]
        change(place, "-XMP-mwg-rs:RegionInfo=")
        assert names(run_twice()) == []


def test_regions_of_other_shapes_are_repeated_too(path: Path) -> None:
    circle = "{{Name={},Type=Face,Area={{X={},Y=0.5,D=0.1,Unit=normalized}}}}"
    shapes = ",".join([*(circle.format(*each) for each in (("Anna", 0.2), ("Bert", 0.4))),
                       "{Type=Focus,Area={X=0.5,Y=0.5,Unit=normalized}}"])  # fmt: skip
    change(path, f"-XMP-mwg-rs:RegionInfo={{AppliedToDimensions={{W=500}},RegionList=[{shapes}]}}")
    for _ in range(2):
        found = exiftool(write(path))["RegionInfo"]["RegionList"]
        assert [one.get("Name") for one in found] == ["Anna", "Bert", None, None, None]


def test_a_copy_of_our_description_elsewhere_does_not_replace_it(path: Path) -> None:
    embed(path)
    change(path, "-EXIF:ImageDescription<XMP-dc:Description")
    embed(path)
    said = exiftool(path)
    assert said["Description"] == "; ".join(TEXTS) and said["CaptionWriter"] == "saywhere, a program (draft)"


@pytest.mark.parametrize("words", [("-IPTC:Caption-Abstract<XMP-dc:Description", "-IPTC:Keywords<XMP-dc:Subject"),
                                   ("-tagsfromfile", "{place}", "-xmp:all")])  # fmt: skip
def test_copies_of_ours_in_the_image_are_not_those_of_others(path: Path, words: tuple[str, ...]) -> None:
    place = write(path)
    if "-tagsfromfile" not in words:
        words = ("-tagsfromfile", "{place}", *words)
    change(path, *(word.format(place=place) for word in words))
    for _ in range(3):
        said = exiftool(write(path, "a red cup"))
        assert (said["Description"], said["Subject"]) == ("a red cup", ["cup"])
        assert [one["Description"] for one in said["RegionInfo"]["RegionList"]] == ["a red cup"]
    first = place.read_bytes()
    write(path, "a red cup")
    assert place.read_bytes() == first


def test_what_image_and_sidecar_have_can_be_deleted(place: Path, path: Path) -> None:
    change(path, "-XMP-dc:Subject=rome")
    subprocess.run(["exiftool", "-q", "-tagsfromfile", path, "-xmp:all", "-o", place, path], check=False)
    if not place.exists():
        place.write_text(LIGHTROOM.replace("holiday", "rome"), encoding="utf-8")
    assert "rome" in exiftool(write(path))["Subject"]
    change(place, "-XMP-dc:Subject-=rome")
    for _ in range(2):
        assert "rome" not in exiftool(write(path))["Subject"]


def test_results_of_the_image_as_it_is_are_never_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "a.png", 3)
    write(path)
    with Image.open(path) as image:
        ImageOps.exif_transpose(image).save(path)
    assert "has changed since it was described" in str(xmp.beside(regions_of(path)))
    assert xmp.beside(regions_of(path), fresh=True) is None
    ((found,), _) = read(tmp_path)
    np.testing.assert_allclose(found.boxes, BOXES, atol=0.01)


def test_a_description_that_was_corrected_and_then_deleted_stays_away(path: Path) -> None:
    place = write(path)
    for words in ("-XMP-dc:Description=Anna", "-XMP-dc:Description="):
        change(place, words)
        write(path)
    assert "Description" not in exiftool(write(path))


def test_a_corrected_region_on_the_upright_image_counts(tmp_path: Path) -> None:
    path = store(tmp_path / "a.jpg", 6)
    x1, y1, x2, y2 = (BOXES[0] / ([WIDTH, HEIGHT] * 2)).tolist()
    area = f"X={(x1 + x2) / 2:.4f},Y={(y1 + y2) / 2:.4f},W={x2 - x1:.4f},H={y2 - y1:.4f},Unit=normalized"
    info = (
        f"AppliedToDimensions={{W={WIDTH},H={HEIGHT},Unit=pixel}},RegionList=[{{Description=a husky,Area={{{area}}}}}]"
    )
    change(path, f"-XMP-mwg-rs:RegionInfo={{{info}}}")
    for _ in range(2):
        embed(path)
        ((found,), _) = read(tmp_path)
        assert found.captions == ("a husky", TEXTS[1])
        np.testing.assert_allclose(found.boxes, BOXES, atol=0.1)


def test_a_damaged_block_of_keywords_is_passed_over(path: Path) -> None:
    block = b"Photoshop 3.0\x008BIM\x04\x04\x00\x00\xff\xff\xff\xff\x1c"
    data = path.read_bytes()
    path.write_bytes(data[:2] + b"\xff\xed" + (len(block) + 2).to_bytes(2, "big") + block + data[2:])
    assert exiftool(write(path))["Subject"] == ["dog", "man"]


@pytest.mark.parametrize("text", ["OLYMPUS DIGITAL CAMERA         ", "default", "DCIM\\100MEDIA\\DJI_0001.JPG"])
def test_descriptions_of_cameras_do_not_count(path: Path, text: str) -> None:
    change(path, f"-EXIF:ImageDescription={text}")
    assert exiftool(write(path))["Description"] == "; ".join(TEXTS)


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("embedding", [False, True])
def test_faces_in_an_image_are_in_its_new_list_too(embedding: bool, upright: bool, tmp_path: Path) -> None:
    path = store(tmp_path / "a.jpg", 6)
    wide, high = (WIDTH, HEIGHT) if upright else (HEIGHT, WIDTH)
    area = "{X=0.25,Y=0.5,W=0.1,H=0.2,Unit=normalized}"
    info = f"{{AppliedToDimensions={{W={wide},H={high},Unit=pixel}},RegionList=[{{Name=Anna,Type=Face,Area={area}}}]}}"
    change(path, f"-XMP-mwg-rs:RegionInfo={info}")
    for _ in range(2):
        assert xmp.beside(regions_of(path), embed=embedding) is None
        said = exiftool(path if embedding else tmp_path / "a.jpg.xmp")["RegionInfo"]
        assert said["AppliedToDimensions"] == {"W": wide, "H": high, "Unit": "pixel"}
        face, *own = said["RegionList"]
        assert face["Name"] == "Anna" and float(face["Area"]["X"]) == 0.25 and len(own) == 2
        ((found,), report) = read(tmp_path)
        assert report.left_out == {"regions of the type Face": 1} and found.captions == TEXTS
        np.testing.assert_allclose(found.boxes, BOXES, atol=0.01)


def test_the_one_sidecar_of_an_image_is_used_whatever_its_name(tmp_path: Path) -> None:
    for name, sidecar in (("a.jpg", "a.xmp"), ("b.jpg", "b.jpg.XMP")):
        path = store(tmp_path / name)
        (tmp_path / sidecar).write_text(LIGHTROOM, encoding="utf-8")
        write(path)
        assert exiftool(tmp_path / sidecar)["Subject"] == ["holiday", "dog", "man"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jpg", "a.xmp", "b.jpg", "b.jpg.XMP"]
    found, _ = read(tmp_path)
    assert [one.captions for one in found] == [TEXTS, TEXTS]
    store(tmp_path / "a.png")  # whose is a.xmp now?
    write(tmp_path / "a.jpg")
    assert (tmp_path / "a.jpg.xmp").exists()


def test_corrections_inside_an_image_with_a_sidecar_are_named(path: Path, tmp_path: Path) -> None:
    write(path)
    embed(path)
    ((found,), report) = read(tmp_path)
    assert (found.captions, report.lines()) == (TEXTS, [])
    path.write_bytes(path.read_bytes().replace(b"<mwg-rs:Description>a brown dog", b"<mwg-rs:Description>a black cat"))
    ((found,), report) = read(tmp_path)
    assert found.captions == TEXTS
    assert report.left_out == {"corrections inside images whose sidecars were read instead": 1}


def test_a_face_is_no_correction(path: Path, tmp_path: Path) -> None:
    face = "{Name=Anna,Type=Face,Area={X=0.25,Y=0.5,W=0.1,H=0.2,Unit=normalized}}"
    change(path, f"-XMP-mwg-rs:RegionInfo={{AppliedToDimensions={{W=9,H=9,Unit=pixel}},RegionList=[{face}]}}")
    embed(path)
    place = write(path)
    place.write_text(place.read_text().replace(TEXTS[0], "a black cat"))
    ((found,), report) = read(tmp_path)
    assert found.captions == ("a black cat", TEXTS[1])
    assert report.left_out == {"regions of the type Face": 1} and report.drafts == 0


def test_caption_and_describe_in_turns_change_nothing(path: Path, tmp_path: Path) -> None:
    need_exiftool()
    for place in (tmp_path / "a.jpg.xmp", path):
        first = None
        for turn in range(2):
            xmp.write_sentence(place, path, "a man and his dog")
            xmp.write_regions(place, path, regions_of(path))
            status = place.stat()
            assert turn == 0 or (status.st_mtime_ns, status.st_ino) == first
            first = status.st_mtime_ns, status.st_ino


def test_embedding_keeps_the_time_and_respects_write_protection(
    place: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(path, (1e9, 1e9))
    embed(path)
    assert path.stat().st_mtime == 1e9 and exiftool(path)["Subject"] == ["dog", "man"]
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # nothing is write-protected to root
    assert xmp.beside(regions_of(path, ("a red cup",), (0.9,)), embed=True) == "it is write-protected"
    monkeypatch.undo()
    write(path)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    told = xmp.beside(regions_of(path, ("a red cup",), (0.9,)))
    assert told == f"its sidecar {place} is write-protected" and b"brown dog" in place.read_bytes()


def test_a_full_disk_ends_embedding(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_exiftool()
    before = path.read_bytes()

    def fail(part: Path, data: bytes, write: Any = Path.write_bytes) -> int:
        if part.suffix == ".part":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(part, data)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.jpg"):
        xmp.beside(regions_of(path), embed=True)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_a_description_of_ours_is_signed_as_a_draft_until_somebody_corrects_it(path: Path) -> None:
    place = write(path)
    assert exiftool(place)["CaptionWriter"] == "saywhere, a program (draft)"
    xmp.write_sentence(place, path, "a man and his dog")
    first = place.read_bytes()
    write(path)
    assert place.read_bytes().count(b"(draft)") == first.count(b"(draft)") == 1
    place.write_bytes(first.replace(b"a man and his dog", b"Anna and Rex"))
    write(path)
    said = exiftool(place)
    assert said["Description"] == "Anna and Rex" and "CaptionWriter" not in said
    place.write_bytes(first.replace(b"saywhere, a program (draft)", b"Anna"))
    write(path)
    assert exiftool(place)["CaptionWriter"] == "Anna"


@pytest.mark.parametrize("phrases_first", [False, True])
def test_a_sentence_is_the_description_and_no_alt_text(phrases_first: bool, path: Path, place: Path) -> None:
    """It has not passed the checks of an alternative text, unlike phrases of sure regions, which do not replace it."""
    if phrases_first:
        write(path)
    xmp.write_sentence(place, path, "a man and his dog")
    first, said = place.read_bytes(), exiftool(place)
    assert said["Description"] == "a man and his dog" and ("AltTextAccessibility" in said) == phrases_first
    write(path)
    said = exiftool(place)
    assert said["Description"] == "a man and his dog" and said["AltTextAccessibility"] == "; ".join(TEXTS)
    assert not phrases_first or sorted(place.read_bytes()) == sorted(first)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("<x>", "it is not XML"),
        ("<x/>", "it has no rdf:RDF"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "it has a document type"),
    ],
)
def test_a_sidecar_that_cannot_be_used_is_left_as_it_is(
    place: Path, path: Path, content: str, wrong: str, tmp_path: Path
) -> None:
    place.write_text(content)
    assert wrong in str(xmp.beside(regions_of(path)))
    assert place.read_text() == content
    write(store(tmp_path / "b.jpg"))
    (_, report) = read(tmp_path)
    assert [*report.problems] == ["sidecar that cannot be used"]


def test_other_shapes_and_sidecars_without_images(tmp_path: Path) -> None:
    circle = LIGHTROOM.replace('stArea:h="0.1"', 'stArea:d="0.1"').replace('stArea:w="0.1"', "")
    for name, text in {
        "a.xmp": LIGHTROOM.replace("Face", "Object").replace("<rdf:RDF", '<rdf:RDF xmlns:y="u"'),
        "b.jpg.xmp": circle,
        "c.jpg.xmp": DARKTABLE,
        "d.jpg.xmp": LIGHTROOM,
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in "abc":
        store(tmp_path / f"{name}.jpg")
    ((found,), report) = read(tmp_path)
    assert (found.image, found.captions) == (str(tmp_path / "a.jpg"), ("Anna",))
    np.testing.assert_allclose(found.boxes, [[135, 90, 165, 110]], atol=0.01)
    assert report.problems == {
        "circle instead of an upright box": [str(tmp_path / "b.jpg")],
        "image left out with all its regions": [str(tmp_path / "b.jpg")],
        "sidecar that cannot be used": [
            f"d.jpg.xmp (there is no image {tmp_path / 'd.jpg'}; give their folder by --images)"
        ],
    }
    assert report.left_out == {"sidecars without regions": 1}


def test_a_sidecar_without_a_suffix_is_of_the_raw_file(tmp_path: Path) -> None:
    """Cameras write ``a.jpg`` beside ``a.dng``, and Lightroom ``a.xmp`` for the latter."""
    pytest.importorskip("rawpy")
    image = Image.new("RGB", (WIDTH, HEIGHT))
    (tmp_path / "a.dng").write_bytes(photographs.dng(image, photographs.jpeg(image)))
    store(tmp_path / "a.jpg")
    (tmp_path / "a.xmp").write_text(LIGHTROOM.replace("Face", "Object"), encoding="utf-8")
    ((found,), report) = read(tmp_path)
    assert (found.image, found.captions, report.lines()) == (str(tmp_path / "a.dng"), ("Anna",), [])
    assert xmp.beside(regions_of(tmp_path / "a.dng")) is None and not (tmp_path / "a.dng.xmp").exists()
    assert xmp.beside(regions_of(tmp_path / "a.jpg")) is None and (tmp_path / "a.jpg.xmp").exists()
    said = exiftool(tmp_path / "a.xmp")
    assert (said["Description"], said["Subject"], said["Rating"]) == ("Anna and Rex", ["holiday", "dog", "man"], 4)


@pytest.mark.parametrize(
    ("orientation", "suffix"), [*((n, "jpg") for n in range(1, 9)), (3, "png"), (6, "png"), (5, "webp"), (8, "webp")]
)
def test_what_is_embedded_is_read_back_within_a_pixel(orientation: int, suffix: str, tmp_path: Path) -> None:
    path = store(tmp_path / f"é {orientation}.{suffix}", orientation)
    with Image.open(path) as image:
        pixels, wide = image.tobytes(), image.size
    said = exiftool(path)
    assert "Description" not in said
    embed(path)
    first = path.read_bytes()
    embed(path)
    assert path.read_bytes() == first and [*tmp_path.iterdir()] == [path]
    with Image.open(path) as image:
        assert image.tobytes() == pixels and image.getexif()[0x0112] == orientation
    said = exiftool(path)
    assert (said["Description"], said["Subject"]) == ("; ".join(TEXTS), ["dog", "man"])
    assert said["RegionInfo"]["AppliedToDimensions"] == {"W": wide[0], "H": wide[1], "Unit": "pixel"}
    boxes = []
    for region in said["RegionInfo"]["RegionList"]:
        x, y, w, h = (float(region["Area"][side]) for side in "XYWH")
        boxes.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2))
    upright = xmp.to_upright(np.array(boxes), orientation) * ([WIDTH, HEIGHT] * 2)
    np.testing.assert_allclose(upright, BOXES, atol=1)
    (sample,) = data.read(tmp_path)
    assert (sample.image, sample.phrases) == (path, tuple((text,) for text in TEXTS))
    np.testing.assert_allclose(sample.boxes, BOXES, atol=0.01)


@pytest.mark.parametrize(
    "name", ["line\nbreak.jpg", " -@ '$x\\n\" # .jpg", "\r.jpg", os.fsdecode(b"\xff.jpg"), "%f\t$.jpg"]
)
def test_an_image_with_any_name_is_embedded_in(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / "\\ \n" / name)
    embed(path)
    assert [*path.parent.iterdir()] == [path] and b"RegionList" in xmp.embedded(path)


def test_embedding_keeps_what_is_there_and_falls_back_to_sidecars(path: Path, tmp_path: Path) -> None:
    change(path, "-XMP:Rating=4", "-XMP-dc:Description=Anna", "-IPTC:Keywords=x")
    path.chmod(0o640)
    embed(path)
    said = exiftool(path)
    assert (said["Rating"], said["Description"], said["Keywords"]) == (4, "Anna", "x")
    assert said["AltTextAccessibility"] == "; ".join(TEXTS) and path.stat().st_mode & 0o777 == 0o640
    store(tmp_path / "b.tif")
    before = (tmp_path / "b.tif").read_bytes()
    embed(tmp_path / "b.tif")
    assert (tmp_path / "b.tif").read_bytes() == before and (tmp_path / "b.tif.xmp").exists()
    found, _ = read(tmp_path)
    assert [one.image for one in found] == [str(tmp_path / "a.jpg"), str(tmp_path / "b.tif")]


def test_an_image_is_whole_when_embedding_fails(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_exiftool()
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("saywhere.files.put_in_place", stop)
        with pytest.raises(KeyboardInterrupt):
            xmp.beside(regions_of(path), embed=True)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    damaged = before[:300] + b"\0" * 300
    path.write_bytes(damaged)
    told = "ExifTool cannot write into it (Error: Corrupted JPEG image)"
    assert xmp.beside(regions_of(path), embed=True) == told and path.read_bytes() == damaged
    killed = SimpleNamespace(returncode=-9, stdout=b"\xff\xd8", stderr=b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    assert xmp.beside(regions_of(path), embed=True) == "ExifTool cannot write into it (exit code -9)"
    assert path.read_bytes() == damaged and [*tmp_path.iterdir()] == [path]


def test_an_image_with_the_ending_of_another_format_is_embedded_in(tmp_path: Path) -> None:
    path = store(tmp_path / "a.jpg").rename(tmp_path / "a.png")
    embed(path)
    assert b"RegionList" in xmp.embedded(path) and path.read_bytes().startswith(b"\xff\xd8")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubModel:
    stub = StubModel()
    load_by(monkeypatch, lambda *_, **__: stub)
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "sub/b.png"):
        Path("album", name).parent.mkdir(parents=True, exist_ok=True)
        photographs.quarters(WIDTH, HEIGHT).save(Path("album", name))
    return stub


def sidecars(folder: str) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(Path(folder).rglob("*.xmp"))}


def test_describe_writes_beside_the_images_and_convert_results_the_same(model: StubModel) -> None:
    done = run("describe", "album", "--output-format", "xmp")
    assert done.stderr == ""
    assert done.stdout.endswith("written: sidecars beside the images\n")
    first = sidecars("album")
    assert [*first] == ["a.jpg.xmp", "sub/b.png.xmp"]
    run("describe", "album", "--output-format", "xmp", "--json", "r.jsonl")
    assert sidecars("album") == first
    for path in Path("album").rglob("*.xmp"):
        path.unlink()
    model.batches.clear()
    run("describe", "album", "--output-format", "xmp", "--json", "r.jsonl")
    assert (sidecars("album"), model.batches) == (first, [])
    run("convert-results", "r.jsonl", "--to", "xmp", "--out", "out")
    assert {f"album/{name}": content for name, content in first.items()} == sidecars("out")
    back = ("convert-results", "out", "--from", "xmp", "--to", "saywhere", "--out", "back.jsonl")
    assert "give their folder by --images" in run(*back, code=2).stderr
    assert "sidecars in out have them in album" in run(*back, "--images", "album", code=2).stderr
    Path("broken.jpg").write_bytes(b"no image")
    assert "written" not in run("describe", "broken.jpg", "--output-format", "xmp", code=1).output
    run(*back, "--images", ".")
    rows = [json.loads(line) for file in ("r.jsonl", "back.jsonl") for line in Path(file).read_text().splitlines()]
    assert [row["captions"] for row in rows[2:]] == [row["captions"] for row in rows[:2]] != []
    for path in Path("album").rglob("*.xmp"):
        path.unlink()
    done = run("convert-results", "r.jsonl", "--to", "xmp")
    assert done.stdout == "written: beside the images, 2 images\n"
    assert sidecars("album") == first
    run("convert-results", "album", "--from", "xmp", "--to", "csv", "--out", "r.csv")
    assert Path("r.csv").read_text().count("thing") == 4
    done = run("convert-results", "r.jsonl", "--to", "csv", code=2)
    assert done.stderr == "error: --to csv needs --out PATH, the new file\n"


def test_images_in_archives_have_no_sidecars(model: StubModel) -> None:
    with tarfile.open("al.tar", "w") as archive:
        archive.add("album/a.jpg", "a.jpg")
    why = "skipped: al.tar/a.jpg: images in archives cannot have sidecars\n"
    assert why in run("describe", "al.tar", "--output-format", "xmp", code=1).stderr
    run("describe", "al.tar", "--json", "r.jsonl")
    Path("al.tar").unlink()
    done = run("convert-results", "r.jsonl", "--to", "xmp", code=1)
    assert "al.tar/a.jpg: the image is needed for its EXIF orientation (no such file)" in done.stderr


def test_folders_are_no_sidecars(path: Path, tmp_path: Path) -> None:
    place = write(path).rename(tmp_path / "a.xmp")
    (tmp_path / "a.jpg.xmp").mkdir()
    (tmp_path / "x.jpg.xmp").mkdir()
    (sample,) = data.read(tmp_path)
    assert sample.phrases == tuple((text,) for text in TEXTS) and xmp.find_sidecar(path) == place
    place.unlink()
    told = xmp.beside(regions_of(path))
    assert told == "its sidecar cannot be written (Is a directory)"
    with pytest.raises(UserError):  # no annotations
        data.read(tmp_path)


def test_odd_images_cost_only_themselves(model: StubModel) -> None:
    longest, too_long = "x" * 247 + ".jpg", "y" * 248 + ".jpg"
    for name in (longest, too_long, "c.jpg"):
        photographs.quarters(60, 40).save(Path("album", name))
    Path("album/c.jpg.xmp").write_text("<x/>")
    done = run("describe", "album", "--output-format", "xmp", code=1)
    wrong = "its sidecar album/c.jpg.xmp cannot be used (it has no rdf:RDF)"
    assert done.stderr == f"skipped: album/c.jpg: {wrong}\nskipped: album/{too_long}: {TOO_LONG}\n"
    assert len(sidecars("album")) == 4
    assert not list(Path("album").rglob(".*"))
    run("describe", "album", "--json", "r.jsonl")
    assert f"skipped: album/{too_long}: {TOO_LONG}\n" in run("convert-results", "r.jsonl", "--to", "xmp", code=1).stderr
    Path("album/a.jpg").unlink()
    done = run("convert-results", "r.jsonl", "--to", "xmp", "--out", "new", code=1)
    assert (len(done.stderr.splitlines()), len(sidecars("new"))) == (3, 2)
    assert "album/a.jpg: the image is needed for its EXIF orientation (no such file)" in done.stderr


def test_a_full_disk_leaves_the_old_sidecar(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(path)
    before = place.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        xmp.beside(regions_of(path, ("a cup",), (0.9,)))
    assert place.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_an_image_without_regions_comes_back(path: Path, tmp_path: Path) -> None:
    FORMATS["xmp"].write_beside([Regions.empty(WIDTH, HEIGHT, str(path))], Report())
    ((found,), _) = read(tmp_path)
    assert len(found) == 0


def test_commands_embed_where_exiftool_is(model: StubModel, monkeypatch: pytest.MonkeyPatch) -> None:
    need_exiftool()
    done = run("describe", "album", "--output-format", "xmp", "--embed", "--json", "r.jsonl")
    assert done.stdout.splitlines()[-1] == "written: r.jsonl, XMP in the images or beside them"
    first = {path: path.read_bytes() for path in Path("album").rglob("*.*")}
    assert sidecars("album") == {} and xmp.has_regions(Path("album/a.jpg"))
    run("describe", "album", "--output-format", "xmp", "--embed", "--json", "r.jsonl")
    done = run("convert-results", "r.jsonl", "--to", "xmp", "--embed")
    assert done.stdout == "written: in the images or beside them, 2 images\n"
    assert {path: path.read_bytes() for path in Path("album").rglob("*.*")} == first
    lines = [json.dumps({"image": f"album/{name}", "caption": f"a dog in {name}"}) for name in ("a.jpg", "sub/b.png")]
    Path("c.jsonl").write_text("\n".join(lines) + "\n")
    run("caption", "album", "--output-format", "xmp", "--embed", "--json", "c.jsonl")
    assert exiftool(Path("album/sub/b.png"))["Description"] == "a dog in sub/b.png"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for words in (
        ("describe", "album", "--output-format", "xmp"), ("caption", "album", "--output-format", "xmp"),
        ("convert-results", "r.jsonl", "--to", "xmp"),
    ):  # fmt: skip
        done = run(*words, "--embed", code=2)
        assert done.stderr.startswith("error: --embed needs ExifTool: apt-get install")
    for words in (("describe", "album"), ("caption", "album"), ("convert-results", "r.jsonl")):
        run(*words, "--embed", code=2)
