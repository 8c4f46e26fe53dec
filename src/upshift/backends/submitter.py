"""Gives jobs to a scheduler, on a thread, for as long as it may take them yet."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from upshift.backends.arrays import Draft, draft
from upshift.backends.base import Handle, secrets_of
from upshift.backends.scheduler import Arrays, Cluster, Full, NotNow, nodes_of, words_of
from upshift.backends.watched import Batch, Jobs, Watched, needs_order, printed_of
from upshift.errors import BackendError, StoreUnavailable
from upshift.model.spec import TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.supervisor.serving.protocol import ORDER
from upshift.runtime.supervisor.serving.sealed_order import ORDER_FILE, sealed

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
        """Have these submitted, in their turn."""
        with self._jobs.changed:
            self._jobs.by_handle.update((one.handle, one) for batch in batches for one in batch.watched)
            self._room += batches
            self._jobs.changed.notify_all()

    def batch(self, draft: Draft, known: Mapping[Handle, Watched] | None = None) -> Batch:
        """What is submitted for a draft, and who is to hear of it: jobs that are known, or new ones."""
        watched = []
        for number, part in draft.parts.items():
            name = part.launch.name
            one = (known or {}).get(name) or Watched(part.job, name)
            one.own = one.element = number
            one.printed = printed_of(draft.launch.output, number)
            watched.append(one)
        return Batch(draft, self._cluster.render(draft.launch), watched)

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
        environment = {**batch.draft.launch.environment, **own}
        while not self._jobs.closed:
            name = batch.draft.launch.name
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
        parts = {part.launch.name: part for part in batch.draft.parts.values()}
        known = {watched.handle: watched for watched in wanted}
        made = []
        for some in filter(None, (wanted[:least], wanted[least:])):
            assert self._arrays is not None  # there are several
            chosen = [parts[watched.handle] for watched in some]
            made.append(self.batch(draft(self._jobs.root, chosen, self._arrays), known))
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
        from upshift.runtime.supervisor.serving.protocol import order_of

        values, argv = dict(secrets_of(spec)), tuple(sys.argv)
        said = order_of(argv=argv, secrets=values, wait=60.0, stop_record=not self._cluster.signals)
        return said.decode().strip()
