"""All intermediate results of a DenseCap with the program's conventions, in the program's formats.

:func:`trace_inference` and :func:`trace_training` run the same parts as inference and training, one image at a time.
Boxes are 1-based ``xcycwh``, tokens count from 1, indices from 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saywhere.boxes import propose
from saywhere.errors import UserError
from saywhere.networks.densecap.build import SampledBoxes
from saywhere.networks.densecap.loss import DenseCapCriterion
from saywhere.networks.densecap.network import DenseCap, DenseCapOutput, Target
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.options import dataclass
from saywhere.papers.densecap2016.network import OriginalDecoder, decode_sequences
from saywhere.text import END, PAD, RESERVED, UNKNOWN


@dataclass(frozen=True, eq=False)
class InferenceTrace:
    """The program's results for an image with A anchors, B proposals and N final results.

    Attributes:
        conv_features: ``(C, H, W)``.
        rpn_boxes, rpn_anchors, rpn_trans: ``(A, 4)``; rows by shape, row, column.
        rpn_scores: ``(A, 2)`` logits, positive first.
        rpn_boxes_clipped, rpn_valid: ``(A, 4)`` and mask ``(A,)``.
        rpn_pos_prob_of_valid: probability of each valid row.
        rpn_nms: indices ``(B,)`` of valid rows.
        proposals: ``(B, 4)``.
        roi_features: ``(B, C, size, size)``.
        embeddings: ``(B, D)``.
        objectness, box_trans: ``(B,)`` second logits, and ``(B, 4)`` second offsets.
        final_boxes: ``(B, 4)``, not clipped.
        tokens: ``(B, T)`` all decoded tokens, even after END.
        captions: of the B proposals.
        final_nms: indices ``(N,)`` of the kept proposals, best first; these rows are the results.
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
    embeddings: Tensor
    objectness: Tensor
    box_trans: Tensor
    final_boxes: Tensor
    tokens: Tensor
    captions: list[str]
    final_nms: Tensor


@torch.no_grad()
def trace_inference(model: DenseCap, pixels: Tensor) -> InferenceTrace:
    """Run the program's forward pass at test time on ``pixels (3, h, w)`` from ``model.trunk.preprocess``.

    The model must have ``conventions: original`` (or ``UserError``) and be in eval mode.
    """
    decoder, config, coder = _decoder(model), model.config, model.box_coder
    height, width = pixels.shape[1:]
    (image,) = images = ImageMaps.look(model.trunk, [pixels])
    (rpn,) = ImageMaps.rpns(images)
    assert model.trunk.localization is not None
    scores = model.trunk.localization.head.score_and_offset(image.maps[0][None])[0][0]
    boxes = coder.decode(rpn.offsets, rpn.anchors)
    clipped, valid = coder.clip(boxes, width, height)
    overlap, limit = config.proposals.nms_iou, config.proposals.post_nms_top_n
    kept = coder.suppress_proposals(clipped[valid], rpn.logits[valid], overlap, limit)
    found, _ = propose(coder, rpn, (width, height), overlap, config.proposals.pre_nms_top_n, limit)
    features = model.pool(images, [found])
    out = model.region_head(features)
    final = coder.decode(out.offsets, found)
    tokens = decoder.model.sample(out.embeddings, config.decoding.max_words)
    return InferenceTrace(
        conv_features=image.maps[0],
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
        embeddings=out.embeddings,
        objectness=out.logits,
        box_trans=out.offsets,
        final_boxes=final,
        tokens=tokens,
        captions=decode_sequences(tokens, words_of(model)),
        final_nms=coder.suppress_final(final, final, out.logits, config.final_nms),
    )


@dataclass(frozen=True, eq=False)
class TrainingTrace:
    """One training step before its gradients.

    Attributes:
        sampled: the training anchors, see :class:`SampledBoxes`.
        output: the inputs of the losses.
        losses: weighted ``rpn_score, rpn_box, score, box, caption``, and ``decay``, which the program does not print.
        total: their sum, which is minimised.
    """

    sampled: SampledBoxes
    output: DenseCapOutput
    losses: dict[str, Tensor]
    total: Tensor


def trace_training(
    model: DenseCap,
    pixels: Tensor,
    boxes: Tensor,
    tokens: Tensor,
    sampled: SampledBoxes | None = None,
    generator: torch.Generator | None = None,
) -> TrainingTrace:
    """Run the program's forward pass in training; ``total.backward()`` computes the gradients.

    ``model.trunk.backbone.set_trainable(True)`` extends them to all but the first four convolutions. The model's mode
    decides about dropout; its conventions must be ``original`` (or ``UserError``).

    Args:
        pixels: ``(3, h, w)`` from ``model.trunk.preprocess``.
        boxes: true boxes ``(M, 4)``, 1-based ``xcycwh``.
        tokens: their captions ``(M, T)``, 1 to V, and 0 for padding.
        sampled: indices from 0 of the training anchors (by shape, row, column); None: they are sampled.
    """
    _decoder(model)
    height, width = pixels.shape[1:]
    features = model.trunk.backbone([pixels])
    target = Target(width, height, model.box_coder.to_xyxy(boxes), from_tokens(tokens, len(model.vocabulary)))
    if sampled is None:
        with torch.no_grad():
            (rpn,) = ImageMaps.rpns([ImageMaps(model.trunk, features[0], width, height)])
        sampled = model.sample_anchors(rpn, replace(target, boxes=boxes), generator)
    output = model(features, [target], sampled=[sampled])
    losses: dict[str, Tensor] = DenseCapCriterion(model.config)(output)
    return TrainingTrace(sampled, output, losses, torch.stack(list(losses.values())).sum())


def from_tokens(tokens: Tensor, vocabulary_size: int) -> Tensor:
    """Return the token ids for the program's tokens: 0 nothing, 1 to V words (the last unknown), V + 1 END."""
    words = vocabulary_size - len(RESERVED) + 1
    token_ids = torch.arange(words + 2, device=tokens.device) + len(RESERVED) - 1
    token_ids[0], token_ids[words], token_ids[words + 1] = PAD, UNKNOWN, END
    return token_ids[tokens]


def words_of(model: DenseCap) -> list[str]:
    """Return the words of the program's tokens from 1 on."""
    return [*model.vocabulary.counts, OriginalDecoder.unknown]


def _decoder(model: DenseCap) -> OriginalDecoder:
    if not isinstance(model.decoder, OriginalDecoder):
        raise UserError("this model is not one of the published program: its configuration has conventions=saywhere")
    return model.decoder
