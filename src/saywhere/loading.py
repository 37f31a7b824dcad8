"""Model loading, immediate or at first use: finds the folder and chooses the engine."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saywhere import DEFAULT_MODEL
from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.adapters.sources import Adapted
    from saywhere.models.bundle import Bundle
    from saywhere.models.model import Model

ENGINES = {"onnx": "saywhere.engines.onnx", "torch": "saywhere.engines.torch"}
"""Module of each engine, with a function ``load(name_or_folder, device, options, threads, precision)``."""
CONTENT = "files of the model"
"""Name of the hash of the model's files among the settings of results; those of earlier versions lack it."""
ADAPTED = "adapted"
"""Internal name of the engine for third-party models, which users cannot choose."""
EXTRAS = {
    "onnxruntime": "",
    **dict.fromkeys(("torch", "torchvision", "timm"), "torch"),
    "transformers": "transformers",
    "tokenizers": "hub",
    **dict.fromkeys(("yaml", "matplotlib"), "train"),
    "pycocoevalcap": "evaluate",
    "cv2": "proposals",
    "torchfile": "convert",
    **dict.fromkeys(("starlette", "uvicorn", "python_multipart"), "serve"),
    "av": "video",
    "pyarrow": "parquet",
}
"""The extra that installs each package; empty for packages of the core."""


def way_to_install(error: ImportError) -> tuple[str, str]:
    """Return the package that could not be imported and how to install it; raise ``error`` if no extra has it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    extra = f"'saywhere[{EXTRAS[package]}]'" if EXTRAS[package] else package
    return package, f"pip install {extra}"


def load(
    name_or_folder: str | Path = DEFAULT_MODEL,
    device: str | None = None,
    *,
    engine: str | None = None,
    threads: int | None = None,
    precision: str | None = None,
    options: Mapping[str, Any] | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
) -> Model:
    """Load a model.

    Args:
        name_or_folder: name of a bundled model (:func:`list_models`), a model folder, or
            ``hub:OWNER/NAME``; third-party models by folder or from the hub (see docs/models.md).
        device: device name, such as ``cpu`` or ``cuda``. Default: the CPU with the engine ``onnx``, the first available
            GPU with ``torch``. The engine ``onnx`` also supports ``coreml``, ``directml`` and ``openvino``.
        engine: ``onnx`` (without PyTorch) or ``torch``. Default: ``onnx`` for a model with a graph, such as the bundled
            one and those of ``saywhere export``, unless ``device`` needs torch, such as ``cuda``.
        threads: number of CPU threads per computation. Default: all that the process may use.
        precision: ``float32`` (default), or ``int8`` with the engine ``onnx`` and a model of ``saywhere export
            --int8``: a faster trunk and slightly different answers. Graphs of the hub can have other precisions.
        options: changes to the stored configuration, by dotted name, such as ``{"densecap.final_nms": 0.7}``. The part
            can be omitted if only one part has the option. Options that the weights depend on cannot be changed.
        revision: branch, tag or commit of a hub model. Default: its main branch.
        cache_dir: folder for downloads from the hub. Default: that of huggingface_hub.

    Raises:
        UserError: there is no such model or engine, a file is missing or damaged, or an option is invalid.

    Example:
        >>> saywhere.load()
        Model('flickr-coco': densecap, aligner, captioner, nouns)
        >>> model = saywhere.load(threads=1, options={"captioner.decoding.beam_size": 3})
    """
    from saywhere.options import require_ints

    if not isinstance(name_or_folder, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"a model is a name or a folder, not {type(name_or_folder).__name__}")
    if not isinstance(options, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"options must be a mapping of names to values, not {type(options).__name__}")
    hub = {name: str(value) for name, value in (("revision", revision), ("cache_dir", cache_dir)) if value is not None}
    require_ints(1, threads=threads)
    choice = Runtime(device, engine, threads, precision)
    place, engine = choose_engine(name_or_folder, device, engine, precision, **hub)
    stamps = _stamps(place, precision)
    model = _as_model(*_make(place, engine, choice, options), name_or_folder)
    if not hub and engine != "torch":  # whose weights can change
        given = {name: v if isinstance(v, str) else json.dumps(v, default=str) for name, v in (options or {}).items()}
        model.origin = {**_facts(name_or_folder, map("=".join, given.items()), precision), CONTENT: stamps}
    return model


def _facts(name_or_folder: str | Path, changes: Iterable[str], precision: str | None) -> dict[str, Any]:
    """Return what determines a model's answers, but its files, in normal form, without loading it."""
    name = str(name_or_folder)
    model = str(Path(name).resolve()) if Path(name).is_dir() else name
    return {"model": model, "set": sorted(changes), "precision": precision or "float32"}


