"""What an index holds, in a folder and in Qdrant; on disk after kills, damage, a full disk, beside another process."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from saywhere.inference import claims
from saywhere.models.aligner import ImageVectors
from saywhere.search import Qdrant
from saywhere.search import store as stores
from saywhere.search.qdrant import QdrantStore, point_id
from saywhere.search.scan import Question, Snapshot, with_hubness
from saywhere.search.store import Stamp, Store, explained
from saywhere.search.stores import Located, Video, moment_name

FACTS = {"size": "25", "digest": "d", "model": "m"}


def rows(images: list[ImageVectors]) -> list[tuple[str, Stamp, ImageVectors]]:
    return [(image.image, Stamp(7, 8, b"hash"), image) for image in images]


def content(store: Store) -> dict[str, tuple]:
    """All that an index says, by path."""
    snapshot = store.snapshot()
    entries = np.flatnonzero(snapshot.alive).tolist()
    names = store.look_up(snapshot, entries)
    assert names is not None and len(names) == len(store)
    found = {name: snapshot.load(entry, name) for entry, name in zip(entries, names, strict=True)}
    return {name: plain(image) for name, image in found.items()}


def plain(image: ImageVectors) -> tuple:
    return image.width, image.height, image.boxes.tolist(), image.vectors.tolist(), image.logits.tolist(), image.hubness


@pytest.fixture(params=["folder", "qdrant"])
def store(request, tmp_path) -> Iterator[Store | QdrantStore]:
    if request.param == "qdrant":
        pytest.importorskip("qdrant_client")
        yield QdrantStore(Qdrant(":memory:", "album"), FACTS)
        return
    with Store(tmp_path / "i", FACTS) as made:
        yield made


def test_images_are_given_back_updated_and_forgotten(store, random_images) -> None:
    images = random_images(70)  # more than one request
    store.put(rows(images))
    assert len(store) == 70 and {name: store.facts[name] for name in FACTS} == FACTS
    assert all(plain(store.load(image.image)) == plain(image) for image in images)
    assert store.stamps() == {image.image: Stamp(7, 8, b"hash") for image in images}
    changed = random_images(1, seed=5)[0]
    store.put([(images[2].image, Stamp(1, 2), changed)])
    assert plain(store.load(images[2].image)) == plain(changed)
    assert store.remove([images[0].image, "/not/there.jpg"]) == 1
    assert images[0].image not in store and images[1].image in store and len(store) == 69
    store.restamp({images[1].image: Stamp(2**40, 2**60, b"\xff")})
    assert store.stamps()[images[1].image] == Stamp(2**40, 2**60, b"\xff")
    assert plain(store.load(images[1].image)) == plain(images[1])


def test_videos_are_kept_with_their_moments(store, random_images) -> None:
    image, first, second = random_images(3)
    video = Video("/v/clip.mp4", Stamp(5, 6), 90_000, 180_000, 2.0, (3, [[0.5, 1.0]]))
    moments = [(moment_name(video.path, time), Stamp(0, 0), seen) for time, seen in ((0.0, first), (2.0, second))]
    store.put([(image.image, Stamp(7, 8, b"h"), image), *moments], video)
    assert store.videos() == {video.path: replace(video, damage=[3, [[0.5, 1.0]]])} and len(store) == 3
    assert set(store.stamps()) == {image.image}
    found = store.nearest(Question(with_hubness(second)[:1], np.ones((1, 1), np.float32)), 3)
    assert {(each.vectors.image, each.time): store.locate(each.entry) for each in found} == {
        (image.image, None): Located(image.image, None, Stamp(7, 8, b"h")),
        **{(video.path, time): Located(video.path, time, video.stamp) for time in (0.0, 2.0)},
    }
    assert plain(store.load(moment_name(video.path, 2.0))) == plain(second)
    for other in (point_id(video.path), point_id("/not/there.jpg"), "", point_id(image.image).upper(), "\0",
                  "1", "1-", "-0", "1-9", "1- 0", "1-\u0660", f"1-{2**64}", "1-0\n"):  # fmt: skip
        assert store.locate(other) is None
    assert store.load(video.path) is None  # its state is no image
    assert store.remove([video.path]) == 1 and store.videos() == {} and len(store) == 1


def test_an_empty_index_has_no_answer(store) -> None:
    assert store.nearest(Question(np.ones((2, 25), np.float32), np.ones((2, 1), np.float32)), 5) == []
    assert store.stamps() == {} and store.videos() == {} and store.remove([]) == 0


def test_names_that_are_no_text_are_kept(store, random_images) -> None:
    name = os.fsdecode(b"/photos/\xff.jpg")
    store.put([(name, Stamp(1, 1), random_images(1)[0])])
    assert list(store.stamps()) == [name] and name in store and store.load(name).image == name
    assert store.remove([name]) == 1 and len(store) == 0


def test_a_snapshot_stays_as_it_was_and_readers_see_what_is_committed(tmp_path, random_images) -> None:
    images = random_images(8)
    with Store(tmp_path, FACTS) as writer, Store(tmp_path) as reader:
        writer.put(rows(images[:4]))
        before = reader.snapshot()
        assert reader.snapshot() is before
        writer.put(rows(images[4:]))
        writer.remove([images[0].image])
        assert len(before) == 4 and len(reader.snapshot()) == 7
        assert writer.compact() and not writer.compact()
        np.testing.assert_array_equal(before.load(0, "").vectors, images[0].vectors)
        assert reader.look_up(before, [0]) is None  # its numbers are others by now
        assert reader.look_up(reader.snapshot(), [0]) == [images[1].image]
        assert sorted(p.name for p in tmp_path.glob("*.bin")) == ["images-1.bin", "regions-1.bin", "vectors-1.bin"]
        assert set(content(reader)) == {image.image for image in images[1:]}


def test_files_are_written_anew_when_much_is_forgotten(tmp_path, random_images) -> None:
    images = random_images(10)
    with Store(tmp_path, FACTS) as store:
        store.put(rows(images))
        store.encode(8)
        store.remove([image.image for image in images[:2]])
        assert not store.compact(0.9)
        size = (tmp_path / "vectors-0.bin").stat().st_size
        assert store.compact(0.01) and (tmp_path / "vectors-1.bin").stat().st_size < size
        store.encode()
        assert store.snapshot().extent.components == 8 and store.snapshot().extent.coded == 8


def test_codes_follow_the_images(tmp_path, random_images) -> None:
    with Store(tmp_path, FACTS) as store:
        store.encode(8)  # nothing to code yet
        store.put(rows(random_images(10)))
        store.encode(8)
        first = store.snapshot()
        store.put(rows(random_images(5, seed=1)))
        store.encode()
        more = store.snapshot()
        assert (more.extent.coded, more.extent.coding) == (15, first.extent.coding)
        np.testing.assert_array_equal(more.codes[: len(first.codes)], first.codes)
        store.put(rows(random_images(60, seed=2)))
        store.encode()  # the basis was found on a few of the images only
        assert store.snapshot().extent.coding > first.extent.coding
        assert len(store.snapshot().codes) == store.snapshot().extent.regions
        store.encode(0)
        assert store.snapshot().codes.shape[1] == 0 and not list(tmp_path.glob("codes-*"))


def test_two_writers_exclude_each_other_and_readers_do_not(tmp_path, random_images, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    with Store(tmp_path, FACTS) as first, Store(tmp_path) as second:
        first.put(rows(random_images(2)))
        refuses("another run is writing to this index", second.put, rows(random_images(1, seed=1)))
        assert len(second) == 2
    with Store(tmp_path) as third:
        third.put(rows(random_images(1, seed=1)))
        assert len(third) == 3


def write_all(folder: Path, images: list[ImageVectors]) -> None:
    """What a run does: forget, add what is missing in batches, write anew, code."""
    with Store(folder, FACTS) as store:
        store.tidy()
        known = store.stamps()
        todo = [row for row in rows(images) if row[0] not in known]
        store.remove([name for name in known if name.startswith("/photos/9")])
        for start in range(0, len(todo), 4):
            store.put(todo[start : start + 4])
        store.compact(0.02)
        store.encode(8)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_run_killed_twenty_times_gives_what_an_undisturbed_one_gives(tmp_path, random_images) -> None:
    images, chance = random_images(120), random.Random(3)
    write_all(tmp_path / "undisturbed", images)
    torn = tmp_path / "torn"
    with Store(torn, FACTS) as store:
        store.put(rows(random_images(6, seed=9)))  # to be forgotten
    fork, sizes = multiprocessing.get_context("fork"), []
    for _ in range(20):
        process = fork.Process(target=write_all, args=(torn, images))
        process.start()
        time.sleep(chance.uniform(0.005, 0.06))
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        with Store(torn) as store:
            sizes.append(len(content(store)))
    write_all(torn, images)
    with Store(torn) as one, Store(tmp_path / "undisturbed") as other:
        assert content(one) == content(other)
        assert one.snapshot().extent.coded == len(images)


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path, random_images, monkeypatch) -> None:
    images = random_images(6)
    with Store(tmp_path, FACTS) as store:
        store.put(rows(images[:3]))
        before = content(store)
        real = os.fsync

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            store.put(rows(images[3:]))
        assert error.value.filename == str(tmp_path / "images-0.bin")
        monkeypatch.setattr(os, "fsync", real)
        assert content(store) == before
        store.put(rows(images[3:]))
        assert len(content(store)) == 6


def test_a_full_disk_is_reported_as_one_where_sqlite_meets_it(tmp_path) -> None:
    with pytest.raises(OSError, match="No space") as error, explained(tmp_path / stores.DATABASE):
        raise sqlite3.OperationalError("database or disk is full")
    assert error.value.errno == errno.ENOSPC


def test_ctrl_c_as_a_transaction_begins_leaves_none_open(tmp_path, random_images, monkeypatch) -> None:
    class Interrupted(sqlite3.Connection):
        def execute(self, *arguments):
            done = super().execute(*arguments)
            if stopped:
                raise stopped.pop()
            return done

    stopped: list[BaseException] = []
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
    with Store(tmp_path, FACTS) as store:
        store.put(rows(random_images(2)))
        stopped.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            store.stamps()
        assert len(store.stamps()) == 2


@pytest.mark.parametrize("file", ["vectors-0.bin", "regions-0.bin", "images-0.bin"])
@pytest.mark.parametrize("way", ["cut", "changed", "removed"])
def test_damage_is_named_with_its_repair(tmp_path, random_images, file, way) -> None:
    images = random_images(8)
    with Store(tmp_path, FACTS) as store:
        store.put(rows(images))
        store.encode(8)
        whole = content(store)
    path = tmp_path / file
    data = bytearray(path.read_bytes())
    if way == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif way == "removed":
        path.unlink()
    else:
        data[len(data) // 2] ^= 0x55
        path.write_bytes(data)
    with Store(tmp_path) as store:
        refuses(r"\.bin: is damaged .* --index .* --repair", content, store)
        lost = store.repair()
        kept = content(store)
        assert 0 < lost <= 8 and len(kept) == 8 - lost and kept.items() <= whole.items()
        if way == "changed" and file == "vectors-0.bin":
            assert lost == 1
        store.put([row for row in rows(images) if row[0] not in kept])
        store.encode()
        assert content(store) == whole


@pytest.mark.parametrize("file", ["basis-0-1.bin", "codes-0-1.bin"])
@pytest.mark.parametrize("way", ["changed", "noise"])
def test_damaged_codes_are_named_with_their_repair(tmp_path, random_images, file, way) -> None:
    """Also when new images are to be coded by a damaged basis, or were behind damaged codes."""
    images = random_images(30)
    asked = Question(with_hubness(images[3])[:1], np.ones((1, 1), np.float32))
    with Store(tmp_path, FACTS) as store:
        store.put(rows(images[:20]))
        store.encode(8)
        best = [found.vectors.image for found in store.nearest(asked, 5)]
        data = bytearray((tmp_path / file).read_bytes())
        if way == "changed":
            data[-1] ^= 1
        else:
            data[:] = np.random.default_rng(0).bytes(len(data))
        (tmp_path / file).write_bytes(data)
    for _ in range(2):
        with Store(tmp_path) as store:
            refuses(rf"{file}: is damaged \(a checksum differs\); .* --repair", store.nearest, asked, 5)
            assert [found.vectors.image for found in store.nearest(asked, 5, exact=True)][:1] == best[:1]
            store.put(rows(images[20:]))
            if file.startswith("basis"):
                refuses("a checksum differs", store.encode)
            else:
                store.encode()
    with Store(tmp_path) as store:
        assert store.repair() == 0
        store.settle()
        assert store.nearest(asked, 30)[0].vectors.image == images[3].image and store.snapshot().extent.coded == 30


def test_codes_are_checked_once_for_each_state_of_theirs(tmp_path, random_images, monkeypatch) -> None:
    images, looks = random_images(30), list[int]()
    asked = Question(with_hubness(images[3])[:1], np.ones((1, 1), np.float32))
    plain = Snapshot.check_codes

    def counted(snapshot: Snapshot, folder: Path, basis_alone: bool = False) -> None:
        looks.append(0) if not basis_alone else None
        plain(snapshot, folder, basis_alone)

    monkeypatch.setattr(Snapshot, "check_codes", counted)
    with Store(tmp_path, FACTS) as writer, Store(tmp_path) as reader:
        for some in (images[:10], images[10:20]):
            writer.put(rows(some))
            writer.encode(8)
            for _ in range(2):
                reader.nearest(asked, 5)
        assert len(looks) == 2
        writer.put(rows(images[20:]))
        reader.nearest(asked, 5)
        assert len(looks) == 2 and len(reader) == 30


def test_a_damaged_database_and_another_version_are_named(tmp_path, random_images, monkeypatch) -> None:
    with Store(tmp_path, FACTS) as store:
        store.put(rows(random_images(3)))
    monkeypatch.setattr(stores, "VERSION", "6")
    refuses("has format 5, and this program reads 6", Store, tmp_path)
    (tmp_path / stores.DATABASE).write_bytes(b"no database" * 1000)
    refuses("is damaged .*index the images again", Store, tmp_path)
    refuses("no index is here", Store, tmp_path / "nowhere")


def test_entries_are_found_again_until_they_have_other_numbers(tmp_path, random_images) -> None:
    images = random_images(4)
    question = Question(np.ones((1, 25), np.float32), np.ones((1, 1), np.float32))
    with Store(tmp_path, FACTS) as store:
        store.put(rows(images))
        found = {each.entry: store.locate(each.entry) for each in store.nearest(question, 4)}
        assert found == {
            f"0-{n}": Located(images[n].image, None, stamp) for n, (_, stamp, _) in enumerate(rows(images))
        }
        store.remove([images[0].image])
        assert store.locate("0-0") is None and store.locate("0-1") == found["0-1"]
        assert store.compact()
        assert not any(map(store.locate, found)) and store.locate("1-0") == found["0-1"]
