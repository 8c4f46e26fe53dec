"""The forms of what a step process says to its supervisor, for both of them.

It finds something, then the step logs, and in the end it says what became of the call. A call of
``upshift.log`` looks like

::

    {"metric":[["loss","accuracy"],⇥[81.25,120,0.231,0.91]]}

with the time of a clock that all processes of a machine share, and a tab, which no JSON text has in it,
so that the supervisor can take the names and the values apart without parsing them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import attrs

from upshift.model.spec import Artifact, Failure
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
        """What was consumed."""
        return proc.Consumed(self.cpu_seconds, self.read, self.written)


@attrs.frozen(kw_only=True)
class Diagnosis:
    """What a step's process says of a framework that sees less than was granted, and what was found out."""

    failure: Failure | None  # what the attempt ends with; None: the step goes on, because the user says so
    framework: str  # its name
    cause: str  # as in :class:`upshift.runtime.accelerators.explain.Finding`
    evidence: tuple[str, ...] = ()
