"""How much memory this process took at most."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def peak_memory() -> dict[str, int]:
    """Return the most memory so far, in megabytes: ``peak_memory_mb``, and ``peak_gpu_memory_mb`` if a GPU was used.

    Nothing is known of the former on Windows; of a GPU what PyTorch took.
    """
    known: dict[str, int] = {}
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
        known["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        known["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 1e6)
    return known
