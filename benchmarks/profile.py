"""Where the time of one step goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.harness import Effort, Report, Row, fresh_home, program

LENGTH = 200

PATH = (
    ("spec<", "engine: decides what is next"),
    ("spec>", "engine: writes the spec"),
    ("start<", "submit: the fork server gets the spec, and a process is ready"),
    ("order<", "fork server: limits and CPUs; the process that waits gets its order"),
    ("step<", "the step process confines itself"),
    ("call<", "load: the function and its inputs"),
    ("call>", "call: the step itself"),
    ("save<", "between call and save"),
    ("save>", "save: outputs into the store"),
    ("finish<", "the step process tells its outcome, and the fork server hears of it"),
    ("result<", "fork server: collects what is left, usage, cause"),
    ("result>", "result: into the store"),
    ("heard", "the engine hears of it"),
)
"""Places on the way of one step, in order, each with what was done since the place before."""


def measure(effort: Effort) -> Report:
    """Medians of the time between one place and the next, over the steps of a chain."""
    length = effort.size(LENGTH)
    with fresh_home() as home:
        marks = program("profiled_chain", str(length), home=home)["marks"]
    spans: dict[str, list[int]] = {what: [] for _, what in PATH}
    wholes, commits = [], []
    for before, passage in pairwise(_passages(marks)):
        at = before["heard"]
        for place, what in PATH:
            spans[what].append(passage[place] - at)
            at = passage[place]
        wholes.append(passage["heard"] - before["heard"])
        commits.append(passage["committing"])
    rows = [Row(what=what, value=statistics.median(took) / 1e6, unit="ms") for what, took in spans.items()]
    rows += [
        Row(what="one step, all of it", value=statistics.median(wholes) / 1e6, unit="ms"),
        Row(what="of that in commits to the catalog", value=statistics.median(commits) / 1e6, unit="ms"),
    ]
    return Report(
        title="Where the time of one step goes",
        how=f"A chain of {length} thin steps, each run in a process that was forked while the step before it "
        "ran; functions in engine, fork server and step process note when they are passed, on one clock. "
        "Each row is the median time since the row above.",
        rows=rows,
    )


def _passages(marks: Sequence[tuple[str, int]]) -> Iterator[dict[str, int]]:
    """The times at which each step passed each place; ``committing`` is a sum."""
    passage: dict[str, int] = {}
    committing = since = 0
    for name, at in sorted(marks, key=lambda m: m[1]):
        if name == "commit<":
            since = at
        elif name == "commit>":
            committing += at - since
        elif name == "hear<":
            if "result>" in passage:
                yield {**passage, "heard": at, "committing": committing}
                passage, committing = {}, 0
        else:
            passage.setdefault(name, at)
