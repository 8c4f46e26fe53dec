"""How the process of a step ended, and what becomes of the attempt by that.

This is for a step of one process. What differs where there are several is in
:mod:`upshift.runtime.supervisor.ends_of_ranks`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import attrs

from upshift.errors import UpshiftError
from upshift.model.spec import Failure, Stack, TaskSpec
from upshift.runtime import causes, tracebacks
from upshift.runtime.launch.stacks import user_line, user_stack
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.members import Gang, LocalMember, Member
from upshift.runtime.supervisor.node_runtime import NodeRuntime
from upshift.runtime.tracebacks import at_home


@attrs.frozen
class Stop:
    """An attempt was stopped: the status of its result, and why."""

    status: str
    failure: Failure


class Ends:
    """How the only process of a task ended."""

    def __init__(self, spec: TaskSpec, store: Store, gang: Gang, node_runtime: NodeRuntime) -> None:
        self._spec = spec
        self._store = store
        self._gang = gang
        self._node_runtime = node_runtime
        self._deaths: dict[int, Failure] = {}

    def name_cells(self) -> None:
        """From now on lines of a notebook are called as it calls them."""
        with contextlib.suppress(UpshiftError):  # without its text a cell has the name of a file
            tracebacks.restore_cells(self._spec.entry.cells, self._store)

    def follows(self, member: Member) -> bool:
        """Whether what ended a process looks like the consequence of what ended another one."""
        return False

    def remarks(self) -> Iterable[str]:
        """What to say in the log when all have returned."""
        return ()

    def still_running(self) -> str:
        """Which processes still run, in words."""
        return "it still runs"

    def stacks(self) -> Sequence[Stack]:
        """Where those were that did not end by themselves."""
        return ()

    def failure_of(self, member: Member) -> Failure:
        """Why a process failed: it said so, or its end does."""
        if member.outcome is not None and member.outcome.failure is not None:
            return member.outcome.failure
        if member.number not in self._deaths:
            self._deaths[member.number] = self._died(member)
        return self._deaths[member.number]

    def verdict(self, stop: Stop | None, beyond: Failure | None) -> tuple[str, Failure | None]:
        """The status of the result, and why the attempt failed."""
        if self._gang.culprit.sight()[1]:
            self.name_cells()
        status = "failed"
        if beyond is not None:
            failure = self._beyond(beyond)
        elif self._gang.returned:
            return "completed", None
        elif stop is not None:  # it usually fails somehow then
            status, failure = stop.status, self._stopped(stop.failure)
        else:
            failure = self._cause()
        if failure.where is None and failure.reason != "cancelled":
            failure = attrs.evolve(failure, where=self._where(failure))
        return status, failure

    def _cause(self) -> Failure:
        """Why it failed that nobody has stopped."""
        return self.failure_of(self._gang.culprit)

    def _stopped(self, failure: Failure) -> Failure:
        """Why it was stopped, with where it was then."""
        return failure

    def _beyond(self, failure: Failure) -> Failure:
        """Why the attempt failed that went beyond its memory."""
        return failure

    def _where(self, failure: Failure) -> str | None:
        """Where the process was that failed, as far as that is known."""
        return self._last_line(self._gang.main) or self._spec.location

    def _last_line(self, member: Member) -> str | None:
        code = self._spec.code
        folder = self._spec.cwd if code.package is None else code.project
        return user_line(at_home(member.sight()[1], code), code.project, relative_to=folder)

    def _died(self, member: Member) -> Failure:
        """Why a process ended without an outcome; its last stack may tell."""
        code, stack = member.code or 0, at_home(member.sight()[1], self._spec.code)
        if code >= 0:
            return causes.exited(code)
        here = isinstance(member, LocalMember)
        explained = self._node_runtime.killed_for_memory(code) if here else member.explained
        return explained or causes.killed(-code, user_stack(stack, self._spec.code.project))
