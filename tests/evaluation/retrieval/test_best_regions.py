"""The best region of each image for each phrase, on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photographs import noise
from tiny_densecap import PHRASES, tiny_model

from saywhere.engines.torch import TorchEngine
from saywhere.evaluation.region_store import RegionStore
from saywhere.evaluation.retrieval import best_regions
from saywhere.evaluation.retrieval.best_regions import Asked, BestRegions, answers, score_images
from saywhere.evaluation.retrieval.metric import Query
from saywhere.models.model import Model
from saywhere.regions import Regions
from saywhere.text import Vocabulary


def regions(*features: float) -> Regions:
    boxes = np.array([[0.0, 0, i + 1, 2] for i in range(len(features))]).reshape(-1, 4)
    return Regions(9, 5, boxes, features=np.array(features).reshape(-1, 1))


class Guess:
    """Decodes one word and ends; a region of feature c is called the word 4 with probability c, else 5."""

    never, unknown = (), "?"

    def start(self, embeddings):
        return (embeddings[:, 0],)

    def step(self, token_ids, state):
        out = np.zeros((len(token_ids), 6), np.float32)
        first = token_ids == 1
        out[first, 4], out[first, 5] = state[0][first], 1 - state[0][first]
        out[~first, 2] = 1
        with np.errstate(divide="ignore"):
            return np.log(out), state

    def select(self, state, rows):
        return tuple(part[rows] for part in state)

    def join(self, states):
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))


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
def test_the_best_region_of_each_image_for_each_phrase(tmp_path, monkeypatch, together):
    monkeypatch.setattr(best_regions, "TOGETHER", together)
    kept, best, steps = store(tmp_path), BestRegions(tmp_path, ASKED), []
    score_images(Guess(), WORDS, kept, best, lambda: steps.append(best.done))
    assert len(steps) == best.done == 4 and ASKED.phrases == ("cat", "dog")
    log_probs, rows = best.tables()
    np.testing.assert_allclose(np.exp(log_probs), [[0.5, 0.75], [0.125, 0.875], [0, 0], [0.75, 1]], rtol=1e-6)
    assert rows.tolist() == [[0, 1], [0, 0], [-1, -1], [0, 1]]
    table, found, sources, truths = answers(ASKED, best, kept)
    np.testing.assert_allclose(np.exp(table[1, 0]), [0.75, 0.875, 0, 1], rtol=1e-6)  # "dog" of the second query
    assert sources == [0, 2] and truths[0, 1].tolist() == [0, 0, 4, 2]
    assert found.tolist() == [[[0, 0, 1, 2], [0, 0, 2, 2]], [[0, 0, 0, 0]] * 2]


def test_scores_on_disk_are_resumed_unless_something_else_is_asked(tmp_path, monkeypatch):
    kept, best = store(tmp_path), BestRegions(tmp_path, ASKED)
    score_images(Guess(), WORDS, kept, best)
    whole = best.tables()
    path = tmp_path / "scores.bin"
    path.write_bytes(path.read_bytes()[:-11])  # the last image's row is torn
    again, asked = BestRegions(tmp_path, ASKED), []
    assert again.done == 3
    usual = RegionStore.load
    monkeypatch.setattr(RegionStore, "load", lambda self, name: (asked.append(name), usual(self, name))[1])
    score_images(Guess(), WORDS, kept, again)
    assert asked == ["d"]
    for now, before in zip(again.tables(), whole, strict=True):
        np.testing.assert_array_equal(now, before)
    assert BestRegions(tmp_path, ASKED).done == 4
    assert BestRegions(tmp_path, Asked(ASKED.queries, ("a", "b", "c"))).done == 0


def test_a_model_finds_regions_as_its_own_score_does(tmp_path):
    model, images = Model(TorchEngine({"densecap": tiny_model()})), {"x": noise(96, 64, 1), "y": noise(64, 96, 2)}
    kept = RegionStore(tmp_path / "regions")
    for name, image in images.items():
        kept.save(name, model.describe(image, top=5))
    asked = Asked((Query("x", PHRASES, ((0, 0, 9, 9),) * 4),), ("x", "y"))
    best = BestRegions(tmp_path, asked)
    score_images(model.detector.decoder, model.detector.vocabulary, kept, best)
    log_probs, rows = best.tables()
    for n, image in enumerate(images.values()):
        alone = model.score(image, PHRASES).log_probs[:5]
        np.testing.assert_allclose(log_probs[n], alone.max(axis=0), rtol=1e-4, atol=1e-4)
        assert rows[n].tolist() == alone.argmax(axis=0).tolist()
