"""Who may work on a run, and whether anybody does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import LeaseLost, RunOwned, StoreError, StoreUnavailable
from upshift.runs import lease as leases_of_runs
from upshift.runs.bucket_lease import BucketLease
from upshift.runs.lease import EXPIRY, Lease, Time, ask_to_cancel, held, leases, owner, silent_for
from upshift.runtime.storage.objects.folder import FolderObjects

HOLD = (
    "import sys; from upshift.runs.lease import Lease; lease = Lease('r1', sys.argv[1]); "
    "print('held', flush=True); sys.stdin.read(); lease.release()"
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return str(tmp_path / "store")


def holder(store: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


class Observer(Time):
    """A clock that runs as fast as it is waited for; ``at`` some second something happens."""

    def __init__(self, at: float = 0.0, happens: Callable[[], object] = bool) -> None:
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now, happens
            now += seconds
            if now >= at:
                happens()
                happens = bool

        super().__init__(lambda: now, sleep)


def elsewhere(store: str, number: int = 1, **said: object) -> Path:
    """The record of an engine on another machine, whose locks are not seen from here."""
    path = Path(store, "leases", "r1", str(number))
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"pid": 7, "host": "node7", "boot": "b7", "machine": "m7", "since": "now", "locks": True, **said}
    path.write_text(json.dumps(about))
    return path


def test_a_lease_is_held_as_long_as_its_process_lives(store: str) -> None:
    assert not held("r1", store)
    process = holder(store)
    assert held("r1", store)
    with pytest.raises(RunOwned, match=f"process {process.pid} on"):
        Lease("r1", store)
    process.kill()
    process.communicate()
    assert not held("r1", store)
    assert leases(store) == ["r1"]
    with Lease("r1", store):
        assert os.listdir(f"{store}/leases/r1") == ["2"]
    assert leases(store) == []


def test_a_lease_that_is_given_up_is_held_by_nobody(store: str) -> None:
    process = holder(store)
    process.communicate(b"")
    assert not held("r1", store)
    assert leases(store) == []


def test_asking_does_not_cost_the_lease(store: str) -> None:
    with Lease("r1", store, engine={"socket": "/here"}):
        assert held("r1", store)
        asked = subprocess.run(
            [sys.executable, "-c", HOLD, store], stdin=subprocess.DEVNULL, capture_output=True
        )
        assert b"another engine owns run r1" in asked.stderr
    with Lease("r1", store, engine={"socket": "/here"}) as lease:
        assert owner("r1", store)["pid"] == os.getpid()
        lease.renew()


def test_an_engine_on_another_machine_that_gives_signs_of_life_keeps_its_run(store: str) -> None:
    record = elsewhere(store)
    said: list[str] = []
    alive = Observer(EXPIRY - 2, lambda: os.utime(record, (1, 1)))
    with pytest.raises(RunOwned, match="process 7 on node7"):
        Lease("r1", store, notice=said.append, time=alive)
    assert said == ["waiting up to 30 s to see whether the engine of run r1 on node7 is at work"]
    assert record.exists()


def test_an_engine_on_another_machine_without_a_sign_of_life_loses_its_run(store: str) -> None:
    elsewhere(store)
    assert held("r1", store)
    with Lease("r1", store, time=Observer()):
        assert os.listdir(f"{store}/leases/r1") == ["2"]


def test_an_engine_that_ends_while_it_is_watched_leaves_its_run_free(store: str) -> None:
    record = elsewhere(store)
    with Lease("r1", store, time=Observer(3, record.unlink)) as lease:
        lease.renew()


def test_an_engine_of_a_machine_that_was_started_anew_is_not_waited_for(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_of_runs, "machine_id", lambda: "m7")
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    elsewhere(store)
    assert not held("r1", store)


def test_where_a_file_system_has_no_locks_signs_of_life_count(store: str) -> None:
    elsewhere(store, boot=leases_of_runs.boot_id(), locks=False)
    assert held("r1", store)
    with Lease("r1", store, time=Observer()):
        pass


def test_after_some_minutes_nobody_has_to_watch(store: str) -> None:
    os.utime(elsewhere(store), (1, 1))
    assert not held("r1", store)


def test_it_is_known_for_how_long_an_engine_on_another_machine_has_not_been_heard_of(store: str) -> None:
    assert silent_for("r1", store) is None
    record = elsewhere(store)
    assert silent_for("r1", store) is None
    heard = time.time() - 45
    os.utime(record, (heard, heard))
    silent = silent_for("r1", store)
    assert silent is not None and silent >= 44
    assert held("r1", store)
    with Lease("r1", store, time=Observer()):
        assert silent_for("r1", store) is None


def test_of_two_that_take_over_at_once_one_has_the_run(store: str) -> None:
    elsewhere(store)
    first: list[Lease] = []

    def faster() -> None:
        first.append(Lease("r1", store, time=Observer()))

    with pytest.raises(RunOwned):
        Lease("r1", store, time=Observer(EXPIRY - 1, faster))
    (lease,) = first
    lease.renew()
    lease.release()


def test_who_was_taken_for_dead_finds_its_lease_lost_and_takes_nothing_away(store: str) -> None:
    lease = Lease("r1", store)
    lease.renew()
    successor = elsewhere(store, 2)
    with pytest.raises(LeaseLost, match="does not own run r1 any more"):
        lease.renew()
    lease.release()
    assert successor.exists()


def test_a_store_that_cannot_be_reached_for_long_costs_the_lease(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Observer()
    lease = Lease("r1", store, time=clock)

    def unreachable(path: str) -> list[str]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.listdir", unreachable)
        lease.renew()
        clock.sleep(EXPIRY + 1)
        with pytest.raises(LeaseLost, match="Input/output error"):
            lease.renew()
    lease.release()


def test_whoever_cannot_reach_the_engine_asks_through_the_lease(store: str) -> None:
    with Lease("r1", store) as lease:
        assert not lease.cancel_asked
        ask_to_cancel("r1", store)
        ask_to_cancel("r1", store)
        assert lease.cancel_asked
        assert not lease.cancel_asked
        ask_to_cancel("r1", store)
    assert leases(store) == []


def test_of_a_store_that_is_not_there_it_is_taken_that_its_engines_live(tmp_path: Path) -> None:
    assert held("r1", str(tmp_path / "unmounted"))


def test_a_lease_in_a_bucket_is_renewed_after_a_renewal_that_was_refused(tmp_path: Path) -> None:
    refused = [StoreError("others write leases/r1 all the time"), StoreUnavailable("the bucket is away")]
    objects = FolderObjects(tmp_path / "bucket")
    lease = BucketLease(objects=objects, run="r1", record={}, beat=0.01, expiry=30.0)
    lease.acquire(notice=print, owned=AssertionError, monotonic=time.monotonic, sleep=time.sleep)
    renewed = threading.Event()
    put = objects.put

    def once(*args: Any, **options: Any) -> Any:
        if refused:
            raise refused.pop()
        renewed.set()
        return put(*args, **options)

    objects.put = once  # type: ignore[method-assign]
    lease.start()
    assert renewed.wait(60) and lease.lost is None
    lease.release()
