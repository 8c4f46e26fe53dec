"""What was raised while a pipeline was composed or run, without the frames of Upshift."""

from __future__ import annotations

from types import CodeType, TracebackType

from upshift.errors import is_upshifts, is_user_file
from upshift.worker.tracebacks import user_line, user_text

__all__ = ["raised_by", "user_frames", "user_line", "user_text"]

_IMPORTING = ("<frozen importlib", "<frozen runpy")


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without the frames of Upshift and of the import machinery."""
    frames = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_upshifts(file) and not file.startswith(_IMPORTING):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


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
