"""The command line, one thin module per command: parse, call the library, print.

A command's module is imported when the command is called, and its dependencies when it runs, to keep startup fast.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import math
import os
import re
import signal
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

import saywhere
from saywhere.errors import UserError, is_oom
from saywhere.loading import way_to_install

PANELS = {
    "Ask a model about images": {
        "describe": "Describe what is where in images and videos: boxes, scores, phrases.",
        "ground": "Find the box of each phrase of a text, or say that it is not there.",
        "caption": "Caption each image with a sentence.",
        "alt": "Propose alternative texts for the images in HTML and Markdown files.",
        "search": "Search an index for images that match a text or resemble an image.",
        "index": "Create or update a search index of images and videos.",
        "serve": "Answer questions about images over HTTP, and serve a web page for them.",
        "mcp": "Offer image tools to language models (Model Context Protocol).",
        "models": "List the available models.",
        "convert-results": "Convert results to or from COCO, Label Studio, CVAT, YOLO and others.",
    },
    "Train and evaluate your own model": {
        "data": "Inspect data sets.",
        "finetune": "Fine-tune a model on your own images.",
        "train": "Train from a recipe: a single network or a whole model.",
        "calibrate": "Turn scores into probabilities (Platt scaling).",
        "export": "Combine trained parts into one model that runs without PyTorch.",
        "evaluate": "Measure a model on a data set.",
        "pseudo-label": "Make boxes with phrases for a data set that has only sentences.",
    },
    "Published programs and tables": {"papers": "Convert published models and reproduce published tables."},
}
"""The commands by ``--help`` panel, in display order, each with its one-line summary.

Each command has a module with a function of its name, or with an ``app`` of several subcommands.
"""

COMMANDS = {name: panel for panel, names in PANELS.items() for name in names}
"""The panel of each command."""


OBJECTS = 100_000
"""Objects allocated before the first garbage collection; a command with one question about one image makes 75,000."""

LONGEST = 4000
"""Maximum length of an error message, in characters; a damaged file may put a megabyte into one."""

STDOUT = "-"
"""File name that means: print."""

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The parser's exception for a wrong command line."""


class Commands(UserDict[str, Any]):
    """Commands by name; those of :data:`COMMANDS` are imported at their first use."""

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            from saywhere.cli import options

            module = name.replace("-", "_")
            if name == "papers":
                from saywhere import reproductions

                found = reproductions.find("command=papers")
            else:
                found = importlib.import_module(f"saywhere.cli.{module}")
            if function := getattr(found, module, None):
                app = typer.Typer(add_completion=False)
                app.command(name)(options.ungroup(function))
                command = typer.main.get_command(app)
            else:
                command = typer.main.get_group(found.app)
            shown: Any = command
            shown.name, shown.rich_help_panel, shown.short_help = name, COMMANDS[name], PANELS[COMMANDS[name]][name]
            _unwrap_help(command)
            _refuse_odd_values(command)
            _tell_of_resuming(command)
            self.data[name] = command
        return command


def _unwrap_help(command: Any) -> None:
    """Join the lines of each paragraph of the help, also of subcommands: typer keeps those after the first as typed."""
    command.help = "\n\n".join(" ".join(each.split()) for each in (command.help or "").split("\n\n"))
    for one in getattr(command, "commands", {}).values():
        _unwrap_help(one)


def _tell_of_resuming(command: Any) -> None:
    """Make a command that Ctrl-C stops say how to resume it, even before its first image."""
    invoke = command.invoke

    def invoke_resuming(ctx: Any) -> Any:
        try:
            return invoke(ctx)
        except KeyboardInterrupt as stop:
            told, given = str(stop), ctx.params
            if not told and _resumes(command.name, given):
                told = "interrupted; run it again to continue"
            again = "run it again without --restart" if given.get("restart") else "run it again"
            raise KeyboardInterrupt(told.replace("run it again", again)) from None

    command.invoke = invoke_resuming


def _resumes(command: str, given: Mapping[str, Any]) -> bool:
    """Return whether a command with these options keeps finished work and resumes from it."""
    if command in ("describe", "caption", "ground"):
        file = given["json"] or (given.get("out") if given.get("output_format", "saywhere") != "saywhere" else None)
        return file is not None and str(file) != "-"
    if command == "alt":
        return given["cache"] is not None or (given["write"] and not given["every"])
    return command in ("index", "evaluate", "pseudo-label", "finetune", "train")


