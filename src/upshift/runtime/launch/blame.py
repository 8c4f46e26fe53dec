"""Which of the processes of a task is why it failed, and what to call that.

When one of them goes, the others lose their connection to it and raise errors of their own, often before its
end is known. Such an error *follows* from another end. A moment is waited for that other one, and only where
there is none is it the cause.

Texts as of PyTorch 1.13 to 2.13: Gloo (``gloo/transport/*/pair.cc``, ``unbound_buffer.cc``), its store
(``torch/csrc/distributed/c10d/TCPStore.cpp``, ``socket.cpp``), ``ProcessGroupGloo.cpp`` and
``ProcessGroupNCCL.cpp``, and NCCL 2.18 to 2.27 (``ncclGetErrorString`` in ``init.cc``, ``socket.cc``).

What cannot be told apart here: a network that broke, and a process on another node whose end nobody has told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from upshift.model.spec import Failure, Stack
from upshift.runtime.launch.stacks import JOINING, listed, waits_for_others, whereabouts

_UNMET = re.compile(
    r"\d+/\d+ clients joined"
    r"|The client socket has (?:timed out|failed to connect)"
    r"|Timed out initializing process group in store based barrier"
    r"|Gloo connectFullMesh failed"
)
_LATE = re.compile(
    r"gloo/transport/[^\s\]]+:\d+\] Timed out waiting"
    r"|failed to pass monitoredBarrier"
    r"|Dist(?:Store|Backend)Error: .*wait timeout after \d+ ?ms, keys: "
    r"|RuntimeError: (?:Socket Timeout|Wait timeout)$"
    r"|Watchdog caught collective operation timeout"
    r"|watchdog (?:thread )?got stuck for|Heartbeat monitor timed out",
    re.MULTILINE,
)
_BROKEN = re.compile(
    r"\[[^\s\]]*gloo/transport/[^\s\]]+:\d+\] "
    r"|Dist(?:Network|Store|Backend)Error: .*(?:Broken pipe|Connection reset by peer|Connection refused)"
    r"|RuntimeError: (?:Broken pipe|Connection reset by peer)$"
    r"|(?:recv|send), (?:got|sent) 0 bytes\. Connection was likely closed"
    r"|ncclRemoteError|remote process exit(?:ed or there was a network error|ing prematurely)"
    r"|(?:socketProgress|Net) ?: Connection closed by remote peer|NCCL communicator (?:was|is) aborted"
    r"|Received a (?:dump|timeout) signal due to a collective timeout from",
    re.MULTILINE,
)
_ABSENT = re.compile(r"Rank (\d+) failed to pass monitoredBarrier")
_ADDRESS = re.compile(r"trying to connect to \(?([^\s,)]+), (\d+)\)?")
_WHAT = re.compile(r"what\(\):\s*(.+)")
_MISMATCH = re.compile(
    r"collective mismatch|Received data size doesn't match|Detected mismatch between collectives"
)
_CALLS = re.compile(r"^\S.*\(most recent call last\):\n(?: .*\n?)*", re.MULTILINE)

_SAME_CALLS = (
    "All ranks must make the same collective calls, in the same order, with tensors of equal size and type"
)
_LONGER = "or give them more time: timeout=… of init_process_group"


@attrs.frozen(kw_only=True)
class End:
    """How one of the processes of a task ended, or what it said last."""

    rank: int
    at: float  # when that was known: seconds on a clock that all share
    failure: Failure | None = None  # why it failed; None: it returned
    node: str | None = None
    # The exit code by which it ended before it returned; None: it raised an error, or was killed.
    exit_code: int | None = None
    log: str = ""  # the end of what it printed, if it was killed


def follows(end: End) -> bool:
    """Whether a process failed as those do that miss another one: then that is to be waited for, a moment."""
    return _kind(end) is not None


def cause(ends: Sequence[End], running: Sequence[Stack] = ()) -> Failure:
    """Why all of them failed, with the rank that began it and its node."""
    failed = [end for end in ends if end.failure is not None]
    first = min(failed, key=lambda end: (_kind(end) is not None, end.at, end.rank))
    kind = _kind(first)
    if kind is None:
        return _of_its_own(first, failed, running)
    gone = [end for end in ends if end.failure is None]
    return _returned(first, kind, gone) if gone else _missed(first, kind, failed, running)


# -- the cases ------------------------------------------------------------------------------------


def _of_its_own(first: End, failed: Sequence[End], running: Sequence[Stack]) -> Failure:
    assert first.failure is not None
    failure = attrs.evolve(first.failure, rank=first.rank, node=first.node)
    if first.exit_code == 0:  # no error to be seen, unless one knows who needed it
        failure = attrs.evolve(failure, fix=failure.fix or "Let each of the ranks return from the step.")
        waiting = [end.rank for end in failed if _kind(end)] + [
            stack.rank for stack in running if waits_for_others(stack)
        ]
        if waiting:
            failure = attrs.evolve(
                failure,
                message=f"{failure.message}, while {listed(waiting)} waited for it",
                fix=f"{_SAME_CALLS}; let each of them return from the step.",
            )
    return _with_last_words(failure, first)


def _with_last_words(failure: Failure, end: End) -> Failure:
    crash = _crash(end)
    if crash is None:
        return failure
    fix = _SAME_CALLS + "." if _MISMATCH.search(crash) else failure.fix
    return attrs.evolve(failure, message=f"{failure.message}: {crash}", fix=fix)


def _returned(first: End, kind: str, gone: Sequence[End]) -> Failure:
    """Some returned, and others still needed them."""
    early = min(gone, key=lambda end: (end.at, end.rank))
    names = listed([end.rank for end in gone])
    what = "returned without having joined the others" if kind == "unmet" else "returned"
    return _missing(
        first,
        rank=early.rank,
        node=early.node,
        message=f"{names} {what}, while rank {first.rank} waited for {_it(gone)}",
        fix=f"{_SAME_CALLS}: look for a return, or a loop of another length, that depends on the rank "
        "or on its part of the data.",
    )


def _missed(first: End, kind: str, failed: Sequence[End], running: Sequence[Stack]) -> Failure:
    """None returned, and none failed for a reason of its own."""
    assert first.failure is not None
    own = attrs.evolve(first.failure, rank=first.rank, node=first.node)
    text = _text(first)
    named = _ABSENT.search(text)
    failing = {end.rank for end in failed}
    absent = [
        stack
        for stack in running
        if stack.rank not in failing and (named is None or stack.rank == int(named[1]))
    ]
    away = [stack for stack in absent if kind != "unmet" or stack.waits != JOINING] or absent
    if kind == "broken" or not away:
        where = whereabouts(absent)
        own = _with_last_words(own, first)
        return attrs.evolve(own, message=f"{own.message}\n{where}") if where else own
    names = listed([stack.rank for stack in away])
    if kind == "unmet":
        message = f"{names} never joined: rank {first.rank} waited for {_it(away)} in vain"
        if address := _ADDRESS.search(text):
            message += f" at {address[1]}:{address[2]}"
        fix = f"What is done before the ranks join each other must not take longer in one of them; {_LONGER}."
    else:
        message = f"{names} did not come to a collective call in which rank {first.rank} waited"
        fix = f"{_SAME_CALLS}; {_LONGER}."
    return _missing(
        first,
        rank=away[0].rank,
        node=None,
        message=f"{message}; {whereabouts(away)}",
        where=away[0].where,
        fix=fix,
    )


def _missing(
    first: End, *, rank: int, node: str | None, message: str, fix: str, where: str | None = None
) -> Failure:
    """What another one did, with where ``first`` waited for it."""
    assert first.failure is not None
    trace = first.failure.traceback
    return Failure(
        reason=first.failure.reason,
        message=message,
        traceback=f"Rank {first.rank} waited here:\n{trace}" if trace else None,
        where=where or first.failure.where,
        fix=fix,
        rank=rank,
        node=node,
    )


def _it(several: Sequence[object]) -> str:
    return "it" if len(several) == 1 else "them"


# -- what texts say -------------------------------------------------------------------------------


def _kind(end: End) -> str | None:
    """How a failure follows from another end: ``"broken"``, ``"late"`` or ``"unmet"``; None: it does not."""
    if end.failure is None or end.failure.reason not in ("user-error", "infrastructure"):
        return None
    text = _text(end)
    for kind, pattern in (("unmet", _UNMET), ("late", _LATE), ("broken", _BROKEN)):
        if pattern.search(text):
            return kind
    return None


def _text(end: End) -> str:
    """What counts of a failure: what was raised, and from what; or what it printed as it crashed."""
    assert end.failure is not None
    raised = _CALLS.sub("", end.failure.traceback or "")  # the lines of code may hold any text
    return "\n".join((end.failure.message, raised, _crash(end) or ""))


def _crash(end: End) -> str | None:
    """What C++ said of the exception that killed a process; None: none did."""
    found = _WHAT.findall(end.log)
    return found[-1].strip() if found else None
