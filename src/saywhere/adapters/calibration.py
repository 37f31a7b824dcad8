"""Scores of other people's models as probabilities: what ``saywhere calibrate`` found out, in a small file of its own.

The models' own files are never changed. What was fitted lies beside the weights of a folder, and for a model of the
hub, whose cache is not ours either, in the user's cache. It holds for the weights that it was fitted to, no others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from saywhere.adapters.sources import HUB, Adapted
from saywhere.files import write_text
from saywhere.web.runtime import cache_folder

NAME = "saywhere-calibration.json"
LEAST = 1e-6
"""Scores are taken to be at least so far from 0 and 1, where their logit would be infinite."""
Part = Literal["densecap", "aligner"]
"""Scores of regions, or of phrases that are looked for; named as the parts of saywhere's own models."""


@dataclass(frozen=True)
class Fit:
    """Hold the logistic regression of what a score is to be the probability of, on its logit.

    Attributes:
        weight: of the logit.
        constant: is added to it.
        source: what it was fitted to, for people.
    """

    weight: float
    constant: float
    source: str = field(default="", compare=False)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities ``(N,)`` for scores ``(N,)``; 0, which says that there is no box, stays 0."""
        logits = np.clip(self.weight * logit(scores) + self.constant, -80, 80)
        return np.where(scores > 0, 1 / (1 + np.exp(-logits)), 0).astype(np.float32)


@dataclass(frozen=True)
class Calibration:
    """Hold the fits of a model's scores; None leaves scores as they are.

    Attributes:
        densecap: of regions: that the box has an IoU of 0.5 with a true one.
        aligner: of phrases that are looked for: that the image shows them.
    """

    densecap: Fit | None = None
    aligner: Fit | None = None

    def apply(self, part: Part, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities for a model's scores ``(N,)``; the scores if that part is not calibrated."""
        fit: Fit | None = getattr(self, part)
        return scores if fit is None else fit.probabilities(scores)

    @property
    def numbers(self) -> dict[str, tuple[float, float]]:
        """The weight and the constant of each part that is calibrated."""
        fits = {"densecap": self.densecap, "aligner": self.aligner}
        return {part: (fit.weight, fit.constant) for part, fit in fits.items() if fit is not None}

    def __str__(self) -> str:
        """What is calibrated; empty if nothing is."""
        called = {"densecap": "regions", "aligner": "phrases"}
        return f"scores of {' and '.join(called[part] for part in self.numbers)} calibrated" if self.numbers else ""


def logit(scores: np.ndarray) -> np.ndarray:
    """Return the logits ``(N,)`` of scores ``(N,)`` in double precision."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    return np.log(inside / (1 - inside))


def calibration_path(model: Adapted) -> Path:
    """Return the file of a model's calibration."""
    if model.repository is None:
        return model.folder / NAME
    return _kept() / f"{model.repository.replace('/', '--')}.json"


def read_calibration(path: Path, weights: Callable[[], str]) -> Calibration:
    """Return what a file holds; nothing, and a line on stderr says so, if it is damaged or of other weights.

    Args:
        path: of the file; if there is none, nothing is calibrated.
        weights: returns the digest of the model's weights, which is asked for only if there is a file.
    """
    if not path.is_file():
        return Calibration()
    stored = _read(path)
    reason = "is damaged" if stored is None else "was made with other weights"
    if stored is not None and stored[0] == weights():
        return stored[1]
    print(f"{path}: {reason}, so scores are not calibrated; run saywhere calibrate again", file=sys.stderr)
    return Calibration()


def change_calibration(path: Path, weights: str, part: Part, fit: Fit) -> None:
    """Put the fit of a part into a file, which is whole or as it was.

    Args:
        path: of the file; if it is damaged or of other weights, nothing else stays in it.
        weights: digest of the model's weights.
        part: whose scores were fitted.
        fit: of them.
    """
    stored = _read(path)
    before = stored[1] if stored is not None and stored[0] == weights else Calibration()
    after = replace(before, **{part: fit})
    row = {"weights": weights, **{key: value for key, value in asdict(after).items() if value}}
    write_text(path, json.dumps(row, indent=2) + "\n")


def calibrated_models() -> dict[str, str]:
    """Return which models of the hub were calibrated by this user, and what of them, with what it was fitted to."""
    found: dict[str, str] = {}
    for path in sorted(_kept().glob("*.json")):
        if (stored := _read(path)) is not None:
            fits = (stored[1].densecap, stored[1].aligner)
            sources = dict.fromkeys(fit.source for fit in fits if fit is not None)
            found[f"{HUB}{path.stem.replace('--', '/', 1)}"] = f"{stored[1]}: {'; '.join(sources)}"
    return found


def _kept() -> Path:
    return cache_folder() / "calibrations"


def _read(path: Path) -> tuple[str, Calibration] | None:
    """The digest of the weights and the calibration; None if the file cannot be read as one."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = {part: stored[part] for part in ("densecap", "aligner") if part in stored}
        fits = {p: Fit(float(r["weight"]), float(r["constant"]), str(r["source"])) for p, r in rows.items()}
        found = str(stored["weights"]), Calibration(**fits)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return found if np.isfinite([*found[1].numbers.values()]).all() else None
