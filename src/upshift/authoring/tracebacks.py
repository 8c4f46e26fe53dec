"""Whose exception it is that ended a pipeline function."""

from __future__ import annotations

from types import CodeType

from upshift.errors import is_upshifts, is_user_file


def raised_by(error: BaseException, code: CodeType) -> bool:
    """Whether an exception is of this function's own making, or of code that it called; not of ours."""
    inside = users = False
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = inside or trace.tb_frame.f_code is code
        if is_upshifts(file):
            users = False
        elif is_user_file(file):
            users = True
        trace = trace.tb_next
    return inside and users
