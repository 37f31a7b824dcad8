"""``saywhere export``: one model from several training checkpoints, or a web page without a server."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli.options import Set, check_folder
from saywhere.cli.printing import next_command
from saywhere.errors import UserError
from saywhere.report import counted


def export(
    checkpoints: list[str] = typer.Argument(
        None,
        metavar="CHECKPOINT...",
        help="Folders of trained models with different parts, such as runs/NAME/model; with --web a single model.",
        show_default="with --web the bundled model",
    ),
    out: Path | None = typer.Option(None, metavar="FOLDER", callback=check_folder, help="Folder for the new model."),
    int8: Path | None = typer.Option(
        None, metavar="ROOT", help="Data set whose training images calibrate an int8 trunk, for --precision int8."
    ),
    replace: bool = typer.Option(False, "--replace", help="If several checkpoints have a part, take the last one's."),
    change: Set = None,
    web: Path | None = typer.Option(
        None,
        metavar="FOLDER",
        callback=check_folder,
        help="Write a web page of static files into this folder instead; the model runs in the browser.",
    ),
    runtime: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="With --web: the onnxruntime-web package, as written by npm pack.",
        show_default="fetched once with npm",
    ),
) -> None:
    """Combine the parts of several checkpoints into one model, on a shared trunk that is stored once.

    The trunks of the checkpoints must be the same. With --web, write a web page that runs a model in the browser.

    Exit code: 0 success; 1 images for --int8 are missing, broken or cannot be read; 2 error.
    """
    if web is not None:
        if out is not None or int8 is not None or replace or change or len(checkpoints or ()) > 1:
            raise UserError("--web takes one model, and neither --out nor --int8 nor --replace nor --set")
        return _export_page(checkpoints[0] if checkpoints else DEFAULT_MODEL, web, runtime)
    if out is None or not checkpoints:
        raise UserError("give CHECKPOINT... and --out, the folder of the new model; or --web, the folder of a page")
    if runtime is not None:
        raise UserError("--runtime is for --web: give --web as well")
    from saywhere.engines.export import export as export_model
    from saywhere.models.bundle import GRAPH_INT8, Bundle, find_folder
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
    made = Bundle.read(out).calibration.to_dict()
    typer.echo(f"written: {out}")
    if int8 is None and any((find_folder(each) / GRAPH_INT8).is_file() for each in checkpoints):
        typer.echo("without the int8 trunk of its parts: --int8 ROOT makes one")
    lost = [name for each in checkpoints for name in Bundle.read(each).calibration.to_dict() if name not in made]
    if lost:
        names = ", ".join(dict.fromkeys(lost))
        typer.echo(f"no longer calibrated, because parts are new: {names}; saywhere calibrate {out} does it again")
    typer.echo(f"next: {next_command(out)}")
    if left_out:
        raise typer.Exit(1)


def _export_page(model: str, folder: Path, runtime: Path | None) -> None:
    from saywhere.web.site import write_site

    sizes = write_site(model, folder, runtime)
    typer.echo(f"written: {folder}, {sum(sizes.values()) / 1e6:.1f} MB in {counted(len(sizes), 'file')}")
    typer.echo(f"next: python -m http.server --bind 127.0.0.1 --directory {folder}")
