"""The command line: one module a command, each thin: parse, call the library, print.

A command's module is imported when the command is called, and what it needs when it runs, so that all answer at once.
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

PANELS = {
    "Ask a model about images": {
        "describe": "Describe what is where in images and videos: boxes, scores, phrases.",
        "ground": "Find the box of each phrase of a text, or say that it is not there.",
        "caption": "Caption each image with a sentence.",
        "alt": "Propose alternative texts for the images of HTML and Markdown files.",
        "search": "Find the images of an index that fit a text or are like an image.",
        "index": "Bring an index for search up to date with folders of images and videos.",
        "serve": "Answer questions over HTTP, and serve a page that asks them.",
        "mcp": "Offer tools for images to language models (Model Context Protocol).",
        "models": "List the models that are there.",
        "convert-results": "Convert results to or from COCO, Label Studio, CVAT, YOLO and others.",
    },
    "Train and measure a model of your own": {
        "data": "Inspect data sets.",
        "finetune": "Teach a model your own images.",
        "train": "Train what a recipe says, from one network to a whole model.",
        "calibrate": "Make scores probabilities (Platt scaling).",
        "export": "Make one model of trained parts, which runs without torch.",
        "evaluate": "Measure how good a model's answers are.",
        "pseudo-label": "Make boxes with phrases of a data set that has sentences.",
    },
    "Published programs and tables": {"papers": "Reproduce them."},
}
"""The commands in the order of ``--help``, by its panels, each with its line there.

Each has a module with a function of its name, or an ``app`` of several.
"""

COMMANDS = {name: panel for panel, names in PANELS.items() for name in names}
"""The panel of each command."""

EXTRAS = {
    "torch": "torch",
    "torchvision": "torch",
    "timm": "torch",
    "transformers": "transformers",
    "yaml": "train",
    "matplotlib": "train",
    "pycocoevalcap": "evaluate",
    "cv2": "proposals",
    "torchfile": "convert",
    "starlette": "serve",
    "uvicorn": "serve",
    "python_multipart": "serve",
    "av": "video",
    "pyarrow": "parquet",
}
"""For each optional module the extra that installs it."""

OBJECTS = 100_000
"""Objects before the first search for garbage; a command that asks one question of one image makes 75,000."""

LONGEST = 4000
"""Characters of an error; what a damaged file has in it may be a megabyte."""

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises for a wrong command line."""


class Commands(UserDict[str, Any]):
    """Commands by name; those of :data:`COMMANDS` are imported when they are first asked for."""

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
            _refuse_odd_values(command)
            _tell_of_resuming(command)
            self.data[name] = command
        return command


def _tell_of_resuming(command: Any) -> None:
    """Let a command that Ctrl-C stops say that it goes on when it is given again, also before its first image."""
    invoke = command.invoke

    def invoke_resuming(ctx: Any) -> Any:
        try:
            return invoke(ctx)
        except KeyboardInterrupt as stop:
            told, given = str(stop), ctx.params
            if not told and _resumes(command.name, given):
                told = "interrupted; the same command goes on from here"
            again = "the same command without --restart" if given.get("restart") else "the same command"
            raise KeyboardInterrupt(told.replace("the same command", again)) from None

    command.invoke = invoke_resuming


def _resumes(command: str, given: Mapping[str, Any]) -> bool:
    """Return whether a command keeps what is done, by its options, and goes on from there."""
    if command in ("describe", "caption", "ground"):
        file = given["json"] or (given.get("out") if given.get("output_format", "saywhere") != "saywhere" else None)
        return file is not None and str(file) != "-"
    if command == "alt":
        return given["cache"] is not None or (given["write"] and not given["every"])
    return command in ("index", "evaluate", "pseudo-label", "finetune", "train")


