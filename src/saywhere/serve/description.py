"""The OpenAPI description of the interface, made from the questions themselves."""

from __future__ import annotations

from typing import Any

import saywhere
from saywhere.serve.parameters import Parameter
from saywhere.serve.questions import EMBED_TEXT, QUESTIONS, SEARCH, SEARCH_IMAGE, Question

PROBLEMS = {
    "400": "Not HTTP, or a header is wrong.",
    "401": "The token is missing or wrong.",
    "403": "The page of another site asks.",
    "404": "There is no such path, index, or entry in it, or its file is not any more what was indexed.",
    "408": "The body did not arrive in time.",
    "412": "The image that If-Match names is not kept: send it again.",
    "413": "The body is too large.",
    "415": "The body is not an image, or one that cannot be read.",
    "421": "The server is not called by this name.",
    "422": "A parameter is unknown, missing or wrong.",
    "429": "The queue is full: try again after the seconds of Retry-After.",
    "503": "There was no answer in time.",
}
_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_BOXES = {"type": "array", "items": {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}}
_NUMBERS, _TEXTS = {"type": "array", "items": _NUMBER}, {"type": "array", "items": _TEXT}
_MATRIX = {"type": "array", "items": _NUMBERS}
_IMAGE = {"image": {"type": ["string", "null"]}, "width": {"type": "integer"}, "height": {"type": "integer"}}
_REGIONS = {
    "type": "object",
    "required": ["width", "height", "boxes"],
    "properties": _IMAGE
    | {"boxes": _BOXES, "scores": _NUMBERS, "similarities": _NUMBERS, "captions": _TEXTS, "not_found": _TEXTS},
}
_PHRASE = {"type": "object", "properties": {"words": _TEXT, "box": _NUMBERS, "similarity": _NUMBER}}
_HIT = {
    "type": "object",
    "properties": _IMAGE
    | {"entry": _TEXT, "time": _NUMBER, "similarity": _NUMBER, "probability": _NUMBER, "in_index_probability": _NUMBER}
    | {"phrases": {"type": "array", "items": _PHRASE}},
}
_JPEG = {"type": "string", "format": "binary"}
SCHEMAS = {
    "describe": _REGIONS,
    "ground": _REGIONS,
    "caption": {
        "type": "object",
        "required": ["width", "height", "caption"],
        "properties": _IMAGE | {"caption": _TEXT, "words": _TEXTS, "boxes": _BOXES, "attention": _MATRIX},
    },
    "embed": {"type": "object", "properties": _IMAGE | {"boxes": _BOXES, "vectors": _MATRIX}},
    "embed_text": {"type": "object", "properties": {"text": _TEXT, "words": _TEXTS, "vectors": _MATRIX}},
    "search": {"type": "object", "properties": {"query": _TEXT, "hits": {"type": "array", "items": _HIT}}},
    "image": _JPEG,
}
"""The answer to each question."""


def describe_api(needs_token: bool) -> dict[str, Any]:
    """Return the description; ``needs_token`` says whether requests must bring a token."""
    paths: dict[str, Any] = {f"/v1/{question.name}": {"post": _question(question)} for question in QUESTIONS}
    plain: tuple[tuple[str, str, tuple[Parameter, ...]], ...] = (
        ("/v1/embed_text", "Return the words of a sentence as vectors in the space of regions.", EMBED_TEXT),
        ("/v1/search", "Find the images of the index that fit a text.", SEARCH),
        ("/v1/search/image", "Return a small copy of an image or of a moment of the index, as a JPEG.", SEARCH_IMAGE),
        ("/v1/models", "Name the model and its parts.", ()),
        ("/healthz", "Say that the server answers.", ()),
    )
    for path, summary, parameters in plain:
        schemas = [parameter.schema() for parameter in parameters]
        answers = _responses(SCHEMAS.get(path.rpartition("/")[2], {"type": "object"}))
        paths[path] = {"get": {"summary": summary, "parameters": schemas, "responses": answers}}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "saywhere", "version": saywhere.__version__, "summary": "Say what is where in an image."},
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
        "description": "The ETag of an earlier answer, in place of the body: ask about the same image again.",
        "schema": _TEXT,
    }
    image = {"type": "string", "format": "binary"}
    form = {"type": "object", "required": ["image"], "properties": {"image": image}}
    return {
        "summary": question.summary,
        "parameters": [*(parameter.schema() for parameter in question.parameters), match],
        "requestBody": {"content": {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}}},
        "responses": _responses(SCHEMAS[question.name]),
    }


def _responses(schema: dict[str, Any]) -> dict[str, Any]:
    error = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
    responses: dict[str, Any] = {
        status: {"description": text, "content": {"application/json": {"schema": error}}}
        for status, text in PROBLEMS.items()
    }
    media_type = "image/jpeg" if schema == _JPEG else "application/json"
    responses["200"] = {"description": "The answer.", "content": {media_type: {"schema": schema}}}
    return responses
