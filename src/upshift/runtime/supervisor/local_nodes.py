"""Several nodes on one machine: further supervisors beside this one, each with an address of its own.

They are started as a cluster starts them, and know no other way to this one than the address that they are
told. What they have of the machine (CPUs, devices) no other node has.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from upshift.model.spec import Failure, TaskSpec
from upshift.model.spec.hardware import SUPERVISOR
from upshift.runtime.children import command
from upshift.runtime.confine import PR_SET_PDEATHSIG, prctl
from upshift.runtime.launch import seats
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.attempt import EXITING
from upshift.runtime.supervisor.forkable import inherited
from upshift.runtime.supervisor.node_runtime import CpuSet
from upshift.runtime.supervisor.nodes import Nodes, RemoteNode
from upshift.runtime.supervisor.protocol import order_of
from upshift.runtime.supervisor.rendezvous import Rendezvous

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant


WAIT = 120.0
"""Seconds that nodes wait for each other: nothing has to be fetched, and they have their devices."""
LEAVING = EXITING + 5.0
"""Seconds that a node has to leave once the attempt is over."""
_SAID = 1 << 16


def address_of(node: int) -> str:
    """The address of such a node: all of 127.0.0.0/8 is this machine."""
    return f"127.0.0.{node + 1}"


class LocalNodes:
    """The further nodes of one task; ``ended`` is called when nothing of them runs any more."""

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        secrets_of_step: Mapping[str, str],
        *,
        grants: Sequence[Grant],
        cpus: CpuSet,
        keep_open: tuple[int, ...],
        wait: float,
        share: bool,
        complete: Callable[[Nodes], None],
        refuse: Callable[[Failure], None],
        tell: Callable[[str], None],
        ended: Callable[[LocalNodes], None],
    ) -> None:
        self.spec = spec
        self._loop = loop
        self._cpus = cpus
        self._keep_open = keep_open
        self._tell_ended = ended
        self._running: dict[int, _Supervisor] = {}
        count = (spec.granted.nodes if spec.granted is not None else None) or 1
        token, silence = secrets.token_hex(16), spec.silence or seats.silence(os.environ)
        main = Seat(
            node=0,
            nodes=count,
            token=token,
            main=address_of(0),
            port=0,
            name=address_of(0),
            address=address_of(0),
            wait=WAIT,
            silence=silence,
        )
        self._gathering = Rendezvous(
            loop, spec, store, main, complete=complete, refuse=refuse, tell=tell, bury=self._bury
        )
        order: dict[str, Any] = {"secrets": dict(secrets_of_step), "argv": tuple(sys.argv)}
        if not grants:
            order |= {"wait": wait, "share": share}
        try:
            for node in range(1, count):
                seat = Seat(
                    node=node,
                    nodes=count,
                    token=token,
                    main=address_of(0),
                    port=self._gathering.port,
                    name=address_of(node),
                    address=address_of(node),
                    wait=WAIT,
                    silence=silence,
                )
                path = f"{store.address}/{store.spec_path(spec.task, spec.attempt)}"
                self._start(seat, path, order, grants[node - 1] if grants else None)
        except OSError:
            self.cancel()
            raise

    @property
    def pids(self) -> set[int]:
        """The supervisors."""
        return set(self._running)

    def cancel(self) -> None:
        """The task does not start: send away those who have come, and those who have not."""
        self._gathering.cancel()
        for one in self._running.values():
            one.stop()
            one.must_leave(LEAVING)

    def let_go(self) -> None:
        """The attempt is over: its nodes leave by themselves, unless they cannot."""
        for one in self._running.values():
            one.must_leave(LEAVING)

    def _bury(self, remote: RemoteNode, then: Callable[[], None]) -> None:
        """Kill the supervisor of a node that is lost, be it dead or frozen: its processes die with it."""
        pids = [member.pid for member in remote.members.values() if member.pid and not member.ended]
        for one in self._running.values():
            if one.node == remote.number:
                pids.append(one.pid)
        awaited: set[int] = set()

        def gone(descriptor: int) -> None:
            self._loop.forget(descriptor)
            awaited.remove(descriptor)
            if not awaited:
                then()

        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                awaited.add(os.pidfd_open(pid))
        for descriptor in awaited:
            self._loop.watch(descriptor, partial(gone, descriptor))
        for one in self._running.values():
            if one.node == remote.number:
                one.kill()
        if not awaited:
            then()

    def _start(self, seat: Seat, path: str, order: Mapping[str, Any], grant: Grant | None) -> None:
        granted = self.spec.granted
        asked = granted is not None and granted.enforced_by("cpu") == SUPERVISOR
        cpus = self._cpus.take(granted.cpu_count) if asked and granted and granted.cpu_count else ()
        # Copies: a process that is forked here closes what this one holds.
        held = tuple(map(os.dup, grant.descriptors)) if grant is not None else ()
        given: dict[str, Any] = {}
        if grant is not None:
            given = {"devices": grant.devices, "remarks": grant.remarks, "less": grant.less}
        said = order_of(**order, **given, descriptors=held)
        keep_open = (*self._keep_open, *held)
        try:
            one = _Supervisor(self._loop, seat, path, said, cpus, keep_open=keep_open, ended=self._ended)
        finally:
            for descriptor in held:
                os.close(descriptor)
        if grant is not None:
            grant.hand_over()
        self._running[one.pid] = one

    def _ended(self, one: _Supervisor, code: int, words: str) -> None:
        del self._running[one.pid]
        self._cpus.give_back(one.cpus)
        self._gathering.node_died(one.node, words or f"exit code {code}")
        if not self._running:
            self._tell_ended(self)


class _Supervisor:
    """The supervisor of one node, as the one that has started it knows it."""

    def __init__(
        self,
        loop: Loop,
        seat: Seat,
        path: str,
        order: bytes,
        cpus: tuple[int, ...],
        *,
        keep_open: tuple[int, ...],
        ended: Callable[[_Supervisor, int, str], None],
    ) -> None:
        self.node = seat.node
        self.cpus = cpus
        self._loop = loop
        self._ended = ended
        self._said = bytearray()
        self._late = Timer(self.stop)
        with open(os.memfd_create("upshift-order"), "w+b") as said:  # a pipe may have less room
            said.write(order)
            said.seek(0)
            self._process = subprocess.Popen(
                command("--report", path),
                stdin=said,
                stdout=subprocess.PIPE,
                env={**inherited(), **seat.variables()},
                pass_fds=keep_open,
                start_new_session=True,
                preexec_fn=partial(_settle, cpus),  # nothing but this thread is alive
            )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._output = os.dup(self._process.stdout.fileno())
        self._process.stdout.close()
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._hear)
        self._exit = os.pidfd_open(self.pid)
        loop.watch(self._exit, self._exited)

    def stop(self) -> None:
        """Ask it to leave: it is not needed."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the supervisor."""
        self._process.kill()

    def must_leave(self, seconds: float) -> None:
        """Kill the supervisor unless it has left within so many seconds."""
        self._late.cancel()
        self._late = self._loop.after(seconds, self.kill)

    def _hear(self) -> None:
        try:
            data = os.read(self._output, _SAID)
        except BlockingIOError:
            return
        if data:
            self._said += data
        else:
            self._loop.unwatch(self._output)

    def _exited(self) -> None:
        self._late.cancel()
        self._loop.forget(self._exit)
        with contextlib.suppress(BlockingIOError, KeyError):
            while data := os.read(self._output, _SAID):
                self._said += data
        with contextlib.suppress(KeyError):
            self._loop.unwatch(self._output)
        os.close(self._output)
        self._ended(self, self._process.wait(), _last_words(bytes(self._said)))


def _settle(cpus: tuple[int, ...]) -> None:
    """Keep to these CPUs, and die with the process that has started this one."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if cpus:
        os.sched_setaffinity(0, cpus)


def _last_words(said: bytes) -> str:
    """Why a supervisor has recorded nothing, by what it has reported."""
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            content = json.loads(line)
            if isinstance(content, dict) and content.get("event") == "ended":
                return str(content.get("problem") or "")
    return ""
