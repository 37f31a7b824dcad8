"""Tiny models of transformers as graphs, in folders laid out as the hub has them: the published names and shapes."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from made_once import made_once
from tiny_adapters import tiny_folder, transformers

GENERATION = {
    "_from_model_config": True, "bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": True,
    "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "no_repeat_ngram_size": 3, "num_beams": 3,
    "pad_token_id": 1,
}  # fmt: skip
"""As it is published with Florence-2."""
Free = dict[str, Sequence[int]]


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], network: Any) -> None:
        super().__init__()
        self.function, self.network = function, network

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def write_graph(path: Path, network: Any, function: Callable[..., Any], inputs: dict[str, Any], free: Free) -> None:
    """Write a function of tensors as a graph; ``free`` are the dimensions, beside the first, that vary, of its outputs
    and of its inputs."""
    axes = {name: {0: "batch", **{i: f"{name}.{i}" for i in dimensions}} for name, dimensions in free.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = _Function(function, network).eval().requires_grad_(False)  # with gradients, all activations are kept
        torch.onnx.export(
            traced, tuple(inputs.values()), path, dynamo=False, input_names=list(inputs),
            output_names=[name for name in free if name not in inputs], dynamic_axes=axes, opset_version=17,
        )  # fmt: skip


def merge(first: Path, later: Path, path: Path, dummy: Sequence[int]) -> None:
    """Write the decoders without and with a past as one, of which ``use_cache_branch`` chooses; both have its weights.

    With a past, the keys of the encoder are dummies of the shape ``dummy``.
    """
    plain, cached = onnx.load(first), onnx.load(later)
    outputs, inputs = list(plain.graph.output), list(cached.graph.input)
    weights: dict[tuple[Any, ...], Any] = {}
    branches: list[Any] = []
    for prefix, model in (("later.", cached), ("first.", plain)):
        graph = onnx.compose.add_prefix(model, prefix, rename_inputs=False).graph
        known: dict[str, str] = {}
        for weight in graph.initializer:
            content = hashlib.sha256(onnx.numpy_helper.to_array(weight).tobytes()).digest()
            known[weight.name] = weights.setdefault((*weight.dims, weight.data_type, content), weight).name
        for node in graph.node:
            for number, name in enumerate(node.input):
                node.input[number] = known.get(name, name)
        own = {output.name: output for output in graph.output}
        found: list[Any] = []
        for output in outputs:
            if (name := f"{prefix}{output.name}") not in own:
                zeros = onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, dummy, [])
                graph.node.append(onnx.helper.make_node("Constant", [], [name], value=zeros))
                own[name] = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dummy)
            found.append(own[name])
        branches.append(onnx.helper.make_graph(graph.node, "branch", [], found))
    chosen = onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    names = [output.name for output in outputs]
    node = onnx.helper.make_node("If", ["use_cache_branch"], names, then_branch=branches[0], else_branch=branches[1])
    graph = onnx.helper.make_graph([node], "merged", [*inputs, chosen], outputs, list(weights.values()))
    onnx.save(onnx.helper.make_model(graph, opset_imports=plain.opset_import, ir_version=plain.ir_version), path)
    first.unlink()
    later.unlink()


def copy_words(source: Path, folder: Path, processor: dict[str, Any]) -> None:
    """Copy configuration and tokenizer of a model, and write how its images are prepared."""
    (folder / "onnx").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def stored_processor(source: Path) -> dict[str, Any]:
    """How a model's images are prepared."""
    return json.loads((source / "processor_config.json").read_text())["image_processor"]


