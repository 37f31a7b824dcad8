"""Images as vectors, made by chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from saywhere.models.aligner import ImageVectors

SIZE = 24


@pytest.fixture
def random_images() -> Callable[..., list[ImageVectors]]:
    """Make images of one to five regions; the same for the same seed."""

    def make(count: int, seed: int = 0) -> list[ImageVectors]:
        generator = np.random.default_rng(seed)
        images = []
        for number in range(count):
            regions = int(generator.integers(1, 6))
            boxes = np.sort(generator.uniform(0, 50, (regions, 4)).astype(np.float32)).reshape(-1, 4)
            vectors = generator.standard_normal((regions, SIZE), np.float32).astype(np.float16).astype(np.float32)
            logits = generator.standard_normal(regions, np.float32)
            name, hubness = f"/photos/{seed}-{number}.jpg", float(np.float16(generator.standard_normal()))
            images.append(ImageVectors(60 + number, 50, boxes, vectors, name, logits, hubness))
        return images

    return make
