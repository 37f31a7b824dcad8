"""``saywhere evaluate TASK``: how good a model's answers are, or another program's. One module a task."""

from __future__ import annotations

import typer

from saywhere.cli.evaluate import attention, caption, dense, ground, phrases, rank, retrieval

app = typer.Typer(help="Measure how good descriptions are.", no_args_is_help=True)


@app.callback()
def _evaluate() -> None:
    pass


app.command("caption")(caption.caption)
app.command("dense")(dense.dense)
app.command("retrieval")(retrieval.retrieval)
app.command("phrases")(phrases.phrases)
app.command("rank")(rank.rank)
app.command("ground")(ground.ground)
app.command("attention")(attention.attention)
