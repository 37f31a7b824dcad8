"""The engine without torch: the trunk as a graph in ONNX Runtime, everything else in NumPy.

The graph turns pixels ``(1, 3, H, W)`` into the maps of the backbone, ``map8`` etc. by stride. If the trunk has them,
it also returns ``head``, the maps of the pyramid (``region8`` ...), and the ``logits`` and ``offsets`` of anchors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from saywhere.boxes import anchor_grid
from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import SUMMARY, TOWER, TrunkConfig
from saywhere.engines.arrays.layers import Weights, in_single, require_shapes
from saywhere.engines.arrays.pooling import ImageMaps
from saywhere.engines.engine import TEXT_WEIGHTS, Aligner, Captioner, DenseCap, Nouns, RpnOutput
from saywhere.errors import UserError
from saywhere.files import cache_folder, read_record, sync
from saywhere.models.bundle import (
    GRAPH,
    GRAPH_INT8,
    GRAPH_TOWER,
    GRAPH_WEIGHTS,
    WEIGHTS,
    Bundle,
    GraphInfo,
    GraphWeight,
)

if TYPE_CHECKING:
    from saywhere.images import Preprocess

PRECISIONS = ("float32", "int8")
NEEDS_TORCH = "needs the engine torch (pip install 'saywhere[torch]')"
MULTIPLE = 32
"""Both sides of the graph's input are multiples of this, which makes padding equal for all sizes."""
TRUNK_DIGEST = "trunk"
"""Metadata key of the int8 graph for the digest of its trunk."""


ALLOWED = 1e-3
"""Difference from the CPU's result that is not reported, relative to its largest value."""

KEPT_GRAPH, KEPT_WEIGHTS, KEPT_SIZES = "graph.onnx", "weights.bin", "sizes.json"
"""Files of a graph in the user's cache."""
LEAST_KEPT = 1 << 22
"""Size in bytes from which weights are worth keeping; a smaller graph opens fast."""
MOST_KEPT = 4
"""Number of graphs kept, the last used ones."""
ABANDONED = 3600
"""Age in seconds from which an unfinished folder is removed; the process that wrote it was killed."""
UNFINISHED = ".new-"
FACTS = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
"""Facts about the processor in Linux's ``/proc/cpuinfo``, those of the first one."""


class Provider(NamedTuple):
    """ONNX Runtime's execution provider for a device: its name and its package."""

    name: str
    package: str


DEVICES = {
    "cpu": Provider("CPUExecutionProvider", "onnxruntime"),
    "cuda": Provider("CUDAExecutionProvider", "onnxruntime-gpu"),
    "coreml": Provider("CoreMLExecutionProvider", "onnxruntime, on macOS"),
    "directml": Provider("DmlExecutionProvider", "onnxruntime-directml, on Windows"),
    "openvino": Provider("OpenVINOExecutionProvider", "onnxruntime-openvino"),
}


def refused_options(trunk: TrunkConfig, configs: Mapping[str, Any]) -> list[str]:
    """Return the options of a model, with their values, that need the engine torch."""
    refused: list[str] = []
    if trunk.multiple % MULTIPLE:
        refused.append(f"trunk.multiple={trunk.multiple} (no multiple of {MULTIPLE})")
    for part, config in configs.items():
        if isinstance(config, DenseCapConfig) and config.conventions == "original":
            refused.append("conventions=original (the published program)")
        if isinstance(config, AlignerConfig) and config.parses is not None:
            refused.append(f"parses={config.parses} (relations in the place of words)")
        if isinstance(config, AlignerConfig) and config.cell != "gru" and config.parses is None:
            refused.append(f"cell={config.cell}")
        if isinstance(config, CaptionerConfig) and config.decoder != "attention":
            refused.append(f"decoder={config.decoder}")
        elif isinstance(config, CaptionerConfig):
            refused += ["attend_to=transformer"] if config.attend_to == "transformer" else []
            refused += [f"feedback={config.feedback}"] if config.feedback != "none" else []
            refused += ["the term region-state"] if "region-state" in config.terms else []
        if part == "region-rnn":
            refused.append("a region-rnn (a baseline of Table 1)")
    return refused


