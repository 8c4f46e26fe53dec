"""SIGTERM for a process that was forked a moment ago comes too early for everything, and is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from upshift.runtime.confine import Spawned, detach, forking
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.members import LocalMember


class Unheard:
    """A log that nothing is written to."""

    def feed(self, data: bytes) -> None:
        raise AssertionError(data)

    def close(self) -> None:
        """It is not open."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the group of its parent, as each is at first."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert os.getpgid(process.pid) == os.getpgid(0)
        yield process
        process.kill()


def member_of(pid: int) -> LocalMember:
    pipes = [os.pipe() for _ in range(3)]
    for _, writer in pipes:
        os.close(writer)
    born = Spawned(pid, *(reader for reader, _ in pipes), baseline=0)
    return LocalMember(born, None, loop=Loop(), log=Unheard(), told=lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_leads_no_group_yet_gets_the_signal(
    child: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    member = member_of(child.pid)
    member.signal(number)
    assert child.wait(timeout=60) == -number
    member.close()


def test_a_process_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    member = member_of(child.pid)
    member.signal(signal.SIGTERM)
    member.close()


def test_a_fork_does_not_lose_it_to_a_handler_of_its_parent() -> None:
    ready, told = os.pipe()
    on, go = os.pipe()
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as that of a supervisor
    try:
        parent = os.getpid()
        with forking():
            pid = os.fork()
            if pid == 0:
                try:
                    os.write(told, b"1")
                    os.read(on, 1)
                    detach(parent)
                finally:
                    os._exit(0)
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        os.write(go, b"1")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGTERM, before)
        for descriptor in (ready, told, on, go):
            os.close(descriptor)
