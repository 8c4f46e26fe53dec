"""``upshift image list`` and ``prune``: what Upshift has built, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from registries import LoopbackRegistry

from project import Project
from upshift.errors import ImageError
from upshift.images.base import HOME_LABEL, PROJECT_LABEL, RECIPE_LABEL, tag_of
from upshift.images.built import built_in_engine, remove_from_engine, this_home
from upshift.images.containers.engine import ContainerEngine


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    return Project(tmp_path / "project", upshift_home)


class Shelf:
    """An engine with images of this test's, among those of others."""

    def __init__(self, engine: ContainerEngine, base: str) -> None:
        self.engine = engine
        insecure = ["--tls-verify=false"] if engine.name == "podman" else []
        engine.run(["pull", *insecure, base])
        self.base = base
        self.repository = f"localhost/upshift-test-{uuid.uuid4().hex[:8]}"

    def build(self, parent: str, name: str, *labels: str) -> str:
        more = [word for label in labels for word in ("--label", label)]
        subprocess.run(
            [*self.engine.command, "build", "--tag", name, *more, "-"],
            input=f"FROM {parent}\nENV NAME={name}\n",
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            text=True,
            capture_output=True,
            check=True,
        )
        return name

    def ours(self, figure: str, *labels: str) -> str:
        recipe = "sha256:" + figure * 64
        return self.build(
            self.base, f"{self.repository}:{tag_of(recipe)}", f"{RECIPE_LABEL}={recipe}", *labels
        )

    def names(self) -> set[str]:
        """The images of this test that Upshift takes for its own."""
        found = {name for image in built_in_engine(self.engine) for name in image.names}
        return {name for name in found if name.startswith(self.repository)}

    def there(self, name: str) -> bool:
        return self.engine.inspect(name) is not None


@pytest.fixture(params=["docker", "podman"])
def shelf(request: pytest.FixtureRequest, base_image_name: str) -> Shelf:
    return Shelf(request.getfixturevalue(request.param), base_image_name)


def test_what_upshift_has_built_is_listed_and_what_is_built_on_it_is_not(
    shelf: Shelf, project: Project
) -> None:
    ours = shelf.ours("a")
    somebodys = shelf.build(ours, f"{shelf.repository}:mine")  # inherits the label
    plain = shelf.build(shelf.base, f"{shelf.repository}:plain")
    assert shelf.names() == {ours}
    listed: list[dict[str, Any]] = json.loads(project.upshift("image", "list", "--json").out)
    (image,) = [entry for entry in listed if ours in entry["names"]]
    assert image["recipe"] == "sha256:" + "a" * 64 and image["place"] == shelf.engine.name
    assert image["bytes"] > 50_000_000 and image["made"].endswith("Z") and image["containers"] == 0
    text = project.upshift("image", "list").out
    assert "sha256:aaaaaaaaaaaa" in text and "just now" in text
    assert all(shelf.there(name) for name in (ours, somebodys, plain))


def test_prune_removes_what_no_container_is_of(shelf: Shelf) -> None:
    unused, used = shelf.ours("b"), shelf.ours("c")
    container = shelf.engine.run(["create", used, "true"]).stdout.strip()
    try:
        mine = [image for image in built_in_engine(shelf.engine) if {unused, used} & {*image.names}]
        by_name = {image.names[0]: image for image in mine}
        assert {name: image.containers for name, image in by_name.items()} == {unused: 0, used: 1}
        remove_from_engine(shelf.engine, by_name[unused])
        with pytest.raises(ImageError, match="is in use"):
            remove_from_engine(shelf.engine, by_name[used])
        assert (shelf.there(unused), shelf.there(used)) == (False, True)
    finally:
        shelf.engine.run(["rm", "--force", container])


def test_a_dry_run_and_an_age_leave_images_alone(shelf: Shelf, project: Project) -> None:
    ours = shelf.ours("d", f"{HOME_LABEL}={this_home()}")
    said = project.upshift("image", "prune", "--dry-run").out
    assert f"would remove {shelf.repository}:upshift-dddddddddddd…, in {shelf.engine.name}" in said
    told = json.loads(project.upshift("image", "prune", "--older-than", "1h", "--dry-run", "--json").out)
    assert not [image for image in told["removed"] if ours in image["names"]]
    assert shelf.there(ours)


