"""Recall, agreement and hits of an index against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from saywhere.evaluation.ranking.metric import rank_matrix
from saywhere.evaluation.search.metric import ask, is_right, overlap, recall, score_texts
from saywhere.models.aligner import ImageVectors, TextVectors, similarity_matrix
from saywhere.search.scan import estimates, similarities
from saywhere.search.store import Stamp, Store


@pytest.fixture
def images() -> list[ImageVectors]:
    generator = np.random.default_rng(0)
    shapes = [(n, 8) for n in generator.integers(1, 5, 30)]
    vectors = [generator.standard_normal(shape, np.float32).astype(np.float16).astype(np.float32) for shape in shapes]
    return [ImageVectors(9, 9, np.zeros((len(v), 4)), v, str(i), np.zeros(len(v))) for i, v in enumerate(vectors)]


@pytest.fixture
def texts() -> list[TextVectors]:
    generator = np.random.default_rng(1)
    words = [generator.standard_normal((int(n), 8), np.float32) for n in generator.integers(1, 6, 150)]
    return [TextVectors(("w",) * len(w), w) for w in words]


def store_of(folder: Path, images: list[ImageVectors], components: int) -> Store:
    store = Store(folder, {"size": "9"})
    store.put([(image.name, Stamp(0, 0), image) for image in images])
    store.encode(components)
    return store


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_recall_is_that_of_ranking(tmp_path, images, texts, score) -> None:
    owner = [number % 30 for number in range(150)]
    matrix = similarity_matrix([i.vectors for i in images], [t.vectors for t in texts], score)
    with store_of(tmp_path, images, 0) as store:
        snapshot = store.snapshot()
        np.testing.assert_allclose(np.stack(list(score_texts(snapshot, texts, score)), 1), matrix, rtol=1e-4, atol=1e-5)
        found = recall(snapshot, texts, owner, score)
    assert found == rank_matrix(matrix, owner).text_to_image and 0 < found.r5 < 1


def test_recall_by_codes_alone_falls_with_their_components(tmp_path, images, texts) -> None:
    owner = [
        int(np.argmax(row)) for row in similarity_matrix([i.vectors for i in images], [t.vectors for t in texts]).T
    ]
    found = {}
    for components in (1, 8):
        with store_of(tmp_path / str(components), images, components) as store:
            snapshot = store.snapshot()
            found[components] = recall(snapshot, texts, owner, "max", estimates)
            scores = estimates(snapshot, ask(texts, "max"))
            assert found[components] == rank_matrix(scores, owner).text_to_image
    assert found[1].r1 < 0.5 < 0.9 < found[8].r1


def test_overlap_counts_what_codes_put_first_of_the_best(tmp_path, images, texts) -> None:
    with store_of(tmp_path / "good", images, 8) as store:
        assert overlap(store.snapshot(), texts[:20], "max") == 1.0
    with store_of(tmp_path / "bad", images, 1) as store:
        snapshot, shares = store.snapshot(), []
        for text in texts[:20]:
            question = ask([text], "max")
            exact, coded = similarities(snapshot, question)[:, 0], estimates(snapshot, question)[:, 0]
            shares.append(len(set(np.argsort(-exact)[:10]) & set(np.argsort(-coded)[:10])) / 10)
        assert overlap(snapshot, texts[:20], "max") == pytest.approx(np.mean(shares)) and np.mean(shares) < 1


def test_several_texts_are_one_question(texts) -> None:
    question = ask(texts[:3], "max")
    assert question.weights.sum(axis=0).tolist() == [len(text) for text in texts[:3]]
    assert (question.weights.sum(axis=1) == 1).all() and len(question.words) == len(question.weights)


def test_a_place_is_right_in_an_image_that_shows_the_phrase() -> None:
    truth = {4: [np.array([0, 0, 10, 10.0]), np.array([20, 20, 40, 40.0])]}
    assert is_right(4, np.array([0, 0, 10, 5.0]), truth) and is_right(4, np.array([21, 21, 40, 40.0]), truth)
    assert not is_right(4, np.array([0, 0, 10, 4.9]), truth) and not is_right(5, np.array([0, 0, 10, 10.0]), truth)
