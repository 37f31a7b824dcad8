"""Questions of the HTTP interface: their parameters, and what answers them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.datastructures import QueryParams

from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.serve.limits import Problem


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a question.

    Attributes:
        name: in the query, and of the argument of the verb.
        kind: ``box`` is ``x1,y1,x2,y2``.
        minimum, maximum: of a number; of a text, of the number of its letters.
        choices: all values of a text that are allowed; any text if empty.
        most: how often it may be given; if more than once, the value is a list.
        required: whether it must be given.
    """

    name: str
    kind: Literal["integer", "number", "boolean", "text", "box"]
    minimum: float = 0
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    most: int = 1
    required: bool = False

    def read(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: it is another kind of value, or out of range; the message says what is wanted.
        """
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise ValueError("true or false")
            return text == "true"
        if self.kind == "box":
            return self._box(text)
        if self.kind == "text":
            if self.choices and text not in self.choices:
                raise ValueError(" or ".join(self.choices))
            if not self.minimum <= len(text) <= self.maximum:
                raise ValueError(f"a string of {self.minimum:g} to {self.maximum:g} characters")
            return text
        return self._number(text)

    def _number(self, text: str) -> float:
        low, high = self.minimum, self.maximum
        wanted = f"{'a whole number' if self.kind == 'integer' else 'a number'} from {low:g} to {high:g}"
        try:
            value = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not low <= value <= high:  # nan is neither
            raise ValueError(wanted)
        return value

    def _box(self, text: str) -> list[float]:
        try:
            box = [float(part) for part in text.split(",")]
        except ValueError:
            box = []
        if len(box) != 4 or not all(math.isfinite(value) for value in box):
            raise ValueError("four numbers x1,y1,x2,y2")
        return box


def read_query(parameters: Sequence[Parameter], query: QueryParams) -> Mapping[str, Any]:
    """Return the values of a query by name; parameters that are not given are left out.

    Raises:
        Problem: 422 if a parameter is unknown, missing, given too often, or has a wrong value.
    """
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, list[Any]] = {}
    for name, text in query.multi_items():
        if name not in known:
            have = f"this question has {', '.join(known)}" if known else "this question has none"
            raise Problem(422, f"unknown parameter {name[:40]}: {have}")
        parameter = known[name]
        try:
            value = parameter.read(text)
        except ValueError as error:
            raise Problem(422, f"{name} must be {error}, not {text[:40]!r}") from None
        if len(values.setdefault(name, [])) == parameter.most:
            times = "once" if parameter.most == 1 else f"{parameter.most} times"
            raise Problem(422, f"{name} is given more than {times}")
        values[name].append(value)
    missing = [parameter.name for parameter in parameters if parameter.required and parameter.name not in values]
    if missing:
        raise Problem(422, f"the parameter {missing[0]} is missing")
    return {name: several if known[name].most > 1 else several[0] for name, several in values.items()}


MAX_REGIONS, MAX_LETTERS, MAX_HITS = 1000, 1000, 100
MAX_BOXES, MAX_TEXTS = MAX_REGIONS, 100
"""An answer has at most 10 MB."""


@dataclass(frozen=True)
class Question:
    """Describe a question about an image.

    Attributes:
        name: of the verb, and the last part of the path.
        parameters: that it takes.
        answer: calls the verb and returns the JSON form of its result.
    """

    name: str
    parameters: tuple[Parameter, ...]
    answer: Callable[[Model, Encoding, Mapping[str, Any]], dict[str, Any]]


def _describe(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    return model.describe(image, values.get("box"), top=values.get("top"), threshold=values.get("threshold")).to_dict()


def _caption(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    attention = values.get("attention", True)
    return model.caption(image, beam_size=values.get("beam_size"), attention=attention).to_dict()


def _ground(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    texts = values["text"]
    options = {name: values.get(name) for name in ("part", "beta", "regions", "threshold")}
    return model.ground(image, texts[0] if len(texts) == 1 else texts, values.get("box"), **options).to_dict()


def _embed(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    found = model.embed(image, values.get("box"), regions=values.get("regions"))
    return {
        "image": found.image,
        "width": found.width,
        "height": found.height,
        "boxes": [[round(v, 2) for v in box] for box in found.boxes.tolist()],
        "vectors": [[round(v, 5) for v in vector] for vector in found.vectors.tolist()],
    }


def embed_text(model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vectors of the words of ``values["text"]``."""
    found = model.embed_text(values["text"])
    vectors = [[round(v, 5) for v in vector] for vector in found.vectors.tolist()]
    return {"text": values["text"], "words": list(found.words), "vectors": vectors}


_REGIONS = Parameter("regions", "integer", 0, MAX_REGIONS)

QUESTIONS = (
    Question(
        "describe",
        (
            Parameter("top", "integer", 0, MAX_REGIONS), Parameter("threshold", "number", 0, 1),
            Parameter("box", "box", most=MAX_BOXES),
        ),
        _describe,
    ),
    Question(
        "ground",
        (
            Parameter("text", "text", 1, MAX_LETTERS, most=MAX_TEXTS, required=True),
            Parameter("part", "text", choices=("aligner", "densecap")), Parameter("beta", "number", 0, 1000), _REGIONS,
            Parameter("threshold", "number", 0, 1), Parameter("box", "box", most=MAX_BOXES),
        ),
        _ground,
    ),
    Question("caption", (Parameter("beam_size", "integer", 1, 20), Parameter("attention", "boolean")), _caption),
    Question("embed", (_REGIONS, Parameter("box", "box", most=MAX_BOXES)), _embed),
)  # fmt: skip
EMBED_TEXT = (Parameter("text", "text", 1, MAX_LETTERS, required=True),)
SEARCH = (
    Parameter("q", "text", 1, MAX_LETTERS, required=True), Parameter("top", "integer", 1, MAX_HITS),
    Parameter("without", "text", 1, MAX_LETTERS, most=10), Parameter("after", "text", 10, 10),
    Parameter("before", "text", 10, 10), Parameter("under", "text", 1, 1000, most=10),
)  # fmt: skip
SEARCH_IMAGE = (Parameter("entry", "text", 1, 100, required=True),)
