"""``saywhere evaluate TASK``: how good a model's answers are, or another program's. One module a task."""

from __future__ import annotations

import typer

from saywhere.cli.evaluate import (
    attention,
    caption,
    chunks,
    dense,
    ground,
    nouns,
    rank,
    region_captions,
    search,
)

app = typer.Typer(help="Measure how good a model's answers are.", no_args_is_help=True)


@app.callback()
def _evaluate() -> None:
    pass


app.command("dense")(dense.dense)
app.command("caption")(caption.caption)
app.command("region-captions")(region_captions.region_captions)
app.command("rank")(rank.rank)
app.command("search")(search.search)
app.command("ground")(ground.ground)
app.command("nouns")(nouns.nouns)
app.command("attention")(attention.attention)
app.command("chunks")(chunks.chunks)
