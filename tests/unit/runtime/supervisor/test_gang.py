"""Who ends a task of several processes, and who is named for it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from members_kit import Process

from upshift.model.spec import Failure, Rank
from upshift.runtime.loop import Timer
from upshift.runtime.messages import Outcome
from upshift.runtime.supervisor import ends as gangs
from upshift.runtime.supervisor.ends import Gang
from upshift.runtime.supervisor.members import Member

CAUSE = Failure(reason="user-error", message="ValueError: boom")
EFFECT = Failure(reason="user-error", message="Connection closed by peer")


class Clock:
    """A loop whose time comes when it is told to."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Timer]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self.due.append((seconds, timer))
        return timer

    def pass_time(self) -> None:
        due, self.due = self.due, []
        for _, timer in due:
            if timer.call is not None:
                timer.call()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gang(clock: Clock) -> Gang:
    def follows(member: Member) -> bool:
        return member.outcome is not None and member.outcome.failure == EFFECT

    gang = Gang(clock, grace=10, follows=follows)  # type: ignore[arg-type]
    gang.members += [Process(Rank(rank=number, world_size=3)) for number in range(3)]
    return gang


def sent(gang: Gang) -> list[list[int]]:
    return [member.sent for member in gang.members]  # type: ignore[attr-defined]


def failed(gang: Gang, number: int, failure: Failure | None) -> None:
    member = gang.members[number]
    assert isinstance(member, Process)
    if failure is not None:
        member.outcome = Outcome(failure=failure)
    gang.fail(member)


def test_the_first_to_fail_ends_the_others_and_those_who_do_not_heed_it_are_killed(
    gang: Gang, clock: Clock
) -> None:
    failed(gang, 1, CAUSE)
    assert sent(gang) == [[signal.SIGTERM]] * 3 and clock.due[0][0] == gangs.GRACE
    gang.members[1].code = 1
    clock.pass_time()
    assert sent(gang) == [
        [signal.SIGTERM, signal.SIGKILL],
        [signal.SIGTERM],
        [signal.SIGTERM, signal.SIGKILL],
    ]
    assert gang.culprit.number == 1


def test_what_ends_because_it_was_stopped_is_not_the_cause(gang: Gang) -> None:
    failed(gang, 2, CAUSE)
    failed(gang, 0, None)
    assert gang.culprit.number == 2


def test_a_consequence_waits_for_its_cause(gang: Gang, clock: Clock) -> None:
    failed(gang, 0, EFFECT)
    assert sent(gang) == [[], [], []]
    failed(gang, 1, None)  # it died without a word
    assert sent(gang) == [[signal.SIGTERM]] * 3 and gang.culprit.number == 1
    clock.pass_time()  # the moment that the first was given: nothing is sent twice
    assert [numbers.count(signal.SIGTERM) for numbers in sent(gang)] == [1, 1, 1]


def test_a_consequence_without_a_cause_is_the_cause(gang: Gang, clock: Clock) -> None:
    failed(gang, 2, EFFECT)
    failed(gang, 0, EFFECT)
    clock.pass_time()
    assert sent(gang) == [[], [], []]  # first they are asked where they are
    clock.pass_time()
    assert [numbers[:1] for numbers in sent(gang)] == [[signal.SIGTERM]] * 3 and gang.culprit.number == 2


def test_the_only_process_is_not_told_that_it_has_failed(clock: Clock) -> None:
    gang = Gang(clock, grace=10, follows=lambda member: False)  # type: ignore[arg-type]
    gang.members.append(Process(Rank(world_size=3)))
    failed(gang, 0, CAUSE)
    assert sent(gang) == [[]] and not clock.due


def test_all_have_to_return(gang: Gang) -> None:
    for number, member in enumerate(gang.members):
        assert not gang.returned
        member.outcome = Outcome(returned="int" if number else None)
    assert gang.returned and not gang.ended and gang.culprit is gang.main
