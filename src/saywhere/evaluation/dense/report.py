"""The report of an evaluation of dense captions: ``report.json``, ``report.md`` and plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.calibration import MATCH, Reliability
from saywhere.evaluation.dense.metric import IOUS, METEORS, DenseCaptioningResult
from saywhere.evaluation.report import facts, save_figure, table, write_report

LABELS = {
    "meteor_version": "captions",
    "skipped": "images skipped",
    "without_prediction": "images without a prediction",
    "without_truth": "predicted images without a truth",
}
"""What ``report.md`` calls facts whose names would not explain themselves."""

HIDDEN = ("data", "split", "seconds", "command")
"""Facts that ``report.md`` leaves out, or shows in a way of its own."""


def write_dense_report(
    folder: Path, result: DenseCaptioningResult, known: Mapping[str, Any], calibration: Reliability | None = None
) -> list[Path]:
    """Write ``report.json``, ``report.md``, ``ap.png`` and, if scores are probabilities, ``reliability.png``.

    Each file is written atomically.

    Args:
        folder: where to.
        result: the figures; scores are fractions.
        known: how they came about, by name; has ``data``, ``split`` and ``command``.
        calibration: of the scores, None if they are no probabilities.

    Returns:
        The paths of the files.
    """
    written = write_report(folder, dense_row(result, known, calibration), dense_lines(result, known, calibration))
    draw_ap(result, folder / "ap.png")
    (folder / "reliability.png").unlink(missing_ok=True)
    if calibration is None:
        return [*written, folder / "ap.png"]
    draw_reliability(calibration, folder / "reliability.png")
    return [*written, folder / "ap.png", folder / "reliability.png"]


def dense_row(
    result: DenseCaptioningResult, known: Mapping[str, Any], calibration: Reliability | None = None
) -> dict[str, Any]:
    """Return the content of ``report.json``, without the version of saywhere; ``calibration`` may be null."""
    scores = result.to_dict()
    row = {"task": "dense", "protocol": scores["protocol"], "data": known["data"], "split": known["split"]}
    order = ("images", "map", "detection_map", "language_meteor", "ap", "detection_ap", "detections", "truths")
    row |= {name: scores[name] for name in order}
    return row | {"calibration": calibration and calibration.to_dict()} | dict(known)


def dense_lines(
    result: DenseCaptioningResult, known: Mapping[str, Any], calibration: Reliability | None = None
) -> list[str]:
    """Return the lines of ``report.md``: the scores, the grid of average precisions, and how they came about."""
    overall = (result.map, result.detection_map, result.language_meteor, calibration and calibration.ece)
    cells = [
        (
            f"{iou:g}",
            *(f"{result.ap[f'iou_{iou}/meteor_{m}']:.4f}" for m in METEORS),
            f"{result.detection_ap[f'iou_{iou}']:.4f}",  # whatever the caption
        )
        for iou in IOUS
    ]
    about = {
        "protocol": result.protocol,
        "data": known["data"] + (f", split {known['split']}" if known["split"] else ""),
        "images": f"{result.images:,}",
        "regions predicted": f"{result.detections:,}",
        "true regions (merged)": f"{result.truths:,}",
        **{LABELS.get(name, name): value for name, value in known.items() if name not in HIDDEN},
        "command": f"`{known['command']}`",
    }
    return [
        "# Dense captioning",
        "",
        *table(
            ("mAP", "detection mAP", "language METEOR", "calibration error"),
            [[None if value is None else f"{value:.4f}" for value in overall]],
        ),
        "",
        "Average precision:",
        "",
        *table(("IoU ≥", *(f"METEOR > {m:g}" for m in METEORS), "boxes alone"), cells),
        "",
        *facts(about),
    ]


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
    save_figure(figure, path)


def draw_reliability(calibration: Reliability, path: Path) -> None:
    """Draw the share of matches at each score, above a histogram of the scores, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    lows, widths = [one.low for one in calibration.bins], [one.high - one.low for one in calibration.bins]
    upper.bar(lows, [one.matched for one in calibration.bins], widths, align="edge", color="#8fb8de", edgecolor="white")
    upper.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    upper.plot([one.score for one in calibration.bins], [one.matched for one in calibration.bins], "o", color="#1f4e79")
    upper.set_ylabel(f"share with a true box at IoU {MATCH:g}")
    upper.set_ylim(0, 1)
    upper.set_title(f"calibration error {calibration.ece:.3f}, Brier score {calibration.brier:.3f}")
    lower.bar(lows, [one.count for one in calibration.bins], widths, align="edge", color="#bbbbbb", edgecolor="white")
    lower.set_ylabel("boxes")
    lower.set_xlabel("score")
    lower.set_xlim(0, 1)
    save_figure(figure, path)
