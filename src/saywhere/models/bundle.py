"""Model folders: one format for the bundled model, for training's checkpoints and for what ``saywhere export`` makes.

A folder holds ``config.json`` (description, trunk, parts), ``model.safetensors`` (weights, named ``trunk.*`` and
``<part>.*``), ``vocabulary.json`` (words of each part), ``calibration.json`` (what was
fitted after training, see :mod:`saywhere.calibration`; perhaps) and ``README.md`` (the card). A training run writes one
part; a bundle has several on one trunk. What ``saywhere export`` writes has also ``trunk.onnx``, the trunk as a graph
without weights, and ``trunk.json``, which says where its weights are in the weight file; and perhaps
``trunk-int8.onnx``, the graph in int8 with its weights, and ``tower.onnx``, CLIP's image tower with its weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from saywhere import calibration
from saywhere import options as user_options
from saywhere.calibration import Calibration
from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import Config, TrunkConfig, override
from saywhere.errors import UserError
from saywhere.files import read_json, read_record, write_text
from saywhere.text import Vocabulary

C = TypeVar("C", bound=Config)
_reading = threading.Lock()

BUNDLED = Path(__file__).parents[1] / "pretrained"
"""Folder of the models that ship with the package."""
SHIPPED = "86b885c5b195a07e4eaa1207462fe31ed98cb85e5725bf2d87b33478ce8e54a0"
"""SHA-256 of the bundled model's ``config.json``, which is not checked again at each start."""
WEIGHTS, CONFIG, VOCABULARY, CARD = "model.safetensors", "config.json", "vocabulary.json", "README.md"
GRAPH, GRAPH_WEIGHTS, GRAPH_INT8, GRAPH_TOWER = "trunk.onnx", "trunk.json", "trunk-int8.onnx", "tower.onnx"
HUB = "hub:"
"""Prefix of a model of the Hugging Face hub, ``hub:OWNER/NAME``; nothing is downloaded without it."""
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""A repository of the hub, ``OWNER/NAME``; ``./folder`` is none."""
PACKAGES = {"large": "saywhere_large"}
"""Models that are packages of their own, by name."""
GRAPH_DEVICES = (None, "cpu", "coreml", "directml", "openvino")
"""Devices on which a model with a graph runs by the engine onnx, if no engine is named; None is the CPU."""
CHECKED = "saywhere-checked.json"
"""Which files of a model in the hub's cache have the content that their names stand for."""
MAX_MESSAGE = 400
"""Letters of a message about a file."""
FILES = (WEIGHTS, CONFIG, VOCABULARY)
OPTIONAL = (CARD, GRAPH, GRAPH_WEIGHTS, GRAPH_INT8, GRAPH_TOWER, calibration.FILE)
CONFIGS: dict[str, type[Config]] = {
    "densecap": DenseCapConfig,
    "aligner": AlignerConfig,
    "captioner": CaptionerConfig,
    "nouns": NounsConfig,
}
"""The options of each part, but for those that only reproduce a paper."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """Contents of a model folder, all checked; the weights are still on the disk.

    Attributes:
        trunk: options of the network that all parts share.
        mean, std: of the pixels that the network takes, per channel.
        shipped: it is the bundled model as it ships, whose files fit each other.
    """

    folder: Path
    description: str
    trunk: TrunkConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    configs: Mapping[str, Any]
    vocabularies: Mapping[str, Vocabulary]
    calibration: Calibration
    shipped: bool = False

    @classmethod
    def read(cls, name_or_folder: str | Path) -> Bundle:
        """Read a model folder's configuration and vocabularies.

        Raises:
            UserError: there is no such model, a file is missing, or one of its values is wrong; the message names the
                file and the value.
        """
        try:
            folder = find_folder(name_or_folder)
            files = [path for name in (CONFIG, VOCABULARY, calibration.FILE) if (path := folder / name).is_file()]
            found = [path.stat() for path in files]
            with _reading:  # a command asks for it before it opens an image, and a thread that opens the network too
                return cls._read(folder, tuple((f.st_dev, f.st_ino, f.st_size, f.st_mtime_ns) for f in found))
        except UserError as error:
            raise UserError(_one_line(str(error))) from error

    @classmethod
    @lru_cache(maxsize=1)
    def _read(cls, folder: Path, _: tuple[tuple[int, ...], ...]) -> Bundle:
        """Read a folder, or return what was read if its files are the same."""
        path = folder / CONFIG
        shipped = folder.parent == BUNDLED and hashlib.sha256(path.read_bytes()).hexdigest() == SHIPPED
        stored = read_json(path)
        if shipped:
            trunk = TrunkConfig.restore(stored["trunk"])
        else:
            trunk = _config(TrunkConfig, stored.get("trunk"), path, "trunk")
        pixels = _mapping(stored.get("preprocess"), f"{path}: preprocess")
        parts = _mapping(stored.get("parts"), f"{path}: parts")
        if not parts:
            raise UserError(f"{path}: parts is empty: the model can do nothing")
        if unknown := [part for part in parts if part not in CONFIGS]:
            from saywhere import reproductions

            known = [*CONFIGS, *reproductions.values("config")]
            if unknown := [part for part in unknown if part not in known]:
                raise UserError(f"{path}: unknown part {unknown[0]!r}; known are {', '.join(known)}")
        description = stored.get("description", "")
        if not isinstance(description, str):
            raise UserError(f"{path}: description must be a string, not {description!r}")
        if shipped:
            configs: dict[str, Any] = {part: CONFIGS[part].restore(o, trunk=trunk) for part, o in parts.items()}
        else:
            configs = {part: _part(part, options, trunk, path) for part, options in parts.items()}
        vocabularies = _vocabularies(folder / VOCABULARY, list(parts))
        mean, std = (_levels(pixels.get(name), f"{path}: preprocess.{name}") for name in ("mean", "std"))
        return cls(folder, description, trunk, mean, std, configs, vocabularies, Calibration.read(folder), shipped)

    @classmethod
    def read_own(cls, folder: str | Path) -> Bundle:
        """Read the folder of a model that is to be changed; as :meth:`read`, but not one that comes with saywhere."""
        bundle = cls.read(folder)
        if bundle.folder.resolve().parent == BUNDLED.resolve():
            raise UserError(f"{folder} comes with saywhere; copy {bundle.folder} and change the copy")
        return bundle

    def with_options(self, values: Mapping[str, Any]) -> Bundle:
        """Return the bundle with some options changed, by name; raises as :func:`saywhere.configs.parts.override`."""
        if not values:
            return self
        configs: dict[str, Any] = override(self.configs, values)
        return replace(self, configs=configs, trunk=next(iter(configs.values())).trunk, shipped=False)


@dataclass(frozen=True)
class GraphWeight:
    """Source of a weight of the graph.

    Attributes:
        layer: name of the convolution or other layer in the weight file, below ``trunk.``.
        kind: the name of the array in that layer, such as ``weight`` or ``bias``.
        normalisation: name of the batch normalisation that is folded into it, or None.
    """

    layer: str
    kind: str
    normalisation: str | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class GraphInfo:
    """Weights that a graph takes, and the files it belongs to.

    Attributes:
        graph: SHA-256 of the graph's file.
        trunk: SHA-256 of the trunk's weights.
        weights: by the name that the graph gives them.
    """

    graph: str
    trunk: str
    weights: dict[str, GraphWeight]

    @classmethod
    def read(cls, folder: Path, shipped: bool = False) -> GraphInfo:
        """Read ``trunk.json`` of a model folder; ``UserError`` if it is missing or, unless ``shipped``, unknown."""
        path = folder / GRAPH_WEIGHTS
        try:
            if shipped:
                stored = read_json(path)
                return cls(**{**stored, "weights": {key: GraphWeight(**w) for key, w in stored["weights"].items()}})
            return user_options.from_dict(cls, read_json(path), source=str(path))
        except UserError as error:
            raise UserError(_one_line(str(error))) from error


def list_models() -> dict[str, str]:
    """Return the models that ship with the package or are installed beside it: name and one line of description.

    Example:
        >>> list(saywhere.list_models())
        ['flickr-coco']
    """
    folders = {folder.name: folder for folder in sorted(BUNDLED.iterdir())} if BUNDLED.is_dir() else {}
    folders |= {name: folder for name in PACKAGES if (folder := _packaged(name)) is not None}
    return {name: Bundle.read(folder).description for name, folder in folders.items() if (folder / CONFIG).is_file()}


def find_folder(name_or_folder: str | Path, **hub: Any) -> Path:
    """Return the folder of a model: a folder, a bundled model's name, or ``hub:OWNER/NAME``, which is fetched.

    Args:
        hub: ``revision`` and ``cache_dir`` of a model of the hub.

    Raises:
        UserError: there is no such model, or one of its files is missing.
    """
    folder = _find(name_or_folder, hub)
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"{folder} is not a saywhere model: {missing[0]} is missing")
    return folder


def _packaged(name: str) -> Path | None:
    """Return the folder of a model that is a package of its own; None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGES[name])
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _find(name_or_folder: str | Path, hub: Mapping[str, Any]) -> Path:
    name = str(name_or_folder)
    if (BUNDLED / name / CONFIG).is_file() and not (Path(name) / CONFIG).is_file():
        refuse_hub(name, hub)
        return BUNDLED / name
    if name in PACKAGES and not (Path(name) / CONFIG).is_file():
        refuse_hub(name, hub)
        if (folder := _packaged(name)) is not None:
            return folder
        package = PACKAGES[name].replace("_", "-")
        raise UserError(
            f"the model {name!r} is a package of its own, {package}, not installed here: see docs/models.md"
        )
    if Path(name).is_dir():
        refuse_hub(name, hub)
        return Path(name)
    if name.startswith(HUB):
        return _download(name, hub)
    names = ", ".join(path.name for path in sorted(BUNDLED.glob("*/"))) or "none"
    way = f"; a model of the Hugging Face hub is named {HUB}{name}" if REPOSITORY.fullmatch(name) else ""
    raise UserError(f"no model {name!r}: not a folder, and the bundled models are {names}{way}")


