"""The score of an alignment (METEOR 1.5, section 2), for the task of ranking translations into English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from saywhere.evaluation.meteor.alignment import align
from saywhere.evaluation.meteor.matches import Text, possible_matches

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)

Statistics = tuple[int, ...]
"""Words, and function words, of the hypothesis and of the reference; for each module the content words that match in
both, and the function words; chunks; words that match in both."""


def statistics(hypothesis: Text, reference: Text) -> Statistics:
    """Return what the score of a pair is computed from; such numbers of several pairs may be added."""
    matches, chunks = align(possible_matches(hypothesis, reference), len(reference.words))
    counts = [0] * 16
    ours, theirs = hypothesis.functions, reference.functions
    total = rtotal = 0
    for start, count, other, length, module in matches:
        functions = sum(ours[other : other + length])
        rfunctions = sum(theirs[start : start + count])
        counts[4 * module] += length - functions
        counts[4 * module + 1] += count - rfunctions
        counts[4 * module + 2] += functions
        counts[4 * module + 3] += rfunctions
        total += length
        rtotal += count
    return len(ours), len(theirs), sum(ours), sum(theirs), *counts, chunks, total, rtotal


def score(s: Sequence[int]) -> float:
    """Return the score, 0 to 1, of statistics."""
    words = DELTA * (s[0] - s[2]) + (1.0 - DELTA) * s[2]
    rwords = DELTA * (s[1] - s[3]) + (1.0 - DELTA) * s[3]
    matched = rmatched = 0.0
    for kind, share in ((4, DELTA), (6, 1.0 - DELTA)):  # content words, function words
        for weight, ours, theirs in zip(WEIGHTS, s[kind:20:4], s[kind + 1 : 20 : 4], strict=True):
            matched += weight * ours * share
            rmatched += weight * theirs * share
    if not matched or not rmatched:
        return 0.0
    precision, recall = matched / words, rmatched / rwords
    mean = 1.0 / ((1.0 - ALPHA) / precision + ALPHA / recall)
    fragmentation = _chunks(s) / ((s[21] + s[22]) / 2)
    return mean * (1.0 - GAMMA * fragmentation**BETA)


def total(statistics: Iterable[Statistics]) -> Statistics:
    """Return the statistics of all pairs together, in which a pair that matches as a whole has no chunk."""
    return tuple(map(sum, zip(*((*s[:20], _chunks(s), *s[21:]) for s in statistics), strict=True)))


def _chunks(s: Sequence[int]) -> int:
    """Return the number of chunks; none if all words match in one."""
    return 0 if s[20] == 1 and s[21] == s[0] and s[22] == s[1] else s[20]
