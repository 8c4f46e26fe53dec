"""``upshift.current.checkpoint``: what was preempted, failed or cancelled goes on where it was."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import upshift
from project import Project

# A training of six epochs, which saves after each, and notes what it did as ATTEMPT:EPOCH. In epoch 3 there
# is trouble, until there is a file `calm`.
TRAINING = """
import os, signal, subprocess, sys
from pathlib import Path
from upshift import current, run_with_torchrun

def where() -> int:
    latest = current.checkpoint.latest
    return 0 if latest is None else int((latest / f"epoch{current.rank}").read_text()) + 1

def save(epoch: int) -> None:
    with current.checkpoint.save() as folder:
        (folder / f"epoch{current.rank}").write_text(str(epoch))

def note(epoch: int) -> None:
    with open("seen.log", "a") as log:
        log.write(f"{current.attempt}:{epoch} ")

def wait_for(name: str) -> None:
    while (latest := current.checkpoint.latest) is None or latest.name != name:
        os.sched_yield()

def tell(what: object) -> None:
    with open("told", "w") as told:
        told.write(str(what))
"""


def training(trouble: str, *, options: str = "", body: str = "") -> str:
    """The pipeline, with this trouble."""
    return f"""{TRAINING}
def trouble(epoch: int) -> None:
    {trouble}

{body}
@step({options})
def train(epochs: int) -> int:
    for epoch in range(where(), epochs):
        if epoch == 3 and not Path("calm").exists():
            trouble(epoch)
        note(epoch)
        save(epoch)
    return epochs

@pipeline
def example(epochs: int = 6):
    return train(epochs)
"""


def seen(project: Project) -> str:
    return Path(project.folder, "seen.log").read_text().strip()


def checkpoints(project: Project) -> list[str]:
    """The folders of checkpoints that there are."""
    return sorted(path.name for path in (project.home / "store").glob("checkpoints/*/*/*/*") if path.is_dir())


WENT_ON = "1:0 1:1 1:2 2:3 2:4 2:5"
KILL = 'Path("calm").touch(); os.kill(os.getpid(), signal.SIGKILL)'


def test_a_step_that_was_killed_goes_on_where_it_was(project: Project) -> None:
    outcome = project.run(training(KILL, options="retries=1"))
    assert seen(project) == WENT_ON
    assert upshift.get_run("latest").output == 6
    assert "[train] upshift: train continues from checkpoint 1.3\n" in outcome.out
    assert checkpoints(project) == []
    assert (
        "train: attempt 2 went on from checkpoint 1.3 and completed\n"
        in project.upshift("show", "latest").out
    )
    project.upshift("report", "latest", "--output", "report.html")
    report = (project.folder / "report.html").read_text()
    assert "went on from checkpoint 1.3 · 3 checkpoints saved, the last of 1 B" in report
    first, second = (attempt["checkpoints"] for attempt in project.tasks("train")[0]["attempts"])
    assert first == {"resumed_from": None, "saved": 3, "newest": {"name": "1.3", "bytes": 1}}
    assert second == {"resumed_from": "1.3", "saved": 3, "newest": {"name": "2.3", "bytes": 1}}


@pytest.mark.processes  # when a fork of an interpreter began says nothing about its modules
def test_what_ran_out_of_retries_goes_on_when_it_is_resumed(project: Project) -> None:
    project.run(training('raise RuntimeError("no more")'), expect=1)
    assert checkpoints(project) == ["1.3"]
    assert "  kept:  checkpoint 1.3, 1 B\n" in project.upshift("show", "latest").out
    project.upshift("gc")
    assert checkpoints(project) == ["1.3"]
    Path(project.folder, "calm").touch()
    project.upshift("resume", "latest")
    assert seen(project) == WENT_ON
    assert checkpoints(project) == []


def test_another_run_begins_from_the_start(project: Project) -> None:
    project.run(training('raise RuntimeError("no more")'), expect=1)
    Path(project.folder, "calm").touch()
    project.upshift("run", "pipeline.py")
    assert seen(project) == "1:0 1:1 1:2 1:0 1:1 1:2 1:3 1:4 1:5"
    assert checkpoints(project) == ["1.3"]
    first = upshift.list_runs()[-1].id
    project.upshift("gc", "--run", first)
    assert checkpoints(project) == []


def test_one_of_other_code_is_not_gone_on_from(project: Project) -> None:
    project.run(training('raise RuntimeError("no more")'), expect=1)
    project.write(training("pass"))
    outcome = project.upshift("resume", "latest")
    assert seen(project) == "1:0 1:1 1:2 2:0 2:1 2:2 2:3 2:4 2:5"
    line = "checkpoint 1.3 is of other code, inputs or settings, and is not used; train begins from the start"
    assert line in outcome.out


def test_the_same_code_goes_on_where_it_was_though_the_file_has_changed(project: Project) -> None:
    code = training('if current.attempt == 1: raise RuntimeError("no more")')
    project.run(code, expect=1)
    project.write(code.replace("range(where(), epochs)", "range(epochs)"))
    project.upshift("resume", "latest", "--same-code")
    assert seen(project) == WENT_ON


def test_a_run_whose_engine_and_step_were_killed_goes_on(project: Project) -> None:
    project.write(training('Path("calm").touch(); tell(os.getpid()); signal.pause()'))
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    step = int(told.read_text())
    process.kill()
    process.communicate(timeout=30)
    os.kill(step, signal.SIGKILL)
    project.upshift("resume", "latest")
    assert seen(project) == WENT_ON
    assert [a["status"] for a in project.tasks("train")[0]["attempts"]] == ["failed", "completed"]


# SIGTERM, and the grace period

POLITE = """
def end_in_order(epoch: int) -> None:
    Path("calm").touch()
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert not current.stopping
    tell(os.getpid())
    while not current.stopping:
        sum(range(10_000))
    assert child.poll() is None   # as a data loader's worker, it was not told
    note(epoch)
    save(epoch)
    child.communicate(b"")
