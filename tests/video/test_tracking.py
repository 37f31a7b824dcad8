"""Regions followed from look to look, without a network: what is told apart, what ends when, what is remembered."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from photographs import noise
from tiny_bundle import bundle_model

from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.regions import Regions
from saywhere.video import TICKS
from saywhere.video.tracking import CELLS, MOST_BOXES, MOST_PHRASES, Look, Tracker, Watcher

DAY, NIGHT = np.ones((9, 4), np.float32), -np.ones((9, 4), np.float32)
DOG, CAT = [1.0, 0, 0, 0], [0, 1.0, 0, 0]


def look(*seen: tuple, scene=DAY) -> Look:
    """A look that saw (box, features, phrase, score) in an image of 200 x 100 pixels."""
    boxes, features, phrases, scores = zip(*seen, strict=True) if seen else ((), (), (), ())
    vectors = np.array(features, np.float32).reshape(-1, 4)
    return Look(Regions(200, 100, np.array(boxes).reshape(-1, 4), list(scores), phrases, vectors), scene)


def at(x: float, y: float = 10) -> list[float]:
    return [x, y, x + 40, y + 40]


def follow(looks: list[Look], tracker: Tracker | None = None, first: int = 0) -> list[dict]:
    """The rows of looks a second apart, in their order; the video ends a second after the last."""
    tracker = tracker or Tracker()
    rows: list[dict] = []
    for second, seen in enumerate(looks, first):
        rows += tracker.update(second * TICKS, seen)
    return rows + tracker.finish((first + len(looks)) * TICKS)


def spans(rows: list[dict]) -> list[tuple]:
    return [(row["phrase"], row["start"], row["end"]) for row in rows if "track" in row]


def test_a_region_that_moves_is_one_track():
    rows = follow([look((at(15 * second), DOG, "a dog", 0.75)) for second in range(8)])
    assert rows == [
        {
            "track": 1, "scene": 1, "start": 0.0, "end": 8.0, "phrase": "a dog", "score": 0.75, "looks": 8,
            "times": [float(second) for second in range(8)], "boxes": [at(15.0 * second, 10.0) for second in range(8)],
        },
        {"scene": 1, "start": 0.0, "end": 8.0},
    ]  # fmt: skip


def test_regions_that_cross_keep_their_tracks():
    looks = [look((at(20 * s), DOG, "a dog", 0.9), (at(140 - 20 * s), CAT, "a cat", 0.8)) for s in range(8)]
    rows = follow(looks)
    assert spans(rows) == [("a dog", 0, 8), ("a cat", 0, 8)]
    assert rows[0]["boxes"][-1] == at(140.0, 10.0) and rows[1]["boxes"][-1] == at(0.0, 10.0)


def test_alike_regions_are_told_apart_by_place_and_speed():
    looks = [look((at(18 * s), DOG, "left", 0.9), (at(120, 55), DOG, "right", 0.9)) for s in range(7)]
    assert spans(follow(looks)) == [("left", 0, 7), ("right", 0, 7)]


def test_a_fast_region_is_expected_where_it_goes():
    looks = [look((at(x), DOG, "a dog", 0.9)) for x in (0, 30, 60, 95, 130)]
    assert spans(follow(looks)) == [("a dog", 0, 5)]  # 35 of 40 pixels a second: the boxes hardly overlap
    assert len(spans(follow([look((at(x), DOG, "a dog", 0.9)) for x in (0, 60, 120, 0, 60)]))) == 0


def test_another_thing_in_the_same_place_is_another_track():
    looks = [look((at(50), DOG if s < 3 else CAT, "a dog" if s < 3 else "a cat", 0.9)) for s in range(6)]
    assert spans(follow(looks)) == [("a dog", 0, 3), ("a cat", 3, 6)]


def test_what_turns_into_something_else_is_another_track():
    """A cross-fade: each look is like the one before, and the last not like the first."""
    looks = [look((at(50), [10.0 - s, s, 0, 0], "a dog" if s < 6 else "a cat", 0.9)) for s in range(10)]
    assert spans(follow(looks)) == [("a dog", 0, 6), ("a cat", 6, 10)]


def test_words_that_are_probably_wrong_have_less_of_a_vote():
    tracker, said = Tracker(), [("a dog", 0.9), ("its mouth", 0.3), ("its mouth", 0.4)]
    for second, (phrase, sure) in enumerate(said):
        seen = look((at(50), DOG, phrase, 0.9))
        seen = replace(seen, regions=replace(seen.regions, caption_scores=np.array([sure], np.float32)))
        tracker.update(second * TICKS, seen)
    ((row, _),) = [tracker.finish(3 * TICKS)]
    assert (row["phrase"], row["caption_score"]) == ("a dog", 0.9)


def test_the_phrase_is_that_with_the_most_votes_by_score():
    said = [("a cow", 0.9), ("a dog", 0.5), ("a dog", 0.5), ("a wolf", 0.3), ("a wolf", 0.3)]
    rows = follow([look((at(50), DOG, phrase, score)) for phrase, score in said])
    assert rows[0]["phrase"] == "a dog" and rows[0]["score"] == 0.5


def test_a_look_that_misses_a_region_does_not_end_it_but_two_do():
    seen, missed = look((at(50), DOG, "a dog", 0.9)), look()
    assert spans(follow([seen, missed, seen, seen])) == [("a dog", 0, 4)]
    assert spans(follow([seen, seen, missed, missed, seen, seen])) == [("a dog", 0, 2), ("a dog", 4, 6)]
    assert spans(follow([seen, seen, missed])) == [("a dog", 0, 2)]


def test_a_change_of_scene_ends_everything():
    looks = [look((at(50), DOG, "a dog", 0.9), scene=NIGHT if s in (2, 3, 4) else DAY) for s in range(7)]
    rows = follow(looks)
    assert spans(rows) == [("a dog", 0, 2), ("a dog", 2, 5), ("a dog", 5, 7)]
    assert [(row["scene"], row["start"], row["end"]) for row in rows if "track" not in row] == [
        (1, 0, 2),
        (2, 2, 5),
        (3, 5, 7),
    ]
    assert [row["scene"] for row in rows if "track" in row] == [1, 2, 3]


def test_what_only_one_look_saw_is_left_out_unless_it_was_the_only_look():
    dog, cat = (at(50), DOG, "a dog", 0.9), (at(120), CAT, "a cat", 0.3)
    assert spans(follow([look(dog), look(dog, cat), look(dog)])) == [("a dog", 0, 3)]
    assert spans(follow([look(dog, cat)])) == [("a dog", 0, 1), ("a cat", 0, 1)]


def test_a_long_track_needs_no_more_memory_than_a_short_one():
    tracker = Tracker()
    for second in range(1500):
        tracker.update(second * TICKS, look((at(50), DOG, f"dog {second}", 0.5), (at(120), CAT, "a cat", 0.5)))
    assert len(tracker.tracks) == 2
    assert all(len(t.boxes) == len(t.ticks) <= MOST_BOXES and len(t.votes) <= MOST_PHRASES for t in tracker.tracks)
    (row, other, _) = tracker.finish(1500 * TICKS)
    assert row["looks"] == 1500 and row["times"][:3] == [0, 8, 16] and row["times"][-1] == 1496
    assert other["phrase"] == "a cat"


def test_nothing_at_all_gives_no_scene():
    assert follow([]) == []
    assert follow([look(), look()]) == [{"scene": 1, "start": 0.0, "end": 2.0}]


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_tracker_goes_on_from_its_stored_form(stop):
    rng = np.random.default_rng(stop)
    looks = [
        look(
            *((at(rng.uniform(0, 150), rng.uniform(0, 50)), rng.random(4), f"word {rng.integers(3)}", rng.random())
              for _ in range(6)),
            scene=NIGHT if s == 7 else DAY,
        )
        for s in range(12)
    ]  # fmt: skip
    expected = follow(looks)
    tracker = Tracker()
    before = [row for s, seen in enumerate(looks[:stop]) for row in tracker.update(s * TICKS, seen)]
    restored = Tracker.from_dict(json.loads(json.dumps(tracker.to_dict())))
    assert len(expected) > 6
    assert before + follow(looks[stop:], restored, stop) == expected


def loaded(seed: int) -> LoadedImage:
    pixels = noise(96, 64, seed)
    return LoadedImage(pixels, 192, 128, "a frame")


@pytest.mark.parametrize("parts", [("densecap",), ("densecap", "aligner")])
def test_a_look_has_regions_with_features_and_a_vector_for_each_cell(parts):
    model = bundle_model(**{part: {} for part in parts})
    look = Watcher(model, top=4)(loaded(0))
    regions = model.describe(loaded(0), top=4)
    assert (regions.width, len(look.regions)) == (192, len(regions)) and look.regions.captions == regions.captions
    np.testing.assert_allclose(look.regions.boxes, regions.boxes, atol=1e-3)
    assert look.regions.features is not None and len(look.regions.features) == len(regions) > 0
    assert look.scene.shape[0] == CELLS**2 and np.isfinite(look.scene).all()
    other = Watcher(model, top=4)(loaded(1))
    assert not np.allclose(look.scene, other.scene)
    np.testing.assert_allclose(Watcher(model, top=4)(loaded(0)).scene, look.scene, atol=1e-4)


def test_cells_are_read_from_left_to_right_and_down():
    model = bundle_model(densecap={}, aligner={})
    width, height = 192, 128
    boxes = [
        [x * width / 3, y * height / 3, (x + 1) * width / 3, (y + 1) * height / 3] for y in range(3) for x in range(3)
    ]
    expected = model.embed(loaded(0), np.array(boxes)).vectors[1:]
    np.testing.assert_allclose(Watcher(model)(loaded(0)).scene, expected, atol=1e-3)


def test_a_model_that_finds_no_regions_is_refused():
    with pytest.raises(UserError, match="tiny cannot describe videos: that needs a model with the part densecap"):
        Watcher(bundle_model(captioner={}))
