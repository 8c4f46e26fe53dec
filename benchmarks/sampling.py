"""What it costs to sample steps once a second."""

from __future__ import annotations

from benchmarks.harness import Effort, Report, Row, fresh_home, program

SECONDS = 20.0
TASKS = 100


def measure(effort: Effort) -> Report:
    """CPU time of the supervisor while its steps, and what these have started, do nothing."""
    seconds = 5.0 if effort.quick else SECONDS
    with fresh_home() as home:
        one = program("sampled", "1", "4", str(seconds), home=home)
        many = program("sampled", str(TASKS), "0", str(seconds), home=home)
    return Report(
        title="Sampling",
        how="One sample a second of each step: CPU, memory, disks and network. CPU time of the supervisor "
        f"over {seconds:g} s, by the kernel's count, in which it does nothing else.",
        rows=[
            Row(
                what="a step with 4 processes beside it",
                value=100 * one["share"],
                unit="% of a core",
                target=0.5,
            ),
            Row(what=f"{TASKS} steps at once, together", value=100 * many["share"], unit="% of a core"),
            Row(what="a sample without GPUs, on disk", value=one["bytes"], unit="bytes"),
        ],
    )
