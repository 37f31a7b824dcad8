"""Invalid input of a user, and what else a user can mend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UserError(ValueError):
    """One line that names the file, the value and the way out; the command line prints it and exits with 2."""


@contextlib.contextmanager
def explain_oom(batch: int) -> Iterator[None]:
    """Turn too little memory on a device into a ``UserError`` that names the way out, a smaller ``batch``."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise UserError(f"the device has too little memory for --batch {batch}; give a smaller one") from error
