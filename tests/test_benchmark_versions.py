"""The benchmarks of two checkouts: both are run, and what is no checkout is refused; times are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from photographs import noise

import saywhere

ROOT = Path(__file__).parents[1]


def run(*words: object, script: str = "versions") -> subprocess.CompletedProcess[str]:
    path = ROOT / "benchmarks" / f"{script}.py"
    return subprocess.run([sys.executable, path, *map(str, words)], capture_output=True, text=True)


def test_two_checkouts_are_compared(tmp_path: Path) -> None:
    images = [tmp_path / f"{number}.png" for number in range(2)]
    for number, image in enumerate(images):
        noise(64, 64, seed=number).save(image)
    done = run(ROOT, *images, "--question", "ground", "--rounds", 1, "--batch", 2)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"ground, batch 2: {ROOT} ") and second.startswith("here it takes ")


def test_what_is_missing_or_broken_is_one_line(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    noise(64, 64).save(image)
    assert "is no checkout of saywhere" in run(tmp_path, image).stderr
    assert "no such file: " in run(ROOT, tmp_path / "b.png").stderr
    assert "at least 1" in run(ROOT, image, "--rounds", 0).stderr
    (tmp_path / "src" / "saywhere").mkdir(parents=True)
    (tmp_path / "src" / "saywhere" / "__init__.py").write_text("raise RuntimeError('an old mistake')")
    done = run(tmp_path, image, "--rounds", 1)
    assert done.returncode == 1 and done.stderr == f"error: {tmp_path}: RuntimeError: an old mistake\n"


def test_answers_that_differ_are_counted_and_named(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    noise(64, 64).save(image)
    (tmp_path / "src" / "saywhere").mkdir(parents=True)
    package = ROOT / "src" / "saywhere"
    (tmp_path / "src" / "saywhere" / "__init__.py").write_text(f"""
__path__ = [{str(package)!r}]
exec(compile(open({str(package / "__init__.py")!r}).read(), "saywhere", "exec"))
from dataclasses import replace
from saywhere.models.model import Model
caption = Model.caption
Model.caption = lambda model, image: replace(caption(model, image), sentence="another sentence")
""")
    done = run(tmp_path, image, script="answers")
    assert done.returncode == 1, done.stderr
    assert "describe: 1 of 1 the same\n" in done.stdout and "search: 4 of 4 the same\n" in done.stdout
    assert "caption: 0 of 1 the same\n  a.png: another sentence -> " in done.stdout


def test_two_checkouts_are_drawn_side_by_side(tmp_path: Path) -> None:
    images = [tmp_path / f"{number}.png" for number in range(3)]
    for number, image in enumerate(images):
        noise(96, 64, seed=number).save(image)
    out = tmp_path / "page"
    done = run(ROOT, *images, "--out", out, "--threshold", 0, "--sample", 2, script="side_by_side")
    assert done.returncode == 0, done.stderr
    page = (out / "index.html").read_text()
    assert page.count("<img") == 4 and page.count("<b>") == 4 and done.stdout.endswith("2 photographs\n")
    assert sorted(path.name for path in out.glob("*.jpg")) == [
        "0-after.jpg",
        "0-before.jpg",
        "1-after.jpg",
        "1-before.jpg",
    ]
    assert "is no checkout of saywhere" in run(tmp_path, images[0], "--out", out, script="side_by_side").stderr


def test_the_regions_side_by_side_are_those_that_each_checkout_shows(tmp_path: Path) -> None:
    photo = ROOT / "src/saywhere/serve/page/coffee.jpg"
    done = run(ROOT, photo, "--out", tmp_path, script="side_by_side")
    assert done.returncode == 0, done.stderr
    shown = saywhere.load().describe(photo).at_least()
    (said,) = json.loads((tmp_path / "after.json").read_text())
    assert [words for _, _, words in said["regions"]] == list(shown.captions or ())[:5]
