"""What the systems are given and what is timed: crops, neighbours, clocks, cells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_comparison import StubMeteor

from saywhere.data.sample import Sample
from saywhere.evaluation.region_lines import RegionLines
from saywhere.papers.table1 import region_rnn, systems
from saywhere.papers.table1.systems import Cell, Neighbours, Watch, take_times, write_lines


def sample(name: str, *phrases: tuple[str, ...], sentences: tuple[str, ...] = ()) -> Sample:
    boxes = np.array([[i, 0.0, i + 5.0, 9.0] for i in range(len(phrases))]).reshape(-1, 4)
    return Sample(Path(name), 50, 40, boxes, phrases, sentences)


SAMPLES = [
    sample("a.jpg", ("A dog", "the dog"), ("a cat",), ("a tree",), sentences=("A dog runs.", "So " * 20, "...")),
    sample("b.jpg", ("a dog",), sentences=("Words " * 17,)),
    sample("c.jpg", ("a cat",), ("the tree",)),
]


def test_each_image_has_a_crop_before_any_has_two() -> None:
    found = region_rnn.region_crops(SAMPLES, 2)
    assert [crop.image.name for crop in found.crops] == ["a.jpg", "b.jpg", "c.jpg", "a.jpg", "c.jpg"]
    for crop, phrases in zip(found.crops, found.phrases, strict=True):
        whole = next(s for s in SAMPLES if s.image == crop.image)
        assert phrases == whole.phrases[int(crop.box[0])] and crop.box[2] == crop.box[0] + 5


def test_fewer_crops_are_the_first_of_more() -> None:
    everything = region_rnn.region_crops(SAMPLES, None)
    assert len(everything.crops) == 6 and len(set(everything.crops)) == 6
    for most in (1, 2):
        assert region_rnn.region_crops(SAMPLES, most).crops == everything.crops[: 3 if most == 1 else 5]


def test_sentences_of_whole_images_without_those_too_long_or_wordless() -> None:
    found = region_rnn.sentence_crops(SAMPLES, 16)
    assert found.phrases == [("A dog runs.",)]
    assert found.crops[0].box == (0, 0, 50, 40)
    assert len(region_rnn.sentence_crops(SAMPLES, 17).crops) == 2


def test_the_most_frequent_phrase_by_its_words() -> None:
    assert systems.most_frequent_phrase(SAMPLES) == "a cat"  # as often as "a dog", and before it in the alphabet
    assert systems.most_frequent_phrase([*SAMPLES, sample("d.jpg", ("A dog!",))]) == "a dog"


def test_the_nearest_region_by_angle() -> None:
    neighbours = Neighbours.of(np.array([[9.0, 0], [0.1, 0.1], [0, 2]]), ["east", "between", "north"])
    assert neighbours.captions(np.array([[1.0, 0.1], [50, 45], [0, 0.01]])) == ("east", "between", "north")
    assert neighbours.captions(np.zeros((0, 2))) == ()


def test_a_watch_adds_up_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 2.0, 2.25])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    watch = Watch()
    for _ in range(2):
        with watch.stage("network"):
            pass
    assert watch.wall == {"network": 750.0} and watch.processor == {"network": 0.0}


def test_the_median_of_rounds_then_the_mean_of_images() -> None:
    calls: list[str] = []
    cost = iter([[5.0], [1, 9, 2], [30, 10, 20]])
    rounds: list[float] = []

    def describe(path: Path, watch: Watch) -> None:
        nonlocal rounds
        if not rounds:
            rounds = list(next(cost))
        calls.append(path.name)
        watch.wall = {"network": rounds.pop(0), "language": 1.0}

    timed: Any = type("Timed", (), {"systems": lambda self: {"it": describe}})()
    found = take_times(timed, [Path("a"), Path("b")], 3)
    assert calls == ["a", "a", "a", "a", "b", "b", "b"]  # once to warm up
    assert found["it"]["wall"] == {"proposals": 0.0, "network": 11.0, "language": 1.0, "total": 12.0}


def test_stages_are_the_columns_of_the_table() -> None:
    assert systems.STAGES == ("proposals", "network", "language")


def test_a_cell_scores_the_images_it_is_asked_for(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    image = {"image": "a.jpg", "boxes": [[0, 0, 10, 10]], "captions": ["a dog"]}
    write_lines(truth, [image, {**image, "image": "b.jpg"}])
    cell = Cell.of(tmp_path, "fcln", "rpn", 0, {"model": "x"})
    row = {"boxes": [[0, 0, 10, 10], [20, 20, 30, 30]], "scores": [0.9, 0.1], "captions": ["a dog", "a cat"]}
    cell.write([{"image": "a.jpg", **row}, {"image": "b.jpg", "boxes": [], "scores": [], "captions": []}])
    scorer: Any = StubMeteor().score
    scores = cell.score(RegionLines(truth), ["a.jpg"], scorer)
    assert scores["map"] == 1 and scores["detection_map"] == 1
    assert scores["language_meteor"] == pytest.approx((1 + 0.1) / 2)
    assert cell.score(RegionLines(truth), ["a.jpg"], lambda pairs: pytest.fail("scored again")) == scores


def test_cells_of_other_models_have_other_names(tmp_path: Path) -> None:
    names = {
        Cell.of(tmp_path, *key).path.name
        for key in (("fcln", "rpn", 0, 1), ("fcln", "rpn", 0, 2), ("fcln", "rpn", 1, 1), ("fcln", "gt", 0, 1))
    }
    assert len(names) == 4
