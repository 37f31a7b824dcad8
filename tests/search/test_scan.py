"""Similarities on vectors in half precision, and on codes, against the plain double loop."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnx.parser
import pytest

from saywhere.models.aligner import ImageVectors, TextVectors, hubness_of, over_regions, similarity_matrix
from saywhere.models.nouns import leaf_tables, log_kinds, noun_tree, pack_leaves, packed_kinds
from saywhere.search import scan
from saywhere.search.scan import (
    WORD,
    Question,
    best,
    best_regions,
    byte_products,
    estimates,
    half_products,
    nearest,
    similarities,
    unpack,
)
from saywhere.search.store import Stamp, Store


def fill(folder: Path, images: list[ImageVectors]) -> Store:
    store = Store(folder, {"size": str(images[0].vectors.shape[1] + 1)})
    store.put([(image.image, Stamp(1, 1), image) for image in images])
    return store


def question(queries: int, score: str = "max", seed: int = 9) -> tuple[Question, list[np.ndarray]]:
    """Queries of one to four words, and the words of each."""
    generator = np.random.default_rng(seed)
    words = [generator.standard_normal((int(n), 24), np.float32) for n in generator.integers(1, 5, queries)]
    texts = [TextVectors(("w",) * len(own), own) for own in words]
    return Question.of(texts, np.eye(queries, dtype=np.float32), score), words


def test_all_numbers_in_half_precision_are_unpacked() -> None:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    half = half[np.isfinite(half)].reshape(-1, 16)
    np.testing.assert_array_equal(unpack(half), half.astype(np.float32))


@pytest.mark.parametrize("score", ["max", "fragments"])
@pytest.mark.parametrize("threads", [1, 3])
def test_similarities_are_those_of_the_model(tmp_path, random_images, score, threads, monkeypatch) -> None:
    monkeypatch.setattr("saywhere.search.scan.NUMBERS", 24 * 10)  # several blocks
    images = random_images(40)
    if score == "fragments":
        images = [replace(image, hubness=0.0) for image in images]
    with fill(tmp_path, images) as store:
        store.remove([images[3].image, images[39].image])
        asked, words = question(6, score)
        found = similarities(store.snapshot(), asked, threads)
    expected = similarity_matrix([image.vectors for image in images], words, score) - hubness_of(images)[:, None]
    expected[[3, 39]] = -np.inf
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 21])
def test_regions_of_equal_numbers_are_folded_to_the_best(size) -> None:
    products = np.random.default_rng(size).integers(-99, 99, (5 * size, 4)).astype(np.int32)
    counts = np.full(5, size)
    for score in ("max", "fragments"):
        found = best_regions(products, counts, score)
        np.testing.assert_array_equal(found, over_regions(products, counts, score))
    np.testing.assert_array_equal(best_regions(products, counts, "max"), products.reshape(5, size, 4).max(axis=1))
    assert best_regions(products[:0], counts[:0], "max").shape == (0, 4)


def test_an_unwanted_word_counts_against_an_image(tmp_path, random_images) -> None:
    images = random_images(5)
    with fill(tmp_path, images) as store:
        snapshot = store.snapshot()
        words = images[2].vectors[:1], images[4].vectors[:1]
        texts = [TextVectors(("w",), word) for word in words]
        found = similarities(snapshot, Question.of(texts, np.array([[1], [-1]], np.float32), "max"))[:, 0]
    one, other = (similarity_matrix([image.vectors for image in images], [word])[:, 0] for word in words)
    np.testing.assert_allclose(found, one - other, rtol=1e-5)


def test_codes_of_all_components_estimate_closely_and_the_answer_is_exact(tmp_path, random_images, monkeypatch) -> None:
    monkeypatch.setattr("saywhere.search.scan.CANDIDATES", 20)
    monkeypatch.setattr("saywhere.search.scan.EACH", 1)
    images = random_images(60)
    with fill(tmp_path, images) as store:
        store.encode(25)
        store.put([(image.image, Stamp(1, 1), image) for image in random_images(7, seed=1)])  # without codes
        snapshot = store.snapshot()
        asked, _ = question(1)
        assert (snapshot.extent.coded, snapshot.extent.entries) == (60, 67)
        exact, near = similarities(snapshot, asked)[:, 0], estimates(snapshot, asked)[:, 0]
        assert 0 < np.abs(near[:60] - exact[:60]).max() < 0.05 * np.abs(exact).max()
        np.testing.assert_allclose(near[60:], exact[60:], rtol=1e-5)
        for way in (True, False):
            entries, values, *_ = nearest(snapshot, asked, 5, exact=way)
            assert entries.tolist() == best(exact, 5).tolist()
            np.testing.assert_allclose(values, exact[entries], rtol=1e-5)


def test_the_classes_put_images_in_another_order(tmp_path, random_images, monkeypatch) -> None:
    monkeypatch.setattr("saywhere.search.scan.CANDIDATES", 20)
    monkeypatch.setattr("saywhere.search.scan.EACH", 1)
    tree, draws = noun_tree(), np.random.default_rng(0)
    posteriors = [draws.dirichlet(np.full(tree.leaves, 0.001), len(image)) for image in random_images(60)]
    images = [replace(i, nouns=pack_leaves(p)) for i, p in zip(random_images(60), posteriors, strict=True)]
    nouns = [tree.find("an animal"), tree.find("a vehicle")]
    with fill(tmp_path, images) as store:
        store.encode(25)
        snapshot, asked = store.snapshot(), question(1)[0]
        plain = similarities(snapshot, asked)[:, 0]
        columns = leaf_tables(nouns)
        weights = np.array([[3.0], [1.0]], np.float32)
        added = [float(log_kinds(packed_kinds(image.nouns, columns)).max(axis=0) @ weights[:, 0]) for image in images]
        for way, threads in ((True, 1), (False, 1), (True, 2)):
            both = nearest(snapshot, replace(asked, kinds=columns, kind_weights=weights), 5, exact=way, threads=threads)
            assert both.entries.tolist() == best(plain + np.array(added, np.float32), 5).tolist()
            assert both.entries.tolist() != best(plain, 5).tolist()
            np.testing.assert_allclose(both.values, plain[both.entries], rtol=1e-5)


def test_the_system_is_told_which_vectors_come_next(tmp_path, random_images) -> None:
    class Recorded(mmap.mmap):
        advice: ClassVar[list[tuple[int, int, int]]] = []

        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            super().madvise(option, start, length)
            self.advice.append((option, start, start + length))

    with fill(tmp_path, random_images(400)) as store:
        snapshot = store.snapshot()
    with open(next(tmp_path.glob("vectors-*")), "rb") as stream:
        mapped = Recorded(stream.fileno(), 0, access=mmap.ACCESS_READ)
    vectors = np.ndarray(snapshot.vectors.shape, np.float16, mapped)
    replace(snapshot, vectors=vectors).expect(np.array([5, 7, 399]))
    assert [option for option, _, _ in Recorded.advice] == [mmap.MADV_WILLNEED] * 3
    for entry, (_, start, end) in zip((5, 7, 399), Recorded.advice, strict=True):
        rows = snapshot.rows(entry)
        assert start % mmap.PAGESIZE == 0 and 0 <= rows.start * 50 - start < mmap.PAGESIZE and end == rows.stop * 50


def test_the_best_are_in_order_and_those_without_a_value_are_left_out() -> None:
    assert best(np.array([1, 3, -np.inf, 3, 2]), 3).tolist() == [1, 3, 4]
    assert best(np.array([1, -np.inf]), 5).tolist() == [0]
    assert best(np.full(2, -np.inf), 5).tolist() == []


def test_codes_are_found_on_all_regions_of_images_chosen_at_random(tmp_path, monkeypatch) -> None:
    """Each of an image's four regions has two directions of its own; a sample of first regions knows but two."""
    monkeypatch.setattr("saywhere.search.store.SAMPLE", 200)
    generator = np.random.default_rng(1)
    vectors = np.zeros((200, 4, 24), np.float32)
    for region in range(4):
        vectors[:, region, 2 * region : 2 * region + 2] = generator.standard_normal((200, 2))
    boxes, logits = np.tile(np.float32([0, 0, 9, 9]), (4, 1)), np.zeros(4, np.float32)
    with fill(tmp_path, [ImageVectors(9, 9, boxes, own, f"{n}.jpg", logits) for n, own in enumerate(vectors)]) as store:
        store.encode(8)
        asked, _ = question(3)
        snapshot = store.snapshot()
        exact, coded = similarities(snapshot, asked), estimates(snapshot, asked)
    assert (exact - coded).std() < 0.3 * exact.std()


