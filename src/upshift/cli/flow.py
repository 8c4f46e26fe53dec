"""The command line of a flow: ``python flow.py run --alpha 0.1``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from upshift.cli import options as shared
from upshift.cli.group import LazyCommand, LazyGroup
from upshift.cli.output import echo
from upshift.model.checks import shown as quoted
from upshift.model.graph.flow import FOREACH, SWITCH

if TYPE_CHECKING:
    from upshift.authoring.flow.pipeline import FlowPipeline
    from upshift.authoring.flow.spec import FlowSpec
    from upshift.model.graph.flow import FlowStep
    from upshift.report.progress import Progress

_COMMANDS = {
    "run": "Run the flow.",
    "plan": "Show what a run would do; nothing runs.",
    "resume": "Finish a run of the flow; what is done is not run again.",
    "show": "Show its parameters and steps.",
    "check": "Check that it can run as it is written.",
}
_OF_ANY = {
    "logs": LazyCommand("upshift.cli.logs:logs", "Print what the steps of a run printed."),
    "report": LazyCommand("upshift.cli.report:report", "Write a report of a run."),
}


_run_id_file = click.option(
    "--run-id-file", metavar="FILE", help="Where to write the id of the run, once it starts."
)


def main(flow: type[FlowSpec]) -> NoReturn:
    """Do what was typed after ``python flow.py``.

    Raises
    ------
    SystemExit
        Always; the codes are those of ``upshift``.
    """
    from upshift.runtime.usercode import modules as usercode

    arguments = sys.argv[1:]
    shared.before_users_code()
    usercode.adopt_main()
    pipeline = flow.__upshift_pipeline__
    commands = _FlowGroup(pipeline, help=flow.__doc__ and flow.__doc__.strip())
    commands.main(args=arguments, prog_name=f"python {os.path.basename(sys.argv[0])}")
    raise SystemExit(0)  # click never comes back in its standalone mode


class _FlowGroup(LazyGroup):
    """The commands of one flow."""

    def __init__(self, pipeline: FlowPipeline, **settings: Any) -> None:
        own = {name: LazyCommand("", summary) for name, summary in _COMMANDS.items()}
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(pipeline.name, lazy={**own, **_OF_ANY}, context_settings=names, **settings)
        self._pipeline = pipeline

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return super().get_command(ctx, name)
        function: Callable[..., Any] = globals()[f"_{name}"]
        command: click.Command = function(self._pipeline)
        command.short_help = _COMMANDS[name]
        return command


def _run(pipeline: FlowPipeline) -> click.Command:
    @click.command("run", help=_COMMANDS["run"])
    @_parameters(pipeline)
    @_place
    @shared.keep_going("Default: stop.")
    @click.option("-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag to find the run by.")
    @_run_id_file
    def run(
        target: str | None,
        strict: bool | None,
        cache: bool,
        keep_going: bool | None,
        tags: tuple[str, ...],
        run_id_file: str | None,
        **params: str | None,
    ) -> int:
        arguments = _arguments(pipeline, params)
        from upshift.cli.watch import shown
        from upshift.engine import RunOptions

        options = RunOptions(target=target, strict=strict, reuse=cache, keep_going=keep_going, tags=tags)
        with shown(live=True) as progress:
            pipeline.run(arguments, options=options, progress=_noting(progress, run_id_file))
        return 0

    return run


def _noting(progress: Progress, file: str | None) -> Any:
    return progress if file is None else _Noting(progress, file)


class _Noting:
    """A progress that writes the id of the run into a file as soon as there is one."""

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress = progress
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        with open(self._file, "w", encoding="utf-8") as file:
            file.write(run)
        self._progress.run_started(run, pipeline, target, steps)


def _plan(pipeline: FlowPipeline) -> click.Command:
    @click.command("plan", help=_COMMANDS["plan"])
    @_parameters(pipeline)
    @_place
    def plan(target: str | None, strict: bool | None, cache: bool, **params: str | None) -> int:
        arguments = _arguments(pipeline, params)
        from upshift.authoring.running import plan as planned
        from upshift.cli.plan import show
        from upshift.engine import RunOptions

        options = RunOptions(target=target, strict=strict, reuse=cache)
        show(planned(pipeline, arguments, options=options, announce=shared.announce))
        return 0

    return plan


def _resume(pipeline: FlowPipeline) -> click.Command:
    @click.command("resume", help=_COMMANDS["resume"])
    @click.option("--origin-run-id", "run", metavar="RUN", help="Default: the last one of this flow.")
    @_run_id_file
    @shared.strict("Default: as before.")
    @shared.keep_going("Default: as before.")
    def resume(run: str | None, run_id_file: str | None, strict: bool | None, keep_going: bool | None) -> int:
        from upshift.authoring.resume import resume_run
        from upshift.cli.watch import shown
        from upshift.errors import NotFound
        from upshift.runs.history import list_runs

        if run is None:
            latest = list_runs(pipeline=pipeline.name, limit=1)
            if not latest:
                raise NotFound(f"flow {pipeline.name} has no run yet", fix="Start one: run.")
            run = latest[0].id
        with shown(live=True) as progress:
            noting = _noting(progress, run_id_file)
            resume_run(run, same_code=False, progress=noting, strict=strict, keep_going=keep_going)
        return 0

    return resume


def _check(pipeline: FlowPipeline) -> click.Command:
    @click.command("check", help=_COMMANDS["check"])
    def check() -> int:
        echo(f"{pipeline.name}: nothing is wrong with its {len(pipeline.shape.steps)} steps")
        return 0

    return check


def _show(pipeline: FlowPipeline) -> click.Command:
    @click.command("show", help=_COMMANDS["show"])
    def show() -> int:
        echo(f"{pipeline.name} · {pipeline.callee.location}")
        rows = [
            (f"--{parameter.name}", f"default: {quoted(parameter.default)}", parameter.help or "")
            for parameter in pipeline.parameters.values()
        ]
        _table("Parameters", rows)
        marks = []
        for name, said in pipeline.marks.items():
            options = ", ".join(
                f"{option}={quoted(v)}" for option, v in said.items() if option != "where" and v
            )
            idle = "no effect: nothing but you starts a run" if f"@{name}" in pipeline.idle else ""
            marks.append((f"@{name}", options, said["where"], idle))
        _table("Decorators", marks)
        steps = pipeline.shape.steps
        _table("Steps", [(name, _goes(step), step.location or "") for name, step in steps.items()])
        return 0

    return show


def _goes(step: FlowStep) -> str:
    """Where a step goes, in words."""
    then = ", ".join(step.then)
    if step.kind == FOREACH:
        return f"for each item → {then}"
    return f"→ one of {then}" if step.kind == SWITCH else f"→ {then}" if then else "the end"


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    echo(f"\n{title}")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo(f"  {'  '.join(cells)}".rstrip())


def _parameters(pipeline: FlowPipeline) -> Callable[[Any], Any]:
    """The options that are the flow's parameters."""

    def decorate(command: Any) -> Any:
        for parameter in reversed(list(pipeline.parameters.values())):
            name = f"--{parameter.name.replace('_', '-')}"
            command = click.option(
                *dict.fromkeys((name, f"--{parameter.name}")),
                f"parameter_{parameter.name}",
                metavar="VALUE",
                required=parameter.required,
                help=parameter.help or "A parameter of the flow.",
            )(command)
        return command

    return decorate


def _place(command: Any) -> Any:
    """The options of where and how it runs."""
    for option in (
        click.option("--cache/--no-cache", "cache", default=True, help="Whether results may be reused."),
        shared.strict("Default: best effort on this machine, strict elsewhere."),
        click.option("--on", "target", metavar="TARGET", help="Where to run: local, docker, podman, …"),
    ):
        command = option(command)
    return command


def _arguments(pipeline: FlowPipeline, params: Mapping[str, str | None]) -> dict[str, object]:
    from upshift.authoring.parameters import parse_params

    given = [
        f"{name.removeprefix('parameter_')}={value}" for name, value in params.items() if value is not None
    ]
    return parse_params(pipeline, given)
