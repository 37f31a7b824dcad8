"""Videos and cameras: regions tracked over time, each with one phrase."""

from __future__ import annotations

import math
import re
from dataclasses import field
from typing import Any

from saywhere.errors import UserError
from saywhere.options import dataclass
from saywhere.report import counted

TICKS = 90_000
"""Ticks per second (MPEG's clock); times are whole numbers, so that a resumed run gives exactly the same results."""
EVERY = 0.5
"""Default interval between looks (frames that the model sees), in seconds."""

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


@dataclass
class Damage:
    """What could not be read of a video.

    Attributes:
        count: number of unreadable packets or frames.
        spans: when they are, in seconds; at most ``LIMIT``.
        end: if the end is missing, the second where the video ends and its right length, or None if that is not known.
    """

    LIMIT = 8
    count: int = 0
    spans: list[list[float]] = field(default_factory=list[list[float]])
    end: tuple[float, float | None] | None = None

    def __bool__(self) -> bool:
        return self.count > 0 or self.end is not None

    @property
    def facts(self) -> tuple[Any, ...]:
        """All attributes; ``Damage(*facts)`` is the same damage, also if they have been through JSON."""
        return self.count, self.spans, self.end

    def note(self, time: float) -> None:
        """Add a place at ``time``, in seconds; places less than a second apart form one span."""
        self.count += 1
        if self.spans and (time - self.spans[-1][1] < 1 or len(self.spans) == self.LIMIT):
            self.spans[-1][1] = max(time, self.spans[-1][1])
        else:
            self.spans.append([time, time])

    def __str__(self) -> str:
        parts: list[str] = []
        if self.count:
            spans = ", ".join(f"{a:.1f}" if b - a < 0.05 else f"{a:.1f} to {b:.1f}" for a, b in self.spans)
            parts.append(f"{counted(self.count, 'frame')} could not be read (second {spans})")
        if self.end is not None:
            end, length = self.end
            parts.append(f"breaks off at {end:.1f} s" if length is None else f"ends at {end:.1f} of {length:.1f} s")
        return f"damaged: {'; '.join(parts)}"


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
