"""A function for CVAT: ``cvat-cli task auto-annotate TASK --function-module saywhere.integrations.cvat``.

CVAT matches labels by name, so the task's labels are given as the parameter ``labels``, separated by commas. A region
gets the label that its noun is or is a kind of; other labels of several words, such as "a red car", are grounded as
phrases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import saywhere
from saywhere.errors import UserError
from saywhere.formats.classes import Classes
from saywhere.models.model import Model
from saywhere.regions import SHOWN
from saywhere.text import tokenize

try:
    import cvat_sdk.auto_annotation as cvataa
    from cvat_sdk import models
except ImportError:
    raise UserError("saywhere.integrations.cvat needs the package cvat-sdk: pip install cvat-sdk") from None

PHRASE = 1
"""Number of each label's text attribute ``phrase``."""


class Annotator:
    """Find the regions of an image that have one of the labels.

    Args:
        model: the model that finds them.
        labels: names of the labels.
        phrases: whether the labels have a text attribute ``phrase`` to fill in.
    """

    def __init__(self, model: Model, labels: Sequence[str], phrases: bool = True) -> None:
        self._model, self._phrases = model, phrases
        self._numbers = {name: number for number, name in enumerate(labels)}
        self._sought = [name for name in Classes(tuple(labels)).unknown() if len(tokenize(name)) > 1]
        self._classes = Classes(tuple(name for name in labels if name not in self._sought))
        attributes = [cvataa.text_attribute_spec("phrase", PHRASE)] if phrases else []
        self.spec = cvataa.DetectionFunctionSpec(
            labels=[
                cvataa.label_spec(name, number, type="rectangle", attributes=attributes)
                for number, name in enumerate(labels)
            ]
        )

    def detect(self, context: Any, image: Any) -> list[Any]:
        """Return a rectangle for each region with a label; ``context.conf_threshold`` is the minimum probability."""
        least = SHOWN if context.conf_threshold is None else context.conf_threshold
        seen = self._model.encode(image)
        found: list[Any] = []
        for region in self._model.describe(seen, threshold=least).at_least(context.conf_threshold):
            name = self._classes.label(region.caption) if self._classes.names else None
            if name is not None:
                found.append(self._rectangle(self._numbers[name], region))
        for region in self._model.ground(seen, self._sought, threshold=least) if self._sought else ():
            found.append(self._rectangle(self._numbers[region.caption or ""], region))
        return found

    def _rectangle(self, number: int, region: saywhere.Region) -> Any:
        said = [models.AttributeValRequest(spec_id=PHRASE, value=region.caption or "")] if self._phrases else []
        return cvataa.rectangle(number, list(region.box), attributes=said)


def create(labels: str, model: str = saywhere.DEFAULT_MODEL, phrases: bool = True) -> Annotator:
    """Return the function; its parameters are those of ``cvat-cli`` (``-p labels=str:person,dog``).

    Args:
        labels: names of the task's labels, separated by commas.
        model: name or folder of a model.
        phrases: whether the labels have a text attribute ``phrase`` (``-p phrases=bool:false``).

    Raises:
        UserError: there is no label, one of them has another type, or no such model.
    """
    names = [name.strip() for name in labels.split(",") if name.strip()] if isinstance(labels, str) else []
    if not names or not isinstance(phrases, bool):
        raise UserError("labels must be names with commas, such as str:person,dog; phrases bool:true or bool:false")
    return Annotator(saywhere.load(model), names, phrases)
