"""This program called again with arguments of its own command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

START = "from saywhere.cli import main; main()"
"""What a Python runs that is this program."""


def without_options(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return arguments without some options that take a value, and without their values.

    Example:
        >>> without_options(["index", "a", "--workers", "3", "--shards=2"], ["--workers"])
        ['index', 'a', '--shards=2']
    """
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in names:
            kept.append(argument)
        elif not equals:
            next(rest, None)
    return kept
