"""Fine-tuning of a dense captioner's last layers: those that write phrases, and the one that scores boxes.

All layers below and the boxes stay fixed, so the layers' inputs are computed once and the model's other parts still
fit. In regions that are not annotated, the model's original answers are the target, which limits forgetting (Li and
Hoiem, Learning without Forgetting, 2016).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.calibration import MATCH, logistic
from saywhere.data.sample import Sample
from saywhere.engines.engine import RegionHeadOutput
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.models.nouns import noun_tree
from saywhere.networks.densecap.network import DenseCap, move
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.options import dataclass
from saywhere.text import END, PAD, RESERVED, START, Vocabulary, pad
from saywhere.training.finetuning import WORD_ROWS, take_over
from saywhere.training.loop import learning_rate_factor, seed_step
from saywhere.training.progress import track

COPIES = 3
"""Slightly moved copies of each true box, trained with the box's phrase."""
OTHERS = 16
"""Maximum regions per image whose phrases are kept as they were: the best that are not annotated."""
NEAR = 0.2
"""A detected region counts as annotated from this IoU with a true box."""
EPOCHS, PATIENCE, BATCH = 14, 4, 8
"""Minimum epochs to plan for; epochs without a lower held-out loss after which training stops; images per batch."""
RATE, DECAY, WARM_UP, CLIP = 1e-3, 0.01, 0.1, 10.0
"""Learning rate and weight decay of AdamW, share of the steps for warm-up, and maximum gradient norm."""
FASTER = 10.0
"""Factor on the steps of rows of new words. With 26 photographs of one new word, the model never said it at 3, and kept
less of the rest at 20."""
UNCOMMON = 2.0
"""How far below those of similar words the initial natural log-probability of a new word is."""
SURE = 0.8
"""Minimum target of the score of a region that matches a true box; with 1, the scores of all such regions are alike."""
OVERLAPPING = 0.5
"""Factor on the target of a region that overlaps a true box, but does not match it."""
PRIOR = 3000.0
"""Weight of the Fisher information of box scores, per image of the user."""
STEPS, SMALL = 60, 1e-6
"""Maximum number of Newton's steps, and the step below which they end."""


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one image, as arrays.

    Attributes:
        contexts: ``(R, D)`` decoder inputs of the true boxes and their copies.
        phrase: ``(R,)`` index of each one's true box; the boxes themselves come first.
        others: ``(K, D)`` decoder inputs of regions that are not annotated.
        embeddings: ``(N, E)`` outputs of the region head for found regions, with all proposals that match a true box.
        logits: ``(N,)`` their original scores as logits.
        overlaps: ``(N,)`` their IoU with the nearest true box.
    """

    contexts: np.ndarray
    phrase: np.ndarray
    others: np.ndarray
    embeddings: np.ndarray
    logits: np.ndarray
    overlaps: np.ndarray


@torch.inference_mode()
def find_regions(network: DenseCap, sample: Sample, seed: int) -> Regions:
    """Return the regions of an annotated image, by the original network; ``ImageError`` if it cannot be read."""
    view = _View(network, sample)
    generator = torch.Generator().manual_seed(seed)
    copies = torch.cat((view.truths, *(move(view.truths, view.size, generator) for _ in range(COPIES))))
    own = view.head(network.box_coder.from_xyxy(copies)).embeddings
    found, boxes, kept = view.find()
    overlaps = geometry.iou(boxes, view.truths).max(dim=1).values
    rows = [row for row in kept.tolist() if float(overlaps[row]) < NEAR][:OTHERS]
    scored = overlaps >= MATCH
    scored[kept] = True
    return Regions(
        contexts=view.contexts(copies, own),
        phrase=np.tile(np.arange(len(view.truths)), 1 + COPIES),
        others=view.contexts(boxes[rows], found.embeddings[rows]),
        embeddings=_half(found.embeddings[scored]),
        logits=found.logits[scored].float().cpu().numpy(),
        overlaps=overlaps[scored].float().cpu().numpy(),
    )


class _View:
    """An annotated image as the network sees it; its true boxes ``(T, 4)`` in pixels of the network's input."""

    def __init__(self, network: DenseCap, sample: Sample):
        trunk = network.trunk
        pixels = torch.from_numpy(trunk.preprocess(open_image(sample.image, trunk.preprocess.long_side)))
        (self.image,) = ImageMaps.look(trunk, [pixels.to(network.region_head.score.weight.device)])
        self.network, self.size = network, self.image.input_size
        scale = self.size[0] / sample.width, self.size[1] / sample.height
        self.truths = torch.from_numpy(geometry.scale(sample.boxes, *scale)).to(self.image.maps[0].device)

    def head(self, boxes: Tensor) -> RegionHeadOutput:
        """Return the outputs of the region head for boxes of the box coder."""
        return self.network.region_head(self.network.pool([self.image], [boxes]))

    def find(self) -> tuple[RegionHeadOutput, Tensor, Tensor]:
        """Return the head's outputs for all N proposals, the final boxes ``(N, 4)``, and the rows that are kept."""
        coder, (rpn,) = self.network.box_coder, ImageMaps.rpns([self.image])
        proposals, _ = propose(coder, rpn, self.size, *self.network.config.proposals.limits)
        found = self.head(proposals)
        decoded = coder.decode(found.offsets, proposals)
        boxes = coder.to_xyxy(coder.clip(decoded, *self.size)[0])
        return found, boxes, coder.suppress_final(decoded, boxes, found.logits, self.network.config.final_nms)

    def contexts(self, boxes: Tensor, embeddings: Tensor) -> np.ndarray:
        """Return the decoder's inputs for boxes with their embeddings by the region head."""
        if self.network.phrase_head is None:
            return _half(embeddings)
        return _half(self.image.phrase_features(boxes, self.network.config.phrase_levels, embeddings))


