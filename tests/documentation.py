"""Pages of the documentation, read as a reader does who types what they say.

The blocks of a page are done in order, in one project folder:

* a block with ``title="FILE"`` is written to ``FILE``; a Python file must be used further down;
* a ``python`` block is run as a script, and one with ``title="In [1]"`` as a cell of one notebook,
  together with all other cells of the page;
* of a ``console`` block each ``$ command`` is run by a shell, and what is shown below it must be what
  it prints. A line ``…`` stands for any lines, ``…`` at the end of a line for the rest of it.

``<!-- fragment -->`` on the line before a Python block says that it is no complete file, and
``<!-- needs torch, accelerate -->`` what must be installed to do what the page says.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from markdown_it import MarkdownIt

from project import Project

FRAGMENT = "<!-- fragment -->"
ELISION = "…"
SHOWN_PROJECT = "/home/me/project"
SHOWN_HOME = "/home/me/.upshift"
_LIBRARIES = ("matplotlib.figure", "sklearn.datasets", "sklearn.linear_model", "sklearn.model_selection")
"""Take seconds to import: commands of a page with scikit-learn come from an interpreter that has them."""
_NEEDS = re.compile(r"^<!-- needs (.+) -->$", re.MULTILINE)
_CELL = re.compile(r"In \[\d+\]")
_MARK = "\x1e"
_REFUSALS = ("Failed:", "Error:", "Cancelled:", "Usage:")
"""How output begins that tells the reader that a command does not succeed."""


@attrs.frozen
class Command:
    """A line after ``$``, and the lines that a page shows below it."""

    text: str
    shown: tuple[str, ...]


@attrs.frozen
class Block:
    """A fenced block of a page; ``first`` and ``last`` are the lines of its content, from 0."""

    page: Path
    first: int
    last: int
    language: str
    title: str | None
    text: str
    fragment: bool

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.first + 1}"

    @property
    def is_cell(self) -> bool:
        return self.title is not None and _CELL.fullmatch(self.title) is not None

    @property
    def is_file(self) -> bool:
        return self.title is not None and not self.is_cell

    @property
    def is_done(self) -> bool:
        """Whether :func:`follow` does something with it."""
        return not self.fragment and (self.title is not None or self.language in ("python", "console"))

    @property
    def commands(self) -> list[Command]:
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                assert found, f"{self.where}: output without a command"
                found[-1][1].append(line)
        return [Command(text, tuple(_without_blank_ends(shown))) for text, shown in found]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    found = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type != "fence":
            continue
        assert token.map is not None
        language, _, attributes = token.info.partition(" ")
        title = re.search(r'title="([^"]+)"', attributes)
        found.append(
            Block(
                page=page,
                first=token.map[0] + 1,
                last=token.map[1] - 1,
                language=language,
                title=title[1] if title else None,
                text=token.content,
                fragment=before is not None and before.content.strip() == FRAGMENT,
            )
        )
    return found


def missing(page: Path) -> list[str]:
    """What a page needs and is not installed."""
    named = _NEEDS.search(page.read_text(encoding="utf-8"))
    return [name for name in named[1].split(", ") if importlib.util.find_spec(name) is None] if named else []


def check_python(block: Block) -> None:
    """It compiles, and what it takes from ``upshift`` is there."""
    tree = ast.parse(block.text, filename=block.where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "upshift":
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name), f"{block.where}: {node.module} has no {name.name}"
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "upshift":
            assert hasattr(importlib.import_module("upshift"), node.attr), f"{block.where}: {node.attr}"


def follow(page: Path, project: Project) -> Iterator[tuple[Block, list[list[str]]]]:
    """Do what a page says; each console block with what its commands printed."""
    blocks = blocks_of(page)
    _refuse_unused_files(blocks)
    if any("from sklearn" in block.text for block in blocks if block.is_file):
        project.libraries = _LIBRARIES
    for block in blocks:
        if block.fragment or not block.is_done:
            continue
        if block.is_file:
            file = project.folder / str(block.title)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.is_cell:
            cells = [b for b in blocks if b.is_cell]
            if block is cells[0]:
                _run_notebook(cells, project)
        elif block.language == "python":
            script = project.folder / f"block_{block.first}.py"
            script.write_text(block.text, encoding="utf-8")
            project.python(script.name, env={"LOGNAME": _USER})
            script.unlink()
        else:
            yield block, _run_console(block, project)


def difference(command: Command, printed: Sequence[str], project: Project) -> str | None:
    """How what is shown differs from what was printed, in ways that count; None: in none."""
    if not command.shown:
        return None
    shown, real = ("\n".join(lines) for lines in (command.shown, printed))
    expected, found = _json(shown, project), _json(real, project)
    if expected is not None and found is not None:
        same = expected == found
    else:
        expected, found = _normalized(shown, project), _normalized(real, project)
        same = _fits(expected, found, ordered=not re.match(r"upshift (run|resume)\b", command.text))
    changes = difflib.unified_diff(expected, found, "shown", "printed", lineterm="")
    return None if same else "\n".join([f"$ {command.text}", *changes, "", *printed])


def corrected(block: Block, printed: Sequence[Sequence[str]], project: Project) -> str:
    """The text of a console block with what was printed now, where it shows something else in full."""
    lines = []
    for number, (command, output) in enumerate(zip(block.commands, printed, strict=True)):
        lines += [""] * bool(number) + [f"$ {command.text}"]
        if ELISION in command.shown or difference(command, output, project) is None:
            lines += command.shown
        else:
            lines += [_presented(line, project) for line in output]
    return "\n".join(lines) + "\n"


def _refuse_unused_files(blocks: Sequence[Block]) -> None:
    for number, block in enumerate(blocks):
        if block.is_file and block.language == "python":
            later = "\n".join(b.text for b in blocks[number + 1 :])
            stem = Path(str(block.title)).stem
            used = str(block.title) in later or re.search(rf"\b(from|import) {stem}\b", later)
            assert used, f"{block.where}: nothing below uses {block.title}"


def _run_console(block: Block, project: Project) -> list[list[str]]:
    script = ["exec 2>&1"]
    for command in block.commands:  # the mark carries the exit code, and leaves it in $?
        script += [command.text, f"__code=$?; printf '\\n{_MARK}%s{_MARK}' $__code; (exit $__code)"]
    user = project.folder.parent / "me"  # what a page does to `~` is done to no real one
    if not user.exists():
        user.mkdir()
        (user / ".upshift").symlink_to(project.home)
    caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    environment = {"LOGNAME": _USER, "HOME": str(user), "XDG_CACHE_HOME": caches}
    done = project.shell("\n".join(script), env=environment)
    pieces = done.text.split(_MARK)
    printed = []
    following = [*block.commands[1:], None]
    for command, then, text, code in zip(block.commands, following, pieces[::2], pieces[1::2], strict=False):
        told = any(line.startswith(_REFUSALS) for line in command.shown)
        asked = then is not None and then.text == "echo $?"
        assert code == "0" or told or asked, f"{block.where}: exit {code} of $ {command.text}\n{text}"
        printed.append(_without_blank_ends(text.splitlines()))
    assert len(printed) == len(block.commands), f"{block.where}: the shell left early\n{done.text}"
    return printed


def _run_notebook(cells: Sequence[Block], project: Project) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.text) for cell in cells])
    resources = {"metadata": {"path": project.folder}}
    NotebookClient(notebook, timeout=90, kernel_name="python3", resources=resources).execute()


def _fits(expected: Sequence[str], found: Sequence[str], *, ordered: bool) -> bool:
    """Whether the lines are the same, but for elisions; without order where processes print at once."""
    if ordered:
        pattern = "".join(r"(?:.*\n)*" if line == ELISION else _pattern(line) + r"\n" for line in expected)
        return re.fullmatch(pattern, "".join(line + "\n" for line in found)) is not None
    rest = list(found)
    for line in expected:
        if line != ELISION:
            match = next((other for other in rest if re.fullmatch(_pattern(line), other)), None)
            if match is None:
                return False
            rest.remove(match)
    return not rest or ELISION in expected


def _pattern(line: str) -> str:
    return re.escape(line.removesuffix(ELISION)) + ".*" if line.endswith(ELISION) else re.escape(line)


_VARIES = (
    (re.compile(r"\b\d{8}-\d{6}-[a-z0-9]{4}\b"), "RUN"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?"), "DATE"),
    (re.compile(r"\((just now|[^()]* ago)\)|\bjust now\b|\b\d+ \w+ ago\b"), "AGO"),
    (re.compile(r"(\d[\d.]*–)?\d[\d.]* (ms|min \d\d s|s|h \d\d min)(?!\w)"), "TIME"),
    (re.compile(r"(under )?(\d[\d.]*( [KMGT]?B)?–)?\d[\d.]* [KMGT]?B\b"), "SIZE"),
    (re.compile(r"(\d[\d.]*–)?\d[\d.]* CPU\b( \([\d,–-]+\))?"), "N CPU"),
    (re.compile(r"\bby +\w+"), "by USER"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"  +"), "  "),
)


def _normalized(text: str, project: Project) -> list[str]:
    for path, shown in _places(project):
        text = text.replace(path, shown)
    for pattern, word in _VARIES:
        text = pattern.sub(word, text)
    return [line.strip() for line in text.splitlines()]


_USER = "me"
_OF_THE_MACHINE = ("host", "node", "platform", "python", "user", "digest", "traceback", "where")


def _json(text: str, project: Project) -> list[str] | None:
    """The lines of JSON, as far as they are the same each time; None where the text is not valid JSON."""
    try:
        data = json.loads(text) if text.startswith(("[", "{")) else None
    except ValueError:
        return None
    return None if data is None else json.dumps(_plain(data, project), indent=2).splitlines()


def _plain(data: object, project: Project, key: str = "") -> object:
    """JSON without what is different from run to run: numbers, times, ids, names of the machine."""
    if isinstance(data, dict):
        return {name: _plain(value, project, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_plain(item, project) for item in data]
    if isinstance(data, str):
        return ELISION if key in _OF_THE_MACHINE else _normalized(data, project)
    return 0 if isinstance(data, (int, float)) and not isinstance(data, bool) else data


def _presented(line: str, project: Project) -> str:
    for path, shown in _places(project):
        line = line.replace(path, shown)
    return line.rstrip()


def _places(project: Project) -> tuple[tuple[str, str], ...]:
    return ((str(project.home), SHOWN_HOME), (str(project.folder), SHOWN_PROJECT))


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    kept = list(lines)
    while kept and not kept[-1].strip():
        kept.pop()
    while kept and not kept[0].strip():
        kept.pop(0)
    return kept
