"""A backend whose tasks a scheduler starts: what Slurm and whatever comes next have in common.

::

    submit ──► Submitter ── thread ──► Cluster.submit
    Watcher ── thread: live records in the store, many times a second ──► started, logged, ended
                       Cluster.states, every few seconds              ──► waiting, ended with its cause

A handle is a name that follows from the attempt, so that a job is found again whatever was recorded before
the engine was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upshift.backends.base import Ask, Capacity, Ended, Finding, Handle, Job, Offer, Sink, secrets_of
from upshift.backends.jobs import (
    Batch,
    JobLaunch,
    Jobs,
    Submission,
    Watched,
    listed,
    needs_order,
    printed_of,
    submission,
    submissions,
)
from upshift.backends.scheduler import (
    Arrays,
    Cluster,
    Full,
    Launch,
    NotNow,
    Reach,
    State,
    name_of,
    nodes_of,
    words_of,
)
from upshift.backends.watcher import LOOK, LOOK_IN_BUCKET, Watcher
from upshift.errors import BackendError, StoreUnavailable, UpshiftError
from upshift.model.settings.secrets import at_node
from upshift.model.spec import Hardware, TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.supervisor.protocol import ORDER, ORDER_FILE, sealed

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination

AGAIN = (0.5, 1.0, 2.0, 5.0)
"""Seconds until something that the scheduler did not take is tried again; then the last one again."""
GIVEN_UP = 600.0
"""Seconds after which a scheduler that does not answer is not asked to take a job any more."""


class Submitter:
    """Where jobs wait that the scheduler does not have yet."""

    def __init__(
        self, jobs: Jobs, cluster: Cluster, arrays: Arrays | None, *, submitted: Callable[[], None]
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._arrays = arrays
        self._submitted = submitted  # told when the scheduler has taken some, under the lock of the jobs
        self._room: list[Batch] = []

    def add(self, batches: Sequence[Batch]) -> None:
        """Queue these for submission."""
        with self._jobs.changed:
            self._jobs.by_handle.update((one.handle, one) for batch in batches for one in batch.watched)
            self._room += batches
            self._jobs.changed.notify_all()

    def batch(self, submission: Submission, known: Mapping[Handle, Watched] | None = None) -> Batch:
        """What the scheduler is given for it, and who is to hear of that: jobs already known, or new ones."""
        watched = []
        for number, part in submission.parts.items():
            name = part.launch.name
            one = (known or {}).get(name) or Watched(part.job, name)
            one.own = one.element = number
            one.printed = printed_of(submission.launch.output, number)
            watched.append(one)
        return Batch(submission, self._cluster.render(submission.launch), watched)

    def run(self) -> None:
        """Submit until the jobs are let go of."""
        while True:
            with self._jobs.changed:
                self._jobs.changed.wait_for(lambda: self._jobs.closed or self._room)
                if self._jobs.closed:
                    return
                batch = self._room.pop(0)
            try:
                self._submit(batch)
            except Exception as error:  # of ours: the jobs must not hang for it
                for watched in batch.watched:
                    self._jobs.end(watched, "infrastructure", words_of(error))

    def _submit(self, batch: Batch) -> None:
        """Submit jobs, for as long as the scheduler may take them yet."""
        since, tries, full = time.monotonic(), 0, False
        spec = batch.watched[0].spec
        own = {ORDER: self._order(spec), **self._seats(spec)}
        order: bytes | None = None
        if self._jobs.is_seen and needs_order(spec):
            key, order = sealed(own)
            own = {ORDER_FILE: f"{key} {self._jobs.place_of_order(batch.watched[0])}"}
        environment = {**batch.submission.launch.environment, **own}
        while not self._jobs.closed:
            name = batch.submission.launch.name
            try:
                id = self._cluster.find([name]).get(name) if tries else None
                if id is None:
                    wanted = self._without_cancelled(batch, half=full)
                    if wanted is None:
                        return
                    batch = wanted
                    self._jobs.put(batch)
                    if order is not None:
                        self._jobs.put_order(batch.watched[0], order)
                    id = self._cluster.submit(batch.script, environment)
            except BackendError as error:
                for watched in batch.watched:
                    self._jobs.end(watched, "infrastructure", error.in_short)
                return
            except (NotNow, OSError, StoreUnavailable) as error:
                full = isinstance(error, Full)
                if not full and time.monotonic() - since > GIVEN_UP:
                    for watched in batch.watched:
                        self._jobs.end(watched, "infrastructure", f"{words_of(error)}, since {GIVEN_UP:g} s")
                    return
                pause = 0.0 if full and len(batch.watched) > 1 else AGAIN[min(tries, len(AGAIN) - 1)]
                self._pause(batch, words_of(error), pause)
                tries += 1
            else:
                with self._jobs.changed:
                    for watched in batch.watched:
                        watched.base = id
                    self._submitted()
                    self._jobs.changed.notify_all()
                return

    def _pause(self, batch: Batch, why: str, seconds: float) -> None:
        """Wait, unless a job of the batch is cancelled."""
        for watched in batch.watched:
            self._jobs.wait(watched, why)
        with self._jobs.changed:
            self._jobs.changed.wait_for(
                lambda: self._jobs.closed or any(w.cancelled for w in batch.watched), seconds
            )

    def _without_cancelled(self, batch: Batch, *, half: bool) -> Batch | None:
        """The batch without jobs that nobody wants any more; if those are too many, their first half.

        The other half is the next to be submitted.
        """
        wanted = [watched for watched in batch.watched if not watched.cancelled]
        for watched in batch.watched:
            if watched.cancelled:
                self._jobs.end(watched, "cancelled", "cancelled before it was submitted")
        least = len(wanted) // 2 if half and len(wanted) > 1 else len(wanted)
        if least == len(batch.watched):
            return batch
        parts = {part.launch.name: part for part in batch.submission.parts.values()}
        known = {watched.handle: watched for watched in wanted}
        made = []
        for some in filter(None, (wanted[:least], wanted[least:])):
            assert self._arrays is not None  # there are several
            chosen = [parts[watched.handle] for watched in some]
            made.append(self.batch(submission(self._jobs.root, chosen, self._arrays), known))
        with self._jobs.changed:
            self._room[:0] = made[1:]
        return made[0] if made else None

    def _seats(self, spec: TaskSpec) -> dict[str, str]:
        """What the nodes of an attempt are told, if there are several."""
        nodes = nodes_of(spec)
        if nodes == 1:
            return {}
        return {**self._cluster.seat, seats.NODES: str(nodes), seats.TOKEN: secrets.token_hex(16)}

    def _order(self, spec: TaskSpec) -> str:
        from upshift.runtime.supervisor.protocol import order_of

        values, argv = dict(secrets_of(spec)), tuple(sys.argv)
        said = order_of(argv=argv, secrets=values, wait=60.0, stop_record=not self._cluster.signals)
        return said.decode().strip()


ENDING = 10.0
"""Seconds after the last grace that a supervisor is given to record what became of its step."""


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
        self._own = name
        self._address = store
        self._options = options
        self._jobs = Jobs(store, sink, is_seen=is_seen, forget=self.forget)
        pauses = LOOK if self._jobs.root == store else LOOK_IN_BUCKET
        self._watcher = Watcher(self._jobs, cluster, arrays, pauses=pauses, advice=self._advice)
        self._submitter = Submitter(self._jobs, cluster, arrays, submitted=self._watcher.submitted)
        self._threads: list[threading.Thread] = []

    def capacity(self) -> Capacity | None:
        """The scheduler queues jobs itself."""
        return None

    def offer(self, ask: Ask) -> Offer:
        """What the scheduler would reserve."""
        return self._cluster.offer(ask, {**self._options, **_said(ask.settings)})

    def findings(self) -> Iterator[Finding]:
        """What the scheduler says, and what steps find on its nodes."""
        try:
            yield from self.findings_of_cluster()
        except NotNow as error:
            raise BackendError(str(error), fix="Try again in a moment.") from None
        yield self.images()

    def findings_of_cluster(self) -> Iterator[Finding]:
        """What the scheduler says. Raises ``NotNow``."""
        return self._cluster.findings(self._options)

    def images(self) -> Finding:
        """The images or the Python that steps run in."""
        return Finding(
            name="images",
            text=f"none: steps run in {sys.executable}, which each node has to have under this path",
        )

    def destination(self) -> Destination | None:
        """Steps run in the environment of the run."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> list[str]:
        """What the scheduler would be given."""
        launches = [JobLaunch(job, self.launch_of(job, name_of(job.spec), sketch=True)) for job in jobs]
        return [
            self._cluster.render(one.launch) for one in submissions(self._jobs.root, launches, self._arrays)
        ]

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Give jobs to the scheduler, on a thread."""
        answers: dict[int, Handle | BackendError] = {}
        job_launches = []
        for number, job in enumerate(jobs):
            try:
                job_launches.append(JobLaunch(job, self.launch_of(job, name_of(job.spec))))
                answers[number] = job_launches[-1].launch.name
            except UpshiftError as error:
                answers[number] = BackendError(error.in_short, fix=error.fix)
        try:
            batches = [
                self._submitter.batch(one) for one in submissions(self._jobs.root, job_launches, self._arrays)
            ]
        except (UpshiftError, NotNow) as error:
            refusal = BackendError(words_of(error), fix=getattr(error, "fix", None))
            return [answer if isinstance(answer, BackendError) else refusal for answer in answers.values()]
        for one in job_launches:
            spec = one.job.spec
            self._jobs.store_of(spec).live.forget([(spec.task, spec.attempt)])
        self._submitter.add(batches)
        self._work()
        return [answers[number] for number in range(len(jobs))]

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Watch jobs that the scheduler has, or that have ended for a reason that nobody has heard."""
        ended: dict[Handle, Ended | None] = {handle: Ended(handle=handle) for handle in jobs}
        open_ = [
            job
            for handle, job in jobs.items()
            if handle not in self._jobs.by_handle and not self._is_settled(job)
        ]
        for handle, found in self._found(open_).items():
            with self._jobs.changed:
                self._jobs.by_handle[handle] = found
                self._watcher.found()
                self._jobs.changed.notify_all()
            self._work()
        return ended | {handle: None for handle in jobs if handle in self._jobs.by_handle}

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Handles follow from attempts; None: the scheduler has no such job, or it has a result."""
        names = {name_of(job.spec): job for job in jobs}
        open_ = [
            job
            for name, job in names.items()
            if name not in self._jobs.by_handle and not self._is_settled(job)
        ]
        there = self._found(open_).keys() | self._jobs.by_handle.keys()
        return [name if name in there else None for name in map(name_of, (job.spec for job in jobs))]

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """Withdraw jobs, or let their supervisors stop the steps."""
        now = time.monotonic()
        stops = [(now, grace > 0, False), (now + grace + ENDING, False, True)]
        if grace > 0:
            stops.insert(1, (now + grace, False, False))
        with self._jobs.changed:
            for watched in filter(None, map(self._jobs.by_handle.get, handles)):
                watched.cancelled, watched.stops = True, list(stops)
            self._jobs.changed.notify_all()

    def close(self) -> None:
        """Stop watching; the jobs continue."""
        with self._jobs.changed:
            self._jobs.closed = True
            self._jobs.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        with contextlib.suppress(UpshiftError):  # whoever looks for others of the run finds more than that
            self._jobs.sweep(last=True)

    def launch_of(self, job: Job, name: str, *, sketch: bool = False) -> Launch:
        """A job as it is rendered; in a sketch of it, the runtime may not be in its place yet."""
        from upshift.code.runtime_package import bootstrap, runtime_blob
        from upshift.runtime.storage import home_folders

        spec, store, reach = job.spec, self._jobs.store_of(job.spec), self.reach(job.spec)
        digest = spec.runtime or runtime_blob(store)
        python, path = reach.python or sys.executable, os.path.join(store.address, job.spec_path)
        environment = {} if reach.home is None else {"UPSHIFT_NODE_HOME": reach.home}
        command: tuple[str, ...]
        if store.replica is not None or reach.bootstrap:
            there = store.name if store.replica is not None else reach.store or store.address
            command = (
                python,
                "-Sc",
                bootstrap(there),
                f"{there}/{blob_key(digest)}",
                f"{there}/{job.spec_path}",
            )
            if store.replica is not None:
                environment |= store.replica.objects.environment
        else:
            runtime = (
                home_folders.folder_of(digest) if sketch else home_folders.unpacked_runtime(digest, store)
            )
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
        """The end of this job and of all its elements was told: the scheduler may drop its record."""

    def _work(self) -> None:
        if not self._threads:
            for name, run in (("submitter", self._submitter.run), ("watcher", self._watcher.run)):
                self._threads.append(threading.Thread(target=run, name=f"upshift-{name}", daemon=True))
                self._threads[-1].start()

    def _advice(self, watched: Watched, state: State) -> str:
        """Where to look if no supervisor has said a word; the bootstrap says itself what it cannot read."""
        if self.reach(watched.spec).bootstrap:
            return ""
        return f". See that {state.node or 'the node'} sees {sys.executable} and {self._address}"

    def _is_settled(self, job: Job) -> bool:
        """Whether it has recorded what nobody can say better; its supervisor may not have left yet."""
        result = self._jobs.store_of(job.spec).read_result(job.spec.task, job.spec.attempt)
        return result is not None and result.status != "failed"

    def _found(self, jobs: Sequence[Job]) -> dict[Handle, Watched]:
        """Jobs of an earlier engine that the scheduler has, by themselves or in arrays."""
        folders = {os.path.dirname(os.path.join(self._jobs.root, job.spec_path)) for job in jobs}
        arrays = {folder: listed(folder) if self._arrays is not None else {} for folder in folders}
        places: dict[str, list[tuple[Watched, int | None, str]]] = {}
        for job in jobs:
            folder, spec = os.path.split(os.path.join(self._jobs.root, job.spec_path))
            handle = name_of(job.spec)
            output = os.path.join(folder, spec.removesuffix(".spec.json") + ".out")
            places.setdefault(handle, []).append((Watched(job, handle), None, output))
            for name, element in arrays[folder].get(spec, ()):
                output = os.path.join(folder, f"{name}.out")
                places.setdefault(name, []).append((Watched(job, handle), element, output))
        found: dict[Handle, Watched] = {}
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
                watched.printed = printed_of(output, number)
                if number is not None:
                    self._watcher.follow(watched)
                found[watched.handle] = watched
        return found


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that somebody has set."""
    return {
        name: value for name, value in settings.items() if value is not None and value not in ((), [], {})
    }
