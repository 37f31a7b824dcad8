from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import re
from dataclasses import field
from typing import Any, Literal

import numpy as np
import pytest
from refusals import refuses

from saywhere.errors import UserError
from saywhere.options import (
    assignments,
    dataclass,
    from_dict,
    merge,
    nest,
    require_ints,
    require_numbers,
    require_probabilities,
)


@dataclass(frozen=True)
class Inner:
    rate: float
    steps: int = 3

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise UserError(f"rate must not be negative, not {self.rate}")


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=lambda: Inner(1.0))
    name: str = ""
    fast: bool = False
    size: int | None = None
    precision: Literal["32", "16"] = "32"
    level: Literal[1, 2] = 1
    betas: tuple[float, float] = (0.0, 0.0)
    shapes: tuple[tuple[float, float], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)


def test_values_take_the_types_of_their_fields() -> None:
    made = from_dict(
        Outer,
        {
            "inner": {"rate": "1e-3"},
            "size": None,
            "precision": 32,
            "level": 2,
            "betas": [0, 0.5],
            "shapes": [[1, 2], (3, 4.5)],
            "extra": {"a": [1]},
            "limits": {"a": 1},
        },
    )
    shapes = ((1.0, 2.0), (3.0, 4.5))
    assert made == Outer(Inner(1e-3), "", False, None, "32", 2, (0.0, 0.5), shapes, {"a": [1]}, {"a": 1})
    assert type(made.betas[0]) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nam": 1}, "f.yaml: unknown key o.nam; did you mean o.name?"),
        ({"xyzzy": 1}, "f.yaml: unknown key o.xyzzy; known are inner, name, "),
        ({3: 1}, "f.yaml: unknown key o.3; known are"),
        ({"inner": {"rat": 1}}, "f.yaml: unknown key o.inner.rat; did you mean o.inner.rate?"),
        ({"inner": {"rate": -1}}, "f.yaml: o.inner.rate must not be negative, not -1.0"),
        ({"inner": 5}, "o.inner must be a mapping, not 5"),
        ({"inner": None}, "o.inner must be a mapping, not None"),
        ({"inner": {"rate": "nan"}}, "o.inner.rate must be a number, not 'nan'"),
        ({"inner": {"rate": float("nan")}}, "o.inner.rate must be a number, not nan"),
        ({"inner": {"rate": float("inf")}}, "o.inner.rate must be a number, not inf"),
        ({"betas": [float("nan"), 0]}, "o.betas[0] must be a number, not nan"),
        ({"inner": {"rate": 10**400}}, "o.inner.rate must be a number, not 1000"),
        ({"inner": {"rate": True}}, "o.inner.rate must be a number, not True"),
        ({"name": 5}, "o.name must be a string, not 5"),
        ({"fast": "no"}, "o.fast must be true or false, not 'no'"),
        ({"fast": 1}, "o.fast must be true or false, not 1"),
        ({"size": 10.5}, "o.size must be a whole number, not 10.5"),
        ({"size": "ten"}, "o.size must be a whole number, not 'ten'"),
        ({"size": True}, "o.size must be a whole number, not True"),
        ({"precision": 64}, "o.precision must be one of 32, 16, not 64"),
        ({"level": True}, "o.level must be one of 1, 2, not True"),
        ({"betas": 0.5}, "o.betas must be a list of 2, each a number, not 0.5"),
        ({"betas": [1, 2, 3]}, "o.betas must be a list of 2"),
        ({"shapes": [1, 2]}, "o.shapes[0] must be a list of 2, each a number, not 1"),
        ({"shapes": [[1, 2], [3, "x"]]}, "o.shapes[1][1] must be a number, not 'x'"),
        ({"shapes": "ab"}, "o.shapes must be a list"),
        ({"extra": [1]}, "o.extra must be a mapping, not [1]"),
        ({"limits": {"a": "b"}}, "o.limits.a must be a whole number, not 'b'"),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_wanted(values: dict[Any, Any], message: str) -> None:
    said = refuses("", from_dict, Outer, values, "f.yaml", "o.")
    assert message in said
    assert said.count("f.yaml") == 1


@dataclass(frozen=True)
class Needy:
    inner: Inner


def test_a_key_without_default_is_missed_and_without_a_source_the_key_stands_first() -> None:
    refuses(r"^f.yaml: o.inner is missing$", from_dict, Needy, {}, "f.yaml", "o.")
    refuses(r"^f.yaml: o.inner.rate is missing$", from_dict, Needy, {"inner": {"steps": 2}}, "f.yaml", "o.")
    refuses("^fast must be true or false", from_dict, Outer, {"fast": 2})


@dataclass(frozen=True)
class Part:
    size: int = 1
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is {self.size}")


@dataclass(frozen=True)
class Whole:
    part: Part = Part(share=0.25)
    maybe: Part | None = None
    name: str = "a"


def test_a_nested_mapping_changes_what_it_names_and_keeps_the_fields_defaults() -> None:
    assert from_dict(Whole, {"part": {"size": 3}}) == Whole(Part(3, 0.25))
    assert from_dict(Outer, {"inner": {"steps": 5}}) == Outer(Inner(1.0, 5))
    assert from_dict(Whole, {"maybe": {"size": 3}}) == Whole(maybe=Part(3, 0.5))


