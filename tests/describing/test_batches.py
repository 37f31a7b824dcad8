from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

from saywhere.describing import batches, describe_pictures, find_pictures, unreadable_at_start
from saywhere.regions import Regions
from tests import pictures
from tests.stubs import StubModel


def test_order_batches_and_errors(tmp_path):
    names, bad = pictures.write_album(tmp_path, 23, 5)
    model = StubModel()
    done = list(describe_pictures(model, find_pictures([tmp_path]), batch=4, top=2, threshold=0.1))
    assert [one.source.name for one in done] == names
    assert [one.source.name for one in done if one.error] == bad
    assert model.batches == [4, 4, 4, 4, 2]
    assert model.options == {(2, 0.1)}
    for one in done:
        assert (one.error is None) == (one.regions is not None)
    reasons = " ".join(one.error for one in done if one.error)
    for part in ("truncated", "empty file", "not a picture", "400 megapixels"):
        assert part in reasons
    assert str(tmp_path) not in reasons, "the name is told beside the reason"


def test_errors_before_the_first_picture_need_no_model(tmp_path):
    bad, good = b"no picture", pictures.jpeg(pictures.quarters())
    for name, data in (("a.jpg", bad), ("b.jpg", b""), ("c.jpg", good), ("d.jpg", bad)):
        (tmp_path / name).write_bytes(data)
    sources = find_pictures([tmp_path])
    found = list(unreadable_at_start(sources))
    assert [(one.source, one.error) for one in found] == [
        (sources[0], "not a picture in a known format"),
        (sources[1], "empty file"),
    ]
    boxes = {source.name: [(0.0, 0.0, 900.0, 9.0)] for source in sources}
    assert [one.source for one in unreadable_at_start(sources, boxes)] == sources, "a box outside is an error as well"
    whole = list(describe_pictures(StubModel(), sources))
    assert [one.error for one in whole[:2]] == [one.error for one in found]


def test_regions_are_in_the_pixels_that_a_viewer_shows(tmp_path):
    (tmp_path / "a.jpg").write_bytes(pictures.turned(0)[0])
    (done,) = describe_pictures(StubModel(), find_pictures([tmp_path]))
    assert done.regions is not None
    assert (done.regions.width, done.regions.height) == (32, 64)


def test_only_the_given_boxes(tmp_path):
    (tmp_path / "a.png").write_bytes(pictures.png(10, 10, 8, 0, b"\0" * 110))
    (tmp_path / "b.png").write_bytes(pictures.png(10, 10, 8, 0, b"\0" * 110))
    sources = find_pictures([tmp_path])
    boxes = {sources[0].name: [(1, 2, 3, 4), (0, 0, 10.4, 9)], sources[1].name: [(0, 0, 30, 9)]}
    first, second = describe_pictures(StubModel(), sources, boxes)
    assert first.regions is not None and first.regions.boxes.tolist() == [[1, 2, 3, 4], [0, 0, 10, 9]]
    assert second.regions is None
    assert second.error == "the box [0, 0, 30, 9] is not inside the 10 x 10 picture"


@pytest.mark.parametrize("batch", [1, 3])
def test_never_more_than_two_batches_of_pictures_are_held(tmp_path, monkeypatch, batch):
    pictures.write_album(tmp_path, 30, 3)
    alive: set[int] = set()
    most = [0]
    lock = threading.Lock()
    real = batches.open_picture

    def gone(number: int) -> None:
        with lock:
            alive.discard(number)

    def opened(path, long_side):
        picture = real(path, long_side)
        with lock:
            alive.add(id(picture))
            most[0] = max(most[0], len(alive))
        weakref.finalize(picture, gone, id(picture))
        return picture

    class Slow(StubModel):
        def describe(self, images, boxes=None, *, top=None, threshold=None):
            time.sleep(0.02)  # the reader has time to run ahead
            return super().describe(images, boxes, top=top, threshold=threshold)

    monkeypatch.setattr(batches, "open_picture", opened)
    count = sum(1 for _ in describe_pictures(Slow(), find_pictures([tmp_path]), batch=batch))
    gc.collect()
    assert count == 30
    assert batch < most[0] <= 2 * batch, "it reads ahead, but not far"


def test_an_error_of_the_model_ends_the_run_and_the_reader(tmp_path):
    pictures.write_album(tmp_path, 20, 0)

    class Broken:
        def describe(self, images, boxes=None, *, top=None, threshold=None):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        list(describe_pictures(Broken(), find_pictures([tmp_path]), batch=2))
    _reader_ends()


def test_an_error_of_the_reader_reaches_the_caller(tmp_path, monkeypatch):
    pictures.write_album(tmp_path, 4, 0)

    def fail(*_):
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(batches, "open_picture", fail)
    with pytest.raises(AssertionError, match="a mistake of ours"):
        list(describe_pictures(StubModel(), find_pictures([tmp_path])))


def test_a_caller_who_stops_early_stops_the_reader(tmp_path):
    pictures.write_album(tmp_path, 20, 0)
    run = describe_pictures(StubModel(), find_pictures([tmp_path]), batch=1)
    next(run)
    run.close()
    _reader_ends()


def _reader_ends() -> None:
    for thread in threading.enumerate():
        if thread.name == "saywhere-reader":
            thread.join(5)
            assert not thread.is_alive()


def test_no_pictures():
    assert list(describe_pictures(StubModel(), [])) == []


def test_the_stub_answers_like_a_model():
    (answer,) = StubModel().describe([batches.open_picture(pictures.quarters())], [torch.tensor([[0, 0, 5, 5.0]])])
    assert isinstance(answer, Regions) and answer.boxes.tolist() == [[0, 0, 5, 5]]
