"""A process is asked where it is, and writes it, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from upshift.runtime.launch import stacks
from upshift.runtime.launch.stacks import answer

LISTENS = """
import os, signal, threading
from upshift.runtime.launch import stacks
stacks.listen(1)
def waits():
    threading.Event().wait()
threading.Thread(target=waits, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(2, b"ready")
while True:
    signal.sigwait([signal.SIGUSR1])
"""


def test_a_process_that_listens_writes_the_stacks_of_all_threads() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            assert child.stderr.read(5) == b"ready"
            for _ in range(2):  # it goes on, and can be asked again
                text = ""
                while "in <module>" not in text:
                    # faulthandler answers once at a time: it may still be at the end of the last answer
                    assert stacks.ask(child.pid)
                    while select.select([child.stdout], [], [], 1)[0] and "in <module>" not in text:
                        text += os.read(child.stdout.fileno(), 1 << 16).decode()
                found = answer(0, text, project=None, relative_to=None)
                assert found is not None
                assert found.stack.text.count("most recent call last") == 2
                assert "in waits" in found.stack.text
            assert child.poll() is None
        finally:
            child.kill()


def test_a_process_that_does_not_listen_is_left_alone() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert not stacks.ask(child.pid)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait() == 0


def test_a_child_of_one_that_listens_does_not() -> None:
    reader, writer = os.pipe()
    stacks.listen(writer)
    pid = os.fork()
    if pid == 0:
        os._exit(1 if stacks._listens(os.getpid()) else 0)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert stacks._listens(os.getpid())
    finally:
        import faulthandler

        faulthandler.unregister(stacks.ASK)
        os.close(reader)
        os.close(writer)
    assert signal.getsignal(stacks.ASK) in (signal.SIG_DFL, None)


def test_who_is_gone_is_not_asked() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not stacks.ask(child.pid)
