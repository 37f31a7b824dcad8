"""A small model that looks with an image tower, whose graph has the outputs of the real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from made_once import made_once
from tiny_aligner import VOCABULARY as WORDS
from tiny_aligner import tiny_aligner_config
from tiny_bundle import PROPOSALS
from tiny_captioner import VOCABULARY as CAPTION_WORDS
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import VOCABULARY, tiny_config

from saywhere.configs.parts import SUMMARY, TOWER
from saywhere.engines.export import export
from saywhere.models.bundle import GRAPH_TOWER
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.trunk import build_trunk


def write_tower(path: Path) -> None:
    """Write a graph with the outputs of the real one: a convolution of the pixels, squeezed to its square."""
    helper, generator = onnx.helper, np.random.default_rng(0)
    arrays = {
        "size": np.array([1, 3, 224, 224]), "weight": generator.normal(0, 0.02, (1280, 3, 16, 16)).astype(np.float32),
        "starts": np.array([0]), "ends": np.array([512]), "axes": np.array([1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Resize", ["pixels", "", "", "size"], ["squeezed"], mode="linear", antialias=1),
        helper.make_node("Conv", ["squeezed", "weight"], [TOWER], kernel_shape=[16, 16], strides=[16, 16]),
        helper.make_node("GlobalAveragePool", [TOWER], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Slice", ["flat", "starts", "ends", "axes"], [SUMMARY]),
    ]
    real = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "tower", [helper.make_tensor_value_info("pixels", real, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info(TOWER, real, None), helper.make_tensor_value_info(SUMMARY, real, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


def write_clip(folder: Path, side: int, width: int, size: int) -> tuple[torch.nn.Module, Path]:
    """Write a small image tower of transformers in int8 as the published one was made; return it and its graph.

    Args:
        folder: where to.
        side: patches in a row.
        width, size: numbers of a token, and of an embedding.
    """
    transformers = pytest.importorskip("transformers")
    from onnxruntime.quantization import quantize_dynamic

    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(hidden_size=width, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, image_size=16 * side, patch_size=16, projection_dim=size)  # fmt: skip
    config._attn_implementation = "eager"
    network = transformers.CLIPVisionModelWithProjection(config).eval()

    class Clip(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision_model, self.visual_projection = network.vision_model, network.visual_projection

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            seen = self.vision_model(pixel_values)
            return self.visual_projection(seen.pooler_output)

    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3) if parameter.ndim > 1 else None
        torch.onnx.export(Clip(), (torch.zeros(1, 3, 16 * side, 16 * side),), str(folder / "full.onnx"), dynamo=False,
                          opset_version=14, input_names=["pixel_values"], output_names=["image_embeds"],
                          dynamic_axes={"pixel_values": {0: "batch", 2: "rows", 3: "columns"}})  # fmt: skip
    quantize_dynamic(folder / "full.onnx", folder / "clip_encoder.int8.onnx", op_types_to_quantize=["MatMul"])
    return network, folder / "clip_encoder.int8.onnx"


def tower_model() -> Path:
    """Return a folder as ``saywhere export`` writes it; ``trained`` beside it is what was exported."""
    return made_once("tower", _write_tower_model) / "model"


def _write_tower_model(root: Path) -> None:
    trunk_options = {"trunk": {"tower": True}, "proposals": PROPOSALS}
    detector = tiny_config(**trunk_options)
    trunk = build_trunk(detector.trunk, detector.proposals, pretrained=False)
    torch.manual_seed(1)
    aligner = Aligner(tiny_aligner_config(branch=True, **trunk_options), WORDS, trunk)
    captioner = Captioner(tiny_captioner_config(branch=True, **trunk_options), CAPTION_WORDS, trunk)
    networks = {"densecap": DenseCap(detector, VOCABULARY, trunk), "aligner": aligner, "captioner": captioner}
    checkpoint.save({name: network.eval() for name, network in networks.items()}, root / "trained", "# The card\n")
    write_tower(root / "trained" / GRAPH_TOWER)
    export([root / "trained"], root / "model", "a model with a tower")
