"""One task under a supervisor of its own: by hand, or where a backend has started it.

By hand the log is shown on standard output. A backend gets events there instead, as lines of JSON
(:mod:`.protocol`), and says on standard input what no file may hold::

    supervisor ── {"event": "ready"} ──────────────────────────► backend
               ◄── {"secrets": …, "devices": …} ────────────────
               ── {"event": "started"}, "log", "logged", "ended" ►

Without an order, at the end of the file or for an empty line, there is nobody who wants the task any
more, and the supervisor leaves without a trace. Under a scheduler the order is in the environment, and what
happens is in the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

import upshift
from upshift.errors import BackendError, ConfigError, UpshiftError
from upshift.model.configuration import BUCKET_CACHE
from upshift.model.home import home
from upshift.model.settings.secrets import at_node, read_secrets
from upshift.model.settings.sizes import parse_size
from upshift.model.spec import Failure, MetricValue, TaskSpec, decode, from_json
from upshift.runtime import causes, marks
from upshift.runtime.launch import seats
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.storage import unpacking
from upshift.runtime.storage.checkpoints import forget
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.replica import Replica
from upshift.runtime.storage.serializers import registry, scratch
from upshift.runtime.storage.store import Store, open_direct, store_of
from upshift.runtime.supervisor.attempt import SupervisedAttempt
from upshift.runtime.supervisor.output.overflow import Overflow
from upshift.runtime.supervisor.serving.array import Element, claim_of
from upshift.runtime.supervisor.serving.protocol import (
    AT_ONCE,
    ORDER,
    TAKEN,
    UNWANTED,
    WITH_GRACE,
    LiveRecord,
    Order,
    Reporter,
    take_order,
)
from upshift.runtime.supervisor.serving.supervisor import Supervisor
from upshift.runtime.supervisor.starters.direct import ForkStarter, FreshStarter

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.pool import Grant
    from upshift.runtime.supervisor.several.nodes import Nodes
    from upshift.runtime.supervisor.several.rendezvous import Rendezvous


EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


def run_by_hand(path: str, store_address: str | None) -> int:
    """Run a task from its spec, and show its log. The exit code tells how it ended."""
    from upshift.runtime.supervisor.serving.single_task import Console

    try:
        seat = seats.take(os.environ)
        spec, store = _opened(path, store_address)
        if store.read_result(spec.task, spec.attempt) is not None:
            raise UpshiftError(
                f"attempt {spec.attempt} of {spec.task} has a result already",
                fix="A result never changes. Set another attempt in the spec to run it again.",
            )
        secrets = read_secrets(spec.settings.secret_sources, project=spec.code.project)
    except (UpshiftError, ValueError) as error:
        return _complain(str(error))
    loop, console = Loop(), Console()
    overflow = Overflow(loop)
    supervisor = Supervisor(f"worker-{os.getpid()}", loop=loop, watcher=console, overflow=overflow)
    starter = FreshStarter(loop, exited=supervisor.exited, kin=lambda: supervisor.kin)
    part = _part(spec, store, loop, supervisor, secrets, seat=seat, starter=starter, overflow=overflow)
    course = TaskLoop(loop, supervisor, ordered=False)
    course.begin(spec, part)

    def tell(why: str) -> None:
        _say(f"{spec.task} {why}")
        part.tell(why)

    supervisor.devices.ask(spec, ready=part.start, tell=tell, refuse=part.refuse)
    problem = course.to_its_end() or console.problem
    supervisor.close()
    if seat is not None and seat.node and problem is None:
        return 0
    result = None if problem else store.read_result(spec.task, spec.attempt)
    if result is None:
        return _complain(problem or "the result could not be read back", code=1)
    if result.failure is not None:
        _say(f"{spec.task}: {result.failure.reason}: {result.failure.message}")
    return EXIT_CODES[result.status]


def run_for_scheduler(path: str, element: int | None = None) -> int:
    """Run a task as the engine has ordered that gave it to a scheduler.

    The path is that of its spec in a store as this node has it, or an address in a bucket. With ``element``
    it is that of the list of an array, of which this is an element.
    """
    try:
        take_order(os.environ)
    except ConfigError as error:
        return _complain(str(error))
    given = json.loads(os.environ.pop(ORDER, "{}"))
    return run_for_backend(path, given=given, live=True, element=element)


def run_for_backend(
    path: str,
    *,
    name: str | None = None,
    given: Mapping[str, Any] | None = None,
    live: bool = False,
    element: int | None = None,
) -> int:
    """Run a task from its spec as a backend orders, and report to it. It was told that this is ready.

    Where the container serves several attempts, this one has a ``name``, and its order was read already.
    """
    loop = Loop()
    overflow, node = Overflow(loop), seats.name_of(os.environ)
    record = LiveRecord(loop, element=element, node=node)
    reporter = record if live else Reporter(loop, of=name)
    address, relative = _parted(path)
    share: Element | None = None
    try:
        seat = seats.take(os.environ)
        if element is not None:
            listing = open_direct(address)
            share = Element(listing, relative, element)
            if listing.direct and listing.replica is not None:
                listing.replica.forget_attempt(relative)
        opened = _opened(path, address if live else None) if share is None else _claimed(share, address)
        if opened is None:  # another element was faster
            return 0
        spec, store = opened
        if not live or seat is None or seat.node == 0:  # an attempt has one record, that of its first node
            reporter.open(spec, store)
        for folder in (home(), os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))):
            unpacking.use(str(folder))
        supervisor = Supervisor(
            f"worker-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}",
            loop=loop,
            watcher=reporter,
            overflow=overflow,
            host=node,
        )
        starter = ForkStarter(loop, store, exited=supervisor.exited, kin=lambda: supervisor.kin)
        if given is None:
            said = sys.stdin.buffer.readline()
            if not said.strip():
                return UNWANTED
            given = json.loads(said)
        order = decode(Order, given)
        sys.argv[:] = order.argv or sys.argv
        grant = None if order.devices is None else _taken_over(order)
        if order.devices and grant is None:
            return TAKEN
    except (UpshiftError, ValueError) as error:
        reporter.end(str(error))
        return 2
    course = TaskLoop(loop, supervisor, ordered=True)
    if order.stop_record:
        course.heed(store)
    while True:
        try:
            there = read_secrets(at_node(spec.settings.secret_sources), project=spec.code.project)
        except UpshiftError as error:
            reporter.end(str(error))
            return 2
        known = {**order.secrets, **there}
        part = _part(
            spec,
            store,
            loop,
            supervisor,
            known,
            seat=seat,
            starter=starter,
            overflow=overflow,
            mine=share is not None,
        )
        course.begin(spec, part, named=None if share is None else store)
        if order.wait is None:
            part.start(grant)
        else:
            ask = supervisor.devices.ask
            ask(
                spec, ready=part.start, tell=part.tell, refuse=part.refuse, wait=order.wait, share=order.share
            )
        problem = course.to_its_end()
        if problem is not None:
            reporter.end(problem)
            if live and seat is not None and seat.node:
                LiveRecord.lost(spec, store, problem)
        if store.replica is not None and store.direct:
            _leave(store.replica, spec, seat)
        if share is None or course.told or not record.completed:
            break
        following = _claimed(share, address)
        if following is None:
            break
        spec, store = following
        _prepare()
        reporter.open(spec, store)
    supervisor.close()
    if not live:
        _remove_what_is_mine()
    return 0 if problem is None else 1


def _prepare() -> None:
    """Import what each of several step processes would, now that there is more than one."""
    registry.prepare()
    with contextlib.suppress(Exception):  # a step that needs it says so
        for name in ("step", "pipeline"):
            getattr(upshift, name)


def _claimed(share: Element, address: str) -> tuple[TaskSpec, Store] | None:
    """The next task of an element, which is its own from now on; None: there is none."""
    relative = share.claim()
    return None if relative is None else _opened(f"{address}/{relative}", address)


def _part(
    spec: TaskSpec,
    store: Store,
    loop: Loop,
    supervisor: Supervisor,
    secrets: Mapping[str, str],
    *,
    seat: Seat | None,
    starter: FreshStarter,
    overflow: Overflow,
    mine: bool = False,
) -> Role:
    """What this supervisor does of the task: what its seat says. It is claimed already if it is ``mine``."""
    if seat is not None and spec.silence is not None:
        seat = attrs.evolve(seat, silence=spec.silence)
    if seat is None or seat.node == 0:
        return FirstNode(spec, store, loop, supervisor, secrets, starter=starter, seat=seat, mine=mine)
    from upshift.runtime.supervisor.several.remote_supervisor import (
        RemoteSupervisor,  # no other task needs it
    )

    part = RemoteSupervisor(
        spec,
        store,
        loop=loop,
        seat=seat,
        machine=supervisor.machine,
        starter=starter,
        secrets=secrets,
        overflow=overflow,
    )
    starter.tell(part.exited)
    return part


def _opened(path: str, store_address: str | None) -> tuple[TaskSpec, Store]:
    try:
        if "://" in path:
            address, relative = _parted(path)
            store = open_direct(address)
            spec = store.read_spec(relative)
            return spec, store.with_options(durability=spec.durability, verify=spec.verify)
        spec = from_json(TaskSpec, Path(path).read_bytes())
    except OSError as error:
        raise UpshiftError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UpshiftError(f"{path} is not a task's spec: {error}") from None
    if store_address:
        spec = attrs.evolve(spec, store=store_address)
    return spec, store_of(spec)


def _parted(path: str) -> tuple[str, str]:
    """Where a store is, as this node has it, and where a record is in there."""
    address, _, relative = path.rpartition("/runs/")
    return address, f"runs/{relative}"


def _taken_over(order: Order) -> Grant | None:
    """The devices, once this process holds them: it was handed the locks, or they have just been let go of.

    None: somebody else was faster.
    """
    from upshift.runtime.accelerators import locks
    from upshift.runtime.accelerators.vendors import environment
    from upshift.runtime.supervisor.devices.pool import Grant

    devices = order.devices or ()
    if not devices:
        return Grant(devices=(), environment=environment(()), remarks=order.remarks, less=order.less)
    if order.held is not None:
        os.environ[locks.HELD] = order.held
    for descriptor in order.descriptors:
        os.set_inheritable(descriptor, False)
    hold = locks.Hold(devices, order.descriptors) if order.descriptors else locks.hold(devices)
    if hold is None:
        return None
    grant = Grant(
        devices=devices,
        environment={
            **environment(devices),
            locks.HELD: hold.names,
            locks.TAKER: marks.identity(),
        },
        remarks=order.remarks,
        hold=hold,
        less=order.less,
    )
    grant.waited = order.waited
    return grant


def _leave(replica: Replica, spec: TaskSpec, seat: Seat | None) -> None:
    """This node has done what it has to for an attempt: what is here and not in the bucket goes there."""
    most = parse_size(os.environ.get("UPSHIFT_BUCKET_CACHE") or BUCKET_CACHE)
    with contextlib.suppress(UpshiftError, OSError):  # curves, or room for others: the result is there
        if seat is not None and seat.node:
            replica.upload_appended(attempt_path(spec.task, spec.attempt, f"node{seat.node}."))
        replica.forget_attempt(attempt_path(spec.task, spec.attempt, ""))
        forget(replica.root, spec.task)
        replica.trim_at_times(most)


def _remove_what_is_mine() -> None:
    """Whoever owns the folder of this attempt may not be able to, where this runs as somebody else."""
    own = home()
    if own.is_dir() and own.stat().st_uid != os.geteuid():
        for name in ("home", "tmp", "code", "scratch"):
            with contextlib.suppress(OSError):
                for left in sorted((own / name).iterdir()):
                    scratch.remove(str(left)) if left.is_dir() else left.unlink()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _complain(text: str, *, code: int = 2) -> int:
    _say(text)
    return code


HEED = (0.5, 3.0)
"""Seconds between two looks for a record that cancels the task: in a folder, and in a bucket."""
ENDING = 5.0
"""Seconds that a step is given at most where an engine is told to stop its container: it waits for 10."""


class Role(Protocol):
    """What a supervisor does of a task: all of it, or what is to be done on one of its nodes."""

    @property
    def busy(self) -> bool:
        """Whether it is not over."""

    @property
    def problem(self) -> str | None:
        """Why nothing was recorded; None: that is told elsewhere, if so."""

    def start(self, grant: Grant | None) -> None:
        """It has what it was granted here."""

    def refuse(self, failure: Failure) -> None:
        """It gets nothing."""

    def tell(self, why: str) -> None:
        """The task waits for devices; ``why`` says for which."""

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        """A signal of this name has come: because the run is cancelled, or by somebody else."""


class TaskLoop:
    """Turns the loop until a task is over, and then perhaps until another one is. Signals stop it."""

    def __init__(self, loop: Loop, supervisor: Supervisor, *, ordered: bool) -> None:
        self.told = False  # whether it was told to stop
        self._heard: str | None = None  # by which record
        self._loop = loop
        self._supervisor = supervisor
        self._ordered = ordered
        self._signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        used = {signal.SIGTERM, signal.SIGINT, WITH_GRACE, AT_ONCE}
        for number in used:
            signal.signal(number, lambda *_: None)  # what matters is the byte in the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, used)
        loop.watch(self._signals, self._signalled)

    def begin(self, spec: TaskSpec, part: Role, *, named: Store | None = None) -> None:
        """Take care of this task; ``named``: the store says whether it is what the engine wants to stop."""
        self._spec, self._part, self._named = spec, part, named

    def to_its_end(self) -> str | None:
        """Wait until it is over, and say why nothing was recorded; None: that was told elsewhere, if so."""
        while self._part.busy or self._supervisor.devices.asking:
            self._loop.turn()
        return self._part.problem

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
        self._part.stop(name, asked=asked, grace=grace if asked else min(grace, ENDING))

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
        seat: Seat | None = None,
        mine: bool = False,
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
        from upshift.runtime.supervisor.several.rendezvous import (
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
            self._ungathered(causes.unavailable(error))

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
                self.refuse(causes.unavailable(error))
            else:
                self._cannot(error)

    def _cannot(self, error: OSError | UpshiftError) -> None:
        self.problem = causes.not_started(error)


class Console:
    """Watches an attempt, and shows its log as it grows.

    ``problem`` says, once the attempt has ended, why its result is not in the store.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._shown = 0

    def started(self, attempt: SupervisedAttempt) -> None:
        """Nothing to show."""

    def log_grew(self, attempt: SupervisedAttempt, size: int) -> None:
        """Show what is new."""
        if not size:  # a process draws, and nobody has ended a line
            return
        with open(attempt.log.path, "rb") as file:
            file.seek(self._shown)
            while data := file.read(1 << 16):
                self._shown += len(data)
                sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def logged(
        self, attempt: SupervisedAttempt, step: float | None, values: Mapping[str, MetricValue]
    ) -> None:
        """Nothing to show: the store has it."""

    def noticed(self, attempt: SupervisedAttempt, text: str) -> None:
        """Say what the log cannot."""
        sys.stderr.write(f"upshift: {text}\n")

    def ended(self, attempt: SupervisedAttempt, problem: str | None) -> None:
        """Show the rest."""
        self.problem = problem
        if attempt.log.path.exists():
            self.log_grew(attempt, attempt.log.size)
