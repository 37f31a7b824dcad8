from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import error_of, rows, run
from PIL import Image
from skimage import data

import saywhere
from saywhere.drawing import COLOURS
from saywhere.files import TOO_LONG
from saywhere.inference import run as inference
from tests import photographs
from tests.stubs import StubModel, load_by


@pytest.fixture
def model(monkeypatch, tmp_path) -> StubModel:
    stub = StubModel()
    load_by(monkeypatch, lambda *_, **__: stub)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return stub


describe = partial(run, "describe")


def astronaut(path: str = "a.jpg") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(data.astronaut()).save(path)
    return path


def test_one_image_prints_a_table(model):
    result = describe(astronaut())
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert lines[0] == ["score", "box", "caption"]
    assert lines[1][:6] == ["0.90", "0", "0", "512", "512", "thing"]
    assert lines[2][:6] == ["0.40", "0", "0", "256", "512", "thing"]
    assert model.batches == [1]


def test_words_have_a_probability_beside_that_of_the_box_and_the_product_reaches_the_threshold(model, monkeypatch):
    def answer(self, image, boxes):
        boxes = [[0, 0, 9, 9], [0, 0, 5, 5]]
        return saywhere.Regions(
            image.width, image.height, boxes, [0.98, 0.5], ("a cat", "a man"), caption_scores=[0.25, 0.5]
        )

    monkeypatch.setattr(StubModel, "answer", answer)
    lines = [line.split() for line in describe(astronaut(), "--json", "r.jsonl").stdout.splitlines() if line.strip()]
    assert lines[0] == ["score", "box", "words", "caption"]
    assert lines[1:] == [["0.50", "0", "0", "5", "5", "0.50", "a", "man"], ["written:", "r.jsonl"]]
    assert rows("r.jsonl")[0]["caption_scores"] == [0.5]
    describe("a.jpg", "--json", "every.jsonl", "--threshold", 0.24)
    assert rows("every.jsonl")[0]["caption_scores"] == [0.25, 0.5]


def captioned(image, words):
    return saywhere.Regions(image.width, image.height, [[0, 0, 5, 5.0]], [0.5], (words,))


def test_an_interval_for_videos_without_a_video_is_told(model):
    assert describe(astronaut(), "--every", "1s").stderr == "note: --every is for videos, and there is none: 1 image\n"
    assert describe(astronaut()).stderr == ""


def test_no_regions(model, monkeypatch):
    monkeypatch.setattr(StubModel, "answer", lambda self, image, boxes: captioned(image, "x")[:0])
    result = describe(astronaut(), "--out", "out", "--json", "r.jsonl")
    assert "no regions found" in result.stdout
    assert rows("r.jsonl")[0]["boxes"] == [] and Path("out/a.jpg").exists()


def test_regions_with_low_scores_are_left_out_with_a_line_where_none_is_left(model, monkeypatch):
    boxes = [[0, 0, 9, 9], [0, 0, 5, 5], [0, 0, 3, 3.0]]
    answer = saywhere.Regions(512, 512, boxes, [0.9, 0.25, 0.24], ("a", "b", "c"))
    monkeypatch.setattr(StubModel, "answer", lambda self, image, boxes: answer)
    assert describe(astronaut(), "--json", "r.jsonl", "--out", "drawn").stderr == ""
    assert rows("r.jsonl")[0]["captions"] == ["a", "b"]
    every = describe("a.jpg", "--threshold", 0, "--json", "-")
    assert json.loads(every.stdout)["captions"] == ["a", "b", "c"] and every.stderr == ""
    assert describe("a.jpg", "--output-format", "coco-results", "--out", "coco").stderr == ""
    assert len(rows("coco/regions.jsonl")[0]["boxes"]) == 3, "the evaluator ranks regions of any score"
    monkeypatch.setattr(StubModel, "answer", lambda self, image, boxes: answer[answer.scores < 0.25])
    none = describe("a.jpg", "--json", "-")
    assert json.loads(none.stdout)["captions"] == []
    assert none.stderr == "1 image has no region that is right with a probability of 0.25; --threshold 0 keeps all\n"
    few = describe("a.jpg", astronaut("b.jpg"), "--json", "-", "--threshold", 0.5)
    assert "2 images have no region that is right with a probability of 0.5" in few.stderr


def of_three_kinds(self, image, boxes):
    captions = ("the sky", "a brown dog", "a boy in red")
    return saywhere.Regions(
        image.width, image.height, [[0, 0, 5, 5], [5, 5, 9, 9], [0, 0, 9, 9]], [0.9, 0.8, 0.7], captions
    )


