"""What can be said of an image before it is built: :func:`check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from upshift.errors import MissingExtra
from upshift.images.base import ERROR, NOTE, WARNING, Contents, Finding, Ingredients, Needs, Parent
from upshift.images.checking import gpu as check_gpu
from upshift.images.checking import torch as check_torch
from upshift.images.checking.debian import PYTHON, READ_OF_DEBIAN, brings_python
from upshift.images.checking.official import nearest
from upshift.images.checking.torch_releases import COMPANIONS, minor
from upshift.images.checking.wanted import Wanted, wanted
from upshift.images.parents.contents import known_image
from upshift.images.reference import Reference
from upshift.images.registries.faults import login_command
from upshift.runtime.accelerators.compatibility import parse

LEAST_PYTHON = "3.10"
"""What runs beside a step needs it."""

_GLIBC_ONLY = frozenset({"jaxlib", "tensorflow", "torch", "torchaudio", "torchvision", "triton"})
"""What has wheels for glibc and none for musl.

Source: what ``pip`` finds on the Python Package Index for ``musllinux_1_2_x86_64``. Read on 2026-11-21.
"""

_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_MOST_NAMES = 6


def check(
    ingredients: Ingredients, parent: Parent | None, contents: Contents, needs: Needs
) -> tuple[Finding, ...]:
    """What speaks against an image, or should be known of it; nothing is asked and nothing downloaded.

    Parameters
    ----------
    ingredients
        What it is to be made from.
    parent
        What it is built on; None: only a Dockerfile knows, or it cannot be read: then its name says what
        it can.
    contents
        What is known to be in the parent.
    needs
        What the steps need that run in it.

    Raises
    ------
    MissingExtra
        Requirements have to be read, and the package for that is not installed.
    """
    if parent is None and ingredients.recipe.parent is not None:
        image = known_image(ingredients.recipe.parent)
        contents = image.contents if image else Contents(complete=False)
    found = [*_platform(ingredients, parent), *_python(ingredients, parent, contents, needs)]
    try:
        plan = wanted(ingredients, contents)
    except MissingExtra:
        if any(not line.startswith("-") for line in ingredients.recipe.requirements):
            raise
        plan = Wanted(requirements={})
    name = check_gpu.name_of(ingredients, parent)
    found += check_gpu.findings(ingredients, parent, contents, needs, plan)
    found += check_torch.findings(plan, contents)
    found += _musl(plan, name, contents)
    found += _launchers(plan, name, contents, needs)
    found += _imports(plan, contents, needs)
    found += _login(ingredients, parent)
    order = (ERROR, WARNING, NOTE)
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity)))


def _platform(ingredients: Ingredients, parent: Parent | None) -> Iterator[Finding]:
    asked = ingredients.recipe.platform
    if parent is not None and not _same_platform(parent.platform, asked):
        said = "platform" in ingredients.origins
        fix = f"Take an image for {asked}, or one for several platforms"
        yield Finding(
            severity=ERROR,
            field="platform",
            what=f"{parent.reference} is for {parent.platform}; "
            + (f"platform= of the settings says {asked}." if said else f"the tasks run on {asked}."),
            evidence="its configuration",
            fix=f'{fix}; or say platform="{parent.platform}", or leave it out.' if said else f"{fix}.",
        )


def _same_platform(one: str, other: str) -> bool:
    """A variant counts where both say one: ``linux/arm64/v8`` is a ``linux/arm64``."""
    return all(a == b for a, b in zip(one.split("/"), other.split("/"), strict=False))


def _python(
    ingredients: Ingredients, parent: Parent | None, contents: Contents, needs: Needs
) -> Iterator[Finding]:
    """Whether there is a Python, of a version that steps can run with."""
    name = check_gpu.name_of(ingredients, parent)
    if contents.python == "" and brings_python(ingredients.recipe.apt_packages):
        yield from _debians_python(ingredients, contents, needs)
    elif contents.python == "":
        yield Finding(
            severity=ERROR,
            field="parent_image",
            what=f"{name} has no Python.",
            evidence=contents.source,
            fix=_with_python(ingredients, contents, needs),
            source=check_gpu.source_of(ingredients, parent, contents),
        )
    elif contents.python and parse(contents.python) < parse(LEAST_PYTHON):
        yield Finding(
            severity=ERROR,
            field="parent_image",
            what=f"{name} has Python {contents.python}; steps need {LEAST_PYTHON} or newer.",
            evidence=contents.source,
            fix=_with_python(ingredients, contents, needs),
            source=check_gpu.source_of(ingredients, parent, contents),
        )
    elif needs.python and contents.python and minor(contents.python) != needs.python:
        yield Finding(
            severity=ERROR,
            field="parent_image",
            what=f"{name} has Python {contents.python}; a step that travels by value needs {needs.python}.",
            evidence=f"{contents.source}; what is defined in a notebook or a function is pickled as bytecode",
            fix=f"Take an image with Python {needs.python}, or move the step into a module.",
        )


def _debians_python(ingredients: Ingredients, contents: Contents, needs: Needs) -> Iterator[Finding]:
    """Whether the ``python3`` of the image's distribution is one that steps can run with."""
    versions = PYTHON.get(contents.glibc or "", ())
    said, wanted = " or ".join(versions), needs.python or f"{LEAST_PYTHON} or newer"
    fitting = [v for v in versions if parse(v) >= parse(LEAST_PYTHON) and needs.python in (None, v)]
    if versions and not fitting:
        yield Finding(
            severity=ERROR,
            field="apt_packages",
            what=f"python3 of the image's distribution is Python {said}; steps need {wanted}.",
            evidence=f"{contents.source}: its C library is glibc {contents.glibc}",
            fix=_with_python(ingredients, contents, needs),
            source=READ_OF_DEBIAN,
        )


