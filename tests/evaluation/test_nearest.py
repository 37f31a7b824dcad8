from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pictures import noise, quarters
from tiny_captioner import tiny_captioner

from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.evaluation.nearest import NearestNeighbour, learn_neighbours
from saywhere.images import open_picture


def samples(folder: Path) -> list[Sample]:
    made = []
    for name, picture in (("a", quarters(96, 64)), ("b", noise(96, 64, 1)), ("c", noise(64, 96, 2))):
        picture.save(folder / f"{name}.png")
        sentences = (f"this is {name}", "something else") if name != "c" else ()
        path = folder / f"{name}.png"
        made.append(Sample(path, *picture.size, torch.zeros(0, 4), (), sentences))
    return made


def test_a_picture_gets_the_first_sentence_of_the_one_most_like_it(tmp_path: Path):
    model, train = tiny_captioner(speaker="gru"), samples(tmp_path)
    neighbours = learn_neighbours(model, train, tmp_path / "cache")
    assert len(neighbours.state_dict()["codes"]) == 2  # the third has no sentence
    darker = quarters(96, 64).point(lambda value: value * 0.9)
    said = neighbours.caption([open_picture(darker), open_picture(noise(96, 64, 1))])
    assert said == ["this is a", "this is b"]
    assert neighbours.caption([]) == []
    again = learn_neighbours(model, train, tmp_path / "cache")
    torch.testing.assert_close(again.state_dict()["codes"], neighbours.state_dict()["codes"])


def test_the_distance_is_euclidean():
    model = tiny_captioner(speaker="gru")
    codes = model.codes([(e.maps, 96, 64) for e in model.encode([quarters(96, 64)])])
    near, longer = codes + 0.1, codes * 3  # the second has the same direction, and is farther
    neighbours = NearestNeighbour(model, torch.cat((longer, near)), ("far", "near"))
    assert neighbours.caption([open_picture(quarters(96, 64))]) == ["near"]


def test_nothing_to_learn_from_is_told(tmp_path: Path):
    model, train = tiny_captioner(speaker="gru"), samples(tmp_path)
    with pytest.raises(UserError, match="no picture with a sentence"):
        learn_neighbours(model, train[2:], tmp_path / "cache")
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(UserError, match="not one training picture can be read"):
        learn_neighbours(model, train[1:2], tmp_path / "cache2")
    with pytest.raises(ValueError, match="1 codes and 2 sentences"):
        NearestNeighbour(model, torch.zeros(1, 3), ("a", "b"))
