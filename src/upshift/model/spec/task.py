"""The task contract: :class:`TaskSpec` goes out, :class:`TaskResult` comes back.

Values are named in them by an :class:`Artifact`. Both are JSON. ``version`` is the major version of the
form: a reader refuses a newer one, and ignores fields that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Union

import attrs

from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.step import StepSettings
from upshift.model.spec.hardware import Hardware, Launch, Stack
from upshift.model.spec.telemetry import Card, Checkpoints, Gap, MetricSummary

VERSION = 1


@attrs.frozen(kw_only=True)
class EntryPoint:
    """What a step process calls.

    Parameters
    ----------
    module, qualname
        Where to import it from. ``__main__`` never appears here: it is the module that its file is.
    after
        Modules that are imported before, in order, because the step may see what they do: name to file,
        relative to the project.
    payload
        The function by value (cloudpickle), where it cannot be imported.
    python
        Minor version of Python that ``payload`` needs: ``"3.11"``.
    cells
        The text of the notebook's cells that ``payload`` is from.
    """

    module: str
    qualname: str
    after: Mapping[str, str] = attrs.field(factory=dict)
    payload: Artifact | None = None
    python: str | None = None
    cells: Artifact | None = None


@attrs.frozen(kw_only=True)
class Code:
    """The user's code.

    Parameters
    ----------
    project
        Folder of the project on the machine where the run was started.
    paths
        Entries of ``sys.path``, relative to the project, in order.
    file
        The file that was run, relative to the project; None in a notebook.
    package
        Digest of the code package; None where the project itself is at hand.
    """

    project: str
    paths: tuple[str, ...] = ()
    file: str | None = None
    package: str | None = None


@attrs.frozen(kw_only=True)
class OutputSpec:
    """One output of a step.

    Parameters
    ----------
    name
        Its name.
    by_item
        Whether a list is to be saved item by item, because a step is mapped over it.
    """

    name: str
    by_item: bool = False


@attrs.frozen(kw_only=True)
class TaskId:
    """One step instance in a run. Its text is ``train``, or ``train[3]`` for a mapped step."""

    run: str
    step: str
    index: int | None = None

    def __str__(self) -> str:
        return self.step if self.index is None else f"{self.step}[{self.index}]"


INLINE_LIMIT = 2048
"""Content of at most this many bytes travels inside the record that names it."""


@attrs.frozen(kw_only=True)
class Artifact:
    """A value that was saved: content-addressed, immutable.

    Parameters
    ----------
    digest
        ``algorithm:hex`` of the content.
    serializer
        Name of the serializer that wrote the content and reads it.
    type
        The value's type, for people: ``numpy.ndarray``.
    bytes
        Size of the content, including that of files it only names.
    inline
        Base64 of the content, where it is small; else the content is a blob in the store.
    items
        Length, of a list that was saved item by item.
    identity
        Digest of what the value is, where equal values have other bytes: a function that travels by value
        has its line numbers in it. It stands for the content in keys.
    code
        Classes and functions that the content names, ``module:qualname``. They count in the key of
        whoever gets the value; see :mod:`upshift.runtime.storage.external`.
    plain
        What is in it, as :mod:`upshift.model.plain` has it, where the content itself is not valid JSON.
        For people: no key depends on it.
    """

    kind: ClassVar[str] = "artifact"

    digest: str
    serializer: str
    type: str
    bytes: int
    inline: str | None = None
    items: int | None = None
    code: tuple[str, ...] = ()
    plain: Any = attrs.field(default=None, eq=False)
    identity: str | None = None


@attrs.frozen(kw_only=True)
class Collected:
    """A list, tuple or dictionary whose items were saved each by itself.

    Parameters
    ----------
    form
        ``"list"``, ``"tuple"`` or ``"dict"``.
    items
        The items, in order.
    keys
        The keys of a dictionary, in order.
    """

    kind: ClassVar[str] = "collected"

    form: str = "list"
    items: tuple[Value, ...] = ()
    keys: tuple[str, ...] = ()


Value = Union[Artifact, Collected]
"""An input of a task."""


@attrs.frozen(kw_only=True)
class Failure:
    """Why an attempt did not complete.

    Parameters
    ----------
    reason
        One of :data:`upshift.model.settings.retry.REASONS`.
    message
        What happened, in a sentence; for a user's exception ``Type: text``.
    traceback
        The user's frames, as Python prints them.
    where
        The user's line, ``file:line``: where it happened, or else the step's ``def``. Of several processes
        only a line where one of them was.
    fix
        What to do about it.
    lost
        Digests of inputs that could not be read: whoever made them has to run again.
    memory
        Bytes of host memory that it had when it ran out of it; None: it ran out of something else.
    rank, node
        Which of several processes failed first, and the name of the host that it ran on.
    """

    reason: str
    message: str
    traceback: str | None = None
    where: str | None = None
    fix: str | None = None
    lost: tuple[str, ...] = ()
    memory: int | None = None
    rank: int | None = None
    node: str | None = None

    @property
    def in_a_line(self) -> str:
        """The first line of the message, and the place behind it, unless that is named there already."""
        line = self.message.partition("\n")[0]
        if self.where is None or re.search(rf"{re.escape(self.where)}\b", line):
            return line
        return f"{line} ({self.where})"


@attrs.frozen(kw_only=True)
class TaskSpec:
    """Everything that one attempt needs to know.

    Parameters
    ----------
    task, attempt
        What this is an attempt of; attempts count from 1.
    pipeline
        Name of the pipeline.
    entry, code, runtime
        What to call; the user's code; the digest of the runtime blob (None: the installed Upshift).
    inputs
        By parameter name.
    outputs
        In order. With several, the step returns a tuple.
    settings
        What the step was told.
    request, granted
        What this attempt asks for, which may be more than the settings say; what the backend reserved,
        where that is known before it starts.
    environment
        Environment variables of the step.
    image
        The container image, by digest: ``name@sha256:…`` in a registry, or the id that a container
        engine knows it by.
    interpreter
        Path of the Python in the image; None: ``python3`` on its PATH.
    user
        The user that the image is to run as; None: as the backend has it.
    launch
        How many processes make this one task, and how they are started; None: one.
    silence
        Seconds without a sign of life after which one of its several nodes counts as lost; None: as usual.
    target, backend
        Names of the target that it goes to, and of the backend that runs it.
    store, durability, verify
        Address of the store, what a record there has to survive, and when content is verified.
    cwd
        Working folder of the step; None: the unpacked code package.
    location
        The step's ``def``, as ``file:line``, for failures that name no line themselves.
    key
        What the result may be found under again; None: it is not reused.
    strict
        Whether it gets all that it was granted, or does not run.
    degraded
        Whether the grant is less than the request, or an input was made under such a grant.
    caught
        Why the attempts before have failed, where this one does not call the step but goes on from there.
    draws
        What the run drew from the global generators of random numbers, by their modules, in hex.
    stream
        What the task's numbers follow from beside that; None: its name.
    """

    task: TaskId
    attempt: int
    pipeline: str
    entry: EntryPoint
    code: Code
    store: str
    durability: str = "process"
    verify: str = "changed"
    target: str | None = None
    backend: str | None = None
    runtime: str | None = None
    inputs: Mapping[str, Value] = attrs.field(factory=dict)
    outputs: tuple[OutputSpec, ...] = (OutputSpec(name="output"),)
    settings: StepSettings = attrs.field(factory=StepSettings)
    request: ResourceSettings = ResourceSettings()
    granted: Hardware | None = None
    environment: Mapping[str, str] = attrs.field(factory=dict)
    image: str | None = None
    interpreter: str | None = None
    user: str | None = None
    launch: Launch | None = None
    silence: float | None = None
    cwd: str | None = None
    location: str | None = None
    key: str | None = None
    strict: bool = False
    degraded: bool = False
    caught: Failure | None = None
    draws: Mapping[str, str] = attrs.field(factory=dict)
    stream: str | None = None
    version: int = VERSION

    @property
    def store_options(self) -> dict[str, str]:
        """How its store is opened."""
        return {"durability": self.durability, "verify": self.verify}


@attrs.frozen(kw_only=True)
class TaskResult:
    """What became of one attempt. Created once, exclusively, and never changed.

    Parameters
    ----------
    task, attempt
        As in the spec.
    status
        ``"completed"``, ``"failed"`` or ``"cancelled"``.
    outputs
        By name, if it completed.
    failure
        If it did not.
    started, ended
        Seconds since the epoch.
    node
        Name of the host.
    target, backend
        As in the spec.
    image
        As in the spec: what it ran in.
    asked, granted, seen, used
        The four records.
    log_bytes
        Size of the log.
    metrics
        What it has logged, by name; points are in the store: :mod:`upshift.runtime.storage.metrics`.
    cards
        What it has to show, in order.
    gaps
        What of its log, metrics, cards or samples is not on record.
    key
        As in the spec.
    degraded
        As in the spec; or the step went on without devices that it was granted, as the user said it might.
    stacks
        Where each of several processes was when they made no progress, or were stopped.
    checkpoints
        What it has had of them; None: nothing.
    edited
        Source files of the code that were changed before it ended: it is not known which version it is
        the result of, and nobody reuses it.
    """

    task: TaskId
    attempt: int
    status: str
    outputs: Mapping[str, Artifact] = attrs.field(factory=dict)
    failure: Failure | None = None
    started: float = 0.0
    ended: float = 0.0
    node: str | None = None
    target: str | None = None
    backend: str | None = None
    image: str | None = None
    asked: Hardware | None = None
    granted: Hardware | None = None
    seen: Hardware | None = None
    used: Hardware | None = None
    log_bytes: int = 0
    metrics: Mapping[str, MetricSummary] = attrs.field(factory=dict)
    cards: tuple[Card, ...] = ()
    gaps: tuple[Gap, ...] = ()
    key: str | None = None
    degraded: bool = False
    stacks: tuple[Stack, ...] = ()
    checkpoints: Checkpoints | None = None
    edited: tuple[str, ...] = ()
    version: int = VERSION


ONCE = "once:"
"""Prefix of the key of a task that is never reused by another run, only kept when its own is resumed."""

DEBUGGED = "debugged:"
"""After :data:`ONCE`, of a task that a person steps through."""

UNCACHED = "cache=False"
"""Why a task runs that is never reused."""

CODE = "+"
"""Before the digest of the code that the inputs name; nothing follows where that code is not at hand."""


def same_work(one: str | None, other: str | None) -> bool:
    """Whether two keys are of the same work, whether or not other runs may reuse it."""
    if one is None or other is None:
        return False
    one, other = one.removeprefix(ONCE), other.removeprefix(ONCE)
    if one.endswith(CODE) or other.endswith(CODE):  # the code is that of the record: it is the same
        return same_inputs(one, other)
    return one == other


def same_inputs(one: str, other: str) -> bool:
    """Whether all but the code that the inputs name is the same."""
    first, second = (key.removeprefix(ONCE).partition(CODE)[0] for key in (one, other))
    return first == second
