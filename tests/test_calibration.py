"""Probabilities that are fitted: the logistic regression, how far it is from probabilities, and its file."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses
from stubs import calibrated

from saywhere.calibration import Calibration, Logistic, reliability
from saywhere.errors import UserError


def test_a_probability_is_the_logistic_function_of_named_evidence():
    fit = Logistic({"a": 0.5, "b": 2.0}, 1.0)
    evidence = {"b": np.array([-3.0, 0.0]), "a": np.array([2.0, 4.0]), "more": np.zeros(2)}
    np.testing.assert_allclose(fit.apply(evidence), [1 / (1 + np.exp(4)), 1 / (1 + np.exp(-3))])
    np.testing.assert_allclose(fit.apply(np.array([[[2.0, -3.0]], [[4.0, 0.0]]])), fit.apply(evidence)[:, None])
    assert fit.apply({"a": np.float32([1]), "b": np.float32([1])}).dtype == np.float32
    assert str(fit) == "a 0.5, b 2, constant 1"


def test_a_probability_never_overflows():
    found = Logistic({"a": 1.0}, 1e9).apply({"a": np.array([0.0, -2e9], np.float32)})
    np.testing.assert_allclose(found, [1, 0], atol=1e-12)


def drawn(weights: list[float], constant: float, scales: list[float], count: int = 20_000):
    generator = np.random.default_rng(0)
    columns = generator.standard_normal((count, len(weights))) * scales
    true = generator.random(count) < 1 / (1 + np.exp(-(columns @ weights + constant)))
    return dict(zip("abcd", columns.T, strict=False)), true


@pytest.mark.parametrize("counted", [None, np.full(20_000, 3.0)])
def test_the_weights_that_made_the_truth_are_found(counted):
    evidence, true = drawn([2, -0.4, 0], 0.5, [1, 5, 0])
    found = Logistic.fit(evidence, true, counted)
    assert [*found.to_dict().items()] == [
        ("a", pytest.approx(2, abs=0.1)), ("b", pytest.approx(-0.4, abs=0.02)), ("c", 0.0),
        ("constant", pytest.approx(0.5, abs=0.1)),
    ]  # fmt: skip
    assert found.reliability(evidence, true).ece < 0.02


def test_the_weights_are_those_of_the_largest_likelihood():
    evidence, true = drawn([0.02, -3], 4, [50, 0.5], 300)
    found = Logistic.fit(evidence, true)

    def likelihood(**change: float) -> float:
        row = {name: value + change.get(name, 0) for name, value in found.to_dict().items()}
        p = Logistic({name: row[name] for name in "ab"}, row["constant"]).apply(evidence)
        return float(np.log(np.where(true, p, 1 - p)).mean())

    for name, step in (("a", 0.002), ("b", 0.2), ("constant", 0.1)):
        assert likelihood() > max(likelihood(**{name: step}), likelihood(**{name: -step}))


def test_cases_may_count_for_more_than_others():
    one, other = ({"a": np.zeros(10)}, np.arange(10) < 5), np.where(np.arange(10) < 5, 3.0, 1.0)
    assert Logistic.fit(*one, other).constant == pytest.approx(np.log(3), abs=1e-3)
    assert Logistic.fit(*one).constant == pytest.approx(0, abs=1e-3)


def test_evidence_that_says_nothing_gives_the_share_and_evidence_that_says_all_is_finite():
    found = Logistic.fit({"a": np.zeros(100)}, np.arange(100) < 20)
    assert found.weights == {"a": 0} and found.constant == pytest.approx(np.log(0.2 / 0.8), abs=1e-3)
    apart = Logistic.fit({"a": np.arange(10.0)}, np.arange(10) > 4)
    assert np.isfinite([*apart.to_dict().values()]).all()
    assert apart.apply({"a": np.array([4.0, 5.0])}).round(1).tolist() == [0, 1]
    for true in (np.ones(5, bool), np.zeros(5, bool)):
        with pytest.raises(UserError, match="^calibration needs right and wrong boxes, and all 5 are of one kind$"):
            Logistic.fit({"a": np.arange(5)}, true, what="boxes")


# Reliability


def test_figures_by_hand():
    # Bins of a quarter: 0.1 and 0.2 (one of two matches), 0.5 (none), 0.9 and 1.0 (both).
    found = reliability([0.9, 0.1, 1.0, 0.2, 0.5], [True, False, True, True, False], bins=4)
    bins = [(0.0, 0.25, 2, 0.15, 0.5), (0.5, 0.75, 1, 0.5, 0.0), (0.75, 1.0, 2, 0.95, 1.0)]
    assert [astuple(one) for one in found.bins] == [pytest.approx(row) for row in bins]
    assert found.ece == pytest.approx((2 * 0.35 + 0.5 + 2 * 0.05) / 5)
    assert found.brier == pytest.approx((0.01 + 0.01 + 0 + 0.64 + 0.25) / 5)
    assert found.boxes == 5


def test_fewer_boxes_than_bins():
    found = reliability([0.25], [True])
    assert (found.ece, found.brier) == (0.75, 0.5625)
    assert [(one.count, one.matched) for one in found.bins] == [(1, 1)]


@pytest.mark.parametrize(("power", "least", "most"), [(1, 0, 0.02), (2, 0.15, 0.18)])
def test_probabilities_have_no_error_and_their_squares_one_of_a_sixth(power, least, most):
    # The mean distance of p from p squared over 0 to 1 is 1/2 - 1/3.
    random = np.random.default_rng(0)
    p = random.random(20_000)
    found = reliability(p**power, random.random(20_000) < p)
    assert least <= found.ece <= most
    assert found.bins[0].low == 0 and found.bins[-1].high == 1 and len(found.bins) == 15


# The file

ASKED = "unwanted_phrase"


def test_what_was_fitted_is_read_as_it_was_written(tmp_path: Path):
    assert Calibration.read(tmp_path) == Calibration()
    made = calibrated(
        box=(0.5, 2.0, 0.0, -1.0), hit=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), asked_number=(1.0, 2.0, 3.0, 4.0)
    )
    made.write(tmp_path)
    assert Calibration.read(tmp_path) == made and repr(made) == "Calibration(box, asked_number, hit)"
    stored = json.loads((tmp_path / "calibration.json").read_text())
    assert stored["box"] == {"logit": 0.5, "confidence": 2.0, "area": 0.0, "constant": -1.0} and "phrase" not in stored
    (tmp_path / "calibration.json").write_text('{"unwanted_phrase": {"similarity": 1, "constant": 2}}')
    assert Calibration.read(tmp_path) == calibrated(unwanted_phrase=(1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "must be a JSON object, not list"),
        ('{"boxes": {}}', "unknown question 'boxes'; known are box, person"),
        (f'{{"{ASKED}": {{"similarity": 1}}}}', f"{ASKED} must be a mapping of similarity, constant, not"),
        (f'{{"{ASKED}": [1, 2]}}', f"{ASKED} must be a mapping of similarity, constant, not"),
        (f'{{"{ASKED}": {{"similarity": 1, "constant": "2"}}}}', f"{ASKED}.constant must be a number, not '2'"),
        (f'{{"{ASKED}": {{"similarity": 1, "constant": true}}}}', f"{ASKED}.constant must be a number, not True"),
        (f'{{"{ASKED}": {{"similarity": NaN, "constant": 1}}}}', f"{ASKED}.similarity must be a number, not nan"),
        (f'{{"{ASKED}": {{"similarity": 1e999, "constant": 1}}}}', f"{ASKED}.similarity must be a number, not inf"),
        (
            f'{{"{ASKED}": {{"similarity": 1{"0" * 400}, "constant": 1}}}}',
            f"{ASKED}.similarity must be a number, not 1000",
        ),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, content: Any, message: str):
    (tmp_path / "calibration.json").write_text(content)
    said = refuses("", Calibration.read, tmp_path)
    assert said.startswith(str(tmp_path / "calibration.json")) and message in said
