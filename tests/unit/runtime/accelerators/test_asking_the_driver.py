"""The driver is asked in a process of its own, which nobody waits for without a limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from upshift.runtime.accelerators import evidence
from upshift.runtime.accelerators.evidence import DriverQuestion

STUCK = """
import os
if os.fork() == 0:
    os.close(os.open({fifo!r}, os.O_RDONLY))
    open({fifo!r}).read()
    os._exit(0)
print("said", flush=True)
os.wait()
"""


def test_an_answer_that_is_not_wanted_any_more_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    monkeypatch.setattr(evidence, "_program", lambda: STUCK.format(fifo=fifo))
    monkeypatch.setattr(evidence, "GONE", 0.01)
    question = DriverQuestion()
    with open(fifo, "w"):  # what holds the pipe of the answer is there, and stays until it can read this
        question.close()
    with open(fifo, "w"):
        pass
    assert question._process.wait() is not None
