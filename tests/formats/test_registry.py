"""Every format: what is written is read back, and other programs' readers take it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scripts
from commands import error_of, run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuses

from saywhere import data
from saywhere.errors import UserError
from saywhere.files import parse_yaml
from saywhere.formats import coco, cvat, label_studio
from saywhere.formats.classes import Classes, label
from saywhere.formats.registry import FORMATS
from saywhere.regions import Regions
from saywhere.report import Report

CLASSES_ONLY = ("yolo",)
NEEDS_YAML = pytest.mark.skipif(find_spec("yaml") is None, reason="PyYAML is not installed")
MARKS = {
    "yolo": [NEEDS_YAML],
    "parquet": [pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")],
}
READABLE = tuple(
    pytest.param(name, marks=MARKS.get(name, []))
    for name, format in FORMATS.items()
    if format.read is not None and format.beside is None  # those are in test_xmp.py
)
FILES = tuple(
    pytest.param(name, marks=MARKS.get(name, []))
    for name, format in FORMATS.items()
    if format.read is not None and not format.folder
)


def make(boxes: list[list[float]], scores: list[float], texts: tuple[str, ...], name: str) -> Regions:
    return Regions(160, 120, np.array(boxes), np.array(scores), texts, image=name)


def photos() -> list[Regions]:
    """Three images: several regions, none, and texts that formats must escape."""
    boxes = [[0.0, 0.0, 40.0, 30.0], [10.5, 20.25, 160, 119.75]]
    odd = ('"a man", said <b> & co.', "ein Hund\nim Café; 犬")
    return [
        make(boxes, [0.25, 0.875], ("a brown dog", "a man in a red shirt"), "one/a.jpg"),
        Regions.empty(33, 44, "b.png"),
        make(boxes[::-1], [1.0, 0.0], odd, "c d.jpg"),
    ]


def write_images(folder: Path, images: Sequence[Regions]) -> Path:
    for regions in images:
        path = folder / (regions.image or "")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (regions.width, regions.height)).save(path)
    return folder


def read_back(name: str, path: Path, folder: Path) -> list[Regions]:
    read = FORMATS[name].read
    assert read is not None
    found = list(read(path, folder, Report()))
    for regions in found:  # formats that name images by their files give whole paths
        if regions.image and (place := Path(regions.image)).is_absolute():
            object.__setattr__(regions, "image", place.relative_to(folder).as_posix())
    return sorted(found, key=lambda regions: regions.image or "")


@pytest.mark.parametrize("name", READABLE)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    images = [replace(one, caption_scores=np.linspace(0.125, 0.75, len(one))) for one in photos()]
    folder = write_images(tmp_path / "images", images)
    out = tmp_path / "out"
    FORMATS[name].write(out, images)
    found = read_back(name, out, folder)
    assert [one.image for one in found] == sorted(str(one.image) for one in images)
    for one, two in zip(sorted(images, key=lambda regions: regions.image or ""), found, strict=True):
        assert (one.width, one.height) == (two.width, two.height)
        np.testing.assert_allclose(one.boxes, two.boxes, atol=0.02)
        if name in CLASSES_ONLY:
            assert len(one) == 0 or two.scores is two.caption_scores is None
        elif len(one):
            for told, back in ((one.scores, two.scores), (one.caption_scores, two.caption_scores)):
                assert told is not None and back is not None
                np.testing.assert_allclose(told, back, atol=1e-5)
        expected = tuple(label(text) for text in one.captions or ()) if name in CLASSES_ONLY else one.captions
        assert two.captions == expected


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("odd", ["\r", "\n", "\r\n", "\t", '"', "'", ",", "\x85", "\u2028"])
def test_white_space_and_quotes_in_names_and_phrases_are_read_back(name: str, odd: str, tmp_path: Path) -> None:
    text = f"a dog{odd}on grass"
    written = make([[0, 0, 5, 5]], [0.5], (text,), f"a{odd}b.jpg")
    folder = write_images(tmp_path / "images", [written])
    FORMATS[name].write(tmp_path / "out", [written])
    (found,) = read_back(name, tmp_path / "out", folder)
    assert (found.image, found.captions) == (written.image, (label(text) if name in CLASSES_ONLY else text,))


def test_lines_of_csv_end_in_a_newline_and_a_carriage_return_is_quoted(tmp_path: Path) -> None:
    FORMATS["csv"].write(tmp_path / "r.csv", [Regions.empty(2, 3, "a\r.jpg"), Regions.empty(2, 3, "b.jpg")])
    lines = (tmp_path / "r.csv").read_bytes().split(b"\n")
    assert lines[1:] == [b'"a\r.jpg",2,3,,,,,,,,', b"b.jpg,2,3,,,,,,,,", b""]


@pytest.mark.parametrize("name", READABLE)
def test_no_images_at_all(name: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    FORMATS[name].write(tmp_path / "out", [])
    (tmp_path / "out").mkdir(exist_ok=True) if FORMATS[name].folder else None
    assert read_back(name, tmp_path / "out", tmp_path / "images") == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"\xff\xfe", b"<a/>x", b'{"images": [{}]}'])
def test_a_file_in_no_format_is_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    try:
        assert read_back(name, tmp_path / "x", tmp_path) == []
    except UserError as error:
        assert "\n" not in str(error)
        assert "x" in str(error)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30).filter(str.strip))
def test_any_text_survives_xml_and_json(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    out = tmp_path_factory.mktemp("texts") / "x"
    regions = make([[0, 0, 5, 5]], [0.5], (text,), "a.jpg")
    for write, read in ((cvat.write, cvat.read), (label_studio.write, label_studio.read)):
        write(out, [regions])
        assert next(iter(read(out, None, Report()))).captions == (text,)


def test_the_class_is_the_noun_of_the_phrase_or_sentence() -> None:
    texts = ("a brown dog on the grass", "two young men", "a flibbertigibbet", "", None)
    assert [label(text) for text in texts] == ["dog", "man", "flibbertigibbet", "object", "object"]
    parts = ("the trunk of an elephant", "two horns of a cow", "the front of a car", "a slice of pizza")
    assert [label(text) for text in parts] == ["trunk", "horns", "car", "pizza"]
    assert Classes(("elephant", "cow", "car")).label(parts[0]) is None
    texts = (
        "a cat sits on the ground", "a brown dog barks", "two dogs lie on the grass", "a kitchen stands in a room",
        "a white canvas", "kitchen utensils", "a dog gizmo", "a wooden cross", "the dogs gizmo",
    )  # fmt: skip
    nouns = ["cat", "dog", "dog", "kitchen", "canvas", "utensils", "gizmo", "cross", "gizmo"]
    assert [label(text) for text in texts] == nouns


def test_classes_by_name_take_synonyms_and_kinds_of_them() -> None:
    chosen = Classes(("animal", "dog", "mug", "pallet jack"))
    texts = ("a poodle", "a cat", "two mugs", "a blue pallet jack on the floor", "a jack", "a hot dog", "", None)
    assert [chosen.label(text) for text in texts] == ["dog", "animal", "mug", "pallet jack", None, None, None, None]
    for names, wrong in (("a,,b", "each needs a word"), ("a,b,a", "'a' is named twice")):
        refuses(wrong, Classes.parse, names)
    refuses("there is coco80", Classes.parse, named="coco81")
    refuses("give one of them", Classes.parse, "a", "coco80")


def test_a_drafted_group_gives_way_to_one_of_its_things() -> None:
    boxes = np.array([[0.0, 0, 90, 50], [1, 1, 40, 49], [50, 1, 89, 49], [0, 0, 100, 100], [200, 0, 300, 50]])
    captions = ("two dogs", "a brown dog", "a dog", "two children", "three dogs")
    drafted = Regions(400, 100, boxes, [0.9, 0.8, 0.7, 0.6, 0.5], captions)
    kept = Classes(("dog", "person")).keep(drafted)
    assert kept.captions == ("a brown dog", "a dog", "two children", "three dogs")
    assert Classes().keep(drafted) is drafted
    drawn = replace(drafted, scores=None)  # somebody has drawn them
    assert Classes(("dog", "person")).keep(drawn) is drawn


def test_every_name_of_coco_is_a_class_with_its_number() -> None:
    coco80 = Classes.parse(named="coco80")
    assert coco80 is not None and len(coco80.names) == 80 and coco80.ids[-1] == 90
    assert [coco80.label(f"a {name}") for name in coco80.names] == list(coco80.names)
    texts = ("a woman", "a sofa", "a wooden table", "a hairdryer", "the sky", "a teddy bear")
    assert [coco80.label(text) for text in texts] == [
        "person", "couch", "dining table", "hair drier", None, "teddy bear",
    ]  # fmt: skip


def test_words_outside_the_classes_are_left_out_of_files(tmp_path: Path) -> None:
    boxes, texts = [[0, 0, 9, 9], [9, 0, 20, 9], [0, 9, 9, 20]], ("the sky", "a boy in red", "two poodles")
    (tmp_path / "r.jsonl").write_text(json.dumps(make(boxes, [0.9, 0.8, 0.7], texts, "a.jpg").to_dict()) + "\n")
    run("convert-results", tmp_path / "r.jsonl", "--to", "coco", "--out", tmp_path / "c.json", "--map", "coco80")
    stored = json.loads((tmp_path / "c.json").read_bytes())
    assert [(one["category_id"], one["caption"]) for one in stored["annotations"]] == [
        (1, "a boy in red"), (18, "two poodles"),
    ]  # fmt: skip
    assert len(stored["categories"]) == 80 and {"id": 90, "name": "toothbrush"} in stored["categories"]
    run("convert-results", tmp_path / "r.jsonl", "--to", "yolo", "--out", tmp_path / "y", "--classes", "dog, person")
    assert 'names:\n  0: "dog"\n  1: "person"\n' in (tmp_path / "y" / "data.yaml").read_text()
    lines = (tmp_path / "y" / "labels" / "a.txt").read_text().splitlines()
    assert [line[0] for line in lines] == ["1", "0"]


@pytest.mark.parametrize("names", [("images/000000000139.jpg", "images/000000000007.jpg"), ("b.jpg", "a.jpg")])
def test_cocos_evaluator_takes_annotations_and_results(tmp_path: Path, names: tuple[str, str]) -> None:
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    texts = ("a brown dog", "a cat")
    images = [make([[0, 0, 40, 30], [10, 10, 40, 30]], [0.5, 0.4], texts, name) for name in names]
    coco.write_annotations(tmp_path / "truth.json", images)
    coco.write_results(tmp_path / "results.json", images)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert list(rows[0]) == ["image_id", "category_id", "bbox", "score", "phrase"]
    truth = COCO(str(tmp_path / "truth.json"))
    assert [row["name"] for row in truth.loadCats(truth.getCatIds())] == ["cat", "dog"]
    evaluator = COCOeval(truth, truth.loadRes(str(tmp_path / "results.json")), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    assert evaluator.stats[0] == pytest.approx(1)


def test_voc_counts_pixels_from_one(tmp_path: Path) -> None:
    FORMATS["voc"].write(tmp_path / "voc", photos()[:1])
    box = xml.parse(tmp_path / "voc/one/a.xml").getroot().find("object/bndbox")
    assert box is not None
    assert [float(corner.text or "") for corner in box] == [1, 1, 40, 30]


def test_fiftyone_has_shares_of_the_image(tmp_path: Path) -> None:
    first, empty, _ = photos()
    FORMATS["fiftyone"].write(tmp_path / "labels.json", [replace(first, caption_scores=np.array([0.5, 0.75])), empty])
    row = {
        "label": "dog",
        "bounding_box": [0, 0, 0.25, 0.25],
        "confidence": 0.25,
        "attributes": {"phrase": "a brown dog", "phrase_score": 0.5},
    }
    stored = json.loads((tmp_path / "labels.json").read_text())
    assert stored["classes"] == ["dog", "man"] and stored["labels"]["b"] == [] and stored["labels"]["a"][0] == row
    with pytest.raises(UserError, match="FiftyOne identifies images by name; rename one"):
        FORMATS["fiftyone"].write(tmp_path / "x", [*photos(), *photos()])


def test_the_last_annotation_that_was_not_skipped_counts(tmp_path: Path) -> None:
    out = tmp_path / "tasks.json"
    label_studio.write(out, photos()[:1])
    task = json.loads(out.read_text())[0]
    corrected = json.loads(json.dumps(task["predictions"][0]["result"][:2]))
    corrected[1]["value"]["text"] = ["a black dog"]
    skipped = {"was_cancelled": True, "result": []}
    task["annotations"] = [{"result": task["predictions"][0]["result"]}, {"result": corrected}, skipped]
    others = [task | {"annotations": [skipped]}, task | {"annotations": []}]
    out.write_text(json.dumps([task, *others]))
    report = Report()
    found, predicted = label_studio.read(out, None, report)
    assert found.captions == ("a black dog",) and predicted.captions == photos()[0].captions
    assert [*report.left_out.items()] == [
        ("tasks that were skipped", 1),
        ("tasks without an annotation, whose prediction is read", 1),
    ]


CLASSES = Classes(("Dog", "Person", "Widget A", "widget b"))


def read_again(name: str, folder: Path, regions: Regions, drafts: Regions | None = None) -> tuple[Regions, Report]:
    """Return what is read from the file of ``regions``, or of ``drafts`` that somebody has corrected to them."""
    form, report, out, before = FORMATS[name], Report(), folder / "out", folder / "before"
    assert form.read is not None
    for place, content in ((out, regions), (before, drafts or regions)):
        place.with_suffix(".xml").unlink(missing_ok=True)
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        form.write_whole(place, [content], Report())
    if name != "label-studio":
        carry_marks(*(next(place.rglob("*.xml")) if place.is_dir() else place for place in (out, before)))
    elif drafts is not None:
        (task,), (drafted,) = json.loads(out.read_text()), json.loads(before.read_text())
        out.write_text(json.dumps([drafted | {"annotations": task["predictions"]}]))
    (found,) = form.read(out, None, report)
    return found, report


def carry_marks(corrected: Path, drafted: Path) -> None:
    """Give the corrected file the marks of the drafted one, as other programs carry them along."""
    mark = re.compile(r"(draft\W+)([0-9a-f]{8} [0-9a-f]{8})")
    marks = (found[2] for found in mark.finditer(drafted.read_text()))
    corrected.write_text(mark.sub(lambda found: found[1] + next(marks), corrected.read_text()))


@pytest.mark.parametrize("name", ["coco", "cvat", "label-studio", "voc"])
def test_a_corrected_class_wins_over_the_phrase_of_the_draft(name: str, tmp_path: Path) -> None:
    phrases = (
        "a brown poodle", "a man in red", "a widget A on a shelf", "a widget b", "a fox next to a dog", "a red apple",
        "a boy on a bicycle",
    )  # fmt: skip
    labels = "Dog", "Person", "Widget A", "widget b", "fox", "apple", "boy"
    corrected = "Person", "Widget A", "widget b", "Dog", "Fuchs", "good", "Person"
    boxes = [[i, i, i + 50, i + 40] for i in range(7)]
    drafts = Regions(160, 120, boxes, [0.5] * 7, phrases, labels=labels, image="a.jpg")
    found, report = read_again(name, tmp_path, drafts)
    drafted = Report(drafts=int(name == "label-studio"))  # other formats do not tell
    assert (found.captions, found.labels) == (phrases, labels) and report == drafted
    found, report = read_again(name, tmp_path, replace(drafts, labels=corrected), drafts)
    assert found.labels == corrected == tuple(Classes().labels(found))
    assert found.captions == (*corrected[:6], phrases[6]), "a boy is a person"
    assert CLASSES.labels(found)[:4] == [*corrected[:4]]
    assert report.ok and [*report.left_out.values()] == [6]
    several = replace(drafts, labels=("Dog", "Person", "Widget A", "widget b", "Fox", "apple", "boy"))
    found, report = read_again(name, tmp_path, several, drafts)
    assert found.captions == phrases and not report.left_out, "another spelling is no other class"
    if name != "label-studio":  # which knows drafts without scores, too
        found, report = read_again(name, tmp_path, replace(drafts, labels=corrected, scores=None))
        assert (found.captions, found.labels) == (phrases, corrected) and report == Report()


@pytest.mark.parametrize("name", ["coco", "cvat", "label-studio", "voc"])
def test_a_phrase_that_somebody_wrote_stays(name: str, tmp_path: Path) -> None:
    """Whatever it says; a drafted class that it contradicts is left out."""
    phrases = "the raccoon", "a raccoon lying", "a cat", "a cat", "a dog"
    written = "a trash panda", "my cat Minka", "ein Kater", "a horse", "a dog"
    labels, kept = ("raccoon", "raccoon", "cat", "cat", "dog"), ("raccoon", "cat", "cat", "cat", "fox")
    boxes = [[i, i, i + 50, i + 40] for i in range(5)]
    drafts = Regions(160, 120, boxes, [0.5] * 5, phrases, labels=labels, image="a.jpg")
    found, report = read_again(name, tmp_path, replace(drafts, captions=written, labels=kept), drafts)
    assert found.captions == (*written[:4], "fox")
    assert found.labels == (None, "cat", None, None, "fox")
    assert [*report.left_out.values()] == [1]


def test_labels_in_lines_are_texts_or_none(tmp_path: Path) -> None:
    row = {"image": "a.jpg", "width": 9, "height": 9, "boxes": [[0, 0, 5, 5]] * 2, "captions": ["a dog", "a cat"]}
    lines = tmp_path / "r.jsonl"
    lines.write_text(json.dumps(row | {"labels": [None, "Felix"]}) + "\n" + json.dumps(row | {"labels": [1, 2]}) + "\n")
    result = run("convert-results", lines, "--to", "csv", "--out", tmp_path / "r.csv", code=1)
    assert "the label 1 is not a text" in result.stderr
    with (tmp_path / "r.csv").open() as file:
        assert [(one["phrase"], one["label"]) for one in csv.DictReader(file)] == [("a dog", "dog"), ("a cat", "Felix")]


@pytest.mark.parametrize("known_by", ["data", "predictions", "prediction", None])
def test_a_text_that_somebody_wrote_in_label_studio_stays(known_by: str | None, tmp_path: Path) -> None:
    """It may be corrected instead of the label: the program's own phrases are known, and give way."""
    drafts = Regions(160, 120, [[0, 0, 9, 9]] * 3, captions=("a brown dog", "a cat", "two cows"), image="a.jpg")
    label_studio.write(tmp_path / "t.json", [drafts])
    (task,) = json.loads((tmp_path / "t.json").read_text())
    (draft,) = task["predictions"]
    result = json.loads(json.dumps(draft["result"]))
    labels, texts = result[::2], result[1::2]
    texts[0]["value"]["text"] = ["a brown horse"]  # and the label is still dog
    labels[1]["value"]["rectanglelabels"] = ["sheep"]  # and the text is still a cat
    task["annotations"] = [{"result": result, "prediction": draft if known_by == "prediction" else {}}]
    if known_by != "predictions":
        del task["predictions"]
    if known_by != "data":
        task["data"]["drafts"] = 7
    (tmp_path / "t.json").write_text(json.dumps([task]))
    report = Report()
    (found,) = label_studio.read(tmp_path / "t.json", None, report)
    kept = "a cat" if known_by is None else "sheep"  # nobody knows who wrote it
    assert found.captions == ("a brown horse", kept, "two cows")
    same = None if known_by in ("predictions", "prediction") else "dog"  # there, the draft's label is known to be stale
    assert found.labels == (same, "sheep", "cow")
    assert Classes().labels(found) == [same or "horse", "sheep", "cow"]
    assert sum(report.left_out.values()) == (known_by is not None)


