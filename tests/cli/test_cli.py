from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run
from photographs import noise
from stubs import load_by
from typer.main import get_command

import saywhere
from saywhere import DEFAULT_MODEL, cli
from saywhere.cli.options import Chosen
from saywhere.errors import UserError

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_does_not_wait_for_torch():
    """Heavy packages are imported by the commands that use them, so that the answer comes at once."""
    code = """
import sys
from saywhere.cli import app
commands = (
    "", "describe", "caption", "ground", "models", "data", "train", "calibrate", "export", "pseudo-label", "papers",
    "papers convert", "papers retrieval", "papers table1", "index", "search", "finetune",
)
tasks = "dense", "caption", "region-captions", "rank", "ground", "attention"
evaluations = [f"evaluate {task}" for task in tasks]
for arguments in map(str.split, (*commands, "data check", "evaluate", *evaluations)):
    try:
        app([*arguments, "--help"])
    except SystemExit as stop:
        assert stop.code == 0, arguments
heavy = {"torch", "timm", "torchvision", "matplotlib", "numpy", "PIL"}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    out = python(code)
    assert out.endswith("heavy: []\n")
    for command in ("describe", "caption", "ground", "models", "train", "data", "evaluate", "export", "papers"):
        assert f" {command} " in out


def test_the_package_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "saywhere", "--version"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"saywhere {saywhere.__version__}\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("a.jpg: is\n  wrong"), 2, "error: a.jpg: is wrong\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (KeyboardInterrupt("interrupted after 3 of 9 images"), 130, "interrupted after 3 of 9 images\n"),
        (ModuleNotFoundError("No module named 'torch'", name="torch.nn"), 2, "error: this command needs torch"),
        (OSError(errno.ENOSPC, "No space left on device", "out/a.jpg"), 2, "error: out/a.jpg: the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: the disk is full; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), 2, "error: out: Permission denied\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), 2, "error: the current folder: No such file"),
        (RuntimeError("Symlink loop from '/a'"), 2, "error: Symlink loop from '/a'\n"),
        (UserError("x" * 10**6 + "; the way out"), 2, "error: xxx"),
    ],
)
def test_a_user_fixable_error_is_one_line(monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("saywhere.inference.find_media", fail)
    result = run("describe", "a.jpg", code=code)
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1 and len(result.stderr) < 5000
    assert result.stdout == "" and ("way out" in result.stderr) == ("way out" in str(error))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe"], "error: missing argument 'PATH...'; see "),
        (["describe", "a.jpg", "--tp", "3"], "error: no such option: --tp"),
        (["describe", "a.jpg", "--top", "few"], "error: invalid value for '--top': 'few'"),
        (["describe", "a.jpg", "--threads", "0"], "error: invalid value for '--threads': 0"),
        (["describ", "a.jpg"], "error: no such command 'describ'. Did you mean 'describe'?; see "),
        (["evaluate", "dense", "--nope"], "error: no such option: --nope"),
        (["--nope"], "error: no such option: --nope"),
        (["search", "a dog", "-q"], "error: no such option: -q"),
        (["search", "a dog", "--index"], "error: option '--index' requires an argument; see root search --help"),
        *(
            (
                [*words, text],
                f"error: a text that begins with - is taken for an option; put it last, after --: {command} ",
            )
            for command, words, text in (
                ("root search", ["search"], "- people"),
                ("root search", ["search", "--top", "2"], "-horse"),
                ("root ground", ["ground", "a.png", "a cat"], "--the dog"),
                ("root describe", ["describe"], "-x.png"),
                ("root alt", ["alt"], "-x.md"),
            )
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(words, message):
    result = run(*words, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
    assert result.stderr.endswith(" --help\n")


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["search", "-a dog"], "root search [OPTIONS] -- '-a dog'; to leave out images that show something, add "
         "--without 'a dog' to a query; see"),
        (["ground", "a.png", "-dog"], "root ground [OPTIONS] -- -dog; see"),
    ],
)  # fmt: skip
def test_a_text_that_begins_with_a_hyphen_is_answered_with_what_to_type(words, way_out):
    assert f"after --: {way_out}" in run(*words, code=2).stderr


@pytest.mark.parametrize(
    ("words", "apart", "way_out"),
    [
        ("search a dog --index i --without a man", "'man' is separated from 'a dog'", "--without 'a man'"),
        ("search dog --index my old album", "'old album' is separated from 'dog'", "--index 'my old album'"),
        ("search a dog --top 3 in snow --index i", "'in snow' is separated from 'a dog'", "'a dog in snow'"),
        ("ground a.png a cat --out my drawings", "'drawings' is separated from 'a cat'", "--out 'my drawings'"),
    ],
)
def test_words_that_lack_their_quotes_are_not_looked_for(words, apart, way_out):
    told = f"error: {apart}; put words that belong together in quotes: {way_out}; see root {words.split()[0]} --help\n"
    assert run(*words.split(), code=2).output == told


@pytest.mark.parametrize(
    ("words", "resumes"),
    [
        ("describe a.png --json r.jsonl", True),
        ("describe a.png --output-format coco --out r", True),
        ("describe a.png --out r", False),
        ("describe a.png --json -", False),
        ("caption a.png --json r.jsonl", True),
        ("caption a.png", False),
        ("ground a.png dog --json r.jsonl", True),
        ("ground a.png dog --out r", False),
        ("alt a.md --cache r.jsonl", True),
        ("alt a.md --write", True),
        ("alt a.md --write --all", False),
        ("alt a.md", False),
        ("index a.png --index i", True),
        ("search a dog --index i", False),
    ],
)
def test_ctrl_c_before_the_first_image_says_whether_the_same_command_goes_on(words, resumes, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("![](a.png)")
    monkeypatch.setattr(Chosen, "deferred", stop)
    monkeypatch.setattr(saywhere, "Index", stop)
    told = "interrupted; run it again to continue\n" if resumes else "error: interrupted\n"
    assert run(*words.split(), code=130).stderr == told


def test_without_a_command_there_is_help():
    for words in ([], ["evaluate"], ["data"]):
        result = run(*words, code=2)
        assert "Usage: " in result.output and "│ " in result.output


def test_help_shows_first_what_asks_a_model_about_images():
    shown = run("--help").output
    places = [shown.index(f"│ {name} ") for name in ("describe", "ground", "caption", "search", "index", "serve")]
    panels = [shown.index(f"─ {panel} ─") for panel in cli.PANELS]
    assert panels[0] < places[0] and places == sorted(places) and places[-1] < panels[1] and panels == sorted(panels)
    assert panels[1] < shown.index("│ train ") < panels[2] < shown.index("│ papers ")


def test_paragraphs_of_a_help_are_folded_by_the_terminal_alone():
    """Typer keeps the line breaks of a docstring in all paragraphs but the first."""
    program: Any = get_command(cli.app)
    for words in ("train", "finetune", "data check", "evaluate dense"):
        command = program
        for word in words.split():
            command = command.commands[word]
        paragraphs = command.help.split("\n\n")
        assert len(paragraphs) > 1 and not any("\n" in each for each in paragraphs), words


def test_no_help_text_is_read_as_markup():
    """Rich would leave out what stands in brackets, such as [x1, y1, x2, y2]."""

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
        for below in getattr(command, "commands", {}).values():
            yield from texts(below)

    shown = [text for text in texts(get_command(cli.app)) if text]
    assert len(shown) > 100 and [text for text in shown if re.search(r"\[[a-z#/@]", text)] == []


def test_help_fits_one_screen():
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    shown = subprocess.run(
        [sys.executable, "-m", "saywhere", "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(shown) <= 40 and max(map(len, shown)) <= 100
    for summaries in cli.PANELS.values():
        for name, summary in summaries.items():
            assert any(f"│ {name} " in line and summary in line for line in shown), name


@pytest.mark.parametrize("error", ["KeyError('ours')", "EOFError()", "OSError('no number')"])
def test_a_mistake_of_ours_is_not_hidden_and_has_a_code_of_its_own(error):
    """It is never 1, which those that start many processes take for success."""
    code = (
        "import sys\nfrom saywhere import cli, inference\ndef fail(*_):\n"
        f"    raise {error}\ninference.find_media = fail\nsys.argv[1:] = ['describe', 'a.jpg']\ncli.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 3 and run.stdout == ""
    assert run.stderr.startswith("Traceback") and "in fail" in run.stderr
    assert run.stderr.endswith("\nerror: this is a bug in saywhere; please report it with the lines above\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are for Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
@pytest.mark.parametrize("module", ["typer", "saywhere.inference.run"])
def test_a_signal_while_the_program_is_imported_ends_it_without_a_traceback(number, code, module, tmp_path):
    """By both of its starts: ``python -m saywhere``, and the function that the command ``saywhere`` calls."""
    place, _, attribute = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["saywhere"].partition(":")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.abc, os, signal, sys\n"
        "class Signalled(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Signalled())\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for start in (["-m", "saywhere"], ["-c", f"from {place} import {attribute}; {attribute}()"]):
        command = [sys.executable, *start, "describe", str(tmp_path / "a.jpg")]
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        said = "error: interrupted\n" if module != "typer" and number == signal.SIGINT else ""
        assert (run.returncode, run.stdout, run.stderr) == (code, "", said)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are for Unix")
def test_a_second_ctrl_c_ends_the_program_at_once():
    """Also while it waits for threads at its end, where an exception would be one of the interpreter's own."""
    code = (
        "import os, signal, sys\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "from saywhere import cli, inference\n"
        "pool = ThreadPoolExecutor(1)\ndef second():\n    os.read(0, 1)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.read(0, 1)\ndef stop(*_):\n    pool.submit(second)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "inference.find_media = stop\nsys.argv[1:] = ['describe', 'a.jpg']\ncli.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stderr and process.stderr.readline() == "error: interrupted\n"
        process.stdin.write("x")
        process.stdin.flush()
        assert (process.wait(timeout=600), process.stderr.read()) == (-signal.SIGINT, "")  # 130 in a shell


def test_the_program_ends_after_its_threads_and_what_is_to_be_called_at_the_end():
    code = (
        "import atexit, sys, threading, time\nfrom saywhere import __main__ as program, cli\n"
        "def end():\n    time.sleep(0.01)\n    print('a thread')\n"
        "def run():\n    atexit.register(print, 'at the end')\n    threading.Thread(target=end).start()\n"
        "    sys.exit(7)\n"
        "cli.main = run\nprogram.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (7, "a thread\nat the end\n", "")


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,), (2,)])
def test_closed_streams_are_no_error_and_no_file_takes_their_place(tmp_path, closed):
    """As a daemon starts programs, or ``saywhere ... >&-``."""
    program = (
        "import os, sys, saywhere.cli\n"
        "def talk(): print('out'); print('err', file=sys.stderr); open('taken', 'w').write(str(sys.stdin.read(1)))\n"
        "saywhere.cli.app.command('talk')(talk); sys.argv = ['saywhere', 'talk']\n"
        "saywhere.cli.main()"
    )
    command = [sys.executable, "-c", program]
    start = f"import os; [os.close(n) for n in {closed}]; os.execv({sys.executable!r}, {command})"
    run = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, cwd=tmp_path,
                         stdin=subprocess.DEVNULL)  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (
        0,
        "" if 1 in closed else "out\n",
        "" if 2 in closed else "err\n",
    )
    assert (tmp_path / "taken").read_text() == ""


