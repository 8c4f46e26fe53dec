"""A device belongs to one task at a time, whoever asks, and comes back when the last process has died."""

from __future__ import annotations

import fcntl
import io
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import BackendError
from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators import locks
from upshift.runtime.accelerators.files import LOCKS

ONE = Device(vendor="nvidia", uuid="GPU-1", index=0)
TWO = Device(vendor="nvidia", uuid="GPU-2", index=1)
SLICE = Device(vendor="nvidia", uuid="MIG-1", partition="1g.10gb", parent="GPU-1")
OTHER_SLICE = Device(vendor="nvidia", uuid="MIG-2", partition="1g.10gb", parent="GPU-1")
ROUNDS = 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    return tmp_path / "locks"


def make(device: Device) -> None:
    """Its lock is there, and nobody has it."""
    held = locks.hold([device])
    assert held is not None
    held.give_back()


def test_a_device_is_held_by_one_at_a_time() -> None:
    held = locks.hold([ONE])
    assert held is not None
    assert not locks.free(ONE)
    assert locks.hold([TWO, ONE]) is None
    assert locks.free(TWO)  # all of them, or none
    held.give_back()
    assert locks.free(ONE)
    held.give_back()  # again: nothing happens


def test_a_device_and_its_slices_exclude_each_other() -> None:
    slices = [locks.hold([SLICE]), locks.hold([OTHER_SLICE])]
    assert None not in slices
    assert locks.hold([SLICE]) is None
    assert locks.hold([ONE]) is None
    assert not locks.free(ONE)
    assert not locks.free(SLICE)
    for held in slices:
        assert held is not None
        held.give_back()
    whole = locks.hold([ONE])
    assert whole is not None
    assert locks.hold([SLICE]) is None
    assert not locks.free(SLICE)
    whole.give_back()
    assert locks.free(SLICE)
    assert locks.free(ONE)


@pytest.mark.parametrize("device", [ONE, SLICE], ids=["whole", "slice"])
def test_looking_at_a_device_does_not_take_it_from_others_who_look(device: Device) -> None:
    make(device)
    looks = [os.open(file, os.O_RDONLY) for file in locks.files(device)]
    for look in looks:
        fcntl.flock(look, fcntl.LOCK_SH)  # as another engine does, at this moment
    assert locks.free(device)
    for look in looks:
        os.close(look)


def test_who_looks_leaves_nothing_behind(folder: Path) -> None:
    assert locks.free(ONE)
    assert not folder.exists()
    make(ONE)
    (folder / ".GPU-2-7").touch()  # another process is about to make a lock
    vanishing = os.listdir(folder)
    (folder / ".GPU-2-7").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: [*vanishing, "GPU-3"])
        assert not locks.any_held()
    assert os.listdir(folder) == ["GPU-1"]


def test_what_cleans_up_old_files_stays_away_from_devices_that_are_held(folder: Path) -> None:
    held = locks.hold([ONE])
    assert held is not None
    cleaner = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # what systemd-tmpfiles asks, before it looks into a folder
        fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.give_back()
    fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert locks.hold([ONE]) is None  # it is at work
    assert locks.free(ONE)
    os.close(cleaner)
    make(ONE)


def test_a_step_keeps_cleaners_away_when_its_supervisor_was_killed(folder: Path) -> None:
    held = locks.hold([ONE])
    assert held is not None
    kept = [os.dup(descriptor) for descriptor in held.descriptors]
    held.give_back()
    cleaner = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in (*kept, cleaner):
        os.close(descriptor)


def test_a_folder_that_is_replaced_meanwhile_is_not_the_one_that_keeps_cleaners_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(ONE)
    opened = os.open

    def replaced(path: Any, *rest: Any) -> int:
        if path == folder / "GPU-1" and not (folder.parent / "old").exists():
            folder.rename(folder.parent / "old")
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", replaced)
    assert locks.hold([ONE]) is None
    make(ONE)


def test_two_containers_with_processes_of_the_same_number_make_the_same_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([b"1111", b"2222", b"3333"])
    monkeypatch.setattr(os, "urandom", lambda size: next(numbers))
    folder.with_name(f".locks-{os.getpid()}-{b'1111'.hex()}").mkdir()  # the other one is about to make it
    make(TWO)
    for name in (f".GPU-1-{os.getpid()}", f".GPU-1-{os.getpid()}-{b'4444'.hex()}"):
        (folder / name).touch()
    numbers = iter([b"4444", b"5555"])
    make(ONE)


def test_it_is_known_which_process_took_a_device() -> None:
    assert locks.holder(ONE) is None
    held = locks.hold([ONE])
    assert locks.holder(ONE) == os.getpid()
    assert held is not None
    held.give_back()
    assert locks.holder(ONE) is None


