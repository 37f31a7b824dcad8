import json

import pytest
from PIL import Image
from refusals import refuses

from saywhere.data import read, splits


def write(root, *rows, name="mine.jsonl"):
    """A file of lines; a row that is a text is written as it is."""
    (root / "photos").mkdir(exist_ok=True)
    Image.new("RGB", (80, 60)).save(root / "photos/a.png")
    Image.new("L", (40, 40)).save(root / "photos/b.png")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (root / name).write_text("\n".join(lines) + "\n")


def one(*regions, **more):
    return {"image": "photos/a.png", "regions": list(regions), **more}


def test_a_line_is_an_image(tmp_path):
    row = one({"box": [1, 2.5, 30, 40], "phrase": "a cat"}, {"box": [0, 0, 9, 9], "phrases": ["a mat", "the mat"]})
    write(tmp_path, row | {"sentences": ["A cat on a mat."]}, {"image": "photos/b.png"})
    samples = read(tmp_path)
    assert samples[0].boxes.tolist() == [[1, 2.5, 30, 40], [0, 0, 9, 9]]
    assert samples[0].phrases == (("a cat",), ("a mat", "the mat"))
    assert samples[0].sentences == ("A cat on a mat.",)
    assert (samples[1].width, samples[1].height, len(samples[1].boxes)) == (40, 40, 0)
    assert samples.report.ok
    assert len(read(tmp_path / "mine.jsonl")) == 2


def test_lines_of_one_image_are_joined(tmp_path):
    cat, dog = {"box": [0, 0, 9, 9], "phrase": "a cat"}, {"box": [5, 5, 30, 30], "phrase": "a dog"}
    first = one(cat, sentences=["Pets."])
    write(tmp_path, first, {"image": "photos/b.png"}, one(dog, cat, sentences=["A cat.", "Pets."]))
    samples = read(tmp_path)
    assert [sample.image.name for sample in samples] == ["a.png", "b.png"] and samples.report.listed == 2
    assert samples.report.ok
    assert samples[0].phrases == (("a cat",), ("a dog",)) and samples[0].sentences == ("Pets.", "A cat.")
    write(tmp_path, first, one(dog, width=80, height=60) | {"image": "photos/../photos/a.png"})
    samples = read(tmp_path)
    assert len(samples) == 1 and samples[0].phrases == (("a cat",), ("a dog",)) and samples.report.ok
    assert samples.report.lines() == [
        "left out or changed: images that are listed again, whose annotations are joined: 1"
    ]
    write(tmp_path, first, one(dog, width=160, height=120))
    samples = read(tmp_path)
    assert samples[0].phrases == (("a cat",),)
    assert samples.report.problems == {"image that has another size where it is listed again": ["photos/a.png"]}


def test_width_and_height_say_what_the_boxes_refer_to(tmp_path):
    write(tmp_path, one({"box": [100, 100, 800, 300], "phrase": "a cat"}, width=800, height=300))
    assert read(tmp_path)[0].boxes.tolist() == [[10, 20, 80, 60]]


def test_boxes_that_do_not_fit_without_a_size_are_refused(tmp_path):
    write(tmp_path, one({"box": [100, 100, 800, 300], "phrase": "a cat"}), {"image": "photos/b.png"})
    samples = read(tmp_path)
    assert [sample.image.name for sample in samples] == ["b.png"]
    kind = "boxes larger than the image, size of the annotated image unknown"
    assert samples.report.problems == {kind: ["photos/a.png"]}


def test_splits_come_from_the_lines_or_the_files_name(tmp_path):
    other = {"image": "photos/b.png"}
    write(tmp_path, one(split="dev"), one(split="train"), other, other | {"split": "dev"})
    assert splits(tmp_path) == ["dev", "train"]
    assert len(read(tmp_path, split="dev")) == 2
    assert len(read(tmp_path)) == 2
    write(tmp_path, one(), name="val.jsonl")
    assert splits(tmp_path) == ["dev", "train", "val"]
    assert len(read(tmp_path, split="val")) == 1


