"""The image tower of the large model: its graph, made from a made-up CLIP in int8, and a model that looks with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from saywhere.configs.parts import SUMMARY, TOWER
from saywhere.engines.tower import MEAN, STD, build_tower
from saywhere.errors import UserError

HALF = np.full(3, 0.5, np.float32)
SIDE, WIDTH, SIZE = 4, 64, 24
"""Patches in a row, numbers of a token, and of an embedding."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    """A small image tower of transformers, and its graph in int8 as the published one was made."""
    transformers = pytest.importorskip("transformers")
    from onnxruntime.quantization import quantize_dynamic

    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=2, image_size=16 * SIDE, patch_size=16, projection_dim=SIZE)  # fmt: skip
    config._attn_implementation = "eager"
    network = transformers.CLIPVisionModelWithProjection(config).eval()

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision_model, self.visual_projection = network.vision_model, network.visual_projection

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            seen = self.vision_model(pixel_values)
            return self.visual_projection(seen.pooler_output)

    folder = tmp_path_factory.mktemp("clip")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3) if parameter.ndim > 1 else None
        torch.onnx.export(Tower(), (torch.zeros(1, 3, 16 * SIDE, 16 * SIDE),), str(folder / "full.onnx"), dynamo=False,
                          opset_version=14, input_names=["pixel_values"], output_names=["image_embeds"])  # fmt: skip
    quantize_dynamic(folder / "full.onnx", folder / "clip_encoder.int8.onnx", op_types_to_quantize=["MatMul"])
    return network, folder / "clip_encoder.int8.onnx"


def run(graph: bytes, pixels: np.ndarray, level: str = "ORT_ENABLE_ALL") -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(graph, options).run([TOWER, SUMMARY], {"pixels": pixels})


def alike(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_graph_gives_values_tokens_and_the_embedding(clip: tuple[torch.nn.Module, Path]) -> None:
    network, source = clip
    generator = np.random.default_rng(0)
    levels = np.stack((generator.normal(0, 1, SIZE + WIDTH + SIZE), generator.uniform(0.5, 2, SIZE + WIDTH + SIZE)))
    graph = build_tower(source, HALF, HALF, levels.astype(np.float32))
    # blocks of one colour: squeezing to the tower's square changes nothing but at their borders
    image = np.kron(generator.uniform(-1, 1, (1, 3, SIDE, SIDE)), np.ones((1, 1, 40, 24))).astype(np.float32)
    tower, summary = run(graph, image)
    assert tower.shape == (1, SIZE + WIDTH, SIDE, SIDE) and summary.shape == (1, SIZE)
    squeezed = torch.nn.functional.interpolate(
        torch.from_numpy(image), (16 * SIDE, 16 * SIDE), mode="bilinear", antialias=True
    )
    mean, std = (torch.from_numpy(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    with torch.no_grad():
        seen = network.vision_model((squeezed * 0.5 + 0.5 - mean) / std, output_hidden_states=True)
        last, norm = network.vision_model.encoder.layers[-1], network.vision_model.post_layernorm
        before = last.layer_norm1(seen.hidden_states[-2])
        values = network.visual_projection(norm(last.self_attn.out_proj(last.self_attn.v_proj(before))))[0, 1:]
        tokens, embedding = norm(seen.last_hidden_state)[0, 1:], network.visual_projection(seen.pooler_output)[0]
    found = tower[0].reshape(SIZE + WIDTH, -1).T * levels[1, :-SIZE] + levels[0, :-SIZE]
    assert alike(found[:, :SIZE], values.numpy()) > 0.99
    assert alike(found[:, SIZE:], tokens.numpy()) > 0.99
    assert alike(summary[0] * levels[1, -SIZE:] + levels[0, -SIZE:], embedding.numpy()) > 0.99


def test_what_the_runtime_fuses_stays_right(clip: tuple[torch.nn.Module, Path]) -> None:
    levels = np.stack((np.zeros(2 * SIZE + WIDTH), np.ones(2 * SIZE + WIDTH))).astype(np.float32)
    graph = build_tower(clip[1], HALF, HALF, levels)
    pixels = np.random.default_rng(1).uniform(-1, 1, (1, 3, 96, 64)).astype(np.float32)
    for one, other in zip(run(graph, pixels), run(graph, pixels, "ORT_DISABLE_ALL"), strict=True):
        assert alike(one, other) > 0.999


def test_another_graph_is_refused(tmp_path: Path) -> None:
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "none", [], [])), str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no graph")
    for name in ("none.onnx", "text.onnx"):
        with pytest.raises(UserError, match=rf"{name} is no image tower of CLIP in int8"):
            build_tower(tmp_path / name, HALF, HALF, np.ones((2, 8), np.float32))
