"""Step processes that start as fresh interpreters: where a fork is not safe, or not wanted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from upshift.spec import TaskSpec, decode, encode
from upshift.store.interpreter import command
from upshift.store.store import open_store
from upshift.worker import step
from upshift.worker.attempt import Born
from upshift.worker.confine import Confinement, become_subreaper, detach, enter, host_facts
from upshift.worker.loop import Loop
from upshift.worker.pools import VARIABLES
from upshift.worker.proc import Consumed
from upshift.worker.randomness import Randomness
from upshift.worker.strays import kill_strays
from upshift.worker.streams import own_streams


class FreshStarter:
    """Starts each step process as an interpreter of its own.

    Parameters
    ----------
    exited
        Called when one has ended, and nothing that it left behind runs.
    keep_open
        Descriptors that every process below is to hold.
    kin
        Other children of this process, which are no strays.
    """

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

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int] = ()) -> Born:
        environment = {**os.environ, **bounds.environment}
        if bounds.threads is not None:
            environment |= dict.fromkeys(VARIABLES, str(bounds.threads))
        order = {"spec": encode(spec), "bounds": encode(bounds), "parent": os.getpid()}
        log, log_end = os.pipe()
        seen, seen_end = os.pipe()
        messages, messages_end = os.pipe()
        work = os.memfd_create("upshift-task")
        try:
            with open(work, "wb", closefd=False) as file:
                file.write(json.dumps(order).encode())
            process = subprocess.Popen(
                command("--step", str(work), str(seen_end), str(messages_end)),
                stdin=subprocess.DEVNULL,
                stdout=log_end,
                stderr=log_end,
                env=environment,
                pass_fds=(work, seen_end, messages_end, *self._keep_open, *held),
                start_new_session=True,
            )
        except OSError:
            for descriptor in (log, seen, messages):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (work, log_end, seen_end, messages_end):
                os.close(descriptor)
        process.returncode = 0  # waited for below
        self.live.add(process.pid)
        exit_descriptor = os.pidfd_open(process.pid)
        self._loop.watch(exit_descriptor, lambda: self._ended(process.pid, exit_descriptor))
        return Born(process.pid, log, seen, messages, baseline=0)

    def _ended(self, pid: int, exit_descriptor: int) -> None:
        self._loop.forget(exit_descriptor)
        _, status, usage = os.wait4(pid, 0)
        self.live.discard(pid)
        kill_strays({*self.live, *self._kin()})
        self._exited(pid, status, Consumed.of(usage))


def main(work: int, seen: int, messages: int) -> NoReturn:
    """Be the step process that :class:`FreshStarter` starts."""
    os.lseek(work, 0, os.SEEK_SET)
    with open(work, "rb") as file:
        data = json.load(file)
    spec, bounds = decode(TaskSpec, data["spec"]), decode(Confinement, data["bounds"])
    for descriptor in (seen, messages):
        os.set_inheritable(descriptor, False)
    code = 0
    try:
        detach(data["parent"])
        own_streams()
        enter(bounds)
        step.run(
            spec,
            open_store(spec.store, durability=spec.durability),
            bounds=bounds,
            host_memory=host_facts()["memory"],
            sightings=seen,
            messages=messages,
            randomness=Randomness(),
        )
    except OSError as error:
        step.refuse(messages, error)
        code = 1
    finally:
        # Threads and atexit handlers of the user's must not keep a finished task alive.
        os._exit(code)
