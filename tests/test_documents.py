"""README, manual and model card: links lead somewhere, commands and files exist, and what is marked runs as written.

A block fenced with ``console run`` runs in a shell, one with ``python run`` in Python, in a temporary folder that holds

- ``photo.jpg`` and the folders ``photos/`` and ``holiday/`` with three photographs each,
- ``my-images/``, a data set in lines of JSON: a cat in ``photos/cat.jpg``, ``regions.jsonl``,
- ``recipes/``, those of the repository.

The blocks of one document share the folder and, if they are Python, their variables, and run in order. Where a line is
``saywhere`` and its words, and needs no shell, it is called in this process, which has loaded the model.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import scripts
from stubs import load_by
from typer.main import get_command
from typer.testing import CliRunner
from video_clips import moving, write_clip

from saywhere.cli import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "saywhere"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
        *(PACKAGE / "pretrained").rglob("README.md"),
    ]
)
SHELL = {"", "console", "bash", "sh", "shell"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    document: Path
    line: int
    language: str
    run: bool
    text: str

    def commands(self) -> list[str]:
        """What is typed: after ``$``, or all lines of a block without a ``$``; continued lines are joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        prompts = [line[2:] for line in lines if line.startswith("$ ")]
        return prompts or lines


def blocks(document: Path, text: str | None = None) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8") if text is None else text
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        language, *tags = match[1].split() or [""]
        yield Block(document, text[: match.start()].count("\n") + 1, language, "run" in tags, match[2])


