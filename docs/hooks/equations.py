"""Write equations as MathML, which browsers show by themselves: no script, no font from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

EQUATION = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`\n]*`|^\$\$(?P<block>.+?)\$\$$|(?<![\\$\w])\$(?P<inline>[^$\n`]+?)\$(?![\d$])",
    re.MULTILINE | re.DOTALL,
)
"""``$$...$$`` in a paragraph of its own, ``$...$`` in a line; or code, in which a dollar is a dollar."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the equations of a page into MathML."""
    return EQUATION.sub(_written, markdown)


def _written(match: re.Match[str]) -> str:
    if match["block"] is not None:
        return f"\n{convert(match['block'].strip(), display='block')}\n"
    return match[0] if match["inline"] is None else convert(match["inline"])
