"""What a supervisor does of its one task: all of it, or what its seat says where there are several nodes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import attrs

from upshift.errors import BackendError, UpshiftError
from upshift.model.spec import Failure, TaskSpec
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.array_element import claim_of
from upshift.runtime.supervisor.ends import not_started, stopped_from_outside, unavailable
from upshift.runtime.supervisor.members import Overflow
from upshift.runtime.supervisor.protocol import (
    AT_ONCE,
    WITH_GRACE,
)
from upshift.runtime.supervisor.starters import FreshStarter
from upshift.runtime.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant
    from upshift.runtime.supervisor.nodes import Nodes
    from upshift.runtime.supervisor.rendezvous import Rendezvous


HEED = (0.5, 3.0)
"""Seconds between two looks for a record that cancels the task: in a folder, and in a bucket."""
ENDING = 5.0
"""Seconds that a step is given at most where an engine is told to stop its container: it waits for 10."""


class Role(Protocol):
    """What a supervisor does of a task: all of it, or what is to be done on one of its nodes."""

    @property
    def busy(self) -> bool:
        """Whether there is something left to do."""

    @property
    def problem(self) -> str | None:
        """Why nothing was recorded; None: that is told elsewhere, if so."""

    def start(self, grant: Grant | None) -> None:
        """Start with what the task was granted here."""

    def refuse(self, failure: Failure) -> None:
        """Record that the task gets nothing, and why."""

    def tell(self, why: str) -> None:
        """The task waits for devices; ``why`` says for which."""

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        """A signal of this name has come: because the run is cancelled, or by somebody else."""


class TaskLoop:
    """Turns the loop until a task is over, and then perhaps until another one is. Signals stop it."""

    def __init__(
        self,
        loop: Loop,
        supervisor: Supervisor,
        starter: FreshStarter,
        overflow: Overflow,
        *,
        seat: Seat | None,
        ordered: bool,
    ) -> None:
        self.told = False  # whether it was told to stop
        self._heard: str | None = None  # by which record
        self._loop = loop
        self._supervisor = supervisor
        self._starter = starter
        self._overflow = overflow
        self._seat = seat
        self._ordered = ordered
        self._signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        used = {signal.SIGTERM, signal.SIGINT, WITH_GRACE, AT_ONCE}
        for number in used:
            signal.signal(number, lambda *_: None)  # what matters is the byte in the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, used)
        loop.watch(self._signals, self._signalled)

    def begin(
        self, spec: TaskSpec, store: Store, secrets: Mapping[str, str], *, claimed: bool = False
    ) -> Role:
        """Take care of this task, which may be claimed already; what this supervisor does of it.

        Of one that is claimed the store says whether it is what the engine wants to stop.
        """
        self._spec, self._named = spec, store if claimed else None
        self._role = self._role_in(spec, store, secrets, claimed=claimed)
        return self._role

    def to_its_end(self) -> str | None:
        """Wait until it is over, and say why nothing was recorded; None: that was told elsewhere, if so."""
        while self._role.busy or self._supervisor.devices.asking:
            self._loop.turn()
        return self._role.problem

    def heed(self, store: Store) -> None:
        """Look now and then for a record that says how to stop the task."""

        pause = HEED[store.direct]

        def look() -> None:
            with contextlib.suppress(UpshiftError):  # it is looked for again
                said = store.read_stop(self._spec.task, self._spec.attempt)
                if said and said != self._heard:
                    self._heard = said
                    self._stop(bytes([signal.Signals[said]]))
            self._loop.after(pause, look)

        self._loop.after(pause, look)

    def _role_in(self, spec: TaskSpec, store: Store, secrets: Mapping[str, str], *, claimed: bool) -> Role:
        seat, starter = self._seat, self._starter
        if seat is not None and spec.silence is not None:
            seat = attrs.evolve(seat, silence=spec.silence)
        if seat is None or seat.node == 0:
            return FirstNode(
                spec, store, self._loop, self._supervisor, secrets, starter=starter, seat=seat, mine=claimed
            )
        from upshift.runtime.supervisor.remote_supervisor import RemoteSupervisor  # no other task needs it

        role = RemoteSupervisor(
            spec,
            store,
            loop=self._loop,
            seat=seat,
            machine=self._supervisor.machine,
            starter=starter,
            secrets=secrets,
            overflow=self._overflow,
        )
        starter.tell(role.exited)
        return role

    def _signalled(self) -> None:
        self._stop(os.read(self._signals, 16))

    def _stop(self, got: bytes) -> None:
        self.told = True
        asked = not self._ordered or WITH_GRACE in got or AT_ONCE in got
        grace = 0.0 if AT_ONCE in got else self._spec.settings.grace_period
        if asked and self._named is not None and not self._is_meant(self._named):
            return
        self._supervisor.devices.cancel(self._spec)
        name = signal.Signals(got[0]).name
        self._role.stop(name, asked=asked, grace=grace if asked else min(grace, ENDING))

    def _is_meant(self, store: Store) -> bool:
        """Whether the engine has this very task in mind: another one may just have ended."""
        return store.read_stop(self._spec.task, self._spec.attempt) is not None


class FirstNode:
    """The part of the only node, or of the first one: all that is decided is decided here."""

    def __init__(
        self,
        spec: TaskSpec,
        store: Store,
        loop: Loop,
        supervisor: Supervisor,
        secrets: Mapping[str, str],
        *,
        starter: FreshStarter,
        seat: Seat | None,
        mine: bool,
    ) -> None:
        self.problem: str | None = None
        self._spec = spec
        self._store = store
        self._loop = loop
        self._supervisor = supervisor
        self._secrets = secrets
        self._starter = starter
        self._seat = seat
        self._mine = mine
        self._gathering: Rendezvous | None = None
        self._grant: Grant | None = None

    @property
    def busy(self) -> bool:
        return self._supervisor.busy or self._gathering is not None

    def start(self, grant: Grant | None) -> None:
        self._grant = grant
        if not self._mine and not self._is_mine():
            self._let_go()
            return
        if self._seat is None:
            self._begin(grant, None)
            return
        from upshift.runtime.supervisor.rendezvous import (
            Rendezvous,  # what no other task needs is not imported
        )

        try:
            self._gathering = Rendezvous(
                self._loop,
                self._spec,
                self._store,
                self._seat,
                complete=self._gathered,
                refuse=self._ungathered,
                tell=self.tell,
            )
        except BackendError as error:
            self._ungathered(unavailable(error))

    def refuse(self, failure: Failure) -> None:
        try:
            self._supervisor.refuse(self._spec, self._store, failure)
        except UpshiftError as error:
            self._cannot(error)

    def tell(self, why: str) -> None:
        """Nobody is told of that here."""

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        alone = "the container" if self._spec.image is not None else "the supervisor"
        what = alone if self._seat is None else "the supervisor of node 0"
        why = None if asked else stopped_from_outside(what, name)
        if self._gathering is not None:
            self._gathering.cancel()
            cancelled = Failure(reason="cancelled", message="cancelled before it ran")
            self._ungathered(why or cancelled)
        else:
            self._supervisor.cancel(self._spec.task, self._spec.attempt, grace, why)

    def _gathered(self, nodes: Nodes) -> None:
        self._gathering = None
        self._begin(self._grant, nodes)

    def _ungathered(self, failure: Failure) -> None:
        self._gathering = None
        self._let_go()
        self.refuse(failure)

    def _is_mine(self) -> bool:
        """Whether the attempt is this supervisor's: no engine has given it up, nor has it begun before."""
        task, number = self._spec.task, self._spec.attempt
        try:
            if self._store.claim_attempt(task, number, by=claim_of(None)):
                return True
            self.problem = f"attempt {number} of {task} has been given up, or has begun before"
        except UpshiftError as error:
            self._cannot(error)
        return False

    def _let_go(self) -> None:
        if self._grant is not None:
            self._grant.give_back()

    def _begin(self, grant: Grant | None, nodes: Nodes | None) -> None:
        try:
            self._supervisor.start(self._spec, self._store, self._starter, self._secrets, grant, nodes)
        except (OSError, UpshiftError) as error:
            if grant is not None:
                grant.give_back()
            if nodes is not None:
                nodes.close()
            if isinstance(error, BackendError):
                self.refuse(unavailable(error))
            else:
                self._cannot(error)

    def _cannot(self, error: OSError | UpshiftError) -> None:
        self.problem = not_started(error)