def test_only_regions_of_classes_are_kept_with_those_of_a_file_of_images(model, monkeypatch):
    monkeypatch.setattr(StubModel, "answer", of_three_kinds)
    describe(astronaut(), "--classes", "person,dog", "--json", "r.jsonl")
    assert rows("r.jsonl")[0]["captions"] == ["a brown dog", "a boy in red"]
    describe("a.jpg", "--classes", "person,dog", "--top", 1, "--json", "one.jsonl")
    assert rows("one.jsonl")[0]["captions"] == ["a brown dog"]
    words = ["--output-format", "yolo", "--out", "y", "--classes", "dog,person"]
    describe("a.jpg", *words, "--copy-images")
    (folder,) = (path.parent for path in Path("y").rglob("data.yaml"))
    assert "train: images" in (folder / "data.yaml").read_text()
    assert (folder / "images" / "a.jpg").read_bytes() == Path("a.jpg").read_bytes()
    assert [line[0] for line in (folder / "labels" / "a.txt").read_text().splitlines()] == ["0", "1"]


def test_a_class_that_the_model_cannot_say_is_an_error(model, monkeypatch):
    monkeypatch.setattr(StubModel, "answer", of_three_kinds)
    model.densecap = SimpleNamespace(vocabulary={"pallet", "jack", "dog"})
    told = describe(astronaut(), "--classes", "pallet jack,dog,truck", "--json", "r.jsonl").stderr
    assert told == "class 'pallet jack': is not in the table of nouns, so only this word itself matches it\n"
    error = error_of(describe("a.jpg", "--classes", "dog,palet jack", "--json", "s.jsonl", code=2))
    assert "class 'palet jack': the model has no such word, and the table of nouns no such noun" in error
    assert error.endswith("; name another class\n")
    assert "did you mean person?" in error_of(describe("a.jpg", "--classes", "persn", "--json", "s.jsonl", code=2))


def test_lines_are_printed_on_demand(model):
    result = describe(astronaut("p/a.jpg"), astronaut("p/b.jpg"), "--json", "-", "--out", "drawn")
    assert [json.loads(line)["image"] for line in result.stdout.splitlines()] == ["p/a.jpg", "p/b.jpg"]
    assert result.stderr == "2 described, 4 regions\nwritten: drawn\n" and Path("drawn/a.jpg").is_file()


def test_ten_regions_unless_told_otherwise(model):
    given = (
        ([], None, 0.25),
        (["--top", 3, "--threshold", 0.3], None, 0.3),
        (["--top", 2, "--threshold", 0], 2, None),
    )
    for arguments, top, least in given:
        model.options.clear()
        describe(astronaut(), "--json", f"{least}.jsonl", *arguments)
        assert model.options == {(top, least)}
    model.options.clear()
    describe("a.jpg", "--output-format", "coco-results", "--out", "coco")
    assert model.options == {(10, None)}
    assert "maximum number of regions per image, best first (0: all)" in " ".join(
        describe("--help").stdout.lower().split()
    )


def test_several_images_without_a_place_for_results_are_printed(model):
    result = describe(astronaut("p/a.jpg"), astronaut("p/b.jpg"))
    assert "p/a.jpg" in result.stdout and "p/b.jpg" in result.stdout
    assert result.stdout.count("0.90") == 2
    assert result.stdout.endswith("2 described, 4 regions\n")


def test_json_and_drawing(model):
    result = describe(astronaut(), "--json", "r/r.jsonl", "--out", "drawn")
    assert "written: r/r.jsonl, drawn" in result.stdout
    (row,) = rows("r/r.jsonl")
    assert (row["image"], row["width"], row["height"]) == ("a.jpg", 512, 512)
    assert row["boxes"] == [[0, 0, 512, 512], [0, 0, 256, 512]]
    assert row["scores"] == pytest.approx([0.9, 0.4]) and row["captions"][0].startswith("thing 0")
    with Image.open("drawn/a.jpg") as drawn:
        assert drawn.size == (800, 800), "a small image is enlarged so that captions can be read"
        assert np.abs(np.array(drawn.getpixel((798, 400))) - COLOURS[0]).max() < 60


def test_a_turned_image_is_drawn_as_a_viewer_shows_it(model):
    Path("t.jpg").write_bytes(photographs.turned(0)[0])
    describe("t.jpg", "--out", "out", "--json", "r.jsonl")
    assert (rows("r.jsonl")[0]["width"], rows("r.jsonl")[0]["height"]) == (32, 64)
    with Image.open("out/t.jpg") as drawn:
        assert drawn.size == (400, 800) and 0x0112 not in drawn.getexif()


