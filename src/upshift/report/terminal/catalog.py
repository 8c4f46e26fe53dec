"""The catalog and its stores as text and JSON: runs listed, what was removed, what was rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

from upshift.model.settings.sizes import format_size
from upshift.report.human import ago, count, duration, moment
from upshift.report.terminal import (
    GAP,
    STATUS_STYLES,
    Page,
    cells,
    columns,
    cut,
    fit,
    heading,
    wrap,
)

if TYPE_CHECKING:
    from pathlib import Path

    from upshift.runs.catalog.rebuild import Rebuilt
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.collect import Collected, Tally


_HEADINGS = ("run", "pipeline", "status", "started", "", "took", "tags")
_AGO = 4
_GIVE_WAY = (6, 5, 3)
"""Tags, duration and start, which further columns may push out."""
_ROOMY = 100
"""Columns that it takes to say both when a run started and how long ago."""


def runs_table(
    rows: Sequence[RunRow],
    *,
    page: Page | None = None,
    now: datetime | None = None,
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The runs, one per line: id, pipeline, status, started, duration, tags; on a narrow page on several."""
    page = page or Page()
    if not rows:
        return "No runs."
    now, more = now or datetime.now(timezone.utc), more or {}
    page = page.whole if more else page
    own = [_run_cells(row, now) for row in rows]
    across = list(zip(*more.values(), strict=True)) if more else [()] * len(rows)
    hidden = set() if page.width >= _ROOMY and not more else {_AGO}
    for gives_way in (None, *(_GIVE_WAY if more else ())):  # to what was asked for
        hidden |= set() if gives_way is None else {gives_way}
        shown = [i for i in range(len(_HEADINGS)) if i not in hidden]
        names = [*(_HEADINGS[i] for i in shown), *more]
        table = [[*(texts[i] for i in shown), *extra] for texts, extra in zip(own, across, strict=True)]
        natural = [max(map(cells, column)) for column in zip(names, *table, strict=True)]
        # What identifies a run is never cut: pipeline and tags give way.
        least = [{"pipeline": 8, "tags": 4}.get(n, width) for n, width in zip(names, natural, strict=True)]
        room = page.width - GAP * (len(natural) - 1)
        if sum(least) <= room:
            break
    else:
        each = [dict(zip(more, extra, strict=True)) for extra in across]
        both = zip(own, each, strict=True)
        return "\n".join(line for texts, extra in both for line in _stacked(texts, page, extra))
    widths = fit(natural, room, least)
    lines = heading(names, widths, page)
    for texts in table:
        short = [cut(text, width) for text, width in zip(texts, widths, strict=True)]
        short[2] = page.paint(short[2], STATUS_STYLES.get(texts[2]))
        lines.append(columns(short, widths))
    return "\n".join(lines)


def _stacked(texts: Sequence[str], page: Page, more: Mapping[str, str]) -> list[str]:
    run, pipeline, status, started, _, took, tags = texts
    title = columns([run, page.paint(status, STATUS_STYLES.get(status))], [cells(run), 0])
    if cells(title) > page.width:
        title = title.replace(" " * GAP, "\n  ", 1)
    told = (f"{name} {text}" for name, text in more.items())
    details = " · ".join(filter(None, (pipeline, started, took, tags, *told)))
    return [title, *(f"  {line}" for line in wrap(details, page.width - 2))]


def _run_cells(row: RunRow, now: datetime) -> tuple[str, ...]:
    started = datetime.fromtimestamp(row.started, timezone.utc)
    took = "" if row.ended is None else duration(row.ended - row.started)
    return (row.id, row.pipeline, row.status, moment(started), ago(started, now), took, ", ".join(row.tags))


KINDS = {
    "runs": "run",
    "results": "result of a removed run",
    "exports": "exported pipeline",
    "values": "value",
    "cached": "value of a bucket in this machine's copy",
    "checkpoints": "folder with checkpoints",
    "temporary": "temporary file",
    "scratch": "folder with copies of files",
    "unpacked": "unpacked code package",
    "memos": "remembered answer",
    "images": "file to make images from",
    "logs": "log of a failed build",
    "processes": "file of a dead process",
}
"""What there is one of, by kind."""
_PLURALS = {
    "cached": "values of buckets in this machine's copies",
    "results": "results of removed runs",
    "images": "files to make images from",
    "scratch": "folders with copies of files",
    "checkpoints": "folders with checkpoints",
    "processes": "files of dead processes",
    "logs": "logs of failed builds",
}
_SLOW = 1000
"""Things to look at, from which on it is told where no terminal shows it."""


