"""Commands that leave nothing behind: what they start and do not stop is ended, and its memory counted."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import psutil

from upshift.runtime.confine import become_subreaper

LIMIT = 300.0
"""Seconds after which a command is stopped."""


class Failed(Exception):
    """A tool did not do what was asked; the text is the last line that it said."""


@attrs.frozen(kw_only=True)
class Ended:
    """A command that has ended well.

    Parameters
    ----------
    seconds
        From its start to its end.
    peak
        Most bytes that it and everything it started held at once, shared pages counted once; 0 where not
        watched.
    output
        What it printed.
    """

    seconds: float
    peak: int
    output: str


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    watch_memory: bool = False,
    limit: float = LIMIT,
) -> Ended:
    """Run a command to its end, and end what it leaves running.

    Raises
    ------
    Failed
        It cannot be started, fails, or has not ended after ``limit`` seconds.
    """
    become_subreaper()  # daemons of a tool become children of this process, where they are found
    # Files, because a daemon that inherits a pipe would keep it open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        except OSError as error:
            raise Failed(str(error)) from None
        try:
            with _Memory() if watch_memory else contextlib.nullcontext() as memory:
                code = process.wait(limit)
                seconds = time.perf_counter() - began
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {limit:.0f} s") from None
        finally:
            end_everything()
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if code != 0:
        raise Failed(last_line(texts[1]) or last_line(texts[0]) or f"exit code {code}")
    return Ended(seconds=seconds, peak=memory.peak if memory else 0, output=texts[0])


def end_everything() -> None:
    """End every process that this one has started, and that they have."""
    for signal in ("terminate", "kill"):
        alive = psutil.Process().children(recursive=True)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, signal)()
        psutil.wait_procs(alive, timeout=5)


def held() -> int:
    """Bytes that the processes below this one hold now, each shared page counted once."""
    return sum(_share(process.pid) for process in psutil.Process().children(recursive=True))


def last_line(text: str) -> str:
    """The last line that says something, without colours; of an error, that is what is wrong."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.strip() for line in plain.splitlines() if re.search(r"\w", line)]
    return lines[-1][:200] if lines else ""


class _Memory(threading.Thread):
    """The peak of what all processes below this one hold, looked at for a tenth of the time at most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._over = threading.Event()

    def __enter__(self) -> _Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            began = time.perf_counter()
            self.peak = max(self.peak, held())
            pause = max(0.02, 9 * (time.perf_counter() - began))


def _share(pid: int) -> int:
    """Bytes of a process in memory, each shared page divided by how many share it (PSS)."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
