"""Shards that several processes work on, and claims to them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saywhere.errors import UserError
from saywhere.inference import Source, claims, shards
from saywhere.inference.claims import Claims, LostClaimError
from saywhere.inference.shards import Shards


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PAUSE", 0.0)


def sources(count: int) -> list[Source]:
    return [Source(Path(f"{number}.jpg"), f"{number}.jpg", Path(f"{number}.jpg")) for number in range(count)]


def make(folder: Path, count: int = 3, images: int = 7, **options: object) -> Shards:
    return Shards(folder / "s", count, sources(images), options)


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
    for again in make(tmp_path).work(only=1):
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
        with pytest.raises(UserError, match="was begun otherwise") as caught:
            make(tmp_path, **({"top": 10} | options))
        assert next(iter(options)).removesuffix("ount") in str(caught.value)
    (tmp_path / "s" / "shards.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        make(tmp_path)


def test_finished_shards_with_errors_are_taken_up_again_if_asked(tmp_path: Path) -> None:
    for shard in make(tmp_path).work():
        shard.part.write_text("old\n")
        shard.finish({"b.jpg": "away"} if shard.number == 1 else {})
    assert list(make(tmp_path).work()) == []
    (again,) = [shard for shard in make(tmp_path).work(retry_failed=True) if shard.finish({})]
    assert again.number == 1 and make(tmp_path).result(1).read_text() == "old\n"
    assert make(tmp_path).skipped(1) == {}
    assert list(make(tmp_path).work(retry_failed=True)) == [], "no shard has errors any more"


def test_a_shard_that_fails_again_is_tried_once_by_each_process(tmp_path: Path) -> None:
    for shard in make(tmp_path).work():
        shard.part.write_text("")
        shard.finish({"b.jpg": "away"} if shard.number else {})
    again = [shard.number for shard in make(tmp_path).work(retry_failed=True) if shard.finish({"b.jpg": "still"})]
    assert again == [1, 2] and make(tmp_path).skipped(2) == {"b.jpg": "still"}


def test_what_a_killed_removal_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / ".s.0123.merged"
    left.mkdir()
    (left / "00000.jsonl").write_text("merged already")
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
    lock.unlink()
    torn = tmp_path / "00007.0.lock"
    torn.write_text('{"ho')
    assert watching.make("00007") is None
    now += claims.STALE
    assert watching.make("00007") is not None


def test_a_claim_has_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    made = Claims(tmp_path).make("00000")
    assert made
    lock = tmp_path / "00000.0.lock"
    with made:
        for _ in range(2):
            os.utime(lock, (1, 1))
            end = time.monotonic() + 120
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
