"""``upshift doctor docker`` and ``podman``, with real engines and a real registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registries import PASSWORD, LoopbackRegistry

from project import Project
from upshift.images.containers.engine import ContainerEngine


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    return Project(tmp_path / "project", upshift_home)


def checks(project: Project, target: str, expect: int = 0, **env: str) -> dict[str, dict[str, Any]]:
    told = json.loads(project.upshift("doctor", target, "--json", expect=expect, env=env).out)
    assert told["ok"] is (expect == 0)
    return {check["name"]: check for check in told["checks"] if check["group"] in ("containers", "registry")}


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_engine_that_works(name: str, request: pytest.FixtureRequest, project: Project) -> None:
    engine: ContainerEngine = request.getfixturevalue(name)
    found = checks(project, name, UPSHIFT_DEVICE_ROOT=str(project.folder))
    assert found["engine"]["text"].startswith(f"{engine.title}, linux/")
    assert found["containers"]["status"] == "ok"
    assert found["limits"]["text"] == "of memory and CPUs"
    assert "free" in found["disk"]["text"]
    assert "problem" not in {check["status"] for check in found.values()}


def test_an_engine_that_does_not_answer(project: Project, docker: ContainerEngine) -> None:
    nowhere = f"unix://{project.folder}/docker.sock"
    found = checks(project, "docker", expect=1, DOCKER_HOST=nowhere, UPSHIFT_DEVICE_ROOT=str(project.folder))
    assert found["engine"]["status"] == "problem" and "daemon" in found["engine"]["text"]
    assert found["engine"]["remedy"]


def test_the_registry_of_a_target_is_asked_whether_it_takes_images(
    project: Project, docker: ContainerEngine, registry: LoopbackRegistry
) -> None:
    (project.folder / "upshift.toml").write_text(
        f'[targets.box]\nbackend = "docker"\nregistry = "{registry.address}/ml"\n'
    )
    root = {"UPSHIFT_DEVICE_ROOT": str(project.folder)}
    found = checks(project, "box", **root)
    assert found["registry"]["text"] == f"{registry.address}/ml/upshift can be pushed to"
    assert found["credentials"]["text"] == f"from {registry.login}/config.json, for {registry.address}"
    nobody = {"DOCKER_CONFIG": "/nowhere", "REGISTRY_AUTH_FILE": "/nowhere", "HOME": "/nowhere"}
    closed = checks(project, "box", expect=1, **nobody, **root)
    assert closed["registry"]["status"] == "problem"
    assert "docker login" in closed["registry"]["remedy"]
    assert PASSWORD not in json.dumps([found, closed])
