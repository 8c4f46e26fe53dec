"""What is found out before an image is built; of what has an error nothing is built."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from registry_kit import open_registries

from made_up_images import MadeUpBuilder, made_up_destination, made_up_lock, made_up_parent
from stand_in_registry import StandInRegistry
from upshift.config import DockerSettings
from upshift.errors import ImageError, SettingsError
from upshift.images import preparing
from upshift.images.base import (
    ERROR,
    WARNING,
    Contents,
    Finding,
    Lock,
    LockedPackage,
    Needs,
    Parent,
    Progress,
    Recipe,
    Reference,
)
from upshift.images.building.builder import Destination
from upshift.images.preparing import Prepared, Preparer
from upshift.images.registries.answers import LoginRefused, Unavailable
from upshift.images.uv import Unmet


class MadeUpRegistries:
    """Stands for :class:`~upshift.images.registries.client.Registries`."""

    def __init__(self, *parents: Parent, error: ImageError | None = None) -> None:
        self.images = {str(parent.reference): parent for parent in parents}
        self.error = error
        self.asked: list[str] = []

    def digest(self, reference: Reference) -> str:
        if self.error is not None:
            raise self.error
        return self.images[str(reference)].digest

    def parent(self, reference: Reference, platform: str) -> Parent:
        self.asked.append(str(reference))
        if self.error is not None:
            raise self.error
        return self.images[str(reference)]


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> MadeUpBuilder:
    builder = MadeUpBuilder()

    def made(destination: Destination, *others: object) -> MadeUpBuilder:
        builder.destination = destination
        return builder

    monkeypatch.setattr(preparing, "Builder", made)
    monkeypatch.setattr(preparing, "find_engine", no_engine)
    monkeypatch.setattr(preparing, "resolve", made_up_lock)
    return builder


def no_engine(name: str | None = None, **options: object) -> None:
    raise ImageError("neither docker nor podman is installed", fix="Install one.")


def prepared_of(
    settings: DockerSettings | None,
    destination: Destination,
    *,
    project: Path,
    registries: Any = None,
    needs: Needs | None = None,
    look: bool = True,
) -> Prepared:
    preparer = Preparer(destination, registries)
    return preparer.prepare(settings, needs or Needs(), project=project, origins={}, look=look)


SIX = DockerSettings(parent_image="python:3.11-slim", requirements=["six"])


def test_a_new_image_is_made_and_the_next_time_it_is_there(builder: MadeUpBuilder, tmp_path: Path) -> None:
    prepared = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert (prepared.findings, prepared.image, prepared.builds) == ((), None, True)
    told: list[Progress] = []
    image = prepared.make(told.append)
    assert [progress.stage for progress in told] == ["install"]
    assert (image.recipe, builder.made) == (prepared.recipe, [prepared.recipe])
    again = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert (again.image, again.builds) == (image, False)
    assert again.make(told.append) == image
    assert len(builder.made) == 1


def test_another_parent_under_the_same_name_is_another_image(builder: MadeUpBuilder, tmp_path: Path) -> None:
    one = prepared_of(SIX, made_up_destination(made_up_parent(number=1)), project=tmp_path)
    other = prepared_of(SIX, made_up_destination(made_up_parent(number=2)), project=tmp_path)
    assert one.digest != other.digest


def test_an_image_is_built_again_where_the_user_wants_that(builder: MadeUpBuilder, tmp_path: Path) -> None:
    again = DockerSettings(requirements=["six"], parent_image="python:3.11-slim", prevent_build_reuse=True)
    prepared_of(SIX, made_up_destination(), project=tmp_path).make(lambda progress: None)
    prepared = prepared_of(again, made_up_destination(), project=tmp_path)
    assert prepared.builds
    prepared.make(lambda progress: None)
    assert len(builder.made) == 2


def test_of_an_image_with_an_error_nothing_is_built(builder: MadeUpBuilder, tmp_path: Path) -> None:
    old = made_up_parent("pytorch/pytorch:1.12.1", environment={"PYTHON_VERSION": "3.7.13"})
    settings = DockerSettings(parent_image="pytorch/pytorch:1.12.1", requirements=["six"])
    prepared = prepared_of(settings, made_up_destination(old), project=tmp_path)
    assert prepared.errors
    assert "3.7" in prepared.errors[0].what
    with pytest.raises(ImageError, match=r"3\.7"):
        prepared.make(lambda progress: None)
    assert builder.made == []


def test_what_a_builder_cannot_do_is_found_before_it_tries(builder: MadeUpBuilder, tmp_path: Path) -> None:
    builder.findings = [Finding(severity=ERROR, field="apt_packages", what="it has no root")]
    prepared = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert [finding.what for finding in prepared.errors] == ["it has no root"]
    with pytest.raises(ImageError, match="it has no root"):
        prepared.make(lambda progress: None)


def test_what_the_engine_has_is_what_runs_there_and_no_registry_is_asked(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    registries = MadeUpRegistries(made_up_parent(number=2, in_engine=False))
    prepared = prepared_of(SIX, made_up_destination(), project=tmp_path, registries=registries)
    assert prepared.parent == made_up_parent(number=1)
    assert registries.asked == []


def test_what_the_engine_lacks_is_read_from_its_registry(builder: MadeUpBuilder, tmp_path: Path) -> None:
    remote = made_up_parent(number=2, in_engine=False)
    destination = made_up_destination(made_up_parent("other:1"))
    registries = MadeUpRegistries(remote)
    assert prepared_of(SIX, destination, project=tmp_path, registries=registries).parent == remote


def test_a_registry_that_is_down_is_a_finding_that_says_what_to_do(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    down = ImageError("registry.example.org cannot be reached", why="connection refused", fix="Try again.")
    destination = made_up_destination(made_up_parent("other:1"))
    prepared = prepared_of(SIX, destination, project=tmp_path, registries=MadeUpRegistries(error=down))
    [error] = prepared.errors
    assert (error.field, error.what) == ("parent_image", "registry.example.org cannot be reached")
    assert (error.evidence, error.fix) == ("connection refused", "Try again.")
    assert (prepared.digest, prepared.parent, prepared.image) == (None, None, None)
    with pytest.raises(ImageError, match="cannot be reached") as raised:
        prepared.make(lambda progress: None)
    assert raised.value.fix == "Try again."


def read_parent() -> Parent:
    """A parent as a registry gives it, with all that is remembered of it."""
    config = {"os": "linux", "architecture": "amd64"}
    return made_up_parent(environment={}, in_engine=False, config=config, manifest={"layers": []}, bytes=0)


def test_a_registry_that_is_down_is_a_warning_where_its_image_was_read_before(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    read = read_parent()
    destination = made_up_destination(made_up_parent("other:1"))
    before = prepared_of(SIX, destination, project=tmp_path, registries=MadeUpRegistries(read))
    down = Unavailable("registry.example.org cannot be reached", why="connection refused", fix="Try again.")
    after = prepared_of(SIX, destination, project=tmp_path, registries=MadeUpRegistries(error=down))
    assert (after.parent, after.digest, after.errors) == (read, before.digest, ())
    [warning] = after.findings
    assert (warning.severity, warning.field, warning.fix) == ("warning", "parent_image", "Try again.")
    assert "python:3.11-slim is taken for what it was on" in warning.what
    assert warning.evidence == "registry.example.org cannot be reached: connection refused"


@pytest.mark.parametrize("look", [False, True])
def test_where_a_login_is_refused_only_an_image_that_is_there_will_do(
    look: bool, builder: MadeUpBuilder, tmp_path: Path
) -> None:
    destination = made_up_destination(made_up_parent("other:1"))
    before = prepared_of(SIX, destination, project=tmp_path, registries=MadeUpRegistries(read_parent()))
    closed = MadeUpRegistries(error=LoginRefused("it cannot be read", why="wrong password", fix="Log in."))

    def after(settings: DockerSettings = SIX) -> Prepared:
        return prepared_of(settings, destination, project=tmp_path, registries=closed, look=look)

    [error] = after().errors
    assert (error.field, error.what) == ("parent_image", "it cannot be read")
    assert (error.evidence, error.fix) == ("wrong password", "Log in.")
    image = before.make(lambda progress: None)
    [warning] = after().findings
    assert (warning.severity, warning.what) == ("warning", "it cannot be read")
    assert after().make(lambda progress: None) == image
    again = DockerSettings(**{**SIX.explicit(), "prevent_build_reuse": True})
    assert after(again).errors == (error,)


def test_where_a_login_is_refused_what_the_engine_has_will_do(builder: MadeUpBuilder, tmp_path: Path) -> None:
    elsewhere = made_up_destination(made_up_parent("other:1"))
    prepared_of(SIX, elsewhere, project=tmp_path, registries=MadeUpRegistries(read_parent()))
    closed = MadeUpRegistries(error=LoginRefused("it cannot be read"))
    here = made_up_parent(platform="linux/arm64")
    destination = attrs.evolve(made_up_destination(here), platform="linux/amd64")
    assert prepared_of(SIX, destination, project=tmp_path, registries=closed).parent == here


def test_a_registry_that_cannot_say_whether_an_image_is_there_is_a_finding(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    builder.search_error = ImageError("registry.example.org answers 500")
    prepared = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert [finding.what for finding in prepared.errors] == ["registry.example.org answers 500"]


def test_without_the_packages_that_read_registries_their_installation_is_named(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    prepared = prepared_of(SIX, made_up_destination(made_up_parent("other:1")), project=tmp_path)
    assert [finding.fix for finding in prepared.errors] == ["pip install 'upshift[images]'"]


@pytest.mark.parametrize(
    ("error", "wanted", "more"),
    [
        (Unavailable, "python:3.11-slmi", "Did you mean python:3.11-slim, which Docker 20.10.24 has?"),
        (ImageError, "python:3.11-slmi", "Did you mean python:3.11-slim, which Docker 20.10.24 has?"),
        (Unavailable, "team/base:1", "docker pull team/base:1"),
        (ImageError, "team/base:1", ""),
    ],
)
def test_a_parent_that_cannot_be_read_may_be_in_the_engine_or_get_there(
    builder: MadeUpBuilder, tmp_path: Path, error: type[ImageError], wanted: str, more: str
) -> None:
    away = MadeUpRegistries(error=error("it cannot be read", fix="Check the network."))
    settings = DockerSettings(parent_image=wanted)
    there = made_up_destination(made_up_parent("python:3.11-slim"))
    [finding] = prepared_of(settings, there, project=tmp_path, registries=away).errors
    first, _, rest = (finding.fix or "").partition("\n")
    assert first == "Check the network."
    assert rest.endswith(more) and bool(rest) == bool(more)


def test_without_settings_it_is_the_slim_python(builder: MadeUpBuilder, tmp_path: Path) -> None:
    parents = [made_up_parent(f"python:3.{minor}-slim") for minor in range(10, 16)]
    prepared = prepared_of(None, made_up_destination(*parents), project=tmp_path)
    assert prepared.ingredients.recipe.adds_nothing
    assert prepared.ingredients.recipe.parent is not None
    assert prepared.errors == ()


def test_a_dockerfile_needs_no_parent(builder: MadeUpBuilder, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    settings = DockerSettings(dockerfile="Dockerfile")
    prepared = prepared_of(settings, made_up_destination(), project=tmp_path)
    assert (prepared.parent, prepared.errors) == (None, ())
    assert prepared.make(lambda progress: None).recipe == prepared.recipe


def test_what_a_dockerfile_builds_on_is_looked_at_and_refuses_nothing(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE} AS all\n")
    needs = Needs(gpus=frozenset({"nvidia"}))
    found = {}
    for base in ("python:3.11-slim", "python:9"):
        settings = DockerSettings(dockerfile="Dockerfile", build_args={"BASE": base})
        prepared = prepared_of(settings, made_up_destination(made_up_parent()), project=tmp_path, needs=needs)
        assert prepared.errors == ()
        assert prepared.parent is None and prepared.digest is not None
        found[base] = [(one.severity, one.field, one.what, one.evidence) for one in prepared.findings]
    severity, _, what, evidence = found["python:3.11-slim"][0]
    assert (severity, what) == (WARNING, "A GPU of NVIDIA is asked for, and python:3.11-slim has no CUDA.")
    assert evidence is not None and evidence.endswith("the Dockerfile may change that")
    assert (WARNING, "dockerfile") in [one[:2] for one in found["python:9"]], "it cannot be read"


def test_settings_that_name_what_is_not_there_are_refused(builder: MadeUpBuilder, tmp_path: Path) -> None:
    settings = DockerSettings(requirements="nowhere.txt")
    with pytest.raises(SettingsError, match=r"nowhere\.txt"):
        prepared_of(settings, made_up_destination(), project=tmp_path)


def test_nothing_is_looked_for_where_nobody_asks(builder: MadeUpBuilder, tmp_path: Path) -> None:
    plain = DockerSettings(parent_image="python:3.11-slim", environment={"A": "1"})
    prepared_of(plain, made_up_destination(), project=tmp_path).make(lambda progress: None)
    assert prepared_of(plain, made_up_destination(), project=tmp_path, look=False).image is None


# What requirements were resolved to


def versions(monkeypatch: pytest.MonkeyPatch, **packages: str) -> list[str]:
    """Have requirements resolve to these; gives a list that is added the requirements of each resolving."""
    asked: list[str] = []

    def resolved(recipe: Recipe, *args: Any, **options: Any) -> Lock:
        asked.append(" ".join(recipe.requirements))
        return Lock(
            packages=tuple(LockedPackage(name=name, version=one) for name, one in sorted(packages.items()))
        )

    monkeypatch.setattr(preparing, "resolve", resolved)
    return asked


def test_what_requirements_were_resolved_to_stays_until_somebody_asks(
    builder: MadeUpBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions(monkeypatch, six="1.16.0")
    first = prepared_of(SIX, made_up_destination(), project=tmp_path)
    asked = versions(monkeypatch, six="1.17.0")
    again = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert (again.lock, again.digest) == (first.lock, first.digest)
    elsewhere = prepared_of(SIX, ELSEWHERE, project=tmp_path, registries=MadeUpRegistries(read_parent()))
    assert (elsewhere.lock, elsewhere.digest, asked) == (first.lock, first.digest, [])
    preparer = Preparer(made_up_destination(), None)
    later = preparer.prepare(SIX, Needs(), project=tmp_path, origins={}, update=True)
    assert later.lock is not None and later.lock.versions == {"six": "1.17.0"}
    assert later.before == first.lock
    assert (later.recipe == first.recipe, later.digest == first.digest) == (True, False)
    assert prepared_of(SIX, made_up_destination(), project=tmp_path).digest == later.digest


def test_an_image_that_is_there_says_what_its_requirements_were_resolved_to(
    builder: MadeUpBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions(monkeypatch, six="1.16.0")
    first = prepared_of(SIX, made_up_destination(), project=tmp_path)
    first.make(lambda progress: None)
    versions(monkeypatch, six="1.17.0")
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "of somebody else"))
    there = prepared_of(SIX, made_up_destination(), project=tmp_path)
    assert (there.lock, there.digest, there.builds) == (first.lock, first.digest, False)


def test_an_update_that_changes_something_builds_and_another_one_does_not(
    builder: MadeUpBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def updated() -> Prepared:
        preparer = Preparer(made_up_destination(), None)
        return preparer.prepare(SIX, Needs(), project=tmp_path, origins={}, update=True)

    versions(monkeypatch, six="1.16.0")
    prepared_of(SIX, made_up_destination(), project=tmp_path).make(lambda progress: None)
    assert not updated().builds
    versions(monkeypatch, six="1.17.0")
    assert updated().builds


def test_requirements_that_cannot_be_met_are_an_error_before_anything_is_built(
    builder: MadeUpBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmet(*args: Any, **options: Any) -> Lock:
        raise Unmet("there is no such version of one of the requirements", why="six>=9", fix="Correct it.")

    monkeypatch.setattr(preparing, "resolve", unmet)
    prepared = prepared_of(SIX, made_up_destination(), project=tmp_path)
    [error] = prepared.errors
    assert (error.field, error.evidence, error.fix) == ("requirements", "six>=9", "Correct it.")
    assert prepared.digest is None, "nothing is equal to it"


TORCH = made_up_parent("team/torch:1")
WITH_TORCH = Contents(
    python="3.11.7",
    interpreter="/usr/bin/python3",
    site_packages="/usr/lib/python3/dist-packages",
    packages={"torch": "2.1.0+cu121", "numpy": "1.26.4"},
    cuda="12.1",
    glibc="2.36",
    source="a look into the image",
)


@pytest.mark.parametrize(
    ("requirements", "keeping", "severity", "what", "fix"),
    [
        (
            ["torchvision"],
            {"torchvision": "0.16.0"},
            "error",
            "The requirements bring torch 2.9.0 over the image's 2.1.0+cu121.",
            'Add "torch==2.1.0" to requirements; then they bring torchvision==0.16.0.',
        ),
        (["torchvision>=0.20"], None, "error", "bring torch 2.9.0", "take an image with another torch"),
        (
            ["torch>=2.9"],
            None,
            "warning",
            "The image's torch 2.1.0+cu121 is replaced by 2.9.0.",
            "Leave torch out",
        ),
    ],
)
def test_requirements_that_replace_what_the_image_is_chosen_for_are_told(
    requirements: list[str],
    keeping: dict[str, str] | None,
    severity: str,
    what: str,
    fix: str,
    builder: MadeUpBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolved(*args: Any, kept: tuple[str, ...], **options: Any) -> Lock:
        if kept and keeping is None:
            raise Unmet("the requirements contradict each other")
        found = (keeping or {}) if kept else {"torch": "2.9.0", "torchvision": "0.24.0"}
        return Lock(packages=tuple(LockedPackage(name=name, version=one) for name, one in found.items()))

    monkeypatch.setattr(preparing, "resolve", resolved)
    monkeypatch.setattr(preparing, "contents_of", lambda *args, **options: WITH_TORCH)
    settings = DockerSettings(parent_image="team/torch:1", requirements=requirements)
    found = prepared_of(settings, made_up_destination(TORCH), project=tmp_path).findings
    [finding] = [one for one in found if one.field == "requirements"]
    assert finding.severity == severity
    assert what in finding.what
    assert fix in (finding.fix or "")
    again = prepared_of(settings, made_up_destination(TORCH), project=tmp_path).findings
    assert again == found, "a second look finds what the first one did"
    accepted = DockerSettings(**settings.explicit(), accept=["replaces-framework"])
    assert prepared_of(accepted, made_up_destination(TORCH), project=tmp_path).errors == ()


def test_that_layers_are_read_is_said_before_and_they_are_read_once(
    builder: MadeUpBuilder, tmp_path: Path
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as layer:
        layer.addfile(tarfile.TarInfo("usr/local/bin/python3.11"))
    told: list[str] = []
    with StandInRegistry() as registry, open_registries() as registries:
        registry.add("ml/base", "1", layers=(packed.getvalue(),))
        settings = DockerSettings(parent_image=f"{registry.name}/ml/base:1", requirements=["six"])
        for _ in range(2):
            preparer = Preparer(ELSEWHERE, registries, announce=told.append)
            prepared = preparer.prepare(settings, Needs(), project=tmp_path, origins={})
        assert prepared.contents.source == "its layers"
    [line] = told
    assert line.startswith(f"{registry.name}/ml/base:1: nothing is known of what is in it")


ELSEWHERE = Destination(platform="linux/amd64", registry="registry.example.org/ml")
