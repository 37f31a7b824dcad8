"""The documentation site: it builds without a warning, its links lead somewhere, and it loads only its own files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest
import scripts

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
pytest.importorskip("latex2mathml")

import saywhere
from saywhere.cli import COMMANDS

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser fetches by itself, and where the tag says from where."""
VERBS = ("describe", "ground", "caption", "embed", "embed_text", "encode", "score", "align", "attend", "similarity")


class Page(HTMLParser):
    """The links of a page, what it loads, its names for anchors, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])

    def handle_data(self, data: str) -> None:
        self.text += data


def build(folder: Path) -> dict[str, Page]:
    """Build the site; each page of ours by its place (the page without a server is tested elsewhere)."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr, done.stderr
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.html"))}
    return {name: Page(path) for name, path in found.items() if not name.startswith("try/")}


def place(site: Path, page: str, link: str) -> Path:
    """The file that a link of a page leads to."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(link).path)
    target = site / path.lstrip("/") if path.startswith("/") else (site / page).parent / path if path else site / page
    target = Path(os.path.normpath(target))
    return target / "index.html" if target.is_dir() else target


def lost_links(site: Path, pages: dict[str, Page]) -> list[str]:
    lost: list[str] = []
    for name, page in pages.items():
        for link in page.links + page.loads:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":  # whose links begin where the site is put
                continue
            target = place(site, name, link)
            known = pages.get(target.relative_to(site).as_posix()) if target.is_relative_to(site) else None
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (anchor and known and anchor not in known.names):
                lost.append(f"{name}: {link}")
    return lost


def loads_from_elsewhere(site: Path, pages: dict[str, Page]) -> list[str]:
    found = [f"{name}: {load}" for name, page in pages.items() for load in page.loads if "//" in load]
    for path in site.rglob("*.css"):
        named = re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^'\")]+)", path.read_text(encoding="utf-8"))
        found += [f"{path.name}: {load}" for load in named]
    return found


def names_without_reference(site: Path, pages: dict[str, Page]) -> list[str]:
    """Public names and verbs without docstrings in the reference, and commands without their help."""
    names = pages["reference/python/index.html"].names
    wanted = {name for name in saywhere.__all__ if name not in ("DEFAULT_MODEL", "__version__")}
    homes = {name: f"{getattr(saywhere, name).__module__}.{name}" for name in wanted}
    lost = [name for name, home in homes.items() if not {f"saywhere.{name}", home} & names]
    lost += [verb for verb in VERBS if f"saywhere.Model.{verb}" not in names]
    page = pages["reference/commands/index.html"]
    lost += [name for name in COMMANDS if f"saywhere-{name}" not in page.names]
    return lost + [text for text in ["Minimum probability that a region's box"] if text not in page.text]


def texts_as_nobody_wrote_them(site: Path, pages: dict[str, Page]) -> list[str]:
    """Pages with marks of the tests, roles of docstrings or dollars left in, and those without their texts."""
    found = [name for name, page in pages.items() if re.search(r":(class|meth|func):<code>", page.source)]
    found += [name for name, page in pages.items() if "```" in page.text and not name.startswith("repository/")]
    found += ["equations"] * ("$" in pages["tutorials/equations/index.html"].text)
    texts = {
        "repository/src/saywhere/models/aligner.py/index.html": "def decode_chain",
        "repository/recipes/densecap-your-own.yaml/index.html": "data.root=my-images",
        "repository/index.html": "How good is it?",
        "notebooks/first/index.html": "What is there?",
    }
    return found + [name for name, text in texts.items() if name not in pages or text not in pages[name].text]


def test_the_site_is_built_and_whole(tmp_path: Path) -> None:
    """One test, for each process that runs one of several would build the site anew."""
    pages = build(tmp_path)
    checks = (lost_links, loads_from_elsewhere, names_without_reference, texts_as_nobody_wrote_them)
    assert {check.__name__: check(tmp_path, pages) for check in checks} == {check.__name__: [] for check in checks}


def test_what_is_lost_or_from_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h1 id="here">A</h1><a href="../">up</a><a href="#here">x</a>')
    wrong = '<a href="a/#gone"></a><a href="b/"></a><img src="//elsewhere/c.png"><script src="a/d.js"></script>'
    (tmp_path / "index.html").write_text(wrong)
    (tmp_path / "e.css").write_text("@import 'https://elsewhere/f.css'; a {background: url(g.png)}")
    pages = {name: Page(tmp_path / name) for name in ("index.html", "a/index.html")}
    assert lost_links(tmp_path, pages) == ["index.html: a/#gone", "index.html: b/", "index.html: a/d.js"]
    found = loads_from_elsewhere(tmp_path, pages)
    assert found == ["index.html: //elsewhere/c.png", "e.css: https://elsewhere/f.css"]


class File:
    def __init__(self, uri: str) -> None:
        self.src_uri = uri


class Markdown:
    def __init__(self, uri: str) -> None:
        self.file = File(uri)


CASES = {
    "links": (
        ("tutorials/paper.md", "[a](../../README.md#limits)", "[a](../repository/README.md#limits)"),
        ("densecap.md", "[`b`](../src/saywhere/boxes.py)", "[`b`](repository/src/saywhere/boxes.py.md)"),
        ("models.md", "[c](../src/saywhere/configs)", "[c](repository/src/saywhere/configs/index.md)"),
        ("repository/README.md", "![d](docs/images/demo.png)", "![d](../images/demo.png)"),
        ("index.md", "[e](https://example.org) `[x](../README.md)` [f](#here)", None),
        ("index.md", "````\n```\n[g](../README.md)\n````", None),
    ),
    "equations": (("a.md", "costs $5 and `$x$`", None), ("a.md", "````\n```\n$x$\n````", None)),
    "pages": (("a.md", "```console run\nls\n```\n", "```console\nls\n```\n"),),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_hooks_rewrite(name: str) -> None:
    hook = scripts.load(f"docs/hooks/{name}.py")
    for page, before, after in CASES[name]:
        assert hook.on_page_markdown(before, page=Markdown(page)) == (before if after is None else after)
    if name == "equations":
        written = hook.on_page_markdown("If $a_t$ is\n\n$$b = \\max_i c$$\n", page=Markdown("a.md"))
        assert written.count("<math") == 2
        assert written.count('display="block"') == 1
        assert "$" not in written


def test_the_notebook_is_small_and_has_no_outputs() -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
        assert path.stat().st_size < 20_000
