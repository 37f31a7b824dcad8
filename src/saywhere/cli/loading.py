"""Models for the commands: loaded when they are first needed, with the options of the command line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saywhere import DEFAULT_MODEL
from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere import Model
    from saywhere.adapters.sources import Adapted
    from saywhere.models.bundle import Bundle


class Runtime(NamedTuple):
    """Say where a model runs and by what: ``--device``, ``--engine``, ``--threads`` and ``--precision``."""

    device: str | None = None
    engine: str | None = None
    threads: int | None = None
    precision: str | None = None


class DeferredModel:
    """A model that is loaded when it is first called for, so that a command without work for it does not wait.

    Args:
        name: of a bundled model, or a folder; None for the model that is used if none is named.
        runtime: where it runs and by what.
        changes: ``OPTION=VALUE`` of ``--set``.
        part: the part that the command uses: options are its own unless their names begin with another part.
        ahead: parts that the first image is asked of: with the engine ``onnx`` a thread reads their weights, while the
            caller loads the network that all parts share.

    Example:
        >>> model = DeferredModel()
        >>> image = open_image("photo.jpg", model.long_side)  # reads the configuration
        >>> model().caption(image)  # loads the weights
    """

    def __init__(
        self,
        name: str | None = None,
        runtime: Runtime | None = None,
        changes: Sequence[str] | None = None,
        part: str | None = None,
        ahead: Sequence[str] = (),
    ) -> None:
        self._name, self._runtime, self._changes, self._part = name, runtime or Runtime(), changes or (), part
        self._ahead = ahead

    def __call__(self) -> Model:
        """Return the model, which is loaded at the first call.

        Raises:
            UserError: there is no such model, it is damaged, or an option does not fit.
        """
        return self._model

    @cached_property
    def _model(self) -> Model:
        import saywhere

        model = saywhere.load(self._name or DEFAULT_MODEL, **self._runtime._asdict(), options=self._options)
        if self._ahead and self._engine == "onnx":
            threading.Thread(target=_read_ahead, args=(model, self._ahead), name="saywhere-weights").start()
        return model

    @property
    def name(self) -> str:
        """The name or folder."""
        return self._name or DEFAULT_MODEL

    @property
    def facts(self) -> dict[str, Any]:
        """What answers follow from, however it was written: the model, its changed options, the precision."""
        model = str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name
        precision = self._runtime.precision or "float32"
        return {"model": model, "set": sorted(self._changes), "precision": precision}

    @cached_property
    def _stored(self) -> Bundle:
        from saywhere.models.bundle import Bundle

        return Bundle.read(self._name or DEFAULT_MODEL)

    @cached_property
    def _adapted(self) -> Adapted | None:
        """A model of transformers, which has no parts and no options."""
        from saywhere.adapters.sources import find_adapted

        return find_adapted(self._name or DEFAULT_MODEL)

    @cached_property
    def _engine(self) -> str:
        from saywhere.loading import choose_engine

        return choose_engine(self._name or DEFAULT_MODEL, self._runtime.device, self._runtime.engine)[1]

    @cached_property
    def _options(self) -> dict[str, Any]:
        if not self._changes:
            return {}
        from saywhere.options import assignments

        values, parts = assignments(self._changes), {} if self._adapted else self._stored.configs
        if self._part not in parts:
            return values
        named = {*parts, "trunk"}
        return {name if name.split(".")[0] in named else f"{self._part}.{name}": v for name, v in values.items()}

    @property
    def workers(self) -> int:
        """How many threads ask the model at the same time, if there are many images."""
        from saywhere.engines.session import available_threads

        threads = self._runtime.threads or available_threads()
        return threads if self._engine == "onnx" else 1  # torch's own threads use all processors

    @property
    def long_side(self) -> int:
        """Pixels of the long side that images are decoded at; the weights need not be loaded for it."""
        if self._adapted:
            return self._adapted.family.long_side
        return self._stored.with_options(self._options).trunk.long_side


def load_model(
    name: str | None = None,
    runtime: Runtime | None = None,
    changes: Sequence[str] | None = None,
    part: str | None = None,
) -> Model:
    """Load a model with changed options; arguments and errors are those of :class:`DeferredModel`."""
    return DeferredModel(name, runtime, changes, part)()


def _read_ahead(model: Any, parts: Sequence[str]) -> None:
    """Read what is read otherwise when it is first used; if that fails, it is tried again then, and the user told."""
    from saywhere.models.chunker import Chunker
    from saywhere.models.nouns import noun_tree

    with contextlib.suppress(Exception):
        if "classes" in parts:
            noun_tree()
        if "aligner" in parts:
            Chunker.load()
        model.engine.prepare(parts)


@contextlib.contextmanager
def explain_oom(batch: int) -> Iterator[None]:
    """Turn too little memory on a device into a ``UserError`` that names the ways out."""
    try:
        yield
    except Exception as error:  # torch and ONNX Runtime have errors of their own for it
        full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not full and "allocate memory" not in str(error):
            raise
        way_out = "give a smaller one, or a smaller trunk.long_side or beam_size"
        raise UserError(f"the device has too little memory for --batch {batch}; {way_out}") from error