def test_somebodys_classes_stay_as_they_are(tmp_path: Path) -> None:
    """They are not nouns of phrases: "dog head" is no dog, and "class 3" not 3."""
    names = ("dog", "dog head", "NoHelmet", "Fire_Extinguisher", "class 3", "3")
    given = [
        {"id": number, "image_id": 7, "category_id": number, "bbox": [9, 9, 20, 20]} for number in range(len(names))
    ]
    crowd = {"id": 99, "image_id": 7, "category_id": 0, "bbox": [0, 0, 30, 30], "iscrowd": 1}
    of_image = [{"id": 7, "file_name": "a.jpg", "width": 160, "height": 120}]
    kinds = [{"id": number, "name": name} for number, name in enumerate(names)]
    content = {"images": of_image, "annotations": [*given, crowd], "categories": kinds}
    (tmp_path / "in.json").write_text(json.dumps(content))
    report = Report()
    (found,) = coco.read(tmp_path / "in.json", None, report)
    assert found.captions == found.labels == names == Regions.from_dict(found.to_dict()).labels
    assert report.problems == {"crowd instead of an upright box": ["a.jpg"]}
    for to in ("coco", "label-studio", "cvat", "voc", "yolo", "fiftyone"):
        out = tmp_path / to
        FORMATS[to].write_whole(out, [found[[1, 4, 0, 2, 3, 5]]], Report())
        text = "".join(path.read_text() for path in [out, *out.rglob("*")] if path.is_file())
        assert all(f">{name}<" in text or f'"{name}"' in text for name in names), to
    assert CLASSES.labels(found) == ["Dog", "Dog", "object", "object", "object", "object"]
    refuses("'zebra' is named twice; capitals and punctuation do not count", Classes, ("Zebra", "dog", "zebra"))


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/data/local-files/?d=a%20b/c.jpg", "a b/c.jpg"),
        ("/data/upload/3/01234567-c.jpg", "01234567-c.jpg"),
        ("https://example.org/x/c%20d.jpg", "c d.jpg"),
        ("folder/c.jpg", "folder/c.jpg"),
    ],
)
def test_names_of_images_in_label_studio(address: str, name: str) -> None:
    assert label_studio.image_name(address) == name


