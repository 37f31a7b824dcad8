"""An index of photographs in Python: what is added, found and refused."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from photographs import noise
from PIL import Image
from refusals import refuses
from stubs import calibrated
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

import saywhere
from saywhere.images import open_image
from saywhere.inference import claims
from saywhere.models.model import Model
from saywhere.models.nouns import noun_tree, pack_leaves
from saywhere.search import Qdrant, Query
from saywhere.search.indexing import Indexing
from saywhere.search.phrases import LIKELY
from saywhere.search.qdrant import QdrantStore
from saywhere.search.stores import Stamp


@pytest.fixture(scope="module")
def model() -> Model:
    return aligner_model(tiny_aligner(hubs=4))


@pytest.fixture
def album(tmp_path) -> Path:
    folder = tmp_path / "album"
    for number in range(6):
        path = folder / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(96, 64, number).save(path)
    return folder


@pytest.fixture
def index(model, tmp_path) -> Iterator[saywhere.Index]:
    """One that is empty, in the folder i."""
    with saywhere.Index(tmp_path / "i", model) as index:
        yield index


def counts(changes: saywhere.search.Changes) -> tuple[int, ...]:
    return changes.added, changes.updated, changes.unchanged, changes.removed, len(changes.skipped)


def test_an_index_follows_its_folder(index, model, album) -> None:
    assert len(index) == 0
    assert counts(index.add(album, batch=4)) == (6, 0, 0, 0, 0) and len(index) == 6
    assert counts(index.add([album])) == (0, 0, 6, 0, 0)
    os.utime(album / "0/0.png")  # another time, the same content
    noise(96, 64, 77).save(album / "0/2.png")
    (album / "1/1.png").unlink()
    noise(80, 64, 9).save(album / "new.png")
    (album / "bad.jpg").write_bytes(b"not an image")
    changes = index.add(album)
    assert str(changes) == "1 added, 1 updated, 4 unchanged, 1 removed, 1 skipped"
    assert list(changes.skipped) == [str(album / "bad.jpg")] and len(index) == 6
    assert counts(index.add(album)) == (0, 0, 6, 0, 1)
    expected = model.embed(str(album / "0/2.png"))
    entry = index.store.find(str(album / "0/2.png"))
    assert entry is not None
    stored = index.store.snapshot().load(entry, "")
    np.testing.assert_allclose(stored.vectors, expected.vectors, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(stored.boxes, expected.boxes)
    assert index.remove(album / "new.png") == 1 and len(index) == 5


def test_an_open_index_lets_others_write_unless_a_run_goes_on(index, model, album, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    (album / "0/0.png").rename(tmp_path / "later.png")
    index.add(album / "0")
    refuses("no such file", index.add, album / "nothing")
    with saywhere.Index(tmp_path / "i", model) as other:
        assert counts(other.add(album / "1")) == (3, 0, 0, 0, 0)
        other.remove(album / "1/1.png")
        assert len(index) == 4 and len(index.search(image=album / "1/3.png")) == 4  # sees what the other wrote
        assert counts(index.add([album, tmp_path / "later.png"])) == (2, 0, 4, 0, 0)
        run = index.begin([album])
        busy = "another run is writing to this index"
        refuses(busy, other.add, album)
        index.add(album)
        refuses("no such file", index.begin, [album / "nothing"])
        refuses(busy, other.add, album)
        assert [*run.results()] == []
        refuses(busy, other.add, album)  # for the run could go on
        index.close()
        assert counts(other.add(album)) == (0, 0, 5, 0, 0)


def test_a_run_that_begins_while_a_thread_adds_keeps_others_from_writing(index, model, album, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    inside, begun, embed = threading.Event(), threading.Event(), Indexing._embed

    def wait(*given: Any) -> Any:
        inside.set()
        return begun.wait(60) and embed(*given)

    monkeypatch.setattr(Indexing, "_embed", wait)
    adding = threading.Thread(target=index.add, args=(album / "0",))
    adding.start()
    assert inside.wait(60)
    run = index.begin([album / "1"])
    begun.set()
    adding.join()
    with saywhere.Index(index.place, model) as other:
        refuses("another run is writing to this index", other.begin, [album])
        assert len([*run.results()]) == 3 and len(other) == 6


def test_a_run_that_cannot_begin_lets_others_write(index, model, album, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOCK_WAIT", 0.0)
    refuses("^every: give a time", index.begin, [album], every=-1)
    with saywhere.Index(index.place, model) as other:
        assert counts(other.add(album)) == (6, 0, 0, 0, 0)


@pytest.mark.parametrize("paths", [Image.new("RGB", (8, 8)), [Image.new("RGB", (8, 8))], 5, None])
def test_what_is_no_path_is_refused(index, paths) -> None:
    for call in (index.add, index.remove):
        refuses("^paths must be a path or several, not (Image|int|NoneType)$", call, paths)


def test_images_in_a_folder_that_may_not_be_read_any_more_stay(index, album, monkeypatch) -> None:
    closed, scan, look = str(album / "1"), os.scandir, os.lstat

    def forbid(real):
        def call(path, *rest, **more):
            if str(path).startswith(os.path.join(closed, "") if real is look else closed):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *rest, **more)

        return call

    assert counts(index.add(album)) == (6, 0, 0, 0, 0)
    monkeypatch.setattr(os, "scandir", forbid(scan))
    monkeypatch.setattr(os, "lstat", forbid(look))
    monkeypatch.setattr(os.path, "lexists", lambda path: not str(path).startswith(closed))
    changes = index.add(album)
    assert counts(changes) == (0, 0, 3, 0, 1) and len(index) == 6
    assert changes.skipped == {closed: "this folder cannot be read (Permission denied)"}
    monkeypatch.undo()
    assert counts(index.add(album)) == (0, 0, 6, 0, 0)


def test_a_file_that_vanishes_while_it_is_compared_costs_no_other(index, album, monkeypatch) -> None:
    index.add(album)
    os.utime(album / "0/0.png")  # so its content is compared
    noise(96, 64, 77).save(album / "1/1.png")
    digest = hashlib.file_digest

    def remove_first(file: Any, method: Any) -> Any:
        if str(file.name).endswith("0.png"):
            os.unlink(file.name)
            raise FileNotFoundError(file.name)
        return digest(file, method)

    monkeypatch.setattr(hashlib, "file_digest", remove_first)
    assert counts(index.add(album)) == (0, 1, 4, 0, 1) and len(index) == 5


def test_a_model_in_a_folder_that_is_not_utf_8_is_named_and_found_again(model, album, tmp_path) -> None:
    folder = tmp_path / os.fsdecode(b"mod\xe8le")
    folder.mkdir()
    asked: list[str] = []
    with saywhere.Index(tmp_path / "i", folder, load=lambda name: (asked.append(name), model)[1]) as index:
        index.add(album)
    with saywhere.Index(tmp_path / "i", load=lambda name: (asked.append(name), model)[1]) as again:
        assert len(again.search("a dog", top=3)) == 3
    assert asked == [str(folder)] * 2


def test_what_becomes_unreadable_is_no_longer_found(index, album) -> None:
    index.add(album)
    (album / "0/0.png").write_bytes(b"damaged")
    assert counts(index.add(album)) == (0, 0, 5, 0, 1)
    assert len(index) == 5 and index.store.find(str(album / "0/0.png")) is None


def test_only_what_is_gone_from_the_given_folders_is_forgotten(index, album) -> None:
    index.add(album)
    shutil.rmtree(album / "1")
    assert counts(index.add(album / "0")) == (0, 0, 3, 0, 0)
    assert counts(index.add(str(album / "0" / "*.png"))) == (0, 0, 3, 0, 0)
    assert counts(index.add(album)) == (0, 0, 3, 3, 0)


@pytest.mark.parametrize("file", ["vectors-0.bin", "images-0.bin"])
def test_what_is_damaged_is_embedded_again_from_any_folder(model, album, tmp_path, file) -> None:
    """Images of an archive as well, also after a run that was killed; a file that is gone is named."""
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(album / "0", "0")
    with saywhere.Index(tmp_path / "i", model) as index:
        assert counts(index.add([album, tmp_path / "more.tar"])) == (9, 0, 0, 0, 0)
        whole = index.store.stamps()
    (tmp_path / "i" / file).write_bytes(b"")
    (album / "0/4.png").unlink()
    with saywhere.Index(tmp_path / "i", model) as index:
        killed = index.begin([album / "1"], repair=True).results(2)
        next(killed)
        killed.close()
        assert len(index) == 2
        changes = index.add(album / "1")
        gone = str(album / "0/4.png")
        assert counts(changes) == (0, 6, 2, 0, 1) and changes.skipped[gone] == "no such file"
        assert index.store.stamps() == {path: stamp for path, stamp in whole.items() if path != gone}
        assert counts(index.add(album / "1")) == (0, 0, 3, 0, 0)


def test_a_damaged_image_that_is_gone_from_a_given_folder_is_removed(model, album, tmp_path) -> None:
    with saywhere.Index(tmp_path / "i", model) as index:
        index.add(album)
    (tmp_path / "i/vectors-0.bin").write_bytes(b"")
    (album / "0/4.png").unlink()
    with saywhere.Index(tmp_path / "i", model) as index:
        assert counts(index.add(album, repair=True)) == (0, 5, 0, 1, 0)


def test_a_folder_without_an_image_left_leaves_the_index(index, album) -> None:
    index.add(album)
    for path in (album / "1").iterdir():
        path.unlink()
    refuses("no file matches this pattern", index.add, f"{album}/0/*.jpg")
    assert counts(index.add([album / "1", album / "0"])) == (0, 0, 3, 3, 0)
    refuses("1: no images in this folder", index.add, [album / "1", album / "0"])
    for path in (album / "0").iterdir():
        path.unlink()
    assert counts(index.add(f"{album}/0/*.png")) == (0, 0, 0, 3, 0) and len(index) == 0
    assert index.search("two dogs") == []


def test_an_image_is_known_by_every_name_of_its_folder(index, album, monkeypatch) -> None:
    monkeypatch.chdir(album)
    assert counts(index.add(".")) == (6, 0, 0, 0, 0)
    assert counts(index.add([album, "../album/0", "1/../0"])) == (0, 0, 6, 0, 0)
    shutil.rmtree(album / "1")
    assert counts(index.add("../album")) == (0, 0, 3, 3, 0)


def test_an_image_replaced_while_it_is_embedded_is_embedded_again(index, model, album, monkeypatch) -> None:
    path = album / "0/4.png"
    real = model.embed

    def embed(images, **options):
        found = real(images, **options)
        if any(image.name == str(path) for image in images):
            noise(96, 64, 99).save(path)
        return found

    monkeypatch.setattr(model, "embed", embed)
    assert counts(index.add(album)) == (6, 0, 0, 0, 0)
    monkeypatch.undo()
    assert counts(index.add(album)) == (0, 1, 5, 0, 0)
    assert counts(index.add(album)) == (0, 0, 6, 0, 0)


@pytest.mark.parametrize("components", [None, 8])
def test_a_search_ranks_as_the_model_does(index, model, album, components) -> None:
    paths = sorted(str(path) for path in album.rglob("*.png"))
    images = model.embed(paths)
    index.add(album, components=components)
    for sentence in SENTENCES:
        scores = model.similarity(images, [model.embed_text(sentence)])[:, 0]
        hits = index.search(sentence, top=4)
        assert [hit.image for hit in hits] == [paths[i] for i in np.argsort(-scores)[:4]]
        np.testing.assert_allclose([hit.similarity for hit in hits], np.sort(scores)[::-1][:4], rtol=2e-3)
        grounded = model.ground(hits[0].image, sentence, part="aligner")
        assert hits[0].regions.captions == grounded.captions and len(grounded) > 0
        np.testing.assert_allclose(hits[0].regions.boxes, grounded.boxes)


def test_phrases_are_added(index, model, album) -> None:
    paths = sorted(str(path) for path in album.rglob("*.png"))
    images = model.embed(paths)
    index.add(album)
    hits = index.search("two dogs + green grass", top=6)
    one, two = (model.similarity(images, [model.embed_text(t)])[:, 0] for t in ("two dogs", "green grass"))
    assert [hit.image for hit in hits] == [paths[i] for i in np.argsort(-(one + two))]
    assert hits[0].regions.captions == ("two dogs", "green grass")
    row = hits[0].to_dict()
    assert [phrase["words"] for phrase in row["phrases"]] == ["two dogs", "green grass"]
    assert (row["image"], row["width"], row["height"]) == (hits[0].image, 96, 64)
    assert index.search(Query(("two dogs", "green grass")), top=1)[0].image == hits[0].image
    told = f"similarity {hits[0].similarity:.2f}, 'two dogs', 'green grass'"
    assert repr(hits[0]) == f"Hit({hits[0].image!r}: {told})"
    assert repr(replace(hits[0], probability=0.5, time=1.5)) == repr(hits[0]).replace(
        f": similarity {hits[0].similarity:.2f}", " at 1.5 s: 0.50"
    )


def test_an_image_finds_itself_first(index, album) -> None:
    index.add(album)
    for path in sorted(album.rglob("*.png")):
        hits = index.search(image=open_image(path), top=2)
        assert hits[0].image == str(path) and len(hits) == 2 and len(hits[0].regions) == 0


def test_an_index_knows_its_model(model, album, tmp_path) -> None:
    loaded: list[str] = []

    def load(name: str) -> Model:
        loaded.append(name)
        return model

    with saywhere.Index(tmp_path / "i", "mine", load=load) as index:
        index.add(album)
    with saywhere.Index(tmp_path / "i", load=load) as index:
        index.search("a dog")
    assert loaded == ["mine", "mine"]
    with saywhere.Index(tmp_path / "i", aligner_model(tiny_aligner(seed=1))) as other:
        for use in (lambda: other.search("a dog"), lambda: other.add(album)):
            refuses(r"was made by another model \(then named mine\)", use)


def test_wrong_use_is_one_line(index, album) -> None:
    index.add(album)
    for use, message in (
        (lambda: index.search(), "a text or an image"),
        (lambda: index.search("a dog - green"), "does not know how probably images show 'green'"),
        (lambda: index.search(["a dog"]), "query must be a string or a Query, not list"),
        (lambda: index.search("a dog", without=3), "without must be a string or a list of strings, not int"),
        (lambda: index.search("a dog", top=0), "top must be a whole number of at least 1, not 0"),
        (lambda: index.search("a dog", top=2.5), "top must be a whole number of at least 1, not 2.5"),
        (lambda: index.add(album, components=-1), "components must be a whole number of at least 0, not -1"),
        (lambda: index.search(image="no.png"), "no.png: no such file"),
    ):
        refuses(message, use)


def taken_on(path: Path, when: str, tag: int = 36867) -> None:
    """Write a photograph with the time at which it was taken."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[tag] = when
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(96, 64, len(str(path))).save(path, exif=exif)


