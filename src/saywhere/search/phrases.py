"""Queries: wanted and unwanted phrases, their regions in the images of an index, and the probability of hits.

An index has no pixels. The aligner's vectors and the stored noun predictions of regions tell where a phrase is and how
probable it is. The probability that a hit shows the whole query has its own logistic regression: hits were selected by
the same similarity that the phrases' probabilities use, which makes these too high. It also takes into account how
common the query is, and how far the image stands out from all others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from math import log

import numpy as np

from saywhere.calibration import QUESTIONS, Calibration, Logistic, logistic
from saywhere.engines.engine import Aligner
from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors, TextVectors, hubness_of, over_regions, region_bonus
from saywhere.models.details import Colours, Compared, Details
from saywhere.models.layout import EMPTY, UNREAD, Layout, cut_excluded, require_names
from saywhere.models.lexicon import Lexicon, captioned, noun_words
from saywhere.models.model import Model
from saywhere.models.nouns import leaf_tables, log_kinds, noun_tree, packed_kinds
from saywhere.models.phrases import colour_names, unpack_colours
from saywhere.models.placing import Evidence
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.search.scan import Question
from saywhere.text import Vocabulary, tokenize

_SIGN = re.compile(r"(?:^|\s)([+-])(?=\s|$|[^\W\d])")
_IMAGES = (
    r"^(?:(?:find|show)\s+(?:me\s+)?)?(?:(?:an?|all|any|each|every|my|our|some|the|which)\s+)*"
    r"(?:images?|photos?|photographs?|pictures?)"
)
_OF = (
    r"\s+(?:of|with|(?:that|which)\s+(?:shows?|ha(?:s|ve)|contains?)|containing|showing|where\s+there\s+(?:is|are))\s+"
)
_IMAGES_OF = re.compile(
    rf"{_IMAGES}{_OF}(?:(no)\s+(?!(?:entry|one|parking|smoking|trespassing)\b))?(?=\S)", re.IGNORECASE
)
"""What precedes the thing that is looked for in "photos of dogs"; "a photo on a wall" is a thing itself."""
ANYTHING = re.compile(rf"{_IMAGES}$|^(?:an?|any|all|the)$", re.IGNORECASE)
"""A wanted phrase that any image shows."""


@dataclass(frozen=True)
class Query:
    """Phrases to search for; a sentence is one phrase.

    Attributes:
        wanted: phrases whose similarities with an image are added; empty for anything without what is unwanted.
        unwanted: phrases; images that show one of them are left out.

    Raises:
        UserError: there is no phrase, or one that names nothing.
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phrases:
            raise UserError("a search needs a phrase, such as 'a dog + snow - people'")
        require_names(self.phrases)

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parse phrases marked by ``+`` or ``-``; a sign follows a space, so hyphens within words do not count.

        Phrases after a ``-`` are unwanted. So are people in "without people", "with no people", an initial "no people"
        and the like. "A photo of" before a thing is left out.

        Example:
            >>> Query.parse("a dog + snow - people in t-shirts")
            Query(wanted=('a dog', 'snow'), unwanted=('people in t-shirts',))
            >>> Query.parse("a cat -people")
            Query(wanted=('a cat',), unwanted=('people',))
            >>> Query.parse("a man without a hat")
            Query(wanted=('a man',), unwanted=('a hat',))
            >>> Query.parse("no snow, a dog")
            Query(wanted=('a dog',), unwanted=('snow',))
            >>> Query.parse("photos without people")
            Query(wanted=(), unwanted=('people',))
            >>> Query.parse("a photo of two dogs")
            Query(wanted=('two dogs',), unwanted=())
        """
        first, *rest = _SIGN.split(text)
        signed = [*([("+", first)] if first.strip() or not rest else []), *zip(rest[::2], rest[1::2], strict=True)]
        if empty := next((mark for mark, phrase in signed if rest and not phrase.strip()), None):
            raise UserError(f"{text!r}: no phrase follows the {empty}; say what is looked for, as in 'a dog + snow'")
        wanted, unwanted = list[str](), list[str]()
        for mark, phrase in signed:
            said = _IMAGES_OF.sub(lambda lead: "photos without " if lead[1] else "", phrase.strip())
            kept, excluded = cut_excluded(said) if mark == "+" else ("", [("", said)])
            wanted += [kept] if tokenize(kept) or not excluded else []
            unwanted += [thing for _, thing in excluded]
        return cls(tuple(wanted)).less(*unwanted) if wanted else cls((), _alternatives(unwanted))

    def less(self, *unwanted: str) -> Query:
        """Return the query with more unwanted phrases; then photos in general need no longer be wanted."""
        anything = unwanted and all(ANYTHING.match(phrase.strip(" ,.")) for phrase in self.wanted)
        return Query(() if anything else self.wanted, self.unwanted + _alternatives(unwanted))

    @property
    def phrases(self) -> tuple[str, ...]:
        """All phrases, wanted ones first."""
        return self.wanted + self.unwanted


def _alternatives(unwanted: Iterable[str]) -> tuple[str, ...]:
    """Return unwanted things one by one: those joined by "or", and those of a list, "cats, dogs"."""
    each = [part for text in unwanted for part in re.split(r",?\s+or\s+", _IMAGES_OF.sub("", text))]
    lists = [(text, re.split(r"\s*,\s*", text)) for text in each]
    named = [(text, parts, all(noun_tree().find(part) for part in parts)) for text, parts in lists]
    return tuple(part for text, parts, listed in named for part in (parts if listed else [text]))


NO_ACTIONS = frozenset({"being", "does", "during", "having", "including", "nothing", "something"})
"""Words that look like an action and name none."""


def action(word: str, vocabulary: Vocabulary) -> str | None:
    """Return the form in "ing" of a word that names an action, if the vocabulary has it: "running" for "runs".

    Example:
        >>> words = Vocabulary.build(["running runs jumping is in ing"])
        >>> [action(word, words) for word in ("runs", "run", "jumping", "in", "is")]
        ['running', 'running', 'jumping', None, None]
    """
    if word in NO_ACTIONS:
        return None
    if _has_ending(word):
        return word if word in vocabulary else None
    stems = (word, word[:-1], word[:-2]) if len(word) > 3 and word[-1] == "s" != word[-2] else (word,)
    forms = (f"{form}ing" for stem in stems if len(stem) > 2 for form in (stem, stem[:-1], stem + stem[-1]))
    return next((form for form in forms if form in vocabulary and _has_ending(form)), None)


def _has_ending(word: str) -> bool:
    """Return whether a word has the ending "ing" of a verb, which "thing" and "string" have not."""
    return word.endswith("ing") and not set("aeiouy").isdisjoint(word[:-3])


def actions(words: Iterable[str], vocabulary: Vocabulary) -> list[str]:
    """Return those words that are in a vocabulary and name what something does: "runs" and "running", not "run".

    Example:
        >>> actions(["runs", "in", "jumping", "is"], Vocabulary.build(["running runs jumping is in ing"]))
        ['runs', 'jumping']
    """
    said = (word for word in words if _has_ending(word) or (len(word) > 3 and word[-1] == "s" != word[-2]))
    return [word for word in said if word in vocabulary and action(word, vocabulary) is not None]


def with_actions(layout: Layout, vocabulary: Vocabulary) -> Layout:
    """Return the layout of a text with a further phrase for each action: "a person", "surfing".

    Otherwise actions would hardly count. Those that are negated stay unused, and so do those of listed phrases.
    """
    if layout.listed:
        return layout
    phrases, inside = zip(*(_split_action(phrase, vocabulary) for phrase in layout.phrases), strict=True)
    runs = {run: actions(run.split(), vocabulary) for run in layout.unused if UNREAD.isdisjoint(run.split())}
    found = dict.fromkeys(word for each in (*inside, *runs.values()) for word in each)
    unused = tuple(run for run in layout.unused if not runs.get(run))
    return replace(layout, phrases=(*phrases, *found), unused=unused)


def _split_action(phrase: str, vocabulary: Vocabulary) -> tuple[str, list[str]]:
    """Return a phrase without the actions behind its noun and what follows them, and these actions."""
    words, tree = tokenize(phrase), noun_tree()
    stop, before = tree.head(words).stop, tree.head(words[:-1])
    alone = words[0] in ("a", "an") and words[-1].endswith("s")
    if alone and before.noun is not None and before.stop == len(words) - 1:
        stop = before.stop  # in "a dog races" the last word is a verb
    found = actions(words[stop:], vocabulary)
    return " ".join(words[: words.index(found[0], stop)]) if found else phrase, found


def base_words(words: Iterable[str]) -> list[str]:
    """Return words in their base form: the noun tree's common name, or else without a final ``s``."""
    tree = noun_tree()
    named = [(word, tree.named(word)) for word in words]
    return [word.removesuffix("s") if noun is None else noun.name for word, noun in named]


