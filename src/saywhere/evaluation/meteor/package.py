"""What the package pycocoevalcap brings: METEOR's program, with its words, and its paraphrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from saywhere.errors import UserError

INSTALL = "pip install 'saywhere[evaluate]'"
OPTIONS = ("-l", "en", "-norm")
BLANKS = "".join(map(chr, range(33)))
"""What Java strips off a text."""

Pair = tuple[str, Sequence[str]]
"""A candidate and its references."""


def pycocoevalcap_module(name: str) -> ModuleType:
    """Import a module of pycocoevalcap, such as ``"meteor.meteor"``.

    Raises:
        UserError: it is missing; the message names the extra.
    """
    try:
        return import_module(f"pycocoevalcap.{name}")
    except ImportError as error:
        raise UserError(f"caption metrics need pycocoevalcap ({error}): {INSTALL}") from error


@dataclass(frozen=True)
class MeteorFiles:
    """Paths of the program and of its paraphrases."""

    jar: Path
    paraphrases: Path

    @classmethod
    def find(cls) -> MeteorFiles:
        """Return the files of the installed package.

        Raises:
            UserError: one is missing; the message names the extra.
        """
        module = pycocoevalcap_module("meteor.meteor")
        folder = Path(str(module.__file__)).parent
        files = cls(folder / module.METEOR_JAR, folder / "data" / "paraphrase-en.gz")
        for path in (files.jar, files.paraphrases):
            if not path.is_file():
                raise UserError(f"{path} is missing, a part of pycocoevalcap: {INSTALL}")
        return files

    def version(self, way: str) -> str:
        """Name metric, options and package, for reports."""
        return f"METEOR 1.5 ({' '.join(OPTIONS)}), {way} of pycocoevalcap {version('pycocoevalcap')}"


def clean(text: str) -> str:
    """Return a text as the program is given it: on one line, without the mark that ends a text, and valid UTF-8."""
    text = text.replace("\r", " ").replace("\n", " ").replace("|||", "").strip(BLANKS)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
