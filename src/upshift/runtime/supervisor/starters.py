"""Step processes that a supervisor starts itself: as fresh interpreters, or as forks of its own process.

A fresh interpreter is right wherever a fork is not safe. In a container the supervisor has one task and no
zygote. It has imported all that a step process needs of Upshift, nothing of the user's, and has no threads:
so a fork of it is safe, and saves the start of a second interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from upshift.model.spec import TaskSpec, decode, encode
from upshift.runtime import proc
from upshift.runtime.children import command_for_users
from upshift.runtime.confine import (
    Confinement,
    Spawned,
    become_subreaper,
    detach,
    enter,
    files_of_steps,
    forking,
    host_facts,
)
from upshift.runtime.loop import Loop
from upshift.runtime.messages import own_streams
from upshift.runtime.proc import Consumed, Strays
from upshift.runtime.step import step
from upshift.runtime.storage.store import Store, store_of
from upshift.runtime.supervisor.forkable import size_variables, unsafe_to_fork


class FreshStarter:
    """Starts each step process as an interpreter of its own."""

    def __init__(
        self,
        loop: Loop,
        *,
        exited: Callable[[int, int, Consumed], None],
        keep_open: tuple[int, ...] = (),
        kin: Callable[[], Collection[int]] = tuple,
    ) -> None:
        become_subreaper()
        self._loop = loop
        self._exited = exited
        self._keep_open = keep_open
        self._kin = kin
        self.live: set[int] = set()
        self._strays = Strays()

    def tell(self, exited: Callable[[int, int, Consumed], None]) -> None:
        """From now on tell somebody else when one has ended."""
        self._exited = exited

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int] = ()) -> Spawned:
        environment = {**os.environ, **bounds.environment}
        size_variables(environment, bounds.threads, bounds.environment)
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in range(3):
                reader, writer = os.pipe()
                ours.append(reader)
                theirs.append(writer)
            log_end, seen_end, messages_end = theirs
            work = _order_file(spec, bounds.heard_at(ours[2]), parent=os.getpid())
            theirs.append(work)
            process = subprocess.Popen(
                command_for_users("--step", str(work), str(seen_end), str(messages_end)),
                stdin=subprocess.DEVNULL,
                stdout=log_end,
                stderr=log_end,
                env=environment,
                pass_fds=(work, seen_end, messages_end, *self._keep_open, *held),
                start_new_session=True,
            )
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        process.returncode = 0  # waited for below
        self._await(process.pid)
        log, seen, messages = ours
        return Spawned(process.pid, log, seen, messages, baseline=0)

    def _await(self, pid: int) -> None:
        """Tell when this child has ended."""
        self.live.add(pid)
        exit_descriptor = os.pidfd_open(pid)
        self._loop.watch(exit_descriptor, lambda: self._ended(pid, exit_descriptor))

    def _ended(self, pid: int, exit_descriptor: int) -> None:
        self._loop.forget(exit_descriptor)
        _, status, usage = os.wait4(pid, 0)
        self.live.discard(pid)
        self._strays.kill({*self.live, *self._kin()})
        self._exited(pid, status, Consumed.of(usage))


def _order_file(spec: TaskSpec, bounds: Confinement, *, parent: int) -> int:
    """A file in memory that tells a fresh interpreter what to do."""
    work = os.memfd_create("upshift-task")
    with open(work, "wb", closefd=False) as file:
        file.write(order_of(spec, bounds, parent=parent, files=files_of_steps()))
    return work


def order_of(spec: TaskSpec, bounds: Confinement, **more: int) -> bytes:
    """What a step process is told to do."""
    return json.dumps({"spec": encode(spec), "bounds": encode(bounds), **more}).encode()


def understood(order: bytes) -> tuple[TaskSpec, Confinement, Mapping[str, Any]]:
    """The task and the bounds that an order is about, and all of it."""
    data = json.loads(order)
    return decode(TaskSpec, data["spec"]), decode(Confinement, data["bounds"]), data


def start_over(spec: TaskSpec, bounds: Confinement, seen: int, messages: int) -> NoReturn:
    """Go on with this task in this very process, as an interpreter that has imported nothing yet.

    Its bounds hold on, and all that is open stays so, as if it had been forked.
    """
    work = _order_file(spec, bounds, parent=os.getppid())
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing
            os.set_inheritable(descriptor, True)
    program = command_for_users("--step", str(work), str(seen), str(messages))
    os.execv(program[0], program)


def main(work: int, seen: int, messages: int) -> NoReturn:
    """Be the step process that :class:`FreshStarter` starts."""
    os.lseek(work, 0, os.SEEK_SET)
    with open(work, "rb") as file:
        spec, bounds, data = understood(file.read())
    for descriptor in (seen, messages):
        os.set_inheritable(descriptor, False)

    def work_as_ordered() -> None:
        detach(data["parent"], data["files"])
        own_streams()
        enter(bounds)
        step.run(
            spec,
            store_of(spec),
            bounds=bounds,
            host_memory=host_facts()["memory"],
            sightings=seen,
            messages=messages,
        )

    step.live(work_as_ordered, messages)


PREFERENCE = 500
"""Added to how likely a step is to be killed where memory runs out: who can tell of it had better live."""


class ForkStarter(FreshStarter):
    """Forks each step process from this one; where that is not safe, it is an interpreter of its own."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        *,
        exited: Callable[[int, int, Consumed], None],
        kin: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(loop, exited=exited, kin=kin)
        self._store = store
        self._host_memory: int = host_facts()["memory"]

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int] = ()) -> Spawned:
        if unsafe_to_fork() is not None:
            return super().__call__(spec, bounds, held)
        log, log_end = os.pipe()
        seen, seen_end = os.pipe()
        messages, messages_end = os.pipe()
        kept = [os.dup(descriptor) for descriptor in held]  # a fork lets go of those that it knows
        gc.freeze()
        bounds = bounds.heard_at(messages)
        parent, baseline = os.getpid(), proc.unreclaimable(os.getpid())
        try:
            with forking():
                pid = os.fork()
                if pid == 0:
                    for descriptor in (log, seen, messages):
                        os.close(descriptor)
                    work = partial(self._be_step, spec, bounds, parent, log_end, seen_end, messages_end)
                    step.live(work, messages_end)
        except OSError:
            for descriptor in (log, seen, messages):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (log_end, seen_end, messages_end, *kept):
                os.close(descriptor)
        self._await(pid)
        return Spawned(pid, log, seen, messages, baseline)

    def _be_step(
        self, spec: TaskSpec, bounds: Confinement, parent: int, log: int, seen: int, messages: int
    ) -> None:
        signal.set_wakeup_fd(-1)
        self._loop.abandon()
        for number in signal.valid_signals():  # those that the supervisor handles
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        detach(parent)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nowhere), (1, log), (2, log)):
            os.dup2(source, target)
        os.close(nowhere)
        os.close(log)
        own_streams()
        enter(bounds)
        size_variables(os.environ, bounds.threads, bounds.environment)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(PREFERENCE))
        step.run(
            spec,
            self._store,
            bounds=bounds,
            host_memory=self._host_memory,
            sightings=seen,
            messages=messages,
        )
