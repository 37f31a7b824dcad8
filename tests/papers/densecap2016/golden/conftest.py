"""Golden values: inputs and outputs of the published DenseCap program's own functions, as JSON (see README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parent
DTYPES = {"float32": torch.float64, "float64": torch.float64, "int64": torch.long, "uint8": torch.bool}
Case = dict[str, Any]


def _read(value: Any) -> Any:
    """Plain JSON with every {dtype, shape, data} as a tensor; all floats are doubles."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        shape = value["shape"] or [0]  # the program's empty tensor has no dimensions
        return torch.tensor(value["data"], dtype=DTYPES[value["dtype"]]).reshape(shape)
    if isinstance(value, dict):
        return {key: _read(item) for key, item in value.items()}
    return [_read(item) for item in value] if isinstance(value, list) else value


def _cases(name: str) -> list[Case]:
    return _read(json.loads((FOLDER / f"{name}.json").read_text()))["cases"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``case`` runs on every case of the file that ``GOLDEN`` of its module names."""
    if "case" in metafunc.fixturenames:
        cases = _cases(metafunc.module.GOLDEN[metafunc.function.__name__])
        metafunc.parametrize("case", cases, ids=[case["name"] for case in cases])


@pytest.fixture
def golden() -> Callable[[str], dict[str, Case]]:
    """The cases of a file by name, or the whole file where it has none."""

    def read(name: str) -> dict[str, Case]:
        content = _read(json.loads((FOLDER / f"{name}.json").read_text()))
        return {case["name"]: case for case in content["cases"]} if "cases" in content else content

    return read


@pytest.fixture
def same() -> Callable[[Tensor, Tensor], None]:
    """Equal to 1e-9, relative or absolute, NaN and infinities included."""

    def check(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, equal_nan=True)

    return check


@pytest.fixture
def gradients() -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """``gradients(function, *inputs, seed=...)``: the value and the gradients with respect to all inputs."""

    def compute(
        function: Callable[..., Tensor], *inputs: Tensor, seed: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [value.clone().requires_grad_() for value in inputs]
        output = function(*leaves)
        return output.detach(), torch.autograd.grad(output, leaves, seed)

    return compute
