import json
import shutil
from pathlib import Path

import commands
import numpy
import pytest
from PIL import Image

from saywhere.formats import label_studio
from saywhere.regions import Regions


@pytest.fixture
def root(tmp_path):
    """Two splits; an image of train with two regions, one of dev with none, noise so that a cut file is damaged."""
    noise = numpy.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=numpy.uint8)
    for name in ("a", "b"):
        Image.fromarray(noise).save(tmp_path / f"{name}.jpg")
    regions = [{"box": [0, 0, 40, 30], "phrase": "a cat"}, {"box": [0, 0, 80, 60], "phrase": "a very big mat"}]
    rows = [{"image": "a.jpg", "regions": regions, "sentences": ["A cat."]}, {"image": "b.jpg", "split": "dev"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def run(*arguments, code=0):
    result = commands.run("data", "check", *arguments, code=code)
    rows = [line.partition("\t") for line in result.output.splitlines()]
    return result, {label: cells.split() for label, _, cells in rows if label}


def test_figures_of_every_split(root, tmp_path):
    result, figures = run(root, "--out", tmp_path / "out")
    assert result.output.startswith(f"{root}: jsonl, 2 splits\n")
    assert figures["images listed"] == ["1", "1"]
    assert figures["with regions"] == ["1", "0"]
    assert figures["regions"] == figures["phrases"] == ["2", "0"]
    assert figures["words in phrases"] == ["6", "0"]
    assert figures["different words"] == ["5", "0"]
    assert figures["sentences"] == ["1", "0"]
    assert figures["median regions an image"] == ["2", "0"]
    assert figures["median words a phrase"] == ["3", "-"]
    assert figures["median box, % of image"] == ["62.5", "-"]
    assert figures["median image, pixels"] == ["80", "x", "60", "80", "x", "60"]
    assert result.output.count("nothing is missing or broken") == 2


def test_samples_are_drawn_with_their_boxes(root, tmp_path):
    result, _ = run(root, "--split", "train", "--out", tmp_path / "out")
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "train-1-a.png"
    assert str(path) in result.output
    drawn = numpy.asarray(Image.open(path).convert("RGB")).astype(int)
    assert drawn.shape == (480, 640, 3)
    plain = numpy.asarray(Image.open(root / "a.jpg").resize((640, 480), Image.Resampling.BICUBIC)).astype(int)
    changed = numpy.abs(drawn - plain).sum(axis=2) > 30
    assert changed[100:200, 318:323].any(axis=1).all(), "the right side of the box 0 0 40 30, eight times as large"
    assert not changed[100:200, 330:600].any()


def test_the_name_of_a_split_is_no_path(root, tmp_path):
    region = {"box": [0, 0, 40, 30], "phrase": "a cat"}
    names = ("../../escaped", "clean/train", "clean-train", "/rooted", "..", "ž" * 300)
    rows = [{"image": "a.jpg", "regions": [region], "split": split} for split in names]
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "deep" / "out"
    run(root, "--out", out)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")} == {
        "deep/out/..%2F..%2Fescaped-1-a.png",
        "deep/out/clean%2Ftrain-1-a.png",
        "deep/out/clean-train-1-a.png",
        "deep/out/%2Frooted-1-a.png",
        "deep/out/..-1-a.png",
        f"deep/out/{'ž' * 50}-1-a.png",
    }


def test_an_image_of_many_regions_shows_some_of_them(root, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("saywhere.regions.Regions.draw", lambda regions, image: drawn.append(regions) or image)
    regions = [{"box": [0, 0, 40, 10 + i / 10], "phrase": f"cat {i}"} for i in range(30)]
    (root / "mine.jsonl").write_text(json.dumps({"image": "a.jpg", "regions": regions}))
    run(root, "--out", tmp_path / "out")
    assert drawn[0].captions == tuple(f"cat {i}" for i in range(0, 30, 2))


def test_what_is_missing_is_named_and_the_exit_code_is_1(root, tmp_path):
    (root / "b.jpg").unlink()
    result, figures = run(root, "--out", tmp_path / "out", code=1)
    assert "missing image: 1 (b.jpg)" in result.output
    assert figures["images read"] == ["1", "0"]


def test_an_export_far_from_its_images_says_where_they_are_looked_for(root, tmp_path):
    (tmp_path / "album").mkdir()
    (root / "a.jpg").rename(tmp_path / "album" / "a.jpg")
    (export := tmp_path / "ls" / "tasks.json").parent.mkdir()
    label_studio.write(export, [Regions(80, 60, [[0, 0, 40, 30]], captions=["a cat"], image="album/a.jpg")])
    result, _ = run(export, "--out", tmp_path / "out", code=1)
    places = f"{export.parent} by their names, with and without folders, and in {export.parent / 'images'}"
    way_out = "copy them there, or tasks.json into the folder that has album/a.jpg"
    assert f"note: images are looked for in {places}: {way_out}\n" in result.output
    assert "missing image: 1 (album/a.jpg)" in result.output
    shutil.copy(export, tmp_path)
    assert "looked for" not in run(tmp_path / "tasks.json", "--out", tmp_path / "out")[0].output


def test_only_decoding_finds_a_cut_image(root, tmp_path):
    data = (root / "b.jpg").read_bytes()
    (root / "b.jpg").write_bytes(data[: len(data) // 2])
    run(root, "--out", tmp_path / "out")
    result, _ = run(root, "--out", tmp_path / "out", "--decode", code=1)
    assert "image that cannot be decoded: 1 (b.jpg: damaged image" in result.output


def test_a_cut_image_among_the_samples_is_named_once(root, tmp_path):
    data = (root / "a.jpg").read_bytes()
    (root / "a.jpg").write_bytes(data[: len(data) // 2])
    for arguments in ([], ["--decode"]):
        result, _ = run(root, "--out", tmp_path / "out", *arguments, code=1)
        assert "image that cannot be decoded: 1 (a.jpg: damaged image" in result.output
        assert "drawn" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["."], "not a data set in a known format"),
        (["mine.jsonl", "--split", "test"], "no split 'test'; it has train, dev"),
        (["mine.jsonl", "--format", "voc"], "unknown data format 'voc'; known are flickr8k, "),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(root, monkeypatch, arguments, message):
    monkeypatch.chdir(root)
    (root / "sub").mkdir()
    if arguments == ["."]:
        monkeypatch.chdir(root / "sub")
    assert message in commands.error_of(run(*arguments, code=2)[0])


def test_a_data_set_without_split_lists_is_a_user_error(tmp_path):
    (tmp_path / "Flickr8k.token.txt").write_text("a.jpg#0\tA cat\n")
    result, _ = run(tmp_path, code=2)
    assert "no split 'train'; it has none" in result.output


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("boxes.json", "boxes.json", "coco"),
        ("boxes.CSV", "boxes.CSV", "csv"),
        ("voc/a.xml", "voc", "voc"),
        ("set/data.yaml", "set", "yolo --images set/images"),
        ("set/train/_annotations.coco.json", "set/train/_annotations.coco.json", "coco"),
    ],
)
def test_what_can_be_converted_to_a_data_set_is_told_how(tmp_path, monkeypatch, file, name, kind):
    monkeypatch.chdir(tmp_path)
    Path("set/labels").mkdir(parents=True)
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("{}")
    result, _ = run(Path(file).parts[0], code=2)
    assert f"convert-results {name} --from {kind} --to label-studio --out tasks.json may make one" in result.output


@pytest.mark.parametrize(
    ("name", "text"), [("annotations.xml", "<annotations/>"), ("tasks.json", '[{"data": {"image": "a.jpg"}}]')]
)
def test_the_file_that_is_a_data_set_is_named_for_its_folder(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    result, _ = run(tmp_path, code=2)
    assert result.output.endswith(f"its file is one: give {tmp_path / name}\n")
