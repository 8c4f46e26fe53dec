"""A zygote that cannot live is given up, so that tasks start without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: what is left of a zygote is killed among the children of the process.
PROGRAM = """
import os
from upshift.worker import nursery
from upshift.worker.loop import Loop

started = 0

def main(connection):
    {main}

nursery.zygote.main = main
start = nursery.Nursery._start

def counted(self):
    global started
    started += 1
    start(self)

nursery.Nursery._start = counted
loop, told = Loop(), []
made = nursery.Nursery(loop, exited=print, changed=lambda: told.append(1), kin=lambda: ())
made.open("/nowhere", "process")
made.keep(2)
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
            """connection.send(b'{"event": "unsafe", "why": "no luck"}'); os._exit(0)""",
            "1 1 no luck",
        ),
    ],
)
def test_a_zygote_that_cannot_live_is_given_up(main: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(main=main)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == printed, done.stderr