def _half(values: Tensor) -> np.ndarray:
    return values.clamp(-6e4, 6e4).half().cpu().numpy()


def with_words(network: DenseCap, texts: Sequence[str]) -> tuple[DenseCap, tuple[str, ...]]:
    """Return a dense captioner on the same trunk whose vocabulary includes the words of ``texts``, and the new words.

    A new word is initialised as the mean of the known words nearest in the noun tree, or else of all words, with a
    lower probability, so that the outputs hardly change.
    """
    vocabulary = network.vocabulary
    counts = Vocabulary.build(texts).counts
    new = tuple(word for word in counts if word not in vocabulary)
    words = Vocabulary({**vocabulary.counts, **{word: counts[word] for word in new}})
    wider = DenseCap(network.config, words, network.trunk)
    tensors = wider.state_dict()
    take_over(wider, network)
    number = {token: row for row, token in enumerate(words.tokens)}
    known = [word for word in vocabulary.counts if word not in RESERVED]
    with torch.no_grad():
        for word in new:
            rows = [number[other] for other in _relatives(word, known)]
            for name, tensor in tensors.items():
                if name.endswith(WORD_ROWS) and "ngrams" not in name:
                    tensor[number[word]] = tensor[rows].mean(dim=0) - (UNCOMMON if name.endswith("bias") else 0)
    wider.load_state_dict(tensors)
    if network.ngrams is not None and wider.ngrams is not None:  # its words have other ids now
        wider.ngrams.load_state_dict(network.ngrams.state_dict())
        renumbered = torch.tensor([number[token] for token in vocabulary.tokens])
        wider.ngrams.token_ids.copy_(renumbered[network.ngrams.token_ids.long()])
    return wider.eval(), new


def _relatives(word: str, known: Sequence[str]) -> list[str]:
    """Return the known words nearest to a word in the noun tree; all of them if it is not in the tree."""
    tree = noun_tree()
    if (noun := tree.named(word)) is None:
        return list(known)
    nouns = {other: found.ancestors for other in known if (found := tree.named(other)) is not None}
    for row in sorted(noun.ancestors, key=lambda row: noun.ancestors[row]):
        if near := [other for other, ancestors in nouns.items() if row in ancestors]:
            return near
    return list(known)


class Heads(nn.Module):
    """The last layers of a dense captioner, which write phrases.

    Normalisation statistics stay fixed even in training: users' own images are few and similar.
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
        """Return the log-probabilities ``(W, V)`` of all W words and ENDs of phrases ``(N, T)``, which are padded."""
        codes = contexts if self.phrase_head is None else self.phrase_head(contexts)
        previous = token_ids[:, :-1]
        logits = self.decoder(codes, previous.masked_fill(previous == END, PAD), token_ids != PAD)
        return logits.log_softmax(dim=1)

    @torch.no_grad()
    def say(self, contexts: Tensor) -> Tensor:
        """Decode greedily: return the phrases' token ids ``(N, T)`` with END, padded."""
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
    """Training data of one image: its regions, token ids of each true box's phrases, and of the model's own phrases."""

    regions: Regions
    phrases: Sequence[Sequence[Sequence[int]]]
    others: Tensor


