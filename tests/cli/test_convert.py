from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from photographs import noise
from torch7_writer import random_checkpoint, write
from typer.testing import CliRunner

from saywhere.cli import app
from saywhere.images import open_image
from saywhere.networks.densecap.convert import convert
from saywhere.networks.densecap.trace import trace_inference
from saywhere.original import xcycwh_to_xywh


def test_a_checkpoint_is_converted_and_describes_for_the_programs_viewer(tmp_path: Path) -> None:
    file = write(tmp_path / "made-up.t7", random_checkpoint())
    result = CliRunner().invoke(app, ["convert", str(file), str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    count = sum(p.numel() for p in convert(file).parameters())
    assert f"model: {count:,} weights, 5 words" in result.output.replace("\n", "")
    noise(360, 240).save(tmp_path / "image.png")
    where = ["--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    arguments = [str(tmp_path / "image.png"), "--output-format", "densecap", "--top", "0", *where]
    result = CliRunner().invoke(app, ["describe", *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(written) == {"opt", "results"}
    (row,) = written["results"]
    assert set(row) == {"img_name", "boxes", "scores", "captions"} and row["img_name"] == "image.png"
    assert (tmp_path / "out" / "image.png").exists()
    model = convert(file)
    pixels = torch.from_numpy(model.trunk.preprocess(open_image(tmp_path / "image.png")))
    seen = trace_inference(model, pixels)
    boxes, scores = xcycwh_to_xywh(seen.final_boxes[seen.final_nms]), seen.objectness[seen.final_nms]
    inside = ((boxes[:, :2] >= 1) & (boxes[:, :2] + boxes[:, 2:] - 1 <= boxes.new_tensor([720, 480]))).all(dim=1)
    assert inside.any()  # those are not cut
    found = np.column_stack((row["boxes"], row["scores"]))
    for expected in torch.column_stack((boxes, scores))[inside].tolist():
        nearest = found[abs(found[:, :4] - expected[:4]).sum(axis=1).argmin()]
        assert abs(nearest - expected)[:4].max() < 0.05
        assert abs(1 / (1 + np.exp(-nearest[4])) - 1 / (1 + np.exp(-expected[4]))) < 1e-4


def test_errors_are_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "text.t7").write_text("hello")
    for path, message in ((tmp_path / "text.t7", "not a Torch7 file"), (tmp_path / "no.t7", "No such file")):
        result = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "out")])
        assert result.exit_code == 2 and message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()
