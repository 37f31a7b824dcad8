from __future__ import annotations

import json

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_densecap import tiny_model

import saywhere
from saywhere.errors import UserError
from saywhere.models.checkpoint import models, save

IMAGE = numpy.random.default_rng(0).integers(0, 255, (80, 120, 3), dtype=numpy.uint8)


@pytest.fixture
def folder(tmp_path):
    return save(tiny_model(), tmp_path / "tiny", card="# A card", description="for tests")


def test_a_saved_model_describes_as_before(folder):
    before, after = tiny_model().describe(IMAGE), saywhere.load(folder).describe(IMAGE)
    torch.testing.assert_close(after.boxes, before.boxes)
    assert after.captions == before.captions
    assert sorted(f.name for f in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    assert (folder / "README.md").read_text() == "# A card"
    stored = json.loads((folder / "config.json").read_text())
    assert stored["description"] == "for tests" and stored["preprocess"]["long_side"] == 96


def test_the_stored_preprocessing_is_what_counts(folder):
    stored = json.loads((folder / "config.json").read_text())
    stored["preprocess"].update(mean=[0.1, 0.2, 0.3], long_side=64)
    (folder / "config.json").write_text(json.dumps(stored))
    preprocess = saywhere.load(folder).preprocess
    assert preprocess.mean == (0.1, 0.2, 0.3) and preprocess.long_side == 64


def test_all_may_read_the_files_and_left_overs_of_a_kill_are_removed(folder):
    modes = {f.name: f.stat().st_mode & 0o777 for f in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes
    (folder / ".saving-x").mkdir()
    save(tiny_model(), folder)
    assert not (folder / ".saving-x").exists()


def test_a_folder_that_is_no_checkpoint_does_not_hide_a_bundled_model(folder, tmp_path, monkeypatch):
    from saywhere.models import checkpoint

    monkeypatch.setattr(checkpoint, "BUNDLED", folder.parent)
    (tmp_path / "here" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert len(saywhere.load("tiny").describe(IMAGE)) > 0


def test_half_precision_halves_the_file_and_changes_little(folder, tmp_path):
    small = save(tiny_model(), tmp_path / "half", dtype=torch.float16)
    sizes = [(f / "model.safetensors").stat().st_size for f in (small, folder)]
    assert sizes[0] < 0.65 * sizes[1]
    loaded = saywhere.load(small)
    assert loaded.recognition.score.weight.dtype == torch.float32
    encoding = tiny_model().encode(IMAGE)
    torch.testing.assert_close(loaded.encode(IMAGE).maps[0], encoding.maps[0], atol=2e-2, rtol=2e-2)


def test_what_is_wrong_with_a_folder_is_said(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "speaker" not in k}, folder / "model.safetensors")
    with pytest.raises(UserError, match="cannot be loaded: .*speaker.encode.0.weight"):
        saywhere.load(folder)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="model.safetensors cannot be loaded"):
        saywhere.load(folder)
    stored = json.loads((folder / "config.json").read_text())
    stored["config"]["colour"] = 1
    (folder / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="config.json: DenseCapConfig: unknown key colour"):
        saywhere.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="not a saywhere configuration"):
        saywhere.load(folder)
    (folder / "vocabulary.json").unlink()
    with pytest.raises(UserError, match="vocabulary.json is missing"):
        saywhere.load(folder)


def test_unknown_names_and_devices_are_user_errors(folder):
    with pytest.raises(UserError, match="no model 'nonsense': not a folder, and the bundled models are"):
        saywhere.load("nonsense")
    with pytest.raises(UserError, match="device cuda:77 cannot be used"):
        saywhere.load(folder, device="cuda:77")
    with pytest.raises(UserError, match="device toaster cannot be used"):
        saywhere.load(folder, device="toaster")


def test_bundled_models_have_a_description():
    bundled = models()
    assert "densecap-flickr8k" in bundled, "the model that the documents name does not ship with the package"
    assert all(bundled.values())


def test_options_may_be_others_than_the_stored_ones(tmp_path):
    model = tiny_model()
    save(model, tmp_path)
    before = saywhere.load(tmp_path, repeat_nms=None).describe(IMAGE)
    fewer = saywhere.load(tmp_path, repeat_nms=None, proposals=3).describe(IMAGE)
    assert 0 < len(fewer) <= 3 < len(before)
    larger = saywhere.load(tmp_path, long_side=128)
    assert larger.preprocess.long_side == larger.config.long_side == 128
    with pytest.raises(UserError, match="beem"):
        saywhere.load(tmp_path, beem=3)
    with pytest.raises(UserError, match=r"cannot be loaded with code_size changed"):
        saywhere.load(tmp_path, code_size=16)
