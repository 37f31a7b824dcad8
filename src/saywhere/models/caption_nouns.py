"""The nouns of captions against what the noun classifier sees: corrected, refused, or given up (docs/nouns.md).

Their colours are checked against the pixels of the region that shows the noun best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from saywhere.engines.engine import Captioner, DenseCap
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.nouns import (
    AFTER,
    COLOUR_NAMES,
    SINGULAR,
    STARTS,
    THIN,
    Head,
    Noun,
    NounEvidence,
    NounTree,
    colour_of,
    find_heads,
    find_names,
    find_nouns,
    joins_colours,
    related,
    repeated,
    with_noun,
    without_repetition,
)
from saywhere.models.phrases import colours_of_boxes, is_joined, without_colours
from saywhere.text import tokenize, without_stutter

FEW, REGIONS = 10, 40
"""Proposals per image to look at: first FEW, then REGIONS if the first do not show everything the sentence names."""
LEAST_REGION = 0.2
"""Minimum uncalibrated probability that a region contains something; other regions are left out."""
OF_PEOPLE = (
    "biker", "bikers", "climber", "climbers", "couple", "couples", "crowd", "crowds", "families", "family", "female",
    "females", "he", "her", "him", "his", "human", "humans", "male", "males", "pitcher", "pitchers", "she", "team",
    "teams", "their", "them", "they",
)  # fmt: skip
"""Words for people that are not in the person branch of the noun tree; some also describe other things."""
UNSEEN = 0.1
"""A thing is unseen if no region gives it this probability."""
LEAST_SUPPORT = -3.0
"""Minimum support of an unseen noun; a lower value would overstate what the classifier knows."""
SURE = 0.6
"""A thing that the caption does not name may be inserted if some region's probability for it is higher than this."""
LISTED = 2
"""Number of things listed instead of a sentence of which nothing is seen."""
COLOUR_MARGIN = 1.5
"""A colour is left out if another one is at least exp(1.5) times as probable by the pixels."""
CUT_BEFORE = AFTER | {"and", "or"}
"""Words before which a sentence can end."""
TINTS = frozenset({"bright", "dark", "deep", "light", "pale"})
"""Words that belong to the colour behind them."""


class Seen(NamedTuple):
    """What regions of an image show.

    Attributes:
        boxes: ``(N, 4)`` in pixels of the image.
        posterior: ``(N, K)`` probabilities of the K leaves of the noun tree.
    """

    boxes: np.ndarray
    posterior: np.ndarray


