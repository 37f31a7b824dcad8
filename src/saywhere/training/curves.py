"""The log of a run as CSV, and the curves drawn from it."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from saywhere.files import write_atomically, write_text

COLUMNS = ("step", "epoch", "name", "value")


class CsvLog(Logger):
    """Write a file with a row ``step, epoch, name, value`` for each number; rows are appended.

    Args:
        path: of the file.
        step: optimiser step from which the run is resumed: later rows, of a run that was killed, are dropped.
    """

    def __init__(self, path: Path, step: int = 0):
        super().__init__()
        self.path = path
        self._prepare(step)

    @rank_zero_only
    def _prepare(self, step: int) -> None:
        rows = [row for row in _rows(self.path) if int(row[0]) <= step] if step else []
        text = io.StringIO()
        csv.writer(text).writerows([COLUMNS, *rows])
        write_text(self.path, text.getvalue())

    @property
    def name(self) -> str:
        """Name the logger for Lightning."""
        return "csv"

    @property
    def version(self) -> str:
        """Name the logger for Lightning."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing: the recipe is beside the log."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Append a row for each of ``metrics`` but ``epoch``, which is in all rows."""
        epoch = int(metrics.get("epoch", 0))
        with self.path.open("a", newline="") as file:
            rows = [(step, epoch, name, repr(float(value))) for name, value in metrics.items() if name != "epoch"]
            csv.writer(file).writerows(rows)


def _rows(path: Path) -> list[list[str]]:
    """Whole rows of the file, without the header."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.reader(file) if len(row) == len(COLUMNS) and row[0].isdigit() and row[3]]


def read_log(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return for each name its (step, value) pairs, in the order of the file."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step, _, name, value in _rows(path):
        series[name].append((int(step), float(value)))
    return dict(series)


def draw_curves(log: Path, image: Path) -> None:
    """Draw the losses over the optimiser steps, one panel for the sum and for each term, training and validation."""
    from matplotlib.figure import Figure

    series = read_log(log)
    terms = list(dict.fromkeys(name.partition("/")[2] for name in series if name.startswith(("train/", "val/"))))
    if not terms:
        return
    columns = min(3, len(terms))
    rows = -(-len(terms) // columns)
    figure = Figure(figsize=(4.2 * columns, 3 * rows), layout="constrained")
    for i, term in enumerate(terms):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(term)
        for kind, marker in (("train", ""), ("val", "o")):
            if points := series.get(f"{kind}/{term}"):
                steps, values = zip(*points, strict=True)
                axes.plot(steps, values, marker=marker, markersize=4, linewidth=1, label=kind)
        axes.set_xlabel("optimiser step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    write_atomically(image, lambda stream: figure.savefig(stream, dpi=100, format="png"))
