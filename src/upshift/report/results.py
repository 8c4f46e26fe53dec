"""What a run made: the value that its pipeline returned, what it has to show, and every output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from upshift.model.graph.model import Collection, Constant, FromStep, Source
from upshift.model.plain import TEXT, TYPE, flat, is_opaque, words
from upshift.model.settings.sizes import format_size
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.telemetry import Card
from upshift.report.groups import Group
from upshift.report.human import TIMES, amount
from upshift.report.table import Cell, Table
from upshift.runs.history import Run
from upshift.runtime.storage.artifacts import described

_MOST = 24
"""Values of a result that are told one by one."""
_LONGEST = 400
"""Letters of a value."""
_FIGURE = 24
"""Letters of a value that is told in large type."""


@attrs.frozen(kw_only=True)
class ValueView:
    """One value of the result, by name and in words; ``brief``: short enough for large type."""

    name: str
    text: str
    brief: bool


@attrs.frozen(kw_only=True)
class CardGroup:
    """What the tasks of one step have to show."""

    step: str
    anchor: str
    cards: Sequence[Card]


def result_of(run: Run) -> list[ValueView]:
    """What the pipeline returned, as far as it is there; values that are not plain data by type and size."""
    source = run.graph.output
    return [] if source is None else list(_values(run, source, ""))[:_MOST]


def cards_of(groups: Sequence[Group]) -> list[CardGroup]:
    """The cards, by step."""
    found = ((group, [s.card for attempt in group.attempts for s in attempt.cards]) for group in groups)
    return [CardGroup(step=g.title, anchor=g.anchor, cards=cards) for g, cards in found if cards]


def outputs_of(groups: Sequence[Group]) -> Table | None:
    """Value or type, size and digest of what each step made; many of a kind together."""
    rows = [row for group in groups for row in _made(group)]
    heads = ("output", "value or type", "size", "digest")
    return Table(title="Outputs", heads=heads, rows=rows, numeric=(2,)) if rows else None


def _values(run: Run, source: Source, name: str) -> Iterator[ValueView]:
    if isinstance(source, Collection):
        keys = source.keys or [str(number) for number in range(len(source.items))]
        for key, item in zip(keys, source.items, strict=True):
            yield from _values(run, item, f"{name}.{key}" if name else key)
    elif isinstance(source, Constant):
        yield from _of_artifact(source.artifact, name or "result")
    else:
        yield from _of_step(run, source, name)


def _of_step(run: Run, source: FromStep, name: str) -> Iterator[ValueView]:
    own = source.node if source.output == "output" else f"{source.node}.{source.output}"
    label = name if name and not name.isdecimal() else own
    made = [task.artifacts.get(source.output) for task in run[source.node].tasks]
    found = [artifact for artifact in made if artifact is not None]
    if run[source.node].mapped:
        if found:
            yield ValueView(name=label, text=f"{len(found):,} {TIMES} {found[0].type}", brief=True)
        return
    for artifact in found:
        yield from _of_artifact(artifact, label)


def _of_artifact(artifact: Artifact, name: str) -> Iterator[ValueView]:
    for key, value in flat(described(artifact)).items():
        if value is not None or key:
            text = _words(value)
            text = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
            yield ValueView(name=key or name, text=text, brief=len(text) <= _FIGURE and "\n" not in text)


def _words(value: object) -> str:
    """A value in plain form, as people read it."""
    if is_opaque(value):
        assert isinstance(value, dict)
        return str(value.get(TEXT, value[TYPE])).removeprefix("<").removesuffix(">")
    if isinstance(value, float):
        return amount(value, "")
    return value if isinstance(value, str) else words(value)


def _made(group: Group) -> Iterator[list[Cell]]:
    found: dict[str, list[Artifact]] = {}
    for task in group.tasks:
        for output, artifact in task.artifacts.items():
            found.setdefault(output, []).append(artifact)
    for output, made in found.items():
        label = group.name if output == "output" else f"{group.name}.{output}"
        size = sum(artifact.bytes for artifact in made)
        digests = {artifact.digest for artifact in made}
        yield [
            Cell(text=label, anchor=group.anchor),
            Cell(text=_kind(group, made)),
            Cell(text=format_size(size), value=size),
            Cell(text=f"{len(digests):,} different" if group.many else digests.pop(), mark="soft"),
        ]


def _kind(group: Group, made: Sequence[Artifact]) -> str:
    kinds = list(dict.fromkeys(artifact.type for artifact in made))
    kind = " | ".join(kinds) if len(kinds) <= 3 else f"{len(kinds)} types"
    if group.many:
        return f"{len(made):,} {TIMES} {kind}"
    value = described(made[0])
    text = "" if is_opaque(value) or value is None else _words(value)
    return text if text and len(text) <= _FIGURE else kind
