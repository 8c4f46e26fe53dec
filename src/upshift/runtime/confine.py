"""The bounds of a step process: who starts it within them, and what it does to itself to keep them.

A task with a memory limit gets a control group of its own, v2 or v1, where one may be made.

Sources: kernel documentation, ``admin-guide/cgroup-v2.rst`` and ``admin-guide/cgroup-v1/memory.rst``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import attrs

from upshift.model.spec import TaskSpec
from upshift.model.spec.hardware import Rank
from upshift.runtime import proc
from upshift.runtime.proc import read

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@attrs.frozen(kw_only=True)
class Confinement:
    """The bounds of a step process."""

    cpus: tuple[int, ...] | None = None  # CPUs by number; None: all that the supervisor may use
    threads: int | None = None  # size of native thread pools; None: their own default
    group: str | None = None  # folder of the cgroup to join
    memory: int | None = None  # bytes that the step may use, however that is enforced
    environment: Mapping[str, str] = attrs.field(factory=dict)  # variables to set
    rank: Rank | None = None  # which of several processes of its task it is; None: it is the only one
    # path of the supervisor's end of the pipe by which the process says what becomes of it
    ears: str | None = None

    def heard_at(self, descriptor: int) -> Confinement:
        """These bounds, for a step process that this one hears at ``descriptor``."""
        return attrs.evolve(self, ears=f"/proc/{os.getpid()}/fd/{descriptor}")


class Spawned(NamedTuple):
    """A step process that has just been started."""

    pid: int
    log: int  # descriptor to read what it prints
    seen: int  # to read what it finds at its start, and its stacks
    messages: int  # to read what becomes of it
    baseline: int  # bytes of memory that it has from its parent, and did not ask for itself


class Starter(Protocol):
    """Starts a step process, by a fork or afresh. Who has one is told when it has ended."""

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int]) -> Spawned:
        """Start it. It keeps the descriptors ``held`` open."""


def become_subreaper() -> None:
    """Inherit every orphan below this process, instead of losing it to init."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Call ``prctl(2)``."""
    if _libc is not None and _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")


def flush_c_streams() -> None:
    """Write out what C code has printed and still holds."""
    if _libc is not None:
        _libc.fflush(None)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Within, SIGTERM waits, in a process that is forked here until that calls :func:`detach`.

    It would otherwise come to a handler of this process, which means nothing in the other, and be lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_files: int | None = None