def kinds(words: Iterable[str]) -> list[str]:
    """Return the base forms of words and the names of everything they are kinds of: for ``men`` also ``person``."""
    tree, several = noun_tree(), list(words)
    nouns = (noun for word in several if (noun := tree.named(word)) is not None)
    above = (tree.nouns[row].name for noun in nouns for row in noun.ancestors)
    return list(dict.fromkeys((*base_words(several), *above)))


class Commonness:
    """Frequencies of nouns in captions; synonyms and kinds of a noun count for it.

    Args:
        vocabulary: vocabulary with the word counts of the training sentences.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tree, self._counts = noun_tree(), Counter[str]()
        for word, count in vocabulary.counts.items():
            self._counts.update(dict.fromkeys(kinds([word]), count))
        nouns = (base for base in self._counts if tree.named(base) is not None)
        self._most = max((self._counts[base] for base in nouns), default=0)

    def together(self, phrases: Iterable[str]) -> float:
        """Return the joint log-frequency of the nouns in phrases, as if they were independent: the sum of their logs.

        Frequencies are relative to the most common noun; each noun counts once. A role has a fraction of the people's.
        """
        tree, shares = noun_tree(), dict[str, float]()
        for phrase in phrases:
            for base in base_words(noun_words(phrase)):
                shares[base] = min(shares.get(base, 1.0), tree.share(phrase) if base == "person" else 1.0)
        often = (share * (1 + self._counts[base]) / (1 + self._most) for base, share in sorted(shares.items()))
        return sum(map(log, often))


@lru_cache(maxsize=4)
def commonness_of(vocabulary: Vocabulary) -> Commonness:
    """Return the noun frequencies of a model's vocabulary; cached for all queries."""
    return Commonness(vocabulary)