def test_a_closed_pipe_is_no_error(tmp_path):
    """``saywhere ... | head`` ends quietly, with the code of a program that ``head`` has stopped."""
    code = (
        "import saywhere.cli, typer, sys\nsaywhere.cli.app.command('talk')(lambda: [print(i) for i in range(99999)])\n"
    )
    read, write = os.pipe()
    os.close(read)
    for arguments in (["talk"], ["describe", "--help"]):
        talk = [sys.executable, "-c", f"{code}saywhere.cli.app({arguments})"]
        run = subprocess.run(talk, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        assert (run.returncode, run.stderr) == (141, ""), arguments
    os.close(write)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has the device that is always full")
def test_what_cannot_be_written_to_stderr_leaves_the_exit_code():
    command = [sys.executable, "-m", "saywhere", "describe", "nosuch.jpg"]
    for unbuffered in ("", "1"):  # what is buffered is written once more at exit
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "w") as full:
            assert subprocess.run(command, stderr=full, env=environment, check=False).returncode == 2


def test_threads_of_torch_sleep_while_they_wait(monkeypatch):
    code = "import saywhere.cli as cli; cli.app = lambda: __import__('torch'); cli.main()"
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '0'" in run.stderr


def test_devices_are_listed(monkeypatch):
    found = ["CPUExecutionProvider", "OpenVINOExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: found)
    lines = run("models", "--devices").stdout.splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["cpu", "cuda", "coreml", "directml", "openvino"]
    assert lines[4] == "openvino\tOpenVINOExecutionProvider, installed"
    assert lines[1].endswith(
        "has no CUDAExecutionProvider: pip uninstall onnxruntime, then pip install onnxruntime-gpu"
    )


def test_the_bundled_models_are_listed(monkeypatch, tmp_path):
    """Each name can be given to ``--model``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = run("models").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(saywhere.list_models())
    assert DEFAULT_MODEL in saywhere.list_models() and all(len(line.split()) > 3 for line in listed)
    monkeypatch.setattr(saywhere, "list_models", dict, raising=False)
    bare = run("models")
    assert "comes without a model" in bare.stdout
    assert bare.stderr == "not installed: large, which is better and slower; to build it see docs/models.md\n"
    monkeypatch.setattr(saywhere, "list_models", lambda: {"large": "better"}, raising=False)
    assert not run("models").stderr


def test_no_command_imports_another():
    folder = Path(cli.__file__).parent
    names = {name.replace("-", "_") for name in cli.COMMANDS}
    assert {"describe", "ground", "caption", "export"} <= names
    for path in folder.glob("*.py"):
        if path.name != "__init__.py":
            imported = set(re.findall(r"saywhere\.cli(?:\.| import )(\w+)", path.read_text()))
            assert not imported & names, path


def test_using_a_model_imports_neither_evaluation_nor_training(tmp_path):
    noise(64, 48).save(tmp_path / "a.png")
    code = f"""
import sys
from saywhere.cli import app
for arguments in (["models"], ["describe"], ["ground", "a dog"], ["caption"]):
    image = [{str(tmp_path / "a.png")!r}] if arguments != ["models"] else []
    try:
        app([arguments[0], *image, *arguments[1:]])
    except SystemExit as stop:
        assert stop.code == 0, arguments
    names = {{".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("saywhere.")}}
    assert not names & {{"saywhere.evaluation", "saywhere.training"}}, arguments
    assert "torch" not in sys.modules or arguments != ["models"]
    assert not names & {{"saywhere.drawing", "saywhere.data"}} and "rich" not in sys.modules, arguments
print("all four ran")
"""
    assert python(code).endswith("all four ran\n")


@pytest.mark.parametrize(
    "line",
    [
        "describe a.jpg --out", "ground a.jpg x --out", "search x --index i --out",
        "search x --index", "index photos --index", "finetune photos --out", "train table1 --out", "export a --out",
        "export --web", "pseudo-label a.jsonl --out", "data check a.jsonl --out", "papers table1 --out",
        "papers convert a.t7", "papers results a.jsonl", "convert-results a.jsonl --to yolo --out",
        "convert-results a.jsonl --to voc --out",
        *(f"evaluate {task} --data nothing --model nothing --out" for task in (
            "dense", "caption", "region-captions", "rank", "search", "ground", "nouns", "attention"
        )),
    ],
)  # fmt: skip
def test_the_name_of_a_file_where_a_folder_is_meant_is_an_error(line: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").touch()
    option = line.split()[-1] if "--" in line else "out"
    images = [(f"new{suffix}", "an image") for suffix in (".jpg", ".HEIC", ".gif", ".tiff", ".cr2", ".webp", ".jp2")]
    for name, kind in (*images, ("new.json", "a file"), ("new.svg", "a file"), ("a.jsonl", "a file")):
        error = error_of(run(*line.split(), name, code=2))
        assert error == f"error: {option} {name}: is the name of {kind}; give the name of a folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_package_that_is_named_whole_is_imported_when_it_is_used():
    code = "import sys, saywhere\nprint('saywhere.search' in sys.modules, saywhere.search.Query.__name__)"
    assert python(f"{code}\nprint('search' in dir(saywhere))") == "False Query\nTrue\n"
    assert not hasattr(saywhere, "serch")


@pytest.mark.parametrize(
    "line",
    [
        "describe a.jpg --model a --model=b",
        "evaluate dense --device cpu --device cuda",
        "papers table1 --out a --out b",
        "index a.jpg --index a --index b",
    ],
)
def test_an_option_with_one_value_is_given_once(line: str) -> None:
    error = error_of(run(*line.split(), code=2))
    option = next(part for part in line.split() if part.startswith("--"))
    assert error.startswith(f"error: {option} is given 2 times, but takes one value; see ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mcp", ""], "the argument FOLDER... is empty: give a value, or leave it out"),
        (["describe", "a.jpg", ""], "the argument PATH... is empty: give a value, or leave it out"),
        (["serve", "--model", ""], "--model is empty: give a value, or leave it out"),
        (["serve", "--label-studio-files="], "--label-studio-files is empty: give a value, or leave it out"),
        (["data", "check", "a", "--out", ""], "--out is empty: give a value, or leave it out"),
        (["describe", "a.jpg", "--threshold", "nan"], "--threshold must be a finite number, not nan"),
        (["index", "a", "--index", "i", "--watch", "--poll", "1e999"], "--poll must be a finite number, not 1e999"),
        (["alt", "a.html", "--root", "nothing"], "--root nothing: no such folder"),
        (["alt", "a.html", "--cache", "."], "--cache .: is a folder; give the name of a file"),
        *(
            (
                [*words, "new.HEIC"],
                f"{words[-1]} new.HEIC: is the name of an image; give another, such as results.jsonl",
            )
            for words in (
                ["alt", "a.html", "--cache"],
                ["describe", "a.jpg", "--json"],
                ["caption", "a.jpg", "--json"],
                ["ground", "a.jpg", "a dog", "--json"],
                ["search", "a dog", "--index", "i", "--json"],
            )
        ),
        (["alt", Path(__file__).parent], f"{Path(__file__).parent}: no HTML or Markdown files in this folder"),
        (
            ["describe", "a.jpg", "--out", "-"],
            "--out -: would be something named -; to print results give --json -, or give ./- to name it",
        ),
        (
            ["export", "a", "--out", "-"],
            "--out -: would be something named -; this command prints no results, or give ./- to name it",
        ),
        (["mcp", ".", "--token", "x"], "--host, --token and --allowed-host are for HTTP: give --port as well"),
        (
            ["ground", "a.jpg", "a dog", "--beta", "1", "--threshold", "0.5"],
            "--threshold cannot choose among the phrases of --beta: all of them count as found",
        ),
        (["describe", "a.jpg", "--threshold", "0,3"], "invalid value for '--threshold': '0,3' is not a number"),
        (
            ["index", "a.jpg", "--index", __file__],
            f"--index {__file__}: is the name of a file; give the name of a folder",
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_with_what_is_needed(words: list[str], message: str) -> None:
    """A variable of the shell that is not set would be the default, or the folder that the user is in."""
    result = run(*words, code=2)
    assert result.stderr.partition("; see ")[0].rstrip() == f"error: {message}"


def test_no_option_makes_a_file_named_hyphen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = 0

    def visit(command: Any, words: list[str]) -> None:
        nonlocal seen
        for one in getattr(command, "commands", {}).values():
            visit(one, [*words, one.name])
        for option in command.params:
            if option.param_type_name == "option" and "path" in option.type.name:
                seen += 1
                arguments = ["x" for each in command.params if each.param_type_name == "argument"]
                result = run(*words, *arguments, f"{option.opts[0]}=-", code=2)
                assert "-: would be something named -" in result.stderr or option.opts[0] == "--json" or words == [
                    "convert-results"
                ], result.stderr  # fmt: skip

    for name in cli.COMMANDS:
        visit(get_command(cli.app).commands[name], [name])  # pyright: ignore[reportAttributeAccessIssue]
    assert seen > 50 and not [*tmp_path.iterdir()]


def test_too_little_memory_is_one_line_for_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    photo = tmp_path / "a.jpg"
    noise(64, 48).save(photo)
    monkeypatch.setattr("saywhere.loading.load", fail)
    load_by(monkeypatch, fail)
    for line in (f"caption {photo}", f"ground {photo} dog", f"index {photo} --index {tmp_path}/i"):
        result = run(*line.split(), code=2)
        assert "too little memory" in result.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["saywhere", "desc"], ["describe"]),
        (["saywhere", "describe", "--thre"], ["--threads", "--threshold"]),
        (["saywhere", "evaluate", "den"], ["dense"]),
        (["saywhere", "convert-results", "x", "--to", "y"], ["yolo"]),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], offered: list[str], monkeypatch) -> None:
    """By what the Tab key asks in a shell."""
    monkeypatch.setenv("_SAYWHERE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    code = "import sys; sys.argv[0] = 'saywhere'; from saywhere.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert sorted(done.stdout.split()) == offered, done.stderr
