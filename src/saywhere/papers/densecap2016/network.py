"""The published program's network: its backbone, and its parts of a DenseCap with ``conventions: original``.

Its language model has its own tokens: 1 to V are words, V + 1 is START and END, 0 is nothing. The embedding has one
more row, V + 2, for nothing (section 3.1.4 of DenseCap); :class:`OriginalDecoder` maps our token ids to these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import VGG16_CHANNELS
from saywhere.errors import UserError
from saywhere.networks.densecap.build import Conventions, Pool, RegionSampler
from saywhere.networks.language.decoders.protocol import State as DecoderState
from saywhere.networks.language.decoders.protocol import TensorDecoder
from saywhere.networks.vision.backbones import Backbone
from saywhere.papers.densecap2016.conventions import OriginalBoxCoder, OriginalPreprocess, roi_pooling
from saywhere.text import END, PAD, RESERVED, START, UNKNOWN

State = tuple[Tensor, Tensor]

SEQUENCE_LENGTH = 15


class LanguageModel(nn.Module):
    """An LSTM whose inputs are the embedding of a region, START, and then words.

    It is torch's LSTM with the second bias fixed at 0, since the program has only one.

    Args:
        embed_dim: size D of the region embeddings.
        words: V, including the unknown word.
        word_size: size of the word vectors and of the encoded embedding.
        dropout: dropout probability on the LSTM's output.
    """

    def __init__(self, embed_dim: int, words: int, word_size: int = 512, hidden_size: int = 512, dropout: float = 0.0):
        super().__init__()
        self.encode = nn.Linear(embed_dim, word_size)
        self.words = nn.Embedding(words + 2, word_size)
        self.lstm = nn.LSTM(word_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size, words + 1)
        self.lstm.get_parameter("bias_hh_l0").requires_grad_(False)
        self._initialise()

    def _initialise(self) -> None:
        size = self.lstm.hidden_size
        with torch.no_grad():
            for name, parameter in self.lstm.named_parameters():
                parameter.zero_()
                if name.startswith("weight"):
                    parameter.normal_(std=(self.lstm.input_size + size) ** -0.5)
            self.lstm.get_parameter("bias_ih_l0")[size : 2 * size] = 1  # forget gate

    @property
    def start(self) -> int:
        """The token for START and END, V + 1."""
        return self.output.out_features

    def forward(self, embeddings: Tensor, tokens: Tensor) -> Tensor:
        """Return scores ``(N, T + 2, V + 1)`` after the embedding, START and each of ``tokens (N, T)``, padded by 0."""
        previous = torch.cat((torch.full_like(tokens[:, :1], self.start), tokens), dim=1)
        inputs = torch.cat((torch.relu(self.encode(embeddings))[:, None], self._vectors(previous)), dim=1)
        return self.output(self.dropout(self.lstm(inputs)[0]))

    def _vectors(self, tokens: Tensor) -> Tensor:
        """Return the word vectors of tokens from 0 (nothing) to V + 1."""
        return self.words(torch.where(tokens == 0, self.words.num_embeddings, tokens) - 1)

    # Decoding

    def begin(self, embeddings: Tensor) -> State:
        """Return the state (h, c), each ``(N, hidden)``, after the embeddings ``(N, D)``."""
        _, (h, c) = self.lstm(torch.relu(self.encode(embeddings))[:, None])
        return h[0], c[0]

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the scores ``(N, V + 1)`` of the word after ``tokens (N,)``, and the next state."""
        h, c = (part[None].contiguous() for part in state)
        hidden, (h, c) = self.lstm(self._vectors(tokens)[:, None], (h, c))
        return self.output(hidden[:, 0]), (h[0], c[0])

    @torch.no_grad()
    def sample(self, embeddings: Tensor, length: int = SEQUENCE_LENGTH) -> Tensor:
        """Return greedily decoded tokens ``(N, length)``, even after an END."""
        state, decoded = self.begin(embeddings), []
        tokens = torch.full((len(embeddings),), self.start, device=embeddings.device)
        for _ in range(length):
            scores, state = self.step(tokens, state)
            tokens = scores.argmax(dim=1) + 1
            decoded.append(tokens)
        return torch.stack(decoded, dim=1)


def decode_sequences(tokens: Tensor, words: Sequence[str]) -> list[str]:
    """Return the captions of ``tokens (N, T)``: the ``words`` (V, the first is token 1) up to the first END."""
    captions: list[str] = []
    for row in tokens.tolist():
        caption: list[str] = []
        for token in map(int, row):
            if not 1 <= token <= len(words):
                break
            caption.append(words[token - 1])
        captions.append(" ".join(caption))
    return captions


