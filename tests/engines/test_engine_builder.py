"""Images made by real engines: Docker with both of its builders, and Podman."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import base_image
import psutil
import pytest
from image_kit import ImageMaker, containers_removed
from registries import LoopbackRegistry

from upshift.errors import ImageError
from upshift.images.base import (
    RECIPE_LABEL,
    Contents,
    Destination,
    Image,
    Ingredients,
    Parent,
    Progress,
    Recipe,
)
from upshift.images.containers.builder import EngineBuilder
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.unfinished import left_in, name_in, remove_left
from upshift.images.kept import kept_in_engine
from upshift.images.reference import Reference
from upshift.images.registries.client import Registries
from upshift.images.workshop import workshop as making
from upshift.model.home import home
from wheels import wheel

NASTY = {
    "QUOTES": """it's "quoted" `twice`""",
    "DOLLARS": "$HOME ${HOME} $$ \\$HOME",
    "SLASHES": "C:\\temp\\new\\",
    "LINES": "one\ntwo $HOME\n\n  three\r\n",
    "SPACES": "  a  b\t",
    "EMPTY": "",
    "WORDS": "# ünïcödé = 1 <<EOF",
}


@attrs.frozen
class Workshop:
    """Builds in an engine, for tasks that run in it."""

    engine: ContainerEngine
    parent: Parent
    told: list[Progress]
    test: str

    def ingredients(self, **said: object) -> Ingredients:
        """Of this test alone: Docker's two builders share the images."""
        recipe = {k: said.pop(k) for k in list(said) if k in attrs.fields_dict(Recipe)}
        if not recipe.get("skip_build"):
            recipe["environment"] = {"TEST": self.test, **recipe.get("environment", {})}
        if "dockerfile_path" in said:
            said["dockerfile"] = said.pop("dockerfile_path")
        platform = self.engine.platform
        return Ingredients(
            recipe=Recipe(**{"parent": str(self.parent.reference), "platform": platform, **recipe}), **said
        )

    def builder(self, registries: Registries | None = None, registry: str | None = None) -> EngineBuilder:
        there = None if registry else self.engine
        destination = Destination(platform=self.engine.platform, engine=there, registry=registry)
        return EngineBuilder(self.engine, destination, registries)

    def build(self, ingredients: Ingredients) -> Image:
        parent = self.parent if ingredients.recipe.parent else None
        builder = self.builder()
        assert builder.find(ingredients, parent, Contents()) is None
        image = builder.build(ingredients, parent, Contents(), tell=self.told.append)
        assert builder.find(ingredients, parent, Contents()) == image
        return image

    def fails(self, ingredients: Ingredients) -> ImageError:
        parent = self.parent if ingredients.recipe.parent else None
        with pytest.raises(ImageError) as caught:
            self.builder().build(ingredients, parent, Contents(), tell=self.told.append)
        assert self.builder().find(ingredients, parent, Contents()) is None
        return caught.value

    def parent_with(self, image_maker: ImageMaker, files: Mapping[str, str], **config: object) -> Workshop:
        """The same on another parent: the base image with more files, or with another configuration."""
        name = f"other/{uuid.uuid4().hex[:12]}:1"
        image_maker.push(name, files=files, **config)
        with Registries() as registries:
            parent = registries.parent(Reference.parse(image_maker.registry.name(name)), self.engine.platform)
        return attrs.evolve(self, parent=parent)

    def pull(self, name: str) -> None:
        self.engine.run(["pull", *(["--tls-verify=false"] if self.engine.name == "podman" else []), name])

    def run(self, image: Image, *command: str) -> str:
        return self.engine.run(["run", "--rm", image.reference, *command]).stdout

    def python(self, image: Image, code: str) -> str:
        return self.run(image, "python3", "-c", code)


@pytest.fixture
def workshop(
    engine: ContainerEngine,
    base_image_name: str,
    registry: LoopbackRegistry,
    request: pytest.FixtureRequest,
) -> Workshop:
    with Registries() as registries:
        parent = registries.parent(Reference.parse(base_image_name), engine.platform)
    return Workshop(engine, parent, [], request.node.name)


