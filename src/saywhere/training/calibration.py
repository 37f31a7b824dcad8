"""Probabilities fitted to data, which ``saywhere calibrate`` writes to ``calibration.json`` in a model folder.

They are the probabilities that a box is right, that a word of its phrase is right, that an image shows a phrase, and
that it shows as many things as a phrase says. Fitting the third also chooses the weights of the noun classifier in
placing. (Hubness: :mod:`saywhere.training.hubness`; search hits: :mod:`saywhere.evaluation.search`; all of them in one
table: :mod:`saywhere.stages.calibration`.)
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from saywhere import boxes as geometry
from saywhere.adapters.adapter import Adapter, Question, ScoreCalibration, calibration_path, change_calibration
from saywhere.adapters.sources import Adapted
from saywhere.calibration import MATCH, QUESTIONS, Calibration, Logistic, logistic, logit
from saywhere.configs.aligner import GroundingConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.loading import load
from saywhere.models.bundle import CARD
from saywhere.models.densecap import detect, rank
from saywhere.models.lexicon import asked_colours, noun_words
from saywhere.models.model import Model
from saywhere.models.nouns import COLOUR_NAMES, COLOURS, colour_of, is_right, noun_tree, plural, related
from saywhere.models.phrases import CHILDREN, SEXES, Doubtful
from saywhere.models.placing import Evidence
from saywhere.options import dataclass
from saywhere.search.indexing import embed_for_index
from saywhere.search.phrases import PhrasesInImages, Query
from saywhere.text import tokenize
from saywhere.training.progress import encode_each

LEAST_COUNTED, LEAST_NAMED = 0.003, 0.01
"""Smallest fraction of an image that counts as one of several things, and that the largest of them must have."""
PHRASES = 8
"""Maximum number of an image's own phrases, and of phrases of other images."""
WEIGHTS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Candidate weights of the noun classifier in placing phrases."""
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Candidate shares of the noun classifier in placing phrases of nothing but a noun."""
SIMILARITY_WEIGHTS = (0.0, 10.0, 20.0, 30.0, 50.0, 80.0)
"""Candidate weights of the noun classifier relative to similarities."""
PLAIN = COLOUR_NAMES[:11]
"""Colours that replace others; the rest are shades of these: silver may be called gray."""
FEW = 20
"""Minimum number of examples of each outcome: of phrases with rare nouns, shown and not shown, to be fitted apart from
the others; and of words, right and wrong, to be calibrated."""


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Attributes:
        fits: by question.
        about: description of the data that it was fitted to.
        more: what else the model card says of it, in whole sentences.
        options: options chosen with it, by name.
        information: see :func:`collect_boxes`; None if no boxes were calibrated.
        hubs: the aligner's :class:`saywhere.networks.aligner.network.Hubs`; None if hubness was not fitted.
    """

    fits: Mapping[str, Logistic | None]
    about: str
    more: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    information: np.ndarray | None = None
    hubs: Any = None

    def store(self, folder: Path, heading: str) -> None:
        """Write the fit into a model folder, leaving its other weights, and a section about it into the model card."""
        from saywhere.networks import checkpoint  # these need torch, which nothing else here does
        from saywhere.training.card import replace_section

        checkpoint.change_calibration(folder, self.fits)
        if self.information is not None:
            checkpoint.write_information(folder, self.information)
        if self.options:
            checkpoint.change_options(folder, self.options)
        if self.hubs is not None:
            count = {"aligner.hubs": self.hubs.texts.out_features}
            checkpoint.change_weights(folder, "aligner.hubs", self.hubs.state_dict(), count)
        text = f'Fitted by `saywhere calibrate` (docs/models.md, "Scores as probabilities"): {self}. {self.more}'
        replace_section(folder / CARD, heading, text.rstrip() + "\n")

    def __str__(self) -> str:
        """Return the fitted weights and the data that they were fitted to."""
        fits = [f"{question}: {fit}" for question, fit in self.fits.items() if fit is not None]
        options = [f"{name.rpartition('.')[2]} {value:g}" for name, value in self.options.items()]
        return "; ".join([*fits, *options, self.about])


# Boxes


@dataclass(frozen=True, eq=False)
class Judged:
    """N answers of a model: boxes, words or phrases.

    Attributes:
        evidence: ``(N,)`` each, named as in :data:`saywhere.calibration.QUESTIONS`.
        right: ``(N,)``, whether each answer is right.
        images: number of images.
    """

    evidence: dict[str, np.ndarray]
    right: np.ndarray
    images: int = 1

    @classmethod
    def join(cls, rows: Sequence[Judged], needs: str) -> Judged:
        """Concatenate the answers about several images; ``UserError`` starting with ``needs`` if there are none."""
        if not rows:
            raise UserError(f"{needs}, and not one can be read")
        evidence = {name: np.concatenate([row.evidence[name] for row in rows]) for name in rows[0].evidence}
        return cls(evidence, np.concatenate([row.right for row in rows]), sum(row.images for row in rows))


def matches(boxes: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return whether each of ``boxes (N, 4)`` matches a true box of ``true (M, 4)``."""
    return geometry.iou(boxes, true).max(axis=1, initial=0) >= MATCH


