"""``saywhere calibrate`` as it is typed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from albums import write_album
from commands import error_of, run
from flickr_entities import write_flickr
from tiny_aligner import tiny_aligner
from tiny_bundle import exported_bundle
from tiny_captioner import tiny_captioner
from tiny_classes import tiny_networks
from tiny_densecap import tiny_model
from tiny_training import write_data
from typer.testing import Result

from saywhere import files
from saywhere.calibration import Calibration
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.stages.calibration import FITS


def calibrate(model: Path, data: Path, *options: object, code: int = 0) -> Result:
    return run("calibrate", model, "--data", data, "--device", "cpu", *options, code=code)


def test_a_model_is_calibrated_on_a_split(tmp_path: Path) -> None:
    root, folder = write_data(tmp_path / "data"), checkpoint.save(tiny_model(), tmp_path / "model")
    result = calibrate(folder, root, "--what", "box", "--limit", 5)
    assert "box: logit" in result.output and "split train" in result.output
    assert Bundle.read(folder).calibration.box != Calibration().box
    assert "5 images of" in (folder / "README.md").read_text()


def test_all_that_a_model_has_parts_for_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saywhere.data.sample.is_held_out", lambda image: True)
    root, folder = write_data(tmp_path / "data"), checkpoint.save(tiny_networks(), tmp_path / "model")
    result = calibrate(folder, root)
    found = Bundle.read(folder)
    assert found.calibration.box != Calibration().box
    card = (folder / "README.md").read_text()
    assert "## Calibration" in card and "## Captions of regions" in card
    assert found.calibration.caption is not None and "caption: confidence" in result.output


def test_numbers_are_calibrated_only_when_they_are_named(tmp_path: Path) -> None:
    """No file tells whether every thing has a box, and where some have none, two of a thing would be improbable."""
    folder, flickr = checkpoint.save(tiny_aligner(), tmp_path / "model"), write_flickr(tmp_path / "flickr8k")
    assert "number" in FITS and "numbers are" not in calibrate(folder, flickr, "--split", "dev", code=1).output
    refused = calibrate(folder, flickr, "--split", "dev", "--what", "number", code=2)
    assert "densecap" in error_of(refused)


def test_images_that_are_missing_or_broken_are_named_once_and_the_exit_code_is_1(tmp_path: Path) -> None:
    """Whatever is fitted; a name that is not UTF-8 is one like any other."""
    root, folder = write_data(tmp_path / "data", train=40), checkpoint.save(tiny_networks(), tmp_path / "model")
    (root / "001.jpg").unlink()
    odd = os.fsdecode(b"002-\xff.jpg")
    (root / "002.jpg").rename(root / odd)
    lines = (root / "images.jsonl").read_text().replace('"002.jpg"', json.dumps(odd))
    (root / "images.jsonl").write_text(lines)
    for number in range(3, 40, 3):
        path = root / f"{number:03}.jpg"
        path.write_bytes(path.read_bytes()[:-400])
    result = calibrate(folder, root, code=1)
    assert result.stderr.count("train: missing image: 1 (001.jpg)") == 1
    assert result.stderr.count(f"skipped: {root / '003.jpg'}: ") == 1
    assert result.stderr.count("skipped: ") == 13 and odd not in result.stderr
    assert "box: logit" in result.stdout and "26 images of" in (folder / "README.md").read_text()


def test_what_the_data_do_not_tell_is_left_out_and_named(tmp_path: Path) -> None:
    folder, flickr = checkpoint.save(tiny_aligner(), tmp_path / "model"), write_flickr(tmp_path / "flickr8k")
    result = calibrate(folder, flickr, "--split", "dev", code=1)
    lines = [line for line in result.stderr.splitlines() if line.startswith("left out: ")]
    assert lines == ["left out: similarity: calibration needs 32 images with sentences, and 4 can be read"]
    found = Bundle.read(folder).calibration
    assert found.phrase is not None and found.hit is not None
    refused = calibrate(folder, flickr, "--split", "dev", "--what", "similarity", code=2)
    assert "needs 32 images" in refused.stderr


def test_images_that_the_classes_were_trained_on_are_counted_where_the_others_do_not_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saywhere.data.sample.is_held_out", lambda image: False)
    root, folder = write_data(tmp_path / "data", train=8), checkpoint.save(tiny_networks(), tmp_path / "model")
    error = error_of(calibrate(folder, root, "--what", "caption", code=2))
    assert error.endswith("(0 of 8 images can be used, the tenth that the part nouns is not trained on)\n")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_is_full_or_read_only_is_one_line_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    root, folder = write_data(tmp_path / "data", train=6), checkpoint.save(tiny_model(), tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def refused(_: Path | int) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", refused)
        result = calibrate(folder, root, "--what", "box", code=2)
    said = "the disk is full; free some space and run the same command again"
    reason = said if error == errno.ENOSPC else "Read-only file system"
    assert result.stderr.splitlines()[-1] == f"error: {folder / 'calibration.json'}: {reason}"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    calibrate(folder, root, "--what", "box")


def test_a_model_without_the_part_and_a_folder_without_a_model_are_one_line(tmp_path: Path) -> None:
    folder, root = checkpoint.save(tiny_model(), tmp_path / "densecap"), write_data(tmp_path / "data")
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    for model, what, message in (
        (folder, "phrase", "densecap has no part aligner, which is needed for that; it has densecap"),
        (folder, "similarity", "densecap has no part aligner"),
        (tmp_path, "box", "is not a saywhere model"),
        (folder, None, f"{tmp_path / 'nothing'}: no such file or folder"),
        (captioner, None, "captioner: has no part that can be calibrated (densecap or aligner)"),
        ("flickr-coco", "box", "flickr-coco comes with saywhere; copy"),
    ):
        data = root if what else tmp_path / "nothing"  # of which each kind says the same
        assert message in error_of(calibrate(Path(model), data, *(("--what", what) if what else ()), code=2))


def test_a_bundle_is_calibrated_by_the_command(tmp_path):
    folder = shutil.copytree(exported_bundle(), tmp_path / "bundle")
    pairs = [("a red shirt", "a dog"), ("two dogs", "a horse"), ("the sky", "a white house")]
    boxes = ([0, 0, 50, 60], [10, 0, 60, 60])
    regions = [[{"box": b, "phrase": phrase} for b, phrase in zip(boxes, pair, strict=True)] for pair in pairs]
    write_album(tmp_path, [{"split": "train", "regions": each} for each in regions])
    (folder / "README.md").write_text("# Card\n\n## Grounding\n\nold\n\n## Limits\n\nmany\n")
    result = calibrate(folder, tmp_path / "data.jsonl", "--what", "phrase")
    assert "phrase: similarity" in result.output and "similarity_kind_weight 0" in result.output
    fitted = Bundle.read(folder).calibration
    assert fitted.phrase is not None and fitted.densecap_place is None, "six boxes are too few"
    card = (folder / "README.md").read_text()
    assert "old" not in card and "## Limits\n\nmany" in card and card.count("## Grounding") == 1
    shown = run("ground", tmp_path / "0.png", "a red shirt and a xylophone", "--model", folder, "--json", "-")
    phrases = json.loads(shown.stdout)["phrases"]
    assert [phrase["words"] for phrase in phrases] == ["a red shirt", "a xylophone"]
    assert all(("box" in phrase) == phrase["found"] == (phrase["presence"] >= 0.5) for phrase in phrases)
    out = tmp_path / "out"
    data = ("--data", tmp_path / "data.jsonl", "--split", "train")
    measured = run("evaluate", "ground", "--model", folder, *data, "--out", out)
    assert "phrases found or not: accuracy" in measured.output and "rare nouns: accuracy" in measured.output
    row = json.loads((out / "report.json").read_text())
    assert row["phrases"] == 6 and row["presence"]["phrases"] == 6 and row["presence"]["others"] > 0