@pytest.mark.parametrize(("format", "suffix"), [("label-studio", ".json"), ("cvat", ".xml")])
def test_an_export_is_a_data_set(format: str, suffix: str, tmp_path: Path) -> None:
    images = photos()[:1]
    write_images(tmp_path, images)
    out = tmp_path / f"export{suffix}"
    FORMATS[format].write(out, images)
    assert data.guess_format(out) == format
    (sample,) = data.read(out)
    assert sample.phrases == (("a brown dog",), ("a man in a red shirt",))
    np.testing.assert_allclose(sample.boxes, images[0].boxes, atol=0.02)


def test_a_cut_off_export_of_cvat_is_named_as_one(tmp_path: Path) -> None:
    cvat.write(out := tmp_path / "export.xml", photos()[:1])
    out.write_bytes(out.read_bytes()[:-40])
    refuses(r"export.xml: not in the format cvat: .*line \d+, column", data.read, out)
    out.write_text("<html></html>")
    refuses("not a data set in a known format", data.read, out)


def test_an_uploaded_image_is_found_without_its_prefix(tmp_path: Path) -> None:
    write_images(tmp_path / "images", [Regions.empty(160, 120, "a.jpg")])
    out = tmp_path / "export.json"
    label_studio.write(out, photos()[:1])
    tasks = json.loads(out.read_text())
    tasks[0]["data"]["image"] = "/data/upload/3/01234567-a.jpg"
    out.write_text(json.dumps(tasks))
    (sample,) = data.read(out)
    assert sample.image == tmp_path / "images" / "a.jpg"


