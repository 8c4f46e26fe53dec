"""From a recipe to the text of a Dockerfile: :func:`render`. Pure; golden tests show what it gives.

Nothing but what the recipe says is left in the image: with BuildKit, requirements are mounted while they
are installed, caches too; without it they are copied, and removed again. Build arguments carry what a
Dockerfile has no way to write (:func:`arguments`), secret mounts the variables in requirements.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping

from upshift.images.base import RECIPE_LABEL, Contents, Ingredients, Parent, Recipe
from upshift.images.recipes.requirement_lines import variables_in

REQUIREMENTS = "requirements.txt"
"""Name of the requirements among the files that are sent to the engine."""

UV = ".uv"
"""Name of this machine's uv among them, which may run in the image, and saves it a download."""

PARENT_ARGUMENT = "UPSHIFT_PARENT"
"""The build argument that says what the image is called that the user's Dockerfile makes."""

_HERE = "/tmp/upshift"  # those files, while they are needed
_CACHE = "/tmp/upshift-cache"
_APT = "/tmp/upshift-apt"
_UV = "/tmp/upshift-uv"
_UNWRITABLE = re.compile(r"[\n\r]")  # an instruction ends with its line
_ARGUMENT = "UPSHIFT_ENVIRONMENT_"


def render(ingredients: Ingredients, parent: Parent | None, contents: Contents, *, buildkit: bool) -> str:
    """The Dockerfile that makes an image.

    Parameters
    ----------
    ingredients
        What it is made from.
    parent
        What it is built on; None: what the user's Dockerfile makes, which is built before.
    contents
        What is known to be in that.
    buildkit
        Whether ``RUN --mount`` may be used.
    """
    recipe = ingredients.recipe
    switched = parent is not None and _needs_root(recipe) and not _is_root(parent.user)
    parts = ["# Rendered by Upshift.", *_from(recipe, parent)]
    if switched:
        parts.append("USER root")
    parts += _environment(recipe.environment)
    if recipe.apt_packages:
        parts.append(_run(*_apt(recipe.apt_packages, buildkit)))
    if recipe.requirements:
        if not buildkit:
            parts.append(f"COPY . {_HERE}/")
        parts.append(_run(*_install(recipe, contents, buildkit)))
    if recipe.user is not None:
        name = recipe.user.partition(":")[0]
        if not name.isdigit():
            parts.append(f"RUN id {name}")  # one that is not there is found out now, not by the first task
        parts.append(f"USER {recipe.user}")
    elif switched:
        assert parent is not None
        parts.append(f"USER {parent.user}")
    digest = recipe.digest(parent.digest if parent and recipe.dockerfile is None else None)
    parts.append(f"LABEL {RECIPE_LABEL}={quoted(digest)}")
    return "\n".join(parts) + "\n"


def arguments(recipe: Recipe) -> Mapping[str, str]:
    """Build arguments for the rendered Dockerfile: values with line breaks, which it has no way to write."""
    values = [value for value in recipe.environment.values() if _UNWRITABLE.search(value)]
    return {f"{_ARGUMENT}{number}": value for number, value in enumerate(values)}


def _from(recipe: Recipe, parent: Parent | None) -> tuple[str, ...]:
    """What cannot change any more, wherever it is known."""
    if recipe.dockerfile is not None or parent is None:
        return (f"ARG {PARENT_ARGUMENT}", f"FROM ${{{PARENT_ARGUMENT}}}")
    if parent.in_engine:
        return (f"FROM {parent.reference.full}",)
    return (f"FROM {parent.reference.with_digest(parent.digest).full}",)


