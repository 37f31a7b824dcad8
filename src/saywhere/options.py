"""Options of users: dataclasses made from the plain values of YAML and JSON, each checked against its annotation."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from saywhere.errors import UserError

T = TypeVar("T")

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """Options from texts such as ``beam=3`` or ``calibration=[1,0,0]``: values are JSON, or else plain text.

    Raises:
        UserError: no ``=``, or no name before it.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise UserError(f"{pair!r} is not OPTION=VALUE, for example beam=3")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def from_dict(cls: type[T], values: Mapping[str, Any], source: str = "", prefix: str = "") -> T:
    """The dataclass ``cls`` from nested plain values: lists become tuples, mappings dataclasses.

    Args:
        cls: a dataclass whose fields are of int, float, bool, str, Literal, None, tuples, dictionaries, dataclasses.
        values: by name of the field.
        source: the file, or whatever the user should look at; stands before each message if it is given.
        prefix: of the keys in messages, such as ``training.``.

    Raises:
        UserError: an unknown key (the nearest known one is named), a missing one, or a value of the wrong type.
    """
    source = f"{source}: " if source and not source.endswith(": ") else source
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls)) if f.init}
    for key in values:
        if key not in fields:
            raise UserError(f"{source}unknown key {prefix}{key}; {_hint(str(key), list(fields), prefix)}")
    for name, f in fields.items():
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UserError(f"{source}{prefix}{name} is missing")
    hints = typing.get_type_hints(cls)
    made = {key: _converted(value, hints[key], source, prefix + key) for key, value in values.items()}
    try:
        return cls(**made)
    except UserError as error:
        raise UserError(f"{source}{prefix}{error}") from None


def _hint(key: str, known: Sequence[str], prefix: str) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"


def _converted(value: Any, hint: Any, source: str, key: str) -> Any:
    """``value`` as the type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (a for a in arguments if a is not type(None))  # one type, or none
        return _converted(value, hint, source, key)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_dict(typing.cast(type, hint), value, source, f"{key}.")
    if origin is dict and isinstance(value, Mapping):
        of_key, of_value = arguments
        return {
            _converted(k, of_key, source, f"{key}.{k}"): _converted(v, of_value, source, f"{key}.{k}")
            for k, v in value.items()
        }
    if origin is tuple and isinstance(value, (list, tuple)):
        each = arguments[:1] * len(value) if arguments[1:] == (Ellipsis,) else arguments
        if len(each) == len(value):
            pairs = enumerate(zip(value, each, strict=True))
            return tuple(_converted(v, a, source, f"{key}[{i}]") for i, (v, a) in pairs)
    if origin is Literal and (chosen := _choice(value, arguments)) is not None:
        return chosen
    if hint is float and (number := _number(value)) is not None:
        return number
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise UserError(f"{source}{key} is {_wanted(hint)}, not {value!r}")


def _choice(value: Any, choices: Sequence[Any]) -> Any:
    """The one of ``choices`` that is meant: YAML reads 32 as a number where the choice is the text."""
    same = [c for c in choices if type(c) is type(value) and c == value]
    spelt = [c for c in choices if isinstance(c, str) and not isinstance(value, bool) and c == str(value)]
    return next(iter(same + spelt), None)


def _number(value: Any) -> float | None:
    """YAML reads 1e-3 as a text, so finite numbers in texts are numbers too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        return number if isinstance(value, str) and math.isfinite(number := float(value)) else None
    except ValueError:
        return None


def _wanted(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        count = "" if arguments[1:] == (Ellipsis,) else f" of {len(arguments)}"
        inner = {_wanted(a) for a in arguments if a is not Ellipsis}
        return f"a list{count}" + (f", each {inner.pop()}" if len(inner) == 1 else "")
    return _KINDS.get(hint, "a mapping")
