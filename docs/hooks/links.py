"""Let links that lead out of ``docs/`` work in the site too: what they lead to becomes a page of it.

A forge shows the whole repository, a site only its own pages. So README and the like, source files and folders that a
page links to are added below ``repository/``, and links are rewritten from the one place to the other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ADDED = "repository/"
"""Where the site has what is outside ``docs/``."""
LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`]*`|(?P<link>\]\((?P<target>[^()\s]+)\))", re.MULTILINE | re.DOTALL
)
"""A link, or code, in which nothing is a link."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".cff": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add what the pages link to, and what that links to."""
    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        page = todo.pop()
        for target, _ in targets(_text(files, page), page):
            if files.get_file_from_path(uri := to_site(target)) is None and not target.startswith("docs/"):
                files.append(File.generated(config, uri, content=_page(ROOT / target)))
                todo += [uri] if uri.endswith(("/index.md", target)) else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead to files of the repository."""
    here = page.file.src_uri

    def rewritten(match: re.Match[str]) -> str:
        if match["link"] is None or (found := _repository_path(match["target"], here)) is None:
            return match[0]
        target, anchor = found
        return f"]({posixpath.relpath(to_site(target), posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(rewritten, markdown)


def targets(markdown: str, page: str) -> Iterator[tuple[str, str]]:
    """Yield the path in the repository, and the anchor, of each link of a page to a file that there is."""
    for match in LINK.finditer(markdown):
        if match["link"] is not None and (found := _repository_path(match["target"], page)) is not None:
            yield found


def _repository_path(link: str, page: str) -> tuple[str, str] | None:
    """Path in the repository and anchor of a link of the page ``page`` of the site; None if it leads elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return None
    here = page.removeprefix(ADDED) if page.startswith(ADDED) else f"docs/{page}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), parts.path))
    return (path, f"#{parts.fragment}" if parts.fragment else "") if (ROOT / path).exists() else None


def to_site(path: str) -> str:
    """Return where the site has a file or folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{ADDED}{path}/index.md"
    return f"{ADDED}{path}" if path.endswith(".md") else f"{ADDED}{path}.md"


def _text(files: Files, page: str) -> str:
    file = files.get_file_from_path(page)
    return "" if file is None else file.content_string


def _page(path: Path) -> str:
    """What a page shows of a file or folder of the repository."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    title = f"---\nsearch: {{exclude: true}}\n---\n# {path.name}\n\n`{path.relative_to(ROOT).as_posix()}`\n\n"
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.name not in ("__pycache__", "__init__.py"))
        return title + "".join(f"- [`{p.name}`]({p.name})\n" for p in inside)
    return f"{title}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}````\n"
