"""Looking into processes from outside, with py-spy or what stands in for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from upshift.runtime.launch.stacks import answer
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import hang_detector


class Look:
    """What was found; turns a loop until that is all."""

    def __init__(self, program: str, pids: list[int]) -> None:
        self.texts: dict[int, str] = {}
        self.done = 0
        self.loop = Loop()
        self.spying = hang_detector.PySpy(
            self.loop, program, pids, found=self.texts.__setitem__, done=self._finished
        )

    def _finished(self) -> None:
        self.done += 1

    def finish(self) -> Look:
        while not self.done:
            self.loop.turn()
        return self


def stand_in(folder: Path, script: str) -> str:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_each_process_is_looked_into(tmp_path: Path) -> None:
    look = Look(stand_in(tmp_path, 'echo "stack of $5"'), [11, 12]).finish()
    assert look.texts == {11: "stack of 11\n", 12: "stack of 12\n"}
    assert look.done == 1


def test_where_it_may_not_look_nothing_is_found(tmp_path: Path) -> None:
    look = Look(stand_in(tmp_path, 'echo "Permission denied" >&2; exit 1'), [11, 12]).finish()
    assert (look.texts, look.done) == ({}, 1)


def test_what_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_detector, "DEADLINE", 0.0)
    look = Look(stand_in(tmp_path, "exec tail -f /dev/null"), [11]).finish()
    assert (look.texts, look.done) == ({}, 1)


def test_what_has_said_all_and_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    look = Look(stand_in(tmp_path, "echo stack; exec tail -f /dev/null > /dev/null"), [11]).finish()
    assert (look.texts, look.done) == ({11: "stack\n"}, 1)


def test_what_cannot_be_started_is_nothing(tmp_path: Path) -> None:
    look = Look(str(tmp_path / "missing"), [11, 12])
    assert (look.texts, look.done) == ({}, 1)


def test_who_does_not_want_to_know_any_more_is_not_told(tmp_path: Path) -> None:
    look = Look(stand_in(tmp_path, "exec tail -f /dev/null"), [11])
    look.spying.close()
    assert (look.texts, look.done) == ({}, 0)


def test_py_spy_sees_what_a_process_does_in_native_code() -> None:
    program = hang_detector.find()
    assert program is not None, "py-spy is in the dev group"
    code = (
        "import threading, os\nos.write(1, b'ready')\nthreading.Lock().acquire() and threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.read(5) == b"ready"
            texts = Look(program, [child.pid]).finish().texts
            if not texts:
                pytest.skip("the kernel does not let one process look into another here")
            found = answer(0, texts[child.pid], project=None, relative_to=None)
            assert found is not None and found.stack.waits == "a lock"
        finally:
            child.kill()
