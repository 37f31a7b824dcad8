"""The trunk's graph in int8: activation ranges from training images, weights per channel, in a separate file."""

from __future__ import annotations

import errno
import logging
import os
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.engines.arrays.layers import Weights
from saywhere.engines.onnx import TRUNK_DIGEST, OnnxEngine, folded, import_runtime, weights_digest
from saywhere.errors import UserError
from saywhere.files import is_utf8, write_atomically
from saywhere.images import open_image, readable
from saywhere.models.bundle import GRAPH, GRAPH_INT8, WEIGHTS, Bundle, GraphInfo

IMAGES = 200
"""Number of calibration images; with 16 the ranges are too narrow."""
CHECKED = 20
"""Number of further images for comparing the two precisions."""
BEST = 300
"""Number of top anchors that are compared."""
KEPT = ("blocks.0.", "trunk.head.conv", "trunk.branch.head.conv", "pyramid.network.inner_blocks")
"""Names of weights in the first block, in the last layers, and in the convolutions that lead into the pyramid."""
LEAST_KEPT = 0.7
"""Minimum fraction of the best anchors that must also be among the best in int8."""


def quantize(folder: str | Path, images: Sequence[Path]) -> float:
    """Write ``trunk-int8.onnx`` into a model folder with a graph, and compare it with single precision.

    Activation ranges are those on the calibration images. Weights have a scale per channel and seven bits, because
    processors without VNNI add pairs of products in 16 bits. Depthwise convolutions add in 32 bits and have eight.
    Everything that costs accuracy stays in single precision: the first convolution and block, the backbone's last
    convolutions and last layer, convolutions into the pyramid, the last ones of the localization layer, and the
    arithmetic after the backbone.

    Args:
        images: training images, ``IMAGES`` for calibration plus a few for comparison; fewer will do, but at least one.
            Unreadable images are reported.

    Returns:
        the fraction of the best anchors in single precision that are among the best in int8, on separate images.

    Raises:
        UserError: no image can be read, a package is missing, or the accuracy in int8 is too low for this trunk.
    """
    folder = Path(folder)
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    except ImportError as error:
        raise UserError(f"writing a graph in int8 needs {error.name}: pip install 'saywhere[torch]'") from error
    bundle = Bundle.read(folder)
    engine = OnnxEngine(bundle)
    opened = readable(images, partial(open_image, long_side=engine.trunk.preprocess.long_side))
    if not (good := [path for path, _ in opened]):
        raise UserError("int8 needs training images: there are none that can be read")
    checked = good[:CHECKED]
    chosen = good[CHECKED : CHECKED + IMAGES] or good
    import_runtime().set_default_logger_severity(3)
    logging.getLogger().addFilter(_no_hints)
    with tempfile.TemporaryDirectory(dir=folder if is_utf8(str(folder)) else None) as temporary:
        whole, written = Path(temporary) / "float.onnx", Path(temporary) / "int8.onnx"
        weights = Weights.open(folder / WEIGHTS).below("trunk")
        model = _filled(bundle, weights)
        onnx.save(model, whole)
        usual, tempfile.tempdir = tempfile.tempdir, temporary  # otherwise the runtime uses the system's folder
        try:
            quantize_static(
                whole, written, _reader(engine, chosen), quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv", "Add", "Clip", "Relu"], nodes_to_exclude=_kept(model.graph),
                per_channel=True, reduce_range=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options={"TensorQuantOverrides": _eight_bits(model.graph, QuantType.QInt8)},
            )  # fmt: skip
        except DecodeError as error:  # the runtime ignores that a file it wrote was truncated by a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        finally:
            tempfile.tempdir = usual
            logging.getLogger().removeFilter(_no_hints)
        model = onnx.load(written)
        onnx.helper.set_model_props(model, {TRUNK_DIGEST: weights_digest(weights)})
        write_atomically(folder / GRAPH_INT8, lambda stream: stream.write(model.SerializeToString()))
    kept = _agreement(engine, OnnxEngine(bundle, precision="int8"), checked)
    if kept < LEAST_KEPT:
        (folder / GRAPH_INT8).unlink()
        raise UserError(f"in int8 only {kept:.0%} of the {BEST} best anchors are kept: this trunk needs float32")
    return kept


def draw_images(images: Sequence[Path]) -> list[Path]:
    """Return as many images as :func:`quantize` uses, sampled with a fixed seed."""
    return random.Random(0).sample(images, min(len(images), CHECKED + IMAGES))


def _no_hints(record: logging.LogRecord) -> bool:
    """Filter out the advice that the quantiser logs at every call."""
    return "pre-process" not in record.getMessage()


def _filled(bundle: Bundle, weights: Weights) -> Any:
    """Return the graph as a model that contains its weights."""
    import onnx

    model = onnx.load(bundle.folder / GRAPH, load_external_data=False)
    sources = GraphInfo.read(bundle.folder).weights
    for initializer in model.graph.initializer:
        if initializer.name in sources:
            value = np.ascontiguousarray(folded(weights, sources[initializer.name]), np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(value, initializer.name))
    return model


def _kept(graph: Any) -> list[str]:
    """Return the names of the nodes that stay in single precision."""
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    last = [n for n in convolutions if any(f"localization.head.{w}" in i for i in n.input for w in ("score", "offset"))]
    outputs = {output.name for output in graph.output}
    last += [n for n in convolutions if n.output[0] in outputs or any(w in i for i in n.input for w in KEPT)]
    behind = [n for n in convolutions if any("pyramid" in i or "localization" in i for i in n.input)]
    start = list(graph.node).index(behind[0]) if behind else len(graph.node)
    arithmetic = [node for node in list(graph.node)[start:] if node.op_type in ("Add", "Clip")]
    return [node.name for node in (convolutions[0], *last, *arithmetic)]


def _eight_bits(graph: Any, int8: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the settings for the weights of depthwise convolutions, by name."""
    kept = _kept(graph)
    grouped = [node for node in graph.node if any(a.name == "group" and a.i > 1 for a in node.attribute)]
    settings = {"quant_type": int8, "axis": 0, "reduce_range": False}
    return {node.input[1]: [settings] for node in grouped if node.name not in kept}


def _reader(engine: OnnxEngine, images: Sequence[Path]) -> Any:
    """Return the quantiser's data reader, which gives one input at a time and an empty one at the end."""
    from onnxruntime.quantization import CalibrationDataReader

    prepare = engine.trunk.preprocess
    inputs = ({"pixels": prepare(open_image(path, prepare.long_side))[None]} for path in images)

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, Any]:
            return next(inputs, {})

    return Reader()


def _agreement(one: OnnxEngine, other: OnnxEngine, images: Sequence[Path]) -> float:
    """Return the fraction of one engine's best anchors among the other's; 1 without a localization layer."""
    shares: list[float] = []
    for path in images:
        pixels = one.trunk.preprocess(open_image(path, one.trunk.preprocess.long_side))
        outputs = [engine.trunk.encode([pixels])[0].outputs for engine in (one, other)]
        if "logits" not in outputs[0]:
            return 1.0
        best = [set(np.argsort(-each["logits"][0])[:BEST].tolist()) for each in outputs]
        shares.append(len(best[0] & best[1]) / len(best[0]))
    return float(np.mean(shares))
