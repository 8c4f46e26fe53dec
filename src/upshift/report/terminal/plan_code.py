"""The code package of a plan, for a person: how big it is, what is in it, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.report.human import count
from upshift.report.terminal.layout import Page, labelled, pad

if TYPE_CHECKING:
    from upshift.code.packages import Part
    from upshift.report.plan import PlannedCode

LABEL = 9
"""Columns of the words before what is said."""
_LISTED = 6
"""Parts of it, and files left out, that are named."""
_TIE = "\0"
"""A blank at which no line ends, for as long as lines are made."""


def show_code(code: PlannedCode, page: Page) -> str:
    """What the run would keep of the project, or send to other machines."""
    if code.files is None or code.bytes is None:
        text = f"no package of {code.project}: {code.problem}"
    else:
        text = f"{count(code.files, 'file')}, {format_size(code.bytes)}, of {code.project}"
    lines = labelled("code", text, page.width - LABEL)
    if len(code.parts) > 1:
        parts = [_part(part) for part in code.parts[:_LISTED]]
        more = len(code.parts) - _LISTED
        parts += [f"{more:,} more: --json"] if more > 0 else []
        whole = ", ".join(part.replace(" ", _TIE) for part in parts)  # no line ends within one of them
        held = labelled("holds", whole, page.width - LABEL)
        lines += [(label, line.replace(_TIE, " ")) for label, line in held]
    if code.left_out:
        named = ", ".join(f"{item.path} ({item.why})" for item in code.left_out[:_LISTED])
        more = len(code.left_out) - _LISTED
        named += f" and {more:,} more: --json" if more > 0 else ""
        lines += labelled("left out", named, page.width - LABEL)
    return "\n".join(f"{page.paint(pad(label, LABEL), 'dim')}{line}" for label, line in lines)


def _part(part: Part) -> str:
    many = f"{count(part.files, 'file')}, " if part.name.endswith("/") else ""
    return f"{part.name} ({many}{format_size(part.bytes)})"
