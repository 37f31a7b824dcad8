"""Scores of models of transformers made probabilities: the fit, where it is kept, and what uses it."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from albums import write_album
from commands import error_of, run
from refusals import refuses
from tiny_adapters import tiny_adapted, tiny_folder

import saywhere
from saywhere import UserError, data
from saywhere.adapters.adapter import NAME, Adapter, ScoreCalibration, change_calibration, read_calibration
from saywhere.adapters.florence2 import Florence2
from saywhere.calibration import Logistic
from saywhere.regions import Regions
from saywhere.training.calibration import Judged, fit, score_phrases, score_regions

PHRASES = [("a red shirt", "a dog"), ("two dogs", "a horse"), ("the sky", "a white house")]
BOX = [10.0, 0.0, 60.0, 60.0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    regions = [[{"box": BOX, "phrase": phrase} for phrase in phrases] for phrases in PHRASES]
    return write_album(tmp_path / "data", [{"split": "train", "regions": each} for each in regions]).parent


@pytest.fixture
def detecting(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder("owlv2"), tmp_path / "owlv2"))


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that describes the box of the data with the score 0.9, and two others with 0.3 and 0.8."""

    def describe(self: Florence2, encodings: list[Any], boxes: Any = None) -> list[Regions]:
        found = [BOX, [0.0, 0.0, 9.0, 9.0], [50.0, 50.0, 90.0, 60.0]]
        scores, captions = np.array([0.9, 0.3, 0.8], np.float32), ("one", "two", "three")
        return [Regions(e.width, e.height, found, scores, captions, image=e.image) for e in encodings]

    monkeypatch.setattr(Florence2, "describe", describe)
    return Path(shutil.copytree(tiny_folder("florence2"), tmp_path / "florence2"))


def calibrate(model: object, root: Path, *options: str, code: int = 0) -> Any:
    return run("calibrate", model, "--data", root, "--device", "cpu", *options, code=code)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != NAME}


def of_logit(weight: float, constant: float) -> Logistic:
    return Logistic({"logit": weight}, constant)


def probabilities(fit: dict[str, float], scores: np.ndarray) -> np.ndarray:
    return ScoreCalibration(phrase=of_logit(fit["logit"], fit["constant"])).apply("phrase", scores)


def test_a_score_becomes_the_logistic_function_of_its_logit():
    made = of_logit(2.0, -1.0)
    scores = np.array([0.0, 0.2, 0.5, 0.9, 1.0], np.float32)
    found = ScoreCalibration(phrase=made).apply("phrase", scores)
    np.testing.assert_allclose(found[1:4], 1 / (1 + np.exp(1) * ((1 - scores[1:4]) / scores[1:4]) ** 2), rtol=1e-5)
    assert found[0] == 0 and found[4] > 0.999 and found.dtype == np.float32  # without a box there is no phrase
    assert ScoreCalibration(box=made).apply("phrase", scores) is scores
    assert str(ScoreCalibration()) == "" and str(ScoreCalibration(phrase=made)) == "scores of phrases calibrated"
    assert str(ScoreCalibration(made, made)) == "scores of regions and phrases calibrated"


def test_the_fit_finds_the_weights_and_leaves_out_what_has_no_box():
    random = np.random.default_rng(0)
    scores = random.uniform(0.01, 0.99, 40_000).astype(np.float32)
    true = random.random(40_000) < probabilities({"logit": 1.5, "constant": -0.7}, scores)
    scores = np.concatenate((scores, np.zeros(5000, np.float32)))
    found = fit(Judged({"score": scores}, np.concatenate((true, np.ones(5000, bool)))), "m", "phrases")
    assert found.to_dict() == pytest.approx({"logit": 1.5, "constant": -0.7}, abs=0.06)
    apart = fit(
        Judged({"score": np.array([0.2, 0.2, 0.7, 0.7], np.float32)}, np.array([False, False, True, True])),
        "m",
        "regions",
    )
    assert np.isfinite([*apart.to_dict().values()]).all() and apart.weights["logit"] > 0


@pytest.mark.parametrize(
    ("scores", "true", "message"),
    [
        (
            [0.4, 0.4, 0.4],
            [True, False, True],
            "^all 3 regions of m have the score 0.4: a constant cannot be calibrated$",
        ),
        ([0.4, 0.6], [True, True], "^calibration needs right and wrong regions of m, and all 2 are of one kind$"),
        ([0.0, 0.6], [True, False], "^calibration needs right and wrong regions of m, and all 1 are of one kind$"),
        ([], [], "^calibration needs right and wrong regions of m, and all 0 are of one kind$"),
    ],
)
def test_scores_that_tell_nothing_are_refused(scores: list[float], true: list[bool], message: str):
    refuses(message, fit, Judged({"score": np.array(scores, np.float32)}, np.array(true, bool)), "m", "regions")