def quoted(value: str) -> str:
    """A value as Dockerfiles take it: nothing in it means anything."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _environment(environment: Mapping[str, str]) -> Iterator[str]:
    number = 0
    for name, value in environment.items():
        if _UNWRITABLE.search(value):
            argument = f"{_ARGUMENT}{number}"
            number += 1
            yield f"ARG {argument}"
            yield f'ENV {name}="${argument}"'
        else:
            yield f"ENV {name}={quoted(value)}"


def _needs_root(recipe: Recipe) -> bool:
    return bool(recipe.apt_packages or recipe.requirements)


def _is_root(user: str | None) -> bool:
    return (user or "root").partition(":")[0] in ("root", "0")


def _run(flags: tuple[str, ...], commands: tuple[str, ...]) -> str:
    first, *others = commands
    lines = [" ".join(("RUN", *flags)), f"    {first}"] if flags else [f"RUN {first}"]
    lines += [f" && {command}" for command in others]
    return " \\\n".join(lines)


def _apt(packages: tuple[str, ...], buildkit: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    install = f"install -y --no-install-recommends {' '.join(map(shlex.quote, packages))}"
    quiet = "export DEBIAN_FRONTEND=noninteractive"
    if not buildkit:
        return (), (
            quiet,
            "apt-get -q update",
            f"apt-get -q {install}",
            "rm -rf /var/lib/apt/lists/*",
        )
    # Folders of its own: images are set up to empty apt's.
    options = f"-o Dir::State::lists={_APT}/lists -o Dir::Cache::archives={_APT}/archives"
    return (f"--mount=type=cache,id=upshift-apt,target={_APT},sharing=locked",), (
        quiet,
        f'apt="apt-get -q -o APT::Keep-Downloaded-Packages=true {options}"',
        f"mkdir -p {_APT}/lists/partial {_APT}/archives/partial",
        "$apt update",
        f"$apt {install}",
    )


def _install(recipe: Recipe, contents: Contents, buildkit: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    secrets = variables_in(recipe.requirements) if buildkit else ()
    flags = (
        f"--mount=type=bind,source=.,target={_HERE}",
        f"--mount=type=cache,id=upshift,target={_CACHE}",
        *(f"--mount=type=secret,id={name}" for name in secrets),
    )
    python = f"python={shlex.quote(contents.interpreter)}" if contents.interpreter else _FIND_PYTHON
    args = " ".join(["", *map(shlex.quote, recipe.installer_args)])
    managed = contents.externally_managed is not False
    if recipe.installer == "pip":
        install = [_pip(managed, buildkit), f'"$python" -m pip install --compile -r {REQUIREMENTS}{args}']
    else:
        install = [
            _pip(False, buildkit),
            f"export {f'UV_CACHE_DIR={_CACHE}/uv UV_LINK_MODE=copy' if buildkit else 'UV_NO_CACHE=1'}",
            '{ uv="$(command -v uv)"'
            + (f" || {{ {_HERE}/{UV} -V > /dev/null 2>&1 && uv={_HERE}/{UV}; }}" if buildkit else "")
            + f' || {{ "$python" -m pip install -q --target {_UV} uv && uv={_UV}/bin/uv; }}; }}',
            f'"$uv" pip install --python "$python"{" --break-system-packages" if managed else ""}'
            f" --compile-bytecode -r {REQUIREMENTS}{args}",
        ]
    left = [*([] if buildkit else [_HERE]), *([_UV, "/tmp/uv-*.lock"] if recipe.installer == "uv" else [])]
    return (flags if buildkit else ()), (
        # Podman 4 does not look into what is mounted when it looks for a layer that it has.
        f": requirements {_digest(recipe)}",
        f"cd {_HERE}",
        python,
        *(f'export {name}="$(cat /run/secrets/{name})"' for name in secrets),
        *install,
        *([f"rm -rf {' '.join(left)}"] if left else []),
    )


def _digest(recipe: Recipe) -> str:
    """What stands for the requirements and their files in the text of an instruction."""
    said = json.dumps([recipe.requirements, sorted(recipe.files.items())])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


_FIND_PYTHON = 'python="$(command -v python3)"'


def _pip(managed: bool, buildkit: bool) -> str:
    """By variables: an old pip leaves out those that it does not know, and would refuse the options."""
    said = [f"PIP_CACHE_DIR={_CACHE}/pip" if buildkit else "PIP_NO_CACHE_DIR=1"]
    said += ["PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PIP_ROOT_USER_ACTION=ignore"]
    if managed:
        said.append("PIP_BREAK_SYSTEM_PACKAGES=1")
    return f"export {' '.join(said)}"
