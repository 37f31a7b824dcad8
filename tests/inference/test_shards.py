"""Shards that several processes work on, and claims to them."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def make(folder: Path, count: int = 3, images: int = 7, **options: object) -> Shards:
    return Shards(folder / "s", count, sources(images), options)


@functools.cache
def dead_process() -> dict[str, object]:
    """The owner of a claim of this machine whose process has ended."""
    code = "import json; from saywhere.inference import claims; print(json.dumps(claims.owner()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


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
            assert list(first.merging()) == [], "not all are done"
        else:
            assert shard.finish({"x.jpg": "damaged"} if number else {})
    assert shard.number == 2 and not first.is_done(1)
    others.close()
    for again in make(tmp_path).work():
        assert again.part.read_text() == "1\n", "what a shard has is kept"
        assert again.finish({})
    assert list(mine) == [] and first.done() == 3 and first.skipped(2) == {"x.jpg": "damaged"}
    for results in second.merging():
        assert [path.read_text() for path in results] == ["0\n", "1\n", "2\n"]
    assert first.is_merged() and list(first.merging()) == [] and list(first.work()) == []
    assert list(tmp_path.iterdir()) == []


def test_other_images_options_or_counts_are_refused(tmp_path: Path) -> None:
    make(tmp_path, top=10)
    make(tmp_path, top=10)
    for options in ({"count": 4}, {"images": 8}, {"top": 5}):
        with pytest.raises(UserError, match="was started with other options") as caught:
            make(tmp_path, **({"top": 10} | options))
        assert next(iter(options)).removesuffix("ount") in str(caught.value)
    (tmp_path / "s" / "shards.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        make(tmp_path)


def test_what_a_killed_removal_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in make(tmp_path).work():
        shard.part.write_text("")
        shard.finish({})
    with monkeypatch.context() as killed:
        killed.setattr(shards.shutil, "rmtree", lambda *_, **__: None)
        assert len(list(make(tmp_path).merging())) == 1
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


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "00000.0.lock").write_text(json.dumps(dead_process()))
    claim = Claims(tmp_path).make("00000")
    assert claim and claim.generation == 1 and claim.held()
    assert Claims(tmp_path).make("00000") is None, "its new owner lives"
    claim.release()
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_another_machine_is_taken_over_when_its_heart_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(claims.time, "monotonic", lambda: now)
    lock = tmp_path / "00000.0.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "place": "elsewhere", "process": os.getpid(), "started": "1"}))
    watching = Claims(tmp_path)
    for second, beat in ((0, 1), (100, 1), (119, 2), (230, 2)):
        now = float(second)
        os.utime(lock, (beat, beat))
        assert watching.make("00000") is None, "its heart beats; its clock does not matter"
    now = 119 + claims.STALE
    taken = watching.make("00000")
    assert taken and taken.generation == 1


@pytest.mark.parametrize(
    "text",
    ['{"ho', "null", "[1]", "7", '"x"', "{}", "[" * 100_000, "\udcff", '{"place": [], "process": 1, "started": "1"}']
    + [f'{{"place": PLACE, "process": {number}, "started": "1"}}' for number in (0, -1, 1 << 40, "null", "1.5")],
)
def test_a_claim_that_names_no_process_counts_as_one_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    now = 0.0
    monkeypatch.setattr(claims.time, "monotonic", lambda: now)
    written = text.replace("PLACE", json.dumps(claims.owner()["place"]))
    (tmp_path / "00000.0.lock").write_bytes(written.encode("utf-8", "surrogateescape"))
    watching = Claims(tmp_path)
    assert watching.make("00000") is None
    now += claims.STALE
    assert watching.make("00000") is not None


def test_an_empty_claim_is_taken_over_at_once(tmp_path: Path) -> None:
    (tmp_path / "00000.0.lock").touch()
    claim = Claims(tmp_path).make("00000")
    assert claim and claim.generation == 1


@pytest.mark.parametrize("links", [True, False])
def test_a_claim_has_its_text_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Where there are no hard links, as on exFAT, it is at least still made by one process alone."""
    link, texts = os.link, list[str]()

    def watched(old: Path, new: Path) -> None:
        if not links:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        assert not os.path.exists(new)
        link(old, new)
        texts.append(Path(new).read_text())

    monkeypatch.setattr(os, "link", watched)
    claim = Claims(tmp_path).make("00000")
    assert claim and Claims(tmp_path).make("00000") is None
    assert texts == [json.dumps(claims.owner())] * links
    assert [path.name for path in tmp_path.iterdir()] == ["00000.0.lock"]


