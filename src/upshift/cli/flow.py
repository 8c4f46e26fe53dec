"""The command line of a flow: ``python flow.py run --alpha 0.1``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from upshift.cli import LazyCommand, LazyGroup
from upshift.cli import shared_options as shared
from upshift.model.checks import shown as quoted

if TYPE_CHECKING:
    from upshift.authoring.flow.pipeline import FlowPipeline
    from upshift.authoring.flow.spec import FlowSpec

_COMMANDS = {
    "run": LazyCommand("upshift.cli.flow:run_command", "Run the flow."),
    "plan": LazyCommand("upshift.cli.flow:plan_command", "Show what a run would do; nothing runs."),
    "resume": LazyCommand(
        "upshift.cli.flow:resume_command", "Finish a run of the flow; completed steps are not run again."
    ),
    "show": LazyCommand("upshift.cli.flow_runs:show_command", "Show its parameters and steps."),
    "check": LazyCommand("upshift.cli.flow_runs:check_command", "Check that it can run as it is written."),
    "dump": LazyCommand("upshift.cli.flow_runs:dump_command", "Print the artifacts of a step."),
    "logs": LazyCommand("upshift.cli.flow_runs:logs_command", "Print what the steps of a run printed."),
    "tag": LazyCommand("upshift.cli.flow_runs:tag_command", "Give a run tags, take them away, list them."),
    "card": LazyCommand(
        "upshift.cli.flow_runs:card_command", "List what steps have to show, or write it into a report."
    ),
}
"""The commands of every flow: where each is made from the flow, and its line in the help."""
_OF_ANY = {
    "report": LazyCommand("upshift.cli.runs:report", "Write a report of a run."),
}


def main(flow: type[FlowSpec]) -> NoReturn:
    """Run the command line after ``python flow.py``, and exit with the codes of ``upshift``."""
    from upshift.runtime import usercode

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
    click.Option(["--production"], is_flag=True, help="The run belongs to the production of the @project."),
    click.Option(
        ["--environment"],
        type=click.Choice(["local", "pypi", "conda"]),
        help="Metaflow's option; has no effect, since @pypi and @conda always apply.",
    ),
    click.Option(
        ["--pylint/--no-pylint"],
        default=None,
        help="Metaflow's option; has no effect: nothing is linted.",
    ),
    click.Option(
        ["--config"], type=(str, str), multiple=True, metavar="NAME FILE", help="The file of a Config."
    ),
    click.Option(
        ["--config-value"], type=(str, str), multiple=True, metavar="NAME JSON", help="The value of a Config."
    ),
    click.Option(["--quiet/--no-quiet"], default=None, hidden=True),
)
"""Options before the command, as in Metaflow."""


def _before(option: str) -> Any:
    parent = click.get_current_context().parent
    return None if parent is None else parent.params.get(option)


def _decorated(pipeline: FlowPipeline, decorators: Sequence[str]) -> FlowPipeline:
    from upshift.authoring.flow.step_decorators import with_decorators

    return cast("FlowPipeline", with_decorators(pipeline, (*(_before("with_") or ()), *decorators)))


def _branch(pipeline: FlowPipeline) -> list[str]:
    """The tag for the branch of a run, if one was named."""
    return shared.tags_of_branch(pipeline, _before("branch"), bool(_before("production")))


class _FlowGroup(LazyGroup):
    """The commands of one flow."""

    def __init__(self, pipeline: FlowPipeline, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(
            pipeline.name,
            lazy={**_COMMANDS, **_OF_ANY},
            context_settings=names,
            params=list(_BEFORE),
            **settings,
        )
        self._pipeline = pipeline

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return super().get_command(ctx, name)
        from upshift.authoring.flow.parameters import confirm_configs

        typed = (*(ctx.params.get("config") or ()), *(ctx.params.get("config_value") or ()))
        confirm_configs(self._pipeline, [config for config, _ in typed])
        summary = _COMMANDS[name].summary
        module, _, attribute = _COMMANDS[name].path.partition(":")
        command: click.Command = getattr(import_module(module), attribute)(self._pipeline, summary)
        command.short_help = summary
        return command


def run_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("run", help=text)
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


def plan_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("plan", help=text)
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


def resume_command(pipeline: FlowPipeline, text: str) -> click.Command:
    @click.command("resume", help=text)
    @click.argument("step", required=False)
    @click.option(
        "--origin-run-id",
        "run",
        metavar="RUN",
        help="Start a new run with the completed results of RUN. Default: the last run of the flow.",
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
        from upshift.cli.flow_runs import run_of
        from upshift.cli.run import shown
        from upshift.engine import RunOptions

        decorated = _decorated(pipeline, decorators)
        origin = run_of(pipeline, run or "latest").id
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


def _parameters(pipeline: FlowPipeline) -> Callable[[Any], Any]:
    """Add the flow's parameters as options."""

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
    """Add the options of where and how it runs."""
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