def test_phrases_are_those_of_the_image_and_as_many_of_others(root: Path):
    model, samples = tiny_adapted("owlv2"), data.read(root, None, "train")
    found = score_phrases(model, samples)
    assert len(found.evidence["score"]) == len(found.right) == 2 * found.right.sum() == 12
    own = [model.ground(sample.image, sorted(sum(sample.phrases, ())), threshold=0).scores for sample in samples]
    wanted = sorted(found.evidence["score"][found.right].tolist())
    np.testing.assert_allclose(sorted(np.concatenate(own).tolist()), wanted, atol=1e-5)


def test_regions_are_right_with_half_overlap_and_broken_images_are_passed_over(root: Path, writing: Path):
    samples = data.read(root, None, "train")
    samples[1].image.write_bytes(b"no image")
    found = score_regions(saywhere.load(writing, "cpu"), samples)
    assert found.right.tolist() == [True, False, False] * 2  # regions are by falling score
    np.testing.assert_allclose(found.evidence["score"], [0.9, 0.8, 0.3] * 2)
    with pytest.raises(UserError, match="^calibration needs images, and not one can be read$"):
        score_regions(saywhere.load(writing, "cpu"), [samples[1]])


def test_phrases_of_a_folder_are_calibrated_by_the_command(root: Path, detecting: Path, tmp_path: Path):
    before, raw, image = contents(detecting), tiny_adapted("owlv2"), root / "0.png"
    done = calibrate(detecting, root, "--what", "phrase")
    assert "12 phrases, 6 of them true, of 3 images of" in done.output, done.output
    stored = json.loads((detecting / NAME).read_text())
    assert contents(detecting) == before and stored["weights"] == raw.digest()
    model = saywhere.load(detecting, "cpu")
    assert repr(model) == "Model('owlv2': OWLv2, scores of phrases calibrated)" and model.digest() != raw.digest()
    phrases = ["a dog", "a horse", "the sky"]
    plain, found = (each.ground(image, phrases, threshold=0).scores for each in (raw, model))
    np.testing.assert_allclose(found, probabilities(stored["phrase"], plain), rtol=1e-5)
    assert model.placer().least() == 0.5 and model.placer().least(0.2) == 0.2
    shown = model.ground(image, phrases)
    assert shown.captions == tuple(p for p, score in zip(phrases, found, strict=True) if score >= 0.5)
    calibrate(detecting, root, "--what", "phrase")
    assert json.loads((detecting / NAME).read_text()) == stored  # not of what was calibrated
    out = tmp_path / "out"
    command = ["evaluate", "ground", "--model", str(detecting), "--data", str(root), "--split", "train"]
    run(*command, "--device", "cpu", "--out", out)
    own = [model.ground(root / f"{i}.png", list(PHRASES[i]), threshold=0).scores for i in range(3)]
    presence = json.loads((out / "report.json").read_text())["presence"]
    assert presence["found"] == pytest.approx(float((np.concatenate(own) >= 0.5).mean()))


def test_regions_of_a_folder_are_calibrated_by_the_command(root: Path, writing: Path):
    raw = saywhere.load(writing, "cpu").describe(root / "0.png").scores
    change_calibration(writing / NAME, tiny_adapted("florence2").digest(), "phrase", of_logit(1.0, 0.5), "of old")
    done = calibrate(writing, root, "--what", "box")
    assert "9 regions, 3 of them true, of 3 images of" in done.output, done.output
    stored = json.loads((writing / NAME).read_text())
    assert stored["phrase"] == {"logit": 1.0, "constant": 0.5} and stored["sources"]["phrase"] == "of old"
    model = saywhere.load(writing, "cpu")
    assert repr(model).endswith(": Florence-2, scores of regions and phrases calibrated)")
    found = model.describe(root / "0.png")
    np.testing.assert_allclose(found.scores, probabilities(stored["box"], raw), rtol=1e-5)
    assert found.captions == ("one", "three", "two") and found.scores[0] > 0.5 > found.scores[1]
    assert model.describe(root / "0.png", threshold=0.5).captions == ("one",)
    given = model.describe(root / "0.png", [BOX])
    np.testing.assert_allclose(given.scores, [0.9, 0.3, 0.8])  # of words alone, to which nothing was fitted


