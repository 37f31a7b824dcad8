"""Save, load and merge model folders; :mod:`saywhere.models.bundle` describes their format."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

import saywhere
from saywhere import reproductions
from saywhere.calibration import FILE as CALIBRATION
from saywhere.calibration import Calibration, Logistic
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import Config, ProposalConfig, SystemConfig, TrunkConfig
from saywhere.errors import UserError
from saywhere.files import FULL, is_utf8, link_or_copy, put_in_place, write_atomically, write_text
from saywhere.models.bundle import CARD, CONFIG, GRAPH_TOWER, INFORMATION, VOCABULARY, WEIGHTS, Bundle
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.build import find_conventions
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.trunk import Tower, Trunk, build_trunk
from saywhere.text import Vocabulary

N = TypeVar("N", bound=nn.Module)

NETWORKS: dict[str, type[nn.Module]] = {
    "densecap": DenseCap,
    "aligner": Aligner,
    "captioner": Captioner,
    "nouns": Nouns,
}
"""The network of each part, except those that only reproduce a paper."""
TRUNK = "trunk."
ARCHITECTURE = ("pyramid_channels", "anchors", "hidden_size", "two_way")
"""Proposal options that the shapes or the meaning of the weights depend on."""
SAVING = ".saving-"
SMALLEST = 1e-6
"""Minimum eigenvalue of an information matrix that is read."""
APART = "; parts of one model stand on one trunk: export it alone, or use saywhere finetune, which keeps the trunk"
"""Hint appended to errors about differing trunks."""


def save(
    networks: nn.Module | Mapping[str, nn.Module],
    folder: str | Path,
    card: str | None = None,
    description: str = "",
    dtype: torch.dtype = torch.float32,
    calibration: Calibration | None = None,
) -> Path:
    """Write a model folder: weights, configuration, vocabularies, model card and tower. No file is ever half written.

    The configuration is replaced last, after the weights that belong to it.

    Args:
        networks: a network, or several networks on one trunk by part name.
        folder: created if missing; its files are replaced.
        description: one line for ``saywhere models``.
        dtype: type of the stored floating-point weights; float16 halves the file.

    Raises:
        UserError: the folder cannot be written.
        ValueError: the networks do not share one trunk.
    """
    parts: dict[str, Any] = {part_of(networks): networks} if isinstance(networks, nn.Module) else dict(networks)
    first = next(iter(parts.values()))
    if any(network.trunk is not first.trunk for network in parts.values()):
        raise ValueError("the networks of a model share one trunk")
    weights: dict[str, Tensor] = {}
    for part, network in parts.items():
        for key, value in network.state_dict().items():
            stored = value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
            weights[key if key.startswith(TRUNK) else f"{part}.{key}"] = stored
    pixels = first.trunk.preprocess
    config = _config_text(
        description, first.config.trunk, pixels.mean, pixels.std, {part: n.config for part, n in parts.items()}
    )
    vocabularies = {part: network.vocabulary for part, network in parts.items()}
    card = card or f"# {', '.join(parts)}\n\n{description}\n"
    tower = None if first.trunk.tower is None else first.trunk.tower.path
    made = _write(Path(folder), weights, config, vocabularies, card, calibration, tower)
    (made / INFORMATION).unlink(missing_ok=True)  # an older one belongs to other weights
    return made


def part_of(network: nn.Module) -> str:
    """Return the part name of a network."""
    parts = [*NETWORKS, *reproductions.values("network")]
    return next(part for part in parts if isinstance(network, network_class(part)))


def network_class(part: str) -> type[nn.Module]:
    """Return the network class of a part."""
    return NETWORKS[part] if part in NETWORKS else reproductions.find(f"network={part}")


def load_networks(
    name_or_folder: str | Path,
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
    parts: Iterable[str] | None = None,
) -> dict[str, nn.Module]:
    """Return a model's networks by part, in eval mode, on one shared trunk.

    Args:
        name_or_folder: name of a bundled model, a model folder, or ``hub:OWNER/NAME``.
        options: configuration options that override the stored ones, named as in
            :func:`saywhere.configs.parts.override`. Options that the weights depend on cannot be changed.
        parts: parts to load; None for all.

    Raises:
        UserError: no such model or part, or a file is missing, damaged or does not fit the configuration.
    """
    bundle = Bundle.read(name_or_folder)
    bundle = bundle.with_options(options) if options else bundle
    wanted = list(bundle.configs if parts is None else parts)
    if missing := [part for part in wanted if part not in bundle.configs]:
        raise UserError(f"{bundle.folder} has no {missing[0]}; its parts are {', '.join(bundle.configs)}")
    configs = {part: bundle.configs[part] for part in wanted}
    weights = {k: v.float() if v.is_floating_point() else v for k, v in read_weights(bundle.folder).items()}
    trunk = _build_trunk(bundle.trunk, configs, bundle.folder)
    trunk.preprocess = replace(trunk.preprocess, mean=bundle.mean, std=bundle.std)
    trunk.tower = find_tower(bundle)
    networks = {
        part: network_class(part)(config, bundle.vocabularies[part], trunk=trunk) for part, config in configs.items()
    }
    unneeded = tuple(f"{TRUNK}{name}." for name in _needs(bundle.configs) if getattr(trunk, name) is None)
    try:
        trunk.load_state_dict(
            {k.removeprefix(TRUNK): v for k, v in weights.items() if k.startswith(TRUNK) and not k.startswith(unneeded)}
        )
        for part, network in networks.items():
            prefix = f"{part}."
            own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            network.load_state_dict({**own, **trunk.state_dict(prefix=TRUNK)})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        changed = f" with {', '.join(options)} changed" if options else ""
        raise UserError(f"{bundle.folder / WEIGHTS} cannot be loaded{changed}: {reason}") from error
    place = find_device(device)
    return {part: network.to(place).eval() for part, network in networks.items()}


def new_network(
    network: Callable[[Any, Vocabulary, Trunk], N], config: Any, vocabulary: Vocabulary, pretrained: bool = False
) -> N:
    """Build a network, untrained, on a trunk of its own; ``pretrained`` gives the trunk ImageNet weights.

    ``UserError`` if the backbone is unknown or its weights are not available.
    """
    return network(config, vocabulary, _build_trunk(config.trunk, {"": config}, Path(), pretrained))


def load_network(name_or_folder: str | Path, part: str | None = None) -> Any:
    """Return one network of a model, in eval mode, on a trunk with only what it needs.

    Raises:
        UserError: as :func:`load_networks`; or the model has several parts and ``part`` is None.
    """
    if part is None:
        parts = list(Bundle.read(name_or_folder).configs)
        if len(parts) > 1:
            raise UserError(f"{name_or_folder} has the parts {', '.join(parts)}: one of them is needed here")
        part = parts[0]
    return load_networks(name_or_folder, parts=[part])[part]


def change_options(folder: Path, options: Mapping[str, Any]) -> None:
    """Change options of a saved model that its weights do not depend on, named as in :func:`load_networks`.

    Raises:
        UserError: no such option, or the value is invalid.
    """
    bundle = Bundle.read(folder).with_options(options)
    text = _config_text(bundle.description, bundle.trunk, bundle.mean, bundle.std, bundle.configs)
    write_text(bundle.folder / CONFIG, text)


def change_calibration(folder: Path, fits: Mapping[str, Logistic | None]) -> None:
    """Replace calibrations of a saved model, by question; everything else stays."""
    before = Bundle.read(folder).calibration
    if (calibration := replace(before, **fits)) != before:
        calibration.write(folder)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder by name; ``UserError`` if the file cannot be loaded."""
    return load_tensors(folder / WEIGHTS)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; ``UserError`` if it cannot be loaded."""
    try:
        return load_file(path) if is_utf8(str(path)) else load(path.read_bytes())
    except (SafetensorError, RuntimeError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{path} cannot be loaded: {reason}") from error


INFORMATION_RANK = 128
"""Number of stored eigenvectors of an information matrix; these have .93 of the trace of the bundled model's."""


