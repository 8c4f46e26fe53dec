"""Steps in images from outside: planned, built, run, reused, changed, and refused."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pytest
from image_kit import ImageMaker
from registries import LoopbackRegistry, running

from project import Project
from upshift.images.containers.engine import ContainerEngine

SIX = 'requirements=["six==1.17.0"]'


@pytest.fixture
def project(
    tmp_path: Path, upshift_home: Path, docker: ContainerEngine, registry: LoopbackRegistry
) -> Project:
    """A project whose steps run in containers of Docker; this test is logged in at the registry."""
    return Project(tmp_path / "project", upshift_home)


def mixed(project: Project, parent: str, more: str = SIX, *, on: str = "docker", resources: str = "") -> None:
    """``load`` runs here, ``train`` in a container, with a package that this project never had."""
    project.write(f"""
import helpers

image = DockerSettings(parent_image={parent!r}, {more})

@step
def load() -> int:
    return 20

@step(on={on!r}, settings={{"docker": image, "resources": ResourceSettings({resources})}})
def train(x: int) -> dict:
    import os, socket, sys
    try:
        import six
        version = six.__version__
    except ImportError:
        version = None
    print("training on", socket.gethostname())
    found = dict(host=socket.gethostname(), six=version, python=sys.executable, user=os.getuid())
    return dict(found, y=helpers.double(x), mode=os.environ.get("MODE"))

@step
def report(trained: dict) -> str:
    return f"{{trained['y']}} with six {{trained['six']}}"

@pipeline
def example():
    return report(train(load()))
""")
    helpers = project.folder / "helpers.py"
    if not helpers.exists():
        helpers.write_text("def double(x):\n    return 2 * x\n")


def value(project: Project, step: str) -> Any:
    import upshift

    return upshift.get_run("latest")[step].output


def planned(project: Project, step: str, *args: str, expect: int = 0) -> dict[str, Any]:
    plan = json.loads(project.upshift("plan", "pipeline.py", "--json", *args, expect=expect).out)
    found: dict[str, Any] = next(one for one in plan["steps"] if one["name"] == step)
    return found


def test_a_step_runs_in_an_image_of_its_own_between_two_that_run_here(
    project: Project, base_image_name: str
) -> None:
    fresh = f'environment={{"TEST": "{uuid4()}"}}, runtime_environment={{"MODE": "it\'s \\"$5\\""}}'
    mixed(project, base_image_name, f"{SIX}, {fresh}")
    before = planned(project, "train")
    assert before["image"]["builds"] is True
    assert before["image"]["parent"]["reference"] == base_image_name
    assert planned(project, "load")["image"] is None
    done = project.upshift("run", "pipeline.py", timeout=300)
    assert "image of train: made in" in done.err
    assert "[train] training on" in done.out
    trained = value(project, "train")
    assert (trained["y"], trained["six"], trained["mode"]) == (40, "1.17.0", 'it\'s "$5"')
    assert trained["python"] != sys.executable
    assert trained["python"].startswith("/usr/local/bin/python")
    assert value(project, "report") == "40 with six 1.17.0"
    attempt = project.attempt("train")
    assert attempt["backend"] == "docker"
    after = planned(project, "train")
    assert after["image"]["builds"] is False
    assert after["image"]["image"]["reference"] == attempt["image"]
    assert project.attempt("load")["image"] is None
    assert attempt["image"][:15] in project.upshift("show", "latest").out


def test_the_same_step_runs_in_podman_by_another_name(
    project: Project, base_image_name: str, podman: ContainerEngine
) -> None:
    mixed(project, base_image_name, on="podman")
    assert planned(project, "train")["image"]["findings"] == []
    project.upshift("run", "pipeline.py", timeout=300)
    attempt = project.attempt("train")
    assert (attempt["backend"], value(project, "report")) == ("podman", "40 with six 1.17.0")
    assert podman.describe(attempt["image"]) is not None
    project.upshift("run", "pipeline.py")
    assert project.tasks("train")[0]["cached"]


def test_an_edit_builds_nothing_and_what_is_reused_starts_nothing(
    project: Project, base_image_name: str, docker: ContainerEngine
) -> None:
    mixed(project, base_image_name)
    project.upshift("run", "pipeline.py", timeout=300)
    image = project.attempt("train")["image"]
    again = project.upshift("run", "pipeline.py")
    assert [task["cached"] for step in ("load", "train", "report") for task in project.tasks(step)] == [
        True
    ] * 3
    assert "image of" not in again.err
    (project.folder / "helpers.py").write_text("def double(x):\n    return x + x + 1\n")
    edited = project.upshift("run", "pipeline.py", timeout=120)
    assert "image of" not in edited.err
    assert project.tasks("train")[0]["cache_reason"] == "code changed: double in helpers.py"
    assert (project.attempt("train")["image"], value(project, "train")["y"]) == (image, 41)


def test_other_requirements_make_another_image_and_new_work(project: Project, base_image_name: str) -> None:
    mixed(project, base_image_name)
    project.upshift("run", "pipeline.py", timeout=300)
    first = project.attempt("train")["image"]
    mixed(project, base_image_name, "")
    project.upshift("run", "pipeline.py", timeout=300)
    assert project.tasks("train")[0]["cache_reason"] == "image changed: requirements"
    assert project.attempt("train")["image"] != first
    assert value(project, "train")["six"] is None
    mixed(project, base_image_name)
    back = project.upshift("run", "pipeline.py", timeout=300)
    assert project.tasks("train")[0]["cached"]
    assert "image of" not in back.err


def test_steps_with_equal_settings_share_an_image_that_is_made_once(
    project: Project, base_image_name: str
) -> None:
    project.write(f"""