def test_a_lock_that_the_kernel_skips_is_found_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    held = locks.hold([ONE])
    lists = iter([io.StringIO("1: FLOCK  ADVISORY  WRITE 1 fd:01:0 0 EOF\n")])

    def listed(file: str, **how: Any) -> Any:
        return next(lists, None) or open(file, **how)

    monkeypatch.setattr(locks, "open", listed, raising=False)
    assert locks.holder(ONE) == os.getpid()
    assert next(lists, None) is None
    assert held is not None
    held.give_back()


def test_whether_anybody_has_any_device_is_known_without_knowing_the_devices() -> None:
    assert not locks.any_held()
    held = locks.hold([SLICE])
    assert locks.any_held()
    assert held is not None
    held.give_back()
    assert not locks.any_held()


def test_a_run_within_a_step_hands_out_what_the_step_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = locks.hold([ONE])
    assert outer is not None
    monkeypatch.setenv(locks.HELD, outer.names)
    inner = locks.hold([ONE])
    assert inner is not None
    assert locks.hold([ONE]) is None
    assert locks.free(TWO)
    monkeypatch.setenv(locks.HELD, inner.names)
    innermost = locks.hold([ONE])
    assert innermost is not None
    assert len({outer.names, inner.names, innermost.names}) == 3
    for held in (innermost, inner, outer):
        held.give_back()


def test_what_a_dead_supervisor_has_left_is_found_by_its_lock_or_its_mark() -> None:
    ours, theirs = socket.socketpair()
    code = """
import os, signal, socket, subprocess, sys
from upshift.runtime import marks
from upshift.runtime.accelerators import locks
from upshift.model.spec.hardware import Device
held = locks.hold([Device(vendor="nvidia", uuid="GPU-1", index=0)])
end, mark = int(sys.argv[1]), marks.make("server")
sleeper = [sys.executable, "-c", "import os, sys; os.read(int(sys.argv[1]), 1)", str(end)]
quiet = {"stdout": subprocess.DEVNULL}
kept = subprocess.Popen(sleeper, pass_fds=[end, mark, *held.descriptors], **quiet)
variables = {marks.VARIABLE: "server", locks.HELD: held.names, locks.TAKER: marks.identity()}
marked = subprocess.Popen(sleeper, pass_fds=[end], env={**os.environ, **variables}, **quiet)
print(kept.pid, marked.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    taker = subprocess.run(
        [sys.executable, "-c", code, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.PIPE,
    )
    kept, marked = map(int, taker.stdout.split())
    ends = [os.pidfd_open(pid) for pid in (kept, marked)]
    assert not locks.free(ONE)
    assert locks.orphans(ONE) == [kept]
    assert locks.left_behind([TWO]) == []
    assert locks.left_behind([ONE, TWO]) == [marked]
    ours.close()
    theirs.close()
    for end in ends:
        select.select([end], [], [])
        os.close(end)
    assert locks.free(ONE)
    assert locks.orphans(ONE) == []


def test_what_a_living_supervisor_runs_is_left_alone_though_somebody_removed_the_locks(folder: Path) -> None:
    code = """
import os, subprocess, sys
from upshift.runtime import marks
from upshift.runtime.accelerators import locks
from upshift.model.spec.hardware import Device
held = locks.hold([Device(vendor="nvidia", uuid="GPU-1", index=0)])
variables = {marks.VARIABLE: "server", locks.HELD: held.names, locks.TAKER: marks.identity()}
wait = [sys.executable, "-c", "input()"]
child = subprocess.Popen(wait, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as taker:
        assert taker.stdin and taker.stdout
        marked = int(taker.stdout.readline())
        for file in folder.iterdir():
            file.unlink()
        again = locks.hold([ONE])
        assert again is not None
        assert locks.left_behind([ONE]) == []
        taker.kill()
        taker.wait()
        assert locks.left_behind([ONE]) == [marked]
        end = os.pidfd_open(marked)
        taker.stdin.close()
        select.select([end], [], [])
        os.close(end)
        again.give_back()


@pytest.mark.parametrize("how", ["link", "hard link"])
def test_who_owns_the_folder_of_locks_cannot_have_other_processes_ended(
    how: str, folder: Path, tmp_path: Path
) -> None:
    """A lock is replaced by a file that some other program has locked."""
    own = tmp_path / "own.lock"
    own.touch()
    code = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDONLY)
child = os.fork()
if child == 0:
    fcntl.flock(lock, fcntl.LOCK_EX)
    os._exit(0)
