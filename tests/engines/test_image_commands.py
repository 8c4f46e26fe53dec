"""``upshift image``, against a real registry and real engines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from registries import PASSWORD, LoopbackRegistry

from project import Project
from upshift.images.containers.engine import ContainerEngine
from wheels import wheel


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    """A project of two steps, whose image is written by :func:`pipeline`."""
    return Project(tmp_path / "project", upshift_home)


def pipeline(project: Project, parent: str, more: str = "", resources: str = "") -> None:
    project.write(f"""
image = DockerSettings(parent_image={parent!r}, {more})

@step(settings={{"docker": image, "resources": ResourceSettings({resources})}})
def train() -> int:
    return 1

@step(settings={{"docker": image}})
def score(x: int) -> int:
    return x

@pipeline
def example():
    return score(train())
""")


SIX = 'requirements=["six==1.17.0"]'


def shown(project: Project, registry: LoopbackRegistry, *more: str, expect: int = 0) -> list[dict[str, Any]]:
    to = ("--registry", f"{registry.address}/ml", "--json")
    told: list[dict[str, Any]] = json.loads(
        project.upshift("image", "show", "pipeline.py", *to, *more, expect=expect).out
    )
    return told


def test_equal_images_are_shown_once_with_all_of_their_steps(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    pipeline(project, base_image_name, SIX)
    (image,) = shown(project, registry)
    assert image["steps"] == ["train", "score"]
    assert image["parent"]["reference"] == base_image_name and image["parent"]["digest"].startswith("sha256:")
    assert image["recipe"]["requirements"] == ["six==1.17.0"]
    assert image["origins"]["parent_image"] == "pipeline.py:3 (@step)"
    assert image["builds"] is True and image["image"] is None
    assert [finding for finding in image["findings"] if finding["severity"] == "error"] == []
    text = project.upshift("image", "show", "pipeline.py", "--registry", f"{registry.address}/ml").out
    assert text.startswith(
        f"image of train, score · for {registry.address}/ml\n  parent  {base_image_name}\n"
    )


def test_a_step_is_chosen_by_its_name(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    pipeline(project, base_image_name)
    (image,) = shown(project, registry, "--step", "score")
    assert image["steps"] == ["score"]
    wrong = project.upshift(
        "image", "show", "pipeline.py", "--registry", f"{registry.address}/ml", "--step", "scroe", expect=2
    )
    assert "has no step 'scroe'" in wrong.err and "Did you mean 'score'?" in wrong.err


def test_an_image_that_is_not_there_is_shown_with_the_reason_and_not_built(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    pipeline(project, base_image_name + "r", SIX)
    for command in ("show", "build"):
        done = project.upshift(
            "image", command, "pipeline.py", "--registry", f"{registry.address}/ml", expect=2
        )
        said = done.out if command == "show" else done.err
        assert f"✗ parent_image: there is no image {base_image_name}r" in said
        assert "→ Nearest: 3." in said


def test_without_a_login_the_image_is_refused_and_no_password_is_seen(
    project: Project, registry: LoopbackRegistry, base_image_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline(project, base_image_name)
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.setenv(name, str(project.folder / "nowhere"))
    monkeypatch.setenv("HOME", str(project.folder))
    (image,) = shown(project, registry, expect=2)
    (error,) = [finding for finding in image["findings"] if finding["severity"] == "error"]
    assert error["field"] == "parent_image" and "docker login" in error["fix"]
    assert PASSWORD not in json.dumps(image)


def test_a_step_on_gpus_is_refused_an_image_without_cuda_and_one_that_fits_is_named(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    pipeline(project, base_image_name, resources="gpu_count=1, gpu_vendor='nvidia'")
    train, score = shown(project, registry, expect=2)
    (error,) = [finding for finding in train["findings"] if finding["severity"] == "error"]
    assert "CUDA" in error["what"] and ":" in error["fix"]
    assert (train["steps"], score["steps"]) == (["train"], ["score"])
    assert [finding for finding in score["findings"] if finding["severity"] == "error"] == []


def test_an_image_is_built_once_and_its_reference_is_on_stdout(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    pipeline(project, base_image_name, SIX)
    to = ("--registry", f"{registry.address}/ml")
    first = project.upshift("image", "build", "pipeline.py", *to)
    reference = first.out.strip()
    assert reference.startswith(f"{registry.address}/ml/upshift@sha256:")
    assert "image of train, score: made in " in first.err
    again = project.upshift("image", "build", "pipeline.py", *to)
    assert again.out.strip() == reference
    assert again.err.startswith("image of train, score: is there: ")
    (image,) = shown(project, registry)
    assert image["builds"] is False and image["image"]["reference"] == reference
    assert PASSWORD not in first.text + again.text


def test_the_code_is_not_in_the_image_so_an_edit_builds_nothing(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    to = ("--registry", f"{registry.address}/ml", "--json")
    pipeline(project, base_image_name, SIX)
    (before,) = json.loads(project.upshift("image", "build", "pipeline.py", *to).out)
    file = project.folder / "pipeline.py"
    file.write_text(file.read_text().replace("return 1", "return 2"))
    (after,) = json.loads(project.upshift("image", "build", "pipeline.py", *to).out)
    assert after == before and after["steps"] == ["train", "score"]


def test_a_pipeline_without_steps_has_no_images(project: Project) -> None:
    project.write("@pipeline\ndef example():\n    pass\n")
    done = project.upshift("image", "show", "pipeline.py", expect=2)
    assert "pipeline example has no steps, and so no images" in done.err


def test_a_local_run_has_no_images_to_show(project: Project) -> None:
    pipeline(project, "python:3.11-slim")
    done = project.upshift("image", "show", "pipeline.py", expect=2)
    assert "no step of example runs in an image on local" in done.err and "--on docker" in done.err


def test_options_that_contradict_each_other_are_refused(project: Project) -> None:
    pipeline(project, "python:3.11-slim")
    given = ("--registry", "r.example.org/x", "--on", "local")
    assert "fix:" in project.upshift("image", "build", "pipeline.py", *given, expect=2).err


def test_what_is_installed_is_locked_until_an_update(
    project: Project, registry: LoopbackRegistry, base_image_name: str
) -> None:
    to = ("--registry", f"{registry.address}/ml")
    pipeline(project, base_image_name, 'requirements=["six>=1.16"]')
    locked = project.upshift("image", "lock", "pipeline.py", *to).out
    assert re.match(r"# image of train, score\nsix==1\.\d+\.\d+ --hash=sha256:[0-9a-f]{64}", locked)
    (before,) = shown(project, registry)
    assert before["lock"] == locked.splitlines()[1:]
    same = project.upshift("image", "update", "pipeline.py", *to)
    assert "requirements resolve to what they did before" in same.err
    older = '["six>=1.16", "-c limits.txt"]'
    (project.folder / "limits.txt").write_text("six<1.17\n")
    pipeline(project, base_image_name, f"requirements={older}")
    project.upshift("image", "lock", "pipeline.py", *to, "-o", "requirements.txt")
    text = (project.folder / "requirements.txt").read_text()
    assert text.startswith("six==1.16.0 --hash=sha256:")
    pipeline(project, base_image_name, 'requirements="requirements.txt"')
    (image,) = shown(project, registry)
    assert image["lock"] == text.splitlines()


@pytest.mark.parametrize("registry_", ["", "https://r.example.org/ml", "r.example.org/UPPER"])
@pytest.mark.parametrize("command", ["show", "build", "list", "prune"])
def test_a_registry_that_makes_no_sense_is_refused(project: Project, command: str, registry_: str) -> None:
    pipeline(project, "python:3.11-slim")
    file = ("pipeline.py",) if command in ("show", "build") else ()
    done = project.upshift("image", command, *file, "--registry", registry_, expect=2)
    assert "is not a valid image name" in done.err and not done.out


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_image_is_built_where_the_steps_run(
    name: str, request: pytest.FixtureRequest, project: Project, base_image_name: str
) -> None:
    engine: ContainerEngine = request.getfixturevalue(name)
    insecure = ["--tls-verify=false"] if name == "podman" else []
    engine.run(["pull", *insecure, base_image_name])
    pipeline(project, base_image_name, SIX)
    (made,) = json.loads(project.upshift("image", "build", "pipeline.py", "--on", name, "--json").out)
    found = engine.inspect(made["reference"])
    assert found is not None and "dev.upshift.recipe" in found.labels
    again = project.upshift("image", "build", "pipeline.py", "--on", name)
    assert again.err.startswith("image of train, score: is there: ")


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_what_an_update_replaces_stays_for_runs_that_use_it_until_images_are_pruned(
    name: str, request: pytest.FixtureRequest, project: Project, base_image_name: str
) -> None:
    engine: ContainerEngine = request.getfixturevalue(name)
    insecure = ["--tls-verify=false"] if name == "podman" else []
    engine.run(["pull", *insecure, base_image_name])
    found = project.folder / "found"
    wheel(found, "tool", "1.0", {"tool.py": ""})
    options = f'python_package_installer_args={{"find-links": {str(found)!r}, "no-index": None}}'
    pipeline(project, base_image_name, f'requirements=["tool"], {options}')
    (before,) = json.loads(project.upshift("image", "build", "pipeline.py", "--on", name, "--json").out)
    wheel(found, "tool", "2.0", {"tool.py": ""})
    updated = project.upshift("image", "update", "pipeline.py", "--on", name)
    assert "1.0" in updated.err and "2.0" in updated.err, updated.err
    replaced = engine.describe(before["reference"])
    assert replaced is not None and not replaced["RepoTags"], updated.err
    project.upshift("image", "prune", "--on", name)
    assert engine.describe(before["reference"]) is None


@pytest.mark.parametrize("command", [("image", "show"), ("run",), ("plan",)])
def test_without_the_engine_that_a_step_names_its_line_is_named(
    command: tuple[str, ...], project: Project
) -> None:
    project.write("""
@step(on="docker")
def train() -> int:
    return 1

@pipeline
def example():
    return train()
""")
    done = project.upshift(*command, "pipeline.py", expect=2, env={"PATH": "/nowhere"})
    assert done.err.startswith("Error: Docker is not installed\n  where: pipeline.py:3")
    assert "docker.io" in done.err
