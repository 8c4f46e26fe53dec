"""Packages are installed once, and what is new is loaded into Docker and Podman on top of what they have."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
from image_kit import ImageMaker, Workshop

from upshift.errors import ImageError
from upshift.images.base import LOCK_LABEL, RECIPE_LABEL, Image, Progress, Reference
from upshift.images.building.builder import Destination
from upshift.images.containers import transfer
from upshift.images.containers.engine import ContainerEngine
from upshift.images.preparing import Prepared
from wheels import sdist, wheel

NASTY = {
    "QUOTES": """it's "quoted" `twice`""",
    "DOLLARS": "$HOME ${HOME} $$ \\$HOME",
    "SLASHES": "C:\\temp\\new\\",
    "LINES": "one\ntwo $HOME\n\n  three\n",
    "SPACES": "  a  b\t",
    "EMPTY": "",
    "WORDS": "# ünïcödé = 1 <<EOF",
}


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> ContainerEngine:
    found: ContainerEngine = request.getfixturevalue(request.param)
    return found


def layers(engine: ContainerEngine, name: str) -> list[str]:
    said = engine.describe(name)
    assert said is not None
    return list(said["RootFS"]["Layers"])


def parents(workshop: Workshop) -> list[str]:
    parent = workshop.prepared().parent
    assert parent is not None
    return layers(workshop.engine, parent.pinned)


def made(prepared: Prepared) -> Image:
    return prepared.make(lambda progress: None)


def test_an_image_holds_what_is_asked_for_and_says_what_that_was(workshop: Workshop) -> None:
    wheel(workshop.project, "our_own", "1.5", {"our_own.py": "NAME = 'ours'\n"})
    asked = ["./our_own-1.5-py3-none-any.whl", "six==1.16.0", "upshift"]
    image = workshop.build(requirements=asked, environment=NASTY, user="65534:65534")
    code = (
        "import importlib.metadata as m, json, os, our_own, six; print(json.dumps({"
        "'packages': sorted((d.metadata['Name'].lower(), d.version) for d in m.distributions()), "
        "'environment': dict(os.environ), 'compiled': os.path.exists(six.__cached__)}))"
    )
    found = json.loads(workshop.python(image, code))
    assert {name: found["environment"].get(name) for name in NASTY} == NASTY
    packages = dict(found["packages"])
    assert (packages["six"], packages["our_own"], found["compiled"]) == ("1.16.0", "1.5", True)
    assert "upshift" not in packages
    assert workshop.run(image, "id", "-u") == "65534\n"
    said = workshop.engine.describe(image.reference)
    assert said is not None
    labels = said["Config"]["Labels"]
    assert labels[RECIPE_LABEL] == image.recipe
    locked = [line.split(" ")[0] for line in labels[LOCK_LABEL].splitlines()]
    assert locked == ["./our_own-1.5-py3-none-any.whl", "six==1.16.0"]


def test_only_what_is_new_is_loaded(workshop: Workshop) -> None:
    first = workshop.build(requirements=["six==1.16.0", "pygments==2.18.0"])
    workshop.told.clear()
    second = workshop.build(requirements=["six==1.17.0", "pygments==2.18.0"])
    parent = parents(workshop)
    one, two = layers(workshop.engine, first.reference), layers(workshop.engine, second.reference)
    assert one[: len(parent)] == two[: len(parent)] == parent
    loaded = [progress for progress in workshop.told if progress.stage == "load"]
    assert loaded[0].total is not None and 0 < loaded[0].total < 10_000_000


def test_an_engine_that_takes_no_part_of_an_image_is_given_all_of_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workshop.engine.name == "podman":
        monkeypatch.setattr(transfer, "_loaded_by_podman", lambda *given: "no")
    else:
        sent: Callable[..., str | None] = transfer._sent

        def refused(engine: ContainerEngine, image: Any, below: Any, tell: Any) -> str | None:
            return sent(engine, image, below, tell) if below else "no"

        monkeypatch.setattr(transfer, "_sent", refused)
    image = workshop.build(requirements=["six==1.16.0"])
    assert workshop.python(image, "import six; print(six.__version__)") == "1.16.0\n"
    parent = parents(workshop)
    assert layers(workshop.engine, image.reference)[: len(parent)] == parent


def test_what_has_no_wheel_is_built_in_a_container_of_the_image(workshop: Workshop) -> None:
    sdist(workshop.project, "from_source", "1.0")
    image = workshop.build(requirements=["./from_source-1.0.tar.gz"])
    code = "import from_source, sys; print(from_source.PREFIX == sys.base_prefix, from_source.USER)"
    assert workshop.python(image, code) == f"True {os.getuid()}\n"


def test_an_equal_recipe_is_found_and_another_one_is_not(workshop: Workshop) -> None:
    image = workshop.build(environment={"A": "1"})
    assert image.recipe == workshop.prepared(environment={"A": "1"}).recipe
    assert workshop.prepared(environment={"A": "2"}).image is None


def test_two_processes_build_an_image_once(workshop: Workshop) -> None:
    prepared = [workshop.prepared(requirements=["six==1.16.0"]) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(made, prepared))
    assert images[0] == images[1]


