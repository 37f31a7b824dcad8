"""The trunk's graph in ONNX Runtime: in single precision with the weights of the bundle, or in int8 with its own."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from saywhere.engines.arrays.layers import Weights, in_single
from saywhere.errors import UserError
from saywhere.models.bundle import GRAPH, GRAPH_INT8, GRAPH_WEIGHTS, WEIGHTS, Bundle, GraphInfo, GraphWeight

PRECISIONS = ("float32", "int8")
TRUNK_DIGEST = "trunk"
"""The entry of the int8 graph's metadata that says which trunk it was made from."""


def open_session(bundle: Bundle, weights: Weights, threads: int | None = None, precision: str = "float32") -> Any:
    """Return ONNX Runtime's session of a bundle's graph.

    The graph in single precision has convolutions into which batch normalisation is folded; the folder has the weights
    once, as training reads them, so they are folded here. The graph in int8 holds its weights itself.

    Args:
        bundle: with the graph.
        weights: of its trunk.
        threads: of a computation; as many as the process may use if None.
        precision: one of ``PRECISIONS``.

    Raises:
        UserError: the graph is damaged or another model's, or no usable ONNX Runtime is installed.
    """
    path = bundle.folder / (GRAPH_INT8 if precision == "int8" else GRAPH)
    digest, graph = weights_digest(weights), path.read_bytes()
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or available_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # its threads are not the only ones
    options.log_severity_level = 3  # warnings of containers without a GPU say nothing to a user
    sources: dict[str, GraphWeight] = {}
    if precision == "float32":
        info = GraphInfo.read(bundle.folder)
        if hashlib.sha256(graph).hexdigest() != info.graph or digest != info.trunk:
            raise UserError(f"{path} does not belong to {WEIGHTS} or {GRAPH_WEIGHTS} beside it: export the model again")
        sources = info.weights
    try:
        values = [runtime.OrtValue.ortvalue_from_numpy(folded(weights, weight)) for weight in sources.values()]
        options.add_external_initializers(list(sources), values)
        session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own, which are only RuntimeErrors in part
        raise UserError(f"{path} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    if precision == "int8" and session.get_modelmeta().custom_metadata_map.get(TRUNK_DIGEST) != digest:
        raise UserError(f"{path} does not belong to {WEIGHTS} beside it: export the model again")
    return session


def weights_digest(weights: Weights) -> str:
    """Return the SHA-256 of weights as they are stored."""
    digest = hashlib.sha256()
    for name in weights.names():
        value = weights.stored(name)
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


def folded(weights: Weights, weight: GraphWeight) -> np.ndarray:
    """Return a weight of the graph, with the batch normalisation after its layer folded in."""
    layer = weights.below(weight.layer)
    if weight.normalisation is None:
        return layer[weight.kind]
    norm = weights.below(weight.normalisation)
    scale = norm["weight"] / np.sqrt(norm["running_var"] + np.float32(weight.eps))
    if weight.kind == "weight":
        kernel = in_single(stored := layer.stored("weight"), np.empty(stored.shape, np.float32))
        kernel *= scale.reshape(-1, *[1] * (kernel.ndim - 1))
        return kernel
    bias = layer["bias"] if layer.has("bias") else np.float32(0)
    return (bias - norm["running_mean"]) * scale + norm["bias"]


def import_runtime() -> Any:
    """Return the module of ONNX Runtime, which is not to report home.

    Raises:
        UserError: it is not installed or does not work, for example because its CPU and GPU packages overwrote each
            other.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when it is imported
    try:
        import onnxruntime
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"ONNX Runtime cannot be imported ({reason}): pip install onnxruntime") from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise UserError(
            "ONNX Runtime is installed in part, as after removing one of onnxruntime and onnxruntime-gpu: "
            "pip uninstall both, then pip install onnxruntime"
        )
    return onnxruntime


def available_threads() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
