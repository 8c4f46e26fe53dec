"""What the settings of an image say is what a step finds in its container. No index is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registries import LoopbackRegistry

import upshift
from project import Project
from upshift.images.containers.engine import ContainerEngine
from wheels import wheel

AWKWARD = "a \"b\" 'c' $HOME ${PATH} \\\\ back\nnext `ls` # no comment"


@pytest.fixture
def project(
    tmp_path: Path, upshift_home: Path, docker: ContainerEngine, registry: LoopbackRegistry
) -> Project:
    project = Project(tmp_path / "project", upshift_home)
    for version in ("1.0", "2.0"):
        wheel(project.folder / "dist", "tool", version, {"tool.py": f"version = {version!r}\n"})
    wheel(project.folder / "dist", "shared", "1.0", {"shared.py": ""}, needs=["tool"])
    return project


def test_parents_packages_variables_and_files(project: Project, base_image_name: str) -> None:
    folder = project.folder
    (folder / "requirements.txt").write_text(
        "--no-index\n-c limits.txt\n./dist/shared-1.0-py3-none-any.whl\n./dist/tool-1.0-py3-none-any.whl\n"
    )
    (folder / "limits.txt").write_text("tool<2  # not yet\n")
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("some words")
    (folder / "data" / ".env").write_text("TOKEN=x")
    (folder / "Dockerfile").write_text(
        "ARG BASE\nFROM ${BASE} AS first\nARG GREETING\nCOPY data /data\n"
        'RUN echo "$GREETING" > /data/greeting\nFROM first\nENV FROM_IT=yes\n'
    )
    project.run(
        f"""
    own = DockerSettings(
        dockerfile="Dockerfile",
        build_context_root=".",
        build_args={{"BASE": {base_image_name!r}, "GREETING": "hello $you"}},
        requirements="requirements.txt",
        environment={{"AWKWARD": {AWKWARD!r}}},
        runtime_environment={{"LATER": {AWKWARD!r}}},
    )
    base = DockerSettings(
        parent_image="no.such.registry.example/none",
        requirements=["none"],
        python_package_installer="pip",
        environment={{"AWKWARD": "replaced", "KEPT": "1"}},
    )

    @step(settings={{"docker": own}})
    def look() -> dict:
        import os, shared, tool
        names = ("AWKWARD", "LATER", "KEPT", "FROM_IT")
        files = {{name: open("/data/" + name).read() for name in sorted(os.listdir("/data"))}}
        return dict({{name: os.environ.get(name) for name in names}}, tool=tool.version, files=files)

    @pipeline(settings={{"docker": base}})
    def example():
        return look()
    """,
        "--on",
        "docker",
        timeout=300,
    )
    assert upshift.get_run("latest").output == {
        "AWKWARD": AWKWARD,
        "LATER": AWKWARD,
        "KEPT": "1",
        "FROM_IT": "yes",
        "tool": "1.0",
        "files": {"greeting": "hello $you\n", "words.txt": "some words"},
    }
    (folder / "data" / ".env").write_text("TOKEN=y")
    (folder / "unrelated.py").write_text("edited = True\n")
    assert image_of(project)["builds"] is False
    (folder / "data" / "words.txt").write_text("other words")
    assert image_of(project)["builds"] is True


def image_of(project: Project) -> dict[str, Any]:
    """What a plan says of the image of the only step."""
    plan = json.loads(project.upshift("plan", "pipeline.py", "--on", "docker", "--json").out)
    found: dict[str, Any] = plan["steps"][0]["image"]
    return found
