"""The fork server and its zygotes: what cannot live is given up, and what has died leaves nothing open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: what is left of a zygote is killed among the children of the process.
PROGRAM = """
import os, select
from upshift.runtime.supervisor import zygote
from upshift.runtime.loop import Loop

started = 0

def main(connection):
    {main}

zygote.be_zygote = main
start = zygote.ZygotePool._start

def counted(self):
    global started
    started += 1
    start(self)

zygote.ZygotePool._start = counted
loop, told = Loop(), []
made = zygote.ZygotePool(loop, exited=print, changed=lambda: told.append(1), kin=lambda: ())
made.open("/nowhere", "process")
made.keep(2)
os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)  # it has left something unread
while made.unsafe is None:
    loop.turn()
made.keep(2)
made.close()
print(started, len(told), made.unsafe)
"""


@pytest.mark.parametrize(
    ("main", "printed"),
    [
        ("os._exit(0)", "4 4 the zygote dies as soon as it is started"),
        (
            """connection.send(b'{"event": "unsafe", "why": "no luck"}')
    while not select.select([connection], [], [])[0]: pass
    os._exit(0)""",
            "1 1 no luck",
        ),
    ],
)
def test_a_zygote_that_cannot_live_is_given_up(main: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(main=main)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == printed, done.stderr


WITH_SPARES = """
import os, sys
held = os.open("/dev/zero", os.O_RDONLY)  # as a module of the user's may hold it
from upshift.config import ResourceSettings
from upshift.model.spec import Code, Device, EntryPoint, Hardware, TaskId, TaskSpec
from upshift.runtime.supervisor import zygote
from upshift.runtime.confine import Confinement
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.zygote import ZygotePool

def be_step(self, order, seen, messages):
    print("upshift.runtime.step.sighting" in sys.modules, flush=True)

def opened(pid):
    folder = f"/proc/{pid}/fd"
    return {os.path.realpath(f"{folder}/{name}") for name in os.listdir(folder)}

def spare():
    made.keep(1)
    while not made.ready():
        loop.turn()

def spec(*gpus):
    return TaskSpec(
        task=TaskId(run="run", step="train"), attempt=1, pipeline="p",
        entry=EntryPoint(module="os", qualname="getpid"), code=Code(project="."), store="",
        granted=Hardware(gpus=gpus),
    )

zygote.Zygote._be_step = be_step
loop, ended = Loop(), []
made = ZygotePool(loop, exited=lambda *end: ended.append(end), changed=lambda: None, kin=lambda: ())
spare()
"""


def with_spares(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITH_SPARES + program + "\nmade.close()"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_further_zygote_keeps_nothing_open_that_was_opened_for_attempts(tmp_path: Path) -> None:
    program = f"""
file = os.open({str(tmp_path / "0.1.log")!r}, os.O_CREAT | os.O_RDWR)
before = made.pid
os.kill(before, 9)
while made.pid == before:
    loop.turn()
spare()
for pid in (made.pid, made._spares[0].born.pid):
    print({str(tmp_path / "0.1.log")!r} in opened(pid), "/dev/zero" in opened(pid))
"""
    assert with_spares(program) == "False True\n" * 2


def test_an_order_that_cannot_be_sent_leaves_nothing_open() -> None:
    program = """
ends = {os.path.realpath(f"/proc/self/fd/{end}") for end in made._spares[0].born[1:4]}
print(len(ends & opened(os.getpid())))
try:
    made(spec(), Confinement(), [held] * 300)  # more than the kernel sends at once
except OSError:
    print("refused")
while not ended:
    loop.turn()
print(len(ends & opened(os.getpid())))
"""
    assert with_spares(program) == "3\nrefused\n0\n"


def test_what_steps_with_devices_import_is_imported_once() -> None:
    program = """
for gpus in ((), (Device(),), (Device(),)):
    born = made(spec(*gpus), Confinement())
    with open(born.log) as log:
        print(log.read().strip())
    spare()
"""
    assert with_spares(program).split() == ["False", "False", "True"]
