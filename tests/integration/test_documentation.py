"""What the documentation says is so: its blocks are run, and what they show is what they print.

``UPDATE_DOCS=1 pytest tests/integration/test_documentation.py`` writes what commands print now into
the pages, to be looked at with ``git diff``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from documentation import FRAGMENT, blocks_of, check_python, corrected, difference, follow, missing
from project import Project

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
NOT_RUN = 67
"""How many blocks of all pages may be there to be looked at only: fragments, drawings, what needs engines."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_says_is_so(page: Path, project: Project) -> None:
    if absent := missing(page):
        pytest.skip(f"needs {', '.join(absent)}")
    wrong = []
    correct: list[tuple[int, int, str]] = []
    for block, printed in follow(page, project):
        found = [difference(c, p, project) for c, p in zip(block.commands, printed, strict=True)]
        wrong += [f"{block.where}\n{text}" for text in found if text]
        correct.append((block.first, block.last, corrected(block, printed, project)))
    if os.environ.get("UPDATE_DOCS"):
        lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
        for first, last, text in reversed(correct):
            margin = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
            lines[first:last] = [(margin + line).rstrip() + "\n" for line in text.splitlines()]
        page.write_text("".join(lines), encoding="utf-8")
        return
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile_and_take_from_upshift_what_is_there(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            check_python(block)


def test_few_blocks_are_only_looked_at() -> None:
    looked_at = [block.where for page in PAGES for block in blocks_of(page) if not block.is_done]
    assert len(looked_at) <= NOT_RUN, f"run them, or allow more of them: {looked_at}"


def test_a_fragment_is_marked_right_before_its_block() -> None:
    for page in PAGES:
        marked = page.read_text(encoding="utf-8").splitlines().count(FRAGMENT)
        assert marked == sum(block.fragment for block in blocks_of(page)), page
