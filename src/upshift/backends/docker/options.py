"""The options of a target whose steps run in containers on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.backends.base import refuse_options
from upshift.backends.local.offers import MANNERS, manners
from upshift.errors import ConfigError
from upshift.model.configuration import Target

ENGINES = ("docker", "podman")
GPUS = ("runtime", "cdi")
OPTIONS = ("engine", "image", "network", "gpus", "arguments", *MANNERS)
"""Their names."""


@attrs.frozen(kw_only=True)
class Options:
    """What a target says."""

    engine: str  # ``"docker"`` or ``"podman"``
    image: str | None = None  # the image of steps that have no settings of their own
    # the network of the containers, as ``--network`` takes it; None: the engine's default
    network: str | None = None
    # how GPUs come into a container: ``"runtime"`` (``--gpus``), or ``"cdi"``; None: whichever is there
    gpus: str | None = None
    arguments: tuple[str, ...] = ()  # more arguments for ``docker run``
    wait: float  # seconds that a step waits for accelerators
    share: bool  # whether it takes accelerators that other programs work with


def read_options(
    target: Target,
    engine: str,  # the container engine where it names none
) -> Options:
    """The options of a target, checked.

    Raises
    ------
    ConfigError
        One of them is unknown, or is invalid.
    """
    if "builder" in target.options:
        raise ConfigError(
            f"target {target.name!r}: there is no option builder any more",
            why="Packages are installed in one way; an engine builds only Dockerfiles and Debian packages.",
            fix="Leave it out.",
        )
    said = refuse_options(target, OPTIONS)
    wait, share = manners(target)
    return Options(
        engine=_one_of(target, said, "engine", ENGINES) or engine,
        image=_text(target, said, "image"),
        network=_text(target, said, "network"),
        gpus=_one_of(target, said, "gpus", GPUS),
        arguments=_texts(target, said, "arguments"),
        wait=wait,
        share=share,
    )


def refuse_missing_mounts(target: Target) -> None:
    """See that what is to be mounted is there, and goes to an absolute path.

    Raises
    ------
    ConfigError
        It is not.
    """
    for inside, outside in target.mounts.items():
        if not Path(inside).is_absolute() or ".." in Path(inside).parts:
            raise ConfigError(
                f"target {target.name!r}: mounts: {inside!r} is not an absolute path",
                fix='Write mounts = { "/data" = "/shared/data" }: the path in the step first.',
            )
        if not Path(outside).expanduser().exists():
            raise ConfigError(
                f"target {target.name!r}: mounts: {outside} is not there",
                why=f"Steps are to find it at {inside}.",
                fix="Make the folder, mount the disk, or correct the path.",
            )


def _text(target: Target, said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise _nonsense(target, name, value, "Write a string.")


def _texts(target: Target, said: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = said.get(name, [])
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise _nonsense(target, name, value, f'Write a list of strings: {name} = ["--add-host", "db:10.0.0.7"].')


def _one_of(target: Target, said: Mapping[str, Any], name: str, forms: tuple[str, ...]) -> str | None:
    value = said.get(name)
    if value is None or value in forms:
        return value
    raise _nonsense(target, name, value, f"Expected one of {', '.join(forms)}.")


def _nonsense(target: Target, name: str, value: object, fix: str) -> ConfigError:
    return ConfigError(f"target {target.name!r}: {name} = {value!r} is invalid", fix=fix)
