"""Tracebacks, cut to the user's frames."""

from __future__ import annotations

import os
import traceback
from types import CodeType, TracebackType

from upshift.errors import is_user_file, location

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMPORTING = ("<frozen importlib", "<frozen runpy", "<attrs generated")


def is_users(filename: str) -> bool:
    """Whether code of this file is neither Upshift's nor the import machinery's."""
    return not filename.startswith((_OURS, *_IMPORTING))


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without the frames of Upshift and of the import machinery."""
    frames = []
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def user_text(error: BaseException) -> str:
    """What Python prints for an exception, without frames of Upshift."""
    lines = traceback.format_exception(type(error), error, user_frames(error.__traceback__))
    return "".join(lines).rstrip()


def user_line(error: BaseException) -> str | None:
    """The innermost line of the user's own code, as ``file:line``."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_user_file(file):
            found = location(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def raised_by(error: BaseException, code: CodeType) -> bool:
    """Whether an exception is of this function's own making, or of code that it called; not of ours."""
    inside = users = False
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = inside or trace.tb_frame.f_code is code
        if file.startswith(_OURS):
            users = False
        elif is_user_file(file):
            users = True
        trace = trace.tb_next
    return inside and users
