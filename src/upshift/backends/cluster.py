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
import os
import re
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.arrays import Draft, Drafted, draft, drafts, listed
from upshift.backends.base import (
    Ask,
    Capacity,
    Ended,
    Finding,
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
from upshift.backends.scheduler import Arrays, Cluster, Full, Launch, NotNow, Reach, State, name_of, nodes_of
from upshift.errors import BackendError, StoreUnavailable, UpshiftError
from upshift.model.settings.retry import STOPPED
from upshift.model.settings.secrets import at_node
from upshift.model.spec import Hardware, TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.storage.live import name_of as name_in
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.replica import blob_key, side_by_side
from upshift.runtime.storage.store import Store, open_direct, store_of
from upshift.runtime.supervisor.serving.array import element_in
from upshift.runtime.supervisor.serving.protocol import AT_ONCE, ORDER, ORDER_FILE, WITH_GRACE, leave_order

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination
    from upshift.runs.uploads import Uploads

LOOK = (0.1, 0.5)
"""Seconds between two looks at live records: where something happens, and where nothing has for QUIET."""
LOOK_IN_BUCKET = (0.5, 2.0)
"""The same where a look is a request: a list of the live records of a run."""
QUIET = 10.0
ASK = 5.0
"""Seconds between two questions to the scheduler."""
BURST = 3
"""How many of those questions are asked sooner than that, because something has happened, where none was
asked before: never are there more than these and one in ASK seconds, however many jobs there are."""
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


@attrs.define(eq=False)
class _Watched:
    """A job, from before the scheduler has it until its end was told."""

    job: Job
    handle: Handle
    base: str | None = None  # the id of the scheduler's job, or array
    own: int | None = None  # its element of an array
    element: int | None = None  # that which has it
    printed: Path | None = None
    waits: str | None = None
    started: bool = False
    said: Mapping[str, Any] = attrs.field(factory=dict)
    told: float | None = None  # since when it is said to be over, by the monotonic clock
    over: State | None = None  # how it ended
    missing: float | None = None  # since when its result is looked for, by the monotonic clock
    cancelled: bool = False
    fenced: bool = False  # whether it begins no more, unless it had begun before
    stops: list[tuple[float, bool, bool]] = attrs.field(factory=list)  # when, with grace, by force

    @property
    def spec(self) -> TaskSpec:
        return self.job.spec

    @property
    def id(self) -> str | None:
        """The id of the job that it is in."""
        return self.base if self.base is None or self.element is None else f"{self.base}_{self.element}"


@attrs.define(eq=False)
class _Batch:
    """What the scheduler is given at once."""

    draft: Draft
    script: str
    watched: list[_Watched]


class ClusterBackend:
    """The engine's end of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        store: str,
        sink: Sink,
        options: Mapping[str, Any],
        arrays: Arrays | None = None,
        is_seen: bool = False,
    ) -> None:
        self._cluster = cluster
        self._arrays = arrays
        self._is_seen = is_seen  # whether others see the environment of jobs
        self._own = name
        self._address = store
        self._root = open_direct(store).address  # the folder that is there, or follows the bucket
        self._pauses = LOOK if self._root == store else LOOK_IN_BUCKET
        self._sink = sink
        self._options = options
        self._jobs: dict[Handle, _Watched] = {}
        self._room: list[_Batch] = []  # what the scheduler does not have yet
        self._idle: dict[str, None] = {}  # elements whose tasks others have taken, while they wait
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._stores: dict[str, Store] = {}
        self._uploads: Uploads | None = None
        self._over: list[_Watched] = []  # whose live records may go
        self._ask_at = 0.0
        self._asked: deque[float] = deque(maxlen=BURST)
        self._happened = 0.0
        self._withdrew = 0.0

    # -- what the engine calls ---------------------------------------------------------------------

    def capacity(self) -> Capacity | None:
        """The scheduler queues jobs itself."""
        return None

    def offer(self, ask: Ask) -> Offer:
        """What the scheduler would reserve."""
        return self._cluster.offer(ask, {**self._options, **_said(ask.settings)})

    def findings(self) -> Iterator[Finding]:
        """What the scheduler says, and what steps find on its nodes."""
        try:
            yield from self._cluster.findings(self._options)
        except NotNow as error:
            raise BackendError(str(error), fix="Try again in a moment.") from None
        yield self.images()

    def images(self) -> Finding:
        """What steps run in."""
        return Finding(
            name="images",
            text=f"none: steps run in {sys.executable}, which each node has to have under this path",
        )

    def destination(self) -> Destination | None:
        """Steps run in the environment of the run."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> list[str]:
        """What the scheduler would be given."""
        launches = [Drafted(job, self.launch_of(job, name_of(job.spec), sketch=True)) for job in jobs]
        return [self._cluster.render(one.launch) for one in drafts(self._root, launches, self._arrays)]

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Give jobs to the scheduler, on a thread."""
        answers: dict[int, Handle | BackendError] = {}
        drafted = []
        for number, job in enumerate(jobs):
            try:
                drafted.append(Drafted(job, self.launch_of(job, name_of(job.spec))))
                answers[number] = drafted[-1].launch.name
            except UpshiftError as error:
                answers[number] = BackendError(error.in_short, fix=error.fix)
        try:
            batches = [self._batch(one) for one in drafts(self._root, drafted, self._arrays)]
        except (UpshiftError, NotNow) as error:
            refusal = BackendError(_words(error), fix=getattr(error, "fix", None))
            return [answer if isinstance(answer, BackendError) else refusal for answer in answers.values()]
        for one in drafted:
            spec = one.job.spec
            self._store_of(spec).live.forget([(spec.task, spec.attempt)])
        with self._changed:
            self._jobs.update((one.handle, one) for batch in batches for one in batch.watched)
            self._room += batches
            self._changed.notify_all()
        self._work()
        return [answers[number] for number in range(len(jobs))]

    def _batch(self, draft: Draft, known: Mapping[Handle, _Watched] | None = None) -> _Batch:
        """What is submitted for a draft, and who is to hear of it: jobs that are known, or new ones."""
        watched = []
        for number, part in draft.parts.items():
            name = part.launch.name
            one = (known or {}).get(name) or _Watched(part.job, name)
            one.own = one.element = number
            one.printed = _printed_of(draft.launch.output, number)
            watched.append(one)
        return _Batch(draft, self._cluster.render(draft.launch), watched)

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Watch jobs that the scheduler has, or that have ended for a reason that nobody has heard."""
        ended: dict[Handle, Ended | None] = {handle: Ended(handle=handle) for handle in jobs}
        open_ = [
            job for handle, job in jobs.items() if handle not in self._jobs and not self._is_settled(job)
        ]
        for handle, found in self._found(open_).items():
            with self._changed:
                self._jobs[handle] = found
                self._ask_at = 0.0
                self._changed.notify_all()
            self._work()
        return ended | {handle: None for handle in jobs if handle in self._jobs}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Handles follow from attempts; None: the scheduler has no such job, or it has a result."""
        names = {name_of(job.spec): job for job in jobs}
        open_ = [job for name, job in names.items() if name not in self._jobs and not self._is_settled(job)]
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
        with contextlib.suppress(UpshiftError):  # whoever looks for others of the run finds more than that
            self._sweep()

    def launch_of(self, job: Job, name: str, *, sketch: bool = False) -> Launch:
        """A job as it is rendered; in a sketch of it, the runtime may not be in its place yet."""
        from upshift.code.runtime_package import bootstrap, runtime_blob
        from upshift.runtime.storage import unpacking

        spec, store, reach = job.spec, self._store_of(job.spec), self.reach(job.spec)
        digest = spec.runtime or runtime_blob(store)
        python, path = reach.python or sys.executable, os.path.join(store.address, job.spec_path)
        environment = {} if reach.home is None else {"UPSHIFT_NODE_HOME": reach.home}
        command: tuple[str, ...]
        if store.replica is not None or reach.bootstrap:
            there = store.name if store.replica is not None else reach.store or store.address
            command = (
                python,
                "-c",
                bootstrap(there),
                f"{there}/{blob_key(digest)}",
                f"{there}/{job.spec_path}",
            )
            if store.replica is not None:
                environment |= store.replica.objects.environment
        else:
            runtime = unpacking.folder_of(digest) if sketch else unpacking.unpacked_runtime(digest, store)
            command = (python, str(runtime), "--scheduled", path)
        return Launch(
            name=name,
            comment=f"upshift {spec.task.run} {spec.task} attempt {spec.attempt}",
            command=command,
            granted=spec.granted or Hardware(),
            settings={**self._options, **_said(spec.settings.backends.get(self._own, {}))},
            timeout=spec.settings.timeout,
            grace=spec.settings.grace_period,
            secrets=at_node(spec.settings.secret_sources),
            output=f"{path.removesuffix('.spec.json')}.out",
            image=spec.image,
            user=spec.user,
            environment=environment,
        )

    def reach(self, spec: TaskSpec) -> Reach:
        """How a node gets the worker of an attempt."""
        return Reach(python=spec.interpreter)

    def forget(self, id: str) -> None:
        """The end of this job was told: a scheduler that keeps it for ever may be asked to remove it."""

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
                batch = self._room.pop(0)
            try:
                self._submit(batch)
            except Exception as error:  # of ours: the jobs must not hang for it
                for watched in batch.watched:
                    self._end(watched, "infrastructure", _words(error))

    def _submit(self, batch: _Batch) -> None:
        """Submit jobs, for as long as the scheduler may take them yet."""
        since, tries, full = time.monotonic(), 0, False
        spec = batch.watched[0].spec
        own = {ORDER: self._order(spec), **self._seats(spec)}
        if self._is_seen and (nodes_of(spec) > 1 or spec.settings.secret_sources):
            files = _order_files(self._root, batch.watched[0].job)
            of_all = files[0] if len(files) == 1 else files[0].with_suffix("")  # each node adds its number
            own = {ORDER_FILE: f"{leave_order(files, own)} {of_all}"}
        environment = {**batch.draft.launch.environment, **own}
        while not self._closed:
            name = batch.draft.launch.name
            try:
                id = self._cluster.find([name]).get(name) if tries else None
                if id is None:
                    wanted = self._without_cancelled(batch, half=full)
                    if wanted is None:
                        return
                    batch = wanted
                    self._put(batch)
                    id = self._cluster.submit(batch.script, environment)
            except BackendError as error:
                for watched in batch.watched:
                    self._end(watched, "infrastructure", error.in_short)
                return
            except (NotNow, OSError, StoreUnavailable) as error:
                full = isinstance(error, Full)
                if not full and time.monotonic() - since > GIVEN_UP:
                    for watched in batch.watched:
                        self._end(watched, "infrastructure", f"{_words(error)}, since {GIVEN_UP:g} s")
                    return
                pause = 0.0 if full and len(batch.watched) > 1 else AGAIN[min(tries, len(AGAIN) - 1)]
                self._pause(batch, _words(error), pause)
                tries += 1
            else:
                with self._changed:
                    for watched in batch.watched:
                        watched.base = id
                    now = self._happened = time.monotonic()
                    self._ask_at = min(self._ask_at, now + SOON)
                    self._changed.notify_all()
                return

    def _pause(self, batch: _Batch, why: str, seconds: float) -> None:
        """Wait, unless a job of the batch is cancelled."""
        for watched in batch.watched:
            self._wait(watched, why)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(w.cancelled for w in batch.watched), seconds)

    def _without_cancelled(self, batch: _Batch, *, half: bool) -> _Batch | None:
        """The batch without jobs that nobody wants any more; if those are too many, their first half.

        The other half is the next to be submitted.
        """
        wanted = [watched for watched in batch.watched if not watched.cancelled]
        for watched in batch.watched:
            if watched.cancelled:
                self._end(watched, "cancelled", "cancelled before it was submitted")
        least = len(wanted) // 2 if half and len(wanted) > 1 else len(wanted)
        if least == len(batch.watched):
            return batch
        parts = {part.launch.name: part for part in batch.draft.parts.values()}
        known = {watched.handle: watched for watched in wanted}
        made = []
        for some in filter(None, (wanted[:least], wanted[least:])):
            assert self._arrays is not None  # there are several
            chosen = [parts[watched.handle] for watched in some]
            made.append(self._batch(draft(self._root, chosen, self._arrays), known))
        with self._changed:
            self._room[:0] = made[1:]
        return made[0] if made else None

    def _watch_all(self) -> None:
        while True:
            with self._changed:
                if not self._closed and not any(w.id for w in self._jobs.values()):
                    self._changed.wait_for(lambda: self._closed or any(w.id for w in self._jobs.values()))
                else:
                    busy = time.monotonic() - self._happened < QUIET
                    self._changed.wait(self._pauses[0] if busy else self._pauses[1])
                if self._closed:
                    return
                watched = [w for w in self._jobs.values() if w.id is not None]
            try:
                self._look(watched)
                self._sweep()
                self._settle(watched)
                self._stop(watched)
                self._withdraw()
                now = time.monotonic()
                if now >= self._ask_at and not (
                    len(self._asked) == BURST and now - self._asked[0] < BURST * ASK
                ):
                    self._asked.append(now)
                    self._ask_at = now + ASK
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
            for watched in those:
                if watched.own is not None and not self._may_stop(watched):
                    self._idle[f"{watched.base}_{watched.own}"] = None
                    self._end(watched, "cancelled", "cancelled before it began")
                elif not (kill or self._cluster.signals):
                    self._tell(watched, WITH_GRACE if grace else AT_ONCE)
            ids = [w.id for w in those if w.id is not None and w.handle in self._jobs]
            if ids:
                self._cluster.stop(ids, grace=grace, kill=kill)
            with self._changed:
                for watched in those:
                    watched.stops = [stop for stop in watched.stops if stop[0] > now]
            self._soon()

    def _tell(self, watched: _Watched, signal: Signals) -> None:
        """Leave word for a supervisor that no signal reaches, and see that it does not begin later."""
        store, task, attempt = self._store_of(watched.spec), watched.spec.task, watched.spec.attempt
        store.write_stop(task, attempt, signal.name)
        if not watched.started:
            store.claim_attempt(task, attempt, by="an engine that cancelled it")
            watched.fenced = True

    def _may_stop(self, watched: _Watched) -> bool:
        """Whether an element may run a task, which it is told to stop then; else none will."""
        spec, store = watched.spec, self._store_of(watched.spec)
        if store.claim_attempt(spec.task, spec.attempt, by="an engine that cancelled it"):
            return False
        self._follow(watched)
        with contextlib.suppress(OSError):
            store.write_stop(spec.task, spec.attempt, "")
        return True

    def _follow(self, watched: _Watched) -> bool:
        """Whether the element has changed that a task is with, by its claim."""
        claim = self._store_of(watched.spec).claimed_by(watched.spec.task, watched.spec.attempt)
        return claim is not None and self._is_with(watched, element_in(claim))

    def _is_with(self, watched: _Watched, element: int | None) -> bool:
        if element is None or element == watched.element:
            return False
        if watched.element == watched.own:
            self._idle[f"{watched.base}_{watched.own}"] = None
        watched.element, watched.over, watched.missing = element, None, None
        return True

    def _withdraw(self) -> None:
        """Take back elements that have nothing left to do."""
        now = time.monotonic()
        if self._idle and self._arrays is not None and now - self._withdrew >= SOON:
            ids, self._withdrew = list(self._idle), now
            self._arrays.withdraw(ids)
            for id in ids:
                self._idle.pop(id)

    def _look(self, all_watched: Iterable[_Watched]) -> None:
        """Hear the live records that have changed."""
        runs: dict[tuple[str, str], dict[str, _Watched]] = {}
        for watched in all_watched:
            spec = watched.spec
            runs.setdefault((spec.store, spec.task.run), {})[name_in(spec.task, spec.attempt)] = watched
        for (_, run), by_name in runs.items():
            store = self._store_of(next(iter(by_name.values())).spec)
            for name, said in store.live.hear(run, by_name):
                self._hear(by_name[name], said)

    def _hear(self, watched: _Watched, said: Mapping[str, Any]) -> None:
        self._happened = time.monotonic()
        self._is_with(watched, said.get("element"))
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
        alone = nodes_of(watched.spec) == 1
        if ended is not None and (ended["completed"] or (alone and self._explains_itself(watched))):
            self._end(watched, None, None)
        elif ended is not None or "lost" in said:
            watched.told = watched.told or time.monotonic()
            self._soon()
        else:
            watched.told = None

    def _explains_itself(self, watched: _Watched) -> bool:
        """Whether an attempt has recorded why it did not complete, and the scheduler knows no better."""
        result = self._store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
        return result is not None and (result.failure is None or result.failure.reason != STOPPED)

    def _ask(self, all_watched: Sequence[_Watched]) -> None:
        """Ask the scheduler how the jobs are."""
        asked = {w.id for w in all_watched if w.id is not None and w.handle in self._jobs and w.over is None}
        states = self._cluster.states(asked - {None}) if asked else {}
        gone = State(
            phase="ended", reason="infrastructure", message=f"{self._cluster.title} does not know it any more"
        )
        hopeless: dict[_Watched, str | None] = {}
        for watched in all_watched:
            if watched.id not in asked:
                continue
            state = states.get(watched.id, gone)
            if state.phase == "ended":
                watched.over = state
            elif state.hopeless:
                hopeless[watched] = state.why
            elif state.phase == "pending" and watched.fenced:
                # It was fenced before this was asked: whatever the scheduler does with it, nothing begins.
                self._end(watched, "cancelled", "cancelled before it began")
            elif state.phase == "pending" and state.why:
                self._wait(watched, f"{self._cluster.title} has it wait: {state.why}")
        if hopeless:
            self._cluster.stop([w.id for w in hopeless if w.id and w.element is None], grace=False)
            for watched, why in hopeless.items():
                if watched.element is not None:
                    self._idle[f"{watched.base}_{watched.element}"] = None
                self._end(watched, "infrastructure", f"{self._cluster.title} can never start it: {why}")

    def _settle(self, all_watched: Iterable[_Watched]) -> None:
        """Tell the end of jobs of which the scheduler has told it, once their result is there too."""
        for watched in all_watched:
            now = time.monotonic()
            if watched.over is None and watched.told is not None and nodes_of(watched.spec) > 1:
                watched.over = self._believed(watched, now - watched.told)
            state = watched.over
            if state is None or watched.handle not in self._jobs:
                continue
            if watched.own is not None and self._follow(watched):
                continue
            recorded = self._store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
            said = watched.said.get("ended")
            if recorded is not None:
                self._end(watched, state.reason, state.message)
            elif said is not None and said["problem"] and watched.fenced:
                self._end(watched, "cancelled", "cancelled before it began")
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
        return State(phase="ended", reason="infrastructure" if lost else None)

    def _cause(self, watched: _Watched, state: State) -> tuple[str, str]:
        """Why there is no result of a job that has ended."""
        if watched.cancelled:
            return "cancelled", "it was stopped before it could record anything"
        lost = watched.said.get("lost")
        if lost and state.reason in (None, "infrastructure"):  # as one of its nodes has seen it
            return "infrastructure", lost
        message = state.message or f"{self._cluster.title} says that it completed, and there is no result"
        if watched.id is not None and not watched.said:
            # No supervisor has said a word: the node may not see what it needs, which its shell has said.
            words = self._cluster.words(watched.id)
            message += f" ({words})" if words and words not in message else ""
            printed = "" if watched.printed is None else _printed(watched.printed, self._cluster.noise)
            message += f"; it printed: {printed}" if printed else ""
            if not self.reach(watched.spec).bootstrap:  # which says itself what it cannot read
                message += f". See that {state.node or 'the node'} sees {sys.executable} and {self._address}"
        return state.reason or "infrastructure", message

    # -- beside them -------------------------------------------------------------------------------

    def _soon(self) -> None:
        """Ask the scheduler at the next look."""
        self._ask_at = min(self._ask_at, (self._asked[-1] if self._asked else 0.0) + 2 * self._pauses[0])

    def _wait(self, watched: _Watched, why: str) -> None:
        if why != watched.waits and not watched.started:
            watched.waits = why
            self._sink(Waiting(handle=watched.handle, why=why))

    def _end(self, watched: _Watched, reason: str | None, message: str | None) -> None:
        with self._changed:
            if self._jobs.get(watched.handle) is not watched:
                return
            del self._jobs[watched.handle]
        with contextlib.suppress(UpshiftError):  # then what it printed last is in the bucket only
            self._bring(watched, self._store_of(watched.spec))
        with self._changed:
            self._over.append(watched)
        for path in _order_files(self._root, watched.job) if self._is_seen else ():
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            if watched.printed and (reason is None or not watched.printed.stat().st_size):
                watched.printed.unlink()
        if watched.base is not None:
            self.forget(watched.base)
        lost = watched.said.get("node") if watched.said.get("lost") else None
        self._sink(Ended(handle=watched.handle, reason=reason, message=message, node=lost))

    def _seats(self, spec: TaskSpec) -> dict[str, str]:
        """What the nodes of an attempt are told, if there are several."""
        nodes = nodes_of(spec)
        if nodes == 1:
            return {}
        return {**self._cluster.seat, seats.NODES: str(nodes), seats.TOKEN: secrets.token_hex(16)}

    def _is_settled(self, job: Job) -> bool:
        """Whether it has recorded what nobody can say better; its supervisor may not have left yet."""
        result = self._store_of(job.spec).read_result(job.spec.task, job.spec.attempt)
        return result is not None and result.status != "failed"

    def _order(self, spec: TaskSpec) -> str:
        from upshift.runtime.supervisor.serving.protocol import order_of

        values, argv = dict(secrets_of(spec)), tuple(sys.argv)
        said = order_of(argv=argv, secrets=values, wait=60.0, stop_record=not self._cluster.signals)
        return said.decode().strip()

    def _store_of(self, spec: TaskSpec) -> Store:
        found = self._stores.get(spec.store)
        if found is None:
            found = self._stores[spec.store] = store_of(spec)
        return found

    # -- a store in a bucket -----------------------------------------------------------------------

    def _put(self, batch: _Batch) -> None:
        """Have what the batch needs where its nodes see it: a folder is as they do."""
        first = batch.watched[0].spec
        store = self._store_of(first)
        if store.direct:
            uploads = self._uploads_of(store)
            uploads.put_blobs(filter(None, {watched.spec.runtime for watched in batch.watched}))
            side_by_side(partial(self._put_spec, store), [watched.job.spec_path for watched in batch.watched])
        if batch.draft.content is not None:
            store.write_array(batch.draft.path, batch.draft.content)

    def _put_spec(self, store: Store, path: str) -> None:
        content = Path(store.address, path).read_bytes()
        self._uploads_of(store).put(path, content)
        if not store.put_spec(path, content):
            raise BackendError(
                f"another engine has begun {path}", fix="See who owns the run: upshift show RUN."
            )

    def _bring(self, watched: _Watched, store: Store) -> None:
        """Have all that an attempt has left in a bucket here, once it is over."""
        if not store.direct or store.replica is None:
            return
        base = attempt_path(watched.spec.task, watched.spec.attempt, "")
        if "ended" not in watched.said:  # nor what it printed last
            store.replica.bring_appended(base)
        content = store.result_record(watched.spec.task, watched.spec.attempt)
        if content is not None:
            self._uploads_of(store).found(content)

    def _sweep(self) -> None:
        """Remove live records of attempts that are over."""
        with self._changed:
            over, self._over = self._over, []
        by_store: dict[str, list[_Watched]] = {}
        for watched in over:
            by_store.setdefault(watched.spec.store, []).append(watched)
        for those in by_store.values():
            store = self._store_of(those[0].spec)
            for watched in those:
                store.forget_stop(watched.spec.task, watched.spec.attempt)
            store.live.forget([(watched.spec.task, watched.spec.attempt) for watched in those])

    def _uploads_of(self, store: Store) -> Uploads:
        from upshift.runs.uploads import uploads_of  # where all is in a folder, nothing goes anywhere

        if self._uploads is None:
            self._uploads = uploads_of(store)
        return self._uploads

    # -- of earlier engines ------------------------------------------------------------------------

    def _found(self, jobs: Sequence[Job]) -> dict[Handle, _Watched]:
        """Jobs of an earlier engine that the scheduler has, by themselves or in arrays."""
        folders = {os.path.dirname(os.path.join(self._root, job.spec_path)) for job in jobs}
        arrays = {folder: listed(folder) if self._arrays is not None else {} for folder in folders}
        places: dict[str, list[tuple[_Watched, int | None, str]]] = {}
        for job in jobs:
            folder, spec = os.path.split(os.path.join(self._root, job.spec_path))
            handle = name_of(job.spec)
            output = os.path.join(folder, spec.removesuffix(".spec.json") + ".out")
            places.setdefault(handle, []).append((_Watched(job, handle), None, output))
            for name, element in arrays[folder].get(spec, ()):
                output = os.path.join(folder, f"{name}.out")
                places.setdefault(name, []).append((_Watched(job, handle), element, output))
        found: dict[Handle, _Watched] = {}
        try:
            ids = self._cluster.find(places.keys()) if places else {}
        except NotNow as error:
            raise BackendError(
                f"{self._cluster.title} does not say whether jobs of the run still run",
                why=str(error),
                fix="Try again when it answers.",
            ) from None
        for name, id in ids.items():
            for watched, number, output in places[name]:
                watched.base, watched.own, watched.element = id, number, number
                watched.printed = _printed_of(output, number)
                if number is not None:
                    self._follow(watched)
                found[watched.handle] = watched
        return found


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that somebody has set."""
    return {
        name: value for name, value in settings.items() if value is not None and value not in ((), [], {})
    }


def _order_files(address: str, job: Job) -> list[Path]:
    """Where the supervisor on each node of an attempt finds what nobody else may see."""
    spec = os.path.join(address, job.spec_path).removesuffix(".spec.json")
    return [Path(f"{spec}.order.{node}") for node in range(nodes_of(job.spec))]


def _printed_of(output: str | None, element: int | None) -> Path | None:
    """The file of what a job prints."""
    if output is None:
        return None
    path = Path(output)
    return path if element is None else path.with_name(f"{path.stem}.{element}{path.suffix}")


def _printed(path: Path, noise: re.Pattern[str]) -> str:
    """The last lines of a file, if there are some, that are not of the scheduler's taking processes down."""
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return " / ".join([line.strip() for line in lines if line.strip() and not noise.match(line)][-3:])


def _words(error: Exception) -> str:
    if isinstance(error, NotNow):
        return str(error)
    return error.in_short if isinstance(error, UpshiftError) else f"{type(error).__name__}: {error}"
