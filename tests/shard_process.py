"""``saywhere`` in processes that share a folder of shards, and that are killed where a test says so.

Killed at a call and not after a time, a run is the same on every machine. This file as a program is such a process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KILLS = "SAYWHERE_TEST_KILLS"
"""In the environment: a folder, and for each kill ``module:Class.method N``, at the N-th call of it, as JSON."""


def run_processes(arguments: Sequence[object], count: int, kills: Sequence[str], folder: Path) -> int:
    """Run ``count`` processes of the same command, and another one for each that was killed, until all end well.

    Returns:
        how many were killed.
    """
    folder.mkdir()
    environment = os.environ | {KILLS: json.dumps([str(folder), *kills]), "OMP_NUM_THREADS": "1"}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    running, killed = [start() for _ in range(count)], 0
    while running:
        process = running.pop(0)
        output, _ = process.communicate(timeout=600)
        if process.returncode == -signal.SIGKILL:
            killed += 1
            running.append(start())
        else:
            assert process.returncode == 0, output
    return killed


def main() -> None:
    """Run the command of the arguments, and die where it is said."""
    folder, *kills = json.loads(os.environ[KILLS])
    for number, kill in enumerate(kills):
        place, count = kill.split()
        module, _, name = place.partition(":")
        owner, _, method = name.partition(".")
        target = getattr(importlib.import_module(module), owner)
        setattr(target, method, _deadly(getattr(target, method), int(count), Path(folder, str(number))))
    from saywhere.cli import main as run
    from saywhere.inference import claims

    claims.BEAT, claims.STALE = 0.5, 5.0  # or each kill would cost a minute
    run()


def _deadly(method: Callable[..., Any], count: int, file: Path) -> Callable[..., Any]:
    """The method, which kills the process at its N-th call, unless another process was killed there before."""
    calls = iter(range(1, sys.maxsize))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == count:
            with contextlib.suppress(FileExistsError):
                file.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    return call


if __name__ == "__main__":
    main()
