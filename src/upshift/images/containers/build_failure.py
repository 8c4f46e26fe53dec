"""Why an engine could not build an image, in the words of the settings: :func:`build_failure`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from upshift.errors import ImageError, RecipeError, location
from upshift.images.base import Contents, Ingredients
from upshift.images.checking.checks import LEAST_PYTHON
from upshift.images.checking.debian import brings_python
from upshift.images.containers.build_output import BuildOutput
from upshift.images.containers.dockerfile import REQUIREMENTS
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.failures import full_disk
from upshift.images.recipes.instructions import instructions
from upshift.images.uninstallable import cause_of
from upshift.runtime.accelerators.compatibility import parse

_OF_APT = ("E: ", "W: ", "Err:", "dpkg: ")  # what it says between the rest, which is no news
_NO_PYTHON = re.compile(r"python3?: (?:command )?not found")
_NETWORK = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake|toomanyrequests|50[0-4] ",
    re.IGNORECASE,
)
_NOT_BUILT = "the image cannot be built"
_NO_MIRROR = "the Debian packages cannot be loaded: their server cannot be reached"
_OF_THE_LISTS = (
    (
        re.compile(r"NO_PUBKEY|GPG error|is not signed|KEYEXPIRED|EXPKEYSIG|invalid signature"),
        "apt-get update cannot verify the package lists of the image's distribution",
        "Build on a newer version of the image, which has the present keys, or install the key of a "
        "repository of your own in a Dockerfile.",
    ),
    (
        re.compile(r"is not valid yet|is expired"),
        "apt-get update does not take the package lists at this time",
        "See that the clock of this machine is right, and that the mirror is kept up to date.",
    ),
    (
        re.compile(r"does not have a Release file|no longer has a Release file|404 +Not Found"),
        "the package lists of the image's distribution are not where the image says",
        "Build on a newer version of the image: those of old distributions move to an archive.",
    ),
    (
        re.compile(
            r"Failed to fetch|Could not resolve|Temporary failure resolving|Could not connect|Cannot init"
        ),
        _NO_MIRROR,
        "See that containers reach the network from here: name servers, firewall, proxy (http_proxy).",
    ),
)
_Cause = tuple[type[ImageError], str, str, "str | None"]
_OF_A_PACKAGE = (
    re.compile(r"Unable to locate package (\S+)"),
    re.compile(r"Package '?([^\s']+)'? has no installation candidate"),
    re.compile(r"Version '\S+' for '(\S+)' was not found"),
)


def build_failure(
    engine: ContainerEngine,
    dockerfile: str,
    output: BuildOutput,
    last: Sequence[str],
    ingredients: Ingredients,
    *,
    log: str | None = None,
) -> ImageError:
    """The error for a build that failed, though the engine works.

    Parameters
    ----------
    engine
        What built.
    dockerfile
        The text that it built from: the user's own, or a rendered one.
    output, last
        What the build said, taken apart; and the last of its lines as they came.
    ingredients
        What it was to be made from.
    log
        Where all that it said is kept.
    """
    full = full_disk(engine.name, "\n".join(last))
    if full is not None:
        return full
    lines = output.said.excerpt
    whole = [] if log is None else [f"All that was said: {log}"]
    ended = "" if output.status is None else f" with exit code {output.status}"
    instruction = " ".join((output.instruction or "").split())
    if dockerfile == ingredients.recipe.dockerfile:
        path, line = ingredients.dockerfile, output.line_in(dockerfile)
        at_work = [instruction, *(f"  {line}" for line in lines)] if instruction else lines
        of_parent = not instruction or instruction.startswith("FROM")
        kind = ImageError if of_parent and _NETWORK.search("\n".join(last)) else RecipeError
        return kind(
            f"the Dockerfile fails{ended}" if instruction else "the Dockerfile cannot be built",
            where=None if path is None else str(path) if line is None else location(str(path), line),
            why="\n".join([*at_work, *whole]) or None,
            fix="Correct this instruction; or what it needs and does not find, before it.",
        )
    kind, what, field, fix = _cause(instruction, output.lines, ingredients)
    complaints = [line for line in lines if line.startswith(_OF_APT)] if field == "apt_packages" else []
    said = complaints or lines or ([f"It ended{ended}, and said nothing."] if ended else [])
    return kind(
        what,
        where=ingredients.origins.get(field),
        why="\n".join([*said, *whole]) or None,
        fix=fix,
    )


def see_that_steps_can_run(ingredients: Ingredients, contents: Contents) -> None:
    """See whether what the user's Dockerfile has made has a Python that will do.

    Raises
    ------
    RecipeError
        It has none, or an old one.
    """
    lacks = contents.python == "" and not brings_python(ingredients.recipe.apt_packages)
    if not lacks and not (contents.python and parse(contents.python) < parse(LEAST_PYTHON)):
        return
    stages = [one.line for one in instructions(ingredients.recipe.dockerfile or "") if one.name == "FROM"]
    path = ingredients.dockerfile
    has = "no python3 on its PATH" if lacks else f"Python {contents.python}"
    raise RecipeError(
        f"the image that the Dockerfile makes has {has}",
        where=None if path is None or not stages else location(str(path), stages[-1]),
        why=f"Steps need Python {LEAST_PYTHON} or newer in their image.",
        fix='Build on an image with Python (FROM python:3.12-slim), or say apt_packages=["python3"].'
        if lacks
        else "Build on an image with a newer Python: FROM python:3.12-slim.",
    )


def _cause(instruction: str, lines: Sequence[str], ingredients: Ingredients) -> _Cause:
    """Whose fault it is, what could not be done, which field asks for it, and what to do about it."""
    said = "\n".join(lines)
    if instruction.startswith("RUN") and "apt-get" in instruction:
        what, fix = _of_apt(said, ingredients.recipe.apt_packages)
        return ImageError if what == _NO_MIRROR else RecipeError, what, "apt_packages", fix
    if instruction.startswith("RUN") and REQUIREMENTS in instruction:
        if "No module named pip" in said:
            return (
                RecipeError,
                "the image has neither uv nor pip to install the requirements with",
                "parent_image",
                'Build on an image that has pip, or without an engine: builder = "daemonless" in the target.',
            )
        if _NO_PYTHON.search(said) or not said:
            return (
                RecipeError,
                "the image has no python3 on its PATH",
                "parent_image",
                "Build on an image with Python, such as python:3.11-slim.",
            )
        kind, what, fix = cause_of(said, in_engine=True)
        return kind, what, "requirements", fix
    if instruction.startswith("RUN id "):
        return (
            RecipeError,
            f"the image has no user {ingredients.recipe.user}",
            "user",
            "Name one that it has, or a number.",
        )
    return ImageError, _NOT_BUILT, "parent_image", None


def _of_apt(said: str, packages: Sequence[str]) -> tuple[str, str]:
    names = ", ".join(packages)
    if "apt-get: not found" in said or "apt-get: command not found" in said:
        return (
            f"the image has no apt-get to install {names}",
            "Build on an image of Debian or Ubuntu, or install them in a Dockerfile.",
        )
    for sign, what, fix in _OF_THE_LISTS:  # without lists no package is found, either
        if sign.search(said):
            return what, fix
    missing = dict.fromkeys(name for sign in _OF_A_PACKAGE for name in sign.findall(said))
    if missing:
        return (
            f"the image's distribution has no such Debian package: {', '.join(missing)}",
            "Correct its name or version: packages.debian.org and packages.ubuntu.com know those there are.",
        )
    return (
        f"the Debian packages cannot be installed: {names}",
        "See what apt-get says, and correct apt_packages.",
    )
