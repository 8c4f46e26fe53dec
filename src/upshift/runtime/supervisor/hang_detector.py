"""Whether the processes of a launch get on, and where each of them is when they do not.

While one of them prints, logs or saves something, they do. Once all have been silent for a while they are
looked at: where each is, and what CPU time it took. One that is at a place where it was not before gets on;
one that computes does, too, unless it waits for the others: NCCL waits with a busy CPU. Only where several
looks in a row found nothing of that do they hang::

    a sign of life ─────── look ─────── look ─────── look
                   │◀─────────── quiet ─────────────▶│ they hang

What this cannot see: a process that waits in ``.item()`` or ``.backward()`` for a GPU which itself waits for
others looks busy; PyTorch's own watchdog ends that one, after the timeout of its process group. And one that
runs round in a circle gets on.

They are asked by a signal, and write their stacks themselves. Before they are stopped, py-spy looks into
them as well, where it is installed: it shows the frames of native code. It needs the right to trace them,
as root has, and others where ``kernel.yama.ptrace_scope`` is 0; in a container, the capability
``SYS_PTRACE``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping

import attrs

from upshift.model.spec import Failure, TaskSpec
from upshift.runtime.launch.stacks import JOINING, StackAnswer, listed, whereabouts
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.supervisor.ends import ANSWERING, GRACE, HALTED, Gang, answers_of, places, stacks_of
from upshift.runtime.supervisor.members import LocalMember, Member

LOOKS = 3
"""How often they are looked at before they count as hanging."""
BUSY = 0.01
"""Part of a CPU, at least, of a process that does something. To look ten times a second takes less."""
QUIET = 300.0
"""Seconds without a sign of life after which they hang, where nobody has said how many."""


@attrs.frozen(kw_only=True)
class Look:
    """One process, as it was found."""

    state: Hashable = None  # where it is: what compares equal is the same place; None: it did not say
    for_others: bool = False  # whether it waits for other processes of the task
    cpu_seconds: float | None = None  # what it and its children have taken up to now; None: not known


class Watchdog:
    """Decides; others look, and stop.

    Attributes
    ----------
    alive
        When there was a sign of life.
    hangs
        Whether they do.
    """

    def __init__(
        self,
        quiet: float,  # seconds without a sign of life after which they hang
        now: float,  # when they began, in seconds of any clock
    ) -> None:
        self.quiet = quiet
        self.hangs = False
        self.alive = now
        self._looks = 0
        self._last: Mapping[int, Look] = {}
        self._looked = now
        self._places: dict[int, set[Hashable]] = {}

    @property
    def due(self) -> float:
        """When to look next."""
        if self.hangs:
            return self._looked + self.quiet
        return self.alive + self.quiet * min(self._looks + 1, LOOKS) / LOOKS

    def lived(self, at: float) -> None:
        """There was a sign of life."""
        if at > self.alive:
            self._begin(at)
            self._places = {}

    def looked(self, at: float, looks: Mapping[int, Look]) -> None:
        """Take what was seen of all processes that still run, by rank."""
        if self._last and any(self._gets_on(at, rank, look) for rank, look in looks.items()):
            self._begin(at)
        self._looks += 1
        self._last, self._looked = looks, at
        for rank, look in looks.items():
            if look.state is not None:
                self._places.setdefault(rank, set()).add(look.state)
        self.hangs = bool(looks) and self._looks >= LOOKS and at >= self.alive + self.quiet

    def _begin(self, at: float) -> None:
        self.alive, self._looks, self._last, self.hangs = at, 0, {}, False

    def _gets_on(self, at: float, rank: int, look: Look) -> bool:
        before = self._last.get(rank)
        if before is None:
            return True
        places = self._places.get(rank)
        if places and look.state is not None and look.state not in places:
            return True
        if look.for_others:
            return False
        if look.cpu_seconds is None or before.cpu_seconds is None:
            return True  # nobody can tell
        return look.cpu_seconds - before.cpu_seconds >= BUSY * (at - self._looked)


ANSWER = 0.5
"""Seconds that processes are given to write where they are."""
JOINS = 3
"""How often in a row, some seconds in all, all that run are found waiting for one that has returned."""


class _Joining:
    """How often all that run were found waiting to be joined, and when to look again."""

    def __init__(self) -> None:
        self.looks = 0
        self.pause = 0.0
        self._last: object = None

    def next(self, waiting: object) -> float:
        """Seconds to the next look, after one that found them waiting at these places, or else None.

        These seconds grow where there is nothing to be seen: each look is a signal to each process.
        """
        self.looks = 0 if waiting is None else self.looks + 1 if waiting == self._last else 1
        self._last = waiting
        self.pause = 1.0 if waiting is not None else min(2 * self.pause or 1.0, 4.0)
        return self.pause


class HangDetector:
    """Looks at the processes of a task now and then, as long as they are silent."""

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        gang: Gang,
        *,
        tell: Callable[[str], None],
        stop: Callable[[Failure], None],
        clock: Callable[[], float] = time.monotonic,  # seconds, of the clock that members are heard by
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._spec = spec
        self._gang = gang
        self._tell = tell
        self._stop = stop
        self._limit = spec.launch.hang if spec.launch is not None else None
        self._dog = Watchdog(self._limit or QUIET, self._clock())
        self._timer = Timer(self._look)
        self._told = False
        self._ending = False
        self._py_spy: PySpy | None = None
        self._joining = Timer(self._ask_joining)
        self._joins = _Joining()
        self._wait()

    def returned(self) -> None:
        """One of them has returned. Where it never joined the others, these may wait for it for ever."""
        if self._joins.pause == 0 and self._absent() and not self._ending:
            self._joining = self._loop.after(self._joins.next(None), self._ask_joining)

    def look_into(self, then: Callable[[], None]) -> None:
        """Find out where each process is before all are stopped, and call ``then``."""
        self._ending = True
        self._cancel()
        self._gang.ask()
        members = {
            member.pid: member
            for member in self._gang.running
            if isinstance(member, LocalMember) and member.state not in HALTED  # it would wait
        }
        program = find()
        if program is None:
            self._timer = self._loop.after(ANSWERING, then)
            return

        def found(pid: int, text: str) -> None:
            members[pid].spied = text

        def done() -> None:  # where it may not look, it is done before the processes have answered
            self._timer = self._loop.after(ANSWERING, then)

        self._py_spy = PySpy(self._loop, program, members, found=found, done=done)

    def stopping(self, grace: float, kill: Callable[[], None]) -> None:
        """The processes have ``grace`` seconds to end; fewer, if all that are left wait for each other."""
        self._ending = True
        self._cancel()
        if grace > GRACE:
            self._timer = self._loop.after(ANSWER, lambda: self._look_at_end(self._answers(), kill))

    def close(self) -> None:
        """Stop: the processes have ended, or are about to."""
        self._cancel()
        if self._py_spy is not None:
            self._py_spy.close()

    def _cancel(self) -> None:
        self._timer.cancel()
        self._joining.cancel()

    # -- while they run ---------------------------------------------------------------------------

    def _wait(self) -> None:
        self._timer = self._loop.after(max(0.0, self._dog.due - self._clock()), self._ask)

    def _ask(self) -> None:
        heard = max((member.heard for member in self._gang.members), default=0.0)
        self._dog.lived(heard)
        self._judge()
        if self._dog.due > self._clock():
            self._wait()
            return
        self._gang.ask()
        self._timer = self._loop.after(min(ANSWER, self._dog.quiet / 10), self._look)

    def _look(self) -> None:
        found = self._answers()
        looks = {}
        for member in self._gang.running:
            one, cpu = found.get(member.number), member.cpu_seconds()
            looks[member.number] = Look(
                state=one.state if one else None,
                for_others=one.for_others if one else False,
                cpu_seconds=cpu,
            )
        self._dog.looked(self._clock(), looks)
        self._judge()
        if not self._ending:
            self._wait()

    def _judge(self) -> None:
        if self._dog.hangs == self._told or self._gang.failing:
            return
        self._told = self._dog.hangs
        if self._told:
            self._hang()
        else:
            self._tell("the processes get on again")

    def _hang(self) -> None:
        stacks = stacks_of(self._gang.running, self._spec)
        returned = [member.number for member in self._gang.members if member.returned]
        where = places(stacks, returned)
        message = f"no progress for {self._dog.quiet:g} s"
        self._tell(f"{message}: {where}" if where else message)
        if self._limit is not None:
            fix = (
                "Where ranks wait in a collective call, all others have to make the same call. "
                "If they only need more time: hang=…."
            )
            if any(stack.silent for stack in stacks):
                fix = "Look first at the process that does not answer: who, or what, has stopped it?"
            self._stop(Failure(reason="hang", message=f"{message}: {where}" if where else message, fix=fix))

    def _answers(self) -> dict[int, StackAnswer]:
        return answers_of(self._gang.running, self._spec)

    # -- when one has returned --------------------------------------------------------------------

    def _absent(self) -> list[Member]:
        """The processes that have returned and never joined the others."""
        return [one for one in self._gang.members if one.outcome and one.returned and not one.outcome.joined]

    def _ask_joining(self) -> None:
        if not self._gang.failing and self._gang.running:
            self._gang.ask()
            self._joining = self._loop.after(ANSWER, self._look_joining)

    def _look_joining(self) -> None:
        found, running = self._answers(), self._gang.running
        waiting = [
            one for member in running if (one := found.get(member.number)) and one.stack.waits == JOINING
        ]
        self._joining = self._loop.after(
            self._joins.next([one.state for one in waiting] if len(waiting) == len(running) else None),
            self._ask_joining,
        )
        if self._joins.looks < JOINS or self._gang.failing or not running:
            return
        absent = self._absent()
        missed, those = listed([one.number for one in absent]), [one.stack for one in waiting]
        self._stop(
            Failure(
                reason="hang",
                message=f"{missed} returned without having joined the others: {whereabouts(those)}",
                where=those[0].where,
                fix="Let each rank join (init_process_group(), or an Accelerator()) before it returns.",
                rank=absent[0].number,
            )
        )

    # -- when they are to end ---------------------------------------------------------------------

    def _look_at_end(self, before: dict[int, StackAnswer], kill: Callable[[], None]) -> None:
        """One that waits for others does not hear of it: Python's handlers run once that call returns."""
        self._timer = self._loop.after(GRACE - 2 * ANSWER, lambda: self._ask_at_end(before, kill))

    def _ask_at_end(self, before: dict[int, StackAnswer], kill: Callable[[], None]) -> None:
        self._gang.ask()
        self._timer = self._loop.after(ANSWER, lambda: self._end(before, kill))

    def _end(self, before: dict[int, StackAnswer], kill: Callable[[], None]) -> None:
        now = self._answers()
        for member in self._gang.running:
            one, earlier = now.get(member.number), before.get(member.number)
            if one is None or earlier is None or not one.for_others or one.state != earlier.state:
                return
        kill()


