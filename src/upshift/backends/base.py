"""What Upshift needs from a place where tasks run.

A backend carries *one command with a request, in an image, on N nodes*. The command is the
supervisor (``python -m upshift.runtime SPEC``); the result of the task comes back through the
store, not through the backend. So a backend only has to declare what it can honour, start jobs,
report when they run and when they end, stop them, and find them again after the engine was killed.
A backend passes ``tests/contract``; :mod:`upshift.backends.fake` is the smallest one there is.

A tool that runs whole pipelines is a :class:`~upshift.backends.scheduler.Orchestrator`. Its backend has it
as the attribute ``orchestrator``, and capabilities that say ``steps=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Union

import attrs

from upshift.errors import BackendError
from upshift.model.configuration import Target
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Device, Hardware, Launch, Shortfall
from upshift.model.spec.task import TaskSpec
from upshift.model.spec.telemetry import MetricValue

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination

DEVICES = frozenset({"gpu_count", "accelerator", "gpu_memory", "gpu_vendor"})
"""The fields of a request that are about accelerators: what a backend honours of them is all or none."""

INLINE = "inline"
"""The name of the backend that is the engine's own process: :mod:`upshift.backends.inline`."""

Handle = str
"""A backend's own name for a job. It is recorded, and given back to :meth:`Backend.attach`."""


@attrs.frozen(kw_only=True)
class Capabilities:
    """What a target can do, as data: checked before a run, and shown in the docs' support matrix.

    Parameters
    ----------
    fields
        Fields of :class:`~upshift.config.ResourceSettings` that it honours.
    images
        Whether a step runs in the image that it asks for.
    environments
        Whether a step without an image runs in the Python environment that it asks for: nodes see those
        of this machine.
    remote
        Whether tasks run on other machines, so that code and runtime must be shipped.
    strict
        Whether a request that it cannot honour in full is refused unless the user says otherwise.
    secrets
        Schemes of sources, such as ``"env"``, whose values it brings to a step's supervisor: as
        environment variables, or in its own way. It stores them nowhere.
    buckets
        Whether its nodes work with a store in a bucket by themselves, and not through this machine's copy.
    steps
        Whether it takes single steps; else its tool runs whole pipelines, as its ``orchestrator``
        (:mod:`upshift.backends.scheduler`).
    """

    fields: frozenset[str]
    secrets: frozenset[str] = frozenset()
    images: bool = False
    environments: bool = False
    remote: bool = True
    strict: bool = True
    buckets: bool = False
    steps: bool = True


@attrs.frozen(kw_only=True)
class Capacity:
    """What runs on a target at once.

    Parameters
    ----------
    hardware
        What jobs share; None: the target queues them itself.
    jobs
        How many jobs it takes; None: any number.
    """

    hardware: Hardware | None = None
    jobs: int | None = None


@attrs.frozen(kw_only=True)
class Ask:
    """The whole request of a step to a target.

    Parameters
    ----------
    request
        The hardware.
    timeout
        Seconds that it may run; None: any number.
    launch
        Its processes, where there are several.
    image
        What it says of its image; None: nothing.
    secrets
        Sources of its secrets, by variable.
    settings
        What it says for this backend alone: the fields of ``settings={"slurm": …}``.
    avoid
        Of a retry on several nodes: the names of nodes that were lost in earlier attempts. What the target
        has is looked at again then. None: nothing has been tried yet.
    """

    request: ResourceSettings = ResourceSettings()
    timeout: float | None = None
    launch: Launch | None = None
    image: DockerSettings | None = None
    secrets: Mapping[str, str] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    avoid: frozenset[str] | None = None


