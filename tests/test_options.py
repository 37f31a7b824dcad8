from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from saywhere.errors import UserError
from saywhere.options import assignments, from_dict


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
        ({"inner": {}}, "f.yaml: o.inner.rate is missing"),
        ({"inner": {"rate": -1}}, "f.yaml: o.inner.rate must not be negative, not -1.0"),
        ({"inner": 5}, "o.inner is a mapping, not 5"),
        ({"inner": None}, "o.inner is a mapping, not None"),
        ({"inner": {"rate": "nan"}}, "o.inner.rate is a number, not 'nan'"),
        ({"inner": {"rate": True}}, "o.inner.rate is a number, not True"),
        ({"name": 5}, "o.name is a text, not 5"),
        ({"fast": "no"}, "o.fast is true or false, not 'no'"),
        ({"fast": 1}, "o.fast is true or false, not 1"),
        ({"size": 10.5}, "o.size is a whole number, not 10.5"),
        ({"size": "ten"}, "o.size is a whole number, not 'ten'"),
        ({"size": True}, "o.size is a whole number, not True"),
        ({"precision": 64}, "o.precision is one of 32, 16, not 64"),
        ({"level": True}, "o.level is one of 1, 2, not True"),
        ({"betas": 0.5}, "o.betas is a list of 2, each a number, not 0.5"),
        ({"betas": [1, 2, 3]}, "o.betas is a list of 2"),
        ({"shapes": [1, 2]}, "o.shapes[0] is a list of 2, each a number, not 1"),
        ({"shapes": [[1, 2], [3, "x"]]}, "o.shapes[1][1] is a number, not 'x'"),
        ({"shapes": "ab"}, "o.shapes is a list"),
        ({"extra": [1]}, "o.extra is a mapping, not [1]"),
        ({"limits": {"a": "b"}}, "o.limits.a is a whole number, not 'b'"),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_wanted(values: dict[Any, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_dict(Outer, values, "f.yaml", "o.")
    assert message in str(caught.value)
    assert str(caught.value).count("f.yaml") == 1


def test_without_a_source_the_key_stands_first() -> None:
    with pytest.raises(UserError, match="^fast is true or false"):
        from_dict(Outer, {"fast": 2})


def test_assignments_are_json_or_text() -> None:
    given = ["beam=3", "repeat_nms=null", "calibration=[1, 0.5, 0]", "pooling=roi_align", "odd=a=b"]
    wanted = {"beam": 3, "repeat_nms": None, "calibration": [1, 0.5, 0], "pooling": "roi_align", "odd": "a=b"}
    assert assignments(given) == wanted
    for wrong in ("beam", "=3"):
        with pytest.raises(UserError, match=r"is not OPTION=VALUE"):
            assignments([wrong])
