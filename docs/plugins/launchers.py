"""A line ``<!-- arguments of accelerate -->`` becomes the table of what becomes of each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from upshift.runtime.launch.argument_tables import FLAG, SWITCH, WORD, Argument
from upshift.runtime.launch.launchers import LAUNCHERS, Launcher

PLACE = "<!-- arguments of {} -->"
_HANDED_ON = "handed on"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    for launcher in LAUNCHERS.values():
        place = PLACE.format(launcher.name)
        if place in markdown:
            markdown = markdown.replace(place, _table(launcher))
    return markdown


def _table(launcher: Launcher) -> str:
    rows = [["argument", "value", "what becomes of it"], ["---"] * 3, *_rows(launcher)]
    read = f"As of version {launcher.version}, read on {launcher.read}."
    return "\n".join([read, "", *(f"| {' | '.join(row)} |" for row in rows)])


def _rows(launcher: Launcher) -> Iterable[list[str]]:
    for name, argument in launcher.arguments.items():
        refused = launcher.refused.get(name)
        meaning = launcher.done.get(name, _HANDED_ON)
        needs = [part.needs for part in launcher.parts if part.holds(name)]
        meaning += f", with `{needs[0]}`" if needs else ""
        if refused is not None:
            meaning = f"**refused.** {refused.why} {refused.fix}"
        yield [f"`{name}`", _value(argument), meaning]


def _value(argument: Argument) -> str:
    if argument.choices:
        return ", ".join(f"`{choice!r}`" for choice in argument.choices)
    named = {FLAG: "true or false", SWITCH: "true or false", WORD: "true, false, or text"}
    return named.get(argument.kind, argument.kind)
