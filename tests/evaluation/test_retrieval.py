from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_densecap import PHRASES, tiny_model

from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.evaluation import retrieval_run
from saywhere.evaluation.retrieval import (
    Query,
    RetrievalResult,
    evaluate_retrieval,
    picture_scores,
    sample_queries,
    source_ranks,
)
from saywhere.evaluation.retrieval_report import write_retrieval_report
from saywhere.evaluation.retrieval_run import Asked, BestRegions, RegionStore, answers, score_pictures
from saywhere.regions import Regions
from saywhere.text import Vocabulary
from tests.pictures import noise

INF = float("inf")


def sample(*phrases: tuple[str, ...]) -> Sample:
    """Boxes of width 1, 2, 3 ... with these phrases."""
    boxes = torch.tensor([[0.0, 0, i + 1, 1] for i in range(len(phrases))]).reshape(-1, 4)
    return Sample(Path("x.jpg"), 9, 9, boxes, phrases)


RICH = sample(("a cat", "the cat"), ("A cat!", "..."), ("a dog",), ("two birds",), ("a tree", "a bush"))
POOR = sample(("a cat",), ("a dog",), ("the sky",), ("The  sky.",))


def test_queries_come_from_pictures_with_enough_phrases_and_differ_in_their_words():
    queries = sample_queries([POOR, RICH], ["poor", "rich"], 300, seed=0)
    assert {query.picture for query in queries} == {"rich"}
    for query in queries:
        words = {phrase.lower().strip("!") for phrase in query.phrases}
        assert len(words) == 4 == len(query.boxes) and words <= {
            "a cat", "the cat", "a dog", "two birds", "a tree", "a bush"
        }  # fmt: skip
    said = {(phrase, box[2]) for query in queries for phrase, box in zip(query.phrases, query.boxes, strict=True)}
    assert said == {
        ("a cat", 1), ("the cat", 1), ("A cat!", 2), ("a dog", 3), ("two birds", 4), ("a tree", 5), ("a bush", 5)
    }  # fmt: skip


def test_each_picture_asks_once_before_any_asks_again_and_a_seed_repeats_itself():
    names = list("abcde")
    queries = sample_queries([RICH] * 5, names, 12, seed=3)
    first = [query.picture for query in queries]
    assert sorted(first[:5]) == sorted(first[5:10]) == names and first[:5] != first[5:10]
    assert queries == sample_queries([RICH] * 5, names, 12, seed=3)
    assert queries != sample_queries([RICH] * 5, names, 12, seed=4)


def test_without_enough_phrases_there_is_no_query():
    with pytest.raises(UserError, match="no picture has 4 different phrases"):
        sample_queries([POOR], ["poor"], 1, seed=0)
    assert len(sample_queries([POOR], ["poor"], 1, seed=0, phrases=3)[0].phrases) == 3


def test_pictures_are_scored_by_the_mean_of_logarithms_or_of_probabilities():
    # One query of two phrases and two pictures: 0.9 and 0.01 against 0.4 and 0.4.
    log_probs = torch.tensor([[[0.9, 0.4], [0.01, 0.4]]]).log()
    clean, original = picture_scores(log_probs), picture_scores(log_probs, "original")
    torch.testing.assert_close(original, torch.tensor([[0.455, 0.4]], dtype=torch.float64))
    torch.testing.assert_close(clean.exp(), torch.tensor([[0.009**0.5, 0.4]], dtype=torch.float64))


def test_equals_stand_before_the_own_picture():
    scores = torch.tensor([[3.0, 1, 2, 2], [0, 0, 0, 0], [1, 2, 3, 4], [-INF, -INF, -INF, 0]])
    assert source_ranks(scores, torch.tensor([2, 1, 3, 0])).tolist() == [3, 4, 1, 4]


def test_the_figures_of_three_queries_by_hand():
    # Two phrases each. The own picture is 1st, 2nd and 3rd of three.
    scores = torch.tensor([[-1.0, -2, -3], [-1, -2, -3], [-1, -2, -3]])
    log_probs = scores[:, None].expand(3, 2, 3)
    truths = torch.tensor([[0.0, 0, 10, 10]]).expand(3, 2, 4)
    widths = torch.tensor([[10.0, 5], [3, 1], [0, 2]])  # IoU 1, .5, .3, .1, 0, .2
    found = torch.stack([torch.tensor([[0.0, 0, float(w), 10] for w in row]) for row in widths])
    result = evaluate_retrieval(log_probs, found, [0, 1, 2], truths)
    assert (result.images, result.queries, result.protocol) == (3, 3, "clean")
    assert [result.r1, result.r5, result.r10, result.median_rank] == pytest.approx([1 / 3, 1, 1, 2])
    # More than the threshold: the 0.5 and the 0.1 do not count, nor does a 0.3 in doubles.
    assert result.iou_recall == pytest.approx({"0.1": 4 / 6, "0.3": 2 / 6, "0.5": 1 / 6})
    assert result.median_iou == pytest.approx(0.25)


def regions(*codes: float) -> Regions:
    boxes = torch.tensor([[0.0, 0, i + 1, 2] for i in range(len(codes))]).reshape(-1, 4)
    return Regions(9, 5, boxes, features=torch.tensor(codes).reshape(-1, 1))


class Guess:
    """Says one word and ends; an area of code c says the word 4 with probability c, else 5."""

    def start(self, codes):
        return (codes[:, 0],)

    def step(self, words, state):
        out = torch.zeros(len(words), 6)
        first = words == 1
        out[first, 4], out[first, 5] = state[0][first], 1 - state[0][first]
        out[~first, 2] = 1
        return out.log(), state


