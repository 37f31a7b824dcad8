"""Export of models, and the comparison of the engines that it makes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from refusals import refuses
from safetensors.numpy import load_file
from timm.layers.conv2d_same import Conv2dSame
from tiny_bundle import PARTS, bundle_model, exported_bundle, take_graph_again, tiny_networks
from tiny_captioner import VOCABULARY
from tiny_classes import tiny_networks as with_classes
from tiny_densecap import PHRASES, tiny_config, tiny_model
from torch import Tensor, nn

import saywhere
from saywhere import UserError
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.engines import export as exporting
from saywhere.engines.export import compare_engines, export, require_exportable, stages, write_graph
from saywhere.engines.onnx import NEEDS_TORCH, OnnxEngine
from saywhere.engines.torch import TorchEngine
from saywhere.files import short_name
from saywhere.images import Preprocess
from saywhere.models.bundle import GRAPH, Bundle, GraphInfo
from saywhere.networks import checkpoint
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.backbones import Backbone
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import AnchorGenerator, LocalizationLayer, RpnHead, Trunk
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.text import Vocabulary

FILES = ["README.md", "config.json", "model.safetensors", "trunk.json", "trunk.onnx", "vocabulary.json"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three checkpoints on the trunk of the exported model."""
    root = tmp_path_factory.mktemp("checkpoints")
    parts = checkpoint.load_networks(exported_bundle())
    return [checkpoint.save(network, root / part, description=f"the {part}") for part, network in parts.items()]


@pytest.fixture
def ready_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    take_graph_again(monkeypatch)


# What is written


def test_weights_are_there_once_in_half_precision():
    folder = exported_bundle()
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "README.md").read_text() == "# The card\n"
    assert Bundle.read(folder).description == "a tiny model" and tuple(Bundle.read(folder).configs) == PARTS
    weights = load_file(folder / "model.safetensors")
    assert {value.dtype for value in weights.values() if value.dtype.kind == "f"} == {np.dtype(np.float16)}
    expected = checkpoint.load_networks(folder)["densecap"].state_dict()
    original = tiny_networks()["densecap"].state_dict()
    for name, value in original.items():
        assert torch.equal(expected[name], value.half().float() if value.is_floating_point() else value), name


def test_the_graph_holds_no_weights_of_the_trunk():
    folder = exported_bundle()
    graph, info = (folder / GRAPH).read_bytes(), GraphInfo.read(folder)
    kernels = [w for n, w in load_file(folder / "model.safetensors").items() if n.startswith("trunk.") and w.ndim == 4]
    assert sum(w.size * 4 for w in kernels) > len(graph)
    for kernel in kernels:
        assert kernel.astype(np.float32).tobytes()[:64] not in graph
    taken = {(w.layer, w.kind) for w in info.weights.values()}
    assert {"pyramid.network.layer_blocks.0.0", "localization.head.score"} <= {layer for layer, _ in taken}
    assert all(name.startswith("trunk.") for name in info.weights)
    notes = onnx.load_model_from_string(graph).graph.metadata_props
    assert not notes  # torch writes them in an order of its own each time, and one model is to be one file


def test_parts_of_several_checkpoints_become_one_model(
    checkpoints: list[Path], tmp_path: Path, ready_graph: None, monkeypatch: pytest.MonkeyPatch
):
    compared: list[Any] = []
    monkeypatch.setattr(exporting, "compare_engines", lambda *engines: compared.append(engines) or 0.0)
    out = tmp_path / "new" / "model"
    checkpoint.change_options(checkpoints[1], {"aligner.localizer": str(tmp_path / "runs" / "densecap")})
    assert export(checkpoints, out, "all") == out and sorted(p.name for p in out.iterdir()) == FILES
    assert (out / "README.md").read_text() == "# model\n\nall\n" and Bundle.read(out).description == "all"
    assert [type(engine).__name__ for engine in compared[0]] == ["TorchEngine", "OnnxEngine"]
    image = np.full((60, 90, 3), 80, np.uint8)
    found, expected = (saywhere.load(folder).describe(image) for folder in (out, exported_bundle()))
    assert found.to_dict() == expected.to_dict()
    assert str(tmp_path) not in (out / "config.json").read_text()
    alone = export(checkpoints[1:2], tmp_path / "alone", options={"localizer": "large"})
    assert Bundle.read(alone).configs["aligner"].localizer == "large"
    again = export(checkpoints, out)  # in the same place
    for folder, message in (
        (checkpoints[1], "is the model that is exported"),
        (out.parent, "which does not belong to a model"),
        (out / "config.json", "is no folder"),
    ):
        refuses(message, export, checkpoints, folder)
    refuses("is a model with the part aligner, which the new one would not have", export, checkpoints[:1], out)
    assert Bundle.read(again).description == "the densecap; the aligner; the captioner"
    assert (again / "README.md").read_text() == "# model\n\nthe densecap; the aligner; the captioner\n"


