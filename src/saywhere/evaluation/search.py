"""Search in an index: sentences and phrases of a data set, and whether the index contains what a query asks for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saywhere import boxes as geometry
from saywhere.calibration import MATCH, QUESTIONS, Logistic, reliability
from saywhere.configs.aligner import Score
from saywhere.data import Sample
from saywhere.data.flickr import MarkedImage, count_boxes, find_marks, read_entities
from saywhere.errors import UserError
from saywhere.evaluation.grounding import BINS, area_under_curve, share_of
from saywhere.evaluation.ranking import Recall, rank_matrix
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import DEV, Session, embed_images, image_name
from saywhere.files import printable
from saywhere.inference import Source
from saywhere.models.aligner import ImageVectors, TextVectors
from saywhere.models.chunker import Chunker
from saywhere.models.layout import Layout, count_of
from saywhere.models.lexicon import asked_colours, noun_words
from saywhere.models.model import Model
from saywhere.models.nouns import COLOUR_NAMES, COLOURS, SHADES, noun_tree
from saywhere.models.placing import cut_phrases, word_fits
from saywhere.options import dataclass
from saywhere.search.indexing import embed_for_index, index_digest
from saywhere.search.phrases import LIKELY, PhrasesInImages, Query, action, actions, base_words, kinds, with_actions
from saywhere.search.scan import Question, Snapshot, best, kind_bonus, leads, similarities
from saywhere.search.store import Stamp, Store
from saywhere.text import Vocabulary, tokenize
from saywhere.training.calibration import Fitted, fit_pairs
from saywhere.training.progress import encode_each

TOGETHER = 64
"""Queries compared with all images at a time."""
DEPTH = 10


def score_texts(snapshot: Snapshot, texts: Sequence[TextVectors], score: Score) -> Iterator[np.ndarray]:
    """Yield the similarities ``(E,)`` of each text with all images of an index."""
    for start in range(0, len(texts), TOGETHER):
        some = texts[start : start + TOGETHER]
        yield from similarities(snapshot, Question.of(some, np.eye(len(some), dtype=np.float32), score)).T


def is_right(entry: int, box: np.ndarray, truth: Mapping[int, Sequence[np.ndarray]]) -> bool:
    """Return whether ``box (4,)`` in the image ``entry`` matches one of that image's true boxes."""
    boxes = truth.get(entry)
    return boxes is not None and bool(geometry.iou(box[None], np.stack(list(boxes))).max() >= MATCH)


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of an index of some of the images to Q queries, with K hits each.

    Attributes:
        evidence: ``(Q, K, 6)`` from :func:`saywhere.search.phrases.hit_evidence`; NaN if an album has no more images.
        agree: ``(Q, K)``, :attr:`saywhere.search.phrases.Placed.agree`.
        named: ``(Q, K)``, whether captions of the image have each noun and each action of the query.
        known, shown: ``(Q, K)``, whether captions tell if the image shows the query, and whether it does.
        inside: ``(Q,)``, whether the query is about an image of the index.
        in_index: ``(Q,)``, whether some image of the index is ``shown``, or is ``named`` and not ``known``.
        kinds: ``(Q,)`` kinds of queries, see :func:`short_queries`.
        albums: ``(Q,)`` approximate number of images searched, see :data:`ALBUMS`.
    """

    evidence: np.ndarray
    agree: np.ndarray
    named: np.ndarray
    known: np.ndarray
    shown: np.ndarray
    inside: np.ndarray
    in_index: np.ndarray
    kinds: np.ndarray
    albums: np.ndarray

    @classmethod
    def join(cls, several: Sequence[Answers]) -> Answers:
        """Concatenate the answers of several albums."""
        wide, depth = list[Answers](), max(each.shown.shape[1] for each in several)
        for each in several:
            more = ((0, 0), (0, depth - each.shown.shape[1]))
            evidence = np.pad(each.evidence, (*more, (0, 0)), constant_values=np.nan)
            others = {name: np.pad(getattr(each, name), more) for name in ("agree", "named", "known", "shown")}
            wide.append(replace(each, evidence=evidence, **others))
        return cls(*(np.concatenate([getattr(each, f.name) for each in wide]) for f in fields(cls)))

    @property
    def hits(self) -> np.ndarray:
        """Mask ``(Q, K)`` of actual hits."""
        return ~np.isnan(self.evidence[:, :, 0])

    @property
    def shares(self) -> np.ndarray:
        """Weight ``(Q, K)`` of each hit, such that query kinds and album sizes count equally."""
        _, group = np.unique(np.char.add(self.kinds, self.albums.astype(str)), return_inverse=True)
        return self.hits / np.bincount(group, self.hits.sum(axis=1))[group][:, None]


@dataclass(frozen=True)
class Group:
    """Figures of the queries of one kind in albums of one size.

    Attributes:
        kind: see :func:`short_queries`; ``all`` for all of them.
        images: approximate number of images in an album.
        queries: number of queries.
        error: calibration error of their hits.
        auc: probability that a hit that shows its query has a higher probability than one that does not.
        right: median probability of first hits that show their query; None if there are none.
        absent: median probability of first hits for queries that no image of the album shows; None without any.
        found, refused: share of the former whose first hit is reported as present, and of the latter as absent
            (:data:`saywhere.search.phrases.LIKELY`).
    """

    kind: str
    images: int
    queries: int
    error: float
    auc: float | None
    right: float | None
    absent: float | None
    found: float | None
    refused: float | None


@dataclass(frozen=True)
class PresenceInIndex:
    """How well the probability of hits tells whether they show a query, when half of the images are not in the index.

    Weights are fitted to the hits of one half and measured on those of the other, in both directions.

    Attributes:
        auc, calibration_error: of the probability of hits, see :class:`saywhere.evaluation.grounding.PresenceResult`.
        hit: weights fitted to all hits.
        queries: of all kinds, in both halves and in albums of all sizes.
        groups: the same by kind and size.
    """

    auc: float | None
    calibration_error: float
    hit: Logistic
    queries: int
    groups: tuple[Group, ...] = ()


NAMED = COLOURS | SHADES
"""Colour that each word of a caption names."""


def said(sentences: Sequence[str], vocabulary: Vocabulary) -> frozenset[str]:
    """Return all words of an image's captions, the more general kinds that they belong to, and the actions named.

    So are the colours of each noun, with the noun and with its more general kinds: "brown dog", "brown animal".
    """
    words = {word for sentence in sentences for word in tokenize(sentence)}
    doing = (action(word, vocabulary) for word in words)
    phrases = [phrase for sentence in sentences for phrase in cut_phrases(sentence)]
    coloured = (
        f"{colour} {name}"
        for each in phrases
        for colour in asked_colours(each).values()
        for name in kinds([_noun(each)])
    )
    return frozenset([*kinds(words), *(form for form in doing if form is not None), *coloured])


def _noun(phrase: str) -> str:
    """Return the name of a phrase's noun in the tree, or else its last word."""
    noun, words = noun_tree().find(phrase), noun_words(phrase)
    return words[-1] if noun is None else noun.name


