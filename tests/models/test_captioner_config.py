"""Each option of a captioner changes what it is said to change."""

from __future__ import annotations

import pytest
import torch
from pictures import noise
from tiny_captioner import tiny_captioner, tiny_config, tiny_target

from saywhere.errors import UserError
from saywhere.language.decoding import Decoded, Speaker, decode
from saywhere.models.captioner import Captioner
from saywhere.models.captioner_config import CaptionerConfig


def shapes(model: Captioner) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters() if not name.startswith("backbone")}


def test_the_original_is_the_papers_rnn():
    config = CaptionerConfig.original()
    assert (config.speaker, config.areas, config.hidden_size, config.beam) == ("rnn", "whole", 512, 7)
    assert config.head and not config.levels and config.smoothing == 0 and config.length_power == 0
    assert CaptionerConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("option", "value", "part", "size"),
    [
        ("word_size", 7, "speaker.words.weight", (19, 7)),
        ("hidden_size", 9, "speaker.word_state.weight", (16, 9)),
        ("area_size", 5, "narrow.weight", (5, 117)),
        ("levels", (32,), "narrow.weight", (12, 69)),
        ("feedback", "none", "speaker.gru.weight_ih_l0", (72, 16)),
    ],
)
def test_sizes(option: str, value: object, part: str, size: tuple[int, ...]):
    changed, plain = shapes(tiny_captioner(**{option: value})), shapes(tiny_captioner())
    assert changed[part] == size != plain[part]


def test_terms_left_out_have_no_weights():
    names = shapes(tiny_captioner(terms=["word-state", "region-state"]))
    assert "speaker.region_state.weight" in names and "speaker.word_region.weight" not in names


def test_speakers_are_of_their_classes():
    kinds = {kind: type(tiny_captioner(speaker=kind).speaker).__name__ for kind in ("rnn", "lstm", "gru", "attention")}
    assert kinds == {"rnn": "RnnSpeaker", "lstm": "LstmSpeaker", "gru": "GruSpeaker", "attention": "AttentionSpeaker"}


def test_the_grid_has_so_many_cells():
    for cells in (1, 3):
        model = tiny_captioner(grid=cells)
        assert len(model.caption(noise(96, 64), attention=True).boxes) == cells**2


def test_the_picture_is_resized_as_told():
    (encoding,) = tiny_captioner(long_side=192, multiple=64).encode([noise(96, 64)])
    assert (encoding.input_width, encoding.input_height) == (192, 128)
    assert [m.shape[2] for m in encoding.maps] == [24, 12, 6]
    fewer = tiny_captioner(strides=(16, 32)).encode([noise(96, 64)])[0]
    assert [m.shape[2] for m in fewer.maps] == [6, 3]


@pytest.mark.parametrize("option", ["dropout", "area_dropout"])
def test_dropout_makes_training_random(option: str):
    picture = noise(96, 64)

    def differs(**options: float) -> bool:
        model = tiny_captioner(**options)
        maps = [model.encode([picture])[0].maps]
        model.train()
        first, second = (model(maps, [tiny_target()]).log_probs for _ in range(2))
        return not torch.equal(first, second)

    assert differs(**{option: 0.5}) and not differs()


def test_decoding_follows_the_options(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[float, ...]] = []

    def spy(speaker: Speaker, codes: torch.Tensor, *options: float) -> Decoded:
        asked.append(options)
        return decode(speaker, codes, 2)

    monkeypatch.setattr("saywhere.models.captioner.decode", spy)
    tiny_captioner(max_words=5, beam=4, length_power=0.5).caption(noise(96, 64))
    assert asked == [(5, 4, 0.5)]
    monkeypatch.undo()
    pictures = [noise(96, 64, seed) for seed in range(8)]
    assert max(len(text.split()) for text in tiny_captioner(max_words=2).caption(pictures)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speaker": "attention", "areas": "whole"}, "areas is 'whole'"),
        ({"speaker": "rnn", "areas": "grid"}, "areas is 'grid'"),
        ({"speaker": "attention", "regions": True}, "regions is True"),
        ({"speaker": "rnn", "context": True}, "context is True"),
        ({"head": True}, "head is True"),
        ({"levels": [4]}, r"levels is \(4,\)"),
        ({"levels": []}, r"levels is \(\)"),
        ({"strides": [32, 16]}, "ascending"),
        ({"smoothing": 1.0}, "smoothing is 1.0"),
        ({"speaker": "rnn", "regions": True, "reward": "cider"}, "reward is 'cider'"),
        ({"reward": "bleu"}, "reward is one of none, cider"),
        ({"drawn": 1}, "drawn is 1"),
        ({"word_weight": -1.0}, "word_weight is -1.0"),
        ({"beam": 0}, "beam is 0"),
        ({"hiden_size": 3}, "did you mean hidden_size"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        tiny_config(**options)
