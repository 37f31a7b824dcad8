"""``saywhere index``: embed images and videos for search, once."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import saywhere
from saywhere.cli.options import Batch, Chosen, Collection, Images, IndexFolder, ShardCount, Url, find_place
from saywhere.cli.printing import report_skipped, skip_notes
from saywhere.errors import UserError, explain_oom
from saywhere.files import printable
from saywhere.video import parse_duration

if TYPE_CHECKING:
    from saywhere.inference import ImageResult
    from saywhere.inference.shards import Shard
    from saywhere.search.indexing import Indexing

POLL = 2.0
"""Seconds between two scans of the folders, where the system does not report changes."""
TRUSTED = 600.0
"""Seconds after which everything is scanned anyway: a busy system drops change events."""
LARGE = 20_000
"""Number of images from which codes are recommended."""


Every = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", show_default="the index's, 0.5s if new", help="Interval between the indexed frames of a video."
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Keep the index up to date until Ctrl-C.")]
Poll = Annotated[
    float | None,
    typer.Option(
        "--poll", min=0.1, metavar="SECONDS", show_default=f"{POLL:g}, where the system reports no changes",
        help="With --watch: scan the folders at this interval instead of waiting for the system to report changes.",
    ),
]  # fmt: skip


def index(
    paths: Images,
    folder: IndexFolder = None,
    url: Url = None,
    collection: Collection = None,
    repair: bool = typer.Option(
        False, "--repair", help="Embed images with damaged vectors again, also those of other folders."
    ),
    components: int | None = typer.Option(
        None,
        min=0,
        metavar="P",
        help="Also store codes of P principal components, for much faster searches of a large index (try 64; 0: none).",
    ),
    batch: Batch = 8,
    chosen: Chosen = Chosen(),
    shards: ShardCount = None,
    every: Every = None,
    watch: Watch = False,
    poll: Poll = None,
) -> None:
    """Create or update a search index: embed new and changed images and videos, and remove those that are gone.

    Each batch is saved as soon as it is done; after an interruption the same command continues.

    Exit code: 0 success; 1 files skipped because they cannot be read; 2 error.
    """
    from saywhere.inference.shards import require_listed
    from saywhere.inference.sources import NoImages

    if shards is not None:
        require_listed(paths)
        for given, option in ((every is not None, "--every"), (repair, "--repair"), (watch, "--watch")):
            if given:
                raise UserError(f"{option} is for one process: give it without --shards")
    if poll is not None and not watch:
        raise UserError("--poll is for --watch: give --watch as well")
    seconds = None if every is None else parse_duration(every)
    place = find_place(folder, url, collection)
    with saywhere.Index(place, chosen.model, load=chosen.load) as made, explain_oom(batch):
        if shards is not None:
            return _index_shards(made, paths, shards, batch, components)
        begin = partial(made.begin, components=components, every=seconds)
        try:
            run = begin(paths, repair=repair)
        except NoImages as error:
            if not watch:
                raise
            return _watch(made, paths, poll, batch, begin, str(error))
        for path in run.emptied:
            typer.echo(f"note: {printable(path)}: has no images left; those it had leave the index", err=True)
        done = run.changes.unchanged
        _embed(run.results(batch), done + len(run.todo) + len(run.videos), done)
        if watch:
            return _watch(made, paths, poll, batch, begin, run.changes)
        _report(made, run.changes)


def _watch(
    made: saywhere.Index,
    paths: list[str],
    poll: float | None,
    batch: int,
    begin: Callable[[list[str]], Indexing],
    first: saywhere.search.Changes | str,
) -> None:
    """Update the index whenever something changes, and print a line for each image, until Ctrl-C.

    ``begin`` starts a run over paths; ``first`` is what the first run changed, or why there was none.
    """
    told: dict[str, str] = {}
    with contextlib.suppress(KeyboardInterrupt):
        if isinstance(first, str):
            typer.echo(f"waiting for images: {first}", err=True)
            told[str(made.place)] = first
        else:
            typer.echo(str(first))
            for line in _new_notes(first.skipped, told):
                typer.echo(line, err=True)
        for _ in _ticks(made, paths, poll):
            away: dict[str, str] = {}
            try:
                run = begin(paths)
            except UserError as error:  # for instance a folder that is empty at the moment
                away[str(made.place)] = str(error)
                run = _begin_rest(begin, paths)
            for path in run.gone if run else ():
                typer.echo(f"removed: {printable(_as_given(path, paths))}")
            for one in run.results(batch) if run else ():
                if one.result is not None:
                    typer.echo(f"{'added' if one.result else 'updated'}: {printable(one.source.name)}")
            for line in _new_notes({**away, **(run.changes.skipped if run else {})}, told):
                typer.echo(line, err=True)
            sys.stdout.flush()
    typer.echo(f"{len(made):,} in {made.place}")


def _as_given(image: str, paths: list[str]) -> str:
    """Return the path of an image as below the first folder or pattern in ``paths`` that it belongs to."""
    from saywhere.inference.sources import split_pattern

    for path in paths:
        given = split_pattern(path)[0] if glob.has_magic(path) and not os.path.lexists(path) else path
        folder = os.path.abspath(given)
        if image == folder:
            return path
        if image.startswith(os.path.join(folder, "")):
            return os.path.normpath(os.path.join(given, os.path.relpath(image, folder)))
    return image


def _begin_rest(begin: Callable[[list[str]], Indexing], paths: list[str]) -> Indexing | None:
    """Start a run over the paths that have images, if others have none; return None if there is nothing to do now."""
    from saywhere.inference.sources import name_images
    from saywhere.search.indexing import INDEXED

    there: list[str] = []
    for path in paths:
        with contextlib.suppress(UserError):
            name_images([path], (), INDEXED)
            there.append(path)
    with contextlib.suppress(UserError):
        return begin(there) if 0 < len(there) < len(paths) else None


def _new_notes(skipped: dict[str, str], told: dict[str, str]) -> list[str]:
    """Return lines for images that were not skipped for the same reason last time, and record them in ``told``."""
    new = {name: reason for name, reason in skipped.items() if told.get(name) != reason}
    told.clear()
    told.update(skipped)
    return skip_notes(new)


def _ticks(made: saywhere.Index, paths: list[str], poll: float | None) -> Iterator[object]:
    """Yield when it is time to scan: at once, then after changes settle or, without watchfiles, every ``poll`` seconds.

    Lists and patterns are polled, since they may match files anywhere. So are folders while one of them is missing,
    and everything if there are more folders than the system can watch.
    """
    told = poll is None and importlib.util.find_spec("watchfiles") is not None and all(map(os.path.isdir, paths))
    how = "for changes" if told else f"by scanning every {poll or POLL:g} s"
    typer.echo(f"watching {how}; Ctrl-C ends", err=True)
    while True:
        if told and None not in _folders(paths):
            try:
                yield from _changes(made, paths)
            except OSError as error:  # watchfiles sets no errno
                if "limit" in str(error):
                    told = False
                    note = f"note: more folders than the system can watch; scanning every {POLL:g} s from now on"
                    typer.echo(note, err=True)
        yield None
        time.sleep(poll or POLL)


def _changes(made: saywhere.Index, paths: list[str]) -> Iterator[object]:
    """Yield at once, then after each change that the system reports.

    Ends when there is a new folder, also one that replaces one of ``paths``, since its content may not be watched; and
    after ``TRUSTED`` seconds.
    """
    watchfiles: Any = importlib.import_module("watchfiles")
    own = "" if made.folder is None else os.path.join(os.path.abspath(made.folder), "")

    def counts(_: object, path: str) -> bool:
        return not os.path.basename(path).startswith(".") and not path.startswith(own or "\0")

    before, end = _folders(paths), time.monotonic() + TRUSTED
    told = watchfiles.watch(*paths, watch_filter=counts, debounce=1000, step=100, rust_timeout=500,
                            yield_on_timeout=True)  # fmt: skip
    for number, changes in enumerate(told):
        if changes or number == 0:  # at first, for changes from before the watch began
            yield changes
        new = any(os.path.isdir(path) for _, path in changes)
        if new or time.monotonic() > end or _folders(paths) != before:
            return


def _folders(paths: list[str]) -> list[tuple[int, int] | None]:
    """Return device and inode of the folder at each path; None for a missing one."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


