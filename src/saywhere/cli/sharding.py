"""What the commands that divide their images into shards have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.inference.shards import Shard, Shards


class Sharding(NamedTuple):
    """Say how the work is divided: ``--shards``, ``--shard`` and ``--retry-failed``."""

    shards: int
    only: int | None = None
    retry_failed: bool = False

    @classmethod
    def of(cls, count: int | None, only: int | None, retry_failed: bool, paths: Sequence[str]) -> Sharding | None:
        """Return what the options say of the images of ``paths``; None if there are no shards.

        Raises:
            UserError: the options do not fit each other.
        """
        if count is None:
            if only is not None or retry_failed:
                option = "--retry-failed" if only is None else "--shard"
                raise UserError(f"{option} is for images in shards: give --shards N")
            return None
        if only is not None and only >= count:
            raise UserError(f"--shard {only}: the shards are counted from 0 to {count - 1}")
        if "@-" in paths:
            raise UserError("--shards needs a list that every process can read: give @FILE instead of @-")
        return cls(count, only, retry_failed)


def work_on(shards: Shards, sharding: Sharding, do: Callable[[Shard], Mapping[str, str]], done: str) -> dict[str, str]:
    """Do shards until all are done by this or other processes, with a line for each.

    Args:
        shards: the work.
        sharding: which of them.
        do: does one, and returns the images that were skipped, with the reasons.
        done: what is done with an image, such as ``described``.

    Returns:
        the images that this process skipped, with the reasons.
    """
    from saywhere.inference.claims import LostClaimError

    def tell(count: int) -> None:
        typer.echo(f"waiting for {count} shards that other processes work on", err=True)

    skipped: dict[str, str] = {}
    with contextlib.closing(shards.work(sharding.only, sharding.retry_failed, tell)) as work:
        for shard in work:
            title = f"shard {shard.number} of {shards.count}"
            try:
                missed = do(shard)
                kept = shard.finish(missed)
            except (LostClaimError, OSError):  # who takes over moves the files away
                if shard.claim.held():
                    raise
                missed, kept = {}, False
            if not kept:
                typer.echo(f"{title}: was taken over by another process", err=True)
                continue
            skipped.update(missed)
            tail = f", {len(missed)} skipped" if missed else ""
            typer.echo(f"{title}: {len(shard.sources) - len(missed)} {done}{tail}")
    if not shards.is_merged() and (left := shards.count - shards.done()):
        typer.echo(f"{left} of {shards.count} shards are not done yet")
    return skipped
