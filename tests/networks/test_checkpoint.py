"""Model folders: written whole, read with one-line errors, merged bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses
from safetensors.torch import load_file, save_file
from stubs import calibrated
from tiny_aligner import tiny_aligner
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_config, tiny_model
from torch import nn

from saywhere.calibration import Calibration
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.checkpoint import change_calibration, change_options, load_network, load_networks, merge, save
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.trunk import build_trunk

NAMES = ["README.md", "config.json", "model.safetensors", "vocabulary.json"]
PROPOSALS = {"pyramid_channels": 16, "hidden_size": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model(), tmp_path / "tiny", card="# A card", description="for tests")


def equal(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(value, b[key]) for key, value in a.items())


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    stored = json.loads((folder / "config.json").read_text())
    change(stored)
    (folder / "config.json").write_text(json.dumps(stored))


# One part


def test_a_saved_network_comes_back(folder: Path):
    before, after = tiny_model(), load_network(folder)
    assert isinstance(after, DenseCap) and not after.training
    assert equal(before, after) and after.config == before.config and after.vocabulary == before.vocabulary
    assert after.trunk.preprocess == before.trunk.preprocess
    assert sorted(f.name for f in folder.iterdir()) == NAMES
    assert (folder / "README.md").read_text() == "# A card"
    stored = json.loads((folder / "config.json").read_text())
    assert stored["description"] == "for tests" and stored["trunk"]["long_side"] == 96
    assert list(stored["parts"]) == ["densecap"] and "trunk" not in stored["parts"]["densecap"]
    keys = {key.partition(".")[0] for key in load_file(folder / "model.safetensors")}
    assert keys == {"trunk", "densecap"}


def test_the_stored_pixels_and_the_stored_size_are_what_counts(folder: Path):
    edit(folder, lambda stored: stored["preprocess"].update(mean=[0.1, 0.2, 0.3]))
    edit(folder, lambda stored: stored["trunk"].update(long_side=64))
    network = load_network(folder)
    assert network.trunk.preprocess.mean == (0.1, 0.2, 0.3)
    assert network.trunk.preprocess.long_side == network.config.trunk.long_side == 64


def test_all_may_read_the_files_and_left_overs_of_a_kill_are_removed(folder: Path):
    modes = {f.name: f.stat().st_mode & 0o777 for f in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes
    (folder / ".saving-x").mkdir()
    save(tiny_model(), folder)
    assert sorted(f.name for f in folder.iterdir()) == NAMES


def test_a_kill_while_writing_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "to_bytes", stop)
    with pytest.raises(KeyboardInterrupt):
        save(tiny_model(1), folder)
    assert sorted(f.name for f in folder.iterdir()) == NAMES and equal(load_network(folder), tiny_model())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    refuses(r"file: the model cannot be written \(File exists\)", save, tiny_model(), tmp_path / "file")


def test_half_precision_halves_the_file_and_changes_little(folder: Path, tmp_path: Path):
    small = save(tiny_model(), tmp_path / "half", dtype=torch.float16)
    sizes = [(f / "model.safetensors").stat().st_size for f in (small, folder)]
    assert sizes[0] < 0.65 * sizes[1]
    loaded = load_network(small)
    assert loaded.region_head.score.weight.dtype == torch.float32
    for key, value in tiny_model().state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, atol=1e-3, rtol=1e-3)


def test_what_is_wrong_with_a_folder_is_reported(folder: Path):
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "decoder" not in k}, folder / "model.safetensors")
    refuses(r"cannot be loaded: .*decoder\.encode\.0\.weight", load_network, folder)
    save_file({k: v for k, v in weights.items() if "pyramid" not in k}, folder / "model.safetensors")
    refuses(r"cannot be loaded: .*pyramid\.network", load_network, folder)
    (folder / "model.safetensors").write_bytes(b"not weights")
    refuses(r"model\.safetensors cannot be loaded", load_network, folder)
    edit(folder, lambda stored: stored["parts"]["densecap"].update(colour=1))
    refuses(r"config\.json: unknown key parts\.densecap\.colour", load_network, folder)
    (folder / "vocabulary.json").unlink()
    refuses(r"vocabulary\.json is missing", load_network, folder)


def test_unknown_parts_and_devices_are_user_errors(folder: Path):
    refuses("tiny has no aligner; its parts are densecap", load_network, folder, "aligner")
    for device in ("cuda:77", "toaster"):
        refuses(f"device {device} cannot be used", load_networks, folder, device)


def test_options_may_be_others_than_the_stored_ones(folder: Path):
    def load(**options: Any) -> Any:
        return load_networks(folder, options=options)["densecap"]

    network = load(**{"densecap.repeat_nms": None, "proposals.post_nms_top_n": 3})
    assert network.config == replace(
        tiny_config(), repeat_nms=None, proposals=replace(tiny_config().proposals, post_nms_top_n=3)
    )
    larger = load(**{"trunk.long_side": 128})
    assert larger.trunk.preprocess.long_side == larger.config.trunk.long_side == 128
    refuses("beem", load, beem=3)
    refuses(r"cannot be loaded with embed_dim changed", load, embed_dim=16)


def test_options_of_a_stored_model_may_be_changed(folder: Path):
    weights = (folder / "model.safetensors").read_bytes()
    change_options(folder, {"repeat_nms": 0.3})
    assert load_network(folder).config == replace(tiny_config(), repeat_nms=0.3)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert Bundle.read(folder).description == "for tests"
    refuses("repeat_nms is", change_options, folder, {"repeat_nms": 3})


def test_what_was_fitted_stays_with_its_part_and_goes_when_other_weights_are_stored(folder: Path, tmp_path: Path):
    assert not (folder / "calibration.json").exists() and Bundle.read(folder).calibration == Calibration()
    fitted = calibrated(box=(0.5, 2.0, 0.0, -1.0), phrase=(1.0, 0.0, 0.0, 2.0))
    change_calibration(folder, {"box": fitted.box, "phrase": fitted.phrase})
    change_options(folder, {"repeat_nms": 0.2})
    assert Bundle.read(folder).calibration == fitted
    merged = merge([folder], tmp_path / "merged")
    assert Bundle.read(merged).calibration == calibrated(box=(0.5, 2.0, 0.0, -1.0))  # no aligner
    change_calibration(merged, {"box": None})
    assert Bundle.read(merged).calibration == Calibration()
    save(tiny_model(), folder)
    assert Bundle.read(folder).calibration == Calibration() and not (folder / "calibration.json").exists()


# Several parts


def parts(head: bool = False) -> dict[str, Any]:
    """Three networks on one trunk."""
    torch.manual_seed(0)
    densecap = tiny_config()
    trunk = build_trunk(densecap.trunk, densecap.proposals, head, pretrained=False)
    aligner, captioner = tiny_aligner(proposals=PROPOSALS), tiny_captioner()
    return {
        "densecap": DenseCap(densecap, tiny_model().vocabulary, trunk),
        "aligner": Aligner(aligner.config, aligner.vocabulary, trunk),
        "captioner": Captioner(captioner.config, captioner.vocabulary, trunk),
    }


def test_networks_of_one_folder_share_a_trunk(tmp_path: Path):
    networks = parts()
    folder = save(networks, tmp_path / "three")
    loaded = load_networks(folder)
    assert list(loaded) == ["densecap", "aligner", "captioner"]
    assert loaded["densecap"].trunk is loaded["aligner"].trunk is loaded["captioner"].trunk
    assert all(equal(network, loaded[part]) for part, network in networks.items())
    keys = load_file(folder / "model.safetensors")
    assert {key.partition(".")[0] for key in keys} == {"trunk", *networks}
    refuses("three has the parts densecap, aligner, captioner: one of them", load_network, folder)
    with pytest.raises(ValueError, match="share one trunk"):
        save({"densecap": tiny_model(), "captioner": tiny_captioner()}, tmp_path / "apart")


def test_one_of_several_has_only_the_trunk_that_it_needs(tmp_path: Path):
    folder = save(parts(), tmp_path / "three")
    captioner = load_network(folder, "captioner")
    assert captioner.trunk.localization is None and captioner.trunk.pyramid is None
    assert load_network(folder, "aligner").trunk.localization is not None
    some = load_networks(folder, parts=["captioner", "densecap"])
    assert list(some) == ["captioner", "densecap"] and some["captioner"].trunk.localization is not None


def test_parts_that_read_one_localization_layer_differently_are_refused(tmp_path: Path):
    folder = save(parts(), tmp_path / "three")
    shapes = [[[20.0, 20.0]] * 6] * 3
    with pytest.raises(UserError, match=r"three: densecap and aligner share a trunk but differ in proposals\.anchors"):
        load_networks(folder, options={"aligner.proposals.anchors": shapes})


# Merging


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Checkpoints of three trainings on one trunk; the captioner's has neither pyramid nor localization layer."""
    networks = parts()
    folders = []
    for part, network in networks.items():
        if part == "captioner":
            trunk = build_trunk(network.config.trunk, pretrained=False)
            trunk.load_state_dict({k: v for k, v in network.trunk.state_dict().items() if k.startswith("backbone.")})
            own = {k: v for k, v in network.state_dict().items() if not k.startswith("trunk.")}
            network = Captioner(network.config, network.vocabulary, trunk)
            network.load_state_dict({**own, **trunk.state_dict(prefix="trunk.")})
        folders.append(save(network, tmp_path / part, description=f"the {part}", dtype=torch.float16))
    return folders


