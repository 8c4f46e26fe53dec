"""What only an engine builds: Dockerfiles, by Docker with both builders and by Podman; Debian packages."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import attrs
import psutil
import pytest
from image_kit import Workshop, containers_removed
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import RECIPE_LABEL, Progress, Reference
from upshift.images.building.builder import Destination
from upshift.images.built import built_in_engine
from upshift.images.containers.bases import UNFINISHED, remove_unfinished, this_home, unfinished


def write(workshop: Workshop, text: str, name: str = "Dockerfile") -> str:
    """A Dockerfile that no other test has; the engine keeps what it builds."""
    (workshop.project / name).write_text(f"{text}# {workshop.name}\n")
    return name


@pytest.mark.parametrize("pulled", [False, True], ids=["", "pulled"])
def test_debian_packages_are_installed(workshop: Workshop, pulled: bool) -> None:
    if pulled:
        workshop.pull()
    image = workshop.build(apt_packages=["hello"], requirements=["six==1.16.0"])
    assert workshop.run(image, "hello") == "Hello, world!\n"
    assert workshop.python(image, "import six; print(six.__version__)") == "1.16.0\n"


def test_a_debian_package_that_there_is_none_of_is_named(workshop: Workshop) -> None:
    error = workshop.fails(apt_packages=["no-such-package-of-debian"])
    assert error.what == "the image's distribution has no such Debian package: no-such-package-of-debian"


def test_the_users_dockerfile_makes_the_parent(workshop: Workshop) -> None:
    project = workshop.project
    (project / "context" / "data").mkdir(parents=True)
    (project / "context" / "data" / "a file.txt").write_text("hello")
    (project / "context" / ".env").write_text("TOKEN=x")
    text = "ARG BASE\nFROM ${BASE}\nARG WORD\nRUN echo $WORD > /word\nCOPY . /copied/\n"
    workshop.pull()
    image = workshop.build(
        dockerfile=write(workshop, text),
        build_context_root="context",
        build_args={"WORD": 'a "b" $c', "BASE": workshop.parent},
        requirements=["six==1.16.0"],
    )
    assert workshop.run(image, "cat", "/word") == 'a "b" $c\n'
    assert workshop.run(image, "sh", "-c", "cd /copied && find . -type f") == "./data/a file.txt\n"
    assert workshop.python(image, "import six; print(six.__version__)") == "1.16.0\n"


def test_a_file_that_a_dockerfile_mounts_is_looked_into(workshop: Workshop) -> None:
    if not workshop.engine.buildkit:
        return  # RUN --mount is an error there
    text = f"FROM {workshop.parent}\nRUN --mount=type=bind,source=data,target=/data cat /data > /copy\n"
    name = write(workshop, text)
    for content in ("one", "two"):
        (workshop.project / "data").write_text(content)
        image = workshop.build(dockerfile=name, build_context_root=".")
        assert workshop.run(image, "cat", "/copy") == content


def test_a_dockerfile_that_fails_shows_its_line_and_output(workshop: Workshop) -> None:
    steps = "RUN echo first >&2 \\\n && seq 60 >&2 && echo broken-here >&2 && exit 3\n"
    error = workshop.fails(dockerfile=write(workshop, f"FROM {workshop.parent}\n\n# Words.\n{steps}"))
    assert error.where is not None and error.where.endswith("Dockerfile:4")
    assert error.what == "the Dockerfile fails"
    assert error.why is not None and error.why.startswith("RUN echo first")
    assert "broken-here\n" in error.why
    _, _, kept = error.why.partition("All that was said: ")
    said = Path(kept).read_text().splitlines()
    assert {"first", "broken-here", *map(str, range(1, 61))} <= {
        re.sub(r"^#\d+ \S+ ", "", one) for one in said
    }


def test_a_dockerfile_that_makes_no_sense_shows_its_line(workshop: Workshop) -> None:
    error = workshop.fails(dockerfile=write(workshop, f"FROM {workshop.parent}\nRUN true\nFOO bar\n"))
    assert error.where is not None and error.where.endswith("Dockerfile:3")
    assert "nknown instruction: " in (error.why or "") and "FOO" in (error.why or "")


def test_a_dockerfile_that_takes_python_away_is_refused(workshop: Workshop) -> None:
    removed = "find / -xdev -name 'python3*' -path '*/bin/*' -delete"
    error = workshop.fails(dockerfile=write(workshop, f"FROM {workshop.parent}\nRUN {removed}\n"))
    assert error.what == "the image that the Dockerfile makes has no python3 on its PATH"
    assert error.where == f"{workshop.project / 'Dockerfile'}:1"
    assert "FROM python:" in (error.fix or "")


def test_the_dockerfile_is_built_once_for_requirements_that_change(workshop: Workshop) -> None:
    name = write(workshop, f"FROM {workshop.parent}\nRUN date +%s%N > /built\n")
    first = workshop.build(dockerfile=name, requirements=["six==1.16.0"])
    second = workshop.build(dockerfile=name, requirements=["six==1.17.0"])
    assert workshop.run(first, "cat", "/built") == workshop.run(second, "cat", "/built")


def test_what_a_failed_build_leaves_has_a_name_and_goes_with_the_next(workshop: Workshop) -> None:
    engine = workshop.engine
    text = f"FROM {workshop.parent}\nENV LEFT={workshop.name}\nRUN exit 3\n"
    workshop.fails(dockerfile=write(workshop, text))
    left = unfinished(engine)
    assert left == [f"{UNFINISHED}:{this_home()}"] * int(engine.name == "docker" and not engine.buildkit)
    assert set(left) == {
        name for kept in built_in_engine(engine) if not kept.recipe for name in kept.names
    } & {f"{UNFINISHED}:{this_home()}"}
    workshop.build(dockerfile=write(workshop, f"FROM {workshop.parent}\nENV LEFT=\n"))
    assert unfinished(engine) == []
    remove_unfinished(engine)  # and where there is nothing to remove


def test_progress_comes_line_by_line_and_what_it_raises_ends_the_build(
    workshop: Workshop, session_label: str
) -> None:
    class Enough(Exception):
        pass

    def tell(progress: Progress) -> None:
        workshop.told.append(progress)
        if "at work" in progress.text and "echo" not in progress.text:
            raise Enough

    sleep = f"1000.{uuid.uuid4().int % 10**12}"
    name = write(workshop, f"FROM {workshop.parent}\nRUN echo {workshop.name} at work && sleep {sleep}\n")
    with containers_removed(workshop.engine, session_label), pytest.raises(Enough):
        workshop.prepared(dockerfile=name).make(tell)
    assert {progress.stage for progress in workshop.told} == {"build"}
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", sleep] not in running
    if workshop.engine.name == "podman":
        left = workshop.engine.run(["ps", "--all", "--external", "--format", "{{.Image}}"]).stdout
        assert workshop.parent.partition(":")[0] not in left
    assert workshop.prepared(dockerfile=name).image is None


KILLED = """
import os, signal, sys
from upshift.images.containers.engine import ContainerEngine

