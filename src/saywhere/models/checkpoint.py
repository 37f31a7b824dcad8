"""Checkpoint folders: save, load, and the models that ship with the package."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

import saywhere
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.models.aligner import Aligner
from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.captioner import Captioner
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.models.densecap import DenseCap
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.region_rnn import RegionRnn, RegionRnnConfig
from saywhere.text import Vocabulary

BUNDLED = Path(saywhere.__file__).parent / "pretrained"
KINDS = {
    "densecap": (DenseCap, DenseCapConfig),
    "aligner": (Aligner, AlignerConfig),
    "captioner": (Captioner, CaptionerConfig),
    "region-rnn": (RegionRnn, RegionRnnConfig),
}
SAVING = ".saving-"
FILES = ("model.safetensors", "config.json", "vocabulary.json")


def models() -> dict[str, str]:
    """The models that ship with the package: name and one line of description."""
    return {
        folder.name: json.loads((folder / "config.json").read_text()).get("description", "")
        for folder in sorted(BUNDLED.iterdir() if BUNDLED.is_dir() else [])
        if (folder / "config.json").is_file()
    }


def save(
    model: Any,
    folder: str | Path,
    card: str | None = None,
    description: str = "",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a checkpoint folder: weights, configuration, vocabulary, model card; no file is ever half written.

    The configuration is replaced last, after the weights that belong to it.

    Args:
        model: what to save, of one of ``KINDS``.
        folder: made if it is not there; its files are replaced.
        card: Markdown text of the model card.
        description: one line for ``saywhere models``.
        dtype: of the stored floating-point weights; float16 halves the file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = next(name for name, (cls, _) in KINDS.items() if isinstance(model, cls))
    config = {
        "model": kind,
        "description": description,
        "saywhere": saywhere.__version__,
        "preprocess": vars(model.preprocess),
        "config": model.config.to_dict(),
    }
    weights = {
        key: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
        for key, value in model.state_dict().items()
    }
    for left_over in folder.glob(f"{SAVING}*"):
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(dir=folder, prefix=SAVING) as temporary:
        new = Path(temporary)
        (new / "model.safetensors").write_bytes(to_bytes(weights))  # save_file would let only the owner read it
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        model.vocabulary.save(new / "vocabulary.json")
        (new / "README.md").write_text(card or f"# {kind}\n\n{description}\n")
        for name in ("vocabulary.json", "README.md", "model.safetensors", "config.json"):
            os.replace(new / name, folder / name)
    return folder


def change_config(folder: Path, options: dict[str, Any]) -> None:
    """Change options of a saved model's configuration that its weights do not depend on; atomically."""
    stored = json.loads((folder / "config.json").read_text())
    stored["config"].update(options)
    write_text(folder / "config.json", json.dumps(stored, indent=2) + "\n")


def load(name_or_folder: str | Path, device: str | torch.device = "cpu", **options: Any) -> Any:
    """A model ready to use: a checkpoint folder, the name of a bundled model, or a hub id ``owner/name``.

    Args:
        name_or_folder: of the model.
        device: where it is to run.
        options: of its configuration, to be others than the stored ones, such as ``beam=3`` or ``proposals=300``; those
            that its weights depend on can not be.

    Raises:
        UserError: there is no such model, a file is missing or damaged, or it does not fit the configuration.
    """
    folder = _find(str(name_or_folder))
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"{folder} is not a saywhere checkpoint: {missing[0]} is missing")
    try:
        stored = json.loads((folder / "config.json").read_text())
        model_class, config_class = KINDS[stored["model"]]
        config = config_class.from_dict(stored["config"])
        pixels = stored["preprocess"]
        sizes = {name: pixels[name] for name in ("long_side", "multiple") if name not in options}
        levels = {"mean": tuple(pixels["mean"]), "std": tuple(pixels["std"])}
    except UserError as error:
        raise UserError(f"{folder / 'config.json'}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / 'config.json'} is not a saywhere configuration: {error!r}") from error
    config = config_class.from_dict({**config.to_dict(), **options})
    model = model_class(config, Vocabulary.load(folder / "vocabulary.json"), pretrained_backbone=False)
    model.preprocess = replace(model.preprocess, **sizes, **levels)
    try:
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in weights.items()})
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        changed = f" with {', '.join(options)} changed" if options else ""
        raise UserError(f"{folder / 'model.safetensors'} cannot be loaded{changed}: {reason}") from error
    return model.to(_device(device)).eval()


def _device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        torch.zeros(0, device=wanted)
        return wanted
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!s} cannot be used: {str(error).splitlines()[0]}") from error


def _find(name: str) -> Path:
    if (BUNDLED / name / "config.json").is_file() and not (Path(name) / "config.json").is_file():
        return BUNDLED / name
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    raise UserError(f"no model {name!r}: not a folder, and the bundled models are {', '.join(models()) or 'none'}")


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*FILES, "README.md"]))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no folder {name!r}, and the hub does not give it: {reason}") from error
