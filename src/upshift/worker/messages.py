"""What a step process says to its supervisor while it runs: lines of JSON, each whole, in order.

The supervisor keeps it, so that nothing is lost when the step is killed a moment later.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

import attrs

from upshift.spec import Card, Framework, Metric, encode

_KINDS = {Metric: "metric", Card: "card", Framework: "framework"}
_PIPE_BUF = 4096
"""Bytes that ``write(2)`` puts into a pipe as a whole, whoever else writes to it (``limits.h`` of Linux)."""


class Channel:
    """The step's end. A process without a supervisor has none: what it says then goes nowhere.

    Processes that the step has forked write to the same pipe. Only the outcome may be a long line; it
    is written under a lock, which those processes take for each of theirs.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._pid = 0

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return self._descriptor >= 0

    def open(self, descriptor: int) -> None:
        """From now on, say it there."""
        self._descriptor = descriptor
        self._pid = os.getpid()

    def close(self) -> None:
        """Say nothing any more."""
        self._descriptor = -1

    def tell(self, message: Metric | Card | Framework) -> None:
        """Say one thing. It waits until the supervisor has room for it.

        Raises
        ------
        OSError
            The supervisor has died.
        """
        self.send(_KINDS[type(message)], message)

    def send(self, kind: str, message: attrs.AttrsInstance) -> None:
        """Say one thing of a kind that :meth:`upshift.worker.attempt.Attempt` understands."""
        if self._descriptor < 0:
            return
        data = json.dumps({kind: encode(message)}).encode() + b"\n"
        if len(data) <= _PIPE_BUF and os.getpid() == self._pid:
            os.write(self._descriptor, data)
            return
        # A lock is of an open file, which a fork shares: opened again, the same pipe is another one.
        with open(f"/proc/self/fd/{self._descriptor}", "wb", buffering=0) as pipe:
            fcntl.flock(pipe, fcntl.LOCK_EX)
            while data:
                data = data[pipe.write(data) or 0 :]


channel = Channel()
"""That of this process."""


def understood(line: bytes) -> tuple[str, Any]:
    """Kind and content of a line."""
    ((kind, content),) = json.loads(line).items()
    return kind, content
