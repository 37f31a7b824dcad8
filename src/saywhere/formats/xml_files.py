"""XML as the formats read and write it: whole files, and only characters that XML has."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

from saywhere.files import write_atomically

ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""A character that XML cannot hold."""


def read_xml(path: Path) -> xml.Element:
    """Return the root of an XML file; ``ValueError`` if it is none, or is in an encoding that Python does not know."""
    try:
        return xml.parse(path).getroot()
    except (xml.ParseError, LookupError) as error:
        raise ValueError(str(error)) from error


def legal(text: str | None) -> str:
    """Return a text with a replacement character for each that XML cannot hold; empty for None."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text or "")


def write_xml(path: Path, root: xml.Element) -> None:
    """Write an element and all below it, indented; the file is whole or not there."""
    tree = xml.ElementTree(root)
    xml.indent(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: tree.write(file, encoding="utf-8", xml_declaration=True))
