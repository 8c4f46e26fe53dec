"""The part that the supervisor of the only node has in a task, or that of the first of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from upshift.errors import BackendError, UpshiftError
from upshift.model.spec import Failure, TaskSpec
from upshift.runtime import causes
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.serving.supervisor import Supervisor
from upshift.runtime.supervisor.starters.fresh import FreshStarter

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.stock import Grant
    from upshift.runtime.supervisor.several.gathering import Gathering
    from upshift.runtime.supervisor.several.nodes import Nodes


class First:
    """The part of the only node, or of the first one: all that is decided is decided here.

    Parameters
    ----------
    spec, store
        The task.
    secrets
        Values of the step's secrets, by variable.
    starter
        Starts a process.
    seat
        Where further nodes come to; None: there are none.
    """

    def __init__(
        self,
        spec: TaskSpec,
        store: Store,
        loop: Loop,
        supervisor: Supervisor,
        secrets: Mapping[str, str],
        *,
        starter: FreshStarter,
        seat: Seat | None = None,
    ) -> None:
        self.problem: str | None = None
        self._spec = spec
        self._store = store
        self._loop = loop
        self._supervisor = supervisor
        self._secrets = secrets
        self._starter = starter
        self._seat = seat
        self._gathering: Gathering | None = None
        self._grant: Grant | None = None

    @property
    def busy(self) -> bool:
        return self._supervisor.busy or self._gathering is not None

    def start(self, grant: Grant | None) -> None:
        if self._seat is None:
            self._begin(grant, None)
            return
        from upshift.runtime.supervisor.several.gathering import (
            Gathering,  # what no other task needs is not imported
        )

        self._grant = grant
        try:
            self._gathering = Gathering(
                self._loop,
                self._spec,
                self._store,
                self._seat,
                complete=self._gathered,
                refuse=self._ungathered,
                tell=self.tell,
            )
        except BackendError as error:
            self._ungathered(causes.unavailable(error))

    def refuse(self, failure: Failure) -> None:
        try:
            self._supervisor.refuse(self._spec, self._store, failure)
        except UpshiftError as error:
            self._cannot(error)

    def tell(self, why: str) -> None:
        """Nobody is told of that here."""

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        what = "the container" if self._seat is None else "the supervisor of node 0"
        why = None if asked else causes.stopped_from_outside(what, name)
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
        if self._grant is not None:
            self._grant.give_back()
        self.refuse(failure)

    def _begin(self, grant: Grant | None, nodes: Nodes | None) -> None:
        try:
            self._supervisor.start(self._spec, self._store, self._starter, self._secrets, grant, nodes)
        except (OSError, UpshiftError) as error:
            if grant is not None:
                grant.give_back()
            if nodes is not None:
                nodes.close()
            if isinstance(error, BackendError):
                self.refuse(causes.unavailable(error))
            else:
                self._cannot(error)

    def _cannot(self, error: OSError | UpshiftError) -> None:
        self.problem = causes.not_started(error)
