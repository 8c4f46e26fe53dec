"""The builder that has a container engine at hand: :class:`EngineBuilder`.

::

    the user's Dockerfile, if there is one ──▶ parent ── rendered Dockerfile ──▶ image ── push ──▶ registry

Tasks that run in this very engine take the image from it; it is found again by its label. Tasks that run
elsewhere take it from the registry; it is found again by the tag that the other builder gives it, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ImageError, MissingExtra
from upshift.images.base import (
    ERROR,
    HOME_LABEL,
    PROJECT_LABEL,
    RECIPE_LABEL,
    WARNING,
    Contents,
    Destination,
    Finding,
    Image,
    Ingredients,
    Parent,
    Progress,
    Recipe,
    Tell,
)
from upshift.images.containers.build_failure import build_failure, see_that_steps_can_run
from upshift.images.containers.build_log import BuildLog
from upshift.images.containers.build_output import BuildOutput
from upshift.images.containers.dockerfile import PARENT_ARGUMENT, REQUIREMENTS, UV, arguments, render
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.failures import PODMAN
from upshift.images.containers.transfer import platform_of, pull, push, tls_of
from upshift.images.containers.unfinished import name_in, remove_left
from upshift.images.daemonless.naming import DEFAULT_REPOSITORY, repository_of, tag_of
from upshift.images.kept import this_home
from upshift.images.parents.contents import contents_of
from upshift.images.recipes.instructions import instructions
from upshift.images.recipes.requirement_lines import variables_in
from upshift.images.reference import Reference
from upshift.images.uv import find_uv
from upshift.images.workshop import workshop

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

_ELSEWHERE = (
    'build without an engine: builder = "daemonless" in the target, '
    "or --builder daemonless beside --registry."
)


class EngineBuilder:
    """Makes images by ``docker build`` or ``podman build``.

    Parameters
    ----------
    engine
        What builds.
    destination
        Where the images are to run.
    registries
        How the registry is asked that the images go to, where the tasks run elsewhere.
    """

    def __init__(
        self, engine: ContainerEngine, destination: Destination, registries: Registries | None
    ) -> None:
        self.engine = engine
        self.destination = destination
        self._registries = registries

    def problems(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents
    ) -> Sequence[Finding]:
        """What this engine cannot do, or does slowly."""
        return list(self._problems(ingredients))

    def find(self, ingredients: Ingredients, parent: Parent | None, contents: Contents) -> Image | None:
        """The image with this recipe's label in the engine, or under its tag in the registry.

        Raises
        ------
        ImageError
            The engine or the registry cannot be asked.
        MissingExtra
            The registry cannot be asked without a package.
        """
        if _is_the_parent(ingredients):
            return self._unchanged(ingredients, parent, contents)
        digest = _digest(ingredients.recipe, parent)
        if self.destination.engine is None:
            return self._find_in_registry(ingredients, digest, contents)
        names = self._local_names(ingredients, digest)
        identities = {self._identity_of(name, digest) for name in names}
        identity = identities.pop()
        if identities or identity is None:
            return None  # the user's tag is that of another one
        return _image(identity, digest, ingredients, contents, names[-1])

    def build(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents, *, tell: Tell
    ) -> Image:
        """Build it, and push it where the tasks run elsewhere.

        Raises
        ------
        ImageError
            The engine cannot make it, or the registry does not take it.
        """
        for finding in self._problems(ingredients):
            if finding.severity == ERROR:
                raise ImageError(finding.what, why=finding.evidence, fix=finding.fix)
        if _is_the_parent(ingredients):
            return self._pulled(ingredients, parent, contents, tell)
        digest = _digest(ingredients.recipe, parent)
        if self.destination.engine is not None:
            names = self._local_names(ingredients, digest)
            if ingredients.rebuild or self._identity_of(names[0], digest) is None:
                self._build(ingredients, parent, contents, names[0], tell)
            identity = self._identity_of(names[0], digest)
            if identity is None:
                raise ImageError(f"{self.engine.title} has built {names[0]}, and does not have it")
            self._call(names)  # the user's tag may be another one's in a moment
            return _image(identity, digest, ingredients, contents, names[-1])
        repository = repository_of(ingredients, self.destination)
        names = [repository.with_tag(tag).full for tag in _tags(ingredients, digest)]
        self._build(ingredients, parent, contents, names[0], tell)
        self._call(names)
        pushed = [push(self.engine, name, repository.registry, tell) for name in names]
        return _image(repository.with_digest(pushed[0]).full, digest, ingredients, contents, names[-1])

    def _problems(self, ingredients: Ingredients) -> Iterator[Finding]:
        recipe = ingredients.recipe
        if _is_the_parent(ingredients):
            return
        if recipe.platform != self.engine.platform:
            yield Finding(
                severity=WARNING,
                field="platform",
                what=f"{self.engine.title} runs {self.engine.platform}, and has to emulate {recipe.platform}",
                fix=f"Where it cannot, or takes too long: {_ELSEWHERE}",
            )
        variables = variables_in(recipe.requirements)
        if variables and not self.engine.buildkit:
            yield Finding(
                severity=ERROR,
                field="requirements",
                what=f"{self.engine.title} would write the value of ${{{variables[0]}}} into the image",
                evidence="secret mounts take BuildKit, which this docker command does not have",
                fix=f"Install its plugin buildx. Or: {_ELSEWHERE}",
            )
        if self.destination.engine is None:
            try:
                repository_of(ingredients, self.destination)
            except ImageError as error:
                yield Finding(
                    severity=ERROR,
                    field="target_repository",
                    what=error.what,
                    evidence=error.why,
                    fix=error.fix,
                )

    def _unchanged(self, ingredients: Ingredients, parent: Parent | None, contents: Contents) -> Image | None:
        assert parent is not None
        name = _pinned(parent)
        if self.destination.engine is not None and self.engine.describe(name) is None:
            return None
        return _image(name, _digest(ingredients.recipe, parent), ingredients, contents, str(parent.reference))

    def _pulled(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents, tell: Tell
    ) -> Image:
        assert parent is not None
        if self._unchanged(ingredients, parent, contents) is None:
            pull(self.engine, _pinned(parent), parent.reference.registry, parent.platform, tell)
        found = self._unchanged(ingredients, parent, contents)
        if found is None:
            raise ImageError(f"{self.engine.title} has pulled {_pinned(parent)}, and does not have it")
        return found

    def _find_in_registry(self, ingredients: Ingredients, digest: str, contents: Contents) -> Image | None:
        repository = repository_of(ingredients, self.destination)
        if self._registries is None:
            raise MissingExtra(
                f"{repository.registry} has to be asked for the image, and the packages for that are missing",
                fix="pip install 'upshift[images]'",
            )
        there = None
        for tag in _tags(ingredients, digest):
            name = repository.with_tag(tag)
            known = self._registries.digest(name)
            if known is None or known != (there or known):
                return None
            there = known
        assert there is not None
        return _image(repository.with_digest(there).full, digest, ingredients, contents, name.full)

    def _identity_of(self, name: str, digest: str) -> str | None:
        """The id of what the engine has under a name, if that is made from this recipe."""
        said = self.engine.describe(name)
        return _identity(said) if said and _labels(said).get(RECIPE_LABEL) == digest else None

    def _call(self, names: Sequence[str]) -> None:
        """Give the image of the first name the others."""
        for name in names[1:]:
            self.engine.run(["tag", names[0], name])

    def _local_names(self, ingredients: Ingredients, digest: str) -> list[str]:
        repository = ingredients.repository or DEFAULT_REPOSITORY
        return [f"{repository}:{tag}" for tag in _tags(ingredients, digest)]

    def _build(
        self,
        ingredients: Ingredients,
        parent: Parent | None,
        contents: Contents,
        name: str,
        tell: Tell,
    ) -> None:
        """Build one image with this name."""
        recipe = ingredients.recipe
        with workshop() as folder, contextlib.ExitStack() as after:
            after.callback(remove_left, self.engine)
            args = ["--tag", name]
            args += [
                "--label",
                f"{HOME_LABEL}={this_home()}",
                "--label",
                f"{PROJECT_LABEL}={ingredients.project}",
            ]
            if recipe.dockerfile is not None:
                users = name_in(folder, "dockerfile")
                remove = "untag" if self.engine.name == PODMAN else "rmi"
                after.callback(self.engine.run, [remove, users], check=False)
                parent = self._build_users(ingredients, users, folder, tell)
                contents = contents_of(parent, registries=None, engine=self.engine)
                see_that_steps_can_run(ingredients, contents)
                args += _build_args({PARENT_ARGUMENT: users})
            text = render(ingredients, parent, contents, buildkit=self.engine.buildkit)
            context = folder / "requirements"
            context.mkdir()
            lines = "".join(f"{line}\n" for line in recipe.requirements)
            (context / REQUIREMENTS).write_text(lines, encoding="utf-8")
            for file, path in ingredients.paths.items():
                _place(path, context / file)
            if self.engine.buildkit and self.engine.platform == recipe.platform:  # mounted, not copied
                with contextlib.suppress(MissingExtra):
                    _place(Path(find_uv("it is mounted")).resolve(), context / UV)
            args += _build_args(arguments(recipe))
            for variable in variables_in(recipe.requirements):
                args += ["--secret", f"id={variable},env={variable}{self._type_of_secret}"]
            if parent is not None:
                args += tls_of(self.engine, parent.reference.registry)
                if parent.in_engine and recipe.dockerfile is None:
                    self._see_that_it_is(parent)
            self._run_build(text, context, folder, args, ingredients, tell)

    @property
    def _type_of_secret(self) -> str:
        return ",type=env" if self.engine.name == PODMAN else ""  # which would take it for a file

    def _see_that_it_is(self, parent: Parent) -> None:
        """A tag in an engine may be another image's by now: the result would name the wrong parent."""
        said = self.engine.describe(parent.reference.full)
        if said is None or _identity(said) != _identity(parent.config):
            what = f"{parent.reference} has become another image since it was looked into"
            raise ImageError(what, fix="Start again.")

    def _build_users(self, ingredients: Ingredients, name: str, folder: Path, tell: Tell) -> Parent:
        """What the user's Dockerfile makes, from those files of its context that the recipe knows."""
        recipe = ingredients.recipe
        assert recipe.dockerfile is not None
        context = folder / "context"
        context.mkdir()
        for path in recipe.context:
            assert ingredients.context_root is not None
            _place(ingredients.context_root / path, context / path)
        args = ["--tag", name, *_build_args(recipe.build_args)]
        registries = {reference.registry for reference in _parents_in(recipe.dockerfile)}
        if len(registries) == 1:  # the option would be for all of them
            args += tls_of(self.engine, *registries)
        if self.engine.name == PODMAN and _mounts_files(recipe.dockerfile):
            ingredients = attrs.evolve(ingredients, rebuild=True)
        self._run_build(recipe.dockerfile, context, folder, args, ingredients, tell)
        parent = self.engine.inspect(name)
        assert parent is not None
        return parent

    def _run_build(
        self,
        dockerfile: str,
        context: Path,
        folder: Path,
        args: list[str],
        ingredients: Ingredients,
        tell: Tell,
    ) -> None:
        recipe = ingredients.recipe
        written = folder / "Dockerfile"
        written.write_text(dockerfile, encoding="utf-8")
        told = [Progress(stage="build", text=f"{self.engine.title} begins")]
        log = BuildLog(folder / "output", recipe.requirements)
        output = BuildOutput(mask=log.mask, keep=log.write)

        def on_line(line: str) -> None:
            shown = output.take(line)
            if shown is not None:
                told[0] = Progress(stage="build", text=shown)
                tell(told[0])

        command = ["build", "--file", str(written), *platform_of(self.engine, recipe.platform)]
        command += ["--no-cache"] if ingredients.rebuild else []
        with_buildkit = self.engine.name != PODMAN and self.engine.buildkit
        command += ["--progress", "plain"] if with_buildkit else ["--force-rm"]
        environment = {} if self.engine.name == PODMAN else {"DOCKER_BUILDKIT": str(int(with_buildkit))}
        environment |= {name: os.environ.get(name, "") for name in variables_in(recipe.requirements)}
        with contextlib.closing(log):
            status, last = self.engine.stream(
                [*command, *args, str(context)], on_line, idle=lambda: tell(told[0]), environment=environment
            )
        if status != 0:
            self.engine.check()
            if output.layer is not None:
                self.engine.run(["tag", output.layer, name_in(folder, "layer")], check=False)
            raise build_failure(self.engine, dockerfile, output, last, ingredients, log=log.keep())


