"""The command line: one module a command, each thin: parse, call the library, print.

Nothing here imports torch before a command needs it, so that ``saywhere --help`` answers at once.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import typer
from typer.core import TyperGroup

import saywhere
from saywhere.cli import calibrate, caption, compare, convert, data, describe, evaluate, ground, models, snippets, train
from saywhere.errors import UserError


class OneLineErrors(TyperGroup):
    """What a user can mend is told in one line on stderr: exit code 2, or 130 after Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become exit codes."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(str(error), 2)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(1) from None
        except OSError as error:
            if error.errno is None:
                raise
            where = f"{error.filename}: " if error.filename else ""
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full; free some space and run the same command again" if full else error.strerror
            _fail(f"{where}{reason}", 2)


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    raise typer.Exit(code) from None


def _close_stdout() -> None:
    """Nobody reads the output any more (``saywhere ... | head``): do not complain again at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saywhere {saywhere.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=OneLineErrors,
    help="Say what is where in a picture.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("calibrate")(calibrate.calibrate)
app.command("caption")(caption.caption)
app.command("compare")(compare.compare)
app.command("convert")(convert.convert)
app.command("describe")(describe.describe)
app.command("ground")(ground.ground)
app.command("models")(models.models)
app.command("snippets")(snippets.snippets)
app.command("train")(train.train)
app.add_typer(data.app, name="data")
app.add_typer(evaluate.app, name="evaluate")


def main() -> None:
    """The program ``saywhere``."""
    app()
