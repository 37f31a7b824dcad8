"""``saywhere evaluate nouns``: is the noun right, given the box?"""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.running import Data, session
from saywhere.loading import Runtime, load_model


def nouns(
    data: Data,
    format: options.DataFormat = None,
    model: options.Model = None,
    split: options.Split = None,
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/nouns"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Right nouns of the true boxes: of the decoder's phrases, of the classes, of the two together, and of captions.

    A noun is right if it is that of the true phrase, a synonym or a kind of it; a caption is right about each box
    whose noun it has; docs/nouns.md.

    Exit code 0 if all went well, 1 if images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.nouns import run

    loaded = load_model(model, Runtime(device, engine, threads, precision), change, "densecap")
    name = model or DEFAULT_MODEL
    with session(
        "nouns", data, out, model=name, change=change, format=format, split=split, limit=limit, batch=batch
    ) as now:
        result = run(loaded, now)
        for way, share in result.kinds.items():
            of_all = result.objects[way]
            typer.echo(f"{way}: {share:.3f} mean over {len(result.by_kind)} kinds, {of_all:.3f} of all boxes")
