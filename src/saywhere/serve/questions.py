"""The questions of the HTTP interface: their parameters, their handlers, and their OpenAPI description."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from starlette.datastructures import QueryParams

import saywhere
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.serve.limits import Problem


@dataclass(frozen=True)
class Parameter:
    """A parameter of a question.

    Attributes:
        name: name in the query, and of the model method's argument.
        kind: type of the value; ``box`` is ``x1,y1,x2,y2``.
        minimum, maximum: range of a number, or of the length of a text in characters.
        choices: allowed texts; empty allows any.
        most: maximum number of occurrences; if more than 1, the value is a list.
    """

    name: str
    kind: Literal["integer", "number", "boolean", "text", "box"]
    description: str
    minimum: float = 0
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    most: int = 1
    required: bool = False

    def read(self, text: str) -> Any:
        """Parse a text into a value; the message of the ``ValueError`` says what is expected."""
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise ValueError("true or false")
            return text == "true"
        if self.kind == "box":
            return self._box(text)
        if self.kind == "text":
            if self.choices and text not in self.choices:
                raise ValueError(" or ".join(self.choices))
            if not self.minimum <= len(text) <= self.maximum:
                raise ValueError(f"a string of {self.minimum:g} to {self.maximum:g} characters")
            return text
        return self._number(text)

    def _number(self, text: str) -> float:
        low, high = self.minimum, self.maximum
        wanted = f"{'a whole number' if self.kind == 'integer' else 'a number'} from {low:g} to {high:g}"
        try:
            value = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not low <= value <= high:  # also refuses NaN
            raise ValueError(wanted)
        return value

    def _box(self, text: str) -> list[float]:
        try:
            box = [float(part) for part in text.split(",")]
        except ValueError:
            box = []
        if len(box) != 4 or not all(math.isfinite(value) for value in box):
            raise ValueError("four numbers x1,y1,x2,y2")
        return box

    def schema(self) -> dict[str, Any]:
        """Return the parameter's entry in the OpenAPI description."""
        kinds = {"text": "string", "box": "string"}
        value: dict[str, Any] = {"type": kinds.get(self.kind, self.kind)}
        low, high = ("minLength", "maxLength") if self.kind == "text" else ("minimum", "maximum")
        if math.isfinite(self.maximum):
            value |= {low: self.minimum, high: self.maximum}
        if self.choices:
            value["enum"] = list(self.choices)
        if self.kind == "box":
            value["example"] = "10,20,110,220"
        schema = {"type": "array", "items": value, "maxItems": self.most} if self.most > 1 else value
        return {
            "name": self.name, "in": "query", "required": self.required, "description": self.description,
            "schema": schema,
        }  # fmt: skip


def read_query(parameters: Sequence[Parameter], query: QueryParams) -> Mapping[str, Any]:
    """Return the values of a query by name, without parameters that are not given.

    Raises ``Problem`` 422 if a parameter is unknown, missing, given too often, or has an invalid value.
    """
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, list[Any]] = {}
    for name, text in query.multi_items():
        if name not in known:
            have = f"this question has {', '.join(known)}" if known else "this question has none"
            raise Problem(422, f"unknown parameter {name[:40]}: {have}")
        parameter = known[name]
        try:
            value = parameter.read(text)
        except ValueError as error:
            raise Problem(422, f"{name} must be {error}, not {text[:40]!r}") from None
        if len(values.setdefault(name, [])) == parameter.most:
            times = "once" if parameter.most == 1 else f"{parameter.most} times"
            raise Problem(422, f"{name} is given more than {times}")
        values[name].append(value)
    missing = [parameter.name for parameter in parameters if parameter.required and parameter.name not in values]
    if missing:
        raise Problem(422, f"the parameter {missing[0]} is missing")
    return {name: several if known[name].most > 1 else several[0] for name, several in values.items()}


MAX_REGIONS, MAX_LETTERS, MAX_HITS = 1000, 1000, 100
MAX_BOXES, MAX_TEXTS = MAX_REGIONS, 100
"""Limits that keep an answer below 10 MB."""


@dataclass(frozen=True)
class Question:
    """A question about an image.

    Attributes:
        name: name of the model's method, and the last part of the path.
        answer: calls the method and returns its result in JSON form.
    """

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    answer: Callable[[Model, Encoding, Mapping[str, Any]], dict[str, Any]]


