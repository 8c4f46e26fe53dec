"""Jobs that a scheduler takes as one: an array, whose elements are the tasks of a mapped step.

Which elements an array has is a list beside the specs of its tasks, so that a job is found again whatever was
recorded before the engine was killed. An element may run tasks of elements that have not started
(:mod:`upshift.runtime.supervisor.serving.array`): whose job an attempt is, its claim says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence

import attrs

from upshift.backends.base import Job
from upshift.backends.scheduler import Arrays, Launch
from upshift.runtime.storage.records import ARRAY, ArrayList, unpack_array


@attrs.frozen
class Drafted:
    """A job, and how it is launched if it is one by itself."""

    job: Job
    launch: Launch

    @property
    def index(self) -> int:
        """Its task's number in its step."""
        return self.job.spec.task.index or 0


@attrs.frozen
class Draft:
    """What is submitted at once: a job by itself, or an array."""

    launch: Launch
    parts: Mapping[int | None, Drafted]  # by element; that of no array is under None
    listed: ArrayList | None = None  # which is written before it is submitted
    path: str = ""  # of that list, relative to the store


def drafts(store: str, jobs: Sequence[Drafted], arrays: Arrays | None) -> Iterator[Draft]:
    """Jobs as they are submitted: those that differ in their task alone are an array."""
    alike: dict[tuple[object, ...], list[Drafted]] = {}
    for one in jobs:
        alike.setdefault(_kind(one), []).append(one)
    for those in alike.values():
        if arrays is None or len(those) == 1 or (those[0].launch.granted.nodes or 1) > 1:
            yield from (Draft(one.launch, {None: one}) for one in those)
            continue
        chunks: dict[int, list[Drafted]] = {}
        for one in those:
            chunks.setdefault(one.index // arrays.largest, []).append(one)
        for chunk in chunks.values():
            yield draft(store, chunk, arrays)


def draft(store: str, jobs: Sequence[Drafted], arrays: Arrays) -> Draft:
    """These jobs as an array, if they are several; elements have the numbers of their tasks, if they can."""
    if len(jobs) == 1:
        return Draft(jobs[0].launch, {None: jobs[0]})
    first = jobs[0]
    spec, launch = first.job.spec, first.launch
    in_order = sorted(jobs, key=lambda one: one.index)
    numbered = {n if arrays.dense else one.index % arrays.largest: one for n, one in enumerate(in_order)}
    specs = {number: os.path.basename(one.job.spec_path) for number, one in numbered.items()}
    parts: dict[int | None, Drafted] = dict(numbered.items())
    said = f"{launch.name.rpartition('-')[2]}\0{sorted(specs.items())}"
    name = f"{_stem(first)}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    path = os.path.join(os.path.dirname(first.job.spec_path), name)
    there = launch.command[-1].removesuffix(first.job.spec_path)
    launch = attrs.evolve(
        launch,
        name=name,
        comment=f"upshift {spec.task.run} {spec.task.step}, {len(parts)} tasks",
        command=(*launch.command[:-1], f"{there}{path}{ARRAY}"),
        output=f"{os.path.join(store, path)}.out",
        elements=tuple(numbered),
    )
    return Draft(launch, parts, ArrayList(arrays.share(launch), specs), path + ARRAY)


def listed(folder: str) -> dict[str, list[tuple[str, int]]]:
    """The arrays of a folder of specs: of each spec their names, and its element."""
    found: dict[str, list[tuple[str, int]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(folder):
            if entry.endswith(ARRAY):
                with open(os.path.join(folder, entry), "rb") as file:
                    specs = unpack_array(file.read()).names
                for number, spec in specs.items():
                    found.setdefault(spec, []).append((entry.removesuffix(ARRAY), number))
    return found


def _kind(one: Drafted) -> tuple[object, ...]:
    """What jobs have in common that may be one array."""
    spec, launch = one.job.spec, one.launch
    same = attrs.evolve(launch, name="", comment="", command=launch.command[:-1], output=None)
    alone = spec.task.index is None and one.job.spec_path
    secrets = sorted(spec.settings.secret_sources.items())
    return (os.path.dirname(one.job.spec_path), alone, spec.attempt, repr(same), repr(secrets))


def _stem(one: Drafted) -> str:
    """The name of a job without its digest and its task's number."""
    return one.launch.name.rpartition("-")[0].removesuffix(f"-{one.index}")