def test_a_search_is_narrowed_by_dates_and_folders(index, tmp_path) -> None:
    album = tmp_path / "album"
    taken_on(album / "holidays/a.jpg", "2024:05:01 12:00:00")
    taken_on(album / "holidays/b.jpg", "2024:06:30 23:59:59")
    taken_on(album / "work/c.jpg", "2024:05:20 08:00:00")
    noise(96, 64, 5).save(album / "old.png")  # without EXIF data: the time of the file counts
    os.utime(album / "old.png", (0, 1_000_000_000))
    everything = ["a.jpg", "b.jpg", "c.jpg", "old.png"]

    def found(**options) -> list[str]:
        return sorted(Path(hit.image).name for hit in index.search("two dogs", **options))

    index.add(album)
    assert found() == everything
    assert found(after="2024-05-01") == ["a.jpg", "b.jpg", "c.jpg"]
    assert found(after="2024-05-02", before="2024-06-30") == ["c.jpg"] and found(before="2001-09-09") == []
    assert found(before=date(2024, 5, 2)) == ["a.jpg", "old.png"]
    assert found(under="holidays") == found(under=[album / "holidays/"]) == ["a.jpg", "b.jpg"]
    assert found(under=["holidays", "work"], after="2024-05-10") == ["b.jpg", "c.jpg"]
    assert found(under="holiday") == found(under="old.png") == []
    assert index.search("two dogs", under="work")[0].regions.width == 96
    os.utime(album / "old.png", (0, 15_000_000_000))  # of a wrong clock: later than nanoseconds of 64 bits reach
    assert counts(index.add(album)) == (0, 0, 4, 0, 0) and found(after="2400-01-01") == ["old.png"]
    refuses("after must be a date such as 2024-05-01, not 'May'", found, after="May")


