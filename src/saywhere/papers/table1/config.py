"""Options of the Region RNN, the baseline of DenseCap's Table 1; without torch."""

from __future__ import annotations

from saywhere.configs.parts import LARGEST_GRID, Config, DecodingConfig, TrunkConfig
from saywhere.options import dataclass

TRUNK = TrunkConfig(strides=(32,), long_side=224, multiple=224)
DECODING = DecodingConfig()


@dataclass(frozen=True)
class RegionRnnConfig(Config):
    """Options of :class:`saywhere.papers.table1.region_rnn.RegionRnn`.

    Attributes:
        trunk, decoding: parts, see :mod:`saywhere.configs.parts`. A crop of any shape is resized to a square with sides
            of ``trunk.long_side`` pixels, so ``trunk.multiple`` is the same number.
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
