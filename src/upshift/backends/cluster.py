"""A backend whose tasks a scheduler starts: what Slurm and whatever comes next have in common.

::

    submit ──► waiting room ── thread ──► Cluster.submit
    thread: live records in the store, many times a second ──► started, logged, ended
            Cluster.states, every few seconds              ──► waiting, ended with its cause

A handle is a name that follows from the attempt, so that a job is found again whatever was recorded before
the engine was killed. A job that completed is told by its own record; of any other the scheduler says why
it ended, which may say more than its supervisor could know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from upshift.backends.base import (
    Ask,
    Ended,
    Handle,
    Job,
    Logged,
    LogGrew,
    Noticed,
    Offer,
    Sink,
    Started,
    Waiting,
    secrets_of,
)
from upshift.errors import BackendError, UpshiftError
from upshift.model.settings.retry import STOPPED
from upshift.model.spec import Hardware, TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination

LOOK = (0.1, 0.5)
"""Seconds between two looks at live records: where something happens, and where nothing has for QUIET."""
QUIET = 10.0
ASK = 5.0
"""Seconds between two questions to the scheduler."""
SOON = 1.0
"""Seconds after which a job that was submitted is asked for: it may wait, and its user wants to know why."""
AGAIN = (0.5, 1.0, 2.0, 5.0)
"""Seconds until something that the scheduler did not take is tried again; then the last one again."""
LATE = (5.0, 60.0)
"""Seconds that a result is looked for once a job has ended: where it failed, and where it says that it did
not. A shared folder may show late what another node has written (nfs(5), ``acdirmax``)."""
GIVEN_UP = 600.0
"""Seconds after which a scheduler that does not answer is not asked to take a job any more."""
WORD = (2.0, 5.0)
"""Seconds after which supervisors of several nodes that have said that the attempt is over, or that the first
node is gone, are believed, though the scheduler has the job yet: it may wait for minutes for a lost node."""
ENDING = 10.0
"""Seconds after the last grace that a supervisor is given to record what became of its step."""


class NotNow(Exception):
    """The scheduler does not answer, or takes no more jobs for now: to be tried again. Says why."""


@attrs.frozen(kw_only=True)
class State:
    """What a scheduler knows of a job."""

    phase: str  # "pending", "running" or "ended"
    why: str | None = None  # what a pending job waits for, in the scheduler's words
    hopeless: bool = False  # whether it waits for ever
    reason: str | None = None  # of one that ended: a cause of failure; None: it ended by itself
    message: str | None = None
    node: str | None = None


@attrs.frozen(kw_only=True)
class Launch:
    """What is to be started: one attempt, as the rendering of a job knows it."""

    name: str  # the job's, which follows from the attempt
    comment: str  # what it is, for people
    command: tuple[str, ...]
    granted: Hardware
    settings: Mapping[str, Any]  # what the step was told for this backend, checked
    timeout: float | None = None  # seconds that the step may take
    grace: float = 0.0  # and those that it is given to end
    output: str | None = None  # the file for what is printed before the supervisor keeps a log


class Cluster(Protocol):
    """A scheduler. What one more has to be; :class:`ClusterBackend` does the rest."""

    title: str
    """What people call it."""
    seat: Mapping[str, str]
    """What tells a supervisor its node, of several: variables of :mod:`upshift.runtime.launch.seats`."""

    noise: re.Pattern[str]
    """What a line begins with that it adds to what a job prints as it takes down the job's processes."""

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What a step gets, as far as that is certain before it is submitted.

        Its settings are those of the target and its own, of which its own count.
        """

    def render(self, launch: Launch) -> str:
        """The script or manifest of a job; pure."""

    def submit(self, script: str, environment: Mapping[str, str]) -> str:
        """Give a job to the scheduler, with these variables; gives its id.

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

        Raises ``NotNow``.
        """

    def words(self, id: str) -> str | None:
        """What the scheduler has to say of a job that ended without a word. Raises ``NotNow``."""


@attrs.define(eq=False)
class _Watched:
    """A job, from before the scheduler has it until its end was told."""

    job: Job
    handle: Handle
    id: str | None = None
    script: str = ""
    waits: str | None = None
    seen: int = 0  # st_mtime_ns of its live record
    started: bool = False
    said: dict[str, Any] = attrs.field(factory=dict)
    told: float | None = None  # since when it is said to be over, by the monotonic clock
    over: State | None = None  # how it ended
    missing: float | None = None  # since when its result is looked for, by the monotonic clock
    cancelled: bool = False
    stops: list[tuple[float, bool, bool]] = attrs.field(factory=list)  # when, with grace, by force

    @property
    def spec(self) -> TaskSpec:
        return self.job.spec


class ClusterBackend:
    """The engine's end of a cluster."""

    def __init__(
        self, cluster: Cluster, *, name: str, store: str, sink: Sink, options: Mapping[str, Any]
    ) -> None:
        self._cluster = cluster
        self._own = name
        self._address = store
        self._sink = sink
        self._options = options
        self._jobs: dict[Handle, _Watched] = {}
        self._room: list[_Watched] = []  # what the scheduler does not have yet
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._ask_at = 0.0
        self._asked = 0.0
        self._happened = 0.0

    # -- what the engine calls ---------------------------------------------------------------------

    def capacity(self) -> None:
        """The scheduler queues jobs itself."""

    def offer(self, ask: Ask) -> Offer:
        """What the scheduler would reserve."""
        return self._cluster.offer(ask, {**self._options, **_said(ask.settings)})

    def destination(self) -> Destination | None:
        """Steps run in the environment of the run."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> list[str]:
        """What the scheduler would be given."""
        return [self._cluster.render(self.launch_of(job, name_of(job.spec), sketch=True)) for job in jobs]

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Give jobs to the scheduler, on a thread."""
        return [self._take(job) for job in jobs]

    def _take(self, job: Job) -> Handle | BackendError:
        watched = _Watched(job, name_of(job.spec))
        try:
            watched.script = self._cluster.render(self.launch_of(job, watched.handle))
        except UpshiftError as error:
            return BackendError(error.in_short, fix=error.fix)
        with contextlib.suppress(OSError):
            self._store_of(job.spec).live(job.spec.task, job.spec.attempt).unlink()
        with self._changed:
            self._jobs[watched.handle] = watched
            self._room.append(watched)
            self._changed.notify_all()
        self._work()
        return watched.handle

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Watch jobs that the scheduler has, or that have ended for a reason that nobody has heard."""
        ended: dict[Handle, Ended | None] = {handle: Ended(handle=handle) for handle in jobs}
        open_ = {handle for handle, job in jobs.items() if not self._is_settled(job)}
        for handle, id in self._found(open_ - self._jobs.keys()).items():
            with self._changed:
                self._jobs[handle] = _Watched(jobs[handle], handle, id=id)
                self._ask_at = 0.0
                self._changed.notify_all()
            self._work()
        return ended | {handle: None for handle in jobs if handle in self._jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Handles follow from attempts; None: the scheduler has no such job, or it has a result."""
        names = {name_of(job.spec): job for job in jobs}
        open_ = {name for name, job in names.items() if name not in self._jobs and not self._is_settled(job)}
        there = self._found(open_).keys() | self._jobs.keys()
        return [name if name in there else None for name in map(name_of, (job.spec for job in jobs))]

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Withdraw jobs, or let their supervisors stop the steps."""
        now = time.monotonic()
        stops = [(now, grace > 0, False), (now + grace + ENDING, False, True)]
        if grace > 0:
            stops.insert(1, (now + grace, False, False))
        with self._changed:
            for watched in filter(None, map(self._jobs.get, handles)):
                watched.cancelled, watched.stops = True, list(stops)
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the jobs, which go on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def launch_of(self, job: Job, name: str, *, sketch: bool = False) -> Launch:
        """A job as it is rendered; in a sketch of it, the runtime may not be in its place yet."""
        from upshift.code.runtime_package import runtime_blob
        from upshift.runtime.storage import unpacking

        spec, store = job.spec, self._store_of(job.spec)
        digest = spec.runtime or runtime_blob(store)
        runtime = unpacking.folder_of(digest) if sketch else unpacking.unpacked_runtime(digest, store)
        path = os.path.join(store.address, job.spec_path)
        return Launch(
            name=name,
            comment=f"upshift {spec.task.run} {spec.task} attempt {spec.attempt}",
            command=(sys.executable, str(runtime), "--scheduled", path),
            granted=spec.granted or Hardware(),
            settings={**self._options, **_said(spec.settings.backends.get(self._own, {}))},
            timeout=spec.settings.timeout,
            grace=spec.settings.grace_period,
            output=f"{path.removesuffix('.spec.json')}.out",
        )

    # -- threads -----------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self._threads:
            for what in (self._submit_all, self._watch_all):
                self._threads.append(
                    threading.Thread(target=what, name=f"upshift-{what.__name__.strip('_')}", daemon=True)
                )
                self._threads[-1].start()

    def _submit_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._room)
                if self._closed:
                    return
                watched = self._room.pop(0)
            try:
                self._submit(watched)
            except Exception as error:  # of ours: the job must not hang for it
                self._end(watched, "infrastructure", _words(error))

    def _submit(self, watched: _Watched) -> None:
        """Submit a job, for as long as the scheduler may take it yet."""
        since, tries = time.monotonic(), 0
        environment = {"UPSHIFT_ORDER": _order(secrets_of(watched.spec)), **self._seats(watched.spec)}
        while not watched.cancelled and not self._closed:
            try:
                if tries:
                    watched.id = self._cluster.find([watched.handle]).get(watched.handle)
                if watched.id is None:
                    watched.id = self._cluster.submit(watched.script, environment)
            except BackendError as error:
                self._end(watched, "infrastructure", error.in_short)
                return
            except NotNow as error:
                if time.monotonic() - since > GIVEN_UP:
                    self._end(watched, "infrastructure", f"{error}, since {GIVEN_UP:g} s")
                    return
                self._wait(watched, str(error))
                with self._changed:
                    pause = AGAIN[min(tries, len(AGAIN) - 1)]
                    self._changed.wait_for(lambda: self._closed or watched.cancelled, pause)
                tries += 1
            else:
                with self._changed:
                    now = time.monotonic()
                    self._happened, self._ask_at = now, min(self._ask_at, max(now, self._asked) + SOON)
                    self._changed.notify_all()
                return
        if watched.cancelled:
            self._end(watched, "cancelled", "cancelled before it was submitted")

    def _watch_all(self) -> None:
        while True:
            with self._changed:
                if not self._closed and not any(w.id for w in self._jobs.values()):
                    self._changed.wait_for(lambda: self._closed or any(w.id for w in self._jobs.values()))
                else:
                    busy = time.monotonic() - self._happened < QUIET
                    self._changed.wait(LOOK[0] if busy else LOOK[1])
                if self._closed:
                    return
                watched = [w for w in self._jobs.values() if w.id is not None]
            try:
                self._look(watched)
                self._settle(watched)
                self._stop(watched)
                now = time.monotonic()
                if now >= self._ask_at:
                    self._asked, self._ask_at = now, now + ASK
                    self._ask(watched)
            except (NotNow, UpshiftError, OSError):
                pass  # the scheduler or the store does not answer, and is asked again: the jobs go on
            except Exception as error:  # of ours: no job must hang for it
                for one in watched:
                    self._end(one, "infrastructure", _words(error))

    def _stop(self, all_watched: Iterable[_Watched]) -> None:
        """Stop what is to be stopped by now."""
        now = time.monotonic()
        due: dict[tuple[bool, bool], list[_Watched]] = {}
        with self._changed:
            for watched in all_watched:
                if watched.stops and watched.stops[0][0] <= now:
                    due.setdefault(watched.stops[0][1:], []).append(watched)
        for (grace, kill), those in due.items():
            self._cluster.stop([w.id for w in those if w.id is not None], grace=grace, kill=kill)
            with self._changed:
                for watched in those:
                    watched.stops = [stop for stop in watched.stops if stop[0] > now]
            self._soon()

    def _look(self, all_watched: Iterable[_Watched]) -> None:
        """Read the live records that have changed."""
        folders: dict[Path, dict[str, _Watched]] = {}
        for watched in all_watched:
            path = self._store_of(watched.spec).live(watched.spec.task, watched.spec.attempt)
            folders.setdefault(path.parent, {})[path.name] = watched
        for folder, by_name in folders.items():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    watched_here = by_name.get(entry.name)
                    if watched_here is not None:
                        self._read(watched_here, Path(entry.path))

    def _read(self, watched: _Watched, path: Path) -> None:
        try:
            stamp = path.stat().st_mtime_ns
            if stamp == watched.seen:
                return
            said = json.loads(path.read_bytes())
        except (OSError, ValueError):  # it has just been replaced
            return
        watched.seen, self._happened = stamp, time.monotonic()
        handle, before = watched.handle, watched.said
        if "node" in said and not watched.started:
            watched.started = True
            self._sink(Started(handle=handle, node=said["node"]))
        if said.get("log", 0) != before.get("log", 0):
            self._sink(LogGrew(handle=handle, size=said["log"]))
        if said.get("logged") != before.get("logged"):
            self._sink(Logged(handle=handle, values=said["logged"], step=said["step"]))
        for text in said.get("noticed", [])[len(before.get("noticed", [])) :]:
            self._sink(Noticed(handle=handle, text=text))
        watched.said = said
        ended = said.get("ended")
        if ended is not None and ended["completed"]:
            self._end(watched, None, None)
        elif ended is not None or "lost" in said:
            watched.told = watched.told or time.monotonic()
            self._soon()
        else:
            watched.told = None

    def _ask(self, all_watched: Sequence[_Watched]) -> None:
        """Ask the scheduler how the jobs are."""
        ids = [w.id for w in all_watched if w.id is not None and w.handle in self._jobs and w.over is None]
        if not ids:
            return
        states = self._cluster.states(ids)
        gone = State(
            phase="ended", reason="infrastructure", message=f"{self._cluster.title} does not know it any more"
        )
        for watched in all_watched:
            if watched.id not in ids:
                continue
            state = states.get(watched.id, gone)
            if state.phase == "ended":
                watched.over = state
            elif state.hopeless:
                self._cluster.stop([watched.id], grace=False)
                self._end(watched, "infrastructure", f"{self._cluster.title} can never start it: {state.why}")
            elif state.phase == "pending" and state.why:
                self._wait(watched, f"{self._cluster.title} has it wait: {state.why}")

    def _settle(self, all_watched: Iterable[_Watched]) -> None:
        """Tell the end of jobs of which the scheduler has told it, once their result is there too."""
        for watched in all_watched:
            now = time.monotonic()
            if watched.over is None and watched.told is not None and nodes_of(watched.spec) > 1:
                watched.over = self._believed(watched, now - watched.told)
            state = watched.over
            if state is None or watched.handle not in self._jobs:
                continue
            recorded = self._store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
            said = watched.said.get("ended")
            if recorded is not None:
                self._end(watched, state.reason, state.message)
            elif said is not None and said["problem"]:
                self._end(watched, "infrastructure", said["problem"])
            elif watched.missing is None:
                watched.missing = now
            elif now - watched.missing > LATE[state.reason is None] or watched.cancelled:
                self._end(watched, *self._cause(watched, state))

    def _believed(self, watched: _Watched, since: float) -> State | None:
        """The end of a job by what its supervisors have said; None: only the scheduler knows why."""
        result = self._store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
        lost, ended = watched.said.get("lost"), watched.said.get("ended") or {}
        if result is not None:
            explained = result.failure is None or result.failure.reason != STOPPED
        else:
            explained = bool(lost or ended.get("problem"))
        if since < (WORD["lost" in watched.said] if explained else LATE[1]):
            return None
        assert watched.id is not None  # it has been started
        self._cluster.stop([watched.id], grace=False, kill=True)
        return State(phase="ended", reason="infrastructure" if lost else None, message=lost)

    def _cause(self, watched: _Watched, state: State) -> tuple[str, str]:
        """Why there is no result of a job that has ended."""
        if watched.cancelled:
            return "cancelled", "it was stopped before it could record anything"
        message = state.message or f"{self._cluster.title} says that it completed, and there is no result"
        if watched.id is not None and not watched.said:
            # No supervisor has said a word: the node may not see what it needs, which its shell has said.
            words = self._cluster.words(watched.id)
            message += f" ({words})" if words else ""
            printed = _printed(self._out(watched.spec), self._cluster.noise)
            message += f"; it printed: {printed}" if printed else ""
            message += f". See that {state.node or 'the node'} sees {sys.executable} and {self._address}"
        return state.reason or "infrastructure", message

    # -- beside them -------------------------------------------------------------------------------

    def _soon(self) -> None:
        """Ask the scheduler at the next look."""
        self._ask_at = min(self._ask_at, self._asked + 2 * LOOK[0])

    def _wait(self, watched: _Watched, why: str) -> None:
        if why != watched.waits and not watched.started:
            watched.waits = why
            self._sink(Waiting(handle=watched.handle, why=why))

    def _end(self, watched: _Watched, reason: str | None, message: str | None) -> None:
        with self._changed:
            if self._jobs.get(watched.handle) is not watched:
                return
            del self._jobs[watched.handle]
        with contextlib.suppress(OSError):
            self._store_of(watched.spec).live(watched.spec.task, watched.spec.attempt).unlink()
        out = self._out(watched.spec)
        with contextlib.suppress(OSError):
            if reason is None or not out.stat().st_size:
                out.unlink()
        self._sink(Ended(handle=watched.handle, reason=reason, message=message))

    def _seats(self, spec: TaskSpec) -> dict[str, str]:
        """What the nodes of an attempt are told, if there are several."""
        nodes = nodes_of(spec)
        if nodes == 1:
            return {}
        return {**self._cluster.seat, seats.NODES: str(nodes), seats.TOKEN: secrets.token_hex(16)}

    def _out(self, spec: TaskSpec) -> Path:
        return self._store_of(spec).log_path(spec.task, spec.attempt).with_suffix(".out")

    def _is_settled(self, job: Job) -> bool:
        """Whether it has recorded what nobody can say better; its supervisor may not have left yet."""
        result = self._store_of(job.spec).read_result(job.spec.task, job.spec.attempt)
        return result is not None and result.status != "failed"

    def _store_of(self, spec: TaskSpec) -> Store:
        return open_store(spec.store, **spec.store_options)

    def _found(self, names: Collection[str]) -> Mapping[str, str]:
        try:
            return self._cluster.find(names) if names else {}
        except NotNow as error:
            raise BackendError(
                f"{self._cluster.title} does not say whether jobs of the run still run",
                why=str(error),
                fix="Try again when it answers.",
            ) from None


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


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that somebody has set."""
    return {name: value for name, value in settings.items() if value not in (None, (), [], False)}


def _order(secrets: Mapping[str, str]) -> str:
    from upshift.runtime.supervisor.serving.protocol import order_of

    return order_of(argv=tuple(sys.argv), secrets=dict(secrets), wait=60.0).decode().strip()


def _printed(path: Path, noise: re.Pattern[str]) -> str:
    """The last lines of a file, if there are some, that are not of the scheduler's taking processes down."""
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return " / ".join([line.strip() for line in lines if line.strip() and not noise.match(line)][-3:])


def _words(error: Exception) -> str:
    return error.in_short if isinstance(error, UpshiftError) else f"{type(error).__name__}: {error}"
