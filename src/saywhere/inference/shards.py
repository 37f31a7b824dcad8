"""Images divided into shards, for any number of processes on one folder; results are merged without loss."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import put_in_place, short_name, write_text
from saywhere.inference.claims import STALE, Claim, Claims, LostClaimError
from saywhere.inference.results import require_same
from saywhere.inference.sources import Source
from saywhere.options import dataclass
from saywhere.report import Tell, counted

PLAN, MERGE = "shards.json", "merge"
PAUSE = 0.5
"""Seconds between checks of shards that other processes work on."""
AFTER = f"; what a killed process left is taken over after {STALE:.0f} s"
"""End of the messages of a process that waits."""


def require_listed(paths: Sequence[str]) -> None:
    """Raise ``UserError`` for a list on standard input, which only one process could read."""
    if "@-" in paths:
        raise UserError("--shards needs a list that every process can read: give @FILE instead of @-")


@dataclass(frozen=True)
class Shard:
    """A part of the images, claimed by this process.

    Attributes:
        part: file for its results; contains those of an earlier, interrupted run.
    """

    number: int
    sources: Sequence[Source]
    part: Path
    claim: Claim
    _result: Path = field(repr=False)

    def finish(self, skipped: Mapping[str, str]) -> bool:
        """Move the results to those of finished shards, with a file of the skipped images.

        Returns False if another process has taken over.
        """
        if not self.claim.held():
            return False
        errors = _errors(self._result.parent, self.number)
        if skipped:
            rows = [json.dumps({"image": name, "error": reason}) + "\n" for name, reason in skipped.items()]
            write_text(errors, "".join(rows))
        else:
            errors.unlink(missing_ok=True)
        if self._result.is_dir():  # by a process that seemed dead
            shutil.rmtree(self.part)
        else:
            put_in_place(self.part, self._result)
        return True


class Shards:
    """The shards of a job, and the folder of their results.

    The folder has these files per shard: ``NNNNN.jsonl`` (or another ``suffix``) when it is done, ``NNNNN.errors`` with
    the skipped images, ``NNNNN.G.part`` during work, and ``NNNNN.G.lock``, the claim.

    Args:
        sources: all images; a shard has consecutive ones.
        options: other settings that determine the results, such as the model.

    Raises:
        UserError: the folder was begun with other images, options or another count.
    """

    def __init__(
        self, folder: Path, count: int, sources: Sequence[Source], options: Mapping[str, Any], suffix: str = ".jsonl"
    ) -> None:
        self.folder, self.count, self.sources, self.suffix = folder, count, sources, suffix
        self._claims = Claims(folder)
        names = hashlib.blake2b(digest_size=16)
        for source in sources:
            names.update(os.fsencode(source.name) + b"\0")
        images = f"{len(sources)} images ({names.hexdigest()})"
        self._begin({"shards": count, "images": images, **options})

    def _begin(self, plan: Mapping[str, Any]) -> None:
        """Store the plan of the shards, or compare it with the stored one."""
        self._clear()
        known = None
        while known is None:  # repeat if another process is just merging
            with contextlib.suppress(FileNotFoundError):
                known = self._agree(plan)
        way_out = "give the same command, or remove the folder to start over"
        require_same(self.folder, known, dict.fromkeys(known) | dict(plan), way_out)

    def _agree(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan in the folder, after storing ours if there was none."""
        file = self.folder / PLAN
        self.folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            part = self.folder / f".{PLAN}.{uuid.uuid4().hex}"
            part.write_text(json.dumps(plan) + "\n", encoding="utf-8")
            put_in_place(part, file)
        return _read_json(file)

    def result(self, number: int) -> Path:
        """Return the path of a finished shard's results."""
        return self.folder / f"{number:05}{self.suffix}"

    def is_done(self, number: int) -> bool:
        """Return whether a shard is done."""
        return self.result(number).exists()

    def done(self) -> int:
        """Return the number of finished shards."""
        return sum(self.is_done(number) for number in range(self.count))

    def skipped(self, number: int) -> dict[str, str]:
        """Return the skipped images of a finished shard, with reasons."""
        try:
            lines = _errors(self.folder, number).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        return {row["image"]: row["error"] for row in map(json.loads, lines)}

    def block(self, number: int) -> Sequence[Source]:
        """Return the images of a shard."""
        total = len(self.sources)
        return self.sources[total * number // self.count : total * (number + 1) // self.count]

    def work(self, waiting: Callable[[int], object] = lambda _: None) -> Generator[Shard, None, None]:
        """Yield shards to work on until all are done; each is claimed until the next one is requested.

        Waits for the shards of other processes, after calling ``waiting`` once, and takes them over if those die.
        """
        told = False
        while left := [number for number in range(self.count) if self._is_open(number)]:
            worked = False
            for number in left:
                with contextlib.ExitStack() as stack:
                    claim = self._claims.make(f"{number:05}") if self._is_open(number) else None
                    if claim is None:
                        continue
                    stack.enter_context(claim)
                    if self._is_open(number):  # otherwise it was done in the meantime
                        yield Shard(number, self.block(number), self._part(claim, number), claim, self.result(number))
                        worked = True
            if not worked:
                if not told:
                    waiting(len(left))
                told = True
                time.sleep(PAUSE)

    def _is_open(self, number: int) -> bool:
        return not self.is_done(number) and not self.is_merged()

    def _part(self, claim: Claim, number: int) -> Path:
        """Return the file for a claimed shard's results, after moving those of an earlier claim there."""
        part = self.folder / f"{number:05}.{claim.generation}.part"
        for before in [*self.folder.glob(f"{number:05}.*.part")]:
            if before != part:
                with contextlib.suppress(FileNotFoundError):  # its process was alive and has just finished
                    _copy(before, part)  # a process that is only stopped has the old file open, and its lock
                    _delete(before)
        return part

    def is_merged(self) -> bool:
        """Return whether the results have been merged and the folder removed."""
        return not (self.folder / PLAN).exists()

    def merging(self, tell: Tell) -> Iterator[list[Path]]:
        """Yield the results of all shards once, for merging, if all are done and no other process merges.

        Then the folder is removed. If another process merges, wait for it, and tell so.
        """
        told = False
        while not self.is_merged() and self.done() == self.count:
            claim = self._claims.make(MERGE)
            if claim is None:
                if not told:
                    tell(f"waiting for another process that merges the shards{AFTER}", err=True)
                told = True
                time.sleep(PAUSE)
                continue
            with claim:
                if self.is_merged() or self.done() != self.count:  # by another process in the meantime
                    continue
                yield [self.result(number) for number in range(self.count)]
                if claim.held():
                    self._remove()
                return

    def _remove(self) -> None:
        """Remove the folder; the renaming is atomic, so that no process sees half of it."""
        self.folder.replace(self.folder.with_name(f".{short_name(self.folder.name)}.{uuid.uuid4().hex}.merged"))
        self._clear()

    def _clear(self) -> None:
        """Remove renamed folders, including those left by a killed run."""
        for away in self.folder.parent.glob(f".{short_name(self.folder.name)}.*.merged"):
            shutil.rmtree(away, ignore_errors=True)


def _copy(old: Path, new: Path) -> None:
    """Copy a file or folder, whole or not at all."""
    part = new.with_name(f".{new.name}")
    if old.is_dir():
        shutil.rmtree(part, ignore_errors=True)  # of a copy that was killed
        shutil.copytree(old, part)
    else:
        shutil.copyfile(old, part)
    put_in_place(part, new)


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def work_on(
    shards: Shards, do: Callable[[Shard], tuple[int, Mapping[str, str]]], done: str, tell: Tell
) -> dict[str, str]:
    """Process shards until all are done by this or other processes; return the images skipped here, with reasons.

    ``do`` processes a shard and returns how many of its images an earlier run had finished, and its skipped images.
    ``done`` is the past participle for messages, such as ``described``.
    """

    def wait_for(count: int) -> None:
        tell(f"waiting for {counted(count, 'shard')} that other processes work on{AFTER}", err=True)

    skipped: dict[str, str] = {}
    with contextlib.closing(shards.work(wait_for)) as work:
        for shard in work:
            title = f"shard {shard.number} of {shards.count}"
            try:
                already, missed = do(shard)
                kept = shard.finish(missed)
            except (LostClaimError, OSError):  # the process that takes over moves the files
                if shard.claim.held():
                    raise
                already, missed, kept = 0, {}, False
            if not kept:
                tell(f"{title}: was taken over by another process", err=True)
                continue
            skipped.update(missed)
            tail = f", {already} already {done}" if already else ""
            tail += f", {len(missed)} skipped" if missed else ""
            tell(f"{title}: {len(shard.sources) - already - len(missed)} {done}{tail}")
    return skipped


def _errors(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.errors"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); remove {file.parent} to start over") from error
