"""``saywhere evaluate ground``: phrases of sentences placed in images."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.comparing import one_or_compare
from saywhere.cli.evaluate.running import Data, session
from saywhere.loading import Runtime, load_model


class Part(StrEnum):
    """Which part of the model places the phrases."""

    aligner = "aligner"
    densecap = "densecap"


def ground(
    data: Data,
    models: options.ComparedModels = None,
    part: Part | None = typer.Option(
        None,
        show_default="all parts, as saywhere ground",
        help="One part alone that is told where the phrases are; only the aligner reads the sentence.",
    ),
    split: options.Split = None,
    regions: options.Regions = None,
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/ground"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Grounding of phrases: right where the IoU with the truth is at least 0.5; and the pointing game.

    Without --part phrases of other images are asked for too, and the data may be any with phrases and boxes; with it
    they are Flickr30k Entities.

    Exit code 0 if all went well, 1 if images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.grounding import RARE, run

    model = one_or_compare("ground", models, out)
    chosen = None if part is None else part.value
    name, loaded = (
        model or DEFAULT_MODEL,
        load_model(model, Runtime(device, engine, threads, precision), change, chosen),
    )
    with session("ground", data, out, model=name, change=change, split=split, limit=limit, batch=batch) as now:
        scores = run(loaded, now, chosen, regions)
        for title, result in {"model": scores.model, **scores.controls}.items():
            typer.echo(
                f"{title}: accuracy {result.accuracy:.3f}, pointing {result.pointing:.3f} ({result.phrases:,} phrases)"
            )
            for kind, score in result.by_type.items():
                if kind == RARE:
                    typer.echo(f"  {kind}: accuracy {score.accuracy:.3f} ({score.phrases:,} phrases)")
        if (presence := scores.presence) is not None:
            typer.echo(
                f"with the decision: accuracy {presence.accuracy:.3f}, found {presence.found:.3f}, phrases of other "
                f"images refused {presence.refused:.3f} ({presence.others:,}); AUC {presence.auc:.3f}, "
                f"calibration error {presence.calibration_error:.3f}"
            )