def test_the_command(tmp_path: Path) -> None:
    FORMATS["saywhere"].write(tmp_path / "r.jsonl", photos())
    convert = partial(run, "convert-results")
    done = convert(tmp_path / "r.jsonl", "--to", "csv", "--out", tmp_path / "r.csv", "--threshold", "0.5")
    assert "3 images" in done.output
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        assert [row["score"] for row in csv.DictReader(file)] == ["0.875", "", "1.0"]
    for words, wrong in (
        ((tmp_path / "r.jsonl", "--to", "csv", "--out", tmp_path / "r.csv"), "already exists"),
        ((tmp_path / "none", "--out", tmp_path / "x"), "no such file"),
        ((tmp_path / "r.csv", "--from", "yolo", "--out", tmp_path / "x"), "is a folder"),
        ((tmp_path / "r.csv", "--from", "coco-results", "--out", tmp_path / "x"), "can only be written"),
        (
            (tmp_path / "r.csv", "--from", "csv", "--images", tmp_path, "--out", tmp_path / "x"),
            "--images is for --from yolo and xmp; csv contains the sizes",
        ),
        ((tmp_path, "--from", "yolo", "--images", "none", "--out", tmp_path / "x"), "--images none: no such folder"),
    ):
        assert wrong in " ".join(convert(*words, code=2).output.split())


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="needs /dev/stdin")
@pytest.mark.parametrize("name", [name for name in FILES if name.values[0] in ("saywhere", "coco", "parquet")])
def test_a_pipe_is_read(name: str, tmp_path: Path) -> None:
    format, file = FORMATS[name], tmp_path / "in"
    format.write_whole(file, iter(photos()), Report())
    command = [sys.executable, "-m", "saywhere", "convert-results", "-", "--from", name, "--to", "csv", "--out", "-"]
    piped = subprocess.run(command, input=file.read_bytes(), capture_output=True)
    assert piped.returncode == 0, piped.stderr
    run("convert-results", file, "--from", name, "--to", "csv", "--out", tmp_path / "out.csv")
    assert piped.stdout == (tmp_path / "out.csv").read_bytes()


