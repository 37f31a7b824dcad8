"""Captions of whole images: the metrics of the COCO caption evaluation, stored captions of a model, and the report.

BLEU, ROUGE-L and CIDEr-D are those of pycocoevalcap, on texts without punctuation, tokenized like its Penn Treebank
tokenizer (a Java program). Its SPICE is left out, since it downloads models when run. Nouns that no reference mentions
are counted as in CHAIR (Rohrbach et al. 2018), over the noun tree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from saywhere.errors import UserError
from saywhere.evaluation import meteor, ptb
from saywhere.evaluation.examples import of_captions, write_examples
from saywhere.evaluation.meteor import Meteor, pycocoevalcap_module
from saywhere.evaluation.region_lines import matched, read_captions, read_references
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session
from saywhere.files import write_text
from saywhere.inference import ResultsFile
from saywhere.models.model import Model
from saywhere.models.nouns import NounTree, find_invented, find_nouns, noun_tree
from saywhere.options import dataclass

# The tokenizer ends a line at each of these; the rest of a text would move to the next image.
_LINE_ENDS = str.maketrans(dict.fromkeys("\n\r\v\f\u2028\u2029", " "))

ORDER = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
"""The metrics in the order of reports."""


@dataclass(frozen=True)
class CaptionScores:
    """Scores of captions.

    Attributes:
        metrics: over all images together: ``bleu_1`` to ``bleu_4``, ``meteor`` and ``rouge_l`` from 0 to 1; ``cider``
            (CIDEr-D) on its usual scale from 0 to 10. CIDEr weights words by the number of images they occur with, so
            it is 0 for a single image.
        cider: of each image.
    """

    metrics: dict[str, float]
    cider: dict[str, float]


def score_captions(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]], meteor: Meteor | None = None
) -> CaptionScores:
    """Score one caption per image against the image's references, at least one.

    Equals pycocoevalcap's ``COCOEvalCap`` for the same texts in the same order.

    Raises:
        UserError: the images differ, an image has no reference, no reference has a word, or pycocoevalcap is missing.
    """
    _check(candidates, references)
    # pycocoevalcap takes lists, with one candidate.
    truth = tokenize_captions({key: references[key] for key in candidates})
    captions = tokenize_captions({key: [candidates[key]] for key in candidates})
    if not any(word for sentences in truth.values() for word in sentences):
        raise UserError("no reference caption has a word: check the sentences of the data")
    pairs = [(captions[key][0], truth[key]) for key in captions]
    metrics = {"meteor": (meteor or Meteor()).corpus_score(pairs)}
    bleu, _ = pycocoevalcap_module("bleu.bleu").Bleu(4).compute_score(truth, captions, verbose=0)
    metrics |= {f"bleu_{n}": score for n, score in enumerate(bleu, 1)}
    metrics["rouge_l"], _ = pycocoevalcap_module("rouge.rouge").Rouge().compute_score(truth, captions)
    metrics["cider"], each = pycocoevalcap_module("cider.cider").Cider().compute_score(truth, captions)
    # pycocoevalcap follows the order of the references, which is that of the candidates.
    cider = {key: float(value) for key, value in zip(truth, each, strict=True)}
    return CaptionScores({name: float(metrics[name]) for name in ORDER}, cider)


def tokenize_captions(texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return each text in lower case as Penn Treebank tokens joined by spaces, without punctuation.

    The tokens equal those of pycocoevalcap's ``PTBTokenizer``. Its Java program is only needed for texts with odd
    forms, see :func:`saywhere.evaluation.ptb.unlearnt`. Line ends become spaces.

    Raises:
        UserError: pycocoevalcap is missing; or there is an odd text, and Java is missing or fails.
    """
    drop = set(pycocoevalcap_module("tokenizer.ptbtokenizer").PUNCTUATIONS)
    lines = [
        text.translate(_LINE_ENDS).encode("utf-8", "replace").decode()
        for sentences in texts.values()
        for text in sentences
    ]
    odd = next((line for line in lines if ptb.unlearnt(line)), None)
    tokens = iter(ptb.tokenize(lines) if odd is None else _java_tokens(lines, odd))
    return {
        key: [" ".join(w for w in next(tokens).rstrip().split(" ") if w not in drop) for _ in sentences]
        for key, sentences in texts.items()
    }


def _java_tokens(lines: Sequence[str], odd: str) -> list[str]:
    try:
        return ptb.java_tokens(lines)
    except UserError as error:
        raise UserError(f"{odd[:80]!r} has a form that needs the original program: {error}") from error


