"""The bounds of a step process: who starts it within them, and what it does to itself to keep them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from upshift.model.spec import TaskSpec
from upshift.model.spec.hardware import Rank
from upshift.runtime import cgroups, proc

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


def detach(parent: int) -> None:
    """Make this process a session of its own, that dies with ``parent`` and inherits its orphans.

    SIGTERM ends it, also one that has come since the fork; see :func:`forking`.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)
    become_subreaper()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
    limit = cgroups.group_limit(bounds.group) if bounds.group else None
    return min(x for x in (limit, bounds.memory, host) if x is not None)


def host_facts() -> dict[str, Any]:
    """What does not change while this host is up: its memory in bytes, its name, this Python."""
    uname = os.uname()
    allowed = cgroups.own_limit()
    memory = proc.host_memory()
    return {
        "memory": memory if allowed is None else min(memory, allowed),
        "host": uname.nodename,
        "platform": f"{uname.sysname} {uname.release} {uname.machine}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "cgroup": {"cpu_count": cgroups.own_cpus(), "memory": allowed},
    }
