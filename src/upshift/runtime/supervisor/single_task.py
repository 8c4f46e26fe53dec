"""One task under a supervisor of its own: for a backend, under a scheduler, or by hand.

A backend gets events on standard output, as lines of JSON (:mod:`.protocol`), and says on standard input
what no file may hold::

    supervisor ── {"event": "ready"} ──────────────────────────► backend
               ◄── {"secrets": …, "devices": …} ────────────────
               ── {"event": "started"}, "log", "logged", "ended" ►

Without an order, at the end of the file or for an empty line, there is nobody who wants the task any
more, and the supervisor leaves without a trace. Under a scheduler the order is in the environment, and what
happens is in the store. By hand (``python -m upshift.runtime SPEC``) there is neither, and its log is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import upshift
from upshift.errors import UpshiftError
from upshift.model.configuration import BUCKET_CACHE, home
from upshift.model.settings.secrets import at_node, read_secrets
from upshift.model.settings.sizes import parse_size
from upshift.model.spec import MetricValue, TaskSpec, decode, from_json
from upshift.runtime import marks
from upshift.runtime.launch import seats
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.storage import home_folders, serializers
from upshift.runtime.storage.checkpoints import forget
from upshift.runtime.storage.files import fresh
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.replica import Replica
from upshift.runtime.storage.store import Store, open_direct, store_of
from upshift.runtime.supervisor.array_element import Element
from upshift.runtime.supervisor.attempt import SupervisedAttempt
from upshift.runtime.supervisor.members import Overflow
from upshift.runtime.supervisor.protocol import (
    ORDER,
    TAKEN,
    UNWANTED,
    LiveRecord,
    Order,
    Reporter,
    take_order,
)
from upshift.runtime.supervisor.roles import TaskLoop
from upshift.runtime.supervisor.starters import ForkStarter, FreshStarter
from upshift.runtime.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant


def run_for_scheduler(path: str, element: int | None = None) -> int:
    """Run a task as the engine has ordered that gave it to a scheduler.

    The path is that of its spec in a store as this node has it, or an address in a bucket. With ``element``
    it is that of the list of an array, of which this is an element.
    """
    try:
        take_order(os.environ)
    except UpshiftError as error:
        return complain(str(error))
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
    try:
        seat = seats.take(os.environ)
        share = None if element is None else _element(address, relative, element)
        opened = opened_task(path, address if live else None) if share is None else _claimed(share, address)
        if opened is None:  # another element was faster
            return 0
        spec, store = opened
        if not live or seat is None or seat.node == 0:  # an attempt has one record, that of its first node
            reporter.open(spec, store)
        for folder in (home(), os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))):
            home_folders.use(str(folder))
        supervisor = Supervisor(
            f"worker-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}",
            loop=loop,
            watcher=reporter,
            overflow=overflow,
            host=node,
        )
        starter = ForkStarter(loop, store, exited=supervisor.exited, kin=lambda: supervisor.kin)
        given = _read_order() if given is None else given
        if given is None:
            return UNWANTED
        order = decode(Order, given)
        sys.argv[:] = order.argv or sys.argv
        grant = None if order.devices is None else _taken_over(order)
        if order.devices and grant is None:
            return TAKEN
    except (UpshiftError, ValueError) as error:
        reporter.end(str(error))
        return 2
    task_loop = TaskLoop(loop, supervisor, starter, overflow, seat=seat, ordered=True)
    if order.stop_record:
        task_loop.heed(store)
    while True:
        try:
            there = read_secrets(at_node(spec.settings.secret_sources), project=spec.code.project)
        except UpshiftError as error:
            reporter.end(str(error))
            return 2
        role = task_loop.begin(spec, store, {**order.secrets, **there}, claimed=share is not None)
        if order.wait is None:
            role.start(grant)
        else:
            ask = partial(supervisor.devices.ask, wait=order.wait, share=order.share)
            ask(spec, ready=role.start, tell=role.tell, refuse=role.refuse)
        problem = task_loop.to_its_end()
        if problem is not None:
            reporter.end(problem)
            if live and seat is not None and seat.node:
                LiveRecord.lost(spec, store, problem)
        if store.replica is not None and store.direct:
            _leave(store.replica, spec, seat)
        if share is None or task_loop.told or not record.completed:
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


def _read_order() -> Mapping[str, Any] | None:
    """The order that comes on standard input; None: nobody wants the task any more."""
    said = sys.stdin.buffer.readline()
    order: Mapping[str, Any] | None = json.loads(said) if said.strip() else None
    return order


def _element(address: str, relative: str, number: int) -> Element:
    """An element of the array whose list is in this store."""
    listing = open_direct(address)
    element = Element(listing, relative, number)
    if listing.direct and listing.replica is not None:
        listing.replica.forget_attempt(relative)  # the list has been read
    return element


def _prepare() -> None:
    """Import what each of several step processes would, now that there is more than one."""
    serializers.prepare()
    with contextlib.suppress(Exception):  # a step that needs it says so
        for name in ("step", "pipeline"):
            getattr(upshift, name)


def _claimed(share: Element, address: str) -> tuple[TaskSpec, Store] | None:
    """The next task of an element, which is its own from now on; None: there is none."""
    relative = share.claim()
    return None if relative is None else opened_task(f"{address}/{relative}", address)


def opened_task(path: str, store_address: str | None) -> tuple[TaskSpec, Store]:
    try:
        if "://" in path:
            address, relative = _parted(path)
            store = open_direct(address)
            spec = store.read_spec(relative)
            return spec, store.with_options(durability=spec.durability, verify=spec.verify)
        spec = from_json(TaskSpec, fresh(path, Path(path).read_bytes))
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
    from upshift.runtime.supervisor.device_pool import Grant

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
                    home_folders.remove(str(left)) if left.is_dir() else left.unlink()


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def complain(text: str, *, code: int = 2) -> int:
    say(text)
    return code


_EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


def run_by_hand(path: str, store_address: str | None) -> int:
    """Run a task from its spec, and show its log. The exit code tells how it ended."""
    try:
        seat = seats.take(os.environ)
        spec, store = opened_task(path, store_address)
        if store.read_result(spec.task, spec.attempt) is not None:
            raise UpshiftError(
                f"attempt {spec.attempt} of {spec.task} has a result already",
                fix="A result never changes. Set another attempt in the spec to run it again.",
            )
        secrets = read_secrets(spec.settings.secret_sources, project=spec.code.project)
    except (UpshiftError, ValueError) as error:
        return complain(str(error))
    loop, console = Loop(), _Console()
    overflow = Overflow(loop)
    supervisor = Supervisor(f"worker-{os.getpid()}", loop=loop, watcher=console, overflow=overflow)
    starter = FreshStarter(loop, exited=supervisor.exited, kin=lambda: supervisor.kin)
    task_loop = TaskLoop(loop, supervisor, starter, overflow, seat=seat, ordered=False)
    role = task_loop.begin(spec, store, secrets)

    def tell(why: str) -> None:
        say(f"{spec.task} {why}")
        role.tell(why)

    supervisor.devices.ask(spec, ready=role.start, tell=tell, refuse=role.refuse)
    problem = task_loop.to_its_end() or console.problem
    supervisor.close()
    if seat is not None and seat.node and problem is None:
        return 0
    result = None if problem else store.read_result(spec.task, spec.attempt)
    if result is None:
        return complain(problem or "the result could not be read back", code=1)
    if result.failure is not None:
        say(f"{spec.task}: {result.failure.reason}: {result.failure.message}")
    return _EXIT_CODES[result.status]


class _Console:
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