class NounChecker:
    """Check the nouns of sentences against what their images show; each image is looked at once for all questions."""

    def __init__(self, detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding]) -> None:
        self._detector, self._classes, self._encodings = detector, classes, encodings
        self._looked: dict[int, Seen] = {}

    @cached_property
    def _first(self) -> list[np.ndarray]:
        """Posteriors of the first :data:`FEW` proposals of each image."""
        return [seen.posterior for seen in see(self._detector, self._classes, self._encodings, FEW)]

    def _more(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return the posteriors of the first :data:`REGIONS` proposals of the images ``rows``."""
        return [seen.posterior for seen in self._look(rows)]

    def _look(self, rows: Sequence[int]) -> list[Seen]:
        new = [row for row in rows if row not in self._looked]
        if new:
            seen = see(self._detector, self._classes, [self._encodings[row] for row in new], REGIONS)
            self._looked.update(zip(new, seen, strict=True))
        return [self._looked[row] for row in rows]

    def refuse_people(self, captioner: Captioner) -> np.ndarray | None:
        """Return a mask ``(N, V)`` of forbidden words: words for people, in images that show nobody.

        An image shows somebody if one of its first :data:`REGIONS` regions shows a person with a probability of at
        least ``people_threshold``. None if no image forbids any word.
        """
        least, person = captioner.config.people_threshold, self._classes.tree.named("person")
        if not least or person is None:
            return None
        empty = np.array([shown(self._classes, posterior, person) < least for posterior in self._first], bool)
        rows = np.flatnonzero(empty).tolist()
        empty[rows] = [shown(self._classes, posterior, person) < least for posterior in self._more(rows)]
        named = [self._classes.tree.named(word) for word in captioner.vocabulary.tokens]
        of_people = [self._classes.tree.is_person(noun) for noun in named]
        words = np.array(of_people) | np.isin(captioner.vocabulary.tokens, OF_PEOPLE)
        return empty[:, None] & words if empty.any() else None

    def support(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return how well each image supports the nouns of its sentences, see :func:`support`."""
        return [support(self._classes, posterior, own) for posterior, own in zip(self._first, sentences, strict=True)]

    def correct(self, sentences: Sequence[str]) -> list[str]:
        """Correct the sentence of each image by :func:`correct`, with the first :data:`REGIONS` regions of the image.

        Repetitions are removed: of things, see :func:`saywhere.models.nouns.without_repetition`, and of adjacent words.
        Often the first :data:`FEW` regions show everything the sentence names, and the others are not looked at.
        """
        corrected, classes = list(sentences), self._classes
        doubtful = [i for i, shown in enumerate(self._first) if not all_seen(classes, shown, sentences[i])]
        for i, posterior in zip(doubtful, self._more(doubtful), strict=True):
            corrected[i] = correct(classes, posterior, sentences[i])
        return [without_repetition(without_stutter(sentence), classes.tree) for sentence in corrected]

    def without_wrong_colours(self, sentences: Sequence[str]) -> list[str]:
        """Leave out colours of things from the sentence of each image that the region showing the thing does not have.

        A colour stays if no region shows its thing, if the pixels hardly prefer another (:data:`COLOUR_MARGIN`), if it
        is one of several ("black and white"), and if it is that of a person, who wears others. None is left out if the
        dense captioner leaves none out (``colour_threshold`` 0).
        """
        if not self._detector.config.colour_threshold:
            return list(sentences)
        return [self._without_wrong_colours(row, sentence) for row, sentence in enumerate(sentences)]

    def _without_wrong_colours(self, row: int, sentence: str) -> str:
        words, tree, wrong = sentence.split(), self._classes.tree, set[int]()
        for head in find_things(words, tree):
            places = [p for p in range(phrase_start(words, head.start), head.start) if colour_of(words, p) is not None]
            if head.noun is None or not places or is_joined(words, places[-1]) or tree.is_person(head.noun):
                continue
            seen = self._look([row])[0]
            likely = self._classes.probability(seen.posterior, head.noun)
            if likely.max(initial=0) < UNSEEN:
                continue
            box = seen.boxes[[int(likely.argmax())]]
            pixels = colours_of_boxes(self._encodings[row], box, [words[head.stop - 1]])[0]
            if pixels.max() - pixels[COLOUR_NAMES.index(str(colour_of(words, places[-1])))] >= COLOUR_MARGIN:
                wrong.add(places[-1])
        return " ".join(without_tinted_colours(words, wrong)) if wrong else sentence

    def unlikely_subjects(self, captioner: Captioner, embeddings: np.ndarray, sentences: Sequence[str]) -> list[int]:
        """Return the images whose sentence begins with a noun that neither n-grams nor regions expect.

        Its n-gram probability is below ``ngrams.least_subject``, of a word for people that of each such word, and no
        region surely shows the thing or one that is related. A noun that is no n-gram has a probability of 0.
        ``embeddings`` are ``(N, F)``.
        """
        ngrams, least, tree = captioner.ngrams, captioner.config.ngrams.least_subject, self._classes.tree
        if ngrams is None or not least:
            return []
        vocabulary, likely, doubtful = captioner.vocabulary, ngrams.probabilities(embeddings), dict[int, Noun | None]()
        for i, words in enumerate(map(tokenize, sentences)):
            head = tree.head(words)
            known = ngrams.rows.get(tuple(vocabulary.encode(" ".join(words[head.start : head.stop][-1:]))))
            if known is None or likely[i, known[0]] < least:
                doubtful[i] = head.noun
        if not doubtful:
            return []
        single = [(key[0], row) for key, (row, _) in ngrams.rows.items() if len(key) == 1]
        people = [row for token, row in single if tree.is_person(tree.named(vocabulary.tokens[token]))]
        strange = list[int]()
        for (i, noun), posterior in zip(doubtful.items(), self._more([*doubtful]), strict=True):
            things = sure_things(self._classes, posterior)
            shown = noun is not None and any(related(noun, thing) for thing in things)
            if not shown and not (tree.is_person(noun) and (likely[i, people] >= least).any()):
                strange.append(i)
        return strange

    def repeats(self, sentences: Sequence[str]) -> np.ndarray:
        """Return 1 for each sentence that names a thing twice, else 0; see :func:`saywhere.models.nouns.repeated`."""
        tree = self._classes.tree
        return np.array([repeated(tokenize(sentence), tree) is not None for sentence in sentences], np.float32)


def see(detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding], limit: int = REGIONS) -> list[Seen]:
    """Return what the first ``limit`` proposals of each image show.

    Thin regions (:data:`saywhere.models.nouns.THIN`) are left out, because the classifier mistakes them for people.
    """
    settings, coder = detector.config.proposals, detector.box_coder
    proposals = [propose_boxes(encoding, settings, coder, limit)[0] for encoding in encodings]
    heads = detector.start.region_head([e.maps for e in encodings], proposals)
    boxes, embeddings = list[np.ndarray](), list[np.ndarray]()
    for encoding, proposed, head in zip(encodings, proposals, heads, strict=True):
        in_image = encoding.to_image(proposed)
        kept = np.asarray(head.logits) > np.log(LEAST_REGION / (1 - LEAST_REGION))
        sides = (in_image[:, 2:] - in_image[:, :2]) / (encoding.width, encoding.height)
        kept &= sides.min(axis=1) >= THIN
        boxes.append(in_image[kept])
        embeddings.append(np.asarray(head.embeddings)[kept])
    return [*map(Seen, boxes, classes.posteriors(encodings, boxes, embeddings))]


