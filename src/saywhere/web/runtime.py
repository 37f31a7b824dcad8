"""ONNX Runtime for browsers: the package ``onnxruntime-web`` of npm, in one version whose hash is known."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import put_in_place

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the package, as npm gives it."""
PACKAGE = f"{NAME}-{VERSION}.tgz"
SCRIPT, BINARY = "dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm"
PATIENCE = 600
"""Seconds that npm may take."""


@dataclass(frozen=True)
class WebRuntime:
    """The two files of ONNX Runtime that a page needs: a module of JavaScript, and WebAssembly."""

    script: bytes
    binary: bytes

    @classmethod
    def open(cls, package: Path | None = None) -> WebRuntime:
        """Return the runtime of a package of npm, or of the one fetched before, or now; or ``UserError``."""
        path = package or fetch(cache_folder())
        data = _checked(path)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            script, binary = (_member(archive, name) for name in (SCRIPT, BINARY))
        return cls(script, binary)


def cache_folder() -> Path:
    """Return the folder of this user's files that can be fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saywhere"


def fetch(folder: Path) -> Path:
    """Return the package in a folder, fetched by npm (or ``UserError``) if it is not there."""
    path = folder / PACKAGE
    if path.is_file():
        return path
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(f"{NAME} is fetched by npm, which is not installed: name its package, {PACKAGE}, by --runtime")
    folder = folder.resolve()  # npm runs in another one
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as temporary:
        command = [npm, "pack", f"{NAME}@{VERSION}", "--pack-destination", temporary, "--ignore-scripts", "--silent"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=temporary)
        except subprocess.TimeoutExpired:
            raise UserError(f"npm did not fetch {PACKAGE} within {PATIENCE} s: name a copy by --runtime") from None
        fetched = Path(temporary) / PACKAGE
        if done.returncode or not fetched.is_file():
            reason = " ".join((done.stderr or done.stdout).split())[:200]
            raise UserError(f"npm cannot fetch {PACKAGE} ({reason}): name a copy by --runtime")
        _checked(fetched)
        put_in_place(fetched, path)
    return path.resolve()


def integrity(data: bytes) -> str:
    """Return the SHA-512 of a package as npm writes it."""
    return base64.b64encode(hashlib.sha512(data).digest()).decode()


def _checked(path: Path) -> bytes:
    """The bytes of the package, which must be the known ones."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if integrity(data) != INTEGRITY:
        raise UserError(f"{path} is not {PACKAGE} as npm has it (its SHA-512 is another): remove it, or name a copy")
    return data


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None
    return file.read()