UNWANTED, UNWANTED_HIT = 0.85, 0.5
"""An image is left out if it shows something unwanted with the first probability or more, or with the second if it also
counts how common the thing is. Most images do not show it (docs/experiments.md)."""
UNNAMED = 0.7
"""The first of these for a noun that is not in the noun tree."""
LIKELY = 0.25
"""A hit with a lower probability is probably wrong (docs/search.md)."""
MORE = 10
"""Number of additional images that are reranked by probability. The similarity tells little about places, counts and
nouns that the aligner hardly knows (docs/search.md)."""
LOOSE = 2.0
"""An image shows all of N phrases with at most this to the power of N times the probability of the least probable one
asked alone. People ask for things that they know to be together, but not for a parrot where there is none."""
KIND_WEIGHT = 20.0
"""Weight of the noun classifier next to the similarity in ranking images; divided among a query's nouns that the
aligner knows too (docs/search.md)."""
FEW = 100
"""A lead is scaled by N / (N + FEW) for N images: among three, one always leads."""
LEAST = 1e-6
"""Probabilities of phrases are clipped to this distance from 0 and 1."""
MOST_ODDS = log(1 / LEAST - 1)


def hit_evidence(
    odds: np.ndarray, kinds: np.ndarray, similarity: float, together: float, lead: float, among: int
) -> np.ndarray:
    """Return the evidence ``(6,)`` for the question ``hit`` of :class:`saywhere.calibration.Calibration`, in its order.

    Args:
        odds: ``(P,)`` log-odds that an image shows each phrase of a query.
        kinds: ``(P,)`` log-probability that it shows each phrase's kind of thing; 0 if the phrase names none.
        similarity: similarity of image and query; matters as far as the query says more than its phrases.
        together: joint log-frequency of the nouns, see :meth:`Commonness.together`: the fraction of images that show
            them by chance. One more image is assumed, because people search for images that they expect to exist.
        lead: number of standard deviations of the ranking score above the mean of all searched images.
        among: number of searched images.
    """
    beyond = 1 - 1 / len(odds)
    prior = log(math.exp(together) + 1 / max(among, 1))
    shown = math.exp(kinds.mean())
    return np.array([odds.mean(), shown, similarity * beyond, beyond, prior, lead * among / (among + FEW)])


