"""Several captioners together, and their command."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import commands
import numpy as np
import pytest
from albums import write_album
from commands import report, rows
from photographs import noise
from refusals import refuses
from stub_decoder import Chain
from stubs import StubMeteor, same_text
from tiny_bundle import bundle_model
from tiny_captioner import SENTENCES, captioner_model, tiny_captioner, tiny_config

import saywhere
from saywhere.configs.parts import DecodingConfig
from saywhere.errors import UserError
from saywhere.evaluation import captions as metrics
from saywhere.evaluation import meteor
from saywhere.images import open_image
from saywhere.models.captioner import bind
from saywhere.models.decoding import decode
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.papers.captions import CaptionEnsemble, EnsembleDecoder
from saywhere.text import END, PAD, START, UNKNOWN, Vocabulary

IMAGES = [open_image(noise(96, 64, seed)) for seed in range(5)]


def run(decoder, embeddings, max_words: int, beam_size: int = 1):
    return decode(decoder, embeddings, DecodingConfig(max_words, beam_size))


def test_the_mean_of_probabilities_by_hand():
    one = Chain([[1.0] * 6, [0, 0, 0, 0, 0.9, 0.1], [1.0] * 6, [1.0] * 6, [0, 0, 1.0, 0, 0, 0], [0, 0, 1.0, 0, 0, 0]])
    two = Chain([[1.0] * 6, [0, 0, 0, 0, 0.2, 0.8], [1.0] * 6, [1.0] * 6, [0, 0, 0.5, 0, 0.5, 0], [0, 0, 1.0, 0, 0, 0]])
    ensemble = EnsembleDecoder([one, two])
    embeddings = [(np.zeros(1, np.float32), np.arange(1, 3, dtype=np.float32))]
    log_probs, state = ensemble.step(np.array([START]), ensemble.start(embeddings))
    np.testing.assert_allclose(np.exp(log_probs), [[0, 0, 0, 0, 0.55, 0.45]], rtol=1e-5)
    assert [part.tolist() for part in state] == [[[0]], [[1]], [[1, 2]], [[2, 3]]]
    assert [part.tolist() for part in ensemble.join([state, ensemble.select(state, np.array([0, 0]))])] == [
        [[0]] * 3, [[1]] * 3, [[1, 2]] * 3, [[2, 3]] * 3,
    ]  # fmt: skip
    greedy = run(ensemble, embeddings, 3)
    assert greedy.token_ids.tolist() == [[4, END]]
    np.testing.assert_allclose(np.exp(greedy.log_probs), [[0.55, 0.75]], rtol=1e-5)
    # 4 END has .55 * .75, 5 END has .45: together they choose what only the second would have chosen
    assert run(ensemble, embeddings, 3, 2).token_ids[0, :2].tolist() == [5, END]


def first_step(model: Model) -> np.ndarray:
    """Probabilities ``(N, V)`` of the first word."""
    bound = bind(model.require("captioner", "caption"), model.encode(IMAGES))
    state = bound.decoder.start(bound.embeddings)
    return np.exp(bound.decoder.step(np.full(len(IMAGES), START), state)[0])


def test_models_of_different_kinds_caption_by_their_mean():
    options = ({}, {"decoder": "lstm"}, {"feedback": "none", "grid": 3})
    models = [captioner_model(tiny_captioner(seed, **option)) for seed, option in enumerate(options)]
    wanted = [first_step(model) for model in models]
    captions = CaptionEnsemble(models).caption(IMAGES, beam_size=1)
    mean = np.mean(wanted, axis=0)
    mean[:, [PAD, START, UNKNOWN]] = 0
    for caption, row in zip(captions, mean, strict=True):
        first = models[0].require("captioner", "caption").vocabulary.tokens[int(row.argmax())]
        assert caption.words[:1] == (() if first == "<end>" else (first,))
    assert all(np.abs(mean - alone).max() > 0.1 for alone in wanted)


def test_the_first_decodes_and_the_largest_input_is_opened():
    networks = [
        tiny_captioner(decoding={"max_words": 2}),
        tiny_captioner(1, decoding={"max_words": 5}, trunk={"long_side": 192}),
    ]
    ensemble = CaptionEnsemble([captioner_model(network) for network in networks])
    assert ensemble.long_side == 192
    assert max(len(caption.words) for caption in ensemble.caption(IMAGES)) == 2


def test_wrong_members_are_reported_in_a_line():
    model = captioner_model(tiny_captioner())
    other = checkpoint.new_network(Captioner, tiny_config(), Vocabulary.build(SENTENCES[:2]))
    refuses("one vocabulary; these have 15 and 11 words", CaptionEnsemble, [model, captioner_model(other)])
    with pytest.raises(
        UserError, match="^tiny cannot caption images: that needs a model with the part captioner; this"
    ):
        CaptionEnsemble([model, bundle_model(aligner={})])
    refuses("beam_size must be at least 1, not 0", CaptionEnsemble([model, model]).caption, IMAGES, beam_size=0)


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(metrics, "score_captions", same_text)
    monkeypatch.chdir(tmp_path)


def captioned_album() -> Path:
    said = [{"sentences": [f"{96 + number} wide", f"a noise of {number}"]} for number in range(4)]
    images = [noise(96 + number, 64, number) for number in range(4)]
    return write_album(Path("album"), said, images, "p/{}.png").parent


caption = partial(commands.run, "papers", "caption")


def test_several_models_caption_together(stubs, tmp_path):
    names = [str(checkpoint.save(tiny_captioner(seed), tmp_path / f"m{seed}")) for seed in (0, 1)]
    both = ("--model", names[0], "--model", names[1])
    done = caption(*both, "--data", captioned_album(), "--out", "out", "--device", "cpu")
    assert done.stderr == "" and report()["model"] == ", ".join(names)
    together = CaptionEnsemble([saywhere.load(name) for name in names])
    (expected,) = together.caption([open_image(Path("album/p/1.png"))])
    lines = rows("out/predictions.jsonl")
    assert lines[1]["caption"] == expected.sentence


def test_one_model_alone_is_refused(stubs, tmp_path):
    name = str(checkpoint.save(tiny_captioner(), tmp_path / "m"))
    alone = caption("--model", name, "--data", captioned_album(), "--out", "two", "--device", "cpu", code=2)
    assert "one alone is measured by saywhere evaluate caption" in alone.stderr
    assert not Path("two").exists()
