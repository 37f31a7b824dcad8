"""Ranking of embedded pictures and sentences, a block of scores at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from saywhere.evaluation.ranking import RankingResult, rank
from saywhere.models.aligner import stack
from saywhere.models.alignment import PictureVectors, SentenceVectors
from saywhere.models.alignment_score import BLOCK, How, blocks, pair_scores

SENTENCES_AT_ONCE = 64


@torch.no_grad()
def rank_embedded(
    pictures: Sequence[PictureVectors],
    sentences: Sequence[SentenceVectors],
    owner: Sequence[int],
    how: How = "max",
    block: int = BLOCK,
) -> RankingResult:
    """Rank all sentences for each picture and all pictures for each sentence.

    Args:
        pictures, sentences: as :class:`saywhere.models.aligner.Aligner` embeds them.
        owner: of each sentence the number of its picture.
        how: the score, see :func:`saywhere.models.alignment_score.pair_scores`.
        block: see :func:`saywhere.models.alignment_score.blocks`; memory is bounded by it.
    """
    # Sentences of like length stand together, so that little is padded; the longest stand alone.
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    rows = torch.tensor([owner[i] for i in order], dtype=torch.long)
    areas, areas_real = stack([p.vectors.float().cpu() for p in pictures])
    groups = [order[start : start + SENTENCES_AT_ONCE] for start in range(0, len(order), SENTENCES_AT_ONCE)]
    spoken = [stack([sentences[i].vectors.float().cpu() for i in group]) for group in groups]
    own: list[torch.Tensor] = []
    for number, (words, real) in enumerate(spoken):
        start = number * SENTENCES_AT_ONCE
        for i, row in enumerate(rows[start : start + SENTENCES_AT_ONCE].tolist()):
            pair = (areas[row : row + 1], areas_real[row : row + 1], words[i : i + 1], real[i : i + 1])
            own.append(pair_scores(*pair, how)[0, 0])

    def parts():
        for number, (words, real) in enumerate(spoken):
            start = number * SENTENCES_AT_ONCE
            for top, columns, scores in blocks(areas, areas_real, words, real, how, block=block):
                yield top, slice(start + columns.start, start + columns.stop), scores

    own_scores = torch.stack(own) if own else torch.zeros(0)
    return rank(own_scores, rows, len(pictures), parts())
