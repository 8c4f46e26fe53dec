"""Devices are handed out for real: one task each, waited for, given back however the task ends."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import nvml
import trees
import upshift
from nvml import FakeNvml, Gpu, Instance
from project import UPSHIFT, Project
from upshift.model.spec import Device, TaskId
from upshift.runtime.accelerators import locks
from upshift.runtime.accelerators.files import LOCKS
from upshift.runtime.storage.store import open_store

L4 = {"model": "NVIDIA L4", "memory": 24 << 30, "capability": "8.9"}
EXCLUSIVE = """
import os
from pathlib import Path

@step(settings={{"resources": ResourceSettings(gpu_count={gpus})}}, cache=False)
def train(i: int) -> str:
    mine = os.environ["CUDA_VISIBLE_DEVICES"]
    for gpu in mine.split(","):
        os.close(os.open(Path({folder!r}) / gpu, os.O_CREAT | os.O_EXCL))   # fails if another task has it
    for gpu in mine.split(","):
        os.unlink(Path({folder!r}) / gpu)
    return mine

@pipeline
def example():
    return train.map(i=list(range({tasks})))
"""
HOLDING = """
import os, signal

@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def hold() -> int:
    with open("told", "w") as told:
        told.write(f"{os.getpid()} {os.getppid()}")
    open("go").read()
    return 1

@pipeline
def example():
    return hold()
"""
LOOK = """
import os

@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def one() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]

@pipeline
def example():
    return one()
"""
NOT_ASKING = """
import os

@step(settings={"resources": ResourceSettings(gpu_count=0)}, cache=False)
def none() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "VISIBLE" in name}

@step(cache=False)
def unset() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "everything")

@pipeline
def example():
    return none(), unset()
"""

Machine = Callable[..., FakeNvml]


@pytest.fixture
def machine(fake_nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with NVIDIA GPUs, for this test and all that it starts."""

    def make(gpus: int | Sequence[Gpu] = 1, **options: Any) -> FakeNvml:
        made = fake_nvml([Gpu(**L4) for _ in range(gpus)] if isinstance(gpus, int) else gpus, **options)
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        return made

    return make


class Holding:
    """A run in a project of its own, with a home of its own, whose step has a GPU until it may go on."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder / "project", folder / "home")
        self.project.write(HOLDING)
        told = self.project.fifo("told")
        self.go = self.project.fifo("go")
        self.engine = self.project.start("run", "pipeline.py")
        self.step, self.zygote = map(int, told.read_text().split())
        self.server = _parent(self.zygote)

    def release(self) -> None:
        """Let the step return, and wait for the end of the run."""
        self.go.write_text("")
        _, err = self.engine.communicate(timeout=60)
        assert self.engine.returncode == 0, err


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[[], Holding]]:
    """Starts a run that holds a GPU."""
    started: list[Holding] = []

    def start() -> Holding:
        started.append(Holding(tmp_path / f"other-{len(started)}"))
        return started[-1]

    yield start
    for holding in started:
        holding.engine.kill()
        holding.engine.communicate()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _gone(pid: int) -> None:
    """Wait until a process that is no child of this one has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 30)[0], f"process {pid} is still there"
    os.close(descriptor)


def _until(stream: Any, words: str) -> str:
    """The first line with these words."""
    for line in stream:
        if words in line:
            return str(line)
    raise AssertionError(f"nothing said {words!r}")


# -- what is granted ------------------------------------------------------------------------------


def test_a_step_sees_the_device_that_it_was_granted_and_the_record_names_it(
    project: Project, machine: Machine
) -> None:
    made = machine(2)
    project.run(LOOK)
    uuid = upshift.get_run("latest").output
    assert uuid in made.uuids
    (granted,) = project.attempt("one")["granted"]["gpus"]
    assert granted["uuid"] == uuid
    assert granted["index"] == made.uuids.index(uuid)
    assert (granted["model"], granted["memory"], granted["compute_capability"]) == (
        "NVIDIA L4",
        24 << 30,
        "8.9",
    )
    assert "1 × NVIDIA L4" in project.upshift("show", "latest").out


def test_no_gpu_is_none_of_any_vendor_and_not_asking_leaves_everything(
    project: Project, machine: Machine
) -> None:
    machine(2)
    project.run(NOT_ASKING)
    none, unset = upshift.get_run("latest").output
    assert none["CUDA_VISIBLE_DEVICES"] == ""
    assert none["ROCR_VISIBLE_DEVICES"] == "-1"
    assert unset == "everything"


