"""Reading data and scoring files of predictions need no torch: all of it runs where torch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from albums import write_rows
from photographs import quarters

import saywhere

BLOCK = """
import sys
for name in ("torch", "torchvision", "timm"):
    sys.modules[name] = None
"""
PACKAGE = Path(saywhere.__file__).parent


def python(code: str, *arguments: object) -> str:
    """What the code prints, in a process without torch."""
    command = [sys.executable, "-c", BLOCK + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules() -> list[str]:
    files = [*(PACKAGE / "data").glob("*.py"), *(PACKAGE / "evaluation").rglob("*.py")]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    papers = ("retrieval", "captions", "external_proposals", "densecap2016.evaluator", "table1.config")
    names += [f"saywhere.papers.{name}" for name in papers]
    return sorted(name.removesuffix(".__init__") for name in names)


def test_modules_are_imported_without_torch_and_training_says_what_it_needs() -> None:
    names = modules()
    expected = {"saywhere.data.flickr", "saywhere.evaluation.dense", "saywhere.papers.retrieval"}
    assert len(names) > 25 and expected < set(names)
    code = """
import importlib, pydoc, saywhere
try:
    import torch
except ImportError:
    print("blocked")
print("finetune" in pydoc.render_doc(saywhere, renderer=pydoc.plaintext))
try:
    saywhere.finetune("images")
except saywhere.UserError as error:
    print(str(error)[:20])
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1)
"""
    assert python(code, *names).splitlines() == ["blocked", "True", "training needs torch", str(len(names))]


def test_a_data_set_is_read_merged_and_drawn(tmp_path: Path) -> None:
    quarters(64, 32).save(tmp_path / "a.png")
    regions = [{"box": [0, 0, 32, y], "phrase": f"a cat of {y}"} for y in (20, 22)]
    (tmp_path / "all.jsonl").write_text(json.dumps({"image": "a.png", "regions": regions}))
    code = """
from pathlib import Path
from saywhere import data
from saywhere.data import check
samples = data.read(sys.argv[1], options=data.PhraseOptions(merge=0.7))
print(samples[0].boxes.tolist(), samples[0].phrases, check.decode(samples))
print([path.name for path in check.draw(samples, Path(sys.argv[1]) / "drawn")])
"""
    assert python(code, tmp_path).splitlines() == [
        "[[0.0, 0.0, 32.0, 21.0]] (('a cat of 20', 'a cat of 22'),) 0",
        "['train-1-a.png']",
    ]
    assert (tmp_path / "drawn" / "train-1-a.png").is_file()


STUB_METEOR = """
from saywhere.evaluation import meteor

class Words:
    version = "equal words"
    def score(self, pairs): return [float(caption in references) for caption, references in pairs]

meteor.Meteor = Words
"""


@pytest.mark.parametrize(("protocol", "score"), [("clean", "0.5050"), ("original", "0.5000")])
def test_files_of_predictions_are_scored_and_reported(protocol: str, score: str, tmp_path: Path) -> None:
    """Both boxes are found; one of two captions is right."""
    truth = {"image": "a.png", "boxes": [[0, 0, 10, 10], [20, 20, 40, 40]], "captions": ["a cat", "a dog"]}
    predictions = {**truth, "scores": [0.75, 0.5], "captions": ["a cat", "a cow"]}
    write_rows(tmp_path / "truth.jsonl", truth)
    write_rows(tmp_path / "predictions.jsonl", predictions)
    code = """
from saywhere.cli import main
folder, protocol = sys.argv[1:]
sys.argv = ["saywhere", "evaluate", "dense", "--predictions", f"{folder}/predictions.jsonl", "--protocol", protocol]
sys.argv += ["--truth", f"{folder}/truth.jsonl", "--out", f"{folder}/out"]
main()
"""
    printed = python(STUB_METEOR + code, tmp_path, protocol)
    scores = f"mAP {score}, detection mAP 1.0000, language METEOR 0.5000"
    assert printed.startswith(f"1 image, protocol {protocol}: {scores}\n")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["protocol"], report["meteor_version"], report["detections"]) == (protocol, "equal words", 2)
    assert (tmp_path / "out" / "report.md").is_file()