def test_scans_have_dates_and_folders_of_macos_are_found(index, tmp_path) -> None:
    taken_on(tmp_path / "Mu\u0308ller/a.jpg", "1999:05:01 12:00:00", 36868)
    index.add(tmp_path / "Mu\u0308ller")
    for name in ("M\u00fcller", "Mu\u0308ller", tmp_path / "M\u00fcller"):
        assert len(index.search("two dogs", before="1999-05-02", under=name)) == 1


def test_the_date_of_a_heic_counts_and_damaged_exif_is_no_matter(index, tmp_path, recwarn) -> None:
    heif = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif.get_ifd(0x8769)[36867] = "2024:05:01 12:00:00"
    made = heif.from_pillow(noise(96, 64))
    made.info["exif"] = exif.tobytes()
    (tmp_path / "album").mkdir()
    made.save(tmp_path / "album/a.heic")
    noise(96, 64, 1).save(tmp_path / "album/b.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0" + b"\xff" * 8)
    assert counts(index.add(tmp_path / "album")) == (2, 0, 0, 0, 0)
    (hit,) = index.search("two dogs", before="2024-05-02")
    ours = [warning for warning in recwarn if issubclass(warning.category, UserWarning)]  # Pillow has no other
    assert hit.image.endswith("a.heic") and not ours


