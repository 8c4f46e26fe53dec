"""The checks of an image before it is built: :func:`check`.

They ask nobody: the contents of the image were read, and its requirements resolved. Other facts come from
dated tables; the findings of a table that is too old are only warnings.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path

import attrs

from upshift.images import gpu_checks
from upshift.images.base import (
    ERROR,
    LEAST_PYTHON,
    NOTE,
    SEVERITIES,
    WARNING,
    Contents,
    Finding,
    Ingredients,
    Lock,
    Needs,
    Parent,
    Reference,
)
from upshift.images.gpu_checks import Subject, bare_name
from upshift.images.parents.contents import known_image
from upshift.images.parents.known import cuda_in, minor
from upshift.images.registries.answers import login_command
from upshift.runtime.accelerators.compatibility import parse

FRAMEWORKS = ("torch", "tensorflow", "jax")
"""What an image is chosen for."""

_OLD = 540
"""Days after which a table only warns."""
_DEBIAN_PYTHON: Mapping[str, tuple[str, ...]] = {
    "2.27": ("3.6",),  # Ubuntu 18.04
    "2.28": ("3.7",),  # Debian 10
    "2.31": ("3.8", "3.9"),  # Ubuntu 20.04, Debian 11
    "2.35": ("3.10",),  # Ubuntu 22.04
    "2.36": ("3.11",),  # Debian 12
    "2.39": ("3.12",),  # Ubuntu 24.04
    "2.41": ("3.13",),  # Debian 13
}
"""The versions that ``python3`` has in a distribution, which is known here by its C library."""

_READ_OF_DEBIAN = "packages.debian.org/python3 and packages.ubuntu.com/python3, read on 2026-11-21"
"""Where that is from."""

_WITH_PYTHON = frozenset(
    {
        "python3",
        "python3-dev",
        "python3-distutils",
        "python3-full",
        "python3-minimal",
        "python3-pip",
        "python3-setuptools",
        "python3-venv",
        "python3-wheel",
        "python-is-python3",
    }
)
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_MOST_NAMES = 6
_READ = re.compile(r"read on (\d{4}-\d\d-\d\d)")


def check(
    ingredients: Ingredients,
    parent: Parent | None,
    contents: Contents,
    lock: Lock | None,
    needs: Needs,
    *,
    today: date | None = None,
) -> tuple[Finding, ...]:
    """The findings on an image, errors first."""
    if parent is None and ingredients.recipe.parent is not None:
        image = known_image(ingredients.recipe.parent)
        contents = image.contents if image else Contents(complete=False)
    subject = Subject(
        ingredients=ingredients,
        parent=parent,
        contents=contents,
        after=with_packages(contents, lock),
        lock=lock,
        needs=needs,
    )
    found = [*_platform(ingredients, parent), *_python(subject), *_user(subject)]
    if lock is not None or not ingredients.recipe.requirements:  # they are resolved
        found += gpu_checks.findings(subject)
        found += _launchers(subject.name, subject.after, needs)
        found += _imports(subject.after, needs)
    found += _login(ingredients, parent)
    found = [accepted(_aged(one, today or date.today()), ingredients) for one in dict.fromkeys(found)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def with_packages(contents: Contents, lock: Lock | None) -> Contents:
    if lock is None or not lock.packages:
        return contents
    brought = cuda_in(lock.versions)
    return attrs.evolve(
        contents,
        packages=None if contents.packages is None else {**contents.packages, **lock.versions},
        cuda=contents.cuda if brought is None else brought,
    )


def replaced(have: Mapping[str, str], lock: Lock) -> dict[str, tuple[str, str]]:
    """The frameworks of an image that a lock brings in another version: what is there, and what would be."""
    return {
        name: (have[name], lock.versions[name])
        for name in FRAMEWORKS
        if name in have and name in lock.versions and lock.versions[name] != have[name]
    }


def replacement(name: str, have: str, new: str, *, asked: str | None, keeping: Lock | None = None) -> Finding:
    """The finding for a framework that requirements replace.

    ``asked`` is the requirement that names it, if one does; ``keeping`` what they resolve to where it has to
    stay; None: that is not known.
    """
    if asked is not None:
        return Finding(
            severity=WARNING,
            field="requirements",
            what=f"The image's {name} {have} is replaced by {new}.",
            evidence=f"requirements say {asked!r}",
            fix=f"Leave {name} out, or ask for the installed version: {name}=={have.partition('+')[0]}.",
        )
    fix = f'Add "{name}=={have.partition("+")[0]}" to requirements'
    if keeping is not None:
        others = [f"{one.name}=={one.version}" for one in keeping.packages if one.source is None]
        fix += f"; then they bring {_listed(others)}"
    return Finding(
        severity=ERROR,
        name="replaces-framework",
        field="requirements",
        what=f"The requirements bring {name} {new} over the image's {have}.",
        evidence="their newest versions need another one",
        fix=f"{fix}.",
    )


def nothing_keeps(finding: Finding, name: str, have: str) -> Finding:
    """The finding, where requirements contradict the version that the image has."""
    fix = f"Nothing that is asked for goes with {name} {have}: take an image with another {name}."
    return attrs.evolve(finding, fix=fix)


def _aged(finding: Finding, today: date) -> Finding:
    """A finding from an old table is only a warning."""
    read = _READ.search(finding.source or "")
    if finding.severity != ERROR or read is None:
        return finding
    age = (today - date.fromisoformat(read[1])).days
    if age < _OLD:
        return finding
    why = f"{finding.evidence}; " if finding.evidence else ""
    return attrs.evolve(finding, severity=WARNING, evidence=f"{why}that table is {age // 30} months old")


def accepted(finding: Finding, ingredients: Ingredients) -> Finding:
    """A finding, as a warning where the user overrules it."""
    if finding.severity != ERROR or finding.name is None or finding.name not in ingredients.accept:
        return finding
    who = ingredients.origins.get("accept", "DockerSettings(accept=…)")
    why = f"{finding.evidence}; " if finding.evidence else ""
    return attrs.evolve(finding, severity=WARNING, evidence=f"{why}accepted: {who}")


def _platform(ingredients: Ingredients, parent: Parent | None) -> Iterator[Finding]:
    asked = ingredients.recipe.platform
    if parent is not None and not _same_platform(parent.platform, asked):
        said = "platform" in ingredients.origins
        fix = f"Take an image for {asked}, or one for several platforms"
        yield Finding(
            severity=ERROR,
            name="other-platform",
            field="platform",
            what=f"{parent.reference} is for {parent.platform}; "
            + (f"platform= of the settings says {asked}." if said else f"the tasks run on {asked}."),
            evidence="its configuration",
            fix=f'{fix}; or set platform="{parent.platform}", or leave it out.' if said else f"{fix}.",
        )


def _same_platform(one: str, other: str) -> bool:
    """A variant counts where both say one: ``linux/arm64/v8`` is a ``linux/arm64``."""
    return all(a == b for a, b in zip(one.split("/"), other.split("/"), strict=False))


def _python(subject: Subject) -> Iterator[Finding]:
    """Whether there is a Python, of a version that steps can run with."""
    name, contents, needs = subject.name, subject.contents, subject.needs
    if contents.python == "" and brings_python(subject.ingredients.recipe.apt_packages):
        yield from _debians_python(subject)
    elif contents.python == "" or (contents.python and parse(contents.python) < parse(LEAST_PYTHON)):
        has = (
            f"Python {contents.python}; steps need {LEAST_PYTHON} or newer"
            if contents.python
            else "no Python"
        )
        yield Finding(
            severity=ERROR,
            field="parent_image",
            what=f"{name} has {has}.",
            evidence=contents.source,
            fix=_with_python(subject),
            source=subject.source,
        )
    elif needs.python and contents.python and minor(contents.python) != needs.python:
        yield Finding(
            severity=ERROR,
            name="other-python",
            field="parent_image",
            what=f"{name} has Python {contents.python}; a step that travels by value needs {needs.python}.",
            evidence=f"{contents.source}; what is defined in a notebook or a function is pickled as bytecode",
            fix=f"Take an image with Python {needs.python}, or move the step into a module.",
        )


def _debians_python(subject: Subject) -> Iterator[Finding]:
    """Whether the ``python3`` of the image's distribution is one that steps can run with."""
    contents, needs = subject.contents, subject.needs
    versions = _DEBIAN_PYTHON.get(contents.glibc or "", ())
    said, wanted = " or ".join(versions), needs.python or f"{LEAST_PYTHON} or newer"
    fitting = [v for v in versions if parse(v) >= parse(LEAST_PYTHON) and needs.python in (None, v)]
    if versions and not fitting:
        yield Finding(
            severity=ERROR,
            field="apt_packages",
            what=f"python3 of the image's distribution is Python {said}; steps need {wanted}.",
            evidence=f"{contents.source}: its C library is glibc {contents.glibc}",
            fix=_with_python(subject),
            source=_READ_OF_DEBIAN,
        )


