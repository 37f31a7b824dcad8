"""Configuration of networks: frozen dataclasses that check themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Self, get_args

from saywhere import options as user_options
from saywhere.errors import UserError

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
