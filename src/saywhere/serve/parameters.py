"""Parameters in the query of a request: read, checked and described in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.datastructures import QueryParams

from saywhere.serve.problems import Problem


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a question.

    Attributes:
        name: in the query, and of the argument of the verb.
        kind: ``box`` is ``x1,y1,x2,y2``.
        description: one line.
        minimum, maximum: of a number; of a text, of the number of its letters.
        choices: all values of a text that are allowed; any text if empty.
        most: how often it may be given; if more than once, the value is a list.
        required: whether it must be given.
    """

    name: str
    kind: Literal["integer", "number", "boolean", "text", "box"]
    description: str
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

    def schema(self) -> dict[str, Any]:
        """Return its entry in an OpenAPI description."""
        kinds = {"text": "string", "box": "string"}
        value: dict[str, Any] = {"type": kinds.get(self.kind, self.kind)}
        low, high = ("minLength", "maxLength") if self.kind == "text" else ("minimum", "maximum")
        if math.isfinite(self.maximum):
            value |= {low: self.minimum, high: self.maximum}
        if self.choices:
            value["enum"] = list(self.choices)
        if self.kind == "box":
            value["example"] = "10,20,110,220"
        schema = {"type": "array", "items": value, "maxItems": self.most} if self.most > 1 else value
        return {
            "name": self.name, "in": "query", "required": self.required, "description": self.description,
            "schema": schema,
        }  # fmt: skip


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
