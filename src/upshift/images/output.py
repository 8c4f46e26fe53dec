"""What a program prints while it runs, line by line: :func:`lines_of`."""

from __future__ import annotations

import os
import re
import selectors
from collections.abc import Callable, Iterator
from typing import IO

SILENCE = 0.5
"""Seconds without a line after which whoever follows is asked whether to go on."""

_BLOCK = 1 << 16
_LOGIN = re.compile(r"://[^/\s@'\"]+@")  # of an index or a repository, in an address


def lines_of(pipe: IO[bytes], *, idle: Callable[[], None]) -> Iterator[str]:
    """The lines that come through a pipe, each as soon as it is whole, without its end and without logins.

    ``idle`` is called now and then while nothing comes. What it raises is raised here: a program that says
    nothing for minutes can be given up at any time.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(SILENCE):
                idle()
                continue
            block = os.read(pipe.fileno(), _BLOCK)
            if not block:
                break
            *whole, rest = (rest + block).split(b"\n")
            yield from map(_text, whole)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return _LOGIN.sub("://***@", line.decode("utf-8", "replace").rstrip("\r"))
