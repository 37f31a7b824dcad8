"""Layers in NumPy give what those of torch do, and the shapes of the weights that they read."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from safetensors.torch import save_file
from tiny_aligner import tiny_aligner, tiny_aligner_config
from tiny_captioner import tiny_captioner
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import tiny_config, tiny_model
from torch import nn
from torch.nn import functional

from saywhere.configs.captioner import Term
from saywhere.configs.densecap import DenseCapConfig
from saywhere.engines.arrays import aligner as arrays
from saywhere.engines.arrays.aligner import Aligner
from saywhere.engines.arrays.captioner import Captioner
from saywhere.engines.arrays.densecap import DenseCap
from saywhere.engines.arrays.layers import (
    BLOCK,
    BatchNorm,
    Gru,
    Linear,
    Lstm,
    Panels,
    Weights,
    WordGates,
    WordVectors,
    in_single,
    layer_norm,
    log_softmax,
    product,
    relu,
    require_shapes,
    sigmoid,
)
from saywhere.engines.onnx import refused_options
from saywhere.errors import UserError
from saywhere.networks.aligner.network import TextEncoder
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.text import PAD

ROWS = pytest.mark.parametrize("count", [0, 1, 7])


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """With random weights and statistics."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.2, 2) if value is getattr(module, "running_var", None) else value.normal_()
    return module.eval()


def weights(module: nn.Module) -> Weights:
    return Weights.of({name: value.detach().numpy() for name, value in module.state_dict().items()})


def inputs(*shape: int, seed: int = 1, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype(np.float32)


def same(found: np.ndarray, expected: torch.Tensor, atol: float = 1e-5) -> None:
    assert found.dtype == np.float32 and found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=atol, rtol=1e-5)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 5, 3), (1, 384, 70), (7, 900, 130), (90, 449, 64)])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_panels(rows: int, depth: int, columns: int, kind: type):
    stored, x = inputs(columns, depth, scale=0.1).astype(kind), inputs(rows, depth, seed=2)
    expected = (x.astype(np.float64) @ stored.T.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(Panels(stored).product(x), expected, atol=1e-4)
    np.testing.assert_array_equal(product(x[:, None], Panels(stored))[:, 0], product(x, Panels(stored)))


@ROWS
@pytest.mark.parametrize("bias", [True, False])
def test_linear(count: int, bias: bool):
    layer, x = drawn(nn.Linear(5, 3, bias=bias)), inputs(count, 5)
    same(Linear(weights(layer))(x), layer(torch.from_numpy(x)))
    deep = inputs(2, count, 5)
    same(Linear(weights(layer))(deep), layer(torch.from_numpy(deep)))


@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (4,), (7,), (64,), (65,), (2, 3), ()])
def test_products_of_few_rows_are_those_of_numpy(shape: tuple[int, ...]):
    generator = np.random.default_rng(0)
    x, weight = (generator.normal(size=size).astype(np.float32) for size in ((*shape, 5), (5, 6)))
    found = product(x, weight)
    assert found.dtype == np.float32 and found.shape == (*shape, 6)
    np.testing.assert_allclose(found, x @ weight, rtol=1e-5, atol=1e-6)


@ROWS
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_by_stored_statistics(count: int, affine: bool):
    layer, x = drawn(nn.BatchNorm1d(5, affine=affine)), inputs(count, 5)
    with torch.no_grad():
        layer.get_buffer("running_var").abs_().add_(0.1)
    same(BatchNorm(weights(layer))(x), layer(torch.from_numpy(x)))


@ROWS
@pytest.mark.parametrize("suffix", ["l0", "l0_reverse"])
def test_gru(count: int, suffix: str):
    layer = drawn(nn.GRU(4, 6, batch_first=True, bidirectional=True))
    cell, x, h = Gru(weights(layer), suffix), inputs(count, 3, 4), inputs(count, 6)
    order = range(3) if suffix == "l0" else range(2, -1, -1)
    gates, state, states = cell.inputs(x), h, {}
    for t in order:
        states[t] = state = cell.step(gates[:, t], state)
    start = torch.from_numpy(np.stack((h, h)))
    expected, _ = layer(torch.from_numpy(x), start) if count else (torch.zeros(0, 3, 12), None)
    half = expected[..., :6] if suffix == "l0" else expected[..., 6:]
    same(np.stack([states[t] for t in range(3)], axis=1), half)


@ROWS
def test_lstm(count: int):
    layer = drawn(nn.LSTM(4, 6, batch_first=True))
    cell, x, h, c = Lstm(weights(layer)), inputs(count, 3, 4), inputs(count, 6), inputs(count, 6, seed=2)
    gates, state, memory, states = cell.inputs(x), h, c, []
    for t in range(3):
        state, memory = cell.step(gates[:, t], state, memory)
        states.append(state)
    start = torch.from_numpy(h[None]), torch.from_numpy(c[None])
    expected = layer(torch.from_numpy(x), start)[0] if count else torch.zeros(0, 3, 6)
    same(np.stack(states, axis=1), expected)