def _alone(
    hit: Logistic, odds: np.ndarray, kinds: np.ndarray, together: np.ndarray, lead: float, among: int
) -> np.ndarray:
    """Return the probability ``(P,)`` of each phrase as if it were asked for alone; ``together`` is ``(P,)``."""
    each = zip(odds[:, None], kinds[:, None], together.tolist(), strict=True)
    return np.array([hit.apply(hit_evidence(one, kind, 0.0, common, lead, among)) for one, kind, common in each])


@dataclass(frozen=True, eq=False)
class Placed:
    """The place of a query in an image.

    Attributes:
        similarity: mean similarity of the wanted phrases with the image.
        phrases: ``(3, P)`` evidence for the probability of each phrase: the columns of
            :meth:`saywhere.models.placing.Evidence.inputs`.
        evidence: ``(6,)`` of :func:`hit_evidence`; None without a calibration of phrases.
        probability: probability that the image shows the whole query; None without the calibration.
        agree: log-probability of the query's places, counts and colours; part of the probability.
        place: function that returns :attr:`regions`.
    """

    similarity: float
    phrases: np.ndarray
    evidence: np.ndarray | None
    probability: float | None
    agree: float
    place: Callable[[], Regions]

    @cached_property
    def regions(self) -> Regions:
        """The regions of wanted phrases that are probably shown, with similarities; the others as ``not_found``.

        They have probabilities unless the query is a single phrase. If :attr:`probability` is at least :data:`LIKELY`,
        no phrase is missing; otherwise those are whose own probability is lower.
        """
        return self.place()


class _Texts:
    """P texts as the columns of a matrix, to be multiplied by the vectors of an image's regions."""

    def __init__(self, aligner: Aligner, texts: Sequence[str], vectors: Mapping[str, TextVectors]) -> None:
        self._aligner, self._count = aligner, len(texts)
        known = [vectors[text] for text in texts]
        words = [text.vectors for text in known]
        shares = [1 if aligner.config.mean_over_words else 1 / len(text.words) for text in known]
        sums = [t.vectors[: len(t.words)].sum(axis=0) * share for t, share in zip(known, shares, strict=True)]
        self._matrix = np.concatenate([*words, sums]).T if texts else np.zeros((0, 0), np.float32)
        self._starts = np.cumsum([0, *map(len, words)])[:-1]

    def similarities(self, image: ImageVectors) -> np.ndarray:
        """Return the similarities ``(P,)`` of the texts with an image, without subtracting hubness."""
        return self._sums(image.vectors @ self._matrix) if self._count else np.zeros(0, np.float32)

    def _sums(self, products: np.ndarray) -> np.ndarray:
        words = products[:, : products.shape[1] - self._count]
        return np.add.reduceat(over_regions(words, [len(words)], self._aligner.config.score)[0], self._starts)


class _Phrases(_Texts):
    """P phrases that are looked for in the regions of images.

    Attributes:
        lacking, named: ``(P,)``, see :class:`saywhere.models.placing.Evidence`.
    """

    def __init__(
        self, model: Model, lexicon: Lexicon, phrases: Sequence[str], vectors: Mapping[str, TextVectors]
    ) -> None:
        super().__init__(model.require("aligner", "search"), phrases, vectors)
        tree = noun_tree()
        nouns = [None if model.nouns is None else tree.find_kind(phrase) for phrase in phrases]
        roles = np.array([tree.share(phrase) for phrase in phrases], np.float32)
        self.named = np.array([noun is not None for noun in nouns], bool)
        self.lacking = np.array([lexicon.needs_classes(phrase) for phrase in phrases], bool)
        self._rare = np.array([lexicon.is_rare(phrase) for phrase in phrases], bool)
        self._leaves = leaf_tables(nouns) * roles[:, None] if self.named.any() else None
        self._people = np.array([*map(tree.is_person, nouns)], bool)
        self._person = leaf_tables([tree.named("person")]) if self._people.any() else None

    def evidence(self, image: ImageVectors) -> Evidence:
        """Return the evidence of the vectors, and of the stored noun predictions, for the phrases in an image."""
        products = image.vectors @ self._matrix
        fits = products[:, products.shape[1] - self._count :]
        fits = fits + region_bonus(self._aligner.config, image)[:, None].astype(np.float32)
        kinds, asked = np.zeros_like(fits), self._leaves is not None and image.nouns is not None
        if self._leaves is not None and image.nouns is not None:
            kinds = log_kinds(packed_kinds(image.nouns, self._leaves)) * self.named
        counted = kinds
        if self._person is not None and image.nouns is not None:
            counted = np.where(self._people, log_kinds(packed_kinds(image.nouns, self._person)), kinds)
        return Evidence(
            regions=image.regions, fits=fits, kinds=kinds, named=self.named & asked, rare=self._rare,
            similarity=self._sums(products), by="aligner", lacking=self.lacking & asked, indexed=True,
            counted=counted,
        )  # fmt: skip


