"""Standard output and error of a step process: lines, each written whole and at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable


def own_streams() -> None:
    """Let ``sys.stdout`` and ``sys.stderr`` write to descriptors 1 and 2, line by line."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            usable = stream is getattr(sys, f"__{name}__") and stream.fileno() == descriptor
        except (OSError, ValueError, AttributeError):
            usable = False
        if usable:
            stream.reconfigure(line_buffering=True, write_through=False)
        else:  # a notebook's, a test runner's, or none
            stream = open(  # noqa: SIM115
                descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if sys.stdin is None or sys.stdin is not sys.__stdin__:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        setattr(sys, "__stdin__", sys.stdin)  # noqa: B010


def tell(remarks: Iterable[str]) -> None:
    """Write remarks to the step's log.

    No step fails for one: neither where it has closed or replaced ``sys.stderr``, nor where a remark comes
    from looking at values whose own methods raise.
    """
    with contextlib.suppress(Exception):
        for remark in remarks:
            sys.stderr.write(f"upshift: {remark}\n")
