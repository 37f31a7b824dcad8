from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from saywhere.language.attention import TERMS, AttentionSpeaker, pad_areas
from saywhere.language.decoding import decode
from saywhere.language.gru import GruSpeaker
from saywhere.language.joint import log_joint
from saywhere.text import END, PAD, START

CODE, REGION, V, WORD, HIDDEN = 6, 5, 11, 4, 7
FEEDBACKS = ("none", "marginal", "conditional")


def make(feedback="marginal", terms=TERMS, dropout=0.0, seed=0, std=0.7) -> AttentionSpeaker:
    torch.manual_seed(seed)
    speaker = AttentionSpeaker(CODE, REGION, V, WORD, HIDDEN, dropout, terms, feedback).double().eval()
    with torch.no_grad():
        for parameter in speaker.parameters():
            parameter.normal_(std=std)
    return speaker


def pictures(*counts: int, seed: int = 1):
    """Codes, areas and mask of pictures with so many areas; what pads them is not a number."""
    rng = torch.Generator().manual_seed(seed)
    codes = torch.randn(len(counts), CODE, generator=rng, dtype=torch.float64)
    areas, mask = pad_areas([torch.randn(n, REGION, generator=rng, dtype=torch.float64) for n in counts])
    return codes, areas.masked_fill(~mask[..., None], torch.nan), mask


