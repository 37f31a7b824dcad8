"""Videos and cameras: regions tracked over time, each with one phrase."""

from __future__ import annotations

import math
import re

from saywhere.errors import UserError

TICKS = 90_000
"""Ticks per second (MPEG's clock); times are whole numbers, so that a resumed run gives exactly the same results."""
EVERY = 0.5
"""Default interval between looks (frames that the model sees), in seconds."""

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


def parse_duration(text: str) -> float:
    """Parse a duration such as ``0.5s``, ``500ms``, ``2m`` or a number of seconds; raise as :func:`check_duration`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else math.nan
    return check_duration(seconds, f"--every {text}")


def check_duration(seconds: float, what: str) -> float:
    """Return ``seconds``; raise ``UserError``, with the name ``what``, unless between a millisecond and an hour."""
    if not 0.001 <= seconds <= 3600:
        raise UserError(f"{what}: give a time from 1ms to 60m, such as 0.5s, 500ms or 2m")
    return seconds


def to_ticks(seconds: float) -> int:
    """Convert seconds to the nearest tick."""
    return round(seconds * TICKS)


def to_seconds(ticks: int) -> float:
    """Convert ticks to seconds, rounded to milliseconds."""
    return round(ticks / TICKS, 3)


def moment(seconds: float) -> str:
    """Format a time for people: ``m:ss.s`` or ``h:mm:ss.s``, without trailing zeros."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, part = divmod(rest, 1000)
    places = f"{whole:02}" + f".{part:03}".rstrip("0").rstrip(".")
    return f"{hours}:{minutes:02}:{places}" if hours else f"{minutes}:{places}"


def clock(seconds: float) -> str:
    """Format a time for WebVTT: ``hh:mm:ss.mmm``."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"
