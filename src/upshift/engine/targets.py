"""The targets of a run, and what its steps get there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.base import Ask, Backend, Ended, Event, Offer
from upshift.backends.registry import open_backend as open_registered
from upshift.engine.attempts import LogReader
from upshift.engine.offers import missing_launcher, offered
from upshift.engine.reuse import Standard
from upshift.engine.schedule import Demand, Queue, Room
from upshift.engine.tasks import TaskState
from upshift.errors import BackendError, ConfigError, MissingExtra, NotFound, RequestRefused, UpshiftError
from upshift.model.configuration import Configuration, Target
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Hardware, Shortfall
from upshift.model.spec.launch import Launch
from upshift.model.spec.task import Failure, TaskId, TaskSpec

OpenBackend = Callable[..., Backend]
"""As :func:`upshift.backends.registry.open_backend`."""


class OpenTarget:
    """One target with its open backend, what waits for it and what runs on it."""

    def __init__(
        self,
        target: Target,
        *,
        store: str,
        inbox: SimpleQueue[Any],
        open_backend: OpenBackend,
        others: bool = False,
    ) -> None:
        self.target = target
        self.store = store
        self.others = others  # whether there are other targets to choose
        self.backend: Backend = open_backend(target, store=store, sink=self._receive)
        self.jobs: dict[str, AttemptState] = {}
        self._inbox = inbox

    @cached_property
    def queue(self) -> Queue:
        """What waits here; made when something does, and the offers are known."""
        return Queue(Room(self.backend.capacity()))

    def _receive(self, event: Event) -> None:
        # Handles are unique within a backend only.
        self._inbox.put((self, event))


@attrs.define(eq=False, repr=False)
class AttemptState:
    """A job that a backend has."""

    task: TaskState | None  # it waits for this; None: no task has asked yet for a job of an earlier engine
    spec: TaskSpec
    place: OpenTarget
    handle: str  # the backend's name for it
    demand: Demand  # the room it takes up
    log: LogReader  # how far it has been shown
    waits: bool = False  # the backend holds it back for want of accelerators: it takes up no other room then
    why: str | None = None  # what it waits for, in words
    started: float | None = None  # seconds since the epoch
    node: str | None = None  # where the supervisor runs
    cancelled: bool = False  # whether this engine has stopped it
    given_up: Failure | None = None  # why this engine does not wait for it any more
    overdue: bool = False  # whether it is noted when that will be so
    ended: Ended | None = None  # how the backend says that it ended

    def wait_for_devices(self, waits: bool) -> None:
        """What waits for devices leaves CPUs and memory to tasks that do not.

        Once it has them it starts, whatever has taken its place meanwhile.
        """
        if self.waits == waits:
            return
        self.waits = waits
        room = self.place.queue.room
        if waits:
            room.give_back(self.demand.host)
        else:
            room.take(self.demand.host)

    @property
    def is_to_begin(self) -> bool:
        """Whether the attempt has not started, and the engine still waits for it."""
        return self.started is None and self.given_up is None and self.ended is None

    def too_late(self, why: str) -> Failure:
        """The failure of an attempt that waited too long to start."""
        name, within = self.place.target.name, self.place.target.start_within
        return Failure(
            reason="infrastructure",
            message=why,
            where=self.spec.location,
            fix="Request less, or use another target. "
            f'Target {name!r} lets a task wait for start_within = "{within}".',
        )

    @property
    def task_id(self) -> TaskId:
        """The task of the attempt."""
        return self.spec.task

    @property
    def number(self) -> int:
        """The number of the attempt."""
        return self.spec.attempt


def cancel(
    attempts: Iterable[AttemptState], grace: float | None
) -> Iterator[tuple[list[AttemptState], BackendError]]:
    """Have backends stop attempts, each with its own grace period where ``grace`` is None; what fails."""
    alike: dict[tuple[OpenTarget, float], list[AttemptState]] = {}
    for attempt in attempts:
        attempt.cancelled = True
        own = attempt.spec.settings.grace_period if grace is None else grace
        alike.setdefault((attempt.place, own), []).append(attempt)
    for (place, own), some in alike.items():
        try:
            place.backend.cancel([attempt.handle for attempt in some], grace=own)
        except BackendError as error:
            yield some, error


@attrs.frozen(kw_only=True)
class GrantPlan:
    """What a step gets."""

    place: OpenTarget  # where it runs
    granted: Hardware  # what it is granted there
    demand: Demand  # what it takes up there
    strict: bool  # whether it gets all that it asks for, or does not run
    shortfalls: tuple[Shortfall, ...] = ()  # what it does not get
    launch: Launch | None = None  # how many processes it has there, and how they are started; None: one
    remarks: tuple[str, ...] = ()  # what is worth a word though it gets what it asks for
    request: ResourceSettings | None = None  # what it asks for, where that is not what its definition says
    avoid: frozenset[str] | None = None  # nodes that were lost in earlier attempts; None: this is the first

    @property
    def degraded(self) -> bool:
        """Whether the step gets less than it asks for."""
        return bool(self.shortfalls)

    @property
    def standard(self) -> Standard:
        """By what its earlier results are judged."""
        return Standard.of(self.strict, self.granted, self.shortfalls)


def open_targets(
    graph: Graph,
    configuration: Configuration,
    target: str | None,
    *,
    inbox: SimpleQueue[Any],
    open_backend: OpenBackend = open_registered,
) -> dict[str | None, OpenTarget]:
    """Open the backend of each target that the graph's steps name; the run's own is under None."""
    own = configuration.target(target)
    others = own.name != "local" or bool(configuration.targets.keys() - {"local"})
    store = configuration.store_address(own)
    places: dict[str | None, OpenTarget] = {}
    try:
        places[None] = OpenTarget(own, store=store, inbox=inbox, open_backend=open_backend, others=others)
        by_target = {own.name: places[None]}
        used = set(graph.used)
        for name, definition in graph.steps.items():
            if name not in used or definition.settings.on in places:
                continue
            other = _target_of(name, definition, configuration)
            if other.name not in by_target:
                if configuration.store_address(other) != store:
                    raise ConfigError(
                        f"step {name} runs on target {other.name!r}, whose store is not that of {own.name!r}",
                        where=definition.location,
                        why="The steps of a run hand each other their results through one store.",
                        fix="Give both targets the same store.",
                    )
                try:
                    by_target[other.name] = OpenTarget(
                        other, store=store, inbox=inbox, open_backend=open_backend
                    )
                except UpshiftError as error:
                    raise _of_step(error, name, definition) from None
            places[definition.settings.on] = by_target[other.name]
    except BaseException:
        close_targets(places.values())
        raise
    return places


def close_targets(places: Iterable[OpenTarget]) -> None:
    """Close each backend once."""
    for place in dict.fromkeys(places):
        place.backend.close()


def _target_of(name: str, definition: StepDefinition, configuration: Configuration) -> Target:
    try:
        return configuration.target(definition.settings.on)
    except NotFound as error:
        error.what = f"step {name}: {error.what}"
        error.where = definition.settings.origins.get("on") or definition.location or error.where
        raise


def _of_step(error: UpshiftError, name: str, definition: StepDefinition) -> UpshiftError:
    """The error of a place that the step chose: where it did, and that nobody else can choose another."""
    error.where = error.where or definition.location
    error.fix = " ".join(filter(None, (error.fix, _chosen(name, definition))))
    return error


def _chosen(name: str, definition: StepDefinition) -> str:
    """Where a step says itself that it runs there."""
    on, where = definition.settings.on, definition.settings.origins.get("on") or definition.location
    return f"{name} has on={on!r}{f' ({where})' if where else ''}, which --on does not change."


@attrs.frozen(kw_only=True)
class Proposal:
    """What a place offers to a step, before anybody has said yes."""

    step: str  # step, definition: the step
    definition: StepDefinition
    place: OpenTarget  # where it would run
    offer: Offer  # what it would get there
    strict: bool  # whether it gets all that it asks for, or does not run
    launch: Launch | None = None  # launch, remarks: as in :class:`GrantPlan`
    remarks: tuple[str, ...] = ()
    missing: MissingExtra | None = None
    """Why none of its tasks could start there: its launcher is not installed. What is reused needs none."""

    @property
    def refused(self) -> bool:
        """Whether the offer is refused: the step cannot run with it."""
        return self.offer.granted is None or (self.strict and bool(self.offer.shortfalls))

    @property
    def standard(self) -> Standard:
        """As :attr:`GrantPlan.standard`."""
        return Standard.of(self.strict, self.offer.granted, self.offer.shortfalls)


def proposals(
    graph: Graph, places: Mapping[str | None, OpenTarget], *, strict: bool | None, project: str | None = None
) -> dict[str, Proposal]:
    """What each step that is used is offered, by the name of its definition."""
    found: dict[str, Proposal] = {}
    for name in graph.used:
        definition = graph.steps[name]
        place = places[definition.settings.on]
        request = definition.settings.resources
        try:
            offer = place.backend.offer(ask(definition, place.backend, request))
        except UpshiftError as error:
            if definition.settings.on is None:  # it was not the step that chose the place
                raise
            raise _of_step(error, name, definition) from None
        own = offered(offer, definition, place.backend, request=request, project=project)
        found[name] = Proposal(
            step=name,
            definition=definition,
            place=place,
            offer=own.offer,
            strict=place.backend.capabilities.strict if strict is None else strict,
            launch=own.launch,
            remarks=own.remarks,
            missing=missing_launcher(name, definition, place.backend, own.offer.granted),
        )
    return found


def ask(
    definition: StepDefinition,
    backend: Backend,
    request: ResourceSettings,
    avoid: frozenset[str] | None = None,
) -> Ask:
    """All that a step asks of a backend; of its request as much as is said."""
    settings = definition.settings
    return Ask(
        request=request,
        timeout=settings.timeout,
        launch=definition.launch,
        image=settings.docker,
        secrets=settings.secret_sources,
        settings=settings.backends.get(backend.name, {}),
        avoid=avoid,
    )


def refusal(offered: Iterable[Proposal], *, strict: bool | None) -> RequestRefused | None:
    """The error that names every step that is refused; None: all of them can run."""
    refused = [proposal for proposal in offered if proposal.refused]
    return _refusal(refused, strict) if refused else None


def grant_plans(offered: Mapping[str, Proposal]) -> dict[str, GrantPlan]:
    """What each step that is used gets, by the name of its definition; none of them is refused."""
    return {
        name: GrantPlan(
            place=proposal.place,
            granted=proposal.offer.granted,
            demand=Demand.of(proposal.offer.granted, proposal.offer.alternatives, launch=proposal.launch),
            strict=proposal.strict,
            shortfalls=proposal.offer.shortfalls,
            launch=proposal.launch,
            remarks=proposal.remarks,
        )
        for name, proposal in offered.items()
        if proposal.offer.granted is not None  # always: nothing at all would have been refused
    }


def _refusal(refused: list[Proposal], strict: bool | None) -> RequestRefused:
    definition, shortfalls = refused[0].definition, refused[0].offer.shortfalls
    where = definition.settings.origins.get(shortfalls[0].field if shortfalls else "") or definition.location
    lines = []
    fixes = []
    for proposal in refused:
        for shortfall in proposal.offer.shortfalls or (_NOTHING,):
            line = proposal.definition.settings.origins.get(shortfall.field) or proposal.definition.location
            at = f" ({line})" if line and line != where else ""
            lines.append(
                f"{proposal.step}{at}: asked {shortfall.asked}, gets {shortfall.got}: {shortfall.why}"
            )
            fixes.append(shortfall.fix or "Request less.")
    places = list(dict.fromkeys(repr(proposal.place.target.name) for proposal in refused))
    steps = [proposal.step for proposal in refused]
    if any(proposal.place.others for proposal in refused if proposal.definition.settings.on is None):
        fixes.append("Or choose another target with --on.")
    fixes += [_chosen(one.step, one.definition) for one in refused if one.definition.settings.on is not None]
    if all(proposal.offer.granted is not None for proposal in refused):
        with_less = "With --best-effort" if strict is None else "Without --strict"
        if any(proposal.place.backend.capabilities.strict for proposal in refused):
            with_less = "With --best-effort"
        fixes.append(f"{with_less}, the run continues with what is available.")
    return RequestRefused(
        f"target{'s' if len(places) > 1 else ''} {' and '.join(places)} cannot give "
        f"what {' and '.join(steps)} {'ask' if len(steps) > 1 else 'asks'} for",
        where=where,
        why="\n".join(lines),
        fix=" ".join(dict.fromkeys(fixes)),
    )


_NOTHING = Shortfall(field="", asked="what it needs", got="nothing", why="the backend cannot run it")
