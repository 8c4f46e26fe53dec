"""What was raised while a pipeline was composed or run, without the frames of Upshift."""

from __future__ import annotations

from types import CodeType, TracebackType

from upshift.errors import is_upshifts, is_user_file
from upshift.worker.tracebacks import only

_IMPORTING = ("<frozen importlib", "<frozen runpy")


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without the frames of Upshift and of the import machinery."""

    def shown(part: TracebackType) -> bool:
        file = part.tb_frame.f_code.co_filename
        return not is_upshifts(file) and not file.startswith(_IMPORTING)

    return only(trace, shown)


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
