"""What a step process says: lines of its log, and lines of JSON to its supervisor, each whole, in order.

The supervisor keeps it, so that nothing is lost when the step is killed a moment later. The process finds
something (:class:`Seen`), then it logs, and in the end it says what became of the call (:class:`Outcome`).
A call of ``upshift.log`` looks like

::

    {"metric":[["loss","accuracy"],⇥[81.25,120,0.231,0.91]]}

with the time of a clock that all processes of a machine share, and a tab, which no JSON text has in it,
so that the supervisor can take the names and the values apart without parsing them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from fcntl import LOCK_EX, flock
from json import dumps, loads  # a step may put something else in their place
from os import O_CLOEXEC, O_WRONLY, close, fstat, getpid
from os import open as open_descriptor
from os import write as write_descriptor
from typing import Any

import attrs

from upshift.model.spec import Artifact, Card, Checkpoints, Failure, Framework, encode
from upshift.runtime import proc

BEFORE = b'{"metric":['
BETWEEN = b",\t"
AFTER = b"]}"
"""What stands before the names of a call of ``upshift.log``, between these and its values, and after."""

LARGE = 1 << 63
"""Integers are smaller than this, in either direction; others are sent as floating-point numbers."""
FARTHEST = sys.float_info.max
"""A step is not beyond this, in either direction."""


@attrs.frozen(kw_only=True)
class Seen:
    """The first message: what the process finds of CPUs and bytes of memory."""

    cpu_count: int
    memory: int
    # how many processes its environment says that there are; None: it is the only one
    world_size: int | None = None
    # the uuid of the device that is its own among those of all processes; None: it has none
    device: str | None = None
    cpus: str | None = None  # of several processes: the CPUs by number, as the kernel lists them: ``0-3,8``


@attrs.frozen(kw_only=True)
class Outcome:
    """The last message: what became of the call."""

    outputs: Mapping[str, Artifact] = attrs.field(factory=dict)  # by name, if it returned
    failure: Failure | None = None  # if it did not
    exit_code: int | None = None  # that of the ``sys.exit()`` by which it ended; None: it did not end by that
    # bytes of memory that this process has needed at most, above what it was forked with
    peak: int | None = None
    cpu_seconds: float = 0.0  # as in :class:`~upshift.runtime.proc.Consumed`, since it was given its task
    read: int = 0
    written: int = 0
    # of several processes: the type of what this one has returned; None: that was None
    returned: str | None = None
    # of several processes: how many are in the group that this one is in; None: there is none any more
    group: int | None = None
    joined: bool = False  # of several processes: whether this one has ever been in a group

    def __attrs_post_init__(self) -> None:
        for count in (self.peak or 0, self.cpu_seconds, self.read, self.written):
            if not 0 <= count < sys.maxsize:
                raise ValueError(count)

    @property
    def consumed(self) -> proc.Consumed:
        """What the process consumed."""
        return proc.Consumed(self.cpu_seconds, self.read, self.written)


@attrs.frozen(kw_only=True)
class Diagnosis:
    """What a step's process says of a framework that sees less than was granted, and what was found out."""

    failure: Failure | None  # what the attempt ends with; None: the step goes on, because the user says so
    framework: str  # its name
    cause: str  # as in :class:`upshift.runtime.accelerators.explain.DeviceFault`
    evidence: tuple[str, ...] = ()


_KINDS = {Card: "card", Checkpoints: "checkpoint", Framework: "framework"}
HEEDS = b'{"heeds":["SIGTERM"]}'
"""A line: from now on the process sees to SIGTERM itself, and to what it has started."""
KINDS = ("outcome", "diagnosis", *_KINDS.values())
"""What a line may be about, but for what is logged: that is taken as it is."""
PIPE_BUF = 4096
"""Bytes that ``write(2)`` puts into a pipe as a whole, whoever else writes to it (``limits.h`` of Linux)."""
LONGEST = 1 << 26
"""Bytes of a line, at most; those of Upshift are far shorter. What is longer is left out."""