def test_lines_of_ground_and_search_are_results(tmp_path: Path) -> None:
    box, size = [1.0, 2.0, 30.0, 40.0], {"width": 160, "height": 120}
    dog = {"words": "a dog", "found": True, "presence": 0.9, "box": box, "score": 0.75}
    missing = {"words": "a cat", "found": False, "presence": 0.1}
    hit = {"image": "c.jpg", "similarity": 9.5, **size, "phrases": [{"words": "a man", "box": box, "similarity": 7.5}]}
    lines = [{"image": "a.jpg", **size, "phrases": [dog, missing]}, {"image": "b.jpg", **size, "phrases": [missing]}]
    path = tmp_path / "g.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*lines, hit)))
    found, none, searched = read_back("saywhere", path, tmp_path)
    assert (found.image, found.captions, found.boxes.tolist()) == ("a.jpg", ("a dog",), [box])
    assert found.scores is not None and found.scores.tolist() == [0.75] and found.similarities is None
    assert len(none) == 0 and searched.captions == ("a man",) and searched.scores is None
    assert run("convert-results", path, "--to", "csv", "--out", tmp_path / "g.csv").stdout.endswith("3 images\n")


@pytest.mark.parametrize(("name", "lost"), [("yolo", "phrases and scores"), ("csv", "")])
def test_what_a_format_has_no_place_for_is_named(name: str, lost: str, tmp_path: Path) -> None:
    FORMATS["saywhere"].write(tmp_path / "r.jsonl", photos())
    done = run("convert-results", tmp_path / "r.jsonl", "--to", name, "--out", tmp_path / "out")
    assert done.stderr.startswith(f"not written: {lost}") if lost else done.stderr == ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in FORMATS])
