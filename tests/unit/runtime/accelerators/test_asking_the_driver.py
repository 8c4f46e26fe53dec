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
    open({there!r}, "w").close()
    open({leave!r}).read()
    os._exit(0)
print("said", flush=True)
os.wait()
"""
"""A process that has the pipe of the answer says that it is there, and stays until it may leave."""


def test_an_answer_that_is_not_wanted_any_more_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, leave = tmp_path / "there", tmp_path / "leave"
    os.mkfifo(there), os.mkfifo(leave)
    monkeypatch.setattr(evidence, "_program", lambda: STUCK.format(there=str(there), leave=str(leave)))
    monkeypatch.setattr(evidence, "GONE", 0.01)
    question = DriverQuestion()
    there.read_text()
    question.close()
    leave.write_text("")
    assert question._process.wait() is not None
