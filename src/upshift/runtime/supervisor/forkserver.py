"""The fork server: the supervisor of all tasks of a run on this machine.

::

    engine ══ socket ══▶ fork server ══ socket ══▶ zygote ──fork──▶ step process ──▶ …
                          │                          │    └─fork──▶ step process
                          │                          └ the user's modules, imported once
                          └ a mark that every process below carries

It is forked from the process that has the user's modules already, or started afresh where that
process cannot be forked safely; where its zygote cannot be, step processes start afresh. It leaves
the engine's session and outlives the engine: tasks that run when the engine is killed finish, and
record their results. When it dies itself, its zygote and its step processes die with it; what they
had started in turn carries its mark (:mod:`upshift.runtime.marks`), and is ended by
:func:`upshift.runtime.supervisor.server_files.sweep`.

The socket takes packets of JSON: ``run``, ``cancel``, ``preload``, ``query``; it gives ``waiting``,
``started``, ``log``, ``ended``, ``status``.
"""

from __future__ import annotations

import collections
import enum
import fcntl
import gc
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from os import _exit
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from upshift.errors import BackendError, UpshiftError
from upshift.model.spec import Failure, MetricValue, TaskSpec
from upshift.runtime import children
from upshift.runtime.children import PACKET
from upshift.runtime.confine import open_more
from upshift.runtime.launch.ranks import processes
from upshift.runtime.loop import Loop
from upshift.runtime.messages import own_streams
from upshift.runtime.storage import claims, home_folders
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor.attempt import SupervisedAttempt
from upshift.runtime.supervisor.ends import not_started, unavailable
from upshift.runtime.supervisor.server_files import ServerFiles, handle
from upshift.runtime.supervisor.starters import FreshStarter
from upshift.runtime.supervisor.supervisor import Supervisor
from upshift.runtime.supervisor.zygote import SCARCE, ZygotePool
from upshift.runtime.tracebacks import mistake

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant
    from upshift.runtime.supervisor.local_nodes import LocalNodes
    from upshift.runtime.supervisor.nodes import Nodes


BACKLOG = 8
"""Engines that may be about to connect."""
UNWANTED = 60.0
"""Seconds in which the first engine connects, if it ever does."""


def serve(listener: socket.socket, place: ServerFiles) -> NoReturn:
    """Be the fork server, until no engine is connected and nothing runs."""
    code = 0
    try:
        listener.listen(BACKLOG)  # once more, so that whoever connects is told of this process
        _settle(place)
        gc.freeze()  # what the engine has left in memory is not looked through, so not copied
        home_folders.sweep()
        ForkServer(listener, place).run()
        place.remove()
        claims.release_all()
    except BaseException:  # the engine reads it from the file when the server is gone
        traceback.print_exc()
        code = 1
    finally:
        _exit(code)


def _settle(place: ServerFiles) -> None:
    """Leave the engine's session, terminal and signals."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    open_more()  # it has some for each attempt that runs
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


class _EngineConnection:
    """A connected engine: packets out, without ever waiting for it.

    What cannot be sent at once, because the other end does not read (it is stopped, or busy), is
    kept and sent when it does; of the notices that a log has grown only what is sent counts, since
    a later one says the same.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        receive: Callable[[_EngineConnection, dict[str, Any]], None],
        gone: Callable[[_EngineConnection], None],
    ) -> None:
        self._loop, self._connection = loop, connection
        self._receive, self._gone = receive, gone
        self._backlog: collections.deque[bytes] = collections.deque()
        self._writable: int | None = None
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._read)

    def send(self, message: Mapping[str, Any], *, droppable: bool = False) -> None:
        """Send a message, now or when the other end reads again."""
        if self._connection.fileno() < 0 or (droppable and self._backlog):
            return
        self._backlog.append(json.dumps(message).encode())
        self._write()

    def _write(self) -> None:
        while self._backlog:
            try:
                self._connection.send(self._backlog[0])
            except BlockingIOError:
                if self._writable is None:  # one descriptor is watched for one thing only
                    self._writable = os.dup(self._connection.fileno())
                    self._loop.watch_writable(self._writable, self._write)
                return
            except OSError:
                self._close()
                return
            self._backlog.popleft()
        self._stop_writing()

    def _read(self) -> None:
        try:
            packet = self._connection.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._receive(self, json.loads(packet))
        else:
            self._close()

    def _close(self) -> None:
        if self._connection.fileno() >= 0:
            self._backlog.clear()
            self._stop_writing()
            self._loop.forget(self._connection.detach())
            self._gone(self)

    def _stop_writing(self) -> None:
        if self._writable is not None:
            self._loop.forget(self._writable)
            self._writable = None