def test_a_file_is_printed_and_several_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FORMATS["saywhere"].write(tmp_path / "r.jsonl", photos())
    words = ("convert-results", "r.jsonl", "--to", name, "--out")
    if name == "label-studio" or FORMATS[name].folder:
        line = f"error: --out -: the format {name} is several files, which cannot be printed; give a name\n"
        assert run(*words, "-", code=2).stderr == line
        assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
        return
    printed = run(*words, "-")
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"] and "printed, 3 images" in printed.stderr
    run(*words, "file")
    if name != "parquet":  # each file has a time in it
        assert printed.stdout_bytes == Path("file").read_bytes()


def written(name: str, folder: Path, *images: Regions) -> list[Path]:
    FORMATS[name].write(folder / "out", images)
    return sorted(path.relative_to(folder) for path in folder.rglob("*.xml"))


def test_voc_stays_in_its_folder_and_gives_each_image_a_file(tmp_path: Path) -> None:
    one, two = (make([[0, 0, 9, 9]], [0.5], ("a dog",), name) for name in ("../../a.jpg", "b/a.png"))
    assert written("voc", tmp_path, one, two) == [Path("out/a.xml"), Path("out/b/a.xml")]
    refuses("both would be", written, "voc", tmp_path, two, make([[0, 0, 9, 9]], [0.5], ("a dog",), "b/a.jpg"))


@pytest.mark.parametrize("name", ["dogs & cats.jpg", "a+b.jpg", "100%41.jpg", "a#b?.jpg", "\udce9.jpg"])
def test_any_name_comes_back_from_label_studio(name: str, tmp_path: Path) -> None:
    label_studio.write(tmp_path / "tasks.json", [make([[0, 0, 9, 9]], [0.5], ("a dog",), name)])
    assert [regions.image for regions in label_studio.read(tmp_path / "tasks.json", None, Report())] == [name]
    refuses(r"tasks\.xml: is where the labeling interface", label_studio.write, tmp_path / "tasks.json", photos())


def test_a_box_without_an_area_and_characters_without_xml_come_back(tmp_path: Path) -> None:
    regions = make([[5, 5, 5, 9]], [0.5], ("a dog\x01",), "a\x02.jpg")
    for name in ("cvat", "voc"):
        out = tmp_path / name
        FORMATS[name].write(out, [regions])
        (found,) = read_back(name, out, tmp_path)
        assert found.boxes.tolist() == [[5, 5, 5, 9]]
        assert found.captions == ("a dog\N{REPLACEMENT CHARACTER}",)


