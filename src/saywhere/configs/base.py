"""Configuration of networks: frozen dataclasses that check themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Self, get_args

from saywhere import options as user_options
from saywhere.errors import UserError
from saywhere.options import nest

MOST_FEATURES = 16384
"""Numbers of a vector, or filters of a layer, at most: the weights between two layers of so many have a gigabyte."""
CALIBRATED = "saywhere calibrate stores it in calibration.json of the model's folder"
"""What has become of options that were fitted after training."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of a network or of a part of one; :meth:`from_dict` makes them and refuses unknown keys.

    Keys that earlier versions had stand in ``GONE`` of a subclass, with the way out that the message names.
    """

    GONE: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], prefix: str = "") -> Self:
        """Make a configuration of the options that differ from the defaults; lists become tuples.

        A nested mapping, such as ``{"decoding": {"beam_size": 3}}``, changes the options that it names and leaves the
        others at the defaults of this configuration. ``prefix`` stands before the options in messages.

        Raises:
            UserError: an unknown key (with the nearest known one), or a value that does not fit.
        """
        return user_options.from_dict(cls, options, source="" if prefix else cls.__name__, prefix=prefix)

    @classmethod
    def restore(cls, stored: Mapping[str, Any], **made: Config) -> Self:
        """Make a configuration of what :meth:`to_dict` gave, as :meth:`from_dict`, but without its checks.

        Args:
            stored: values as JSON holds them.
            made: parts that are configurations already.
        """
        config = object.__new__(cls)
        for field in dataclasses.fields(cls):
            value, default = stored.get(field.name, field.default), field.default
            if isinstance(default, Config) and isinstance(value, Mapping):
                value = default.restore(value)
            else:
                value = _as_tuples(value)
            object.__setattr__(config, field.name, made.get(field.name, value))
        return config

    def merge(self, options: Mapping[str, Any], prefix: str = "") -> Self:
        """Return this configuration with other values for ``options``, a nested mapping as in :meth:`from_dict`.

        Raises:
            UserError: an unknown key (with the nearest known one), or a value that does not fit.
        """
        return user_options.merge(self, options, prefix=prefix)

    def to_dict(self) -> dict[str, Any]:
        """Return all options as plain nested values that JSON and YAML hold."""
        return dataclasses.asdict(self)

    def require(self, fits: bool, option: str, wanted: str) -> None:
        """Refuse a value: ``UserError`` says which option (dots lead into parts), its value and what is wanted."""
        if not fits:
            raise UserError(f"{option} is {attrgetter(option)(self)!r}, but must be {wanted}")

    def require_at_least(self, least: int, *names: str) -> None:
        """Refuse options below ``least``."""
        for name in names:
            self.require(attrgetter(name)(self) >= least, name, f"at least {least}")

    def require_between(self, least: int, most: int, *names: str) -> None:
        """Refuse options below ``least`` or above ``most``."""
        for name in names:
            self.require(least <= attrgetter(name)(self) <= most, name, f"between {least} and {most}")

    def require_features(self, *names: str) -> None:
        """Refuse widths of layers below 1 or above :data:`MOST_FEATURES`."""
        self.require_between(1, MOST_FEATURES, *names)

    def require_share(self, *names: str) -> None:
        """Refuse options that are not between 0 and 1."""
        for name in names:
            self.require(0 <= attrgetter(name)(self) <= 1, name, "between 0 and 1")

    def require_below_one(self, *names: str) -> None:
        """Refuse options that are not at least 0 and below 1."""
        for name in names:
            self.require(0 <= attrgetter(name)(self) < 1, name, "at least 0 and below 1")

    def require_choice(self, choices: Iterable[tuple[str, Any]]) -> None:
        """Refuse options that are none of their ``Literal``'s values; ``choices`` are pairs of option and Literal."""
        for name, kind in choices:
            values = get_args(kind)
            self.require(attrgetter(name)(self) in values, name, " or ".join(map(str, values)))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


TRUNK = "trunk"


def override(configs: Mapping[str, Config], options: Mapping[str, Any]) -> dict[str, Config]:
    """Return the configurations of a model's parts with other options.

    Args:
        configs: by part, such as ``densecap``, ``aligner``, ``captioner``.
        options: values by name, with dots or nested. A name may begin with the part (``captioner.decoding.beam_size``);
            without it the option is that of the one part that has it. ``trunk`` is changed for all parts alike.

    Raises:
        UserError: no part has an option, several have it, or a value does not fit; one line.
    """
    wanted: dict[str, dict[str, Any]] = {part: {} for part in configs}
    given: set[tuple[str, str]] = set()
    for name, value in _leaves(nest(options)).items():
        first, _, rest = name.partition(".")
        for part in [first] if first in configs and rest else _owners(configs, name):
            option = rest if part == first and rest else name
            if (part, option) in given:
                raise UserError(f"{option} of the {part} is set twice")
            given.add((part, option))
            wanted[part][option] = value
    several = len(configs) > 1
    return {part: c.merge(nest(wanted[part]), prefix=f"{part}." if several else "") for part, c in configs.items()}


def _owners(configs: Mapping[str, Config], name: str) -> list[str]:
    """The parts whose option ``name`` is."""
    owners = [part for part, config in configs.items() if has_option(config, name)]
    if len(owners) > 1 and name.partition(".")[0] != TRUNK:
        raise UserError(f"{name} is an option of several parts: set {' or '.join(f'{part}.{name}' for part in owners)}")
    if owners or len(configs) == 1:
        return owners or list(configs)  # the one part says what it does not know
    parts = ", ".join(configs)
    raise UserError(f"no part of the model has the option {name}; its parts are {parts}, and {_near(configs, name)}")


def _near(configs: Mapping[str, Config], name: str) -> str:
    last = name.rpartition(".")[2]
    known = [f"{part}.{option}" for part, config in configs.items() for option in _leaves(config.to_dict())]
    near = [option for option in known if option.rpartition(".")[2] == last]
    return f"near it are {', '.join(near)}" if near else f"an option is named as {known[-1]}"


def has_option(config: Config, name: str) -> bool:
    """Whether ``name``, with dots into parts, is an option of ``config``."""
    value: Any = config
    for part in name.split("."):
        if not dataclasses.is_dataclass(value) or part not in {f.name for f in dataclasses.fields(value)}:
            return False
        value = getattr(value, part)
    return True


def _leaves(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name."""
    leaves: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves
