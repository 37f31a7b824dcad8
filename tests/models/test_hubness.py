"""How similar images and texts are to everything, by both engines, and what takes it off."""

from __future__ import annotations

import numpy as np
import pytest
from photographs import noise
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

import saywhere
from saywhere.engines.engine import Hubness, Typical
from saywhere.models.aligner import similarity_matrix
from saywhere.networks import checkpoint


def random_typical(seed: int, temperature: float) -> Typical:
    generator = np.random.default_rng(seed)
    vectors, constants = generator.standard_normal((5, 4), np.float32), generator.standard_normal(5, np.float32)
    return Typical(vectors, constants, temperature)


def test_the_best_region_counts_for_each_typical_text_and_all_words_for_each_typical_image():
    texts, images = random_typical(0, 3.0), random_typical(1, 0.5)
    rows = np.random.default_rng(2).standard_normal((6, 4), np.float32)
    both = Hubness(texts, images)
    logits = [max(float(texts.vectors[j] @ row) for row in rows) + texts.constants[j] for j in range(5)]
    assert both.of_image(rows) == pytest.approx(3 * np.log(np.exp(logits).sum()), rel=1e-5)
    logits = [sum(float(images.vectors[j] @ row) for row in rows) + images.constants[j] for j in range(5)]
    assert both.of_text(rows) == pytest.approx(0.5 * np.log(np.exp(logits).sum()), rel=1e-5)
    assert both.of_image(rows[:0]) == 0.0
    assert np.isfinite(both.of_image(rows * 1e4)) and np.isfinite(both.of_text(rows * 1e4))


def hubs_model(**options) -> saywhere.Model:
    return aligner_model(tiny_aligner(hubs=3, **options))


def test_hubness_is_taken_off_similarities():
    model = hubs_model()
    images = model.embed([noise(96, 64, number) for number in range(3)])
    texts = model.embed_text(list(SENTENCES))
    plain = similarity_matrix([image.vectors for image in images], [text.vectors for text in texts])
    of_images, of_texts = ([each.hubness for each in some] for some in (images, texts))
    assert len(set(of_images)) == 3 and len(set(of_texts)) == 4
    np.testing.assert_allclose(
        model.similarity(images, texts), plain - np.array(of_images)[:, None] - of_texts, rtol=1e-4, atol=1e-5
    )
    without = hubs_model(hubness=False)
    assert [image.hubness for image in without.embed([noise(96, 64)])] == [0.0]
    assert without.engine.vectors_digest() != model.engine.vectors_digest()


def test_both_engines_know_the_same(tmp_path):
    pytest.importorskip("onnxruntime")
    network = tiny_aligner(hubs=3)
    checkpoint.save(network, tmp_path)
    from safetensors.numpy import load_file

    from saywhere.engines.arrays.aligner import Aligner
    from saywhere.engines.arrays.layers import Weights

    arrays = {key.removeprefix("aligner."): value for key, value in load_file(tmp_path / "model.safetensors").items()}
    other = Aligner(network.config, network.vocabulary, Weights.of(arrays)).hubness
    own = aligner_model(network).engine.aligner.hubness
    rows = np.random.default_rng(0).standard_normal((4, 16), np.float32)
    assert other.of_image(rows) == pytest.approx(own.of_image(rows)) != 0
    assert other.of_text(rows) == pytest.approx(own.of_text(rows))
