"""The layout of the code: floors import only from floors above them, and each file does one thing.

Imports are read from the source, so those inside functions and those for the type checker count as well.
"""

from __future__ import annotations

import ast
import functools
import gc
import io
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from chromium import chromium, web_runtime
from extras import needs_extras
from photographs import noise

from saywhere import reproductions

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "saywhere"

FLOORS = (
    ("errors",),
    ("reproductions",),
    ("files",),
    ("options",),
    ("report",),
    ("boxes",),
    ("text",),
    ("drawing",),
    ("archives",),
    ("pixels",),
    ("images",),
    ("regions",),
    ("calibration",),
    ("configs",),
    ("engines.engine", "engines.arrays"),
    ("models",),
    ("adapters.sources",),
    ("engines.onnx",),
    ("loading",),
    ("alt",),
    ("formats",),
    ("inference",),
    ("video",),
    ("search",),
    ("serve",),
    ("web",),
    ("adapters.adapter",),
    ("adapters.florence2", "adapters.grounding_dino", "adapters.owlv2"),
    ("adapters.graphs",),
    ("adapters.model",),
    ("data",),
    # What stands above imports without torch; what stands below may need it.
    ("networks",),
    ("engines.torch", "engines.quantize", "engines.tower", "engines.export"),
    ("adapters.pretrained",),
    ("training",),
    ("evaluation",),
    ("stages",),
    ("integrations",),
    ("cli",),
    ("papers",),
    ("__main__",),
)
"""Modules and packages, or modules of a package, from the top down; ``__init__`` of a split package has no imports."""
TORCH_LINE = FLOORS.index(("networks",))
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
SPLIT = {part.split(".")[0] for part in FLOOR if "." in part}

DRAWERS = {"utils", "util", "misc", "common", "helpers", "helper", "tools", "stuff", "shared", "core"}
MAX_FUNCTION = 52
"""Lines of a function's body, without its docstring: options of a command and what is said of them do not count."""


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class House:
    """The modules of a package and who imports whom.

    ``imports`` holds (importer, imported) pairs of module names. A name that a package merely hands on (``from saywhere
    import load``) counts as an import of the module it comes from.
    """

    def __init__(self, package: Path) -> None:
        self.files = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
        self.trees = {name: parsed(path) for name, path in self.files.items()}
        self.handed_on = {name: self._handed_on(name) for name, path in self.files.items() if path.stem == "__init__"}
        self.imports = {
            (name, target) for name in self.files for target in self._targets(name) if target in self.files
        } - {(name, name) for name in self.files}

    def _source(self, name: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".")
        parts = parts if self.files[name].stem == "__init__" else parts[:-1]
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, node.module] if node.module else base)

    def _handed_on(self, package: str) -> dict[str, str]:
        nodes = [node for node in ast.walk(self.trees[package]) if isinstance(node, ast.ImportFrom)]
        return {a.asname or a.name: self._source(package, node) for node in nodes for a in node.names}

    def _targets(self, name: str) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = self._source(name, node)
                found |= {self._home(source, alias.name) for alias in node.names}
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found |= {str(node.args[0].value)} if called in {"import_module", "__import__"} else set()
        return found

    def _home(self, source: str, name: str) -> str:
        if f"{source}.{name}" in self.files:
            return f"{source}.{name}"
        return self.handed_on.get(source, {}).get(name, source)

    def wrong_floors(self) -> list[str]:
        """Imports that go down the list of floors; the package itself only hands on names and may name them all."""
        return [
            f"{a} imports {b}"
            for a, b in sorted(self.imports)
            if a.count(".") and b.count(".") and FLOOR[part(a)] < FLOOR[part(b)]
        ]

    def cycle(self) -> list[str]:
        """The modules that are left when those that import nothing that is left are taken out again and again."""
        left = {(a, b) for a, b in self.imports if a.count(".")}
        # A package that hands on names of its own modules is not one more link between them.
        left -= {(a, b) for a, b in left if b == a.rpartition(".")[0]}
        while True:
            importers = {a for a, _ in left}
            kept = {(a, b) for a, b in left if b in importers}
            if kept == left:
                return sorted(importers)
            left = kept