def test_the_information_of_box_scores_comes_with_the_dense_captioner(
    checkpoints: list[Path], tmp_path: Path, ready_graph: None
) -> None:
    first, others = checkpoints[0], checkpoints[1:]
    assert [*Bundle.read(first).configs] == ["densecap"]
    known = shutil.copytree(first, tmp_path / "known")
    size = checkpoint.load_network(known).region_head.score.in_features + 1
    checkpoint.write_information(known, np.diag(np.arange(1.0, size + 1)))
    for number, (folders, there) in enumerate((([known, *others], True), (checkpoints, False), (others, False))):
        out = export(folders, tmp_path / f"out{number}")
        found = checkpoint.read_information(out, size)
        assert (found is not None) == there
        if found is not None:
            np.testing.assert_allclose(found, checkpoint.read_information(known, size))
    replaced = export([known, first], tmp_path / "out", replace=True)
    assert checkpoint.read_information(replaced, size) is None, "the second model's part is the one that is exported"


def test_a_model_that_was_written_half_is_none(
    checkpoints: list[Path], tmp_path: Path, ready_graph: None, monkeypatch: pytest.MonkeyPatch
):
    """A kill between two files must not leave the words of one model beside the weights of another."""
    out, put = tmp_path / "model", exporting.put_in_place
    export(checkpoints, out)
    (left_over := tmp_path / f".saving-{short_name('model')}-x").mkdir()

    def stop(part: Path, path: Path) -> None:
        put(part, path)
        if path.name == "vocabulary.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "put_in_place", stop)
    with pytest.raises(KeyboardInterrupt):
        export(checkpoints, out)
    refuses("config.json", Bundle.read, out)
    assert not left_over.exists() and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_is_written_where_the_engines_differ(
    checkpoints: list[Path], tmp_path: Path, ready_graph: None, monkeypatch: pytest.MonkeyPatch
):
    def differ(*_: Any) -> float:
        raise UserError("the engines differ in a stage by 1 of its largest value")

    monkeypatch.setattr(exporting, "compare_engines", differ)
    (tmp_path / "config.json").write_text("what was there")
    refuses("differ in a stage", export, checkpoints, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "what was there"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError(name="onnxscript"), r"writing a graph needs onnxscript: pip install 'saywhere\[torch\]'$"),
        (
            RuntimeError("an operator\nis unknown"),
            "the backbone cannot be written as a graph, .* an operator is unknown$",
        ),
    ],
)
def test_a_graph_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, message: str
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("torch.onnx.export", fail)
    refuses(message, write_graph, tiny_model().trunk, tmp_path)
    assert not list(tmp_path.iterdir())


# What is refused


def original() -> nn.Module:
    config = DenseCapConfig.original().merge(
        {"trunk": {"long_side": 64, "vgg_channels": [8] * 5}, "embed_dim": 8, "word_size": 8, "hidden_size": 8}
    )
    return checkpoint.new_network(DenseCap, config, Vocabulary.build(PHRASES))


def baseline() -> nn.Module:
    trunk = TrunkConfig(backbone="test_efficientnet", strides=(32,), long_side=64, multiple=64)
    return checkpoint.new_network(RegionRnn, RegionRnnConfig(trunk=trunk), VOCABULARY)


@pytest.mark.parametrize(
    ("network", "option"),
    [(original, "trunk.multiple=1 (no multiple of 32)"), (baseline, "a region-rnn (a baseline of Table 1)")],
)
def test_what_only_torch_runs_is_refused_with_its_option(network: Any, option: str, tmp_path: Path):
    folder = checkpoint.save(network(), tmp_path / "model")
    for refuse in (require_exportable, lambda folders: export(folders, tmp_path / "out")):
        assert refuses("", refuse, [folder]) == f"{folder}: {option} {NEEDS_TORCH}; it cannot be exported"
    assert not (tmp_path / "out").exists()


# The graph


