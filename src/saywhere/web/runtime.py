"""ONNX Runtime for browsers: the npm package ``onnxruntime-web``, in one version with a known hash."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import cache_folder, put_in_place
from saywhere.options import dataclass

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the package, as in npm."""
PACKAGE = f"{NAME}-{VERSION}.tgz"
SCRIPT, BINARY = "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"
PATIENCE = 600
"""Timeout for npm, in seconds."""


@dataclass(frozen=True)
class WebRuntime:
    """The two files of ONNX Runtime that a page needs: a JavaScript module and WebAssembly."""

    script: bytes
    binary: bytes

    @classmethod
    def open(cls, package: Path | None = None) -> WebRuntime:
        """Read the runtime from an npm package, by default a cached or downloaded one; or raise ``UserError``."""
        path = package or fetch(cache_folder())
        data = _checked(path)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            script, binary = (_member(archive, name) for name in (SCRIPT, BINARY))
        return cls(script, binary)


def fetch(folder: Path) -> Path:
    """Return the package in a folder, downloading it with npm if it is missing; raise ``UserError`` on failure."""
    path = folder / PACKAGE
    if path.is_file():
        return path
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(f"{NAME} needs npm, which is not installed: give its package, {PACKAGE}, by --runtime")
    folder = folder.resolve()  # npm runs in another folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as temporary:
        command = [npm, "pack", f"{NAME}@{VERSION}", "--pack-destination", temporary, "--ignore-scripts", "--silent"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=temporary)
        except subprocess.TimeoutExpired:
            raise UserError(f"npm did not fetch {PACKAGE} within {PATIENCE} s: give a copy by --runtime") from None
        fetched = Path(temporary) / PACKAGE
        if done.returncode or not fetched.is_file():
            reason = " ".join((done.stderr or done.stdout).split())[:200]
            raise UserError(f"npm cannot fetch {PACKAGE} ({reason}): give a copy by --runtime")
        _checked(fetched)
        put_in_place(fetched, path)
    return path.resolve()


def integrity(data: bytes) -> str:
    """Return the SHA-512 of a package, in npm's notation."""
    return base64.b64encode(hashlib.sha512(data).digest()).decode()


def _checked(path: Path) -> bytes:
    """Return the content of the package, after checking its hash."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if integrity(data) != INTEGRITY:
        raise UserError(f"{path}: is not npm's {PACKAGE} (its SHA-512 differs): remove it, or give a copy by --runtime")
    return data


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None
    return file.read()
