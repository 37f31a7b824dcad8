"""Regions and words in one space: alignment, the MRF of Eqs. 10 to 12, similarities by Eqs. 7 and 8, and hubness."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from saywhere import Alignment
from saywhere.configs.aligner import AlignerConfig
from saywhere.engines.engine import Aligner, EncodedText
from saywhere.models.aligner import (
    ImageVectors,
    align,
    decode_chain,
    embed_texts,
    region_bonus,
    segments,
    similarity_blocks,
    similarity_matrix,
    token_ids,
    word_weights,
)
from saywhere.models.placing import word_fits
from saywhere.text import END, PAD, UNKNOWN, Vocabulary

WORDS = ("red", "dog", "grass", "the")
SIZE = 8
"""Tokens there are, and dimensions: the vector of a token has a one at its own number."""
BOXES = np.array([[0, 0, 40, 20], [0, 0, 20, 20], [30, 10, 40, 20]], np.float32)


def aligner(**options: Any) -> Aligner:
    """Its words are the unit vectors of their numbers, twice as long."""

    def text_vectors(tokens: np.ndarray) -> EncodedText:
        return EncodedText(2 * np.eye(SIZE, dtype=np.float32)[tokens] * (tokens != PAD)[..., None], tokens != PAD)

    config = AlignerConfig(**{"beta": 0.0, **options})
    vocabulary = Vocabulary(dict.fromkeys(WORDS, 1))
    return cast(Aligner, SimpleNamespace(config=config, vocabulary=vocabulary, text_vectors=text_vectors, hubness=None))


def image(products: Sequence[Sequence[float]], logits: Sequence[float] = (0, 0, 0)) -> ImageVectors:
    """Three regions with these products with ``red``, ``dog``, ``grass``, ``the``."""
    vectors = np.zeros((3, SIZE), np.float32)
    vectors[:, 4:] = np.array(products, np.float32).T / 2
    return ImageVectors(40, 20, BOXES, vectors, "a.jpg", np.array(logits, np.float32))


SEEN = image([[0, 5, 1], [0, 3, 4], [2, 0, 0], [1, 1, 1.5]])


def test_words_count_alike_or_by_their_share_and_the_end_as_much_as_all():
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]], bool)
    plain = word_weights(mask, AlignerConfig(mean_over_words=False))
    assert plain.tolist() == mask.astype(float).tolist() and plain.dtype == np.float32
    shares = word_weights(mask, AlignerConfig(mean_over_words=True, sentence_token=False))
    np.testing.assert_allclose(shares, [[1 / 3] * 3 + [0], [1 / 4] * 4, [1 / 2] * 2 + [0] * 2], rtol=1e-6)
    ended = word_weights(mask, AlignerConfig(mean_over_words=True, sentence_token=True))
    np.testing.assert_allclose(ended, [[1 / 2, 1 / 2, 1, 0], [1 / 3] * 3 + [1], [1, 1, 0, 0]], rtol=1e-6)


def test_sentences_are_encoded_with_the_end_if_it_stands_for_them():
    assert token_ids(aligner(), ["red dog", "zebra"]).tolist() == [[4, 5, END], [UNKNOWN, END, PAD]]
    assert token_ids(aligner(sentence_token=False), ["red dog", "zebra"]).tolist() == [[4, 5], [UNKNOWN, PAD]]


def test_texts_have_a_weighted_vector_for_each_word():
    one, two = embed_texts(aligner(sentence_token=False), ["Red dog!", "the"])
    assert one.words == ("red", "dog") and len(one) == 2 and len(two) == 1
    assert one.vectors.tolist() == np.eye(SIZE)[[4, 5]].tolist()  # twice as long, and half of the words
    assert two.vectors.tolist() == (2 * np.eye(SIZE)[[7]]).tolist()
    (ended,) = embed_texts(aligner(), ["red dog"])
    assert ended.words == ("red", "dog") and ended.vectors.tolist() == [
        *one.vectors.tolist(),
        (2 * np.eye(SIZE)[END]).tolist(),
    ]
    assert embed_texts(aligner(), []) == []


def test_a_bonus_is_for_what_a_region_is():
    seen = image([[0] * 3] * 4, (0, 2, -1))
    assert region_bonus(AlignerConfig(), seen).tolist() == [0, 0, 0]
    assert region_bonus(AlignerConfig(score_bonus=0.5), seen).tolist() == [0, 1, -0.5]
    sized = region_bonus(AlignerConfig(size_bonus=2), seen)
    np.testing.assert_allclose(sized, [0, 2 * math.log(1 / 2), 2 * math.log(1 / 8)], rtol=1e-6)
    tiny = ImageVectors(4000, 2000, BOXES[[2]], seen.vectors[:1], "", np.zeros(1, np.float32))
    assert region_bonus(AlignerConfig(size_bonus=1), tiny)[0] == pytest.approx(math.log(1e-3))


def test_each_word_goes_to_its_best_region_and_neighbours_on_one_are_a_phrase():
    alignment = align(aligner(), SEEN, "The red dog (grass)")
    assert alignment.words == ("the", "red", "dog", "grass")
    assert alignment.products.tolist() == [[1, 1, 1.5], [0, 5, 1], [0, 3, 4], [2, 0, 0]]
    found = [(p.words, p.start, p.stop, p.region, p.similarity) for p in alignment.phrases]
    assert found == [("the", 0, 1, 2, 1.5), ("red", 1, 2, 1, 5), ("dog", 2, 3, 2, 4), ("grass", 3, 4, 0, 2)]
    closer = alignment.with_beta(1.0)
    found = [(p.words, p.region, p.similarity, p.box) for p in closer.phrases]
    assert found == [("the red dog", 1, 3, (0, 0, 20, 20)), ("grass", 0, 2, (0, 0, 40, 20))]
    assert align(aligner(beta=1.0), SEEN, "the red dog grass").phrases == closer.phrases
    assert align(aligner(beta=9.0), SEEN, "the red dog grass", beta=1.0).phrases == closer.phrases
    assert [p.words for p in alignment.with_beta(100).phrases] == ["the red dog grass"]


def test_what_is_made_of_an_alignment():
    alignment = align(aligner(beta=1.0), SEEN, "the red dog grass")
    assert alignment.snippets() == [((0, 0, 20, 20), "the red dog"), ((0, 0, 40, 20), "grass")]
    regions = alignment.regions()
    assert (regions.width, regions.height, regions.image, regions.scores) == (40, 20, "a.jpg", None)
    assert regions.captions == ("the red dog", "grass") and regions.similarities is not None
    assert regions.similarities.tolist() == [3, 2] and regions.boxes.tolist() == BOXES[[1, 0]].tolist()
    assert alignment.to_dict() == {
        "image": "a.jpg", "width": 40, "height": 20, "sentence": "the red dog grass",
        "phrases": [
            {"words": "the red dog", "start": 0, "stop": 3, "box": [0, 0, 20, 20], "similarity": 3},
            {"words": "grass", "start": 3, "stop": 4, "box": [0, 0, 40, 20], "similarity": 2},
        ],
    }  # fmt: skip


def test_numbers_of_the_json_form_are_rounded():
    box = np.array([[1.23456, 2, 3.98765, 4]], np.float32)
    row = Alignment("a", 9, 9, ("dog",), box, np.array([[1 / 3]], np.float32), 0.0).to_dict()
    assert row["phrases"][0]["box"] == [1.23, 2.0, 3.99, 4.0] and row["phrases"][0]["similarity"] == 0.33333


def test_a_phrase_goes_to_the_region_of_its_largest_sum():
    phrases = ["the red dog", "the", "grass", "zebra"]
    for mean in (True, False):
        reader = aligner(mean_over_words=mean)
        fits = word_fits(reader, SEEN, embed_texts(reader, phrases))
        assert fits.argmax(axis=0).tolist() == [1, 2, 0, 0]
        assert fits.max(axis=0) == pytest.approx([3, 1.5, 2, 0])
    assert word_fits(aligner(), SEEN, []).shape == (3, 0)


def test_an_alignment_is_short_in_print_and_shown_by_notebooks(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 20)).save(path)
    made = Alignment(str(path), 40, 20, ("a", "dog"), BOXES, np.eye(2, len(BOXES), dtype=np.float32), 9.0)
    assert repr(made) == f"Alignment('a dog' with {len(BOXES)} regions of {path})"
    with Image.open(io.BytesIO(made._repr_png_() or b"")) as shown:
        assert shown.tobytes() == made.draw().tobytes() and shown.width == 40 and shown.height == 20
    path.unlink()
    assert made._repr_png_() is None


def energy(products: np.ndarray, regions: tuple[int, ...], beta: float) -> float:
    """Eq. 10."""
    unary = sum(float(products[t, r]) for t, r in enumerate(regions))
    return unary + beta * sum(a == b for a, b in itertools.pairwise(regions))


def brute_force(products: np.ndarray, beta: float) -> float:
    length, count = products.shape
    return max(energy(products, regions, beta) for regions in itertools.product(range(count), repeat=length))


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0, 4.0]), st.integers(0, 10_000))
def test_it_finds_the_best_of_all_alignments(length, count, beta, seed):
    products = np.random.default_rng(seed).normal(size=(length, count))
    chain = decode_chain(products, beta)
    assert energy(products, tuple(chain.tolist()), beta) == pytest.approx(brute_force(products, beta))


def test_a_region_that_does_not_count_is_never_chosen():
    products = np.random.default_rng(0).normal(size=(7, 5))
    products[:, [1, 4]] = -np.inf
    chain, fewer = decode_chain(products, 0.7), decode_chain(products[:, [0, 2, 3]], 0.7)
    assert chain.tolist() == [[0, 2, 3][r] for r in fewer.tolist()]


def test_beta_goes_from_word_by_word_to_one_region():
    products = np.array([[2.0, 0, 0], [0, 2, 1.5], [1, 0, 0.9], [0, 0, 2]])
    assert decode_chain(products).tolist() == products.argmax(axis=1).tolist() == [0, 1, 0, 2]
    assert decode_chain(products, 0.8).tolist() == [0, 2, 2, 2]
    assert decode_chain(products, 100.0).tolist() == [int(products.sum(axis=0).argmax())] * 4


def test_of_equal_alignments_the_one_that_stays_is_chosen_and_none_of_nothing():
    assert decode_chain(np.zeros((3, 2))).tolist() == [0, 0, 0]
    assert decode_chain(np.array([[0.0, 1], [1, 1], [0, 1]])).tolist() == [1, 1, 1]
    assert decode_chain(np.zeros((0, 3))).shape == (0,)
    assert decode_chain(np.zeros((2, 0))).tolist() == [-1, -1]


def test_segments_are_runs_of_one_region():
    assert segments([3, 3, 0, 3, -1, -1]) == [(0, 2, 3), (2, 3, 0), (3, 4, 3)]
    assert segments([2, -1, 2]) == [(0, 1, 2), (2, 3, 2)]
    assert segments([]) == []


def test_a_sentence_is_not_cut_between_two_regions_with_one_box():
    boxes = np.array([[0, 0, 9, 9], [1, 1, 5, 5], [0, 0, 9, 9]], np.float32)
    products = np.array([[0.5, 0.1, 0.6], [0.7, 0.1, 0.2], [0.1, 0.9, 0.2]], np.float32)
    phrases = Alignment("a", 9, 9, ("two", "dogs", "run"), boxes, products, 0.0).phrases
    assert [(phrase.words, phrase.region) for phrase in phrases] == [("two dogs", 0), ("run", 1)]


SCORES = ("max", "fragments")
counts = st.lists(st.integers(0, 5), max_size=7)


def vectors(lengths: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, (length, 3)).astype(np.float32) for length in lengths]


def plainly(regions: list[np.ndarray], words: list[np.ndarray], score: str) -> list[list[float]]:
    """The equations as they read."""
    table: list[list[float]] = []
    for image in regions:
        row: list[float] = []
        for sentence in words:
            products = [[float(region @ word) for region in image] for word in sentence]
            if score == "max":  # Eq. 8
                row.append(sum(max(of_word, default=0.0) for of_word in products))
            else:  # Eq. 7
                row.append(sum(max(0.0, product) for of_word in products for product in of_word))
        table.append(row)
    return table


@pytest.mark.parametrize("score", SCORES)
@given(images=counts, sentences=counts, block=st.integers(1, 60), seed=st.integers(0, 99))
def test_it_is_the_equation_in_blocks_of_any_size(score, images, sentences, block, seed):
    regions, words = vectors(images, seed), vectors(sentences, seed + 1)
    matrix = similarity_matrix(regions, words, score, block)
    assert matrix.shape == (len(images), len(sentences)) and matrix.dtype == np.float32
    assert matrix.tolist() == plainly(regions, words, score)


def test_by_hand():
    regions, words = [np.array([[1.0, 0], [0, 2]])], [np.array([[3.0, 1], [-1, -2]])]
    # products: word 1 with the regions 3, 2; word 2 with them -1, -4
    assert similarity_matrix(regions, words).tolist() == [[3 - 1]]
    assert similarity_matrix(regions, words, "fragments").tolist() == [[3 + 2]]


@pytest.mark.parametrize("score", SCORES)
def test_no_regions_and_no_words_have_similarity_0(score):
    matrix = similarity_matrix(vectors([0, 2, 0, 3]), vectors([2, 0, 1]), score, 4)
    assert not matrix[[0, 2]].any() and not matrix[:, 1].any() and matrix[1, 0] and matrix[3, 2]
    assert similarity_matrix([], vectors([2]), score).shape == (0, 1)
    assert similarity_matrix(vectors([2]), [], score).shape == (1, 0)
    assert not similarity_matrix(vectors([0, 0]), vectors([2, 1]), score).any()
    assert not similarity_matrix(vectors([2, 1]), vectors([0, 0]), score).any()


def test_blocks_cover_each_pair_once_and_hold_few_products():
    regions, words = vectors([3, 1, 4, 1, 5, 2, 6]), vectors([2, 7, 1, 8, 2])
    seen = np.zeros((7, 5), int)
    for row, column, block in similarity_blocks(regions, words, block=64):
        seen[row, column] += 1
        sizes = [sum(map(len, some[part])) for some, part in ((regions, row), (words, column))]
        assert sizes[0] * sizes[1] <= 64 or len(block) == 1 or block.shape[1] == 1
    assert (seen == 1).all()
