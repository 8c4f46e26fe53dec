"""What a recipe installs, as far as that can be said without an index: :class:`Wanted`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs

from upshift.images.base import Contents, Ingredients
from upshift.images.checking.torch_releases import COMPANIONS, PULLS, minor, newest
from upshift.images.pep508 import applies, normalized, packaging_of, parsed
from upshift.images.recipes.requirement_lines import hashes_split, lines_of, option_in

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_INDEXES = ("--index-url", "--extra-index-url", "--find-links", "--default-index", "--index")
_PYTORCH_INDEX = re.compile(r"download\.pytorch\.org/whl/(?:test/|nightly/)?([a-z]+[\d.]*)")


@attrs.frozen(kw_only=True)
class Wanted:
    """What is to be installed on an image.

    Parameters
    ----------
    requirements
        Those that count for the image's Python and machine, by normalized name.
    constraints
        Specifiers that hold for packages if they are installed, by normalized name.
    indexes
        Addresses of the indexes that are named.
    follows
        Whether what these need is installed too.
    upgrades
        Whether what is there already is replaced by what is newer.
    machine
        ``x86_64``.
    torch_backend
        What uv is told to take of PyTorch: ``cu126``.
    """

    requirements: Mapping[str, Requirement]
    constraints: Mapping[str, str] = attrs.field(factory=dict)
    indexes: tuple[str, ...] = ()
    follows: bool = True
    upgrades: bool = False
    machine: str = "x86_64"
    torch_backend: str | None = None

    @property
    def torch_build(self) -> str | None:
        """The build of PyTorch that is chosen by an index or an option: ``cu121``, ``cpu``; None: none."""
        if self.torch_backend is not None:
            return self.torch_backend
        found = next(filter(None, map(_PYTORCH_INDEX.search, self.indexes)), None)
        return found[1] if found else None

    def installs(self, name: str, contents: Contents) -> bool:
        """Whether a requirement is not met by what the image has already.

        Parameters
        ----------
        name
            Of one of :attr:`requirements`.
        contents
            What the image has.
        """
        requirement = self.requirements[name]
        have = (contents.packages or {}).get(name)
        if have is None or requirement.url or self.upgrades:
            return True
        return not requirement.specifier.contains(have, prereleases=True)

    def torch_pins(self, contents: Contents) -> tuple[str, ...]:
        """The specifiers that hold for PyTorch: those said, and of what is asked for in one version.

        Parameters
        ----------
        contents
            What the image has.
        """
        said = [str(self.requirements["torch"].specifier)] if "torch" in self.requirements else []
        said.append(self.constraints.get("torch", ""))
        for name, requirement in self.requirements.items():
            specifier = str(requirement.specifier)
            if name in COMPANIONS and _exact(specifier) and self.installs(name, contents) and self.follows:
                built = newest(name, specifier)
                said.append(built.torch if built else "")
        return tuple(filter(None, said))

    def brings(self) -> Iterator[str]:
        """The packages that are asked for, and those of the tables that come with them."""
        pending = list(self.requirements)
        for name, requirement in self.requirements.items():
            pending += [f"{name}[{normalized(extra)}]" for extra in requirement.extras]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if "[" not in name:
                yield name
            if self.follows:
                pending += PULLS.get(name, ())


def wanted(ingredients: Ingredients, contents: Contents) -> Wanted:
    """Read what a recipe installs.

    Parameters
    ----------
    ingredients
        The recipe and its files.
    contents
        What is known of the image, for what depends on its Python.

    Raises
    ------
    MissingExtra
        The package ``packaging`` is missing.
    """
    recipe = ingredients.recipe
    machine = _machine(recipe.platform)
    environment = _environment(contents, machine)
    requirements: dict[str, Requirement] = {}
    constraints: dict[str, str] = {}
    options = list(_paired(recipe.installer_args))
    for line in () if recipe.skip_build else recipe.requirements:
        option = option_in(line)
        if option is not None:
            options.append(option)
            continue
        requirement = _requirement(hashes_split(line)[0])
        if requirement is not None and applies(requirement, environment):
            requirements[normalized(requirement.name)] = requirement
    for name, value in options:
        if name == "--constraint" and value is not None and value in ingredients.paths:
            constraints |= _constraints(ingredients.paths[value].read_text(errors="replace"), environment)
    names = {name for name, _ in options}
    return Wanted(
        requirements=requirements,
        constraints=constraints,
        indexes=tuple(value for name, value in options if name in _INDEXES and value),
        follows="--no-deps" not in names,
        upgrades=bool(names & {"--upgrade", "-U", "--reinstall", "--force-reinstall"}),
        machine=machine,
        torch_backend=next((value for name, value in options if name == "--torch-backend"), None),
    )


def _exact(specifier: str) -> bool:
    return specifier.startswith("==") and "*" not in specifier and "," not in specifier


def _machine(platform: str) -> str:
    architecture = platform.split("/")[1] if "/" in platform else platform
    return _MACHINES.get(architecture, architecture)


def _paired(arguments: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The options of a command line, each with its value: ``--a=b`` and ``--a b`` alike."""
    pending: str | None = None
    for argument in arguments:
        if not argument.startswith("-"):
            if pending is not None:
                yield pending, argument
            pending = None
            continue
        if pending is not None:
            yield pending, None
        name, equals, value = argument.partition("=")
        pending = None if equals else name
        if equals:
            yield name, value
    if pending is not None:
        yield pending, None


def _requirement(text: str) -> Requirement | None:
    """What a line asks for; of a wheel, here or on a server, the version that its name says."""
    requirement = parsed(text)
    place = requirement.url if requirement is not None else text
    if place is None or not re.search(r"\.whl(?:$|[\s;\[#?])", place):
        return requirement
    utils = packaging_of("utils")
    name = unquote(re.split(r"[;\s\[#?]", place)[0].rpartition("/")[2])
    try:
        distribution, version, _, _ = utils.parse_wheel_filename(name)
    except utils.InvalidWheelFilename:
        return requirement
    return parsed(f"{distribution}=={version}")


def _constraints(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    found = (_requirement(hashes_split(line.text)[0]) for line in lines_of(text, "constraints"))
    return {
        normalized(requirement.name): str(requirement.specifier)
        for requirement in found
        if requirement is not None and applies(requirement, environment)
    }


def _environment(contents: Contents, machine: str) -> Mapping[str, str]:
    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "sys_platform": "linux",
    }
    if contents.python:
        environment |= {
            "python_version": minor(contents.python),
            "python_full_version": contents.python,
            "implementation_version": contents.python,
        }
    return environment
