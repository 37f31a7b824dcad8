"""Scripts beside the package, such as the benchmarks, as modules."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@functools.cache
def load(path: str) -> ModuleType:
    """Return a script of the repository, such as ``benchmarks/search.py``."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), ROOT / path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def call(path: str, *words: object) -> None:
    """Run a script in this process as its command line with these words does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *map(str, words)])
        load(path).main()
