from __future__ import annotations

import pytest
import torch
from photographs import noise
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner, tiny_aligner_config, tiny_pixels, tiny_token_ids
from tiny_densecap import tiny_model
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from saywhere.boxes import propose
from saywhere.errors import UserError
from saywhere.models.aligner import similarity_matrix
from saywhere.networks.aligner.loss import AlignmentCriterion, SentenceTarget
from saywhere.networks.aligner.network import Aligner, TextEncoder, pair_scores
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.text import END, PAD, UNKNOWN

IMAGES = [noise(96, 64, 0), noise(64, 96, 1), noise(96, 96, 2), noise(120, 64, 3)]


@torch.no_grad()
def features(network, images=IMAGES):
    return network.extractor([tiny_pixels(network, image) for image in images])


def targets(network, sentences=SENTENCES):
    return [SentenceTarget(tiny_token_ids(network, [text])) for text in sentences]


def losses(network):
    output = network(features(network), targets(network), torch.Generator().manual_seed(0))
    return {name: float(value.detach()) for name, value in AlignmentCriterion(network.config)(output).items()}


def embedded(network, images=IMAGES):
    """The vectors of each image's regions."""
    vectors, mask = network.embed_regions([row[0][0] for row in features(network, images)])
    return [rows[real] for rows, real in zip(vectors, mask, strict=True)]


@pytest.mark.parametrize("options", [{}, {"score": "fragments"}, {"mean_over_words": False}, {"sentence_token": False}])
@torch.no_grad()
def test_training_scores_are_those_that_a_user_gets(options):
    network = tiny_aligner(**options)
    (output,) = network(features(network), targets(network))
    model = aligner_model(network)
    found = model.similarity(model.embed(IMAGES), model.embed_text(list(SENTENCES)))
    assert output.owner.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(output.scores * network.config.temperature, torch.from_numpy(found))


@torch.no_grad()
def test_one_at_a_time_is_the_same_as_a_batch():
    network = tiny_aligner()
    for image, together in zip(IMAGES, embedded(network), strict=True):
        torch.testing.assert_close(embedded(network, [image])[0], together)
    encoded = network.encode_text(tiny_token_ids(network, SENTENCES))
    for number, text in enumerate(SENTENCES):
        alone = network.encode_text(tiny_token_ids(network, [text])).vectors[0]
        torch.testing.assert_close(encoded.vectors[number][encoded.mask[number]], alone)


