"""Artifacts by name as text: all names, the versions of one, and one version with its lineage."""

from __future__ import annotations

from collections.abc import Sequence

from upshift.model.plain import short_type, words
from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, count, moment
from upshift.report.terminal.compare import sheet, title
from upshift.report.terminal.layout import GAP, Page, cells, columns, cut, fit, heading, labelled
from upshift.report.views.comparing import Row, compare
from upshift.runs.history.versions import ArtifactVersion
from upshift.runtime.storage.metrics import value_text

_DIGEST = 19
"""Characters of a digest that are worth reading."""
_HEADS = ("name", "version", "tags", "type", "size", "made", "run")


def names_table(found: Sequence[ArtifactVersion], page: Page) -> str:
    """The newest version of each name."""
    if not found:
        return "No values. Run a pipeline: upshift run FILE"
    rows = [
        (
            one.name,
            str(one.version),
            ", ".join(one.tags) or DASH,
            short_type(one.type),
            format_size(one.bytes),
            DASH if one.made is None else moment(one.made),
            one.run,
        )
        for one in found
    ]
    natural = [max(map(cells, column)) for column in zip(_HEADS, *rows, strict=True)]
    least = [min(width, 8) for width in natural]
    widths = fit(natural, page.whole.width - GAP * (len(natural) - 1), least)
    lines = heading(_HEADS, widths, page)
    lines += [columns([cut(c, width) for c, width in zip(row, widths, strict=True)], widths) for row in rows]
    return "\n".join(lines)


def versions_table(found: Sequence[ArtifactVersion], page: Page, *, sort: str | None = None) -> str:
    """The versions of one name, with the inputs in which they differ and what was logged."""
    if not found:
        return "No versions."
    comparison = compare([_row(one) for one in found], "version", sort=sort)
    what = title(comparison, f"{found[0].name}, {count(len(found), 'version')}")
    return f"{page.paint(what, 'bold')}\n{sheet(comparison, page.whole)}"


def _row(one: ArtifactVersion) -> Row:
    maker = one.maker
    return Row(
        name=str(one.version),
        status="completed",
        given={} if maker is None else maker.plain_inputs,
        metrics={} if maker is None else maker.metrics,
        seconds=None if maker is None else maker.seconds,
        facts={"tags": ", ".join(one.tags), "size": format_size(one.bytes), "run": f"{one.run} {one.task}"},
    )


def lineage(one: ArtifactVersion, page: Page) -> str:
    """One version: what it is, and which run made it, from what and with which code."""
    maker = one.maker
    facts: dict[str, str | list[str]] = {
        "tags": ", ".join(one.tags),
        "value": f"{one.type}, {format_size(one.bytes)}",
        "made": "" if one.made is None else moment(one.made),
        "by": f"{one.task} of run {one.run}" + ("" if maker else ", which was removed"),
        "inputs": [f"{n}={words(v)}" for n, v in maker.flat_inputs.items()] if maker else "",
        "metrics": [f"{n}={value_text(v)}" for n, v in maker.metrics.items()] if maker else "",
        "code": "" if one.code is None else one.code[:_DIGEST],
    }
    lines = [page.paint(f"{one.name}@{one.version}", "bold")]
    for name, text in facts.items():
        if text:
            for label, line in labelled(name, text, page.width - 11):
                lines.append(f"  {page.paint(f'{label:<8}', 'dim')} {line}")
    return "\n".join(lines)
