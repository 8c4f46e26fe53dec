"""Programs that run for minutes, followed line by line: :func:`follow`."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

SILENCE = 0.5
"""Seconds without a line after which the caller is asked whether to go on."""

_BLOCK = 1 << 16
_LOGIN = re.compile(r"://[^/\s@'\"]+@")  # of an index or a repository, in an address


def follow(
    command: Sequence[str],
    on_line: Callable[[str], None],
    *,
    idle: Callable[[], None],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: bool = False,
    stop: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
) -> int:
    """Run a program, hand over each line of its stderr, and return its exit status.

    With ``stdout`` its output is handed over as well. An exception in ``on_line`` or ``idle`` calls ``stop``.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if stdout else subprocess.PIPE,
    ) as process:
        try:
            pipe = process.stdout or process.stderr
            assert pipe is not None
            for line in lines_of(pipe, idle=idle):
                on_line(line)
            return process.wait()
        except BaseException:
            stop(process)
            raise


def lines_of(pipe: IO[bytes], *, idle: Callable[[], None]) -> Iterator[str]:
    """The lines that come through a pipe, each as soon as it is complete, without its end and without logins.

    ``idle`` is called every :data:`SILENCE` seconds while nothing comes; an exception in it is raised here.
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
