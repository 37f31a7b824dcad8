"""Numbers and colours of phrases, such as "two red cars", and the probability that an image agrees with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from saywhere.calibration import Calibration, Logistic
from saywhere.models.layout import MOST_SAID, count_of, one_of
from saywhere.models.lexicon import asked_colours, familiar
from saywhere.models.nouns import COLOUR_NAMES, LEAST, SHADES, noun_of
from saywhere.text import Vocabulary, tokenize, with_articles


class Compared(NamedTuple):
    """A number or a colour of a phrase.

    Attributes:
        question: ``asked_number`` or ``asked_colour`` (:data:`saywhere.calibration.QUESTIONS`).
        phrase: index of the phrase.
        text: index of its text.
        others: indices of texts that say something else instead: "a dog" for "two dogs", and "a red car" in other
            colours.
        value: the number, or the index of the colour.
        noun: noun of the coloured thing; empty for numbers.
    """

    question: str
    phrase: int
    text: int
    others: list[int]
    value: int
    noun: str = ""


Things = Callable[[int, int], float | None]
"""Return how surely an image shows a number of things of a phrase, see :meth:`Evidence.things`."""
Colours = Callable[[Sequence[int], Sequence[str]], np.ndarray]
"""Return log-probabilities ``(C, 15)`` of colours in the boxes of C phrases, given by index, as things of C nouns."""


class Details:
    """Numbers and colours of phrases; similarities with further texts tell whether they are right.

    Colours of people do not count, because their clothes have others.

    Args:
        phrases: P phrases.
        vocabulary: of the aligner; words outside it are ignored.

    Attributes:
        texts: T different texts to compare with an image.
        compared: what the texts are for.
    """

    def __init__(self, phrases: Sequence[str], vocabulary: Vocabulary) -> None:
        texts, self._phrases, self.compared = dict[str, int](), len(phrases), list[Compared]()
        self._either = set[int]()  # phrases with "or" between their colours

        def place(text: str) -> int:
            return texts.setdefault(familiar(text, vocabulary), len(texts))

        for column, phrase in enumerate(phrases):
            words, number = tokenize(phrase), count_of(phrase)
            if number > 1:
                self.compared.append(Compared("asked_number", column, place(phrase), [place(one_of(phrase))], number))
            colours = asked_colours(phrase)
            if alternatives := "or" in words[min(colours, default=0) : max(colours, default=0)]:
                self._either.add(column)
            for each, colour in colours.items():
                shade, first, stop = words[each] in SHADES, each, each + 1
                if (colour if shade else words[each]) not in vocabulary:
                    continue
                if alternatives:  # "a red car" and "a blue car" for "a red or blue car"
                    first, stop = min(colours), max(colours) + 1
                others = [[*words[:first], other, *words[stop:]] for other in (colour, *COLOUR_NAMES)]
                own, *rows = (with_articles(" ".join(other)) for other in others)
                del rows[value := COLOUR_NAMES.index(colour)]
                text = place(own if shade or alternatives else phrase)
                noun = noun_of(words, max(colours))
                self.compared.append(Compared("asked_colour", column, text, [*map(place, rows)], value, noun))
        self.texts = tuple(texts)

    def evidence(
        self, similarities: np.ndarray, colours: Colours | None, things: Things | None = None
    ) -> Iterator[tuple[Compared, dict[str, np.ndarray]]]:
        """Yield what is compared with the inputs of its calibration, from ``(T,)`` similarities of an image.

        ``words`` is how much better the phrase fits the image than its singular, or other colours on average;
        ``pixels`` the colour's log-probability; ``region`` how surely there are so many (:meth:`Evidence.things`), and
        ``number`` the logarithm of the number.
        None for ``colours`` or ``things`` leaves them out; numbers of what is no kind of thing are left out, too.
        """
        asked = [(each.phrase, each.noun) for each in self.compared if each.question == "asked_colour" and colours]
        seen = iter(colours([row for row, _ in asked], [noun for _, noun in asked]) if colours and asked else ())
        for each in self.compared:
            inputs = {"words": similarities[each.text] - similarities[each.others].mean()}
            if each.question == "asked_colour":
                if not asked:
                    continue
                inputs["pixels"] = next(seen)[each.value]
            else:
                region = None if things is None else things(each.phrase, each.value)
                if region is None:
                    continue
                number = log(min(each.value, MOST_SAID))
                inputs |= {"region": np.array(region), "number": np.array(number)}
            yield each, inputs

    def log_probs(
        self, calibration: Calibration, similarities: np.ndarray, colours: Colours | None, things: Things | None = None
    ) -> np.ndarray:
        """Return the log-probability ``(P,)`` that the number and the colours of each phrase are right.

        0 for phrases without any, or for a model that is not calibrated for them. Of several colours the least
        probable counts, or with "or" between them the most probable.

        Args:
            calibration: of the model; its answers to ``asked_number`` and ``asked_colour`` are used.
            similarities, colours, things: see :meth:`evidence`.
        """
        found, colour = np.zeros(self._phrases), dict[int, float]()
        for each, inputs in self.evidence(similarities, colours, things):
            fit: Logistic | None = getattr(calibration, each.question)
            if fit is None:
                continue
            value = float(np.log(np.maximum(fit.apply(inputs), LEAST)))
            if each.question == "asked_colour":
                chosen = max if each.phrase in self._either else min
                colour[each.phrase] = chosen(colour.get(each.phrase, value), value)
            else:
                found[each.phrase] += value
        for phrase, value in colour.items():
            found[phrase] += value
        return found
