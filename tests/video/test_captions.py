"""WebVTT captions: what is shown when."""

from __future__ import annotations

import itertools
import json
import random

from saywhere.video.results import Cue, Span, cues, write_captions


def test_the_best_phrases_are_shown_each_once_and_gaps_are_empty():
    spans = [
        (0.0, Span(1.0, score, phrase))
        for score, phrase in [(0.1, "e"), (0.9, "a"), (0.8, "a"), (0.7, "b"), (0.6, "c")]
    ]
    assert list(cues([*spans, (5.0, Span(6.0, 0.5, "d")), (6.0, Span(7.0, 0.5, "d"))])) == [
        Cue(0.0, 1.0, ("a", "b", "c")),
        Cue(5.0, 7.0, ("d",)),
    ]


def test_captions_agree_with_a_slow_count():
    rng = random.Random(0)
    spans = sorted(
        (float(s := rng.randrange(50)), Span(float(s + rng.randrange(1, 9)), rng.random(), rng.choice("abcdef")))
        for _ in range(60)
    )
    found = list(cues(spans))
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    for second in range(60):
        active = sorted((-score, phrase) for start, (end, score, phrase, _) in spans if start <= second < end)
        phrases = tuple(dict.fromkeys(phrase for _, phrase in active))[:3]
        assert [cue.phrases for cue in found if cue.start <= second < cue.end] == ([phrases] if phrases else [])


def test_one_thing_is_shown_once_whatever_its_phrases():
    """The same ship three times, a part of it by another noun, and another ship beside it."""
    places = {
        "a blue cargo ship": (0, 0, 100, 50), "a cargo ship": (0, 10, 60, 50), "a ship": (50, 0, 100, 50),
        "a mast": (40, 0, 50, 30), "a white ship": (95, 0, 200, 50),
    }  # fmt: skip
    spans = [
        (0.0, Span(2.0, 0.9 - row / 10, phrase, ((0.0, box), (1.0, box))))
        for row, (phrase, box) in enumerate(places.items())
    ]
    assert list(cues(spans)) == [Cue(0.0, 2.0, ("a blue cargo ship", "a mast", "a white ship"))]
    (_, ship), later = spans[0], (1.0, Span(2.0, 0.5, "a ship", ((1.5, (0, 0, 100, 50)),)))
    assert [cue.phrases for cue in cues([(0.0, ship), later])][-1] == ("a blue cargo ship", "a ship")  # never compared


def test_one_thing_is_shown_once_by_a_noun_that_is_not_in_the_tree():
    where = ((0.0, (0, 0, 100, 50)),)
    phrases = ("dry brown ground", "dry ground", "calm water", "a dog")
    spans = [(0.0, Span(2.0, 0.9 - row / 10, phrase, where)) for row, phrase in enumerate(phrases)]
    assert list(cues(spans)) == [Cue(0.0, 2.0, ("dry brown ground", "calm water", "a dog"))]


def test_the_file(tmp_path):
    places = {"times": [1.0], "boxes": [[0, 0, 10, 10]]}
    rows = [
        {"video": "v", "track": 2, "start": 1.0, "end": 2.5, "phrase": "R&D <b>\nnow", "score": 0.5, **places},
        {"video": "v", "track": 1, "start": 0.0, "end": 3600.25, "phrase": "a dög", "score": 0.9, **places},
        {**places, "track": 3, "start": 0.0, "end": 1.0, "phrase": "its mouth", "score": 0.9, "caption_score": 0.4},
        {"video": "v", "scene": 1, "start": 0.0, "end": 3600.25},
    ]
    (tmp_path / "tracks").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_captions(tmp_path / "a.vtt", tmp_path / "tracks")
    assert (tmp_path / "a.vtt").read_text(encoding="utf-8") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na dög\n\n00:00:01.000 --> 00:00:02.500\na dög\n"
        "R&amp;D &lt;b&gt; now\n\n00:00:02.500 --> 01:00:00.250\na dög\n"
    )
