from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import pytest

from saywhere.inference import find_images, run, run_images
from tests import photographs
from tests.stubs import StubModel, describe_images


def test_order_batches_and_errors(tmp_path):
    names, bad = photographs.write_album(tmp_path, 23, 5)
    model = StubModel()
    done = list(describe_images(model, find_images([tmp_path]), batch=4, top=2, threshold=0.1))
    assert [one.source.name for one in done] == names
    assert [one.source.name for one in done if one.error] == bad
    assert model.batches == [4, 4, 4, 4, 2]
    assert model.options == {(2, 0.1)}
    for one in done:
        assert (one.error is None) == (one.result is not None)
    reasons = " ".join(one.error for one in done if one.error)
    for part in ("truncated", "empty file", "not an image", "400 megapixels"):
        assert part in reasons
    assert str(tmp_path) not in reasons, "the name is told beside the reason"


def test_a_model_is_asked_only_when_an_image_could_be_read(tmp_path):
    """So that one that is loaded when it is first asked need not be loaded for nothing."""
    bad, good = b"no image", photographs.jpeg(photographs.quarters())
    for name, data in (("a.jpg", bad), ("b.jpg", b""), ("c.jpg", good), ("d.jpg", bad)):
        (tmp_path / name).write_bytes(data)
    sources = find_images([tmp_path])
    asked = []

    def ask(images, boxes):
        asked.append((len(images), boxes))
        return [image.width for image in images]

    found = list(run_images(ask, sources[:2], batch=1))
    assert [(one.source, one.error) for one in found] == [
        (sources[0], "not an image in a known format"),
        (sources[1], "empty file"),
    ]
    boxes = {source.name: [(0.0, 0.0, 900.0, 9.0)] for source in sources}
    outside = list(run_images(ask, sources, boxes))
    assert outside[2].error == "box 0 [0.0, 0.0, 900.0, 9.0] is not inside the 64 x 32 image"
    assert asked == [] and not any(one.result for one in outside)
    assert [one.result for one in run_images(ask, sources)] == [None, None, 64, None] and asked == [(1, None)]


def test_only_the_given_boxes(tmp_path):
    (tmp_path / "a.png").write_bytes(photographs.png(10, 10, 8, 0, b"\0" * 110))
    (tmp_path / "b.png").write_bytes(photographs.png(10, 10, 8, 0, b"\0" * 110))
    sources = find_images([tmp_path])
    boxes = {sources[0].name: [(1, 2, 3, 4), (0, 0, 10.4, 9)], sources[1].name: [(0, 0, 30, 9)]}
    first, second = describe_images(StubModel(), sources, boxes)
    assert first.result is not None and first.result.boxes.tolist() == [[1, 2, 3, 4], [0, 0, 10, 9]]
    assert second.result is None
    assert second.error == "box 0 [0.0, 0.0, 30.0, 9.0] is not inside the 10 x 10 image"


@pytest.mark.parametrize(("batch", "workers"), [(1, 1), (3, 1), (2, 3)])
def test_no_more_images_are_held_than_are_worked_on_and_one_batch(tmp_path, monkeypatch, batch, workers):
    photographs.write_album(tmp_path, 30, 3)
    alive: set[int] = set()
    most = [0]
    lock = threading.Lock()
    real = run.open_image

    def gone(number: int) -> None:
        with lock:
            alive.discard(number)

    def opened(path, long_side):
        image = real(path, long_side)
        with lock:
            alive.add(id(image))
            most[0] = max(most[0], len(alive))
        weakref.finalize(image, gone, id(image))
        return image

    def ask(images, _):
        while most[0] <= batch and time.monotonic() < end:  # the reader runs ahead
            time.sleep(0.005)
        time.sleep(0.02)  # and could run too far
        return [image.name for image in images]

    end = time.monotonic() + 600
    monkeypatch.setattr(run, "open_image", opened)
    count = sum(1 for _ in run_images(ask, find_images([tmp_path]), batch=batch, workers=workers))
    gc.collect()
    assert count == 30
    assert batch < most[0] <= (1 + workers) * batch, "it reads ahead, but not far"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("held", [0, 1, 20_000, 1 << 30])
def test_images_that_are_held_are_counted_in_bytes_too(tmp_path, monkeypatch, held, workers):
    """With little memory batches are smaller, and all is answered in order all the same."""
    names, _ = photographs.write_album(tmp_path, 30, 3)
    monkeypatch.setattr(run, "HELD", held)
    sizes: list[int] = []

    def ask(images, _):
        sizes.append(len(images))
        return [image.name for image in images]

    done = list(run_images(ask, find_images([tmp_path]), batch=6, workers=workers))
    assert [one.source.name for one in done] == names
    assert all(one.result == one.source.name for one in done if one.error is None)
    assert sum(sizes) == 27 and max(sizes) <= 6
    if held < 2:
        assert max(sizes) == 1
    elif held == 1 << 30:
        assert sizes.count(6) == 4 and sum(sizes) == 27


def test_several_workers_ask_at_the_same_time_and_keep_the_order(tmp_path):
    names, bad = photographs.write_album(tmp_path, 23, 5)
    together, calls = threading.Barrier(2, timeout=600), itertools.count()

    def ask(images, _):
        if next(calls) < 2:
            together.wait()  # the first batch ends only beside the second
        return [image.name for image in images]

    sources = find_images([tmp_path])
    done = list(run_images(ask, sources, batch=2, workers=2))
    assert [one.source.name for one in done] == names
    assert [one.source.name for one in done if one.error] == bad
    assert all(one.result == str(one.source.path) for one in done if one.error is None)


def test_an_error_of_the_model_ends_the_run_and_the_reader(tmp_path):
    photographs.write_album(tmp_path, 20, 0)

    class Broken:
        long_side = 64

        def describe(self, images, boxes=None, *, top=None, threshold=None):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        list(describe_images(Broken(), find_images([tmp_path]), batch=2))
    _reader_ends()


def test_an_error_of_the_reader_reaches_the_caller(tmp_path, monkeypatch):
    photographs.write_album(tmp_path, 4, 0)

    def fail(*_):
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(run, "open_image", fail)
    with pytest.raises(AssertionError, match="a mistake of ours"):
        list(describe_images(StubModel(), find_images([tmp_path])))


def test_a_caller_who_stops_early_stops_the_reader(tmp_path):
    photographs.write_album(tmp_path, 20, 0)
    run = describe_images(StubModel(), find_images([tmp_path]), batch=1)
    next(run)
    run.close()
    _reader_ends()


def _reader_ends() -> None:
    for thread in threading.enumerate():
        if thread.name == "saywhere-reader":
            thread.join(600)
            assert not thread.is_alive()


def test_each_image_is_opened_once_at_the_size_that_is_asked_for(tmp_path, monkeypatch):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        photographs.quarters(1000, 600).save(tmp_path / name)
    opened = []
    real = run.open_image
    monkeypatch.setattr(run, "open_image", lambda path, side: opened.append((path.name, side)) or real(path, side))
    model = StubModel(long_side=100)
    assert sum(one.result is not None for one in describe_images(model, find_images([tmp_path]), batch=2)) == 3
    assert opened == [("a.jpg", 100), ("b.jpg", 100), ("c.jpg", 100)]
    assert model.sizes == [(125, 75)] * 3
