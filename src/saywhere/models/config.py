"""Configuration of models: frozen dataclasses that check themselves."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Self

from saywhere.errors import UserError


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


@dataclasses.dataclass(frozen=True)
class Config:
    """A model's options: made from JSON or YAML by :meth:`from_dict`, which refuses what it does not know."""

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> Self:
        """Options over the defaults; lists become tuples.

        Raises:
            UserError: an unknown key (with the nearest known one), or a value that does not fit.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in options:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                raise UserError(f"{cls.__name__} has no option {key!r}{hint}")
        try:
            return cls(**{key: _frozen(value) for key, value in options.items()})
        except TypeError as error:
            raise UserError(f"{cls.__name__}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values that JSON and YAML hold."""
        return dataclasses.asdict(self)

    def require(self, fits: bool, option: str, wanted: str) -> None:
        """Refuse a value: ``UserError`` says which option, its value and what is wanted."""
        if not fits:
            raise UserError(f"{type(self).__name__}: {option} is {getattr(self, option)!r}, but must be {wanted}")
