"""Model folders: one format for the bundled model, training checkpoints and the output of ``saywhere export``.

A folder holds ``config.json`` (description, trunk, parts), ``model.safetensors`` (weights, named ``trunk.*`` and
``<part>.*``), ``vocabulary.json`` (words of each part), optionally ``calibration.json`` (fitted after training, see
:mod:`saywhere.calibration`), and ``README.md`` (model card). A training run writes one part; a bundle has several parts
on one trunk. ``saywhere export`` adds ``trunk.onnx``, the trunk as a graph without weights, and ``trunk.json``, which
maps the graph's weights to the weight file. It can also add ``trunk-int8.onnx``, the int8 graph with its weights, and
``tower.onnx``, CLIP's image tower with its weights.
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
from dataclasses import replace
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
from saywhere.options import dataclass
from saywhere.text import Vocabulary

C = TypeVar("C", bound=Config)
_reading = threading.Lock()

BUNDLED = Path(__file__).parents[1] / "pretrained"
"""Folder of the models that ship with the package."""
SHIPPED = "14964dcb872fd9d8124871e1defee835e5d897f15752d977bef95335414ef63d"
"""SHA-256 of the bundled model's ``config.json``; with this hash the file is not validated at each start."""
WEIGHTS, CONFIG, VOCABULARY, CARD = "model.safetensors", "config.json", "vocabulary.json", "README.md"
GRAPH, GRAPH_WEIGHTS, GRAPH_INT8, GRAPH_TOWER = "trunk.onnx", "trunk.json", "trunk-int8.onnx", "tower.onnx"
INFORMATION = "information.safetensors"
"""Fisher information of the layer of box scores, which only fine-tuning reads."""
HUB = "hub:"
"""Prefix of a model of the Hugging Face hub, ``hub:OWNER/NAME``; nothing is downloaded without it."""
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""Pattern of a hub repository, ``OWNER/NAME``; does not match ``./folder``."""
PACKAGES = {"large": "saywhere_large"}
"""Models that are packages of their own: name and package."""
GRAPH_DEVICES = (None, "cpu", "coreml", "directml", "openvino")
"""Devices for which a model with a graph defaults to the engine onnx; None is the CPU."""
CHECKED = "saywhere-checked.json"
"""Record of the files in the hub's cache whose content matches the hash in their name."""
MAX_MESSAGE = 400
"""Maximum length of a message about a file, in characters."""
FILES = (WEIGHTS, CONFIG, VOCABULARY)
OPTIONAL = (CARD, GRAPH, GRAPH_WEIGHTS, GRAPH_INT8, GRAPH_TOWER, calibration.FILE, INFORMATION)
CONFIGS: dict[str, type[Config]] = {
    "densecap": DenseCapConfig,
    "aligner": AlignerConfig,
    "captioner": CaptionerConfig,
    "nouns": NounsConfig,
}
"""Configuration class of each part, except those that only reproduce a paper."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """Validated contents of a model folder; the weights stay on disk.

    Attributes:
        trunk: options of the network that all parts share.
        mean, std: normalisation of the input pixels, per channel.
        shipped: whether this is the unchanged bundled model, whose files are known to match.
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
        """Read the configuration and vocabularies of a model folder.

        Raises:
            UserError: there is no such model, a file is missing, or a value is wrong; the message names the file and
                the value.
        """
        try:
            folder = find_folder(name_or_folder)
            files = [path for name in (CONFIG, VOCABULARY, calibration.FILE) if (path := folder / name).is_file()]
            found = [path.stat() for path in files]
            with _reading:  # the command and the thread that opens the network read the bundle at the same time
                return cls._read(folder, tuple((f.st_dev, f.st_ino, f.st_size, f.st_mtime_ns) for f in found))
        except UserError as error:
            raise UserError(_one_line(str(error))) from error

    @classmethod
    @lru_cache(maxsize=1)
    def _read(cls, folder: Path, _: tuple[tuple[int, ...], ...]) -> Bundle:
        """Read a folder, or return the cached bundle if its files have not changed."""
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
    def read_own(cls, folder: str | Path, *parts: str) -> Bundle:
        """Read a model folder that is going to be changed: as :meth:`read`, but refuse models shipped with saywhere.

        ``UserError`` also if it lacks one of ``parts``.
        """
        bundle = cls.read(folder)
        if bundle.folder.resolve().parent == BUNDLED.resolve():
            raise UserError(f"{folder} comes with saywhere; copy {bundle.folder} and change the copy")
        if missing := [part for part in parts if part not in bundle.configs]:
            raise UserError(
                f"{folder} has no part {missing[0]}, which is needed for that; it has {', '.join(bundle.configs)}"
            )
        return bundle

    def with_options(self, values: Mapping[str, Any]) -> Bundle:
        """Return the bundle with some options changed, by name; errors as :func:`saywhere.configs.parts.override`."""
        if not values:
            return self
        configs: dict[str, Any] = override(self.configs, values)
        return replace(self, configs=configs, trunk=next(iter(configs.values())).trunk, shipped=False)


