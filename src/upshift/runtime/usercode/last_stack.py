"""The user's part of a stack that a process has left behind when it was stopped, or crashed.

It was written for :func:`upshift.runtime.step.stopping.tell_stack`.
"""

from __future__ import annotations

import re
import traceback

from upshift.errors import has_no_file, is_upshifts, location, with_cells
from upshift.runtime.launch.stacks import is_users

_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def user_line(text: str, project: str | None, *, relative_to: str | None) -> str | None:
    """The user's innermost line in the last stack of ``text``, as ``file:line``; in a file if possible."""
    lines = [(file, line) for file, line, _ in _frames(text) if is_users(file, project)]
    if not lines:
        return None
    return location(*next((line for line in lines if not has_no_file(line[0])), lines[0]), relative_to)


def user_stack(text: str, project: str | None) -> str | None:
    """The last stack of ``text`` as a traceback is shown: the user's frames and what they called last."""
    frames = _frames(text)
    shown = [
        frame
        for number, frame in enumerate(frames)
        if is_users(frame[0], project) or (number == 0 and not is_upshifts(frame[0]))
    ]
    if not any(is_users(file, project) for file, _, _ in shown):
        return None
    summaries = [traceback.FrameSummary(file, line, name) for file, line, name in reversed(shown)]
    listed = "".join(traceback.format_list(summaries)).rstrip()
    return with_cells(f"Stack of the Python code (most recent call last):\n{listed}")


def _frames(text: str) -> list[tuple[str, int, str]]:
    """File, line and function of each frame of the last stack, the innermost first."""
    last = text.rpartition("(most recent call first)")[2]
    return [(_plain(file), int(line), _plain(name)) for file, line, name in _FRAME.findall(last)]


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(next(filter(None, match.groups())), 16)), text)