def _refuse_odd_values(command: Any) -> None:
    """Make it an error, for a command and all below it, what the parser takes for a value.

    An option with one value that is given twice; nothing, as of a variable of the shell that is not set, which would be
    the default or the folder that the user is in; a number that is none or has no end, which no limit refuses.
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
                error.__dict__["ctx"] = ctx  # whose help is to be seen
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
    """Return what is to be said instead of "no such option" where a text or a file name begins with a hyphen."""
    name = getattr(error, "option_name", "")
    texts = (text for text in typed if text.startswith("-") and (" " in text or not text.startswith("--")))
    text = next((text for text in texts if len(text) > 2 and name[1:2] in text[1:]), None)
    if type(error).__name__ != "NoSuchOption" or text is None:
        return error
    import shlex

    leave_out = "" if not any("--without" in option.opts for option in ctx.command.params) else (
        f"; to leave out images that show something, give what is wanted and --without {shlex.quote(text.lstrip('- '))}"
    )  # fmt: skip
    after = f"put it last, after --: {ctx.command_path} [OPTIONS] -- {shlex.quote(text)}"
    return UsageError(f"what begins with - is taken for an option; {after}{leave_out}", ctx)


def _check_together(texts: Sequence[str], typed: Sequence[str], ctx: Any) -> None:
    """Check that the words of a text stand together: of ``--without a man`` the man would be looked for."""
    import shlex

    count = len(texts)
    if count < 2 or any([*texts] == [*typed[at : at + count]] for at in range(len(typed))):
        return
    stop = len(typed) - [*reversed(typed)].index(texts[-1])
    apart = next(n for n in range(1, count) if typed[stop - n - 1] != texts[-n - 1])
    if any(" " in text for text in texts[-apart:]):  # which somebody put in quotes
        return
    option, value = typed[stop - apart - 2 : stop - apart]
    kind = next((each.type.name for each in ctx.command.params if option in each.opts), "int")
    takes_text = "int" not in kind and "float" not in kind
    quoted = shlex.quote(" ".join([value, *texts[-apart:]] if takes_text else texts))
    way_out = f"put words that belong together in quotes: {f'{option} {quoted}' if takes_text else quoted}"
    raise UsageError(f"{' '.join(texts[-apart:])!r} stands apart from {' '.join(texts[:-apart])!r}; {way_out}", ctx)


def _check_values(option: Any, value: Any, count: int, ctx: Any) -> None:
    """Check what an option or argument is given, as it is typed."""
    is_option = option.param_type_name == "option"
    name = option.opts[0] if is_option else f"the argument {option.make_metavar(ctx)}"
    if is_option and count > 1 and not (option.multiple or option.is_flag or option.count):
        raise UsageError(f"{name} is given twice and has one value", ctx)
    for text in value if isinstance(value, list | tuple) else [value]:
        if text == "":
            raise UsageError(f"{name} is empty: give a value, or leave it out", ctx)
        if "float" in option.type.name and isinstance(text, str):
            with contextlib.suppress(ValueError):  # which the parser explains
                if not math.isfinite(float(text)):
                    raise UsageError(f"{name} must be a finite number, not {text}", ctx)


class OneLineErrors(TyperGroup):
    """The one place that turns errors into exit codes.

    A user-fixable error is one line on stderr and 2, Ctrl-C 130, a reader of the output who went away 141, as the
    signal SIGPIPE would give. All others are faults of the program, and :func:`main` gives 3 for them.
    """

    def __init__(self, *args: Any, commands: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = Commands({**dict.fromkeys(COMMANDS), **(commands or {})})  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the program's own options; errors become exit codes."""
        with _exit_codes():
            return super().parse_args(ctx, args)
        return []

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become exit codes, and so does Ctrl-C, which before and after ends it at once."""
        ours = signal.getsignal(signal.SIGINT) is _stop
        try:
            with _exit_codes():
                if ours:
                    signal.signal(signal.SIGINT, _interrupt)
                return super().invoke(ctx)
        finally:
            if ours:
                signal.signal(signal.SIGINT, _stop)


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
        module = (error.name or "").split(".")[0]
        if module not in EXTRAS:
            raise
        way_out = f"pip install 'saywhere[{EXTRAS[module]}]'"
        _fail(f"error: this command needs {module}, which is not installed: {way_out}", 2)
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise  # a closed pipe ends rich's pages of help in the latter
        _discard(sys.stdout)
        raise typer.Exit(141) from None
    except EOFError as error:
        raise RuntimeError("a file ended too soon") from error  # typer takes the other one for Ctrl-D
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full; free some space and run the same command again" if full else error.strerror
        _fail(f"error: {where}{reason}", 2)
    except Exception as error:
        if str(error).startswith("Symlink loop"):  # of Path.resolve, until Python 3.12
            _fail(f"error: {error}", 2)
        if not is_oom(error):
            raise
        _fail("error: there is too little memory; give less at a time, such as smaller or fewer images", 2)


def _fail_usage(error: Any) -> None:
    """Report what is wrong with the command line; a command without arguments shows its help instead."""
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
    except OSError:  # it is full or closed: the exit code still tells
        _discard(sys.stderr)
    raise typer.Exit(code) from None


def _discard(stream: TextIO) -> None:
    """Send what is left to write nowhere: at exit Python would try again, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saywhere {saywhere.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=OneLineErrors,
    help="Say what is where in an image.",
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
    """Let the first search for garbage wait until there are many objects: a command that starts makes no garbage."""
    usual = gc.get_threshold()

    def settle(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(settle)
            gc.set_threshold(*usual)

    gc.callbacks.append(settle)
    gc.set_threshold(OBJECTS)


def _stop(*_: object) -> NoReturn:
    """Stop at once: every file survives a kill."""
    os._exit(130)


def _interrupt(*_: object) -> NoReturn:
    """Stop in good order at the first Ctrl-C, and at once at the second."""
    signal.signal(signal.SIGINT, _stop)
    raise KeyboardInterrupt


def main() -> None:
    """Run the program ``saywhere``.

    NumPy computes on one thread: those of its linear algebra and the engine's would wait for the same processors. Those
    of PyTorch sleep while they wait for one another: on a busy machine they took six times the processor's time.

    An error that is a fault of the program gives a traceback and exit code 3, not Python's 1: that is the code of runs
    that have done all but some images, which those who start them take for success.
    """
    if callable(signal.getsignal(signal.SIGINT)):  # and not ignored, as in the background
        signal.signal(signal.SIGINT, _stop)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _collect_later()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by >&-; else the next file that is opened would be in its place
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know the letters of a file's name
    try:
        app()
    except Exception:
        import traceback

        traceback.print_exc()
        print("error: this is a fault of saywhere; please report it with the lines above", file=sys.stderr)
        sys.exit(3)
    finally:
        if "torch" not in sys.modules:  # whose libraries report what is not freed
            gc.freeze()  # nobody needs to look for garbage any more, which takes a twentieth of a short command