def part(name: str) -> str:
    """The part of FLOORS that a module belongs to: ``saywhere.engines.torch`` to ``engines.torch``."""
    names = name.split(".")[1:]
    return ".".join(names[:2]) if names[0] in SPLIT and len(names) > 1 else names[0]


@pytest.fixture(scope="module")
def house() -> House:
    return House(PACKAGE)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def without_garbage() -> Iterator[None]:
    """Let nobody look for garbage among the trees, which are a million objects that go all at once in the end."""
    gc.disable()
    yield
    parsed.cache_clear()
    gc.enable()


def our_files() -> list[Path]:
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_every_module_has_a_floor_and_packages_on_several_import_nothing_themselves(house: House) -> None:
    packages = {f"saywhere.{name}" for name in SPLIT}
    assert {part(name) for name in house.files if "." in name and name not in packages} <= FLOOR.keys()
    packages = {f"saywhere.{name}" for name in SPLIT}
    assert packages and not [pair for pair in house.imports if pair[0] in packages]


def test_floors_are_named_once_and_import_only_from_floors_above(house: House) -> None:
    named = [part for parts in FLOORS for part in parts]
    assert len(named) == len(set(named))
    assert house.imports, "no import was found at all"
    assert house.wrong_floors() == []


PAPERS = "saywhere.papers"


def test_nothing_outside_papers_imports_it(house: House) -> None:
    outside = {name: tree for name, tree in house.trees.items() if not f"{name}.".startswith(f"{PAPERS}.")}
    assert outside.keys() < house.trees.keys()
    assert [(a, b) for a, b in house.imports if a in outside and b not in outside] == []
    nodes = ((name, node) for name, tree in outside.items() for node in ast.walk(tree))
    texts = {(name, n.value) for name, n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert {name for name, text in texts if text.startswith(PAPERS)} == {"saywhere.reproductions"}


@pytest.mark.parametrize("option", reproductions.PLACES)
def test_what_an_option_names_is_in_papers(option: str) -> None:
    found = reproductions.find(option)
    module = found.__name__ if isinstance(found, ModuleType) else type(found).__module__
    assert (found.__module__ if callable(found) else module).startswith(PAPERS)


def test_imports_have_no_cycles(house: House) -> None:
    assert house.cycle() == []


def test_what_stands_above_the_line_imports_without_torch(house: House) -> None:
    packages = {f"saywhere.{name}" for name in SPLIT}
    above = [n for n in house.files if "." in n and n not in packages and FLOOR[part(n)] < TORCH_LINE]
    assert {"saywhere.models.model", "saywhere.engines.onnx", "saywhere.data.coco"} <= set(above)
    lines = ["import sys", "sys.modules['torch'] = sys.modules['torchvision'] = sys.modules['timm'] = None"]
    lines += [f"import {name}" for name in ("saywhere", *above)]
    lines += ["below = ('saywhere.networks', 'saywhere.training', 'saywhere.papers')"]
    lines += ["assert not [name for name in sys.modules if name.startswith(below)]"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


STEMS = ("densecap", "aligner", "captioner", "nouns")
"""Names of the parts of a model: the same on every floor."""
STEM_FLOORS = ("configs", "networks", "engines.arrays", "models", "training")


@pytest.mark.parametrize("floor", STEM_FLOORS)
def test_a_part_has_its_name_on_every_floor(house: House, floor: str) -> None:
    assert [stem for stem in STEMS if f"saywhere.{floor}.{stem}" not in house.files] == []


SHORT = 80
EXTENSIONS = ("adapters", "cli", "data", "formats", "integrations", "networks.language.decoders")
"""Packages of extension points, whose modules may be short: adapters, commands, data sets, formats, decoders."""


def test_a_short_module_with_one_importer_belongs_into_it(house: House) -> None:
    importers = {name: {a for a, b in house.imports if b == name} for name in house.files}
    short: list[str] = []
    for name, path in house.files.items():
        package, _, stem = name.removeprefix("saywhere").removeprefix(".").rpartition(".")
        if package in EXTENSIONS or path.stem in ("__init__", "__main__"):
            continue
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines < SHORT and len(importers[name]) == 1 and not (package in STEM_FLOORS and stem in STEMS):
            short.append(f"{name}, only for {importers[name].pop()}")
    assert short == []


def test_public_methods_have_a_docstring_where_no_base_and_no_protocol_has_it(house: House) -> None:
    classes: dict[str, list[ast.ClassDef]] = {}
    for tree in house.trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def documents(node: ast.ClassDef, name: str) -> bool:
        methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) and m.name == name)
        return any(map(ast.get_docstring, methods)) or any(documents(one, name) for one in above(node))

    def above(node: ast.ClassDef) -> list[ast.ClassDef]:
        """The bases, and what the docstring says that the class is one of: "see :class:`Engine`"."""
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        bases |= set(re.findall(r"see :class:`[\w.]*?(\w+)`", ast.get_docstring(node) or ""))
        return [one for base in bases for one in classes.get(base, ()) if one is not node]

    found = [
        f"{node.name}.{method.name}"
        for nodes in classes.values()
        for node in nodes
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_") and not method.name.startswith("_") and not documents(node, method.name)
    ]  # fmt: skip
    assert found == []