def collect_boxes(model: Model, samples: Sequence[Sample]) -> tuple[Judged, np.ndarray]:
    """Return a model's boxes in images, without the duplicates that :meth:`Model.describe` drops.

    Also returns the Fisher information ``(E + 1, E + 1)`` of the layer that scores boxes: the mean over all boxes of
    p (1 - p) x xᵀ, for the scores p and their inputs x, the region head's outputs and 1.

    Unreadable images are reported. Shows a progress bar. ``UserError`` if no image is readable.
    """
    detector = model.require("densecap", "be calibrated")
    rows, information, count = list[Judged](), np.zeros(()), 0
    for sample, encoding in encode_each(model, samples, "boxes"):
        (found,) = detect(detector, [encoding], writer=model.phrase_writer, calibration=model.calibration)
        kept = rank(found.regions(model.calibration.box), detector.config.repeat_nms)
        evidence = {name: values[kept] for name, values in found.evidence.items()}
        rows.append(Judged(evidence, matches(found.boxes[kept], sample.boxes)))
        inputs = np.pad(found.embeddings.astype(np.float64), ((0, 0), (0, 1)), constant_values=1.0)
        scores = logistic(found.logits.astype(np.float64))
        information = information + (inputs * (scores * (1 - scores))[:, None]).T @ inputs
        count += len(scores)
    return Judged.join(rows, "calibration needs images"), information / max(count, 1)