def lessons(before: Heads, vocabulary: Vocabulary, samples: Sequence[Sample], found: Sequence[Regions]) -> list[Lesson]:
    """Return the training data of images, given their regions."""
    made: list[Lesson] = []
    for sample, regions in zip(samples, found, strict=True):
        phrases = [[vocabulary.encode(phrase) for phrase in references] for references in sample.phrases]
        made.append(Lesson(regions, phrases, before.say(torch.from_numpy(regions.others).float())))
    return made


def others(lessons: Sequence[Lesson]) -> Tensor:
    """Return the decoder inputs ``(N, D)`` of all images' regions that are not annotated."""
    return torch.from_numpy(np.concatenate([lesson.regions.others for lesson in lessons])).float()


def losses(heads: Heads, before: Heads, batch: Sequence[Lesson], random: np.random.Generator) -> dict[str, Tensor]:
    """Return the scalar losses of some images: ``words`` of annotated regions, and ``kept`` of the others."""
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
    """Train the last layers of a dense captioner, and restore the weights with the lowest held-out loss.

    ``epochs`` is the maximum number of epochs; ``new`` holds the token ids of new words.

    Returns:
        The epoch of these weights, counted from 1; 0 if the initial weights were best.

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
    """Return the mean losses ``words`` and ``kept`` over images, with the same choice of phrases each time."""
    heads.eval()
    with torch.no_grad():
        each = [losses(heads, before, [one], np.random.default_rng(0)) for one in held_out]
    words, kept = (sum(float(terms.get(name, 0.0)) for terms in each) / len(each) for name in ("words", "kept"))
    return words, kept


def _train_epoch(
    heads: Heads, before: Heads, optimizer: torch.optim.Optimizer, learnt: Sequence[Lesson], epoch: int,
    epochs: int, seed: int, new: Sequence[int],
) -> None:  # fmt: skip
    """Run an epoch (counted from 0) whose random choices depend only on the seed and its number."""
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


# Scores of boxes


def score_inputs(embeddings: np.ndarray) -> np.ndarray:
    """Return the inputs ``(N, E + 1)`` of the layer of box scores: the embeddings, and 1 for its bias."""
    return np.pad(embeddings.astype(np.float64), ((0, 0), (0, 1)), constant_values=1.0)


def score_targets(regions: Regions) -> np.ndarray:
    """Return the probability ``(N,)`` that each region should have.

    It is at least :data:`SURE` for those that match a true box, and less than before for those that only overlap one.
    What is not annotated keeps its probability.
    """
    before = logistic(regions.logits.astype(np.float64))
    overlapping = np.where(regions.overlaps >= NEAR, OVERLAPPING * before, before)
    return np.where(regions.overlaps >= MATCH, np.maximum(before, SURE), overlapping)


def score_loss(change: np.ndarray, images: Sequence[Regions]) -> float:
    """Return the mean over images of the summed cross-entropy of box scores with :func:`score_targets`.

    ``change (E + 1,)`` is added to the weights and the bias of the layer.
    """
    total = 0.0
    for regions in images:
        logits = regions.logits + score_inputs(regions.embeddings) @ change
        total += float((np.logaddexp(0, logits) - score_targets(regions) * logits).sum())
    return total / len(images)


def fit_scores(images: Sequence[Regions], information: np.ndarray) -> np.ndarray:
    """Return the change ``(E + 1,)`` of the weights and the bias of the layer of box scores for a user's images.

    It minimises :func:`score_loss` plus half of :data:`PRIOR` times its square by the Fisher information ``(E + 1,
    E + 1)`` of everyday photographs, on which scores then hardly change (elastic weight consolidation, Kirkpatrick et
    al., Overcoming catastrophic forgetting in neural networks, 2017).
    """
    prior = PRIOR * information
    inputs = score_inputs(np.concatenate([regions.embeddings for regions in images]))
    logits = np.concatenate([regions.logits for regions in images])
    targets = np.concatenate([score_targets(regions) for regions in images])

    def objective(change: np.ndarray) -> float:
        return score_loss(change, images) + 0.5 * float(change @ prior @ change)

    change = np.zeros(len(information))
    for _ in range(STEPS):
        found = logistic(logits + inputs @ change)
        slope = prior @ change + inputs.T @ (found - targets) / len(images)
        curve = prior + (inputs * (found * (1 - found))[:, None]).T @ inputs / len(images)
        step, least = np.linalg.solve(curve, slope), objective(change)
        while np.abs(step).max() >= SMALL and objective(change - step) > least:
            step /= 2
        if np.abs(step).max() < SMALL:
            break
        change -= step
    return change
