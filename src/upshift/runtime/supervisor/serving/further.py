"""The part that the supervisor of a further node has in the one task that it is started for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from upshift.errors import UpshiftError
from upshift.model.spec import Failure, TaskSpec
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.proc import Consumed
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.serving.supervisor import Supervisor
from upshift.runtime.supervisor.several.remote_supervisor import Outpost
from upshift.runtime.supervisor.starters.starter import Starter

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.pool import Grant


class Further:
    """The part of a further node: what is decided at the first one is done here.

    Parameters
    ----------
    spec, store
        The task.
    secrets
        Values of the step's secrets, by variable.
    starter
        Starts a process.
    seat
        Which node this is.
    """

    def __init__(
        self,
        spec: TaskSpec,
        store: Store,
        loop: Loop,
        supervisor: Supervisor,
        secrets: Mapping[str, str],
        *,
        starter: Starter,
        seat: Seat,
    ) -> None:
        self._outpost = Outpost(
            spec,
            store=store,
            loop=loop,
            seat=seat,
            machine=supervisor.machine,
            starter=starter,
            secrets=secrets,
        )
        try:
            store.claim_run(spec.task.run)
        except UpshiftError as error:
            self.refuse(Failure(reason="infrastructure", message=error.in_short, fix=error.fix))
        self._outpost.join()

    @property
    def busy(self) -> bool:
        return self._outpost.busy

    @property
    def problem(self) -> str | None:
        return self._outpost.problem

    def start(self, grant: Grant | None) -> None:
        self._outpost.have(grant)

    def refuse(self, failure: Failure) -> None:
        self._outpost.refuse(failure)

    def tell(self, why: str) -> None:
        self._outpost.wait(why)

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        self._outpost.signalled(name, asked=asked, grace=grace)

    def exited(self, pid: int, status: int, consumed: Consumed) -> None:
        """A process that the starter has started has ended."""
        self._outpost.exited(pid, status, consumed)