Stamps = tuple[tuple[str, int, int], ...]
"""Path, size in bytes and time in nanoseconds of each file."""


def _stamps(place: Path | Adapted, precision: str | None) -> Stamps:
    """Return the stamps of the files that determine a model's answers."""
    from saywhere.models.bundle import content_files

    files = content_files(place, precision) if isinstance(place, Path) else place.files(precision)
    return tuple((str(path), (found := path.stat()).st_size, found.st_mtime_ns) for path in files if path.is_file())


@functools.lru_cache(8)
def _content(stamps: Stamps) -> str:
    """Return a hash of the content of files; ``UserError`` if they have changed since their stamps were taken."""
    import hashlib

    whole = hashlib.sha256()
    for path, *stamp in stamps:
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                digest = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; load the model again") from error
        if stamp != [found.st_size, found.st_mtime_ns]:
            raise UserError(f"{path}: has changed since the model was loaded; load it again")
        whole.update(os.path.basename(path).encode("utf-8", "surrogateescape") + digest)
    return whole.hexdigest()[:16]


def _as_model(runtime: Any, made: Any, name_or_folder: str | Path) -> Model:
    from saywhere.models.model import Model

    kind: type[Model] = getattr(runtime, "AdaptedModel", Model)  # an engine that answers whole questions has its own
    return kind(made, Path(str(name_or_folder)).name)