STANDARD = {"models.aligner", "models.captioner", "models.encoding", "models.phrase_scores", "regions", "search.index"}
"""Modules with data classes that ``import saywhere`` offers: made by the decorator that mkdocstrings knows."""


def test_only_public_data_classes_have_generated_methods(house: House) -> None:
    def uses_standard(tree: ast.AST) -> bool:
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "dataclasses")
        return any(each.name == "dataclass" for node in nodes for each in node.names)

    found = {name.removeprefix("saywhere.") for name, tree in house.trees.items() if uses_standard(tree)}
    assert found == {*STANDARD, "inference.sources"}  # the last has slots


MOST_IMPORTS = {"describe": 45, "caption": 48}
"""Of our modules that a command on one image imports, itself included."""


@pytest.mark.parametrize("command", MOST_IMPORTS)
def test_a_command_imports_only_what_it_needs(command: str, tmp_path: Path) -> None:
    noise(96, 64).save(image := tmp_path / "a.png")
    lines = ["import sys", "from saywhere.cli import app", f"sys.argv = ['saywhere', {command!r}, {str(image)!r}]"]
    lines += ["try:", "    app()", "except SystemExit as end:", "    assert not end.code"]
    lines += ["print(*[name for name in sys.modules if name.partition('.')[0] == 'saywhere'])"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()[-1].split()
    assert f"saywhere.cli.{command}" in found and len(found) <= MOST_IMPORTS[command], sorted(found)


def test_no_module_is_a_drawer() -> None:
    assert [str(path) for path in our_files() if DRAWERS & {path.stem, *path.relative_to(ROOT).parts}] == []


def test_functions_stay_short() -> None:
    long: list[str] = []
    for path in our_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[ast.get_docstring(node) is not None :] or node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                long += [f"{path.relative_to(ROOT)}: {node.name} {lines} lines"] if lines > MAX_FUNCTION else []
    assert long == []


def test_files_get_their_names_in_one_place() -> None:
    """``files.put_in_place`` waits for the disk before."""
    names = ("os.replace", "os.rename", "os.renames", "shutil.move")
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        if any(ast.unparse(call) in names for call in calls):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"files.py"}


