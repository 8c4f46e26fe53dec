"""What one more scheduler, or one more tool that runs whole pipelines, has to be, and the words they speak.

A :class:`Cluster` takes jobs; :class:`~upshift.backends.cluster.ClusterBackend` does the rest. An
:class:`Orchestrator` walks the graph itself, and its pods record the result of each task; what it takes are
documents, which people read as YAML.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from upshift.backends.base import Ask, Finding, Offer
from upshift.errors import UpshiftError
from upshift.model.spec import Hardware, TaskSpec


class NotNow(Exception):
    """The scheduler does not answer, or takes no more jobs for now: to be tried again. Says why."""


class Full(NotNow):
    """It takes no more jobs, or not as many at once: until some have ended."""


@attrs.frozen(kw_only=True)
class State:
    """What a scheduler knows of a job."""

    phase: str  # "pending", "running" or "ended"
    why: str | None = None  # what a pending job waits for, in the scheduler's words
    hopeless: bool = False  # whether it waits for ever
    reason: str | None = None  # of one that ended: a cause of failure; None: it ended by itself
    message: str | None = None
    vague: bool = False  # whether only Cluster.words says how it ended
    node: str | None = None


@attrs.frozen(kw_only=True)
class Reach:
    """How a node gets its worker: the runtime, and the store.

    From a folder that is there under the same path as here, with the interpreter of the run; or by the
    bootstrap (:mod:`upshift.code.bootstrap`), which needs nothing but a Python and the place of the store.
    Where that is a bucket, it is always the bootstrap.
    """

    python: str | None = None  # the interpreter there; None: that of the run
    home: str | None = None  # a folder of the node's own, such as an emptyDir; None: one in its /tmp
    store: str | None = None  # where nodes have a store that is a folder; None: under its own path
    bootstrap: bool = False  # whether nodes see no more of this machine than that folder


@attrs.frozen(kw_only=True)
class Launch:
    """What is to be started: one attempt, as the rendering of a job knows it."""

    name: str  # the job's, which follows from the attempt
    comment: str  # what it is, for people
    # Jobs differ in the last two words only: the runtime and the spec. Engines differ in their package, which
    # stands before -m, and in the last word.
    command: tuple[str, ...]
    granted: Hardware
    settings: Mapping[str, Any]  # what the step was told for this backend, checked
    timeout: float | None = None  # seconds that the step may take
    grace: float = 0.0  # and those that it is given to end
    secrets: Mapping[str, str] = attrs.field(factory=dict)  # sources by variable that the node reads
    output: str | None = None  # the file for what is printed before the supervisor keeps a log
    image: str | None = None  # that of the step
    user: str | None = None  # as whom the image runs
    environment: Mapping[str, str] = attrs.field(factory=dict)  # variables of the worker; no secrets
    # of an array the numbers of its elements: each has its own as a further argument of its command, and
    # before the ending of its output
    elements: tuple[int, ...] = ()


class Cluster(Protocol):
    """A scheduler."""

    title: str
    """What people call it."""
    seat: Mapping[str, str]
    """Variables of :mod:`upshift.runtime.launch.seats` that tell each supervisor its node, of several."""

    noise: re.Pattern[str]
    """Matches lines that the scheduler itself adds to a job's output while it ends the job's processes."""
    signals: bool
    """Whether ``stop`` reaches supervisors. If not, records in the store tell them, and an attempt that has
    not begun is given up."""

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What a step gets, as far as that is certain before it is submitted.

        Its settings are those of the target and its own, of which its own count.
        """

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """How it is now, for jobs with the target's settings: access, queue, devices. Raises ``NotNow``."""

    def render(self, launch: Launch) -> str:
        """The script or manifest of a job; pure."""

    def submit(self, script: str, environment: Mapping[str, str]) -> str:
        """Give a job to the scheduler, with these variables; gives its id.

        Beside those of its launch, these are secret.

        Raises
        ------
        BackendError
            It is refused.
        NotNow
            It may be taken later, and may have been taken: it is looked for by its name before that.
        """

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """How these jobs are; of one that is not known any more, nothing. Raises ``NotNow``."""

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """The ids of jobs of these names, in whatever state they are. Raises ``NotNow``."""

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """Withdraw what waits, and tell supervisors to stop, with the grace of their spec; or kill them.

        One that sends no ``signals`` leaves those that run alone unless they are to be killed. Raises
        ``NotNow``.
        """

    def words(self, id: str) -> str | None:
        """What the scheduler has to say of a job that ended without a word. Raises ``NotNow``."""


