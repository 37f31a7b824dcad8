"""Options of the noun classifier of regions."""

from __future__ import annotations

from saywhere.configs.parts import LAST_CHANNELS, MOST_FEATURES, PLACE, SystemConfig
from saywhere.options import dataclass


@dataclass(frozen=True)
class NounsConfig(SystemConfig):
    """Options of :class:`saywhere.networks.nouns.Nouns`.

    Attributes:
        levels: strides of the maps averaged over a region, besides the backbone's last layer.
        branch: also average the maps of the trunk's second branch, if it has one.
        embed_dim: size of the dense captioner's region embedding, the last of the features; 0: leave it out. Before it
            are the means of these layers over the region, then those over the whole image, without ``levels``.
        temperature: divisor of the logits of ImageNet's classifier.
        trust: weight of ImageNet's evidence for a kind, next to what was learnt from boxes.
        sharpness: factor of the sum of both, fitted on held-out boxes so that probabilities are calibrated.
        rest: weight of a kind itself against the total probability of ImageNet's classes below it. They divide the
            kind's probability in this proportion: a person is seldom a scuba diver.
    """

    levels: tuple[int, ...] = (16,)
    branch: bool = False
    embed_dim: int = 0
    temperature: float = 1.0
    trust: float = 1.0
    sharpness: float = 1.0
    rest: float = 0.1

    def __post_init__(self) -> None:
        self.require_levels(self.levels, True, self.branch)
        self.require_at_least(0, "trust")
        self.require_between(0, MOST_FEATURES, "embed_dim")
        for name in ("temperature", "sharpness", "rest"):
            self.require(getattr(self, name) > 0, name, "above 0")

    @property
    def layout(self) -> dict[str, int]:
        """Sizes of the parts of a region's features after the means of ``levels``; two are of the whole image."""
        branch, summary = (sum(self.trunk.branch_channels), self.trunk.summary_channels) if self.branch else (0, 0)
        region = {"head": LAST_CHANNELS, "branch": branch, "place": PLACE}
        return {**region, "image_head": LAST_CHANNELS, "image_branch": branch + summary, "embedding": self.embed_dim}

    @property
    def uses_proposals(self) -> bool:
        return False

    @property
    def uses_head(self) -> bool:
        return True
