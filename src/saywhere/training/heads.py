"""Fine-tuning of the layers that say the phrases of a dense captioner's regions.

All below them stays as it is, and so do the boxes and their scores: what the layers read is computed once, and all
other parts of the model still fit. What nobody annotated in the images is learnt from the model's own answers before
training, so that it forgets little else (Li and Hoiem, Learning without Forgetting, 2016).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import open_image
from saywhere.models.nouns import noun_tree
from saywhere.networks.densecap.network import DenseCap, move
from saywhere.networks.vision.region_features import ImageMaps, context_features
from saywhere.text import END, PAD, RESERVED, START, Vocabulary, pad
from saywhere.training.finetuning import WORD_ROWS, take_over
from saywhere.training.loop import learning_rate_factor, seed_step
from saywhere.training.progress import track

COPIES = 3
"""Copies of each true box, moved a little, whose phrase is learnt beside that of the box itself."""
OTHERS = 16
"""Regions of an image, at most, whose phrases by the model are kept: the best that nobody annotated."""
NEAR = 0.2
"""IoU with a true box from which a region that the model finds is annotated."""
EPOCHS, PATIENCE, BATCH = 14, 4, 8
"""Passes over the images, at least; so many without a smaller loss of the images that are held out end training; images
of a step."""
RATE, DECAY, WARM_UP, CLIP = 1e-3, 0.01, 0.1, 10.0
"""Learning rate and weight decay of AdamW, the share of the steps in which the rate grows, and the largest norm of a
gradient."""
FASTER = 10.0
"""Steps of the rows of new words are so many times as long: on 26 photographs with one new word, it was not said with
3, and with 20 less of the rest was kept."""
UNCOMMON = 2.0
"""How much less likely a new word begins than the words that it resembles, in natural log-probability."""


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one image, as arrays.

    Attributes:
        contexts: ``(R, D)`` what phrases are decoded from, of the true boxes and of their copies.
        phrase: ``(R,)`` number of the true box of each; those of the boxes themselves come first.
        others: ``(K, D)`` the same of regions that nobody annotated.
    """

    contexts: np.ndarray
    phrase: np.ndarray
    others: np.ndarray

    def save(self, path: Path) -> None:
        """Write them; the file is whole or not there."""
        write_atomically(path, lambda stream: np.savez(stream, **vars(self)))

    @classmethod
    def load(cls, path: Path) -> Regions:
        """Read what :meth:`save` wrote."""
        with np.load(path) as stored:
            return cls(**{f.name: stored[f.name] for f in fields(cls)})


@torch.inference_mode()
def find_regions(network: DenseCap, sample: Sample, seed: int) -> Regions:
    """Return the regions of an annotated image, by the untrained network; ``ImageError`` if it cannot be read."""
    trunk, coder, settings = network.trunk, network.box_coder, network.config.proposals
    pixels = torch.from_numpy(trunk.preprocess(open_image(sample.image, trunk.preprocess.long_side)))
    size = pixels.shape[2], pixels.shape[1]
    maps = trunk.look([pixels.to(network.region_head.score.weight.device)])
    image, neck = ImageMaps(trunk, maps[0], *size), trunk.neck(maps)
    limits = settings.nms_iou, settings.pre_nms_top_n, settings.post_nms_top_n
    boxes, _ = propose(coder, trunk.rpn(neck)[0], size, *limits)
    true = geometry.scale(sample.boxes, size[0] / sample.width, size[1] / sample.height)
    truths = torch.from_numpy(true).to(boxes)
    generator = torch.Generator().manual_seed(seed)
    copies = torch.cat((truths, *(move(truths, size, generator) for _ in range(COPIES))))
    found = network.region_head(network.pool(neck, [boxes], [size]))
    decoded = coder.decode(found.offsets, boxes)
    final, _ = coder.clip(decoded, *size)
    kept = coder.suppress_final(decoded, coder.to_xyxy(final), found.logits, network.config.final_nms)
    rows = [
        row for row in kept.tolist() if float(geometry.iou(coder.to_xyxy(final[row : row + 1]), truths).max()) < NEAR
    ][:OTHERS]

    def contexts(of: Tensor, embeddings: Tensor) -> np.ndarray:
        levels = network.config.phrase_levels
        if network.phrase_head is not None:
            embeddings = context_features(image, of, levels, embeddings)
        return embeddings.clamp(-6e4, 6e4).half().cpu().numpy()

    own = network.region_head(network.pool(neck, [coder.from_xyxy(copies)], [size])).embeddings
    numbers = np.tile(np.arange(len(truths)), 1 + COPIES)
    return Regions(contexts(copies, own), numbers, contexts(coder.to_xyxy(final[rows]), found.embeddings[rows]))


