"""Whether the code that is loaded is the code in the file.

A notebook that imported ``helpers.py`` runs the old code after the file was edited, while a task in a fresh
interpreter runs the new. A file that is older than this process cannot have changed since it was imported,
unless Python took bytecode from before the last edit. Any other is compared: with the bytecode that Python
wrote when it imported it, or else function by function, and constant by constant, with what is there now.
What cannot be seen is an edit between import and now of nothing but a computed constant, where Python writes
no bytecode.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import time
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from upshift.code.fingerprint.digests import code_digest
from upshift.code.fingerprint.facts import Import
from upshift.code.fingerprint.sources import Module, ProjectSources
from upshift.code.fingerprint.values import value_digest
from upshift.runtime.usercode.modules import importing_began, older_bytecode

_MARGIN = 0.05
"""Seconds by which the clock of a file system may be behind: the kernel's coarse clock ticks at 100 Hz
or more. The clock of a file server may be further behind, which this cannot see."""

_FORKED = 0x40
"""``PF_FORKNOEXEC`` in Linux' ``include/linux/sched.h``: the code may be older than the process."""
_HEADER = 16
"""Bytes before the code in a file of bytecode (PEP 552): magic, flags, time in seconds, size."""


class LoadedCode:
    """Answers for the files of one analysis."""

    def __init__(self, sources: ProjectSources) -> None:
        self._sources = sources
        self._started = _process_start()
        self._doubtful: dict[str, bool] = {}
        self._compiled: dict[str, CodeType | None] = {}
        self._written: dict[str, frozenset[str]] = {}
        self._stale: dict[Module, bool] = {}

    def has(self, file: str, code: CodeType) -> bool:
        """Whether this code is in the file."""
        return not self._is_doubtful(file) or code_digest(code) in self._functions_of(file)

    def is_stale(self, module: Module) -> bool:
        """Whether a live module is not what its file says now."""
        file = module.file
        if file is None or module.namespace is None or not self._is_doubtful(file):
            return False
        known = self._stale.get(module)
        if known is None:
            known = self._stale[module] = self._differs(file, module)
        return known

    def _is_doubtful(self, file: str) -> bool:
        """Whether the file may have changed since it was imported, as far as times tell."""
        known = self._doubtful.get(file)
        if known is None:
            status = self._sources.status(file)  # none of a cell of a notebook, which cannot change
            known = self._doubtful[file] = status is not None and (
                self._is_young(status) or older_bytecode(file, status.st_mtime_ns)
            )
        return known

    def _is_young(self, status: os.stat_result) -> bool:
        started = self._started
        return started is None or max(status.st_mtime, status.st_ctime) > started - _MARGIN

    def _differs(self, file: str, module: Module) -> bool:
        if not all(self.has(file, code) for code in _functions(module) if code.co_filename == file):
            return True
        imported, written = self._imported(file), self._code_of(file)
        if imported is None or written is None:
            return not self._has_constants(module)
        return imported is not written and code_digest(imported) != code_digest(written)

    def _imported(self, file: str) -> CodeType | None:
        """The code that this process wrote or found when it imported a file; None if that is not known."""
        status = self._sources.status(file)
        try:
            cached = importlib.util.cache_from_source(file)
            with open(cached, "rb") as stream:
                content = stream.read()
                written = os.fstat(stream.fileno()).st_mtime_ns
        except (OSError, ValueError, NotImplementedError):
            return None
        assert status is not None
        stamp = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
        stamp += (status.st_size & 0xFFFFFFFF).to_bytes(4, "little")
        if written > status.st_mtime_ns and content[8:_HEADER] == stamp:
            return self._code_of(file)  # nothing happened since
        if self._started is None or written / 1e9 < self._started:
            return None  # it may be from before, and this process writes none
        try:
            code = marshal.loads(content[_HEADER:])
        except (ValueError, EOFError, TypeError):
            return None
        return code if isinstance(code, CodeType) else None

    def _has_constants(self, module: Module) -> bool:
        """Whether plain constants that are written out have the values that are written."""
        facts = self._sources.facts(module.file)
        for number, statement in enumerate(facts.statements if facts is not None else ()):
            for name in statement.binds if statement.literal else ():
                value = (module.namespace or {}).get(name)
                bound = facts.bound(name) if facts is not None else ()
                if len(bound) != 1 or isinstance(bound[0], Import) or bound[0].number != number:
                    continue
                if type(value) in (bool, int, float, str) and _plain(value) != statement.literal:
                    return False
        return True

    def _code_of(self, file: str) -> CodeType | None:
        if file not in self._compiled:
            content, code = self._sources.content(file), None
            if content is not None:
                try:
                    code = compile(content, file, "exec", dont_inherit=True)
                except (SyntaxError, ValueError, RecursionError):
                    code = None
            self._compiled[file] = code
        return self._compiled[file]

    def _functions_of(self, file: str) -> frozenset[str]:
        if file not in self._written:
            code = self._code_of(file)
            self._written[file] = frozenset() if code is None else frozenset(_all_digests(code))
        return self._written[file]


def _plain(value: object) -> str:
    return value_digest(value, str, bool).digest


def _functions(module: Module) -> Iterator[CodeType]:
    """The code of the functions and methods that a live module has."""
    for value in list((module.namespace or {}).values()):
        members: list[Any] = [value]
        if issubclass(type(value), type):
            members = [getattr(member, "__func__", member) for member in vars(value).values()]
        for member in members:
            if type(member) is FunctionType and member.__globals__ is module.namespace:
                yield member.__code__


def _all_digests(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield code_digest(constant)
            yield from _all_digests(constant)


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
