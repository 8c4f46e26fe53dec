"""The fork server: the supervisor of all tasks of a run on this machine.

::

    engine ══ socket ══▶ fork server ══ socket ══▶ zygote ──fork──▶ step process ──▶ …
                          │                          │    └─fork──▶ step process
                          │                          └ the user's modules, imported once
                          └ a lock file that every process below holds open

It is forked from the process that has the user's modules already, or started afresh where that
process cannot be forked safely; where its zygote cannot be, step processes start afresh. It leaves
the engine's session and outlives the engine: tasks that run when the engine is killed finish, and
record their results. When it dies itself, its zygote and its step processes die with it; what they
had started in turn holds the lock, or carries the server's name in its environment, and is found by
:func:`sweep`.

The socket takes packets of JSON: ``run``, ``cancel``, ``preload``, ``query``; it gives ``waiting``,
``started``, ``log``, ``ended``, ``status``.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import signal
import socket
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import attrs

from upshift.config.home import home
from upshift.errors import UpshiftError
from upshift.spec import Failure, MetricValue, TaskId, TaskSpec
from upshift.store import claims
from upshift.store.serializers import scratch
from upshift.store.store import Store, open_store
from upshift.worker import proc, sockets
from upshift.worker.attempt import Attempt
from upshift.worker.confine import MARKER
from upshift.worker.fresh import FreshStarter
from upshift.worker.loop import Loop
from upshift.worker.nursery import Nursery
from upshift.worker.peer import Peer
from upshift.worker.streams import own_streams
from upshift.worker.supervisor import Key, Supervisor

if TYPE_CHECKING:
    from upshift.worker.stock import Grant


@attrs.frozen
class Place:
    """Where a fork server of this name keeps its files.

    Parameters
    ----------
    name
        Unique on this machine.
    """

    name: str

    @property
    def folder(self) -> Path:
        return home() / "forkservers"

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.name}.lock"

    @property
    def errors(self) -> Path:
        return self.folder / f"{self.name}.err"

    def remove(self) -> None:
        """Remove the files."""
        for path in (self.socket, self.lock, self.errors):
            path.unlink(missing_ok=True)


def handle(name: str, task: TaskId, attempt: int) -> str:
    """The name of an attempt under the server of this name."""
    return f"{name}/{task.run}/{task}#{attempt}"


def sweep(place: Place) -> None:
    """Kill whatever is left of a fork server that has died, and wait until it is gone."""
    if not place.lock.exists():
        return
    marker = f"{MARKER}={place.name}"
    while True:
        left = list(proc.holders(str(place.lock), marker))
        if not left:
            break
        watched: list[int] = []
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                watched.append(os.pidfd_open(pid))
        proc.kill(left)
        for descriptor in watched:
            _wait_for_exit(descriptor)
    scratch.sweep()
    place.remove()


def _wait_for_exit(pidfd: int) -> None:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    os.close(pidfd)


def serve(listener: socket.socket, place: Place) -> NoReturn:
    """Be the fork server, until no engine is connected and nothing runs."""
    code = 0
    try:
        _settle(place)
        scratch.sweep()
        ForkServer(listener, place).run()
        place.remove()
        claims.release_all()
    except BaseException:  # the engine reads it from the file when the server is gone
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def _settle(place: Place) -> None:
    """Leave the engine's session, terminal and signals."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    errors = os.open(place.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, nowhere), (1, errors), (2, errors)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(errors)
    own_streams()


class _Waiting(NamedTuple):
    """A task that has its devices, and waits for a process."""

    spec: TaskSpec
    store: Store
    secrets: Mapping[str, str]
    grant: Grant | None


