"""``saywhere evaluate attention``: whether a captioner attends to what its words name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.running import EntitiesData, session
from saywhere.loading import Runtime, load_model


class Spread(StrEnum):
    """How a region's weight lies on the image."""

    area = "area"
    pixel = "pixel"


def attention(
    data: EntitiesData,
    model: options.Model = None,
    split: options.Split = None,
    generated: bool = typer.Option(True, help="Also measure sentences that the model generates."),
    beam_size: options.BeamSize = None,
    spread: Spread = typer.Option(
        Spread.area, help="A weight is spread over its region, or counts at each of its pixels (large regions win)."
    ),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/attention"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Attention correctness on Flickr30k Entities: the share of the attention inside the boxes of what a word names.

    Beside it that of uniform attention over the same regions. Needs a captioner with attention. Exit code 0 if all went
    well, 1 if images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.attention import SENTENCES, percent, run

    name, loaded = (
        model or DEFAULT_MODEL,
        load_model(model, Runtime(device, engine, threads, precision), change, "captioner"),
    )
    with session("attention", data, out, model=name, change=change, split=split, limit=limit, batch=batch) as now:
        figures = run(loaded, now, generated, beam_size, spread.value)
        for kind in SENTENCES if generated else SENTENCES[:1]:
            found, uniform = percent(figures[kind]), percent(figures[f"uniform_{kind}"])
            mentions = figures[f"{kind}_mentions"]
            typer.echo(f"{kind}: {found} %, uniform attention {uniform} % ({mentions:,} mentions)")
