"""Add the pages that are made when the site is: the commands, the notebooks, and the page that answers by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
TRY = ROOT / "build" / "try"
"""What ``saywhere export --web build/try`` wrote, if it did."""
FRAME = '<iframe class="try" src="try/index.html" title="saywhere, answering in this browser" loading="lazy"></iframe>'
INVITATION = "[Try it here](web.md)"
"""A line of the front page; where the page without a server was made, it leads there."""
RUN = re.compile(r"^```(\w+) run$", re.MULTILINE)
"""The beginning of a block that the tests run, which Markdown does not know."""
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>)")
"""What stands before the name of a function or class in docstrings."""


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, and the files of the page without a server."""
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    for path in sorted(path for path in TRY.rglob("*") if path.is_file()):
        files.append(File.generated(config, f"try/{path.relative_to(TRY).as_posix()}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the marks of the tests out, and let the front page show the page without a server."""
    markdown = RUN.sub(r"```\1", markdown)
    if page.file.src_uri != "index.md" or not TRY.is_dir():
        return markdown
    before, invitation, after = markdown.partition(INVITATION)
    if not invitation:
        return markdown
    paragraph, gap, rest = after.partition("\n\n")
    return f"{before}[Try it here](try/index.html){paragraph}{gap}{FRAME}{gap}{rest}"


def on_page_content(html: str, **_: Any) -> str:
    """Leave the roles of docstrings out, which say what kind of thing a name is."""
    return ROLE.sub("", html)


def commands_page() -> str:
    """Return the help of all commands as one page."""
    from typer.main import get_command

    from saywhere.cli import app

    parts = ["# Commands\n\nWhat `--help` says of each command.\n"]
    for words, command in _commands(get_command(app), "saywhere"):
        context = command.make_context(words, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"## {words}\n\n```\n{words} {usage}\n```\n\n{command.help or ''}\n")
        rows = [param.get_help_record(context) for param in command.params]
        lines = [f"| `{_cell(row[0])}` | {_cell(row[1])} |" for row in rows if row is not None]
        parts.append("\n".join(["| option | |", "|---|---|", *lines]) + "\n" if lines else "")
    return "\n".join(parts)


def _commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name in getattr(command, "commands", {}):
        yield from _commands(command.commands[name], f"{words} {name}")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def notebook_page(path: Path) -> str:
    """Return a notebook as a page: its texts as they are, its code in blocks, and no outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    page = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts]
    return "\n\n".join([*page, f"[This notebook]({path.name}) to download."]) + "\n"