def write_information(folder: Path, matrix: np.ndarray) -> None:
    """Write the Fisher information ``(E + 1, E + 1)`` of a model's layer of box scores.

    Its largest eigenvalues are stored with their vectors, in half precision, and the mean of the others.
    """
    values, vectors = np.linalg.eigh(matrix)
    kept = values[-INFORMATION_RANK:].clip(0)
    rest = (np.trace(matrix) - kept.sum()) / max(len(matrix) - len(kept), 1)
    factor = torch.from_numpy((vectors[:, -INFORMATION_RANK:] * np.sqrt(kept)).T).half().contiguous()
    data = to_bytes({"factor": factor, "rest": torch.tensor([max(rest, SMALLEST)], dtype=torch.float32)})
    write_atomically(folder / INFORMATION, lambda stream: stream.write(data))


def read_information(folder: Path, size: int) -> np.ndarray | None:
    """Return the positive definite matrix ``(size, size)`` that :func:`write_information` stored; None without it.

    Raises:
        UserError: the file is damaged, or of another size.
    """
    path = folder / INFORMATION
    if not path.is_file():
        return None
    stored = load_tensors(path)
    shapes = {name: tuple(value.shape) for name, value in stored.items()}
    if shapes != {"factor": (min(INFORMATION_RANK, size), size), "rest": (1,)}:
        raise UserError(f"{path} does not fit the model: calibrate its boxes again (saywhere calibrate --what box)")
    factor = stored["factor"].double().numpy()
    if not np.isfinite(factor).all() or not 0 < float(stored["rest"]) < np.inf:
        raise UserError(f"{path} has values that are no information: calibrate the model's boxes again")
    return factor.T @ factor + float(stored["rest"]) * np.eye(size)