def test_an_album_with_damaged_images(model):
    """60 images of many kinds, 10 of them broken: the others come out, the broken are named, the exit code is 1."""
    names, bad = photographs.write_album(Path("album"), 60, 10)
    result = describe("album", "--json", "r.jsonl", "--out", "drawn", "--batch", 4, code=1)
    assert "50 described, 100 regions; 10 skipped" in result.stdout
    told = result.stderr.splitlines()
    assert [line.split(": ")[1] for line in told] == bad
    assert all(line.startswith("skipped: ") for line in told)
    assert [row["image"] for row in rows("r.jsonl")] == [name for name in names if name not in bad]
    assert len([path for path in Path("drawn").rglob("*") if path.is_file()]) == 50
    assert max(model.batches) == 4


@pytest.mark.parametrize("torn", [0, 40])
def test_a_killed_run_is_resumed(model, torn):
    """What a kill leaves is some lines, perhaps half a line, and drawings; in the end the files are the same."""
    _, bad = photographs.write_album(Path("album"), 24, 4)
    describe("album", "--json", "whole.jsonl", "--out", "whole", code=1)
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("r.jsonl").write_bytes(b"".join(lines[:8]) + lines[8][:torn])
    model.batches.clear()
    result = describe("album", "--json", "r.jsonl", "--out", "drawn", code=1)
    assert "12 described, 24 regions; 8 already in r.jsonl; 4 skipped" in result.stdout
    assert sum(model.batches) == 12
    assert Path("r.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    for path in Path("whole").rglob("*"):
        if path.is_file():  # those that the first run described were drawn without describing them again
            assert (Path("drawn") / path.relative_to("whole")).read_bytes() == path.read_bytes()
    model.batches.clear()
    again = describe("album", "--json", "r.jsonl", "--out", "drawn", code=1)
    assert model.batches == [] and again.stderr.count("skipped: ") == len(bad)


@pytest.mark.parametrize("how", [[], ["--output-format", "coco", "--out", "coco"], ["--shards", "2"]])
def test_a_file_is_not_continued_with_other_options(model, how):
    photographs.write_album(Path("album"), 3, 0)
    describe("album", "--json", "r.jsonl", "--top", "5")
    before = Path("r.jsonl").read_bytes()
    model.batches.clear()
    error = error_of(describe("album", "--json", "r.jsonl", "--threshold", "0.5", *how, code=2))
    otherwise = "was started with other options (top: 5, now 10; threshold: 0.25, now 0.5); "
    assert error.startswith(f"error: r.jsonl: {otherwise}")
    assert model.batches == [] and Path("r.jsonl").read_bytes() == before
    assert "3 already in r.jsonl" in describe("album", "--json", "r.jsonl", "--top", "5").stdout


def test_interrupted_from_the_keyboard(model, monkeypatch):
    photographs.write_album(Path("album"), 12, 0)
    seventh = sorted(path for path in Path("album").rglob("*") if path.is_file())[6].name
    real = StubModel.describe

    def stop(self, images, boxes=None, **options):
        if Path(images[0].name).name == seventh:  # several batches are asked at the same time
            raise KeyboardInterrupt
        return real(self, images, boxes, **options)

    monkeypatch.setattr(StubModel, "describe", stop)
    result = describe("album", "--json", "r.jsonl", "--batch", 3, code=130)
    assert result.stderr == "interrupted after 6 of 12 images; run it again to continue\n"
    assert len(rows("r.jsonl")) == 6
    monkeypatch.setattr(StubModel, "describe", real)
    describe("album", "--json", "r.jsonl")
    assert len(rows("r.jsonl")) == 12


def test_a_full_disk_is_one_line_and_loses_nothing(model, monkeypatch):
    photographs.write_album(Path("album"), 12, 0)
    real = os.replace
    count = [0]

    def full(source, target) -> None:
        count[0] += 1
        if count[0] > 6:  # the settings and five drawings
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    error = error_of(describe("album", "--json", "r.jsonl", "--out", "drawn", code=2))
    assert error.startswith("error: drawn/") and "the disk is full" in error
    assert len(rows("r.jsonl")) == 5
    assert len([path for path in Path("drawn").rglob("*") if path.is_file()]) == 5
    monkeypatch.setattr(os, "replace", real)
    describe("album", "--json", "r.jsonl", "--out", "drawn")
    assert len(rows("r.jsonl")) == 12


def test_an_image_that_vanishes_before_it_is_drawn_is_skipped(model, monkeypatch):
    photographs.quarters(400, 300).save("a.jpg")
    photographs.quarters(400, 300).save("b.jpg")
    describe("a.jpg", "b.jpg", "--json", "r.jsonl")
    real = inference.open_image
    monkeypatch.setattr("saywhere.inference.results.open_image", lambda p, s: Path("a.jpg").unlink(True) or real(p, s))
    result = describe("a.jpg", "b.jpg", "--out", "out", "--json", "r.jsonl", code=1)
    assert result.stderr == "skipped: a.jpg: no such file\n"
    assert len(rows("r.jsonl")) == 2 and [path.name for path in Path("out").iterdir()] == ["b.jpg"]


def test_given_boxes(model):
    Path("boxes.json").write_text("[[10, 20, 30, 40], [0, 0, 512, 100]]")
    describe(astronaut(), "--boxes", "boxes.json", "--json", "r.jsonl")
    assert rows("r.jsonl")[0]["boxes"] == [[10, 20, 30, 40], [0, 0, 512, 100]]
    Path("boxes.jsonl").write_text('{"image": "p/b.jpg", "boxes": [[1, 2, 3, 4]]}\n')
    astronaut("p/b.jpg"), astronaut("p/c.jpg")
    result = describe("p", "--boxes", "boxes.jsonl", "--json", "s.jsonl")
    assert "1 without boxes left out" in result.stdout
    assert [(row["image"], row["boxes"]) for row in rows("s.jsonl")] == [("p/b.jpg", [[1, 2, 3, 4]])]


def test_given_boxes_are_all_described(model):
    Path("boxes.json").write_text(json.dumps([[0, 0, 10 + i, 10] for i in range(20)]))
    astronaut()
    for option in (["--top", "5"], ["--top", "0"], ["--threshold", "0.5"]):
        error = error_of(describe("a.jpg", "--boxes", "boxes.json", "--json", "r.jsonl", *option, code=2))
        assert error.startswith("error: --boxes describes every box in the file: --top and --threshold")
    assert not Path("r.jsonl").exists() and model.batches == []
    describe("a.jpg", "--boxes", "boxes.json", "--json", "r.jsonl")
    assert model.options == {(None, None)} and len(rows("r.jsonl")[0]["boxes"]) == 20


def test_only_bad_images_left_need_no_model(model, monkeypatch):
    _, bad = photographs.write_album(Path("album"), 12, 3)
    describe("album", "--json", "r.jsonl", code=1)
    loaded = []
    load_by(monkeypatch, lambda *_, **__: loaded.append(1) or model)
    again = describe("album", "--json", "r.jsonl", code=1)
    assert loaded == [] and "9 already in r.jsonl; 3 skipped" in again.stdout
    assert [line.split(": ")[1] for line in again.stderr.splitlines()] == bad
    astronaut("album/zebra.jpg")
    more = describe("album", "--json", "r.jsonl", code=1)
    assert loaded == [1] and "1 described" in more.stdout and "3 skipped" in more.stdout
    assert [line.split(": ")[1] for line in more.stderr.splitlines()] == bad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jpg"], "nowhere.jpg: no such file or folder"),
        (["a.jpg", "--boxes", "nowhere.json"], "nowhere.json: cannot be read"),
        (["a.jpg", "--json", "."], "is a folder; give the name of a file, or - to print"),
        (["a.jpg", "--json", "a.jpg"], "--json a.jpg: is the name of an image; give another, such as results.jsonl"),
        (["a.jpg", "--top", "-1"], "--top"),
        (["a.jpg", "--threshold", "1.5"], "--threshold"),
        (["a.jpg", "--batch", "0"], "--batch"),
        (["a.jpg", "--output-format", "xml"], "--output-format"),
    ],
)
def test_user_errors(model, arguments, message):
    before = Path(astronaut()).read_bytes()
    result = describe(*arguments, code=2)
    assert message in result.stderr
    assert model.batches == [] and Path("a.jpg").read_bytes() == before


