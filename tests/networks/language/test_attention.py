from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from saywhere.configs.captioner import TERMS
from saywhere.configs.parts import DecodingConfig
from saywhere.models.decoding import Decoded, decode
from saywhere.networks.language.decoders import attention
from saywhere.networks.language.decoders.attention import (
    AttentionDecoder,
    WordRegion,
    log_regions,
    log_words,
    pad_regions,
)
from saywhere.networks.language.decoders.protocol import TorchDecoder
from saywhere.text import END, PAD, START

EMBED, REGION, V, WORD, HIDDEN = 6, 5, 11, 4, 7
FEEDBACKS = ("none", "marginal", "conditional")


def make(feedback="marginal", terms=TERMS, dropout=0.0, seed=0, std=0.7) -> AttentionDecoder:
    torch.manual_seed(seed)
    decoder = AttentionDecoder(EMBED, REGION, V, WORD, HIDDEN, dropout, terms, feedback).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=std)
    return decoder


def images(*counts: int, seed: int = 1):
    """Embeddings, regions and mask of images with so many regions; what pads them is not a number."""
    rng = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(counts), EMBED, generator=rng, dtype=torch.float64)
    regions, mask = pad_regions([torch.randn(n, REGION, generator=rng, dtype=torch.float64) for n in counts])
    return embeddings, regions.masked_fill(~mask[..., None], torch.nan), mask


def say(decoder, module: torch.nn.Module, embeddings: torch.Tensor, beam_size: int) -> Decoded:
    """Decode at most five words; ``module`` has the weights."""
    return decode(TorchDecoder(decoder, module.words.weight), embeddings, DecodingConfig(max_words=5), beam_size)