def refuse_hub(name: str, hub: Mapping[str, Any]) -> None:
    """Raise a ``UserError`` if there are options of the hub, ``revision`` or ``cache_dir``, for a local model."""
    if hub:
        raise UserError(f"{name}: {next(iter(hub))} is only for models of the hub, and this one is local; leave it out")


def _download(name: str, hub: Mapping[str, Any]) -> Path:
    with asking_hub(name) as (huggingface_hub, repository):
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=[*FILES, *OPTIONAL], **hub))
    check_hashes(name, folder)
    return folder


@contextlib.contextmanager
def asking_hub(name: str) -> Iterator[tuple[Any, str]]:
    """Yield huggingface_hub, and the repository of a model named ``hub:OWNER/NAME``.

    It is a ``UserError`` if the name has another form, the package is not installed, or a download fails.
    """
    repository = name.removeprefix(HUB)
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{name}: a model of the hub is named {HUB}OWNER/NAME")
    try:
        import logging

        import huggingface_hub
    except ImportError:
        raise UserError(f"{name}: downloading it needs huggingface_hub: pip install 'saywhere[hub]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # not a line for each time that it tries again
    try:
        yield huggingface_hub, repository
    except UserError:
        raise
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: the hub does not give it, and its cache does not have it: {reason}") from error


def check_hashes(name: str, folder: Path) -> None:
    """Check a model's files in the hub's cache by the hashes that the cache names them by, each file once.

    These are the SHA-256 of large files and Git's hash of others, as the hub gave them; huggingface_hub compares sizes.
    Files of a cache without links are not checked. A file with another content is removed, to be fetched again, and a
    ``UserError``.
    """
    record = folder.parent.parent / CHECKED
    checked = read_record(record)
    before = dict(checked)
    for link in sorted(each for each in folder.rglob("*") if each.is_symlink() and each.is_file()):
        wanted, status = Path(os.readlink(link)).name, link.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        if len(wanted) not in (40, 64) or checked.get(wanted) == stamp:
            continue
        digest = hashlib.sha256() if len(wanted) == 64 else hashlib.sha1(b"blob %d\0" % stamp[0], usedforsecurity=False)
        with link.open("rb") as file:
            hashlib.file_digest(file, lambda digest=digest: digest)
        if digest.hexdigest() != wanted:
            for path in (link.resolve(), folder.parent.parent / "blobs" / wanted, link):
                path.unlink(missing_ok=True)
            way_out = "it is removed from the cache; run the command again"
            raise UserError(f"{name}: {link.relative_to(folder)} is not what the hub has, by its hash: {way_out}")
        checked[wanted] = stamp
    if checked != before:
        with contextlib.suppress(OSError):  # where the cache may not be written, files are checked each time
            write_text(record, json.dumps(checked))


def _one_line(text: str) -> str:
    """A message about a file, whose own texts may have line breaks, escape sequences or half characters, or be long."""
    text = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]} ..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _mapping(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{source} must be a mapping, not {value!r}" if value is not None else f"{source} is missing")
    return value


def _config(cls: type[C], options: Any, path: Path, name: str) -> C:
    try:
        return cls.from_dict(_mapping(options, name), prefix=f"{name}.")
    except user_options.UnknownKeyError as error:
        reason = "it is misspelt, or another version of saywhere wrote the model: make the model again"
        raise UserError(f"{path}: {error.problem}; {reason}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _part(part: str, options: Any, trunk: TrunkConfig, path: Path) -> Config:
    """Return the options of a part, which stands on ``trunk``."""
    name = f"parts.{part}"
    if "trunk" in _mapping(options, f"{path}: {name}"):
        raise UserError(f"{path}: {name}.trunk: the trunk's options stand at the top of the file")
    if (kind := CONFIGS.get(part)) is None:
        from saywhere import reproductions

        kind = reproductions.find(f"config={part}")
    return _config(kind, {**options, "trunk": trunk.to_dict()}, path, name)


def _levels(value: Any, source: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else []
    largest = sys.float_info.max  # an int may be larger than any float
    good = [v for v in numbers if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) <= largest]
    if len(good) != 3 or len(numbers) != 3 or (source.endswith("std") and min(good) <= 0):
        wanted = "three numbers above 0" if source.endswith("std") else "three numbers"
        raise UserError(f"{source} must be {wanted}, not {value!r}")
    return tuple(float(v) for v in good)


def _vocabularies(path: Path, parts: Sequence[str]) -> dict[str, Vocabulary]:
    stored = read_json(path)
    found: dict[str, Vocabulary] = {}
    for part in parts:
        if part not in stored:
            raise UserError(f"{path} has no vocabulary of the part {part}")
        try:
            found[part] = Vocabulary.from_dict(stored[part])
        except ValueError as error:
            raise UserError(f"{path}: {part} is not a vocabulary: {error}") from error
    return found