def told(query: str, words: frozenset[str]) -> bool | None:
    """Return whether an image shows a query's things in their colours; None if its captions do not tell.

    It does not if a thing is only said to have other colours.

    Args:
        words: of the image, see :func:`said`.
    """
    missing = False
    for phrase in cut_phrases(query):
        name = base_words([_noun(phrase)])[0]
        for each in asked_colours(phrase).values():
            if f"{each} {name}" in words:
                continue
            missing, named = True, {NAMED.get(word) for word in words}
            if each not in named and any(f"{other} {name}" in words for other in COLOUR_NAMES):
                return False
    return None if missing else True


def nouns(query: str) -> frozenset[str]:
    """Return the nouns of the phrases of a query."""
    return frozenset(base_words(word for phrase in cut_phrases(query) for word in noun_words(phrase)))


def needed(query: str, vocabulary: Vocabulary) -> frozenset[str]:
    """Return the nouns of a query, and what it says that they do: what captions of an image have if it is shown."""
    layout = Layout.parse(query)
    doing = with_actions(layout, vocabulary).phrases[len(layout.phrases) :]
    return nouns(query).union(form for word in doing if (form := action(word, vocabulary)) is not None)


ALBUMS = (3, 10, 60)
"""Sizes of albums, drawn anew for each query, that are searched besides the full index."""
LARGER = (1000, 10_000)
"""Total number of images searched when images without queries are added, as far as there are enough."""
KINDS = ("noun", "phrase", "action", "pair", "sentence")
QUERIES = 1000
"""Maximum number of queries that an index is asked, evenly spread over the kinds."""
WORDS = 8
"""Maximum words in a query of two phrases."""
SHORT = 4
"""Maximum words in a query of one phrase: what people type."""


