"""The classifier of regions: the same logits with and without torch, and in the model that has it."""

import numpy as np
import pytest
import torch
from photographs import noise
from refusals import refuses
from tiny_classes import KINDS, graph_outputs, tiny_model, tiny_networks

from saywhere import boxes as geometry
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import places
from saywhere.engines.arrays.layers import Weights, require_shapes
from saywhere.engines.arrays.nouns import Nouns as ArrayNouns
from saywhere.engines.arrays.pooling import ImageMaps
from saywhere.engines.export import random_boxes, stages
from saywhere.errors import UserError
from saywhere.models.nouns import NounEvidence
from saywhere.regions import Regions

EMBED_DIM = 32
"""Of the tiny dense captioner."""


def weights(embed_dim: int = 0, branch: str = "") -> dict[str, np.ndarray]:
    state = tiny_networks(embed_dim, branch)["nouns"].state_dict()
    return {name: value.numpy() for name, value in state.items() if not name.startswith("trunk.")}


@pytest.mark.parametrize(
    ("embed_dim", "branch"), [(0, ""), (EMBED_DIM, ""), (EMBED_DIM, "branch"), (EMBED_DIM, "tower")]
)
@pytest.mark.parametrize("count", [0, 1, 50])
def test_both_engines_have_the_same_logits(count: int, embed_dim: int, branch: str) -> None:
    model = tiny_model(embed_dim, branch)
    encoding = model.encode(noise(96, 64))
    boxes = random_boxes(np.random.default_rng(count), count, *encoding.input_size)
    classifier = model.engine.nouns
    embeddings = [np.random.default_rng(1).normal(size=(count, embed_dim)).astype(np.float32)]
    (ours,) = classifier.classify([encoding.maps], [boxes], embeddings)
    maps = encoding.maps
    arrays = ImageMaps(graph_outputs(maps), (8, 16, 32), encoding.input_size)
    without = ArrayNouns(classifier.config, classifier.vocabulary, Weights.of(weights(embed_dim, branch)))
    for one, other in zip(ours, without.classify([arrays], [boxes], embeddings)[0], strict=True):
        assert one.shape == other.shape == (count, one.shape[1])
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert ours[0].shape[1] == 1000 and ours[1].shape[1] == len(KINDS.counts) + 2
    network, given = tiny_networks(embed_dim, branch)["nouns"], torch.from_numpy(boxes)
    with torch.inference_mode():  # it reads the last layer over the box, whatever else there is
        expected = network.imagenet(geometry.means(maps.head, given, 32))
        features = network.features(maps, given, torch.from_numpy(embeddings[0]))
    np.testing.assert_allclose(ours[0], expected.numpy(), atol=1e-4)
    at = places(network.config.layout, features.shape[1])
    assert torch.equal(features[:, at["place"]], geometry.place(given, *encoding.input_size))
    assert np.array_equal(features[:, at["embedding"]].numpy(), embeddings[0])


def test_the_weights_fit_the_options_and_the_kinds() -> None:
    require_shapes("nouns", ArrayNouns.shapes(NounsConfig(), len(KINDS)), len(KINDS), Weights.of(weights()))
    with pytest.raises(
        UserError, match=r"the weights of the part classes do not fit its options: kinds\.bias|kinds\.w"
    ):
        require_shapes("nouns", ArrayNouns.shapes(NounsConfig(), len(KINDS) + 1), len(KINDS) + 1, Weights.of(weights()))


@pytest.mark.parametrize("embed_dim", [0, EMBED_DIM])
def test_engines_are_compared_in_it(embed_dim: int) -> None:
    names = [name for name, _ in stages(tiny_model(embed_dim).engine)]
    assert sum(name.startswith("kinds of") for name in names) == 12


def test_context_levels_and_branch_change_the_features() -> None:
    assert tiny_networks()["nouns"].kinds.in_features == 112 + 1280 + 5 + 1280
    assert tiny_networks(0, "branch")["nouns"].kinds.in_features == 112 + 2 * (1280 + 128 + 1280) + 5
    assert tiny_networks(0, "tower")["nouns"].kinds.in_features == 112 + 2 * (1280 + 1280) + 512 + 5


def test_embeddings_are_made_unless_they_are_given() -> None:
    model = tiny_model(EMBED_DIM)
    encoding = model.encode(noise(96, 64))
    found = model.describe(encoding, [[4, 4, 60, 50], [10, 20, 90, 60]])
    assert model.parts == ("densecap", "nouns") and model.nouns is not None and found.features is not None
    (made,) = model.nouns.posteriors([encoding], [found.boxes])
    (given,) = model.nouns.posteriors([encoding], [found.boxes], [found.features])
    (other,) = model.nouns.posteriors([encoding], [found.boxes], [found.features + 1])
    np.testing.assert_allclose(made, given, atol=1e-5)
    assert abs(made - other).max() > 1e-3
    bare = Regions(found.width, found.height, found.boxes)
    for regions in (found, bare):
        kinds, _ = model.nouns.log_kinds(encoding, regions, ["a dog"])
        dog = model.nouns.lookup("a dog")
        assert dog is not None
        np.testing.assert_allclose(np.exp(kinds[:, 0]), model.nouns.probability(given, dog), rtol=1e-3)


def test_thin_boxes_do_not_tell_what_an_image_shows() -> None:
    model = tiny_model()
    encoding = model.encode(noise(200, 100))
    boxes = np.array([[0, 0, 4, 100], [0, 0, 3.9, 100], [0, 0, 200, 1.9], [0, 0, 200, 2]], np.float32)
    (every,) = model.nouns.posteriors([encoding], [boxes])
    (wide,) = model.nouns.posteriors([encoding], [boxes], thin=False)
    assert (every.sum(axis=1) > 0.01).all()
    np.testing.assert_array_equal(wide, every * np.array([[1], [0], [0], [1]]), "a fiftieth of a side at least")
    kinds, named = model.nouns.log_kinds(encoding, Regions(200, 100, boxes), ["a dog", "this"])
    assert named.tolist() == [True, False] and kinds[1:3, 0] == pytest.approx(np.log(1e-4))


def test_embeddings_need_the_dense_captioner() -> None:
    model = tiny_model(EMBED_DIM)
    assert model.engine.nouns is not None
    refuses("the part densecap, which the model lacks", NounEvidence, model.engine.nouns)