ROW = {"image": "a", "width": 5, "height": 5, "boxes": []}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("saywhere", json.dumps({**ROW, **odd}) + "\n") for odd in (
            {"width": 0}, {"image": 5}, {"image": "a\0"}, {"boxes": [[0, 0, 1, 1]], "captions": [None]},
        )),
        ("csv", "image,width,height,x1,y1,x2,y2,score,phrase\na.jpg,10,10\n"),
        ("csv", '"a"b,c\n"'),
    ],
)  # fmt: skip
def test_results_that_no_format_can_hold_and_a_torn_table_are_one_line(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "r").write_text(content)
    done = run("convert-results", tmp_path / "r", "--from", name, "--to", "yolo", "--out", tmp_path / "out", code=2)
    assert f"not in the format {name}" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("csv", "", "names no column image"),
        ("csv", "image;width;height;x1\n", "names no column image; commas part image, width, height"),
        ("csv", "image,width,height,x1,y1,x2,y2,score\n", "names no column phrase"),
        ("voc", None, "not in the format voc: no file in it ends with .xml"),
        ("saywhere", '{"images": []}', "missing: 'width')); --from names another one"),
    ],
)
def test_what_is_no_result_of_this_format_is_not_taken_for_none(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "r" / "photos").mkdir(parents=True) if content is None else (tmp_path / "r").write_text(content)
    done = run("convert-results", tmp_path / "r", "--from", name, "--to", "coco", "--out", tmp_path / "out", code=2)
    assert message in done.output and not (tmp_path / "out").exists()