def change_weights(
    folder: Path,
    prefix: str,
    weights: Mapping[str, Tensor],
    options: Mapping[str, Any],
    vocabulary: Vocabulary | None = None,
) -> None:
    """Replace the weights of a saved model whose names start with a prefix and a dot, and options that belong to them.

    The new weights are stored in the precision of the others. The model card stays.

    Args:
        prefix: such as ``aligner.hubs``; ``weights`` are named without it.
        options, vocabulary: belong to the weights, as in :func:`change_options`; None keeps the part's vocabulary.
    """
    bundle = Bundle.read(folder).with_options(options)
    limits = torch.finfo(torch.float16)
    if not all(bool((value.float().abs() <= limits.max).all()) for value in weights.values()):
        raise UserError(f"{folder}: the new weights are too large for half precision, or no numbers")
    stored = {key: value for key, value in read_weights(bundle.folder).items() if not key.startswith(f"{prefix}.")}
    kinds = {value.dtype for value in stored.values() if value.is_floating_point()}
    dtype = torch.float32 if torch.float32 in kinds else torch.float16
    for key, value in weights.items():
        kept = value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype)
        stored[f"{prefix}.{key}"] = kept.contiguous()
    text = _config_text(bundle.description, bundle.trunk, bundle.mean, bundle.std, bundle.configs)
    card = (bundle.folder / CARD).read_text(encoding="utf-8") if (bundle.folder / CARD).is_file() else "# Model\n"
    vocabularies = {**bundle.vocabularies, **({} if vocabulary is None else {prefix: vocabulary})}
    _write(bundle.folder, stored, text, vocabularies, card, bundle.calibration)