def unfenced(document: Path) -> str:
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def prose(document: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", unfenced(document))


def code_in_prose(document: Path) -> list[str]:
    """What stands between backticks, on one line or broken over two; without the escapes of tables."""
    found = re.findall(r"`([^`]+)`", re.sub(r"\n(?!\n)", " ", unfenced(document)))
    return [text.replace("\\|", "|") for text in found]


def anchors(document: Path) -> set[str]:
    """The names that a forge gives to headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ +(.+?)\s*$", unfenced(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    text = prose(document)
    links = re.findall(r"\]\(([^()\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: +(\S+)", text, re.MULTILINE)
    broken: list[str] = []
    for link in links:
        if urllib.parse.urlsplit(link).scheme:
            continue
        path, _, anchor = urllib.parse.unquote(link).partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def complaint(command: Any, words: list[str]) -> str | None:
    """What is wrong with the words after ``saywhere``: an unknown command or option, a missing or superfluous value."""
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    options = {name: p for p in command.params for name in (*p.opts, *p.secondary_opts) if name.startswith("-")}
    options |= dict.fromkeys(("--help", "-h"))
    values, rest = 0, iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if not word.startswith("-") or word == "-":
            values += 1
        elif name not in options:
            return f"no option {name}"
        elif (option := options[name]) is not None and not option.is_flag and not equals and next(rest, None) is None:
            return f"{name} without a value"
    if {"--help", "-h", "--version"} & set(words):
        return None
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if values < sum(p.required for p in arguments):
        return "an argument is missing"
    return "too many arguments" if values > len(arguments) and all(p.nargs != -1 for p in arguments) else None


@pytest.fixture(scope="module")
def program() -> Any:
    return get_command(app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import skimage
    from PIL import Image

    packaged = Path(skimage.data_dir)
    for name in ("photos", "holiday", "my-images/photos"):
        (tmp_path / name).mkdir(parents=True)
    for source, target in {"astronaut": "person", "camera": "beach", "motorcycle_left": "motorcycle"}.items():
        image = Image.open(packaged / f"{source}.png").convert("RGB")
        for name in ("photos", "holiday"):
            image.save(tmp_path / name / f"{target}.jpg")
    (tmp_path / "photo.jpg").write_bytes((tmp_path / "photos" / "person.jpg").read_bytes())
    Image.open(packaged / "chelsea.png").convert("RGB").save(tmp_path / "my-images" / "photos" / "cat.jpg")
    cat = {"image": "photos/cat.jpg", "regions": [{"box": [34, 20, 310, 280], "phrase": "a tabby cat"}]}
    (tmp_path / "my-images" / "regions.jsonl").write_text(json.dumps(cat | {"split": "train"}) + "\n")
    if (ROOT / "recipes").is_dir():
        (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def execute(marked: list[Block], folder: Path) -> None:
    """Run the blocks as written, in the folder; the first that fails is named with its document and line."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    variables: dict[str, Any] = {"__name__": "__main__"}
    for block in marked:
        where = f"{block.document.name}:{block.line}"
        if block.language == "python":
            exec(compile(block.text, where, "exec"), variables)
            continue
        lines = block.commands()
        apart = all(re.fullmatch(r"(saywhere|ls) [^&|;<>$*`]+", line) for line in lines)
        for script in lines if apart else ["\n".join(lines)]:
            if apart and script.startswith("saywhere "):
                called = CliRunner().invoke(app, shlex.split(script)[1:], catch_exceptions=False)
                code, said = called.exit_code, called.output
            else:
                bash = ["bash", "-euo", "pipefail", "-c", script]
                done = subprocess.run(bash, cwd=folder, env=environment, capture_output=True, text=True)
                code, said = done.returncode, done.stdout + done.stderr
            assert code == 0, f"{where}: {script}: exit code {code}\n{said}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_relative_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_and_their_options_exist(document: Path, program: Any) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong: list[str] = []
    for block in blocks(document):
        for command in block.commands() if block.language in SHELL else []:
            words = shlex.split(command, comments=True) if re.match(r"(saywhere|make)( |$)", command) else []
            if words[:1] == ["saywhere"] and (reason := complaint(program, words[1:])):
                wrong.append(f"{command}: {reason}")
            if words[:1] == ["make"]:
                wrong += [f"{command}: no target {w}" for w in words[1:] if "=" not in w and w not in targets]
            recipes = [word for word in words if re.fullmatch(r"recipes/[a-z0-9-]+\.yaml", word)]
            wrong += [f"{command}: no file {recipe}" for recipe in recipes if not (ROOT / recipe).is_file()]
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_and_files_in_prose_exist(document: Path, program: Any) -> None:
    known = {option for command in commands(program) for p in command.params for option in (*p.opts, *p.secondary_opts)}
    known |= {"--help", "--size", "--slow"}  # the last two are of benchmarks
    wrong: list[str] = []
    for text in code_in_prose(document):
        words = text.split()
        if words[:1] == ["saywhere"] and not {"TASK", "..."} & set(words):
            reason = complaint(program, shlex.split(text)[1:]) or ""
            wrong += [f"{text}: {reason}"] if reason.startswith("no ") else []
        elif text.startswith("--") and words[0] not in known:
            wrong.append(f"no command has {text}")
        elif re.fullmatch(r"(recipes|benchmarks|docs|tests)/[\w./-]+", text) and not (ROOT / text).exists():
            wrong.append(f"no file {text}")
    assert wrong == []


def test_the_files_that_contributing_names_exist() -> None:
    named = {text for text in code_in_prose(ROOT / "CONTRIBUTING.md") if re.fullmatch(r"[\w/]+(\.py|/)", text)}
    assert {"models/densecap.py", "networks/aligner/network.py", "engines/arrays/"} <= named
    lost = {text for text in named if not (ROOT / text).exists() and not (PACKAGE / text).exists()}
    assert [text for text in sorted(lost) if "/" in text.strip("/") or not any(PACKAGE.rglob(text.strip("/")))] == []


def test_the_names_that_contributing_gives_are_in_the_files_that_it_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`(\w+/[\w/]+\.py|[a-z]+\.py)`(?: \(|: )`(?:\w+\.)?(\w+)`", text)
    for names, file in re.findall(r"((?:`\w+`(?:, | and )?)+)(?: \([^)]*\))? (?:in|of) `([\w/]+\.py)`", text):
        pairs += [(file, name) for name in re.findall(r"`(\w+)`", names)]
    assert {("models/aligner.py", "similarity_blocks"), ("regions.py", "SHOWN")} <= {*pairs}
    files = {file: [ROOT / file] if (ROOT / file).exists() else [*PACKAGE.rglob(file)] for file, _ in pairs}
    texts = {file: "".join(path.read_text(encoding="utf-8") for path in paths) for file, paths in files.items()}
    assert [(file, name) for file, name in pairs if not re.search(rf"\b{name}\b", texts[file])] == []


def commands(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands(below)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_blocks_compile(document: Path) -> None:
    for block in blocks(document):
        if block.language == "python":
            compile(block.text, f"{document.name}:{block.line}", "exec")


@pytest.fixture(scope="module")
def opened() -> dict[str, Any]:
    """The bundled model by the settings that it was asked for with, most often none."""
    return {}


@pytest.fixture
def bundled_once(opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the bundled model once for the blocks of all documents."""
    import saywhere

    usual = saywhere.load

    def load(name: str = saywhere.DEFAULT_MODEL, device: str | None = None, **settings: Any) -> Any:
        if name != saywhere.DEFAULT_MODEL:
            return usual(name, device, **settings)
        key = json.dumps([device, {name: value for name, value in settings.items() if value}], sort_keys=True)
        if key not in opened:
            opened[key] = usual(name, device, **settings)
        return opened[key]

    load_by(monkeypatch, load)


@pytest.mark.usefixtures("bundled_once")
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(block.run for block in blocks(d))], ids=name_of)
def test_marked_blocks_run_as_written(document: Path, folder: Path) -> None:
    marked = [block for block in blocks(document) if block.run]
    assert {block.language for block in marked} <= SHELL - {""} | {"python"}
    execute(marked, folder)


@pytest.mark.usefixtures("bundled_once")
@pytest.mark.parametrize("name", ["README.md", "docs/describe.md", "docs/models.md", "docs/search.md"])
def test_python_blocks_run_on_images_that_show_nothing(name: str, folder: Path) -> None:
    from PIL import Image

    for path in folder.rglob("*.jpg"):
        Image.new("RGB", (512, 512), "white").save(path)
    marked = [block for block in blocks(ROOT / name) if block.run and block.language == "python"]
    assert marked
    execute(marked, folder)


def public_api() -> Iterator[tuple[str, Any]]:
    """Everything that ``import saywhere`` offers and has a docstring of its own, and the methods of a model."""
    import saywhere

    for name in saywhere.__all__:
        if callable(getattr(saywhere, name)):
            yield name, getattr(saywhere, name)
    for name, method in vars(saywhere.Model).items():
        if not name.startswith("_") and callable(method):
            yield f"Model.{name}", method


@pytest.fixture(scope="module")
def bundled() -> Any:
    import saywhere

    return saywhere.load()


@pytest.mark.parametrize(("name", "item"), list(public_api()), ids=[name for name, _ in public_api()])
def test_examples_of_docstrings_run(name: str, item: Any, folder: Path, bundled: Any) -> None:
    import saywhere

    if name == "follow":
        write_clip(folder / "clip.mp4", moving(1))
    elif name == "train":
        pytest.importorskip("torch")
        from tiny_training import write_data, write_recipe

        write_recipe(folder / "recipe.yaml", write_data(folder / "data"))
    globs = {"saywhere": saywhere, "model": bundled}
    (test,) = doctest.DocTestFinder(recurse=False).find(item, name, globs=globs)
    said: list[str] = []
    assert test.examples and doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs").rglob("*.ipynb")), ids=name_of)
def test_notebooks_run_from_top_to_bottom(notebook: Path, folder: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    execute([Block(notebook, number, "python", True, text) for number, text in enumerate(code)], folder)


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return scripts.load("benchmarks/figures.py")


def test_documents_state_the_figures_that_were_last_measured(figures: ModuleType) -> None:
    results = figures.load()
    assert results.keys() == figures.MEASUREMENTS.keys()
    for document in figures.STATEMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        assert figures.rewritten(document, text, results) == text, "run: python benchmarks/figures.py write"
    for result in results.values():
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", result["date"]) and result["machine"] and result["figures"]


def test_every_figure_of_the_readme_has_a_result(figures: ModuleType, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for sentence in figures.STATEMENTS["README.md"]:
        text = text.replace(figures.place(sentence, text)[0], "")
    (tmp_path / "rest.md").write_text(text)
    text = re.sub(r"\]\([^)]*\)", "", prose(tmp_path / "rest.md"))
    left = re.findall(r"\d+\.\d+|\d[\d,]* ?(?:%|(?:s|ms|kB|MB|GB|images a second)\b)", text)
    threshold, of_others = ["0.5"], ["0.165", "0.118", "0.160", "0.167", "0.67", "0.213", "0.203"]
    python, apache = ["3.11"], ["2.0"]
    assert left == threshold + of_others + python + apache


def test_figures_are_written_where_they_are_stated(figures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "STATEMENTS", {"README.md": ("takes {a.s:.2f} s in int8, or {b-c.mb:,.0f} MB",)})
    results = {
        "a": {"command": "do a", "date": "2026-01-02", "machine": "here", "figures": {"s": 0.5}, "table": ["| x |"]},
        "b-c": {"command": "do b", "date": "2026-01-03", "machine": "there", "figures": {"mb": 1234.4}},
    }
    text = "In 1 day it takes 12 s in\nint8, or 3 MB, or 3 MB."
    new = "In 1 day it takes 0.50 s in\nint8, or 1,234 MB, or 3 MB."
    assert figures.rewritten("README.md", text, results) == new
    page = "<!-- figures -->old<!-- /figures -->\n<!-- a -->\n<!-- /a -->\nend"
    written = figures.rewritten("benchmarks/README.md", page, results)
    assert "\n| takes 0.50 s in int8, or 1,234 MB | `do a`, `do b` | 2026-01-02, 2026-01-03 |\n" in written
    assert (
        written.endswith("<!-- a -->\n\n`do a`, 2026-01-02, here:\n\n| x |\n\n<!-- /a -->\nend")
        and "old" not in written
    )
    for wrong in ("takes 1 s, or 3 MB", f"{text} {text}"):
        with pytest.raises(SystemExit, match="should have it once: takes"):
            figures.rewritten("README.md", wrong, results)
    with pytest.raises(SystemExit, match="should have <!-- a -->"):
        figures.rewritten("benchmarks/README.md", page.replace("/a", "/b"), results)


def test_a_measurement_is_kept_with_command_date_and_machine(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_bundle import exported_bundle

    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    command = f"python benchmarks/startup.py --rounds 1 --engines onnx --model {exported_bundle()}"
    pick = figures.picked(ground="medians/ground", caption="medians/caption")
    measurement = figures.Measurement(
        command, lambda report: {"seconds": pick(report)["ground"]["onnx"][0], "mb": pick(report)["caption"]["onnx"][2]}
    )
    figures.measure("startup", measurement, ROOT)
    (result,) = figures.load().values()
    assert result["command"] == command and re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert "cores" in result["machine"] and result["figures"]["seconds"] > 0 and result["figures"]["mb"] > 10
    assert [re.findall(r"\w+", line)[:1] for line in result["table"]] == [
        ["command"],
        [],
        ["describe"],
        ["ground"],
        ["caption"],
    ]
    with pytest.raises(SystemExit, match="startup failed with exit code 2"):
        figures.measure("startup", figures.Measurement("python benchmarks/startup.py --rounds few", pick), ROOT)


def test_figures_are_found_in_reports(figures: ModuleType, tmp_path: Path) -> None:
    both = {"onnx": [0.4, 0.5, 200.0], "torch": [4.0, 5.0, 900.0]}
    slower = {"onnx": [0.5, 0.4, 150.0], "torch": [3.0, 5.0, 950.0]}
    assert figures.of_startup({"medians": {"describe": both, "caption": slower}}) == {
        "seconds_onnx": 0.5, "mb_onnx": 200.0, "seconds_torch": 4.0, "mb_torch": 950.0
    }  # fmt: skip
    rows = [
        {"subject": subject, "size": 416, "batch": batch, "images_a_second_and_core": batch + rate}
        for subject, rate in (("onnx", 10), ("int8", 20), ("torch", 5), ("peer", 6))
        for batch in (1, 8)
    ]
    pairs = ("torch / onnx", "torch / int8", "peer / onnx")
    ratios = [
        {"what": f"{pair}, {stage}", "batch": batch, "median": number + 10 * batch + (stage == "trunk") / 2}
        for number, pair in enumerate(pairs)
        for stage in ("describe", "trunk")
        for batch in (1, 8)
    ]
    found = figures.of_describe({"configurations": rows, "ratios": ratios})
    assert found == {
        "size": 416, "batch": 8, "rate": 18, "rate_int8": 28, "trunk": 10.5, "trunk_int8": 11.5, "trunk_batch": 80.5,
        "trunk_int8_batch": 81.5, "torch": 10, "torch_int8": 11, "peer": 12,
    }  # fmt: skip
    assert figures.of_nouns({"objects": {"decoder": 0.64}, "kinds": {"decoder": 0.5}}) == {"objects": 64, "kinds": 50}
    size = scripts.load("benchmarks/size.py")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "a.py").write_bytes(bytes(2_000_000))
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(bytes(1_000_000))
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    core = size.megabytes(tmp_path)
    assert figures.of_size({"core": core, "weights": 50.2, "everything": 7500}) == {
        "core": 3, "sources": 2, "weights": 50.2, "everything": 7.5
    }  # fmt: skip
