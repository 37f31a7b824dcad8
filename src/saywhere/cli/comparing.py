"""Evaluation of several models in turn, each in its own process, with one table of their figures."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain, count
from pathlib import Path
from typing import Any

import typer

from saywhere.errors import UserError
from saywhere.evaluation.report import TASKS, figure_of, write_report
from saywhere.files import read_json
from saywhere.options import dataclass

START = "from saywhere.cli import main; main()"
"""The Python code that runs this program."""
PROTOCOLS = {"ground": "IoU of at least 0.5 with a true box", "rank": "Alignments, section 4.1"}
"""The protocols of tasks that have only one, which their reports do not name."""
COSTS = {
    "images": "images",
    "seconds": "seconds",
    "memory, MB": "peak_memory_mb",
    "of the GPU, MB": "peak_gpu_memory_mb",
}
SHARED = ("data", "split", "protocol", "images")


def _of_any_model(arguments: Sequence[str]) -> list[str]:
    """Return arguments without ``--model`` and ``--out``, and their values."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in ("--model", "--out"):
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept


@dataclass(frozen=True, eq=False)
class Compared:
    """Reports of several models on one task.

    Attributes:
        resumed: models with images from an earlier run, so that their seconds count only the rest.
    """

    task: str
    reports: Mapping[str, Mapping[str, Any]]
    resumed: Sequence[str] = field(default=())

    @property
    def header(self) -> list[str]:
        """The column names; columns without a figure in any report are left out."""
        return ["model", *(name for name in self._columns)]

    @property
    def rows(self) -> list[list[str]]:
        """One row per model."""
        return [
            [name, *(self._cell(name, report, path) for path in self._columns.values())]
            for name, report in self.reports.items()
        ]

    @property
    def facts(self) -> dict[str, object]:
        """The facts that all reports share: data, split, protocol and number of images."""
        first = {"protocol": PROTOCOLS.get(self.task), **next(iter(self.reports.values()), {})}
        known = {name: first.get(name) for name in SHARED}
        return {
            k: v for k, v in known.items() if all(r.get(k, v) == v for r in self.reports.values()) and v is not None
        }

    @property
    def _columns(self) -> dict[str, str]:
        columns, reports = {**TASKS[self.task].figures, **COSTS}, self.reports.values()
        return {name: path for name, path in columns.items() if any(figure_of(r, path) is not None for r in reports)}

    def _cell(self, name: str, report: Mapping[str, Any], path: str) -> str:
        value = figure_of(report, path)
        if path == "seconds" and value is not None:
            return f"{value:.1f}" + ("*" if name in self.resumed else "")
        return "" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value:,}"

    def write(self, folder: Path, command: str) -> None:
        """Write ``report.json`` and ``report.md``, see :func:`saywhere.evaluation.report.write_report`."""
        paths = [*TASKS[self.task].figures.values(), *COSTS.values()]
        models = [
            {"model": name, **{path: figure_of(report, path) for path in paths}, "resumed": name in self.resumed}
            for name, report in self.reports.items()
        ]
        write_report(folder, {"task": f"compare {self.task}", **self.facts, "models": models, "command": command})


def one_or_compare(task: str, models: Sequence[str] | None, out: Path, data: Path | None = None) -> str | None:
    """Return the named model, or None; if there are several, compare them and end the command.

    Each is evaluated by the same command with only its ``--model``, in its own folder in ``out``. Separate processes
    are the only way to measure the memory of each. The exit code is the largest of theirs.
    """
    if models is None or len(models) < 2:
        return models[0] if models else None
    if len(set(models)) < len(models):
        raise UserError(f"--model {next(m for m in models if models.count(m) > 1)}: is given twice; name it once")
    from saywhere.evaluation.session import ensure_same_task

    ensure_same_task(out, f"compare {task}")
    arguments = _of_any_model(sys.argv[1:])
    reports: dict[str, dict[str, Any]] = {}
    resumed, runs = list[str](), dict[str, Path]()
    worst = 0
    for name, folder in zip(models, folders(models, out), strict=True):
        if folder.is_dir() and any(folder.iterdir()):
            resumed.append(name)
            (folder / "report.json").unlink(missing_ok=True)  # or it would count as the report of a failed run
        typer.echo(f"{name}:", err=True)
        command = [sys.executable, "-c", START, *arguments, "--model", name, "--out", str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        typer.echo(done.stdout, nl=False, err=True)
        whole = done.returncode in (0, 1) and (folder / "report.json").is_file()  # neither killed nor crashed
        worst = max(worst, done.returncode if whole else 2)
        if whole:
            reports[name] = read_json(folder / "report.json")
            runs |= {name: folder} if (folder / "predictions.jsonl").is_file() else {}
    if reports:
        if data is not None and runs and task in ("dense", "caption"):
            from saywhere.evaluation.examples import compare_answers

            compare_answers(task, out, data if data.is_dir() else data.parent, runs)
        _show(Compared(task, reports, [name for name in resumed if name in reports]), out)
    raise typer.Exit(worst)


def folders(models: Sequence[str], out: Path) -> list[Path]:
    """Return a folder in ``out`` for each model, with its name except characters that a file name cannot have."""
    found: list[Path] = []
    for model in models:
        name = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
        taken = {path.name.casefold() for path in found}
        others = (f"{name}--{number}" for number in count(2))
        found.append(out / next(each for each in chain([name], others) if each.casefold() not in taken))
    return found


def _show(compared: Compared, out: Path) -> None:
    from saywhere.cli.printing import print_table

    typer.echo(", ".join(f"{name} {value}" for name, value in {"task": compared.task, **compared.facts}.items()))
    print_table([*compared.header[1:], "model"], [[*row[1:], row[0]] for row in compared.rows])
    if compared.resumed:
        typer.echo("* without the images of an earlier run")
    compared.write(out, shlex.join(["saywhere", *sys.argv[1:]]))
    typer.echo(f"written: {out / 'report.md'}, report.json")
