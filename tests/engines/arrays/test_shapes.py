"""Which models run without torch, and that weights of other options are refused before they are used."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from tiny_aligner import tiny_aligner, tiny_aligner_config
from tiny_captioner import tiny_captioner
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import tiny_config, tiny_model

from saywhere.configs.captioner import Term
from saywhere.configs.densecap import DenseCapConfig
from saywhere.engines.arrays.aligner import Aligner
from saywhere.engines.arrays.captioner import Captioner
from saywhere.engines.arrays.densecap import DenseCap
from saywhere.engines.arrays.layers import Weights, require_shapes
from saywhere.engines.onnx import refused_options
from saywhere.errors import UserError
from saywhere.papers.table1.config import RegionRnnConfig

MAKERS: dict[str, Any] = {"densecap": tiny_model, "aligner": tiny_aligner, "captioner": tiny_captioner}
READERS: dict[str, Any] = {"densecap": DenseCap, "aligner": Aligner, "captioner": Captioner}
ONE_LEVEL = {"trunk": {"strides": [16]}, "proposals": {"pyramid_channels": 0, "anchors": [[[20, 20]]]}}


def arrays_of(part: str, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A network's configuration and its own weights."""
    network = MAKERS[part](**options)
    values = {k: v.numpy() for k, v in network.state_dict().items() if not k.startswith("trunk.")}
    return network, values


def require(part: str, config: Any, arrays: dict[str, np.ndarray], words: int) -> None:
    require_shapes(part, READERS[part].shapes(config, words), words, Weights.of(arrays))


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("densecap", {}),
        ("densecap", {"fc_size": 20, "pool_size": 3}),
        ("densecap", ONE_LEVEL),
        *(("aligner", {"encoders": number}) for number in (1, 2)),
        ("captioner", {}),
        ("captioner", {"attend_to": "proposals"}),
        ("captioner", {"terms": ["word-state", "word"]}),
        ("captioner", {"terms": []}),
    ],
    ids=str,
)  # fmt: skip
def test_weights_fit_the_options_they_were_made_with(part: str, options: dict[str, Any]):
    network, arrays = arrays_of(part, **options)
    require(part, network.config, arrays, len(network.vocabulary))


def config_of(part: str, **options: Any) -> Any:
    return {"densecap": tiny_config, "aligner": tiny_aligner_config, "captioner": tiny_captioner_config}[part](
        **options
    )


@pytest.mark.parametrize(
    ("part", "options"),
    [
        *(("densecap", {name: 40}) for name in ("embed_dim", "fc_size", "word_size", "hidden_size", "pool_size")),
        ("densecap", {"proposals": {"pyramid_channels": 24}}),
        *(("aligner", {name: 40}) for name in ("embed_dim", "word_size", "hidden_size")),
        ("aligner", {"encoders": 2}),
        *(("captioner", {name: 40}) for name in ("region_size", "word_size", "hidden_size")),
        ("captioner", {"terms": ["word-state", "word"]}),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_the_weights_depend_on_cannot_be_others(part: str, options: dict[str, Any]):
    network, arrays = arrays_of(part)
    with pytest.raises(
        UserError, match=f"^the weights of the part {part} (lack|have, against|do not fit its opt)"
    ) as caught:
        require(part, config_of(part, **options), arrays, len(network.vocabulary))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("densecap", {"final_nms": 0.2, "repeat_nms": None, "decoding": {"beam_size": 4}}),
        ("densecap", {"proposals": {"post_nms_top_n": 3, "nms_iou": 0.2, "pre_nms_top_n": None}}),
        ("aligner", {"beta": 3, "score": "fragments", "mean_over_words": False, "normalize": "both", "residual": True}),
        ("captioner", {"grid": 5, "decoding": {"max_words": 3}}),
    ],
)
def test_other_options_may_be_others(part: str, options: dict[str, Any]):
    network, arrays = arrays_of(part)
    require(part, config_of(part, **options), arrays, len(network.vocabulary))


@pytest.mark.parametrize("part", MAKERS)
def test_what_is_wrong_is_named(part: str):
    network, arrays = arrays_of(part)
    count = len(network.vocabulary)
    with pytest.raises(
        UserError, match=rf"do not fit its vocabulary: .*words\.weight is \({count}, .* not \({count + 1}"
    ):
        require(part, network.config, arrays, count + 1)
    for name in arrays:
        if name.endswith(("num_batches_tracked", "log_scale")):
            continue
        less = {key: value for key, value in arrays.items() if key != name}
        with pytest.raises(UserError, match=f"^the weights of the part {part} lack {name}$"):
            require(part, network.config, less, count)
        wider = {**arrays, name: np.zeros((*arrays[name].shape, 1), np.float32)}
        with pytest.raises(UserError, match="do not fit its"):
            require(part, network.config, wider, count)
    with pytest.raises(UserError, match=f"^the weights of the part {part} have, against its options, colour$"):
        require(part, network.config, {**arrays, "colour": np.zeros(3)}, count)


def test_a_length_of_a_name_is_the_same_everywhere():
    network, arrays = arrays_of("aligner")
    longer = {**arrays, "standardise.running_var": np.ones(118, np.float32)}
    with pytest.raises(UserError, match=r"standardise\.running_var is \(118,\), not \(117,\)"):
        require("aligner", network.config, longer, len(network.vocabulary))


def test_options_that_only_torch_runs_are_named():
    attends = {"attend_to": "transformer"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"densecap": DenseCapConfig.original()}, "conventions=original (the published program)"),
        ({"densecap": tiny_config(pooling="roi_align")}, "pooling=roi_align"),
        ({"captioner": tiny_captioner_config(**attends)}, "attend_to=transformer"),
        *(({"captioner": tiny_captioner_config(decoder=kind)}, f"decoder={kind}") for kind in ("rnn", "lstm", "gru")),
        ({"captioner": tiny_captioner_config(feedback="marginal")}, "feedback=marginal"),
        ({"captioner": tiny_captioner_config(terms=get_args(Term))}, "the term region-state"),
        *(({"aligner": tiny_aligner_config(cell=cell)}, f"cell={cell}") for cell in ("relu", "lstm", "none")),
        ({"captioner": tiny_captioner_config(pooling="max")}, "pooling=max"),
        ({"region-rnn": RegionRnnConfig()}, "a region-rnn (a baseline of Table 1)"),
    ]
    for configs, message in cases:
        assert refused_options(tiny_config().trunk, configs) == [message]
    odd = tiny_config(trunk={"multiple": 16}).trunk
    assert refused_options(odd, {}) == ["trunk.multiple=16 (no multiple of 32)"]
    fine = {"densecap": tiny_config(), "aligner": tiny_aligner_config(), "captioner": tiny_captioner_config()}
    assert refused_options(tiny_config(trunk={"multiple": 64}).trunk, fine) == []
