"""Which nouns a caption has: the captioner's, or those of things that the classes see (docs/nouns.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from saywhere.engines.engine import Detector
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.naming import related, with_noun
from saywhere.models.noun_tree import Head, Noun, find_heads, find_nouns
from saywhere.models.nouns import ClassEvidence
from saywhere.text import tokenize

FEW, REGIONS = 10, 40
"""Proposals of an image that are looked at: at first, and if they do not show all that its sentence names."""
LEAST_REGION = 0.2
"""Probability, before calibration, that there is something in a region; others are left out."""
UNSEEN = 0.1
"""No region shows a thing if none has this probability for it."""
LEAST_SUPPORT = -3.0
"""Of a noun that no region shows; a lower one would say more than the classes know."""
SURE = 0.6
"""A thing that the captioner did not name is named if some region shows it with a higher probability."""
LISTED = 2
"""Things that take the place of a sentence of which nothing is seen."""


class NounChecker:
    """Check the nouns of sentences by what their images show; a look at an image serves all questions.

    Args:
        detector, classes: of the model.
        encodings: of the images.
    """

    def __init__(self, detector: Detector, classes: ClassEvidence, encodings: Sequence[Encoding]) -> None:
        self._detector, self._classes, self._encodings = detector, classes, encodings

    @cached_property
    def _first(self) -> list[np.ndarray]:
        """What the first :data:`FEW` proposals of each image show."""
        return see(self._detector, self._classes, self._encodings, FEW)

    def support(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return for each image how far it shows what its sentences name, see :func:`support`."""
        return [support(self._classes, posterior, own) for posterior, own in zip(self._first, sentences, strict=True)]

    def correct(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentence of each image as :func:`correct` does it, with the first :data:`REGIONS` of each image.

        The first :data:`FEW` mostly show all that a sentence names. Then it stays, and the others need no look.
        """
        corrected, classes = list(sentences), self._classes
        doubtful = [i for i, shown in enumerate(self._first) if not all_seen(classes, shown, sentences[i])]
        images = [self._encodings[i] for i in doubtful]
        more = see(self._detector, classes, images, REGIONS) if doubtful else []
        for i, posterior in zip(doubtful, more, strict=True):
            corrected[i] = correct(classes, posterior, sentences[i])
        return corrected


def see(
    detector: Detector, classes: ClassEvidence, encodings: Sequence[Encoding], limit: int = REGIONS
) -> list[np.ndarray]:
    """Return what the regions of each image show: probabilities ``(N, K)`` of the K leaves of the tree of nouns."""
    settings, coder = detector.config.proposals, detector.box_coder
    proposals = [propose_boxes(encoding, settings, coder, limit)[0] for encoding in encodings]
    heads = detector.region_head([e.maps for e in encodings], proposals)
    boxes, embeddings = list[np.ndarray](), list[np.ndarray]()
    for encoding, proposed, head in zip(encodings, proposals, heads, strict=True):
        in_image = encoding.to_image(proposed)
        kept = np.asarray(head.logits) > np.log(LEAST_REGION / (1 - LEAST_REGION))
        kept &= ((in_image[:, 2:] - in_image[:, :2]) > 0).all(axis=1)
        boxes.append(in_image[kept])
        embeddings.append(np.asarray(head.embeddings)[kept])
    return classes.posteriors(encodings, boxes, embeddings)


def correct(classes: ClassEvidence, posterior: np.ndarray, sentence: str) -> str:
    """Return a caption whose nouns the image shows, as far as the classes know.

    A noun that no region shows gives way to the surest thing that one does show, that is of the same sort and that the
    sentence does not name yet: a dog to a cat, for both are animals. Words for people stay. If then nothing of what the
    sentence names is in the image, it is about another one, and the surest things are named instead.

    Args:
        classes: with the tree of nouns.
        posterior: ``(N, K)`` of the image's regions, see :func:`see`.
        sentence: of the captioner.
    """
    words = tokenize(sentence)
    heads = find_heads(words, classes.tree)
    things = sure_things(classes, posterior)
    if not heads or not things:
        return sentence
    nouns = [head.noun for head in heads if head.noun is not None]
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    for number, head in reversed(list(enumerate(heads))):
        if seen[number] or is_person(classes, nouns[number]):
            continue
        new = next((noun for noun in things if _may_replace(nouns[number], noun, nouns)), None)
        if new is not None:
            before = max(head.start - 1, 0)
            moved = Head(head.start - before, head.stop - before, head.noun, head.plural)
            words[before : head.stop] = with_noun(moved, words[before : head.stop], new).split()
            nouns[number], seen[number] = new, True
    return " ".join(words) if any(seen) else listed(things)


def all_seen(classes: ClassEvidence, posterior: np.ndarray, sentence: str) -> bool:
    """Return whether regions show all that a sentence names, so that :func:`correct` leaves it as it is."""
    nouns = find_nouns(sentence, classes.tree)
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    unseen = [noun for noun, there in zip(nouns, seen, strict=True) if not there]
    return not nouns or (any(seen) and all(is_person(classes, noun) for noun in unseen))


def is_person(classes: ClassEvidence, noun: Noun) -> bool:
    """Return whether a noun is a word for people."""
    person = classes.tree.named("person")
    return person is not None and person.row in noun.ancestors


def is_seen(classes: ClassEvidence, posterior: np.ndarray, noun: Noun) -> bool:
    """Return whether a region may show what a noun names, see :func:`shown`."""
    return shown(classes, posterior, noun) >= UNSEEN


def shown(classes: ClassEvidence, posterior: np.ndarray, noun: Noun) -> float:
    """Return the largest probability that a region shows what a noun names; of words for people, that it shows anybody.

    It is 1 for a kind that the classifier was not taught: it knows nothing of that.
    """
    person = classes.tree.named("person")
    asked = person if person is not None and is_person(classes, noun) else noun
    if asked.sort == "kind" and asked not in classes.kinds:
        return 1.0
    return float(classes.probability(posterior, asked).max(initial=0.0))


def support(classes: ClassEvidence, posterior: np.ndarray, sentences: Sequence[str]) -> np.ndarray:
    """Return how far an image shows what each of S sentences names: the sum over its nouns of log(p / :data:`UNSEEN`).

    p is that of :func:`shown`. A noun adds nothing if it is seen, and at least :data:`LEAST_SUPPORT`.
    """
    named = [find_nouns(sentence, classes.tree) for sentence in sentences]
    likely = {noun.row: shown(classes, posterior, noun) for noun in {n.row: n for ns in named for n in ns}.values()}
    least = UNSEEN * np.exp(LEAST_SUPPORT)
    each = {row: np.log(min(max(p, least), UNSEEN) / UNSEEN) for row, p in likely.items()}
    return np.array([sum(each[noun.row] for noun in nouns) for nouns in named], np.float32)


def sure_things(classes: ClassEvidence, posterior: np.ndarray) -> list[Noun]:
    """Return the kinds and classes that regions show with a probability above :data:`SURE`, the surest first."""
    if not len(posterior):
        return []
    found = [one for one in classes.name(posterior, SURE) if one is not None and one[0].sort != "group"]
    return list(dict.fromkeys(noun for noun, _ in sorted(found, key=lambda one: -one[1])))


def listed(things: Sequence[Noun]) -> str:
    """Return the first of some things, of which none is a kind of another, as a phrase: ``a banana and an orange``."""
    kept = list[Noun]()
    for noun in things:
        if len(kept) < LISTED and not any(related(noun, other) for other in kept):
            kept.append(noun)
    return " and ".join(with_noun(Head(0, 0, None, False), (), noun) for noun in kept)


def _may_replace(old: Noun, new: Noun, said: Sequence[Noun]) -> bool:
    alike = not old.ancestors.keys().isdisjoint(new.ancestors)
    return alike and not any(related(new, noun) for noun in said)