def test_a_noun_that_only_the_classes_know_is_searched_by_them(album, tmp_path) -> None:
    """A leaf or a group, singular or plural, alone or beside what the aligner knows; in a folder and in Qdrant."""
    made, tree = aligner_model(tiny_aligner()), noun_tree()
    paths = {str(album / "1/3.png"): 0.98, str(album / "0/4.png"): 0.4, str(album / "0/0.png"): 0.1}

    def posteriors(encodings, boxes, thin):
        assert not thin
        found = [np.zeros((len(rows), tree.leaves), np.float32) for rows in boxes]
        for posterior, seen in zip(found, encodings, strict=True):
            posterior[-1, tree.find("a raccoon").leaves] = paths.get(seen.image, 0)
        return found

    made.nouns = SimpleNamespace(
        posteriors=posteriors, lookup=tree.find, tells=lambda noun: noun.name != "violin",
        translate=lambda text: text.replace("night bandit", "raccoon"), named=lambda text: None,
    )  # fmt: skip
    made.calibration = calibrated(phrase=(0, 1, 9, 3), hit=(1, 0, 0, 0, 0, 0, 0))
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        for query in ("a raccoon", "Raccoons", "a red racoon", "a animal", "the animals", "a night bandit"):
            hits = index.search(query)
            assert [hit.image for hit in hits[:3]] == [*paths] and len(hits) == 6, query
            assert [hit.probability for hit in hits[:3]] == pytest.approx([*paths.values()], abs=0.06), query
            assert hits[3].probability < 0.001
            assert hits[0].regions.captions == (query.lower(),) and not hits[0].unknown
            assert [hit.regions.not_found for hit in hits] == [
                () if hit.probability >= LIKELY else (query.lower(),) for hit in hits
            ]
        assert len(index.search("a horse", top=None)) == len(index.search("a horse"))
        both = index.search("a horse + a raccoon")
        horse = {hit.image: hit.probability for hit in index.search("a horse")}
        assert [hit.image for hit in both[:2]] == [*paths][:2]
        chance = index.search("a raccoon")[0].probability
        assert both[0].probability == pytest.approx(chance * horse[both[0].image], abs=1e-4)
        assert {*horse} - {hit.image for hit in index.search("a horse", without="raccoons")} == {next(iter(paths))}
        kept = index.search("a horse", without="a zzyx")  # what is not known leaves nothing out, and is named
        assert {hit.image: hit.probability for hit in kept} == horse and kept[0].unknown == {"zzyx": None}
        refuses(r"^the model knows none of these words: zzyx, violin; it reads", index.search, "a zzyx + a violin")
        part = index.search("a horse + a zzyx")
        assert {hit.image: hit.probability for hit in part} == horse and part[0].to_dict()["unknown"] == {"zzyx": None}
        assert part[0].regions.unused == () and not part[0].regions.not_found  # it is named as unknown, once
        pytest.importorskip("qdrant_client")
        with saywhere.Index(Qdrant(":memory:", "i"), made) as other:
            other.add(album)
            for query in ("a raccoon", "a horse + a raccoon"):
                rows = [[(hit.image, round(hit.probability, 3)) for hit in i.search(query)] for i in (index, other)]
                assert rows[0][:3] == rows[1][:3]
            assert [hit.image for hit in other.search("a raccoon", top=1)] == [*paths][:1]