DEADLINE = 2.0
"""Seconds that it is given for all of them: with native code it takes one, or less."""
_CHUNK = 1 << 16


def find() -> str | None:
    """Path of the py-spy that is installed beside this Python, or is on the PATH; None: there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """Runs py-spy on some processes at once; ``found`` takes each text, ``done`` is called once."""

    def __init__(
        self,
        loop: Loop,
        program: str,
        pids: Iterable[int],
        *,
        found: Callable[[int, str], None],
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._found = found
        self._done = done
        self._texts: dict[int, bytearray] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._deadline: Timer = loop.after(DEADLINE, self._give_up)
        for pid in pids:
            self._start(program, pid)
        if not self._running:
            self._end()

    def close(self) -> None:
        """Stop looking; ``done`` is not called."""
        self._done = _nothing
        self._give_up()

    def _start(self, program: str, pid: int) -> None:
        command = [program, "dump", "--native", "--full-filenames", "--pid", str(pid)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return
        assert process.stdout is not None
        self._running[pid] = process
        self._texts[pid] = bytearray()
        self._loop.watch(process.stdout.fileno(), lambda: self._read(pid))

    def _read(self, pid: int) -> None:
        stream = self._running[pid].stdout
        assert stream is not None
        data = os.read(stream.fileno(), _CHUNK)
        self._texts[pid] += data
        if data:
            return
        self._leave(pid)
        if self._texts[pid]:
            self._found(pid, self._texts[pid].decode(errors="replace"))
        if not self._running:
            self._end()

    def _give_up(self) -> None:
        for pid in list(self._running):
            self._leave(pid)
        self._end()

    def _leave(self, pid: int) -> None:
        process = self._running.pop(pid)
        assert process.stdout is not None
        self._loop.unwatch(process.stdout.fileno())
        process.stdout.close()
        process.kill()  # whatever it has to say, it has said
        process.wait()

    def _end(self) -> None:
        self._deadline.cancel()
        done, self._done = self._done, _nothing
        done()


def _nothing() -> None:
    return
