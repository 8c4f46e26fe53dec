"""The command line of a flow: ``python flow.py run --alpha 0.1``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from upshift.cli import shared_options as shared
from upshift.cli.group import LazyCommand, LazyGroup
from upshift.cli.output import echo
from upshift.model.checks import shown as quoted
from upshift.model.graph.flow import FOREACH, GANG, SWITCH
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.authoring.flow.pipeline import FlowPipeline
    from upshift.authoring.flow.spec import FlowSpec
    from upshift.model.graph.flow import FlowStep

_COMMANDS = {
    "run": "Run the flow.",
    "plan": "Show what a run would do; nothing runs.",
    "resume": "Finish a run of the flow; what is done is not run again.",
    "show": "Show its parameters and steps.",
    "check": "Check that it can run as it is written.",
    "dump": "Print the artifacts of a step.",
    "logs": "Print what the steps of a run printed.",
    "tag": "Give a run tags, take them away, list them.",
    "card": "List what steps have to show, or write it into a report.",
}
_OF_ANY = {
    "report": LazyCommand("upshift.cli.runs:report", "Write a report of a run."),
}


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


_BEFORE = (
    click.Option(["--with", "with_"], multiple=True, metavar="NAME[:…]", help="As for run."),
    click.Option(["--branch"], metavar="NAME", help="The branch of the @project that a run is on."),
    click.Option(["--production"], is_flag=True, help="A run is one of the production of the @project."),
    click.Option(
        ["--environment"],
        type=click.Choice(["local", "pypi", "conda"]),
        help="Of Metaflow's command; here @pypi and @conda hold without it.",
    ),
    click.Option(
        ["--pylint/--no-pylint"], default=None, help="Of Metaflow's command; nothing is linted here."
    ),
    click.Option(
        ["--config"], type=(str, str), multiple=True, metavar="NAME FILE", help="The file of a Config."
    ),
    click.Option(
        ["--config-value"], type=(str, str), multiple=True, metavar="NAME JSON", help="The value of a Config."
    ),
    click.Option(["--quiet/--no-quiet"], default=None, hidden=True),
)
"""What may stand before the command, as in Metaflow."""


def _before(option: str) -> Any:
    parent = click.get_current_context().parent
    return None if parent is None else parent.params.get(option)


def _decorated(pipeline: FlowPipeline, decorators: Sequence[str]) -> FlowPipeline:
    from upshift.authoring.flow.step_decorators import with_decorators

    return cast("FlowPipeline", with_decorators(pipeline, (*(_before("with_") or ()), *decorators)))


def _branch(pipeline: FlowPipeline) -> list[str]:
    """The tag of a run for its branch, where one was named."""
    return shared.tags_of_branch(pipeline, _before("branch"), bool(_before("production")))


class _FlowGroup(LazyGroup):
    """The commands of one flow."""

    def __init__(self, pipeline: FlowPipeline, **settings: Any) -> None:
        own = {name: LazyCommand("", summary) for name, summary in _COMMANDS.items()}
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(
            pipeline.name, lazy={**own, **_OF_ANY}, context_settings=names, params=list(_BEFORE), **settings
        )
        self._pipeline = pipeline

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return super().get_command(ctx, name)
        from upshift.authoring.flow.parameters import confirm_configs

        typed = (*(ctx.params.get("config") or ()), *(ctx.params.get("config_value") or ()))
        confirm_configs(self._pipeline, [config for config, _ in typed])
        function: Callable[..., Any] = globals()[f"_{name}"]
        command: click.Command = function(self._pipeline)
        command.short_help = _COMMANDS[name]
        return command


def _run(pipeline: FlowPipeline) -> click.Command:
    @click.command("run", help=_COMMANDS["run"])
    @_parameters(pipeline)
    @_place
    @shared.takes_how
    @shared.keep_going("Default: stop.")
    @shared.detach
    def run(
        target: str | None,
        strict: bool | None,
        cache: bool,
        keep_going: bool | None,
        decorators: tuple[str, ...],
        max_workers: int | None,
        max_num_splits: int | None,
        run_id_file: str | None,
        tags: tuple[str, ...],
        detach: bool,
        **params: str | None,
    ) -> int:
        decorated = _decorated(pipeline, decorators)
        arguments = _arguments(pipeline, params)
        from upshift.cli.run import shown
        from upshift.engine import RunOptions

        options = RunOptions(
            target=target,
            strict=strict,
            reuse=cache,
            keep_going=keep_going,
            tags=(*tags, *_branch(pipeline)),
            max_workers=max_workers,
            max_splits=max_num_splits,
            detach=detach,
        )
        with shown(live=not detach, run_id_file=run_id_file) as progress:
            decorated.run(arguments, options=options, progress=progress)
        return 0

    return run


def _plan(pipeline: FlowPipeline) -> click.Command:
    @click.command("plan", help=_COMMANDS["plan"])
    @_parameters(pipeline)
    @_place
    @shared.decorators
    def plan(
        target: str | None,
        strict: bool | None,
        cache: bool,
        decorators: tuple[str, ...],
        **params: str | None,
    ) -> int:
        decorated = _decorated(pipeline, decorators)
        arguments = _arguments(pipeline, params)
        from upshift.authoring.running import plan as planned
        from upshift.cli.run import print_plan
        from upshift.engine import RunOptions

        options = RunOptions(target=target, strict=strict, reuse=cache)
        print_plan(planned(decorated, arguments, options=options, announce=shared.announce))
        return 0

    return plan


def _resume(pipeline: FlowPipeline) -> click.Command:
    @click.command("resume", help=_COMMANDS["resume"])
    @click.argument("step", required=False)
    @click.option(
        "--origin-run-id",
        "run",
        metavar="RUN",
        help="Start a new run, which takes over what RUN has completed. Default: the last run of the flow.",
    )
    @shared.strict("Default: as before.")
    @shared.takes_how
    @shared.keep_going("Default: as before.")
    @shared.detach
    def resume(
        step: str | None,
        run: str | None,
        strict: bool | None,
        keep_going: bool | None,
        decorators: tuple[str, ...],
        max_workers: int | None,
        max_num_splits: int | None,
        run_id_file: str | None,
        tags: tuple[str, ...],
        detach: bool,
    ) -> int:
        """Without STEP and --origin-run-id the last run itself is finished. With one of them, a new run takes
        over what that run has completed, whatever its code; of STEP and what follows it, nothing."""
        from upshift.authoring.resume import resume_from, resume_run
        from upshift.cli.run import shown
        from upshift.engine import RunOptions

        decorated = _decorated(pipeline, decorators)
        origin = run or _latest(pipeline)
        with shown(live=not detach, run_id_file=run_id_file) as progress:
            if run is None and step is None and not tags and decorated is pipeline:
                resume_run(
                    origin,
                    same_code=False,
                    progress=progress,
                    strict=strict,
                    keep_going=keep_going,
                    detach=detach or None,
                )
            else:
                options = RunOptions(
                    strict=strict,
                    keep_going=keep_going,
                    tags=(*tags, *_branch(pipeline)),
                    max_workers=max_workers,
                    max_splits=max_num_splits,
                    detach=detach,
                )
                again = [] if step is None else _from(pipeline, step)
                resume_from(decorated, origin, again=again, options=options, progress=progress)
        return 0

    return resume


def _latest(pipeline: FlowPipeline) -> str:
    """The last run of the flow."""
    from upshift.errors import NotFound
    from upshift.runs.history.runs import list_runs

    latest = list_runs(pipeline=pipeline.name, limit=1)
    if not latest:
        raise NotFound(f"flow {pipeline.name} has no run yet", fix="Start one: run.")
    return latest[0].id


def _from(pipeline: FlowPipeline, step: str) -> list[str]:
    """A step and every step that may follow it."""
    from upshift.errors import NotFound, suggestion

    steps = pipeline.shape.steps
    if step not in steps:
        raise NotFound(f"flow {pipeline.name} has no step {quoted(step)}", fix=suggestion(step, steps))
    found, pending = dict[str, None](), [step]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = None
            pending.extend(steps[name].then)
    return list(found)


def _dump(pipeline: FlowPipeline) -> click.Command:
    @click.command("dump", help=_COMMANDS["dump"] + " PLACE is RUN/STEP, or RUN/STEP/TASK.")
    @click.argument("place")
    @click.option("--include", metavar="NAMES", help="Only these artifacts, with commas between them.")
    @click.option(
        "--max-value-size",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        metavar="N",
        help="Values with more characters are only named.",
    )
    @click.option("--file", metavar="FILE", help="Pickle them into this file, by the place of their task.")
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


def _logs(pipeline: FlowPipeline) -> click.Command:
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
            return super().parse_args(ctx, args)

    text = f"{cleandoc(logs.help or '')}\n\nRUN/STEP/TASK names a task by its place, as Metaflow does."
    return Logs("logs", callback=logs.callback, params=logs.params, help=text)


def _tasks(pipeline: FlowPipeline, place: str) -> Iterator[tuple[str, Any]]:
    """The tasks of a step of a run, with their places."""
    from upshift.errors import NotFound, UsageError
    from upshift.model.graph.flow import task_id
    from upshift.runs.history.runs import get_run

    parts = place.split("/")
    parts = parts[1:] if len(parts) > 2 and parts[0] == pipeline.name else parts
    if len(parts) not in (2, 3) or not all(parts):
        raise UsageError(
            f"{quoted(place)} is not a place of a step", fix="Write RUN/STEP, such as latest/train."
        )
    run, found = get_run(parts[0]), False
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


def _tag(pipeline: FlowPipeline) -> click.Command:
    @click.group("tag", help=_COMMANDS["tag"])
    def tag() -> None:
        pass

    @tag.command("add", help="Give a run tags.")
    @click.argument("run")
    @click.argument("tags", nargs=-1, required=True)
    def add(run: str, tags: tuple[str, ...]) -> int:
        from upshift.authoring.options import checked_tags
        from upshift.runs.history.runs import get_run

        get_run(run).add_tag(checked_tags("tag add", tags))
        return 0

    @tag.command("remove", help="Take tags away from a run.")
    @click.argument("run")
    @click.argument("tags", nargs=-1, required=True)
    def remove(run: str, tags: tuple[str, ...]) -> int:
        from upshift.runs.history.runs import get_run

        get_run(run).remove_tag(tags)
        return 0

    @tag.command("list", help="List the tags of a run.")
    @click.argument("run", default="latest")
    def listed(run: str) -> int:
        from upshift.runs.history.runs import get_run

        for one in get_run(run).tags:
            echo(one)
        return 0

    return tag


def _card(pipeline: FlowPipeline) -> click.Command:
    @click.group("card", help=_COMMANDS["card"])
    def card() -> None:
        pass

    @card.command("list", help="List what the tasks of a step have to show. PLACE is RUN/STEP[/TASK].")
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

        code: int = report.main([place.partition("/")[0]], standalone_mode=False)
        return code

    return card


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
    """Where a step goes, in words."""
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
    return parse_params(pipeline, given, option="--{}")
