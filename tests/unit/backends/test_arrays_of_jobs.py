"""What is submitted at once: jobs by themselves, and arrays of those that differ in their task alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from settings_kit import with_settings
from upshift.backends.base import Job
from upshift.backends.jobs import JobLaunch, listed, submissions
from upshift.backends.scheduler import Launch, name_of
from upshift.model.spec import Code, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.runtime.storage.records import ArrayList, pack_array
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor import array_element
from upshift.runtime.supervisor.array_element import Element


class Arrays:
    """A scheduler whose elements have numbers below 100."""

    largest = 100
    dense = False

    def share(self, launch: Launch) -> float:
        return 20.0

    def withdraw(self, ids: Collection[str]) -> None:
        raise NotImplementedError


def job_launch(
    store: Path, index: int | None, *, granted: Hardware | None = None, **fields: Any
) -> JobLaunch:
    granted = granted or Hardware(nodes=1)
    spec = TaskSpec(
        task=TaskId(run="r", step="score", index=index),
        pipeline="p",
        entry=EntryPoint(module="m", qualname="score"),
        code=Code(project="/p"),
        store=str(store),
        granted=granted,
        **with_settings({"attempt": 1, **fields}),
    )
    path = f"runs/r/tasks/score/{index or 0}.{spec.attempt}.spec.json"
    name = name_of(spec)
    return JobLaunch(
        Job(spec=spec, spec_path=path),
        Launch(name=name, comment="", command=("python", str(store / path)), granted=granted, settings={}),
    )


def test_tasks_of_a_step_are_an_array_whose_elements_have_their_numbers(tmp_path: Path) -> None:
    (submission,) = submissions(str(tmp_path), [job_launch(tmp_path, i) for i in (7, 2, 3)], Arrays())
    assert submission.launch.elements == (2, 3, 7)
    assert (
        submission.launch.name.startswith("score-")
        and submission.launch.comment == "upshift r score, 3 tasks"
    )
    assert submission.listed is not None and submission.launch.command[-1] == str(tmp_path / submission.path)
    open_store(str(tmp_path)).write_array(submission.path, pack_array(submission.listed))
    assert listed(str(tmp_path / "runs/r/tasks/score")) == {
        f"{i}.1.spec.json": [(submission.launch.name, i)] for i in (2, 3, 7)
    }


def test_elements_are_numbered_without_a_gap_where_a_scheduler_wants_that(tmp_path: Path) -> None:
    arrays = Arrays()
    arrays.dense = True
    (submission,) = submissions(str(tmp_path), [job_launch(tmp_path, i) for i in (7, 2, 3)], arrays)
    assert submission.launch.elements == (0, 1, 2)
    assert {number: part.index for number, part in submission.parts.items()} == {0: 2, 1: 3, 2: 7}


def test_an_array_has_no_element_beyond_the_largest_that_a_site_takes(tmp_path: Path) -> None:
    found = list(
        submissions(str(tmp_path), [job_launch(tmp_path, i) for i in (5, 98, 105, 107, 350)], Arrays())
    )
    assert [submission.launch.elements for submission in found] == [(5, 98), (5, 7), ()]
    assert len({submission.launch.name for submission in found}) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"attempt": 2},
        {"granted": Hardware(memory=10**9, nodes=1)},
        {"secrets": {"TOKEN": "env:TOKEN"}},
    ],
)
def test_what_differs_in_more_than_its_task_is_submitted_by_itself(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    found = list(
        submissions(str(tmp_path), [job_launch(tmp_path, 1), job_launch(tmp_path, 2, **other)], Arrays())
    )
    assert [submission.launch.elements for submission in found] == [(), ()]


def test_jobs_of_several_nodes_and_those_of_a_scheduler_without_arrays_are_submitted_one_by_one(
    tmp_path: Path,
) -> None:
    two = Hardware(nodes=2)
    several = [job_launch(tmp_path, i, granted=two) for i in range(3)]
    assert [d.launch.elements for d in submissions(str(tmp_path), several, Arrays())] == [()] * 3
    alone = [attrs.evolve(job_launch(tmp_path, i)) for i in range(3)]
    assert [d.launch.elements for d in submissions(str(tmp_path), alone, None)] == [()] * 3


def test_an_element_begins_with_its_own_task_and_goes_on_with_what_nobody_has_claimed(tmp_path: Path) -> None:
    specs = {number: f"{number}.1.spec.json" for number in range(4)}
    store, path = open_store(str(tmp_path)), "runs/r/tasks/score/score.array"
    store.write_array(path, pack_array(ArrayList(1000.0, specs)))
    one = Element(store, path, 1)
    assert one.claim() == "runs/r/tasks/score/1.1.spec.json"
    assert array_element.is_taken(str(tmp_path / path), 1) and not array_element.is_taken(
        str(tmp_path / path), 3
    )
    others = [one.claim(), Element(store, path, 0).claim(), one.claim(), one.claim()]
    assert sorted(map(str, filter(None, others))) == [
        f"runs/r/tasks/score/{specs[number]}" for number in (0, 2, 3)
    ]
    assert others[-1] is None and array_element.is_taken(str(tmp_path / path), 3)


def test_an_element_whose_task_another_one_has_leaves(tmp_path: Path) -> None:
    store, path = open_store(str(tmp_path)), "runs/r/tasks/score/score.array"
    store.write_array(path, pack_array(ArrayList(1000.0, {0: "0.1.spec.json", 1: "1.1.spec.json"})))
    one = Element(store, path, 0)
    assert one.claim() is not None and one.claim() == "runs/r/tasks/score/1.1.spec.json"
    assert Element(store, path, 1).claim() is None
    assert store.claimed_by(TaskId(run="r", step="score", index=1), 1) == array_element.claim_of(0)


def test_elements_that_go_on_rarely_want_the_same_task() -> None:
    free = list(range(176))
    wanted = {free[int(len(free) * (number * array_element._SPREAD % 1))] for number in range(24)}
    assert len(wanted) == 24
    assert min(b - a for a, b in itertools.pairwise(sorted(wanted))) > 2


def test_an_element_that_has_had_its_time_leaves_the_rest_to_others(tmp_path: Path) -> None:
    store, path = open_store(str(tmp_path)), "runs/r/tasks/score/score.array"
    store.write_array(path, pack_array(ArrayList(-1.0, {0: "0.1.spec.json", 1: "1.1.spec.json"})))
    one = Element(store, path, 0)
    assert one.claim() is not None
    assert one.claim() is None


class Bucket:
    """A store in a bucket as elements use it, which counts what they ask of it."""

    direct = True

    def __init__(self, tasks: int) -> None:
        self._list = pack_array(ArrayList(1000.0, {n: f"{n}.1.spec.json" for n in range(tasks)}))
        self.there: set[str] = set()
        self.asked = 0

    def read_array(self, relative: str) -> bytes:
        self.asked += 1
        return self._list

    def names_beside(self, relative: str) -> list[str]:
        self.asked += 1
        return list(self.there)

    def claim_spec(self, relative: str, *, by: str) -> bool:
        self.asked += 1
        claim = relative.rpartition("/")[2].replace("spec.json", "claim")
        is_first = claim not in self.there
        self.there.add(claim)
        return is_first

    def end(self, relative: str) -> None:
        """Somebody has run a task: its result, and its bulletin, which is read."""
        self.asked += 3
        self.there.add(relative.rpartition("/")[2].replace("spec.json", "result.json"))


@pytest.mark.parametrize("tasks", [2, 3, 40, 100])
@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_each_task_of_an_array_in_a_bucket_takes_six_requests_whoever_comes_first(
    tasks: int, at_once: int
) -> None:
    for seed in range(8):
        chance, bucket, run = random.Random(seed), Bucket(tasks), list[str]()
        waiting = list(range(tasks))
        work: dict[Element, str | None] = {}
        while work or waiting:
            while waiting and len(work) < at_once:
                work[Element(cast(Store, bucket), "runs/r/tasks/score/score.array", waiting.pop(0))] = None
            element = chance.choice(list(work))
            done = work[element]
            if done is not None:
                bucket.end(done)
            work[element] = element.claim()
            if (begun := work[element]) is None:
                del work[element]
            else:
                run.append(begun)
        assert sorted(run) == sorted(f"runs/r/tasks/score/{n}.1.spec.json" for n in range(tasks))
        assert bucket.asked <= 6 * tasks


def test_few_elements_share_what_is_left_of_an_array_in_a_bucket() -> None:
    bucket = Bucket(400)
    element = Element(cast(Store, bucket), "runs/r/tasks/score/score.array", 0)
    taken = list(iter(element.claim, None))
    assert len(taken) == 1 + 12  # of 32 that look, each takes so many, or its share of the time


def test_a_claim_says_which_element_made_it() -> None:
    assert array_element.element_in(array_element.claim_of(12)) == 12
    assert array_element.element_in(array_element.claim_of(None)) is None
    assert array_element.element_in("an engine that gave it up") is None