def sentences(n: int, length: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(4, V, (n, length), generator=torch.Generator().manual_seed(seed))


def by_hand(speaker: AttentionSpeaker, code, areas, words: list[int]):
    """Eqs. 4 to 7 as they are written, of one picture: rows of ln p(w | h_t) and p(r | h_t), from h_1 on."""
    W, matrix = speaker.words.weight, areas
    weights = [speaker.gru.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    h = speaker.begin.weight @ code + speaker.begin.bias
    rows, attention = [], []

    def score(w: int, r: int, h) -> torch.Tensor:
        s = torch.zeros((), dtype=torch.float64)
        if speaker.word_state is not None:
            s = s + W[w] @ speaker.word_state.weight @ h
        if speaker.word_region is not None:
            s = s + W[w] @ speaker.word_region.weight @ matrix[r]
        if speaker.region_state is not None:
            s = s + matrix[r] @ speaker.region_state.weight @ h
        if speaker.word_bias is not None:
            s = s + W[w] @ speaker.word_bias
        if speaker.region_bias is not None:
            s = s + matrix[r] @ speaker.region_bias
        return s

    for word in [START, *words]:
        p = torch.stack([torch.stack([score(w, r, h) for w in range(V)]) for r in range(len(matrix))])
        p = p.flatten().softmax(0).reshape(p.shape)
        over = {"marginal": p.sum(1), "conditional": p[:, word] / p[:, word].sum()}.get(speaker.feedback)
        x = W[word] if over is None else torch.cat((W[word], over @ matrix))
        gates_x, gates_h = (weights[0] @ x + weights[2]).chunk(3), (weights[1] @ h + weights[3]).chunk(3)
        reset, update = (gates_x[0] + gates_h[0]).sigmoid(), (gates_x[1] + gates_h[1]).sigmoid()
        new = (gates_x[2] + reset * gates_h[2]).tanh()
        h = (1 - update) * new + update * h
        p = torch.stack([torch.stack([score(w, r, h) for w in range(V)]) for r in range(len(matrix))])
        p = p.flatten().softmax(0).reshape(p.shape)
        rows.append(p.sum(0).log())
        attention.append(p.sum(1))
    return torch.stack(rows), torch.stack(attention)


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
    speaker = make(feedback, terms)
    codes, areas, mask = pictures(3, 2)
    words = sentences(2, 3)
    log_probs = speaker(codes, areas, words, mask)
    weights = speaker.attention(codes, areas, words, mask)
    for i, count in enumerate((3, 2)):
        rows, attention = by_hand(speaker, codes[i], areas[i, :count], words[i].tolist())
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
    codes, areas, _ = pictures(3, 3)
    words = sentences(2, 2)
    assert not torch.allclose(full(codes, areas, words), without(codes, areas, words))
    assert len(list(full.parameters())) == len(list(without.parameters())) + 1


def test_feedbacks_differ_and_unknown_names_are_refused():
    codes, areas, _ = pictures(3, 3)
    words = sentences(2, 2)
    marginal, conditional = make("marginal"), make("conditional")
    conditional.load_state_dict(marginal.state_dict())
    assert not torch.allclose(marginal(codes, areas, words), conditional(codes, areas, words))
    with pytest.raises(ValueError, match="word-region.*not 'regions'"):
        make(terms=["regions"])
    with pytest.raises(ValueError, match="none, marginal, conditional, not 'soft'"):
        make("soft")


def baseline_of(speaker: AttentionSpeaker) -> GruSpeaker:
    """The GRU baseline with the same parameters; it has none for what it hears of areas."""
    baseline = GruSpeaker(CODE, V, WORD, HIDDEN).double().eval()
    state = {
        name: value for name, value in speaker.state_dict().items() if name.split(".")[0] in ("begin", "words", "gru")
    }
    state["gru.weight_ih_l0"] = state["gru.weight_ih_l0"][:, :WORD]
    assert speaker.word_state is not None and speaker.word_bias is not None
    state |= {"output.weight": speaker.word_state.weight.detach(), "output.bias": speaker.word_bias.detach()}
    baseline.load_state_dict(state)
    return baseline


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_without_areas_it_is_the_baseline(feedback):
    speaker = make(feedback)
    baseline = baseline_of(speaker)
    codes, areas, mask = pictures(2, 0, 3)
    words = sentences(3, 4)
    expected = baseline(codes, words).log_softmax(2)
    torch.testing.assert_close(speaker(codes, areas[:, :0], words), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(speaker(codes, torch.zeros_like(areas), words), expected, atol=1e-12, rtol=0)
    mixed = speaker(codes, areas, words, mask)
    torch.testing.assert_close(mixed[1], expected[1], atol=1e-12, rtol=0)
    assert not torch.allclose(mixed[0], expected[0])
    assert speaker.attention(codes, areas, words, mask)[1].abs().max() == 0
    assert speaker.attention(codes, areas[:, :0], words).shape == (3, 5, 0)
    for beam in (1, 3):
        ours, theirs = decode(speaker.look(areas[:, :0]), codes, 5, beam), decode(baseline, codes, 5, beam)
        assert torch.equal(ours.words, theirs.words)
        torch.testing.assert_close(ours.log_probs, theirs.log_probs)


def test_with_the_region_terms_off_it_is_the_baseline():
    speaker = make("none", ("word-state", "word"))
    codes, areas, _ = pictures(3, 3)
    words = sentences(2, 4)
    expected = baseline_of(speaker)(codes, words).log_softmax(2)
    torch.testing.assert_close(speaker(codes, areas, words), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_numeric_gradients(feedback):
    speaker = make(feedback)
    codes, areas, mask = pictures(3, 1)
    words = sentences(2, 2)
    names, values = zip(*speaker.named_parameters(), strict=True)

    def total(codes, areas, *parameters):
        inputs = (codes, areas.masked_fill(~mask[..., None], torch.nan), words, mask)
        return torch.func.functional_call(speaker, dict(zip(names, parameters, strict=True)), inputs).square().sum()

    inputs = (codes, areas.nan_to_num(), *(value.detach() for value in values))
    assert gradcheck(total, [value.clone().requires_grad_() for value in inputs], fast_mode=True)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_several_sentences_of_a_picture_are_as_each_alone(feedback):
    speaker = make(feedback)
    codes, areas, mask = pictures(3, 2)
    words = sentences(6, 4).reshape(2, 3, 4)
    together = speaker(codes, areas, words, mask)
    assert together.shape == (2, 3, 5, V)
    for k in range(3):
        torch.testing.assert_close(together[:, k], speaker(codes, areas, words[:, k], mask))
    real = torch.rand(2, 3, 5) > 0.5
    assert torch.equal(speaker(codes, areas, words, mask, real), together[real])


def test_padding_after_a_sentence_changes_nothing_before_it():
    speaker = make()
    codes, areas, mask = pictures(3, 2)
    short = sentences(2, 2)
    long = torch.cat((short, torch.full((2, 2), PAD)), dim=1)
    torch.testing.assert_close(speaker(codes, areas, long, mask)[:, :3], speaker(codes, areas, short, mask))


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("terms", [TERMS, ("word-state", "word", "region")])
def test_step_by_step_equals_teacher_forcing(feedback, terms):
    speaker = make(feedback, terms)
    codes, areas, mask = pictures(3, 2, 0)
    words = sentences(3, 4)
    log_probs = speaker(codes, areas, words, mask)
    looking = speaker.look(areas, mask)
    state, last = looking.start(codes), torch.full((3,), START)
    for t in range(5):
        step, state = looking.step(last, state)
        torch.testing.assert_close(step, log_probs[:, t])
        last = words[:, t] if t < 4 else last


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_beam_search_keeps_the_areas_of_each_picture(feedback):
    """Together as alone, and the probability of what is said is that of teacher forcing."""
    speaker = make(feedback, std=1.0)
    counts = (3, 1, 0, 4)
    codes, areas, mask = pictures(*counts)
    for beam in (1, 4):
        said = decode(speaker.look(areas, mask), codes, 5, beam)
        for i, count in enumerate(counts):
            alone = decode(speaker.look(areas[i : i + 1, :count]), codes[i : i + 1], 5, beam)
            words = [word for word in said.words[i].tolist() if word != PAD]
            assert words == [word for word in alone.words[0].tolist() if word != PAD]
            before = torch.tensor([words[: words.index(END)] if END in words else words[:-1]], dtype=torch.long)
            forced = speaker(codes[i : i + 1], areas[i : i + 1, :count], before)[0]
            total = forced[torch.arange(len(words)), torch.tensor(words)].sum()
            torch.testing.assert_close(said.total[i].double(), total, atol=1e-5, rtol=1e-5)


def test_attention_given_the_word_is_the_joint_divided_by_the_marginal():
    speaker = make()
    codes, areas, _ = pictures(3)
    words = sentences(1, 2)
    view = speaker._view(areas, None)
    to_words, to_regions = speaker._run(codes, view, words)
    assert speaker.word_region is not None
    plain = log_joint(to_words, speaker.word_region(areas) @ speaker.words.weight.T, to_regions).exp()[0]
    given = speaker.attention(codes, areas, words, conditional=True)[0]
    for t, word in enumerate([*words[0].tolist(), END]):
        torch.testing.assert_close(given[t], plain[t, :, word] / plain[t, :, word].sum())


def test_more_or_fewer_areas_than_in_training():
    speaker = make()
    codes, areas, _ = pictures(2)
    words = sentences(1, 3)
    once = speaker(codes, areas, words)
    torch.testing.assert_close(speaker(codes, areas.repeat(1, 3, 1), words), once)  # thrice the same: the same words
    assert not torch.allclose(speaker(codes, areas[:, :1], words), once)


def test_pad_areas():
    areas, mask = pad_areas([torch.ones(2, 3), torch.zeros(0, 3), torch.full((1, 3), 2.0)])
    assert areas[..., 0].tolist() == [[1, 1], [0, 0], [2, 0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]


def test_dropout_only_in_training():
    speaker = make(dropout=0.5)
    codes, areas, _ = pictures(3)
    words = sentences(1, 3)
    assert torch.equal(speaker(codes, areas, words), speaker(codes, areas, words))
    speaker.train()
    assert not torch.equal(speaker(codes, areas, words), speaker(codes, areas, words))


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_mixed_precision_keeps_sums_over_the_vocabulary_exact(feedback):
    speaker = make(feedback, std=0.3).float()
    codes, areas, mask = pictures(3, 2)
    codes, areas, words = codes.float(), areas.float(), sentences(2, 4)
    expected = speaker(codes, areas, words, mask)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs = speaker(codes, areas, words, mask)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected, atol=0.03, rtol=0)
    torch.testing.assert_close(log_probs.exp().sum(2), torch.ones(2, 5), atol=1e-5, rtol=0)
    log_probs[..., 5].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in speaker.parameters())
    half = speaker.bfloat16()
    said = half(codes.bfloat16(), areas.bfloat16(), words, mask)
    torch.testing.assert_close(said, expected, atol=0.1, rtol=0)


def test_it_learns_to_look_where_the_word_is():
    """Each picture says the words of its areas, in an order that only the areas tell: it must attend to say them."""
    torch.manual_seed(0)
    speaker = AttentionSpeaker(2, 6, 10, 8, 16)
    kinds = torch.stack([torch.randperm(6)[:3] for _ in range(40)])  # word 4 + kind is said of an area of that kind
    areas = torch.eye(6)[kinds]
    words = kinds.sort(dim=1).values + 4
    codes = torch.zeros(40, 2)
    said = torch.cat((words, torch.full((40, 1), END)), dim=1)
    optimizer = torch.optim.Adam(speaker.parameters(), lr=0.02)
    for _ in range(150):
        loss = torch.nn.functional.nll_loss(speaker(codes, areas, words).flatten(0, 1), said.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    weights = speaker.attention(codes, areas, words, conditional=True)[:, :3]
    right = kinds[:, None, :] + 4 == words[:, :, None]
    assert weights[right].mean() > 0.8  # evenly spread it would be a third
    assert decode(speaker.look(areas), codes, 4).words[:, :3].equal(words)