def _describe(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    return model.describe(image, values.get("box"), top=values.get("top"), threshold=values.get("threshold")).to_dict()


def _caption(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: values.get(name) for name in ("beam_size", "least_probability")}
    return model.caption(image, attention=values.get("attention", True), **options).to_dict()


def _ground(model: Model, image: Encoding, values: Mapping[str, Any]) -> dict[str, Any]:
    texts = values["text"]
    options = {name: values.get(name) for name in ("part", "regions", "threshold")}
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
    """Return the word vectors of ``values["text"]``, and the words that the model does not know."""
    found, known = model.embed_text(values["text"]), model.require("aligner", "embed texts").vocabulary
    vectors = [[round(v, 5) for v in vector] for vector in found.vectors.tolist()]
    unknown = [word for word in found.words if word not in known]
    answer = {"text": values["text"], "words": list(found.words), "vectors": vectors}
    return answer | ({"unknown": unknown} if unknown else {})


QUESTIONS = (
    Question(
        "describe",
        "Find the regions of an image and describe each with a phrase.",
        (
            Parameter("top", "integer", "Maximum number of regions, best first; 0: all.", 0, MAX_REGIONS),
            Parameter("threshold", "number", "Minimum score of a region.", 0, 1),
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
                "text", "text", "A sentence, which is split into phrases; if repeated, each text is a phrase.", 1,
                MAX_LETTERS, most=MAX_TEXTS, required=True,
            ),
            Parameter("part", "text", "The part of the model that answers.", choices=("aligner", "densecap")),
            Parameter("regions", "integer", "Choose among at most this many regions.", 1, MAX_REGIONS),
            Parameter("threshold", "number", "Minimum probability that the image shows a phrase; 0 finds all.", 0, 1),
            Parameter("box", "box", "Choose among these boxes; may be repeated.", most=MAX_BOXES),
        ),
        _ground,
    ),
    Question(
        "caption",
        "Say in a sentence what an image shows, and where the model looked for each word.",
        (
            Parameter("beam_size", "integer", "Beam size; 1 is greedy decoding.", 1, 20),
            Parameter("least_probability", "number", "End before parts whose words are less probable.", 0, 1),
            Parameter("attention", "boolean", "Whether the answer includes words, boxes and attention."),
        ),
        _caption,
    ),
    Question(
        "embed",
        "Return the regions of an image as vectors in the space of words.",
        (
            Parameter("regions", "integer", "Maximum number of regions; the whole image is added.", 0, MAX_REGIONS),
            Parameter("box", "box", "Use these boxes; may be repeated.", most=MAX_BOXES),
        ),
        _embed,
    ),
)  # fmt: skip
EMBED_TEXT = (Parameter("text", "text", "A sentence.", 1, MAX_LETTERS, required=True),)
SEARCH = (
    Parameter("q", "text", "A sentence, or phrases joined by + and -.", 1, MAX_LETTERS, required=True),
    Parameter("top", "integer", "Maximum number of images, best first.", 1, MAX_HITS),
    Parameter("without", "text", "Leave out images that show this; may be repeated.", 1, MAX_LETTERS, most=10),
    Parameter("after", "text", "Only images taken on this day (2024-05-01) or later.", 1, 100),
    Parameter("before", "text", "Only images taken before this day.", 1, 100),
    Parameter("under", "text", "Only images in this folder, by name or path; may be repeated.", 1, 1000, most=10),
)
SEARCH_IMAGE = (
    Parameter("entry", "text", "Entry of an image or a moment in the index, from a search.", 1, 100, required=True),
)


PROBLEMS = {
    "400": "The request is not HTTP, or a header is wrong.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another site.",
    "404": "There is no such path, index or index entry, or the entry's file has changed since it was indexed.",
    "405": "The path takes another method.",
    "408": "The body did not arrive in time.",
    "412": "The image named by If-Match is not cached: send it again.",
    "413": "The body is too large.",
    "415": "The body is not an image, or the image cannot be read.",
    "421": "The server is not known by this name.",
    "422": "A parameter is unknown, missing or wrong.",
    "429": "The queue is full: try again after Retry-After seconds.",
    "500": "The server failed; its log says why.",
    "503": "There was no answer in time, or too little memory.",
}
_TEXT = {"type": "string"}
_BYTES = {"type": "string", "format": "binary"}


def describe_api(needs_token: bool) -> dict[str, Any]:
    """Return the OpenAPI description; ``needs_token`` says whether requests need a token."""
    paths: dict[str, Any] = {f"/v1/{question.name}": {"post": _question(question)} for question in QUESTIONS}
    plain: tuple[tuple[str, str, tuple[Parameter, ...]], ...] = (
        ("/v1/embed_text", "Return the words of a sentence as vectors in the space of regions.", EMBED_TEXT),
        ("/v1/search", "Find the images of the index that match a text.", SEARCH),
        ("/v1/search/image", "Return a small JPEG of an image or a video frame of the index.", SEARCH_IMAGE),
        ("/v1/models", "Return the model's name, its parts and the server's limits.", ()),
        ("/healthz", "Report that the server is running.", ()),
    )
    for path, summary, parameters in plain:
        schemas = [parameter.schema() for parameter in parameters]
        answers = _responses("image/jpeg" if parameters is SEARCH_IMAGE else "application/json")
        paths[path] = {"get": {"summary": summary, "parameters": schemas, "responses": answers}}
    paths["/healthz"]["get"]["security"] = []  # needs no token
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "saywhere", "version": saywhere.__version__, "summary": "Say what is where in images."},
        "paths": paths,
    }
    if needs_token:
        described["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        described["security"] = [{"token": []}]
    return described


def _question(question: Question) -> dict[str, Any]:
    match = {
        "name": "If-Match",
        "in": "header",
        "description": "ETag of an earlier answer, instead of a body, to ask about the same image again.",
        "schema": _TEXT,
    }
    form = {"type": "object", "required": ["image"], "properties": {"image": _BYTES}}
    return {
        "summary": question.summary,
        "parameters": [*(parameter.schema() for parameter in question.parameters), match],
        "requestBody": {"content": {"image/*": {"schema": _BYTES}, "multipart/form-data": {"schema": form}}},
        "responses": _responses("application/json"),
    }


def _responses(media_type: str) -> dict[str, Any]:
    error = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
    responses: dict[str, Any] = {
        status: {"description": text, "content": {"application/json": {"schema": error}}}
        for status, text in PROBLEMS.items()
    }
    schema = {"type": "object"} if media_type == "application/json" else _BYTES
    return responses | {"200": {"description": "The answer.", "content": {media_type: {"schema": schema}}}}
