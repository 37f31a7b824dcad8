"""Every kind of model with every command that takes ``--model``: it works, or ends with one line and exit code 2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from albums import write_album
from commands import run
from flickr_entities import write_flickr
from stubs import StubMeteor, load_by, same_text
from tiny_adapters import tiny_adapted, tiny_folder
from tiny_aligner import SENTENCES, tiny_aligner
from tiny_captioner import tiny_captioner
from tiny_classes import tiny_networks
from tiny_densecap import PHRASES, tiny_model
from tiny_tower import tower_model

import saywhere
from saywhere import cli
from saywhere.evaluation import captions as metrics
from saywhere.evaluation import meteor
from saywhere.models.bundle import CONFIGS
from saywhere.networks import checkpoint
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.serve import server
from saywhere.text import Vocabulary

pytest.importorskip("pycocoevalcap", reason="needs the extra evaluate")

ADAPTED = ("florence2", "owlv2")
KINDS = ("flickr-coco", "tower", "densecap", "aligner", "captioner", "box-captioner", "region-rnn", "nouns", *ADAPTED)
"""The shipped bundle, one with an image tower, a checkpoint of each part (two of the captioner, one for boxes), and two
models of other people."""
DETECTS = {"flickr-coco", "tower", "densecap"}
ALIGNS = {"flickr-coco", "tower", "aligner"}
CAPTIONS = {"flickr-coco", "tower", "captioner", "box-captioner"}
WRITES, PLACES = {"florence2"}, {*ADAPTED}
TOGETHER = {"tower", "captioner", "box-captioner"}
"""Those of one vocabulary."""
COMMANDS: dict[str, tuple[list[str], set[str]]] = {
    "describe": (["IMAGE"], DETECTS | WRITES),
    "describe ": (["IMAGE", "--boxes", "BOXES"], DETECTS | WRITES | {"box-captioner"}),
    "ground": (["IMAGE", "a dog on the grass"], DETECTS | ALIGNS | PLACES),
    "ground ": (["IMAGE", "a dog", "the sky"], DETECTS | ALIGNS | PLACES),
    "ground  ": (["IMAGE", "a dog on the grass", "--beta", "1"], ALIGNS),
    "caption": (["IMAGE", "--beam-size", "2"], CAPTIONS | WRITES),
    "alt": (["PAGE"], {"flickr-coco", "tower"} | WRITES),
    "serve": (["--port", "0"], DETECTS | ALIGNS | CAPTIONS | PLACES),
    "mcp": (["ALBUM", "--port", "0"], DETECTS | ALIGNS | CAPTIONS | PLACES),
    "index": (["ALBUM", "--index", "OUT"], ALIGNS),
    "search": (["a dog", "--index", "INDEX"], {"aligner"}),
    "evaluate dense": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], DETECTS | WRITES),
    "evaluate caption": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], CAPTIONS | WRITES),
    "evaluate region-captions": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], DETECTS | {"box-captioner"}),
    "evaluate rank": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], ALIGNS),
    "pseudo-label": (["ALBUM", "--split", "dev", "--limit", "2", "--out", "OUT"], ALIGNS),
    "papers retrieval": (["--data", "ALBUM", "--limit", "2", "--queries", "2", "--out", "OUT"], DETECTS),
    "papers caption": (["--data", "ALBUM", "--limit", "2", "--model", "CAPTIONER", "--out", "OUT"], TOGETHER),
    "evaluate search": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], ALIGNS),
    "evaluate ground": (["--data", "FLICKR", "--limit", "2", "--out", "OUT"], DETECTS | ALIGNS | PLACES),
    "evaluate nouns": (["--data", "ALBUM", "--limit", "2", "--out", "OUT"], DETECTS),
    "evaluate attention": (["--data", "FLICKR", "--limit", "2", "--out", "OUT"], {"flickr-coco", "tower", "captioner"}),
}
"""Arguments of each command (a space behind its name tells a second way of it), and the kinds that can do it."""


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the program, by its words."""
    for name, command in group.commands.items():
        whole = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, whole)
        else:
            yield whole, command


