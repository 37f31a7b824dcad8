"""Each option of a captioner changes what it says that it changes."""

from __future__ import annotations

import pytest
import torch
from photographs import noise
from tiny_captioner import captioner_model, tiny_captioner, tiny_maps, tiny_target

from saywhere.networks.captioner.network import Captioner


def shapes(network: Captioner) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in network.named_parameters() if not name.startswith("trunk")}


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