def _embed(model: Model, details: Details, texts: Iterable[str]) -> dict[str, TextVectors]:
    """Return the vectors of texts, in words of captions, and of the texts that details are compared by."""
    words = model.require("aligner", "search").vocabulary
    said = {text: text for text in details.texts} | {text: captioned(text, words) for text in texts}
    return dict(zip(said, model.embed_text([*said.values()]), strict=True))


class _Unwanted:
    """Something that no hit may show: P phrases, in the places and relations of the text.

    A text of one phrase without a place is that phrase as a whole. Phrases that are not known do not count.

    Attributes:
        known: whether any is.
    """

    def __init__(self, model: Model, text: str) -> None:
        self._calibration, lexicon = model.calibration, model.placer("aligner").lexicon
        aligner, words = model.require("aligner", "search"), lexicon.vocabulary
        self._config = aligner.config.grounding
        layout = Layout.parse(text)
        layout = layout if len(layout.phrases) > 1 or layout.places else Layout((text,))
        known = [not lexicon.is_unread(phrase) for phrase in layout.phrases]
        self.known, self._layout = any(known), layout.only(known) if any(known) else layout
        own = tuple(map(lexicon.read, self._layout.phrases))
        kinds = [noun_tree().widened(phrase) or phrase for phrase in own]
        self._details = Details(kinds, words)
        vectors = _embed(model, self._details, both := (*own, *kinds))
        self._seen = _Phrases(model, lexicon, both, vectors)
        self._compared = _Texts(aligner, self._details.texts, vectors)
        self._common = np.array([commonness_of(words).together([kind]) for kind in kinds])

    def is_shown(self, image: ImageVectors, among: int) -> bool:
        """Return whether an image, of so many that are searched, probably shows all of it."""
        shown, calibration = self._seen.evidence(image), self._calibration
        odds = shown.log_odds(calibration)
        assert odds is not None
        if calibration.unwanted_phrase is not None:
            unnamed = ~self._seen.named
            odds[unnamed] = calibration.unwanted_phrase.log_odds({"similarity": shown.similarity[unnamed]})
        odds = odds.reshape(2, -1).min(axis=0)  # no sparrow without a bird
        kinds = shown.best_kinds.reshape(2, -1).min(axis=0)
        shown = shown.first(len(odds))
        rows, agree = shown.place(self._config, self._layout, calibration)
        compared = self._compared.similarities(image)
        agree = np.exp(agree + _log_details(calibration, self._details, image, shown, compared, rows))
        there = logistic(odds) >= np.where(shown.named, UNWANTED, UNNAMED)
        if (hit := calibration.hit) is not None:
            seen = shown.named & ~self._seen.lacking[: len(rows)]
            there[seen] |= _alone(hit, odds[seen], kinds[seen], self._common[seen], 0.0, among) >= UNWANTED_HIT
        return bool((there & (agree >= UNWANTED_HIT)).all())  # its place, number and colour are more probable than not