@attrs.frozen(kw_only=True)
class Offer:
    """What a step gets on a target.

    Parameters
    ----------
    granted
        What would be reserved; None where nothing can be.
    alternatives
        Accelerators that would do instead of the granted ones, in order of preference. The backend
        chooses when the task starts.
    shortfalls
        Where that is less than the request. A strict run is refused for any; else each is shown in
        a line and recorded.
    """

    granted: Hardware | None
    alternatives: tuple[tuple[Device, ...], ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()


@attrs.frozen(kw_only=True)
class Finding:
    """The result of one check of a target, for people to read.

    Parameters
    ----------
    name
        What was looked at: ``"access"``, ``"queue"``, ``"devices"``.
    text
        How it is.
    status
        ``"problem"``: no step would run there. ``"warning"``: it is worth knowing.
    remedy
        What to do about it.
    """

    name: str
    text: str
    status: Literal["ok", "warning", "problem"] = "ok"
    remedy: str | None = None


@attrs.frozen(kw_only=True)
class Job:
    """One attempt, to be handed to a supervisor.

    Parameters
    ----------
    spec
        The task contract.
    spec_path
        Where it lies in the store, relative to the store's address.
    """

    spec: TaskSpec
    spec_path: str


@attrs.frozen(kw_only=True)
class Waiting:
    """The job has not started, for the reason ``why``; ``hopeless``: as things are, it never will."""

    handle: Handle
    why: str
    hopeless: bool = False


@attrs.frozen(kw_only=True)
class Started:
    """The supervisor has started."""

    handle: Handle
    node: str | None = None


@attrs.frozen(kw_only=True)
class LogGrew:
    """The log of the attempt, in the store, has at least this many bytes now."""

    handle: Handle
    size: int


@attrs.frozen(kw_only=True)
class Logged:
    """Current values of the attempt's metrics, at its own step count; sent from time to time.

    A name says which of several processes has logged the value, where that is not rank 0: ``loss (rank 2)``.
    """

    handle: Handle
    values: Mapping[str, MetricValue]
    step: float | None = None


@attrs.frozen(kw_only=True)
class Noticed:
    """A message for the user that the log cannot hold, because the log cannot be written."""

    handle: Handle
    text: str


@attrs.frozen(kw_only=True)
class Ended:
    """The job is over. Processes may still be ending only if the step completed.

    Parameters
    ----------
    handle
        The job.
    reason
        Why there may be no result: one of the causes of failure, from the backend's own status.
        The engine believes a result in the store before this.
    message
        The backend's own words.
    node
        The name of the node that was lost, of several.
    """

    handle: Handle
    reason: str | None = None
    message: str | None = None
    node: str | None = None


Event = Union[Waiting, Started, LogGrew, Logged, Noticed, Ended]
Sink = Callable[[Event], None]
"""Takes an event from any thread, at once."""


class Backend(Protocol):
    """One target where tasks run. Every call returns soon; later events arrive through the sink."""

    name: ClassVar[str]
    capabilities: Capabilities
    """Of this target. That of the class is what the backend can do at most, whatever a target's options."""

    def capacity(self) -> Capacity | None:
        """How much can run at once; None if the backend queues any number of jobs itself.

        Asked for once the requests of a run have had their offers.
        """

    def offer(self, ask: Ask) -> Offer:
        """The hardware that a step with this request would get, and what it would lack."""

    def findings(self) -> Iterator[Finding]:
        """The current state of the target: access first, then its resources. Changes nothing.

        Raises
        ------
        BackendError, RequestRefused
            It cannot be reached, or takes no job with the target's options.
        """

    def destination(self) -> Destination | None:
        """The registry and platform for images; None if the backend runs no images.

        Raises
        ------
        BackendError
            The infrastructure cannot be reached.
        """

    def scripts(self, jobs: Sequence[Job]) -> Sequence[str] | None:
        """The text that would be submitted for these jobs, for people to read; None if there is none.

        Nothing is submitted, nor is anything of a job in the store yet.
        """

    def submit(self, jobs: Sequence[Job]) -> Sequence[Handle | BackendError]:
        """Start jobs; returns a handle or an error for each."""

    def attach(self, jobs: Mapping[Handle, Job]) -> Mapping[Handle, Ended | None]:
        """Watch jobs that an earlier engine submitted.

        Returns
        -------
        dict
            How each ended of which nothing runs, nor ever will, as far as that is known. None: it is
            watched, and events follow, at the latest ``Ended``.

        Raises
        ------
        BackendError
            The infrastructure cannot be reached.
        """

    def find(self, jobs: Sequence[Job]) -> Sequence[Handle | None]:
        """Look for jobs whose handles were not recorded: the engine was killed while it submitted them.

        Returns
        -------
        list
            What :meth:`attach` takes. None: nothing of this task and attempt is known.

        Raises
        ------
        BackendError
            The infrastructure cannot be reached.
        """

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Stop jobs: SIGTERM, and ``grace`` seconds later SIGKILL. ``Ended`` follows."""

    def close(self) -> None:
        """Close the connection. Running jobs continue, and can be attached to later."""


class Provider(Protocol):
    """Opens a backend for a target: the entry point that a package registers under ``upshift.backends``."""

    def __call__(self, target: Target, *, store: str, sink: Sink) -> Backend:
        """Open the backend.

        Raises
        ------
        ConfigError
            An option of the target means nothing to it.
        MissingExtra
            A package that it needs is not installed.
        """


def secrets_of(spec: TaskSpec) -> Mapping[str, str]:
    """The values of a step's secrets by variable, as read on this machine, without those that its node reads.

    Raises
    ------
    BackendError
        One of them has gone since the run began.
    """
    from upshift.errors import RequestRefused
    from upshift.model.settings.secrets import at_node, read_secrets

    try:
        here = at_node(spec.settings.secret_sources, there=False)
        return read_secrets(here, project=spec.code.project)
    except RequestRefused as error:
        raise BackendError(error.what, fix=error.fix) from None
