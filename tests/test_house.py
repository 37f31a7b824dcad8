"""The layout of the code: floors import only from floors above them, and each file does one thing.

Imports are read from the source, so those inside functions and those for the type checker count as well.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "saywhere"

FLOORS = (
    ("errors",),
    ("files",),
    ("options",),
    ("boxes",),
    ("box_coding",),
    ("torch7_sort",),
    ("text",),
    ("parses",),
    ("drawing",),
    ("archives",),
    ("images",),
    ("regions",),
    ("calibration",),
    ("configs",),
    ("engines.engine", "engines.arrays"),
    ("models",),
    ("adapters.sources",),
    ("engines.session",),
    ("engines.onnx_trunk",),
    ("engines.onnx",),
    ("loading",),
    ("inference",),
    ("video",),
    ("search",),
    ("serve",),
    ("web",),
    ("formats",),
    ("data",),
    # What stands above imports without torch; what stands below may need it.
    ("ops",),
    ("original",),
    ("networks",),
    ("engines.torch", "engines.compare", "engines.quantize", "engines.export"),
    ("adapters.adapter", "adapters.writing", "adapters.detecting", "adapters.calibration"),
    ("adapters.florence2", "adapters.kosmos2", "adapters.grounding_dino", "adapters.owlv2", "adapters.model"),
    ("training",),
    ("evaluation",),
    ("cli",),
    ("__main__",),
)
"""Modules and packages, or modules of a package, from the top down; ``__init__`` of a split package has no imports."""
TORCH_LINE = FLOORS.index(("ops",))
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
SPLIT = {part.split(".")[0] for part in FLOOR if "." in part}

DRAWERS = {"utils", "util", "misc", "common", "helpers", "helper", "tools", "stuff", "shared", "core"}
MAX_FUNCTION = 60


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
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.files.items()}
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


def our_files() -> list[Path]:
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_every_module_has_a_floor(house: House) -> None:
    packages = {f"saywhere.{name}" for name in SPLIT}
    assert {part(name) for name in house.files if "." in name and name not in packages} <= FLOOR.keys()


def test_packages_on_several_floors_import_nothing_themselves(house: House) -> None:
    packages = {f"saywhere.{name}" for name in SPLIT}
    assert packages and not [pair for pair in house.imports if pair[0] in packages]


def test_every_floor_is_named_once() -> None:
    named = [part for parts in FLOORS for part in parts]
    assert len(named) == len(set(named))


def test_floors_import_only_from_floors_above(house: House) -> None:
    assert house.imports, "no import was found at all"
    assert house.wrong_floors() == []


def test_imports_have_no_cycles(house: House) -> None:
    assert house.cycle() == []


def test_what_stands_above_the_line_imports_without_torch(house: House) -> None:
    packages = {f"saywhere.{name}" for name in SPLIT}
    above = [n for n in house.files if "." in n and n not in packages and FLOOR[part(n)] < TORCH_LINE]
    assert {"saywhere.models.model", "saywhere.engines.onnx", "saywhere.data.coco"} <= set(above)
    lines = ["import sys", "sys.modules['torch'] = sys.modules['torchvision'] = sys.modules['timm'] = None"]
    lines += [f"import {name}" for name in ("saywhere", *above)]
    lines += ["below = ('saywhere.networks', 'saywhere.training')"]
    lines += ["assert not [name for name in sys.modules if name.startswith(below)]"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_package(folder: Path, **modules: str) -> House:
    package = folder / "saywhere"
    for name, text in {"__init__": "", **modules}.items():
        path = package / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(package)


@pytest.mark.parametrize(
    "line",
    [
        "from saywhere.models import model",
        "from saywhere.models.model import Model",
        "import saywhere.models.model",
        "def f():\n    from .models import model",
        "import importlib\nimportlib.import_module('saywhere.models.model')",
        "from saywhere import Model",
    ],
)
def test_an_import_of_a_lower_floor_is_seen(tmp_path: Path, line: str) -> None:
    house = make_package(
        tmp_path,
        __init__="from saywhere.models.model import Model",
        boxes=line,
        models__in____init__="",
        models__in__model="class Model: ...",
    )
    assert house.wrong_floors()[-1].startswith("saywhere.boxes imports saywhere.models")


def test_a_cycle_is_seen_and_a_chain_is_none(tmp_path: Path) -> None:
    around = make_package(
        tmp_path / "around",
        data__in__a="from saywhere.data import b",
        data__in__b="from saywhere.data.c import x",
        data__in__c="def f():\n    import saywhere.data.a",
        data__in__d="import saywhere.data.a",
        data__in____init__="",
    )
    chain = make_package(
        tmp_path / "chain", data__in__a="from saywhere.data import b", data__in__b="import saywhere.text", text=""
    )
    assert around.cycle() == ["saywhere.data.a", "saywhere.data.b", "saywhere.data.c", "saywhere.data.d"]
    assert chain.cycle() == []


def test_no_module_is_a_drawer() -> None:
    assert [str(path) for path in our_files() if DRAWERS & {path.stem, *path.relative_to(ROOT).parts}] == []


def test_functions_stay_short() -> None:
    long: list[str] = []
    for path in our_files():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                long += [f"{path.relative_to(ROOT)}: {node.name} {lines} lines"] if lines > MAX_FUNCTION else []
    assert long == []


def test_nothing_is_left_unfinished_or_silenced() -> None:
    # Only a named rule of the type checker may be silenced, where a library's own signature breaks it.
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b|noqa|type: ?ignore|pyright: ?ignore(?!\[)|pragma: ?no ?cover")
    found: list[str] = []
    for path in our_files():
        text = path.read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        found += [f"{path.relative_to(ROOT)}:{c.start[0]} {c.string}" for c in comments if marks.search(c.string)]
        raised = [node.exc for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise)]
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
    apart = {"saywhere", "ray"}  # a cluster has its own Ray, and no test of ours installs one
    wanted = {canonical(line) for lines in (project["dependencies"], *extras) for line in lines} - apart
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    entries = re.findall(
        r"^([\w.-]+)==([\w.+!-]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", lock, re.MULTILINE
    )
    rebuilt = "".join(f"{name}=={version} \\\n{hashes}" for name, version, hashes in entries)
    assert rebuilt == lock, "the lock has lines that are neither a version nor a hash"
    assert wanted <= {canonical(name) for name, _, _ in entries}, "run: make lock"