class PhrasesInImages:
    """Find the region of each wanted phrase of a query; a single sentence is cut into its noun phrases.

    Args:
        model: the model that embedded the images.
        query: the query.

    Attributes:
        layout: wanted phrases with their places, relations and counts, without phrases of unknown nouns; with
            the actions of a sentence of one phrase, see :func:`with_actions`.
        known: whether any noun is known; if not, all phrases are kept, and no image shows them.
        unknown: words that neither the aligner nor, as nouns, the classifier knows, see :meth:`Lexicon.unknown`.
        judged_as: wanted nouns that are judged as their kind of thing, see :meth:`Placer.judged_as`.

    Raises:
        UserError: something is unwanted, and the model has no calibration of phrases.
    """

    def __init__(self, model: Model, query: Query) -> None:
        self._model, self._aligner = model, model.require("aligner", "search")
        if query.unwanted and model.calibration.phrase is None:
            raise UserError(
                f"{model.name} does not know how probably images show {query.unwanted[0]!r}, so that none can be left "
                "out: saywhere calibrate --what phrase"
            )
        placer, alone = model.placer("aligner"), len(query.wanted) == 1
        lexicon = placer.lexicon
        asked = Layout.parse(query.wanted[0]) if alone else Layout.of(query.wanted)
        known = [not lexicon.is_unknown(phrase) for phrase in asked.phrases]
        self.unknown = lexicon.unknown((*asked.phrases, *asked.unused, *query.unwanted))
        self.judged_as = lexicon.judged_as((*asked.phrases, *query.unwanted))
        self.known = any(known)
        layout, nothing = asked.only(known) if self.known else asked, EMPTY.union(self.unknown)
        if alone and self.known:
            layout = with_actions(layout, self._aligner.vocabulary)
        unused = (words for words in layout.unused if not nothing.issuperset(tokenize(words)))
        self.layout = replace(layout, unused=tuple(unused))
        own = tuple(map(lexicon.read, self.layout.phrases))
        wanted = (_translated(query.wanted[0], self.layout.phrases, own),) if alone else own
        self._unwanted = [each for text in query.unwanted if (each := _Unwanted(model, text)).known]
        words, tree = self._aligner.vocabulary, noun_tree()
        wider = [tree.widened(text) or text for text in own]
        self._details = Details(wider, words)
        kind = (_translated(wanted[0], own, wider),) if alone else wider
        vectors = _embed(model, self._details, (*wider, *kind, *own, *wanted))
        self._wanted = [vectors[text] for text in wanted]
        self._kind = [vectors[text] for text in kind] if wider != [*own] else None
        self._seen = _Phrases(model, lexicon, own, vectors)
        self._wider = None if wider == [*own] else _Phrases(model, lexicon, wider, vectors)
        whole = (*self._details.texts, *(() if wanted == own else wanted))
        self._whole = _Texts(self._aligner, whole, vectors)
        self._least = placer.least()
        self._nouns = [lexicon.class_noun(phrase) for phrase in wider]
        common, lacking = commonness_of(words), self._seen.lacking
        self._judged = common.together([p for p, lacks in zip(wider, lacking, strict=True) if not lacks] or wider)
        self._each = np.array([common.together([text]) for text in wider])

    def kind_question(self) -> Question | None:
        """Return :meth:`question` with kinds in place of narrower nouns, for the lead of images; None without any."""
        return None if self._kind is None else self.question(self._kind)

    def question(self, wanted: Sequence[TextVectors] | None = None) -> Question:
        """Return the query for comparing images, without its :attr:`hubness`."""
        wanted = self._wanted if wanted is None else wanted
        weights = np.ones((len(wanted), 1), np.float32)
        config, found = self._aligner.config, Question.of(wanted, weights, self._aligner.config.score)
        chosen = np.array([noun is not None for noun in self._nouns], bool)
        if not chosen.any():
            return found
        each = np.where(self._seen.lacking, config.grounding.similarity_kind_weight, KIND_WEIGHT / chosen.sum())[chosen]
        tables = leaf_tables([noun for noun in self._nouns if noun is not None])
        return replace(found, kinds=tables, kind_weights=each[:, None].astype(np.float32))

    @property
    def hubness(self) -> float:
        """Hubness of the wanted phrases, which is equal for all images."""
        return float(hubness_of(self._wanted).sum())

    def shows_unwanted(self, image: ImageVectors, among: int = 1) -> bool:
        """Return whether an image, of so many that are searched, probably shows something unwanted."""
        return any(each.is_shown(image, among) for each in self._unwanted)

    def find(self, image: ImageVectors, lead: float = 0.0, among: int = 1) -> Placed:
        """Return where the query is in an image.

        Args:
            image: image of the index.
            lead: number of standard deviations of its ranking score above the mean of all searched images.
            among: number of searched images.
        """
        calibration, evidence = self._model.calibration, self._seen.evidence(image)
        details, wanted = np.split(self._whole.similarities(image), [len(self._details.texts)])
        rows, agree = self._place(image, evidence, details)
        odds = evidence.log_odds(calibration)
        if self._wider is not None:  # no sparrow without a bird
            wider = self._wider.evidence(image)
            agree = np.minimum(agree, self._place(image, wider, details)[1])
            highest = wider.log_odds(calibration)
            odds = odds if odds is None or highest is None else np.minimum(odds, highest)
        inputs = np.stack([evidence.inputs[name] for name in QUESTIONS["indexed_phrase"]])
        wanted = wanted if len(wanted) else evidence.similarity
        similarity = float((wanted - image.hubness - hubness_of(self._wanted)).mean())
        joint = presence = shown = None
        if odds is not None:
            odds = np.clip(odds if self.known else -np.inf, -MOST_ODDS, np.full(len(rows), MOST_ODDS))
            shares, lacking, kinds = logistic(odds), self._seen.lacking, evidence.best_kinds
            read = ~lacking | lacking.all()
            joint = hit_evidence(odds[read], kinds[read], similarity, self._judged, lead, among)
            if (hit := calibration.hit) is not None:
                shown = float(logistic(odds[lacking]).prod() * np.exp(agree.sum()))
                if not lacking.all():
                    shares[read] = _alone(hit, odds[read], kinds[read], self._each[read], lead, among)
                    most = LOOSE ** np.count_nonzero(read) * shares[read].min()
                    shown *= min(float(hit.apply(joint)), float(most))
            presence = np.maximum(shares * np.exp(agree), shown or 0).astype(np.float32)
        regions = partial(self._regions, image, evidence, rows, agree, presence, shown)
        return Placed(similarity, inputs, joint, shown, float(agree.sum()) if odds is not None else 0.0, regions)

    def _place(self, image: ImageVectors, found: Evidence, details: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions ``(P,)`` of the phrases, and the log-probability of their places, counts and colours."""
        calibration = self._model.calibration
        rows, agree = found.place(self._aligner.config.grounding, self.layout, calibration)
        return rows, agree + _log_details(calibration, self._details, image, found, details, rows)

    def _regions(
        self, image: ImageVectors, evidence: Evidence, rows: np.ndarray, agree: np.ndarray,
        presence: np.ndarray | None, shown: float | None,
    ) -> Regions:  # fmt: skip
        """Return the regions ``rows (P,)`` of the phrases that are probably shown; the others as ``not_found``."""
        columns, (chances, least) = np.arange(len(agree)), self._judge(presence, shown)
        there = chances >= least
        scores = presence[there] if presence is not None and chances is presence else None  # else it is the hit's
        return Regions(
            image.width, image.height, image.boxes[rows[there]], scores,
            tuple(phrase for phrase, seen in zip(self.layout.captions, there, strict=True) if seen), image=image.image,
            similarities=evidence.fits[rows, columns][there], not_found=self.layout.missing(chances, agree, least),
            unused=self.layout.unused, judged_as=self.judged_as,
        )  # fmt: skip

    def _judge(self, presence: np.ndarray | None, shown: float | None) -> tuple[np.ndarray, float]:
        """Return phrase probabilities ``(P,)`` and the threshold for found phrases, consistent with the hit's.

        A single phrase has the hit's. In an image that probably shows all phrases, none is missing.
        """
        if presence is None:
            return np.ones(len(self.layout.phrases)), 0.0
        if shown is None:
            return presence, self._least
        if len(presence) == 1:
            return np.array([shown]), LIKELY
        return presence, 0.0 if shown >= LIKELY else LIKELY

    def details(self, image: ImageVectors) -> list[tuple[Compared, dict[str, np.ndarray]]]:
        """Return the numbers and colours of the phrases with the evidence that they are right in an image."""
        found = self._seen.evidence(image)
        rows = found.rows(self._aligner.config.grounding)
        similarities = self._whole.similarities(image)[: len(self._details.texts)]
        return [*self._details.evidence(similarities, _colours(image, rows), found.things)]


def _translated(text: str, phrases: Sequence[str], own: Sequence[str]) -> str:
    """Replace each of ``phrases`` in a text by the one of ``own``; return the text itself if they are equal."""
    for before, after in zip(phrases, own, strict=True):
        if before != after:
            text = f" {' '.join(tokenize(text))} ".replace(f" {before} ", f" {after} ").strip()
    return text


def _log_details(
    calibration: Calibration, details: Details, image: ImageVectors, found: Evidence, similarities: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return :meth:`Details.log_probs` of phrases whose regions in an image are ``rows (P,)``."""
    if not details.compared:
        return np.zeros(len(rows))
    return details.log_probs(calibration, similarities, _colours(image, rows), found.things)


def _colours(image: ImageVectors, rows: np.ndarray) -> Colours | None:
    """Return the function that tells colours of an image's regions ``rows (P,)``; None for an image without colours."""
    stored = image.colours
    if stored is None:
        return None
    return lambda asked, nouns: colour_names().of_nouns(unpack_colours(stored[rows[asked]]), nouns)
