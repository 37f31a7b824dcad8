"""What a user sees who has not installed the extra."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.testing import CliRunner

from saywhere import cli


def test_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "saywhere.video.reading", raising=False)
    Path("clip.mp4").write_bytes(b"a video")
    for words in (["clip.mp4"], ["--camera", "0"]):
        result = CliRunner().invoke(cli.app, ["describe", *words], catch_exceptions=False)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "error: this command needs av, which is not installed: pip install 'saywhere[video]'\n"
