"""Where processes are: each is asked by a signal that nothing else uses, and the stacks it writes are read.

:mod:`faulthandler` writes them at once, whatever the process is doing, be it in native code. A function of C
has no frame there, so that of ``sleep()`` and the like only the line that calls it is seen. The text of
``py-spy dump`` is understood too, which may have the frames of native code.

Names and files as of PyTorch 1.13 to 2.13 (``torch/distributed``), CPython 3.10 to 3.14, and py-spy 0.4.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import signal
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from upshift.errors import has_no_file, is_upshifts, is_user_file, location, with_cells
from upshift.model.spec import Stack
from upshift.runtime import proc

ASK = signal.SIGRTMIN + 13


def listen(descriptor: int) -> None:
    """From now on write the stacks of this process to ``descriptor`` whenever it is asked.

    The descriptor must not block.
    """
    faulthandler.register(ASK, descriptor, all_threads=True, chain=False)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(ASK))


def ask(pid: int) -> bool:
    """Ask a process; False: it does not listen, or is gone."""
    if not _listens(pid):
        return False
    try:
        os.kill(pid, ASK)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _listens(pid: int) -> bool:
    """Whether a process has a handler for the signal: the kernel says which ones it catches, proc(5)."""
    for line in (proc.read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (ASK - 1) & 1)
    return False


# -- reading what it wrote ------------------------------------------------------------------------

JOINING = "init_process_group"
"""What a process waits in that is there for the others, before they are a group."""
LONGEST = 40_000
"""Characters of the text of a stack that are kept."""

_HEADER = re.compile(
    r"^(?:(?:Current thread|Thread) 0x([0-9a-f]+)[^\n]*|Stack) \(most recent call first\):$"
    r"|^Thread (\d+) \((?:active|idle)[^\n]*$",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_SPIED = re.compile(r"^ {4}(?P<name>.+) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$", re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


class Frame(NamedTuple):
    """A call on a stack. Of a native one the file is its library, and the line 0."""

    file: str
    line: int
    name: str

    @property
    def function(self) -> str:
        """The name without that of a class or a function that it is in, as py-spy has it."""
        return self.name.rpartition(".")[2] if self.line else self.name


class StackAnswer(NamedTuple):
    """What a text has of a process that was asked."""

    stack: Stack
    # The calls of its main thread, the innermost first: the same ones mean that it is where it was.
    state: tuple[Frame, ...]
    for_others: bool  # whether it waits for another process of the task, and for nothing else


def answer(rank: int, text: str, *, project: str | None, relative_to: str | None) -> StackAnswer | None:
    """What the last stacks of ``text`` say; None: there are none."""
    text = _last(text)
    threads = list(_threads(text))
    for file in {frame.file for frames in threads for frame in frames}:
        linecache.checkcache(file)
    if not threads:
        return None
    frames = threads[-1]
    inner, own = _divided(frames, project)
    waits = _waits(inner, own)
    where = location(own.file, own.line, relative_to) if own is not None else None
    stack = Stack(rank=rank, waits=waits, where=where, text=_shown(threads, project)[:LONGEST])
    return StackAnswer(stack, tuple(frames), _is_for_others(inner))


def waits_for_others(stack: Stack) -> bool:
    """Whether a process waits for others of its task: it does so in a call with a name, as ``all_reduce``."""
    return stack.waits is not None and stack.waits.isidentifier() and stack.waits != _SLEEP


def user_line(text: str, project: str | None, *, relative_to: str | None) -> str | None:
    """The user's innermost line in the last stack of ``text``, as ``file:line``; in a file if possible."""
    own = [frame for frame in _left_behind(text) if is_users(frame.file, project)]
    if not own:
        return None
    frame = next((frame for frame in own if not has_no_file(frame.file)), own[0])
    return location(frame.file, frame.line, relative_to)


def user_stack(text: str, project: str | None) -> str | None:
    """The last stack of ``text`` as a traceback is shown: the user's frames and what they called last."""
    frames = _left_behind(text)
    shown = [
        frame
        for number, frame in enumerate(frames)
        if is_users(frame.file, project) or (number == 0 and not is_upshifts(frame.file))
    ]
    if not any(is_users(frame.file, project) for frame in shown):
        return None
    listed = "".join(_line(frame) for frame in reversed(shown)).rstrip()
    return with_cells(f"Stack of the Python code (most recent call last):\n{listed}")


# -- texts ----------------------------------------------------------------------------------------