def sentences(n: int, length: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(4, V, (n, length), generator=torch.Generator().manual_seed(seed))


def by_hand(decoder: AttentionDecoder, embedding, regions, words: list[int]):
    """Eqs. 4 to 7 as they are written, of one image: of h_1 on ln p(w | h_t), p(r | h_t), p(w, r | h_t)."""
    W, matrix = decoder.words.weight, regions
    weights = [decoder.gru.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    h = decoder.begin.weight @ embedding + decoder.begin.bias
    rows, attention, joint = [], [], []

    def score(w: int, r: int, h) -> torch.Tensor:
        s = torch.zeros((), dtype=torch.float64)
        if decoder.word_state is not None:
            s = s + W[w] @ decoder.word_state.weight @ h
        if decoder.word_region is not None:
            s = s + W[w] @ decoder.word_region.weight @ matrix[r]
        if decoder.region_state is not None:
            s = s + matrix[r] @ decoder.region_state.weight @ h
        if decoder.word_bias is not None:
            s = s + W[w] @ decoder.word_bias
        if decoder.region_bias is not None:
            s = s + matrix[r] @ decoder.region_bias
        return s

    for word in [START, *words]:
        p = torch.stack([torch.stack([score(w, r, h) for w in range(V)]) for r in range(len(matrix))])
        p = p.flatten().softmax(0).reshape(p.shape)
        over = {"marginal": p.sum(1), "conditional": p[:, word] / p[:, word].sum()}.get(decoder.feedback)
        x = W[word] if over is None else torch.cat((W[word], over @ matrix))
        gates_x, gates_h = (weights[0] @ x + weights[2]).chunk(3), (weights[1] @ h + weights[3]).chunk(3)
        reset, update = (gates_x[0] + gates_h[0]).sigmoid(), (gates_x[1] + gates_h[1]).sigmoid()
        new = (gates_x[2] + reset * gates_h[2]).tanh()
        h = (1 - update) * new + update * h
        p = torch.stack([torch.stack([score(w, r, h) for w in range(V)]) for r in range(len(matrix))])
        p = p.flatten().softmax(0).reshape(p.shape)
        rows.append(p.sum(0).log())
        attention.append(p.sum(1))
        joint.append(p)
    return torch.stack(rows), torch.stack(attention), torch.stack(joint)


ROWS = [
    (("word-state", "word"), "none"),
    (("word-state", "word-region", "word", "region"), "none"),
    (TERMS, "none"),
    (TERMS, "conditional"),
    (TERMS, "marginal"),
    (("word-region", "region-state"), "marginal"),
    (("region-state",), "marginal"),
    (("word-state", "region"), "conditional"),
]


@pytest.mark.parametrize(("terms", "feedback"), ROWS)
def test_it_computes_the_equations_of_the_paper(terms, feedback):
    decoder = make(feedback, terms)
    embeddings, regions, mask = images(3, 2)
    words = sentences(2, 3)
    log_probs = decoder(embeddings, regions, words, mask)
    weights = decoder.attention(embeddings, regions, words, mask)
    for i, count in enumerate((3, 2)):
        rows, attention, _ = by_hand(decoder, embeddings[i], regions[i, :count], words[i].tolist())
        torch.testing.assert_close(log_probs[i], rows)
        torch.testing.assert_close(weights[i, :, :count], attention)
    assert weights[1, :, 2].tolist() == [0] * 4
    torch.testing.assert_close(log_probs.exp().sum(2), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(2), torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize("term", TERMS)
def test_each_term_counts(term):
    without = make(terms=[t for t in TERMS if t != term])
    full = make()
    full.load_state_dict(without.state_dict(), strict=False)
    embeddings, regions, _ = images(3, 3)
    words = sentences(2, 2)
    assert not torch.allclose(full(embeddings, regions, words), without(embeddings, regions, words))
    assert len(list(full.parameters())) == len(list(without.parameters())) + 1


def baseline_of(decoder: AttentionDecoder) -> AttentionDecoder:
    """The encoder-decoder (Eqs. 1 to 3) with the same parameters; it has no weights for regions and the feedback."""
    baseline = make("none", ("word-state", "word"))
    state = {name: value for name, value in decoder.state_dict().items() if name in baseline.state_dict()}
    baseline.load_state_dict({**state, "gru.weight_ih_l0": state["gru.weight_ih_l0"][:, :WORD]})
    return baseline


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_without_regions_it_is_the_baseline(feedback):
    decoder = make(feedback)
    baseline = baseline_of(decoder)
    embeddings, regions, mask = images(2, 0, 3)
    words = sentences(3, 4)
    expected = baseline(embeddings, torch.randn(3, 2, REGION, dtype=torch.float64), words)
    torch.testing.assert_close(decoder(embeddings, regions[:, :0], words), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(decoder(embeddings, torch.zeros_like(regions), words), expected, atol=1e-12, rtol=0)
    mixed = decoder(embeddings, regions, words, mask)
    torch.testing.assert_close(mixed[1], expected[1], atol=1e-12, rtol=0)
    assert not torch.allclose(mixed[0], expected[0])
    assert decoder.attention(embeddings, regions, words, mask)[1].abs().max() == 0
    assert decoder.attention(embeddings, regions[:, :0], words).shape == (3, 5, 0)
    for beam_size in (1, 3):
        ours = say(decoder.bind(regions[:, :0]), decoder, embeddings, beam_size)
        theirs = say(baseline.bind(regions[:, :0]), baseline, embeddings, beam_size)
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-6)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_numeric_gradients(feedback):
    decoder = make(feedback)
    embeddings, regions, mask = images(3, 1)
    words = sentences(2, 2)
    names, values = zip(*decoder.named_parameters(), strict=True)

    def total(embeddings, regions, *parameters):
        inputs = (embeddings, regions.masked_fill(~mask[..., None], torch.nan), words, mask)
        return torch.func.functional_call(decoder, dict(zip(names, parameters, strict=True)), inputs).square().sum()

    inputs = (embeddings, regions.nan_to_num(), *(value.detach() for value in values))
    assert gradcheck(total, [value.clone().requires_grad_() for value in inputs], fast_mode=True)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_several_sentences_of_an_image_are_as_each_alone(feedback):
    decoder = make(feedback)
    embeddings, regions, mask = images(3, 2)
    words = sentences(6, 4).reshape(2, 3, 4)
    together = decoder(embeddings, regions, words, mask)
    assert together.shape == (2, 3, 5, V)
    for k in range(3):
        torch.testing.assert_close(together[:, k], decoder(embeddings, regions, words[:, k], mask))
    real = torch.rand(2, 3, 5) > 0.5
    assert torch.equal(decoder(embeddings, regions, words, mask, real), together[real])


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("terms", [TERMS, ("word-state", "word", "region")])
def test_step_by_step_equals_teacher_forcing(feedback, terms):
    decoder = make(feedback, terms)
    embeddings, regions, mask = images(3, 2, 0)
    words = sentences(3, 4)
    log_probs = decoder(embeddings, regions, words, mask)
    bound = decoder.bind(regions, mask)
    state, last = bound.start(embeddings), torch.full((3,), START)
    for t in range(5):
        step, state = bound.step(last, state)
        torch.testing.assert_close(step, log_probs[:, t])
        last = words[:, t] if t < 4 else last


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_beam_search_keeps_the_regions_of_each_image(feedback):
    """Together as alone, and the probability of the sentence is that of teacher forcing."""
    decoder = make(feedback, std=1.0)
    counts = (3, 1, 0, 4)
    embeddings, regions, mask = images(*counts)
    for beam_size in (1, 4):
        found = say(decoder.bind(regions, mask), decoder, embeddings, beam_size)
        for i, count in enumerate(counts):
            alone = say(decoder.bind(regions[i : i + 1, :count]), decoder, embeddings[i : i + 1], beam_size)
            words = [word for word in found.token_ids[i].tolist() if word != PAD]
            assert words == [word for word in alone.token_ids[0].tolist() if word != PAD]
            before = torch.tensor([words[: words.index(END)] if END in words else words[:-1]], dtype=torch.long)
            forced = decoder(embeddings[i : i + 1], regions[i : i + 1, :count], before)[0]
            total = forced[torch.arange(len(words)), torch.tensor(words)].sum()
            assert found.total[i] == pytest.approx(total.item(), abs=1e-5, rel=1e-5)


def test_attention_given_the_word_is_the_joint_divided_by_the_marginal():
    decoder = make()
    embeddings, regions, _ = images(3)
    words = sentences(1, 2)
    _, _, plain = by_hand(decoder, embeddings[0], regions[0], words[0].tolist())
    given = decoder.attention(embeddings, regions, words, conditional=True)[0]
    for t, word in enumerate([*words[0].tolist(), END]):
        torch.testing.assert_close(given[t], plain[t, :, word] / plain[t, :, word].sum())


def test_pad_regions():
    regions, mask = pad_regions([torch.ones(2, 3), torch.zeros(0, 3), torch.full((1, 3), 2.0)])
    assert regions[..., 0].tolist() == [[1, 1], [0, 0], [2, 0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_mixed_precision_keeps_sums_over_the_vocabulary_exact(feedback):
    decoder = make(feedback, std=0.3).float()
    embeddings, regions, mask = images(3, 2)
    embeddings, regions, words = embeddings.float(), regions.float(), sentences(2, 4)
    expected = decoder(embeddings, regions, words, mask)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs = decoder(embeddings, regions, words, mask)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected, atol=0.03, rtol=0)
    torch.testing.assert_close(log_probs.exp().sum(2), torch.ones(2, 5), atol=1e-5, rtol=0)
    log_probs[..., 5].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())
    half = decoder.bfloat16()
    found = half(embeddings.bfloat16(), regions.bfloat16(), words, mask)
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0)


def test_it_learns_to_attend_to_the_word_s_region():
    """A caption names the regions in an order that only the regions show: the decoder must attend to them."""
    torch.manual_seed(0)
    decoder = AttentionDecoder(2, 6, 10, 8, 16)
    kinds = torch.stack([torch.randperm(6)[:3] for _ in range(40)])  # word 4 + kind names a region of that kind
    regions = torch.eye(6)[kinds]
    words = kinds.sort(dim=1).values + 4
    embeddings = torch.zeros(40, 2)
    ended = torch.cat((words, torch.full((40, 1), END)), dim=1)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.02)
    for _ in range(150):
        loss = torch.nn.functional.nll_loss(decoder(embeddings, regions, words).flatten(0, 1), ended.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    weights = decoder.attention(embeddings, regions, words, conditional=True)[:, :3]
    right = kinds[:, None, :] + 4 == words[:, :, None]
    assert weights[right].mean() > 0.8  # evenly spread it would be a third
    assert say(decoder.bind(regions), decoder, embeddings, 1).token_ids[:, :3].tolist() == words.tolist()


# Joint


N, K, R, VOCABULARY_SIZE = 2, 3, 4, 5


def score_parts(scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64):
    """Parts a, m, c of the score, with one region of the second image absent, and its mask."""
    rng = torch.Generator().manual_seed(seed)
    a, m, c = (
        scale * torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in ((N, K, VOCABULARY_SIZE), (N, R, VOCABULARY_SIZE), (N, K, R))
    )
    mask = torch.ones(N, R, dtype=torch.bool)
    mask[1, 2] = False
    return a.to(dtype), m.to(dtype), c.to(dtype).masked_fill(~mask[:, None], -torch.inf), mask


def log_joint(words, word_region, regions):
    """``ln p(w, r | h)`` literally by Eq. 4."""
    scores = words[:, :, None] + word_region[:, None] + regions[..., None]
    return scores - scores.flatten(2).logsumexp(dim=2)[..., None, None]


def test_marginals_of_two_words_and_two_regions_by_hand():
    # exp a = (1, 2); exp c = (1, 3); exp m = ((1, 4), (2, 1)), a region a row
    a = torch.tensor([[[1.0, 2.0]]]).log()
    c = torch.tensor([[[1.0, 3.0]]]).log()
    m = torch.tensor([[[1.0, 4.0], [2.0, 1.0]]]).log()
    # p(r, w) ~ ((1, 8), (6, 6)), together 21
    torch.testing.assert_close(log_joint(a, m, c).exp()[0, 0], torch.tensor([[1.0, 8.0], [6.0, 6.0]]) / 21)
    tables = WordRegion.of(m, torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(log_words(a, c, tables).exp()[0, 0], torch.tensor([7.0, 14.0]) / 21)
    torch.testing.assert_close(log_regions(a, c, tables).exp()[0, 0], torch.tensor([9.0, 12.0]) / 21)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_marginals_are_those_of_the_plain_formula_and_sum_to_one(scale):
    a, m, c, mask = score_parts(scale)
    tables = WordRegion.of(m, mask)
    assert (tables.scores is None) == (scale == 1)
    p = log_joint(a, m, c).exp()
    torch.testing.assert_close(p.sum((2, 3)), torch.ones(N, K, dtype=torch.float64))
    words, regions = log_words(a, c, tables).exp(), log_regions(a, c, tables).exp()
    torch.testing.assert_close(words, p.sum(2))
    torch.testing.assert_close(regions, p.sum(3))
    torch.testing.assert_close(words.sum(2), torch.ones(N, K, dtype=torch.float64))
    torch.testing.assert_close(regions.sum(2), torch.ones(N, K, dtype=torch.float64))
    assert regions[1, :, 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("scale_m", "scale_c"), [(1, 1), (60, 1), (1, 60), (60, 60)])
def test_single_precision_keeps_scores_far_apart(scale_m, scale_c):
    """Where exp would vanish in single precision, logarithms are used: the values stay those of double precision."""
    a, m, c, mask = score_parts()
    m, c = scale_m * m, scale_c * c
    tables = WordRegion.of(m.float(), mask)
    assert (tables.scores is not None) == (scale_m == 60)
    plain = log_joint(a, m, c)
    torch.testing.assert_close(
        log_words(a.float(), c.float(), tables).double(), plain.logsumexp(2), atol=1e-4, rtol=1e-5
    )
    torch.testing.assert_close(
        log_regions(a.float(), c.float(), tables).double(), plain.logsumexp(3), atol=1e-4, rtol=1e-5
    )


def test_regions_far_apart_need_no_logarithms_while_their_words_are_near():
    """However far c spreads, the region of the largest c keeps each sum of products from vanishing."""
    a, m, c, mask = score_parts()
    tables = WordRegion.of(m.float(), mask)
    assert tables.scores is None
    c = 300 * c
    plain = log_joint(a, m, c).logsumexp(2)
    torch.testing.assert_close(log_words(a.float(), c.float(), tables).double(), plain, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("block", [1, 2, 3, 8])
def test_blocks_of_any_size_give_the_same(block, monkeypatch):
    a, m, c, mask = score_parts(300.0)
    tables = WordRegion.of(m, mask)
    words, regions = log_words(a, c, tables), log_regions(a, c, tables)
    monkeypatch.setattr(attention, "BLOCK", block)
    torch.testing.assert_close(log_words(a, c, tables), words)
    torch.testing.assert_close(log_regions(a, c, tables), regions)


@pytest.mark.parametrize("far", [False, True])
def test_numeric_gradients_of_the_marginals(far, monkeypatch):
    """Also of the blocks, which are used if one m and one c are far from the others."""
    monkeypatch.setattr(attention, "BLOCK", 2)
    a, m, c, mask = score_parts()
    c = c.masked_fill(c == -torch.inf, 0)
    if far:
        m[0, 0, 0], c[0, 0, 1] = m[0, 0, 0] - 700, c[0, 0, 1] - 700

    def marginals(a, m, c):
        c, tables = c.masked_fill(~mask[:, None], -torch.inf), WordRegion.of(m, mask)
        assert (tables.scores is not None) == far
        return log_words(a, c, tables), log_regions(a, c, tables).exp()

    assert gradcheck(marginals, [tensor.clone().requires_grad_() for tensor in (a, m, c)])
