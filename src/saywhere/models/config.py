"""Configuration of models: frozen dataclasses that check themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from saywhere import options as user_options
from saywhere.errors import UserError


@dataclasses.dataclass(frozen=True)
class Config:
    """A model's options: made from JSON or YAML by :meth:`from_dict`, which refuses what it does not know."""

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], prefix: str = "") -> Self:
        """Options over the defaults; lists become tuples. ``prefix`` stands before the options in messages.

        Raises:
            UserError: an unknown key (with the nearest known one), or a value that does not fit.
        """
        return user_options.from_dict(cls, options, source="" if prefix else cls.__name__, prefix=prefix)

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values that JSON and YAML hold."""
        return dataclasses.asdict(self)

    def require(self, fits: bool, option: str, wanted: str) -> None:
        """Refuse a value: ``UserError`` says which option, its value and what is wanted."""
        if not fits:
            raise UserError(f"{option} is {getattr(self, option)!r}, but must be {wanted}")