WORDS = Vocabulary({"cat": 2, "dog": 1})  # 4 and 5
ASKED = Asked(
    (Query("a", ("cat", "dog"), ((0, 0, 1, 2), (0, 0, 4, 2))), Query("c", ("dog", "cat"), ((0, 0, 1, 1),) * 2)),
    ("a", "b", "c", "d"),
)


def store(folder: Path) -> RegionStore:
    kept = RegionStore(folder / "regions")
    kept.save("a", regions(0.5, 0.25))
    kept.save("b", regions(0.125))
    kept.save("c", regions())
    kept.save("d", regions(0.75, 0.0, 0.5))
    return kept


@pytest.mark.parametrize("together", [1, 2, 128])
def test_the_best_region_of_each_picture_for_each_phrase(tmp_path, monkeypatch, together):
    monkeypatch.setattr(retrieval_run, "TOGETHER", together)
    kept, best, steps = store(tmp_path), BestRegions(tmp_path, ASKED), []
    score_pictures(Guess(), WORDS, kept, best, torch.device("cpu"), lambda: steps.append(best.done))
    assert len(steps) == best.done == 4 and ASKED.phrases == ("cat", "dog")
    log_probs, rows = best.tables()
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0.5, 0.75], [0.125, 0.875], [0, 0], [0.75, 1]]))
    assert rows.tolist() == [[0, 1], [0, 0], [-1, -1], [0, 1]]
    table, found, sources, truths = answers(ASKED, best, kept)
    torch.testing.assert_close(table[1, 0].exp(), torch.tensor([0.75, 0.875, 0, 1]))  # "dog" of the second query
    assert sources == [0, 2] and truths[0, 1].tolist() == [0, 0, 4, 2]
    assert found.tolist() == [[[0, 0, 1, 2], [0, 0, 2, 2]], [[0, 0, 0, 0]] * 2]


def test_scores_on_disk_are_gone_on_with_unless_something_else_is_asked(tmp_path):
    kept, best = store(tmp_path), BestRegions(tmp_path, ASKED)
    score_pictures(Guess(), WORDS, kept, best, torch.device("cpu"))
    whole = best.tables()
    path = tmp_path / "scores.bin"
    path.write_bytes(path.read_bytes()[:-11])  # the last picture's row is torn
    again, asked = BestRegions(tmp_path, ASKED), []
    assert again.done == 3
    usual = RegionStore.load
    kept.load = lambda name: (asked.append(name), usual(kept, name))[1]
    score_pictures(Guess(), WORDS, kept, again, torch.device("cpu"))
    assert asked == ["d"]
    for now, before in zip(again.tables(), whole, strict=True):
        assert torch.equal(now, before)
    assert BestRegions(tmp_path, ASKED).done == 4
    assert BestRegions(tmp_path, Asked(ASKED.queries, ("a", "b", "c"))).done == 0


def test_a_model_finds_regions_as_its_own_score_does(tmp_path):
    model, pictures = tiny_model(), {"x": noise(96, 64, 1), "y": noise(64, 96, 2)}
    kept = RegionStore(tmp_path / "regions")
    for name, image in pictures.items():
        assert name not in kept
        kept.save(name, model.describe(image, top=5))
        assert name in kept
    asked = Asked((Query("x", PHRASES, ((0, 0, 9, 9),) * 4),), ("x", "y"))
    best = BestRegions(tmp_path, asked)
    score_pictures(model.speaker, model.vocabulary, kept, best, model.device)
    log_probs, rows = best.tables()
    for n, image in enumerate(pictures.values()):
        alone = model.score(image, PHRASES).log_probs[:5].max(dim=0)
        torch.testing.assert_close(log_probs[n], alone.values, rtol=1e-4, atol=1e-4)
        assert rows[n].tolist() == alone.indices.tolist()


def test_a_damaged_file_of_regions_is_named(tmp_path):
    kept = store(tmp_path)
    for file in kept.folder.iterdir():
        file.write_bytes(b"no")
    with pytest.raises(UserError, match="is damaged; remove it"):
        kept.load("a")


def test_the_report_has_the_figures_and_the_papers_rows(tmp_path):
    result = RetrievalResult("clean", 3, 2, 0.5, 1.0, 1.0, 1.5, {"0.1": 0.75, "0.3": 0.5, "0.5": 0.25}, 0.3125)
    known = {"data": "jsonl album", "split": "dev", "model": "m", "regions": 20, "seed": 7}
    write_retrieval_report(tmp_path, result, known | {"skipped": {}, "command": "saywhere evaluate | retrieval"})
    row = json.loads((tmp_path / "report.json").read_text())
    assert list(row)[:9] == ["task", "protocol", "data", "split", "images", "queries", "r1", "r5", "r10"]
    assert (row["task"], row["protocol"], row["images"], row["r5"], row["median_rank"]) == (
        "retrieval", "clean", 3, 1.0, 1.5,
    )  # fmt: skip
    assert row["iou_recall"] == {"0.1": 0.75, "0.3": 0.5, "0.5": 0.25} and row["median_iou"] == 0.3125
    text = (tmp_path / "report.md").read_text()
    assert "| **m** | 0.500 | 1.000 | 1.000 | 1.5 | 0.750 | 0.500 | 0.250 | 0.312 |" in text
    assert "| paper: FCLN | 0.27 | 0.53 | 0.67 | 5 | 0.56 | 0.345 | 0.153 | 0.137 |" in text
    assert "| paper: Full Image RNN | 0.1 | 0.3 | 0.43 | 13 |  |  |  |  |" in text
    assert "| seed | 7 |" in text and "`saywhere evaluate \\| retrieval`" in text
