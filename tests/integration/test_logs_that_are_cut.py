"""A disk that is full while a step prints: what is missing is told wherever somebody would look for it."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import upshift
from project import UPSHIFT, Outcome, Project
from upshift.runtime.storage.metrics import first_of, read_by_rank

FULL = "No space left on device"
NOISY = """
import os
import sys
import upshift
from upshift import run_with_torchrun

BALLAST = os.path.join(os.environ["UPSHIFT_HOME"], "store", "ballast")

def make_room():
    if os.path.exists(BALLAST):
        os.remove(BALLAST)

def print_much(lines=20_000):
    for number in range(lines):
        print(f"line {number} " + 80 * "x")
        if number % 20 == 0:
            upshift.log(step=number, loss=1 / (number + 1))
            upshift.log({f"only {number // 1000}": number})
    sys.stdout.flush()

@step
def noisy() -> int:
    print_much()
    make_room()
    print("the end")
    upshift.log(step=30_000, loss=0.5)
    return 3

@run_with_torchrun(nproc_per_node=2)
@step
def ranks() -> int:
    print_much(10_000)
    with open("printed", "r" if upshift.current.rank == 0 else "w"):  # a named pipe: one waits for the other
        pass
    if upshift.current.rank == 0:
        make_room()
    return 3

@pipeline
def example():
    return noisy()

@pipeline
def several():
    return ranks()
