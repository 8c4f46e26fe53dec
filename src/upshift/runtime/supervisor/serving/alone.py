"""One task under a supervisor of its own: by hand, or where a backend has started it.

By hand the log is shown on standard output. A backend gets events there instead, as lines of JSON
(:mod:`.reporting`), and says on standard input what no file may hold::

    supervisor ── {"event": "ready"} ──────────────────────────► backend
               ◄── {"secrets": …, "devices": …} ────────────────
               ── {"event": "started"}, "log", "logged", "ended" ►

Without an order, at the end of the file or for an empty line, there is nobody who wants the task any
more, and the supervisor leaves without a trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

import upshift
from upshift.errors import UpshiftError
from upshift.model.home import home
from upshift.model.spec import TaskSpec, decode, from_json
from upshift.runtime import marks
from upshift.runtime.launch import seats
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.storage import unpacking
from upshift.runtime.storage.serializers import scratch
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor.serving.course import Course, Part
from upshift.runtime.supervisor.serving.first import First
from upshift.runtime.supervisor.serving.order import Order
from upshift.runtime.supervisor.serving.reporting import TAKEN, UNWANTED, Reporter
from upshift.runtime.supervisor.serving.supervisor import Supervisor
from upshift.runtime.supervisor.starters.forked import ForkStarter
from upshift.runtime.supervisor.starters.fresh import FreshStarter

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.stock import Grant

EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


def run_by_hand(path: Path, store_address: str | None) -> int:
    """Run a task from its spec, and show its log. The exit code tells how it ended."""
    from upshift.model.settings.secrets import read_secrets
    from upshift.runtime.supervisor.serving.console import Console

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
    supervisor = Supervisor(f"worker-{os.getpid()}", loop=loop, watcher=console)
    starter = FreshStarter(loop, exited=supervisor.exited, kin=lambda: supervisor.kin)
    part = _part(spec, store, loop, supervisor, secrets, seat=seat, starter=starter)
    course = Course(spec, part, loop, supervisor, ordered=False)

    def tell(why: str) -> None:
        _say(f"{spec.task} {why}")
        part.tell(why)

    supervisor.devices.ask(spec, ready=part.start, tell=tell, refuse=part.refuse)
    problem = course.to_its_end() or console.problem
    if seat is not None and seat.node and problem is None:
        return 0
    result = None if problem else store.read_result(spec.task, spec.attempt)
    if result is None:
        return _complain(problem or "the result could not be read back", code=1)
    if result.failure is not None:
        _say(f"{spec.task}: {result.failure.reason}: {result.failure.message}")
    return EXIT_CODES[result.status]


def run_for_backend(path: Path) -> int:
    """Run a task from its spec as a backend orders, and report to it. It was told that this is ready."""
    loop = Loop()
    reporter = Reporter(loop)
    try:
        seat = seats.take(os.environ)
        spec, store = _opened(path, None)
        for folder in (home(), os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))):
            unpacking.use(str(folder))
        supervisor = Supervisor(
            f"worker-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}", loop=loop, watcher=reporter
        )
        starter = ForkStarter(loop, store, exited=supervisor.exited, kin=lambda: supervisor.kin)
        said = sys.stdin.buffer.readline()
        if not said.strip():
            return UNWANTED
        order = decode(Order, json.loads(said))
        sys.argv[:] = order.argv or sys.argv
        grant = None if order.devices is None else _taken_over(order)
        if order.devices and grant is None:
            return TAKEN
    except (UpshiftError, ValueError) as error:
        reporter.end(str(error))
        return 2
    reporter.store = store
    part = _part(spec, store, loop, supervisor, order.secrets, seat=seat, starter=starter)
    course = Course(spec, part, loop, supervisor, ordered=True)
    if order.wait is None:
        part.start(grant)
    else:
        ask = supervisor.devices.ask
        ask(spec, ready=part.start, tell=part.tell, refuse=part.refuse, wait=order.wait, share=order.share)
    problem = course.to_its_end()
    if problem is not None:
        reporter.end(problem)
    _remove_what_is_mine()
    return 0 if problem is None else 1


def _part(
    spec: TaskSpec,
    store: Store,
    loop: Loop,
    supervisor: Supervisor,
    secrets: Mapping[str, str],
    *,
    seat: Seat | None,
    starter: FreshStarter,
) -> Part:
    """What this supervisor does of the task: what its seat says."""
    if seat is None or seat.node == 0:
        return First(spec, store, loop, supervisor, secrets, starter=starter, seat=seat)
    from upshift.runtime.supervisor.serving.further import Further  # what no other task needs is not imported

    part = Further(spec, store, loop, supervisor, secrets, starter=starter, seat=seat)
    starter.tell(part.exited)
    return part


def _opened(path: Path, store_address: str | None) -> tuple[TaskSpec, Store]:
    try:
        spec = from_json(TaskSpec, path.read_bytes())
    except OSError as error:
        raise UpshiftError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UpshiftError(f"{path} is not a task's spec: {error}") from None
    if store_address:
        spec = attrs.evolve(spec, store=store_address)
    return spec, open_store(spec.store, **spec.store_options)


def _taken_over(order: Order) -> Grant | None:
    """The devices, once this process holds them: it was handed the locks, or they have just been let go of.

    None: somebody else was faster.
    """
    from upshift.runtime.accelerators import locks
    from upshift.runtime.accelerators.vendors import environment
    from upshift.runtime.supervisor.devices.stock import Grant

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
