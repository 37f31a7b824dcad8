"""Which answer a request asks for: a sentence, nouns or regions, as text or by a JSON schema.

Whatever a schema says is kept, or the request is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from saywhere.formats.classes import Classes
from saywhere.options import dataclass
from saywhere.serve.limits import Problem

ASKS_REGIONS = re.compile(r"\bregions?\b|\bbounding[ -]box(es)?\b", re.IGNORECASE)
CORNERS = ("x1", "y1", "x2", "y2")
FIELDS = {
    "box": {"box", "bbox", "bounding_box", "box_2d", "bbox_2d"},
    "name": {"name", "label", "phrase", "caption", "description", "text", "noun"},
    "confidence": {"confidence", "score", "probability"},
    "topicality": {"topicality", "relevance"},
    "x1": {"x1", "xmin", "x_min"},
    "y1": {"y1", "ymin", "y_min"},
    "x2": {"x2", "xmax", "x_max"},
    "y2": {"y2", "ymax", "y_max"},
}
"""Accepted names of a schema's properties, by content."""
KNOWN = {alias: field for field, aliases in FIELDS.items() for alias in aliases}
NOTES = frozenset({
    "$schema", "$id", "$defs", "definitions", "$comment", "title", "description", "default", "examples"
})  # fmt: skip
"""Keywords of a schema that say nothing about the answer."""
DEFINITIONS = ("#/$defs", "#/definitions")
"""What a reference can begin with."""
OBJECT = ("properties", "required", "additionalProperties")
ENUM = 1000
"""Maximum number of names to choose from."""
REFERENCES = 10
"""Maximum number of references that lead to a schema."""
OTHER = "only a list of labels or of boxes can be asked for by a schema"


@dataclass(frozen=True)
class Want:
    """The answer that a request asks for.

    Attributes:
        kind: a sentence, nouns or regions.
        key: key of the list in a JSON object; None for the list alone.
        fields: the properties of each item, each mapped to its entry in :data:`FIELDS`, or to ``phrase`` for a name
            beside one that is chosen; None: items are just names.
        is_json: whether the answer is JSON.
        classes: the names to choose from, and their kinds; None: any.
        least, most: minimum and maximum number of items; None: any.
    """

    kind: Literal["sentence", "labels", "regions"]
    key: str | None = None
    fields: Mapping[str, str] | None = None
    is_json: bool = False
    classes: Classes | None = None
    least: int = 0
    most: int | None = None


LABELS = Want("labels", "labels", {"name": "name", "confidence": "confidence", "topicality": "topicality"}, True)
REGIONS = Want("regions", "regions", {"phrase": "name", "box": "box", "score": "confidence"}, True)


def read_want(prompt: str, form: Any) -> Want:
    """Return what a request asks for; raise ``Problem`` 400 if its schema is not supported.

    Args:
        prompt: the prompt, which matters only if it names regions or bounding boxes.
        form: nothing for text, ``json``, or a JSON schema: a list of boxes asks for regions, one of names for labels.
    """
    if isinstance(form, dict):
        return _read_list(form)
    if form not in (None, "", "json", "text"):
        raise Problem(400, "format must be json or a JSON schema")
    if ASKS_REGIONS.search(prompt):
        return REGIONS if form == "json" else Want("regions")
    return LABELS if form == "json" else Want("sentence")


def _read_list(whole: dict[str, Any]) -> Want:
    key, several = None, _plain(whole, whole)
    if isinstance(properties := several.get("properties"), dict):
        _check(several, "the schema", ("object",), *OBJECT)
        plain = {name: _plain(one, whole) for name, one in properties.items()}
        lists = [name for name, one in plain.items() if one.get("type") == "array"]
        if len(lists) != 1 or _required(several) - {*lists}:
            raise Problem(400, OTHER)
        key, several = lists[0], plain[lists[0]]
    if "items" not in several:
        raise Problem(400, OTHER)
    where = "the list" if key is None else key
    _check(several, where, ("array",), "items", "minItems", "maxItems", "uniqueItems")
    item = _plain(several["items"], whole)
    fields, classes = _read_item(item, whole)
    is_place = bool({"box", *CORNERS} & {*(fields or {}).values()})
    if is_place and several.get("uniqueItems"):
        raise Problem(400, f"{where}: uniqueItems cannot be kept for boxes")
    least, most = _count(several, "minItems", where), _count(several, "maxItems", where)
    if most is not None and most < (least or 0):
        raise Problem(400, f"{where[:40]}: minItems is larger than maxItems")
    return Want("regions" if is_place else "labels", key, fields, True, classes, least or 0, most)


