"""What all formats share: choosing the reader, options, samples, reports."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from saywhere.data import FORMATS, PhraseOptions, Report, Sample, Samples, guess_format, read


@pytest.fixture
def root(tmp_path):
    """Three images of 1, 2 and 4 regions."""
    phrases = ["There is a cat", "this is the second cat", "cat", "a very long phrase about one small cat"]
    with (tmp_path / "all.jsonl").open("w") as file:
        for count in (1, 2, 4):
            Image.new("RGB", (100, 100)).save(tmp_path / f"{count}.png")
            regions = [{"box": [0, 0, 50, 50 + 2 * i], "phrase": phrases[i]} for i in range(count)]
            file.write(json.dumps({"image": f"{count}.png", "regions": regions}) + "\n")
    return tmp_path


CAT, LONG = "There is a cat", "this is the second cat"


@pytest.mark.parametrize(
    ("options", "found", "left_out"),
    [
        ({}, {"1": ((CAT,),), "2": ((CAT,), (LONG,)), "4": 4}, {}),
        ({"max_words": 4}, {"2": ((CAT,),), "4": ((CAT,), ("cat",))}, {"phrases of more than 4 words": 3}),
        ({"merge": 0.5}, {"2": ((CAT, LONG),)}, {}),
    ],
)  # fmt: skip
def test_options_choose_regions_and_change_phrases(root, options, found, left_out):
    samples = read(root, options=PhraseOptions(**options))
    by_name = {sample.image.stem: sample.phrases for sample in samples}
    for name, phrases in found.items():
        assert by_name.get(name) == phrases or len(by_name[name]) == phrases
    assert samples.report.left_out == left_out


def test_the_same_box_twice_is_one_box_with_two_references(tmp_path):
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    regions = [{"box": [3, 0, 50, 70], "phrase": p} for p in ("a cat", "a tabby", "A cat.")]
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a.png", "regions": regions, "width": 7.7, "height": 99}))
    assert read(tmp_path)[0].phrases == (("a cat", "a tabby"),)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_words": 0}, "max_words must be at least 1, not 0"),
        ({"merge": 0.0}, "merge must be an IoU above 0 and at most 1, not 0.0"),
        ({"merge": 1.5}, "merge must be an IoU"),
        ({"max_word": 3}, "unknown key data.phrases.max_word; did you mean data.phrases.max_words"),
        ({"max_words": "ten"}, "data.phrases.max_words must be a whole number, not 'ten'"),
    ],
)
def test_options_are_validated(values, message):
    refuses(message, PhraseOptions.from_dict, values)


def test_results_are_no_data_set(tmp_path):
    """Their boxes would be read as images without regions."""
    (tmp_path / "r.jsonl").write_text('{"image": "a.jpg", "width": 9, "height": 9, "boxes": [[0, 0, 9, 9]]}\n')
    refuses(r"r.jsonl: has results of saywhere describe, and no regions to learn from; ", read, tmp_path / "r.jsonl")


def test_root_and_format_are_checked(root, tmp_path):
    assert FORMATS == ("flickr8k", "visual-genome", "coco", "label-studio", "cvat", "jsonl", "xmp")
    assert guess_format(root) == "jsonl"
    refuses("no such file or folder", guess_format, tmp_path / "nowhere")
    refuses("not a data set in the format coco", read, root, "coco")


def test_an_image_too_large_to_decode_is_named(root, monkeypatch):
    monkeypatch.setattr("saywhere.images.MAX_PIXELS", 5000)
    samples = read(root)
    assert len(samples) == 0
    (names,) = samples.report.problems.values()
    assert names == [f"{i}.png: 100 x 100 is over the limit of 0 megapixels" for i in (1, 2, 4)]


def test_what_is_no_image_is_named_with_the_reason(root):
    (root / "1.png").unlink()
    os.mkfifo(root / "1.png")  # nobody writes to it: opening it would wait for ever
    (root / "2.png").unlink()
    (root / "2.png").mkdir()
    (root / "4.png").write_bytes(b"")
    samples = read(root)
    assert len(samples) == 0
    assert samples.report.problems == {
        "image that cannot be read": [
            "1.png: not a regular file",
            "2.png: is a folder, not an image",
            "4.png: empty file",
        ]
    }


@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".png", ".webp"])
def test_sizes_are_those_that_a_viewer_shows(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / f"a{suffix}", exif=exif)
    row = {"image": f"a{suffix}", "regions": [{"box": [0, 0, 40, 60], "phrase": "all of it"}]}
    (tmp_path / "all.jsonl").write_text(json.dumps(row))
    (sample,) = read(tmp_path)
    assert (sample.width, sample.height) == (40, 60)
    assert sample.boxes.tolist() == [[0, 0, 40, 60]]


def test_sample_checks_itself_and_gives_regions():
    boxes = [[0, 0, 5, 5]]
    sample = Sample(Path("a.png"), 10, 8, np.array(boxes), (("a cat", "a tabby"),))
    assert sample.boxes.dtype == np.float32 and sample.boxes.tolist() == boxes
    regions = sample.regions()
    assert (regions.width, regions.height, regions.captions, regions.image) == (10, 8, ("a cat",), "a.png")
    with pytest.raises(ValueError, match=r"boxes \(1, 4\) for 2 sets of phrases"):
        Sample(Path("a.png"), 10, 8, sample.boxes, (("a",), ("b",)))
    with pytest.raises(ValueError, match="a box without a phrase"):
        Sample(Path("a.png"), 10, 8, sample.boxes, ((),))


def test_samples_are_a_sequence(root):
    samples = read(root)
    assert len(samples[1:]) == 2
    assert samples[1:].report is samples.report
    assert [s.image.stem for s in samples[::-1]] == ["4", "2", "1"]
    assert repr(samples) == f"Samples(jsonl {root.name}, train: 3 images)"
    assert samples[:2].phrases() == ["There is a cat", "There is a cat", "this is the second cat"]
    assert isinstance(samples[1:], Samples)


def test_a_report_in_words():
    report = Report(notes=["no sizes"], left_out=Counter({"boxes around a crowd": 2}))
    assert report.ok
    for i in range(4):
        report.problem("missing image", f"{i}.jpg")
    assert not report.ok
    assert report.lines(names=3) == [
        "note: no sizes",
        "missing image: 4 (0.jpg, 1.jpg, 2.jpg, and 1 more)",
        "left out or changed: boxes around a crowd: 2",
    ]