os.waitpid(child, 0)
print(flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdin and victim.stdout
        victim.stdout.readline()
        for file in locks.files(ONE):
            file.parent.mkdir(exist_ok=True)
            file.symlink_to(own) if how == "link" else os.link(own, file)
        assert locks.end_orphans(ONE) == []
        assert victim.poll() is None
        victim.stdin.close()
        assert victim.wait() == 0


def test_a_folder_of_locks_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o777)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "upshift-devices").symlink_to(tmp_path / "elsewhere")
    monkeypatch.delenv("UPSHIFT_DEVICE_LOCKS", raising=False)
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(tmp_path))
    with pytest.raises(BackendError, match="devices cannot be handed out: their locks cannot be used"):
        locks.hold([ONE])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_a_living_supervisor_has_is_no_orphan() -> None:
    held = locks.hold([ONE])
    assert held is not None
    assert locks.orphans(ONE) == []
    held.give_back()


def test_whoever_was_handed_the_descriptor_has_the_device_when_the_taker_is_killed() -> None:
    ours, theirs = socket.socketpair()
    code = """
import os, signal, socket, sys
from upshift.runtime.accelerators import locks
from upshift.model.spec.hardware import Device
held = locks.hold([Device(vendor="nvidia", uuid="GPU-1", index=0)])
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"."], held.descriptors)
os.kill(os.getpid(), signal.SIGKILL)
"""
    taker = subprocess.run([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    theirs.close()
    assert taker.returncode == -signal.SIGKILL
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 8)
    ours.close()
    assert not locks.free(ONE)
    for descriptor in descriptors:
        os.close(descriptor)
    assert locks.free(ONE)


def test_a_child_that_is_forked_for_another_purpose_does_not_keep_a_device() -> None:
    held = locks.hold([ONE])
    assert held is not None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        theirs.send(b".")
        theirs.recv(1)  # lives until the test says so
        os._exit(0)
    theirs.close()
    ours.recv(1)
    held.give_back()
    assert locks.free(ONE)
    ours.close()
    os.waitpid(child, 0)


def test_everybody_may_make_locks_and_nobody_remove_those_of_others(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        make(ONE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o644]


def test_another_user_takes_a_lock_that_this_one_has_made(folder: Path) -> None:
    make(ONE)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)  # what is above it is for this user alone
        os.environ[LOCKS] = "."
        if os.geteuid() == 0:  # else there is only one user to try it with
            os.setgid(65534)
            os.setuid(65534)
        held = locks.hold([ONE, TWO])
        os.write(writer, b"held" if held is not None else b"none")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 4) == b"held"
    os.close(reader)
    os.waitpid(child, 0)
    assert locks.free(ONE)


@pytest.mark.parametrize("planted", ["symbolic link", "fifo", "folder"])
def test_what_somebody_has_planted_in_the_place_of_a_lock_is_refused(
    folder: Path, tmp_path: Path, planted: str
) -> None:
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if planted == "symbolic link":
        (folder / "GPU-1").symlink_to(victim)
    elif planted == "fifo":
        os.mkfifo(folder / "GPU-1")
    else:
        (folder / "GPU-1").mkdir()
    with pytest.raises(BackendError) as refused:
        locks.hold([ONE])
    assert "devices cannot be handed out" in str(refused.value)
    assert str(folder / "GPU-1") in str(refused.value)
    assert LOCKS in str(refused.value)
    assert victim.read_text() == "precious"


def test_a_file_in_the_place_of_the_folder_is_told(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(BackendError, match="locks cannot be used"):
        locks.free(ONE)


def test_a_lock_that_was_removed_is_made_again(folder: Path) -> None:
    make(ONE)
    (folder / "GPU-1").unlink()
    held = locks.hold([ONE])
    assert held is not None
    assert not locks.free(ONE)
    held.give_back()


def test_names_of_devices_are_safe_for_files(folder: Path) -> None:
    odd = Device(vendor="nvidia", uuid="../MIG-GPU-1/7/0", index=0)
    nameless = Device(vendor="neuron", index=3)
    make(odd)
    make(nameless)
    assert sorted(file.name for file in folder.iterdir()) == ["_MIG-GPU-1_7_0", "neuron-3"]


RACER = f"""
import os, sys
from pathlib import Path
from upshift.runtime.accelerators import locks
from upshift.model.spec.hardware import Device

device = Device(vendor="nvidia", uuid="GPU-1", index=0)
owned = Path(sys.argv[1])
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
mine = theirs = 0
while mine < {ROUNDS}:
    held = locks.hold([device])
    if held is None:
        theirs += 1
        os.sched_yield()
        continue
    os.close(os.open(owned, os.O_CREAT | os.O_EXCL))  # fails if the other one has it as well
    owned.unlink()
    held.give_back()
    mine += 1
print(mine, theirs)
"""


def test_two_engines_race_for_one_device_a_thousand_times_and_never_both_have_it(
    tmp_path: Path,
) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "owned")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "UPSHIFT_HOME": str(tmp_path / f"home-{number}")},
        )
        for number in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    ends = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert [int(mine) for mine, _ in ends] == [ROUNDS, ROUNDS]
    assert sum(int(theirs) for _, theirs in ends) > 0  # they did get into each other's way
