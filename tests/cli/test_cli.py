from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import saywhere
from saywhere import cli
from saywhere.errors import UserError

RUNNER = CliRunner()


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_does_not_wait_for_torch():
    """Heavy packages are imported by the commands that use them, so that the answer comes at once."""
    code = """
import sys
from saywhere.cli import app
commands = "", "describe", "caption", "ground", "snippets", "models", "train", "calibrate", "convert", "compare", "data"
tasks = "dense", "caption", "phrases", "retrieval", "rank", "ground"
evaluations = [f"evaluate {task}" for task in tasks]
for arguments in map(str.split, (*commands, "data check", "evaluate", *evaluations)):
    try:
        app([*arguments, "--help"])
    except SystemExit as stop:
        assert stop.code == 0, arguments
heavy = {"torch", "timm", "torchvision", "lightning", "matplotlib", "numpy", "PIL"}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    out = python(code)
    assert out.endswith("heavy: []\n")
    for command in ("describe", "caption", "ground", "models", "train", "data", "evaluate"):
        assert f" {command} " in out


def test_version():
    result = RUNNER.invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"saywhere {saywhere.__version__}\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("a.jpg: is\n  wrong"), 2, "error: a.jpg: is wrong\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (OSError(errno.ENOSPC, "No space left on device", "out/a.jpg"), 2, "error: out/a.jpg: the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: the disk is full; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), 2, "error: out: Permission denied\n"),
    ],
)
def test_what_a_user_can_mend_is_one_line(monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("saywhere.describing.find_pictures", fail)
    result = RUNNER.invoke(cli.app, ["describe", "a.jpg"])
    assert result.exit_code == code
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr("saywhere.describing.find_pictures", fail)
    assert isinstance(RUNNER.invoke(cli.app, ["describe", "a.jpg"]).exception, KeyError)


def test_a_closed_pipe_is_no_error(tmp_path):
    """``saywhere ... | head`` ends quietly."""
    code = (
        "import saywhere.cli, typer, sys\nsaywhere.cli.app.command('talk')(lambda: [print(i) for i in range(99999)])\n"
    )
    read, write = os.pipe()
    os.close(read)
    talk = [sys.executable, "-c", f"{code}saywhere.cli.app(['talk'])"]
    run = subprocess.run(talk, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (1, "")


def test_models(monkeypatch):
    from saywhere.models import checkpoint

    monkeypatch.setattr(checkpoint, "models", lambda: {"a": "the first", "longer": "the second"})
    assert RUNNER.invoke(cli.app, ["models"]).stdout == "a       the first\nlonger  the second\n"
    monkeypatch.setattr(checkpoint, "models", dict)
    assert "no model comes with" in RUNNER.invoke(cli.app, ["models"]).stdout