def test_it_learns_a_few_images_by_heart():
    network = tiny_aligner(signed_sqrt=False).train()
    rows, sentences = features(network), targets(network)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.01)
    criterion = AlignmentCriterion(network.config)
    for _ in range(60):
        loss = torch.stack(list(criterion(network(rows, sentences)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05
    (output,) = network.eval()(rows, sentences)
    assert output.scores.argmax(dim=1).tolist() == output.scores.argmax(dim=0).tolist() == [0, 1, 2, 3]


def test_a_feature_of_zero_gives_the_trunk_a_finite_gradient():
    network = tiny_aligner(signed_sqrt=True).train()
    rows = features(network)[0][0][0].detach().clone()
    rows[:, 0] = 0
    rows.requires_grad_()
    network.embed_regions([rows])[0].pow(2).sum().backward()
    assert torch.isfinite(rows.grad).all() and rows.grad.abs().sum() > 0


@torch.no_grad()
def test_one_region_in_a_batch_is_standardised_as_at_inference():
    network = tiny_aligner()
    row = features(network)[0][0][0][:1]
    expected, _ = network.embed_regions([row])
    torch.testing.assert_close(network.train().embed_regions([row])[0], expected)


@torch.no_grad()
def test_features_near_zero_have_their_root():
    network = tiny_aligner(signed_sqrt=True)
    rows = torch.zeros(2, features(network)[0][0][0].shape[1])
    rows[1, 0] = -1e-8
    root = torch.zeros_like(rows)
    root[1, 0] = -1e-4
    plain = tiny_aligner(signed_sqrt=False)
    plain.load_state_dict(network.state_dict())
    torch.testing.assert_close(network.embed_regions([rows])[0], plain.embed_regions([root])[0], rtol=0, atol=1e-6)


@torch.no_grad()
def test_it_shares_the_trunk_of_a_densecap():
    densecap = tiny_model(seed=3)
    network = Aligner(tiny_aligner_config(), tiny_aligner().vocabulary, trunk=densecap.trunk)
    assert network.trunk is network.extractor.trunk is densecap.trunk
    pixels = [tiny_pixels(network, IMAGES[0])]
    settings = network.config.proposals
    (rpn,) = ImageMaps.rpns(ImageMaps.look(densecap.trunk, pixels))
    expected, _ = propose(densecap.box_coder, rpn, (96, 64), *settings.limits)
    torch.testing.assert_close(network.extractor(pixels)[0][1][0, 1:], expected)
    with pytest.raises(UserError, match="no localization layer"):
        Aligner(tiny_aligner_config(), network.vocabulary, trunk=tiny_aligner(regions="whole").trunk)


def test_weights_of_the_trunk_are_listed_once():
    names = list(tiny_aligner(encoders=2).state_dict())
    parts = ("trunk.", "projects.0.", "projects.1.", "encoders.0.", "encoders.1.", "standardise.", "log_scale")
    assert all(name.startswith(parts) for name in names)
    assert all(any(name.startswith(part) for name in names) for part in parts)


@pytest.mark.parametrize(
    "option",
    [
        {"score": "fragments"}, {"mean_over_words": False}, {"sentence_token": False}, {"loss": "margin"},
        {"temperature": 0.5}, {"loss": "margin", "margin": 0.2},
        {"signed_sqrt": False},
        {"cell": "relu"}, {"cell": "none"}, {"rectified": True}, {"residual": True}, {"embed_dim": 8}, {"word_size": 4},
        {"hidden_size": 6}, {"feature_dropout": 0.5}, {"dropout": 0.5}, {"word_dropout": 0.5}, {"regions": "whole"},
        {"levels": (32,)}, {"proposals": {"post_nms_top_n": 2}}, {"proposals": {"nms_iou": 0.1}},
        {"proposals": {"pre_nms_top_n": 3}}, {"proposals": {"hidden_size": 8}}, {"proposals": {"pyramid_channels": 8}},
        {"trunk": {"long_side": 64}}, {"trunk": {"multiple": 16}},
        {"trunk": {"strides": (16, 32)}, "proposals": {"anchors": (((40, 40),), ((90, 60),))}},
    ],
)  # fmt: skip
def test_every_option_changes_the_losses(option):
    base = tiny_aligner(**({"loss": "margin"} if option.get("loss") and len(option) > 1 else {})).train()
    assert losses(base) != losses(tiny_aligner(**option).train())


def test_words_are_dropped_only_in_training():
    network = tiny_aligner(word_dropout=1.0)
    token_ids = tiny_token_ids(network, ["a red shirt"])
    assert torch.equal(network.drop_words(token_ids), token_ids)
    dropped = network.train().drop_words(token_ids, torch.Generator())
    assert dropped.tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, END]]


def twins(**options):
    """Two encoders that are the same, and each of them alone."""
    one, two = tiny_aligner(embed_dim=8, **options), tiny_aligner(embed_dim=16, encoders=2, **options)
    weights = one.state_dict()
    for name in [name for name in weights if ".0." in name and name.startswith(("encoders", "projects"))]:
        weights[name.replace(".0.", ".1.", 1)] = weights[name]
    two.load_state_dict(weights)
    return one, two


def test_each_of_several_encoders_has_scores_and_a_loss_of_its_own():
    network = tiny_aligner(encoders=2, temperature=2.0, signed_sqrt=False).train()
    rows, sentences = features(network), targets(network)
    outputs = network(rows, sentences)
    outputs[1].scores.sum().backward()
    first, second = (module.weight.grad for module in network.projects)
    assert not first.any() and second.any()
    assert not network.encoders[0].encode.weight.grad.any() and network.encoders[1].encode.weight.grad.any()
    counts, token_ids = [row[0].shape[1] for row in rows], tiny_token_ids(network, SENTENCES)
    mask = pad_sequence([torch.ones(n, dtype=torch.bool) for n in counts], batch_first=True)
    flat = functional.batch_norm(torch.cat([row[0][0] for row in rows]), None, None, training=True)
    for number in range(2):
        regions = pad_sequence(network.projects[number](flat).split(counts), batch_first=True)
        encoded = network.encoders[number](token_ids)
        expected = pair_scores(regions, mask, network.weighed(encoded), encoded.mask) / 2  # the temperature
        torch.testing.assert_close(outputs[number].scores, expected)
    of_each = [AlignmentCriterion(network.config)([output])["images"].detach() for output in outputs]
    of_all = AlignmentCriterion(network.config)(outputs)["images"].detach()
    assert abs(float(of_each[0] - of_each[1])) > 1e-3
    torch.testing.assert_close(of_all, (of_each[0] + of_each[1]) / 2)


@torch.no_grad()
def test_several_encoders_answer_together_by_the_mean_of_their_products():
    network = tiny_aligner(encoders=2, signed_sqrt=False)
    token_ids = tiny_token_ids(network, SENTENCES[1:2])
    flat = network.standardise(features(network, IMAGES[2:3])[0][0][0])
    products = [
        project(flat) @ encoder(token_ids).vectors[0].T
        for project, encoder in zip(network.projects, network.encoders, strict=True)
    ]
    found = embedded(network, IMAGES[2:3])[0] @ network.encode_text(token_ids).vectors[0].T
    torch.testing.assert_close(found, (products[0] + products[1]) / 2)


@pytest.mark.parametrize("options", [{}, {"score": "fragments"}, {"loss": "margin"}])
def test_two_equal_encoders_are_as_good_as_one_of_them(options):
    one, two = twins(temperature=2.0, **options)
    rows, sentences = features(one), targets(one)
    expected = AlignmentCriterion(one.config)(one(rows, sentences))
    for training in (True, False):
        two.train(training).standardise.eval()
        found = AlignmentCriterion(two.config)(two(rows, sentences))
        assert len(two(rows, sentences)) == (2 if training else 1)
        assert set(found) == {"images", "sentences"}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


# Score


def random_sets(images=5, regions=4, sentences=6, words=7, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def real(rows, length):
        counts = torch.randint(1, length + 1, (rows,), generator=generator)
        return torch.arange(length) < counts[:, None]

    return draw(images, regions, size), real(images, regions), draw(sentences, words, size), real(sentences, words)


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_pair_scores_are_the_similarity_that_a_user_gets(score):
    regions, region_mask, words, word_mask = random_sets()
    region_mask[2], word_mask[1] = False, False
    rows = [vectors[mask].numpy() for vectors, mask in zip(regions, region_mask, strict=True)]
    columns = [vectors[mask].numpy() for vectors, mask in zip(words, word_mask, strict=True)]
    expected = torch.from_numpy(similarity_matrix(rows, columns, score))
    torch.testing.assert_close(pair_scores(regions, region_mask, words, word_mask, score).float(), expected)
    assert pair_scores(regions[:, :0], region_mask[:, :0], words, word_mask, score).abs().max() == 0
    assert pair_scores(regions, region_mask, words[:0], word_mask[:0], score).shape == (5, 0)


# Text encoder


CELLS = ("relu", "gru", "none")


def encoder(cell: str = "relu", **options) -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(9, word_size=3, hidden_size=4, out_size=5, cell=cell, **options).eval()


def linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer.weight @ x + layer.bias


def test_it_computes_equations_2_to_6_word_by_word():
    model = encoder()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    words = [5, 7, 4, 8]
    x = [model.words.weight[w] for w in words]  # Eq. 2
    e = [torch.relu(linear(model.encode, v)) for v in x]  # Eq. 3
    left, state = [], torch.zeros(4)
    for value in e:  # Eq. 4
        state = torch.relu(value + linear(model.forwards.recurrent, state))
        left.append(state)
    right, state = [], torch.zeros(4)
    for value in reversed(e):  # Eq. 5
        state = torch.relu(value + linear(model.backwards.recurrent, state))
        right.append(state)
    expected = [torch.relu(linear(model.decode, a + b)) for a, b in zip(left, reversed(right), strict=True)]  # Eq. 6
    out = model(torch.tensor([words]))
    assert out.vectors.count_nonzero() > 0
    torch.testing.assert_close(out.vectors[0], torch.stack(expected))


@pytest.mark.parametrize("cell", CELLS)
def test_padding_more_changes_no_vector(cell):
    model = encoder(cell).double()
    short = torch.tensor([[5, 7, 4], [6, PAD, PAD]])
    long = torch.cat((short, torch.zeros(2, 4, dtype=torch.long)), dim=1)
    one, two, alone = model(short), model(long), model(torch.tensor([[6]]))
    torch.testing.assert_close(two.vectors[:, :3], one.vectors, atol=1e-12, rtol=0)
    assert two.vectors[:, 3:].abs().max() == 0 and not two.mask[:, 3:].any()
    assert one.mask.tolist() == [[True] * 3, [True, False, False]]
    torch.testing.assert_close(one.vectors[1, :1], alone.vectors[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sentence_of_no_words_has_no_vectors(cell):
    model = encoder(cell)
    out = model(torch.tensor([[PAD, PAD], [5, 6]]))
    assert out.vectors[0].abs().max() == 0 and out.vectors[1].abs().max() > 0
    assert model(torch.zeros(2, 3, dtype=torch.long)).vectors.abs().max() == 0
    assert model(torch.zeros(2, 0, dtype=torch.long)).vectors.shape == (2, 0, 5)


@pytest.mark.parametrize("cell", ("relu", "gru"))
def test_a_word_is_encoded_in_the_context_of_both_sides(cell):
    model = encoder(cell, rectified=False)
    with torch.no_grad():  # so that no rectifier is at 0
        model.encode.bias.fill_(3.0)
    base = model(torch.tensor([[5, 7, 4]])).vectors[0, 1]
    assert not torch.allclose(model(torch.tensor([[6, 7, 4]])).vectors[0, 1], base)
    assert not torch.allclose(model(torch.tensor([[5, 7, 8]])).vectors[0, 1], base)


def test_a_word_s_own_vector_may_be_added_to_the_cell_s():
    words = torch.tensor([[5, 7, 4]])
    plain, residual = (encoder("gru", rectified=False, residual=residual) for residual in (False, True))
    own = torch.relu(plain.encode(plain.words(words)))
    expected = plain(words).vectors + own @ plain.decode.weight.T
    torch.testing.assert_close(residual(words).vectors, expected)