def spoken_queries(sentence: str, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the :func:`short_queries` of an unmarked sentence."""
    spans = [(phrase.start, phrase.stop) for phrase in Chunker.load().chunk(sentence) if phrase.visible]
    return short_queries(tokenize(sentence), spans, vocabulary)


def marked_queries(image: MarkedImage, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the :func:`short_queries` of an image's sentences, from the phrases that have boxes."""
    pairs = ((s.words, [(p.start, p.stop) for p in s.phrases if p.box is not None]) for s in image.sentences)
    return [query for words, spans in pairs for query in short_queries(words, spans, vocabulary)]


def short_queries(
    words: Sequence[str], spans: Iterable[tuple[int, int]], vocabulary: Vocabulary
) -> list[tuple[str, str]]:
    """Return the queries of a sentence with their kinds.

    These are the sentence, each phrase, the noun of each phrase, each phrase with the word behind it if that says what
    it does, such as "a man surfing", and each two neighbouring phrases with the words between, such as "a zebra eating
    grass". Phrases whose noun is not in the tree, such as "him", are skipped.

    Args:
        words: of the sentence.
        spans: of its phrases, in order: index of the first word, and of the one after the last.
        vocabulary: of the aligner, see :func:`saywhere.search.phrases.actions`.
    """
    found = [("sentence", " ".join(words))]
    phrases: list[tuple[int, int]] = []
    for start, stop in spans:
        head = noun_tree().head(words[start:stop])
        if head.noun is not None:
            phrases.append((start, stop))
            found.append(("noun", " ".join(words[start + head.start : start + head.stop])))
            if stop - start <= SHORT:
                found.append(("phrase", " ".join(words[start:stop])))
                behind = words[stop : stop + 2]
                if does := actions(behind[1:] if behind[:1] in (["is"], ["are"]) else behind[:1], vocabulary):
                    found.append(("action", " ".join([*words[start:stop], *does])))
    for (start, stop), (first, last) in pairwise(phrases):
        if last - start <= WORDS and first > stop:
            found.append(("pair", " ".join(words[start:last])))
    return found


class Compared(NamedTuple):
    """A query compared with the E images of an index.

    Attributes:
        kind: see :func:`short_queries`.
        about: entries of the images that it is about.
        phrases: finds its phrases.
        similarities: ``(E,)`` with the images.
        named, known, shown: ``(E,)``, see :class:`Answers`.
        bonus: ``(E,)``, what the noun classifier adds to the similarities in ranking.
    """

    kind: str
    about: frozenset[int]
    phrases: PhrasesInImages
    similarities: np.ndarray
    named: np.ndarray
    known: np.ndarray
    shown: np.ndarray
    bonus: np.ndarray


def compare(
    model: Model, snapshot: Snapshot, queries: Mapping[str, tuple[str, frozenset[int]]],
    words: Sequence[frozenset[str]],
) -> Iterator[Compared]:  # fmt: skip
    """Yield each query, given with its kind and entries, compared with the images that ``words`` describe."""
    aligner = model.require("aligner", "search")
    score, vocabulary = aligner.config.score, aligner.vocabulary
    columns = score_texts(snapshot, model.embed_text(list(queries)), score)
    for (query, (kind, about)), column in zip(queries.items(), columns, strict=True):
        wanted, phrases = needed(query, vocabulary), PhrasesInImages(model, Query((query,)))
        named = np.array([wanted <= each for each in words])
        right = [told(query, each) if there else False for each, there in zip(words, named.tolist(), strict=True)]
        known, shown = np.array([each is not None for each in right]), np.array([each is True for each in right])
        bonus = kind_bonus(snapshot, phrases.question())
        yield Compared(kind, about, phrases, column, named, known, shown, bonus)


def answer(
    snapshot: Snapshot, compared: Sequence[Compared], inside: np.ndarray, album: int | None = None, seed: int = 0
) -> Answers:
    """Search among some of the images.

    Args:
        compared: Q queries.
        inside: ``(E,)``, which of the images to search.
        album: number of these images to search, drawn anew for each query. Every other query gets an image that it is
            about, the others none that shows it, as far as there are enough. None: all images.
        seed: seed of the draws.
    """
    places, draws = np.flatnonzero(inside), np.random.default_rng(seed)
    size = len(places) if album is None else min(album, len(places))
    rows: list[tuple[object, ...]] = []
    for number, query in enumerate(compared):
        there = query.shown | (query.named & ~query.known)
        own, among = np.array([entry for entry in query.about if inside[entry]], np.int64), places
        if size < len(places):
            among = _draw(places, own, places[~there[places]], size, number % 2 == 0, draws)
        order = (query.similarities + query.bonus)[among]
        first = best(order, min(DEPTH, size))
        chosen = among[first]
        hits = zip(chosen.tolist(), leads(order[first], order).tolist(), strict=True)
        found = [query.phrases.find(snapshot.load(entry, ""), lead, size) for entry, lead in hits]
        rows.append((
            [each.evidence for each in found], [each.agree for each in found],
            query.named[chosen], query.known[chosen], query.shown[chosen],
            np.isin(own, among).any(), there[among].any(), query.kind, album or size,
        ))  # fmt: skip
    return Answers(*map(np.array, zip(*rows, strict=True)))


def _draw(
    places: np.ndarray, own: np.ndarray, none: np.ndarray, size: int, with_own: bool, draws: np.random.Generator
) -> np.ndarray:
    """Draw ``size`` images, in order: including one that a query is about, or if possible none that shows it."""
    if with_own and len(own):
        kept = draws.choice(own, 1)
        return np.sort(np.append(kept, draws.choice(np.setdiff1d(places, kept), size - 1, replace=False)))
    clear = np.setdiff1d(none, own)
    others = next(each for each in (clear, np.setdiff1d(places, own), places) if len(each) >= size)
    return np.sort(draws.choice(others, size, replace=False))


def measure(halves: tuple[Answers, Answers]) -> PresenceInIndex | None:
    """Compare probabilities with captions, for two indexes with disjoint images.

    None if, in either index, all hits show their query or none does.
    """
    truths = [(half.named[half.hits], half.shown[half.hits & half.known]) for half in halves]
    if any(truth.all() or not truth.any() for each in truths for truth in each):
        return None
    both = Answers.join(halves)
    given, shown = both.hits & both.known, both.shown
    rows, fits = np.split(both.evidence, [len(halves[0].kinds)]), [_fit(half) for half in halves]
    found = np.concatenate([fits[1 - i].apply(rows[i]) for i in range(2)]) * np.exp(both.agree)
    return PresenceInIndex(
        area_under_curve(found[given & shown], found[given & ~shown]),
        reliability(found[given], shown[given], BINS).ece, _fit(both), len(both.kinds), _groups(both, found),
    )  # fmt: skip


def _groups(both: Answers, found: np.ndarray) -> tuple[Group, ...]:
    """Return the figures by query kind and album size for probabilities ``(Q, K)``; the first hit is the likeliest."""
    kinds, albums, in_index = both.kinds, both.albums, both.in_index
    order = np.argsort(-found, axis=1, kind="stable")  # NaN, for missing hits, comes last
    given = both.hits & both.known
    found, shown, hits = (np.take_along_axis(each, order, axis=1) for each in (found, both.shown & given, given))
    groups: list[Group] = []
    for images in np.unique(albums).tolist():
        for kind in (*KINDS, "all"):
            chosen = (albums == images) & ((kinds == kind) | (kind == "all"))
            if not chosen.any():
                continue
            p, right, given = found[chosen], shown[chosen], hits[chosen]
            first, absent = p[:, 0][right[:, 0]], p[:, 0][~in_index[chosen]]
            p, right = p[given], right[given]
            groups.append(Group(
                kind, images, int(chosen.sum()), reliability(p, right, BINS).ece,
                area_under_curve(p[right], p[~right]),
                float(np.median(first)) if len(first) else None, float(np.median(absent)) if len(absent) else None,
                share_of(first >= LIKELY), share_of(absent < LIKELY),
            ))  # fmt: skip
    return tuple(groups)


def _fit(answers: Answers) -> Logistic:
    columns = dict(zip(QUESTIONS["hit"], answers.evidence[answers.hits].T, strict=True))
    shares = answers.shares[answers.hits]
    return Logistic.fit(columns, answers.named[answers.hits], shares / shares.mean(), "hits")


@dataclass(frozen=True)
class SearchResult:
    """Figures of how well an index answers.

    Attributes:
        recall: of the image of each sentence.
        hit: share of phrases whose first image shows them, at a place that overlaps the true one; None without phrases
            that have boxes.
        phrases: number of these phrases.
        presence: whether the index knows what it contains; None if the model is not calibrated for phrases, or the data
            is insufficient.
        layout: whether places, relations, numbers and colours are recognised; None without boxes or calibration.
    """

    recall: Recall
    hit: float | None
    phrases: int
    presence: PresenceInIndex | None
    layout: LayoutResult | None


INDEX = "index"
"""Folder of the index within a run."""

Truth = dict[str, dict[int, list[np.ndarray]]]
"""The true boxes by phrase and by entry of the image."""


def run(model: Model, session: Session, among: Sequence[Path] = ()) -> SearchResult:
    """Index the images of a data set; search for its sentences and, with Flickr30k Entities, for its phrases.

    Of the distinct phrases :data:`QUERIES` are searched for, evenly spread; so many sentences and phrases together test
    whether the index knows what it contains.

    Args:
        among: data sets whose ``train`` images are searched as well in that test; no queries are about them.

    Raises:
        UserError: the model has no aligner, no image is readable, or none has a sentence; or ``among`` is given for a
            model without probabilities.
    """
    aligner = model.require("aligner", "search")
    if among and model.calibration.phrase is None:
        raise UserError(
            "--among adds images among which the model's probabilities are measured, and this model gives none: "
            "saywhere calibrate fits them, from --what phrase on"
        )
    samples = session.read()
    others = [sample for root in among for sample in session.read_beside(root)]
    sources = session.sources(samples)
    sentences, boxed = session.texts(samples)
    if not any(sentences.values()):
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence")
    about = {"data": samples.name, "split": samples.split}
    images = embed_images(model, session, sources, about, nouns=True)
    own, marked = [sentences[image.image] for image in images], _marks(session, images)
    queries = [
        marked_queries(marked[entry], aligner.vocabulary) if entry in marked
        else [query for text in texts for query in spoken_queries(text, aligner.vocabulary)]
        for entry, texts in enumerate(own)
    ]  # fmt: skip
    truth, beside, presence, layout = _phrases(marked), list[ImageVectors](), None, None
    with _index(session.out / INDEX, model, images) as store:
        snapshot = store.snapshot()
        size = (snapshot.vectors.nbytes + snapshot.regions.nbytes) / len(images)
        recall, hit = _recall(model, snapshot, own), _hit(model, snapshot, truth)
        if model.calibration.phrase is not None and sum(map(bool, queries)) > 1:
            words = [said([*sentences[image.image], *boxed[image.image]], aligner.vocabulary) for image in images]
            if others:
                beside, more = _beside(model, session, others, about, sentences)
                _put(store, beside)
                queries, words = [*queries, *([] for _ in beside)], words + more
            presence = measure(_answers(model, store.snapshot(), queries, words))
    if marked and model.calibration.phrase is not None:
        layout = measure_layout(model, [images[entry] for entry in marked], [*marked.values()])
    result = SearchResult(recall, hit, len(truth), presence, layout)
    known = session.known(samples.name, images=len(images), images_beside=len(beside), sentences=sum(map(len, own)),
                          bytes_per_image=round(size))  # fmt: skip
    write_report(session.out, {"task": "search", **asdict(result), **known})
    return result


def _recall(model: Model, snapshot: Snapshot, sentences: Sequence[Sequence[str]]) -> Recall:
    """Return how well the image of each sentence is found; ``sentences`` are those of each image."""
    pairs = [(entry, text) for entry, texts in enumerate(sentences) for text in texts]
    texts = model.embed_text([text for _, text in pairs])
    scores = np.stack(list(score_texts(snapshot, texts, model.require("aligner", "search").config.score)), axis=1)
    return rank_matrix(scores, [entry for entry, _ in pairs]).text_to_image


# Places, relations, numbers and colours in queries

FAR = 1 / 3
"""A thing is on a side of an image if its centre is in this share of it."""
CLEAR = 0.5
"""Minimum distance of the centres, in mean widths, for one thing to be left of another."""


@dataclass(frozen=True)
class LayoutResult:
    """How well an index recognises what queries say besides names, as shares of correct answers.

    Attributes:
        counts: whether there are two of what "two dogs" names, or one, in equal numbers; the weights are fitted to the
            other half of the images. None without such cases.
        colours: whether a thing has the colour that a phrase says, in equal numbers of images where it does and does
            not; fitted as the counts.
        places: whether a thing is on the left or right, at the top or bottom.
        relations: whether a thing is left or right of, above or below another one.
        cases: number of cases of each of the four.
    """

    counts: float | None
    colours: float | None
    places: float
    relations: float
    cases: tuple[int, ...]


Detailed = tuple[int, str, bool]
"""The entry of an image, a phrase with a number or a colour, and whether that is right."""


def pair_counts(phrases: Sequence[Sequence[tuple[str, int]]]) -> list[Detailed]:
    """Return phrases for two things, each also paired with an image that has one of them.

    ``phrases`` has each image's phrases with the number of things that they name, 0 if unknown.
    """
    tree, single, several = noun_tree(), dict[str, list[int]](), list[tuple[str, int, str]]()
    for entry, texts in enumerate(phrases):
        named: dict[str, list[tuple[str, bool, int]]] = {}
        for text, number in texts:
            head = tree.head(tokenize(text))
            if head.noun is not None:
                named.setdefault(head.noun.name, []).append((text, head.plural, number))
        for noun, found in named.items():
            if two := [text for text, _, number in found if count_of(text) == 2 and number in (0, 2)]:
                several.append((noun, entry, two[0]))
            elif all(not more and number in (0, 1) for _, more, number in found):
                single.setdefault(noun, []).append(entry)
    cases: list[Detailed] = []
    for noun, entry, text in several:
        if single.get(noun):
            cases += [(entry, text, True), (single[noun].pop(), text, False)]
    return cases


def pair_colours(sentences: Sequence[Sequence[str]]) -> list[Detailed]:
    """Return phrases with a colour, each also paired with an image of such a thing in another one.

    No sentence of that image names the colour. ``sentences`` are those of each image.
    """
    words = [{word for text in texts for word in tokenize(text)} for texts in sentences]
    coloured: dict[str, dict[str, dict[int, str]]] = {}
    for entry, texts in enumerate(sentences):
        for phrase in (phrase for text in texts for phrase in cut_phrases(text)):
            if noun_tree().find(phrase) is not None and len(own := [*asked_colours(phrase).values()]) == 1:
                coloured.setdefault(_noun(phrase), {}).setdefault(own[0], {}).setdefault(entry, phrase)
    cases: list[Detailed] = []
    for by_colour in coloured.values():
        entries = sorted({entry for found in by_colour.values() for entry in found})
        for colour, found in by_colour.items():
            others = (entry for entry in entries if all(NAMED.get(word) != colour for word in words[entry]))
            for (entry, phrase), other in zip(found.items(), others, strict=False):
                cases += [(entry, phrase, True), (other, phrase, False)]
    return cases


def fit_details(
    model: Model, images: Sequence[ImageVectors], cases: Sequence[Detailed], question: str
) -> Logistic | None:
    """Fit the answer to ``asked_number`` or ``asked_colour``; None if the cases are too few."""
    return fit_pairs([*_detailed(model, images, cases, question)], question)


def _detailed(
    model: Model, images: Sequence[ImageVectors], cases: Sequence[Detailed], question: str
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Yield the evidence of each case of a question, and whether the phrase is right."""
    queries = {text: PhrasesInImages(model, Query((text,))) for text in dict.fromkeys(text for _, text, _ in cases)}
    for entry, text, there in cases:
        found = (inputs for each, inputs in queries[text].details(images[entry]) if each.question == question)
        if (inputs := next(found, None)) is not None:
            yield inputs, there


def measure_layout(model: Model, images: Sequence[ImageVectors], marked: Sequence[MarkedImage]) -> LayoutResult | None:
    """Return how well places, relations, numbers and colours are recognised; None if the boxes are insufficient.

    ``images`` are those of an index, ``marked`` the same with boxes of phrases; ``model`` is calibrated for phrases.
    """
    boxes = [count_boxes(find_marks(image.image)[1]) for image in marked]
    phrases = [
        [(s.phrase(p), own.get(p.entity, 0) or NO_BOX) for s in image.sentences for p in s.phrases]
        for image, own in zip(marked, boxes, strict=True)
    ]
    sentences = [[" ".join(sentence.words) for sentence in image.sentences] for image in marked]
    things = [_things(image, own) for image, own in zip(marked, boxes, strict=True)]
    right = (
        _right_details(model, images, pair_counts(phrases), "asked_number"),
        _right_details(model, images, pair_colours(sentences), "asked_colour"),
        _told_apart(model, images, map(_places, things)),
        _told_apart(model, images, map(_relations, things)),
    )
    counts, colours, places, relations = (share_of(np.array(each)) for each in right)
    if places is None or relations is None:
        return None
    return LayoutResult(counts, colours, places, relations, tuple(map(len, right)))


def _right_details(
    model: Model, images: Sequence[ImageVectors], cases: Sequence[Detailed], question: str
) -> list[bool]:  # fmt: skip
    """Return which cases of a question are told right, fitted to the other half of the images."""
    halves, hits = [[case for case in cases if case[0] % 2 == half] for half in range(2)], list[bool]()
    for asked, others in (halves, halves[::-1]):
        if (fit := fit_details(model, images, others, question)) is not None:
            hits += [bool(fit.apply(inputs) >= 0.5) == there
                     for inputs, there in _detailed(model, images, asked, question)]  # fmt: skip
    return hits


NO_BOX = -1
"""Number of boxes of a phrase that has none."""


class Thing(NamedTuple):
    """A phrase for a thing with one box, and the box's centre ``(2,)`` and sides ``(2,)`` as shares of the image's."""

    text: str
    centre: np.ndarray
    sides: np.ndarray


def _things(image: MarkedImage, boxes: Mapping[str, int]) -> list[Thing]:
    """Return the things of an image that have one box and one noun; ``boxes`` are numbers of boxes by entity."""
    things, size = dict[str, Thing](), np.array([image.width, image.height])
    for sentence in image.sentences:
        for phrase in sentence.phrases:
            text, box = sentence.phrase(phrase), phrase.box
            if box is not None and boxes.get(phrase.entity) == 1 and len(nouns(text)) == 1:
                thing = Thing(text, (box[:2] + box[2:]) / 2 / size, (box[2:] - box[:2]) / size)
                things.setdefault(phrase.entity, thing)
    return [*things.values()]


def _places(things: Sequence[Thing]) -> Iterator[tuple[str, str]]:
    """Yield where things are in an image: a true statement, and its opposite."""
    for thing in things:
        for axis, names in enumerate((("on the left", "on the right"), ("at the top", "at the bottom"))):
            where = float(thing.centre[axis])
            if where < FAR or where > 1 - FAR:
                there, opposite = names if where < FAR else names[::-1]
                yield f"{thing.text} {there}", f"{thing.text} {opposite}"


def _relations(things: Sequence[Thing]) -> Iterator[tuple[str, str]]:
    """Yield where things are beside others: a true statement, and its opposite."""
    for one, other in combinations(things, 2):
        if nouns(one.text) == nouns(other.text):
            continue
        apart, width = other.centre - one.centre, (other.sides + one.sides) / 2
        for axis, names in enumerate((("left of", "right of"), ("above", "below"))):
            if abs(apart[axis]) > CLEAR * width[axis] and abs(apart[axis]) >= abs(apart[1 - axis]):
                there, opposite = names if apart[axis] > 0 else names[::-1]
                yield f"{one.text} {there} {other.text}", f"{one.text} {opposite} {other.text}"


def _told_apart(model: Model, images: Sequence[ImageVectors], cases: Iterable[Iterable[tuple[str, str]]]) -> list[bool]:
    """Return whether the first of two statements about an image agrees more with it; ``cases`` are those of each."""

    def agree(image: ImageVectors, text: str) -> float:
        return PhrasesInImages(model, Query((text,))).find(image).agree

    both = zip(images, cases, strict=True)
    return [agree(image, right) > agree(image, wrong) for image, pairs in both for right, wrong in pairs]


SHOWN = 25
"""Maximum number of images that show a phrase, and of others, to fit the probabilities of phrases on."""


def fit_hits(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probabilities of search hits to sentences and phrases, by searching indexes of images.

    Unreadable images are reported. Shows a progress bar.

    Args:
        model: should not have been trained on these images.
        sets: images of data sets; each set is searched separately, for :data:`QUERIES` queries. Images with boxes and
            no sentences are searched for by the phrases of their boxes.

    Returns:
        The answers to the questions ``indexed_phrase`` and ``hit`` of a :class:`saywhere.calibration.Calibration`, and
        to ``asked_colour`` if the sentences suffice.

    Raises:
        UserError: the model has no aligner or is not calibrated for phrases, or the images are insufficient.
    """
    model.check("aligner", "search")
    if model.calibration.phrase is None:
        raise UserError(f"{model.name} must be calibrated for phrases before it is for hits: calibrate --what phrase")
    seen = [each for samples in sets if len((each := _read_set(model, samples)).images) > 1]
    images, said_of = [image for each in seen for image in each.images], [t for each in seen for t in each.sentences]
    fits = {
        "asked_colour": fit_details(model, images, pair_colours(said_of), "asked_colour"),
        "indexed_phrase": fit_phrases(model, seen),
    }
    known = {question: fit for question, fit in fits.items() if fit is not None}
    model.calibration = replace(model.calibration, **known)
    halves: list[tuple[Answers, Answers]] = []
    for each in seen:
        with tempfile.TemporaryDirectory() as folder, _index(Path(folder) / INDEX, model, each.images) as store:
            halves.append(_answers(model, store.snapshot(), each.queries, each.words))
    joined = [Answers.join(part) for part in zip(*halves, strict=True)]
    found = measure((joined[0], joined[1])) if joined else None
    if found is None:
        raise UserError(
            f"{len(images)} images with sentences or boxes do not tell when a hit shows what was looked for: more are "
            "needed"
        )
    return Fitted({**known, "hit": found.hit}, f"searches in {source}")


@dataclass(frozen=True, eq=False)
class SeenSet:
    """Images of a data set.

    Attributes:
        images: embedded as for an index.
        sentences: of each image; the phrases of its boxes if it has none.
        queries: of each image, see :func:`short_queries`; no whole sentences if they come from boxes.
        words: all words about each image, see :func:`said`.
    """

    images: list[ImageVectors]
    sentences: list[Sequence[str]]
    queries: list[list[tuple[str, str]]]
    words: list[frozenset[str]]


def _read_set(model: Model, samples: Sequence[Sample]) -> SeenSet:
    """Embed the images of a data set that have sentences or phrases."""
    seen, vocabulary = SeenSet([], [], [], []), model.require("aligner", "search").vocabulary
    for sample, encoding in encode_each(model, [s for s in samples if s.sentences or any(s.phrases)], "images"):
        boxed = sorted({phrase for phrases in sample.phrases for phrase in phrases})
        texts = sample.sentences or boxed
        queries = [query for text in texts for query in spoken_queries(text, vocabulary)]
        seen.images.extend(embed_for_index(model, [encoding]))
        seen.sentences.append(texts)
        seen.queries.append([query for query in queries if sample.sentences or query[0] != "sentence"])
        seen.words.append(said([*texts, *boxed], vocabulary))
    return seen


def fit_phrases(model: Model, sets: Sequence[SeenSet]) -> Logistic | None:
    """Fit the probability that an image of an index shows what a phrase names; None if the images are insufficient.

    For each phrase, images that show it and images that do not count equally, and so do all phrases.
    """
    cases, draws = list[tuple[np.ndarray, bool, float]](), np.random.default_rng(0)
    for each in sets:
        short = sorted({query for pairs in each.queries for kind, query in pairs if kind in ("noun", "phrase")})
        for query in _spread(short, QUERIES // len(KINDS)):
            wanted, phrases = nouns(query), PhrasesInImages(model, Query((query,)))
            there = np.array([wanted <= words for words in each.words])
            if len(phrases.layout.phrases) > 1 or there.all() or not there.any():
                continue
            for value in (True, False):
                rows = draws.permutation(np.flatnonzero(there == value))[:SHOWN].tolist()
                cases += [(phrases.find(each.images[row]).phrases[:, 0], value, 1 / len(rows)) for row in rows]
    if not cases:
        return None
    evidence, shown, counted = map(np.array, zip(*cases, strict=True))
    columns = dict(zip(QUESTIONS["indexed_phrase"], evidence.T, strict=True))
    return Logistic.fit(columns, shown, counted / counted.mean(), "phrases")


def _beside(
    model: Model, session: Session, samples: Sequence[Sample], about: Mapping[str, object], asked: Container[str]
) -> tuple[list[ImageVectors], list[frozenset[str]]]:
    """Return the training images of data sets that are not in ``asked``, and all words about each."""
    sentences, boxed = session.texts(samples)
    paths = {image_name(sample.image, session.folder): sample.image for sample in samples}
    sources = [Source(path, name, Path(name)) for name, path in paths.items() if name not in asked]
    images = embed_images(model, session, sources, about, nouns=True) if sources else []
    vocabulary = model.require("aligner", "search").vocabulary
    return images, [said([*sentences[image.image], *boxed[image.image]], vocabulary) for image in images]


def _answers(
    model: Model, snapshot: Snapshot, asked_of: Sequence[Sequence[tuple[str, str]]], words: Sequence[frozenset[str]]
) -> tuple[Answers, Answers]:
    """Search one half of the images that have queries, then the other; and each half together with the rest.

    ``asked_of`` has the :func:`short_queries` of each image, none for images that are only searched; ``words`` are
    those about each image.
    """
    owners: dict[str, dict[str, set[int]]] = {kind: {} for kind in KINDS}
    for entry, pairs in enumerate(asked_of):
        for kind, query in pairs:
            owners[kind].setdefault(query, set()).add(entry)
    asked: dict[str, tuple[str, frozenset[int]]] = {}
    for kind, found in owners.items():
        for query in _spread(sorted(query for query in found if query not in asked), QUERIES // len(KINDS)):
            asked[query] = kind, frozenset(found[query])
    compared = list(compare(model, snapshot, asked, words))
    draws, own = np.random.default_rng(0), np.flatnonzero([bool(pairs) for pairs in asked_of])
    first = draws.permutation(len(own)) < len(own) // 2
    rest = draws.permutation(np.setdiff1d(np.arange(len(asked_of)), own))
    halves: list[Answers] = []
    for chosen in (own[first], own[~first]):
        half = np.isin(np.arange(len(asked_of)), chosen)
        albums = [*(album for album in ALBUMS if album < len(chosen)), None]
        found = [answer(snapshot, compared, half, album) for album in albums]
        for size in LARGER if len(rest) else ():
            more = np.isin(np.arange(len(asked_of)), rest[: max(size - len(chosen), 0)])
            found.append(answer(snapshot, compared, half | more))
        halves.append(Answers.join(found))
    return halves[0], halves[1]


def _index(folder: Path, model: Model, images: Sequence[ImageVectors]) -> Store:
    """Build an index of these images, with entries in their order; an earlier one is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    size = model.require("aligner", "search").config.embed_dim + 1
    store = Store(folder, {"digest": index_digest(model), "model": printable(model.name), "size": str(size)})
    _put(store, images)
    return store


def _put(store: Store, images: Sequence[ImageVectors]) -> None:
    for start in range(0, len(images), 100):
        store.put([(image.image, Stamp(0, 0), image) for image in images[start : start + 100]])


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most ``most`` of the items, evenly spaced."""
    chosen = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[i] for i in chosen.tolist()]


def _marks(session: Session, images: Sequence[ImageVectors]) -> dict[int, MarkedImage]:
    """Return the images' marked sentences by entry; empty without Flickr30k Entities."""
    try:
        marked = read_entities(session.data, session.split or DEV)
    except UserError:
        return {}
    named = {image_name(image.image, session.folder): image for image in marked}
    return {entry: named[image.image] for entry, image in enumerate(images) if image.image in named}


def _phrases(marked: Mapping[int, MarkedImage]) -> Truth:
    """Return :data:`QUERIES` of the phrases that have boxes, for the indexed images."""
    truth: Truth = {}
    for entry, image in marked.items():
        for sentence in image.sentences:
            for phrase in sentence.phrases:
                words = sentence.phrase(phrase)
                if phrase.box is not None and words:
                    truth.setdefault(words, {}).setdefault(entry, []).append(phrase.box)
    return {phrase: truth[phrase] for phrase in _spread(sorted(truth), QUERIES)}


def _hit(model: Model, snapshot: Snapshot, truth: Truth) -> float | None:
    """Return the share of phrases whose top image shows them at the region found there; None without phrases."""
    if not truth:
        return None
    aligner, phrases = model.require("aligner", "search"), list(truth)
    texts, right = model.embed_text(phrases), 0
    for phrase, text, scores in zip(phrases, texts, score_texts(snapshot, texts, aligner.config.score), strict=True):
        entry = int(scores.argmax())
        image = snapshot.load(entry, "")
        region = int(word_fits(aligner, image, [text])[:, 0].argmax())
        right += is_right(entry, image.boxes[region], truth[phrase])
    return right / len(phrases)
