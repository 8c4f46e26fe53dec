"""Processes that are silent are looked at; those that hang are told of, and stopped if that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from members_kit import Process

from upshift.model.spec import Code, EntryPoint, Failure, Launch, Rank, TaskId, TaskSpec, to_json
from upshift.runtime.loop import Timer
from upshift.runtime.messages import Outcome, Seen
from upshift.runtime.supervisor.ends import Gang
from upshift.runtime.supervisor.hang_detector import HangDetector

WAITS = """\
Current thread 0x00007f29ecde0b80 (most recent call first):
  File "/env/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 12 in train
"""
WORKS = """\
Current thread 0x00007f29ecde0b81 (most recent call first):
  File "/home/me/data.py", line 7 in load
"""


JOINS = """\
Current thread 0x00007f29ecde0b80 (most recent call first):
  File "/env/lib/python3/site-packages/torch/distributed/rendezvous.py", line 198 in _create_c10d_store
  File "/env/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 1700 in init_process_group
  File "/home/me/train.py", line 9 in train
"""


class Clock:
    """A loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[float, Timer]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self._due.append((self.now + seconds, timer))
        return timer

    def run(self, until: float) -> None:
        while self._due and min(self._due, key=lambda one: one[0])[0] <= until:
            at, timer = self._due.pop(self._due.index(min(self._due, key=lambda one: one[0])))
            self.now = max(self.now, at)
            if timer.call is not None:
                timer.call()
        self.now = until


class Answering(Process):
    """One that answers at once, if it answers."""

    def __init__(self, number: int, answer: str) -> None:
        super().__init__(Rank(rank=number, world_size=2))
        self.answer = answer
        self.cpu: float | None = 1.0
        self.asked = 0
        self.feed_sight(to_json(Seen(cpu_count=1, memory=1)) + b"\n")

    def ask(self) -> None:
        super().ask()
        self.asked += 1
        self.feed_sight(self.answer.encode())

    def cpu_seconds(self) -> float | None:
        return self.cpu


@attrs.define
class World:
    """Two processes that are watched, and what became of that."""

    clock: Clock
    ranks: list[Answering]
    gang: Gang
    vigil: HangDetector
    said: list[str]
    stopped: list[Failure]


@pytest.fixture
def world() -> Callable[[float | None], World]:
    def made(hang: float | None) -> World:
        clock, said, stopped = Clock(), list[str](), list[Failure]()
        gang = Gang(clock, grace=10, follows=lambda member: False)  # type: ignore[arg-type]
        ranks = [Answering(0, WAITS), Answering(1, WORKS)]
        gang.members += ranks
        spec = TaskSpec(
            task=TaskId(run="r", step="train"),
            attempt=1,
            pipeline="p",
            entry=EntryPoint(module="m", qualname="f"),
            code=Code(project="/home/me"),
            store="/nowhere",
            cwd="/home/me",
            launch=Launch(launcher="torchrun", hang=hang),
        )

        def stop(failure: Failure) -> None:
            stopped.append(failure)
            vigil.stopping(10.0, lambda: None)

        vigil = HangDetector(
            clock,  # type: ignore[arg-type]
            spec,
            gang,
            tell=said.append,
            stop=stop,
            clock=lambda: clock.now,
        )
        return World(clock, ranks, gang, vigil, said, stopped)

    return made


def test_those_that_hang_are_stopped_if_that_was_asked_for(world: Callable[[float | None], World]) -> None:
    one = world(30.0)
    one.clock.run(until=129.0)
    assert (one.said, one.stopped) == ([], [])
    one.clock.run(until=131.0)
    message = "no progress for 30 s: rank 0 waits in all_reduce (train.py:12), rank 1 is at data.py:7"
    assert one.said == [message]
    assert [(failure.reason, failure.message) for failure in one.stopped] == [("hang", message)]
    one.clock.run(until=1000.0)
    assert len(one.stopped) == len(one.said) == 1


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("T", "is stopped until SIGCONT"),
        ("D", "is in the kernel and cannot be interrupted there"),
        ("S", "does not say where it is"),
    ],
)
def test_one_that_does_not_answer_is_named_with_what_the_kernel_says_of_it(
    world: Callable[[float | None], World], state: str, told: str
) -> None:
    one = world(30.0)
    silent = one.ranks[1]
    silent.answer, silent.state, silent.pid = "", state, 4711
    one.clock.run(until=131.0)
    assert one.said == [
        f"no progress for 30 s: rank 1 does not answer: process 4711 {told}, "
        "rank 0 waits in all_reduce (train.py:12)"
    ]