def load(
    name_or_folder: str | Path,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "float32",
) -> OnnxEngine:
    """Return the engine for a model folder with a graph, as written by ``saywhere export``.

    Args:
        name_or_folder: name of a bundled model, a model folder, or ``hub:OWNER/NAME``.
        device: one of :data:`DEVICES`. Default: ``cpu``.
        options: changes to the configuration, by dotted name.

    Raises:
        UserError: there is no such device, an option of the trunk differs from the graph, or as :class:`OnnxEngine`.
    """
    find_provider(device or "cpu")
    stored = Bundle.read(name_or_folder)
    bundle = stored.with_options(options) if options else stored
    for option in ("backbone", "strides", "vgg_channels", "branch", "tower"):
        if getattr(bundle.trunk, option) != getattr(stored.trunk, option):
            raise UserError(f"{stored.folder / GRAPH} is the graph of another trunk.{option}, which cannot be changed")
    return OnnxEngine(bundle, threads, precision, device or "cpu")


class OnnxEngine:
    """Run a bundle in ONNX Runtime; see :class:`saywhere.engines.engine.Engine`. Parts are read at first use.

    Args:
        bundle: bundle with a graph.
        threads: number of threads per computation. Default: all that the process may use.
        precision: precision of the trunk: ``float32``, or ``int8`` if the bundle has that graph.
        device: device of the trunk, one of :data:`DEVICES`; everything else runs on the CPU.

    Raises:
        UserError: there is no graph, the weights do not fit the options, or an option needs the engine torch. (Whether
            graph and weights belong together is checked before the first image.)
    """

    def __init__(
        self, bundle: Bundle, threads: int | None = None, precision: str = "float32", device: str = "cpu"
    ) -> None:
        if refused := refused_options(bundle.trunk, bundle.configs):
            raise UserError(f"{bundle.folder}: {refused[0]} {NEEDS_TORCH}")
        if not (bundle.folder / GRAPH).is_file():
            raise UserError(f"{bundle.folder} has no {GRAPH}: make it with saywhere export, or use the engine torch")
        if precision not in PRECISIONS:
            raise UserError(f"no precision {precision!r}; there are {' and '.join(PRECISIONS)}")
        if precision == "int8" and not (bundle.folder / GRAPH_INT8).is_file():
            raise UserError(f"{bundle.folder} has no {GRAPH_INT8}: make it with saywhere export --int8")
        if bundle.trunk.tower and not (bundle.folder / GRAPH_TOWER).is_file():
            raise UserError(f"{bundle.folder} has no {GRAPH_TOWER}, the image tower that it looks with: docs/models.md")
        self._bundle, self._precision, self.calibration = bundle, precision, bundle.calibration
        self._weights = Weights.open(bundle.folder / WEIGHTS)
        self.trunk = OnnxTrunk(bundle, self._weights.below("trunk"), threads, precision, device)
        self._parts: dict[str, Any] = {}
        self._building = threading.Lock()
        if not bundle.shipped:
            for part in bundle.configs:
                getattr(self, part)

    @property
    def densecap(self) -> DenseCap | None:
        from saywhere.engines.arrays import densecap

        return self._part("densecap", densecap.DenseCap)

    @property
    def aligner(self) -> Aligner | None:
        from saywhere.engines.arrays import aligner

        return self._part("aligner", aligner.Aligner)

    @property
    def captioner(self) -> Captioner | None:
        from saywhere.engines.arrays import captioner

        return self._part("captioner", captioner.Captioner)

    @property
    def nouns(self) -> Nouns | None:
        from saywhere.engines.arrays import nouns

        return self._part("nouns", nouns.Nouns)

    def _part(self, name: str, kind: Any) -> Any:
        """Return a part, created at first request; its weights are read at first use."""
        if name not in self._bundle.configs:
            return None
        with self._building:
            if name not in self._parts:
                config, words = self._bundle.configs[name], self._bundle.vocabularies[name]
                weights = self._weights.below(name)
                try:
                    require_shapes(name, kind.shapes(config, len(words)), len(words), weights)
                except UserError as error:
                    raise UserError(f"{self._bundle.folder}: {error}") from None
                self._parts[name] = kind(config, words, weights)
            return self._parts[name]

    def prepare(self, parts: Collection[str]) -> None:
        """Read the weights of some parts now, instead of at first use.

        ``aligner.last`` is what captions need of the aligner.
        """
        for name in parts:
            part, _, last = name.partition(".")
            if (reader := getattr(self, part)) is not None:
                (reader.last if last else reader).prepare()
        self._weights.release()

    @property
    def device(self) -> str:
        return self.trunk.device

    def to(self, device: str) -> None:
        find_provider(device)
        self.trunk.to(device)

    def digest(self) -> str:
        """Return a hash of weights, configuration, calibration and precision."""
        configs = {part: config.to_dict() for part, config in self._bundle.configs.items()}
        words = {part: vocabulary.tokens for part, vocabulary in self._bundle.vocabularies.items()}
        digest = self._hash([configs, words, self.calibration.to_dict()])
        with open(self._bundle.folder / WEIGHTS, "rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
        return digest.hexdigest()

    def vectors_digest(self) -> str:
        """Return a hash of the weights, options and precision that affect region embeddings."""
        config = self._bundle.configs["aligner"]
        assert isinstance(config, AlignerConfig)
        digest = self._hash([config.vector_options()])
        for part, without in (("trunk", ()), ("aligner", TEXT_WEIGHTS)):
            digest.update(weights_digest(self._weights.below(part), without).encode())
        return digest.hexdigest()

    def _hash(self, facts: list[Any]) -> hashlib.blake2b:
        """Return a hash object with facts, precision and pixel normalisation."""
        digest = hashlib.blake2b(b"onnx", digest_size=16)
        if self._precision == "int8":
            digest.update((self._bundle.folder / GRAPH_INT8).read_bytes())
        if self._bundle.trunk.tower:
            digest.update((self._bundle.folder / GRAPH_TOWER).read_bytes())
        pixels = [self._bundle.mean, self._bundle.std]
        digest.update(json.dumps([*facts, pixels], sort_keys=True).encode())
        return digest


class OnnxTrunk:
    """The graph in ONNX Runtime, opened for the first image; see :class:`saywhere.engines.engine.Trunk`."""

    def __init__(self, bundle: Bundle, weights: Weights, threads: int | None, precision: str, device: str) -> None:
        self.device = device
        self._bundle, self._weights, self._threads, self._precision = bundle, weights, threads, precision
        shapes = {part: c.proposals.anchors for part, c in bundle.configs.items() if c.uses_proposals}
        if len(set(shapes.values())) > 1:
            raise UserError(f"{bundle.folder}: {' and '.join(shapes)} share a trunk but differ in proposals.anchors")
        self._shapes = next(iter(shapes.values()), ())
        self._anchors: dict[tuple[int, int], np.ndarray] = {}
        self._opening = threading.Lock()
        self._read: Callable[[], Any] | None = None

    @property
    def preprocess(self) -> Preprocess:
        from saywhere.images import Preprocess  # opening the session needs no Pillow

        config = self._bundle.trunk
        return Preprocess(config.long_side, config.multiple, self._bundle.mean, self._bundle.std)

    @property
    def _sessions(self) -> list[Session]:
        with self._opening:  # from Python 3.12 on, cached properties have no lock
            return self._opened

    def begin(self) -> None:
        """Read the graph, then open the session in a thread instead of for the first image.

        The thread only runs ONNX Runtime, which releases the interpreter lock; Python code would block other threads.
        """
        self._read = self._read_graph()
        threading.Thread(target=self._open_ahead, name="saywhere-trunk").start()

    def _open_ahead(self) -> None:
        with contextlib.suppress(UserError):  # raised again for the first image
            _ = self._sessions

    @cached_property
    def _opened(self) -> list[Session]:
        make, self._read = self._read or self._read_graph(), None
        if not self._bundle.trunk.tower:
            return [make()]
        return [make(), open_tower(self._bundle.folder / GRAPH_TOWER, self._threads, self.device)]

    def _read_graph(self) -> Callable[[], Session]:
        """Return a function that makes a session, from the optimised graph in the user's cache if that is there."""
        runtime, folder, int8 = import_runtime(), self._bundle.folder, self._precision == "int8"
        path = folder / (GRAPH_INT8 if int8 else GRAPH)
        files = [path, folder / WEIGHTS, *([] if int8 else [folder / GRAPH_WEIGHTS])]
        place = kept_place(files, runtime.__version__, runtime.get_build_info()) if self.device == "cpu" else None
        if not is_kept(place):
            return self._read_weights(path, place)

        def make() -> Session:
            try:
                return Session(path, lambda provider: _open_kept(place, self._options(), provider))
            except UserError:
                remove_kept(place)
                return self._read_weights(path, place)()

        return make

    def _options(self) -> Any:
        options = session_options(self._threads)
        options.enable_mem_pattern = False  # would double the memory of activations without being faster
        return options

    def _read_weights(self, path: Path, place: Path | None) -> Callable[[], Session]:
        """Read a graph and the trunk's weights; return a function that makes a session and keeps its optimised graph.

        The single-precision graph gets the folder's weights, with batch normalisation folded in here. The int8 graph
        contains its weights. ``UserError`` if the graph is damaged or belongs to another model.
        """
        bundle, weights, int8 = self._bundle, self._weights, self._precision == "int8"
        graph, digest = path.read_bytes(), None if bundle.shipped else weights_digest(weights)
        runtime = import_runtime()
        sources: dict[str, GraphWeight] = {}
        if not int8:
            info = GraphInfo.read(bundle.folder, bundle.shipped)
            if digest is not None and (hashlib.sha256(graph).hexdigest() != info.graph or digest != info.trunk):
                raise UserError(
                    f"{path} does not belong to {WEIGHTS} or {GRAPH_WEIGHTS} beside it: export the model again"
                )
            sources = info.weights
        with _user_errors(path):
            kernels = _make_room(weights, sources)
            arrays = [folded(weights, weight, kernels.get(name)) for name, weight in sources.items()]
            values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        weights.release()

        def options() -> Any:
            made = self._options()
            made.add_external_initializers(list(sources), values)
            return made

        def open(provider: str) -> Any:
            return keep(place, options, lambda o: runtime.InferenceSession(graph, o, providers=[provider]))

        def make() -> Session:
            session = Session(path, open, self.device)
            if int8 and digest not in (None, session.metadata.get(TRUNK_DIGEST)):
                raise UserError(f"{path} does not belong to {WEIGHTS} beside it: export the model again")
            return session

        return make

    def to(self, device: str) -> None:
        """Run on another device from the next image on."""
        with self._opening:
            if device != self.device:
                self.device, self._read = device, None
                self.__dict__.pop("_opened", None)

    def encode(self, pixels: Sequence[np.ndarray]) -> list[ImageMaps]:
        """Return the maps of images ``(3, h, w)``, one at a time: a batch would exceed the CPU's caches."""
        strides = self._bundle.trunk.strides
        return [ImageMaps(self._run(image), strides, (image.shape[2], image.shape[1])) for image in pixels]

    def _run(self, image: np.ndarray) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for session in self._sessions:
            outputs |= session.run({"pixels": image[None]})
        return outputs

    def propose(self, maps: ImageMaps) -> RpnOutput:
        if (anchors := self._anchors.get(maps.input_size)) is None:
            sizes = [maps.output(f"region{stride}").shape[1:] for stride in maps.strides]
            levels = zip(self._shapes, sizes, maps.strides, strict=True)
            anchors = np.concatenate([anchor_grid(kinds, size[0], size[1], stride) for kinds, size, stride in levels])
            if len(anchors) != len(maps.output("logits")):
                raise UserError(f"proposals.anchors has other numbers of shapes than when {GRAPH} was made")
            self._anchors[maps.input_size] = anchors
        return RpnOutput(anchors, maps.output("logits"), maps.output("offsets"))


class Session:
    """A graph in ONNX Runtime on a device; warns on stderr if its first result differs from the CPU's.

    Args:
        open: function that returns a session for a provider; called again for the CPU to compare.
        device: one of :data:`DEVICES`.

    Raises:
        UserError: the graph is damaged or of another model, or the device does not exist or cannot be used.
    """

    def __init__(self, path: Path, open: Callable[[str], Any], device: str = "cpu") -> None:
        self.path, self._device = path, device
        provider = find_provider(device)
        self._session = self._load(open, provider)
        if self._session.get_providers()[0] != provider:  # it would silently use the CPU
            raise UserError(
                f"device {device}: {provider} of ONNX Runtime cannot be loaded, such as for want of a driver"
            )
        self._session.disable_fallback()
        self._open = None if device == "cpu" else open  # holds the weights until the first result is compared
        self.inputs = {each.name: each for each in self._session.get_inputs()}
        self.outputs = [each.name for each in self._session.get_outputs()]
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map

    def _load(self, open: Callable[[str], Any], provider: str) -> Any:
        with _user_errors(self.path, "" if provider == DEVICES["cpu"].name else f" by {provider}"):
            return open(provider)

    def run(self, values: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return outputs by name; default: all. ``UserError`` if the graph cannot take the values."""
        names = list(names or self.outputs)
        try:
            found = self._session.run(names, dict(values))
            if (open := self._open) is not None:
                self._open = None
                self._compare(found, self._load(open, DEVICES["cpu"].name).run(names, dict(values)))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.path} cannot take this: {' '.join(str(error).split())[:200]}") from error
        return dict(zip(names, found, strict=True))

    def _compare(self, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
        shares: list[float] = []
        for one, other in zip(found, wanted, strict=True):  # equal infinities do not differ
            apart = np.subtract(one, other, where=one != other, out=np.zeros(other.shape))
            largest = np.abs(other[np.isfinite(other)]).max(initial=1e-9)
            shares.append(float(np.abs(apart).max(initial=0) / largest))
        if not (worst := max(shares, default=0.0)) <= ALLOWED:
            text = f"answers differ from the CPU's by {worst:.2g} of their largest value"
            print(f"{self.path}: on the device {self._device} {text}", file=sys.stderr)


def find_provider(device: str) -> str:
    """Return the name of ONNX Runtime's provider for a device; ``UserError`` if it is not available."""
    if device not in DEVICES:
        raise UserError(f"the engine onnx has no device {device!r}; there are {', '.join(DEVICES)}")
    if device != "cpu" and (lacks := missing(device)):
        raise UserError(f"device {device}: {lacks}; or leave it out, for the CPU, or choose the engine torch")
    return DEVICES[device].name


def missing(device: str) -> str:
    """Return what the installed ONNX Runtime lacks for a device; empty if it has the provider."""
    name, package = DEVICES[device]
    if name in import_runtime().get_available_providers():
        return ""
    return f"this ONNX Runtime has no {name}: pip uninstall onnxruntime, then pip install {package}"


def session_options(threads: int | None) -> Any:
    """Return session options; default: as many threads as the process may use."""
    options = import_runtime().SessionOptions()
    options.intra_op_num_threads = threads or available_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves processors to other threads
    # Processors without VNNI add byte products in 16 bits. With int8 weights that overflows; with uint8 it does not.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3  # hides warnings about missing GPUs in containers
    return options


@contextlib.contextmanager
def _user_errors(path: Path, by: str = "") -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime has its own classes, only some of which are RuntimeErrors
        raise UserError(f"{path} cannot be loaded{by}: {' '.join(str(error).split())[:200]}") from error


def _open_kept(place: Path, options: Any, provider: str) -> Any:
    return import_runtime().InferenceSession(str(place / KEPT_GRAPH), options, providers=[provider])


def open_tower(path: Path, threads: int | None = None, device: str = "cpu") -> Session:
    """Return the session of the image tower that belongs to a trunk; ``UserError`` if the graph is another one."""
    runtime = import_runtime()
    place = kept_place([path], runtime.__version__, runtime.get_build_info()) if device == "cpu" else None
    options = partial(session_options, threads)

    def open(provider: str) -> Any:
        if is_kept(place):
            try:
                return _open_kept(place, options(), provider)
            except Exception:
                remove_kept(place)
        return keep(place, options, lambda o: runtime.InferenceSession(path, o, providers=[provider]))

    session = Session(path, open, device)
    if lacking := {TOWER, SUMMARY} - set(session.outputs):
        raise UserError(f"{path} is another graph: it does not give {min(lacking)}")
    return session


def weights_digest(weights: Weights, without: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 of stored weights, except those whose names begin with one of ``without``."""
    digest = hashlib.sha256()
    for name in weights.names():
        if name.startswith(without):
            continue
        value = weights.stored(name)
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


def _make_room(weights: Weights, sources: Mapping[str, GraphWeight]) -> dict[str, np.ndarray]:
    """Allocate the kernels to be folded as one block, for which the system can use huge pages, which are faster."""
    folds = [name for name, weight in sources.items() if weight.kind == "weight" and weight.normalisation is not None]
    shapes = [weights.below(sources[name].layer).shape("weight") for name in folds]
    ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
    parts = np.split(np.empty(ends[-1] if folds else 0, np.float32), ends[:-1])
    return {name: part.reshape(shape) for name, part, shape in zip(folds, parts, shapes, strict=False)}


def folded(weights: Weights, weight: GraphWeight, out: np.ndarray | None = None) -> np.ndarray:
    """Return a weight of the graph with the following batch normalisation folded in; a kernel goes to ``out``."""
    layer = weights.below(weight.layer)
    if weight.normalisation is None:
        return layer[weight.kind]
    norm = weights.below(weight.normalisation)
    scale = norm["weight"] / np.sqrt(norm["running_var"] + np.float32(weight.eps))
    if weight.kind == "weight":
        stored = layer.stored("weight")
        kernel = in_single(stored, np.empty(stored.shape, np.float32) if out is None else out)
        kernel *= scale.reshape(-1, *[1] * (kernel.ndim - 1))
        return kernel
    bias = layer["bias"] if layer.has("bias") else np.float32(0)
    return (bias - norm["running_mean"]) * scale + norm["bias"]


def import_runtime() -> Any:
    """Import ONNX Runtime with telemetry disabled; ``UserError`` if it does not work."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, at import
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


# Optimised graphs in the user's cache
#
# A session opens several times as fast from one, and the process needs less memory, because the weights are mapped
# from the file (docs/models.md). A folder has a graph and its weights. Its name is a hash of the files that it was made
# from, of ONNX Runtime's build and of the processor: the optimised layout suits only that.


def kept_place(files: Sequence[Path], *facts: object) -> Path | None:
    """Return the folder for the optimised graph of some files, which need not exist yet.

    None if they are small, or there is no cache folder.
    """
    try:
        found = [(path.resolve(), path.stat()) for path in files]
        if sum(stat.st_size for _, stat in found) < LEAST_KEPT:
            return None
        stamps = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in found]
        home = cache_folder() / "graphs"
    except (OSError, RuntimeError):  # the latter without a home folder
        return None
    return home / hashlib.sha256(json.dumps([stamps, _processor(), *facts]).encode()).hexdigest()[:32]


def _processor() -> list[str]:
    found = [platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if not line.strip():
                    break
                if line.partition(":")[0].strip() in FACTS:
                    found.append(line.strip())
    except OSError:
        found += [platform.processor(), platform.node()]
    return found


def is_kept(place: Path | None) -> TypeGuard[Path]:
    """Return whether the folder has a whole graph, and note that it is used."""
    if place is None or not (sizes := read_record(place / KEPT_SIZES)):
        return False
    with contextlib.suppress(OSError):
        if all((place / name).stat().st_size == size for name, size in sizes.items()):
            with contextlib.suppress(OSError):
                os.utime(place)
            return True
    return False


def keep(place: Path | None, options: Callable[[], Any], open: Callable[[Any], Any]) -> Any:
    """Open a session, and keep its optimised graph in a folder if that can be written.

    Args:
        options: function that returns new session options.
        open: function that opens a session with such options.
    """
    session = part = None
    if place is not None:
        import tempfile

        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=place.parent))
            settings = options()
            settings.optimized_model_filepath = str(part / KEPT_GRAPH)
            settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", KEPT_WEIGHTS)
            settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
            session = open(settings)
            _put_in_place(part, place)
        except Exception:  # such as a full disk, which ONNX Runtime reports in several ways; the graph opens without it
            pass
        finally:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
    return open(options()) if session is None else session


def remove_kept(place: Path) -> None:
    """Remove a graph that cannot be opened."""
    shutil.rmtree(place, ignore_errors=True)


def _put_in_place(part: Path, place: Path) -> None:
    """Give a new graph its name, and remove those that were not used for the longest time."""
    sizes = {name: (part / name).stat().st_size for name in (KEPT_GRAPH, KEPT_WEIGHTS)}
    (part / KEPT_SIZES).write_text(json.dumps(sizes))
    for name in (KEPT_GRAPH, KEPT_WEIGHTS, KEPT_SIZES):
        sync(part / name)
    if not is_kept(place):  # otherwise another process was faster
        remove_kept(place)
        part.rename(place)
    used = {path: path.stat().st_mtime for path in place.parent.iterdir()}
    graphs = sorted((path for path in used if not path.name.startswith(UNFINISHED)), key=lambda path: -used[path])
    now = time.time()
    unfinished = [path for path in used if path not in graphs and now - used[path] > ABANDONED]
    for path in (*graphs[MOST_KEPT:], *unfinished):
        remove_kept(path)
