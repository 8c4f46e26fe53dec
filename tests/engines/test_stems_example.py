"""The example whose one step runs in a container: real words, a real package, a real engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import upshift
from project import Project
from upshift.images.containers.engine import ContainerEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    return Project(tmp_path / "project", upshift_home)


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_example_runs_and_an_edit_of_it_builds_nothing(
    name: str, request: pytest.FixtureRequest, project: Project, base_image_name: str
) -> None:
    engine: ContainerEngine = request.getfixturevalue(name)
    engine.run(["pull", *(["--tls-verify=false"] if name == "podman" else []), base_image_name])
    folder = project.folder / "examples/stems"
    shutil.copytree(ROOT / "examples/stems", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", project.folder)
    file = folder / "pipeline.py"
    # The official image, which it would be built on, cannot be pulled here.
    code = file.read_text().replace("DockerSettings(", f"DockerSettings(parent_image={base_image_name!r}, ")
    file.write_text(code.replace('on="docker"', f'on="{name}"'))

    first = project.upshift("run", str(file), timeout=100)
    assert "image of count_stems: made in " in first.err
    assert "[count_stems] stemming " in first.out
    run = upshift.get_run("latest")
    assert any(line.startswith("licens ") for line in run.output)
    (step,) = [step for step in project.show()["steps"] if step["name"] == "count_stems"]
    (attempt,) = step["tasks"][0]["attempts"]
    assert (attempt["backend"], bool(attempt["image"])) == (name, True)
    assert attempt["granted"]["memory"] == 500_000_000

    file.write_text(file.read_text().replace("stemming", "now stemming"))
    again = project.upshift("run", str(file), timeout=100)
    assert "image of" not in again.err
    assert "[count_stems] now stemming " in again.out
