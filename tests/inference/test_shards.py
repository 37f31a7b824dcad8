"""Shards that several processes work on, and claims to them."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from saywhere.errors import UserError
from saywhere.inference import ResultsFile, Source, claims, shards
from saywhere.inference.claims import Claims, LostClaimError
from saywhere.inference.shards import Shards
from saywhere.search.store import Store
from saywhere.video.results import Places, TracksFile


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAUSE", 0.0)


def sources(count: int) -> list[Source]:
    return [Source(Path(f"{number}.jpg"), f"{number}.jpg", Path(f"{number}.jpg")) for number in range(count)]


def quiet(_: str, err: bool = False) -> None:
    """Say nothing."""


def make(folder: Path, count: int = 3, images: int = 7, **options: object) -> Shards:
    return Shards(folder / "s", count, sources(images), options)


@pytest.mark.parametrize(("images", "count"), [(7, 3), (2, 5), (100, 7), (1, 1)])
def test_each_image_is_in_one_shard_in_order(tmp_path: Path, images: int, count: int) -> None:
    made = make(tmp_path, count, images)
    blocks = [made.block(number) for number in range(count)]
    assert [source for block in blocks for source in block] == sources(images)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_work_gives_each_shard_once_and_merging_removes_the_folder(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    mine, others = first.work(), second.work()
    for number, work in ((0, mine), (1, others), (2, mine)):
        shard = next(work)
        assert shard.number == number, "what another works on is passed over"
        shard.part.write_text(f"{number}\n")
        if number == 1:
            assert list(first.merging(quiet)) == [], "not all are done"
        else:
            assert shard.finish({"x.jpg": "damaged"} if number else {})
    assert shard.number == 2 and not first.is_done(1)
    others.close()
    for again in make(tmp_path).work():
        assert again.part.read_text() == "1\n", "what a shard has is kept"
        assert again.finish({})
    assert list(mine) == [] and first.done() == 3 and first.skipped(2) == {"x.jpg": "damaged"}
    for results in second.merging(quiet):
        assert [path.read_text() for path in results] == ["0\n", "1\n", "2\n"]
    assert first.is_merged() and list(first.merging(quiet)) == [] and list(first.work()) == []
    assert list(tmp_path.iterdir()) == []


def test_other_images_options_or_counts_are_refused(tmp_path: Path) -> None:
    make(tmp_path, top=10)
    make(tmp_path, top=10)
    for options in ({"count": 4}, {"images": 8}, {"top": 5}):
        said = refuses("was started with other options", make, tmp_path, **({"top": 10} | options))
        assert next(iter(options)).removesuffix("ount") in said
    (tmp_path / "s" / "shards.json").write_text("{")
    refuses("cannot be read", make, tmp_path)


def test_what_a_killed_removal_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in make(tmp_path).work():
        shard.part.write_text("")
        shard.finish({})
    with monkeypatch.context() as killed:
        killed.setattr(shards.shutil, "rmtree", lambda *_, **__: None)
        assert len(list(make(tmp_path).merging(quiet))) == 1
    assert len(list(tmp_path.iterdir())) == 1 and not (tmp_path / "s").exists()
    make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_others_are_waited_for_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, told = make(tmp_path).work(), []
    first = next(mine)
    first.part.write_text("")
    looks = iter(range(3))

    def sleep(_: float) -> None:
        if next(looks) == 2:
            first.finish({})
            mine.close()

    monkeypatch.setattr(shards.time, "sleep", sleep)
    for shard in make(tmp_path).work(waiting=told.append):
        shard.part.write_text("")
        assert shard.finish({})
    assert told == [1] and make(tmp_path).done() == 3


def test_a_process_that_merges_is_waited_for_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in make(tmp_path).work():
        shard.part.write_text("")
        shard.finish({})
    merging = make(tmp_path).merging(quiet)
    next(merging)
    monkeypatch.setattr(shards.time, "sleep", lambda _: merging.close() if told else None)
    told: list[str] = []
    assert len(list(make(tmp_path).merging(lambda text, err=False: told.append(text)))) == 1
    assert told == [
        "waiting for another process that merges the shards; what a killed process left is taken over after 60 s"
    ]


def test_an_error_frees_the_shard(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), contextlib.closing(make(tmp_path).work()) as work:
        for _ in work:
            raise RuntimeError
    assert not list((tmp_path / "s").glob("*.lock"))


def test_only_one_process_has_a_claim(tmp_path: Path) -> None:
    one, two = Claims(tmp_path), Claims(tmp_path)
    claim = one.make("00000")
    assert claim and claim.held() and two.make("00000") is None and two.make("00001")
    claim.release()
    assert not claim.held()
    again = two.make("00000")
    assert again and again.generation == 0


def test_a_claim_is_taken_over_when_its_heart_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(claims.time, "monotonic", lambda: now)
    lock = tmp_path / "00000.0.lock"
    lock.touch()
    watching = Claims(tmp_path)
    for second, beat in ((0, 1), (50, 1), (59, 2), (118, 2)):
        now = float(second)
        os.utime(lock, (beat, beat))
        assert watching.make("00000") is None, "its heart beats; its clock does not matter"
    now = 59 + claims.STALE
    taken = watching.make("00000")
    assert taken and taken.generation == 1 and taken.held()
    assert Claims(tmp_path).make("00000") is None, "its new owner lives"
    taken.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".index"])
def test_the_shard_of_a_process_that_is_only_stopped_is_taken_over_with_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    opened: Callable[[Path], Any] = ResultsFile if suffix == ".jsonl" else open_index
    stopped, others = (Shards(tmp_path / "s", 1, sources(2), {}, suffix) for _ in range(2))
    with contextlib.closing(stopped.work()) as work:
        theirs = next(work)
        with contextlib.closing(opened(theirs.part)) as results:
            if isinstance(results, ResultsFile):
                results.append({"boxes": []}, "0.jpg")
            monkeypatch.setattr(claims, "STALE", -1.0)
            for shard in others.work():
                with contextlib.closing(opened(shard.part)) as again:
                    assert suffix == ".index" or again.done == {"0.jpg"}
                assert shard.part != theirs.part and shard.finish({})
            monkeypatch.undo()
        assert not theirs.finish({}) and others.done() == 1


def test_results_that_another_process_has_merged_and_removed_are_not_made_again(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        assert lines.merge(tmp_path / "s" / "00000.jsonl") == 0
    assert not (tmp_path / "s").exists()


def open_index(folder: Path) -> Store:
    store = Store(folder, {"size": "25", "digest": "d", "model": "m"})
    store.restamp({})
    return store


OPENERS: dict[str, Callable[[Path], Any]] = {
    "results": lambda path: ResultsFile(path),
    "tracks": lambda path: TracksFile(Places(path), "clip.mp4", {}),
    "index": open_index,
}


@pytest.mark.parametrize("kind", OPENERS)
def test_the_lock_of_a_process_that_just_ends_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first, pauses = OPENERS[kind](tmp_path / "it"), iter(range(3))

    def sleep(_: float) -> None:
        if next(pauses) == 1:
            first.close()

    monkeypatch.setattr(claims.time, "sleep", sleep)
    OPENERS[kind](tmp_path / "it").close()
    assert next(pauses) == 2
    with contextlib.closing(OPENERS[kind](tmp_path / "it")):
        monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
        refuses("another run is writing to", OPENERS[kind], tmp_path / "it")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_claims_stand_in_and_an_index_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    now, alive = 0.0, True

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 1 if seconds == claims.LOCK_PAUSE else 0
        if alive:
            os.utime(lock, (now, now))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(claims.time, "monotonic", lambda: now)
    monkeypatch.setattr(claims.time, "sleep", sleep)
    for kind in ("results", "tracks"):
        path = tmp_path / kind / ("x" * 255)
        path.parent.mkdir()
        with contextlib.closing(OPENERS[kind](path)):
            (lock,) = path.parent.glob("*.lock")
            refuses("another run is writing to it", OPENERS[kind], path)
        assert not lock.exists()
        lock.touch()
        alive = False
        OPENERS[kind](path).close()
        assert not [*path.parent.glob("*.lock")]
        alive = True
    with ResultsFile(tmp_path / "lines") as results:
        (lock,) = tmp_path.glob("*.lock")
        lock.with_name(lock.name.replace(".0.", ".1.")).touch()  # another run has taken it for dead
        with pytest.raises(UserError, match="lines: another run is writing to it, because this one seemed dead"):
            results.append({"boxes": []}, "a.jpg")
    assert (tmp_path / "lines").read_bytes() == b""
    refuses(r"index: this file system has no locks \(flock\)", open_index, tmp_path / "index")


def test_a_claim_has_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    made = Claims(tmp_path).make("00000")
    assert made
    lock = tmp_path / "00000.0.lock"
    with made:
        for _ in range(2):
            os.utime(lock, (1, 1))
            end = time.monotonic() + 600
            while lock.stat().st_mtime == 1:
                assert time.monotonic() < end, "no beat came"
                time.sleep(0.01)
    assert not lock.exists()


def test_who_was_taken_over_notices(tmp_path: Path) -> None:
    made = make(tmp_path, 1)
    with contextlib.closing(made.work()) as work:
        shard = next(work)
        assert list(shard.claim.check([1])) == [1]
        theirs = tmp_path / "s" / "00000.1.lock"
        theirs.touch()
        with pytest.raises(LostClaimError):
            next(shard.claim.check([1]))
        assert not shard.finish({}) and not made.is_done(0)
        made.result(0).write_text("theirs")
        theirs.unlink()
        (tmp_path / "s" / "00000.0.lock").unlink()
        assert not shard.finish({}) and made.result(0).read_text() == "theirs"
        assert list(work) == []
