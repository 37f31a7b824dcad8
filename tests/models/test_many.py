"""One image, a list, or a stream of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.models.encoding import AT_ONCE, answer, is_one

PATHS = [f"{number}.jpg" for number in range(40)]


class Asked:
    """Answers with what it was asked, and remembers how many images it saw and was asked about together."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.asked: list[int] = []

    def see(self, images: Sequence[Any]) -> list[Any]:
        self.seen.append(len(images))
        return [f"seen {image}" for image in images]

    def ask(self, seen: Sequence[Any], *columns: Sequence[Any] | None) -> list[Any]:
        self.asked.append(len(seen))
        rows = zip(seen, *([None] * len(seen) if c is None else c for c in columns), strict=True)
        return [row if columns else row[0] for row in rows]

    def __call__(self, images: Any, *columns: Any, **options: Any) -> Any:
        return answer(self.ask, self.see, images, *columns, **options)


@pytest.mark.parametrize(
    "image",
    ["a.jpg", Path("a.jpg"), Image.new("RGB", (3, 2)), np.zeros((2, 3)), open_image(np.zeros((2, 3, 3), np.uint8))],
)
def test_one_image_has_one_answer(image):
    assert is_one(image) and Asked()(image) == f"seen {image}"


class Tensor:
    """Has what PyTorch's tensors have."""

    ndim = 3

    def __iter__(self) -> Iterator[Any]:
        yield np.zeros((2, 3))


@pytest.mark.parametrize("given", [Tensor(), bytearray(b"ab"), memoryview(b"ab"), range(3), BytesIO(), {}, b"ab", 3])
def test_what_is_no_image_is_refused_at_once(given: Any):
    kind, opened = type(given).__name__, isinstance(given, BytesIO | bytes | bytearray | memoryview)
    way_out = "; PIL.Image.open makes an image of an open file" if opened else "$"
    refuses(f"^an image must be a path, PIL image or array, not {kind}{way_out}", Asked(), given)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_has_a_list_of_answers_in_its_order_a_few_at_a_time(kind):
    asked = Asked()
    assert asked(kind(PATHS)) == [f"seen {path}" for path in PATHS]
    assert asked.seen == asked.asked == [16, 16, 8] and AT_ONCE == 16
    assert asked([]) == [] and asked.seen == [16, 16, 8]


def test_a_text_is_for_all_images():
    asked, expected = Asked(), [(f"seen {path}", "a dog") for path in PATHS[:3]]
    assert asked(PATHS[:3], "a dog") == list(asked(iter(PATHS[:3]), "a dog", batch=2)) == expected
    assert asked([], "a dog") == [] and asked("a.jpg", "a dog") == ("seen a.jpg", "a dog")


def test_a_stream_is_read_as_it_is_needed():
    asked, taken = Asked(), []
    answers = asked(taken.append(path) or path for path in itertools.cycle(PATHS))
    assert isinstance(answers, Iterator) and not taken and not asked.seen
    assert next(answers) == "seen 0.jpg" and len(taken) == 16
    assert list(itertools.islice(answers, 15)) == [f"seen {path}" for path in PATHS[1:16]] and len(taken) == 16
    assert next(answers) == "seen 16.jpg" and len(taken) == 32


class Failing(Asked):
    """Refuses an image or a value named bad, an image with its place."""

    def see(self, images: Sequence[Any]) -> list[Any]:
        for place, image in enumerate(images):
            if image == "bad":
                error = UserError("bad image")
                error.place = place
                raise error
        return super().see(images)

    def ask(self, seen: Sequence[Any], *columns: Sequence[Any] | None) -> list[Any]:
        if any("bad" in (column or ()) for column in columns):
            raise UserError("bad value")
        return super().ask(seen, *columns)


@pytest.mark.parametrize("place", [0, 1, 3, 15, 16, 20])
def test_a_stream_has_the_answers_before_an_error(place: int):
    good = [f"seen {path}" for path in PATHS[:place]]

    def broken() -> Iterator[str]:
        yield from PATHS[:place]
        raise OSError("bad iterator")

    streams = [
        ("bad image", UserError, Failing()(iter([*PATHS[:place], "bad", "more.jpg"]))),
        ("bad value", UserError, Failing()(iter(PATHS), [*PATHS[:place], "bad", *PATHS[place + 1 :]])),
        ("bad iterator", OSError, Failing()(broken())),
    ]
    for message, kind, answers in streams:
        found = list(itertools.islice(answers, place))
        assert [one if isinstance(one, str) else one[0] for one in found] == good
        with pytest.raises(kind, match=message):
            next(answers)
        assert list(answers) == []