def test_images_with_long_names_are_drawn_and_those_that_are_too_long_cost_only_themselves(model):
    Path("album").mkdir()
    too_long = "y" * 250 + ".webp"
    for name in ("x" * 251 + ".jpg", too_long, "z.jpg"):
        photographs.quarters(60, 40).save(Path("album", name))
    told = f"skipped: album/{too_long}: {TOO_LONG}\n"
    for _ in range(2):
        assert describe("album", "--json", "r.jsonl", "--out", "drawn", code=1).stderr == told
        assert len(rows("r.jsonl")) == 2
    assert sorted(path.name for path in Path("drawn").iterdir()) == ["x" * 251 + ".jpg", "z.jpg"]
    describe("album", "--json", "r.jsonl")
    assert len(rows("r.jsonl")) == 3
    assert describe("album", "--json", "r.jsonl", "--out", "drawn", code=1).stderr == told


def test_results_with_long_names_are_made_in_shards_and_without(model):
    photographs.write_album(Path("album"), 4, 0)
    name = "r" * 255
    describe("album", "--json", name, "--shards", 2)
    assert len(rows(name)) == 4
    describe("album", "--json", name, "--top", 3, code=2)
    assert sorted(len(os.fsencode(path.name)) for path in Path().iterdir() if path.is_file()) == [31, 255]
