"""The ``upshift`` command and the table of its subcommands."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import click

from upshift._version import __version__
from upshift.cli.group import LazyCommand, LazyGroup

_COMMANDS = {
    "run": LazyCommand("upshift.cli.run:run", "Run a pipeline."),
    "plan": LazyCommand("upshift.cli.run:plan", "Show what a run would do; nothing runs."),
    "resume": LazyCommand("upshift.cli.run:resume", "Finish a run; what is done is not run again."),
    "cancel": LazyCommand("upshift.cli.run:cancel", "Stop a run; what is done is kept."),
    "runs": LazyCommand("upshift.cli.runs:runs", "List runs, newest first."),
    "show": LazyCommand(
        "upshift.cli.runs:show", "Show a run: steps, times, hardware asked to used, failures."
    ),
    "compare": LazyCommand(
        "upshift.cli.runs:compare", "Compare runs: parameters that differ, times, metrics."
    ),
    "report": LazyCommand(
        "upshift.cli.runs:report",
        "Write a report of a run: one HTML file that works offline.",
    ),
    "top": LazyCommand("upshift.cli.runs:top", "Show what runs now: CPU, memory and GPUs of every step."),
    "logs": LazyCommand("upshift.cli.logs:logs", "Print what the steps of a run printed."),
    "artifacts": LazyCommand(
        "upshift.cli.artifacts:artifacts", "List what steps made, by name and version, and tag it."
    ),
    "gc": LazyCommand(
        "upshift.cli.gc:gc", "Free space: remove what no run refers to, and runs that you name."
    ),
    "store": LazyCommand(
        "upshift.cli.store:store", "Copy runs between folders and buckets; check that a store is whole."
    ),
    "image": LazyCommand(
        "upshift.cli.image:image", "Show, build, update, list and remove the images that steps run in."
    ),
    "targets": LazyCommand("upshift.cli.targets:targets", "List where steps can run, and how it is there."),
    "doctor": LazyCommand(
        "upshift.cli.targets:doctor", "Check a target: what would stop a step there, and what to do."
    ),
    "export": LazyCommand(
        "upshift.cli.export:export",
        "Write a pipeline in the form of another tool: Kubeflow, SkyPilot.",
    ),
    "migrate": LazyCommand(
        "upshift.cli.migrate:migrate", "Change the imports of Metaflow or ZenML to Upshift's."
    ),
    "replay": LazyCommand("upshift.cli.replay:replay", "Run one task of a run again, under a debugger."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="RUN is the id of a run, a prefix of it that no other run has, or 'latest'.",
)
@click.version_option(__version__, prog_name="upshift", message="%(prog)s %(version)s")
def upshift() -> None:
    """Shift any step of a Python pipeline up to the hardware that it needs, and prove that it got it."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The ``upshift`` program.

    It exits with 0 when it is done, 1 where the run failed, 2 where it was refused before it ran, 70 for a
    bug in Upshift, and 130 when it was interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: a glyph must not end a listing
    upshift.main(args=arguments, prog_name="upshift")
    raise SystemExit(0)  # click never comes back in its standalone mode
