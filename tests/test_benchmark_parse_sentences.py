"""The script that parses sentences, with a parser of a few lines in the place of spaCy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from saywhere.papers.relations import Relation, read_parses

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "parse_sentences.py"


class Sentence(list[Any]):
    """What spaCy makes of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        for i, form in enumerate(text.replace(".", " .").split(" ")):
            self.append(SimpleNamespace(i=i, text=form, is_space=not form, pos_="X", tag_="Y", dep_="dep"))
        words = [word for word in self if not word.is_space]
        for word in words:
            word.head = words[0]
        words[0].dep_ = "ROOT"


def load(name: str, exclude: list[str]) -> Any:
    def pipe(texts: Iterable[str]) -> Iterator[Sentence]:
        return map(Sentence, texts)

    assert name == "some_model" and "parser" not in exclude
    return SimpleNamespace(pipe=pipe)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    spec = importlib.util.spec_from_file_location("parse_sentences", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sentences_of_a_file_become_parses_that_the_reader_takes(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["parse_sentences.py", "--model", "some_model"])
    monkeypatch.setattr(sys, "stdin", ["A  dog runs.\n", "\n", "Dogs\n"])
    script.main()
    path = tmp_path / "some.conllu"
    path.write_text(capsys.readouterr().out)
    read = read_parses(path)
    assert read.find("a dog runs") == (
        Relation("root", "", "a"),
        Relation("dep", "a", "dog"),
        Relation("dep", "a", "runs"),
    )
    assert read.find("dogs") == (Relation("root", "", "dogs"),)
    assert path.read_text().startswith("# text = A dog runs.\n1\tA\t_\tX\tY\t_\t0\troot\t_\t_\n2\tdog")
