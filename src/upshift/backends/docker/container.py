"""A container: what the command line of Docker or Podman is told of it, and its folders of this machine.

::

    UPSHIFT_HOME/containers/NAME       /upshift             home, scratch, code: this attempt's own
                           NAME/tmp    /tmp
    UPSHIFT_HOME/code/RUNTIME          /upshift/runtime     shared by all, to be read only
    the store                          the same path
    mounts of the target               as it says

So nothing that a step leaves in its home, in /tmp or beside its code takes memory, stays, or meets another
step. The own folder of a container that serves several attempts is emptied after each, and its file
``serves`` names the one at work. An own folder is locked by the engine and by the supervisor in the
container; one that nobody has locked is left over.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import attrs

from upshift.errors import BackendError
from upshift.images.containers.engine import PODMAN
from upshift.model.configuration import home
from upshift.model.spec import TaskSpec
from upshift.runtime.storage import home_folders

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


INSIDE = "/upshift"
"""``UPSHIFT_HOME`` in the container."""
RUNTIME = f"{INSIDE}/runtime"
HOME = f"{INSIDE}/home"
TEMPORARY = "/tmp"
PARTS = ("home", "tmp", "code", "runtime")
"""The folders in an own folder."""
SAID, SERVES = "said", "serves"
"""Files in it: what the engine's command complains of, and the attempt that a container serves now."""


class OwnFolder:
    """The own folder of one container, from before its start until it is gone.

    Raises
    ------
    BackendError
        It cannot be made.
    """

    def __init__(self, name: str) -> None:
        self.path = containers_folder() / name
        self._kept = {self.path / part for part in (*PARTS, SAID)}
        self._lock = -1
        try:
            self._lock = home_folders.locked(str(self.path))
            for part in PARTS:
                (self.path / part).mkdir(exist_ok=True)
            self._open()
        except OSError as error:
            self.remove()
            raise BackendError(
                f"the folder of a container cannot be made: {self.path}",
                why=error.strerror,
                fix="Set UPSHIFT_HOME to a folder that can be written, on a disk with enough room.",
            ) from None

    @property
    def said(self) -> Path:
        """What the engine's command complains of."""
        return self.path / SAID

    @property
    def code(self) -> Path:
        """Where its copy of the code package goes, for a step finds it there and may write beside it."""
        return self.path / "code"

    @property
    def mount(self) -> Mount:
        """The mount of this folder."""
        return Mount(source=str(self.path), target=INSIDE)

    def mounts(
        self,
        store: str,  # its folder
        runtime: Path,  # its folder
        others: Mapping[str, str],  # paths in the container, each with what is to be there
    ) -> tuple[Mount, ...]:
        """All that the container has of this machine, where it is to be mounted made ready."""
        mounts = [
            self.mount,
            Mount(source=str(self.path / "tmp"), target=TEMPORARY),
            Mount(source=str(runtime), target=RUNTIME, read_only=True),
            Mount(source=os.path.realpath(store), target=store),
            *(Mount(source=os.path.realpath(os.path.expanduser(o)), target=i) for i, o in others.items()),
        ]
        for mount in mounts:
            for inside, part in ((TEMPORARY, "tmp"), (INSIDE, "")):
                if Path(mount.target).is_relative_to(inside):
                    point = self.path / part / Path(mount.target).relative_to(inside)
                    self._kept |= {point, *point.parents}
                    break
            # What the engine has to make in a folder of ours, it would make as root.
            if Path(mount.target).is_relative_to(TEMPORARY) and mount.target != TEMPORARY:
                point = self.path / "tmp" / Path(mount.target).relative_to(TEMPORARY)
                if os.path.isdir(mount.source):
                    point.mkdir(parents=True, exist_ok=True)
                else:
                    point.parent.mkdir(parents=True, exist_ok=True)
                    point.touch()
                for folder in point.relative_to(self.path / "tmp").parents[:-1]:  # whatever the umask
                    (self.path / "tmp" / folder).chmod(0o755)
        return tuple(mounts)

    def serve(self, attempt: str | None) -> None:
        """Note whose it is now, for :func:`serving`; None: nobody's.

        Raises
        ------
        OSError
            It cannot be noted.
        """
        if attempt is not None:
            (self.path / SERVES).write_text(attempt)
        else:
            (self.path / SERVES).unlink(missing_ok=True)

    def clear(self) -> bool:
        """Make it as it was, for the next attempt. False: that cannot be."""
        try:
            return _cleared(self.path, self._kept) and self._open()
        except OSError:
            return False

    def _open(self) -> bool:
        for part in ("", "home", "tmp"):  # whoever the image runs as
            (self.path / part).chmod(0o1777)
        return True

    def remove(self) -> bool:
        """The container is gone. False: it has left something there that is another user's."""
        self.leave()
        return home_folders.remove(str(self.path))

    def leave(self) -> None:
        """The container goes on, for another engine to watch."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def containers_folder() -> Path:
    """Where all of them are."""
    return home() / "containers"


def serving(attempt: str) -> str | None:
    """The container that serves this attempt, among those that serve several; None: there is none."""
    for note in containers_folder().glob(f"*/{SERVES}"):
        with contextlib.suppress(OSError):  # it is gone
            if note.read_text() == attempt:
                return note.parent.name
    return None


def _cleared(folder: Path, kept: Collection[Path]) -> bool:
    """Remove what is in a folder and not to be kept. False: it cannot be removed, or was replaced."""
    folder.chmod(0o755)
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if path not in kept:
            if not is_folder:
                path.unlink()
            elif not home_folders.remove(entry.path):
                return False
        elif entry.is_symlink() or (is_folder and not _cleared(path, kept)):
            return False
    return True


def sweep() -> None:
    """Remove those of containers that are gone with everybody who watched them."""
    for folder in home_folders.left_over(containers_folder()):
        home_folders.remove(folder)
