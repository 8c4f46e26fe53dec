"""``upshift store`` and ``upshift gc``: copying, checking and removing what stores hold."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from upshift.cli import LazyCommand, LazyGroup, echo, echo_json
from upshift.cli import shared_options as shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from upshift.engine.gc import Choice
    from upshift.errors import UpshiftError
    from upshift.report.terminal.catalog import Ticker

_COMMANDS = {
    "copy": LazyCommand("upshift.cli.store:copy", "Copy runs with everything that they refer to."),
    "check": LazyCommand(
        "upshift.cli.store:check", "Read a whole store, and compare each value with its digest."
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def store() -> None:
    """Copy runs between folders and buckets; check a store for damage.

    A store is a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    """


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Copy this run only. Repeatable.")
@click.option("--again", is_flag=True, help="Also copy content that DST already has.")
@shared.as_json
def copy(source: str, destination: str, runs: tuple[str, ...], again: bool, as_json: bool) -> int:
    """Copy runs with everything that they refer to.

    SRC and DST are stores: folders, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. Runs
    that have not ended are left out. Content that DST has already is not copied again, so an interrupted copy
    continues. Each value is compared with its digest. Runs that are copied into a folder are added to the
    catalog. Exit code 1: SRC lacks something.
    """
    from upshift.model.configuration import load_configuration
    from upshift.model.settings.sizes import format_size
    from upshift.report.human import count
    from upshift.report.terminal.catalog import Ticker
    from upshift.runs.catalog.opening import add_runs, open_catalog
    from upshift.runs.copying import copy_store
    from upshift.runtime.storage.objects import open_objects
    from upshift.runtime.storage.objects.folder import FolderObjects
    from upshift.runtime.storage.store import open_store

    configuration = load_configuration()
    into = open_objects(destination)
    ticker = Ticker(sys.stderr)
    try:
        done = copy_store(open_objects(source), into, runs=runs, again=again, tell=ticker)
    finally:
        ticker.close()
    if isinstance(into, FolderObjects) and done.runs:
        catalog = open_catalog(configuration)
        try:
            add_runs(catalog, open_store(into.address, **configuration.store_options), done.runs)
        finally:
            catalog.close()
    if as_json:
        return _print_json(
            done.problems, runs=done.runs, not_ended=done.live, values=done.values, bytes=done.bytes,
            values_there_already=done.there,
        )  # fmt: skip
    copied = f"{count(len(done.runs), 'run')} and {count(done.values, 'value')}"
    echo(f"Copied {copied} ({format_size(done.bytes)}) to {into.address}.")
    if done.there:
        echo(f"{count(done.there, 'value')} {'was' if done.there == 1 else 'were'} there already.")
    for run in done.live:
        echo(f"Run {run} is left out: it has not ended.")
    return _tell(done.problems, "SRC lacks something, or has it damaged:")


@click.command()
@click.argument("address", metavar="[STORE]", required=False)
@shared.as_json
def check(address: str | None, as_json: bool) -> int:
    """Read a whole store, and compare each value with its digest.

    STORE is a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. Default: the store of
    local runs. Exit code 1: something is damaged or missing. Nothing is changed.
    """
    from upshift.model.configuration import load_configuration
    from upshift.model.settings.sizes import format_size
    from upshift.report.human import count
    from upshift.report.terminal.catalog import Ticker
    from upshift.runs.checking import check_store
    from upshift.runtime.storage.objects import open_objects

    if address is None:
        configuration = load_configuration()
        address = configuration.store_address(configuration.target("local"))
    objects = open_objects(address)
    ticker = Ticker(sys.stderr)
    try:
        done = check_store(objects, tell=ticker)
    finally:
        ticker.close()
    if as_json:
        return _print_json(
            done.problems, store=objects.address, runs=done.runs, values=done.values, bytes=done.bytes
        )
    held = f"{count(done.runs, 'run')} and {count(done.values, 'value')} ({format_size(done.bytes)})"
    echo(f"{objects.address} holds {held}{'.' if done.problems else ': all intact.'}")
    return _tell(done.problems, "Damaged or missing:")


def _tell(problems: Sequence[str], title: str) -> int:
    if problems:
        echo("\n".join((title, *(f"  {problem}" for problem in problems))))
    return 1 if problems else 0


def _print_json(problems: Sequence[str], **said: object) -> int:
    echo_json({**said, "problems": list(problems)})
    return 1 if problems else 0


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option(
    "--older-than", metavar="AGE", callback=shared.seconds,
    help="Remove runs that ended longer ago than this: 30d, 12h, 2w.",
)  # fmt: skip
@click.option(
    "--keep-last", metavar="N", type=click.IntRange(min=1),
    help="Keep the newest N runs of each pipeline, remove the others. With --older-than: "
    "only runs that both select.",
)  # fmt: skip
@click.option("--pipeline", metavar="NAME", help="With these options: only runs of this pipeline.")
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Remove this run. Repeatable.")
@click.option("--rebuild-catalog", is_flag=True, help="Remove nothing; rebuild the catalog from the stores.")
@shared.as_json
def gc(
    dry_run: bool,
    older_than: float | None,
    keep_last: int | None,
    pipeline: str | None,
    runs: tuple[str, ...],
    rebuild_catalog: bool,
    as_json: bool,
) -> int:
    """Free space: remove unused content, and runs that you select.

    Without options, no run is removed. Live runs, and content that running processes need, are never touched.
    """
    from upshift.engine.gc import Choice
    from upshift.errors import UsageError
    from upshift.report.terminal.catalog import Ticker

    choice = Choice(runs=runs, pipeline=pipeline, keep_last=keep_last, older_than=older_than)
    ticker = Ticker(sys.stderr)
    if rebuild_catalog:
        if dry_run or choice != Choice():
            raise UsageError("--rebuild-catalog goes alone, or with --json", fix="Run gc once for each.")
        return _rebuild(ticker, as_json=as_json)
    if runs and Choice(runs=runs) != choice:
        raise UsageError(
            "--run names runs, and --older-than, --keep-last and --pipeline choose among all of them",
            fix="Run gc once for each.",
        )
    return _clean(choice, ticker, dry_run=dry_run, as_json=as_json)


def _clean(choice: Choice, ticker: Ticker, *, dry_run: bool, as_json: bool) -> int:
    from upshift.engine.gc import gc
    from upshift.model.configuration import home, load_configuration
    from upshift.report.terminal.catalog import cleaned_json, cleaned_text

    configuration = load_configuration()
    try:
        cleaned = gc(configuration, choice, dry_run=dry_run, tell=ticker)
    finally:
        ticker.close()
    if not cleaned.stores and not home().exists() and not as_json:
        echo(f"Nothing to remove: there is no store yet, and no {home()}.")
        return 0
    say = cleaned_json if as_json else cleaned_text
    said = say(
        cleaned.collected,
        missing=cleaned.missing,
        failed={address: error.what for address, error in cleaned.failed.items()},
        dry_run=dry_run,
    )
    if cleaned.stores or cleaned.collected.removed.by_kind() or not cleaned.failed:
        (echo_json if as_json else echo)(said)
    return _fail(cleaned.failed)


def _fail(failed: Mapping[str, UpshiftError]) -> int:
    from upshift.errors import StoreError

    if len(failed) > 1:
        raise StoreError(
            f"gc failed on {len(failed)} stores", why="\n".join(str(error) for error in failed.values())
        )
    for error in failed.values():
        raise error
    return 0


def _rebuild(ticker: Ticker, *, as_json: bool) -> int:
    from upshift.engine.gc import rebuild_catalog
    from upshift.model.configuration import load_configuration
    from upshift.report.terminal.catalog import rebuilt_json, rebuilt_text

    try:
        rebuilt, aside, missing = rebuild_catalog(load_configuration(), ticker)
    finally:
        ticker.close()
    say = rebuilt_json if as_json else rebuilt_text
    said = say(rebuilt, aside=aside, missing=list(missing))
    (echo_json if as_json else echo)(said)
    return 1 if rebuilt.damaged else 0