class Channel:
    """The step's end. A process without a supervisor has none: what it says then goes nowhere.

    Threads of the step write to the same pipe, and processes that it has forked. Only the outcome may be
    a long line; it is written under a lock, which those processes take for each of theirs.

    What the step does to its process does not end it: the functions that it needs are those of before, and
    where the step has closed the descriptor, which may be that of a file of its own by now, the pipe is
    opened again.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._ears: str | None = None
        self._identity: tuple[int, int] | None = None
        self._pid = 0
        self._writing = False
        self._guard = threading.RLock()

    def __bool__(self) -> bool:
        """Whether a supervisor listens."""
        return self._descriptor >= 0

    def open(self, descriptor: int, ears: str | None = None) -> None:
        """From now on, say it there; ``ears`` is the other end of the pipe, as a path."""
        self._descriptor = descriptor
        self._ears = ears
        self._identity = _identity(descriptor)
        self._pid = getpid()

    def close(self) -> None:
        """Say nothing any more."""
        self._descriptor = -1

    def tell(self, message: Card | Checkpoints | Framework) -> None:
        """Say one thing. It waits until the supervisor has room for it."""
        self.send(_KINDS[type(message)], message)

    def send(self, kind: str, message: attrs.AttrsInstance) -> None:
        """Say one thing of a kind that the supervisor understands."""
        self.write(dumps({kind: encode(message)}).encode() + b"\n")

    def write(self, line: bytes) -> None:
        """Say one thing in the form that it has on the way: ``{KIND: CONTENT}``, as a line of JSON."""
        with self._guard:
            if self._descriptor < 0 or self._writing:  # the latter: in a signal handler, within a line
                return
            self._writing = True
            try:
                if _identity(self._descriptor) != self._identity:
                    self._open_again()
                if len(line) <= PIPE_BUF and getpid() == self._pid:
                    write_descriptor(self._descriptor, line)
                else:
                    self._write_locked(line)
            finally:
                self._writing = False

    def _write_locked(self, line: bytes) -> None:
        pipe = self._descriptor
        with contextlib.suppress(OSError):  # no descriptor is left, or no /proc is seen
            # A lock is of an open file, which a fork shares: opened again, the same pipe is another one.
            pipe = open_descriptor(f"/proc/self/fd/{self._descriptor}", O_WRONLY | O_CLOEXEC)
            flock(pipe, LOCK_EX)
        try:
            while line:
                line = line[write_descriptor(pipe, line) :]
        finally:
            if pipe != self._descriptor:
                close(pipe)

    def _open_again(self) -> None:
        descriptor = open_descriptor(self._ears or "", O_WRONLY | O_CLOEXEC)
        if _identity(descriptor) != self._identity:  # the supervisor listens no more
            close(descriptor)
            raise BrokenPipeError
        self._descriptor = descriptor

    def forked(self) -> None:
        """This process is a fork; a thread that it does not have may have been writing."""
        self._guard = threading.RLock()
        self._writing = False


def _identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor is open for; None: it is closed."""
    try:
        status = fstat(descriptor)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


channel = Channel()
"""That of this process."""
os.register_at_fork(after_in_child=channel.forked)


class Lines:
    """The supervisor's end: what was read so far, line by line."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._endless = False

    def take(self, data: bytes) -> list[bytes]:
        """The lines that end in this; the end of one that was too long is none."""
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > LONGEST:
                self._rest.clear()
                self._endless = True
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        if self._endless:
            self._endless = False
            del lines[0]
        return lines


def understood(line: bytes) -> list[tuple[str, Any]]:
    """Kind and content of a line; nothing, if it is none of these: a step may write to any descriptor."""
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        return [(kind, content) for kind, content in loads(line).items() if kind in KINDS]
    return []


# -- the log -------------------------------------------------------------------------------------


def own_streams() -> None:
    """Let ``sys.stdout`` and ``sys.stderr`` write to descriptors 1 and 2, line by line."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            usable = stream is getattr(sys, f"__{name}__") and stream.fileno() == descriptor
        except (OSError, ValueError, AttributeError):
            usable = False
        if usable:
            stream.reconfigure(line_buffering=True, write_through=False)
        else:  # a notebook's, a test runner's, or none
            stream = open(  # noqa: SIM115
                descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if sys.stdin is None or sys.stdin is not sys.__stdin__:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        setattr(sys, "__stdin__", sys.stdin)  # noqa: B010


def tell(remarks: Iterable[str]) -> None:
    """Write remarks to the step's log.

    No step fails for one: neither where it has closed or replaced ``sys.stderr``, nor where a remark comes
    from looking at values whose own methods raise.
    """
    with contextlib.suppress(Exception):
        for remark in remarks:
            sys.stderr.write(f"upshift: {remark}\n")
