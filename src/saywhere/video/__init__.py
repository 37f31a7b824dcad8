"""Videos and cameras: regions followed over time, one phrase for each."""

from __future__ import annotations

import math
import re

from saywhere.errors import UserError

TICKS = 90_000
"""Ticks a second, the clock of MPEG: whole numbers, so that a resumed run counts as an undisturbed one does."""
EVERY = 0.5
"""Seconds from one look to the next, unless the user says otherwise."""

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


def parse_duration(text: str) -> float:
    """Return the seconds of ``0.5s``, ``500ms``, ``2m`` or of a number; raises as :func:`check_duration`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else math.nan
    return check_duration(seconds, f"--every {text}")


def check_duration(seconds: float, what: str) -> float:
    """Return the seconds between looks; ``UserError``, naming ``what``, if not from a millisecond to an hour."""
    if not 0.001 <= seconds <= 3600:
        raise UserError(f"{what}: give a time from 1ms to 60m, such as 0.5s, 500ms or 2m")
    return seconds


def to_ticks(seconds: float) -> int:
    """Return the nearest whole tick."""
    return round(seconds * TICKS)


def to_seconds(ticks: int) -> float:
    """Return seconds, to the millisecond."""
    return round(ticks / TICKS, 3)


def moment(seconds: float) -> str:
    """Return ``m:ss.s`` or ``h:mm:ss.s``, as people read times, without zeros behind the last place that counts."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, part = divmod(rest, 1000)
    places = f"{whole:02}" + f".{part:03}".rstrip("0").rstrip(".")
    return f"{hours}:{minutes:02}:{places}" if hours else f"{minutes}:{places}"


def clock(seconds: float) -> str:
    """Return ``hh:mm:ss.mmm``, as WebVTT writes times."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"
