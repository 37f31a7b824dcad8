"""Say what is where in a picture, and find where a sentence is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhere.models.checkpoint import load
    from saywhere.regions import Region, Regions

__version__ = "0.1.0"
__all__ = ["Region", "Regions", "__version__", "load"]

_HOMES = {"Region": "saywhere.regions", "Regions": "saywhere.regions", "load": "saywhere.models.checkpoint"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import saywhere`` and ``saywhere --help`` do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'saywhere' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
