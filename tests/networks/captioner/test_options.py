"""Each option of a captioner changes what it says that it changes."""

from __future__ import annotations

import pytest
import torch
from photographs import noise
from tiny_captioner import DECODERS, captioner_model, tiny_captioner, tiny_maps, tiny_target

from saywhere.networks.captioner.network import Captioner


def shapes(network: Captioner) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in network.named_parameters() if not name.startswith("trunk")}


@pytest.mark.parametrize(
    ("option", "value", "part", "size"),
    [
        ("word_size", 7, "decoder.words.weight", (19, 7)),
        ("hidden_size", 9, "decoder.word_state.weight", (16, 9)),
        ("region_size", 5, "narrow.weight", (5, 117)),
        ("levels", (32,), "narrow.weight", (12, 69)),
        ("feedback", "marginal", "decoder.gru.weight_ih_l0", (72, 28)),
    ],
)
def test_sizes(option: str, value: object, part: str, size: tuple[int, ...]):
    changed, plain = shapes(tiny_captioner(**{option: value})), shapes(tiny_captioner())
    assert changed[part] == size != plain[part]


def test_terms_left_out_have_no_weights():
    names = shapes(tiny_captioner(terms=["word-state", "region-state"]))
    assert "decoder.region_state.weight" in names and "decoder.word_region.weight" not in names


def test_decoders_are_of_their_classes():
    kinds = {kind: type(tiny_captioner(decoder=kind).decoder).__name__ for kind in DECODERS}
    assert kinds == {kind: f"{kind.title()}Decoder" for kind in DECODERS}


def test_the_grid_has_so_many_cells():
    for cells in (1, 3):
        network = tiny_captioner(grid=cells)
        assert len(network.attend(tiny_maps(network, noise(96, 64))).regions[0].boxes) == cells**2


def test_the_input_has_the_size_and_the_maps_of_the_options():
    for options, size, widths in (
        ({"long_side": 192, "multiple": 64}, (192, 128), [24, 12, 6]),
        ({"strides": (16, 32)}, (96, 64), [6, 3]),
    ):
        (image,) = tiny_maps(network := tiny_captioner(trunk=options), noise(96, 64))
        assert image.size == size and [level.shape[2] for level in image.maps] == widths
        assert network.preprocess.size(96, 64) == size


@pytest.mark.parametrize("option", ["dropout", "region_dropout"])
def test_dropout_makes_training_random(option: str):
    def differs(**options: float) -> bool:
        network = tiny_captioner(**options)
        maps = [tiny_maps(network, noise(96, 64))[0].maps]
        network.train()
        first, second = (network(maps, [tiny_target()]).log_probs for _ in range(2))
        return not torch.equal(first, second)

    assert differs(**{option: 0.5}) and not differs()


def test_decoding_follows_the_options():
    images = [noise(96, 64, seed) for seed in range(8)]

    def captions(own: int | None = None, **options: float) -> list[str]:
        network = tiny_captioner(decoder="gru", decoding={"max_words": 8, "beam_size": 1, **options})
        return [caption.sentence for caption in captioner_model(network).caption(images, beam_size=own)]

    assert max(len(text.split()) for text in captions(max_words=2)) == 2 < max(len(t.split()) for t in captions())
    assert captions(beam_size=4) != captions()
    assert captions() != captions(4) == captions(beam_size=4)
    short, long = (captions(4, length_penalty=power) for power in (0.0, 2.0))
    assert sum(len(text.split()) for text in short) < sum(len(text.split()) for text in long)
