"""What a comparison is made of: the keys of its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from saywhere import options
from saywhere.errors import UserError
from saywhere.papers.table1.config import FitConfig, RegionRnnConfig, TimingConfig
from saywhere.training import recipe as recipes
from saywhere.training.recipe import DataConfig


@dataclass(frozen=True)
class Comparison:
    """Describe one comparison.

    Attributes:
        name: of the comparison.
        data: as in recipes for training; ``validation`` is the split that is measured, ``validation_limit`` how many of
            its images. The metric takes all of their phrases, whatever ``phrases`` leaves out in training.
        fcln: folder of the FCLN of each seed, with ``{seed}`` in its name.
        seeds: of the FCLNs and of the baselines.
        external: method of the external proposals, see :mod:`saywhere.papers.external_proposals`.
        proposals: boxes of an image that each system describes, at most.
        nms: the baselines have no second scores; of their proposals those that overlap a better one by more are left
            out, and others come in their place.
        model: keys of :class:`saywhere.papers.table1.config.RegionRnnConfig`, for both RNN baselines.
        pretrained: the baselines' backbone starts from its published weights.
        sentence_words: longest caption of the Full Image RNN; longer sentences do not train it.
        crops: at most so many true regions of a training image train the Region RNN; None for all.
        training: of both RNN baselines.
        half: the baselines are trained in bfloat16, the features of crops included, see
            :func:`saywhere.papers.table1.region_rnn.crop_features`; times are always those of float32.
        neighbours: training images whose regions are neighbours in the control, at even distances; None for all.
        features: folder of cached features of the FCLN's backbone (``training.cache`` of its recipe), or None.
        cache: folder of cached features of crops.
        timing: how time is taken.
    """

    name: str
    data: DataConfig
    fcln: str
    seeds: tuple[int, ...] = (0, 1, 2)
    external: str = "selective-search:fast"
    proposals: int = 100
    nms: float = 0.5
    model: dict[str, Any] = field(default_factory=dict)
    pretrained: bool = True
    sentence_words: int = 16
    crops: int | None = None
    training: FitConfig = field(default_factory=FitConfig)
    half: bool = False
    neighbours: int | None = None
    features: str | None = None
    cache: str = "cache/crops"
    timing: TimingConfig = field(default_factory=TimingConfig)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise UserError(f"seeds must be different numbers from 0 on, one or more, not {list(self.seeds)}")
        if len(self.seeds) > 1 and "{seed}" not in self.fcln:
            raise UserError(f"fcln is {self.fcln!r}, but with several seeds needs {{seed}} in its name")
        if self.data.validation is None:
            raise UserError("data.validation is missing: the split that is measured")
        for name in ("proposals", "sentence_words", "crops", "neighbours"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.nms <= 1:
            raise UserError(f"nms must be between 0 and 1, not {self.nms}")
        self.baseline(0)

    def baseline(self, words: int) -> RegionRnnConfig:
        """Return the configuration of the RNN baselines, with captions of at most ``words`` words if that is not 0."""
        config = RegionRnnConfig.from_dict(self.model, prefix="model.")
        return replace(config, decoding=replace(config.decoding, max_words=words)) if words else config

    def fcln_folder(self, seed: int) -> Path:
        """Return the folder of the FCLN of a seed."""
        return Path(self.fcln.replace("{seed}", str(seed)))


def load(path: str | Path, changes: Sequence[str] = ()) -> Comparison:
    """Read the recipe of a comparison and change it by ``key=value`` pairs; ``UserError`` as for other recipes."""
    return options.from_dict(Comparison, recipes.read(path, changes), source=str(path))
