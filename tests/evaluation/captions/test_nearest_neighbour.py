"""The nearest training image's sentence as a caption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from photographs import noise, quarters
from tiny_captioner import captioner_model, tiny_captioner

from saywhere.errors import UserError
from saywhere.evaluation.captions.nearest_neighbour import NearestNeighbour, image_vectors, learn_neighbours
from saywhere.evaluation.session import Session
from saywhere.images import open_image
from saywhere.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return captioner_model(tiny_captioner(decoder="gru"))


def album(folder: Path) -> Path:
    """Three training images; the third has no sentence."""
    rows = []
    for name, image in (("a", quarters(96, 64)), ("b", noise(96, 64, 1)), ("c", noise(64, 96, 2))):
        image.save(folder / f"{name}.png")
        sentences = [f"this is {name}", "something else"] if name != "c" else []
        rows.append({"image": f"{name}.png", "split": "train", "regions": [], "sentences": sentences})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def texts(neighbours: NearestNeighbour, *images) -> list[str]:
    return [caption.sentence for caption in neighbours.caption([open_image(image) for image in images])]


def test_an_image_gets_the_first_sentence_of_the_one_most_like_it(model: Model, tmp_path: Path) -> None:
    root = album(tmp_path)
    neighbours = learn_neighbours(model, Session(root, tmp_path / "out"))
    darker = quarters(96, 64).point(lambda value: value * 0.9)
    assert texts(neighbours, darker, noise(96, 64, 1)) == ["this is a", "this is b"]
    assert neighbours.caption([]) == []
    files = sorted((tmp_path / "out/neighbours").rglob("*.safetensors"))
    times = [file.stat().st_mtime_ns for file in files]
    again = learn_neighbours(model, Session(root, tmp_path / "out"))
    assert len(files) == 2 and [file.stat().st_mtime_ns for file in files] == times
    assert texts(again, darker) == ["this is a"]


@pytest.mark.parametrize("options", [{"decoder": "gru"}, {"decoder": "attention", "attend_to": "proposals"}])
def test_the_distance_is_euclidean(options: dict[str, str]) -> None:
    model = captioner_model(tiny_captioner(**options))
    vectors = image_vectors(model, [quarters(96, 64)])
    near, longer = vectors + 0.1, vectors * 3  # the second has the same direction, and is farther
    neighbours = NearestNeighbour(model, np.concatenate((longer, near)), ("far", "near"))
    assert texts(neighbours, quarters(96, 64)) == ["near"]


def test_training_images_that_cannot_be_used_are_reported(model: Model, tmp_path: Path) -> None:
    root = album(tmp_path)
    rows = (root / "data.jsonl").read_text().splitlines()
    (root / "data.jsonl").write_text(rows[2] + "\n")
    with pytest.raises(UserError, match="no image with a sentence"):
        learn_neighbours(model, Session(root, tmp_path / "out"))
    (root / "data.jsonl").write_text(rows[1] + "\n")
    data = (root / "b.png").read_bytes()
    (root / "b.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"none of the 1 images could be read; b\.png: "):
        learn_neighbours(model, Session(root, tmp_path / "out"))
    with pytest.raises(ValueError, match="1 vectors and 2 sentences"):
        NearestNeighbour(model, np.zeros((1, 3)), ("a", "b"))
