"""The options of the classifier of regions."""

from __future__ import annotations

from dataclasses import dataclass

from saywhere.configs.parts import LAST_CHANNELS, MOST_FEATURES, PLACE, SystemConfig


@dataclass(frozen=True)
class NounsConfig(SystemConfig):
    """Options of :class:`saywhere.networks.nouns.Nouns`.

    Attributes:
        levels: strides of the maps that are averaged over a region, beside the backbone's last layer.
        branch: average the maps of the trunk's second branch too; for a trunk that has one.
        embed_dim: numbers of the dense captioner's embedding of the region, which come last, after the means of these
            layers, but for ``levels``, over the whole image; 0 leaves it out.
        temperature: that the logits of ImageNet's classifier are divided by.
        trust: weight of what ImageNet's classifier says of a kind, beside what was learnt of it from boxes.
        sharpness: that the sum of both is multiplied by: chosen on held-out boxes, so that probabilities are right.
        rest: of a kind's probability, what ImageNet's classes below it do not get is its share of this number and
            theirs: a person is seldom a scuba diver.
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

    def last_layer(self, size: int) -> slice:
        """Return where among ``size`` features the last layer's means over the region are."""
        stop = size - self.embed_dim - self.context_size - PLACE - self.branch_size
        return slice(stop - LAST_CHANNELS, stop)

    @property
    def branch_size(self) -> int:
        """Features of a region that the second branch or the tower gives."""
        return sum(self.trunk.branch_channels) if self.branch else 0

    @property
    def context_size(self) -> int:
        """Features of the whole image."""
        more = self.branch_size + self.trunk.summary_channels if self.branch else 0
        return LAST_CHANNELS + more

    @property
    def uses_proposals(self) -> bool:
        return False

    @property
    def uses_head(self) -> bool:
        return True
