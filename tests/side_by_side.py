"""Runs all tests: each folder of them in a pytest session of its own, as many at a time as there are CPUs.

::

    python tests/side_by_side.py [ARGUMENT OF PYTEST…]

Lines of progress name their files, so they are shown as they come; what a session says at its end is kept
together. Exits with 0 if all tests passed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

LONGEST_FIRST = ("integration", "engines", "unit", "chaos")
"""So that what is left at the end is short; all other folders follow."""
NOT_HERE = ("gpu",)
HERE = Path(__file__).parent


def folders() -> list[str]:
    """Those with tests, in the order in which they begin."""
    found = {path.relative_to(HERE).parts[0] for path in HERE.glob("*/**/test_*.py")} - {*NOT_HERE}
    return sorted(found, key=lambda name: (*(name != first for first in LONGEST_FIRST), name))


async def session(folder: str, free: asyncio.Semaphore, stopped: asyncio.Event) -> str:
    """Run the tests of one folder; returns what became of them."""
    command = [sys.executable, "-m", "pytest", os.path.relpath(HERE / folder), *sys.argv[1:]]
    async with free:
        if stopped.is_set():
            return "not run"
        show(f"$ {shlex.join(['pytest', *command[3:]])}\n".encode())
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=1 << 24
        )
        assert process.stdout is not None
        end: list[bytes] = []
        async for line in process.stdout:
            if end or (line.startswith(b"=====") and b"test session starts" not in line):
                end.append(line)
            else:
                show(line)
        show(*end)
        return "passed" if await process.wait() == 0 else "failed"


def show(*lines: bytes) -> None:
    """Print what a session said, in one piece."""
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.flush()


async def main() -> int:
    stopped = asyncio.Event()  # by Ctrl-C, which the sessions get, too: they end by themselves
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    free = asyncio.Semaphore(len(os.sched_getaffinity(0)))
    names = folders()
    ends = await asyncio.gather(*(session(name, free, stopped) for name in names))
    for name, end in zip(names, ends, strict=True):
        show(f"tests/{name}: {end}\n".encode())
    return int({*ends} != {"passed"})


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
