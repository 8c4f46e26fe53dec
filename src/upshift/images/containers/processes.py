"""Commands of an engine that take long: begun, and ended so that nothing goes on behind them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from upshift.images.containers.failures import DOCKER, cannot_start

_TIME_TO_STOP = 15.0  # seconds for a command to tidy up


@contextlib.contextmanager
def started(
    command: Sequence[str], name: str, input: str | None, more: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output is read line by line; it is gone when the block is left."""
    with tempfile.TemporaryFile() as source:  # a file: nobody has to feed a pipe while another is read
        source.write((input or "").encode())
        source.seek(0)
        try:
            process = subprocess.Popen(
                (*(_ending_with_us() if name == DOCKER and shutil.which(command[0]) else ()), *command),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(more or {})},
            )
        except OSError as error:
            raise cannot_start(command[0], error) from None
    with process:
        yield process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a command that has to tidy up: nothing of a build that was given up is to go on, or to be left."""
    if not _end_instruction(process.pid):
        process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_TIME_TO_STOP)  # it would die of a closed pipe
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@functools.cache
def _ending_with_us() -> tuple[str, ...]:
    """What starts a command so that it is told to end when this thread has ended, however that came.

    A program, since nothing can be done safely between fork and exec where there are threads. Not for Podman:
    what an instruction runs outlives ``podman build``, which tidies up only where it comes to its own end.
    """
    program = shutil.which("setpriv")
    if program is None or os.path.basename(os.path.realpath(program)) != "setpriv":
        return ()  # busybox has one that cannot
    return (program, "--pdeathsig", "TERM", "--")


def _end_instruction(pid: int) -> bool:
    """Kill what an instruction of ``podman build`` runs; it would outlive that. So it fails and tidies up."""
    import psutil

    ended = False
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.cmdline()[:1] == ["buildah-oci-runtime"]:
                    for first in child.children():
                        first.kill()
                        ended = True
    return ended