@given(scale=st.sampled_from([0.0, 0.1, 10.0, 1e4]), seed=st.integers(0, 99))
def test_functions(scale: float, seed: int):
    x = inputs(4, 9, seed=seed, scale=1) * np.float32(scale)
    tensor = torch.from_numpy(x)
    with np.errstate(all="raise", under="ignore"):
        same(relu(x), tensor.relu())
        same(sigmoid(x), tensor.sigmoid(), 1e-6)
        same(log_softmax(x), tensor.log_softmax(dim=1), 1e-5 * max(1, scale))
        same(layer_norm(x), functional.layer_norm(tensor, (9,)), 1e-4)


# Weights


def test_gates_of_a_word_are_those_of_the_unit_whatever_was_asked_before():
    torch.manual_seed(0)
    weights = Weights.of({name: value.numpy() for name, value in nn.GRU(6, 5).state_dict().items()})
    unit = Gru(weights)
    words = WordVectors(Weights.of({"words.weight": np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)}))
    gates = [WordGates(words, unit.w_in, unit.b_in) for _ in range(2)]
    rows = np.array([3, 0, 3, 8])
    np.testing.assert_allclose(gates[0][rows], unit.inputs(words[rows]), rtol=1e-5, atol=1e-6)
    assert gates[0][rows[:0]].shape == (0, 15)
    _ = gates[1][np.arange(9)]
    assert np.array_equal(gates[0][rows[::-1]], gates[1][rows[::-1]])