"""


def on_a_small_disk(project: Project, commands: str, *, ballast: int = 0) -> Outcome:
    """Do commands with a small tmpfs as the store, a part of it taken by a file that the step may remove.

    What pipes still hold then is written into the room that it leaves: it has to be larger.
    """
    store = shlex.quote(str(project.home / "store"))
    script = (
        f"mkdir -p {store} && mount -t tmpfs -o size={500 + ballast // 1000}k tmpfs {store} && "
        f"{f'head -c {ballast} /dev/zero > {store}/ballast && ' if ballast else ''}"
        f"UPSHIFT={shlex.quote(UPSHIFT)} && {commands}"
    )
    namespace = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    return project.call(["unshare", *namespace, "sh", "-c", script])


def gaps(project: Project, step: str) -> list[dict[str, Any]]:
    found = json.loads((project.folder / "run.json").read_text())
    (task,) = next(one for one in found["steps"] if one["name"] == step)["tasks"]
    return [gap for attempt in task["attempts"] for gap in attempt["gaps"]]


def test_a_log_that_goes_on_once_there_is_room_says_how_much_is_missing_and_where(project: Project) -> None:
    project.write(NOISY)
    outcome = on_a_small_disk(
        project,
        "$UPSHIFT run pipeline.py:example > run.out 2> run.err && $UPSHIFT show latest --json > run.json && "
        "$UPSHIFT show latest > show.out && $UPSHIFT report latest --output report.html > /dev/null && "
        "$UPSHIFT logs latest noisy > log.out 2> log.err",
        ballast=400_000,
    )
    assert outcome.code == 0, outcome.text
    texts = {file.name: file.read_text() for file in project.folder.glob("*.*") if file.is_file()}
    assert f"noisy: the log cannot be written: {FULL} ({project.home}/store/" in texts["run.err"]

    log = texts["log.out"].splitlines()
    assert log[-1] == "the end"
    (mark,) = [line for line in log if not line.startswith(("line ", "the end"))]
    assert mark.startswith("upshift: ") and mark.endswith(f" of output are missing here: {FULL}")
    kept = len(texts["log.out"]) - len(mark) - 1
    printed = sum(len(f"line {number} ") + 81 for number in range(20_000)) + len("the end\n")

    found = {gap["what"]: gap for gap in gaps(project, "noisy")}
    assert set(found) == {"log", "metrics"}
    for gap in found.values():
        assert gap["why"] == FULL and gap["bytes"] > 0 and 0 <= gap["since"] <= gap["until"]
    assert found["log"]["bytes"] in (printed - kept, printed - kept + 1)  # a line that was cut is ended

    for name in ("run.err", "show.out", "log.err", "report.html"):
        told = " ".join(texts[name].split())
        assert "the log is not whole: " in told and f"({FULL}, in " in told, name
        assert ("the file of metrics is not whole: " in told) == (name != "log.err"), name


def test_metrics_go_on_once_there_is_room_and_are_those_that_were_logged(project: Project) -> None:
    project.write(NOISY)
    outcome = on_a_small_disk(
        project,
        "$UPSHIFT run pipeline.py:example > /dev/null && "
        "cp $UPSHIFT_HOME/store/runs/*/tasks/noisy/0.1.metrics kept.metrics",
        ballast=400_000,
    )
    assert outcome.code == 0, outcome.text
    found = first_of(read_by_rank(project.folder / "kept.metrics"))
    loss = found.pop("loss")
    assert loss.steps[-1] == 30_000 and loss.values[-1] == 0.5 and len(loss) < 1001
    assert all(value == 1 / (step + 1) for step, value in zip(loss.steps[:-1], loss.values[:-1], strict=True))
    for name, curve in found.items():
        assert {value // 1000 for value in curve.values} == {int(name.split()[1])}


def test_where_not_even_the_result_can_be_written_the_step_fails_and_the_log_is_not_taken_for_whole(
    project: Project,
) -> None:
    project.write(NOISY)
    outcome = on_a_small_disk(
        project,
        "$UPSHIFT run pipeline.py:example > run.out 2> run.err; test $? = 1 && "
        "$UPSHIFT logs latest noisy > log.out 2> log.err",
    )
    assert outcome.code == 0, outcome.text
    err = (project.folder / "run.err").read_text()
    assert f"noisy: the log cannot be written: {FULL} (" in err
    assert "noisy: failed after" in err and "the result could not be written" in err
    assert "Traceback" not in err
    log = (project.folder / "log.err").read_text()
    assert log.startswith(
        "noisy: the log may end early: it has left no result: the result could not be written"
    )


def test_of_several_processes_each_log_says_what_it_lacks(project: Project) -> None:
    project.write(NOISY)
    os.mkfifo(project.folder / "printed")
    outcome = on_a_small_disk(
        project,
        "$UPSHIFT run pipeline.py:several > run.out 2> run.err && $UPSHIFT show latest --json > run.json && "
        "$UPSHIFT show latest > show.out && "
        "for rank in 0 1; do $UPSHIFT logs latest ranks --rank $rank > log$rank.out 2> log$rank.err; done",
        ballast=1_000_000,
    )
    assert outcome.code == 0, (project.folder / "run.err").read_text()
    found = [(gap["what"], gap["rank"]) for gap in gaps(project, "ranks")]
    assert [gap for gap in found if gap[0] == "log"] == [("log", None), ("log", 0), ("log", 1)]
    told = " ".join((project.folder / "show.out").read_text().split())
    assert (
        "ranks: the log is not whole: " in told and "ranks: the logs of ranks 0 and 1 are not whole: " in told
    )
    for rank in (0, 1):
        assert f"of output are missing here: {FULL}\n" in (project.folder / f"log{rank}.out").read_text()
        err = (project.folder / f"log{rank}.err").read_text()
        assert err.startswith(f"ranks: the log of rank {rank} is not whole: ")


def test_a_limit_on_the_size_of_files_cuts_the_log_and_nothing_else(project: Project) -> None:
    project.write(NOISY)
    outcome = project.call(
        ["sh", "-c", f"ulimit -f 2000; exec {shlex.quote(UPSHIFT)} run pipeline.py:example"]
    )
    assert outcome.code == 0, outcome.text
    assert "noisy: the log cannot be written: File too large (" in outcome.err
    run = upshift.get_run("latest")
    assert run.output == 3
    (gap,) = run["noisy"].tasks[0].attempts[-1].gaps
    assert (gap.what, gap.why, gap.until) == ("log", "File too large", None)
    followed = project.upshift("logs", "latest", "noisy", "--follow")
    assert (
        "noisy: the log is not whole: " in followed.err
        and "after the start on (File too large" in followed.err
    )


def test_a_step_whose_log_is_whole_says_nothing_of_it(project: Project) -> None:
    project.write(NOISY)
    outcome = project.upshift("run", "pipeline.py:example")
    assert "not whole" not in outcome.err and "cannot be written" not in outcome.err
    assert upshift.get_run("latest")["noisy"].tasks[0].attempts[-1].gaps == ()
    assert project.upshift("logs", "latest", "noisy").err == ""
