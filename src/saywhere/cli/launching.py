"""This program called again with arguments of its own command line, or in many processes of a Ray cluster."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

import typer

START = "from saywhere.cli import main; main()"
"""What a Python runs that is this program."""
OWN = ("--launcher", "--workers", "--threads")
"""Options that are not passed on as they are."""


def without_options(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return arguments without some options that take a value, and without their values.

    Example:
        >>> without_options(["index", "a", "--workers", "3", "--shards=2"], ["--workers"])
        ['index', 'a', '--shards=2']
    """
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in names:
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept


def launch(arguments: Sequence[str], workers: int | None, threads: int) -> int:
    """Run a command in many processes, and print what each says.

    The cluster is that of ``RAY_ADDRESS``, or one of this machine that lasts as long as the command. All machines must
    see the same files by the same names, and have saywhere in the same place.

    Args:
        arguments: of the command line; those of this function's own options are taken out.
        workers: how many processes; as many as the cluster has room for if None.
        threads: of each process, for which so many processors are kept free.

    Returns:
        the exit code: the largest of those of the processes; what one that was killed had begun is done by the others.
    """
    for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):  # no warnings, no reports to others
        os.environ.setdefault(name, "0")
    ray: Any = importlib.import_module("ray")
    ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    try:
        room = int(ray.cluster_resources().get("CPU", 1)) // threads
        command = [sys.executable, "-c", START, *without_options(arguments, OWN), "--threads", str(threads)]
        run = ray.remote(num_cpus=threads, max_retries=3)(_run)
        waiting = [run.remote(command, os.getcwd()) for _ in range(workers or max(1, room))]
        codes: list[int] = []
        while waiting:
            done, waiting = ray.wait(waiting)
            for ended, output, errors in ray.get(done):
                typer.echo(output, nl=False)
                typer.echo(errors, nl=False, err=True)
                codes.append(ended)
        return max(codes) if max(codes) >= 0 else 128 - max(codes)
    finally:
        ray.shutdown()


def _run(command: Sequence[str], folder: str) -> tuple[int, str, str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