def test_broken_lines_and_regions_are_named_with_their_line(tmp_path):
    cat = {"box": [0, 0, 9, 9], "phrase": "a cat"}
    write(
        tmp_path,
        "",
        one(
            cat,
            {"box": [0, 0, 9], "phrase": "short"},
            {"box": [9, 0, 0, 9], "phrase": "inside out"},
            {"box": [0, 0, 9, 9]},
            {"box": [0, 0, 9, 9], "phrases": []},
            "text",
            {"box": [0, 0, float("nan"), 9], "phrase": "nan"},
            {"box": [0, 0, 1e39, 9], "phrase": "more than single precision holds"},
            {"box": [0, 0, 10**400, 9], "phrase": "more than double precision holds"},
        ),
        "{",
        {"picture": "a.png"},
        one(width=80),
        one(width=0, height=60),
        {"image": "photos/a.png", "sentences": "A cat."},
        {"image": "photos/c.png"},
        one(width="x" * 10**5),
    )
    samples = read(tmp_path)
    assert samples.phrases() == ["a cat"] and all(len(line) < 2000 for line in samples.report.lines())
    problems = samples.report.problems
    assert [name.partition(" (")[0] for name in problems["broken region"]] == [
        f"mine.jsonl:2 region {i}" for i in range(1, 9)
    ]
    assert "no 'phrase'" in problems["broken region"][2]
    assert [name.partition(" (")[0] for name in problems["broken line"]] == [
        f"mine.jsonl:{line}" for line in (3, 4, 5, 6, 7, 9)
    ]
    assert problems["missing image"] == ["photos/c.png"]


def test_shares_of_the_image_are_not_taken_for_pixels(tmp_path):
    shares, none = [{"box": box, "phrase": "a cat"} for box in ([0.1, 0.2, 0.5, 1], [5, 5, 5, 5])]
    write(tmp_path, one(shares, none), one(shares, width=1, height=1) | {"image": "photos/b.png"})
    samples = read(tmp_path)
    assert samples.report.problems["box within a pixel: boxes are in pixels, not in shares of the image"] == [
        "photos/a.png"
    ]
    assert samples.report.problems["box without area or outside the image"] == ["photos/a.png"]
    (sample,) = samples
    assert sample.boxes[0].tolist() == pytest.approx([4, 8, 20, 40])


def test_lines_end_at_newlines_and_a_mark_before_them_is_passed_over(tmp_path):
    cat = {"box": [0, 0, 9, 9], "phrase": "a\u2028cat\x85here"}
    write(tmp_path)
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in (one(cat), one(cat) | {"image": "photos/b.png"}))
    (tmp_path / "mine.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    samples = read(tmp_path)
    assert samples.phrases() == ["a cat here"] * 2
    assert samples.report.ok


def test_a_line_in_which_a_key_would_be_lost_is_named(tmp_path):
    twice = '{"image": "photos/a.png", "regions": [{"box": [0, 0, 9, 9], "phrase": "a", "phrase": "b"}]}'
    write(tmp_path, one(), twice, "[" * 100_000)
    assert read(tmp_path).report.problems["broken line"] == [
        "mine.jsonl:2 (not JSON: the key 'phrase' is there twice)",
        "mine.jsonl:3 (not JSON: it is nested too deeply)",
    ]
    write(tmp_path, twice)
    refuses(r"no line is a JSON object .line 1: not JSON: the key 'phrase' is there twice", read, tmp_path)


def test_an_image_whose_regions_are_all_broken_is_not_one_without_regions(tmp_path):
    broken, flat = {"box": [9, 0, 0, 9], "phrase": "x"}, {"box": [9, 9, 9, 20], "phrase": "x"}
    nameless = {"box": [0, 0, 9, 9], "phrase": "..."}
    for row in (one(broken), one(flat), one(nameless)):
        write(tmp_path, {"image": "photos/b.png"}, row)
        samples = read(tmp_path)
        assert [(sample.image.name, len(sample.boxes)) for sample in samples] == [("b.png", 0)]
        assert samples.report.problems["image left out with all its regions"] == ["photos/a.png"]
    write(tmp_path, one(broken, sentences=["A cat."]))
    assert [(len(one.boxes), one.sentences) for one in read(tmp_path)] == [(0, ("A cat.",))]


def test_a_file_without_any_json_is_a_user_error(tmp_path):
    write(tmp_path, "image,box", "a.png,3")
    refuses(r"mine\.jsonl is not a file of JSON lines: no line is a JSON object", read, tmp_path)
    write(tmp_path)
    refuses("it is empty", read, tmp_path)
