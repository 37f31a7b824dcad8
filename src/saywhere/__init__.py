"""Say what is where in an image, and find where words are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhere.errors import UserError
    from saywhere.evaluation.session import evaluate
    from saywhere.images import ImageError
    from saywhere.inference.run import describe
    from saywhere.loading import load
    from saywhere.models.aligner import AlignedPhrase, Alignment, ImageVectors, TextVectors
    from saywhere.models.bundle import list_models
    from saywhere.models.captioner import Caption
    from saywhere.models.encoding import Encoding
    from saywhere.models.model import Model
    from saywhere.models.phrase_scores import PhraseScores
    from saywhere.regions import Region, Regions
    from saywhere.search import Hit, Index
    from saywhere.stages.finetune import finetune
    from saywhere.training import train
    from saywhere.video.run import follow

__version__ = "0.1.0"
DEFAULT_MODEL = "flickr-coco"
"""Name of the default model, which is bundled."""

_HOMES = {
    "AlignedPhrase": "saywhere.models.aligner",
    "Alignment": "saywhere.models.aligner",
    "Caption": "saywhere.models.captioner",
    "Encoding": "saywhere.models.encoding",
    "Hit": "saywhere.search.index",
    "ImageError": "saywhere.images",
    "ImageVectors": "saywhere.models.aligner",
    "Index": "saywhere.search.index",
    "Model": "saywhere.models.model",
    "PhraseScores": "saywhere.models.phrase_scores",
    "Region": "saywhere.regions",
    "Regions": "saywhere.regions",
    "TextVectors": "saywhere.models.aligner",
    "UserError": "saywhere.errors",
    "describe": "saywhere.inference.run",
    "evaluate": "saywhere.evaluation.session",
    "finetune": "saywhere.stages.finetune",
    "follow": "saywhere.video.run",
    "list_models": "saywhere.models.bundle",
    "load": "saywhere.loading",
    "train": "saywhere.training",
}
_PACKAGES = ("search",)
"""Packages that are attributes as a whole, as in ``saywhere.search.Qdrant``."""
__all__ = [
    "DEFAULT_MODEL",
    "AlignedPhrase",
    "Alignment",
    "Caption",
    "Encoding",
    "Hit",
    "ImageError",
    "ImageVectors",
    "Index",
    "Model",
    "PhraseScores",
    "Region",
    "Regions",
    "TextVectors",
    "UserError",
    "__version__",
    "describe",
    "evaluate",
    "finetune",
    "follow",
    "list_models",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import at first use, so that ``import saywhere`` and ``saywhere --help`` are fast."""
    if name not in _HOMES and name not in _PACKAGES:
        raise AttributeError(f"module 'saywhere' has no attribute {name!r}")
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"saywhere.{name}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _needs_training


def _needs_training(*arguments: object, **options: object) -> None:
    """Raise ``UserError``: this function needs ``pip install 'saywhere[train]'``."""
    from saywhere.training import require_training

    require_training()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
