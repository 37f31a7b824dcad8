"""Queries of four phrases, the best region of each image for each phrase, and what the command reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from albums import write_album
from commands import error_of, report, run
from refusals import refuses
from tiny_densecap import PHRASES, tiny_model
from typer.testing import Result

import saywhere
from saywhere.data import Sample
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.papers import retrieval as module
from saywhere.papers.retrieval import evaluate_retrieval, image_scores, sample_queries, source_ranks

INF = float("inf")


def sample(*phrases: tuple[str, ...]) -> Sample:
    """Boxes of width 1, 2, 3 ... with these phrases."""
    boxes = np.array([[0.0, 0, i + 1, 1] for i in range(len(phrases))]).reshape(-1, 4)
    return Sample(Path("x.jpg"), 9, 9, boxes, phrases)


RICH = sample(("a cat", "the cat"), ("A cat!", "..."), ("a dog",), ("two birds",), ("a tree", "a bush"))
POOR = sample(("a cat",), ("a dog",), ("the sky",), ("The  sky.",))


def test_queries_come_from_images_with_enough_phrases_and_differ_in_their_words():
    queries = sample_queries({"poor": POOR, "rich": RICH}, 300, seed=0)
    assert {query.image for query in queries} == {"rich"}
    for query in queries:
        words = {phrase.lower().strip("!") for phrase in query.phrases}
        assert len(words) == 4 == len(query.boxes) and words <= {
            "a cat", "the cat", "a dog", "two birds", "a tree", "a bush"
        }  # fmt: skip
    asked = {(phrase, box[2]) for query in queries for phrase, box in zip(query.phrases, query.boxes, strict=True)}
    assert asked == {
        ("a cat", 1), ("the cat", 1), ("A cat!", 2), ("a dog", 3), ("two birds", 4), ("a tree", 5), ("a bush", 5)
    }  # fmt: skip


def test_each_image_asks_once_before_any_asks_again_and_a_seed_repeats_itself():
    names = list("abcde")
    images = dict.fromkeys(names, RICH)
    queries = sample_queries(images, 12, seed=3)
    first = [query.image for query in queries]
    assert sorted(first[:5]) == sorted(first[5:10]) == names and first[:5] != first[5:10]
    assert queries == sample_queries(images, 12, seed=3)
    assert queries != sample_queries(images, 12, seed=4)


def test_without_enough_phrases_there_is_no_query():
    refuses("no image has 4 different phrases", sample_queries, {"poor": POOR}, 1, seed=0)


def test_images_are_scored_by_the_mean_of_logarithms_or_of_probabilities():
    # One query of two phrases and two images: 0.9 and 0.01 against 0.4 and 0.4.
    log_probs = np.log([[[0.9, 0.4], [0.01, 0.4]]])
    clean, original = image_scores(log_probs), image_scores(log_probs, "original")
    assert original == pytest.approx(np.array([[0.455, 0.4]]))
    assert np.exp(clean) == pytest.approx(np.array([[0.009**0.5, 0.4]]))
    assert clean.argmax() == 1 and original.argmax() == 0


def test_equals_stand_before_the_own_image():
    scores = np.array([[3.0, 1, 2, 2], [0, 0, 0, 0], [1, 2, 3, 4], [-INF, -INF, -INF, 0]])
    assert source_ranks(scores, [2, 1, 3, 0]).tolist() == [3, 4, 1, 4]


def test_the_figures_of_three_queries_by_hand():
    # Two phrases each. The own image is 1st, 2nd and 3rd of three.
    log_probs = np.tile([-1.0, -2, -3], (3, 2, 1))
    truths = np.tile([0.0, 0, 10, 10], (3, 2, 1))
    found = truths.copy()
    found[..., 2] = [[10, 5], [3, 1], [0, 2]]  # IoU 1, .5, .3, .1, 0, .2
    result = evaluate_retrieval(log_probs, found, [0, 1, 2], truths)
    assert (result.images, result.queries, result.protocol) == (3, 3, "clean")
    assert [result.r1, result.r5, result.r10, result.median_rank] == pytest.approx([1 / 3, 1, 1, 2])
    # More than the threshold: the 0.5 and the 0.1 do not count, nor does a 0.3 in doubles.
    assert result.iou_recall == pytest.approx({"0.1": 4 / 6, "0.3": 2 / 6, "0.5": 1 / 6})
    assert result.median_iou == pytest.approx(0.25)


@pytest.fixture
def model(monkeypatch, tmp_path) -> Model:
    checkpoint.save(tiny_model(), tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    return saywhere.load("m", device="cpu")


def retrieval(*arguments: object, code: int = 0) -> Result:
    named = [] if "--model" in arguments else ["--model", "m"]
    return run("papers", "retrieval", *named, "--device", "cpu", *arguments, code=code)


def album(count: int = 4) -> Path:
    regions = [{"box": [8 * i, 0, 48 + 8 * i, 60], "phrase": phrase} for i, phrase in enumerate(PHRASES)]
    own = [{"box": [0, 0, 96, 64], "phrase": f"a zebra {number}"} for number in range(count)]
    return write_album(Path("album"), [{"regions": [*regions, each]} for each in own], name="p/{}.png").parent


def queries(folder: str = "out") -> list[dict]:
    return json.loads(Path(folder, "queries.json").read_text())


@pytest.mark.parametrize("together", [1, 12, 128])
def test_a_model_on_a_data_set(model, monkeypatch, together):
    monkeypatch.setattr(module, "TOGETHER", together)
    root = album()
    done = retrieval("--data", root, "--out", "out", "--queries", 6, "--regions", 5, "--batch", 3)
    assert done.stderr == ""
    row = report()
    assert (row["task"], row["protocol"], row["data"], row["split"]) == ("retrieval", "clean", "jsonl album", "dev")
    assert (row["images"], row["queries"], row["regions"], row["seed"], row["skipped"]) == (4, 6, 5, 0, {})
    assert list(row["iou_recall"]) == ["0.1", "0.3", "0.5"] and row["r5"] == row["r10"] == 1
    # Ranks and overlaps by model.score itself, of the five best regions.
    names = [f"p/{number}.png" for number in range(4)]
    best = []
    ranks = [query["rank"] for query in queries()]
    for query in queries():
        tables = [model.score(root / name, query["phrases"]) for name in names]
        means = np.array([table.log_probs[:5].max(axis=0).astype(np.float64).mean() for table in tables])
        own = names.index(query["image"])
        assert query["rank"] == 1 + int((means > means[own]).sum())
        best += [tables[own].regions.boxes[i].tolist() for i in tables[own].log_probs[:5].argmax(axis=0).tolist()]
    assert len(best) == 24 and row["r1"] == pytest.approx(ranks.count(1) / 6)
    unknown = {p for query in queries() for p in query["phrases"] if "zebra" in p}
    assert row["phrases_with_unknown_words"] == len(unknown) > 0
    text = Path("out/report.md").read_text()
    assert f"| median rank | {row['median_rank']} |" in text and "| protocol | clean |" in text
    assert done.stdout.startswith("6 queries to 4 images, protocol clean: R@1 ")


def test_a_run_goes_on_and_another_question_costs_no_image(model, monkeypatch):
    root, described = album(), []
    usual = Model.describe

    def describe(self, images, *arguments, **options):
        described.append(len(images))
        return usual(self, images, *arguments, **options)

    monkeypatch.setattr(Model, "describe", describe)
    retrieval("--data", root, "--out", "out", "--limit", 2, "--queries", 3)
    assert (report()["images"], described) == (2, [2])
    retrieval("--data", root, "--out", "out", "--queries", 3)
    assert (report()["images"], described) == (4, [2, 2])
    first, asked = report(), queries()
    retrieval("--data", root, "--out", "out", "--queries", 3, "--protocol", "original")
    assert (report()["protocol"], described) == ("original", [2, 2])
    assert [q["phrases"] for q in queries()] == [q["phrases"] for q in asked]
    assert report()["median_iou"] == first["median_iou"]
    retrieval("--data", root, "--out", "out", "--queries", 3, "--seed", 1)
    assert described == [2, 2] and [q["phrases"] for q in queries()] != [q["phrases"] for q in asked]


def test_an_image_without_regions_is_last(model, monkeypatch):
    root = album(2)
    usual = Model.describe

    def describe(self, images, *arguments, **options):
        found = usual(self, images, *arguments, **options)
        return [regions[:0] if Path(str(regions.image)).name == "1.png" else regions for regions in found]

    monkeypatch.setattr(Model, "describe", describe)
    retrieval("--data", root, "--out", "out", "--queries", 4)
    assert {query["image"]: query["rank"] for query in queries()} == {"p/0.png": 1, "p/1.png": 2}
    assert report()["r1"] == 0.5


def test_other_regions_do_not_go_on(model):
    root = album(1)
    retrieval("--data", root, "--out", "out", "--regions", 5)
    error = error_of(retrieval("--data", root, "--out", "out", "--regions", 6, code=2))
    assert "out/regions: was made with another regions; remove it, or give another --out" in error
