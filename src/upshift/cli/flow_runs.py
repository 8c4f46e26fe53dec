"""The commands of a flow that show it and its runs: ``python flow.py dump latest/train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

from upshift.cli import echo
from upshift.model.checks import shown as quoted
from upshift.model.graph import FOREACH, GANG, SWITCH, task_id
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.authoring.flow.pipeline import FlowPipeline
    from upshift.model.graph import FlowStep
    from upshift.runs.history.runs import Run


def run_of(pipeline: FlowPipeline, ref: str) -> Run[Any]:
    """A run by its id, or the latest of the flow."""
    from upshift.errors import NotFound
    from upshift.runs.history.runs import get_run, list_runs

    if ref != "latest":
        return get_run(ref)
    latest = list_runs(pipeline=pipeline.name, limit=1)
    if not latest:
        raise NotFound(f"flow {pipeline.name} has no run yet", fix="Start one: run.")
    return latest[0]


def dump_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("dump", help=text + " PLACE is RUN/STEP, or RUN/STEP/TASK.")
    @click.argument("place")
    @click.option("--include", metavar="NAMES", help="Only these artifacts, separated by commas.")
    @click.option(
        "--max-value-size",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        metavar="N",
        help="Longer values are listed by name only.",
    )
    @click.option("--file", metavar="FILE", help="Pickle the artifacts into this file, by task.")
    def dump(place: str, include: str | None, max_value_size: int, file: str | None) -> int:
        wanted = include.split(",") if include else None
        found: dict[str, dict[str, object]] = {}
        for where, task in _tasks(pipeline, place):
            state = task.outputs.get("output", ())
            names = [name for name in state if not name.startswith("@") and (not wanted or name in wanted)]
            if file is not None:
                found[where] = {name: state[name] for name in names}
                continue
            echo(f"{where}")
            for name in sorted(names):
                text = repr(state[name])
                echo(f"  {name}: {text if len(text) <= max_value_size else f'({len(text):,} characters)'}")
        if file is not None:
            import pickle

            with open(file, "wb") as target:
                pickle.dump(found, target)
            echo(f"{file}: the artifacts of {len(found)} {'task' if len(found) == 1 else 'tasks'}")
        return 0

    return dump


def logs_command(pipeline: FlowPipeline, text: str) -> click.Command:
    from upshift.cli.logs import logs

    class Logs(click.Command):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            if args[:2] and args[0] == "show":  # Metaflow's ``logs show RUN/STEP/TASK``
                args = args[1:]
            if args and "/" in args[0]:
                _, task = next(_tasks(pipeline, args[0]))
                run, *parts = args[0].removeprefix(f"{pipeline.name}/").split("/")
                rank = [] if task.node is None or len(parts) == 1 else ["--rank", str(task.node)]
                args = [run, parts[0] if len(parts) == 1 else str(task.row.task), *rank, *args[1:]]
            if args and args[0] == "latest":
                args = [run_of(pipeline, args[0]).id, *args[1:]]
            return super().parse_args(ctx, args)

    text = f"{cleandoc(logs.help or '')}\n\nRUN/STEP/TASK names a task by its place, as Metaflow does."
    return Logs("logs", callback=logs.callback, params=logs.params, help=text)


def _tasks(pipeline: FlowPipeline, place: str) -> Iterator[tuple[str, Any]]:
    """The tasks of a step of a run, with their places."""
    from upshift.errors import NotFound, UsageError

    parts = place.split("/")
    parts = parts[1:] if len(parts) > 2 and parts[0] == pipeline.name else parts
    if len(parts) not in (2, 3) or not all(parts):
        raise UsageError(
            f"{quoted(place)} is not a place of a step", fix="Write RUN/STEP, such as latest/train."
        )
    run, found = run_of(pipeline, parts[0]), False
    for step in run.steps:
        if step.name.partition("#")[0].partition(".")[0] != parts[1]:
            continue
        for task in step:
            identity = task_id(step.name, task.index) + (f"_node_{task.node}" if task.node else "")
            if len(parts) == 2 or identity == parts[2]:
                found = True
                yield f"{run.id}/{parts[1]}/{identity}", task
    if not found:
        raise NotFound(f"run {run.id} has no task {'/'.join(parts[1:])}", fix=f"See: upshift show {run.id}")


def tag_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.group("tag", help=text)
    def tag() -> None:
        pass

    @tag.command("add", help="Add tags to a run.")
    @click.argument("run")
    @click.argument("tags", nargs=-1, required=True)
    def add(run: str, tags: tuple[str, ...]) -> int:
        from upshift.authoring.options import checked_tags

        run_of(pipeline, run).add_tag(checked_tags("tag add", tags))
        return 0

    @tag.command("remove", help="Remove tags from a run.")
    @click.argument("run")
    @click.argument("tags", nargs=-1, required=True)
    def remove(run: str, tags: tuple[str, ...]) -> int:
        run_of(pipeline, run).remove_tag(tags)
        return 0

    @tag.command("list", help="List the tags of a run.")
    @click.argument("run", default="latest")
    def listed(run: str) -> int:
        for one in run_of(pipeline, run).tags:
            echo(one)
        return 0

    return tag


def card_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.group("card", help=text)
    def card() -> None:
        pass

    @card.command("list", help="List the cards of the tasks of a step. PLACE is RUN/STEP[/TASK].")
    @click.argument("place")
    def listed(place: str) -> int:
        rows = [
            (where, shown.card.label, shown.media, format_size(shown.bytes))
            for where, task in _tasks(pipeline, place)
            if not task.node  # those of all nodes are kept together
            for attempt in task.attempts[-1:]
            for shown in attempt.cards
        ]
        _table("Cards", rows)
        return 0

    @card.command("view", help="Write the report of a run, with its cards. PLACE is RUN, or a step of it.")
    @click.argument("place")
    @click.pass_context
    def view(ctx: click.Context, place: str) -> int:
        from upshift.cli.runs import report

        code: int = report.main([run_of(pipeline, place.partition("/")[0]).id], standalone_mode=False)
        return code

    return card


def check_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("check", help=text)
    def check() -> int:
        echo(f"{pipeline.name}: nothing is wrong with its {len(pipeline.shape.steps)} steps")
        return 0

    return check


def show_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("show", help=text)
    def show() -> int:
        echo(f"{pipeline.name} · {pipeline.callee.location}")
        if summary := _summary(pipeline.callee.function):
            echo(summary)
        parameters = [
            (f"--{parameter.name}", f"default: {quoted(parameter.default)}", parameter.help or "")
            for parameter in pipeline.parameters.values()
        ]
        _table("Parameters", parameters)
        marks = []
        for name, said in pipeline.marks.items():
            options = ", ".join(
                f"{option}={quoted(v)}" for option, v in said.items() if option != "where" and v
            )
            idle = "no effect: nothing but you starts a run" if f"@{name}" in pipeline.idle else ""
            marks.append((f"@{name}", options, said["where"], idle))
        _table("Decorators", marks)
        rows = [
            (name, _goes(step), step.location or "", _summary(pipeline.steps[name].callee.function))
            for name, step in pipeline.shape.steps.items()
        ]
        _table("Steps", rows)
        return 0

    return show


def _summary(documented: Callable[..., Any]) -> str:
    """The first line of its docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _goes(step: FlowStep) -> str:
    """The steps that follow a step, in words."""
    then = ", ".join(step.then)
    if step.kind == FOREACH:
        return f"for each item → {then}"
    if step.kind == GANG:
        return f"on several nodes → {then}"
    return f"→ one of {then}" if step.kind == SWITCH else f"→ {then}" if then else "the end"


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    echo(f"\n{title}")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo(f"  {'  '.join(cells)}".rstrip())
