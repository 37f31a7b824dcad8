"""Invalid input of a user, and what else a user can mend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UserError(ValueError):
    """One line that names the file, the value and the way out; the command line prints it and exits with 2.

    Example:
        >>> try:
        ...     saywhere.load("nothing", engine="tensorflow")
        ... except saywhere.UserError as error:
        ...     print(error)
        no engine 'tensorflow'; there are onnx, torch
    """


def is_oom(error: Exception) -> bool:
    """Return whether an error is too little memory, for which torch and ONNX Runtime have errors of their own."""
    full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return full or "allocate memory" in str(error)


@contextlib.contextmanager
def explain_oom(batch: int) -> Iterator[None]:
    """Turn too little memory on a device into a ``UserError`` that names the ways out."""
    try:
        yield
    except Exception as error:
        if not is_oom(error):
            raise
        way_out = "give a smaller one, or a smaller trunk.long_side or beam_size"
        raise UserError(f"the device has too little memory for --batch {batch}; {way_out}") from error
