"""A pipeline whose tasks prove that they ran alone, the processes of a run, and seeds of chance.

Each day tries other instants. A test has its seed in its name; ``UPSHIFT_TEST_SEED`` tries that one again.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from prepared import Interpreter, Prepared
from project import as_users_have_it

SOURCE = '''
import fcntl, os, time
from pathlib import Path
from upshift import current, pipeline, step

WITNESS = Path(os.environ["WITNESS"])


class alone:
    """Hold the lock of this task, and write down when it starts and ends."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.file = open(WITNESS / f"{self.name}.lock", "w")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note("twice-at-once")
        self.note("start")

    def __exit__(self, *_):
        self.note("end")

    def note(self, word):
        line = f"{self.name} {word} {time.time():.6f} {current.run} {os.getpid()}\\n".encode()
        journal = os.open(WITNESS / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(journal, line)
        os.close(journal)


@step
def numbers() -> list[int]:
    with alone("numbers"):
        time.sleep(0.02)
        return list(range(10))


@step
def square(x: int) -> bytes:
    with alone(f"square-{x}"):
        time.sleep(0.01 * (x % 5))
        return bytes([x * x]) * 5000


@step
def shrink(data: bytes) -> int:
    with alone(f"shrink-{data[0]}"):
        time.sleep(0.01 * (data[0] % 4))
        return sum(data) // 5000


@step
def total(values: list[int]) -> int:
    with alone("total"):
        time.sleep(0.02)
        return sum(values)


@pipeline
def squares():
    return total(shrink.map(data=square.map(x=numbers())))
'''
EXPECTED = sum(x * x for x in range(10))


def seeds(few: int, many: int) -> range:
    """The seeds of today: many where everything is to be tried, as in CI."""
    first = int(os.environ.get("UPSHIFT_TEST_SEED") or 1000 * datetime.date.today().toordinal())
    return range(first, first + (many if os.environ.get("UPSHIFT_TEST_NO_SKIPS") else few))


def children(pid: int) -> list[int]:
    """The children of a process."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def victims(engine: int) -> dict[str, list[int]]:
    """The processes of a run, by what they are."""
    servers = children(engine)
    zygotes = [zygote for server in servers for zygote in children(server)]
    return {
        "engine": [engine],
        "fork server": servers,
        "zygote": zygotes,
        "step": [step for zygote in zygotes for step in children(zygote)],
    }


def kill(pid: int) -> bool:
    """SIGKILL; False if there was nobody."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Started:
    """An ``upshift`` command that runs, with what it prints, as ``subprocess.Popen`` gives it."""

    def __init__(self, interpreter: Interpreter, folder: Path, arguments: Sequence[str]) -> None:
        reading, writing = os.pipe()
        with open(os.devnull, "rb") as nothing, open(writing, "wb") as end:
            streams = (nothing.fileno(), end.fileno(), end.fileno())
            environment = {**as_users_have_it(os.environ), "WITNESS": str(folder / "witness")}
            self._command = interpreter.start(arguments, folder, environment, streams)
        self.pid = self._command.pid
        self.returncode: int | None = None
        self._output = ""
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as output:
            self._output = output.read()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All of its output, once it has ended. Raises ``subprocess.TimeoutExpired``."""
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired("upshift", timeout or 0)
        if self.returncode is None:
            self.returncode = self._command.wait()
        return self._output, None


def start(prepared: Prepared, folder: Path, *arguments: str) -> Started:
    """An ``upshift`` command in the project, with a witness folder, in a fork of an interpreter."""
    interpreter = prepared.interpreter(as_users_have_it(os.environ))
    assert interpreter is not None
    return Started(interpreter, folder, arguments)