def export_florence2(folder: Path, source: Path | None = None) -> Path:
    source = source or tiny_folder("florence2")
    copy_words(source, folder, stored_processor(source))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    kind = transformers.Florence2ForConditionalGeneration
    network = kind.from_pretrained(source, attn_implementation="eager").eval()
    language, layers = network.model.language_model, range(len(network.model.language_model.decoder.layers))
    past = [f"{i}.{side}.{kind}" for i in layers for side in ("decoder", "encoder") for kind in ("key", "value")]

    def decode(mask: Any, states: Any, embeddings: Any, *past: Any) -> Any:
        own, cross = transformers.DynamicCache(), transformers.DynamicCache()
        cache = transformers.EncoderDecoderCache(own, cross)
        for i in layers if past else ():
            own.update(*past[4 * i : 4 * i + 2], i)
            cross.update(*past[4 * i + 2 : 4 * i + 4], i)
            cache.is_updated[i] = True
        out = language.decoder(
            inputs_embeds=embeddings, encoder_hidden_states=states, encoder_attention_mask=mask, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        pairs = [
            (side.layers[i].keys, side.layers[i].values) for i in layers for side in ([own] if past else [own, cross])
        ]
        return network.lm_head(out.last_hidden_state), *[each for pair in pairs for each in pair]

    def write(name: str, function: Callable[..., Any], inputs: dict[str, Any], free: Free) -> Path:
        write_graph(path := folder / "onnx" / f"{name}.onnx", network, function, inputs, free)
        return path

    width, heads = language.config.d_model, language.config.decoder_attention_heads
    side = stored_processor(source)["size"]["height"]
    ids, states, one = torch.ones(2, 9, dtype=torch.int64), torch.randn(2, 9, width), torch.randn(2, 1, width)
    write(
        "vision_encoder", lambda x: network.get_image_features(x).pooler_output,
        {"pixel_values": torch.zeros(2, 3, side, side)}, {"pixel_values": (), "image_features": ()},
    )  # fmt: skip
    write("embed_tokens", network.get_input_embeddings(), {"input_ids": ids}, {"input_ids": [1], "inputs_embeds": [1]})
    write(
        "encoder_model", lambda m, x: language.encoder(attention_mask=m, inputs_embeds=x).last_hidden_state,
        {"attention_mask": ids, "inputs_embeds": states},
        {"attention_mask": [1], "inputs_embeds": [1], "last_hidden_state": [1]},
    )  # fmt: skip
    given = {"encoder_attention_mask": ids, "encoder_hidden_states": states, "inputs_embeds": one}
    free = {**dict.fromkeys(given, (1,)), "logits": [1]}
    first = write("first", decode, given, free | {f"present.{name}": [2] for name in past})
    kept = {
        f"past_key_values.{name}": torch.randn(2, heads, 3 if ".decoder." in name else 9, width // heads)
        for name in past
    }
    own = {f"present.{name}": [2] for name in past if ".decoder." in name}
    later = write("later", decode, {**given, **kept}, free | dict.fromkeys(kept, (2,)) | own)
    merge(first, later, folder / "onnx" / "decoder_model_merged.onnx", (0, heads, 1, width // heads))
    return folder


def masks_of_phrases(token_ids: Any, special: Any) -> tuple[Any, Any]:
    """What Grounding DINO's function of its module returns, without the two operations that ONNX lacks.

    Returns:
        Which tokens see each other, those of a phrase with what ends it, and their places in the phrase.
    """
    count = token_ids.shape[1]
    places = torch.arange(count)
    ends = (token_ids[..., None] == special).any(-1)[:, None]
    behind = places[None] <= places[:, None]
    last = torch.where(ends & behind, places, torch.full_like(places, -1)).amax(-1)
    last = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], dim=1)
    end = torch.where(ends & behind.T, places, torch.full_like(places, count)).amin(-1)
    inside = (end != 0) & (end != count - 1) & (end != count)
    seen = (end[:, :, None] == end[:, None]) & inside[:, None] | (places[None] == places[:, None])
    return seen, torch.where(inside, places - last - 1, torch.zeros_like(last)).clamp(min=0)


def export_grounding_dino(folder: Path) -> Path:
    """Export Grounding DINO for images of at least 128 pixels a side, multiples of 64.

    With fewer its coarsest map has a row or column alone, whose places ``linspace(0, 0, 1)`` are no numbers in a graph;
    whether other sizes need margins is decided when the graph is written. The attention is not ``eager``, which adds
    the mask of phrases to what it should hide: transformers' own answers are others with it.
    """
    source = tiny_folder("grounding-dino")
    copy_words(source, folder, stored_processor(source))
    kind = transformers.GroundingDinoForObjectDetection
    network = kind.from_pretrained(source).eval()
    ids = torch.tensor([[2, 7, 8, 5, 3]] * 2)
    given = {
        "pixel_values": torch.randn(2, 3, 128, 192), "pixel_mask": torch.ones(2, 128, 192, dtype=torch.int64),
        "input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids),
    }  # fmt: skip

    def detect(*tensors: Any) -> tuple[Any, Any]:
        out = network(**dict(zip(given, tensors, strict=True)))
        return out.logits, out.pred_boxes

    free = {"pixel_values": [2, 3], "pixel_mask": [1, 2], "logits": [1, 2], "pred_boxes": [1]}
    free |= dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (1,))
    with pytest.MonkeyPatch.context() as patch:
        place = f"{kind.__module__}.generate_masks_with_special_tokens_and_transfer_map"
        patch.setattr(place, lambda token_ids, special_tokens: masks_of_phrases(token_ids, special_tokens))
        patch.setattr(torch, "as_tensor", lambda sizes, **_: torch.stack([torch.stack(size) for size in sizes]))
        write_graph(folder / "onnx" / "model.onnx", network, detect, given, free)
    return folder


EXPORTS: dict[str, Callable[[Path], Path]] = {"florence2": export_florence2, "grounding-dino": export_grounding_dino}
"""By the type of model."""


def tiny_graphs(kind: str) -> Path:
    """The folder of a tiny model's graphs."""
    return made_once(f"graphs-{kind}", lambda root: EXPORTS[kind](root / kind)) / kind