name, program, buildkit, folder = sys.argv[1:]
engine = ContainerEngine(name=name, command=(program,), version="", platform="", buildkit=bool(buildkit))
command = ["build", *([] if buildkit and name == "docker" else ["--force-rm"]), folder]

def on_line(line):
    if "at work" in line and "echo" not in line:
        os.kill(os.getpid(), signal.SIGKILL)

engine.stream(command, on_line, environment={"DOCKER_BUILDKIT": str(int(bool(buildkit)))})
"""


@pytest.mark.parametrize("engine", ["docker_legacy", "docker_buildkit"], indirect=True)
def test_a_build_by_docker_whose_process_was_killed_ends(
    workshop: Workshop, session_label: str, tmp_path: Path
) -> None:
    engine, sleep = workshop.engine, f"1000.{uuid.uuid4().int % 10**12}"
    workshop.pull()
    text = f"FROM {workshop.parent}\nRUN echo {workshop.name} at work && sleep {sleep}\n"
    (tmp_path / "Dockerfile").write_text(text)
    program, buildkit = engine.command[0], "1" if engine.buildkit else ""
    with containers_removed(engine, session_label):
        died = subprocess.run(
            [sys.executable, "-c", KILLED, engine.name, program, buildkit, str(tmp_path)], check=False
        )
        assert died.returncode == -signal.SIGKILL
        left = [one for one in psutil.process_iter() if sleep in " ".join(_command(one))]
        assert psutil.wait_procs(left, timeout=60)[1] == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_what_an_engine_has_built_is_pushed_for_other_machines(
    workshop: Workshop, registry: LoopbackRegistry
) -> None:
    address = f"{registry.address}/ml-{uuid.uuid4().hex[:8]}"
    engine = workshop.engine
    there = attrs.evolve(workshop, destination=Destination(platform=engine.platform, registry=address))
    name = write(workshop, f"FROM {workshop.parent}\nRUN echo hello > /said\n")
    made = there.prepared(dockerfile=name, requirements=["six==1.16.0"], image_tag="v1").make(print)
    pushed = Reference.parse(made.reference)
    assert pushed.name == f"{address}/upshift"
    assert workshop.registries.digest(pushed.with_tag("v1")) == pushed.digest
    read = workshop.registries.parent(pushed, engine.platform)
    assert read.labels[RECIPE_LABEL] == made.recipe
    again = there.prepared(dockerfile=name, requirements=["six==1.16.0"], image_tag="v1")
    assert again.image is not None and again.image.reference == made.reference


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_a_parent_that_only_the_engine_has_is_pushed(workshop: Workshop, registry: LoopbackRegistry) -> None:
    engine, name = workshop.engine, f"built-here-{uuid.uuid4().hex[:12]}:1"
    workshop.pull()
    engine.run(["build", "--tag", name, "-"], input=f"FROM {workshop.parent}\nENV HERE=1\n")
    destination = Destination(platform=engine.platform, registry=f"{registry.address}/ml")
    there = attrs.evolve(workshop, destination=destination, parent=name)
    prepared = there.prepared(skip_build=True)
    assert prepared.image is None
    image = prepared.make(lambda progress: None)
    assert image.reference.startswith(f"{registry.address}/ml/upshift@sha256:")
    assert there.prepared(skip_build=True).image == image


def test_a_registry_that_wants_a_login_says_so(
    workshop: Workshop, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workshop.pull()
    there = attrs.evolve(
        workshop,
        destination=Destination(platform=workshop.engine.platform, registry=f"{registry.address}/ml"),
    )
    name = write(workshop, f"FROM {workshop.parent}\nRUN true\n")
    prepared = there.prepared(dockerfile=name)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "config.json"))
    with pytest.raises(ImageError, match="wants other credentials") as caught:
        prepared.make(lambda progress: None)
    assert "login" in (caught.value.fix or "")