def _make(place: Any, engine: str, runtime: Runtime, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """Return the module of an engine, and the engine loaded with the model at a place; errors as :func:`load`."""
    from saywhere.models.bundle import GRAPH

    device, _, threads, precision = runtime
    try:
        module = importlib.import_module({**ENGINES, ADAPTED: "saywhere.adapters.model"}[engine])
        return module, module.load(place, device, dict(options or {}), threads, precision or "float32")
    except ImportError as error:
        package, way = way_to_install(error)
        what, needed = (place.folder, place.engine) if engine == ADAPTED else (place, engine)
        if engine == "torch" and device is not None and (place / GRAPH).is_file():
            what, way = f"device {device}", f"{way}; or leave it out, for the CPU"
        raise UserError(f"{what} needs the engine {needed}, which needs {package}: {way}") from error


def choose_engine(
    name_or_folder: str | Path, device: str | None, engine: str | None, precision: str | None = None, **hub: Any
) -> tuple[Any, str]:
    """Return the location of a model and the name of the engine for it; arguments and errors as :func:`load`."""
    from saywhere.models.bundle import GRAPH, GRAPH_DEVICES, find_folder, refuse_hub

    if engine is not None and engine not in ENGINES:
        raise UserError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    if (adapted := _find_adapted(name_or_folder, engine, device, precision, **hub)) is not None:
        if adapted.repository is None:
            refuse_hub(str(name_or_folder), hub)
        return adapted, ADAPTED
    folder = find_folder(name_or_folder, **hub)
    runs_anywhere = (folder / GRAPH).is_file() and device in GRAPH_DEVICES
    return folder, engine or ("onnx" if runs_anywhere else "torch")


def _find_adapted(name_or_folder: str | Path, *choice: str | None, **hub: Any) -> Adapted | None:
    """Return the location of a third-party model; None for anything else, such as a bundled model."""
    if ":" not in str(name_or_folder) and not Path(name_or_folder).is_dir():  # "hub:OWNER/NAME", or a folder
        return None
    from saywhere.adapters.sources import find_adapted

    return find_adapted(name_or_folder, *choice, **hub)


class Runtime(NamedTuple):
    """How a model runs: ``--device``, ``--engine``, ``--threads`` and ``--precision``."""

    device: str | None = None
    engine: str | None = None
    threads: int | None = None
    precision: str | None = None


class DeferredModel:
    """A model that is loaded at its first call, so that a run without work does not wait for it.

    Args:
        name: name of a bundled model, a folder, or a loaded model. None: the default model.
        runtime: device, engine, threads and precision.
        changes: ``OPTION=VALUE`` texts of ``--set``.
        part: the part that the command uses; option names refer to it unless they begin with another part.
        ahead: parts that the first image needs. With the engine ``onnx`` a thread reads their weights while the caller
            loads the shared network.

    Example:
        >>> model = DeferredModel()
        >>> image = open_image("photo.jpg", model.long_side)  # reads the configuration
        >>> model().caption(image)  # loads the weights
    """

    def __init__(
        self,
        name: str | Path | Model | None = None,
        runtime: Runtime | None = None,
        changes: Sequence[str] | None = None,
        part: str | None = None,
        ahead: Sequence[str] = (),
    ) -> None:
        self._loaded = None if name is None or isinstance(name, str | Path) else name
        self._name = str(name or DEFAULT_MODEL) if self._loaded is None else self._loaded.name
        self._runtime, self._changes, self._part, self._ahead = runtime or Runtime(), changes or (), part, ahead
        self._making = threading.Lock()
        self._made: tuple[Any, Any] | None = None
        self._begun = False

    def __call__(self) -> Model:
        """Return the model, and load it at the first call; errors as :func:`load`."""
        return self._model

    def begin(self) -> None:
        """Start to open the shared network if parts are read ahead; errors are raised by the later call."""
        if self._loaded is None and self._ahead and not self._begun and self._engine == "onnx":
            self._begun = True
            with contextlib.suppress(Exception):
                self._network()[1].trunk.begin()

    def _network(self) -> tuple[Any, Any]:
        with self._making:
            if self._made is None:
                self._made = _make(*self._chosen, self._runtime, self._options)
            return self._made

    @cached_property
    def _model(self) -> Model:
        import saywhere

        if self._loaded is not None:
            return self._loaded
        if self._begun:
            model = _as_model(*self._network(), self._name)
        else:
            model = saywhere.load(self._name, **self._runtime._asdict(), options=self._options)
        if self._ahead and self._engine == "onnx":
            threading.Thread(target=_read_ahead, args=(model, self._ahead), name="saywhere-weights").start()
        return model

    @property
    def name(self) -> str:
        """Name or folder of the model."""
        return self._name

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that determines answers, in normal form: the model, its changed options and the precision."""
        if self._loaded is None:
            facts = _facts(self._name, self._changes, self._runtime.precision)
            with contextlib.suppress(UserError):  # if there is no such model; one that is needed is reported then
                facts[CONTENT] = _content(_stamps(self._chosen[0], self._runtime.precision))
            return facts
        if (origin := self._loaded.origin) is None:
            return {"model": self._loaded.digest()}
        return {**origin, CONTENT: _content(origin[CONTENT])}

    @cached_property
    def _stored(self) -> Bundle:
        from saywhere.models.bundle import Bundle

        return Bundle.read(self._name)

    @cached_property
    def _adapted(self) -> Adapted | None:
        """Location of a third-party model, which has no parts and no options; else None."""
        device, engine, _, precision = self._runtime
        return _find_adapted(self._name, engine, device, precision)

    @cached_property
    def _engine(self) -> str:
        if self._loaded is not None:
            return type(self._loaded.engine).__module__.rpartition(".")[2]
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Any, str]:
        """Place of the model and name of its engine."""
        from saywhere.options import require_ints

        device, engine, threads, precision = self._runtime
        require_ints(1, threads=threads)
        return choose_engine(self._name, device, engine, precision)

    @cached_property
    def _options(self) -> dict[str, Any]:
        if not self._changes:
            return {}
        from saywhere.options import assignments

        values, parts = assignments(self._changes), {} if self._adapted else self._stored.configs
        if self._part not in parts:
            return values
        named = {*parts, "trunk"}
        return {name if name.split(".")[0] in named else f"{self._part}.{name}": v for name, v in values.items()}

    @property
    def workers(self) -> int:
        """Number of threads that should use the model at the same time for many images."""
        from saywhere.engines.onnx import available_threads

        threads = self._runtime.threads or available_threads()
        return threads if self._engine == "onnx" else 1  # torch itself uses all processors

    @property
    def long_side(self) -> int:
        """Long side in pixels to decode images at; known without loading the weights."""
        if self._loaded is not None:
            return self._loaded.long_side
        if self._adapted:
            return self._adapted.family.long_side
        return self._stored.with_options(self._options).trunk.long_side


def load_model(
    name: str | None = None,
    runtime: Runtime | None = None,
    changes: Sequence[str] | None = None,
    part: str | None = None,
) -> Model:
    """Load a model with changed options; arguments and errors as :class:`DeferredModel`."""
    return DeferredModel(name, runtime, changes, part)()


def _read_ahead(model: Any, parts: Sequence[str]) -> None:
    """Read files that are otherwise read at first use; errors are ignored, because they recur and are reported then."""
    with contextlib.suppress(Exception):
        if "nouns" in parts:
            from saywhere.models.nouns import noun_tree

            noun_tree()
        if "aligner" in parts:
            from saywhere.models.chunker import Chunker

            Chunker.load()
        model.engine.prepare(parts)
        if parts[0] == "densecap" and model.phrase_writer is not None:  # phrases are asked for
            model.phrase_writer.prepare()