def test_a_tag_that_two_images_want_is_the_last_ones_and_breaks_no_build(workshop: Workshop) -> None:
    tag = f"t-{uuid.uuid4().hex[:12]}"
    both = [{"environment": {"WHICH": which}, "image_tag": tag} for which in "ab"]
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(made, [workshop.prepared(**said) for said in both]))
    assert [workshop.run(image, "sh", "-c", "echo $WHICH") for image in images] == ["a\n", "b\n"]
    for said, image in zip(both, images, strict=True):
        assert made(workshop.prepared(**said)).reference == image.reference


def test_the_user_of_the_settings_and_that_of_the_parent_count(
    workshop: Workshop, image_maker: ImageMaker
) -> None:
    image = workshop.build(user="nobody", requirements=["six==1.16.0"])
    assert (workshop.run(image, "id", "-un"), image.user) == ("nobody\n", "nobody")
    parent = image_maker.push(f"other/{uuid.uuid4().hex[:12]}:1", User="65534")
    theirs = attrs.evolve(workshop, parent=parent)
    image = theirs.build(requirements=["six==1.16.0"])
    assert (theirs.run(image, "id", "-u"), image.user) == ("65534\n", None)


def test_a_user_that_the_image_does_not_have_is_refused(workshop: Workshop) -> None:
    workshop.pull()  # else nothing has looked into it
    error = workshop.fails(user="somebody")
    assert error.what.endswith("has no user somebody.")


def test_requirements_that_cannot_be_met_are_refused_before_anything_is_built(workshop: Workshop) -> None:
    error = workshop.fails(requirements=["six==99.99"])
    assert error.what == "there is no such version of one of the requirements"
    assert "six==99.99" in (error.why or "")
    error = workshop.fails(requirements=["six<1.5", "python-dateutil==2.9.0"])
    assert "six<1.5" in (error.why or "") and "six>=1.5" in (error.why or "")
    assert workshop.told == []


def test_a_parent_that_was_built_here_goes_by_its_short_name(workshop: Workshop) -> None:
    engine, name = workshop.engine, f"built-here-{uuid.uuid4().hex[:12]}:1"
    text = f"FROM {workshop.parent}\nRUN echo built-here > /marker\n"
    tls = ["--tls-verify=false"] if engine.name == "podman" else []
    engine.run(["build", *tls, "--tag", name, "-"], input=text)
    parent = engine.inspect(Reference.parse(name))
    assert parent is not None and parent.in_engine and parent.platform == engine.platform
    built = attrs.evolve(workshop, parent=name)
    image = built.build(environment={"A": "1"})
    assert built.run(image, "sh", "-c", "cat /marker; echo $A") == "built-here\n1\n"
    as_it_is = built.prepared(skip_build=True).image
    assert as_it_is is not None and built.run(as_it_is, "cat", "/marker") == "built-here\n"


def test_the_parent_as_it_is_is_pulled_once(workshop: Workshop, image_maker: ImageMaker) -> None:
    parent = image_maker.push(f"other/{uuid.uuid4().hex[:12]}:1", files={"marker": workshop.name})
    other = attrs.evolve(workshop, parent=parent)
    image = other.build(skip_build=True)
    assert other.run(image, "cat", "/marker") == workshop.name
    assert other.told[0].stage == "pull"


def test_a_building_that_nobody_wants_any_more_ends_and_leaves_nothing(workshop: Workshop) -> None:
    class Enough(Exception):
        pass

    def tell(progress: Progress) -> None:
        if progress.stage == "load":
            raise Enough

    with pytest.raises(Enough):
        workshop.prepared(requirements=["six==1.16.0"]).make(tell)
    assert workshop.prepared(requirements=["six==1.16.0"]).image is None


def test_the_same_image_in_a_registry_has_the_same_digest(workshop: Workshop) -> None:
    asked = {"requirements": ["six==1.16.0"], "environment": {"TEST": "both"}}
    here = workshop.prepared(**asked)
    registry = f"{workshop.parent.partition('/')[0]}/ml-{uuid.uuid4().hex[:8]}"
    there = attrs.evolve(workshop, destination=Destination(platform="linux/amd64", registry=registry))
    pushed = there.prepared(**asked)
    assert (pushed.recipe, pushed.digest, pushed.lock) == (here.recipe, here.digest, here.lock)
    image = made(pushed)
    assert image.reference.startswith(registry)


def test_a_parent_that_became_another_image_meanwhile_is_not_built_on(workshop: Workshop) -> None:
    engine, name = workshop.engine, f"built-here-{uuid.uuid4().hex[:12]}:1"
    workshop.pull()
    engine.run(["tag", workshop.parent, name])
    built = attrs.evolve(workshop, parent=name)
    prepared = built.prepared(environment={"A": "1"})
    other = made(built.prepared(environment={"A": "2"}))
    engine.run(["tag", other.reference, name])
    image = made(prepared)
    assert layers(engine, image.reference) == layers(engine, workshop.parent)


# Podman has no daemon.
@pytest.mark.parametrize("engine", ["docker_legacy", "docker_buildkit"], indirect=True)
def test_an_engine_that_is_gone_says_so(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = workshop.prepared(requirements=["six==1.16.0"])
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        with pytest.raises(ImageError, match="its daemon does not answer"):
            made(prepared)
