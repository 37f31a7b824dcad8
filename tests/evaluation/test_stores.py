"""Arrays of images on disk."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.errors import UserError
from saywhere.evaluation.session import RegionStore, VectorStore
from saywhere.models.aligner import ImageVectors
from saywhere.regions import Regions

BOXES = np.array([[0, 0, 4, 4], [1, 2, 9, 5]], np.float32)


def test_regions_are_the_same_again(tmp_path):
    store = RegionStore(tmp_path / "regions")
    features = np.arange(6, dtype=np.float32).reshape(2, 3)
    regions = Regions(9, 5, BOXES, [0.25, 1.0], ("a", "b"), features)
    for name in ("p/ä.jpg", "p/\udcff.jpg"):  # also a file name that is not UTF-8
        assert name not in store
        store.save(name, regions)
        again = store.load(name)
        assert name in store and (again.width, again.height, again.image, again.captions) == (9, 5, name, None)
        for one, other in ((again.boxes, BOXES), (again.scores, [0.25, 1.0]), (again.features, features)):
            np.testing.assert_array_equal(one, other)
    store.save("none", Regions(9, 5, BOXES[:0], features=features[:0]))
    assert len(store.load("none")) == 0 and store.load("none").scores is None


def test_regions_without_features_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the regions of a have no features"):
        RegionStore(tmp_path).save("a", Regions(9, 5, BOXES))


def test_vectors_are_the_same_again(tmp_path):
    store = VectorStore(tmp_path)
    vectors = ImageVectors(9, 5, BOXES, np.array([[1.5], [-2]], np.float32), "x", np.array([0, 20.5], np.float32))
    store.save("a", vectors)
    again = store.load("a")
    assert (again.width, again.height, again.image) == (9, 5, "a")
    for part in ("boxes", "vectors", "logits"):
        np.testing.assert_array_equal(getattr(again, part), getattr(vectors, part))


def test_a_damaged_file_is_named(tmp_path):
    store = RegionStore(tmp_path / "regions")
    store.save("a", Regions(9, 5, BOXES, features=np.zeros((2, 1))))
    (file,) = store.folder.iterdir()
    file.write_bytes(b"no")
    with pytest.raises(UserError, match=rf"{file.name}: is damaged; remove it"):
        store.load("a")
