"""An index made in shards by any number of processes, each shard a small index, and put together at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from saywhere.errors import UserError
from saywhere.inference import ImageResult, find_images
from saywhere.inference.shards import Shard, Shards
from saywhere.search.index import Index
from saywhere.search.indexing import Changes, Indexing, is_video
from saywhere.search.store import Store

FOLDER = "shards"
"""Of an index, while it is made in shards."""


def begin_shards(index: Index, paths: Sequence[str | Path], count: int, regions: int | None = None) -> Shards:
    """Return the shards of the images that ``paths`` mean, in the folder of the index.

    Args:
        index: nothing is written to it before the shards are merged.
        paths, regions: see :meth:`saywhere.Index.add`.
        count: of the shards.

    Raises:
        UserError: the shards were begun with other images or another model, a path is that of a video, or the index
            is not in a folder.
    """
    if index.folder is None:
        raise UserError(
            f"--shards is for an index in a folder; into {index.place} index parts of the images side by side"
        )
    options = {"model": index.model.engine.vectors_digest(), "regions": regions}
    found = find_images(paths, [index.folder])
    if videos := [source.name for source in found if is_video(source.path)]:
        raise UserError(f"--shards is for images, and {videos[0]} is a video: index it without --shards")
    return Shards(index.folder / FOLDER, count, found, options, ".index")


def embed_shard(index: Index, shard: Shard, batch: int = 8, regions: int | None = None) -> Iterator[ImageResult[bool]]:
    """Embed the images of a shard that the index has not, or has otherwise; what the shard has already is kept.

    Args:
        index: as it was before; it is only read.
        shard: from :meth:`saywhere.inference.shards.Shards.work`.
        batch, regions: see :meth:`saywhere.Index.add`.

    Yields:
        what :meth:`saywhere.search.indexing.Indexing.results` does.

    Raises:
        LostClaimError: another process has taken the shard over.
    """
    known = Indexing(index.store, index.model, shard.sources).todo if len(index) else shard.sources
    with Index(shard.part, index.model) as part:
        yield from shard.claim.check(part.begin(known, regions=regions).results(batch))


def merge_shards(
    index: Index, paths: Sequence[str | Path], shards: Shards, results: Sequence[Path], components: int | None = None
) -> Changes:
    """Bring the index up to date with finished shards.

    Args:
        index, paths, components: see :meth:`saywhere.Index.add`.
        shards: all of which are done.
        results: from :meth:`saywhere.inference.shards.Shards.merging`.
    """
    skipped = {name: reason for number in range(shards.count) for name, reason in shards.skipped(number).items()}
    run = index.begin(paths, components=components)
    with ExitStack() as stack:
        run.merge((stack.enter_context(Store(result)) for result in results), skipped)
    return run.changes
