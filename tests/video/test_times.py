"""Times as users give them, as the program counts them, and as captions write them."""

from __future__ import annotations

import pytest

from saywhere.errors import UserError
from saywhere.video.times import clock, moment, parse_duration, to_seconds, to_ticks


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.5s", 0.5), ("500ms", 0.5), ("2m", 120), (" 1 min", 60), ("3", 3), (".25", 0.25)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1s", "1 hour", "nan", "1e3", "2h", "61m", "0.5 s x"])
def test_what_is_no_duration_is_named(text):
    with pytest.raises(UserError, match="such as 0.5s, 500ms or 2m"):
        parse_duration(text)


def test_ticks_and_clocks():
    assert to_ticks(1 / 30) == 3000 and to_seconds(3000) == 0.033
    assert clock(0) == "00:00:00.000"
    assert clock(3725.0406) == "01:02:05.041"
    assert clock(100 * 3600) == "100:00:00.000"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (1.0, "0:01"), (12.5, "0:12.5"), (60.04, "1:00.04"), (3723.0336, "1:02:03.034")]
)
def test_moments_as_people_read_them(seconds, text):
    assert moment(seconds) == text
