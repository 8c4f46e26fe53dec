"""What the file that was run does when it is imported is done in a container, as far as its image can."""

from __future__ import annotations

from pathlib import Path

import pytest
from registries import LoopbackRegistry

import upshift
from project import Project
from upshift.images.containers.engine import ContainerEngine

STEPS = """
import os

@step
def look() -> str:
    return os.environ.get("WORLD", "nothing")
"""


@pytest.fixture
def project(
    tmp_path: Path, upshift_home: Path, docker: ContainerEngine, registry: LoopbackRegistry
) -> Project:
    project = Project(tmp_path / "project", upshift_home)
    project.write(STEPS, "steps.py")
    return project


def main_of(image: str, top: str) -> str:
    settings = f'{{"docker": DockerSettings(parent_image={image!r})}}'
    return f"{top}\nimport steps\n\n@pipeline(settings={settings})\ndef example():\n    return steps.look()\n"


def test_what_it_does_is_done_in_the_container(project: Project, base_image_name: str) -> None:
    project.write(main_of(base_image_name, "import os\nos.environ['WORLD'] = 'set'"), "main.py")
    project.upshift("run", "main.py", "--on", "docker", timeout=300)

    assert upshift.get_run("latest").output == "set"


def test_what_an_image_has_not_is_told_and_the_step_goes_on(project: Project, base_image_name: str) -> None:
    top = "import sklearn\nimport os\nos.environ['WORLD'] = 'set'"
    project.write(main_of(base_image_name, top), "main.py")
    done = project.upshift("run", "main.py", "--on", "docker", timeout=300)

    assert upshift.get_run("latest").output == "nothing"
    assert "main.py cannot be imported in this image" in done.text
    assert "No module named 'sklearn'" in done.text
