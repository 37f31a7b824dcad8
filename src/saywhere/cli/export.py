"""``saywhere export``: one model of several training checkpoints, or the page without a server."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli.options import Set, check_folder
from saywhere.errors import UserError
from saywhere.report import counted


def export(
    checkpoints: list[str] = typer.Argument(
        None,
        metavar="CHECKPOINT...",
        help="Folders of trained models, such as runs/NAME/model, with different parts; with --web one model.",
        show_default="with --web the bundled model",
    ),
    out: Path | None = typer.Option(None, metavar="FOLDER", callback=check_folder, help="Folder of the new model."),
    int8: Path | None = typer.Option(
        None, metavar="ROOT", help="Data set whose training images calibrate a trunk for --precision int8."
    ),
    replace: bool = typer.Option(False, "--replace", help="Of a part that several have, take that of the last one."),
    change: Set = None,
    web: Path | None = typer.Option(
        None,
        metavar="FOLDER",
        callback=check_folder,
        help="Write a page instead, of static files, that answers without a server.",
    ),
    runtime: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="With --web: the package of onnxruntime-web, such as npm pack writes.",
        show_default="fetched by npm, once",
    ),
) -> None:
    """Make one model of training checkpoints: their parts on one trunk, whose weights are stored once.

    Refused if the trunks of the checkpoints differ. With --web, make a page of a model that runs in the browser.
    Exit code 0 if all went well, 1 if images for --int8 are missing, broken or cannot be read, 2 if the command is
    wrong.
    """
    if web is not None:
        if out is not None or int8 is not None or replace or change or len(checkpoints or ()) > 1:
            raise UserError("--web takes one model, and neither --out nor --int8 nor --replace nor --set")
        return _export_page(checkpoints[0] if checkpoints else DEFAULT_MODEL, web, runtime)
    if out is None or not checkpoints:
        raise UserError("name the checkpoints and the folder of the new model, --out; or the folder of a page, --web")
    if runtime is not None:
        raise UserError("--runtime goes with --web")
    from saywhere.engines.export import export as export_model
    from saywhere.options import assignments
    from saywhere.report import collect_left_out

    with collect_left_out() as left_out:
        images = None
        if int8 is not None:
            from saywhere.engines.quantize import draw_images
            from saywhere.stages.calibration import read_sets

            (samples,), _ = read_sets([(int8, None, "train")])
            images = draw_images([sample.image for sample in samples])
        export_model(checkpoints, out, int8=images, replace=replace, options=assignments(change or ()))
    typer.echo(f"written: {out}")
    typer.echo(f"next: saywhere describe IMAGE --model {out}")
    if left_out:
        raise typer.Exit(1)


def _export_page(model: str, folder: Path, runtime: Path | None) -> None:
    from saywhere.web.site import write_site

    sizes = write_site(model, folder, runtime)
    typer.echo(f"written: {folder}, {sum(sizes.values()) / 1e6:.1f} MB in {counted(len(sizes), 'file')}")
    typer.echo(f"next: python -m http.server --bind 127.0.0.1 --directory {folder}")
