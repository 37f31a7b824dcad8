"""What is looked for: phrases that are wanted and phrases that are not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from saywhere.errors import UserError
from saywhere.text import tokenize

_SIGN = re.compile(r"(?:^|\s)([+-])(?=\s|$|[^\W\d])")


@dataclass(frozen=True)
class Query:
    """Phrases to look for; a sentence is one phrase.

    Attributes:
        wanted: phrases whose similarities with an image are added.
        unwanted: phrases whose similarities are subtracted.

    Raises:
        UserError: no phrase is wanted, or a phrase has no word.
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.wanted:
            raise UserError("a search needs a phrase that is wanted, such as 'a dog + snow - people'")
        if wordless := [phrase for phrase in (*self.wanted, *self.unwanted) if not tokenize(phrase)]:
            raise UserError(f"the phrase {wordless[0]!r} has no word")

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read phrases with ``+`` or ``-`` before them: a sign follows a space, hyphens in words do not count.

        Example:
            >>> Query.parse("a dog + snow - people in t-shirts")
            Query(wanted=('a dog', 'snow'), unwanted=('people in t-shirts',))
            >>> Query.parse("a cat -people")
            Query(wanted=('a cat',), unwanted=('people',))
        """
        first, *rest = _SIGN.split(text)
        signed = [*([("+", first)] if first.strip() or not rest else []), *zip(rest[::2], rest[1::2], strict=True)]
        wanted, unwanted = (tuple(phrase.strip() for mark, phrase in signed if mark == sign) for sign in "+-")
        return cls(wanted, unwanted)

    @property
    def phrases(self) -> tuple[str, ...]:
        """All phrases, those that are wanted first."""
        return self.wanted + self.unwanted