def cleaned_text(
    collected: Collected, *, missing: Mapping[str, int], failed: Mapping[str, str], dry_run: bool
) -> str:
    """What was done, for a person; ``missing`` are stores and their runs, ``failed`` stores and why."""
    removed, later = collected.removed.by_kind(), collected.later.by_kind()
    lines = []
    if not removed:
        lines.append("Nothing to remove now." if later else "Nothing to remove.")
    rows = [
        *_rows("would remove" if dry_run else "removed", removed),
        *_rows("later", later),
        *_rows("would keep" if dry_run else "kept", collected.kept.by_kind()),
    ]
    if rows:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [columns([a, b, f"{c:>{widths[2]}}"], widths).rstrip() for a, b, c in rows]
    if removed:
        freed = format_size(sum(size for _, size in removed.values()))
        lines.append(f"{freed} {'would be freed' if dry_run else 'freed'}.")
    if later:
        freed = format_size(sum(size for _, size in later.values()))
        waiting = sorted(collected.waiting)
        runs = f"{count(len(waiting), 'run')} that {'is' if len(waiting) == 1 else 'are'} at work"
        lines.append(f"{freed} more can be freed after the end of {runs}: {', '.join(waiting)}.")
    stays = "would stay" if dry_run else "stays"
    lines += [f"Run {run} {stays}: it is live." for run in sorted(collected.live)]
    lines += [
        f"{count(runs, 'run')} {'would stay' if dry_run else 'stay' if runs > 1 else 'stays'}: "
        f"the store {address} is not there."
        for address, runs in missing.items()
    ]
    lines += [
        f"The store {address} {'would not be' if dry_run else 'was not'} cleaned, or in part only."
        for address in failed
    ]
    return "\n".join(lines)


def cleaned_json(
    collected: Collected, *, missing: Mapping[str, int], failed: Mapping[str, str], dry_run: bool
) -> dict[str, Any]:
    """The same as JSON; sizes are bytes."""
    return {
        "dry_run": dry_run,
        "removed": _amounts(collected.removed),
        "kept": _amounts(collected.kept),
        "later": _amounts(collected.later),
        "waiting_for": sorted(collected.waiting),
        "live": sorted(collected.live),
        "missing_stores": [{"store": address, "runs": runs} for address, runs in missing.items()],
        "failed_stores": [{"store": address, "problem": what} for address, what in failed.items()],
    }


def _amounts(tally: Tally) -> dict[str, dict[str, int]]:
    return {kind: {"count": number, "bytes": size} for kind, (number, size) in tally.by_kind().items()}


def rebuilt_text(rebuilt: Rebuilt, *, aside: Path | None, missing: Sequence[str]) -> str:
    """What became of the catalog, for a person."""
    lines = [f"The catalog has {count(rebuilt.runs, 'run')}."]
    if rebuilt.dropped:
        were = "was" if rebuilt.dropped == 1 else "were"
        lines.append(f"{count(rebuilt.dropped, 'run')} of it {were} in no store any more.")
    lines += [
        f"Run {run} was interrupted: what it had reused or skipped is known again once it is resumed."
        for run in rebuilt.interrupted
    ]
    for run, why in rebuilt.damaged.items():
        became = "as it was" if run in rebuilt.kept else "not in it"
        lines.append(f"Run {run} is {became}: its record cannot be read: {why}")
    lines += [f"The store {address} is not there: its runs are as they were." for address in missing]
    if aside is not None:
        lines.append(f"The one that could not be read is {aside}.")
    return "\n".join(lines)


def rebuilt_json(rebuilt: Rebuilt, *, aside: Path | None, missing: Sequence[str]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "runs": rebuilt.runs,
        "dropped": rebuilt.dropped,
        "interrupted": list(rebuilt.interrupted),
        "damaged": dict(rebuilt.damaged),
        "kept": list(rebuilt.kept),
        "put_aside": None if aside is None else str(aside),
        "missing_stores": list(missing),
    }


class Ticker:
    """Says how far something is: in place on a terminal; elsewhere a line for each thing that takes long."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._said = ""

    def __call__(self, what: str, done: int, of: int | None) -> None:
        if not self._terminal:
            line = f"{what}: {of:,}" if of is not None else what
            if (of or 0) >= _SLOW and line != self._said:
                self._stream.write(f"{line}\n")
                self._said = line
            return
        line = f"{what}: {100 * done // of} % of {of:,}" if of else what
        if line != self._said:
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
            self._said = line

    def close(self) -> None:
        """Erase the progress line."""
        if self._terminal and self._said:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _rows(title: str, amounts: dict[str, tuple[int, int]]) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for kind in KINDS:
        if kind in amounts:
            number, size = amounts[kind]
            noun = _PLURALS.get(kind, f"{KINDS[kind]}s") if number != 1 else KINDS[kind]
            rows.append(("" if rows else title, f"{number:,} {noun}", format_size(size)))
    return rows
