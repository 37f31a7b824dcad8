"""A DenseCap with the program's conventions, seen as the program's functions show it.

:func:`test_pass` and :func:`training_pass` run the same parts as ``describe`` and training, and give every step
between in the program's formats: boxes ``xcycwh`` from 1, tokens from 1. Indices count from 0. One picture at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere.errors import UserError
from saywhere.language.original import OriginalSpeaker
from saywhere.models.densecap import DenseCap, DenseCapOutput, Target
from saywhere.models.densecap_loss import DenseCapCriterion
from saywhere.original.language_model import decode_sequences
from saywhere.original.sampler import BoxSampler
from saywhere.text import END, PAD, RESERVED, UNKNOWN
from saywhere.vision.localization import Choice


@dataclass(frozen=True, eq=False)
class TestPass:
    """What the program computes of a picture, of A anchors, B proposals and N results.

    Attributes:
        conv_features: ``(C, H, W)``.
        rpn_boxes, rpn_anchors, rpn_trans: ``(A, 4)``; rows by shape, row, column.
        rpn_scores: ``(A, 2)`` logits, positive first.
        rpn_boxes_clipped, rpn_valid: ``(A, 4)`` and mask ``(A,)``.
        rpn_pos_prob_of_valid: probability of each valid row.
        rpn_nms: indices ``(B,)`` of valid rows.
        proposals: ``(B, 4)``.
        roi_features: ``(B, C, size, size)``.
        codes: ``(B, D)``.
        objectness, box_trans: ``(B,)`` second logits, and ``(B, 4)`` second offsets.
        final_boxes: ``(B, 4)``, not clipped.
        tokens: ``(B, T)`` all said, also after END.
        captions: of the B proposals.
        final_nms: indices ``(N,)`` of the proposals that are kept, best first: the results are these rows.
    """

    conv_features: Tensor
    rpn_boxes: Tensor
    rpn_anchors: Tensor
    rpn_trans: Tensor
    rpn_scores: Tensor
    rpn_boxes_clipped: Tensor
    rpn_valid: Tensor
    rpn_pos_prob_of_valid: Tensor
    rpn_nms: Tensor
    proposals: Tensor
    roi_features: Tensor
    codes: Tensor
    objectness: Tensor
    box_trans: Tensor
    final_boxes: Tensor
    tokens: Tensor
    captions: list[str]
    final_nms: Tensor


@torch.no_grad()
def test_pass(
    model: DenseCap,
    pixels: Tensor,
    proposals: int | None = None,
    rpn_nms: float | None = None,
    final_nms: float | None = None,
) -> TestPass:
    """The program's forward pass at test time.

    Args:
        model: with ``conventions: original``, in eval mode.
        pixels: ``(3, h, w)`` as ``model.preprocess`` gives them, in the model's precision.
        proposals, rpn_nms, final_nms: instead of the configuration's.

    Raises:
        UserError: the model has other conventions.
    """
    speaker, config, conventions = _speaker(model), model.config, model.conventions
    height, width = pixels.shape[1:]
    maps = model.neck(model.backbone([pixels]))[0]
    rpn = model.localization([maps])[0]
    boxes = model.localization.boxes(rpn)
    clipped, valid = conventions.clip(boxes, width, height)
    scores = model.localization.head.score_and_offset(maps[0][None])[0][0]
    limit, overlap = (
        config.proposals if proposals is None else proposals,
        config.rpn_nms if rpn_nms is None else rpn_nms,
    )
    kept = conventions.suppress_proposals(clipped[valid], rpn.logits[valid], overlap, limit)
    found = clipped[valid][kept]
    features = model.pool([maps], [found], [(width, height)])
    out = model.recognition(features)
    final = conventions.decode(out.offsets, found)
    tokens = speaker.model.sample(out.codes, config.max_words)
    overlap = config.final_nms if final_nms is None else final_nms
    return TestPass(
        conv_features=maps[0],
        rpn_boxes=boxes,
        rpn_anchors=rpn.anchors,
        rpn_trans=rpn.offsets,
        rpn_scores=scores,
        rpn_boxes_clipped=clipped,
        rpn_valid=valid,
        rpn_pos_prob_of_valid=rpn.logits[valid].sigmoid(),
        rpn_nms=kept,
        proposals=found,
        roi_features=features,
        codes=out.codes,
        objectness=out.logits,
        box_trans=out.offsets,
        final_boxes=final,
        tokens=tokens,
        captions=decode_sequences(tokens, words_of(model)),
        final_nms=conventions.suppress_final(final, final, out.logits, overlap),
    )


@dataclass(frozen=True, eq=False)
class TrainingPass:
    """One step before its gradients.

    Attributes:
        chosen: the anchors that train, see :class:`Choice`.
        output: what the losses are made of.
        losses: ``rpn_score, rpn_box, score, box, caption``, weighted, and ``decay``, which the program does not print.
        total: their sum, to be minimised.
    """

    chosen: Choice
    output: DenseCapOutput
    losses: dict[str, Tensor]
    total: Tensor


def training_pass(
    model: DenseCap,
    pixels: Tensor,
    boxes: Tensor,
    tokens: Tensor,
    chosen: Choice | None = None,
    generator: torch.Generator | None = None,
) -> TrainingPass:
    """The program's forward pass in training; ``total.backward()`` gives the gradients.

    ``model.backbone.set_trainable(True)`` lets them reach all but the first four convolutions. Dropout is that of the
    model's mode.

    Args:
        model: with ``conventions: original``.
        pixels: ``(3, h, w)`` as ``model.preprocess`` gives them.
        boxes: the truths ``(M, 4)``, ``xcycwh`` from 1.
        tokens: their captions ``(M, T)``, 1 to V, 0 where there is no word.
        chosen: indices from 0 of the anchors (by shape, row, column) that train, instead of drawing them.
        generator: source of the sampler's randomness.
    """
    _speaker(model)
    conventions = model.conventions
    height, width = pixels.shape[1:]
    features = model.backbone([pixels])
    target = Target(width, height, conventions.to_ours(boxes), from_tokens(tokens, len(model.vocabulary)))
    if chosen is None:
        config, picture = model.config, (width, height) if model.config.inside_only else None
        with torch.no_grad():
            predicted = model.localization.boxes(model.localization(model.neck(features))[0])
        sampler = BoxSampler(config.rpn_batch, config.rpn_positive, config.rpn_negative)
        chosen = sampler(predicted, boxes, picture, generator)
    output = model(features, [target], chosen=[chosen])
    losses: dict[str, Tensor] = DenseCapCriterion(model.config)(output)
    return TrainingPass(chosen, output, losses, torch.stack(list(losses.values())).sum())


def from_tokens(tokens: Tensor, vocabulary_size: int) -> Tensor:
    """The program's tokens (0 nothing, 1 to V words of which the last is the unknown one, V + 1 END) as our numbers."""
    words = vocabulary_size - len(RESERVED) + 1
    numbers = torch.arange(words + 2, device=tokens.device) + len(RESERVED) - 1
    numbers[0], numbers[words], numbers[words + 1] = PAD, UNKNOWN, END
    return numbers[tokens]


def words_of(model: DenseCap) -> list[str]:
    """The words of the program's tokens from 1 on."""
    return [*model.vocabulary.counts, OriginalSpeaker.unknown]


def _speaker(model: DenseCap) -> OriginalSpeaker:
    if not isinstance(model.speaker, OriginalSpeaker):
        raise UserError("this model is not one of the published program: its configuration has conventions=saywhere")
    return model.speaker