@pytest.mark.parametrize("columns", [(), (["a"] * 20,)])
def test_a_list_with_an_error_has_no_answers_and_takes_no_time(columns: tuple[Any, ...]):
    asked = Failing()
    refuses("bad image", asked, [*PATHS[:19], "bad"], *columns)
    assert asked.asked == [16]


def test_a_generator_that_was_only_asked_in_part_stays_open():
    paths = (path for path in PATHS)
    assert next(Asked()(paths, batch=2)) == "seen 0.jpg" and next(paths) == "2.jpg"


def test_the_number_of_images_at_a_time_may_be_given():
    asked = Asked()
    assert asked(PATHS[:7], batch=3) == list(asked(iter(PATHS[:7]), batch=3)) == [f"seen {p}" for p in PATHS[:7]]
    assert asked.asked == [3, 3, 1] * 2
    for batch in (0, 2.5):
        refuses(f"^batch must be a whole number.*, not {batch}$", asked, PATHS[:2], batch=batch)


@pytest.mark.parametrize(("many", "total"), [(list, 7), (iter, None)])
def test_a_bar_moves_with_each_answer(many: Any, total: int | None, monkeypatch: pytest.MonkeyPatch):
    moved: list[Any] = []

    @contextlib.contextmanager
    def bar(what: str, total: int | None, shown: bool) -> Iterator[Any]:
        moved.append((what, total, shown))
        yield lambda: moved.append("one")

    monkeypatch.setattr("saywhere.models.encoding.show_progress", bar)
    assert len(list(Asked()(many(PATHS[:7]), progress=True))) == 7
    assert moved == [("images", total, True), *["one"] * 7]


def test_columns_go_with_their_images():
    asked, boxes = Asked(), [[number] for number in range(40)]
    assert asked("a.jpg", "a dog", None) == ("seen a.jpg", "a dog", None)
    expected = [(f"seen {path}", own, None) for path, own in zip(PATHS, boxes, strict=True)]
    assert asked(PATHS, boxes, None) == asked(PATHS, tuple(boxes), None) == asked(PATHS, iter(boxes), None) == expected
    assert list(asked(iter(PATHS), iter(boxes), None)) == list(asked(iter(PATHS), boxes, None)) == expected
    assert list(asked(iter(PATHS[:2]), itertools.repeat("a dog"))) == [(f"seen {p}", "a dog") for p in PATHS[:2]]


def test_an_array_may_hold_the_boxes_of_several_images():
    boxes = np.arange(24.0).reshape(2, 3, 4)
    for _, own in Asked()(PATHS[:2], boxes), list(Asked()(iter(PATHS[:2]), boxes)):
        assert own[1].tolist() == boxes[1].tolist()


@pytest.mark.parametrize("many", [list, iter])
@pytest.mark.parametrize("column", [Path("ab"), np.zeros((2, 4)), 3, {"a": 1, "b": 2}, b"ab"])
def test_one_value_is_not_enough_for_several_images(many, column):
    kind = type(column).__name__
    refuses(rf"^one value \({kind}\) for several images: give one for each image$", Asked(), many(PATHS[:2]), column)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_columns_of_another_length_are_refused(count):
    refuses(rf"^{count} values for 2 images: give one for each image$", Asked(), PATHS[:2], ["a"] * count)


@pytest.mark.parametrize("many", [list, iter])
def test_a_stream_with_more_values_than_images_is_refused_at_its_end(many: Any):
    answers = Asked()(iter(PATHS[:2]), many(["a"] * 3))
    assert len(list(itertools.islice(answers, 2))) == 2
    refuses("^more values than 2 images: give one for each image$", next, answers)
    assert len(list(Asked()(iter(PATHS[:2]), itertools.cycle("ab")))) == 2


def test_a_stream_whose_column_ends_early_is_refused_where_it_ends():
    answers = Asked()(iter(PATHS), iter(["a"] * 20))
    assert len(list(itertools.islice(answers, 16))) == 16
    refuses("^4 values for the last 16 images: give one for each image$", next, answers)