def _refuse_odd_values(command: Any) -> None:
    """Refuse values that the parser accepts by mistake, in a command and its subcommands.

    These are a single-value option given twice; an empty value, for instance from an unset shell variable, which would
    mean the default or the current folder; and NaN or infinity, which pass every range check.
    """
    for one in getattr(command, "commands", {}).values():
        _refuse_odd_values(one)
    make_parser = command.make_parser

    def make_strict(ctx: Any) -> Any:
        parser = make_parser(ctx)
        parse_args = parser.parse_args

        def parse(args: list[str]) -> Any:
            typed = list(args)
            try:
                values, rest, order = parse_args(args=args)
            except UsageError as error:
                error.__dict__["ctx"] = ctx  # the error refers to this command's help
                raise _explain_hyphen(error, typed, ctx) from None
            if not ctx.resilient_parsing:
                for option in order:
                    _check_values(option, values.get(option.name), order.count(option), ctx)
                _check_together(values.get("texts") or (), [word for word in typed if word != "--"], ctx)
            return values, rest, order

        parser.parse_args = parse
        return parser

    command.make_parser = make_strict


def _explain_hyphen(error: Exception, typed: list[str], ctx: Any) -> Exception:
    """Return a better error than "no such option" where a text or file name begins with a hyphen."""
    name = getattr(error, "option_name", "")
    texts = (text for text in typed if text.startswith("-") and (" " in text or not text.startswith("--")))
    text = next((text for text in texts if len(text) > 2 and name[1:2] in text[1:]), None)
    if type(error).__name__ != "NoSuchOption" or text is None:
        return error
    import shlex

    leave_out = "" if not any("--without" in option.opts for option in ctx.command.params) else (
        f"; to leave out images that show something, add --without {shlex.quote(text.lstrip('- '))} to a query"
    )  # fmt: skip
    after = f"put it last, after --: {ctx.command_path} [OPTIONS] -- {shlex.quote(text)}"
    return UsageError(f"a text that begins with - is taken for an option; {after}{leave_out}", ctx)


def _check_together(texts: Sequence[str], typed: Sequence[str], ctx: Any) -> None:
    """Check that an unquoted text is contiguous: in ``--without a man``, "man" would become part of the query."""
    import shlex

    count = len(texts)
    if count < 2 or any([*texts] == [*typed[at : at + count]] for at in range(len(typed))):
        return
    stop = len(typed) - [*reversed(typed)].index(texts[-1])
    apart = next(n for n in range(1, count) if typed[stop - n - 1] != texts[-n - 1])
    if any(" " in text for text in texts[-apart:]):  # quoted, so meant as it is
        return
    option, value = typed[stop - apart - 2 : stop - apart]
    kind = next((each.type.name for each in ctx.command.params if option in each.opts), "int")
    takes_text = "int" not in kind and "float" not in kind
    quoted = shlex.quote(" ".join([value, *texts[-apart:]] if takes_text else texts))
    way_out = f"put words that belong together in quotes: {f'{option} {quoted}' if takes_text else quoted}"
    raise UsageError(f"{' '.join(texts[-apart:])!r} is separated from {' '.join(texts[:-apart])!r}; {way_out}", ctx)


def _check_values(option: Any, value: Any, count: int, ctx: Any) -> None:
    """Check the value of an option or argument as typed."""
    is_option = option.param_type_name == "option"
    name = option.opts[0] if is_option else f"the argument {option.metavar or option.name.upper()}"
    if is_option and count > 1 and not (option.multiple or option.is_flag or option.count):
        raise UsageError(f"{name} is given {count} times, but takes one value", ctx)
    for text in value if isinstance(value, list | tuple) else [value]:
        if text == "":
            raise UsageError(f"{name} is empty: give a value, or leave it out", ctx)
        if text == STDOUT and is_option and "path" in option.type.name and name not in _printing(ctx):
            way_out = " or ".join(f"{each} -" for each in _printing(ctx))
            printed = f"to print results give {way_out}" if way_out else "this command prints no results"
            raise UsageError(f"{name} -: would be something named -; {printed}, or give ./- to name it", ctx)
        if "float" in option.type.name and isinstance(text, str):
            with contextlib.suppress(ValueError):  # the parser reports it
                if not math.isfinite(float(text)):
                    raise UsageError(f"{name} must be a finite number, not {text}", ctx)


def _printing(ctx: Any) -> list[str]:
    """Return the options of a command that print with ``-``: ``--json``, and ``--out`` of ``convert-results``."""
    wanted = "--out" if ctx.command.name == "convert-results" else "--json"
    return [wanted] if any(wanted in option.opts for option in ctx.command.params) else []


