"""Ranking of images and sentences: the metric, the report, and the command."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from commands import report, run
from flickr_entities import backwards
from hypothesis import given
from hypothesis import strategies as st
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

from saywhere.evaluation.ranking import Recall, rank, rank_embedded, rank_matrix
from saywhere.models.aligner import ImageVectors, TextVectors

SCORES = np.array(
    [
        [0.9, 0.1, 0.8, 0.2],  # sentences 0 and 1 are its own: the best is first
        [0.3, 0.7, 0.6, 0.5],  # sentence 2 is its own: one is better
        [0.2, 0.8, 0.9, 0.1],  # sentence 3 is its own: three are better
    ],
    np.float32,
)
OWNER = [0, 0, 1, 2]


def test_ranks_by_hand():
    result = rank_matrix(SCORES, OWNER)
    assert result.image_to_text == Recall(1 / 3, 1.0, 1.0, 2.0, 3)
    # images for each sentence: 0 is first; 1 stands behind two; 2 behind two; 3 behind two
    assert result.text_to_image == Recall(1 / 4, 1.0, 1.0, 3.0, 4)
    result = rank_matrix([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], [0, 2])
    assert result.image_to_text.queries == 2 and result.image_to_text.r1 == 1.0


def test_equal_scores_for_everything_earn_nothing():
    result = rank_matrix(np.zeros((20, 20), np.float32), np.arange(20))
    assert result.image_to_text == result.text_to_image == Recall(0.0, 0.0, 0.0, 20.0, 20)
    almost = rank_matrix((1 + 1e-6 * np.eye(20)).astype(np.float32), np.arange(20))
    assert almost == result


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_blocks_give_what_sorting_everything_gives(images, each, height, width, seed):
    owner = np.repeat(np.arange(images), each)
    scores = np.random.default_rng(seed).standard_normal((images, len(owner)), np.float32)
    rows = [slice(start, min(start + height, images)) for start in range(0, images, height)]
    columns = [slice(start, min(start + width, len(owner))) for start in range(0, len(owner), width)]
    parts = [(row, column, scores[row, column]) for row in rows for column in columns]
    result = rank(scores[owner, np.arange(len(owner))], owner, images, parts)
    by_image = [
        min(i + 1 for i, s in enumerate(np.argsort(-row).tolist()) if owner[s] == k) for k, row in enumerate(scores)
    ]
    by_sentence = [1 + np.argsort(-column).tolist().index(int(owner[s])) for s, column in enumerate(scores.T)]
    assert result.image_to_text == Recall.of(by_image)
    assert result.text_to_image == Recall.of(by_sentence)


@pytest.mark.parametrize("score", ["max", "fragments"])
@pytest.mark.parametrize("block", [50, 1 << 20])
def test_embedded_images_and_sentences_are_ranked_by_equations_7_and_8(block, score):
    generator = np.random.default_rng(0)
    regions = [generator.standard_normal((n, 4), np.float32) for n in (3, 1, 5, 2)]
    words = [generator.standard_normal((n, 4), np.float32) for n in (2, 6, 1, 3, 4, 2)]
    owner = [0, 1, 1, 2, 3, 3]
    images = [ImageVectors(9, 9, np.zeros((len(r), 4)), r, str(i), np.zeros(len(r))) for i, r in enumerate(regions)]
    texts = [TextVectors(("w",) * len(w), w) for w in words]
    products = [[r @ w.T for w in words] for r in regions]
    if score == "max":
        scores = np.array([[p.max(axis=0).sum() for p in row] for row in products])
    else:
        scores = np.array([[p.clip(min=0).sum() for p in row] for row in products])
    expected = rank_matrix(scores, np.array(owner))
    assert rank_embedded(images, texts, owner, score, block=block) == expected
    assert 0 < expected.text_to_image.r1 < 1


evaluate = partial(run, "evaluate", "rank", "--device", "cpu")


def test_it_writes_the_report_and_is_resumed(aligner, flickr, tmp_path):
    out = tmp_path / "out"
    result = evaluate("--model", aligner, "--data", flickr, "--out", out, "--batch", 3)
    assert result.stderr == ""
    row = report(out)
    assert (row["task"], row["split"], row["images"], row["sentences"]) == ("rank", "dev", 4, 8)
    for direction in ("image_to_text", "text_to_image"):
        assert set(row[direction]) == {"r1", "r5", "r10", "median_rank", "queries"} and row[direction]["r10"] == 1.0
    files = sorted((out / "regions").iterdir())
    assert len(files) == 4
    files[1].unlink()
    times = {path: path.stat().st_mtime_ns for path in files if path.exists()}
    evaluate("--model", aligner, "--data", flickr, "--out", out)
    assert report(out)["image_to_text"] == row["image_to_text"]
    assert files[1].exists() and all(path.stat().st_mtime_ns == t for path, t in times.items())
    other = evaluate("--model", aligner, "--data", flickr, "--out", out, "--set", "proposals.post_nms_top_n=2", code=2)
    assert "another model" in other.stderr


def test_the_figures_are_those_of_the_model(aligner, flickr, tmp_path):
    evaluate("--model", aligner, "--data", flickr, "--out", tmp_path)
    model = aligner_model(tiny_aligner())
    images = model.embed([str(flickr / "Images" / f"{n}_x.jpg") for n in range(4)])
    texts = [t for s in SENTENCES for t in (s, backwards(s))]
    scores = model.similarity(images, model.embed_text(texts))
    first = sum(int(scores[k].argmax()) // 2 == k for k in range(4)) / 4
    row = report(tmp_path)
    assert row["image_to_text"]["r1"] == first
    assert row["text_to_image"]["r1"] == sum(int(scores[:, i].argmax()) == i // 2 for i in range(8)) / 8