"""
IN_ORDER = "1:0 1:1 1:2 1:3 2:4 2:5"


def test_a_step_that_is_cancelled_saves_first(project: Project) -> None:
    project.write(training("end_in_order(epoch); sys.exit()", options="grace=25", body=POLITE))
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    told.read_text()
    project.upshift("cancel", "latest")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "1 task is being ended (up to 25 s)" in err
    assert project.attempt("train")["status"] == "cancelled"
    project.upshift("resume", "latest")
    assert seen(project) == IN_ORDER
    assert upshift.get_run("latest").output == 6


def test_a_step_that_takes_too_long_saves_first(project: Project) -> None:
    Path(project.folder, "told").touch()
    project.run(training("end_in_order(epoch); sys.exit()", options="timeout=2, retries=1", body=POLITE))
    assert seen(project) == IN_ORDER
    first = project.tasks("train")[0]["attempts"][0]
    assert first["reason"] == "timeout"
    assert first["error"]["where"].startswith("pipeline.py:")


def test_a_step_that_somebody_else_ends_was_stopped_from_outside(project: Project) -> None:
    options = 'retries=Retry(times=1, on="stopped-from-outside")'
    project.write(training("end_in_order(epoch); sys.exit()", options=options, body=POLITE))
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    os.kill(int(told.read_text()), signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert seen(project) == IN_ORDER
    assert project.tasks("train")[0]["attempts"][0]["reason"] == "stopped-from-outside"


def test_what_a_step_returns_that_was_told_to_end_is_no_result(project: Project) -> None:
    code = training("pass", body=POLITE).replace(
        "trouble(epoch)\n", 'end_in_order(epoch)\n            return "half of it"\n'
    )
    project.write(code)
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    told.read_text()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert project.show()["status"] == "cancelled"
    project.upshift("resume", "latest")
    assert seen(project) == IN_ORDER
    assert upshift.get_run("latest").output == 6


def test_sigterm_waits_for_the_end_of_a_checkpoint(project: Project) -> None:
    trouble = """
    Path("calm").touch()
    with current.checkpoint.save() as folder:
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1_000_000))
        (folder / "epoch0").write_text(str(epoch))
    note(99)   # which it does not come to
"""
    project.run(training(trouble, options='retries=Retry(times=1, on="stopped-from-outside")'))
    assert seen(project) == "1:0 1:1 1:2 2:4 2:5"
    first = project.tasks("train")[0]["attempts"][0]
    assert first["reason"] == "stopped-from-outside"
    assert "killed by SIGTERM" in first["error"]["message"]
    assert first["error"]["where"].startswith("pipeline.py:")


# Several processes

RANKS = (
    TRAINING
    + """
@run_with_torchrun(nproc_per_node=2)
@step(retries=1)
def train(epochs: int) -> list[int]:
    done = []
    for epoch in range(where(), epochs):
        if epoch == 3 and current.attempt == 1:
            wait_for("1.3")   # the other rank may be slower
            {trouble}
        note(epoch)
        save(epoch)
        done.append(epoch)
    return done

@pipeline
def example(epochs: int = 6):
    return train(epochs)
