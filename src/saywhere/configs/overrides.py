"""Options that a user gives for a saved model, on all or on one of its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from saywhere.configs.base import Config
from saywhere.errors import UserError
from saywhere.options import nest

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
