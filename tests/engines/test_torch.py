"""The torch engine gives what the networks give: arrays in and out, on networks that share one trunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import noise
from refusals import refuses
from tiny_aligner import VOCABULARY as ALIGNER_VOCABULARY
from tiny_aligner import tiny_aligner_config
from tiny_captioner import DECODERS, VOCABULARY, tiny_captioner, tiny_config, tiny_maps
from tiny_densecap import tiny_model
from torch import nn

from saywhere.configs.parts import TrunkConfig
from saywhere.engines.torch import TorchEngine, load
from saywhere.images import open_image
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.text import START

SIZES = ((96, 64), (64, 96), (96, 64))


def networks(seed: int = 3) -> dict[str, nn.Module]:
    """A tiny DenseCap, and an aligner and a captioner on its trunk."""
    densecap = tiny_model(seed=seed)
    torch.manual_seed(seed)
    aligner = Aligner(tiny_aligner_config(), ALIGNER_VOCABULARY, trunk=densecap.trunk)
    captioner = Captioner(tiny_config(attend_to="proposals"), VOCABULARY, trunk=densecap.trunk)
    with torch.no_grad():
        for parameter in captioner.decoder.parameters():
            parameter.normal_(std=0.5)
    return {"densecap": densecap, "aligner": aligner, "captioner": captioner}


def encode(engine: TorchEngine) -> list[ImageMaps]:
    pixels = [engine.trunk.preprocess(open_image(noise(*size, seed))) for seed, size in enumerate(SIZES)]
    return engine.trunk.encode(pixels)


@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_decoders_of_all_kinds(decoder):
    network = tiny_captioner(decoder=decoder)
    engine = TorchEngine({"captioner": network})
    bound = engine.captioner.bind_images(encode(engine), [None] * 3)
    assert (bound.attention is None) == (decoder != "attention") == bound.decoder.independent
    assert [len(boxes) for boxes in bound.boxes] == [4 if decoder == "attention" else 0] * 3
    start = bound.decoder.start(bound.embeddings)
    log_probs, state = bound.decoder.step(np.full(3, START), start)
    assert log_probs.dtype == np.float32 and log_probs.shape == (3, len(VOCABULARY))
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, rtol=1e-5)
    joined = bound.decoder.join([bound.decoder.select(state, np.array([r, r])) for r in range(3)])
    for part, rows in zip(joined, state, strict=True):
        assert torch.equal(part, rows.repeat_interleave(2, dim=0))
    assert not any(part.requires_grad for part in joined)


def test_the_digest_tells_models_apart():
    engine = TorchEngine(networks())
    digest = engine.digest()
    assert digest == TorchEngine(networks()).digest()
    assert digest != TorchEngine({"densecap": networks()["densecap"]}).digest()
    assert digest != TorchEngine(networks(seed=4)).digest()
    with torch.no_grad():
        engine.networks["aligner"].log_scale.add_(1)
    assert digest != engine.digest()
    other = tiny_captioner(decoding={"beam_size": 2})
    assert TorchEngine({"captioner": other}).digest() != TorchEngine({"captioner": tiny_captioner()}).digest()


def test_it_loads_a_folder_with_other_options(tmp_path: Path):
    network = tiny_captioner()
    folder = checkpoint.save(network, tmp_path / "model")
    engine = load(folder, "cpu", {"decoding.beam_size": 2})
    assert engine.captioner.config.decoding.beam_size == 2 and engine.densecap is engine.aligner is None
    assert load(folder, "cpu").digest() == TorchEngine({"captioner": network}).digest()
    refuses("device abacus cannot be used", load, folder, "abacus")
    assert checkpoint.find_device("cpu") == torch.device("cpu") and checkpoint.find_device() is not None


def test_a_baseline_is_no_model(tmp_path: Path):
    trunk = TrunkConfig(backbone="test_efficientnet", strides=(32,), long_side=64, multiple=64)
    config = RegionRnnConfig(trunk=trunk)
    folder = checkpoint.save(checkpoint.new_network(RegionRnn, config, VOCABULARY), tmp_path / "model")
    refuses("model is a region-rnn, which only saywhere papers runs", load, folder, "cpu")


def test_it_keeps_the_maps_and_puts_networks_into_eval_mode():
    network = tiny_captioner().train()
    engine = TorchEngine({"captioner": network})
    assert not network.training and not network.trunk.training
    for ours, plain in zip(
        encode(engine), tiny_maps(network, *(noise(*s, i) for i, s in enumerate(SIZES))), strict=True
    ):
        torch.testing.assert_close(ours.maps, plain.maps)
        assert all(level.is_inference() for level in ours.maps)
