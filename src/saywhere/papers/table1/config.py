"""Options of the Region RNN, the baseline of DenseCap's Table 1, of its training, and of the timing; without torch."""

from __future__ import annotations

from dataclasses import dataclass

from saywhere.configs.parts import LARGEST_GRID, Config, DecodingConfig, TrunkConfig
from saywhere.errors import UserError

TRUNK = TrunkConfig(strides=(32,), long_side=224, multiple=224)
DECODING = DecodingConfig()


@dataclass(frozen=True)
class RegionRnnConfig(Config):
    """Options of :class:`saywhere.papers.table1.region_rnn.RegionRnn`.

    Attributes:
        trunk, decoding: parts, see :mod:`saywhere.configs.parts`. A crop is resized to ``trunk.long_side`` pixels a
            side, whatever its shape was, so that ``trunk.multiple`` is the same number.
        grid: the maps are averaged over ``grid x grid`` parts of the crop.
        embed_dim, dropout: two fully connected layers, as in the recognition network of DenseCap.
        word_size, hidden_size, decoder_dropout: see :class:`saywhere.networks.language.decoders.lstm.LstmDecoder`.
    """

    trunk: TrunkConfig = TRUNK
    decoding: DecodingConfig = DECODING
    grid: int = 3
    embed_dim: int = 512
    dropout: float = 0.2
    word_size: int = 256
    hidden_size: int = 384
    decoder_dropout: float = 0.3

    def __post_init__(self) -> None:
        square = self.trunk.multiple == self.trunk.long_side
        self.require(square, "trunk.multiple", f"{self.trunk.long_side} as trunk.long_side: crops become squares")
        self.require_between(1, LARGEST_GRID, "grid")
        self.require_features("embed_dim", "word_size", "hidden_size")
        self.require_below_one("dropout", "decoder_dropout")

    @property
    def side(self) -> int:
        """Pixels of each side of a resized crop."""
        return self.trunk.long_side


@dataclass(frozen=True)
class FitConfig:
    """Options of training the decoder of a Region RNN (AdamW, a cosine after a warm-up).

    Attributes:
        epochs: at most this many passes over the crops; the weights of the best validation loss are kept.
        batch_size: crops a step.
        lr, weight_decay: of AdamW.
        warmup: steps over which the learning rate grows from 0.
        clip: largest norm of the gradient.
    """

    epochs: int = 8
    batch_size: int = 128
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 100
    clip: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "clip"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "warmup"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, but is {getattr(self, name)}")


@dataclass(frozen=True)
class TimingConfig:
    """Options of taking time.

    Attributes:
        images: so many of those that are measured, at even distances.
        rounds: every system describes every image so often, taking turns; the median counts.
    """

    images: int = 5
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("images", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