def _with_python(ingredients: Ingredients, contents: Contents, needs: Needs) -> str:
    """The nearest image that fits."""
    if contents.cuda or "nvidia" in needs.gpus:
        torch = (contents.packages or {}).get("torch")
        found = nearest(
            driver=needs.driver,
            architectures=needs.architectures,
            python=needs.python,
            torch=torch,
            cuda=contents.cuda or None,
            platform=ingredients.recipe.platform,
        )
        if found is not None:
            return (
                f'parent_image="{found.reference}" is the nearest that fits: PyTorch {found.torch}, '
                f"CUDA {found.cuda}, Python {found.python}."
            )
    return f'parent_image="python:{needs.python or "3.12"}-slim" fits.'


def _musl(plan: Wanted, name: str, contents: Contents) -> Iterator[Finding]:
    brought = set(plan.brings())
    names = sorted(brought & _GLIBC_ONLY | ({"torch"} if brought & set(COMPANIONS) else set()))
    if contents.glibc == "" and names:
        yield Finding(
            severity=ERROR,
            field="parent_image",
            what=f"{name} has the C library musl, for which {_listed(names)} {_have(names)} no wheels.",
            evidence=contents.source,
            fix="Take an image of Debian or Ubuntu: python:3.12-slim instead of python:3.12-alpine.",
        )


def _launchers(plan: Wanted, name: str, contents: Contents, needs: Needs) -> Iterator[Finding]:
    brought = set(plan.brings())
    for launcher in sorted(needs.launchers - {"torchrun"}):
        if launcher in brought or launcher in (contents.packages or {}):
            continue
        certain = launcher in contents.lacks or (contents.packages is not None and contents.complete)
        if certain:
            yield Finding(
                severity=ERROR,
                field="requirements",
                what=f"A step is started with {launcher}, which is neither in {name} nor in requirements.",
                evidence=contents.source,
                fix=f'Add "{launcher}" to requirements.',
            )
        elif name != "the image":
            yield Finding(
                severity=WARNING,
                field="requirements",
                what=f"A step is started with {launcher}, which requirements do not name.",
                evidence=f"whether {name} has it is not known",
                fix=f'Add "{launcher}" to requirements, unless the image has it.',
            )


def _imports(plan: Wanted, contents: Contents, needs: Needs) -> Iterator[Finding]:
    """What the code imports here and will not find there, or finds in another version."""
    if not needs.imports:
        return
    have = contents.packages or {}
    known_there = contents.packages is not None and contents.complete
    brought, certain = _closure(plan)
    missing = sorted(set(needs.imports) - set(have) - brought - _TOOLS)
    if missing and known_there:
        yield Finding(
            severity=WARNING if certain else NOTE,
            field="requirements",
            what=f"The steps import {_listed(missing)}, which {_is(missing)} neither in the image nor in "
            "requirements.",
            evidence=contents.source
            if certain
            else f"{contents.source}; what the requirements bring along is not all known here",
            fix=f"Add to requirements: {_listed([f'{name}=={needs.imports[name]}' for name in missing])}.",
        )
    other = sorted(
        f"{name} {version} here, {have[name]} there"
        for name, version in needs.imports.items()
        if name in have
        and name not in plan.requirements
        and have[name].partition("+")[0] != version.partition("+")[0]
    )
    if other:
        yield Finding(
            severity=NOTE,
            field="parent_image",
            what=f"Packages have other versions in the image than on this machine: {_listed(other)}.",
            evidence=contents.source,
            fix="Where that matters, ask for these in requirements, or install the image's here.",
        )


def _closure(plan: Wanted) -> tuple[set[str], bool]:
    """What the requirements bring, by what is installed on this machine; whether that is all of it."""
    import importlib.metadata

    from upshift.images.pep508 import normalized, parsed

    brought, certain = set(plan.brings()), True
    pending = list(plan.requirements) if plan.follows else []
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        brought.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            certain = False
            continue
        for text in required:
            requirement = parsed(text)
            if requirement is not None and (requirement.marker is None or _always(requirement.marker)):
                pending.append(normalized(requirement.name))
    return brought, certain


def _always(marker: object) -> bool:
    return bool(marker.evaluate({"extra": ""}))  # type: ignore[attr-defined]


def _login(ingredients: Ingredients, parent: Parent | None) -> Iterator[Finding]:
    """How one logs in to the registry of a cloud, where the image could not be read."""
    if parent is not None or ingredients.recipe.parent is None:
        return
    image = known_image(ingredients.recipe.parent)
    if image is not None and image.wants_login:
        yield Finding(
            severity=NOTE,
            field="parent_image",
            what=f"{ingredients.recipe.parent} is {image.title}; its registry wants a login.",
            evidence=image.source,
            fix=login_command(Reference.parse(ingredients.recipe.parent).registry),
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = names[:_MOST_NAMES]
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _have(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"
