"""Data classes without generated code, and those made from plain values of YAML and JSON, the options of users."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, dataclass_transform, overload

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
        *parts, last = str(name).split(".")
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
        if base is None and name not in values and default_of(f) is dataclasses.MISSING:
            raise UserError(f"{source}{prefix}{name} is missing")
    hints = _hints(cls)
    made = {}
    for key, value in values.items():
        current = default_of(fields[key]) if base is None else getattr(base, key)
        made[key] = _converted(value, hints[key], source, prefix + key, current)
    try:
        return cls(**made) if base is None else typing.cast(T, dataclasses.replace(typing.cast(Any, base), **made))
    except UserError as error:
        raise UserError(f"{source}{prefix}{error}") from None


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _hint(key: str, fields: Mapping[str, dataclasses.Field[Any]], prefix: str) -> str:
    """Return a suggestion: an option of that name inside a part, or one with a similar name."""
    parts = {name: default for name, f in fields.items() if dataclasses.is_dataclass(default := default_of(f))}
    inside = [f"{name}.{key}" for name, part in parts.items() if hasattr(part, key)]
    from difflib import get_close_matches

    near = inside or get_close_matches(key, list(fields), n=1, cutoff=0.5)
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


# Data classes
#
# The standard decorator compiles the methods of each class anew in each process. For the sixty classes behind a command
# that takes a twentieth of its time. Here all classes share the same methods, whose calls take twice as long. Classes
# that ``import saywhere`` offers use the standard decorator, which the documentation's generator knows.


@overload
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
def dataclass(*, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
    """Make a data class, as :func:`dataclasses.dataclass` with the same options.

    ``fields``, ``replace`` and ``asdict`` know it. Methods that the class has itself are kept.

    Example:
        >>> @dataclass(frozen=True)
        ... class Box:
        ...     width: float
        ...     height: float = 1.0
        >>> dataclasses.replace(Box(2.0), height=3.0)
        Box(width=2.0, height=3.0)
    """

    def make(cls: type) -> type:
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        own, init = cls.__dict__, [each for each in dataclasses.fields(made) if each.init]
        made.__record__ = (
            tuple(each.name for each in init if not each.kw_only),
            frozenset(each.name for each in init),
            {each.name: each.default for each in dataclasses.fields(made) if each.default is not dataclasses.MISSING},
            [(each.name, each.default_factory) for each in dataclasses.fields(made)
             if each.default_factory is not dataclasses.MISSING],
        )  # fmt: skip
        methods: dict[str, Any] = {"__init__": _init, "__repr__": _repr, "__signature__": _Signature()}
        if eq:
            methods |= {"__eq__": _equal, "__hash__": _hash if frozen else None}
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        for name, method in methods.items():
            if name not in own or (name == "__hash__" and own[name] is None):  # an own __eq__ sets it to None
                setattr(made, name, method)
        return made

    return make if cls is None else make(cls)


class _Signature:
    """The signature that ``help`` shows, made when it asks."""

    def __get__(self, _: object, owner: type) -> Any:
        from inspect import Parameter, Signature

        kinds = {False: Parameter.POSITIONAL_OR_KEYWORD, True: Parameter.KEYWORD_ONLY}
        given = sorted((each for each in dataclasses.fields(owner) if each.init), key=lambda each: each.kw_only is True)
        made = [Parameter(each.name, kinds[each.kw_only is True], default=_shown_default(each)) for each in given]
        return Signature(made)


def _shown_default(each: dataclasses.Field[Any]) -> Any:
    if each.default is not dataclasses.MISSING:
        return each.default
    from inspect import Parameter

    return Parameter.empty if each.default_factory is dataclasses.MISSING else ...


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    positional, names, defaults, factories = self.__record__
    given = dict(zip(positional, values, strict=False))
    if len(values) > len(positional) or not named.keys() <= names or not given.keys().isdisjoint(named):
        raise TypeError(f"{type(self).__name__}{self.__signature__} does not take {len(values)} values and {[*named]}")
    given |= named
    state: dict[str, Any] = self.__dict__
    state |= defaults
    state |= given
    for name, factory in factories:
        if name not in given:
            state[name] = factory()
    if not names <= state.keys():
        raise TypeError(f"{type(self).__name__} lacks {', '.join(sorted(names - state.keys()))}")
    if (finish := getattr(self, "__post_init__", None)) is not None:
        finish()


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, each.name) for each in dataclasses.fields(self) if each.compare)


def _equal(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
