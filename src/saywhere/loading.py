"""Load a model: find its folder and choose the engine that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere import DEFAULT_MODEL
from saywhere.adapters.sources import find_adapted
from saywhere.errors import UserError
from saywhere.models.bundle import GRAPH, find_folder, list_models
from saywhere.models.model import Model
from saywhere.options import require_ints

__all__ = ["ENGINES", "list_models", "load"]

ENGINES = {"onnx": "saywhere.engines.onnx", "torch": "saywhere.engines.torch"}
"""The module of each engine; it has ``load(name_or_folder, device, options, threads, precision)``."""
TRANSFORMERS = "transformers"
"""What runs the models of other people; it is not chosen."""
EXTRAS = {
    "onnxruntime": "",
    "torch": "torch",
    "torchvision": "torch",
    "timm": "torch",
    "transformers": "transformers",
}
"""The extra that installs what an engine needs; the core has what is marked by an empty text."""


def load(
    name_or_folder: str | Path = DEFAULT_MODEL,
    device: str | None = None,
    *,
    engine: str | None = None,
    threads: int | None = None,
    precision: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Return a model that is ready to use.

    Args:
        name_or_folder: name of a bundled model (:func:`list_models`), a model folder, or a hub id ``owner/name``; a
            model of transformers by its folder or by ``hub:owner/name`` (see docs/models.md).
        device: where it runs, such as ``cpu`` or ``cuda``. If None, the CPU with the engine ``onnx``, and the first GPU
            there is with the engine ``torch``.
        engine: ``onnx`` (CPU, no PyTorch) or ``torch``. If None, ``onnx`` for a model that has a graph, as the bundled
            one and those that ``saywhere export`` writes, unless ``device`` is another than the CPU.
        threads: of a computation on the CPU; as many as the process may use if None.
        precision: ``float32`` (so if None), or ``int8`` with the engine ``onnx`` and a model that ``saywhere export
            --int8`` wrote: the trunk is faster, and answers differ a little.
        options: of its configuration, to be others than the stored ones, by name with dots, such as
            ``{"densecap.final_nms": 0.7}``; the part may be left out where only one has the option. Those that the
            weights depend on cannot be changed.

    Raises:
        UserError: there is no such model or engine, a file is missing or damaged, or an option does not fit.

    Example:
        >>> model = saywhere.load()
        >>> model = saywhere.load("runs/mine/model", options={"decoding.beam_size": 3})
    """
    require_ints(1, threads=threads)
    folder, engine = choose_engine(name_or_folder, device, engine)
    runtime = _import_engine(engine, folder)
    kind: type[Model] = getattr(runtime, "AdaptedModel", Model)  # whose engine answers whole questions
    place = name_or_folder if engine == TRANSFORMERS else folder
    made = runtime.load(place, device, dict(options or {}), threads, precision or "float32")
    return kind(made, Path(str(name_or_folder)).name)


def choose_engine(name_or_folder: str | Path, device: str | None, engine: str | None) -> tuple[Path, str]:
    """Return the folder of a model and the name of the engine that runs it; arguments and errors as :func:`load`."""
    if engine is not None and engine not in ENGINES:
        raise UserError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    if (adapted := find_adapted(name_or_folder)) is not None:
        if engine is not None:
            raise UserError(f"{name_or_folder}: transformers runs it, not the engine {engine}: name no engine")
        return adapted.folder, TRANSFORMERS
    folder = find_folder(name_or_folder)
    runs_anywhere = (folder / GRAPH).is_file() and device in (None, "cpu")
    return folder, engine or ("onnx" if runs_anywhere else "torch")


def _import_engine(engine: str, folder: Path) -> Any:
    try:
        return importlib.import_module({**ENGINES, TRANSFORMERS: "saywhere.adapters.model"}[engine])
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = f"'saywhere[{EXTRAS[package]}]'" if EXTRAS[package] else package
        raise UserError(f"{folder} needs the engine {engine}, which needs {package}: pip install {extra}") from error