def _check(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not candidates:
        raise UserError("there are no captions to score")
    if missing := [key for key in candidates if not references.get(key)]:
        raise UserError(f"{missing[0]} has a caption but no reference ({len(missing)} such images)")
    if missing := [key for key in references if key not in candidates]:
        raise UserError(f"{missing[0]} has references but no caption ({len(missing)} such images)")


@dataclass(frozen=True)
class Invented:
    """The share of ``nouns`` in captions that no one mentions (CHAIR-i), and of ``sentences`` with such (CHAIR-s)."""

    nouns: float
    sentences: float


def count_invented(captions: Mapping[str, str], mentions: Mapping[str, Iterable[str]], tree: NounTree) -> Invented:
    """Compare the nouns of captions, at least one, with what people wrote about the same images.

    ``mentions`` has the true sentences of each image, and the phrases or names of its boxes. See
    :func:`saywhere.models.nouns.find_invented` for which nouns count as mentioned. Only nouns of the tree count.
    """
    nouns, invented, sentences = 0, 0, 0
    for name, caption in captions.items():
        said = find_nouns(caption, tree)
        new = find_invented(said, [noun for text in mentions[name] for noun in find_nouns(text, tree)])
        nouns, invented, sentences = nouns + len(said), invented + len(new), sentences + bool(new)
    return Invented(invented / max(nouns, 1), sentences / len(captions))


def score_files(predictions: Path, session: Session) -> CaptionScores:
    """Score captions written by any program, and write the report; needs no network.

    For arguments and errors see :func:`saywhere.evaluation.dense.score_files`.
    """
    scorer = meteor.Meteor()
    found, true = read_captions(predictions), read_references(session.data, session.split)
    names = [name for name, texts in true.items() if any(text.strip() for text in texts)][: session.limit]
    if not names:
        raise UserError(f"{session.data}: no image has a caption")
    counts, notes = matched(predictions, session.data, found, true, names, "an empty caption")
    session.notes += notes
    captions, references = {n: found.get(n, "") for n in names}, {n: true[n] for n in names}
    facts = {"predictions": str(predictions), **counts}
    return compare(session, captions, references, scorer, str(session.data), facts)


def compare(
    session: Session, captions: Mapping[str, str], references: Mapping[str, Sequence[str]], scorer: meteor.Meteor,
    data: str, facts: Mapping[str, Any], phrases: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> CaptionScores:  # fmt: skip
    """Score captions against references; write the report and a page of examples.

    Nouns in the ``phrases`` of an image's boxes do not count as invented.
    """
    scores = score_captions(captions, references, scorer)
    mentions = {name: (*texts, *phrases.get(name, ())) for name, texts in references.items()}
    invented = count_invented(captions, mentions, noun_tree())
    counted = {"invented_nouns": invented.nouns, "sentences_with_invented_nouns": invented.sentences}
    known = session.known(data, **facts, **counted, meteor_version=scorer.version)
    row = {"task": "caption", "protocol": "coco", "images": len(scores.cider), **scores.metrics, **known}
    write_report(session.out, row)
    columns = {"true": of_captions(references), session.model or "predicted": of_captions(captions)}
    write_examples(session.out, session.folder, list(captions), columns)
    return scores


PREDICTIONS, TRUTH = "predictions.jsonl", "truth.jsonl"
"""Files of a run: the captions of the model, and the references."""


def run(model: Model, session: Session, beam_size: int | None = None) -> CaptionScores:
    """Caption the images of a data set and score the sentences: BLEU, METEOR, ROUGE-L and CIDEr-D.

    Raises:
        UserError: the model has no captioner, no image is readable, or the metrics are not installed.
    """
    model.check("captioner", "caption images")
    return score_captioner(model, session, {"model": model.digest(), "beam_size": beam_size})


def score_captioner(captioner: Any, session: Session, settings: Mapping[str, Any]) -> CaptionScores:
    """Caption the images of a data set with a model, or anything with its ``caption`` method, and score the sentences.

    ``settings``, with ``beam_size``, are what the captions depend on besides the data.
    """
    scorer = meteor.Meteor()
    samples = session.read()
    sources, (sentences, phrases) = session.sources(samples), session.texts(samples)
    references = {name: texts for name, texts in sentences.items() if texts}
    if not references:
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence about all of it")
    session.resume({**settings, "data": samples.name, "split": samples.split}, PREDICTIONS)
    rows = [{"image": name, "captions": texts} for name, texts in references.items()]
    write_text(session.out / TRUTH, "".join(json.dumps(row) + "\n" for row in rows))
    chosen = [source for source in sources if source.name in references]
    beam_size = settings["beam_size"]
    with ResultsFile(session.out / PREDICTIONS, "caption") as lines:
        seen = session.each(
            lambda images, _: captioner.caption(images, beam_size=beam_size, attention=False), chosen, lines.done,
            lambda name, caption: lines.append(caption.to_dict(), name), long_side=captioner.long_side,
        )  # fmt: skip
    found = read_captions(session.out / PREDICTIONS)
    captions = {source.name: found[os.path.normpath(source.name)] for source in seen}
    facts = {"beam_size": beam_size, "predictions": str(session.out / PREDICTIONS)}
    facts |= {"without_sentence": len(sources) - len(chosen)}
    kept = {name: references[name] for name in captions}
    return compare(session, captions, kept, scorer, samples.name, facts, phrases)
