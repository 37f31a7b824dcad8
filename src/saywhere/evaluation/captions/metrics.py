"""The metrics of captions of whole images, as the COCO caption evaluation computes them.

BLEU, ROUGE-L and CIDEr-D are those of pycocoevalcap, on texts without punctuation that are split as its Penn Treebank
tokenizer (a Java program) splits them. Its SPICE is left out: it downloads models when it runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from saywhere.errors import UserError
from saywhere.evaluation.captions import ptb
from saywhere.evaluation.meteor import Meteor, find_java, pycocoevalcap_module

# The tokenizer ends a line at each of these, so the rest of a text would become that of the next image.
_LINE_ENDS = str.maketrans(dict.fromkeys("\n\r\v\f\u2028\u2029", " "))

ORDER = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
"""The metrics in the order of reports."""


@dataclass(frozen=True)
class CaptionScores:
    """Scores of captions.

    Attributes:
        metrics: over all images together: ``bleu_1`` to ``bleu_4``, ``meteor`` and ``rouge_l`` in 0 to 1; ``cider``
            (CIDEr-D) on its usual scale of 0 to 10. CIDEr weights words by how few images they occur with, so for a
            single image it is 0.
        cider: of each image.
    """

    metrics: dict[str, float]
    cider: dict[str, float]


def caption_metrics(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]], meteor: Meteor | None = None
) -> dict[str, float]:
    """Return the ``metrics`` of :func:`score_captions`."""
    return score_captions(candidates, references, meteor).metrics


def score_captions(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]], meteor: Meteor | None = None
) -> CaptionScores:
    """Score one caption of each image by the references of the image.

    The scores equal those of pycocoevalcap's ``COCOEvalCap`` for the same texts in the same order.

    Args:
        candidates: the caption of each image.
        references: at least one sentence for each of the same images.
        meteor: the scorer to use; without it one is started and closed.

    Raises:
        UserError: the images differ, an image has no reference, no reference has a word, or pycocoevalcap is missing.
    """
    _check(candidates, references)
    # The classes of pycocoevalcap take lists, with one candidate.
    truth = tokenize_captions({key: references[key] for key in candidates})
    captions = tokenize_captions({key: [candidates[key]] for key in candidates})
    if not any(word for sentences in truth.values() for word in sentences):
        raise UserError("no reference caption has a word: check the sentences of the data")
    with ExitStack() as stack:
        meteor = meteor or stack.enter_context(Meteor())
        metrics = {"meteor": meteor.corpus_score([(captions[key][0], truth[key]) for key in captions])}
    bleu, _ = pycocoevalcap_module("bleu.bleu").Bleu(4).compute_score(truth, captions, verbose=0)
    metrics |= {f"bleu_{n}": score for n, score in enumerate(bleu, 1)}
    metrics["rouge_l"], _ = pycocoevalcap_module("rouge.rouge").Rouge().compute_score(truth, captions)
    metrics["cider"], each = pycocoevalcap_module("cider.cider").Cider().compute_score(truth, captions)
    # pycocoevalcap goes through the images in the order of the references, which is that of the candidates.
    cider = {key: float(value) for key, value in zip(truth, each, strict=True)}
    return CaptionScores({name: float(metrics[name]) for name in ORDER}, cider)


def tokenize_captions(texts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return each text in lower case as Penn Treebank tokens joined by spaces, without punctuation.

    The tokens are those of pycocoevalcap's ``PTBTokenizer``, found without its Java program but for texts with odd
    forms, which :func:`saywhere.evaluation.captions.ptb.unlearnt` tells. Line ends become spaces.

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


def java_tokens(lines: Sequence[str]) -> list[str]:
    """Return the tokens of each line as pycocoevalcap's Java program gives them, punctuation included.

    Its class ``PTBTokenizer`` needs a ``java`` on the PATH and writes into the folder where it is installed; this runs
    the same program through pipes.

    Raises:
        UserError: pycocoevalcap or Java is missing, or Java fails.
    """
    module = pycocoevalcap_module("tokenizer.ptbtokenizer")
    jar = Path(str(module.__file__)).with_name(module.STANFORD_CORENLP_3_4_1_JAR)
    java = find_java("the original PTB tokenizer")
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    done = subprocess.run(command, input="\n".join(lines).encode("utf-8", "replace"), capture_output=True)
    tokenized = done.stdout.decode("utf-8", "replace").split("\n")
    # There is one more line end if the last text has words.
    if done.returncode or len(tokenized) not in (len(lines), len(lines) + 1):
        reason = "".join(done.stderr.decode("utf-8", "replace").strip().splitlines()[:1])
        raise UserError(f"the PTB tokenizer failed (exit code {done.returncode}, {jar}): {reason}")
    return tokenized[: len(lines)]


def _java_tokens(lines: Sequence[str], odd: str) -> list[str]:
    try:
        return java_tokens(lines)
    except UserError as error:
        raise UserError(f"{odd[:80]!r} has a form that needs the original program: {error}") from error


def _check(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not candidates:
        raise UserError("there are no captions to score")
    if missing := [key for key in candidates if not references.get(key)]:
        raise UserError(f"{missing[0]} has a caption but no reference ({len(missing)} such images)")
    if missing := [key for key in references if key not in candidates]:
        raise UserError(f"{missing[0]} has references but no caption ({len(missing)} such images)")
