"""Models for the commands, with the options of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saywhere.loading import DeferredModel, Runtime

if TYPE_CHECKING:
    from saywhere import Model


def load_model(
    name: str | None = None,
    runtime: Runtime | None = None,
    changes: Sequence[str] | None = None,
    part: str | None = None,
) -> Model:
    """Load a model with changed options; arguments and errors are those of :class:`DeferredModel`."""
    return DeferredModel(name, runtime, changes, part)()