LEADER = """
import ctypes, os, platform, sys, threading
from pathlib import Path
from saywhere.inference import ResultsFile, Source
from saywhere.inference.shards import Shards

made = Shards(Path(sys.argv[1], "s"), 1, [Source(Path("0.jpg"), "0.jpg", Path("0.jpg"))], {})
work = made.work()
shard = next(work)
lines = ResultsFile(shard.part)
lines.append({"width": 1, "height": 1, "boxes": []}, "0.jpg")
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit: of this thread alone
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="a system call of Linux"
)
def test_a_shard_is_taken_over_when_the_last_thread_of_its_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose first thread has ended is a zombie, and locks its files until the others have ended."""
    command = [sys.executable, "-c", LEADER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "ready\n"
        status = Path(f"/proc/{process.pid}/stat")
        end = time.monotonic() + 600
        while status.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < end, "the first thread does not end"
        looks = iter(range(1_000_000))

        def sleep(_: float) -> None:
            if next(looks) == 3 and process.stdin:
                process.stdin.close()
            assert time.monotonic() < end, "the shard is not taken over"

        monkeypatch.setattr(shards.time, "sleep", sleep)
        for shard in make(tmp_path, 1, 1).work():
            assert next(looks) > 3 and shard.claim.generation == 1
            with ResultsFile(shard.part) as lines:
                assert lines.done == {"0.jpg"}
            assert shard.finish({})


def stub_status(folder: Path, process: int, text: str) -> None:
    (folder / str(process)).mkdir(parents=True, exist_ok=True)
    (folder / str(process) / "stat").write_text(text.replace("PID", str(process)))


@pytest.mark.parametrize(
    ("status", "dead"),
    [
        (None, False),  # hidepid=2 hides the processes of others
        ("PID (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0", False),
        ("PID (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 78 0", True),  # another one of the same number
        ("PID (a) b) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 77 0", False),
        ("PID (a) b) X 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 77 0", False),
        ("PID (a) b) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0", True),
        ("PID (a) b) X 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0", True),
    ],
)
def test_what_the_system_says_of_a_process_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str | None, dead: bool
) -> None:
    def kill(process: int, number: int) -> None:
        assert (process, number) == (4321, 0)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(claims, "PROCESSES", tmp_path / "proc")
    (tmp_path / "00000.0.lock").write_text(json.dumps({**claims.owner(), "process": 4321, "started": "77"}))
    if status is not None:
        stub_status(tmp_path / "proc", 4321, status)
    assert (Claims(tmp_path).make("00000") is not None) == dead


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
        with pytest.raises(UserError, match="another run is writing to"):
            OPENERS[kind](tmp_path / "it")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_claims_stand_in_and_an_index_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    for kind in ("results", "tracks"):
        path = tmp_path / kind / ("x" * 255)
        path.parent.mkdir()
        with contextlib.closing(OPENERS[kind](path)):
            (lock,) = path.parent.glob("*.lock")
            with pytest.raises(UserError, match=r"another run is writing .*remove \.[0-9a-f]+\.\*\.lock beside it"):
                OPENERS[kind](path)
        assert not lock.exists()
        lock.write_text(json.dumps(dead_process()))
        OPENERS[kind](path).close()
        assert not [*path.parent.glob("*.lock")]
    with pytest.raises(UserError, match=r"index: this file system has no locks \(flock\)"):
        open_index(tmp_path / "index")


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
        theirs.write_text("{}")
        with pytest.raises(LostClaimError):
            next(shard.claim.check([1]))
        assert not shard.finish({}) and not made.is_done(0)
        made.result(0).write_text("theirs")
        theirs.unlink()
        (tmp_path / "s" / "00000.0.lock").unlink()
        assert not shard.finish({}) and made.result(0).read_text() == "theirs"
        assert list(work) == []
