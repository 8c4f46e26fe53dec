"""``upshift gc``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from upshift.engine.gc import Choice
    from upshift.errors import UpshiftError
    from upshift.report.terminal.cleaned import Ticker


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; change nothing.")
@click.option(
    "--older-than", metavar="AGE", callback=shared.seconds,
    help="Remove runs that ended longer ago than this: 30d, 12h, 2w.",
)  # fmt: skip
@click.option(
    "--keep-last", metavar="N", type=click.IntRange(min=1),
    help="Remove runs but the newest N of each pipeline. With --older-than: runs of which both is true.",
)  # fmt: skip
@click.option("--pipeline", metavar="NAME", help="With these two: only runs of this pipeline.")
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Remove this run. Repeatable.")
@click.option(
    "--rebuild-catalog", is_flag=True, help="Remove nothing; make the catalog anew from the stores."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def gc(
    dry_run: bool,
    older_than: float | None,
    keep_last: int | None,
    pipeline: str | None,
    runs: tuple[str, ...],
    rebuild_catalog: bool,
    as_json: bool,
) -> int:
    """Free space: remove what no run refers to, and runs that you name.

    Without options no run is removed. A live run, and what a running process needs, is never touched.
    """
    from upshift.engine.gc import Choice
    from upshift.errors import UsageError
    from upshift.report.terminal.cleaned import Ticker

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
    import json

    from upshift.engine.gc import gc
    from upshift.model.configuration import load_configuration
    from upshift.model.home import home
    from upshift.report.terminal.cleaned import cleaned_json, cleaned_text

    configuration = load_configuration()
    try:
        cleaned = gc(configuration, choice, dry_run=dry_run, tell=ticker)
    finally:
        ticker.close()
    if not cleaned.stores and not home().exists() and not as_json:
        echo(f"Nothing to remove: there is no store yet, and no {home()}.")
        return 0
    collected = cleaned.collected
    say = cleaned_json if as_json else cleaned_text
    said = say(
        collected.removed.by_kind(),
        collected.kept.by_kind(),
        later=collected.later.by_kind(),
        waiting=sorted(collected.waiting),
        live=sorted(collected.live),
        missing=cleaned.missing,
        failed={address: error.what for address, error in cleaned.failed.items()},
        dry_run=dry_run,
    )
    if cleaned.stores or collected.removed.by_kind() or not cleaned.failed:
        echo(json.dumps(said, indent=2) if as_json else said)
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
    import json

    from upshift.engine.gc import rebuild_catalog
    from upshift.model.configuration import load_configuration
    from upshift.report.terminal.cleaned import rebuilt_json, rebuilt_text

    try:
        rebuilt, aside, missing = rebuild_catalog(load_configuration(), ticker)
    finally:
        ticker.close()
    say = rebuilt_json if as_json else rebuilt_text
    said = say(
        rebuilt.runs,
        dropped=rebuilt.dropped,
        interrupted=list(rebuilt.interrupted),
        damaged=rebuilt.damaged,
        kept=rebuilt.kept,
        aside=None if aside is None else str(aside),
        missing=list(missing),
    )
    echo(json.dumps(said, indent=2) if as_json else said)
    return 1 if rebuilt.damaged else 0