def correct(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> str:
    """Replace the nouns of a caption that the image does not show, as far as the classifier can tell.

    An unseen noun is replaced by the most probable thing that is seen, is of the same sort (a cat for a dog: both are
    animals) and is not named yet. Words for people stay. If the image then shows nothing that the sentence names, the
    sentence is about something else, and the most probable things are listed instead. ``posterior`` is that of the
    image's regions, see :func:`see`.
    """
    words = tokenize(sentence)
    heads = find_heads(words, classes.tree)
    things = sure_things(classes, posterior)
    if not heads or not things:
        return sentence
    nouns = [head.noun for head in heads if head.noun is not None]
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    for number, head in reversed(list(enumerate(heads))):
        if seen[number] or classes.tree.is_person(nouns[number]):
            continue
        new = next((noun for noun in things if _may_replace(nouns[number], noun, nouns)), None)
        if new is not None:
            before = max(head.start - 1, 0)
            moved = Head(head.start - before, head.stop - before, head.noun, head.plural)
            words[before : head.stop] = with_noun(moved, words[before : head.stop], new).split()
            nouns[number], seen[number] = new, True
    return " ".join(words) if any(seen) else listed(things)


def all_seen(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> bool:
    """Return whether regions show everything that a sentence names, so that :func:`correct` would not change it."""
    nouns = find_nouns(sentence, classes.tree)
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    unseen = [noun for noun, there in zip(nouns, seen, strict=True) if not there]
    return not nouns or (any(seen) and all(classes.tree.is_person(noun) for noun in unseen))


def is_seen(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> bool:
    """Return whether some region shows what a noun names, see :func:`shown`."""
    return shown(classes, posterior, noun) >= UNSEEN


def shown(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> float:
    """Return the highest probability over regions that a region shows the noun; for words for people, any person.

    1 for a kind that the classifier was not trained on, because it cannot tell.
    """
    person = classes.tree.named("person")
    asked = person if person is not None and classes.tree.is_person(noun) else noun
    if asked.sort == "kind" and asked not in classes.kinds:
        return 1.0
    return float(classes.probability(posterior, asked).max(initial=0.0))


def find_things(words: Sequence[str], tree: NounTree) -> list[Head]:
    """Return the names of things in a sentence that have a noun, without verbs and first parts of compounds.

    Of "a small white football player" it is the player, and of "a bird flies" the bird.
    """
    kept = list[Head]()
    for name in find_names(words, tree):
        if colour_of(words, name.start) is not None and name.stop == name.start + 1:  # an orange cat
            continue
        if kept and kept[-1].stop == name.start:
            first = words[phrase_start(words, kept[-1].start)]
            if name.plural and first in SINGULAR:
                continue
            kept.pop()
        kept.append(name)
    return [name for name in kept if name.noun is not None]


def phrase_start(words: Sequence[str], noun: int) -> int:
    """Return where the phrase with a noun starts: at the article or number before it, or after a word of CUT_BEFORE."""
    ends = (p for p in range(noun - 1, -1, -1) if words[p] in CUT_BEFORE | STARTS and not joins_colours(words, p))
    place = next(ends, 0)
    return place + 1 if words[place] in CUT_BEFORE else place


def without_tinted_colours(words: Sequence[str], places: set[int]) -> list[str]:
    """Remove the colours at ``places``, see :func:`without_colours`, with their :data:`TINTS`."""
    shades = {place - 1 for place in places if place and words[place - 1] in TINTS}
    kept = [word for place, word in enumerate(words) if place not in shades]
    return without_colours(kept, {place - sum(shade < place for shade in shades) for place in places})


def support(classes: NounEvidence, posterior: np.ndarray, sentences: Sequence[str]) -> np.ndarray:
    """Return the support of each of S sentences by an image: the sum over its nouns of log(p / :data:`UNSEEN`).

    p is that of :func:`shown`. A seen noun adds 0; an unseen one adds at least :data:`LEAST_SUPPORT`.
    """
    named = [find_nouns(sentence, classes.tree) for sentence in sentences]
    likely = {noun.row: shown(classes, posterior, noun) for noun in {n.row: n for ns in named for n in ns}.values()}
    least = UNSEEN * np.exp(LEAST_SUPPORT)
    each = {row: np.log(min(max(p, least), UNSEEN) / UNSEEN) for row, p in likely.items()}
    return np.array([sum(each[noun.row] for noun in nouns) for nouns in named], np.float32)


def sure_things(classes: NounEvidence, posterior: np.ndarray) -> list[Noun]:
    """Return the kinds and classes that regions show with a probability above :data:`SURE`, most probable first."""
    if not len(posterior):
        return []
    found = [one for one in classes.name(posterior) if one[1] > SURE]
    return list(dict.fromkeys(noun for noun, _ in sorted(found, key=lambda one: -one[1])))


def listed(things: Sequence[Noun]) -> str:
    """Return the first few things as a phrase, none of them a kind of another: ``a banana and an orange``."""
    kept = list[Noun]()
    for noun in things:
        if len(kept) < LISTED and not any(related(noun, other) for other in kept):
            kept.append(noun)
    return " and ".join(with_noun(Head(0, 0, None, False), (), noun) for noun in kept)


def _may_replace(old: Noun, new: Noun, said: Sequence[Noun]) -> bool:
    alike = not old.ancestors.keys().isdisjoint(new.ancestors)
    return alike and not any(related(new, noun) for noun in said)
