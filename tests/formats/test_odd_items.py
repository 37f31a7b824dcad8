"""One odd region, image or line of another program's file costs none of the others, and nothing is lost silently."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from PIL import Image
from refusals import refuses

from saywhere import data
from saywhere.errors import UserError
from saywhere.formats import coco
from saywhere.formats.registry import FORMATS
from saywhere.regions import Regions
from saywhere.report import Report

GOOD = (10.0, 20.0, 50.0, 60.0)
WIDTH, HEIGHT = 200, 100


def read(name: str, path: Path, images: Path | None = None) -> tuple[list[Regions], Report]:
    reader, report = FORMATS[name].read, Report()
    assert reader is not None
    return list(reader(path, images, report)), report


def label_studio_task(*entries: dict[str, Any], image: str = "a.jpg") -> dict[str, Any]:
    sized = [{"original_width": WIDTH, "original_height": HEIGHT, **entry} for entry in entries]
    return {"id": 7, "data": {"image": image}, "annotations": [{"result": sized}]}


def rectangle(box: Sequence[float], id: str = "r", **more: Any) -> dict[str, Any]:
    x1, y1, x2, y2 = box
    shares = (x1 / WIDTH, y1 / HEIGHT, (x2 - x1) / WIDTH, (y2 - y1) / HEIGHT)
    place = dict(zip(("x", "y", "width", "height"), (100 * share for share in shares), strict=True))
    return {"id": id, "type": "rectanglelabels", "value": {**place, "rectanglelabels": ["dog"], **more}}


def by_label_studio(folder: Path, boxes: Sequence[Sequence[float]]) -> Path:
    entries = [rectangle(box, str(number)) for number, box in enumerate(boxes)]
    (folder / "x").write_text(json.dumps([label_studio_task(*entries)]))
    return folder / "x"


def by_cvat(folder: Path, boxes: Sequence[Sequence[float]], more: str = "") -> Path:
    shapes = "".join(f'<box label="dog" xtl="{a}" ytl="{b}" xbr="{c}" ybr="{d}"/>' for a, b, c, d in boxes)
    image = f'<image id="0" name="a.jpg" width="{WIDTH}" height="{HEIGHT}">{shapes}{more}</image>'
    (folder / "x").write_text(f"<annotations>{image}</annotations>")
    return folder / "x"


def by_coco(folder: Path, boxes: Sequence[Sequence[float]], **more: Any) -> Path:
    rows = [
        {"id": n, "image_id": 1, "category_id": 3, "bbox": [a, b, c - a, d - b]}
        for n, (a, b, c, d) in enumerate(boxes, 1)
    ]
    image = {"id": 1, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT}
    content = {"images": [image], "annotations": rows, "categories": [{"id": 3, "name": "dog"}]}
    for part, entries in more.items():
        content[part] = content[part] + entries
    (folder / "x").write_text(json.dumps(content))
    return folder / "x"


def by_voc(folder: Path, boxes: Sequence[Sequence[float]], more: str = "", name: str = "a") -> Path:
    objects = "".join(
        f"<object><name>dog</name><bndbox><xmin>{a + 1}</xmin><ymin>{b + 1}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    (folder / f"{name}.xml").write_text(
        f"<annotation><filename>{name}.jpg</filename>{size}{objects}{more}</annotation>"
    )
    return folder


def by_csv(folder: Path, boxes: Sequence[Sequence[float]]) -> Path:
    lines = "".join(f"a.jpg,{WIDTH},{HEIGHT},{a},{b},{c},{d},,dog\n" for a, b, c, d in boxes)
    (folder / "x").write_text(f"image,width,height,x1,y1,x2,y2,score,phrase\n{lines}")
    return folder / "x"


def by_yolo(folder: Path, boxes: Sequence[Sequence[float]], names: str = "names: [dog]") -> Path:
    pytest.importorskip("yaml")
    (folder / "labels").mkdir(exist_ok=True)
    lines = [
        f"0 {(a + c) / 2 / WIDTH} {(b + d) / 2 / HEIGHT} {(c - a) / WIDTH} {(d - b) / HEIGHT}\n" for a, b, c, d in boxes
    ]
    (folder / "labels" / "a.txt").write_text("".join(lines))
    (folder / "data.yaml").write_bytes(names.encode())
    return folder


WRITERS: dict[str, Callable[[Path, Sequence[Sequence[float]]], Path]] = {
    "label-studio": by_label_studio, "cvat": by_cvat, "coco": by_coco, "voc": by_voc, "csv": by_csv, "yolo": by_yolo,
}  # fmt: skip


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "images" / "a.jpg")
    return tmp_path / "images"


@pytest.mark.parametrize("name", WRITERS)
def test_an_odd_box_is_cut_or_left_out_and_named(name: str, tmp_path: Path, images: Path) -> None:
    over = (-4.0, -2.0, 204.0, 102.0)  # by 2 % on all sides
    bad = [(50.0, 20.0, 10.0, 60.0), (10.0, 20.0, 260.0, 60.0), (10.0, 20.0, float("nan"), 60.0), (210, 0, 230, 9),
           (10.0, 20.0, 1e39, 60.0), (10.0, 20.0, 1.7e308, 60.0)]  # fmt: skip
    path = WRITERS[name](tmp_path, [GOOD, over, *bad])
    (found,), report = read(name, path, images)
    np.testing.assert_allclose(found.boxes, [GOOD, (0, 0, 200, 100)], atol=1e-3)
    assert found.captions == ("dog", "dog")
    assert report.left_out == {"boxes cut at the border of the image": 1}
    (kind,) = report.problems
    told = report.problems[kind]
    assert (kind, len(told)) == ("broken region", len(bad))
    assert all("a.jpg: the box" in line for line in told)
    assert "is inside out" in told[0] and "is not inside the 200 x 100 image" in told[1]


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_which_nothing_is_right_is_refused(name: str, tmp_path: Path, images: Path) -> None:
    path = WRITERS[name](tmp_path, [(50, 20, 10, 60)])
    refuses(f"not in the format {name}: broken region: 1 .* image left out with all its", read, name, path, images)


@pytest.mark.parametrize("name", WRITERS)
def test_a_mark_before_a_file_is_passed_over(name: str, tmp_path: Path, images: Path) -> None:
    path = WRITERS[name](tmp_path, [GOOD])
    for file in [path] if path.is_file() else [*path.rglob("*.xml"), *path.rglob("*.txt"), *path.rglob("*.yaml")]:
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    (found,), report = read(name, path, images)
    assert (found.captions, report) == (("dog",), Report())


def polygon(id: str = "p") -> list[dict[str, Any]]:
    value = {"points": [[1, 1], [9, 1], [9, 9]]}
    return [
        {"id": id, "type": "polygon", "value": value},
        {"id": id, "type": "labels", "value": {**value, "labels": ["cat"]}},
    ]


def with_text(text: Any, id: str = "r") -> dict[str, Any]:
    return {"id": id, "type": "textarea", "value": {"text": text}}


def separate(box: Sequence[float], id: str, *texts: str) -> list[dict[str, Any]]:
    """What the tags Rectangle, Labels and TextArea give: three entries with one id."""
    value = rectangle(box)["value"]
    del value["rectanglelabels"]
    return [
        {"id": id, "type": "rectangle", "value": value},
        {"id": id, "type": "labels", "value": {**value, "labels": ["dog"]}},
        *([{"id": id, "type": "textarea", "value": {**value, "text": list(texts)}}] if texts else []),
    ]


def test_rectangles_of_label_studio_have_their_labels_and_texts_under_one_id(tmp_path: Path) -> None:
    entries = [
        *separate(GOOD, "1", "a brown dog"),
        *separate((0, 0, 9, 9), "2"),
        *separate((9, 9, 20, 20), "3", "one", "two"),
        {"id": "whole", "type": "choices", "value": {"choices": ["outdoors"]}},
        {"id": "caption", "type": "textarea", "value": {"text": ["A dog."]}},
        {"type": "relation", "from_id": "1", "to_id": "2"},
    ]
    (tmp_path / "x").write_text(json.dumps([label_studio_task(*entries)]))
    (found,), report = read("label-studio", tmp_path / "x")
    assert found.captions == ("a brown dog", "dog", "one", "two")
    np.testing.assert_allclose(found.boxes, [GOOD, (0, 0, 9, 9), *[(9, 9, 20, 20)] * 2], atol=1e-3)
    assert report == Report()


def test_other_shapes_of_label_studio_are_named_and_make_no_empty_image(tmp_path: Path) -> None:
    mixed = [rectangle(GOOD), *polygon(), rectangle(GOOD, "t", rotation=45), rectangle(GOOD, "n", rectanglelabels=[])]
    brush = {"id": "b", "type": "brushlabels", "value": {"rle": [1], "brushlabels": ["cat"]}}
    tasks = [
        label_studio_task(*mixed),
        label_studio_task(*polygon(), brush, image="b.jpg"),
        label_studio_task(rectangle(GOOD, rectanglelabels=[]), with_text(["a cat"]), image="c.jpg"),
        {"id": 9, "data": {}, "annotations": [{"result": []}]},
        {"id": 10, "data": {"image": "d.jpg"}, "annotations": [{"result": []}]},
        "no task",
    ]
    (tmp_path / "x.json").write_text(json.dumps(tasks))
    found, report = read("label-studio", tmp_path / "x.json")
    assert [(one.image, one.captions) for one in found] == [("a.jpg", ("dog",)), ("c.jpg", ("a cat",))]
    assert report.problems == {
        "polygon instead of an upright box": ["a.jpg", "b.jpg"],
        "rotated box instead of an upright box": ["a.jpg"],
        "broken region": ["a.jpg: a region has neither a label nor a text"],
        "brush instead of an upright box": ["b.jpg"],
        "image left out with all its regions": ["b.jpg"],
        "broken task": ["no task (a part of it has the wrong type)"],
    }
    assert report.left_out == {"tasks without regions, whose images have no size in the file": 2}
    for name in "abc":
        Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / f"{name}.jpg")
    samples = data.read(tmp_path / "x.json")
    assert [sample.image.name for sample in samples] == ["a.jpg", "c.jpg"]
    assert samples.report.problems == report.problems


def test_other_shapes_of_cvat(tmp_path: Path) -> None:
    more = '<polygon label="cat" points="1,1;9,1;9,9"/><tag label="day"/><points label="eye" points="1,1"/>'
    turned = '<box label="dog" xtl="1" ytl="1" xbr="9" ybr="9" rotation="30.5"/><box label="dog" xtl="1"/>'
    (found,), report = read("cvat", by_cvat(tmp_path, [GOOD], more + turned))
    assert len(found) == 1
    assert report.problems == {
        "polygon instead of an upright box": ["a.jpg"],
        "points instead of an upright box": ["a.jpg"],
        "rotated box instead of an upright box": ["a.jpg"],
        "broken region": ["a.jpg: 'ytl' is missing"],
    }
    alone = by_cvat(tmp_path, [], '<tag label="day"/>')
    assert [len(one) for one in read("cvat", alone)[0]] == [0]


def test_other_entries_of_coco(tmp_path: Path) -> None:
    rows = [
        {"id": 8, "image_id": 1, "category_id": 3, "bbox": [], "segmentation": [[1, 1, 9, 1, 9, 9]]},
        {"id": 9, "image_id": 1, "category_id": 3, "segmentation": {"counts": "abc", "size": [1, 1]}},
        {"id": 10, "image_id": 99, "category_id": 3, "bbox": [1, 1, 2, 2]},
        {"id": 11, "image_id": 1, "category_id": 5, "bbox": [1, 1, 2, 2]},
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 9, 9]},  # an id that another has, too
        "text",
    ]
    image = {"id": 2, "file_name": "b.jpg", "width": WIDTH}
    (found,), report = read("coco", by_coco(tmp_path, [GOOD], annotations=rows, images=[image]))
    assert found.boxes.tolist() == [list(GOOD), [0, 0, 9, 9]]
    assert report.problems == {
        "broken annotation": ["10 (no image has the id 99)", "text (a part of it has the wrong type)"],
        "polygon instead of an upright box": ["a.jpg"],
        "mask instead of an upright box": ["a.jpg"],
        "broken region": ["a.jpg: no category has the id 5"],
        "broken image": ["2 ('height' is missing)"],
    }


def test_two_images_or_categories_of_one_id_are_refused(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "b/a.jpg", "width": WIDTH, "height": HEIGHT}
    refuses("two images have the id 1: give each its own", read, "coco", by_coco(tmp_path, [GOOD], images=[image]))
    with pytest.raises(UserError, match="two categories have the id 3"):
        read("coco", by_coco(tmp_path, [GOOD], categories=[{"id": 3, "name": "cat"}]))


@pytest.mark.parametrize("write", [coco.write_results, coco.write_annotations])
def test_images_have_numbers_in_coco(tmp_path: Path, write: Callable[[Path, list[Regions]], None]) -> None:
    """Those at the ends of their names, if each has one of its own; else others, which do not depend on the order."""

    def ids(*names: str) -> dict[str, int]:
        regions = [Regions(9, 9, [[0, 0, 5, 5]], [0.5], ("a dog",), image=name) for name in names]
        write(tmp_path / "r.json", regions)
        found = json.loads((tmp_path / "r.json").read_text())
        rows = found["annotations"] if isinstance(found, dict) else found
        return {name: row["image_id"] for name, row in zip(names, rows, strict=True)}

    assert ids("c/000000000139.jpg", "a/7.jpg") == {"c/000000000139.jpg": 139, "a/7.jpg": 7}
    names = "a/1.jpg", "b/1.jpg", "c/000000000139.jpg", "d.jpg", f"{'9' * 30}.jpg"
    known = ids(*names)
    assert len({*known.values()}) == 5 and all(1000 < number < 1 << 53 for number in known.values())
    assert ids(*reversed(names)) == known and ids("b/1.jpg", "d.jpg").items() <= known.items()
    refuses(r"a/1.jpg: two images have this name, by which COCO's files know them", ids, "a/1.jpg", "d.jpg", "a/1.jpg")


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    regions = [Regions(9, 9, [[0, 0, 5, 5]], [0.5], ("a dog",), image="d.jpg")]
    for name in ("coco-results", "csv"):
        refuses(r"^d\.jpg: two images have this name", FORMATS[name].write_whole, tmp_path / "x", regions * 2, Report())


def test_other_files_and_shapes_of_voc(tmp_path: Path) -> None:
    outline = "<object><name>cat</name><polygon><pt><x>1</x><y>1</y></pt></polygon></object>"
    by_voc(tmp_path, [GOOD], outline)
    by_voc(tmp_path, [], outline, "b")
    (tmp_path / "c.xml").write_text("<annotation>")
    (tmp_path / "d.xml").write_text('<?xml version="1.0" encoding="klingon"?><annotation/>')
    (found,), report = read("voc", tmp_path)
    assert (found.image, len(found)) == ("a.jpg", 1)
    assert report.problems == {
        "polygon instead of an upright box": ["a.jpg", "b.jpg"],
        "image left out with all its regions": ["b.jpg"],
        "broken file": ["c.xml (no element found: line 1, column 12)", "d.xml (unknown encoding: klingon)"],
    }


@pytest.mark.parametrize(("labels", "images"), [("Annotations", "JPEGImages"), ("annotations", "images"), (".", ".")])
def test_images_of_voc_are_found_beside_their_annotations(tmp_path: Path, labels: str, images: str) -> None:
    folder, image = tmp_path / labels, tmp_path / images / "a.jpg"
    folder.mkdir(exist_ok=True)
    by_voc(folder, [GOOD])
    (found,), _ = read("voc", tmp_path)
    assert found.image == "a.jpg"
    image.parent.mkdir(exist_ok=True)
    image.touch()
    (found,), _ = read("voc", tmp_path)
    assert Path(found.image or "").samefile(image)


def test_xml_of_an_unknown_encoding_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_text('<?xml version="1.0" encoding="klingon"?><annotations/>')
    refuses("unknown encoding: klingon", read, "cvat", path)
    refuses("not in the format cvat: unknown encoding", data.read, path, "cvat")


NAMES = (
    "names: [dog, 'a man, old']",
    "names: {0: dog, 1: 'a man, old'}  # two",
    "names:  # two\n- dog\n- 'a man, old'",
    'names:\n  # 2\n  0: dog\n  1: "a man, old"',
    "\ufeffnames: [\n  dog,  # one\n  'a man, old',\n]",
    'nc: 2\n"names": {"0": dog, "1": "a man, old"}',
)


@pytest.mark.parametrize("names", NAMES)
def test_the_ways_of_naming_classes_in_yolo(names: str, tmp_path: Path, images: Path) -> None:
    by_yolo(tmp_path, [], f"{names}\npath: .\n")
    (tmp_path / "labels" / "classes.txt").write_text("dog\nman\n")
    (tmp_path / "labels" / "a.txt").write_bytes(b"\xef\xbb\xbf1 0.5 0.5 0.5 0.5\r\n0.0 0.25 0.25 0.5 0.5\n")
    (found,), report = read("yolo", tmp_path, images)
    assert found.captions == ("a man, old", "dog")
    np.testing.assert_allclose(found.boxes, [[50, 25, 150, 75], [0, 0, 100, 50]])
    assert report.ok


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ("names: ['it''s', 'a # b', \"\\u00e9\"]", ["it's", "a # b", "é"]),
        ("names: [1, 2.5, x]", ["1", "2.5", "x"]),
        ("names: ['no', 'null', '[x]']", ["no", "null", "[x]"]),
    ],
)
def test_names_in_yolo_are_yaml(names: str, classes: list[str], tmp_path: Path, images: Path) -> None:
    by_yolo(tmp_path, [], names)
    (tmp_path / "labels" / "a.txt").write_text("".join(f"{n} 0.5 0.5 0.5 0.5\n" for n in range(3)))
    (found,), _ = read("yolo", tmp_path, images)
    assert list(found.captions or ()) == classes


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "names: [dog, no]",
            "data.yaml: not in the format yolo: the class 1 is False, which is not a text; put it in quotes",
        ),
        ("names: dogs", "the class 0 is 'd', which is not a text"),
        ("names: {0: dog, 1: cat, 0: cow}", "the key '0' is there twice: line 1"),
        ("names: {0: dog, '0': cat}", "two classes have one number"),
        ("nc: 1", "'names' is missing"),
        ("names: [dog", "not in the format yolo: while parsing a flow sequence"),
    ],
)
def test_names_in_yolo_that_are_refused(names: str, message: str, tmp_path: Path, images: Path) -> None:
    by_yolo(tmp_path, [GOOD], names)
    refuses(message, read, "yolo", tmp_path, images)


def test_yolo_without_pyyaml_names_the_extra(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_yolo(tmp_path, [GOOD])
    monkeypatch.setitem(sys.modules, "yaml", None)
    refuses(r"needs PyYAML: pip install 'saywhere\[yolo\]'$", read, "yolo", tmp_path, images)


def test_odd_lines_and_files_of_yolo(tmp_path: Path, images: Path) -> None:
    by_yolo(tmp_path, [GOOD])
    labels = tmp_path / "labels"
    more = "0 0.1 0.1 0.2 0.1 0.2 0.2\n7 0.5 0.5 0.5 0.5\n0.5 0.5 0.5 0.5 0.5\n0 0.5 0.5\n0 0.5 0.5 0.5 0.5 1.5\n"
    (labels / "a.txt").write_text((labels / "a.txt").read_text() + more)
    (labels / "b.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (labels / "sub").mkdir()
    (labels / "sub" / "a.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (found,), report = read("yolo", tmp_path, images)
    assert len(found) == 1
    assert report.problems["polygon instead of an upright box"] == [str(images / "a.jpg")]
    wrong = ("number 7", "number 0.5", "3 numbers in a line", "the score 1.5")
    assert all(a in b for a, b in zip(wrong, report.problems["broken region"], strict=True))
    lost = report.problems["file that cannot be used"]
    assert lost[0].startswith(f"labels/b.txt (0 images in {images} have this name")
    assert lost[1].startswith("labels/sub/a.txt (0 images in ")


def test_scores_of_an_image_are_not_lost_silently(tmp_path: Path) -> None:
    scored = {**rectangle(GOOD, "1"), "score": 0.5}
    said = {"id": "1", "type": "textarea", "value": {"text": ["a dog"]}, "score": 0.75}
    (tmp_path / "x").write_text(json.dumps([label_studio_task(scored, said, rectangle(GOOD, "2"))]))
    (found,), report = read("label-studio", tmp_path / "x")
    assert found.scores is found.caption_scores is None
    what = "of an image of which other regions have none"
    assert report.left_out == {f"scores {what}": 1, f"scores of phrases {what}": 1}


convert = partial(run, "convert-results")


def test_the_command_names_what_it_left_out_and_exits_with_1(tmp_path: Path) -> None:
    mixed = label_studio_task(rectangle(GOOD), *polygon())
    (tmp_path / "x").write_text(json.dumps([mixed]))
    words = ("--from", "label-studio", "--to", "csv", "--out", tmp_path / "r.csv")
    done = convert(tmp_path / "x", *words, code=1)
    assert "1 image\n" in done.stdout
    assert done.stderr == "polygon instead of an upright box: 1 (a.jpg)\n"
    assert (tmp_path / "r.csv").read_text().count("a.jpg") == 1


def row(**more: Any) -> dict[str, Any]:
    return {"image": "a.jpg", "width": 9, "height": 9, "boxes": [[0, 0, 5, 5]], "captions": ["a dog"], **more}


def test_lines_end_at_newlines_and_a_mark_before_them_is_passed_over(tmp_path: Path) -> None:
    rows = [row(captions=["a\u2028b\u2029c\x85d"]), row(image="b.jpg")]
    text = "\r\n".join(json.dumps(each, ensure_ascii=False) for each in rows)
    (tmp_path / "r.jsonl").write_text(text, encoding="utf-8-sig")
    found, report = read("saywhere", tmp_path / "r.jsonl")
    assert [one.captions for one in found] == [("a\u2028b\u2029c\x85d",), ("a dog",)]
    assert report.ok


def test_one_bad_line_of_results_costs_no_other(tmp_path: Path) -> None:
    twice = '{"image": "b.jpg", "width": 9, "height": 9, "boxes": [[0, 0, 5, 5]], "boxes": []}'
    lines = [json.dumps(row()), twice, json.dumps(row(boxes=[[0, 0, 50, 5]])), "[" * 10_000]
    lines += [
        json.dumps(row(**odd)) for odd in ({"width": 10**30}, {"height": 10**400}, {"boxes": [[0, 0, 10**400, 1]]})
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    done = convert(tmp_path / "r.jsonl", "--to", "csv", "--out", tmp_path / "r.csv", code=1)
    assert "1 image\n" in done.stdout
    assert done.stderr.startswith("broken line: 6 (line 2 (the key 'boxes' is there twice), line 3 (a.jpg: box 0")
    assert "line 4 (it is nested too deeply), line 5 (a.jpg: 1000" in done.stderr


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("coco-results", "xmp", "xmp-names")])
def test_half_characters_are_replaced_and_counted(name: str, tmp_path: Path) -> None:
    if FORMATS[name].needs:
        pytest.importorskip(FORMATS[name].needs)
    rows = [row(captions=["a \ud83d dog"]), row(image="b\ud83d.jpg"), row(image="c\udce9.jpg")]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    done = convert(tmp_path / "r.jsonl", "--to", name, "--out", tmp_path / "out")
    wrong = done.stderr
    assert "3 images" in done.stdout
    assert "left out or changed: characters of 'a.jpg' that the file cannot hold: 1" in wrong
    assert r"characters of 'b\ud83d.jpg' that the file cannot hold: 1" in wrong
    replaced = name in ("cvat", "voc", "csv", "parquet")
    assert (r"characters of 'c\udce9.jpg'" in wrong) == replaced
    if name not in ("yolo", "fiftyone"):
        found, _ = read(name, tmp_path / "out")
        last = ("c\udce9.jpg", "c\N{REPLACEMENT CHARACTER}.jpg")[replaced]
        assert [one.image for one in found] == ["a.jpg", "b\N{REPLACEMENT CHARACTER}.jpg", last]
        assert found[0].captions == ("a \N{REPLACEMENT CHARACTER} dog",)


@pytest.mark.parametrize("odd", [None, 3, "text", [], {}, {"type": "rectanglelabels", "value": None}])
def test_an_odd_entry_of_a_label_studio_task_costs_only_itself(tmp_path: Path, odd: Any) -> None:
    task = label_studio_task(rectangle(GOOD))
    task["annotations"][0]["result"] += [odd, {"type": "relation", "from_id": "r", "to_id": "r"}]
    (tmp_path / "x").write_text(json.dumps([task]))
    (found,), report = read("label-studio", tmp_path / "x")
    np.testing.assert_allclose(found.boxes, [GOOD])
    assert report.problems == {"broken region": [f"a.jpg: {json.dumps(odd)} is not an entry with a type and a value"]}


def test_odd_annotations_of_a_label_studio_task_are_named(tmp_path: Path) -> None:
    task = label_studio_task(rectangle(GOOD))
    task["annotations"].append(None)
    (tmp_path / "x").write_text(json.dumps([task | {"predictions": None}]))
    (found,), report = read("label-studio", tmp_path / "x")
    np.testing.assert_allclose(found.boxes, [GOOD])
    assert report.problems == {"broken annotation": ["a.jpg: null is none"]}


def test_a_file_whose_images_are_all_left_out_is_in_its_format(tmp_path: Path) -> None:
    path = by_cvat(tmp_path, [], '<polygon label="dog" points="0,0;1,1;2,0"/>')
    refuses("x: all its images are left out: polygon instead of an upright box: 1", read, "cvat", path)


def test_csv_has_no_nul_characters(tmp_path: Path) -> None:
    regions, report = Regions(WIDTH, HEIGHT, np.array([GOOD]), None, ("a\0b",), image="a.jpg"), Report()
    FORMATS["csv"].write_whole(tmp_path / "x", [regions], report)
    assert report.left_out == {"characters of 'a.jpg' that the file cannot hold": 1}
    assert b"\0" not in (tmp_path / "x").read_bytes()
    assert read("csv", tmp_path / "x")[0][0].captions == ("a\ufffdb",)
    by_csv(tmp_path, [GOOD]).write_bytes((tmp_path / "x").read_bytes().replace(b"dog", b"d\0g"))
    assert read("csv", tmp_path / "x")[0][0].captions == ("d\0g",)


def test_yolo_has_images_of_one_name_in_several_folders(tmp_path: Path) -> None:
    by_yolo(tmp_path, [GOOD])
    text = (tmp_path / "labels" / "a.txt").read_text()
    (tmp_path / "labels" / "a.txt").unlink()
    for number, folder in enumerate(("test", "train", "val")):
        (tmp_path / "labels" / folder).mkdir()
        (tmp_path / "labels" / folder / "a.txt").write_text(text)
        if folder != "test":
            (tmp_path / "images" / folder).mkdir(parents=True)
            Image.new("RGB", (WIDTH * number, HEIGHT)).save(tmp_path / "images" / folder / "a.jpg")
    for images in (tmp_path, tmp_path / "images"):
        found, report = read("yolo", tmp_path, images)
        kept = [(Path(regions.image or "").parent.name, regions.width) for regions in found]
        assert kept == [("train", WIDTH), ("val", 2 * WIDTH)]
        (wrong,) = report.problems["file that cannot be used"]
        assert wrong.startswith("labels/test/a.txt (0 images in ")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("label-studio", {}),
        ("label-studio", [{"data": {"image": "a.jpg", "width": 9, "height": 9}, "annotations": [{"result": {}}]}]),
        (
            "coco",
            {"images": [{"id": 1, "file_name": "a", "width": 9, "height": 9}], "annotations": {}, "categories": []},
        ),
    ],
)
def test_what_is_no_list_is_not_an_empty_one(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / "x").write_text(json.dumps(content))
    refuses("are not a list", read, name, tmp_path / "x")
