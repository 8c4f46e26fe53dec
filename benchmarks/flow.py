"""A flow beside the same work in functions: a foreach, a chain, a resume."""

from __future__ import annotations

from benchmarks.harness import Effort, Report, Row, fresh_home, program


def measure(effort: Effort) -> Report:
    """The rate of a foreach beside that of ``.map``, one more step, and resuming at the last step."""
    tasks, length, rounds = effort.size(1_000), 50, effort.rounds(4)
    with fresh_home() as home:
        found = program("flow", str(tasks), str(length), str(rounds), home=home)
    return Report(
        title=f"Flows: a foreach of {tasks:,}, a chain of {length} steps",
        how=f"In one process, in turns, medians of {rounds} rounds. A foreach with its join, and `.map` of a "
        "function over as many items, are timed as whole runs. One more step: (seconds of a chain of "
        f"{length} steps − of 3) ÷ {length - 3}. A chain that failed at its last step is resumed.",
        rows=[
            Row(what=f"`.map` of {tasks:,} trivial tasks", value=tasks / found["map"], unit="tasks/s"),
            Row(
                what=f"foreach of {tasks:,} trivial tasks (target: 0.9 × that)",
                value=tasks / found["foreach"],
                unit="tasks/s",
                target=0.9 * tasks / found["map"],
                at_least=True,
            ),
            Row(what="one more step of a flow", value=1000 * found["step"], unit="ms"),
            Row(
                what=f"resume of a flow of {length} steps at its last one",
                value=found["resume"],
                unit="s",
                target=0.5,
            ),
        ],
    )