def _embed(results: Iterable[ImageResult[Any]], total: int, done: int = 0) -> dict[str, str]:
    """Consume the results with a progress bar; return the skipped images and why, by name."""
    from saywhere.inference.run import keep_each

    return keep_each(results, lambda _: None, total, done, "indexing")


def _index_shards(made: saywhere.Index, paths: list[str], count: int, batch: int, components: int | None) -> None:
    """Index shards beside other processes, and merge them if this process finishes the last one.

    The index itself is written only then; a shard's finished work is kept.
    """
    from saywhere.inference import find_images
    from saywhere.inference.shards import Shards, work_on
    from saywhere.search.indexing import Indexing, index_digest
    from saywhere.search.store import Store

    if made.folder is None:
        instead = f"for {made.place} give each process a part of the images, without --shards"
        raise UserError(f"--shards is for an index in a folder; {instead}")
    found = find_images(paths, [made.folder])
    if videos := [source.name for source in found if source.is_video]:
        raise UserError(f"--shards is for images; {videos[0]} is a video: index it without --shards")
    shards = Shards(made.folder / "shards", count, found, {"model": index_digest(made.model)}, ".index")

    def embed(shard: Shard) -> tuple[int, dict[str, str]]:
        todo = Indexing(made.store, made.model, shard.sources).todo if len(made) else shard.sources
        with saywhere.Index(shard.part, made.model) as part:
            results = shard.claim.check(part.begin(todo).results(batch))
            return len(shard.sources) - len(todo), _embed(results, len(shard.sources))

    skipped = work_on(shards, embed, "indexed", typer.echo)
    changes: saywhere.search.Changes | None = None
    for results in shards.merging(typer.echo):
        broken = {name: reason for number in range(shards.count) for name, reason in shards.skipped(number).items()}
        run = made.begin(paths, components=components)
        with contextlib.ExitStack() as stack:
            run.merge((stack.enter_context(Store(result)) for result in results), broken)
        changes = run.changes
    if changes is None:
        report_skipped(skipped)
    else:
        typer.echo(f"all {shards.count} shards are done")
        _report(made, changes)


def _report(made: saywhere.Index, changes: saywhere.search.Changes) -> None:
    from saywhere.search.store import Store as EmbeddedStore

    typer.echo(str(changes))
    store = made.store
    if len(made) >= LARGE and isinstance(store, EmbeddedStore) and not store.snapshot().extent.components:
        note = f"note: with --components 64 a search of {len(made):,} images takes a tenth of the time"
        typer.echo(note, err=True)
    for name, damage in changes.damaged.items():
        typer.echo(f"{printable(name)}: {damage}", err=True)
    report_skipped(changes.skipped)
    if changes.damaged:
        raise typer.Exit(1)
