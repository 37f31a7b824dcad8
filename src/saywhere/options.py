"""User options: dataclasses made from plain values of YAML and JSON, checked against their annotations."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from saywhere.errors import UserError
from saywhere.files import parse_json

T = TypeVar("T")

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


class UnknownKeyError(UserError):
    """A key that is not an option; ``problem`` is the message without the suggestion."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}; {hint}")
        self.problem = problem


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse texts such as ``decoding.beam_size=3`` (else ``UserError``); values are JSON or plain text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise UserError(f"{pair!r} is not OPTION=VALUE, for example decoding.beam_size=3")
        try:
            values[name] = parse_json(text)
        except ValueError:
            values[name] = text
    return values


def from_dict(cls: type[T], values: Mapping[str, Any], source: str = "", prefix: str = "") -> T:
    """Make the dataclass ``cls`` from nested plain values: lists become tuples, mappings become dataclasses.

    If the default of a field is a dataclass, a mapping changes the options it names and keeps that default's others.

    Args:
        cls: a dataclass with fields of int, float, bool, str, Literal, None, tuples, dictionaries and dataclasses.
        values: values by field name.
        source: file name or the like, which begins each message.
        prefix: prefix of the keys in messages, such as ``training.``.

    Raises:
        UserError: a key is unknown (the message names the nearest known one) or missing, or a value has a wrong type.
    """
    return _made(cls, None, values, f"{source}: " if source else "", prefix)


def merge(base: T, values: Mapping[str, Any], source: str = "", prefix: str = "") -> T:
    """Return the dataclass ``base`` with other ``values``, nested and checked as in :func:`from_dict`."""
    return _made(type(base), base, values, f"{source}: " if source else "", prefix)


def require_ints(least: int | None = None, /, **values: object) -> None:
    """Raise ``UserError`` for each named argument that is not None and no whole number of at least ``least``."""
    for name, value in values.items():
        good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if value is not None and (not good or (least is not None and int(typing.cast(int, value)) < least)):
            limit = "" if least is None else f" of at least {least}"
            raise UserError(f"{name} must be a whole number{limit}, not {value!r}")


def require_numbers(**values: object) -> None:
    """Raise ``UserError`` for each named argument that is not None and no finite number."""
    for name, value in values.items():
        good = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not good:
            raise UserError(f"{name} must be a number, not {value!r}")


def require_probabilities(**values: object) -> None:
    """Raise ``UserError`` for each named argument that is not None and no number from 0 to 1."""
    require_numbers(**values)
    for name, value in typing.cast(dict[str, float | None], values).items():
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{name} must be a probability, not {value:g}")


def require_texts(alone: bool = True, /, **values: object) -> None:
    """Raise ``UserError`` for each named argument that is not a list of strings or, if ``alone``, a single string."""
    for name, value in values.items():
        if isinstance(value, str) and alone:
            continue
        wrong = [value]
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Iterator)):
            wrong = [each for each in typing.cast(Iterable[object], value) if not isinstance(each, str)]
        if wrong:
            wanted = "a string or a list of strings" if alone else "a list of strings"
            kind = type(wrong[0]).__name__
            nested = wrong[0] is not value and isinstance(wrong[0], type(value))
            given = f"one string: [{value!r}]" if isinstance(value, str) else f"{kind} of {kind}s" if nested else kind
            raise UserError(f"{name} must be {wanted}, not {given}")


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with dotted names, such as ``decoding.beam_size``, as nested mappings.

    ``UserError`` if a name is both an option and the prefix of others, or has an empty part.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *parts, last = name.split(".")
        if not all((*parts, last)):
            raise UserError(f"{name!r} is no name of an option; parts are set with dots as in decoding.beam_size")
        place = nested
        for part in parts:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UserError(f"{name} cannot be set beside {part}, which is a value")
        if isinstance(value, Mapping) and isinstance(place.get(last), dict):
            place[last].update(value)
        elif last in place:
            raise UserError(f"{name} is set twice")
        else:
            place[last] = dict(value) if isinstance(value, Mapping) else value
    return nested


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested mapping by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the field types of a dataclass; cached, because resolving annotations takes longer than all checks."""
    return typing.get_type_hints(cls)


def _made(cls: type[T], base: T | None, values: Mapping[str, Any], source: str, prefix: str) -> T:
    """Return ``base`` with other values, or a new ``cls``."""
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls)) if f.init}
    for key in values:
        if key not in fields:
            raise UnknownKeyError(f"{source}unknown key {prefix}{key}", _hint(str(key), fields, prefix))
    for name, f in fields.items():
        if base is None and name not in values and _default(f) is dataclasses.MISSING:
            raise UserError(f"{source}{prefix}{name} is missing")
    hints = _hints(cls)
    made = {}
    for key, value in values.items():
        current = _default(fields[key]) if base is None else getattr(base, key)
        made[key] = _converted(value, hints[key], source, prefix + key, current)
    try:
        return cls(**made) if base is None else typing.cast(T, dataclasses.replace(typing.cast(Any, base), **made))
    except UserError as error:
        raise UserError(f"{source}{prefix}{error}") from None


def _default(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _hint(key: str, fields: Mapping[str, dataclasses.Field[Any]], prefix: str) -> str:
    """Return a suggestion: an option of that name inside a part, or one with a similar name."""
    parts = {name: default for name, f in fields.items() if dataclasses.is_dataclass(default := _default(f))}
    inside = [f"{name}.{key}" for name, part in parts.items() if hasattr(part, key)]
    near = inside or difflib.get_close_matches(key, list(fields), n=1, cutoff=0.5)
    return f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(fields)}"


def _converted(value: Any, hint: Any, source: str, key: str, current: Any = None) -> Any:
    """Convert ``value`` to the type ``hint``; ``current`` is the value so far."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (a for a in arguments if a is not type(None))  # one type, or none
        return _converted(value, hint, source, key, current)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        kind = typing.cast(type, hint)
        return _made(kind, current if isinstance(current, kind) else None, value, source, f"{key}.")
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
    raise UserError(f"{source}{key} must be {_wanted(hint)}, not {value!r}")


def _choice(value: Any, choices: Sequence[Any]) -> Any:
    """Return the choice that ``value`` stands for: YAML reads 32 as a number where the choice is a text."""
    same = [c for c in choices if type(c) is type(value) and c == value]
    spelt = [c for c in choices if isinstance(c, str) and not isinstance(value, bool) and c == str(value)]
    return next(iter(same + spelt), None)


def _number(value: Any) -> float | None:
    """Return ``value`` as a finite number, else None; texts count, because YAML reads 1e-3 as one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _wanted(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        count = "" if arguments[1:] == (Ellipsis,) else f" of {len(arguments)}"
        inner = {_wanted(a) for a in arguments if a is not Ellipsis}
        return f"a list{count}" + (f", each {inner.pop()}" if len(inner) == 1 else "")
    return _KINDS.get(hint, "a mapping")
