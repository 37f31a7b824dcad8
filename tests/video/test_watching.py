"""What a look holds, with and without an aligner in the model."""

from __future__ import annotations

import numpy as np
import pytest
from photographs import noise
from tiny_bundle import bundle_model

from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.video.tracking import CELLS, Watcher


def loaded(seed: int) -> LoadedImage:
    pixels = noise(96, 64, seed)
    return LoadedImage(pixels, 192, 128, "a frame")


@pytest.mark.parametrize("parts", [("densecap",), ("densecap", "aligner")])
def test_a_look_has_regions_with_features_and_a_vector_for_each_cell(parts):
    model = bundle_model(**{part: {} for part in parts})
    look = Watcher(model, top=4)(loaded(0))
    regions = model.describe(loaded(0), top=4)
    assert (regions.width, len(look.regions)) == (192, len(regions)) and look.regions.captions == regions.captions
    np.testing.assert_allclose(look.regions.boxes, regions.boxes, atol=1e-3)
    assert look.regions.features is not None and len(look.regions.features) == len(regions) > 0
    assert look.scene.shape[0] == CELLS**2 and np.isfinite(look.scene).all()
    other = Watcher(model, top=4)(loaded(1))
    assert not np.allclose(look.scene, other.scene)
    np.testing.assert_allclose(Watcher(model, top=4)(loaded(0)).scene, look.scene, atol=1e-4)


def test_cells_are_read_from_left_to_right_and_down():
    model = bundle_model(densecap={}, aligner={})
    width, height = 192, 128
    boxes = [
        [x * width / 3, y * height / 3, (x + 1) * width / 3, (y + 1) * height / 3] for y in range(3) for x in range(3)
    ]
    expected = model.embed(loaded(0), np.array(boxes)).vectors[1:]
    np.testing.assert_allclose(Watcher(model)(loaded(0)).scene, expected, atol=1e-3)


def test_a_model_that_finds_no_regions_is_refused():
    with pytest.raises(UserError, match="tiny cannot describe videos: that needs a model with the part densecap"):
        Watcher(bundle_model(captioner={}))