@dataclass(frozen=True)
class GraphWeight:
    """Where a weight of the graph comes from.

    Attributes:
        layer: layer name in the weight file, without the prefix ``trunk.``.
        kind: array name within the layer, such as ``weight`` or ``bias``.
        normalisation: name of the batch normalisation folded into the layer, or None.
    """

    layer: str
    kind: str
    normalisation: str | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class GraphInfo:
    """The weights of a graph, and the files it belongs to.

    Attributes:
        graph: SHA-256 of the graph file.
        trunk: SHA-256 of the trunk's weights.
        weights: source of each weight, by its name in the graph.
    """

    graph: str
    trunk: str
    weights: dict[str, GraphWeight]

    @classmethod
    def read(cls, folder: Path, shipped: bool = False) -> GraphInfo:
        """Read ``trunk.json`` of a model folder; ``UserError`` if it is missing or, unless ``shipped``, invalid."""
        path = folder / GRAPH_WEIGHTS
        try:
            if shipped:
                stored = read_json(path)
                return cls(**{**stored, "weights": {key: GraphWeight(**w) for key, w in stored["weights"].items()}})
            return user_options.from_dict(cls, read_json(path), source=str(path))
        except UserError as error:
            raise UserError(_one_line(str(error))) from error


def list_models() -> dict[str, str]:
    """Return the name and one-line description of each model that is bundled or installed as a package.

    Example:
        >>> list(saywhere.list_models())
        ['flickr-coco']
    """
    folders = {folder.name: folder for folder in sorted(BUNDLED.iterdir())} if BUNDLED.is_dir() else {}
    folders |= {name: folder for name in PACKAGES if (folder := _packaged(name)) is not None}
    return {name: Bundle.read(folder).description for name, folder in folders.items() if (folder / CONFIG).is_file()}


def find_folder(name_or_folder: str | Path, **hub: Any) -> Path:
    """Return the folder of a model: a folder, a bundled model's name, or ``hub:OWNER/NAME``, which is downloaded.

    Args:
        hub: ``revision`` and ``cache_dir`` for a model of the hub.

    Raises:
        UserError: there is no such model, or one of its files is missing.
    """
    folder = _find(name_or_folder, hub)
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"{folder} is not a saywhere model: {missing[0]} is missing")
    return folder


def content_files(folder: Path, precision: str | None) -> list[Path]:
    """Return the files of a model's folder that determine its answers; not all need exist."""
    graphs = (GRAPH_INT8, GRAPH_TOWER) if precision == "int8" else (GRAPH_TOWER,)
    return [folder / name for name in (*FILES, calibration.FILE, *graphs)]


def _packaged(name: str) -> Path | None:
    """Return the folder of a model with its own package; None if it is not installed."""
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
    names = ", ".join([*(path.name for path in sorted(BUNDLED.glob("*/"))), *PACKAGES])
    way = f"; a model of the Hugging Face hub is named {HUB}{name}" if REPOSITORY.fullmatch(name) else ""
    raise UserError(f"no model {name!r}: not a folder, and there are {names}{way}")


def refuse_hub(name: str, hub: Mapping[str, Any]) -> None:
    """Raise a ``UserError`` if hub options (``revision``, ``cache_dir``) are given for a local model."""
    if hub:
        raise UserError(f"{name}: {next(iter(hub))} is only for models of the hub, and this one is local; leave it out")


def _download(name: str, hub: Mapping[str, Any]) -> Path:
    with asking_hub(name) as (huggingface_hub, repository):
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=[*FILES, *OPTIONAL], **hub))
    check_hashes(name, folder)
    return folder


@contextlib.contextmanager
def asking_hub(name: str) -> Iterator[tuple[Any, str]]:
    """Yield the module huggingface_hub, and the repository of a model named ``hub:OWNER/NAME``.

    ``UserError`` if the name has another form, the package is not installed, or a download fails.
    """
    repository = name.removeprefix(HUB)
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{name}: a model of the hub is named {HUB}OWNER/NAME")
    try:
        import logging

        import huggingface_hub
    except ImportError:
        raise UserError(f"{name}: downloading it needs huggingface_hub: pip install 'saywhere[hub]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # no message for each retry
    try:
        yield huggingface_hub, repository
    except UserError:
        raise
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: is neither available from the hub nor in its cache: {reason}") from error


def check_hashes(name: str, folder: Path) -> None:
    """Check a model's files in the hub's cache against the hashes in their names, once per file.

    The hub names large files by SHA-256 and others by Git's hash; huggingface_hub itself compares only sizes. A cache
    without symbolic links is not checked. A file with the wrong content is deleted, so that it is downloaded again, and
    raises a ``UserError``.
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
        with contextlib.suppress(OSError):  # in a read-only cache, files are checked every time
            write_text(record, json.dumps(checked))


def _one_line(text: str) -> str:
    """Return a message as one printable line: file contents may add line breaks, escapes, surrogates, or be long."""
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
    """Return the options of a part, which uses ``trunk``."""
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