def test_what_is_given_stays_as_it_is():
    generator = np.random.default_rng(0)
    inputs, state, cell = (generator.normal(size=(2, size)).astype(np.float32) for size in (20, 5, 5))
    weights = {"weight_ih": (20, 4), "weight_hh": (20, 5), "bias_ih": (20,), "bias_hh": (20,)}
    arrays = {f"{name}_l0": generator.normal(size=size).astype(np.float32) for name, size in weights.items()}
    for array in (inputs, state, cell):
        array.flags.writeable = False
    Lstm(Weights.of(arrays)).step(inputs, state, cell)
    Gru(Weights.of({name: array[:15] for name, array in arrays.items()})).step(inputs[:, :15], state)
    for function in (sigmoid, log_softmax, layer_norm):
        function(inputs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    tensors = {
        "a.half": torch.tensor([[0.5, 1.5]], dtype=torch.float16),
        "a.b.double": torch.tensor([1 / 3], dtype=torch.float64),
        "a.count": torch.tensor(7),
        "ab.brain": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "ab.eight": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    }
    save_file(tensors, path)
    return path


def test_a_type_of_eight_bits_is_refused(file: Path):
    refuses(r"^ab\.eight of the model's weights cannot be read: ", Weights.open(file).stored, "ab.eight")


def test_arrays_are_read_in_single_precision(file: Path):
    found = Weights.open(file).below("a")
    assert found.names() == ["b.double", "count", "half"] and found.has("half") and not found.has("brain")
    assert found["half"].dtype == found.below("b")["double"].dtype == np.float32 and found["half"].tolist() == [
        [0.5, 1.5]
    ]
    assert found.stored("half").dtype == np.float16 and found["count"] == 7
    assert found.shape("half") == (1, 2) and found.shape("count") == ()
    assert Weights.open(file).below("ab").shape("brain") == (2,)


def test_arrays_of_half_precision_are_seen_where_they_lie(file: Path):
    found = Weights.open(file).stored("a.half")
    assert not found.flags.owndata and not found.flags.writeable and found.tolist() == [[0.5, 1.5]]


def test_arrays_can_be_read_again_after_the_memory_of_the_file_was_given_back(file: Path):
    weights = Weights.open(file)
    before = weights.stored("a.half")
    weights.below("a").release()
    assert before.tolist() == weights["a.half"].tolist() == [[0.5, 1.5]]
    Weights.of({"a": before}).release()  # which has no file


EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("numbers", [EVERY, EVERY[np.isfinite(EVERY)], EVERY[:0], EVERY[:5], EVERY[:BLOCK]])
@pytest.mark.parametrize("columns", [1, 4, BLOCK // 8])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_half_precision_becomes_single_bit_by_bit(numbers: np.ndarray, columns: int, turned: bool, given: bool):
    numbers = numbers[: len(numbers) // columns * columns].reshape(-1, columns)
    numbers = numbers.T if turned else numbers
    out = np.full(numbers.shape, 7, np.float32) if given else None
    found = in_single(numbers, out)
    assert found.dtype == np.float32 and found.flags.c_contiguous and (out is None or found is out)
    assert np.array_equal(found.view(np.int32), np.ascontiguousarray(numbers.astype(np.float32)).view(np.int32))


def test_other_types_become_single_precision_too():
    values = np.array([[1, 2, 3], [4, 5, 6]], np.float64).T
    assert in_single(values).tolist() == in_single(values, np.empty((3, 2), np.float32)).tolist() == values.tolist()
    assert in_single(np.array(2.5, np.float16)).shape == ()


@pytest.mark.parametrize("ask", [Weights.__getitem__, Weights.stored, Weights.shape])
def test_what_is_missing_is_named(file: Path, ask):
    refuses(r"^the model's weights lack a\.b\.nothing$", ask, Weights.open(file).below("a").below("b"), "nothing")


def test_types_that_a_package_adds_to_numpy_are_read(file: Path):
    pytest.importorskip("ml_dtypes")  # comes with the packages that write graphs
    value = Weights.open(file)["ab.brain"]
    assert value.dtype == np.float32 and value.tolist() == [1, 2]


@pytest.mark.parametrize("content", [b"", b"no weights", b"\xff" * 100, None])
def test_a_damaged_file_is_named(tmp_path: Path, file: Path, content: bytes | None):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(file.read_bytes()[:-3] if content is None else content)
    refuses(r"damaged\.safetensors cannot be read: ", Weights.open, path)
    refuses(r"nowhere\.safetensors cannot be read: ", Weights.open, tmp_path / "nowhere.safetensors")


TOKEN_IDS = np.array(
    [[4, 5, 6, 2, 0, 0], [7, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4], [3, 3, 2, 0, 0, 0],
     [4, 5, 8, 0, 0, 0], [4, 5, 6, 2, 0, 0], [7, 3, 2, 0, 0, 0]]
)  # fmt: skip
"""One sentence is full, one has one word, one none; several begin or end alike, and two are the same."""


def pair(residual: bool, rectified: bool, seed: int = 0) -> tuple[TextEncoder, arrays.TextEncoder]:
    torch.manual_seed(seed)
    network = TextEncoder(12, 5, 7, 6, "gru", 0.0, rectified, residual).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
        network.words.weight[PAD] = 3  # what padding is, must not matter
    weights = Weights.of({name: value.numpy() for name, value in network.state_dict().items()})
    return network, arrays.TextEncoder(weights, tiny_aligner_config(cell="gru", residual=residual, rectified=rectified))


@pytest.mark.parametrize(("residual", "rectified"), list(itertools.product([False, True], [False, True])))
@torch.no_grad()
def test_words_are_encoded_as_by_the_network(residual: bool, rectified: bool):
    network, encode = pair(residual, rectified)
    found, expected = encode(TOKEN_IDS), network(torch.from_numpy(TOKEN_IDS)).vectors
    assert found.dtype == np.float32 and found.shape == (8, 6, 6)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert not found[TOKEN_IDS == PAD].any() and found[TOKEN_IDS != PAD].any()
    assert (found >= 0).all() == rectified


MAKERS: dict[str, Any] = {"densecap": tiny_model, "aligner": tiny_aligner, "captioner": tiny_captioner}
READERS: dict[str, Any] = {"densecap": DenseCap, "aligner": Aligner, "captioner": Captioner}


def arrays_of(part: str, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A network's configuration and its own weights."""
    network = MAKERS[part](**options)
    values = {k: v.numpy() for k, v in network.state_dict().items() if not k.startswith("trunk.")}
    return network, values


def require(part: str, config: Any, arrays: dict[str, np.ndarray], words: int) -> None:
    require_shapes(part, READERS[part].shapes(config, words), words, Weights.of(arrays))


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
        refuses(f"^the weights of the part {part} lack {name}$", require, part, network.config, less, count)
        wider = {**arrays, name: np.zeros((*arrays[name].shape, 1), np.float32)}
        refuses("do not fit its", require, part, network.config, wider, count)
    with pytest.raises(UserError, match=f"^the weights of the part {part} have, against its options, colour$"):
        require(part, network.config, {**arrays, "colour": np.zeros(3)}, count)


def test_options_that_only_torch_runs_are_named():
    attends = {"attend_to": "transformer"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"densecap": DenseCapConfig.original()}, "conventions=original (the published program)"),
        ({"captioner": tiny_captioner_config(**attends)}, "attend_to=transformer"),
        *(({"captioner": tiny_captioner_config(decoder=kind)}, f"decoder={kind}") for kind in ("rnn", "lstm")),
        ({"captioner": tiny_captioner_config(feedback="marginal")}, "feedback=marginal"),
        ({"captioner": tiny_captioner_config(terms=get_args(Term))}, "the term region-state"),
        *(({"aligner": tiny_aligner_config(cell=cell)}, f"cell={cell}") for cell in ("relu", "none")),
        ({"region-rnn": RegionRnnConfig()}, "a region-rnn (a baseline of Table 1)"),
    ]
    for configs, message in cases:
        assert refused_options(tiny_config().trunk, configs) == [message]
    odd = tiny_config(trunk={"multiple": 16}).trunk
    assert refused_options(odd, {}) == ["trunk.multiple=16 (no multiple of 32)"]
    fine = {"densecap": tiny_config(), "aligner": tiny_aligner_config(), "captioner": tiny_captioner_config()}
    assert refused_options(tiny_config(trunk={"multiple": 64}).trunk, fine) == []