def merge(
    folders: Sequence[str | Path],
    out: str | Path,
    description: str = "",
    replace: bool = False,
) -> Path:
    """Merge several models with equal trunks into one model folder; weights are copied bit for bit.

    The calibrations of each part are copied with it. A trunk may lack a head, pyramid or localization layer that
    another has.

    Args:
        folders: models with different parts.
        out: folder of the new model; its files are replaced.
        description: one line; if empty, the descriptions of the models joined.
        replace: if several models have a part, take the last one's. The first model sets the image size.

    Raises:
        UserError: a folder is no model, two have the same part, or the trunks differ; the message names the differing
            option or tensor.
    """
    weights: dict[str, Tensor] = {}
    configs: dict[str, Config] = {}
    vocabularies: dict[str, Vocabulary] = {}
    bundles = [Bundle.read(folder) for folder in folders]
    if not bundles:
        raise UserError("no model folders to merge")
    first = bundles[0]
    sources: dict[str, Path] = {}
    fits: dict[str, Logistic | None] = {}
    for bundle in bundles:
        _require_same_pixels(first, bundle, but=("long_side",) if replace else ())
        if both := [part for part in bundle.configs if part in configs]:
            if not replace:
                both_have = f"{sources[both[0]]} and {bundle.folder} both have the part {both[0]}"
                raise UserError(f"{both_have}; --replace takes the last one's")
            weights = {key: value for key, value in weights.items() if key.partition(".")[0] not in both}
        for key, value in read_weights(bundle.folder).items():
            one = weights.get(key, value)
            if one.shape != value.shape or not torch.equal(one.double(), value.double()):
                raise UserError(
                    f"{bundle.folder} and {sources[key]} have different trunks: the tensor {key} is not the same{APART}"
                )
            weights.setdefault(key, value)
            sources.setdefault(key, bundle.folder)
        configs.update(bundle.configs)
        vocabularies.update(bundle.vocabularies)
        fits |= bundle.calibration.of_parts([*bundle.configs])
        sources.update(dict.fromkeys(bundle.configs, bundle.folder))
    _shared_proposals(configs, Path(out))
    description = description or "; ".join(bundle.description for bundle in bundles)
    config = _config_text(description, first.trunk, first.mean, first.std, configs)
    card = f"# {Path(out).name}\n\n{description}\n"
    fitted = Calibration(**fits)  # pyright: ignore[reportArgumentType]
    return _write(Path(out), weights, config, vocabularies, card, fitted, _shared_tower(bundles))


def find_tower(bundle: Bundle) -> Tower | None:
    """Return the image tower of a model; None if it has none or its graph is missing."""
    path = bundle.folder / GRAPH_TOWER
    return Tower(path) if bundle.trunk.tower and path.is_file() else None


def _shared_tower(bundles: Sequence[Bundle]) -> Path | None:
    """Return the tower graph shared by models on one trunk; models without the file use that of the others."""
    towers = [tower for bundle in bundles if (tower := find_tower(bundle)) is not None]
    for tower in towers[1:]:
        if tower.digest != towers[0].digest:
            raise UserError(f"{tower.path} and {towers[0].path} differ: the models have different trunks")
    return towers[0].path if towers else None


def find_device(device: str | torch.device | None = None) -> torch.device:
    """Return a usable device (or ``UserError``); default: a GPU if there is one, else the CPU."""
    if device is None:
        mps = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else mps)
    try:
        wanted = torch.device(device)
        torch.zeros(0, device=wanted)
        return wanted
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise UserError(f"device {device!s} cannot be used here ({why}); leave it out, or say cpu") from error


def _require_same_pixels(first: Bundle, other: Bundle, but: Collection[str] = ()) -> None:
    """Refuse trunks that differ in pixel statistics or in options other than ``but``."""
    for f in fields(TrunkConfig):
        if f.name in but:
            continue
        one, two = getattr(first.trunk, f.name), getattr(other.trunk, f.name)
        if one != two:
            raise UserError(f"{first.folder} and {other.folder} differ in trunk.{f.name}: {one!r} and {two!r}{APART}")
    for name in ("mean", "std"):
        one, two = getattr(first, name), getattr(other, name)
        if one != two:
            raise UserError(f"{first.folder} and {other.folder} differ in preprocess.{name}: {one} and {two}")


