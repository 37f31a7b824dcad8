"""Errors that the user can fix, such as invalid input."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


class UserError(ValueError):
    """An error whose message is one line with the file, the value and the way out; the program exits with code 2.

    Attributes:
        place: index of the image that it is about, among those that were encoded together; None: unknown.

    Example:
        >>> try:
        ...     saywhere.load("nothing", engine="tensorflow")
        ... except saywhere.UserError as error:
        ...     print(error)
        no engine 'tensorflow'; there are onnx, torch
    """

    place: int | None = None


class NoSplitError(UserError):
    """A data set lacks a split; ``known`` are the names of those that it has."""

    known: tuple[str, ...] = ()

    @classmethod
    def of(cls, root: object, split: str, known: Iterable[str]) -> NoSplitError:
        """Return the error for a data set."""
        names = tuple(known)
        error = cls(f"{root}: no split {split!r}; it has {', '.join(names) or 'none'}")
        error.known = names
        return error


def is_oom(error: Exception) -> bool:
    """Return whether an error means too little memory; torch and ONNX Runtime have their own such errors."""
    full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return full or "allocate memory" in str(error)


@contextlib.contextmanager
def explain_oom(batch: int) -> Iterator[None]:
    """Turn a device's out-of-memory error into a ``UserError`` that suggests ways out."""
    try:
        yield
    except Exception as error:
        if not is_oom(error):
            raise
        way_out = "give a smaller one, or a smaller trunk.long_side or beam_size"
        raise UserError(f"the device has too little memory for --batch {batch}; {way_out}") from error
