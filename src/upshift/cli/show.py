"""``upshift show``."""

from __future__ import annotations

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP]", required=False)
@click.option(
    "--tasks", is_flag=True, help="A table of the tasks of each mapped step, and a row for each rank."
)
@shared.sort("an input of the tasks")
@click.option("--stacks", is_flag=True, help="Where each process was of a step that hung or was stopped.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(run: str, step: str | None, tasks: bool, sort: str | None, stacks: bool, as_json: bool) -> None:
    """Show a run: steps, times, hardware asked to used, failures.

    STEP is one of its steps, such as 'train', or one task of a mapped step, such as 'train[3]'.
    """
    from upshift.cli import selection

    found = selection.found(run)
    if as_json:
        import json

        from upshift.runs.history.as_json import run_as_json

        shown = run_as_json(found)
        if step is not None:
            (chosen,), index = selection.selected(found, step)
            shown["steps"] = [one for one in shown["steps"] if one["name"] == chosen.name]
            for one in shown["steps"]:
                one["tasks"] = [task for task in one["tasks"] if index in (None, task["index"])]
        echo(json.dumps(shown, indent=2))
        return
    from upshift.report.terminal.layout import Page

    page = Page.of_stdout()
    if step is None:
        from upshift.report.terminal.tables import show_run

        echo(show_run(found, page=page, tasks=tasks or sort is not None, sort=sort, stacks=stacks))
        return
    from upshift.report.terminal.steps_table import show_task, tasks_table

    (chosen,), index = selection.selected(found, step)
    if chosen.mapped and index is None:
        echo(tasks_table(chosen, page, sort=sort))
        return
    one = [task for task in chosen.tasks if task.index == index]
    echo(show_task(found, one[0], page) if one else f"{chosen.name}: {chosen.status}, no tasks")