def _needs(configs: Mapping[str, Config]) -> set[str]:
    """Return the optional trunk parts that networks with these configurations need."""
    systems = [config for config in configs.values() if isinstance(config, SystemConfig)]
    head = {"head"} if any(config.uses_head for config in systems) else set()
    return head | ({"pyramid", "localization"} if any(config.uses_proposals for config in systems) else set())


def _shared_proposals(configs: Mapping[str, Config], source: Path) -> ProposalConfig | None:
    """Return the proposal options shared by networks on one trunk; None if no network uses proposals."""
    users = {part: c for part, c in configs.items() if isinstance(c, SystemConfig) and c.uses_proposals}
    if not users:
        return None
    (first, config), *others = users.items()
    for part, other in others:
        for name in ARCHITECTURE:
            if getattr(config.proposals, name) != getattr(other.proposals, name):
                raise UserError(f"{source}: {first} and {part} share a trunk but differ in proposals.{name}")
    return config.proposals


def _build_trunk(trunk: TrunkConfig, configs: Mapping[str, Config], folder: Path, pretrained: bool = False) -> Trunk:
    """Build a trunk with everything that the networks need, untrained or with published weights."""
    coders = [find_conventions(c).box_coder(c) for c in configs.values() if isinstance(c, DenseCapConfig)]
    proposals = _shared_proposals(configs, folder)
    return build_trunk(trunk, proposals, "head" in _needs(configs), coders[0] if coders else None, pretrained)


def _config_text(
    description: str, trunk: TrunkConfig, mean: Sequence[float], std: Sequence[float], configs: Mapping[str, Config]
) -> str:
    """Return the text of ``config.json``: the trunk once, then the other options of each part."""
    parts = {part: {k: v for k, v in config.to_dict().items() if k != "trunk"} for part, config in configs.items()}
    stored = {
        "saywhere": saywhere.__version__,
        "description": description,
        "trunk": trunk.to_dict(),
        "preprocess": {"mean": list(mean), "std": list(std)},
        "parts": parts,
    }
    return json.dumps(stored, indent=2) + "\n"


def _write(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: str,
    vocabularies: Mapping[str, Vocabulary],
    card: str,
    calibration: Calibration | None,
    tower: Path | None = None,
) -> Path:
    words = {part: vocabulary.to_dict() for part, vocabulary in vocabularies.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{SAVING}*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(dir=folder, prefix=SAVING) as temporary:
            new = Path(temporary)
            (new / WEIGHTS).write_bytes(to_bytes(dict(weights)))  # save_file would make it readable only for its owner
            (new / VOCABULARY).write_text(json.dumps(words, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
            (new / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
            (new / CONFIG).write_text(config, encoding="utf-8")
            names = [VOCABULARY, CARD, WEIGHTS, CONFIG]
            if calibration is None or calibration == Calibration():
                (folder / CALIBRATION).unlink(missing_ok=True)  # an older one belongs to other weights
            else:
                (new / CALIBRATION).write_text(calibration.text(), encoding="utf-8")
                names.insert(0, CALIBRATION)
            if tower is not None:
                link_or_copy(tower, new / GRAPH_TOWER)
                names.insert(0, GRAPH_TOWER)
            for name in names:
                put_in_place(new / name, folder / name)
    except OSError as error:
        if error.errno in FULL:
            error.filename = str(folder)  # instead of a temporary file
            raise
        raise UserError(f"{folder}: the model cannot be written ({error.strerror or error})") from error
    return folder


def take_localizer(network: Aligner | Captioner, pretrained: bool) -> None:
    """Load the trunk weights of the DenseCap named by the option ``localizer`` into a network.

    A DenseCap has no head (the last layer before the classifier); ``pretrained`` loads the head's published weights.

    Raises:
        UserError: no such model, it has no dense captioner, its trunk does not fit, or there are no published weights.
    """
    config, trunk = network.config, network.trunk
    trunk.take_from(load_network(config.localizer, "densecap").trunk)
    if pretrained and trunk.head is not None:
        trunk.head.load_published(config.trunk.backbone)
