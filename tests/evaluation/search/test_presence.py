"""What an index says of what is there, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from photographs import noise
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner

from saywhere.evaluation.search import Answers, answer, measure, nouns, said
from saywhere.search.phrases import Commonness, PhrasesInImages, Query, in_index_probability, is_improbable
from saywhere.search.store import Stamp, Store


def answers(seed: int) -> Answers:
    """Hits whose evidence tells, in part, whether they show the query."""
    generator = np.random.default_rng(seed)
    shown = generator.random((60, 4)) < 0.3
    evidence = np.stack((shown + generator.standard_normal((60, 4)), *-generator.random((2, 60, 4))), axis=-1)
    inside = generator.random(60) < 0.5
    in_index = inside | (generator.random(60) < 0.4)
    chances = np.stack((generator.standard_normal(60) + in_index, evidence[:, 0, 0]), axis=-1)
    return Answers(evidence, chances, shown, inside, in_index)


def area(high: list[float], low: list[float]) -> float:
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(high, low)]))


def test_nouns_and_words_meet_in_the_singular() -> None:
    assert nouns("Two dogs run on the grass") == {"dog", "grass"} <= said(["A puppy.", "grass"])
    assert nouns("two puppies on a beach") <= said(["A beach.", "puppies"])
    assert not nouns("a dog on a sofa") <= said(["Two dogs on the grass."])
    assert nouns("an animal on a beach") <= said(["Two puppies on the beach."])
    assert not nouns("a dog on a beach") <= said(["An animal on the beach."])


def test_each_half_is_judged_by_the_weights_of_the_other() -> None:
    one, other = answers(0), answers(1)
    found = measure((one, other), calibrated(hit=(1.0, 0.0, 0.0, -1.0)).hit)
    assert found is not None
    swapped = measure((one, one), None), measure((other, other), None)
    assert swapped[0] is not None and swapped[1] is not None and swapped[0].own_error is None
    own = swapped[1].fits["hit"].apply(one.evidence), swapped[0].fits["hit"].apply(other.evidence)
    scores, shown = np.concatenate(own), np.concatenate((one.shown, other.shown))
    assert found.auc == pytest.approx(area(scores[shown].tolist(), scores[~shown].tolist()))
    assert found.auc > 0.6 and found.fits["hit"].weights["similarity"] > 0.3
    inside, in_index = np.concatenate((one.inside, other.inside)), np.concatenate((one.in_index, other.in_index))
    pairs = zip((one, other), (swapped[1].fits, swapped[0].fits), strict=True)
    best = np.concatenate([in_index_probability(half.chances, fits["chance"], fits["meant"]) for half, fits in pairs])
    assert found.outside_auc == pytest.approx(area(best[inside].tolist(), best[~inside].tolist()))
    assert found.query_auc == pytest.approx(area(best[inside].tolist(), best[~inside & ~in_index].tolist()))
    assert found.in_index_auc == pytest.approx(area(best[in_index].tolist(), best[~in_index].tolist()))
    doubted = is_improbable(scores.max(axis=1), best)
    assert (found.doubted, found.refused) == (doubted[inside].mean(), doubted[~inside & ~in_index].mean())
    assert found.outside_limit == pytest.approx(area([1.0] * inside.sum(), in_index[~inside].astype(float).tolist()))
    bins = [np.floor(scores * 10) == place for place in range(10)]
    table = [(scores[b].mean(), shown[b].mean(), b.sum()) for b in bins if b.any()]
    np.testing.assert_allclose(found.reliability, table, atol=1e-4)
    errors = sum(count * abs(mean - share) for mean, share, count in table) / scores.size
    assert found.calibration_error == pytest.approx(errors)
    assert found.own_error is not None and 0 < found.own_error < 1 and found.queries == 120
    assert sum(count for _, _, count in found.in_index_reliability) == 120 and 0 < found.in_index_error < 0.3


def test_the_answers_of_two_uneven_halves_have_as_many_hits(tmp_path) -> None:
    model = aligner_model(tiny_aligner())
    model.calibration = calibrated(phrase=(0.02, 0.0, 0.0, 0.0))
    images = model.embed([noise(96, 64, number) for number in range(5)])
    queries = {"two dogs": frozenset((0, 4)), "a horse": frozenset((1,))}
    words = [said(sentences) for sentences in (["Two dogs."], ["A man."], ["A dog."], ["A horse."], [])]
    first = np.array([True, False, False, True, False])
    with Store(tmp_path, {"size": "17"}) as store:
        store.put([(str(number), Stamp(0, 0), image) for number, image in enumerate(images)])
        one, other = (answer(model, store.snapshot(), queries, words, inside) for inside in (first, ~first))
    assert one.evidence.shape == other.evidence.shape == (2, 2, 3)
    assert one.inside.tolist() == [True, False] and other.inside.tolist() == [True, True]
    assert one.in_index.tolist() == [True, True] and other.in_index.tolist() == [True, False]
    assert one.shown.sum(axis=1).tolist() == [1, 1] and other.shown[1].tolist() == [False, False]
    dogs = [PhrasesInImages(model, Query(("two dogs",))).find(images[entry]).evidence for entry in (0, 3)]
    best_first = sorted(np.array(dogs).tolist(), reverse=True)  # by similarity, which they are searched by
    np.testing.assert_allclose(one.evidence[0], best_first, rtol=2e-2)
    common = Commonness(model.require("aligner", "search").vocabulary)
    expected = [
        [common.together([text]) + np.log(3), own[0, 0]] for text, own in zip(queries, other.evidence, strict=True)
    ]
    np.testing.assert_allclose(other.chances, expected, rtol=1e-6)


def test_nothing_is_said_where_all_or_no_hits_are_right() -> None:
    one = answers(0)
    for every in (True, False):
        same = replace(one, shown=np.full_like(one.shown, every))
        assert measure((one, same), None) is None
        assert measure((replace(one, in_index=np.full_like(one.in_index, every)), one), None) is None
