"""Step processes that are forked from their supervisor: in a container, which has one task and no zygote.

The supervisor has imported all that a step process needs of Upshift and nothing of the user's, and has no
threads; so a fork is safe, and saves the start of a second interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Collection, Sequence
from functools import partial

from upshift.model.spec import TaskSpec
from upshift.runtime import proc
from upshift.runtime.confine import Confinement, detach, enter, forking, host_facts
from upshift.runtime.loop import Loop
from upshift.runtime.proc import Consumed
from upshift.runtime.step import step
from upshift.runtime.storage.store import Store
from upshift.runtime.streams import own_streams
from upshift.runtime.supervisor.starters.fresh import FreshStarter
from upshift.runtime.supervisor.starters.pools import size_variables, unsafe_to_fork
from upshift.runtime.supervisor.starters.starter import Born

PREFERENCE = 500
"""Added to how likely a step is to be killed where memory runs out: who can tell of it had better live."""


class ForkStarter(FreshStarter):
    """Forks each step process from this one; where that is not safe, it is an interpreter of its own.

    Parameters
    ----------
    store
        What the steps work with.
    """

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

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int] = ()) -> Born:
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
        return Born(pid, log, seen, messages, baseline)

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
            host_memory=host_facts()["memory"],
            sightings=seen,
            messages=messages,
        )
