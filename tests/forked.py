"""Calls a function in a fork of this process, within limits of time and memory, and says how it ended."""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Ended:
    """How a call ended.

    Parameters
    ----------
    code
        Exit code; None: it was killed.
    hung
        Whether it ran into the limit of time.
    out, err
        What it wrote.
    grown
        Bytes that its memory grew by, at its peak.
    """

    code: int | None
    hung: bool
    out: str
    err: str
    grown: int


def forked(
    call: Callable[[], object],
    *,
    folder: Path,
    env: Mapping[str, str],
    seconds: int,
    most_bytes: int,
) -> Ended:
    """Call it in ``folder`` with this environment; ``SystemExit`` gives the exit code.

    Parameters
    ----------
    seconds
        After these it is killed.
    most_bytes
        It may have so much more memory than it begins with.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = _resident()
        pid = os.fork()
        if pid == 0:
            _inside(call, folder, env, seconds, most_bytes, out.fileno(), err.fileno())
        _, status, usage = os.wait4(pid, 0)
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        out.seek(0)
        err.seek(0)
        return Ended(
            code=None if killed else os.WEXITSTATUS(status),
            hung=killed == signal.SIGALRM,
            out=out.read().decode(errors="replace"),
            err=err.read().decode(errors="replace"),
            grown=max(0, usage.ru_maxrss * 1024 - begun),
        )


def _inside(
    call: Callable[[], object],
    folder: Path,
    env: Mapping[str, str],
    seconds: int,
    most_bytes: int,
    out: int,
    err: int,
) -> None:
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel's: nothing that hangs can keep it off
        signal.alarm(seconds)
        nothing = os.open(os.devnull, os.O_RDWR)
        for new, old in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(new, old)
        limit = _mapped() + most_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        call()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _resident() -> int:
    return _pages(1)


def _mapped() -> int:
    return _pages(0)


def _pages(column: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")
