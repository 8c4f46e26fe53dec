"""Progress bars of steps: one line each in the end, however often they were drawn."""

from __future__ import annotations

import re

import pytest

import upshift
from project import UPSHIFT, Project
from screen import Screen, on_terminal

BARS = """
from tqdm import tqdm, trange

@step
def train(n: int) -> int:
    print("begin")
    for epoch in trange(3, desc="epochs", mininterval=0):
        for batch in trange(200, desc="batches", mininterval=0, leave=False):
            pass
        tqdm.write(f"epoch {epoch}")
    print("end")
    return n

@pipeline
def example():
    return train.map(n=[1, 2])
"""
LAUNCHED = "@run_with_torchrun(nproc_per_node=2)"
LINES = r"{0}begin\n{0}epoch 0\n{0}epoch 1\n{0}epoch 2\n{0}epochs: 100%\|█+\| 3/3 \[.*it/s\] *\n{0}end\n"


def test_nested_bars_of_a_mapped_step_leave_one_line_each(project: Project) -> None:
    outcome = project.run(BARS)
    for index in range(2):
        label = f"[train[{index}]] "
        mine = "".join(line for line in outcome.out.splitlines(keepends=True) if line.startswith(label))
        assert re.fullmatch(LINES.format(re.escape(label)), mine), outcome.out
        log = project.upshift("logs", "latest", f"train[{index}]").out
        assert re.fullmatch(LINES.format(""), log), log
        assert upshift.get_run("latest")["train"].tasks[index].attempts[-1].log == log
    assert "batches" not in outcome.out
    assert "\r" not in outcome.out and "\x1b" not in outcome.out


def test_a_bar_that_is_drawn_very_often_takes_little_room(project: Project) -> None:
    project.run(
        r"""
import sys

@step
def train() -> None:
    for i in range(300_000):
        sys.stderr.write(f"\r{i:,} of 300,000 batches, the loss is {1 / (i + 1):.3e}")
    print(file=sys.stderr)

@pipeline
def example():
    return train()
"""
    )
    (log,) = project.home.glob("store/runs/*/tasks/train/*.log")
    assert log.stat().st_size < 100_000  # of 16 million bytes that were printed
    assert project.upshift("logs", "latest").out.startswith("[train] 299,999 of 300,000 batches")


@pytest.mark.parametrize(("launched", "prefix"), [("", ""), (LAUNCHED, "[rank 0] ")])
def test_the_newest_frame_is_seen_on_a_terminal_while_the_step_goes_on(
    project: Project, launched: str, prefix: str
) -> None:
    shown, ended = project.fifo("shown"), project.fifo("ended")
    project.write(
        f"""
import sys
from upshift import current, run_with_torchrun

{launched}
@step
def train() -> None:
    if current.rank > 0:
        return
    sys.stderr.write("\\r 41%|####      |")
    sys.stderr.flush()
    open({str(shown)!r}).read()
    sys.stderr.write("\\r100%|##########|\\n")
    open({str(ended)!r}).read()

@pipeline
def example():
    return train()
"""
    )
    waiting = {b"41%|####": shown, b"100%|####": ended}

    def watch(written: bytes) -> None:
        """Let the step go on when its frame is on the screen."""
        for text, fifo in list(waiting.items()):
            if text in written:
                del waiting[text]
                fifo.write_text("")

    env = {k: v for k, v in project.environment().items() if k not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
    env |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    code, written = on_terminal([UPSHIFT, "run", "pipeline.py"], env, cwd=project.folder, watch=watch)
    screen = Screen()
    screen.feed(written)
    assert code == 0, screen.text
    assert screen.text.splitlines()[0] == f"train │ {prefix}100%|##########|"
    assert "41%" not in screen.text
