"""Whether the code that is loaded is the code in the file.

A notebook that imported ``helpers.py`` runs the old code after the file was edited, while a task in a fresh
interpreter runs the new. A file that is older than this process cannot have changed since it was imported,
unless Python took bytecode from before the last edit. For any other the functions are compared with the
file's, by bytecode; what cannot be compared counts as written and as loaded, both.
"""

from __future__ import annotations

import functools
import os
import time
from types import CodeType

from upshift.code.fingerprint.bytecode import code_digest
from upshift.code.fingerprint.sources import Sources
from upshift.runtime.usercode.importing import older_bytecode
from upshift.runtime.usercode.modules import importing_began

_MARGIN = 0.05
"""Seconds by which the clock of a file system may be behind: the kernel's coarse clock ticks at 100 Hz
or more. The clock of a file server may be further behind, which this cannot see."""

_FORKED = 0x40
"""``PF_FORKNOEXEC`` in Linux' ``include/linux/sched.h``: the code may be older than the process."""


class Freshness:
    """Answers for the files of one analysis.

    Parameters
    ----------
    sources
        Their content.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started = _process_start()
        self._doubtful: dict[str, bool] = {}
        self._written: dict[str, set[str]] = {}

    def doubtful(self, file: str | None) -> bool:
        """Whether the file may have changed since it was imported."""
        if file is None:
            return False
        known = self._doubtful.get(file)
        if known is None:
            status = self._sources.status(file)  # none of a cell of a notebook, which cannot change
            known = self._doubtful[file] = status is not None and (
                self._newer_than_process(status) or older_bytecode(file, status.st_mtime_ns)
            )
        return known

    def loaded(self, file: str, code: CodeType) -> bool:
        """Whether this code is in the file."""
        if not self.doubtful(file):
            return True
        if file not in self._written:
            self._written[file] = _compiled(file, self._sources.content(file))
        return code_digest(code) in self._written[file]

    def _newer_than_process(self, status: os.stat_result) -> bool:
        started = self._started
        return started is None or max(status.st_mtime, status.st_ctime) > started - _MARGIN


@functools.cache
def _start_of(pid: int) -> float | None:
    try:
        with open("/proc/self/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return None
    if int(fields[6]) & _FORKED:
        return None
    return time.time() - boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _process_start() -> float | None:
    """When this process started, in seconds since the epoch; None where that tells nothing.

    A command imports the user's modules later than it starts, and knows when.
    """
    return importing_began() or _start_of(os.getpid())


def _compiled(file: str, content: bytes | None) -> set[str]:
    if content is None:
        return set()
    try:
        code = compile(content, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found: set[str] = set()
    _collect(code, found)
    return found


def _collect(code: CodeType, found: set[str]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.add(code_digest(constant))
            _collect(constant, found)
