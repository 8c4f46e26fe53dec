"""``upshift report``: a real run becomes one HTML file."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path

from project import Project

PIPELINE = """
import upshift

@step(retries=1)
def load(n: int) -> list[int]:
    print("loading <b>", n)
    return list(range(n))

@step(settings={"resources": ResourceSettings(cpu_count=1, memory="200MB")})
def square(x: int) -> int:
    upshift.log(step=x, value=x * x)
    return x * x

@pipeline
def example(n: int = 3):
    return square.map(x=load(n))
"""
WAITING = """
@step
def train(pipe: str) -> int:
    with open(pipe) as file:
        file.read()
    return 1

@pipeline
def example(pipe: str):
    return train(pipe)
"""


def text_of(file: Path) -> str:
    page = re.sub(r"<(style|script)\b.*?</\1>", " ", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_report_of_the_latest_run_lies_in_this_folder(project: Project) -> None:
    project.run(PIPELINE)
    done = project.upshift("report", "latest")
    run = project.show()["id"]
    assert done.out == f"upshift-report-{run}.html\n"
    assert done.err == ""
    text = text_of(project.folder / f"upshift-report-{run}.html")
    assert f"run {run} on local example completed" in text
    assert "square ×3" in text
    assert "n = 3" in text


def test_where_it_is_written_can_be_said(project: Project) -> None:
    project.run(PIPELINE)
    assert project.upshift("report", "latest", "-o", "here.html").out == "here.html\n"
    written = project.folder / "here.html"
    assert stat.S_IMODE(written.stat().st_mode) == 0o666 & ~_umask()
    printed = project.upshift("report", "latest", "-o", "-").out
    made = re.compile(r"Made [^<]*")
    assert made.sub("", printed) == made.sub("", written.read_text(encoding="utf-8"))
    assert sorted(file.name for file in project.folder.iterdir() if file.suffix == ".html") == ["here.html"]


def test_a_report_of_what_was_reused_tells_where_it_comes_from(project: Project) -> None:
    project.run(PIPELINE)
    first = project.show()["id"]
    project.upshift("run", "pipeline.py")
    project.upshift("report", "latest", "-o", "r.html")
    page = (project.folder / "r.html").read_text(encoding="utf-8")
    assert text_of(project.folder / "r.html").count("reused") >= 3
    assert f"of run {first}, which it was reused from" in page


def test_secrets_stay_out(project: Project) -> None:
    project.run(
        """
import os

@step(secrets={"TOKEN": "env:TOKEN"})
def f():
    print("the token is", os.environ["TOKEN"])
    raise ValueError(os.environ["TOKEN"])

@pipeline
def example():
    f()
""",
        env={"TOKEN": "hunter2hunter2"},
        expect=1,
    )
    page = project.upshift("report", "latest", "-o", "-").out
    assert "hunter2" not in page
    assert "the token is" in page


def test_several_runs_have_their_metrics_over_each_other(project: Project) -> None:
    project.run(PIPELINE)
    first = project.show()["id"]
    project.upshift("run", "pipeline.py", "-p", "n=5")
    second = project.show()["id"]
    page = project.upshift("report", second, first, "-o", "-").out
    metrics = page.partition('<section id="metrics"')[2].partition("</section>")[0]
    for text in (first, second, "0, 1, 4, 9, 16", "0, 1, 4"):
        assert f">{text}<" in metrics


def test_a_run_that_goes_on_is_followed_to_its_end(project: Project) -> None:
    pipe = project.fifo("pipe")
    project.write(WAITING)
    run = project.start("run", "pipeline.py", "-p", f"pipe={pipe}")
    writer = os.open(pipe, os.O_WRONLY)  # waits until the step reads
    once = project.upshift("report", "latest", "-o", "once.html")
    assert "--follow updates the report until it is" in once.err
    assert "data-every=" not in _head(project.folder / "once.html")
    following = project.start("report", "latest", "--follow", "-o", "live.html")
    assert following.stdout is not None
    assert following.stdout.readline() == "live.html\n"
    assert 'data-every="2.0"' in _head(project.folder / "live.html")
    os.close(writer)
    assert run.wait(60) == 0
    assert following.wait(60) == 0
    _close(run, following)
    assert "data-every=" not in _head(project.folder / "live.html")
    assert "example completed" in text_of(project.folder / "live.html")


def test_a_page_that_is_not_followed_any_more_says_when_it_was_made(project: Project) -> None:
    pipe = project.fifo("pipe")
    project.write(WAITING)
    run = project.start("run", "pipeline.py", "-p", f"pipe={pipe}")
    writer = os.open(pipe, os.O_WRONLY)
    following = project.start("report", "latest", "--follow", "-o", "live.html")
    assert following.stdout is not None and following.stdout.readline()
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 130
    assert "still running when this was made" in text_of(project.folder / "live.html")
    assert "data-every=" not in _head(project.folder / "live.html")
    os.close(writer)
    assert run.wait(60) == 0
    _close(run, following)


def test_what_cannot_be_done_is_refused(project: Project) -> None:
    project.run(PIPELINE)
    assert "no run has an id that starts with 'nope'" in project.upshift("report", "nope", expect=2).err
    assert "is a folder" in project.upshift("report", "latest", "-o", ".", expect=2).err
    assert "cannot be written" in project.upshift("report", "latest", "-o", "no/x.html", expect=2).err
    assert "need a file" in project.upshift("report", "latest", "-o", "-", "--open", expect=2).err


def _head(file: Path) -> str:
    return file.read_text(encoding="utf-8").partition("<main")[0]


def _close(*processes: object) -> None:
    for process in processes:
        process.communicate()  # type: ignore[attr-defined]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