def with_model() -> list[str]:
    """The commands with the option ``--model``."""
    program = typer.main.get_command(cli.app)
    return [name for name, command in commands(program) if any("--model" in p.opts for p in command.params)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The models by kind, and the data that the commands are given."""
    root = tmp_path_factory.mktemp("models")
    trunk = {"backbone": "test_efficientnet", "long_side": 64, "multiple": 64, "strides": [32]}
    config = RegionRnnConfig().merge({"trunk": trunk, "embed_dim": 16, "hidden_size": 16, "word_size": 8})
    networks = {
        "densecap": tiny_model(),
        "aligner": tiny_aligner(),
        "captioner": tiny_captioner(),
        "box-captioner": tiny_captioner(decoder="rnn", describe_boxes=True),
        "region-rnn": checkpoint.new_network(RegionRnn, config, Vocabulary.build(PHRASES)),
        "nouns": tiny_networks()["nouns"],
    }
    assert {checkpoint.part_of(network) for network in networks.values()} == {*CONFIGS, "region-rnn"}, (
        "a kind of model is missing"
    )
    made = {kind: str(checkpoint.save(network, root / kind)) for kind, network in networks.items()}
    made |= {kind: str(tiny_folder(kind)) for kind in ADAPTED}
    made["tower"] = str(tower_model())
    regions = [{"box": [8 * i, 0, 48 + 8 * i, 60], "phrase": phrase} for i, phrase in enumerate(PHRASES)]
    album = write_album(root / "album", [{"regions": regions, "sentences": SENTENCES[:2]}] * 2).parent
    (album / "page.html").write_text('<img src="0.png">')
    (root / "boxes.json").write_text("[[0, 0, 40, 60]]")
    flickr = write_flickr(root / "data")
    with saywhere.Index(root / "index", made["aligner"]) as index:
        index.add(album)
    data = {
        "IMAGE": album / "0.png",
        "BOXES": root / "boxes.json",
        "ALBUM": album,
        "PAGE": album / "page.html",
        "FLICKR": flickr,
    }
    data |= {"INDEX": root / "index", "CAPTIONER": Path(made["captioner"])}
    return {"flickr-coco": "flickr-coco", **made, **{word: str(place) for word, place in data.items()}}


@pytest.fixture(scope="module")
def load() -> Any:
    """A model is loaded once for all commands."""
    usual = saywhere.load

    @cache
    def loaded(folder: str, settings: str) -> Any:
        return usual(folder, **json.loads(settings))

    return lambda folder, **settings: loaded(str(folder), json.dumps(settings))


def test_every_command_that_takes_a_model_is_in_the_table() -> None:
    apart = {"finetune"}  # trains: tests/stages/test_finetune.py
    assert {name.strip() for name in COMMANDS} | apart == set(with_model())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_works_or_ends_with_one_line(
    command: str, kind: str, places: dict[str, str], load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_by(monkeypatch, load)
    adapter = type(tiny_adapted("florence2").adapter)
    monkeypatch.setattr(adapter, "most_tokens", 30)
    monkeypatch.setattr(adapter, "caption_tokens", 6)
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(metrics, "score_captions", same_text)
    monkeypatch.setattr(server, "run", lambda app, listening, *_: listening.close())  # or it would serve for ever
    monkeypatch.chdir(tmp_path)
    arguments, able = COMMANDS[command]
    words = [{**places, "OUT": str(tmp_path / "out")}[word] if word.isupper() else word for word in arguments]
    code = 0 if kind in able else 2
    done = run(*command.split(), *words, "--model", places[kind], "--device", "cpu", code=code)
    if code:
        lines = [line for line in done.stderr.splitlines() if " a second" not in line]  # progress
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert not (tmp_path / "out").exists()
