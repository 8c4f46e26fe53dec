"""Deciding that nothing has to run: a large fan-out that is done already, and a large project's code."""

from __future__ import annotations

import statistics

from benchmarks.harness import Effort, Report, Row, fresh_home, program

TASKS = 10_000
MODULES = 300


def measure(effort: Effort) -> Report:
    """Tasks a second where all are reused; seconds to analyse the code, the first time and then."""
    tasks, rounds = (1_000, 1) if effort.quick else (TASKS, effort.rounds(5))
    with fresh_home() as home:
        program("fan_out", str(tasks), home=home)
        again = [program("fan_out", str(tasks), home=home) for _ in range(min(rounds, 3))]
    cold, warm, parsed = [], [], []
    for _ in range(rounds):
        with fresh_home() as home:
            project = str(home / "project")
            program("analysis", project, str(MODULES), home=home / "unused")  # Python's own bytecode
            first = program("analysis", project, str(MODULES), home=home)
            cold.append(first["analysed"])
            parsed.append(first["parsed"])
            warm.append(program("analysis", project, str(MODULES), home=home)["analysed"])
    middle = statistics.median
    return Report(
        title="Reuse",
        how=f"A fan-out of {tasks:,} trivial tasks, run again with every result there: seconds of the whole "
        f"run. The code that one step reaches in a project of {MODULES} modules, all of which it reaches: "
        "analysed with nothing kept from before, and again in a fresh process. The floor is Python's own "
        f"parser over the same files. {rounds} rounds, medians.",
        rows=[
            Row(
                what=f"{tasks:,} tasks, all reused",
                value=tasks / middle(r["seconds"] for r in again),
                unit="tasks/s",
                target=2_000,
                at_least=True,
            ),
            Row(what=f"floor: parse {MODULES} modules", value=1000 * middle(parsed), unit="ms"),
            Row(
                what=f"analyse {MODULES} modules, the first time",
                value=1000 * middle(cold),
                unit="ms",
                target=500,
            ),
            Row(what=f"analyse {MODULES} modules, again", value=1000 * middle(warm), unit="ms", target=50),
        ],
    )