def test_merge_keeps_what_is_there() -> None:
    whole = Whole(Part(2, 0.75), Part(5, 0.1), "b")
    assert merge(whole, {"part": {"size": 3}, "maybe": {"share": 1}}) == Whole(Part(3, 0.75), Part(5, 1.0), "b")
    assert merge(whole, {"maybe": None}) == Whole(Part(2, 0.75), None, "b")
    refuses(r"^f: o.part.size is 0$", merge, whole, {"part": {"size": 0}}, "f", "o.")
    refuses(r"unknown key part.siz; did you mean part.size\?", merge, whole, {"part": {"siz": 0}})


def test_dots_lead_into_parts() -> None:
    flat = {"a.b": 1, "a.c.d": 2, "e": 3, "f": {"g": 4}, "f.h": 5}
    assert nest(flat) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 4, "h": 5}}
    assert flat["f"] == {"g": 4}
    for wrong, message in (
        ({"a": 1, "a.b": 2}, "a.b cannot be set beside a"),
        ({"a.b": 2, "a": 1}, "a is set twice"),
        ({"a..b": 2}, "no name of an option"),
        ({".a": 2}, "no name of an option"),
    ):
        refuses(message, nest, wrong)


def test_assignments_are_json_or_text() -> None:
    given = ["decoding.beam_size=3", "repeat_nms=null", "calibration=[1, 0.5, 0]", "pooling=roi_align", "odd=a=b"]
    wanted = {
        "decoding.beam_size": 3, "repeat_nms": None, "calibration": [1, 0.5, 0], "pooling": "roi_align", "odd": "a=b",
    }  # fmt: skip
    assert assignments(given) == wanted
    deep = "[" * 100_000
    assert assignments([f"a={deep}", 'b={"c": 1, "c": 2}']) == {"a": deep, "b": '{"c": 1, "c": 2}'}
    for wrong in ("beam_size", "=3"):
        refuses(r"is not OPTION=VALUE", assignments, [wrong])


@pytest.mark.parametrize(
    ("require", "value", "what"),
    [
        *((require_ints, value, "whole number") for value in ("3", 2.0, True)),
        *((require_numbers, value, "number") for value in ("1", math.nan, math.inf, False)),
        *((require_probabilities, value, "probability") for value in (30, 1.5, -0.5)),
    ],
)
def test_what_is_no_number_of_the_kind_is_refused(require: Any, value: object, what: str) -> None:
    require_numbers(beta=np.float32(1), threshold=None)
    require_probabilities(least=0, most=np.float32(1), threshold=None)
    refuses(re.escape(f"top must be a {what}, not {value!r}"), require, top=value)


def test_a_whole_number_may_have_a_least_value() -> None:
    require_ints(1, threads=np.int64(1), regions=None)
    refuses("threads must be a whole number of at least 1, not 0", require_ints, 1, threads=0)


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list, compare=False, repr=False)
    size: float = field(init=False, default=1.0)
    unit: str = field(kw_only=True, default="px")


@dataclasses.dataclass(frozen=True)
class StandardPoint:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list, compare=False, repr=False)
    size: float = field(init=False, default=1.0)
    unit: str = field(kw_only=True, default="px")


@pytest.mark.parametrize(
    ("values", "named"),
    [((1.0,), {}), ((1.0, 2.0), {"unit": "mm"}), ((), {"x": 3.0, "tags": ["a"]}), ((1.0, 2.0, ["b"]), {})],
)
def test_a_data_class_is_like_a_standard_one(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    own, standard = Point(*values, **named), StandardPoint(*values, **named)
    assert dataclasses.asdict(own) == dataclasses.asdict(standard)
    assert repr(own) == repr(standard).removeprefix("Standard")
    assert dataclasses.asdict(dataclasses.replace(own, y=9.0)) == dataclasses.asdict(
        dataclasses.replace(standard, y=9.0)
    )
    assert own == Point(*values, **named) != dataclasses.replace(own, x=-1.0) and own != standard
    assert hash(own) == hash(standard) == hash(copy.copy(own)) and {own: 1}[Point(*values, **named)] == 1
    assert pickle.loads(pickle.dumps(own)) == own
    match own:
        case Point(x, y):
            assert (x, y) == (standard.x, standard.y)


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((), {"y": 1.0}), ((1.0,), {"x": 2.0}), ((1.0,), {"z": 2.0}), ((1.0,), {"size": 2.0}),
     ((1.0, 2.0, [], "mm"), {})],
)  # fmt: skip
def test_a_data_class_refuses_other_arguments(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (Point, StandardPoint):
        with pytest.raises(TypeError, match=kind.__name__):
            kind(*values, **named)


def test_help_shows_the_arguments_of_a_data_class() -> None:
    assert str(inspect.signature(Point)) == "(x, y=0.0, tags=Ellipsis, *, unit='px')"


def test_a_frozen_data_class_cannot_change_and_another_can() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        Point(1.0).x = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del Point(1.0).x  # pyright: ignore[reportAttributeAccessIssue]

    @dataclass
    class Open:
        values: list[int] = field(default_factory=list)

    one, other = Open(), Open()
    one.values.append(1)
    assert (one, other) != (other, one) and other.values == []
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_methods_of_a_class_and_fields_of_its_base_are_kept() -> None:
    @dataclass(eq=False)
    class Base:
        first: int
        second: int = 2

        def __post_init__(self) -> None:
            self.total = self.first + self.second

    @dataclass(frozen=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return True

    @dataclass(eq=False)
    class Derived(Base):
        third: int = 3

    made = Derived(1, third=4)
    assert (made.total, made.third) == (3, 4) and made != Derived(1, third=4)
    assert repr(Named("a")) == "a" and Named("a") == Named("b") and hash(Named("a")) == hash(("a",))
