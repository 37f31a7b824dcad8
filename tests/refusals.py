"""What a user can mend is refused with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saywhere.errors import UserError


def refuses(
    message: str, call: Callable[..., object], /, *given: Any, kind: type[UserError] = UserError, **named: Any
) -> str:
    """Return the line of the error, of this kind, that a call with these arguments ends with; ``message`` is in it."""
    with pytest.raises(kind, match=message or None) as caught:
        call(*given, **named)
    line = str(caught.value)
    assert "\n" not in line, line
    return line
