"""What models of transformers can do, what they refuse in one line, and what is never read or run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from photographs import jpeg, noise
from refusals import refuses
from tiny_adapters import WRITERS, tiny_adapted, tiny_folder

import saywhere
from saywhere import UserError
from saywhere import boxes as geometry
from saywhere.papers.captions import CaptionEnsemble

IMAGE = noise(64, 64, 0)
WRITE = ("florence2",)
EVERYTHING: dict[str, Callable[[Any], object]] = {
    "describe": lambda model: model.describe([]),
    "ground": lambda model: model.ground([], []),
    "caption": lambda model: model.caption([]),
    "score": lambda model: model.score(IMAGE, ["a dog"]),
    "align": lambda model: model.align(IMAGE, "a dog"),
    "embed": lambda model: model.embed(IMAGE),
    "embed_text": lambda model: model.embed_text("a dog"),
    "attend": lambda model: model.attend(IMAGE, ["a dog"]),
    "ground by a part": lambda model: model.ground(IMAGE, "a dog", part="aligner"),
    "an ensemble": lambda model: CaptionEnsemble([model, model]),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("question", EVERYTHING)
def test_questions_are_answered_or_refused_in_one_line(kind: str, question: str):
    model = tiny_adapted(kind)
    able = {"describe", "ground", "caption"} if kind in WRITE else {"ground"}
    if question in able:
        assert EVERYTHING[question](model) == []
        return
    verbs = "describe, ground and caption" if kind in WRITE else "ground phrases"
    refuses(rf"^{kind} cannot .*: that needs a model with the part \w+; .* can {verbs}$", EVERYTHING[question], model)


def test_parts_are_those_for_whose_verbs_it_answers():
    assert tiny_adapted("florence2").parts == ("densecap", "aligner", "captioner")
    assert tiny_adapted("owlv2").parts == ("aligner",) and repr(tiny_adapted("owlv2")) == "Model('owlv2': OWLv2)"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.ground(IMAGE, ["a dog", "..."]), r"the phrase '\.\.\.' has no word"),
        (
            lambda m: m.ground(IMAGE, "a dog", [[0, 0, 9, 9]]),
            "florence2 looks everywhere in an image: it cannot choose",
        ),
        (lambda m: m.ground(IMAGE, "a dog", regions=3), "florence2 looks everywhere in an image: it cannot choose"),
        (lambda m: m.ground(IMAGE, "a dog", threshold=2), "threshold must be a probability, not 2"),
        (lambda m: m.describe(IMAGE, [[0, 0, 9, 9]], top=1), "given boxes are all described: top and threshold"),
        (lambda m: m.describe(IMAGE, top=-1), "top must be a whole number of at least 0, not -1"),
        (lambda m: m.caption(IMAGE, boxes=[[0, 0, 9, 9]]), "florence2 captions whole images"),
        (lambda m: m.caption(IMAGE, least_probability=0.1), "florence2 has no n-grams of captions"),
        (lambda m: m.caption("nothing.jpg"), "nothing.jpg"),
        (lambda m: m.ground(IMAGE, ["x" * 20_000]), "florence2 cannot process this image or text: "),
        (lambda m: m.ground(IMAGE, ["caf\udce9"]), "florence2 cannot process this image or text: "),
    ],
)
def test_what_does_not_fit_is_refused(ask: Callable[[Any], object], message: str):
    refuses(message, ask, tiny_adapted("florence2"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": {"decoding.beam_size": 3}}, "OWLv2 has no options to set, such as 'decoding.beam_size'$"),
        ({"precision": "int8"}, "OWLv2 computes in float32, not in int8; leave"),
        ({"device": "abacus"}, "^device abacus cannot be used here "),
        ({"engine": "onnx"}, "is of OWLv2, which has no graphs: run it with the engine torch$"),
    ],
)
def test_options_that_they_have_not(options: dict[str, Any], message: str):
    refuses(message, saywhere.load, tiny_folder("owlv2"), **options)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder("owlv2"), tmp_path / "copy"))


def test_pickled_weights_are_never_read(copy: Path):
    weights = copy / "model.safetensors"
    (copy / "pytorch_model.bin").write_bytes(weights.read_bytes())
    weights.unlink()
    refuses(f"^{copy}: has no weights in safetensors, the only format that is read$", saywhere.load, copy, "cpu")


def test_code_beside_a_model_is_never_run(copy: Path):
    ran = copy / "it-ran"
    (copy / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: ...\n")
    named = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoProcessor": "evil.Evil"}
    for name in ("config.json", "processor_config.json", "tokenizer_config.json"):
        stored = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**stored, "auto_map": {**named, "AutoTokenizer": ["evil.Evil", None]}}))
    try:
        saywhere.load(copy, "cpu")
    except UserError as error:
        assert "\n" not in str(error)
    assert not ran.exists()


def test_weights_of_another_class_are_refused(copy: Path):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    refuses("weights are missing, such as .*: these are not weights of the tr", saywhere.load, copy, "cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "processor_config.json"])
def test_damaged_files_are_one_line(copy: Path, name: str):
    (copy / name).write_bytes(b'{"cut off')
    refuses(f"^{copy}: cannot be read as a model of OWLv2: ", saywhere.load, copy, "cpu")


def test_a_digest_is_of_weights_and_configurations(copy: Path):
    made = tiny_adapted("owlv2").digest()
    assert saywhere.load(copy, "cpu").digest() == made
    (copy / "README.md").write_text("a card")
    assert saywhere.load(copy, "cpu", threads=torch.get_num_threads()).digest() == made
    stored = json.loads((copy / "processor_config.json").read_text())
    (copy / "processor_config.json").write_text(json.dumps(stored, indent=1))
    assert saywhere.load(copy, "cpu").digest() != made


def test_a_placer_gives_evidence_of_one_region_a_phrase():
    model = tiny_adapted("owlv2")
    placer, seen = model.placer(), model.encode(IMAGE)
    found = placer.evidence(seen, ["a cat", "a dog"])
    np.testing.assert_array_equal(found.rows(placer.config), [0, 1])
    np.testing.assert_array_equal(
        found.presence(placer.calibration), model.ground(seen, ["a cat", "a dog"], threshold=0).scores
    )
    assert len(placer.evidence(seen, ["a cat", "a"]).regions) == 2  # as data have it; who asks is refused
    refuses("the phrase 'a' names nothing", placer.ground, seen, ["a cat", "a"])
    assert not placer.lexicon.is_rare("a zyzzyva") and placer.lexicon.unknown(["a zyzzyva"]) == {}
    assert not placer.lexicon.knows_none(["a zyzzyva"])
    assert placer.ground(seen, ["a cat"], threshold=0).to_dict() == model.ground(seen, ["a cat"], threshold=0).to_dict()


def test_evaluated_figures_are_those_of_its_answers(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the extra evaluate")
    noise(96, 64, 1).save(tmp_path / "a.png")
    row = {"image": "a.png", "split": "dev", "regions": [{"box": [8, 0, 56, 60], "phrase": "a dog"}]}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    command = ["evaluate", "ground", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    run(*command, "--model", tiny_folder("owlv2"))
    row = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (row["model"], row["images"], row["phrases"]) == (str(tiny_folder("owlv2")), 1, 1)
    found = tiny_adapted("owlv2").ground(tmp_path / "a.png", ["a dog"], threshold=0).boxes
    assert row["accuracy"] == float(geometry.iou(found, np.array([[8, 0, 56, 60]], np.float32))[0, 0] >= 0.5)


def test_a_server_answers_by_it():
    from starlette.testclient import TestClient

    from saywhere.serve.app import create_app
    from saywhere.serve.limits import Limits

    with TestClient(create_app(tiny_adapted("owlv2"), Limits(answer_seconds=600))) as client:
        assert client.get("/v1/models").json()["models"][0]["parts"] == ["aligner"]
        found = client.post("/v1/ground", params={"text": "a dog", "threshold": 0}, content=jpeg(IMAGE))
        assert found.status_code == 200 and len(found.json()["boxes"]) == 1
        refused = client.post("/v1/describe", content=jpeg(IMAGE))
        assert refused.status_code == 422 and "OWLv2 can ground phrases" in refused.json()["error"]