def test_merged_weights_are_those_of_the_parts_bit_for_bit(three: list[Path], tmp_path: Path):
    out = merge(three, tmp_path / "all", "all of them")
    merged = load_file(out / "model.safetensors")
    singles = [load_file(folder / "model.safetensors") for folder in three]
    assert merged.keys() == set().union(*singles)
    for single in singles:
        assert all(
            merged[key].dtype == value.dtype and torch.equal(merged[key], value) for key, value in single.items()
        )
    bundle = Bundle.read(out)
    assert (bundle.description, (out / "README.md").read_text()) == ("all of them", "# all\n\nall of them\n")
    for folder in three:
        (part,) = Bundle.read(folder).configs
        assert bundle.configs[part] == Bundle.read(folder).configs[part]
        assert bundle.vocabularies[part] == Bundle.read(folder).vocabularies[part]
        assert equal(load_network(out, part), load_network(folder))
    assert Bundle.read(merge(three, tmp_path / "again")).description == "the densecap; the aligner; the captioner"


def test_different_trunks_are_refused_by_the_tensors_name(three: list[Path], tmp_path: Path):
    path = three[1] / "model.safetensors"
    weights = load_file(path)
    name = next(key for key in weights if key.startswith("trunk.localization"))
    weights[name].view(-1)[0] += 1
    save_file(weights, path)
    refuses(f"aligner and .*densecap have different trunks: the tensor {name} is not ", merge, three, tmp_path / "all")
    assert not (tmp_path / "all").exists()
    wider = {key: value.float() for key, value in weights.items()}
    save_file(wider, path)
    refuses("different trunks: the tensor trunk", merge, three, tmp_path / "all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored["trunk"].update(long_side=64), r"trunk\.long_side: 96 and 64; .* saywhere finetune"),
        (lambda stored: stored["preprocess"].update(std=[1, 1, 1]), r"differ in preprocess\.std"),
        (
            lambda stored: stored["parts"]["aligner"]["proposals"].update(anchors=[[[20.0, 20.0]] * 6] * 3),
            r"densecap and aligner share a trunk but differ in proposals\.anchors",
        ),
    ],
)
def test_trunks_of_different_options_are_refused(
    three: list[Path], tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
):
    edit(three[1], change)
    refuses(message, merge, three, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_nothing_is_merged_of_no_folders(tmp_path: Path):
    refuses("no model folders", merge, [], tmp_path / "all")
