"""Measure the disk space of an installation: the core, its weights, and a checkout with everything.

    python benchmarks/size.py [--json FILE]

Builds the wheel and installs it with the versions of ``requirements-core.txt`` into a new environment, which needs a
network. pip and setuptools, which are in every environment, do not count. MB are
of 1,000,000 bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from saywhere.files import write_text

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "src" / "saywhere" / "pretrained" / "flickr-coco" / "model.safetensors"
WAYS = ("as pip leaves it", "without compiled modules")


def megabytes(folder: Path) -> dict[str, float]:
    """Return the size of a folder's files by :data:`WAYS`; links do not count."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = {path: path.stat().st_size / 1e6 for path in files}
    sources = sum(size for path, size in sizes.items() if path.suffix != ".pyc")
    return dict(zip(WAYS, (sum(sizes.values()), sources), strict=True))


def installed() -> dict[str, float]:
    """Install the core into a new environment, and return the MB that it adds, by :data:`WAYS`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "wheel")]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = (folder / "wheel").glob("*.whl")
        environment = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        before = megabytes(environment)
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--requirement", str(ROOT / "requirements-core.txt")]
        for what in (locked, ["--no-deps", str(wheel)]):
            subprocess.run([*pip, *what], check=True)
        return {way: size - before[way] for way, size in megabytes(environment).items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    found = {
        "core": installed(),
        "weights": WEIGHTS.stat().st_size / 1e6,
        "everything": megabytes(Path(sys.prefix))[WAYS[0]],
    }
    print(json.dumps(found, indent=1))
    if options.json is not None:
        write_text(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
