"""What a checkup finds, and its text and JSON: a line for each check, its remedy below."""

from __future__ import annotations

from typing import Literal

import attrs

from upshift.report.terminal import Page, cells, pad, wrap

Status = Literal["ok", "warning", "absent", "problem"]


@attrs.frozen(kw_only=True)
class Check:
    """One line of the checkup: what was checked, and with what result."""

    group: str  # group, name: what it is
    name: str
    status: Status = "ok"
    """``"problem"``: it would stop a step, or a step on GPUs. ``"absent"``: there is no device, and
    nothing wrong with that. ``"warning"``: it is worth knowing."""
    text: str  # what was found
    remedy: str | None = None  # what to do about it

    @property
    def stops(self) -> bool:
        """Whether something is wrong; that there is no device is not."""
        return self.status == "problem"


_MARKS = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "absent": ("!", "yellow"),
    "problem": ("✗", "red"),
}
_PLAIN = {"ok": "ok", "warning": "!", "absent": "!", "problem": "X"}
GLYPHS = "✓✗→"
"""What the stream has to be able to show."""
OF_TARGET = "target "
"""What the name of a group begins with whose checks are about another machine."""
TRIAL = "a trivial step"
"""The group of what became of a step that tried the target."""
_NAME = 15
"""Columns for the name of a check, on a page that is wide enough."""
_NARROW = 60


def heading(group: str, page: Page) -> str:
    """The line above the checks of a group."""
    return page.paint(group, "bold")


def line(check: Check, page: Page, *, glyphs: bool = True) -> str:
    """One check, on as many lines as it takes."""
    mark, style = _MARKS[check.status]
    mark = mark if glyphs else _PLAIN[check.status]
    shown = page.paint(mark, style)
    arrow = "→ " if glyphs else "-> "
    narrow = page.width < _NARROW
    column = cells(mark) + 1 + (0 if narrow else _NAME + 1)
    texts = wrap(check.text, page.width - column - 2)
    lines = []
    if narrow and cells(f"  {mark} {check.name}: {check.text}") <= page.width:
        lines.append(f"  {shown} {check.name}: {texts.pop(0)}")
    elif narrow or cells(check.name) > _NAME:
        lines.append(f"  {shown} {check.name}")
    else:
        lines.append(f"  {shown} {pad(check.name, _NAME)} {texts.pop(0)}")
    lines += [" " * (column + 2) + text for text in texts]
    for number, text in enumerate(
        wrap(check.remedy, page.width - column - 2 - cells(arrow)) if check.remedy else ()
    ):
        lead = arrow if number == 0 else " " * cells(arrow)
        lines.append(" " * (column + 2) + page.paint(lead + text, "dim"))
    return "\n".join(lines)


def verdict(checks: list[Check], page: Page) -> str:
    """The last line: whether steps on GPUs can run, and steps in containers if those were looked at."""
    contained = any(check.group in ("containers", "registry") for check in checks)
    place = next((check.group for check in checks if check.group.startswith(OF_TARGET)), None)
    problems = sum(check.stops for check in checks)
    warnings = sum(check.status == "warning" for check in checks)
    if problems:
        words = "1 problem" if problems == 1 else f"{problems} problems"
        who = "a step on GPUs would not get what it asks for here."
        if contained:
            who = "a step in a container would not run here, or not get what it asks for."
        if any(check.stops and check.group == TRIAL for check in checks):
            who = "a trivial step did not get through."
        elif place is not None:
            who = f"a step would not run on {place}, or not get what it asks for."
        return page.paint("\n".join(wrap(f"{words}: {who}", page.width)), "red")
    if any(check.status == "absent" for check in checks):
        text = "Nothing is wrong here, but there is no GPU: a step on GPUs would not get what it asks for."
        return page.paint("\n".join(wrap(text, page.width)), "yellow")
    noted = "" if not warnings else f" {warnings} to know of." if warnings > 1 else " 1 thing to know of."
    kinds = f"on {place}" if place is not None else "in a container" if contained else "on GPUs"
    return page.paint("\n".join(wrap(f"Nothing here would stop a step {kinds}.{noted}", page.width)), "green")


def as_json(target: str, checks: list[Check]) -> dict[str, object]:
    """The form of ``--json``."""
    return {
        "target": target,
        "ok": not any(check.stops for check in checks),
        "checks": [attrs.asdict(check) for check in checks],
    }
