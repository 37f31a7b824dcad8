from __future__ import annotations

import pytest
import torch
from pictures import noise
from tiny_captioner import SENTENCES, tiny_captioner, tiny_config

from saywhere.errors import UserError
from saywhere.images import open_picture
from saywhere.language.decoding import Speaker
from saywhere.models.caption_ensemble import CaptionEnsemble
from saywhere.models.captioner import Captioner
from saywhere.text import START, Vocabulary

PICTURES = [noise(96, 64, seed) for seed in range(5)]


def first_step(speaker: Speaker, codes: torch.Tensor) -> torch.Tensor:
    """Probabilities ``(N, V)`` of the first word."""
    return speaker.step(torch.full((len(codes),), START), speaker.start(codes))[0].exp()


def test_the_mean_of_members_of_different_kinds_speaks(monkeypatch):
    members = [tiny_captioner(0), tiny_captioner(1, speaker="gru"), tiny_captioner(2, feedback="none", grid=3)]
    wanted = [first_step(*member.ready(member.encode(PICTURES))) for member in members]
    found: list[tuple[Captioner, torch.Tensor]] = []

    def say(self, speaker, codes, beam=None):
        found.append((self, first_step(speaker, codes)))
        return ["said"] * len(codes)

    monkeypatch.setattr(Captioner, "say", say)
    assert CaptionEnsemble(members).caption(PICTURES) == ["said"] * 5
    ((who, together),) = found
    assert who is members[0]
    torch.testing.assert_close(together, torch.stack(wanted).mean(dim=0))
    assert all((together - alone).abs().max() > 0.1 for alone in wanted)


@pytest.mark.parametrize("beam", [1, 3])
def test_one_captioner_twice_speaks_as_once(beam):
    model = tiny_captioner()
    said = CaptionEnsemble([model, model]).caption(PICTURES, beam)
    assert said == model.caption(PICTURES, beam) == CaptionEnsemble([model]).caption(PICTURES, beam)
    assert CaptionEnsemble([model]).caption(PICTURES[0], beam) == said[0]


def test_the_first_decodes_and_the_largest_input_is_opened():
    members = [tiny_captioner(max_words=2, long_side=96), tiny_captioner(1, max_words=5, long_side=192)]
    ensemble = CaptionEnsemble(members)
    assert ensemble.preprocess is members[1].preprocess
    assert max(len(text.split()) for text in ensemble.caption(PICTURES)) == 2
    assert ensemble.caption(open_picture(PICTURES[0])) == ensemble.caption(PICTURES[0])
    assert list(ensemble.config.to_dict()) == ["0", "1"] and ensemble.config.to_dict()["1"]["max_words"] == 5
    assert len(ensemble.state_dict()) == sum(len(member.state_dict()) for member in members)


def test_vocabularies_must_be_one():
    other = Captioner(tiny_config(), Vocabulary.build(SENTENCES[:2]), pretrained_backbone=False)
    with pytest.raises(UserError, match="one vocabulary; these have 15 and 11 words"):
        CaptionEnsemble([tiny_captioner(), other])