def test_nothing_is_left_unfinished_or_silenced() -> None:
    # Only a named rule of the type checker may be silenced, where a library's own signature breaks it.
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b|noqa|type: ?ignore|pyright: ?ignore(?!\[)|pragma: ?no ?cover")
    found: list[str] = []
    for path in our_files():
        text = path.read_text(encoding="utf-8")
        if not marks.search(text) and "NotImplementedError" not in text:
            continue
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        found += [f"{path.relative_to(ROOT)}:{c.start[0]} {c.string}" for c in comments if marks.search(c.string)]
        raised = [node.exc for node in ast.walk(parsed(path)) if isinstance(node, ast.Raise)]
        names = [node.func if isinstance(node, ast.Call) else node for node in raised]
        unfinished = [n for n in names if isinstance(n, ast.Name) and n.id == "NotImplementedError"]
        found += [f"{path.relative_to(ROOT)}:{n.lineno} {n.id}" for n in unfinished]
    assert found == []


def canonical(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def test_the_lock_has_every_dependency_with_hashes_and_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    apart = {"saywhere"}
    wanted = {canonical(line) for lines in (project["dependencies"], *extras) for line in lines} - apart
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    entries = re.findall(
        r"^([\w.-]+)==([\w.+!-]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", lock, re.MULTILINE
    )
    rebuilt = "".join(f"{name}=={version} \\\n{hashes}" for name, version, hashes in entries)
    assert rebuilt == lock, "the lock has lines that are neither a version nor a hash"
    assert wanted <= {canonical(name) for name, _, _ in entries}, "run: make lock"


def unhashed_installs(text: str) -> list[str]:
    """Return the installs and builds of a file of commands that check no hash known before."""
    variables = dict(re.findall(r"^(\w+) = (.*)$", text, re.MULTILINE))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    commands = re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), "\n".join(lines))
    installs = [c.strip() for c in re.split(r"\n|&&", commands) if re.search(r"\b(pip|uv) +(install|build|pip)\b", c)]
    # A wheel of this checkout has no hash that could be known before it is built; what builds it has.
    own = re.compile(r"uv pip install .*--no-deps (\S*/\*\.whl|--no-build-isolation --editable \.)$|uv pip compile ")
    return [line for line in installs if "--require-hashes" not in line and not own.search(line)]


def test_what_is_installed_is_known_by_its_hash() -> None:
    files = [ROOT / "Makefile", ROOT / "Dockerfile", ROOT / ".ci" / "run", *(ROOT / ".github").rglob("*.yml")]
    found = {path.name: unhashed_installs(path.read_text(encoding="utf-8")) for path in files}
    # The release is tried as a user gets it: with the newest versions that it allows.
    release = "empty/bin/pip install dist/*.${{ matrix.package }}"
    assert found == {"Makefile": [], "Dockerfile": [], "run": [], "release.yml": [release]}
    assert unhashed_installs("OPTIONS = --quiet\nt:\n\tbin/uv pip install $(OPTIONS) pytest\n\tpip install .\n") == [
        "bin/uv pip install --quiet pytest",
        "pip install .",
    ]


def test_workflows_may_only_read_and_name_their_actions_by_commit() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").iterdir())
    assert workflows
    for path in workflows:
        text = path.read_text(encoding="utf-8")
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        assert all("permissions" not in job for job in workflow["jobs"].values())
        used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert used and [name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name)] == []
        assert len(re.findall(r"uses: \S+@\S+ # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == len(used)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_its_tests_fail_in_ci_and_are_skipped_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(outcome, match="there is no Chromium"), chromium():
        pass
    with pytest.raises(outcome, match=r"onnxruntime-web-\S+ was not fetched"):
        web_runtime(tmp_path)


@pytest.mark.parametrize(
    ("there", "user", "debian", "installed"),
    [
        ("", 0, True, "chromium npm libimage-exiftool-perl"),
        ("npm", 0, True, "chromium libimage-exiftool-perl"),
        ("npm chromium exiftool", 0, True, None),
        ("", 1000, True, None),
        ("", 0, False, None),
    ],
)
def test_ci_installs_the_programs_that_a_debian_lacks(
    tmp_path: Path, there: str, user: int, debian: bool, installed: str | None
) -> None:
    programs = dict.fromkeys(there.split(), "") | {"id": f"echo {user}", "grep": f"exit {0 if debian else 1}"}
    programs |= {name: f'echo {name} $CI "$@" >> {tmp_path}/calls' for name in ("apt-get", "make")}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    subprocess.run([ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, cwd="/", check=True, timeout=600)
    calls = (tmp_path / "calls").read_text().splitlines()
    update, install = "apt-get true -qq update", f"apt-get true -qq -y --no-install-recommends install {installed}"
    assert calls == [*([update, install] if installed else []), "make true test"]


def test_what_is_asked_of_an_installed_program_needs_no_extra() -> None:
    """`make test` runs these files without extras alone: one that imports what needs them would never run."""
    files = [*(ROOT / "tests" / "installed").glob("*.py")]
    assert files and [path.name for path in files if needs_extras(path)] == []
