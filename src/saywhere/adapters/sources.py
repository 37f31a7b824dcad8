"""Which models of other people there are, and where one lies: a folder that transformers wrote, or one of the hub's."""

from __future__ import annotations

import functools
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

from saywhere.errors import UserError

HUB = "hub:"
"""What the name of a model of the hub begins with; nothing is downloaded without it."""
CONFIG = "config.json"
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""What is fetched: configurations, words and weights; no code, and no pickled weights."""


class Family(NamedTuple):
    """What a family of models is called, which module answers for it, and how large images should be decoded.

    ``long_side`` are pixels of the long side: as many as the network sees of the short side of a wide image. A family
    that ``describes`` finds regions by itself; the others place phrases.
    """

    name: str
    module: str
    long_side: int
    describes: bool = False


FAMILIES = {
    "florence2": Family("Florence-2", "saywhere.adapters.florence2", 1536, True),
    "grounding-dino": Family("Grounding DINO", "saywhere.adapters.grounding_dino", 1333),
    "kosmos-2": Family("Kosmos-2", "saywhere.adapters.kosmos2", 448, True),
    "owlv2": Family("OWLv2", "saywhere.adapters.owlv2", 1008),
}
"""The families, by the ``model_type`` of their configuration."""


class Adapted(NamedTuple):
    """A model of a known family: its folder, and its name ``OWNER/NAME`` on the hub if it is from there."""

    folder: Path
    family: Family
    repository: str | None = None


def find_adapted(name_or_folder: str | Path, **hub: Any) -> Adapted | None:
    """Return where a model of transformers is; None if the name is of something else.

    Args:
        name_or_folder: ``hub:OWNER/NAME``, which is fetched unless it is in the hub's cache, or a folder.
        hub: ``revision`` and ``cache_dir`` of what is fetched.

    Raises:
        UserError: the hub does not give it, or there is no adapter for its family.
    """
    name = str(name_or_folder)
    if name.startswith(HUB):
        return _fetch(name, **hub)
    path = Path(name) / CONFIG
    stored = _read(path) if path.is_file() else {}
    return Adapted(path.parent, _family(stored, name)) if "model_type" in stored and "parts" not in stored else None


def _read(path: Path) -> dict[str, Any]:
    """The configuration; nothing if it is none, for whoever reads the folder next says so."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _family(stored: dict[str, Any], name: str) -> Family:
    kind = stored.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"{name}: there is no adapter for models of the type {kind!r}; there are {known}")
    return FAMILIES[kind]


@functools.cache
def _fetch(name: str, **hub: Any) -> Adapted:
    """Fetch a model, its configuration first: another family's weights would be fetched in vain."""
    repository = name.removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UserError(f"{name}: a model of the hub is named {HUB}OWNER/NAME")
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
    except ImportError:
        raise UserError(f"{name}: fetching it needs huggingface_hub: pip install 'saywhere[transformers]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # not a line for each time that it tries again
    try:
        stored = _read(Path(hf_hub_download(repository, CONFIG, **hub)))
        if "parts" in stored:
            raise UserError(f"{name} is a model of saywhere's own: name it {repository}")
        family = _family(stored, name)
        folder = Path(snapshot_download(repository, allow_patterns=[*FILES], ignore_patterns=["*/*"], **hub))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: the hub does not give it, and its cache does not have it: {reason}") from error
    return Adapted(folder, family, repository)
