"""What an evaluation leaves behind: figures as JSON, as a Markdown table and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import saywhere
from saywhere.evaluation.calibration import Reliability, draw_reliability
from saywhere.evaluation.dense_captioning import IOUS, METEORS, DenseCaptioningResult
from saywhere.files import write_atomically


@dataclass(frozen=True)
class Facts:
    """How scores came about, for a reader who wants to repeat them.

    Attributes:
        data: name of the data set, or of the file with the truth.
        split: its part, if it has a name.
        meteor_version: of the scorer of captions.
        model: name or folder of the model; None for another program's predictions.
        proposals: whose boxes the model described: ``rpn`` (its own), ``gt`` (the true ones), or a file.
        predictions: the file of predictions.
        seconds: that the command took; of a run that was gone on with, only its last part.
        command: as it was typed.
        skipped: pictures that could not be described, with the reasons; they are not among ``images``.
        without_prediction: pictures that have no line in the predictions, and count as pictures without regions.
        without_truth: pictures in the predictions that have no truth, and do not count.
        data_problems: what is missing or broken in the data set: the kind, and how often.
    """

    data: str
    split: str | None
    meteor_version: str
    model: str | None
    proposals: str | None
    predictions: str
    seconds: float
    command: str
    skipped: Mapping[str, str] = field(default_factory=dict)
    without_prediction: int = 0
    without_truth: int = 0
    data_problems: Mapping[str, int] = field(default_factory=dict)


def dense_row(result: DenseCaptioningResult, facts: Facts, calibration: Reliability | None = None) -> dict[str, Any]:
    """The content of ``report.json``; scores are fractions. ``calibration`` is null if scores are no probabilities."""
    scores, known = result.to_dict(), asdict(facts)
    row = {"task": "dense", "protocol": scores.pop("protocol"), "data": known.pop("data"), "split": known.pop("split")}
    order = ("images", "map", "detection_map", "language_meteor", "ap", "detection_ap", "detections", "truths")
    row |= {name: scores[name] for name in order}
    row |= {"calibration": calibration and calibration.to_dict()} | known
    return {**row, "saywhere": saywhere.__version__}


def write_dense_report(
    folder: Path, result: DenseCaptioningResult, facts: Facts, calibration: Reliability | None = None
) -> list[Path]:
    """Write ``report.json``, ``report.md``, ``ap.png`` and, if scores are probabilities, ``reliability.png`` into
    ``folder``, each whole or not at all; their paths.
    """
    texts = {
        "report.json": json.dumps(dense_row(result, facts, calibration), indent=2) + "\n",
        "report.md": dense_table(result, facts, calibration),
    }
    for name, text in texts.items():
        data = text.encode("utf-8", "replace")
        write_atomically(folder / name, lambda stream, data=data: stream.write(data))
    plots = ["ap.png"]
    draw_ap(result, folder / "ap.png")
    (folder / "reliability.png").unlink(missing_ok=True)
    if calibration:
        draw_reliability(calibration, folder / "reliability.png")
        plots.append("reliability.png")
    return [folder / name for name in (*texts, *plots)]


def dense_table(result: DenseCaptioningResult, facts: Facts, calibration: Reliability | None = None) -> str:
    """The figures in Markdown: the scores, the grid of average precisions, how they came about."""
    calibrated = "" if calibration is None else f"{calibration.ece:.4f}"
    language = "" if result.language_meteor is None else f"{result.language_meteor:.4f}"
    head = " | ".join(f"METEOR > {m:g}" for m in METEORS)
    rows = [
        f"| {iou:g} | "
        + " | ".join(f"{result.ap[f'iou_{iou}/meteor_{m}']:.4f}" for m in METEORS)
        # no METEOR threshold: whatever is said
        + f" | {result.detection_ap[f'iou_{iou}']:.4f} |"
        for iou in IOUS
    ]
    origin = {
        "protocol": result.protocol,
        "data": facts.data + (f", split {facts.split}" if facts.split else ""),
        "pictures": f"{result.images:,}",
        "regions predicted": f"{result.detections:,}",
        "true regions (merged)": f"{result.truths:,}",
        "model": facts.model,
        "proposals": facts.proposals,
        "predictions": facts.predictions,
        "captions": facts.meteor_version,
        "pictures skipped": len(facts.skipped),
        "pictures without a prediction": facts.without_prediction,
        "predicted pictures without a truth": facts.without_truth,
        "command": f"`{facts.command}`",
    }
    lines = [
        "# Dense captioning",
        "",
        "| mAP | detection mAP | language METEOR | calibration error |",
        "|---|---|---|---|",
        f"| {result.map:.4f} | {result.detection_map:.4f} | {language} | {calibrated} |",
        "",
        "Average precision:",
        "",
        f"| IoU ≥ | {head} | boxes alone |",
        "|---" * (len(METEORS) + 2) + "|",
        *rows,
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in origin.items() if value),
    ]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def draw_ap(result: DenseCaptioningResult, path: Path) -> None:
    """Draw the grid of average precisions, IoU down and METEOR across, as a PNG."""
    from matplotlib.figure import Figure

    grid = [[result.ap[f"iou_{iou}/meteor_{m}"] for m in METEORS] for iou in IOUS]
    top = max(max(row) for row in grid) or 1.0
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(grid, vmin=0, vmax=top, cmap="viridis", aspect="auto")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.3f}", ha="center", va="center", color="black" if value > 0.6 * top else "white")
    axes.set_xticks(range(len(METEORS)), [f"{m:g}" for m in METEORS])
    axes.set_yticks(range(len(IOUS)), [f"{iou:g}" for iou in IOUS])
    axes.set_xlabel("METEOR above")
    axes.set_ylabel("IoU at least")
    axes.set_title(f"Average precision, protocol {result.protocol}; mean {result.map:.4f}")
    figure.colorbar(image, ax=axes)
    write_atomically(path, lambda stream: figure.savefig(stream, dpi=120, format="png"))