image = DockerSettings(
    parent_image={base_image_name!r}, environment={{"TEST": "{uuid4()}"}}, {SIX}
)

@step
def part(x: int) -> str:
    import six
    return f"{{six.__version__}}/{{x}}"

@step
def gather(parts: list) -> str:
    import six
    return " ".join(parts) + six.__version__[:0]

@pipeline(settings={{"docker": image}})
def example():
    return gather(part.map([1, 2, 3]))
""")
    done = project.upshift("run", "pipeline.py", "--on", "docker", timeout=300)
    assert done.err.count("made in") == 1
    assert "image of part, gather: made in" in done.err
    assert value(project, "gather") == "1.17.0/1 1.17.0/2 1.17.0/3"
    assert len({task["attempts"][0]["image"] for task in project.tasks("part")}) == 1


def test_a_run_that_failed_is_resumed_in_the_same_image_and_its_task_replayed_here(
    project: Project, base_image_name: str
) -> None:
    mixed(project, base_image_name)
    (project.folder / "helpers.py").write_text("def double(x):\n    raise ValueError(x)\n")
    failed = project.upshift("run", "pipeline.py", expect=1, timeout=300)
    assert "step train failed (user-error): ValueError: 20" in failed.err
    image = project.attempt("train")["image"]
    replayed = project.upshift("replay", "latest", "train", expect=1)
    assert f"it ran in image {image}; here it runs in this environment" in replayed.err
    assert "recorded" in replayed.err
    (project.folder / "helpers.py").write_text("def double(x):\n    return 2 * x\n")
    resumed = project.upshift("resume", "latest", timeout=120)
    assert "image of" not in resumed.err
    assert project.tasks("load")[0]["attempts"][0]["number"] == 1
    assert (project.attempt("train")["number"], project.attempt("train")["image"]) == (2, image)


def test_a_parent_that_does_not_exist_is_refused_before_anything_runs(
    project: Project, registry: LoopbackRegistry
) -> None:
    mixed(project, registry.name("nobody/made-this:1"))
    planned_step = planned(project, "train", expect=2)
    assert planned_step["refused"]
    assert [finding["severity"] for finding in planned_step["image"]["findings"]] == ["error"]
    refused = project.upshift("run", "pipeline.py", expect=2)
    assert "nobody/made-this:1" in refused.err
    assert "pipeline.py" in refused.err
    assert project.upshift("runs", "--json").out.strip() == "[]"


def test_a_parent_that_needs_credentials_names_the_login(
    project: Project, base_image_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nobody"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "nobody.json"))
    name, _, tag = base_image_name.rpartition(":")
    mixed(project, f"{name}-nowhere:{tag}")
    refused = project.upshift("run", "pipeline.py", expect=2)
    assert "login" in refused.err


def test_a_requirement_that_does_not_exist_is_refused_before_anything_runs(
    project: Project, base_image_name: str
) -> None:
    mixed(project, base_image_name, 'requirements=["six==999"]')
    refused = project.upshift("run", "pipeline.py", expect=2, timeout=300)
    assert "the image of train will not do" in refused.err
    assert "six==999" in refused.err and "where: pipeline.py:" in refused.err
    assert project.upshift("runs", "--json").out.strip() == "[]"


def test_what_an_image_was_made_of_is_in_the_record_of_the_run(
    project: Project, base_image_name: str
) -> None:
    mixed(project, base_image_name)
    project.upshift("run", "pipeline.py", timeout=300)
    (image,) = project.show()["images"]
    assert image["steps"] == ["train"] and image["digest"] == planned(project, "train")["image"]["digest"]
    assert image["parent"].startswith(f"{base_image_name.rpartition(':')[0]}@sha256:")
    assert [line.split(" ")[0] for line in image["lock"]] == ["six==1.17.0"]


def test_a_registry_that_is_down_is_a_line_of_the_plan(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    mixed(project, f"{address}/ml/base:1")
    refused = project.upshift("plan", "pipeline.py", expect=2)
    assert address in refused.text
    assert "Traceback" not in refused.text


def test_a_step_whose_image_is_there_runs_though_its_registry_is_gone(
    project: Project, image_maker: ImageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registry").mkdir()
    monkeypatch.delenv("REGISTRY_AUTH_FILE")  # a setting of the registry itself, too
    with running(tmp_path / "registry") as short_lived:
        monkeypatch.setenv("DOCKER_CONFIG", str(short_lived.login))
        base = attrs.evolve(image_maker, registry=short_lived).push("ml/base:1")
        mixed(project, base, f'environment={{"TEST": "{uuid4()}"}}')
        project.upshift("run", "pipeline.py", timeout=300)
        image = project.attempt("train")["image"]
    (project.folder / "helpers.py").write_text("def double(x):\n    return x + x + 1\n")
    done = project.upshift("run", "pipeline.py", timeout=120)
    assert f"train: {base} is taken for what it was on 20" in done.err
    assert (project.attempt("train")["image"], value(project, "train")["y"]) == (image, 41)


def test_an_image_without_cuda_is_refused_for_a_step_that_asks_for_a_gpu(
    project: Project, base_image_name: str
) -> None:
    mixed(project, base_image_name, resources="gpu_count=1")
    findings = planned(project, "train", expect=2)["image"]["findings"]
    assert any(finding["severity"] == "error" and "CUDA" in finding["what"] for finding in findings)


def test_a_cancelled_run_stops_the_building_and_leaves_no_image(
    project: Project, base_image_name: str, docker: ContainerEngine, tmp_path: Path
) -> None:
    dockerfile = project.folder / "Dockerfile"
    dockerfile.write_text(
        f'FROM {base_image_name}\nRUN python3 -c \'import time; print("building", flush=True); '
        "[(print(i, flush=True), time.sleep(0.2)) for i in range(1500)]'\n"
    )
    project.write("""
@step(on="docker", settings={"docker": DockerSettings(dockerfile="Dockerfile")})
def train() -> int:
    return 1

@pipeline
def example():
    return train()
""")
    running = project.start("run", "pipeline.py")
    assert running.stderr is not None
    lines = []
    for line in running.stderr:
        lines.append(line)
        if "image of train" in line:
            break
    project.upshift("cancel", "latest")
    _, rest = running.communicate(timeout=60)
    assert running.returncode == 130, "".join(lines) + rest
    assert project.show()["status"] == "cancelled"
