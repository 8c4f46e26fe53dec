"""Who may work on a run, and whether anybody does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from upshift.errors import RunOwned
from upshift.runs.lease import Lease, held, here, lease_path

HOLD = (
    "import sys; from upshift.runs.lease import Lease; lease = Lease('r1'); print('held', flush=True); "
    "sys.stdin.read(); lease.release()"
)


def holder() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_lease_is_held_as_long_as_its_process_lives(upshift_home: Path) -> None:
    assert not held("r1")
    process = holder()
    assert held("r1")
    assert held("r1", here())
    process.kill()
    process.communicate()
    assert lease_path("r1").exists()
    assert not held("r1")
    assert not held("r1", here())


def test_a_lease_that_is_given_up_is_held_by_nobody(upshift_home: Path) -> None:
    process = holder()
    process.communicate(b"")
    assert not held("r1")


def test_asking_does_not_cost_the_lease(upshift_home: Path) -> None:
    with Lease("r1"):
        assert held("r1")
        asked = subprocess.run([sys.executable, "-c", HOLD], stdin=subprocess.DEVNULL, capture_output=True)
        assert b"another engine owns run r1" in asked.stderr
    process = holder()
    assert held("r1")
    with pytest.raises(RunOwned):
        Lease("r1")
    process.communicate(b"")


def test_an_engine_in_another_home_on_this_machine_is_asked_for_there(
    upshift_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder()
    engine = here()
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "another"))
    assert not held("r1")
    assert held("r1", engine)
    process.kill()
    process.communicate()
    assert not held("r1", engine)


def test_an_engine_on_another_machine_is_believed_to_live(upshift_home: Path) -> None:
    assert held("r1", {"host": "elsewhere", "home": "/nowhere"})
