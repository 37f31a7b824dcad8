from __future__ import annotations

from pathlib import Path

from tiny_densecap import tiny_model
from tiny_training import write_data
from typer.testing import CliRunner

from saywhere.cli import app
from saywhere.networks import checkpoint


def test_a_model_is_calibrated_on_a_split(tmp_path: Path) -> None:
    root, folder = write_data(tmp_path / "data"), checkpoint.save(tiny_model(), tmp_path / "model")
    command = ["calibrate", str(folder), "--data", str(root), "--limit", "5", "--device", "cpu"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "split train" in result.output
    assert checkpoint.load_network(folder, "densecap").config.calibration != (1.0, 0.0, 0.0)
    assert "5 images of" in (folder / "README.md").read_text()


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path), "--data", str(write_data(tmp_path / "data"))])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
