"""Which test files need what only an extra brings."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

FOLDER = Path(__file__).parent
EXTRAS = (
    "torch", "torchvision", "timm", "yaml", "matplotlib", "pycocoevalcap", "cv2", "torchfile", "onnx",
    "skimage", "starlette", "uvicorn", "playwright", "saywhere.serve", "av", "mcp", "ollama", "openai", "cvat_sdk",
    "saywhere.papers.densecap2016", "saywhere.papers.table1.run", "saywhere.papers.table1.region_rnn",
    "saywhere.papers.relations", "saywhere.networks", "saywhere.training", "saywhere.evaluation",
    "saywhere.engines.torch", "saywhere.engines.export",
)  # fmt: skip
"""Packages of the extras, and what needs them."""


@functools.cache
def needs_extras(path: Path) -> bool:
    """Whether a test file, or a file of the tests that it imports, imports what only an extra brings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if any(name == extra or name.startswith(f"{extra}.") for extra in EXTRAS):
                return True
            if (own := FOLDER / f"{name}.py").is_file() and needs_extras(own):
                return True
    return False