def test_hits_are_in_the_order_of_the_probability_that_is_shown(album, tmp_path, monkeypatch) -> None:
    made = aligner_model(tiny_aligner())
    made.calibration = calibrated(phrase=(0, 0, 0, 0), hit=(0, 0, 0, 0, 0, -1, 0))  # what fits worst is most probable
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        for query in ("two dogs", "a horse", "a horse + grass", "a man on the left"):
            hits = index.search(query)
            chances = [hit.probability for hit in hits]
            assert chances == sorted(chances, reverse=True) and chances[0] > chances[-1]
            assert [hit.image for hit in index.search(query, top=2)] == [hit.image for hit in hits[:2]]
            with monkeypatch.context() as fewer:  # than the album has: the likeliest is found among others
                fewer.setattr("saywhere.search.index.TOP", 1)
                assert [hit.image for hit in index.search(query, top=1)] == [hits[0].image]
        made.calibration = calibrated(phrase=(0, 0, 0, 0), hit=(0, 0, 0, 0, 0, 0, 0))
        values = [hit.similarity for hit in index.search("a horse")]
        assert values == sorted(values, reverse=True) and values[0] > values[-1]


def test_an_index_keeps_what_the_classes_say_and_asks_them(album, tmp_path) -> None:
    made, tree, path = aligner_model(tiny_aligner()), noun_tree(), str(album / "0/2.png")
    posterior = np.zeros((1, tree.leaves), np.float32)
    posterior[0, tree.find("a dog").leaves] = 0.9 / len(tree.find("a dog").leaves)

    def posteriors(encodings, boxes, thin):
        assert not thin
        pairs = zip(encodings, boxes, strict=True)
        return [posterior.repeat(len(rows), axis=0) * (seen.image == path) for seen, rows in pairs]

    made.nouns = SimpleNamespace(
        posteriors=posteriors, lookup=tree.find, translate=str, named=lambda text: None, tells=lambda noun: True
    )
    made.calibration = calibrated(phrase=(0, 0, 0, -9), indexed_phrase=(0, 1, 9, 0), hit=(1, 0, 0, 0, 0, 0, 0))
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        probable = {hit.image: hit.probability for hit in index.search("a dog", top=6)}
    assert probable.pop(path) > 0.99 and max(probable.values()) < 0.5
    pytest.importorskip("qdrant_client")
    with QdrantStore(Qdrant(":memory:"), {"size": "17", "digest": "", "model": ""}) as store:
        plain, colours = made.embed(path), np.arange(15, dtype=np.uint8)
        count = len(plain)
        image = replace(plain, nouns=pack_leaves(posterior.repeat(count, 0)), colours=np.tile(colours, (count, 1)))
        store.put([(path, Stamp(0, 0), image)])
        loaded = store.load(path)
        assert (loaded.nouns == image.nouns).all() and (loaded.colours == image.colours).all()
