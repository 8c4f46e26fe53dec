"""A run whose image is made without the engine that then runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registries import LoopbackRegistry

from project import Project
from upshift.images.containers.engine import ContainerEngine


@pytest.fixture
def project(
    tmp_path: Path, upshift_home: Path, docker: ContainerEngine, registry: LoopbackRegistry
) -> Project:
    """A project with a target for either builder."""
    project = Project(tmp_path / "project", upshift_home)
    (project.folder / "upshift.toml").write_text(f"""
[targets.without]
backend = "docker"
registry = "{registry.address}/ml"
options = {{ builder = "daemonless" }}

[targets.with]
backend = "docker"
""")
    return project


def test_a_step_finds_the_same_in_an_image_of_either_builder(
    project: Project, base_image_name: str, docker: ContainerEngine
) -> None:
    project.write(f"""
image = DockerSettings(
    parent_image={base_image_name!r},
    requirements=["six==1.16.0", "pygments==2.18.0"],
    environment={{"GREETING": 'a "b" $HOME'}},
)

@step(settings={{"docker": image}}, cache=False)
def look() -> dict:
    import importlib.metadata, os, subprocess, sys
    import pygments, six
    script = subprocess.run(["pygmentize", "-V"], capture_output=True, text=True)
    return dict(
        versions=[six.__version__, pygments.__version__, importlib.metadata.version("six")],
        script=script.stdout.split(",")[0],
        greeting=os.environ["GREETING"],
        python=sys.executable,
        files=[six.__file__.rpartition("/")[2], os.path.exists(six.__cached__)],
    )

@pipeline
def example():
    return look()
""")
    plan = json.loads(project.upshift("plan", "pipeline.py", "--on", "without", "--json").out)
    (image,) = [one["image"] for one in plan["steps"]]
    assert (image["builder"], image["builds"], image["findings"]) == ("daemonless", True, [])
    found: list[Any] = []
    for target in ("without", "with"):
        project.upshift("run", "pipeline.py", "--on", target, timeout=300)
        import upshift

        found.append(upshift.get_run("latest").output)
        docker.run(["rmi", "--force", project.attempt("look")["image"]], check=False)
    assert found[0]["versions"] == ["1.16.0", "2.18.0", "1.16.0"]
    assert found[0]["files"] == ["six.py", True]
    assert found[0] == found[1]
    again = project.upshift("run", "pipeline.py", "--on", "without", timeout=300)
    assert "made in" not in again.err
    docker.run(["rmi", "--force", project.attempt("look")["image"]], check=False)
