"""What a cgroup, or one above it, allows counts, and not what the host has."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from upshift.runtime import confine, proc
from upshift.runtime.supervisor.node_runtime import HostMemory


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hierarchy of version 2, and this process two groups down."""
    (tmp_path / "mountinfo").write_text(f"30 23 0:26 / {tmp_path}/v2 rw,nosuid - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    (tmp_path / "v2/job/step").mkdir(parents=True)
    monkeypatch.setattr(confine, "MOUNTS", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(confine, "MEMBERSHIP", str(tmp_path / "cgroup"))
    return tmp_path / "v2"


def test_the_narrowest_quota_of_cpus_counts(groups: Path) -> None:
    assert confine.own_cpus() is None
    (groups / "job/cpu.max").write_text("150000 100000\n")
    (groups / "job/step/cpu.max").write_text("max 100000\n")
    assert confine.own_cpus() == 1.5
    (groups / "job/step/cpu.max").write_text("50000 100000\n")
    assert confine.own_cpus() == 0.5


def test_the_group_that_ran_out_of_memory_is_named_and_not_the_machine(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_kills = 7
    monkeypatch.setattr(proc, "kernel_kills", lambda: machine_kills)
    (groups / "job/memory.max").write_text("512000000\n")
    (groups / "job/memory.events").write_text("oom_kill 2\n")
    (groups / "job/step/memory.max").write_text("max\n")
    memory = HostMemory()
    assert memory.killed() is None
    (groups / "job/memory.events").write_text("oom_kill 3\n")
    machine_kills += 1  # of the whole machine, so it counts those of the groups as well
    assert memory.killed() == "the container or cgroup of this run, which may have 512 MB"
    assert memory.killed() is None
    machine_kills += 1
    assert str(memory.killed()).startswith("this machine, which has ")


def test_a_process_that_the_kernel_killed_elsewhere_on_the_machine_is_not_counted(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because another container was full."""
    machine_kills = 7
    monkeypatch.setattr(proc, "kernel_kills", lambda: machine_kills)
    (groups / "job/step/memory.events").write_text("low 0\noom 0\noom_kill 2\n")
    memory = HostMemory()
    machine_kills += 1
    assert memory.killed() is None
    machine_kills += 1
    (groups / "job/step/memory.events").write_text("low 0\noom 0\noom_kill 3\n")
    assert str(memory.killed()).startswith("this machine, which has ")


def test_a_kill_is_counted_in_any_group_up_to_the_one_that_is_limited(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "kernel_kills", lambda: 0)
    (groups / "memory.max").write_text("800000000\n")
    (groups / "job/memory.max").write_text("512000000\n")
    (groups / "job/memory.events").write_text("oom_kill 5\n")
    memory, own = HostMemory(), confine.own_group()
    assert own is not None and own.kills() == 0
    (groups / "job/step/memory.events").write_text("oom_kill 1\n")
    assert own.kills() == 1
    assert memory.killed() == "the container or cgroup of this run, which may have 512 MB"


def test_version_1_has_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(
        f"30 23 0:26 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"31 23 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    )
    (tmp_path / "cgroup").write_text("4:memory:/other\n3:cpu,cpuacct:/job\n")
    (tmp_path / "cpu/job").mkdir(parents=True)
    monkeypatch.setattr(confine, "MOUNTS", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(confine, "MEMBERSHIP", str(tmp_path / "cgroup"))
    (tmp_path / "cpu/job/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/job/cpu.cfs_period_us").write_text("100000\n")
    assert confine.own_cpus() is None
    (tmp_path / "cpu/job/cpu.cfs_quota_us").write_text("250000\n")
    assert confine.own_cpus() == 2.5


def test_groups_of_supervisors_that_were_killed_go(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = (
        f"upshift-{ended.pid}-1",
        f"upshift-{ended.pid}-2",
        f"upshift-{os.getpid()}-1",
        "upshift-x",
        "job",
    )
    for name in names:
        (tmp_path / name).mkdir()
    before = time.time() - confine.YOUNG - 1
    for name in names[:1] + names[2:]:
        os.utime(tmp_path / name, (before, before))
    confine._sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])


@pytest.mark.parametrize("text", ["", "max", "nonsense 100000", "100000 0", "1 2 3"])
def test_what_makes_no_sense_limits_nothing(groups: Path, text: str) -> None:
    (groups / "job/step/cpu.max").write_text(text)
    assert confine.own_cpus() is None


def test_what_is_killed_with_a_group_is_reaped_by_who_has_started_it(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    confine.GroupV2(tmp_path).remove()
    _, status = os.waitpid(sleeper.pid, os.WNOHANG)
    sleeper.returncode = os.waitstatus_to_exitcode(status)
    assert sleeper.returncode == -signal.SIGKILL
