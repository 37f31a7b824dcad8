"""Two engines of one model are held against each other stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tiny_bundle import bundle_model, tiny_networks

from saywhere import UserError
from saywhere.engines.export import compare_engines, random_boxes, stages
from saywhere.engines.torch import TorchEngine


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine(tiny_networks())


def test_every_part_and_shape_has_its_stages(engine: TorchEngine):
    names = [name for name, _ in stages(engine)]
    assert len(names) == len({*names}) + 3, "the region decoder is asked for each of the four images"
    for part in (
        "logits of anchors",
        "embeddings of 1000 regions",
        "vectors of 0 regions",
        "caption decoder",
        "attenti",
    ):
        for shape in ("400 x 300", "300 x 400", "400 x 60", "399 x 401"):
            assert any(part in name and name.endswith(shape) for name in names), (part, shape)
    assert names[-1] == "vectors of words"
    alone = [name for name, _ in stages(bundle_model(captioner={"decoder": "gru"}).engine)]
    assert len(alone) == 4 and all(name.startswith("the caption decoder on an image") for name in alone)


def test_an_engine_equals_itself(engine: TorchEngine):
    assert compare_engines(engine, engine) == 0


@pytest.mark.parametrize(
    ("weight", "stage"),
    [
        ("trunk.localization.head.offset.bias", "offsets of anchors of an image of 400 x 300"),
        ("densecap.region_head.layers.4.weight", r"embeddings of \d+ regions of an image of 400 x 300"),
        ("densecap.decoder.output.bias", "the region decoder"),
        ("aligner.projects.0.bias", "vectors of 1 regions of an image of 400 x 300"),
        ("aligner.encoders.0.decode.weight", "vectors of words"),
        ("captioner.decoder.words.weight", "the caption decoder on an image of 400 x 300"),
        ("captioner.decoder.word_state.weight", "the caption decoder on an image of 400 x 300"),
        ("captioner.narrow.weight", "attention on an image of 400 x 300"),
    ],
)
def test_the_stage_that_differs_is_named(engine: TorchEngine, weight: str, stage: str):
    networks = tiny_networks()
    part, _, name = weight.partition(".")
    network: Any = networks["densecap"] if part == "trunk" else networks[part]
    with torch.no_grad():
        network.get_parameter(weight if part == "trunk" else name).view(-1)[0].add_(2)
    with pytest.raises(UserError, match=rf"^the engines differ in {stage} by \d\S* of its largest value$"):
        compare_engines(engine, TorchEngine(networks))


def test_numbers_that_are_none_are_no_agreement(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch):
    def broken(_: Any) -> Iterator[tuple[str, np.ndarray]]:
        yield "a stage", np.array([np.nan, 1.0], np.float32)

    monkeypatch.setattr("saywhere.engines.export.stages", broken)
    with pytest.raises(UserError, match="differ in a stage by nan"):
        compare_engines(engine, engine)


def test_boxes_are_drawn_inside():
    boxes = random_boxes(np.random.default_rng(0), 500, 40, 30)
    assert boxes.dtype == np.float32 and boxes.shape == (500, 4)
    assert (boxes >= 0).all() and (boxes <= [40, 30, 40, 30]).all() and (boxes[:, 2:] >= boxes[:, :2]).all()
    assert random_boxes(np.random.default_rng(0), 0, 40, 30).shape == (0, 4)