class OriginalDecoder(nn.Module, TensorDecoder):
    """Wrap :class:`LanguageModel`: token ids from 4 on are its tokens from 1, and its last word is the unknown one.

    It can choose the unknown word; PAD and START have probability 0.

    Args:
        embed_dim: size D of the embeddings.
        vocabulary_size: V of this package, with the four reserved tokens: three more than the program's.
        word_size, hidden_size, dropout: see :class:`LanguageModel`.
    """

    never = (PAD, START)
    unknown = "<UNK>"

    def __init__(self, embed_dim: int, vocabulary_size: int, word_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        words = vocabulary_size - len(RESERVED) + 1
        self.model = LanguageModel(embed_dim, words, word_size, hidden_size, dropout)
        tokens = torch.arange(vocabulary_size) - len(RESERVED) + 1
        tokens[PAD], tokens[START], tokens[END], tokens[UNKNOWN] = 0, words + 1, words + 1, words
        self.register_buffer("tokens", tokens, persistent=False)

    @property
    def lstm(self) -> nn.LSTM:
        """The model's LSTM."""
        return self.model.lstm

    @property
    def words(self) -> nn.Embedding:
        """The model's word vectors: of the program's tokens, from 1, and one more row for nothing."""
        return self.model.words

    @property
    def output(self) -> nn.Linear:
        """The model's output: a score for each word, the last for END."""
        return self.model.output

    def to_tokens(self, token_ids: Tensor) -> Tensor:
        """Convert token ids to the program's tokens, in the same shape."""
        return self.get_buffer("tokens")[token_ids]

    def _scores(self, scores: Tensor) -> Tensor:
        """Reorder the program's scores ``(..., V' + 1)`` by our token ids, ``(..., V)``; PAD and START get -inf."""
        known, unknown, end = scores[..., :-2], scores[..., -2:-1], scores[..., -1:]
        never = torch.full_like(end, -torch.inf).expand(*end.shape[:-1], 2)
        return torch.cat((never, end, unknown, known), dim=-1)

    def forward(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        scores = self._scores(self.model(embeddings, self.to_tokens(token_ids))[:, 1:])
        return scores if real is None else scores[real]

    def start(self, embeddings: Tensor) -> DecoderState:
        return self.model.begin(embeddings)

    def step(self, token_ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        h, c = state
        scores, state = self.model.step(self.to_tokens(token_ids), (h, c))
        return self._scores(scores.log_softmax(dim=1)), state


VGG16_DEPTHS = (2, 2, 3, 3, 3)
CAFFE_MEAN = (103.939 / 255, 116.779 / 255, 123.68 / 255)  # blue, green, red


class OriginalConventions(Conventions):
    """Factory for the program's parts of a DenseCap."""

    def box_coder(self, config: DenseCapConfig) -> OriginalBoxCoder:
        """Return the program's box coder: 1-based centres and sizes, with all of its quirks."""
        return OriginalBoxCoder(config.max_log_scale)

    def pooling(self, config: DenseCapConfig) -> Pool:
        return lambda maps, boxes, size: roi_pooling(maps[0], boxes, size[1], size[0], config.pool_size)

    def rpn_sampler(self, config: DenseCapConfig) -> RegionSampler:
        """Return the program's sampler, which repeats negatives if there are too few."""
        return RegionSampler(config.rpn_batch, config.rpn_fg_iou, config.rpn_bg_iou, fill=True)

    def decoder(self, config: DenseCapConfig, vocabulary_size: int) -> OriginalDecoder:
        sizes = config.word_size, config.hidden_size
        return OriginalDecoder(config.embed_dim, vocabulary_size, *sizes, config.decoder_dropout)


class Single(nn.Sequential):
    """A sequential network that returns its output as a tuple of one level."""

    def forward(self, x: Tensor) -> tuple[Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a tuple of the single map."""
        return (super().forward(x),)


def build_caffe_vgg16(channels: Sequence[int] = VGG16_CHANNELS, pretrained: bool = True) -> Backbone:
    """Build VGG-16 as in the published DenseCap: without the last pooling; the others round sizes up.

    Input pixels are Caffe's: B G R from 0 to 255, minus the means; ``mean`` and ``std`` are shares of 255, B G R.

    Args:
        channels: of the five stages; ImageNet weights exist only for ``VGG16_CHANNELS``.
        pretrained: load the ImageNet weights of Caffe's VGG-16 (from torchvision, which has them for R G B).
    """
    layers: list[nn.Module] = []
    before = 3
    for width, depth in zip(channels, VGG16_DEPTHS, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))
    body = Single(*layers[:-1])
    if pretrained:
        from torchvision.models import VGG16_Weights

        if tuple(channels) != VGG16_CHANNELS:
            raise UserError(f"the ImageNet weights of vgg16 have the widths {VGG16_CHANNELS}, not {tuple(channels)}")
        try:
            stored = VGG16_Weights.IMAGENET1K_FEATURES.get_state_dict(progress=False)
        except OSError as error:
            way_out = "use efficientnet_lite2"
            raise UserError(f"the ImageNet weights of vgg16 cannot be fetched ({error}); {way_out}") from error
        prefix = "features."
        weights = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
        body.load_state_dict({**weights, "0.weight": weights["0.weight"].flip(1)})
    first_four = [p for layer in layers[:10] for p in layer.parameters()]  # before the second pooling: never trained
    return Backbone(body, (16,), channels[-1:], CAFFE_MEAN, (1 / 255,) * 3, first_four, OriginalPreprocess)
