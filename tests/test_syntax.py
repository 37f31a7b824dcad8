"""JSON, YAML and lines that people write are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from saywhere.files import decode, parse_json, parse_yaml, split_lines


def test_lines_end_at_newlines_only() -> None:
    text = "a\u2028b\x85c\x0bd\x1ce\rf\r\ng\n\nh\n"
    assert split_lines(text) == ["a\u2028b\x85c\x0bd\x1ce\rf", "g", "", "h"]
    assert split_lines("a") == ["a"]
    assert split_lines("") == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_in_any_of_its_encodings(encoding: str) -> None:
    assert parse_json('{"a": ["é"]}'.encode(encoding)) == {"a": ["é"]}
    assert parse_json("\ufeff[1]") == [1]
    assert decode(b"\xef\xbb\xbf\xc3\xa9") == "é"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"\xef\xbb\xbfa: 1", {"a": 1}),
        ("", None),
        ("x: &a {<<: {b: 1}, b: 2}\ny: {<<: *a, b: 3}", {"x": {"b": 2}, "y": {"b": 3}}),
        ("a: &a [1, 2]\nb: *a\nc: {'a': 1, \"b\": '#'}  # a", {"a": [1, 2], "b": [1, 2], "c": {"a": 1, "b": "#"}}),
    ],
)
def test_yaml_is_what_safe_load_reads(text: str | bytes, value: Any) -> None:
    yaml = pytest.importorskip("yaml")
    assert parse_yaml(text) == value == yaml.safe_load(text)


REFUSED: list[tuple[Any, str | bytes, str]] = [
    (parse_json, '{"a": 1,\n "b": {"a": 2},\n "a": 3}', "the key 'a' is there twice$"),
    (parse_json, '{"a": "x: {", "b": [{"c": 1},\n{"c": 1, "\\u0063": 2}]}', "the key 'c' is there twice$"),
    (parse_json, "[" * 100_000, "nested too deeply"),
    (parse_json, '{"a":' * 100_000, "nested too deeply"),
    (parse_json, "{", "in double quotes: column 2"),
    (parse_json, "{\r\n", "in double quotes: column 2"),
    (parse_json, '{"a": 1,\n "b"\n', "line 2 column 5"),
    (parse_json, '{"a": 1, "a": 2}\n', "the key 'a' is there twice$"),
    (parse_json, "9" * 5000, "digits"),
    (parse_json, b"\xff\xff", "not utf-8 text: invalid start byte at byte 0"),
    (parse_yaml, "a: 1\nb:\n  c: 2\na: 3\n", "the key 'a' is there twice: line 4"),
    (parse_yaml, "{0: a, 1: b,\n 0: c}", "the key '0' is there twice: line 2"),
    (parse_yaml, "a: &a\n  b: [1, *a]", "an alias makes it endless: line 2"),
    (parse_yaml, "[" * 50_000, "nested too deeply"),
    (parse_yaml, "- " * 5000, "nested too deeply"),
    (parse_yaml, "!!int ''", "not what its tag says"),
    (parse_yaml, "a: 2001-99-99", "month must be in 1..12"),
    (parse_yaml, "a: [1", "expected ',' or ']'"),
    (parse_yaml, "!!python/object:os.system x", "could not determine a constructor"),
    (parse_yaml, b"\xff", "not a UTF-8 text file: invalid start byte at byte 0"),
]


@pytest.mark.parametrize(("parse", "text", "message"), REFUSED)
def test_json_and_yaml_that_are_refused(parse: Any, text: str | bytes, message: str) -> None:
    if parse is parse_yaml:
        pytest.importorskip("yaml")
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