def fit_boxes(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probability that a box of the dense captioner is right."""
    model.calibration = Calibration()
    found, information = collect_boxes(model, [*chain(*sets)])
    box = Logistic.fit(found.evidence, found.right, what="boxes")
    about = f"{len(found.right):,} boxes of {found.images:,} images of {source}"
    ece = box.reliability(found.evidence, found.right).ece
    more = f"{found.right.sum():,} have an IoU of {MATCH:g} or more with a true box (calibration error {ece:.3f})."
    return Fitted({"box": box}, about, more, information=information)


# Words


def says_truth(doubt: Doubtful, truths: Sequence[Sequence[str]]) -> bool | None:
    """Return whether a word of a phrase agrees with the true phrases of its box; None if they do not tell.

    A gendered word is right if the first such word of a true phrase has the same sex and age group. A colour is right
    if a true phrase names it.
    """
    if doubt.question == "colour":
        colours = {colour for truth in truths for place in range(len(truth)) if (colour := colour_of(truth, place))}
        return COLOURS[doubt.word] in colours if colours else None
    first = [next((word for word in truth if word in SEXES), None) for truth in truths]
    people = {(SEXES[word], word in CHILDREN) for word in first if word is not None}
    return (SEXES[doubt.word], doubt.word in CHILDREN) in people if people else None


def fit_words(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probability that gendered words and colours are right, on images that the decoder was not trained on.

    Words are ignored if the true phrases of their box have no word of that kind.
    """
    model.calibration = Calibration()
    detector = model.require("densecap", "be calibrated")
    rows: dict[str, list[tuple[Mapping[str, Any], bool]]] = {"person": [], "colour": []}
    for sample, encoding in encode_each(model, [sample for sample in chain(*sets) if len(sample.boxes)], "words"):
        (found,) = detect(detector, [encoding], [sample.boxes], writer=model.phrase_writer, doubts=True)
        for doubtful, truths in zip(found.phrases.doubtful, sample.phrases, strict=True):
            for doubt in doubtful:
                right = says_truth(doubt, [tokenize(truth) for truth in truths])
                if right is not None:
                    rows[doubt.question].append((doubt.evidence, right))
    if not any(rows.values()):
        raise UserError("words are calibrated on boxes whose phrases name people and colours, and there are none")
    fits: dict[str, Logistic | None] = {}
    for question, pairs in rows.items():
        columns = {name: np.array([evidence[name] for evidence, _ in pairs]) for name in QUESTIONS[question]}
        right = np.array([right for _, right in pairs], bool)
        if (made := fit_enough(columns, right, f"words of the question {question}")) is not None:
            fits[question] = made
    counts = ", ".join(f"{len(pairs):,} of the question {question}" for question, pairs in rows.items())
    return Fitted(fits, f"words in phrases of boxes of {source}: {counts}")


def fit_enough(evidence: Mapping[str, np.ndarray], right: np.ndarray, what: str) -> Logistic | None:
    """Fit the probability that answers are right; None if fewer than :data:`FEW` are right, or wrong."""
    return Logistic.fit(evidence, right, what=what) if FEW <= right.sum() <= len(right) - FEW else None


def fit_captions(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probability that the noun of a box's phrase is right, on images that the decoder was not trained on."""
    detector = model.require("densecap", "be calibrated")
    tree, rows = noun_tree(), list[Judged]()
    unfitted = Logistic(dict.fromkeys(QUESTIONS["caption"], 0.0), 0.0)
    asked = replace(model.calibration, caption=unfitted)  # makes the part nouns look at the boxes
    for sample, encoding in encode_each(model, [sample for sample in chain(*sets) if len(sample.boxes)], "captions"):
        (found,) = detect(detector, [encoding], [sample.boxes], writer=model.phrase_writer, calibration=asked)
        marks = [is_right(tree, text, truths) for text, truths in zip(found.captions, sample.phrases, strict=True)]
        rows.append(Judged(found.caption_evidence(model.nouns, range(len(sample.boxes))), np.array(marks, bool)))
    phrases = Judged.join(rows, "captions are calibrated on images with boxes")
    caption = Logistic.fit(phrases.evidence, phrases.right, what="phrases")
    about = f"phrases of {len(phrases.right):,} boxes of {source}"
    ece = caption.reliability(phrases.evidence, phrases.right).ece
    more = (
        f"Of {phrases.right.sum():,} the noun is that of a true phrase, a synonym or a kind of it "
        f"(calibration error {ece:.3f})."
    )
    return Fitted({"caption": caption}, about, more)


# Numbers


def numbered(sample: Sample) -> Iterator[tuple[str, bool]]:
    """Yield phrases that name numbers of things, such as "two dogs", and whether an image shows so many.

    Only boxes whose phrase is a name count, with an article or not, as in COCO: where people wrote phrases, not every
    thing has a box.
    """
    tree, size = noun_tree(), sample.width * sample.height
    areas: dict[str, list[float]] = {}
    for (x1, y1, x2, y2), references in zip(sample.boxes.tolist(), sample.phrases, strict=True):
        names = (text.removeprefix("an ").removeprefix("a ") for text in references)
        nouns = (noun for name in names if (noun := tree.named(name)) is not None)
        for name in {noun.name for noun in nouns if noun.use == "count"}:
            areas.setdefault(name, []).append((x2 - x1) * (y2 - y1) / size)
    for name, each in areas.items():
        there = sum(area >= LEAST_COUNTED for area in each)
        for number, word in enumerate(("two", "three", "four", "five"), 2) if max(each) >= LEAST_NAMED else ():
            yield f"{word} {plural(name)}", there >= number


def fit_numbers(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probability that an image, or one of an index, shows as many things as a phrase says.

    ``UserError`` if the boxes are insufficient.
    """
    placer, queries = model.placer(), dict[str, PhrasesInImages]()
    rows: dict[str, list[tuple[Mapping[str, np.ndarray], bool]]] = {"placed_number": [], "asked_number": []}
    told = [sample for sample in chain(*sets) if next(numbered(sample), None) is not None]
    for sample, encoding in encode_each(model, told, "numbers"):
        phrases, there = zip(*numbered(sample), strict=True)
        placed = placer.detail_evidence(encoding, phrases, "asked_number")
        rows["placed_number"] += [(inputs, there[number]) for number, inputs in placed]
        (image,) = embed_for_index(model, [encoding])
        for phrase, right in zip(phrases, there, strict=True):
            if phrase not in queries:
                queries[phrase] = PhrasesInImages(model, Query((phrase,)))
            rows["asked_number"] += [(inputs, right) for _, inputs in queries[phrase].details(image)]
    fits = {question: fit_pairs(pairs, question) for question, pairs in rows.items()}
    if None in fits.values():
        raise UserError(
            "numbers are fitted to images in which every thing of a kind has a box with its name, as in COCO, "
            f"and these have too few: {len(rows['asked_number'])} cases"
        )
    return Fitted(fits, f"the boxes of {source}")


# Phrases


@dataclass(frozen=True, eq=False)
class Collected:
    """The evidence for an image's phrases.

    Attributes:
        evidence: for the image's own phrases, then for equally many of other images that it does not show.
        right: ``(R, P)``, whether the box of each region is right for each of the P own phrases.
        colours: evidence for the colour of own phrases, which is right, and for another one instead, which is not.
    """

    evidence: Evidence
    right: np.ndarray
    colours: Sequence[tuple[Mapping[str, np.ndarray], bool]] = ()

    @property
    def there(self) -> np.ndarray:
        """Whether the image shows each phrase ``(2P,)``; True for the first P, its own."""
        return np.arange(len(self.evidence.named)) < self.right.shape[1]


def absent(own: Sequence[Sequence[str]], words: Sequence[set[str]]) -> Iterator[list[str]]:
    """Yield for each image as many phrases of others as it has ``own``, as far as there are any that it does not show.

    A phrase is not shown if no word of its noun is among the image's ``words``, and none of these names a kind or a
    generalisation of its noun: an image with a man shows a person, and a dog may be a puppy.
    """
    generator, tree = np.random.default_rng(0), noun_tree()
    pool = [phrase for phrases in own for phrase in phrases]
    nouns = [(set(noun_words(phrase)), tree.find_kind(phrase)) for phrase in pool]
    for phrases, said in zip(own, words, strict=True):
        things = [noun for word in sorted(said) if (noun := tree.named(word)) is not None]
        found: list[str] = []
        for number in generator.permutation(len(pool))[: 20 * len(phrases)].tolist():
            spoken, noun = nouns[number]
            alike = noun is not None and any(related(noun, thing) for thing in things)
            if len(found) < len(phrases) and not alike and said.isdisjoint(spoken):
                found.append(pool[number])
        yield found


def recoloured(phrase: str, said: Collection[str]) -> tuple[str, str] | None:
    """Return a phrase that says one colour of its thing, and the same with a colour that is not among words ``said``.

    None for other phrases. The colour is the same for each call.

    Example:
        >>> recoloured("a red car", {"red", "yellow", "green"})
        ('a red car', 'a pink car')
    """
    colours, words = asked_colours(phrase), tokenize(phrase)
    if len(colours) != 1:
        return None
    place, number = next(iter(colours)), zlib.crc32(phrase.encode())
    others = [colour for colour in PLAIN if colour not in said and colour != colours[place]]
    if not others:
        return None
    words[place] = others[number % len(others)]
    return phrase, " ".join(words)


def fit_pairs(pairs: Sequence[tuple[Mapping[str, np.ndarray], bool]], question: str) -> Logistic | None:
    """Fit the answer to a question to evidence and whether it is right; None if there are few."""
    right = np.array([right for _, right in pairs], bool)
    if len(pairs) < 2 * FEW or right.all() or not right.any():
        return None
    evidence = {name: np.array([inputs[name] for inputs, _ in pairs]) for name in QUESTIONS[question]}
    return Logistic.fit(evidence, right, what="numbers and colours")


def collect_phrases(
    model: Model, samples: Sequence[Sample], part: Literal["aligner", "densecap"] | None = None
) -> list[Collected]:
    """Return the evidence for phrases of images, and for phrases of other images that they do not show.

    Unreadable images are reported. Shows a progress bar. ``part`` places the phrases, see
    :meth:`saywhere.Model.placer`. ``UserError`` if no image has a phrase or none is readable.
    """
    placer, generator = model.placer(part), np.random.default_rng(0)
    phrases = [[p for references in sample.phrases for p in references] for sample in samples]
    own = [[each[i] for i in generator.permutation(len(each))[:PHRASES]] for each in phrases]
    texts = [(*each, *sample.sentences) for each, sample in zip(phrases, samples, strict=True)]
    words = [{word for text in each for word in tokenize(text)} for each in texts]
    words_of = dict(zip(samples, words, strict=True))
    asked = {sample: each for sample, *each in zip(samples, own, absent(own, words), strict=True) if each[0]}
    found: list[Collected] = []
    for sample, encoding in encode_each(model, list(asked), "phrases"):
        mine, others = asked[sample]
        evidence = placer.evidence(encoding, [*mine, *others])
        true = [sample.boxes[[phrase in references for references in sample.phrases]] for phrase in mine]
        right = [matches(evidence.regions.boxes, boxes) for boxes in true]
        pairs = [pair for phrase in mine if (pair := recoloured(phrase, words_of[sample])) is not None]
        said = placer.detail_evidence(encoding, [phrase for pair in pairs for phrase in pair], "asked_colour")
        colours = [(inputs, number % 2 == 0) for number, inputs in said]
        found.append(Collected(evidence, np.stack(right, axis=1), colours))
    if not found:
        raise UserError("calibration needs images with phrases, and not one can be read")
    return found


def accuracy(rows: Sequence[Collected], config: GroundingConfig, bare: bool | None = None) -> tuple[float, int]:
    """Return the share of own phrases that are placed right, and their number; ``bare`` selects bare nouns or others.

    Phrases whose noun the classifier does not know are ignored.
    """
    marks: list[bool] = []
    for row in rows:
        chosen = row.evidence.rows(config)[: row.right.shape[1]]
        asked = row.evidence.named[: len(chosen)]
        if bare is not None and row.evidence.bare is not None:
            asked = asked & (row.evidence.bare[: len(chosen)] == bare)
        marks += row.right[chosen, np.arange(len(chosen))][asked].tolist()
    return float(np.mean(marks)) if marks else 0.0, len(marks)


def choose_weights(
    rows: Sequence[Collected], config: GroundingConfig, by_aligner: Sequence[Collected] = ()
) -> GroundingConfig:
    """Choose the classifier's weights that place the most phrases right; among equals the smallest.

    ``by_aligner`` is the evidence with the aligner placing phrases, if the model normally uses another part.
    """
    for option, values, bare in (("kind_weight", WEIGHTS, False), ("bare_kind_share", SHARES, True)):
        tried = [replace(config, **{option: value}) for value in values]
        config = max(tried, key=lambda each: accuracy(rows, each, bare)[0])
    tried = [replace(config, similarity_kind_weight=weight) for weight in SIMILARITY_WEIGHTS]
    return max(tried, key=lambda each: accuracy(by_aligner or rows, each)[0])


def fit_phrases(rows: Sequence[Collected]) -> tuple[Logistic, Logistic | None]:
    """Fit the probability that images show phrases, and that of phrases with a rare noun; None if these are few.

    Raises:
        UserError: all phrases are in their images, or none.
    """
    inputs = {name: np.concatenate([row.evidence.inputs[name] for row in rows]) for name in QUESTIONS["phrase"]}
    there = np.concatenate([row.there for row in rows])
    rarely = np.concatenate([row.evidence.rare for row in rows])
    few = min(int((rarely & there).sum()), int((rarely & ~there).sum())) < FEW

    def fit(which: np.ndarray) -> Logistic:
        return Logistic.fit({name: column[which] for name, column in inputs.items()}, there[which], what="phrases")

    return fit(np.ones(len(there), bool) if few else ~rarely), None if few else fit(rarely)


def fit_unnamed(rows: Sequence[Collected], question: str) -> Logistic | None:
    """Fit the probability that images show phrases whose noun is not in the noun tree; None if these are few."""
    unnamed = ~np.concatenate([row.evidence.named for row in rows])
    there = np.concatenate([row.there for row in rows])[unnamed]
    names = QUESTIONS[question]
    inputs = {name: np.concatenate([row.evidence.inputs[name] for row in rows])[unnamed] for name in names}
    return fit_enough(inputs, there, "phrases")


def fit_places(rows: Sequence[Collected], config: GroundingConfig) -> Logistic | None:
    """Fit the probability that the box of a shown phrase is right; None if too few boxes are right or wrong."""
    found, marks = list[dict[str, np.ndarray]](), list[np.ndarray]()
    for row in rows:
        own, chosen = row.right.shape[1], row.evidence.rows(config)
        found.append({name: column[:own] for name, column in row.evidence.place_inputs(config, chosen).items()})
        marks.append(row.right[chosen[:own], np.arange(own)])
    evidence = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    return fit_enough(evidence, np.concatenate(marks), "boxes")


def fit_grounding(model: Model, sets: Sequence[Sequence[Sample]], source: str) -> Fitted:
    """Fit the probability that an image shows a phrase and its box is right, and the classifier's weights in placing.

    Phrases that an image does not show are drawn from the same set.
    """
    rows = [row for samples in sets for row in collect_phrases(model, samples)]
    both = model.densecap is not None and model.nouns is not None
    by_aligner = [row for samples in sets for row in collect_phrases(model, samples, "aligner")] if both else []
    phrase, of_rare = fit_phrases(rows)
    by_fit = ["unnamed_phrase"] if rows[0].evidence.by == "densecap" else []  # the aligner's fits are not used for it
    unnamed = {question: fit_unnamed(rows, question) for question in (*by_fit, "unwanted_phrase")}
    config = choose_weights(rows, model.require("aligner", "be calibrated").config.grounding, by_aligner)
    places = {rows[0].evidence.by: rows} | ({"aligner": by_aligner} if by_aligner else {})
    fits = {f"{part}_place": fit_places(placed, config) for part, placed in places.items()}
    colour = fit_pairs([pair for row in rows for pair in row.colours], "placed_colour")
    names = ("kind_weight", "bare_kind_share", "similarity_kind_weight")
    options = {f"aligner.grounding.{name}": getattr(config, name) for name in names}
    own, total = sum(row.right.shape[1] for row in rows), sum(len(row.evidence.named) for row in rows)
    about = f"{own:,} phrases of {len(rows):,} images of {source}, and {total - own:,} phrases of other images"
    fits |= {"phrase": phrase, "rare_phrase": of_rare, **unnamed, "placed_colour": colour}
    return Fitted(fits, about, options=options)


# Models of other people

WHAT = {"box": "regions", "phrase": "phrases"}


def calibrate_adapted(
    found: Adapted,
    name: str,
    question: Question,
    sets: Sequence[Sequence[Sample]],
    source: str,
    device: str | None = None,
) -> Fitted:
    """Fit the scores of a model of transformers, and write the fit to its calibration file.

    Args:
        name: the model, as :func:`saywhere.load` takes it.
        question: what the score is a probability of. ``box``: the region's box has an IoU of 0.5 with a true one.
            ``phrase``: the image shows the phrase.
        sets: images with phrases and boxes, of one or several data sets. Phrases that an image does not show are drawn
            from the same set.

    Raises:
        UserError: the model cannot be loaded or cannot describe, no image is readable, or its scores are uninformative.
        OSError: the calibration cannot be written.
    """
    path = calibration_path(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):  # fails now rather than after the work
        pass
    model = load(name, device)
    assert isinstance(model.engine, Adapter)
    model.engine.scores = ScoreCalibration()
    collect = score_regions if question == "box" else score_phrases
    scored = Judged.join([collect(model, samples) for samples in sets], "calibration needs images")
    made = fit(scored, name, WHAT[question])
    true = int(scored.right.sum())
    about = f"{len(scored.right):,} {WHAT[question]}, {true:,} of them true, of {scored.images:,} images of {source}"
    change_calibration(path, model.engine.weights_digest(), question, made, about)
    return Fitted({question: made}, about)


def score_regions(model: Model, samples: Sequence[Sample]) -> Judged:
    """Return the scores of a model's regions, and whether their boxes match true ones."""
    model.check("densecap", "find regions")
    rows: list[Judged] = []
    for sample, encoding in encode_each(model, samples, "calibration"):
        found = model.describe(encoding)
        assert found.scores is not None
        rows.append(Judged({"score": found.scores}, matches(found.boxes, sample.boxes)))
    return Judged.join(rows, "calibration needs images")


def score_phrases(model: Model, samples: Sequence[Sample]) -> Judged:
    """Return the scores of phrases of images, and of other images' phrases that they do not show."""
    placer, rows = model.placer(), collect_phrases(model, samples)
    scores = [row.evidence.presence(placer.calibration) for row in rows]
    scored = np.concatenate([each for each in scores if each is not None])
    return Judged({"score": scored}, np.concatenate([row.there for row in rows]), len(rows))


def fit(scored: Judged, name: str, what: str) -> Logistic:
    """Fit the probability that what a ``score`` stands for is true, from the score's logit.

    Answers with score 0, those without a box, are left out and keep 0. ``name`` (the model) and ``what`` it scores are
    for the ``UserError`` if all are true, none is, or all scores are equal.
    """
    scores = scored.evidence["score"]
    there = scores > 0
    logits, true = logit(scores[there]), scored.right[there]
    if true.any() and np.ptp(logits) < 1e-6:
        score = scores[there][0]
        raise UserError(f"all {len(true)} {what} of {name} have the score {score:g}: a constant cannot be calibrated")
    return Logistic.fit({"logit": logits}, true, what=f"{what} of {name}")