def test_what_cannot_be_calibrated_is_one_line(root: Path, detecting: Path, tmp_path: Path):
    done = calibrate(detecting, root, "--what", "word", code=2)
    assert "box and phrase can be calibrated, not word" in done.stderr
    error = error_of(calibrate(detecting, root, "--what", "box", code=2))
    assert "owlv2 cannot find regions: that needs a model with the part densecap" in error
    assert not (detecting / NAME).exists()
    (tmp_path / "cache").write_text("no folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", hub(detecting))
        done = calibrate("hub:a/no-room", root, "--what", "phrase", code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("calibrations: Not a directory\n")


def hub(folder: Path) -> types.SimpleNamespace:
    """Stands in for the hub: one repository."""
    return types.SimpleNamespace(
        hf_hub_download=lambda name, file, **_: str(folder / file), snapshot_download=lambda name, **_: str(folder)
    )


def test_what_was_fitted_to_a_model_of_the_hub_is_kept_in_the_cache(
    root: Path, detecting: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub(detecting))
    before = contents(detecting)
    calibrate("hub:some/owl--v2", root, "--what", "phrase")
    assert contents(detecting) == before and not (detecting / NAME).exists()
    assert [path.name for path in (cache / "saywhere" / "calibrations").iterdir()] == ["some--owl--v2.json"]
    assert "phrases calibrated" in repr(saywhere.load("hub:some/owl--v2", "cpu"))
    assert repr(saywhere.load(detecting, "cpu")) == "Model('owlv2': OWLv2)"
    (line,) = [line for line in run("models").stdout.splitlines() if "hub:" in line]
    assert line.startswith("hub:some/owl--v2\tscores of phrases calibrated: 12 phrases, 6 of them true, of 3 images of")
    (cache / "saywhere" / "calibrations" / "other--one.json").write_text("{}")
    listed = run("models")
    assert "other" not in listed.stdout


def change_weights(folder: Path) -> None:
    path = folder / "processor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))


def put(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / NAME).write_text(text)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change_weights, "was made with other weights"),
        (put('{"weights": "'), "is damaged"),
        (put("[1]"), "is damaged"),
        (put("[" * 100_000), "is damaged"),
        (put('{"phrase": {"logit": 1, "constant": 2}, "sources": {}}'), "is damaged"),
        (put('{"weights": "x", "phrase": {"logit": 1e999, "constant": 2}, "sources": {}}'), "is damaged"),
        (put('{"weights": "x", "phrase": {"logit": "y", "constant": 2}, "sources": {}}'), "is damaged"),
        (put('{"weights": "x", "phrase": [1, 2], "sources": {}}'), "is damaged"),
        (put('{"weights": "x", "sources": []}'), "is damaged"),
        (put('{"weights": "x", "phrase": {"logit": 1' + "0" * 400 + ', "constant": 2}, "sources": {}}'), "is damaged"),
    ],
)
def test_a_calibration_that_does_not_fit_is_ignored_and_said_so(
    detecting: Path, damage: Callable[[Path], object], reason: str, capsys: pytest.CaptureFixture[str]
):
    change_calibration(detecting / NAME, tiny_adapted("owlv2").digest(), "phrase", of_logit(1.0, 0.5), "")
    assert saywhere.load(detecting, "cpu").placer().least() == 0.5 and capsys.readouterr().err == ""
    damage(detecting)
    model = saywhere.load(detecting, "cpu")
    assert model.placer().least() == 0.1 and repr(model) == "Model('owlv2': OWLv2)"
    line = f"{detecting / NAME}: {reason}, so scores are not calibrated; run saywhere calibrate again\n"
    assert capsys.readouterr().err == line
    assert isinstance(model.engine, Adapter)
    change_calibration(detecting / NAME, model.engine.weights_digest(), "box", of_logit(2.0, 0.1), "")
    found = read_calibration(detecting / NAME, model.engine.weights_digest)
    assert found == ScoreCalibration(box=of_logit(2.0, 0.1))  # nothing of what does not fit is left


def test_a_calibration_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    change_calibration(tmp_path / NAME, "x", "phrase", of_logit(1.0, 0.5), "")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", interrupted)
        change_calibration(tmp_path / NAME, "x", "box", of_logit(3.0, 0.5), "")
    assert read_calibration(tmp_path / NAME, lambda: "x") == ScoreCalibration(phrase=of_logit(1.0, 0.5))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
