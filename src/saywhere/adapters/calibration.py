"""Scores of other people's models as probabilities: what ``saywhere calibrate`` found out, in a small file of its own.

The models' own files are never changed. What was fitted lies beside the weights of a folder, and for a model of the
hub, whose cache is not ours either, in the user's cache. It holds for the weights that it was fitted to, no others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from saywhere.adapters.sources import HUB, Adapted
from saywhere.calibration import Logistic
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.web.runtime import cache_folder

NAME = "saywhere-calibration.json"
LEAST = 1e-6
"""Scores are taken to be at least so far from 0 and 1, where their logit would be infinite."""
Question = Literal["box", "phrase"]
QUESTIONS: dict[str, tuple[str, ...]] = {"box": ("logit",), "phrase": ("logit",)}
"""Scores of regions, or of phrases that are looked for, and the evidence: the logit of the model's own score."""


@dataclass(frozen=True)
class ScoreCalibration:
    """What was fitted to a model's scores: each is a probability by its logit; None leaves scores as they are.

    Attributes:
        box: of regions: that the box has an IoU of 0.5 with a true one.
        phrase: of phrases that are looked for: that the image shows them.
        sources: what each was fitted to, for people.
    """

    box: Logistic | None = None
    phrase: Logistic | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def apply(self, question: Question, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities ``(N,)`` for a model's scores ``(N,)``; the scores if they are not calibrated.

        0, which says that there is no box, stays 0.
        """
        fit: Logistic | None = getattr(self, question)
        if fit is None:
            return scores
        return np.where(scores > 0, fit.apply({"logit": logit(scores)}), 0).astype(np.float32)

    @property
    def fits(self) -> dict[str, dict[str, float]]:
        """The weights of what is calibrated."""
        found = {question: getattr(self, question) for question in QUESTIONS}
        return {question: fit.to_dict() for question, fit in found.items() if fit is not None}

    def __str__(self) -> str:
        """What is calibrated; empty if nothing is."""
        called = {"box": "regions", "phrase": "phrases"}
        return f"scores of {' and '.join(called[question] for question in self.fits)} calibrated" if self.fits else ""


def logit(scores: np.ndarray) -> np.ndarray:
    """Return the logits ``(N,)`` of scores ``(N,)`` in double precision."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    return np.log(inside / (1 - inside))


def calibration_path(model: Adapted) -> Path:
    """Return the file of a model's calibration."""
    if model.repository is None:
        return model.folder / NAME
    return _kept() / f"{model.repository.replace('/', '--')}.json"


def read_calibration(path: Path, weights: Callable[[], str]) -> ScoreCalibration:
    """Return what a file holds; nothing, and a line on stderr says so, if it is damaged or of other weights.

    Args:
        path: of the file; if there is none, nothing is calibrated.
        weights: returns the digest of the model's weights, which is asked for only if there is a file.
    """
    if not path.is_file():
        return ScoreCalibration()
    stored = _read(path)
    reason = "is damaged" if stored is None else "was made with other weights"
    if stored is not None and stored[0] == weights():
        return stored[1]
    print(f"{path}: {reason}, so scores are not calibrated; run saywhere calibrate again", file=sys.stderr)
    return ScoreCalibration()


def change_calibration(path: Path, weights: str, question: Question, fit: Logistic, source: str) -> None:
    """Put a fit into a file, which is whole or as it was.

    Args:
        path: of the file; if it is damaged or of other weights, nothing else stays in it.
        weights: digest of the model's weights.
        question: that it answers.
        fit: of scores.
        source: what it was fitted to.
    """
    stored = _read(path)
    before = stored[1] if stored is not None and stored[0] == weights else ScoreCalibration()
    after = replace(before, **{question: fit}, sources={**before.sources, question: source})
    row = {"weights": weights, **after.fits, "sources": dict(after.sources)}
    write_text(path, json.dumps(row, indent=2) + "\n")


def calibrated_models() -> dict[str, str]:
    """Return which models of the hub were calibrated by this user, and what of them, with what it was fitted to."""
    found: dict[str, str] = {}
    for path in sorted(_kept().glob("*.json")):
        if (stored := _read(path)) is not None:
            sources = dict.fromkeys(stored[1].sources.values())
            found[f"{HUB}{path.stem.replace('--', '/', 1)}"] = f"{stored[1]}: {'; '.join(sources)}"
    return found


def _kept() -> Path:
    return cache_folder() / "calibrations"


def _read(path: Path) -> tuple[str, ScoreCalibration] | None:
    """The digest of the weights and the calibration; None if the file cannot be read as one."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        fits = {q: Logistic.from_dict(stored[q], names, q) for q, names in QUESTIONS.items() if q in stored}
        sources = {str(question): str(source) for question, source in stored["sources"].items()}
        return str(stored["weights"]), ScoreCalibration(**fits, sources=sources)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, UserError):
        return None
