"""``saywhere papers ...``: published checkpoints and tables. Each command parses, calls the library, prints."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate import Task, print_scores, task
from saywhere.cli.options import Seed

Together = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="Name or folder of a model; repeat to caption with several together.",
        show_default="the bundled model",
    ),
]

app = typer.Typer(help="Reproduce published programs and tables.", no_args_is_help=True)


@app.callback()
def _papers() -> None:
    pass


@app.command()
def convert(
    checkpoint: Path = typer.Argument(metavar="CHECKPOINT", help="A Torch7 file such as densecap-pretrained-vgg16.t7."),
    out: Path = typer.Argument(
        metavar="FOLDER", callback=options.check_folder, help="The converted model, for --model of the other commands."
    ),
) -> None:
    """Convert a Torch7 checkpoint of the published DenseCap program; nothing in the file is executed."""
    from saywhere.papers.densecap2016.convert import convert_to_folder

    model = convert_to_folder(checkpoint, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    typer.echo(f"{out}: {count:,} weights, {len(model.vocabulary.counts)} words")
    typer.echo(f"next: saywhere describe IMAGE --model {out}")


@app.command()
def results(
    lines: Path = typer.Argument(metavar="REGIONS.JSONL", help="Lines of describe --json."),
    out: Path = typer.Argument(
        metavar="FOLDER", callback=options.check_folder, help="The results and the images, such as vis/data."
    ),
) -> None:
    """Write results.json and images for the viewer of the published DenseCap program."""
    from saywhere.papers.densecap2016.convert import write_results

    write_results(lines, out)
    typer.echo(f"written: {out / 'results.json'}")


@app.command()
def table1(
    recipe: Path = typer.Argument(metavar="RECIPE", help="A recipe of a comparison, such as recipes/table1.yaml."),
    changes: list[str] | None = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Changes to the recipe, such as data.validation_limit=50 seeds=[0]."
    ),
    out: Path | None = typer.Option(
        None, callback=options.check_folder, help="Folder of the table; runs/NAME by default, NAME as in the recipe."
    ),
) -> None:
    """Compare FCLN with RNNs on crops, on external proposals, its own and the true boxes.

    Trains the RNNs if they are not there yet. An interrupted comparison is resumed by the same command.
    """
    from saywhere.evaluation.meteor import Meteor
    from saywhere.papers.table1 import plan as plans
    from saywhere.papers.table1.run import Run, markdown, write_table

    plan = plans.load(recipe, changes or [])
    folder = out or Path("runs") / plan.name
    command = shlex.join(["saywhere", *sys.argv[1:]])
    meteor = Meteor()  # early: it raises if pycocoevalcap is missing
    results = Run(plan, folder).results(meteor)
    paths = write_table(results, folder, command)
    typer.echo(markdown(results, command))
    typer.echo(f"written: {', '.join(map(str, paths))}")


@task(app, "retrieval")
def retrieval(
    now: Task,
    regions: int = typer.Option(20, min=1, metavar="N", help="Maximum number of regions per image, best first."),
    queries: int = typer.Option(100, min=1, metavar="N", help="Number of queries, each of four phrases of one image."),
    seed: Seed = 0,
    protocol: options.Protocol = typer.Option(
        options.Protocol.clean, help="Average over the phrases: of log P (clean) or of P (original)."
    ),
) -> None:
    """Measure retrieval of images by four phrases of their regions, and of the regions (DenseCap, section 4.2).

    Needs a model with a dense captioner.
    """
    from saywhere.papers.retrieval import run

    loaded = now.load("densecap")
    with now.session("report.json, queries.json") as session:
        result = run(loaded, session, regions, queries, seed, protocol.value)
        typer.echo(
            f"{result.queries} queries to {result.images} images, protocol {result.protocol}: "
            f"R@1 {result.r1:.3f}, R@5 {result.r5:.3f}, R@10 {result.r10:.3f}, median rank {result.median_rank:g}; "
            f"IoU > 0.5 {result.iou_recall['0.5']:.3f}, median IoU {result.median_iou:.3f}"
        )


@task(app, "caption", model=Together)
def caption(now: Task, beam_size: options.BeamSize = None) -> None:
    """Score captions of several models together (Areas of Attention, Table 4)."""
    from saywhere.papers.captions import run

    names = now.models or [DEFAULT_MODEL]
    loaded = [now.load("captioner", name) for name in names]
    with now.session("report.json", ", ".join(names)) as session:
        print_scores(run(loaded, session, beam_size))