def _left_behind(text: str) -> list[Frame]:
    """The last stack that a process wrote as it was stopped, or crashed; the innermost call first."""
    last = text.rpartition("(most recent call first)")[2]
    return [Frame(_plain(file), int(line), _plain(name)) for file, line, name in _FRAME.findall(last)]


def _last(text: str) -> str:
    """The newest of several answers.

    An answer begins where a thread is named that was named already. One without a name is of the main thread
    alone, written because the process was stopped: where that was found there before, with all other threads,
    that answer says more.
    """
    begins: list[int] = []
    known: set[str] = set()
    for header in _HEADER.finditer(text):
        thread = header[1] or header[2] or ""
        if not begins or not thread or "" in known or thread in known:
            begins.append(header.start())
            known = set()
        known.add(thread)
    answers = (
        [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
        if begins
        else []
    )
    if len(answers) > 1 and "" in known and list(_threads(answers[-1])) == list(_threads(answers[-2]))[-1:]:
        return answers[-2]
    return answers[-1] if answers else ""


def _threads(text: str) -> Iterator[list[Frame]]:
    """The calls of each thread, the innermost first. The main thread is the last one."""
    found = []
    headers = list(_HEADER.finditer(text))
    for number, header in enumerate(headers):
        part = text[header.end() : headers[number + 1].start() if number + 1 < len(headers) else None]
        pattern = _SPIED if header[2] else _FRAME
        frames = [
            Frame(_plain(one["file"]), int(one["line"] or 0), _plain(one["name"]))
            for one in pattern.finditer(part)
        ]
        found.append((header[2] is not None and '"MainThread"' in header[0], frames))
    yield from (frames for _, frames in sorted(found, key=lambda one: one[0]))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(next(filter(None, match.groups())), 16)), text)


def _shown(threads: Sequence[Sequence[Frame]], project: str | None) -> str:
    """Stacks as Python prints them, that of the main thread first, without what called the user's code."""
    parts = []
    for number, frames in enumerate(reversed(threads)):
        own = [place for place, frame in enumerate(frames) if _is_users(frame, project)]
        called = frames[: own[-1] + 1] if own else frames
        known = [frame for frame in called if not frame.name.startswith("0x")]  # which nobody has named
        kept = [frame for frame in reversed(known) if not is_upshifts(frame.file)]
        if kept or number == 0:
            name = "Another thread" if number else "Main thread"
            listed = "".join(_line(frame) for frame in kept) or "  (in no code of the step's)\n"
            parts.append(f"{name} (most recent call last):\n{listed}")
    return with_cells("\n".join(parts).rstrip())


def _line(frame: Frame) -> str:
    if not frame.line:
        return f"  {frame.name} in {frame.file}\n"
    summary = traceback.FrameSummary(frame.file, frame.line, frame.name)
    return "".join(traceback.format_list([summary]))


_GENERATED = ("<frozen", "<string>", "<attrs ", "<__array_function__", "<decorator-gen")
"""What code is called that is in no file: of Python, our own start, dataclasses, attrs, NumPy, decorators."""


def is_users(file: str, project: str | None) -> bool:
    """Whether the code of a frame is in a file of the user's, or in a cell."""
    is_code = file.startswith(("/", "<")) and not file.startswith(_GENERATED)
    return is_code and is_user_file(file, project) and not is_upshifts(file)


def _is_users(frame: Frame, project: str | None) -> bool:
    return frame.line > 0 and is_users(frame.file, project)


def _divided(frames: Sequence[Frame], project: str | None) -> tuple[Sequence[Frame], Frame | None]:
    """What the user's innermost frame has called, the innermost first; and that frame."""
    for number, frame in enumerate(frames):
        if _is_users(frame, project):
            return frames[:number], frame
    return frames, None


# -- what they mean -------------------------------------------------------------------------------