def test_requirements_are_installed_and_compiled(workshop: Workshop) -> None:
    image = workshop.build(workshop.ingredients(requirements=("six==1.16.0",)))
    said = workshop.python(image, "import six; print(six.__version__, six.__cached__)").split()
    assert said[0] == "1.16.0"
    workshop.run(image, "test", "-e", said[1])
    left = workshop.run(image, "sh", "-c", "find /tmp -type f; ls /tmp")
    assert set(left.split()) <= {"upshift", "upshift-cache"}  # empty, where something was mounted


def test_requirements_that_changed_are_installed_anew(workshop: Workshop) -> None:
    workshop.build(workshop.ingredients(requirements=("six==1.15.0",)))
    image = workshop.build(workshop.ingredients(requirements=("six==1.17.0",)))
    assert workshop.python(image, "import six; print(six.__version__)").strip() == "1.17.0"


def test_values_of_variables_arrive_as_they_are(workshop: Workshop) -> None:
    image = workshop.build(workshop.ingredients(environment=NASTY))
    said = json.loads(workshop.python(image, "import os, json; print(json.dumps(dict(os.environ)))"))
    assert {name: said.get(name) for name in NASTY} == NASTY


def test_an_equal_recipe_is_found_and_another_one_is_not(workshop: Workshop) -> None:
    first = workshop.ingredients(environment={"A": "1"})
    image = workshop.build(first)
    assert image.recipe == first.recipe.digest(workshop.parent.digest)
    said = workshop.engine.describe(image.reference)
    assert said is not None and said["Config"]["Labels"][RECIPE_LABEL] == image.recipe
    other = workshop.ingredients(environment={"A": "2"})
    assert workshop.builder().find(other, workshop.parent, Contents()) is None


def test_a_tag_that_two_images_want_is_the_last_ones_and_breaks_no_build(workshop: Workshop) -> None:
    builder, parent = workshop.builder(), workshop.parent
    tag = f"t-{uuid.uuid4().hex[:12]}"
    both = [workshop.ingredients(environment={"WHICH": which}, tag=tag) for which in "ab"]

    def build(ingredients: Ingredients) -> Image:
        return builder.build(ingredients, parent, Contents(), tell=workshop.told.append)

    with ThreadPoolExecutor() as pool:
        images = list(pool.map(build, both))
    assert [workshop.run(image, "sh", "-c", "echo $WHICH") for image in images] == ["a\n", "b\n"]
    workshop.told.clear()
    for ingredients, image in zip(both, images, strict=True):
        assert build(ingredients) == image
        assert builder.find(ingredients, parent, Contents()) == image
    assert workshop.told == []  # a name takes no build


def test_a_wheel_of_this_machine_is_installed(workshop: Workshop, tmp_path: Path) -> None:
    made = wheel(tmp_path, "our_own", "1.5", {"our_own.py": "NAME = 'ours'\n"})
    said = workshop.ingredients(
        requirements=(f"./{made.name}",), files={made.name: "sha256:1"}, paths={made.name: made}
    )
    image = workshop.build(said)
    assert workshop.python(image, "import our_own; print(our_own.NAME)") == "ours\n"


def test_pip_installs_where_it_is_asked_for(workshop: Workshop) -> None:
    args = ("--no-deps", "--progress-bar=off")
    image = workshop.build(
        workshop.ingredients(requirements=("six==1.16.0",), installer="pip", installer_args=args)
    )
    assert workshop.python(image, "import six; print(six.__version__)") == "1.16.0\n"
    installer = "import importlib.metadata as m; print(m.distribution('six').read_text('INSTALLER').strip())"
    assert workshop.python(image, installer) == "pip\n"


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_python_that_its_distribution_manages_is_installed_into(
    workshop: Workshop, image_maker: ImageMaker, installer: str
) -> None:
    managed = workshop.parent_with(
        image_maker, {f"{base_image.LIBRARY}/EXTERNALLY-MANAGED": "[externally-managed]\n"}
    )
    image = managed.build(managed.ingredients(requirements=("six==1.16.0",), installer=installer))
    assert managed.python(image, "import six; print(six.__version__)") == "1.16.0\n"