def test_without_that_it_is_said_once_and_again_only_when_they_have_got_on_between(
    world: Callable[[float | None], World],
) -> None:
    one = world(None)
    one.clock.run(until=2000.0)
    assert one.stopped == []
    assert [line.partition(":")[0] for line in one.said] == ["no progress for 300 s"]
    one.ranks[1].heard = one.clock.now
    one.clock.run(until=2300.0)
    assert one.said[1:] == ["the processes get on again"]
    one.clock.run(until=3000.0)
    assert [line.partition(":")[0] for line in one.said[2:]] == ["no progress for 300 s"]


def test_that_they_get_on_may_be_found_by_looking(world: Callable[[float | None], World]) -> None:
    one = world(None)
    one.clock.run(until=500.0)
    one.ranks[1].cpu = 50.0
    one.clock.run(until=900.0)
    assert one.said[1:] == ["the processes get on again"]


def test_those_that_print_are_not_even_asked(world: Callable[[float | None], World]) -> None:
    one = world(30.0)
    for second in range(200):
        one.ranks[0].heard = one.clock.now
        one.clock.run(until=100.0 + second)
    assert [rank.asked for rank in one.ranks] == [0, 0]


def test_one_that_computes_keeps_all_of_them_alive(world: Callable[[float | None], World]) -> None:
    one = world(30.0)
    for second in range(200):
        one.ranks[1].cpu = float(second)
        one.clock.run(until=100.0 + second)
    assert (one.said, one.stopped) == ([], [])


def test_who_has_returned_is_named_and_not_asked(world: Callable[[float | None], World]) -> None:
    one = world(30.0)
    one.ranks[1].outcome = Outcome()
    one.clock.run(until=131.0)
    assert one.ranks[1].asked == 0
    assert one.said == ["no progress for 30 s: rank 1 has returned, rank 0 waits in all_reduce (train.py:12)"]


def test_all_are_stopped_if_they_wait_for_one_that_returned_and_never_joined(
    world: Callable[[float | None], World],
) -> None:
    one = world(None)
    one.ranks[0].answer = JOINS
    one.ranks[1].outcome = Outcome()
    one.vigil.returned()
    one.clock.run(until=110.0)
    (failure,) = one.stopped
    assert (failure.reason, failure.rank, failure.where) == ("hang", 1, "train.py:9")
    assert failure.message == (
        "rank 1 returned without having joined the others: rank 0 waits in init_process_group (train.py:9)"
    )


@pytest.mark.parametrize(("joined", "answer"), [(True, JOINS), (False, WORKS), (False, WAITS)])
def test_they_are_left_alone_if_it_joined_or_they_do_something_else(
    world: Callable[[float | None], World], joined: bool, answer: str
) -> None:
    one = world(None)
    one.ranks[0].answer = answer
    one.ranks[1].outcome = Outcome(joined=joined)
    one.vigil.returned()
    one.clock.run(until=200.0)
    assert one.stopped == []


def test_they_are_left_alone_while_one_of_them_is_yet_to_join(world: Callable[[float | None], World]) -> None:
    one = world(None)
    one.ranks[0].answer, one.ranks[1].answer = JOINS, WORKS
    absent = Answering(2, WORKS)
    absent.outcome = Outcome()
    one.gang.members.append(absent)
    one.vigil.returned()
    one.clock.run(until=200.0)
    assert one.stopped == []
    one.ranks[1].answer = JOINS
    one.clock.run(until=210.0)
    assert [failure.rank for failure in one.stopped] == [2]


@pytest.mark.parametrize(("answer", "killed"), [(WAITS, True), (WORKS, False)])
def test_they_are_killed_early_only_if_all_that_are_left_wait_for_each_other(
    world: Callable[[float | None], World], answer: str, killed: bool
) -> None:
    one, kills = world(None), list[float]()
    one.ranks[1].answer = answer
    for rank in one.ranks:
        rank.ask()
    one.vigil.stopping(10.0, lambda: kills.append(one.clock.now))
    one.clock.run(until=200.0)
    assert kills == ([103.0] if killed else [])


def test_one_that_has_moved_since_it_was_told_to_end_has_its_time(
    world: Callable[[float | None], World],
) -> None:
    one, kills = world(None), list[float]()
    one.ranks[1].answer = WAITS
    for rank in one.ranks:
        rank.ask()
    one.vigil.stopping(10.0, lambda: kills.append(one.clock.now))
    one.clock.run(until=101.0)
    one.ranks[1].answer = WAITS.replace("line 12", "line 13")
    one.clock.run(until=200.0)
    assert kills == []
