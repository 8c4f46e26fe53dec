"""What processes use, added up over processes that come and go."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from upshift.runtime import proc
from upshift.runtime.supervisor import sampling
from upshift.runtime.supervisor.sampling import Network, Odometer, Processes, SharedMemory

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[Callable[[], None]], None]], int]]:
    """Forks a process that does something, and pauses whenever it likes until it is gone."""
    pids: list[int] = []

    def start(work: Callable[[Callable[[], None]], None]) -> int:
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:

                def ready() -> None:
                    os.write(tell, b".")
                    signal.pause()

                work(ready)
            finally:
                os._exit(1)
        pids.append(pid)
        os.close(tell)
        assert os.read(told, 1) == b"."
        os.close(told)
        return pid

    yield start
    for pid in pids:
        proc.kill(reversed(proc.tree(pid)))
        os.waitpid(pid, 0)


def spin(seconds: float) -> int:
    """Run a process that uses so much CPU time, to its end."""
    code = BURN.format(seconds=seconds)
    return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-S", "-c", code])


def test_cpu_time_of_children_that_have_ended_is_kept(child) -> None:  # type: ignore[no-untyped-def]
    def work(ready: Callable[[], None]) -> None:
        for _ in range(3):
            spin(0.2)
        ready()

    load = Processes(child(work), SharedMemory()).look()
    assert load is not None and 0.5 <= load.consumed.cpu_seconds < 5


def test_memory_that_processes_share_counts_once(child) -> None:  # type: ignore[no-untyped-def]
    def work(ready: Callable[[], None]) -> None:
        filled = bytearray(os.urandom(1024)) * 60_000
        for _ in range(3):
            if os.fork() == 0:
                signal.pause()
        assert filled
        ready()

    pid = child(work)
    each = [proc.unreclaimable(one) for one in proc.tree(pid)]
    assert len(each) == 4 and sum(each) > 240_000_000
    load = Processes(pid, SharedMemory()).look()
    assert load is not None and max(each) <= load.memory < sum(each) / 2


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "another program"])
def test_nobody_waits_for_the_kernel_to_walk_the_pages_of_large_steps(  # type: ignore[no-untyped-def]
    child, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    def work(ready: Callable[[], None]) -> None:
        filled = bytearray(os.urandom(1024)) * 60_000
        told, tell = os.pipe()
        for _ in range(3):
            if os.fork() == 0:
                if not forked:
                    program = (
                        f"x = b'x' * 60_000_000; import os, signal; os.write({tell}, b'.'); signal.pause()"
                    )
                    os.set_inheritable(tell, True)
                    os.execv(sys.executable, [sys.executable, "-c", program])
                os.write(tell, b".")
                signal.pause()
        for _ in range(3):
            assert os.read(told, 1) == b"."
        assert filled
        ready()

    monkeypatch.setattr(sampling, "LARGEST", 200_000_000)
    monkeypatch.setattr(proc, "proportional", lambda pids: pytest.fail("it was asked"))
    pid = child(work)
    each = [proc.unreclaimable(one) for one in proc.tree(pid)]
    load = Processes(pid, SharedMemory()).look()
    assert len(each) == 4 and sum(each) > 240_000_000
    assert load is not None and load.memory == pytest.approx(max(each) if forked else sum(each), rel=0.02)


def test_what_forked_processes_get_later_is_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LARGEST", 0)
    shared = SharedMemory()
    stats = {
        1: proc.Stat((1, 5), True, 0, 0, parent=0, image=77),
        2: proc.Stat((2, 6), True, 0, 0, parent=1, image=77),
        3: proc.Stat((3, 7), True, 0, 0, parent=1, image=88),
    }
    assert shared.together(1, stats, {1: 1000, 2: 900, 3: 50}) == 1050
    assert shared.together(1, stats, {1: 1000, 2: 1400, 3: 80}) == 1580
    assert shared.together(1, {1: stats[1], 2: stats[2]}, {1: 100, 2: 1000}) == 1000, "not less than one has"


def test_what_is_written_to_disk_is_counted(child, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def work(ready: Callable[[], None]) -> None:
        with open(tmp_path / "file", "wb") as file:
            file.write(bytes(5_000_000))
            os.fsync(file.fileno())
        ready()

    load = Processes(child(work), SharedMemory()).look()
    assert load is not None and load.disks_known
    written = load.consumed.written
    assert written == 0 or 5_000_000 <= written < 6_000_000, "to a file in memory nothing is written"


def test_a_process_that_has_ended_uses_nothing(child) -> None:  # type: ignore[no-untyped-def]
    pid = child(lambda ready: ready())
    watched = Processes(pid, SharedMemory())
    assert watched.look() is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert watched.look() is None


PARENT, CHILD, OTHER = (1, 100), (2, 200), (2, 999)


@pytest.mark.parametrize(
    ("looks", "total"),
    [
        pytest.param([{PARENT: (10, 0)}, {PARENT: (25, 0)}], 25, id="one process"),
        pytest.param([{PARENT: (1, 0), CHILD: (5, 0)}, {PARENT: (2, 9)}], 11, id="a child was waited for"),
        pytest.param([{PARENT: (1, 0), CHILD: (5, 0)}, {PARENT: (2, 0)}], 7, id="nobody waited for it"),
        pytest.param([{PARENT: (1, 0)}, {PARENT: (2, 40)}], 42, id="a child that was never seen"),
        pytest.param(
            [{PARENT: (1, 0), CHILD: (5, 0)}, {PARENT: (2, 5), OTHER: (3, 0)}],
            10,
            id="its id was given again",
        ),
        pytest.param(
            [{PARENT: (1, 0), CHILD: (5, 0)}, {PARENT: (1, 0), CHILD: (6, 2)}, {PARENT: (1, 8)}],
            9,
            id="a child of the child",
        ),
        pytest.param([{PARENT: (9, 0)}, {}, {}], 9, id="all of them are gone"),
    ],
)
def test_no_count_is_lost_or_taken_twice(looks, total: int) -> None:  # type: ignore[no-untyped-def]
    odometer = Odometer()
    for look in looks:
        odometer.advance(look)
    assert odometer.total == total


HEAD = (
    "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes …\n"
)
LINE = "{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def interfaces(folder: Path, *, real: tuple[str, ...] = (), **counts: tuple[int, int]) -> Network:
    text = HEAD + "".join(LINE.format(name=n, received=r, sent=s) for n, (r, s) in counts.items())
    (folder / "dev").write_text(text)
    for name in real:
        (folder / "net" / name / "device").mkdir(parents=True)
    return Network(str(folder / "dev"), str(folder / "net"))


def test_loopback_is_no_network(tmp_path: Path) -> None:
    assert interfaces(tmp_path, lo=(500, 500), eth0=(7, 9)).counts() == (7, 9)


def test_what_a_bridge_passes_on_is_not_counted_twice(tmp_path: Path) -> None:
    network = interfaces(tmp_path, real=("eno1", "eno2"), lo=(1, 1), eno1=(7, 9), eno2=(1, 2), docker0=(7, 9))
    assert network.counts() == (8, 11)


def test_where_nothing_tells_nothing_is_known(tmp_path: Path) -> None:
    assert Network(str(tmp_path / "none"), str(tmp_path)).counts() is None
    assert interfaces(tmp_path, lo=(1, 1)).counts() is None


def test_a_reading_may_be_a_little_old(tmp_path: Path) -> None:
    network = interfaces(tmp_path, eth0=(7, 9))
    assert network.counts() == (7, 9)
    interfaces(tmp_path, eth0=(8, 10))
    assert network.counts(age=3600) == (7, 9)
    assert network.counts() == (8, 10)


def test_a_process_is_waited_for_whatever_the_number_of_its_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    try:
        ours, theirs = os.pipe()
        high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500)
        assert high >= 1500 and not proc.readable(high, 0.0)
        os.write(theirs, b".")
        assert proc.readable(high, 60.0)
        for descriptor in (ours, theirs, high):
            os.close(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