def with_words(network: DenseCap, texts: Sequence[str]) -> tuple[DenseCap, tuple[str, ...]]:
    """Return a dense captioner, on the same trunk, with the words of texts beside its own, and the words that are new.

    A new word begins as the mean of the known words that are nearest in the tree of nouns, or else of all words, and is
    less likely than they are, so that the answers are nearly those of the network as it was.
    """
    vocabulary = network.vocabulary
    counts = Vocabulary.build(texts).counts
    new = tuple(word for word in counts if word not in vocabulary)
    words = Vocabulary({**vocabulary.counts, **{word: counts[word] for word in new}})
    wider = DenseCap(network.config, words, network.trunk, pretrained_backbone=False)
    tensors = wider.state_dict()
    take_over(wider, network)
    number = {token: row for row, token in enumerate(words.tokens)}
    known = [word for word in vocabulary.counts if word not in RESERVED]
    with torch.no_grad():
        for word in new:
            rows = [number[other] for other in _relatives(word, known)]
            for name in ("words.weight", "output.weight", "output.bias"):
                if (tensor := tensors.get(f"decoder.{name}")) is not None:
                    tensor[number[word]] = tensor[rows].mean(dim=0) - (UNCOMMON if name == "output.bias" else 0)
    wider.load_state_dict(tensors)
    return wider.eval(), new


def _relatives(word: str, known: Sequence[str]) -> list[str]:
    """The known words that are nearest to a word in the tree of nouns; all if it is not in the tree."""
    tree = noun_tree()
    if (noun := tree.named(word)) is None:
        return list(known)
    nouns = {other: found.ancestors for other in known if (found := tree.named(other)) is not None}
    for row in sorted(noun.ancestors, key=lambda row: noun.ancestors[row]):
        if near := [other for other, ancestors in nouns.items() if row in ancestors]:
            return near
    return list(known)


class Heads(nn.Module):
    """The last layers of a dense captioner: those that say phrases.

    The statistics of normalisation stay as they are also in training: one's own images are few and alike.
    """

    def __init__(self, network: DenseCap):
        super().__init__()
        self.phrase_head, self.decoder = network.phrase_head, network.decoder
        self.longest = network.config.decoding.max_words

    def train(self, mode: bool = True) -> Heads:
        """Set dropout on or off."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        return self

    def words(self, contexts: Tensor, token_ids: Tensor) -> Tensor:
        """Return the log-probabilities ``(W, V)`` of all W words and ENDs of phrases ``(N, T)``, padded, with END."""
        codes = contexts if self.phrase_head is None else self.phrase_head(contexts)
        previous = token_ids[:, :-1]
        logits = self.decoder(codes, previous.masked_fill(previous == END, PAD), token_ids != PAD)
        return logits.log_softmax(dim=1)

    @torch.no_grad()
    def say(self, contexts: Tensor) -> Tensor:
        """Return the likeliest phrases, word by word, as ``(N, T)`` token ids, padded, with END."""
        state = self.decoder.start(contexts if self.phrase_head is None else self.phrase_head(contexts))
        last, ended = torch.full((len(contexts),), START), torch.zeros(len(contexts), dtype=torch.bool)
        rows = list[Tensor]()
        for _ in range(self.longest):
            scores, state = self.decoder.step(last.to(contexts.device), state)
            scores[:, list(self.decoder.never)] = -math.inf
            last = scores.argmax(dim=1).cpu()
            rows.append(torch.where(ended, PAD, last))
            ended = ended | (last == END)
        rows.append(torch.where(ended, PAD, END))
        return torch.stack(rows, dim=1)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is learnt of an image: its regions, the token ids of each true box's phrases, and of the model's own."""

    regions: Regions
    phrases: Sequence[Sequence[Sequence[int]]]
    others: Tensor


def lessons(before: Heads, vocabulary: Vocabulary, samples: Sequence[Sample], found: Sequence[Regions]) -> list[Lesson]:
    """Return what is learnt of images whose regions were found."""
    made: list[Lesson] = []
    for sample, regions in zip(samples, found, strict=True):
        phrases = [[vocabulary.encode(phrase) for phrase in references] for references in sample.phrases]
        made.append(Lesson(regions, phrases, before.say(torch.from_numpy(regions.others).float())))
    return made


def others(lessons: Sequence[Lesson]) -> Tensor:
    """Return what phrases of regions that nobody annotated are decoded from, of all images: ``(N, D)``."""
    return torch.from_numpy(np.concatenate([lesson.regions.others for lesson in lessons])).float()


