"""Mixed precision on processors that lack the instructions for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from saywhere.errors import UserError


@contextmanager
def explain_precision(full: str) -> Iterator[None]:
    """Turn the error of a processor that cannot compute in lower precision into a ``UserError``.

    Args:
        full: the setting that asks for full precision, such as ``training.precision=32``.
    """
    try:
        yield
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):  # oneDNN, of an operation without an implementation
            raise
        raise UserError(f"this processor cannot train in lower precision; set {full}") from error