class OneLineErrors(TyperGroup):
    """Turn errors into exit codes, for all commands.

    A user-fixable error prints one line on stderr and exits with 2. Ctrl-C gives 130, and a closed output pipe 141, as
    SIGPIPE would. Every other exception is a bug, for which :func:`main` exits with 3.
    """

    def __init__(self, *args: Any, commands: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = Commands({**dict.fromkeys(COMMANDS), **(commands or {})})  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the program's own options, and turn errors into exit codes."""
        with _exit_codes():
            return super().parse_args(ctx, args)
        return []

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn errors and Ctrl-C into exit codes; before and after it, Ctrl-C exits at once.

        After it the system ends the process: a handler in Python is not run while the main thread waits for others.
        """
        ours = signal.getsignal(signal.SIGINT) is _stop
        try:
            with _exit_codes():
                if ours:
                    signal.signal(signal.SIGINT, _interrupt)
                return super().invoke(ctx)
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        _fail(f"error: {error}", 2)
    except UsageError as error:
        _fail_usage(error)
    except KeyboardInterrupt as stop:
        _fail(str(stop) or "error: interrupted", 130)
    except ModuleNotFoundError as error:
        module, way_out = way_to_install(error)
        _fail(f"error: this command needs {module}, which is not installed: {way_out}", 2)
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise  # rich turns a pipe closed during help into SystemExit
        _discard(sys.stdout)
        raise typer.Exit(141) from None
    except EOFError as error:
        raise RuntimeError("unexpected end of a file") from error  # typer would take EOFError for Ctrl-D
    except OSError as error:
        if error.errno is None:
            raise
        gone = "the current folder: " if isinstance(error, FileNotFoundError) else ""  # os.getcwd names none
        where = f"{error.filename}: " if error.filename else gone
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full; free some space and run the same command again" if full else error.strerror
        _fail(f"error: {where}{reason}", 2)
    except Exception as error:
        if str(error).startswith("Symlink loop"):  # from Path.resolve, before Python 3.13
            _fail(f"error: {error}", 2)
        if not is_oom(error):
            raise
        _fail("error: there is too little memory; process less at a time, for instance fewer or smaller images", 2)


def _fail_usage(error: Any) -> None:
    """Report an error in the command line; a command without arguments shows its help instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    message, command = error.format_message().rstrip("."), error.ctx.command_path if error.ctx else "saywhere"
    for kind, name in (("int(eger)?", "a whole number"), ("float", "a number")):
        message = re.sub(f"a valid {kind}( range)?", name, message)
    _fail(f"error: {message[:1].lower()}{message[1:]}; see {command} --help", 2)


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    line = line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    try:
        typer.echo(line, err=True)
    except OSError:  # stderr is full or closed; the exit code remains
        _discard(sys.stderr)
    raise typer.Exit(code) from None


def _discard(stream: TextIO) -> None:
    """Redirect a stream to the null device: at exit Python would flush it again and report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saywhere {saywhere.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=OneLineErrors,
    help="Say what is where in images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _collect_later() -> None:
    """Delay the first garbage collection until there are :data:`OBJECTS` objects: startup makes no garbage."""
    usual = gc.get_threshold()

    def settle(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(settle)
            gc.set_threshold(*usual)

    gc.callbacks.append(settle)
    gc.set_threshold(OBJECTS)


def _stop(*_: object) -> NoReturn:
    """Exit at once, which is safe: every file survives a kill."""
    os._exit(130)


def _interrupt(*_: object) -> NoReturn:
    """Stop cleanly at the first Ctrl-C, and at once at the second."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def main() -> None:
    """Run the program ``saywhere``.

    NumPy's linear algebra runs on one thread, for its threads would compete with the engine's for the same processors.
    PyTorch's threads sleep while they wait for each other: on a busy machine, spinning cost six times the CPU time.

    A bug gives a traceback and exit code 3 instead of Python's 1, which means here that some images were skipped: the
    caller may take that for success.
    """
    if callable(signal.getsignal(signal.SIGINT)):  # not ignored, as it is in the background
        signal.signal(signal.SIGINT, _stop)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _collect_later()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by >&-; the next opened file would take its descriptor
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a file name may have characters that the terminal lacks
    try:
        app()
    except Exception:
        import traceback

        traceback.print_exc()
        print("error: this is a bug in saywhere; please report it with the lines above", file=sys.stderr)
        sys.exit(3)
    finally:
        if "torch" not in sys.modules:  # its libraries report objects that are not freed
            gc.freeze()  # skip the last garbage collection, a twentieth of a short command's time
