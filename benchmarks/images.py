"""Images: a code package, a layer that is made without an engine, an image that is recognized."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.harness import Effort, Report, Row, Turns, fresh_home, program
from tests.engines import base_image
from tests.engines.registries import LoopbackRegistry, running
from upshift.errors import ImageError
from upshift.images.base import Contents, Ingredients, Parent, Recipe, Reference
from upshift.images.building.builder import Builder, Destination
from upshift.images.building.packages import resolve
from upshift.images.parents.contents import contents_of
from upshift.images.registries.client import Registries
from upshift.images.uv import find_uv, platform_of

ROUNDS = 9
FILES = 200
BEFORE = ("attrs==25.1.0", "idna==3.10")
ADDED = "packaging=={}"
VERSIONS = ("21.0", "21.1", "21.2", "21.3", "22.0", "23.0", "23.1", "23.2", "24.0", "24.1", "24.2")
"""Of the requirement that is added: each round takes another one, so that nothing is there already."""

_PLATFORM = "linux/amd64"
_LABEL = "dev.upshift.bench=images"


def measure(effort: Effort) -> Report:
    """Seconds and ratios; `docker build` beside them, where there is a Docker."""
    rounds = min(effort.rounds(ROUNDS), len(VERSIONS) - 1)
    with fresh_home() as home:
        packages = [program("package", str(FILES), home=home / str(n))["seconds"] for n in range(rounds)]
    with (
        fresh_home() as home,
        _registry() as registry,
        _variables(home, registry),
        Registries() as registries,
    ):
        workplace = _Workplace.open(registry, registries)
        docker = _Docker.find(workplace)
        workplace.build(*BEFORE)
        versions = {name: iter(VERSIONS) for name in ("install", "compiled", "layer", "docker")}
        candidates: dict[str, Callable[[], float]] = {
            "install": lambda: workplace.install(ADDED.format(next(versions["install"]))),
            "compiled": lambda: workplace.install(
                ADDED.format(next(versions["compiled"])), "--compile-bytecode"
            ),
            "layer": lambda: workplace.build(*BEFORE, ADDED.format(next(versions["layer"]))),
            "recognized": workplace.recognize,
        }
        if docker is not None:
            candidates["docker"] = lambda: docker.build(*BEFORE, ADDED.format(next(versions["docker"])))
        for candidate in candidates.values():  # what is downloaded is downloaded before
            candidate()
        for version in VERSIONS:
            workplace.install(ADDED.format(version))
        try:
            turns = Turns(rounds, **candidates)
        finally:
            if docker is not None:
                docker.clean()
    rows = [
        Row(
            what=f"code package of {FILES} files, made and stored",
            value=sorted(packages)[rounds // 2],
            unit="s",
            target=0.3,
        ),
        Row(
            what="floor: uv installs one small requirement into a folder",
            value=1000 * turns.median("install"),
            unit="ms",
        ),
        Row(
            what="floor: the same with bytecode, which is in the layer",
            value=1000 * turns.median("compiled"),
            unit="ms",
        ),
        Row(
            what="image with that requirement added: resolved, installed and pushed",
            value=1000 * turns.median("layer"),
            unit="ms",
        ),
        Row(
            what="the same, over the installation with bytecode",
            value=turns.median("layer") / turns.median("compiled"),
            unit="×",
            target=1.3,
        ),
        Row(
            what="an unchanged image is recognized",
            value=1000 * turns.median("recognized"),
            unit="ms",
            target=100,
        ),
    ]
    if docker is not None:
        rows.insert(
            3,
            Row(
                what="`docker build` and `docker push` of that",
                value=1000 * turns.median("docker"),
                unit="ms",
            ),
        )
    beside = ""
    if docker is not None:
        beside = (
            f"Beside it {docker.version}: `pip install`, a line for each requirement, and the push; what is "
            "new is downloaded. "
        )
    how = (
        "A project's code as a package, in a store that has nothing of it. An image with three small "
        "requirements on a base with Python, in a registry with a password on loopback, after one of them "
        "was added, in another version each time: installed, compiled, packed, pushed and named, with the "
        f"index's files in uv's cache. {beside}Recognized: from opening the connection, with reading the "
        f"parent's manifest. {rounds} rounds in turns, medians."
    )
    return Report(title="Images", how=how, rows=rows)


@attrs.frozen
class _Workplace:
    """Builds on the base image, into its registry."""

    registry: LoopbackRegistry
    registries: Registries
    parent: Parent
    contents: Contents

    @classmethod
    def open(cls, registry: LoopbackRegistry, registries: Registries) -> _Workplace:
        layer = base_image.layer()
        plain = hashlib.sha256(gzip.decompress(layer.read_bytes())).hexdigest()
        environment = [f"{name}={value}" for name, value in base_image.ENVIRONMENT.items()]
        image = f"python:{base_image.MINOR}-slim"
        config = {"architecture": "amd64", "os": "linux", "config": {"Env": environment}}
        registry.push(image, [(layer, f"sha256:{plain}")], config)
        parent = registries.parent(Reference.parse(registry.name(image)), _PLATFORM)
        return cls(registry, registries, parent, contents_of(parent, registries=registries))

    def build(self, *requirements: str) -> float:
        builder, ingredients = self._builder(self.registries), self._ingredients(*requirements)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            lock = resolve(ingredients.recipe, {}, self.contents, Path(folder))
        builder.build(ingredients, self.parent, self.contents, lock, tell=lambda _: None)
        return time.perf_counter() - start

    def recognize(self) -> float:
        start = time.perf_counter()
        with Registries() as registries:
            parent = registries.parent(self.parent.reference, _PLATFORM)
            contents_of(parent, registries=registries)
            found = self._builder(registries).find(self._ingredients(*BEFORE), parent)
        took = time.perf_counter() - start
        assert found is not None
        return took

    def install(self, requirement: str, *args: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                find_uv("packages are installed by uv"),
                "pip",
                "install",
                "--quiet",
                "--python",
                sys.executable,
                "--target",
                f"{folder}/x",
            ]
            platform = platform_of(_PLATFORM, self.contents.glibc) or ""
            command += ["--python-version", self.contents.python or "", "--python-platform", platform]
            start = time.perf_counter()
            subprocess.run([*command, *args, requirement], check=True)
            return time.perf_counter() - start

    def _builder(self, registries: Registries) -> Builder:
        destination = Destination(platform=_PLATFORM, registry=self.registry.name("ml"))
        return Builder(destination, registries, ImageError("no engine is used"))

    def _ingredients(self, *requirements: str) -> Ingredients:
        recipe = Recipe(parent=str(self.parent.reference), platform=_PLATFORM, requirements=requirements)
        return Ingredients(recipe=recipe)


@attrs.frozen
class _Docker:
    """``docker build`` and ``docker push`` of the same image."""

    workplace: _Workplace
    version: str

    @classmethod
    def find(cls, workplace: _Workplace) -> _Docker | None:
        if shutil.which("docker") is None:
            return None
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True
        )
        return cls(workplace, f"Docker {asked.stdout.strip()}") if asked.returncode == 0 else None

    def build(self, *requirements: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"FROM {self.workplace.parent.reference}"]
            lines += [
                f"RUN pip install --root-user-action=ignore '{requirement}'" for requirement in requirements
            ]
            Path(folder, "Dockerfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
            start = time.perf_counter()
            _quiet("docker", "build", "--network=host", f"--label={_LABEL}", "--tag", self._name, folder)
            _quiet("docker", "push", self._name)
            return time.perf_counter() - start

    def clean(self) -> None:
        built = ["docker", "images", "--quiet", "--no-trunc", "--filter", f"label={_LABEL}"]
        listed = subprocess.run(built, capture_output=True, text=True, check=True).stdout.split()
        for image in (*dict.fromkeys(listed), str(self.workplace.parent.reference)):
            subprocess.run(["docker", "rmi", "--force", image], capture_output=True)

    @property
    def _name(self) -> str:
        return self.workplace.registry.name("ml/by-docker:latest")


def _quiet(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def _registry() -> Iterator[LoopbackRegistry]:
    with tempfile.TemporaryDirectory(prefix="upshift-bench-") as folder, running(Path(folder)) as registry:
        yield registry


@contextmanager
def _variables(home: Path, registry: LoopbackRegistry) -> Iterator[None]:
    ours: dict[str, Any] = {
        "UPSHIFT_HOME": str(home),
        "DOCKER_CONFIG": str(registry.login),
        "REGISTRY_AUTH_FILE": str(registry.login / "config.json"),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
