"""Commands with a model of transformers: they work, or end with one line and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flickr_entities import write_flickr
from photographs import noise
from stubs import StubMeteor, load_by, same_text
from tiny_adapters import tiny_adapted, tiny_folder
from typer.testing import CliRunner

import saywhere
from saywhere import boxes as geometry
from saywhere import cli
from saywhere.evaluation import captions as metrics
from saywhere.evaluation import meteor
from saywhere.serve import server

pytest.importorskip("pycocoevalcap", reason="needs the extra evaluate")

WRITES, ALL = {"florence2"}, {"florence2", "owlv2"}
COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "describe": (["ALBUM", "--json", "OUT", "--top", "3"], WRITES),
    "caption": (["ALBUM", "--json", "OUT", "--beam-size", "2"], WRITES),
    "ground": (["IMAGE", "a dog on the grass", "--json", "-", "--threshold", "0"], ALL),
    "ground ": (["IMAGE", "a dog on the grass", "--save-steps", "OUT"], set()),
    "index": (["ALBUM", "--index", "OUT"], set()),
    "serve": (["--port", "0"], ALL),
    "pseudo-label": (["ALBUM", "--split", "dev", "--out", "OUT"], set()),
    "evaluate dense": (["--data", "ALBUM", "--out", "OUT"], WRITES),
    "evaluate caption": (["--data", "ALBUM", "--out", "OUT"], WRITES),
    "evaluate ground": (["--data", "FLICKR", "--limit", "2", "--out", "OUT"], ALL),
    "evaluate rank": (["--data", "ALBUM", "--out", "OUT"], set()),
    "papers retrieval": (["--data", "ALBUM", "--out", "OUT"], set()),
    "describe ": (["IMAGE", "--set", "final_nms=0.3"], set()),
    "describe  ": (["IMAGE", "--engine", "onnx"], set()),
}
"""Arguments of each command (spaces behind its name tell another way of it), and the families that can do it."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("data")
    album, rows = root / "album", []
    album.mkdir()
    for number in range(2):
        noise(96, 64, number).save(album / f"{number}.png")
        regions = [{"box": [8, 0, 56, 60], "phrase": "a dog"}]
        row = {"image": f"{number}.png", "split": "dev", "regions": regions, "sentences": ["a dog in the sky"]}
        rows.append(json.dumps(row) + "\n")
    (album / "data.jsonl").write_text("".join(rows))
    data = {"IMAGE": album / "0.png", "ALBUM": album, "FLICKR": write_flickr(root / "flickr8k")}
    return {word: str(place) for word, place in data.items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model is loaded once for all commands, and writes little; nothing needs Java or serves for ever."""
    usual, adapter = saywhere.load, type(tiny_adapted("florence2").adapter)

    def load(folder: str, *, device: Any = None, threads: Any = None, **settings: Any) -> Any:
        if any(settings.values()):
            return usual(folder, device, threads=threads, **settings)
        return tiny_adapted(Path(folder).name)

    load_by(monkeypatch, load)
    monkeypatch.setattr(adapter, "most_tokens", 30)
    monkeypatch.setattr(adapter, "caption_tokens", 6)
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(metrics, "score_captions", same_text)
    monkeypatch.setattr(server, "run", lambda app, listening, *_: listening.close())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", sorted(ALL))
@pytest.mark.parametrize("command", COMMANDS)
def test_it_works_or_ends_with_one_line(command: str, kind: str, places: dict[str, str], tmp_path: Path):
    arguments, able = COMMANDS[command]
    words = [{**places, "OUT": str(tmp_path / "out")}[word] if word.isupper() else word for word in arguments]
    done = CliRunner().invoke(
        cli.app,
        [*command.split(), *words, "--model", str(tiny_folder(kind)), "--device", "cpu"],
        catch_exceptions=False,
    )
    if kind in able:
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if " a second" not in line]  # progress
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    # The file of results is opened before the model is asked, as for all models.
    assert not (tmp_path / "out").exists() or (tmp_path / "out").is_file()


def test_evaluated_figures_are_those_of_its_answers(places: dict[str, str], tmp_path: Path):
    folder = str(tiny_folder("owlv2"))
    done = CliRunner().invoke(
        cli.app, ["evaluate", "ground", "--data", places["ALBUM"], "--model", folder, "--out", "out"],
        catch_exceptions=False,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    row = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (row["model"], row["images"], row["phrases"]) == (folder, 2, 2)
    assert row["presence"]["phrases"] == 2 and 0 <= row["presence"]["auc"] <= 1
    model, true = tiny_adapted("owlv2"), np.array([[8, 0, 56, 60]], np.float32)
    boxes = [model.ground(f"{places['ALBUM']}/{i}.png", ["a dog"], threshold=0).boxes for i in range(2)]
    right = [float(geometry.iou(box, true)[0, 0]) >= 0.5 for box in boxes]
    assert row["accuracy"] == pytest.approx(np.mean(right))


def test_a_server_answers_by_it(places: dict[str, str]):
    from starlette.testclient import TestClient

    from saywhere.serve.app import create_app
    from saywhere.serve.limits import Limits

    body = Path(places["IMAGE"]).read_bytes()
    with TestClient(create_app(tiny_adapted("owlv2"), Limits(answer_seconds=600))) as client:
        assert client.get("/v1/models").json()["models"][0]["parts"] == ["aligner"]
        found = client.post("/v1/ground", params={"text": "a dog", "threshold": 0}, content=body)
        wanted = tiny_adapted("owlv2").ground(places["IMAGE"], ["a dog"], threshold=0)
        assert found.status_code == 200 and found.json()["boxes"] == wanted.to_dict()["boxes"]
        refused = client.post("/v1/describe", content=body)
        assert refused.status_code == 422 and "OWLv2 can ground phrases" in refused.json()["error"]