def test_what_another_home_had_built_stays_unless_all_is_said(shelf: Shelf, project: Project) -> None:
    theirs = shelf.ours("e", f"{HOME_LABEL}=another", f"{PROJECT_LABEL}=churn")
    nobodys = shelf.ours("f")
    told = json.loads(project.upshift("image", "prune", "--dry-run", "--json").out)
    others = {name: image["project"] for image in told["others"] for name in image["names"]}
    assert (others[theirs], others[nobodys]) == ("churn", None)
    assert not {theirs, nobodys} & {name for image in told["removed"] for name in image["names"]}
    assert "churn, another home" in project.upshift("image", "list", env={"COLUMNS": "160"}).out
    told = json.loads(project.upshift("image", "prune", "--dry-run", "--all", "--json").out)
    assert {theirs, nobodys} <= {name for image in told["removed"] for name in image["names"]}


def test_an_engine_that_does_not_answer_is_named(podman: ContainerEngine, project: Project) -> None:
    away = {"DOCKER_HOST": "unix:///nowhere.sock"}
    said = project.upshift("image", "list", env=away)
    assert "not looked at: Docker is installed, but its daemon does not answer" in said.err


def test_where_no_engine_answers_that_is_no_empty_list(project: Project, tmp_path: Path) -> None:
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(
        "#!/bin/sh\necho Cannot connect to the Docker daemon at unix:///nowhere.sock >&2\nexit 1\n"
    )
    docker.chmod(0o755)
    for command in (["list"], ["prune", "--dry-run"]):
        said = project.upshift("image", *command, env={"PATH": str(docker.parent)}, expect=1)
        assert said.out == ""
        assert "Docker is installed, but its daemon does not answer: Cannot connect" in said.err


def test_images_in_a_registry(
    registry: LoopbackRegistry, docker: ContainerEngine, base_image_name: str, project: Project
) -> None:
    project.write(f"""
@step(settings={{"docker": DockerSettings(parent_image={base_image_name!r}, requirements=["six"])}})
def f() -> int:
    return 1

@pipeline
def example():
    return f()
""")
    to = ("--registry", f"{registry.address}/{uuid.uuid4().hex[:8]}")
    assert project.upshift("image", "list", *to).out == "No images.\n"
    project.upshift("image", "build", "pipeline.py", *to)
    (image,) = json.loads(project.upshift("image", "list", *to, "--json").out)
    assert image["place"] == f"{to[1]}/upshift" and image["made"] is None and image["bytes"] > 0
    assert json.loads(project.upshift("image", "list", *to, "--json").out) == [image]
    project.write(f'[targets.shop]\nbackend = "docker"\nregistry = "{to[1]}"\n', "upshift.toml", header="")
    aged = project.upshift("image", "prune", "--on", "shop", "--all", "--older-than", "0s", "--dry-run").out
    assert f"1 more image in {to[1]}/upshift would stay, since nothing tells when it was built" in aged
    stays = project.upshift("image", "prune", *to).out
    assert f"1 image in {to[1]}/upshift stays: a registry does not tell who had it built. --all" in stays
    assert json.loads(project.upshift("image", "list", *to, "--json").out) == [image]
    removed = project.upshift("image", "prune", *to, "--all").out
    assert removed.startswith(f"removed {to[1]}/upshift:upshift-")
    assert project.upshift("image", "list", *to).out == "No images.\n"
    assert project.upshift("image", "prune", *to).out == "Nothing to remove.\n"


def test_where_there_is_nothing_to_look_at(project: Project) -> None:
    assert "has no container engine" in project.upshift("image", "list", "--on", "local", expect=2).err
    both = project.upshift("image", "list", "--on", "local", "--registry", "r.example.org/x", expect=2)
    assert "--registry and --on" in both.err
    aged = project.upshift("image", "prune", "--registry", "r.example.org/x", "--older-than", "1d", expect=2)
    assert "do not tell" in aged.err