def _with_python(subject: Subject) -> str:
    """The nearest image that fits."""
    contents, needs = subject.contents, subject.needs
    if contents.cuda or "nvidia" in needs.gpus:
        found = subject.nearest((contents.packages or {}).get("torch"), contents.cuda or None)
        if found is not None:
            return f'parent_image="{found.reference}" is the nearest that fits: {found.holds}.'
    return f'parent_image="python:{needs.python or "3.12"}-slim" fits.'


def _user(subject: Subject) -> Iterator[Finding]:
    """Whether the user that the image is to run as is in it; a number needs no name."""
    ingredients, contents = subject.ingredients, subject.contents
    user, _, _ = (ingredients.recipe.user or "").partition(":")
    if not user or user.isdecimal() or contents.users is None or ingredients.recipe.apt_packages:
        return
    if user not in contents.users:
        yield Finding(
            severity=ERROR,
            field="user",
            what=f"{subject.name} has no user {user}.",
            evidence=contents.source,
            fix=f'Use a number, user="1000:1000", or add {user} in a Dockerfile.',
        )


def brings_python(packages: Iterable[str]) -> bool:
    """Whether there is a ``python3`` once these are installed."""
    return any(bare_name(package) in _WITH_PYTHON for package in packages)


def _launchers(name: str, after: Contents, needs: Needs) -> Iterator[Finding]:
    have = after.packages or {}
    for launcher in sorted(needs.launchers - {"torchrun"} - set(have)):
        certain = launcher in after.lacks or (after.packages is not None and after.complete)
        if certain:
            yield Finding(
                severity=ERROR,
                name="no-launcher",
                field="requirements",
                what=f"A step is started with {launcher}, which is neither in {name} nor in requirements.",
                evidence=after.source,
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


def _imports(after: Contents, needs: Needs) -> Iterator[Finding]:
    """Packages that the code imports here and that are missing or have another version in the image."""
    have = after.packages or {}
    missing = sorted(set(needs.imports) - set(have) - _TOOLS)
    if missing and after.packages is not None and after.complete:
        is_ = "is" if len(missing) == 1 else "are"
        yield Finding(
            severity=WARNING,
            field="requirements",
            what=f"The steps import {_listed(missing)}, which {is_} neither in the image nor in "
            "requirements.",
            evidence=after.source,
            fix=f"Add to requirements: {_listed([f'{name}=={needs.imports[name]}' for name in missing])}.",
        )
    here, there = needs.imports.get("numpy", ""), have.get("numpy", "")
    if there and parse(there) < (2,) <= parse(here):
        yield Finding(
            severity=WARNING,
            field="requirements",
            what=f"NumPy is {here} here and {there} in the image, which reads no pickles of NumPy 2.",
            evidence="an array alone is not a pickle; in a list, a dictionary or an object of yours it is",
            fix=f'Ask for "numpy>=2" in requirements, or install numpy=={there} here.',
        )
    other = sorted(
        f"{name} {version} here, {have[name]} there"
        for name, version in needs.imports.items()
        if name in have and have[name].partition("+")[0] != version.partition("+")[0]
    )
    if other:
        yield Finding(
            severity=NOTE,
            field="parent_image",
            what=f"Packages have other versions in the image than on this machine: {_listed(other)}.",
            evidence=after.source,
            fix="Where that matters, ask for these in requirements, or install the image's here.",
        )


def _login(ingredients: Ingredients, parent: Parent | None) -> Iterator[Finding]:
    """How one logs in to the registry of a cloud, where the image could not be read."""
    if parent is not None or ingredients.recipe.parent is None:
        return
    image = known_image(ingredients.recipe.parent)
    if image is not None and image.private:
        yield Finding(
            severity=NOTE,
            field="parent_image",
            what=f"{ingredients.recipe.parent} is {image.private}; its registry wants a login.",
            evidence=image.source,
            fix=login_command(Reference.parse(ingredients.recipe.parent).registry),
        )


def without_access(user: str | None, store: str) -> Finding | None:
    """A warning where the image's user cannot write the store, for engines without numbers of their own."""
    match = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", user or "")
    if match is None or match[1] == "0" or "://" in store:
        return None
    there = "it belongs to"
    try:
        found = os.stat(store)
        owner, group, mode = found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)
        if "system.posix_acl_access" in os.listxattr(store):
            return None  # which may name this user
    except FileNotFoundError:
        there = "it will belong to"
        owner, group, mode = os.getuid(), os.getgid(), 0o777 & ~_umask()
    except OSError:
        return None
    # A container is given the group of a store that its group may write.
    if mode & (stat.S_IWUSR if int(match[1]) == owner else stat.S_IWGRP | stat.S_IWOTH):
        return None
    return Finding(
        severity=WARNING,
        field="user",
        what=f"user={user} cannot write the store, {store}",
        evidence=f"{there} {owner}:{group}, mode {mode:o}",
        fix="Leave user out: the container then runs as you. Or start Upshift as that user. Or share the "
        "store with a group, which the container then gets: mode 2770, and umask 007.",
    )


def _umask() -> int:
    """The umask of this process, read without setting it."""
    match = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1], 8) if match else 0o022


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = names[:_MOST_NAMES]
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1] if shown else "")))
