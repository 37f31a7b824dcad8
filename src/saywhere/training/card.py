"""The model card: what a model was trained on, how, and how well."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import saywhere
from saywhere.files import write_text
from saywhere.options import dataclass
from saywhere.report import counted
from saywhere.training.recipe import Recipe, to_yaml


@dataclass(frozen=True)
class DataFacts:
    """A model's purpose and training data, for its model card.

    Attributes:
        about: what the model does, following "A model that".
        name: of the data set.
        splits: name, number of images and number of ``unit`` of each split.
        unit: such as ``regions``.
        words: size of the vocabulary.
    """

    about: str
    name: str
    splits: Sequence[tuple[str, int, int]]
    unit: str
    words: int


def replace_section(card: Path, heading: str, text: str) -> None:
    """Append a section to a model card, replacing one with the same heading, such as ``## Calibration``."""
    before = card.read_text(encoding="utf-8") if card.exists() else ""
    others = re.sub(rf"^{heading}\n.*?(?=^## |\Z)", "", before, flags=re.MULTILINE | re.DOTALL)
    write_text(card, "\n\n".join([*filter(None, [others.rstrip()]), heading, text]))


def write_card(recipe: Recipe, data: DataFacts, epoch: int, metrics: dict[str, float], seconds: float) -> str:
    """Return the Markdown card of the weights after ``epoch`` epochs, which took ``seconds``."""
    splits = "\n".join(f"- {split}: {counted(images, 'image')}, {n:,} {data.unit}" for split, images, n in data.splits)
    values = "\n".join(f"| {name} | {value:.4f} |" for name, value in metrics.items())
    results = f"Weights after epoch {epoch} of {recipe.training.epochs}"
    if values:
        results += f""", picked by `{recipe.training.monitor}`. Mean losses on the
validation split, with their weights:

| value | |
|---|---|
{values}"""
    else:
        results += ", the last. No validation data."
    words = f"; {counted(data.words, 'word')}" if data.words else ""
    half = ", stored as float16" if recipe.training.half else ""
    description = f"{recipe.description}\n\n" if recipe.description else ""
    return f"""# {recipe.name}

{description}A saywhere {saywhere.__version__} model that {data.about}.

## Data

{data.name}{words}.

{splits}

## Results

{results}

## Training

{_duration(seconds)} up to these weights{half}, on {machine()}. Commit: {commit() or "not under version control"}.

The recipe:

```yaml
{recipe.text.rstrip()}
```
"""


@dataclass(frozen=True)
class BundleFacts:
    """The contents of the card of a model made in several stages.

    Attributes:
        stages: results by stage name: ``kind``, ``seconds`` and, where available, ``data``, ``result``, ``questions``
            and ``figures``.
        licence: a paragraph about terms.
        limits: what the model cannot do, one line each.
        recipe: plain values.
    """

    title: str
    description: str
    stages: Mapping[str, Mapping[str, Any]]
    licence: str
    limits: Sequence[str]
    recipe: Mapping[str, Any]


def write_bundle_card(facts: BundleFacts) -> str:
    """Return the Markdown card of a model made in several stages."""
    rows = [
        f"| `{name}` | {stage['kind']} | {stage.get('data', '')} | {stage.get('result', '')} | "
        f"{_duration(stage['seconds'])} |"
        for name, stage in facts.stages.items()
    ]
    measured = [
        f"| `{each['command']}` | {', '.join(f'{name} {_figure(value)}' for name, value in each['figures'].items())} |"
        for stage in facts.stages.values()
        for each in stage.get("figures", {}).values()
    ]
    fits = [f"- {fit}" for stage in facts.stages.values() for fit in stage.get("questions", {}).values()]
    sections = {
        "Stages": ["| stage | kind | learnt from | result | time |", "|---|---|---|---|---|", *rows],
        "Results": ["| command | result |", "|---|---|", *measured] if measured else [],
        "Calibration": fits,
        "Data and licence": [facts.licence.strip()] if facts.licence else [],
        "Limits": [f"- {limit}" for limit in facts.limits],
        "Recipe": [
            f"Made by `saywhere train` with this recipe, on {machine()}. "
            f"Commit: {commit() or 'not under version control'}.",
            "",
            "```yaml",
            to_yaml(facts.recipe).rstrip(),
            "```",
        ],
    }
    text = "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections.items() if lines)
    return f"# {facts.title}\n\n{facts.description}\n\nA saywhere {saywhere.__version__} model.\n{text}"


def machine() -> str:
    """Return the device and software versions, for readers who want to repeat a run."""
    if torch.cuda.is_available():
        device = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    else:
        device = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    return f"{device}, Python {platform.python_version()}, torch {torch.__version__}"


@cache
def commit() -> str | None:
    """Return the git commit of the library's source, marked if it has changes; None outside a repository.

    It is asked for once: what a process runs is what it has imported.
    """
    folder = Path(saywhere.__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _figure(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
