"""A model through the pictures of a data set, as far as it has not yet been."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.progress import progress

if TYPE_CHECKING:
    from saywhere.describing import Source
    from saywhere.regions import Regions


def describe_each(
    model: Any,
    sources: Sequence[Source],
    done: Collection[str],
    keep: Callable[[str, Regions], None],
    batch: int,
    top: int | None = None,
    boxes: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Describe the pictures that are not ``done`` and ``keep`` the regions of each; the names of those that could not
    be read, with the reasons. Ctrl-C tells how far it came, and that the same command goes on; exit code 130.
    """
    from saywhere.cli.describe import little_memory
    from saywhere.describing import describe_pictures

    skipped: dict[str, str] = {}
    todo = [source for source in sources if source.name not in done]
    count = len(sources) - len(todo)
    with little_memory(batch), progress("describing", len(sources), count) as advance:
        try:
            long_side = model.preprocess.long_side
            for one in describe_pictures(model, todo, boxes, top=top, batch=batch, long_side=long_side):
                if one.regions is None:
                    skipped[one.source.name] = one.error or "cannot be read"
                else:
                    keep(one.source.name, one.regions)
                    count += 1
                advance()
        except KeyboardInterrupt:
            typer.echo(f"interrupted after {count} of {len(sources)} pictures; the same command goes on", err=True)
            raise typer.Exit(130) from None
    return skipped


def skip_notes(skipped: Mapping[str, str]) -> list[str]:
    """A line for each picture that was skipped."""
    return [f"skipped: {printable(name)}: {reason}" for name, reason in skipped.items()]


def first_reason(skipped: Mapping[str, str]) -> str:
    """The first picture that was skipped, and why."""
    name, reason = next(iter(skipped.items()))
    return f"{printable(name)}: {reason}"


def printable(name: str) -> str:
    """A file name that is not UTF-8 still prints."""
    return name.encode("utf-8", "replace").decode("utf-8")
