"""When processes count as hanging: the clock is the test's."""

from __future__ import annotations

from upshift.runtime.supervisor.hang_detector import LOOKS, Look, Watchdog

STUCK = Look(state="all_reduce", for_others=True, cpu_seconds=1.0)
ASLEEP = Look(state="sleep", cpu_seconds=1.0)


def run(dog: Watchdog, *looks: dict[int, Look]) -> list[float]:
    """Look whenever it is due, each time seeing the next of these; when that was."""
    times = []
    for found in looks:
        at = dog.due
        dog.looked(at, found)
        times.append(at)
    return times


def test_those_that_stay_where_they_are_hang_after_the_time() -> None:
    dog = Watchdog(30.0, now=100.0)
    assert run(dog, *[{0: STUCK, 1: ASLEEP}] * 2) == [110.0, 120.0]
    assert not dog.hangs
    assert run(dog, {0: STUCK, 1: ASLEEP}) == [130.0]
    assert dog.hangs


def test_a_sign_of_life_starts_the_time_anew() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(dog, {0: STUCK}, {0: STUCK})
    dog.lived(25.0)
    assert dog.due == 35.0
    run(dog, {0: STUCK}, {0: STUCK})
    assert not dog.hangs
    assert run(dog, {0: STUCK}) == [55.0]
    assert dog.hangs


def test_an_older_sign_of_life_says_nothing_new() -> None:
    dog = Watchdog(30.0, now=100.0)
    run(dog, *[{0: STUCK}] * LOOKS)
    dog.lived(99.0)
    assert dog.hangs


def test_one_that_is_elsewhere_gets_on() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(
        dog,
        {0: STUCK, 1: ASLEEP},
        {0: STUCK, 1: ASLEEP},
        {0: STUCK, 1: Look(state="elsewhere", cpu_seconds=1.0)},
    )
    assert not dog.hangs
    assert dog.due == 30.0 + 20.0  # that look is the first one of the new time


def test_one_that_goes_to_and_fro_between_the_same_places_does_not() -> None:
    there, back = Look(state="a", cpu_seconds=1.0), Look(state="b", cpu_seconds=1.0)
    dog = Watchdog(30.0, now=0.0)
    run(dog, {0: there}, {0: back}, {0: there})  # at the second look it got on
    assert not dog.hangs
    run(dog, {0: back}, {0: there}, {0: back})
    assert dog.hangs


def test_one_that_computes_gets_on_wherever_it_is() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(dog, *[{0: STUCK, 1: Look(state="matmul", cpu_seconds=float(n))} for n in range(10)])
    assert not dog.hangs


def test_a_busy_cpu_is_no_sign_of_life_in_one_that_waits_for_others() -> None:
    dog = Watchdog(30.0, now=0.0)
    spins = [Look(state="barrier", for_others=True, cpu_seconds=10.0 * n) for n in range(LOOKS)]
    run(dog, *[{0: spin, 1: spin} for spin in spins])
    assert dog.hangs


def test_a_process_of_which_nothing_is_known_has_the_benefit_of_the_doubt() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(dog, *[{0: STUCK, 1: Look(state="somewhere")}] * 10)
    assert not dog.hangs


def test_one_that_does_not_answer_and_takes_no_cpu_does_not_get_on() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(
        dog, {0: STUCK, 1: Look(cpu_seconds=1.0)}, {0: STUCK, 1: ASLEEP}, {0: STUCK, 1: Look(cpu_seconds=1.0)}
    )
    assert dog.hangs


def test_what_hangs_is_looked_at_less_often_and_may_come_back() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(dog, *[{0: STUCK}] * LOOKS)
    assert (dog.hangs, dog.due) == (True, 60.0)
    run(dog, {0: STUCK})
    assert (dog.hangs, dog.due) == (True, 90.0)
    dog.lived(70.0)
    assert (dog.hangs, dog.due) == (False, 80.0)


def test_one_that_is_new_is_a_sign_of_life_and_none_at_all_do_not_hang() -> None:
    dog = Watchdog(30.0, now=0.0)
    run(dog, {0: STUCK}, {0: STUCK}, {0: STUCK, 1: STUCK})
    assert not dog.hangs
    empty = Watchdog(30.0, now=0.0)
    run(empty, {}, {}, {}, {})
    assert not empty.hangs