def open_more() -> None:
    """Let this process have as many files open as it may; its steps have its old limit (:func:`detach`)."""
    global _files
    _files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def files_of_steps() -> int:
    """How many files a step process may have open, unless it asks for more."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _files is None else _files


def detach(parent: int, files: int | None = None) -> None:
    """Make this process a session of its own, that dies with ``parent`` and inherits its orphans.

    SIGTERM ends it, also one that has come since the fork; see :func:`forking`. ``files`` is how many it may
    have open, where it cannot know (:func:`files_of_steps`).
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)
    become_subreaper()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_of_steps() if files is None else files, most))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def enter(bounds: Confinement) -> None:
    """Confine this process: cgroup, CPUs, environment."""
    if bounds.group is not None:
        with open(os.path.join(bounds.group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    if bounds.cpus is not None:
        os.sched_setaffinity(0, bounds.cpus)
    for name, value in bounds.environment.items():
        os.environ[name] = value


def memory_limit(bounds: Confinement, host: int) -> int:
    """Bytes of memory that this process may use, of the ``host`` bytes there are.

    The limit of its cgroup is asked of the kernel, not of who set it.
    """
    limit = group_limit(bounds.group) if bounds.group else None
    return min(x for x in (limit, bounds.memory, host) if x is not None)


def host_facts() -> dict[str, Any]:
    """What does not change while this host is up: its memory in bytes, its name, this Python."""
    uname = os.uname()
    allowed = own_limit()
    memory = proc.host_memory()
    return {
        "memory": memory if allowed is None else min(memory, allowed),
        "host": uname.nodename,
        "platform": f"{uname.sysname} {uname.release} {uname.machine}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "cgroup": {"cpu_count": own_cpus(), "memory": allowed},
    }


# -- control groups ------------------------------------------------------------------------------

MOUNTS = "/proc/self/mountinfo"
MEMBERSHIP = "/proc/self/cgroup"
UNLIMITED = 1 << 62
"""v1 shows a limit near 2^63 where there is none."""
YOUNG = 60.0
"""Seconds for which a group without processes may be about to get some."""
_OWN = re.compile(r"upshift-([0-9]+)-[0-9]+")


class MemoryGroup(Protocol):
    """A cgroup that limits memory."""

    path: Path

    def limit(self) -> int | None:
        """Bytes, as the kernel has it; None: unlimited."""

    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""

    def remove(self) -> None:
        """Kill what is left in it, and remove it."""


class _Group:
    """A group of one version of cgroups."""

    limit_file: ClassVar[str]
    events_file: ClassVar[str]
    swap_file: ClassVar[str]  # not there without swap, or without its accounting

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, limit: int) -> _Group:
        path.mkdir()
        (path / cls.limit_file).write_text(str(limit))
        with contextlib.suppress(OSError):
            (path / cls.swap_file).write_text(cls._swap(limit))
        return cls(path)

    @staticmethod
    def _swap(limit: int) -> str:
        raise NotImplementedError

    def limit(self) -> int | None:
        return _limit(self.path / self.limit_file)

    def kills(self) -> int:
        return self.counted() or 0

    def counted(self) -> int | None:
        """Like ``kills``; None: the kernel does not say, as of the root."""
        return _keyed(self.path / self.events_file, "oom_kill")

    def processes(self) -> list[int]:
        return [int(pid) for pid in (read(str(self.path / "cgroup.procs")) or "").split()]

    def remove(self) -> None:
        for _ in range(100):  # each round kills what the last one's children started meanwhile
            left = self.processes()
            if not left:
                break
            _kill(left)
        with contextlib.suppress(OSError):  # an empty group costs nothing; who makes the next one removes it
            self.path.rmdir()


class GroupV1(_Group):
    """``memory`` controller of cgroup v1."""

    limit_file = "memory.limit_in_bytes"
    events_file = "memory.oom_control"
    swap_file = "memory.memsw.limit_in_bytes"

    @staticmethod
    def _swap(limit: int) -> str:
        return str(limit)  # of memory and swap together


class GroupV2(_Group):
    """A group of cgroup v2."""

    limit_file = "memory.max"
    events_file = "memory.events"
    swap_file = "memory.swap.max"

    @staticmethod
    def _swap(limit: int) -> str:
        return "0"


_GROUPS: dict[int, type[_Group]] = {1: GroupV1, 2: GroupV2}


def create_group(name: str, limit: int) -> MemoryGroup | None:
    """A new group with this limit in bytes; None where this process may not make one."""
    place = _place()
    if place is None:
        return None
    folder, version = place
    _sweep(folder)
    try:
        return _GROUPS[version].create(folder / name, limit)
    except OSError:
        with contextlib.suppress(OSError):
            (folder / name).rmdir()
        return None


def _sweep(folder: Path) -> None:
    """Remove groups of supervisors that were killed. One with processes in it the kernel does not remove.

    A young one may be of a supervisor that is in a container, and has no such process id here.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            owner = _OWN.fullmatch(entry.name)
            if owner is not None and not os.path.exists(f"/proc/{owner[1]}"):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > YOUNG:
                        os.rmdir(entry.path)


class OwnGroup:
    """The group that this process is in, up to one that somebody else has limited: a container's, a job's."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self._groups = groups
        self._before = self._count()

    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory, since this was made."""
        return self._count() - self._before

    def _count(self) -> int:
        return sum(group.kills() for group in self._groups)


def own_limits() -> list[tuple[int, OwnGroup]]:
    """The limits in bytes on this process's memory, from the inside out, with the groups that each bounds.

    A scheduler may limit a group above the process's own, and in v1 only its own counts that it was killed.
    """
    found = []
    for version, root, path in hierarchies(read(MOUNTS) or "", read(MEMBERSHIP) or ""):
        bounded: list[_Group] = []
        for folder in (path, *path.parents):
            if not folder.is_relative_to(root):
                break
            bounded.append(_GROUPS[version](folder))
            limit = bounded[-1].limit()
            if limit is not None:
                found.append((limit, OwnGroup(bounded)))
                bounded = []
    return found


def own_group() -> OwnGroup | None:
    """The groups within the nearest limit; None: there is none that can be read."""
    return next((group for _, group in own_limits()), None)


def own_kills() -> int | None:
    """How many processes of this one's group the kernel has killed for want of memory; None: unknown."""
    counts = [
        _GROUPS[version](path).counted()
        for version, _, path in hierarchies(read(MOUNTS) or "", read(MEMBERSHIP) or "")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def own_limit() -> int | None:
    """Bytes that this process's cgroup, or one above it, allows; None: no limit."""
    return min((limit for limit, _ in own_limits()), default=None)


def own_cpus() -> float | None:
    """CPUs that this process's cgroup, or one above it, allows by quota; None: no limit."""
    quotas = []
    for version, root, path in hierarchies(read(MOUNTS) or "", read(MEMBERSHIP) or "", "cpu"):
        for folder in (path, *path.parents):
            if not folder.is_relative_to(root):
                break
            quota = _quota(folder) if version == 2 else _quota_v1(folder)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    return _share((read(str(folder / "cpu.max")) or "max").split())


def _quota_v1(folder: Path) -> float | None:
    return _share(
        [(read(str(folder / f"cpu.cfs_{name}_us")) or "-1").strip() for name in ("quota", "period")]
    )


def _share(words: list[str]) -> float | None:
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def can_limit() -> bool:
    """Whether this process may make groups that limit memory."""
    return _place() is not None


def hierarchies(mountinfo: str, membership: str, controller: str = "memory") -> list[tuple[int, Path, Path]]:
    """Where this process's memory, or CPU time, is accounted: version, root of the mount, its own group."""
    own: dict[int, str] = {}
    for line in membership.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            own[2] = group
        elif controller in controllers.split(","):
            own[1] = group
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = [*right.split(), "", "", ""][:3]
        root, mount = left.split()[3:5]
        version = (
            2 if kind == "cgroup2" else 1 if kind == "cgroup" and controller in options.split(",") else 0
        )
        if version in own:
            # Inside a container the mount's root is the container's group: paths start there.
            group = own[version]
            inside = os.path.relpath(group, root) if group.startswith(root) else group.lstrip("/")
            path = Path(mount) / inside
            found.append((version, Path(mount), path if path.is_dir() else Path(mount)))
    return found


@functools.cache
def _place() -> tuple[Path, int] | None:
    for version, _, path in hierarchies(read(MOUNTS) or "", read(MEMBERSHIP) or ""):
        if version == 1 and os.access(path, os.W_OK):
            return path, 1
        if version == 2 and _delegates_memory(path):
            return path, 2
    return None


def _delegates_memory(path: Path) -> bool:
    control = path / "cgroup.subtree_control"
    if "memory" not in (read(str(path / "cgroup.controllers")) or "").split():
        return False
    if "memory" in (read(str(control)) or "").split():
        return os.access(path, os.W_OK)
    try:
        control.write_text("+memory")
    except OSError:  # not ours, or processes live in it, and then it may have no limited children
        return False
    return True


def _limit(file: Path) -> int | None:
    text = (read(str(file)) or "max").strip()
    return None if text == "max" or int(text) >= UNLIMITED else int(text)


def _keyed(file: Path, key: str) -> int | None:
    for line in (read(str(file)) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return None


def _kill(pids: Sequence[int]) -> None:
    """SIGKILL, and wait until they have ended. Who has started them takes note of that, not this."""
    killed = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(descriptor)
            except OSError:  # of somebody else, or gone
                os.close(descriptor)
    for descriptor in killed:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        end.poll()
        os.close(descriptor)


def group_limit(folder: str) -> int | None:
    """Bytes that the group in this folder allows, as the kernel has it; None: no limit."""
    for file in (GroupV2.limit_file, GroupV1.limit_file):
        path = Path(folder) / file
        if path.exists():
            return _limit(path)
    return None
