"""The supported families of third-party models, and where a model is: a folder, or a repository on the hub.

A folder has weights as transformers writes them, or graphs for ONNX Runtime in a subfolder, or both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from saywhere.errors import UserError
from saywhere.files import read_record
from saywhere.models.bundle import GRAPH_DEVICES, HUB, asking_hub, check_hashes

CONFIG = "config.json"
FILES = ("*.json", "*.txt", "*.model")
"""Files downloaded besides weights or graphs: configurations and vocabularies; no code, and no pickled weights."""
WEIGHTS = "*.safetensors"
GRAPHS = "onnx"
"""The subfolder with the graphs."""
PRECISIONS = {"float32": "", "fp32": "", "int8": "_quantized"} | {
    name: f"_{name}" for name in ("fp16", "q4", "q4f16", "bnb4", "uint8")
}
"""File name suffix of the graphs in each precision."""


class Family(NamedTuple):
    """A family of models.

    Attributes:
        name: name of the family.
        module: module of its adapter.
        long_side: long side to decode images to, in pixels, so that the short side of a wide image is large enough.
        describes: whether it finds regions by itself; the others only place phrases.
        graphs: names of its published graphs.
    """

    name: str
    module: str
    long_side: int
    describes: bool = False
    graphs: tuple[str, ...] = ()


SEQ2SEQ = ("vision_encoder", "embed_tokens", "encoder_model", "decoder_model_merged")

FAMILIES = {
    "florence2": Family("Florence-2", "saywhere.adapters.florence2", 1536, True, SEQ2SEQ),
    "grounding-dino": Family("Grounding DINO", "saywhere.adapters.grounding_dino", 1333, False, ("model",)),
    "owlv2": Family("OWLv2", "saywhere.adapters.owlv2", 1008),
}
"""The families, by the ``model_type`` of their configuration."""


class Adapted(NamedTuple):
    """A model of a known family: its folder, its hub repository ``OWNER/NAME``, if any, and the engine to use."""

    folder: Path
    family: Family
    repository: str | None = None
    engine: str = "torch"

    def files(self, precision: str | None = None) -> list[Path]:
        """Return the files that determine the answers in a precision."""
        own = _files(self.folder, self.family, self.engine, suffix(precision or "float32"))
        return sorted({*self.folder.glob("*.json"), *own})


def find_adapted(
    name_or_folder: str | Path,
    engine: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    **hub: Any,
) -> Adapted | None:
    """Find a third-party model; return None if the name is of a saywhere model, or of no model.

    Args:
        name_or_folder: ``hub:OWNER/NAME``, downloaded unless it is in the hub's cache, or a folder.
        engine: ``onnx`` for graphs, ``torch`` for weights. None: whichever exist; if both do, graphs, unless
            ``device`` is not in :data:`saywhere.models.bundle.GRAPH_DEVICES`.
        device: device to run on.
        precision: precision of downloaded graphs, one of :data:`PRECISIONS`; None: ``float32``.
        hub: ``revision`` and ``cache_dir`` of the download.

    Raises:
        UserError: the hub does not provide it, there is no adapter for its family, or no graph for the engine ``onnx``.
    """
    name = str(name_or_folder)
    engines = (engine,) if engine else ("onnx", "torch") if device in GRAPH_DEVICES else ("torch", "onnx")
    if name.startswith(HUB):
        return _fetch(name, engines, precision or "float32", **hub)
    path = Path(name) / CONFIG
    stored = read_record(path) if path.is_file() else {}  # the next reader of the folder reports what is wrong
    if "model_type" not in stored or "parts" in stored:
        return None
    return _choose(path.parent, _family(stored, name), None, engines)


def suffix(precision: str) -> str:
    """Return the file name suffix of a precision's graphs; raise ``UserError`` if there is no such precision."""
    if precision not in PRECISIONS:
        raise UserError(f"no precision {precision!r}; graphs of the hub have {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]


def _choose(folder: Path, family: Family, repository: str | None, engines: tuple[str, ...]) -> Adapted:
    """Choose the first engine that has files; without any choose torch, which reports what is missing."""
    name = folder if repository is None else f"{HUB}{repository}"
    for engine in engines:
        if any(_files(folder, family, engine)):
            return Adapted(folder, family, repository, engine)
    if engines == ("onnx",):
        lacks = "has no graph in its folder onnx" if family.graphs else f"is of {family.name}, which has no graphs"
        raise UserError(f"{name} {lacks}: run it with the engine torch")
    return Adapted(folder, family, repository)


def _files(folder: Path, family: Family, engine: str, end: str = "*") -> Iterator[Path]:
    """Yield the files that an engine runs; ``end`` is that of the graphs' names."""
    if engine == "torch":
        yield from folder.glob(WEIGHTS)
    for graph in family.graphs if engine == "onnx" else ():
        yield from (folder / GRAPHS).glob(f"{graph}{end}.onnx")


def _family(stored: dict[str, Any], name: str) -> Family:
    kind = stored.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"{name}: there is no adapter for models of the type {kind!r}, only for {known}")
    return FAMILIES[kind]


@functools.cache
def _fetch(name: str, engines: tuple[str, ...], precision: str, **hub: Any) -> Adapted | None:
    """Download a model, its configuration first, so as not to download the weights of an unsupported family.

    Only the files of the first engine for which the repository has some are downloaded. Returns None, after downloading
    only the configuration, if it is a saywhere model.
    """
    with asking_hub(name) as (huggingface_hub, repository):
        path = Path(huggingface_hub.hf_hub_download(repository, CONFIG, **hub))
        stored, folder, fetch = read_record(path), path.parent, huggingface_hub.snapshot_download
        if "parts" in stored:
            return None
        family = _family(stored, name)
        for engine in engines:
            graphs = [f"{GRAPHS}/{graph}{suffix(precision)}.onnx*" for graph in family.graphs if engine == "onnx"]
            if graphs:
                fetch(repository, allow_patterns=graphs, **hub)
            own = [*FILES, WEIGHTS] if engine == "torch" else [*FILES]
            if graphs or engine == "torch":
                folder = Path(fetch(repository, allow_patterns=own, ignore_patterns=["*/*"], **hub))
            check_hashes(name, folder)
            if any(_files(folder, family, engine)):
                break
    return _choose(folder, family, repository, engines)