def _is_the_parent(ingredients: Ingredients) -> bool:
    named = ingredients.repository is not None or ingredients.tag is not None
    return ingredients.recipe.skip_build or (ingredients.recipe.adds_nothing and not named)


def _digest(recipe: Recipe, parent: Parent | None) -> str:
    return recipe.digest(parent.digest if parent else None)


def _tags(ingredients: Ingredients, digest: str) -> list[str]:
    """That by which it is found, and the user's."""
    return [tag_of(digest), *([] if ingredients.tag is None else [ingredients.tag])]


def _pinned(parent: Parent) -> str:
    """A parent by what cannot change; one that is in the engine only has no digest, and goes by its id."""
    if not parent.in_engine:
        return parent.reference.with_digest(parent.digest).full
    return _identity(parent.config)


def _identity(said: Mapping[str, object]) -> str:
    return _sha256(str(said["Id"]))


def _sha256(identity: str) -> str:
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _labels(said: Mapping[str, Any]) -> Mapping[str, str]:
    return (said.get("Config") or {}).get("Labels") or {}


def _image(reference: str, digest: str, ingredients: Ingredients, contents: Contents, name: str) -> Image:
    return Image(
        reference=reference,
        recipe=digest,
        interpreter=contents.interpreter,
        user=ingredients.recipe.user,
        name=name,
    )


def _parents_in(dockerfile: str) -> Iterator[Reference]:
    for one in instructions(dockerfile):
        words = [word for word in one.value.split() if not word.startswith("--")]
        if one.name == "FROM" and words and "/" in words[0] and "$" not in words[0]:
            with contextlib.suppress(ImageError):  # what makes no sense the engine will say
                yield Reference.parse(words[0])


def _mounts_files(dockerfile: str) -> bool:
    """Whether it mounts files of its context, into which Podman 4 does not look for a layer that it has."""
    return any(one.name == "RUN" and one.copied != () for one in instructions(dockerfile))


def _build_args(values: Mapping[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in ("--build-arg", f"{name}={value}")]


def _place(source: Path, to: Path) -> None:
    """The same file below another folder; links stay links."""
    if source.is_dir() and not source.is_symlink():
        to.mkdir(parents=True, exist_ok=True)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, to, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, to, follow_symlinks=False)