"""
)


def test_ranks_go_on_from_the_newest_one_that_all_have_saved(project: Project) -> None:
    trouble = """if current.rank == 0:
                save(epoch)   # which the other one does not: nothing of that counts
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)"""
    outcome = project.run(RANKS.replace("{trouble}", trouble))
    assert upshift.get_run("latest").output == [3, 4, 5]
    assert "[rank 0] upshift: train continues from checkpoint 1.3\n" in outcome.out
    assert outcome.out.count("continues from") == 1
    assert checkpoints(project) == []


def test_a_rank_that_saves_alone_saves_for_all(project: Project) -> None:
    trouble = """if current.rank == 0:
                signal.pause()
            raise RuntimeError("now")"""
    code = RANKS.replace("{trouble}", trouble).replace(
        "        save(epoch)\n        done",
        """\
        if current.rank == 0:
            with current.checkpoint.save(alone=True) as folder:
                for rank in range(2):
                    (folder / f"epoch{rank}").write_text(str(epoch))
        done""",
    )
    project.run(code)
    assert upshift.get_run("latest").output == [3, 4, 5]
    assert [a.status for a in upshift.get_run("latest")["train"].tasks[0].attempts] == ["failed", "completed"]


def test_ranks_that_are_cancelled_save_first(project: Project) -> None:
    trouble = """tell_of_rank(current.rank)
            while not current.stopping:
                sum(range(10_000))
            save(epoch)
            sys.exit()"""
    told = [project.fifo(f"told{rank}") for rank in range(2)]
    project.write(
        RANKS.replace("{trouble}", trouble).replace(
            "def tell(", "def tell_of_rank(rank):\n    Path(f'told{rank}').write_text('here')\n\ndef tell("
        )
    )
    process = project.start("run", "pipeline.py")
    for each in told:
        each.read_text()
    project.upshift("cancel", "latest")
    process.communicate(timeout=30)
    assert checkpoints(project) == ["1.4"]
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").output == [4, 5]


ACCELERATED = """
import torch
from accelerate import Accelerator
from upshift import current, run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step(retries=1)
def train(steps: int) -> list[float]:
    torch.manual_seed(1)
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    done = torch.tensor([0.0])
    latest = current.checkpoint.latest
    if latest is not None:
        accelerator.load_state(latest)
        done = torch.load(latest / f"done{current.rank}.pt")
    losses = []
    for number in range(int(done), steps):
        if number == 3 and current.attempt == 1 and {trouble}:
            raise RuntimeError("preempted")
        loss = (model(torch.ones(8, 4) * (current.rank + 1)) - 3).pow(2).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(float(loss))
        with current.checkpoint.save() as folder:
            accelerator.save_state(folder)
            torch.save(torch.tensor([number + 1.0]), folder / f"done{current.rank}.pt")
    return losses

@pipeline
def example(steps: int = 6):
    return train(steps)
"""


@pytest.mark.timeout(180)
def test_what_accelerate_saves_is_loaded_again_and_training_goes_on_as_if_nothing_had_been(
    project: Project,
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    project.run(ACCELERATED.replace("{trouble}", "False"), timeout=120)
    undisturbed = upshift.get_run("latest").output
    project.run(ACCELERATED.replace("{trouble}", "current.rank == 1"), timeout=120)
    went_on = upshift.get_run("latest").output
    assert len(upshift.get_run("latest")["train"].tasks[0].attempts) == 2
    assert went_on == pytest.approx(undisturbed[3:])


# Trouble with the disk


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_ranks_have_filled_is_free_again_for_the_next_attempt(project: Project) -> None:
    trouble = """if current.attempt == 1:
                with current.checkpoint.save() as folder:
                    (folder / f"epoch{current.rank}").write_bytes(bytes(30_000_000))"""
    project.write(RANKS.replace("{trouble}", trouble))
    store = project.home / "store"
    store.mkdir(parents=True)
    command = (
        f"mount -t tmpfs -o size=8m tmpfs {store} && {sys.executable} -m upshift run pipeline.py; "
        f"{sys.executable} -m upshift show latest"
    )
    outcome = project.call(["unshare", "-m", "sh", "-c", command])
    assert "train: attempt 2 went on from checkpoint 1.3 and completed" in outcome.text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_said_and_the_checkpoint_before_stays(project: Project) -> None:
    project.write(
        training("pass", body="BIG = bytes(30_000_000)").replace(
            ".write_text(str(epoch))",
            '.write_text(str(epoch)); (folder / "big").write_bytes(BIG if epoch == 2 else b"x")',
        )
    )
    store = project.home / "store"
    store.mkdir(parents=True)
    command = (
        f"mount -t tmpfs -o size=8m tmpfs {store} && {sys.executable} -m upshift run pipeline.py; "
        f"ls {store}/checkpoints/*/train/0"
    )
    outcome = project.call(["unshare", "-m", "sh", "-c", command])
    assert "No space left on device" in outcome.text
    assert "checkpoint 1.3 is not saved: the disk of" in outcome.text
    assert "the one before it stays" in outcome.text
    assert [name for name in outcome.out.split() if not name.endswith(".alone")][-2:] == ["1.2", "1.2.rank0"]
