"""Several models evaluated one after the other, each in a process of its own, and one table of their figures."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.launching import START, without_options
from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.evaluation.comparison import Compared


def one_or_compare(task: str, models: Sequence[str] | None, out: Path) -> str | None:
    """Return the one model that is named, or None; if several are named, compare them and end the command.

    Each is evaluated by the same command with only its ``--model``, in a folder of its own in ``out``; another process
    is the only way to know how much memory each takes.

    Raises:
        UserError: a model is named twice.
        typer.Exit: several were compared; the code is the largest of theirs.
    """
    if models is None or len(models) < 2:
        return models[0] if models else None
    if len(set(models)) < len(models):
        raise UserError(f"--model {next(m for m in models if models.count(m) > 1)}: is named twice")
    from saywhere.evaluation.comparison import Compared, read_report
    from saywhere.evaluation.session import ensure_same_task

    ensure_same_task(out, f"compare {task}")
    arguments = without_options(sys.argv[1:], ("--model", "--out"))
    reports: dict[str, dict[str, Any]] = {}
    resumed: list[str] = []
    worst = 0
    for name, folder in zip(models, folders(models, out), strict=True):
        if folder.is_dir() and any(folder.iterdir()):
            resumed.append(name)
            (folder / "report.json").unlink(missing_ok=True)  # or it would stand for a run that fails
        typer.echo(f"{name}:", err=True)
        command = [sys.executable, "-c", START, *arguments, "--model", name, "--out", str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        typer.echo(done.stdout, nl=False, err=True)
        whole = done.returncode in (0, 1) and (folder / "report.json").is_file()  # not killed, and no crash
        worst = max(worst, done.returncode if whole else 2)
        if whole:
            reports[name] = read_report(folder)
    if reports:
        _show(Compared(task, reports, [name for name in resumed if name in reports]), out)
    raise typer.Exit(worst)


def folders(models: Sequence[str], out: Path) -> list[Path]:
    """Return a folder in ``out`` for each model, named as it is, but for letters that a name cannot have."""
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
        typer.echo("* of the images that an earlier run had not done")
    compared.write(out, shlex.join(["saywhere", *sys.argv[1:]]))
    typer.echo(f"written: {out / 'report.md'}, report.json")
