"""``upshift replay``: one task of a run again, under a debugger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from upshift.cli import echo

if TYPE_CHECKING:
    from upshift.backends.base import Offer
    from upshift.model.spec.task import Code, TaskResult, TaskSpec
    from upshift.runs.history.attempts import Attempt
    from upshift.runtime.storage.store import Store

_EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("task", metavar="TASK")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Default: the last one.")
@click.option("--current-code", is_flag=True, help="Use the current project. Default: the recorded code.")
def replay(run: str, task: str, attempt: int | None, current_code: bool) -> int:
    """Run one task of a run again, under a debugger.

    TASK is a step, or one task of a mapped step, as in 'train[3]'. It gets its original inputs and code. In a
    terminal, pdb stops at the first line of the step, and opens again where the step raises; elsewhere the
    step just runs. Nothing is recorded. If the step writes to other places, it writes there again.
    """
    from upshift.authoring.resume import recorded_code
    from upshift.backends.inline import InlineBackend, at_a_terminal
    from upshift.errors import NotFound
    from upshift.runs.history.runs import get_run
    from upshift.runtime.storage.store import open_store

    chosen = _chosen(run, task, attempt)
    own = get_run(chosen.row.task.run).row  # a reused task has the attempt of an earlier run
    store = open_store(own.store)
    spec = store.read_spec(store.spec_path(chosen.row.task, chosen.number))
    try:
        code = None if current_code else recorded_code(own, package=True)
    except NotFound as error:
        error.fix = "Replay it with the project as it is now: --current-code."
        raise
    echo(
        f"replaying {chosen.row.task} of run {own.id}, attempt {chosen.number}, with "
        f"{'the project as it is now' if current_code else 'the code as it was'}; nothing is recorded",
        err=True,
    )
    if spec.image:
        echo(f"it ran in image {spec.image}; here it runs in this environment", err=True)
    if spec.settings.secret_sources:
        echo(
            f"{', '.join(spec.settings.secret_sources)}: masked in what the step prints, "
            "not in what other programs print",
            err=True,
        )
    offer = _offered_here(spec)
    for short in offer.shortfalls:
        if short.field in ("launch", *InlineBackend.capabilities.fields):  # who expects the rest?
            echo(f"asked {short.asked}, gets {short.got}: {short.why}", err=True)
    if at_a_terminal():
        echo("pdb: n next line, s into a call, c go on, p NAME, w where, q leave", err=True)
    recorded = store.read_result(spec.task, spec.attempt)
    result = _run_again(spec, code, offer, store)
    echo(_told(result, recorded), err=True)
    return _EXIT_CODES[result.status]


def _chosen(run: str, text: str, number: int | None) -> Attempt:
    from upshift.cli.selection import selected
    from upshift.errors import NotFound
    from upshift.runs.history.runs import get_run

    found = get_run(run)
    (step,), index = selected(found, text)
    tasks = [task for task in step.tasks if index in (None, task.index)]
    if step.mapped and index is None:
        failed = next((task.index for task in tasks if task.status == "failed"), None)
        raise NotFound(
            f"{step.name!r} is a mapped step of {len(step)} tasks",
            fix=f"Name one of them: {step.name}[{failed or 0}]{'' if failed is None else ', which failed'}",
        )
    attempts = tasks[0].attempts if tasks else []
    if not attempts:
        raise NotFound(f"{text} of run {found.id} has not run", why=f"It is {step.status}.")
    if number is None:
        return attempts[-1]
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    there = ", ".join(str(attempt.number) for attempt in attempts)
    raise NotFound(f"{text} of run {found.id} has no attempt {number}", fix=f"Its attempts: {there}.")


def _offered_here(spec: TaskSpec) -> Offer:
    """What this process has for an attempt, which may be less than it had then."""
    import attrs

    from upshift.backends.base import Ask
    from upshift.backends.inline import InlineBackend
    from upshift.engine.offers import short_of_processes

    offer = InlineBackend(sink=lambda event: None).offer(Ask(request=spec.request))
    return attrs.evolve(offer, shortfalls=(*offer.shortfalls, *short_of_processes(spec.launch)))


def _run_again(spec: TaskSpec, code: Code | None, offer: Offer, store: Store) -> TaskResult:
    """Run an attempt again, with the code as it was or as it is now (None); what it makes is removed."""
    import os

    import attrs

    from upshift.backends.inline import run_inline
    from upshift.model.settings.secrets import read_secrets
    from upshift.runtime.storage import home_folders
    from upshift.runtime.storage.store import open_store

    # secrets are not in a package
    secrets = read_secrets(spec.settings.secret_sources, project=spec.code.project)
    code = code or attrs.evolve(spec.code, package=None)
    spec = attrs.evolve(spec, code=code, granted=offer.granted)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        spec = attrs.evolve(spec, cwd=None)
    return run_inline(spec, store, secrets=secrets, into=open_store(home_folders.new_folder()), stop=True)


def _told(result: TaskResult, recorded: TaskResult | None) -> str:
    """What became of the attempt, this time and when it was recorded; None: it did not get that far."""
    from upshift.report.human import duration, on_rank

    there = on_rank(recorded.failure) if recorded is not None and recorded.failure is not None else ""
    here = f"{there}, and this is rank 0 of 1" if there else ""
    took = duration(result.ended - result.started)
    if result.failure is not None:
        if result.status == "cancelled":
            return "left before it ended"
        failure = result.failure
        text = f"failed{on_rank(failure)} after {took} ({failure.reason}): {failure.message}"
        if result.failure.where:
            text += f"\n  where: {result.failure.where}"
        if result.failure.fix:
            text += f"\n  fix:   {result.failure.fix}"
        if recorded is not None and recorded.failure is not None:
            again = recorded.failure.message == result.failure.message
            text += f"\nas recorded{here}" if again else f"\nrecorded was{there}: {recorded.failure.message}"
        elif recorded is not None:
            text += "\nrecorded was a success"
        return text
    before = recorded.outputs if recorded is not None else {}
    if not before or not result.outputs:  # there is nothing to compare
        return f"completed in {took}; recorded was a failure{here}" if recorded else f"completed in {took}"
    other = [
        name
        for name, now in result.outputs.items()
        if name not in before or before[name].digest != now.digest
    ]
    if not other:
        return f"completed in {took}, with the output that was recorded"
    return (
        f"completed in {took}, with another {', '.join(other)} than recorded: the step depends on something "
        "that is neither its input nor its code, such as time or unseeded random numbers"
    )
