"""Captions of the images of a data set by a model: its sentences on disk, then their scores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.captions.metrics import CaptionScores
from saywhere.evaluation.captions.scoring import Comparison, compare
from saywhere.evaluation.region_lines import read_captions
from saywhere.evaluation.session import Session
from saywhere.files import write_text
from saywhere.images import LoadedImage
from saywhere.inference import ResultsFile
from saywhere.models.captioner import Caption
from saywhere.models.model import Model

PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run: the captions of the model, and the references."""


class Captioner(Protocol):
    """What captions a few images at a time."""

    def caption(self, images: Sequence[LoadedImage], *, beam_size: int | None = None) -> list[Caption]:
        """Return a caption for each image."""
        ...


def run(model: Model, session: Session, beam_size: int | None = None) -> CaptionScores:
    """Caption the images of a data set and score the sentences: BLEU, METEOR, ROUGE-L and CIDEr-D.

    Args:
        model: with a captioner.
        session: the data and the results.
        beam_size: hypotheses in decoding; the model's own number if None.

    Raises:
        UserError: the model has no captioner, no image can be read, or what measures is not installed.
    """
    model.check("captioner", "caption images")
    return score_captioner(lambda: model, model.long_side, session, {"model": model.digest(), "beam_size": beam_size})


def score_captioner(
    start: Callable[[], Captioner | Model], long_side: int, session: Session, settings: Mapping[str, Any]
) -> CaptionScores:
    """Caption the images of a data set by anything, and score the sentences.

    Args:
        start: returns what captions, when the data has been read and the run prepared.
        long_side: pixels on the long side that images should have at least.
        session: the data and the results.
        settings: what the captions depend on, beside the data; has ``beam_size``.

    Raises:
        UserError: no image can be read, or what measures is not installed.
    """
    with meteor.Meteor() as scorer:
        samples = session.read()
        sources = {source.path: source for source in session.sources(samples)}
        references: dict[str, list[str]] = {}
        phrases: dict[str, list[str]] = {}
        for sample in samples:
            name = sources[sample.image].name
            if sample.sentences:
                references.setdefault(name, []).extend(sample.sentences)
            phrases.setdefault(name, []).extend(text for texts in sample.phrases for text in texts)
        if not references:
            raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence about all of it")
        session.resume({**settings, "data": samples.name, "split": samples.split}, PREDICTIONS)
        write_references(references, session.out / TRUTH)
        chosen = [source for source in sources.values() if source.name in references]
        captioner, beam_size = start(), settings["beam_size"]

        def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[Caption]:
            if isinstance(captioner, Model):
                return captioner.caption(images, beam_size=beam_size, attention=False)
            return captioner.caption(images, beam_size=beam_size)

        with ResultsFile(session.out / PREDICTIONS, "caption") as lines:
            seen = session.each(
                ask, chosen, lines.done, lambda name, caption: lines.append(caption.to_dict(), name),
                long_side=long_side,
            )  # fmt: skip
        found = read_captions(session.out / PREDICTIONS)
        captions = {source.name: found[os.path.normpath(source.name)] for source in seen}
        facts = {"beam_size": beam_size, "predictions": str(session.out / PREDICTIONS)}
        facts |= {"without_sentence": len(sources) - len(chosen)}
        kept = {name: references[name] for name in captions}
        pairs = Comparison(samples.name, captions, kept, [session.folder], facts, phrases)
        return compare(session, pairs, scorer)


def write_references(references: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write the true sentences as lines ``{"image": NAME, "captions": [TEXT, ...]}``."""
    rows = [{"image": name, "captions": list(texts)} for name, texts in references.items()]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