@pytest.mark.parametrize(("rows", "size", "words"), [(1, 1, 1), (7, 64, 9), (500, 24, 20), (33, 300, 1)])
def test_products_are_those_of_integers(rows, size, words) -> None:
    generator = np.random.default_rng(rows)
    codes = generator.integers(-127, 128, (rows, size)).astype(np.int8)
    columns = generator.integers(-WORD, WORD + 1, (size, words)).astype(np.int8)
    found = byte_products(codes, columns)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, codes.astype(np.int64) @ columns.astype(np.int64))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_numbers_do_not_overflow(sign) -> None:
    codes = np.full((5, 128), 127, np.int8)
    columns = np.full((128, 3), sign * WORD, np.int8)
    np.testing.assert_array_equal(byte_products(codes, columns), np.full((5, 3), sign * 127 * WORD * 128))
    np.testing.assert_array_equal(byte_products(-codes, columns), np.full((5, 3), -sign * 127 * WORD * 128))


@pytest.mark.parametrize(("rows", "size", "words"), [(1, 1, 1), (21, 24, 3), (320, 300, 9)])
def test_products_of_half_precision_are_those_of_single(rows, size, words) -> None:
    generator = np.random.default_rng(rows)
    vectors = generator.standard_normal((rows, size)).astype(np.float16)
    vectors.flat[0] = 1e-7  # which only half precision calls subnormal
    columns = generator.standard_normal((size, words)).astype(np.float32)
    found = half_products(vectors, columns)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors.astype(np.float64) @ columns, rtol=1e-4, atol=1e-4)


GRAPHS = {
    "byte_products": """
        byte_products (uint8[N, P] codes, int8[P, T] columns) => (int32[N, T] products)
        <uint8 shift = {128}>
        { products = MatMulInteger(codes, columns, shift) }
    """,
    "half_products": """
        half_products (float16[N, D] vectors, float[D, T] columns) => (float[N, T] products)
        { floats = Cast <to = 1> (vectors) products = MatMul(floats, columns) }
    """,
}
"""What the graphs of products are made of, in the language of ``onnx.parser``."""


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graphs_of_products_are_these(name) -> None:
    written = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {GRAPHS[name]}')
    assert onnx.load(str(Path(scan.__file__).with_name(f"{name}.onnx"))) == written