def test_a_table_of_what_people_drew_needs_no_scores(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("image,width,height,x1,y1,x2,y2,phrase\na.jpg,10,10,1,1,5,5,a cat\n")
    (regions,) = read_back("csv", tmp_path / "r.csv", tmp_path)
    assert regions.captions == ("a cat",) and regions.scores is None


SCRIPT = "benchmarks/readers.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    if not (scripts.ROOT / SCRIPT).is_file():
        pytest.skip("the benchmarks are not here")
    return scripts.load(SCRIPT)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Results of three images: two regions, one, and none."""
    boxes = {"a.jpg": [[0, 0, 40, 30], [10.5, 20.25, 160, 119.75]], "b.jpg": [[3, 4, 50, 60]], "c.jpg": []}
    rows: list[dict[str, Any]] = []
    (tmp_path / "photos").mkdir()
    for name, found in boxes.items():
        Image.new("RGB", (160, 120)).save(tmp_path / "photos" / name)
        texts = tuple(("a brown dog", "a man & a dog")[: len(found)])
        rows.append(Regions(160, 120, found, np.full(len(found), 0.5), texts, image=f"photos/{name}").to_dict())
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "r.jsonl"


def test_every_library_that_is_installed_reads_the_same_regions(
    benchmark: ModuleType, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([str(lines), "--images", str(lines.parent / "photos")])
    rows = [re.findall(r"[^|]+", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == len(benchmark.READERS)
    for cells in rows:
        _, _, images, *rest = (cell.strip() for cell in cells)
        if images != "not installed":
            assert (images, rest[0]) == ("3", "3")
            assert float(rest[1]) <= 0.02


def test_parquet_is_written_in_groups_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("saywhere.formats.table.GROUP", 2)
    report = Report()
    FORMATS["parquet"].write_whole(tmp_path / "r.parquet", [*photos(), make([], [], (), "\udcff.jpg")], report)
    found = parquet.ParquetFile(tmp_path / "r.parquet")
    assert found.num_row_groups == 3 and found.metadata.num_rows == 6
    names = ["image", "width", "height", "x1", "y1", "x2", "y2", "score", "phrase", "phrase_score", "label"]
    assert found.schema_arrow.names == names and str(found.schema_arrow.field("x1").type) == "float"
    rows = found.read().to_pylist()
    first = ("one/a.jpg", 160, 120, 0.0, 0.0, 40.0, 30.0, 0.25, "a brown dog", None, "dog")
    assert rows[0] == dict(zip(names, first, strict=True))
    assert (rows[2]["image"], rows[2]["x1"], rows[2]["phrase"]) == ("b.png", None, None)
    assert rows[5]["image"] == "\N{REPLACEMENT CHARACTER}.jpg"
    with pytest.raises(UserError, match="two images have this name"):
        FORMATS["parquet"].write_whole(tmp_path / "twice.parquet", [*photos(), *photos()], report)
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "r.jsonl").write_text(json.dumps(photos()[0].to_dict()) + "\n")
    done = run("convert-results", tmp_path / "r.jsonl", "--to", "parquet", "--out", tmp_path / "x", code=2)
    assert "pip install 'saywhere[parquet]'" in done.output


def test_tables_and_label_studio_have_the_probability_of_the_words(tmp_path: Path) -> None:
    box = np.array([[10, 20, 60, 80], [30, 10, 90, 70]], np.float32)
    sure, scores = np.array([0.25, 0.75], np.float32), np.array([0.5, 0.875], np.float32)
    regions = Regions(160, 120, box, scores, ("a dog", "a cat"), image="a.jpg", caption_scores=sure)
    for name in ("csv", "label-studio", "parquet"):
        if FORMATS[name].needs is not None:
            pytest.importorskip(str(FORMATS[name].needs).partition(".")[0])
        FORMATS[name].write(tmp_path / name, [regions])
    with (tmp_path / "csv").open(newline="", encoding="utf-8") as file:
        assert [row["phrase_score"] for row in csv.DictReader(file)] == ["0.25", "0.75"]
    (task,) = json.loads((tmp_path / "label-studio").read_text())
    assert [(e["type"], e["score"]) for e in task["predictions"][0]["result"]] == [
        ("rectanglelabels", 0.5), ("textarea", 0.25), ("rectanglelabels", 0.875), ("textarea", 0.75)
    ]  # fmt: skip
    if (tmp_path / "parquet").exists():
        table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "parquet")
        assert table.column("phrase_score").to_pylist() == [0.25, 0.75]


def yolo_set(folder: Path) -> Path:
    """A data set with splits, whose classes have numbers of their own, and one of which no box is."""
    for split, lines in (("train", "1 .5 .5 .2 .2\n"), ("val", "0 .5 .5 .2 .2\n7 .3 .3 .1 .1\n")):
        for place in ("images", "labels"):
            (folder / place / split).mkdir(parents=True)
        Image.new("RGB", (100, 50)).save(folder / "images" / split / "a.png")
        (folder / "labels" / split / "a.txt").write_text(lines)
    (folder / "data.yaml").write_text("names: {0: person, 1: Hund, 7: zebra, 8: yak}\n")
    return folder


@NEEDS_YAML
def test_yolos_numbers_and_splits_stay(tmp_path: Path) -> None:
    before, out = yolo_set(tmp_path / "ds"), tmp_path / "out"
    run("convert-results", before, "--from", "yolo", "--images", before / "images", "--to", "yolo", "--copy-images",
        "--out", out)  # fmt: skip
    assert parse_yaml((out / "data.yaml").read_bytes()) == {
        "train": "images/train", "val": "images/val", "names": {0: "person", 1: "Hund", 7: "zebra", 8: "yak"},
    }  # fmt: skip
    assert (out / "labels/train/a.txt").read_text().split()[0] == "1"
    assert [line.split()[0] for line in (out / "labels/val/a.txt").read_text().splitlines()] == ["0", "7"]
    assert (out / "images/val/a.png").read_bytes() == (before / "images/val/a.png").read_bytes()
    shutil.copy(before / "images/train/a.png", before / "images/b.png")
    shutil.copy(before / "labels/train/a.txt", before / "labels/b.txt")
    flat = ("convert-results", before, "--from", "yolo", "--images", before / "images", "--to", "yolo")
    assert "YOLO identifies images by name" in error_of(run(*flat, "--out", tmp_path / "flat", code=2))


@NEEDS_YAML
def test_cocos_numbers_stay_in_coco_and_their_order_elsewhere(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 50}]
    boxes = [{"id": n, "image_id": 1, "category_id": n, "bbox": [0, 0, 9, 9]} for n in (18, 3)]
    kinds = [{"id": 18, "name": "Hund"}, {"id": 7, "name": "yak"}, {"id": 3, "name": "cat"}]
    content = {"images": images, "annotations": boxes, "categories": kinds}
    (tmp_path / "in.json").write_text(json.dumps(content))
    convert = ("convert-results", tmp_path / "in.json", "--from", "coco")
    for to in ("coco", "coco-results"):
        run(*convert, "--to", to, "--out", tmp_path / f"{to}.json")
        found = json.loads((tmp_path / f"{to}.json").read_text())
        rows = found["annotations"] if to == "coco" else found
        assert [row["category_id"] for row in rows] == [18, 3]
    assert json.loads((tmp_path / "coco.json").read_text())["categories"] == kinds[::-1]
    run(*convert, "--to", "yolo", "--out", tmp_path / "yolo")
    assert parse_yaml((tmp_path / "yolo/data.yaml").read_bytes()) == {"names": {0: "cat", 1: "yak", 2: "Hund"}}
    bats = [{"id": 1.0, "name": "bat"}, {"id": 7, "name": "bat"}, {"id": 9, "name": "cat"}]
    rows = [box | {"category_id": n} for box, n in zip(boxes, (7, 9), strict=True)]
    (tmp_path / "in.json").write_text(json.dumps({"images": images, "annotations": rows, "categories": bats}))
    done = run(*convert, "--to", "coco", "--out", tmp_path / "bats.json")
    assert "classes of a name that another one has, whose number they get: 1" in done.stderr
    assert [row["category_id"] for row in json.loads((tmp_path / "bats.json").read_text())["annotations"]] == [1, 9]
    more = Regions(100, 50, [[0, 0, 9, 9]], captions=("an apple",), image="b.jpg")
    classes = Classes(first=("cat", "yak"), numbered=(3, 7))
    assert classes.numbers([more]) == {"cat": 3, "yak": 7, "apple": 8}
