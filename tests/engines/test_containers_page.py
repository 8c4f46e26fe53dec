"""What the page on containers shows of its example is what is printed, on a parent that is there.

The package that is installed is a small one here, whatever the page names: it would take half a minute. No
other test puts it on this parent, so that its image is not there yet.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documentation import Command, difference, follow
from project import Project
from upshift.images.containers.engine import ContainerEngine

PAGE = Path(__file__).parents[2] / "docs/how-to/containers.md"
EXAMPLE = "```text\n$ upshift image show flow.py\n"
PANDAS = "    import pandas\n\n    return float(pandas.Series(values).mean())\n"
_VARIES = re.compile(r"sha256:[0-9a-f]{12}|(?<=upshift-)[0-9a-f]{12}|Step \d/\d|Docker [\d.]+|Python [\d.]+")
_ONLY_IF_SLOW = "requirements of an image are being resolved"


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    return Project(tmp_path / "project", upshift_home)


def page_on(parent: str, folder: Path) -> Path:
    """The page, with its example made to be done."""
    text = PAGE.read_text(encoding="utf-8")
    assert EXAMPLE in text and PANDAS in text and '"python:3.11-slim"' in text
    text = text.replace(EXAMPLE, EXAMPLE.replace("text", "console"))
    text = text.replace(PANDAS, "    import toml\n\n    return sum(values) / len(values)\n")
    text = text.replace("pandas==2.3.3", "toml==0.10.2")
    text = re.sub(r"(?<=^  locked  ).*", "1 package: toml 0.10.2", text, flags=re.MULTILINE)
    text = re.sub(r"(?<= installing · ).*", "toml", text)
    text = text.replace("docker.io/library/", "").replace("python:3.11-slim", parent)
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_the_example_prints_what_the_page_shows(
    project: Project, docker_legacy: ContainerEngine, base_image_name: str, tmp_path: Path
) -> None:
    docker_legacy.run(["pull", base_image_name])
    wrong = []
    done = 0
    for block, printed in follow(page_on(base_image_name, tmp_path), project):
        for command, lines in zip(block.commands, printed, strict=True):
            shown = Command(command.text, tuple(_VARIES.sub("X", line) for line in command.shown))
            told = [_VARIES.sub("X", line) for line in lines if line != _ONLY_IF_SLOW]
            wrong.append(difference(shown, told, project))
            done += 1
    assert done == 2
    assert not any(wrong), "\n\n".join(filter(None, wrong))
