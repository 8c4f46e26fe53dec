"""Engines on other machines, which have no folders of this one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from upshift.errors import ImageError
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.facts import elsewhere, facts_of, way_back

VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINER_CONNECTION")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's folder, with a context here and one on another machine, none of them in use."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name, address in (("near", "unix:///run/user/1000/docker.sock"), ("far", "ssh://me@gpu-box")):
        folder = tmp_path / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
        folder.mkdir(parents=True)
        said = {"Name": name, "Endpoints": {"docker": {"Host": address}}}
        (folder / "meta.json").write_text(json.dumps(said))
    return tmp_path


@pytest.mark.parametrize(
    ("variables", "used", "named"),
    [
        ({}, None, None),
        ({"DOCKER_HOST": "tcp://10.0.0.7:2375"}, None, "DOCKER_HOST=tcp://10.0.0.7:2375"),
        ({"DOCKER_CONTEXT": "far"}, None, "DOCKER_CONTEXT=far (ssh://me@gpu-box)"),
        ({"DOCKER_CONTEXT": "near"}, "far", None),
        ({}, "far", "currentContext=far (ssh://me@gpu-box)"),
        ({}, "near", None),
        ({}, "default", None),
        ({}, "removed", None),
        ({"DOCKER_HOST": "unix:///run/docker.sock", "DOCKER_CONTEXT": "far"}, "far", None),
    ],
)
def test_docker_goes_by_its_host_its_context_and_the_one_in_use(
    variables: dict[str, str],
    used: str | None,
    named: str | None,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if used is not None:
        (config / "config.json").write_text(json.dumps({"currentContext": used}))
    assert elsewhere("docker") == named


def test_what_leads_elsewhere_is_what_is_to_be_undone() -> None:
    assert way_back("DOCKER_CONTEXT=far (ssh://me@gpu-box)").startswith("Unset DOCKER_CONTEXT, or run")
    assert way_back("currentContext=far (ssh://me@gpu-box)").startswith("docker context use default, or run")


@pytest.mark.parametrize("written", ["", "[]", '{"currentContext": 7}', '{"auths": {}}'])
def test_a_configuration_that_names_no_context_is_none(written: str, config: Path) -> None:
    (config / "config.json").write_text(written)
    assert elsewhere("docker") is None


CONNECTIONS = [
    {"Name": "here", "URI": "unix:///run/podman/podman.sock", "Default": False},
    {"Name": "far", "URI": "ssh://me@gpu-box:22/run/podman/podman.sock", "Default": True},
]


def podman(folder: Path, *, remote: bool) -> ContainerEngine:
    program = folder / "podman"
    info = json.dumps({"host": {"serviceIsRemote": remote}})
    program.write_text(
        f"#!/bin/sh\nif [ $1 = info ]; then echo '{info}'; else echo '{json.dumps(CONNECTIONS)}'; fi\n"
    )
    program.chmod(0o755)
    return ContainerEngine(
        name="podman", command=(str(program),), version="5.0", platform="linux/amd64", buildkit=True
    )


def test_podmans_connections_count_where_it_uses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(podman(tmp_path, remote=False))
    with pytest.raises(ImageError, match="connection far leads to an engine on another machine: ssh://me@"):
        facts_of(podman(tmp_path, remote=True))
    monkeypatch.setenv("CONTAINER_CONNECTION", "here")
    facts_of(podman(tmp_path, remote=True))
    monkeypatch.setenv("CONTAINER_CONNECTION", "far")
    with pytest.raises(ImageError, match="far leads to") as caught:
        facts_of(podman(tmp_path, remote=True))
    assert "Unset CONTAINER_CONNECTION" in (caught.value.fix or "")