class ForkServer:
    """Supervises attempts for whoever is connected."""

    def __init__(self, listener: socket.socket, place: Place) -> None:
        self._place = place
        self._lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._loop = Loop()
        self._supervisor = Supervisor(place.name, loop=self._loop, watcher=self)
        exited = self._supervisor.exited
        self._fresh = FreshStarter(
            self._loop,
            exited=exited,
            keep_open=(self._lock,),
            kin=lambda: {self._nursery.pid, *self._supervisor.kin},
        )
        self._nursery = Nursery(
            self._loop,
            exited=exited,
            changed=self._dispatch,
            kin=lambda: self._fresh.live | self._supervisor.kin,
        )
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._cancelled: dict[Key, float] = {}
        self._listener = sockets.private(listener)
        self._engines: set[Peer] = set()
        self._stores: dict[str, Store] = {}
        self._engine_came = False

    def run(self) -> None:
        """Serve until the last engine has gone and the last attempt has ended."""
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._accept)
        while not self._engine_came or self._engines or self._keys() or self._supervisor.busy:
            self._loop.turn()
        self._nursery.close()
        self._supervisor.close()

    # -- engines ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection = sockets.private(self._listener.accept()[0])
        except BlockingIOError:
            return
        self._engine_came = True
        self._engines.add(Peer(self._loop, connection, self._receive, self._gone))

    def _gone(self, engine: Peer) -> None:
        self._engines.discard(engine)
        if not self._engines:  # what has not started does not start: resume asks for it anew
            self._supervisor.devices.forget()

    def _receive(self, engine: Peer, message: dict[str, Any]) -> None:
        getattr(self, f"_do_{message.pop('do')}")(engine, **message)

    def _tell(self, message: Mapping[str, Any], *, droppable: bool = False) -> None:
        for engine in list(self._engines):
            engine.send(message, droppable=droppable)

    # -- what an engine asks for ------------------------------------------------------------------

    def _do_run(
        self,
        engine: Peer,
        name: str,
        store: str,
        spec: str,
        durability: str,
        secrets: Mapping[str, str],
        wait: float,
        share: bool,
    ) -> None:
        try:
            opened = self._stores.get(store)
            if opened is None:
                opened = self._stores[store] = open_store(store, durability=durability)
                self._nursery.open(store, durability)
            task = opened.read_spec(spec)
        except (OSError, UpshiftError) as error:
            self._not_started(name, error)
            return
        self._supervisor.devices.ask(
            task,
            ready=lambda grant: self._ready(_Waiting(task, opened, secrets, grant)),
            tell=lambda why: self._tell({"event": "waiting", "handle": name, "why": why}),
            refuse=lambda failure: self._refuse(name, task, opened, failure),
            wait=wait,
            share=share,
        )

    def _ready(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._dispatch()

    def _refuse(self, name: str, spec: TaskSpec, store: Store, failure: Failure) -> None:
        problem = None
        try:
            self._supervisor.refuse(spec, store, failure)
        except UpshiftError as error:
            problem = f"{failure.message}; and the result could not be written: {error.in_short}"
        self._tell({"event": "ended", "handle": name, "problem": problem})

    def _dispatch(self) -> None:
        """Start what waits, as far as there are processes for it; have one more than is needed."""
        while self._waiting and (self._nursery.ready() or self._nursery.unsafe is not None):
            spec, store, secrets, grant = self._waiting.popleft()
            starter = self._nursery if self._nursery.ready() else self._fresh
            try:
                self._supervisor.start(spec, store, starter, secrets, grant)
            except (OSError, UpshiftError) as error:
                if grant is not None:
                    grant.give_back()
                self._not_started(handle(self._place.name, spec.task, spec.attempt), error)
            grace = self._cancelled.pop((spec.task, spec.attempt), None)
            if grace is not None:
                self._supervisor.cancel(spec.task, spec.attempt, grace)
        self._nursery.keep(len(self._waiting) + 1)

    def _not_started(self, name: str, error: OSError | UpshiftError) -> None:
        why = error.in_short if isinstance(error, UpshiftError) else str(error)
        self._tell({"event": "ended", "handle": name, "problem": f"the task could not be started: {why}"})

    def _do_cancel(self, engine: Peer, name: str, grace: float) -> None:
        for spec in self._supervisor.devices.asking:
            if handle(self._place.name, spec.task, spec.attempt) == name:
                self._supervisor.devices.cancel(spec)
                return
        for task, attempt in self._keys():
            if handle(self._place.name, task, attempt) != name:
                continue
            if (task, attempt) in self._supervisor.attempts:
                self._supervisor.cancel(task, attempt, grace)
            else:
                self._cancelled[task, attempt] = grace

    def _do_query(self, engine: Peer, name: str) -> None:
        running = any(handle(self._place.name, *key) == name for key in self._keys())
        engine.send({"event": "status", "handle": name, "running": running})

    def _do_preload(self, engine: Peer, code: Mapping[str, Any], module: str) -> None:
        self._nursery.preload(code, module)

    def _keys(self) -> list[Key]:
        waiting = [*self._supervisor.devices.asking, *(waiting.spec for waiting in self._waiting)]
        return [*self._supervisor.attempts, *((spec.task, spec.attempt) for spec in waiting)]

    # -- as the watcher of the attempts -----------------------------------------------------------

    def started(self, attempt: Attempt) -> None:
        self._tell({"event": "started", "handle": self._handle(attempt)})

    def log_grew(self, attempt: Attempt, size: int) -> None:
        self._tell({"event": "log", "handle": self._handle(attempt), "size": size}, droppable=True)

    def logged(self, attempt: Attempt, step: float | None, values: Mapping[str, MetricValue]) -> None:
        news = {"event": "logged", "handle": self._handle(attempt), "step": step, "values": values}
        self._tell(news, droppable=True)

    def ended(self, attempt: Attempt, problem: str | None) -> None:
        self._tell({"event": "ended", "handle": self._handle(attempt), "problem": problem})

    def _handle(self, attempt: Attempt) -> str:
        return handle(self._place.name, attempt.spec.task, attempt.spec.attempt)


def main(listener: int, name: str) -> NoReturn:
    """Be a fork server that was started afresh, on a listening socket that was passed on."""
    try:
        sock = socket.socket(fileno=listener)
    except OSError as error:
        raise UpshiftError("the fork server got no socket", why=str(error)) from None
    serve(sock, Place(name))