_SLEEP = "sleep"
_OTHER_PLACES = (
    (r"/torch/utils/data/dataloader\.py$", r"", "a worker of the data loader"),
    (r"/(subprocess|multiprocessing/popen_\w+|multiprocessing/process)\.py$", r"", "another process"),
    (r"/multiprocessing/(connection|queues|managers|pool|synchronize)\.py$", r"", "another process"),
    (r"/concurrent/futures/|/asyncio/futures\.py$", r"result|wait", "a future"),
    (r"/queue\.py$", r"get|put|join", "a queue"),
    (r"/threading\.py$", r"join|_wait_for_tstate_lock", "a thread"),
    (r"/threading\.py$", r"wait|acquire|wait_for|__enter__", "a lock"),
    (r"/(socket|ssl|http/client|socketserver|selectors)\.py$|/asyncio/", r"", "the network"),
)
_NATIVE = (
    (r"(cu|cuda|hip)\w*Synchronize", "the device"),
    (r"PyThread_acquire_lock", "a lock"),
)
_NATIVE_PEERS = (
    (r"c10d::Reducer::", "DistributedDataParallel"),
    (r"gloo::(all_?reduce|all_?gather|broadcast|barrier|reduce|scatter|gather|all_?to_?all)\b", ""),
    (r"c10d::TCPStore", JOINING),
    (r"c10d::Work::wait|c10d::ProcessGroup\w*::|ncclComm|gloo::", "collective"),
)
_CALLS = (
    (r"\bsleep\(", _SLEEP),
    (r"\.acquire\(", "a lock"),
    (r"\.(recv|recv_into|recvfrom|accept|connect)\(", "the network"),
)
_C10D = re.compile(r"/torch/distributed/distributed_c10d\.py$")
_DISTRIBUTED = re.compile(r"/torch/distributed/")
_DDP = re.compile(r"/torch/nn/parallel/distributed\.py$")


def _waits(inner: Sequence[Frame], own: Frame | None) -> str | None:
    peers = _peers(inner)
    if peers is not None:
        return peers
    for pattern, names, what in _OTHER_PLACES:
        for frame in inner:
            if re.search(pattern, frame.file) and re.fullmatch(names or ".*", frame.function):
                return what
    for pattern, what in _NATIVE:
        if any(frame.line == 0 and re.search(pattern, frame.name) for frame in inner):
            return what
    if own is not None and not any(frame.line for frame in inner):  # C has no frame: the line may tell
        line = linecache.getline(own.file, own.line)
        return next((what for pattern, what in _CALLS if re.search(pattern, line)), None)
    return None


def _is_for_others(inner: Sequence[Frame]) -> bool:
    return _peers(inner) is not None


def _peers(inner: Sequence[Frame]) -> str | None:
    """What call it waits in for the other processes; None: it does not."""
    python = [frame for frame in inner if frame.line]
    if python and _DISTRIBUTED.search(python[0].file):
        if any("/rendezvous.py" in frame.file or frame.function == JOINING for frame in python):
            return JOINING
        if any(_DDP.search(frame.file) for frame in python):
            return "DistributedDataParallel"
        c10d = [frame.function for frame in python if _C10D.search(frame.file)]
        public = [name for name in c10d if name != "wrapper" and not name.startswith("_")]
        return public[-1] if public else python[0].function.strip("_")
    for pattern, what in _NATIVE_PEERS:
        for frame in inner:
            if not frame.line and (found := re.search(pattern, frame.name)):
                return what or found[1]
    return None


def listed(ranks: Iterable[int]) -> str:
    """Ranks in words: ``rank 3``, ``ranks 0-2 and 5``."""
    known = sorted(set(ranks))
    parts: list[str] = []
    for _, group in groupby(enumerate(known), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        parts.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))
    text = parts[-1] if len(parts) < 2 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank {text}" if len(known) == 1 else f"ranks {text}"


def whereabouts(stacks: Sequence[Stack]) -> str:
    """What each of them waits for and where, those at one place together; empty: nothing is known.

    First come those that do not say it.

    ``ranks 0-2 wait in all_reduce (train.py:14), rank 3 is at data.py:9``
    """
    places: dict[tuple[str | None, ...], list[int]] = {}
    for stack in sorted(stacks, key=lambda stack: (stack.silent is None, stack.rank)):
        place = (stack.silent, stack.waits, stack.where)
        if any(place):
            places.setdefault(place, []).append(stack.rank)
    return ", ".join(_told(ranks, *place) for place, ranks in places.items())


def _told(ranks: Sequence[int], silent: str | None, waits: str | None, where: str | None) -> str:
    one = len(ranks) == 1
    at = f" ({where})" if where else ""
    if silent is not None:
        return f"{listed(ranks)} {'does' if one else 'do'} not answer: {silent}{at}"
    if waits is None:
        return f"{listed(ranks)} {'is' if one else 'are'} at {where}"
    if waits == "sleep":
        return f"{listed(ranks)} {'sleeps' if one else 'sleep'}{at}"
    return (
        f"{listed(ranks)} {'waits' if one else 'wait'} {'in' if waits.isidentifier() else 'for'} {waits}{at}"
    )