def test_who_does_not_ask_sees_what_no_other_step_has(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    made = machine(2)
    holding = other()
    project.run(NOT_ASKING)
    _, unset = upshift.get_run("latest").output
    assert unset == made.uuids[1]
    holding.release()


def test_tasks_of_one_run_never_share_a_device(project: Project, machine: Machine, tmp_path: Path) -> None:
    made = machine(2)
    project.run(EXCLUSIVE.format(gpus=1, tasks=8, folder=str(tmp_path)))
    assert set(upshift.get_run("latest").output) == set(made.uuids)


def test_several_devices_are_neighbours_on_nvlink(project: Project, machine: Machine, tmp_path: Path) -> None:
    made = machine([Gpu(**L4), Gpu(**L4, links=[2]), Gpu(**L4, links=[1])])
    project.run(EXCLUSIVE.format(gpus=2, tasks=1, folder=str(tmp_path)))
    assert upshift.get_run("latest").output == [",".join(made.uuids[1:])]


def test_the_first_alternative_that_this_machine_has(project: Project, machine: Machine) -> None:
    machine([Gpu(**L4), Gpu(model="NVIDIA A100-SXM4-80GB")])
    code = LOOK.replace("ResourceSettings(gpu_count=1)", 'ResourceSettings(accelerator=["H100:1", "L4:1"])')
    outcome = project.run(code, "--strict")
    assert "gets" not in outcome.err
    assert project.attempt("one")["granted"]["gpus"][0]["model"] == "NVIDIA L4"


def test_tasks_that_want_different_kinds_run_at_once(project: Project, machine: Machine) -> None:
    machine([Gpu(**L4), Gpu(model="NVIDIA A100-SXM4-80GB")])
    project.fifo("meet")
    code = """
@step(settings={"resources": ResourceSettings(accelerator="L4", cpu_count=0.5)})
def small() -> str:
    return open("meet").read()

@step(settings={"resources": ResourceSettings(accelerator="A100", cpu_count=0.5)})
def large() -> int:
    return open("meet", "w").write("met")

@pipeline
def example():
    return small(), large()
"""
    project.run(code)
    assert upshift.get_run("latest").output == ("met", 3)


def test_mig_instances_are_handed_out_one_by_one(project: Project, machine: Machine, tmp_path: Path) -> None:
    made = machine([Gpu(instances=[Instance(profile="1g.10gb"), Instance(profile="1g.10gb")])])
    code = EXCLUSIVE.format(gpus=1, tasks=6, folder=str(tmp_path))
    project.run(code.replace("gpu_count=1", 'accelerator="H100-80GB/1g.10gb"'), "--strict")
    slices = [instance.uuid for instance in made.gpus[0].instances or ()]
    assert set(upshift.get_run("latest").output) <= set(slices)
    granted = project.attempt("train")["granted"]["gpus"][0]
    assert (granted["partition"], granted["parent"]) == ("1g.10gb", made.uuids[0])


def test_a_whole_device_is_not_cut_while_a_slice_is_asked_for(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    machine([Gpu(instances=[Instance(), Instance()])])
    outcome = project.run(LOOK, "--strict", expect=2)
    assert "asked 1 × GPU, gets 1 × NVIDIA H100 80GB HBM3/1g.10gb" in outcome.err
    project.run(LOOK)
    assert upshift.get_run("latest").output.startswith("MIG-")


def test_other_vendors_devices_are_handed_out_too(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "machine"
    trees.amd(root, 2)
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(root))
    code = """
import os

@step(settings={"resources": ResourceSettings(accelerator="MI300X:1")}, cache=False)
def train(i: int) -> str:
    return os.environ["ROCR_VISIBLE_DEVICES"]

@pipeline
def example():
    return train.map(i=[1, 2])
"""
    project.run(code, "--strict")
    granted = [task["attempts"][0]["granted"]["gpus"][0] for task in project.tasks("train")]
    assert [device["model"] for device in granted] == ["AMD Instinct MI300X OAM"] * 2
    assert upshift.get_run("latest").output == [device["uuid"] for device in granted]


# -- what there is not ----------------------------------------------------------------------------


def test_what_is_missing_is_said_in_a_line_and_refused_where_that_is_strict(
    project: Project, machine: Machine
) -> None:
    machine(2)
    code = LOOK.replace("gpu_count=1", 'accelerator="H100:8"')
    outcome = project.run(code)
    assert "one: asked 8 × H100, gets 2 × NVIDIA L4: this machine has 2 × NVIDIA L4" in outcome.err
    assert len(project.attempt("one")["granted"]["gpus"]) == 2
    refused = project.upshift("run", "pipeline.py", "--strict", expect=2)
    assert "asked 8 × H100, gets 2 × NVIDIA L4" in refused.err
    assert "Request less" in refused.err


def test_a_library_that_crashes_is_no_reason_not_to_run(project: Project, machine: Machine) -> None:
    machine(1, crash="nvmlInitWithFlags")
    outcome = project.run(LOOK)
    assert "asked 1 × GPU, gets none" in outcome.err
    assert "SIGSEGV" in outcome.err
    assert upshift.get_run("latest").output == ""


def test_a_library_that_crashes_later_does_not_keep_a_task_from_its_device(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    made = machine(1)
    project.run(LOOK)
    made.crash = "nvmlDeviceGetComputeRunningProcesses_v3"
    made.write()
    outcome = project.upshift("run", "pipeline.py", expect=None)
    assert outcome.code == 0, outcome.text


# -- waiting --------------------------------------------------------------------------------------


def test_who_waits_is_told_why_and_others_are_not_held_up(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    machine(1)
    holding = other()
    ran = project.fifo("ran")
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=1, cpu_count=CPUS)}, cache=False)
def train() -> int:
    return 1

@step(settings={"resources": ResourceSettings(cpu_count=CPUS)}, cache=False)
def report() -> int:
    return open("ran", "w").write("ran")

@pipeline
def example():
    return train(), report()
"""
    project.write(code.replace("CPUS", str(len(os.sched_getaffinity(0)))))
    waiting = project.start("run", "pipeline.py")
    assert waiting.stderr is not None
    line = _until(waiting.stderr, "waits for")
    assert line.startswith("train: waits for 1 × GPU: GPU 0 (NVIDIA L4) is held by another run (process ")
    assert ran.read_text() == "ran"  # though it needs all the CPUs that the one that waits would have
    holding.release()
    assert "train: completed" in _until(waiting.stderr, "train: completed")
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0


def test_who_has_waited_too_long_gives_up_and_says_for_what(project: Project, machine: Machine) -> None:
    machine(1)
    held = locks.hold([Device(vendor="nvidia", uuid="GPU-00000000-0000-4000-8000-000000000000")])
    assert held is not None
    (project.folder / "upshift.toml").write_text(
        '[targets.local]\nbackend = "local"\noptions = { device_wait = "0.5s" }\n'
    )
    outcome = project.run(LOOK, expect=1)
    held.give_back()
    assert "(hardware): after 0.5 s it still waits for 1 × GPU: GPU 0 (NVIDIA L4) is held by" in outcome.err
    assert f"process {os.getpid()}" in outcome.err
    assert "device_wait" in outcome.err
    attempt = project.attempt("one")
    assert (attempt["reason"], attempt["status"]) == ("hardware", "failed")
    assert "pipeline.py:" in attempt["error"]["where"]


def test_options_that_make_no_sense_are_refused(project: Project) -> None:
    for option, words in (
        ("device_wait = 'soon'", "device_wait = 'soon'"),
        ("busy_devices = 1", "busy_devices = 1"),
    ):
        (project.folder / "upshift.toml").write_text(
            f'[targets.local]\nbackend = "local"\noptions = {{ {option} }}\n'
        )
        assert words in project.run(LOOK, expect=2).err


def test_a_run_that_waits_can_be_stopped(project: Project, machine: Machine) -> None:
    machine(1)
    held = locks.hold([Device(vendor="nvidia", uuid="GPU-00000000-0000-4000-8000-000000000000")])
    assert held is not None
    project.write(LOOK)
    waiting = project.start("run", "pipeline.py")
    assert waiting.stderr is not None
    _until(waiting.stderr, "waits for")
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert "stopping: nothing runs; 1 task that waited for devices is not started" in err
    assert "press Ctrl-C again" not in err
    assert project.tasks("one")[0]["status"] == "cancelled"
    held.give_back()


def test_what_waits_when_its_engine_is_killed_is_asked_for_again_by_resume(
    project: Project, machine: Machine
) -> None:
    machine(1)
    held = locks.hold([Device(vendor="nvidia", uuid="GPU-00000000-0000-4000-8000-000000000000")])
    assert held is not None
    project.write(LOOK)
    waiting = project.start("run", "pipeline.py")
    assert waiting.stderr is not None
    _until(waiting.stderr, "waits for")
    waiting.kill()
    waiting.communicate(timeout=60)
    held.give_back()
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").status == "completed"


# -- lost devices ---------------------------------------------------------------------------------

LOSING = """
@step(cache=False)
def before() -> int:
    open("told", "w").close()
    return len(open("go").read())

@step(settings={"resources": ResourceSettings(gpu_count=2)})
def both(x: int) -> str:
    import os
    return os.environ["CUDA_VISIBLE_DEVICES"]

@step
def after(seen: str) -> str:
    return seen

@pipeline
def example():
    return after(both(before()))
"""


class Losing:
    """A run whose machine loses one of its two GPUs before the step that was promised both asks for them."""

    def __init__(self, project: Project, machine: FakeNvml, *arguments: str, wait: str | None = None) -> None:
        self.machine = machine
        if wait is not None:
            (project.folder / "upshift.toml").write_text(
                f'[targets.local]\nbackend = "local"\noptions = {{ device_wait = "{wait}" }}\n'
            )
        project.write(LOSING)
        told, go = (
            project.folder / name if (project.folder / name).exists() else project.fifo(name)
            for name in ("told", "go")
        )
        self.engine = project.start("run", "pipeline.py", *arguments)
        told.read_text()
        machine.gpus[0].error = nvml.GPU_IS_LOST
        machine.write()
        go.write_text("")

    def restore(self) -> None:
        self.machine.gpus[0].error = None
        self.machine.write()

    def end(self, code: int) -> str:
        """What it still says until it ends."""
        _, err = self.engine.communicate(timeout=60)
        assert self.engine.returncode == code, err
        return err


def _degraded(step: str) -> bool:
    """Whether the result of the latest run's step was made with less than was asked for."""
    run = upshift.get_run("latest")
    result = open_store(run.row.store).read_result(TaskId(run=run.id, step=step), 1)
    assert result is not None
    return result.degraded


def test_a_gpu_that_was_lost_and_comes_back_is_granted(project: Project, machine: Machine) -> None:
    made = machine(2)
    losing = Losing(project, made)
    lost = "both: waits for 2 × GPU: this machine has 1 × NVIDIA L4, 25.8 GB; GPU 0 is left out"
    _until(losing.engine.stderr, lost)  # the driver may be slow to answer first
    losing.restore()
    losing.end(0)
    assert upshift.get_run("latest").output == ",".join(made.uuids)
    assert not _degraded("both")


def test_what_is_left_of_lost_gpus_is_gone_on_with_and_strictly_not_used_again(
    project: Project, machine: Machine
) -> None:
    made = machine(2)
    losing = Losing(project, made, wait="0.5s")
    err = losing.end(0)
    assert "both: asked 2 × GPU, gets 1 × NVIDIA L4: this machine has 1 × NVIDIA L4" in err
    assert upshift.get_run("latest").output == made.uuids[1]
    assert [_degraded(step) for step in ("before", "both", "after")] == [False, True, True]
    assert "upshift: asked 2 × GPU, gets 1 × NVIDIA L4" in project.upshift("logs", "latest", "both").out
    losing.restore()
    again = Losing(project, made, "--strict", wait="1h")
    _until(again.engine.stderr, "waits for")
    again.restore()
    again.end(0)
    assert upshift.get_run("latest").output == ",".join(made.uuids)


def test_a_strict_step_fails_where_a_gpu_is_lost(project: Project, machine: Machine) -> None:
    err = Losing(project, machine(2), "--strict", wait="0.5s").end(1)
    assert "(hardware): asked 2 × GPU, and what is left is 1 × NVIDIA L4: this machine has" in err
    assert "--best-effort" in err
    assert project.attempt("both")["reason"] == "hardware"


# -- programs of others ---------------------------------------------------------------------------


def test_a_device_that_another_program_works_with_is_avoided_with_a_word(
    project: Project, machine: Machine
) -> None:
    made = machine([Gpu(**L4, processes={os.getpid(): 3 << 30}), Gpu(**L4)])
    project.run(LOOK)
    assert upshift.get_run("latest").output == made.uuids[1]
    log = project.upshift("logs", "latest", "one").out
    assert f"upshift: GPU 0 (NVIDIA L4) is in use by process {os.getpid()} (" in log
    assert "and avoided" in log


def test_a_device_of_another_program_is_waited_for_or_shared_if_one_says_so(
    project: Project, machine: Machine
) -> None:
    made = machine([Gpu(**L4, processes={os.getpid(): 3 << 30})])
    project.write(LOOK)
    waiting = project.start("run", "pipeline.py")
    assert waiting.stderr is not None
    line = _until(waiting.stderr, "waits for")
    assert f"GPU 0 (NVIDIA L4) is in use by process {os.getpid()} (" in line
    made.gpus[0].processes.clear()
    made.write()
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    made.gpus[0].processes[os.getpid()] = 3 << 30
    made.write()
    (project.folder / "upshift.toml").write_text(
        '[targets.local]\nbackend = "local"\noptions = { busy_devices = "use" }\n'
    )
    project.upshift("run", "pipeline.py")
    assert "this step works beside it" in project.upshift("logs", "latest", "one").out


def test_memory_that_no_visible_program_has_counts_as_use(project: Project, machine: Machine) -> None:
    made = machine([Gpu(**L4, used=20 << 30), Gpu(**L4)])
    project.run(LOOK)
    assert upshift.get_run("latest").output == made.uuids[1]
    assert "programs that cannot be seen from here" in project.upshift("logs", "latest", "one").out


# -- several engines, and their deaths ------------------------------------------------------------


def test_whole_runs_of_two_engines_race_for_one_device_and_never_both_have_it(
    machine: Machine, tmp_path: Path
) -> None:
    machine(1)
    owned = tmp_path / "owned"
    owned.mkdir()
    projects = [Project(tmp_path / f"project-{n}", tmp_path / f"home-{n}") for n in range(2)]
    for project in projects:
        project.write(EXCLUSIVE.format(gpus=1, tasks=10, folder=str(owned)))
    runs = [project.start("run", "pipeline.py") for project in projects]
    for run in runs:
        _, err = run.communicate(timeout=100)
        assert run.returncode == 0, err


def test_a_device_comes_back_when_its_step_is_killed(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    machine(1)
    holding = other()
    os.kill(holding.step, signal.SIGKILL)
    project.run(LOOK)
    holding.engine.communicate(timeout=60)
    assert holding.engine.returncode == 1


def test_a_device_comes_back_when_its_fork_server_is_killed(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    machine(1)
    holding = other()
    os.kill(holding.server, signal.SIGKILL)
    project.run(LOOK)
    _, err = holding.engine.communicate(timeout=60)
    assert "the fork server died" in err


def test_a_step_keeps_its_device_when_its_engine_is_killed_and_gives_it_back_at_its_end(
    project: Project, machine: Machine, other: Callable[[], Holding]
) -> None:
    machine(1)
    holding = other()
    holding.engine.kill()
    holding.engine.communicate(timeout=60)
    project.write(LOOK)
    waiting = project.start("run", "pipeline.py")
    assert waiting.stderr is not None
    assert "GPU 0 (NVIDIA L4) is held by another run" in _until(waiting.stderr, "waits for")
    holding.go.write_text("")
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    _gone(holding.server)


CHILDREN = """
import os, signal, subprocess, sys

def leave(how: str) -> int:
    told, tell = os.pipe()
    if how == "fork":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(tell, str(os.getpid()).encode())
                while True:
                    signal.pause()
            os._exit(0)
        os.wait()
    else:
        code = f"import os, signal; os.write({tell}, str(os.getpid()).encode()); signal.pause()"
        subprocess.Popen([sys.executable, "-c", code], pass_fds=[tell], start_new_session=True)
    return int(os.read(told, 20))

@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def train() -> list[int]:
    left = [leave("fork"), leave("exec")]
    AFTERWARDS
    return left

@step(settings={"resources": ResourceSettings(gpu_count=1)}, cache=False)
def after(left: list[int]) -> list[bool]:
    return [os.path.exists(f"/proc/{pid}") for pid in left]

@pipeline
def example():
    return after(train())
"""


def test_what_a_step_leaves_running_is_gone_before_the_next_one_gets_the_device(
    project: Project, machine: Machine
) -> None:
    machine(1)
    project.run(CHILDREN.replace("AFTERWARDS", ""))
    assert upshift.get_run("latest").output == [False, False]


def test_what_steps_of_a_killed_supervisor_have_left_on_a_device_is_ended_first(
    project: Project, machine: Machine, tmp_path: Path
) -> None:
    """Engine and fork server are killed, so nobody is left to tidy up but who wants the device next."""
    machine(1)
    dead = Project(tmp_path / "dead", tmp_path / "home-of-the-dead")
    told = dead.fifo("told")
    dead.write(
        CHILDREN.replace(
            "AFTERWARDS", 'open("told", "w").write(f"{left[0]} {left[1]} {os.getppid()}"); signal.pause()'
        )
    )
    engine = dead.start("run", "pipeline.py")
    *left, zygote = map(int, told.read_text().split())
    server = _parent(zygote)
    engine.kill()
    os.kill(server, signal.SIGKILL)
    engine.communicate(timeout=60)
    _gone(server)
    project.run(LOOK)
    for pid in left:
        _gone(pid)


def test_a_run_within_a_step_gets_the_devices_of_the_step(
    project: Project, machine: Machine, tmp_path: Path
) -> None:
    made = machine(1)
    project.write(LOOK, "inner.py")
    code = f"""
import os, subprocess

@step(settings={{"resources": ResourceSettings(gpu_count=1)}}, cache=False)
def outer() -> int:
    return subprocess.run([{UPSHIFT!r}, "run", "inner.py", "--strict"]).returncode

@pipeline
def example():
    return outer()
"""
    project.run(code)
    runs = upshift.list_runs()
    assert sorted(run.output if isinstance(run.output, str) else "" for run in runs) == ["", made.uuids[0]]


# -- in this process ------------------------------------------------------------------------------


def test_a_step_that_is_debugged_or_replayed_gets_its_device(project: Project, machine: Machine) -> None:
    made = machine(1)
    project.write(LOOK)
    project.upshift("run", "pipeline.py", "--debug", "one")
    assert upshift.get_run("latest").output == made.uuids[0]
    assert project.attempt("one")["granted"]["gpus"][0]["uuid"] == made.uuids[0]
    assert "with the output that was recorded" in project.upshift("replay", "latest", "one").err


def test_the_worker_command_hands_out_devices_too(project: Project, machine: Machine) -> None:
    made = machine(1)
    project.run(LOOK)
    store = open_store(str(project.home / "store"))
    task = TaskId(run=upshift.get_run("latest").id, step="one")
    spec = attrs.evolve(store.read_spec(store.spec_path(task, 1)), attempt=2)
    project.python("-m", "upshift.runtime", str(Path(store.address) / store.write_spec(spec)))
    result = store.read_result(task, 2)
    assert result is not None
    assert result.granted is not None
    assert [device.uuid for device in result.granted.gpus or ()] == made.uuids


def test_space_is_compared_with_what_there_is(project: Project) -> None:
    code = LOOK.replace("gpu_count=1", 'gpu_count=0, disk="2MB", shared_memory="2MB"')
    project.run(code, "--strict")
    granted = project.attempt("one")["granted"]
    assert (granted["disk"], granted["shared_memory"]) == (2_000_000, 2_000_000)
    refused = project.run(code.replace("2MB", "900TB"), "--strict", expect=2)
    assert f"are free in {project.home}" in refused.err
    assert "asked 900 TB of shared memory" in refused.err
    assert "/dev/shm is of" in refused.err


def test_a_folder_for_locks_that_cannot_be_used_is_told_and_nothing_runs_unlocked(
    project: Project, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(LOCKS, str(tmp_path / "file" / "locks"))
    outcome = project.run(LOOK, expect=1)
    assert "one: failed" in outcome.err
    assert "devices cannot be handed out: their locks cannot be used" in outcome.err
    assert "UPSHIFT_DEVICE_LOCKS" in outcome.err


def test_steps_that_cannot_be_forked_hold_their_devices_too(
    project: Project, machine: Machine, tmp_path: Path
) -> None:
    made = machine(1)
    threaded = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    owned = tmp_path / "owned"
    owned.mkdir()
    project.run(threaded + EXCLUSIVE.format(gpus=1, tasks=3, folder=str(owned)))
    assert upshift.get_run("latest").output == made.uuids * 3
