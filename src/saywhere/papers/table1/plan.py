"""Definition of a comparison: the keys of its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from saywhere import options
from saywhere.configs.parts import Config
from saywhere.errors import UserError
from saywhere.options import dataclass
from saywhere.papers.table1.config import RegionRnnConfig
from saywhere.training import recipe as recipes
from saywhere.training.recipe import DataConfig

SENTENCE_WORDS = 16
"""Maximum words in a sentence that trains the Full Image RNN, and in its captions."""


@dataclass(frozen=True)
class FitConfig(Config):
    """Options of training the decoder of a Region RNN (AdamW, a cosine after a warm-up).

    Attributes:
        epochs: maximum passes over the crops; the weights with the best validation loss are kept.
        batch_size: crops per step.
        lr: learning rate after the warm-up.
    """

    epochs: int = 8
    batch_size: int = 128
    lr: float = 2e-3

    def __post_init__(self) -> None:
        self.require_at_least(1, "epochs", "batch_size")
        self.require(self.lr > 0, "lr", "above 0")


@dataclass(frozen=True)
class Comparison:
    """Description of one comparison.

    Attributes:
        data: as in training recipes; ``validation`` is the measured split, ``validation_limit`` its number of images.
            The metric uses all of their phrases, whatever ``phrases`` leaves out in training.
        fcln: folder of each seed's FCLN, with ``{seed}`` in its name.
        seeds: seeds of the FCLNs and of the baselines.
        proposals: maximum number of boxes per image that each system describes.
        model: keys of :class:`saywhere.papers.table1.config.RegionRnnConfig`, for both RNN baselines.
        pretrained: start the baselines' backbone from its published weights.
        crops: maximum true regions per training image that train the Region RNN; None for all.
        training: training of both RNN baselines.
        half: train the baselines in bfloat16, including the features of crops, see
            :func:`saywhere.papers.table1.region_rnn.crop_features`; times are always measured in float32.
        cache: folder of cached crop features.
    """

    name: str
    data: DataConfig
    fcln: str
    seeds: tuple[int, ...] = (0, 1, 2)
    proposals: int = 100
    model: dict[str, Any] = field(default_factory=dict)
    pretrained: bool = True
    crops: int | None = None
    training: FitConfig = field(default_factory=FitConfig)
    half: bool = False
    cache: str = "cache/crops"

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise UserError(f"seeds must be different numbers from 0 on, one or more, not {list(self.seeds)}")
        if len(self.seeds) > 1 and "{seed}" not in self.fcln:
            raise UserError(f"fcln is {self.fcln!r}, but with several seeds needs {{seed}} in its name")
        if self.data.validation is None:
            raise UserError("data.validation is missing: the split that is measured")
        for name in ("proposals", "crops"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        self.baseline()

    def baseline(self, words: int | None = None) -> RegionRnnConfig:
        """Return the configuration of the RNN baselines; ``words`` sets the maximum caption length."""
        config = RegionRnnConfig.from_dict(self.model, prefix="model.")
        return config if words is None else replace(config, decoding=replace(config.decoding, max_words=words))

    def fcln_folder(self, seed: int) -> Path:
        """Return the folder of the FCLN of a seed."""
        return Path(self.fcln.replace("{seed}", str(seed)))


def load(path: str | Path, changes: Sequence[str] = ()) -> Comparison:
    """Read the recipe of a comparison and change it by ``key=value`` pairs; ``UserError`` as for other recipes."""
    return options.from_dict(Comparison, recipes.read(path, changes), source=str(path))
