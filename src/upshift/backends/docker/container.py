"""A container as the command line of Docker or Podman is told of it: pure functions, no engine."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import secrets
from collections.abc import Mapping, Sequence

import attrs

from upshift.images.containers.engine import PODMAN
from upshift.model.spec import TaskSpec

RUN, TASK, ATTEMPT, STORE = (f"dev.upshift.{name}" for name in ("run", "task", "attempt", "store"))
"""Labels of every container that runs an attempt."""
_SWEEP = """
import os, shutil, sys
for path, _, _ in os.walk(sys.argv[1]):
    try:
        os.chmod(path, 0o700)
    except OSError:
        pass
for name in os.listdir(sys.argv[1]):
    shutil.rmtree(os.path.join(sys.argv[1], name), ignore_errors=True)
"""
_ODD = re.compile(r"[^a-zA-Z0-9_.-]+")
_LONGEST = 48


@attrs.frozen(kw_only=True)
class Mount:
    """A folder of this machine, and where it is in the container."""

    source: str
    target: str
    read_only: bool = False


@attrs.frozen(kw_only=True)
class Container:
    """A container that runs one attempt, or one after the other."""

    name: str  # its name, from :func:`name_of` or :func:`name_for_several`
    image: str  # the image that it runs
    # program, arguments: what runs in it, whatever the image would start
    program: str
    arguments: tuple[str, ...]
    # labels, environment: of these a secret is none: everybody who may ask the engine sees them
    labels: Mapping[str, str] = attrs.field(factory=dict)
    environment: Mapping[str, str] = attrs.field(factory=dict)
    mounts: tuple[Mount, ...] = ()  # folders of this machine
    # user, groups: who runs it, and further groups by number; None: as the image has it
    user: str | None = None
    groups: tuple[int, ...] = ()
    # whether user ids of the container are to be mapped to those of this machine (rootless Podman)
    keep_id: bool = False
    cpus: float | None = None  # CPUs that it may use at once; None: all
    # memory, shared_memory: bytes; None: no limit, the engine's default
    memory: int | None = None
    shared_memory: int | None = None
    gpus: tuple[str, ...] = ()  # arguments with which it gets its devices
    # network, hostname: its network, and what it is called
    network: str | None = None
    hostname: str | None = None
    more: tuple[str, ...] = ()  # arguments of the user's


def name_of(spec: TaskSpec) -> str:
    """What the container of an attempt is called. No other attempt, of any store, has the same name."""
    task = f"{spec.task.step}-{spec.task.index}" if spec.task.index is not None else spec.task.step
    words = _ODD.sub("-", f"{task}-{spec.attempt}")[-_LONGEST:]
    identity = "\0".join((spec.store, spec.task.run, str(spec.task), str(spec.attempt)))
    return f"upshift-{words.strip('-.')}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def name_for_several(spec: TaskSpec) -> str:
    """What a container is called that serves several attempts of a step."""
    return f"upshift-{_ODD.sub('-', spec.task.step)[-_LONGEST:].strip('-.')}-{secrets.token_hex(6)}"


def labels_of(spec: TaskSpec, *, several: bool = False) -> dict[str, str]:
    """By which people, and whoever tidies up, know whose container it is."""
    own = {TASK: spec.task.step} if several else {TASK: str(spec.task), ATTEMPT: str(spec.attempt)}
    return {RUN: spec.task.run, **own, STORE: spec.store}


def run_arguments(container: Container, engine: str) -> list[str]:
    """What follows ``docker`` or ``podman`` to run it, attached to its standard streams.

    It removes itself when it has ended, whether anybody watches or not.
    """
    podman = engine == PODMAN
    arguments = ["run", "--rm", "--interactive", "--name", container.name]
    # What Upshift says of the attempt; 'logs' reads it again after the engine was killed.
    arguments += ["--log-driver", "k8s-file" if podman else "json-file", "--log-opt", "max-size=16m"]
    for name, value in container.labels.items():
        arguments += ["--label", f"{name}={value}"]
    if container.user is not None:
        arguments += ["--user", container.user]
    for group in container.groups:
        arguments += ["--group-add", str(group)]
    if container.keep_id:
        arguments += ["--userns", "keep-id"]
    if podman:  # folders of this machine are used as they are, not labelled anew
        arguments += ["--security-opt", "label=disable"]
    if container.cpus is not None:
        arguments += ["--cpus", f"{container.cpus:g}"]
    if container.memory is not None:  # without swap on top
        arguments += ["--memory", f"{container.memory}b", "--memory-swap", f"{container.memory}b"]
    if container.shared_memory is not None:
        arguments += ["--shm-size", f"{container.shared_memory}b"]
    arguments += container.gpus
    if container.network is not None:
        arguments += ["--network", container.network]
    if container.hostname is not None:
        arguments += ["--hostname", container.hostname]
    for mount in container.mounts:
        arguments += ["--mount", _mount(mount)]
    for name, value in container.environment.items():
        arguments += ["--env", f"{name}={value}"]
    arguments += ["--workdir", "/", "--entrypoint", container.program, *container.more]
    return [*arguments, container.image, *container.arguments]


def sweeping(container: Container, folder: Mount) -> Container:
    """A container of the same image and user, which removes what that user has left in a folder."""
    return Container(
        name=f"{container.name}-sweep",
        image=container.image,
        program=container.program,
        arguments=("-c", _SWEEP, folder.target),
        mounts=(folder,),
        user=container.user,
        keep_id=container.keep_id,
        network="none",
    )


def _mount(mount: Mount) -> str:
    parts = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return _csv([*parts, "readonly"] if mount.read_only else parts)


def _csv(parts: Sequence[str]) -> str:
    """As the engines read it: a part with a comma or a quote is in quotes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(parts)
    return text.getvalue()


def gpus_argument(uuids: Sequence[str]) -> tuple[str, ...]:
    """``--gpus`` for exactly these devices of NVIDIA, for a Docker with the NVIDIA Container Toolkit."""
    return ("--gpus", _csv([f"device={','.join(uuids)}"]))


def cdi_arguments(names: Sequence[str]) -> tuple[str, ...]:
    """``--device`` for devices by their names of the Container Device Interface."""
    return tuple(part for name in names for part in ("--device", name))