class Convolutions(nn.Module):
    """What the larger backbones have: TensorFlow's paddings, layers with and without normalisation or a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = Conv2dSame(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8, eps=1e-3)
        self.deep = Conv2dSame(8, 8, 5, stride=2, groups=8, bias=True)
        self.wide, self.norm = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.last = Conv2dSame(16, 16, 3, stride=2, bias=False)
        self.loose = nn.BatchNorm2d(16)
        for layer in (self.stem_norm, self.norm, self.loose):
            layer.get_buffer("running_mean").normal_(std=0.5)
            layer.get_buffer("running_var").uniform_(0.5, 2)
            nn.init.normal_(layer.weight, 1, 0.3)
            nn.init.normal_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = self.norm(self.wide(self.deep(x).clamp(0, 6)))
        return (self.last(torch.relu(self.loose(torch.relu(x)))),)  # a normalisation that follows no convolution


def test_a_graph_computes_what_its_trunk_computes_for_all_sizes(tmp_path: Path):
    """One map of stride 16 without a pyramid, and two logits an anchor."""
    torch.manual_seed(0)
    settings = ProposalConfig(pyramid_channels=0, anchors=(((30, 40), (60, 20)),), hidden_size=8, two_way=True)
    config = TrunkConfig(backbone="test_efficientnet", strides=(16,), long_side=96)
    head = RpnHead(16, 8, 2, two_way=True)
    nn.init.normal_(head.score.weight)
    nn.init.normal_(head.offset.weight, std=0.1)
    layer = LocalizationLayer(head, AnchorGenerator(settings.anchors, (16,)))
    backbone = Backbone(Convolutions(), (16,), (16,))
    trunk = Trunk(backbone, Preprocess(96, 32, backbone.mean, backbone.std), None, None, layer).eval()
    options = {"trunk": config.to_dict(), "proposals": settings.to_dict()}
    checkpoint.save(DenseCap(tiny_config(**options), Vocabulary.build(PHRASES), trunk), tmp_path)
    write_graph(trunk, tmp_path)
    info = GraphInfo.read(tmp_path)
    folds = {w.layer: (w.normalisation, w.eps) for w in info.weights.values() if w.normalisation}
    assert folds == {
        "backbone.body.stem": ("backbone.body.stem_norm", 1e-3),
        "backbone.body.wide": ("backbone.body.norm", 1e-5),
    }
    engine = OnnxEngine(Bundle.read(tmp_path))
    for height, width in ((32, 32), (32, 96), (288, 384), (96, 64), (224, 32)):
        pixels = torch.randn(3, height, width)
        (found,) = engine.trunk.encode([pixels.numpy()])
        with torch.no_grad():
            (image,) = images = ImageMaps.look(trunk, [pixels])
            (rpn,) = ImageMaps.rpns(images)
        np.testing.assert_allclose(found.output("map16"), image.maps[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(found.output("region16"), image.maps[0].numpy(), atol=1e-4)
        proposed = engine.trunk.propose(found)
        for name in ("anchors", "logits", "offsets"):
            np.testing.assert_allclose(getattr(proposed, name), getattr(rpn, name).numpy(), atol=1e-3)
        assert proposed.logits.shape == (2 * height * width // 256,)


def test_classes_that_read_embeddings_are_exported_with_the_dense_captioner(tmp_path: Path):
    networks = with_classes(32)
    classes = checkpoint.save({"nouns": networks["nouns"]}, tmp_path / "classes")
    refuses("classes read 32 numbers of densecap's embeddings: name its model too", require_exportable, [classes])
    require_exportable([classes, checkpoint.save({"densecap": networks["densecap"]}, tmp_path / "densecap")])


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(tiny_networks())


def test_every_part_and_shape_has_its_stages(engine: TorchEngine):
    names = [name for name, _ in stages(engine)]
    assert len(names) == len({*names}) + 3, "the region decoder is asked for each of the four images"
    for part in (
        "logits of anchors",
        "embeddings of 1,000 regions",
        "vectors of 0 regions",
        "caption decoder",
        "attenti",
    ):
        for shape in ("400 x 300", "300 x 400", "400 x 60", "399 x 401"):
            assert any(part in name and name.endswith(shape) for name in names), (part, shape)
    assert names[-1] == "vectors of words"
    alone = [name for name, _ in stages(bundle_model(captioner={"decoder": "lstm"}).engine)]
    assert len(alone) == 4 and all(name.startswith("the caption decoder on an image") for name in alone)


@pytest.mark.parametrize(
    ("weight", "stage"),
    [
        ("trunk.localization.head.offset.bias", "offsets of anchors of an image of 400 x 300"),
        ("densecap.region_head.layers.4.weight", r"embeddings of [\d,]+ regions of an image of 400 x 300"),
        ("densecap.decoder.output.bias", "the region decoder"),
        ("aligner.projects.0.bias", "vectors of 1 region of an image of 400 x 300"),
        ("aligner.encoders.0.decode.weight", "vectors of words"),
        ("captioner.decoder.words.weight", "the caption decoder on an image of 400 x 300"),
        ("captioner.decoder.word_state.weight", "the caption decoder on an image of 400 x 300"),
        ("captioner.narrow.weight", "attention on an image of 400 x 300"),
    ],
)
def test_the_stage_that_differs_is_named(engine: TorchEngine, weight: str, stage: str):
    networks = tiny_networks()
    part, _, name = weight.partition(".")
    network: Any = networks["densecap"] if part == "trunk" else networks[part]
    with torch.no_grad():
        network.get_parameter(weight if part == "trunk" else name).view(-1)[0].add_(2)
    with pytest.raises(UserError, match=rf"^the engines differ in {stage} by \d\S* of its largest value$"):
        compare_engines(engine, TorchEngine(networks))
