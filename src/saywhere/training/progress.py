"""Progress bars on terminals, occasional lines in log files; and images encoded with progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from saywhere.data.sample import Sample
from saywhere.files import write_atomically
from saywhere.images import readable
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.report import start_bar

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Show on stderr how many of ``total`` steps are done, starting at ``done``.

    Args:
        title: leads the line.
    """

    def __init__(self, title: str, total: int, done: int = 0):
        self.title, self.total, self.done = title, total, done
        self._first, self._start, self._last = done, time.monotonic(), time.monotonic()
        self._bar = start_bar(title, total, done) if sys.stderr.isatty() else None

    def advance(self, steps: int, note: str = "") -> None:
        """Advance by ``steps``; ``note`` ends the line."""
        self.done += steps
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=steps, note=note)
            return
        now = time.monotonic()
        if self.done >= self.total or now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            rate = (self.done - self._first) / max(now - self._start, 1e-9)
            line = f"{self.title}: {self.done}/{self.total}, {rate:.2f} a second  {note}"
            print(line.rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def track(title: str, total: int) -> Iterator[Progress]:
    """Yield a :class:`Progress` that is closed at the end."""
    progress = Progress(title, total)
    try:
        yield progress
    finally:
        progress.close()


def tracked(title: str, items: Collection[T]) -> Iterator[T]:
    """Yield the items while showing a :class:`Progress`."""
    with track(title, len(items)) as progress:
        for item in items:
            yield item
            progress.advance(1)


def encode_each(model: Model, samples: Sequence[Sample], title: str) -> Iterator[tuple[Sample, Encoding]]:
    """Yield the readable images with their encodings, and report the others; shows a progress bar."""
    return readable(tracked(title, samples), lambda sample: model.encode(sample.image))


def rows_of_each(
    model: Model, samples: Sequence[Sample], title: str, rows: Callable[[Sample, Encoding], Sequence[np.ndarray]],
    cache: Path,
) -> Iterator[tuple[Sample, Sequence[np.ndarray]]]:  # fmt: skip
    """Yield the readable images with their rows, and report the others; shows a progress bar.

    Args:
        rows: returns arrays from an image's encoding.
        cache: folder that keeps the arrays, a file per image, for a later run on the same model and images.
    """

    def make(sample: Sample) -> dict[str, np.ndarray]:
        return {str(number): array for number, array in enumerate(rows(sample, model.encode(sample.image)))}

    def read(numbered: tuple[int, Sample]) -> Sequence[np.ndarray]:
        number, sample = numbered
        return list(kept(cache / f"{number}.npz", lambda: make(sample)).values())

    for (_, sample), found in readable(tracked(title, list(enumerate(samples))), read):
        yield sample, found


def kept(path: Path, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the named arrays that a file keeps; it is made if it is missing or damaged."""
    with suppress(Exception), np.load(path) as stored:  # damaged ones raise several
        return dict(stored)
    found = make()
    write_atomically(path, lambda stream: np.savez(stream, **found))
    return found
