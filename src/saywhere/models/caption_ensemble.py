"""Several captioners that say one sentence together (Areas of Attention, Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from saywhere.errors import UserError
from saywhere.images import Picture, Preprocess, open_picture
from saywhere.language.ensemble import Ensemble
from saywhere.models.captioner import AT_ONCE, Captioner
from saywhere.models.captioner_config import CaptionerConfig

if TYPE_CHECKING:
    from saywhere.images import ImageLike

    One = ImageLike | Picture


@dataclass(frozen=True)
class EnsembleConfig:
    """The configurations of the members."""

    members: tuple[CaptionerConfig, ...]

    def to_dict(self) -> dict[str, Any]:
        """Those of all members, by number."""
        return {str(number): config.to_dict() for number, config in enumerate(self.members)}


class CaptionEnsemble:
    """Captioners whose mean probability of a word counts; each looks at the picture, and at its areas, by itself.

    Decoding follows the configuration of the first one.

    Args:
        members: one or more with the same vocabulary.

    Raises:
        UserError: their vocabularies differ.
    """

    def __init__(self, members: Sequence[Captioner]):
        first = members[0]
        for other in members[1:]:
            if other.vocabulary.tokens != first.vocabulary.tokens:
                sizes = f"{len(first.vocabulary.counts)} and {len(other.vocabulary.counts)} words"
                raise UserError(
                    f"captioners speak together if they have one vocabulary; these have {sizes}, not the same"
                )
        self.members = tuple(members)
        self.config = EnsembleConfig(tuple(member.config for member in members))
        self.preprocess: Preprocess = max((m.preprocess for m in members), key=lambda sizes: sizes.long_side)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of all members."""
        states = (member.state_dict() for member in self.members)
        return {f"{number}.{name}": value for number, state in enumerate(states) for name, value in state.items()}

    @overload
    def caption(self, images: One, beam: int | None = None) -> str: ...
    @overload
    def caption(self, images: Sequence[One], beam: int | None = None) -> list[str]: ...
    @torch.no_grad()
    def caption(self, images, beam=None):
        """Say a sentence of a picture, as :meth:`saywhere.models.captioner.Captioner.caption`."""
        if not isinstance(images, (list, tuple)):
            return self.caption([images], beam)[0]
        said: list[str] = []
        for start in range(0, len(images), AT_ONCE):
            some = [open_picture(image, self.preprocess.long_side) for image in images[start : start + AT_ONCE]]
            speakers, codes = zip(*(member.ready(member.encode(some)) for member in self.members), strict=True)
            together = Ensemble(speakers, [code.shape[1] for code in codes])
            said += self.members[0].say(together, torch.cat(codes, dim=1), beam)
        return said
