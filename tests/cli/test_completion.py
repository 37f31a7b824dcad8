"""What the Tab key offers in a shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "from saywhere.cli import main; main()"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["saywhere", "desc"], ["describe"]),
        (["saywhere", "describe", "--thre"], ["--threads", "--threshold"]),
        (["saywhere", "evaluate", "den"], ["dense"]),
        (["saywhere", "convert-results", "x", "--to", "y"], ["yolo"]),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], offered: list[str]) -> None:
    settings = {"_SAYWHERE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = f"import sys; sys.argv[0] = 'saywhere'; {PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True, text=True, timeout=600
    )
    assert sorted(done.stdout.split()) == offered, done.stderr
