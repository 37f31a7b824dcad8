"""The questions that the server answers about an image, each with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.serve.parameters import Parameter

MAX_REGIONS, MAX_LETTERS, MAX_HITS = 1000, 1000, 100
MAX_BOXES, MAX_TEXTS = MAX_REGIONS, 100
"""An answer has at most 10 MB."""


@dataclass(frozen=True)
class Question:
    """Describe a question about an image.

    Attributes:
        name: of the verb, and the last part of the path.
        summary: one line.
        parameters: that it takes.
        answer: calls the verb and returns the JSON form of its result.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    answer: Callable[[Model, Encoding, Mapping[str, Any]], dict[str, Any]]


def _describe(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    return model.describe(image, values.get("box"), top=values.get("top"), threshold=values.get("threshold")).to_dict()


def _caption(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    attention = values.get("attention", True)
    return model.caption(image, beam_size=values.get("beam_size"), attention=attention).to_dict()


def _ground(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    texts = values["text"]
    options = {name: values.get(name) for name in ("part", "beta", "regions", "threshold")}
    return model.ground(image, texts[0] if len(texts) == 1 else texts, values.get("box"), **options).to_dict()


def _embed(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    found = model.embed(image, values.get("box"), regions=values.get("regions"))
    return {
        "image": found.image,
        "width": found.width,
        "height": found.height,
        "boxes": [[round(v, 2) for v in box] for box in found.boxes.tolist()],
        "vectors": [[round(v, 5) for v in vector] for vector in found.vectors.tolist()],
    }


def embed_text(model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vectors of the words of ``values["text"]``."""
    found = model.embed_text(values["text"])
    vectors = [[round(v, 5) for v in vector] for vector in found.vectors.tolist()]
    return {"text": values["text"], "words": list(found.words), "vectors": vectors}


_REGIONS = Parameter("regions", "integer", "Choose among at most this many regions.", 0, MAX_REGIONS)

QUESTIONS = (
    Question(
        "describe",
        "Find the regions of an image and describe each with a phrase.",
        (
            Parameter("top", "integer", "At most this many regions, best first.", 0, MAX_REGIONS),
            Parameter("threshold", "number", "Only regions with at least this score.", 0, 1),
            Parameter(
                "box", "box", "Describe just this box, in pixels of the image; may be repeated.", most=MAX_BOXES
            ),
        ),
        _describe,
    ),
    Question(
        "ground",
        "Find the box of each phrase of a text.",
        (
            Parameter(
                "text", "text", "A sentence, which is cut into phrases; if repeated, each is a phrase.", 1, MAX_LETTERS,
                most=MAX_TEXTS, required=True,
            ),
            Parameter("part", "text", "The part of the model that answers.", choices=("aligner", "densecap")),
            Parameter("beta", "number", "How much neighbouring words of a sentence want the same box.", 0, 1000),
            _REGIONS,
            Parameter("threshold", "number", "Least probability of a phrase that is found; 0 finds all.", 0, 1),
            Parameter("box", "box", "Choose among these boxes; may be repeated.", most=MAX_BOXES),
        ),
        _ground,
    ),
    Question(
        "caption",
        "Say in a sentence what an image shows, and where the model looked at each word.",
        (
            Parameter("beam_size", "integer", "Hypotheses in decoding; 1 is greedy.", 1, 20),
            Parameter("attention", "boolean", "Whether the answer has words, boxes and attention."),
        ),
        _caption,
    ),
    Question(
        "embed",
        "Return the regions of an image as vectors in the space of words.",
        (_REGIONS, Parameter("box", "box", "Use these boxes; may be repeated.", most=MAX_BOXES)),
        _embed,
    ),
)  # fmt: skip
EMBED_TEXT = (Parameter("text", "text", "A sentence.", 1, MAX_LETTERS, required=True),)
SEARCH = (
    Parameter("q", "text", "A sentence, or phrases with + and - between them.", 1, MAX_LETTERS, required=True),
    Parameter("top", "integer", "At most this many images, best first.", 1, MAX_HITS),
)
SEARCH_IMAGE = (
    Parameter("entry", "text", "Of an image or a moment in the index, as a search names it.", 1, 100, required=True),
)