def _read_item(item: dict[str, Any], whole: dict[str, Any]) -> tuple[dict[str, str] | None, Classes | None]:
    """Return the fields of an item, None if it is just a name, and the names to choose from."""
    if item.get("type") == "string" or {"enum", "const"} & item.keys():
        return None, _read_name(item, "an item")
    if not isinstance(properties := item.get("properties"), dict):
        raise Problem(400, OTHER)
    _check(item, "an item", ("object",), *OBJECT)
    fields, classes, free = dict[str, str](), None, list[str]()
    for name, given in properties.items():
        field, one = KNOWN.get(name.lower()), _plain(given, whole)
        if field is None:
            raise Problem(400, f"{OTHER}, with the properties {', '.join(sorted(KNOWN))}, but not {name[:40]!r}")
        fields[name] = field
        if field == "name":
            if (chosen := _read_name(one, name)) is None:
                free.append(name)
            elif classes is not None:
                raise Problem(400, f"{name[:40]}: a second enum or const cannot be kept; leave it out of the schema")
            else:
                classes = chosen
        elif field == "box":
            _check_box(one, name, whole)
        else:
            _check_number(one, name, in_pixels=field in CORNERS)
    if "name" not in fields.values() or _required(item) - fields.keys():
        raise Problem(400, f"{OTHER}, and each item needs a name")
    return fields | dict.fromkeys(free if classes else (), "phrase"), classes


def _read_name(one: dict[str, Any], where: str) -> Classes | None:
    """Return the names to choose from; None if it may be any."""
    _check(one, where, ("string",), "enum", "const")
    if not {"enum", "const"} & one.keys():
        return None
    names = [one["const"]] if "const" in one else one["enum"]
    if one.get("enum", names) != names:
        raise Problem(400, f"{where[:40]}: enum and const cannot both be kept; leave one out of the schema")
    classes = Classes.of(names if isinstance(names, list) else [])
    if not 0 < len(classes.names) <= ENUM:
        raise Problem(400, f"{where}: enum must be a list of 1 to {ENUM:,} names")
    return classes


def _check_box(one: dict[str, Any], where: str, whole: dict[str, Any]) -> None:
    """Refuse anything but four numbers."""
    if not one:
        return
    _check(one, where, ("array",), "items", "prefixItems", "minItems", "maxItems")
    first = one.get("prefixItems", one.get("items"))
    parts = first if isinstance(first, list) else []
    for part in parts if len(parts) >= len(CORNERS) else [*parts, one.get("items", {})]:
        _check_number(_plain(part, whole), where, in_pixels=True)
    least, most = _count(one, "minItems", where), _count(one, "maxItems", where)
    if (least or 0) > len(CORNERS) or (most is not None and most < len(CORNERS)):
        raise Problem(400, f"{where} is a list of four numbers, x1, y1, x2, y2")


def _check_number(one: dict[str, Any], where: str, in_pixels: bool) -> None:
    """Refuse other types and ranges than those of pixels, or of probabilities."""
    _check(one, where, ("number", "integer") if in_pixels else ("number",), "minimum", "maximum")
    most = math.inf if in_pixels else 1
    low, high = one.get("minimum", 0), one.get("maximum", most)
    if not (isinstance(low, int | float) and isinstance(high, int | float) and low <= 0 and high >= most):
        kept = "in pixels, from 0 without a maximum" if in_pixels else "from 0 to 1"
        raise Problem(400, f"{where} is {kept}; another minimum or maximum cannot be kept")


def _check(one: dict[str, Any], where: str, kinds: tuple[str, ...], *keywords: str) -> None:
    """Refuse a schema of another type or with other keywords."""
    if one.get("type", kinds[0]) not in kinds:
        raise Problem(400, f"{where[:40]} can only be of the type {' or '.join(kinds)}")
    if others := sorted(one.keys() - NOTES - {"type", *keywords}):
        raise Problem(400, f"{where[:40]}: {others[0][:40]} cannot be kept; leave it out of the schema")


def _plain(one: Any, whole: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference resolved and without the alternative null; ``true`` is an empty one."""
    one = {} if one is True else one
    for _ in range(REFERENCES):
        if not isinstance(one, dict):
            break
        if isinstance(place := one.get("$ref"), str):
            root, _, name = place.rpartition("/")
            found = whole.get(root.removeprefix("#/")) if root in DEFINITIONS else None
            found, word = found.get(name) if isinstance(found, dict) else None, "$ref"
        elif isinstance(several := one.get("anyOf"), list):
            others = [each for each in several if each != {"type": "null"}]
            if len(others) != 1:
                return one
            found, word = others[0], "anyOf"
        else:
            kinds = one.get("type")
            others = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else []
            return {**one, "type": others[0]} if len(others) == 1 else one
        if beside := sorted(one.keys() - NOTES - {word}):
            raise Problem(400, f"{beside[0][:40]} beside {word} cannot be kept; leave it out of the schema")
        one = found
    raise Problem(400, OTHER)


def _count(one: dict[str, Any], keyword: str, where: str) -> int | None:
    value = one.get(keyword)
    if value is not None and not (isinstance(value, int) and value >= 0):
        raise Problem(400, f"{where[:40]}: {keyword} must be a whole number from 0")
    return value


def _required(one: dict[str, Any]) -> set[str]:
    value = one.get("required", [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Problem(400, "required must be a list of names")
    return {*value}
