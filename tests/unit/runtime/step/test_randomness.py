"""Random numbers of a task follow from what it is and what its run drew, for each generator by itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from upshift.runtime.step import randomness

TASKS = ["s", "m of 1", "m of 2", "m of 3"]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The generators of the tests' own process."""
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def numbers(drawn: dict[str, str], task: str) -> dict[str, float]:
    """The first number of each generator in a task."""
    randomness.enter(drawn, task)
    first = {"random": random.random(), "numpy": float(np.random.random())}
    if "torch.random" in sys.modules:
        first["torch"] = sys.modules["torch"].rand(()).item()
    return first


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    if "torch.random" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.mark.parametrize("torch", [False, True])
def test_seeded_generators_give_each_task_its_own_numbers_and_every_run_the_same(torch: bool) -> None:
    if torch:
        pytest.importorskip("torch")
    seed_all(5)
    first = randomness.draws()
    seed_all(5)
    assert randomness.draws() == first
    drawn = [numbers(first, task) for task in TASKS]
    seed_all(99)
    assert [numbers(first, task) for task in TASKS] == drawn, "what the process itself has does not count"
    for name in drawn[0]:
        assert len({each[name] for each in drawn}) == len(TASKS)
    seed_all(6)
    assert all(numbers(randomness.draws(), TASKS[0])[name] != drawn[0][name] for name in drawn[0])


@pytest.mark.parametrize("seeded", ["random", "numpy"])
def test_each_generator_goes_by_itself(seeded: str) -> None:
    seen = []
    for round_ in range(2):
        seed_all(round_)  # stands for what the system gives a generator that nobody seeds
        random.seed(5) if seeded == "random" else np.random.seed(5)
        seen.append(numbers(randomness.draws(), TASKS[0]))
    for name in ("random", "numpy"):
        assert (seen[0][name] == seen[1][name]) is (name == seeded)


def test_two_runs_of_one_process_draw_different_numbers() -> None:
    seed_all(5)
    assert numbers(randomness.draws(), TASKS[0]) != numbers(randomness.draws(), TASKS[0])


def test_a_generator_that_only_the_steps_process_has_gives_each_task_its_own_numbers() -> None:
    drawn = {name: number for name, number in randomness.draws().items() if name == "random"}
    state = np.random.get_state()
    found = []
    for task in TASKS:
        np.random.set_state(state)  # as each fork of one process finds it
        found.append(numbers(drawn, task)["numpy"])
    assert len(set(found)) == len(TASKS)
    np.random.set_state(state)
    assert numbers(drawn, TASKS[0])["numpy"] == found[0]


def test_a_bit_generator_of_the_users_own_is_seeded_and_stays() -> None:
    before: Any = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        drawn = randomness.draws()
        first = numbers(drawn, TASKS[0])
        assert isinstance(np.random.get_bit_generator(), np.random.PCG64)
        assert numbers(drawn, TASKS[0]) == first
        assert numbers(drawn, TASKS[1])["numpy"] != first["numpy"]
    finally:
        np.random.set_bit_generator(before)
