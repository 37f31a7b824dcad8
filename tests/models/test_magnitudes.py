from __future__ import annotations

import pytest
import torch
from tiny_aligner import SENTENCES, tiny_aligner

from saywhere.models.alignment import PictureVectors
from saywhere.models.magnitudes import area_magnitudes, word_magnitudes


def test_words_by_the_mean_length_of_their_vectors():
    model = tiny_aligner()
    rows = word_magnitudes(model, [*SENTENCES, "a zebra on the green grass"], min_count=2)
    assert [row.magnitude for row in rows] == sorted((row.magnitude for row in rows), reverse=True)
    counts = {row.word: row.places for row in rows}
    # a: 3 + 0 + 1 + 1 + 1; on: 0 + 1 + 1 + 0 + 1; the words of one place only, and the unknown zebra, are left out
    assert counts["a"] == 6 and counts["on"] == 3 and "horse" not in counts and "zebra" not in counts
    lengths = [float(model.read([text]).vectors[0, place].norm()) for text, place in ((SENTENCES[1], 6),)]
    lengths.append(float(model.read(["a zebra on the green grass"]).vectors[0, 5].norm()))
    grass = next(row for row in rows if row.word == "grass")
    assert grass.magnitude == pytest.approx(sum(lengths) / 2, rel=1e-5)


def test_areas_by_the_length_of_their_vectors():
    def picture(name, *lengths):
        boxes = torch.arange(4.0 * len(lengths)).reshape(-1, 4)
        return PictureVectors(9, 9, boxes, torch.tensor([[0.0, v] for v in lengths]), name)

    rows = area_magnitudes([picture("a", 1, 3), picture("b", 2)])
    assert [(r.image, r.box[0], r.magnitude) for r in rows] == [("a", 4, 3), ("b", 0, 2), ("a", 0, 1)]