def phrases(heads: Heads, vocabulary: Vocabulary, batch: Sequence[Lesson]) -> list[str]:
    """Return what is said of the true boxes of images, one after the other."""
    rows = [lesson.regions.contexts[: len(lesson.phrases)] for lesson in batch]
    said = heads.say(torch.from_numpy(np.concatenate(rows)).float())
    return [vocabulary.decode(token_ids) for token_ids in said.tolist()]


def losses(heads: Heads, before: Heads, batch: Sequence[Lesson], random: np.random.Generator) -> dict[str, Tensor]:
    """Return the losses of some images, scalars: ``words`` of annotated regions, and ``kept`` of the others."""
    chosen = [
        lesson.phrases[box][int(random.integers(len(lesson.phrases[box])))]
        for lesson in batch
        for box in lesson.regions.phrase.tolist()
    ]
    token_ids = torch.from_numpy(pad([[*phrase, END] for phrase in chosen]))
    contexts = torch.from_numpy(np.concatenate([lesson.regions.contexts for lesson in batch])).float()
    said = heads.words(contexts, token_ids).gather(1, token_ids[token_ids != PAD][:, None])
    found = {"words": -said.sum() / len(chosen)}
    contexts = others(batch)
    if len(contexts):
        token_ids = torch.cat([lesson.others for lesson in batch])
        now = heads.words(contexts, token_ids)
        with torch.no_grad():
            then = before.words(contexts, token_ids)
        found["kept"] = functional.kl_div(now, then, reduction="sum", log_target=True) / len(contexts)
    return found


def train(
    heads: Heads, learnt: Sequence[Lesson], held_out: Sequence[Lesson], epochs: int, seed: int, new: Sequence[int] = ()
) -> int:
    """Train the last layers of a dense captioner; at the end they have the weights with the smallest held-out loss.

    There are at most ``epochs`` passes over the images; ``new`` are the token ids of new words.

    Returns:
        the epoch, from 1, after which they were the weights; 0 if none was better than those before.

    Raises:
        UserError: the loss is not finite.
    """
    before = copy.deepcopy(heads).eval().requires_grad_(False)
    heads.requires_grad_(True)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=RATE, weight_decay=DECAY)
    least, best_epoch, best = sum(measure(heads, before, held_out)), 0, copy.deepcopy(heads.state_dict())
    with track("learning", epochs) as progress:
        for epoch in range(epochs):
            if epoch - best_epoch >= PATIENCE:
                break
            _train_epoch(heads, before, optimizer, learnt, epoch, epochs, seed, new)
            loss = sum(measure(heads, before, held_out))
            if loss < least:
                least, best_epoch, best = loss, epoch + 1, copy.deepcopy(heads.state_dict())
            progress.advance(1, f"held-out loss {loss:.4f}")
    heads.load_state_dict(best)
    return best_epoch


def measure(heads: Heads, before: Heads, held_out: Sequence[Lesson]) -> tuple[float, float]:
    """Return the mean of the losses ``words`` and ``kept`` over images, with the same choice of phrases each time."""
    heads.eval()
    with torch.no_grad():
        each = [losses(heads, before, [one], np.random.default_rng(0)) for one in held_out]
    words, kept = (sum(float(terms.get(name, 0.0)) for terms in each) / len(each) for name in ("words", "kept"))
    return words, kept


def _train_epoch(
    heads: Heads, before: Heads, optimizer: torch.optim.Optimizer, learnt: Sequence[Lesson], epoch: int,
    epochs: int, seed: int, new: Sequence[int],
) -> None:  # fmt: skip
    """Take the steps of an epoch (counted from 0), whose random choices depend on the seed and its number alone."""
    order = np.random.default_rng((seed, epoch)).permutation(len(learnt))
    batches = np.array_split(order, math.ceil(len(order) / BATCH))
    heads.train()
    for number, rows in enumerate(batches):
        seed_step(seed, epoch, number)
        random = np.random.default_rng((seed, epoch, number))
        for group in optimizer.param_groups:
            step, steps = epoch * len(batches) + number, epochs * len(batches)
            group["lr"] = RATE * learning_rate_factor(step, steps, max(1.0, WARM_UP * steps), "cosine")
        loss = torch.stack([*losses(heads, before, [learnt[i] for i in rows], random).values()]).sum()
        if not math.isfinite(float(loss.detach())):
            raise UserError(
                f"the loss is not finite in epoch {epoch + 1}; start over with --restart and fewer --epochs"
            )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(heads.parameters(), CLIP)
        tensors = [tensor for name, tensor in heads.named_parameters() if name.endswith(WORD_ROWS)]
        last = [tensor.detach()[[*new]].clone() for tensor in tensors]
        optimizer.step()
        with torch.no_grad():
            for tensor, rows in zip(tensors, last, strict=True):
                tensor[[*new]] = torch.lerp(rows, tensor[[*new]], FASTER)