class _Wants(enum.Enum):
    """What a task waits for that does not run yet, in the order in which it gets that."""

    PORT = enum.auto()
    DEVICES = enum.auto()
    NODES = enum.auto()
    PROCESS = enum.auto()


@attrs.define(eq=False)
class _Task:
    """A task that an engine has asked for and that does not run yet, with what it has so far."""

    name: str
    spec: TaskSpec
    store: Store
    secrets: Mapping[str, str]
    wait: float
    share: bool
    wants: _Wants = _Wants.PORT
    grant: Grant | None = None
    local_nodes: LocalNodes | None = None
    nodes: Nodes | None = None

    def let_go(self) -> None:
        """Give back what the task has: it will not run."""
        if self.wants is _Wants.NODES and self.local_nodes is not None:
            self.local_nodes.cancel()
        if self.grant is not None:
            self.grant.give_back()
        if self.nodes is not None:
            self.nodes.close()


class ForkServer:
    """Supervises attempts for whoever is connected."""

    def __init__(self, listener: socket.socket, place: ServerFiles) -> None:
        self._place = place
        self._listener = children.private(listener)  # before anything is forked
        self._lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._loop = Loop()
        self._supervisor = Supervisor(place.name, loop=self._loop, watcher=self)
        exited = self._supervisor.exited
        self._fresh = FreshStarter(
            self._loop,
            exited=exited,
            keep_open=(self._supervisor.mark,),
            kin=lambda: {self._zygotes.pid, *self._kin()},
        )
        self._zygotes = ZygotePool(
            self._loop,
            exited=exited,
            changed=self._dispatch,
            kin=lambda: self._fresh.live | self._kin(),
        )
        self._tasks: dict[str, _Task] = {}
        self._local_nodes: set[LocalNodes] = set()
        self._engines: set[_EngineConnection] = set()
        self._stores: dict[str, Store] = {}
        self._engine_came = False

    def run(self) -> None:
        """Serve until the last engine has gone and the last attempt has ended."""
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._accept)
        self._loop.after(UNWANTED, self._give_up_waiting)
        while not self._engine_came or self._engines or self._tasks or self._supervisor.busy:
            self._loop.turn()
            self._look_for_ports()
        while self._local_nodes:  # those that were let go leave by themselves
            self._loop.turn()
        self._zygotes.close()
        self._supervisor.close()

    # -- engines ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection = children.private(self._listener.accept()[0])
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # as many files are open as may be: it is asked again when some may be closed
            listener = self._listener.fileno()
            self._loop.unwatch(listener)
            self._loop.after(SCARCE, lambda: self._loop.watch(listener, self._accept))
            return
        self._engine_came = True
        self._engines.add(_EngineConnection(self._loop, connection, self._receive, self._gone))

    def _give_up_waiting(self) -> None:
        """The engine that has started this one was killed before it could connect."""
        self._engine_came = True

    def _gone(self, engine: _EngineConnection) -> None:
        self._engines.discard(engine)
        if not self._engines:  # what has not started does not start: resume asks for it anew
            self._supervisor.devices.forget()
            for task in list(self._tasks.values()):
                if task.wants is not _Wants.PROCESS:
                    self._drop(task)

    def _receive(self, engine: _EngineConnection, message: dict[str, Any]) -> None:
        getattr(self, f"_do_{message.pop('do')}")(engine, **message)

    def _tell(self, event: str, name: str, *, droppable: bool = False, **content: Any) -> None:
        message = {"event": event, "handle": name, **content}
        for engine in list(self._engines):
            engine.send(message, droppable=droppable)

    # -- what an engine asks for ------------------------------------------------------------------

    def _do_run(
        self, engine: _EngineConnection, name: str, store: str, spec: str, options: dict[str, str], **own: Any
    ) -> None:
        try:
            opened = self._stores.get(store)
            if opened is None:
                opened = self._stores[store] = open_store(store, **options)
                self._zygotes.open(store, options)
            task = opened.read_spec(spec)
        except Exception as error:
            self._not_started(name, error)
            return
        self._tasks[name] = _Task(name, task, opened, **own)
        self._look_for_ports()

    def _wanting(self, what: _Wants) -> list[_Task]:
        return [task for task in self._tasks.values() if task.wants is what]

    def _drop(self, task: _Task) -> None:
        """Forget a task that will not run."""
        self._tasks.pop(task.name, None)
        task.let_go()

    def _look_for_ports(self) -> None:
        """Go on with each task whose processes can meet where they are to: at a port that no other has.

        The engine submits no two at once that want the same. But of one that has returned processes may yet
        be there, and the port is theirs until they have gone.
        """
        for task in self._wanting(_Wants.PORT):
            if not self._is_taken(task.spec):
                task.wants = _Wants.DEVICES
                self._ask_for_devices(task)

    def _is_taken(self, spec: TaskSpec) -> bool:
        if spec.launch is None or spec.launch.port is None:
            return False
        others = [task.spec for task in self._tasks.values() if task.wants is not _Wants.PORT]
        others += self._supervisor.lasting
        return any(other.launch is not None and other.launch.port == spec.launch.port for other in others)

    def _ask_for_devices(self, task: _Task) -> None:
        def ready(grant: Grant | None) -> None:
            task.grant = grant
            if _nodes(task.spec) > 1:
                self._gather(task)
            else:
                self._queue(task)

        try:
            self._supervisor.devices.ask(
                task.spec,
                ready=ready,
                tell=partial(self._waits, task),
                refuse=partial(self._refuse, task),
                wait=task.wait,
                share=task.share,
                nodes=_nodes(task.spec),
            )
        except Exception as error:
            self._drop(task)
            self._not_started(task.name, error)

    def _gather(self, task: _Task) -> None:
        """Start the further nodes of a task, and go on when they are there."""
        from upshift.runtime.supervisor.local_nodes import LocalNodes  # no other task needs it

        task.wants = _Wants.NODES

        def complete(nodes: Nodes) -> None:
            task.nodes = nodes
            self._queue(task)

        def troubled(error: Exception) -> None:
            if self._tasks.get(task.name) is task and task.wants is _Wants.NODES:
                self._refuse(task, mistake(error))
            else:
                self._supervisor.cancel(task.spec.task, task.spec.attempt, 0, mistake(error))

        try:
            task.local_nodes = LocalNodes(
                self._loop.confined(troubled),
                task.spec,
                task.store,
                task.secrets,
                grants=() if task.grant is None else task.grant.further,
                cpus=self._supervisor.machine.cpus,
                keep_open=(self._supervisor.mark,),
                wait=task.wait,
                share=task.share,
                complete=complete,
                refuse=partial(self._refuse, task),
                tell=partial(self._waits, task),
                ended=self._local_nodes.discard,
            )
        except Exception as error:
            self._cannot_start(task, error)
            return
        self._local_nodes.add(task.local_nodes)

    def _waits(self, task: _Task, why: str) -> None:
        self._tell("waiting", task.name, why=why)

    def _queue(self, task: _Task) -> None:
        """It has all but processes; it gets these after the tasks that wait for theirs already."""
        task.wants = _Wants.PROCESS
        self._tasks[task.name] = self._tasks.pop(task.name)
        self._dispatch()

    def _kin(self) -> set[int]:
        return self._supervisor.kin.union(*(nodes.pids for nodes in self._local_nodes))

    def _refuse(self, task: _Task, failure: Failure) -> None:
        """Record why it ended before it ran."""
        self._drop(task)
        problem = None
        try:
            self._supervisor.refuse(task.spec, task.store, failure)
        except UpshiftError as error:
            problem = f"{failure.message}; and the result could not be written: {error.in_short}"
        self._over(task.spec, problem)

    def _dispatch(self) -> None:
        """Start what waits, as far as there are processes for it; have one more than is needed."""
        for task in self._wanting(_Wants.PROCESS):
            forked = self._zygotes.ready(processes(task.spec))
            if not forked and self._zygotes.unsafe is None:
                break
            del self._tasks[task.name]
            starter = self._zygotes if forked else self._fresh
            try:
                self._supervisor.start(task.spec, task.store, starter, task.secrets, task.grant, task.nodes)
            except Exception as error:
                self._cannot_start(task, error)
        self._zygotes.keep(sum(processes(task.spec) for task in self._wanting(_Wants.PROCESS)) + 1)

    def _cannot_start(self, task: _Task, error: Exception) -> None:
        """An attempt ends before it began, and none beside it, be that for a mistake of ours."""
        if isinstance(error, BackendError):
            self._refuse(task, unavailable(error))
        elif isinstance(error, (OSError, UpshiftError)):
            self._drop(task)
            self._not_started(task.name, error)
        else:
            self._refuse(task, mistake(error, "start the step"))

    def _not_started(self, name: str, error: Exception) -> None:
        if isinstance(error, (OSError, UpshiftError)):
            problem = not_started(error)
        else:
            problem = mistake(error, "start the step").message
        self._tell("ended", name, problem=problem)

    def _do_cancel(self, engine: _EngineConnection, name: str, grace: float) -> None:
        task, attempt = self._tasks.get(name), self._running(name)
        if task is None:
            if attempt is not None:
                attempt.cancel(grace)
        elif task.wants is _Wants.DEVICES:
            self._supervisor.devices.cancel(task.spec)
        else:
            self._refuse(task, Failure(reason="cancelled", message="cancelled before it ran"))

    def _do_query(self, engine: _EngineConnection, name: str) -> None:
        running = name in self._tasks or self._running(name) is not None
        engine.send({"event": "status", "handle": name, "running": running})

    def _running(self, name: str) -> SupervisedAttempt | None:
        attempts = self._supervisor.attempts
        return next((attempt for attempt in attempts if self._name_of(attempt.spec) == name), None)

    def _do_preload(
        self, engine: _EngineConnection, code: Mapping[str, Any], module: str, after: Mapping[str, str]
    ) -> None:
        self._zygotes.preload(code, module, after)

    # -- as the watcher of the attempts -----------------------------------------------------------

    def started(self, attempt: SupervisedAttempt) -> None:
        self._tell("started", self._name_of(attempt.spec))

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        self._tell("log", self._name_of(attempt.spec), droppable=True, size=size)

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        self._tell("logged", self._name_of(attempt.spec), droppable=True, step=step, values=values)

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        self._tell("noticed", self._name_of(attempt.spec), text=text)

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        self._over(attempt.spec, problem)

    def _over(self, spec: TaskSpec, problem: str | None) -> None:
        self._tell("ended", self._name_of(spec), problem=problem)
        for nodes in self._local_nodes:
            if (nodes.spec.task, nodes.spec.attempt) == (spec.task, spec.attempt):
                nodes.let_go()

    def _name_of(self, spec: TaskSpec) -> str:
        return handle(self._place.name, spec.task, spec.attempt)


def _nodes(spec: TaskSpec) -> int:
    """How many nodes it has, all of them on this machine."""
    return (spec.granted.nodes if spec.granted is not None else None) or 1


def main(listener: int, name: str) -> NoReturn:
    """Be a fork server that was started afresh, on a listening socket that was passed on."""
    try:
        sock = socket.socket(fileno=listener)
    except OSError as error:
        raise UpshiftError("the fork server got no socket", why=str(error)) from None
    serve(sock, ServerFiles(name))