def test_debian_packages_are_installed(workshop: Workshop) -> None:
    image = workshop.build(workshop.ingredients(apt_packages=("hello",)))
    assert workshop.run(image, "hello") == "Hello, world!\n"


def test_the_user_of_the_settings_and_that_of_the_parent_count(
    workshop: Workshop, image_maker: ImageMaker
) -> None:
    six = {"requirements": ("six==1.16.0",), "installer": "pip"}
    image = workshop.build(workshop.ingredients(user="nobody", **six))
    assert (workshop.run(image, "id", "-un"), image.user) == ("nobody\n", "nobody")
    parents = workshop.parent_with(image_maker, {}, User="65534")
    image = parents.build(parents.ingredients(**six))
    assert (parents.run(image, "id", "-u"), image.user) == ("65534\n", None)


def test_a_user_that_is_not_there_is_refused(workshop: Workshop) -> None:
    error = workshop.fails(workshop.ingredients(user="somebody"))
    assert error.what == "the image has no user somebody"
    assert "no such user" in (error.why or "")


def test_a_secret_in_an_address_does_not_get_into_the_image(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_TEST_LOGIN", "hunter2-hunter2")
    address = "--find-links https://me:${UPSHIFT_TEST_LOGIN}@127.0.0.1:1/simple"
    said = workshop.ingredients(requirements=(address, "six==1.16.0"), installer="pip")
    if not workshop.engine.buildkit:
        error = workshop.fails(said)
        assert "would write the value of ${UPSHIFT_TEST_LOGIN} into the image" in error.what
        return
    files = []

    def tell(progress: Progress) -> None:
        workshop.told.append(progress)
        files.extend(path.read_bytes() for path in home().rglob("building-*/**/*") if path.is_file())

    image = workshop.builder().build(said, workshop.parent, Contents(), tell=tell)
    assert any(b"UPSHIFT_TEST_LOGIN" in content for content in files)
    assert not any(b"hunter2" in content for content in files)  # a killed build would leave it
    engine = workshop.engine
    described = (
        json.dumps(engine.describe(image.reference))
        + engine.run(["history", "--no-trunc", image.reference]).stdout
    )
    assert "hunter2" not in described + str(workshop.told)
    assert "hunter2" not in workshop.run(
        image, "sh", "-c", "grep -rs hunter2 /tmp /root /usr/local /etc || true"
    )


def test_a_requirement_that_does_not_exist_is_shown(workshop: Workshop) -> None:
    error = workshop.fails(workshop.ingredients(requirements=("six==99.99",)))
    assert error.what == "there is no such version of one of the requirements"
    assert "six==99.99" in (error.why or "")
    assert "/bin/sh -c" not in (error.why or "")


def test_requirements_that_conflict_are_shown(workshop: Workshop) -> None:
    error = workshop.fails(workshop.ingredients(requirements=("six==1.16.0", "six==1.17.0")))
    assert "six==1.16.0" in (error.why or "") and "six==1.17.0" in (error.why or "")


def test_the_users_dockerfile_makes_the_parent(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a file.txt").write_text("hello")
    (tmp_path / "left.txt").write_text("not named by the recipe")
    text = f"ARG BASE\nFROM ${{BASE}}\nARG WORD\nRUN echo $WORD > /word\nCOPY . /copied/\n# {workshop.test}\n"
    name = str(workshop.parent.reference)
    said = workshop.ingredients(
        parent=None,
        dockerfile=text,
        context={"data/a file.txt": "sha256:1"},
        context_root=tmp_path,
        build_args={"WORD": 'a "b" $c', "BASE": name},
        requirements=("six==1.16.0",),
        installer="pip",
    )
    workshop.pull(name)
    image = workshop.build(said)
    assert workshop.run(image, "cat", "/word") == 'a "b" $c\n'
    assert workshop.run(image, "sh", "-c", "cd /copied && find . -type f") == "./data/a file.txt\n"
    assert workshop.python(image, "import six; print(six.__version__)") == "1.16.0\n"


def test_a_file_that_a_dockerfile_mounts_is_looked_into(workshop: Workshop, tmp_path: Path) -> None:
    if not workshop.engine.buildkit:
        return  # RUN --mount is an error there
    text = (
        f"FROM {workshop.parent.reference}\n"
        f"RUN --mount=type=bind,source=data,target=/data cat /data > /copy && : {workshop.test}\n"
    )
    for content in ("one", "two"):
        (tmp_path / "data").write_text(content)
        image = workshop.build(
            workshop.ingredients(
                parent=None, dockerfile=text, context={"data": content}, context_root=tmp_path
            )
        )
        assert workshop.run(image, "cat", "/copy") == content


def test_a_dockerfile_that_fails_shows_its_line_and_output(workshop: Workshop, tmp_path: Path) -> None:
    text = (
        f"FROM {workshop.parent.reference}\n\n# Words.\n"
        "RUN echo first >&2 \\\n && seq 60 >&2 && echo broken-here >&2 && exit 3\n"
    )
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    error = workshop.fails(workshop.ingredients(parent=None, dockerfile=text, dockerfile_path=path))
    assert error.where is not None and error.where.endswith("Dockerfile:4")
    assert error.what == "the Dockerfile fails with exit code 3"
    assert error.why is not None and error.why.startswith("RUN echo first")
    assert "  broken-here\n" in error.why
    _, _, kept = error.why.partition("All that was said: ")
    said = Path(kept).read_text().splitlines()
    assert {"first", "broken-here", *map(str, range(1, 61))} <= {
        re.sub(r"^#\d+ \S+ ", "", one) for one in said
    }


def test_what_failed_and_killed_builds_leave_has_a_name_and_goes_with_the_next(
    workshop: Workshop, tmp_path: Path, upshift_home: Path
) -> None:
    engine = workshop.engine
    text = f"FROM {workshop.parent.reference}\nENV LEFT={workshop.test}\nRUN exit 3\n"
    workshop.fails(
        workshop.ingredients(parent=None, dockerfile=text, dockerfile_path=tmp_path / "Dockerfile")
    )
    left = left_in(engine)
    assert len(left) == int(engine.name == "docker" and not engine.buildkit)
    workshop.pull(str(workshop.parent.reference))
    killed = name_in(tmp_path / "building-gone", "dockerfile")
    engine.run(["tag", str(workshop.parent.reference), killed])
    assert {*left, killed} == {
        name for kept in kept_in_engine(engine) if not kept.recipe for name in kept.names
    }
    with making() as folder:
        live = name_in(folder, "dockerfile")
        engine.run(["tag", str(workshop.parent.reference), live])
        workshop.build(workshop.ingredients())
        assert left_in(engine) == [] and engine.describe(live) is not None
    remove_left(engine)
    assert engine.describe(live) is None


def test_a_dockerfile_that_takes_python_away_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    removed = "find / -xdev -name 'python3*' -path '*/bin/*' -delete"
    text = f"FROM {workshop.parent.reference}\nRUN {removed}\n"
    path = tmp_path / "Dockerfile"
    error = workshop.fails(workshop.ingredients(parent=None, dockerfile=text, dockerfile_path=path))
    assert error.what == "the image that the Dockerfile makes has no python3 on its PATH"
    assert error.where == f"{path}:1"
    assert "FROM python:" in (error.fix or "")


def test_a_dockerfile_that_makes_no_sense_shows_its_line(workshop: Workshop, tmp_path: Path) -> None:
    text = f"FROM {workshop.parent.reference}\nRUN true\nFOO bar\n"
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    error = workshop.fails(workshop.ingredients(parent=None, dockerfile=text, dockerfile_path=path))
    assert error.where is not None and error.where.endswith("Dockerfile:3")
    assert "nknown instruction: " in (error.why or "") and "FOO" in (error.why or "")


def test_a_parent_that_was_built_here_goes_by_its_short_name(workshop: Workshop) -> None:
    engine, name = workshop.engine, f"built-here-{uuid.uuid4().hex[:12]}:1"
    text = f"FROM {workshop.parent.reference}\nRUN echo built-here > /marker\n"
    tls = ["--tls-verify=false"] if engine.name == "podman" else []
    engine.run(["build", *tls, "--tag", name, "-"], input=text)
    parent = engine.inspect(Reference.parse(name))
    assert parent is not None and parent.in_engine and parent.platform == engine.platform
    built = attrs.evolve(workshop, parent=parent)
    image = built.build(built.ingredients(environment={"A": "1"}))
    assert built.run(image, "sh", "-c", "cat /marker; echo $A") == "built-here\n1\n"
    as_it_is = built.builder().find(built.ingredients(skip_build=True), parent, Contents())
    assert as_it_is is not None and built.run(as_it_is, "cat", "/marker") == "built-here\n"
    engine.run(["tag", image.reference, name])
    with pytest.raises(ImageError, match="has become another image"):
        built.builder().build(built.ingredients(environment={"A": "2"}), parent, Contents(), tell=print)


def test_the_parent_as_it_is_is_pulled_once(workshop: Workshop, image_maker: ImageMaker) -> None:
    other = workshop.parent_with(image_maker, {"marker": workshop.test})
    said = other.ingredients(skip_build=True)
    image = other.build(said)
    assert other.run(image, "cat", "/marker") == workshop.test
    assert other.told[0].stage == "pull"


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
    text = f"FROM {workshop.parent.reference}\nRUN echo {workshop.test} at work && sleep {sleep}\n"
    said = workshop.ingredients(parent=None, dockerfile=text)
    with containers_removed(workshop.engine, session_label), pytest.raises(Enough):
        workshop.builder().build(said, None, Contents(), tell=tell)
    assert {progress.stage for progress in workshop.told} == {"build"}
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", sleep] not in running
    if workshop.engine.name == "podman":
        left = workshop.engine.run(["ps", "--all", "--external", "--format", "{{.Image}}"]).stdout
        assert str(workshop.parent.reference.name) not in left
    assert workshop.builder().find(said, None, Contents()) is None


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
    workshop.pull(str(workshop.parent.reference))
    text = f"FROM {workshop.parent.reference}\nRUN echo {workshop.test} at work && sleep {sleep}\n"
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


def test_an_image_for_other_machines_is_pushed_and_found_in_the_registry(
    workshop: Workshop, registry: LoopbackRegistry
) -> None:
    repository = f"team/{re.sub('[^a-z]+', '-', workshop.test)}model"
    said = workshop.ingredients(repository=repository, tag="v1")
    with Registries() as registries:
        builder = workshop.builder(registries, f"{registry.address}/ml")
        assert builder.find(said, workshop.parent, Contents()) is None
        image = builder.build(said, workshop.parent, Contents(), tell=workshop.told.append)
        assert builder.find(said, workshop.parent, Contents()) == image
        pushed = Reference.parse(image.reference)
        assert pushed.name == f"{registry.address}/ml/{repository}" and pushed.digest is not None
        assert registries.digest(pushed.with_tag("v1")) == pushed.digest
        assert registries.parent(pushed, workshop.engine.platform).labels[RECIPE_LABEL] == image.recipe
    assert "push" in {progress.stage for progress in workshop.told}


def test_a_registry_that_wants_a_login_says_so(
    workshop: Workshop, registry: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = workshop.ingredients()
    workshop.pull(str(workshop.parent.reference))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "config.json"))
    builder = workshop.builder(None, f"{registry.address}/ml")
    with pytest.raises(ImageError, match="wants other credentials") as caught:
        builder.build(said, workshop.parent, Contents(), tell=workshop.told.append)
    assert caught.value.fix == f"Log in: {workshop.engine.name} login {registry.address}"
