"""A module finds the variables of a step when it is imported, too."""

from __future__ import annotations

import pytest

import upshift
from project import Project

CODE = """
import os
from upshift import DockerSettings
{at_import}

with open("imports", "a") as file:
    file.write("once ")

FAST = {{"docker": DockerSettings(runtime_environment={{"MODE": "fast"}})}}

@step(settings=FAST, secrets={{"KEY": "env:THE_KEY"}})
def look() -> str:
    return {found}

@step
def other() -> str:
    return str({found})

@pipeline
def example():
    return look(), other()

if __name__ == "__main__":
    example()
"""
SHELL = {"THE_KEY": "open-sesame"}


@pytest.mark.parametrize(
    ("at_import", "found", "expected"),
    [
        ('MODE = os.environ.get("MODE")', "MODE", ("fast", "None")),
        ('KEY_SIZE = len(os.getenv("KEY", ""))', "str(KEY_SIZE)", ("11", "0")),
        ("ENVIRONMENT = os.environ.copy()", 'str(ENVIRONMENT.get("MODE"))', ("fast", "None")),
    ],
)
def test_what_is_read_at_import_is_the_step_s(
    project: Project, at_import: str, found: str, expected: tuple[str, str]
) -> None:
    project.run(CODE.format(at_import=at_import, found=found), env=SHELL)
    assert upshift.get_run("latest").output == expected
    project.python("pipeline.py", env=SHELL)
    assert upshift.get_run("latest").output == expected


def test_what_reads_nothing_is_imported_once(project: Project) -> None:
    project.run(CODE.format(at_import="", found='str(os.environ.get("MODE"))'), env=SHELL)
    assert upshift.get_run("latest").output == ("fast", "None")
    assert (project.folder / "imports").read_text().split() == ["once"]