class Arrays(Protocol):
    """A scheduler that knows arrays. Of array ``ID``, element ``N`` has the id ``ID_N``."""

    @property
    def largest(self) -> int:
        """Elements are numbered below this."""

    dense: bool
    """Whether they are numbered from 0 on, without a gap."""

    def share(self, launch: Launch) -> float:
        """Seconds for which an element may begin further tasks without being short of time for them."""

    def withdraw(self, ids: Collection[str]) -> None:
        """Take back elements that wait, or have started and will run nothing. Raises ``NotNow``."""


_ODD = re.compile(r"[^a-zA-Z0-9_.-]+")
_LONGEST = 40


def nodes_of(spec: TaskSpec) -> int:
    """How many nodes an attempt has."""
    return (spec.granted.nodes if spec.granted is not None else None) or 1


def name_of(spec: TaskSpec) -> str:
    """The name of a job, which follows from its attempt and is no other's."""
    index = "" if spec.task.index is None else f"-{spec.task.index}"
    text = f"{spec.store}\0{spec.task.run}\0{spec.task.step}\0{spec.task.index}\0{spec.attempt}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{_ODD.sub('-', spec.task.step)[:_LONGEST]}{index}-{digest}"


def words_of(error: Exception) -> str:
    """The message of an error in one line."""
    if isinstance(error, NotNow):
        return str(error)
    return error.in_short if isinstance(error, UpshiftError) else f"{type(error).__name__}: {error}"


Document = Mapping[str, Any]
"""A pipeline in the form of the tool, or a part of it, as plain tables."""


class Gone(Exception):
    """The tool knows no run of this id."""


@attrs.frozen(kw_only=True)
class Standing:
    """The state of a run in the tool."""

    phase: str  # "pending", "running", "completed", "failed" or "cancelled"
    message: str | None = None  # why it failed, in the tool's words

    @property
    def over(self) -> bool:
        """Whether nothing more will run."""
        return self.phase not in ("pending", "running")


class Orchestrator(Protocol):
    """A tool that runs whole pipelines.

    Every call may raise ``BackendError`` (it refuses) and ``NotNow`` (it does not answer).
    """

    title: str
    """What people call it."""

    def confirm(self) -> None:
        """See that it can be reached and takes runs of this target."""

    def submit(self, name: str, documents: Sequence[Document], *, description: str) -> str:
        """Have a pipeline run, unless one of this name does already; gives the id of the run."""

    def standing(self, run: str) -> Standing:
        """How a run is now. Raises ``Gone``."""

    def words(self, run: str) -> Sequence[tuple[str, str]]:
        """Its messages about tasks whose pods wait or never started: name there, message."""

    def stop(self, run: str) -> None:
        """End a run; pods are told to. Raises ``Gone``."""

    def retry(self, run: str) -> None:
        """Continue a run that has ended from its completed tasks. Raises ``Gone``."""

    def link(self, run: str) -> str | None:
        """Where people look at a run."""

    def close(self) -> None:
        """Close the connection."""


_OTHERWISE = ("yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML 1.1 takes for something else than text."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON has as it is, and YAML has not, or takes for the end of a line."""


def yaml_of(table: Mapping[str, Any]) -> str:
    """A document as text; what is neither a table nor several lines of text is JSON, a part of YAML."""
    return "".join(_lines(table, ""))


def _lines(table: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        plain = re.fullmatch(r"[A-Za-z_][\w-]*", key) and key.lower() not in _OTHERWISE
        name = key if plain else _json(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:\n"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, str) and _is_block(value):
            yield f"{indent}{name}: |\n"
            yield from (f"{indent}  {line}\n" for line in value[:-1].split("\n"))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{indent}{name}: {_json(list(value))}\n"
        else:
            yield f"{indent}{name}: {_json(value)}\n"


def _is_block(text: str) -> bool:
    """Whether lines of text may stand as they are; at their first YAML sees how far all are indented."""
    lines = text.replace("\t", " ").split("\n")
    plain = lines[0][:1].strip() and lines[-1] == "" and lines[-2:-1] != [""]
    return bool(plain) and all(line.isprintable() for line in lines)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
