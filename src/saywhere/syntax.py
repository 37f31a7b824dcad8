"""JSON, YAML and lines of files that people write: read strictly, so that nothing in them is lost without a word."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

LARGEST_YAML = 1_000_000
"""Values that a YAML document may have, those behind its aliases counted each time."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


def decode(data: bytes) -> str:
    """Return UTF-8 as text, without the byte order mark that some programs put before it.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not a UTF-8 text file: {error.reason} at byte {error.start}") from None


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end with ``\n`` or ``\r\n`` and nothing else.

    ``str.splitlines`` also cuts at U+2028, U+0085 and others, which may stand inside a line of JSON.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON document, or of one line of JSON; a byte order mark before it is passed over.

    Errors name a line only where the text has several: who reads a file of lines knows which one it is.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a key twice in one object, of which JSON's usual
            readers keep the last.
    """
    try:
        text = text.decode(json.detect_encoding(text), "surrogatepass") if isinstance(text, bytes) else text
        text = text.removeprefix("\ufeff").rstrip()
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        if "\n" in str(text):
            raise
        raise ValueError(f"{error.msg}: column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not {error.encoding} text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except _RepeatedKey:
        raise ValueError(_repeated_key(str(text))) from None


class _RepeatedKey(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey
    return found


def _repeated_key(text: str) -> str:
    """Return the first key of a JSON document that its object has already, and its line if there are several."""
    keys: list[set[str]] = []
    before = None
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            keys.append(set())
        elif token[0] in "}]":
            keys.pop()
        elif token[0] != ":":
            before = token
        elif before is not None:
            key = json.loads(before[0])
            if key in keys[-1]:
                line = f": line {text.count(chr(10), 0, before.start()) + 1}" if "\n" in text else ""
                return f"the key {key!r} is there twice{line}"
            keys[-1].add(key)
    return "a key is there twice"


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of a YAML document as PyYAML's ``safe_load`` does; ``ModuleNotFoundError`` without PyYAML.

    Raises:
        ValueError: it is not YAML, is nested too deeply or without an end, or has a key twice in one mapping.
    """
    import yaml

    try:
        loader = _yaml_loader()(decode(text) if isinstance(text, bytes) else text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:  # of tags with odd values
        raise ValueError(f"a value in it is not what its tag says ({error})") from error


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader, which also refuses a mapping with a key twice."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in keys:
                        raise ValueError(f"the key {key.value!r} is there twice: line {key.start_mark.line + 1}")
                    keys.add((key.tag, key.value))
            return node

    return Loader


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """Return how many values a YAML node stands for; aliases can make a short text of endless ones."""
    if id(node) not in counts:
        counts[id(node)] = -1  # until it is known
        children = node.value if isinstance(node.value, list) else []
        flat = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        counts[id(node)] = 1 + sum(_count_values(child, counts) for child in flat)
    if not 0 < counts[id(node)] <= LARGEST_YAML:
        raise ValueError(f"an alias makes it endless: line {node.start_mark.line + 1}")
    return counts[id(node)]
