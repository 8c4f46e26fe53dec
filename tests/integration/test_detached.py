"""``--detach`` on this machine: an engine that needs neither the terminal nor the files as they were."""

from __future__ import annotations

import json
import os
import re
import select
import signal
from pathlib import Path

import pytest

from project import Outcome, Project

WAITS = """
    import os

    NOW = "as submitted"

    @step(cache=False)
    def first(word: str) -> str:
        print("it is", word)
        return f"{word} {NOW}"

    @step(cache=False, secrets={"TOKEN": "env:TOKEN"})
    def wait(said: str) -> str:
        open("begun", "w").close()
        open("gate").read()
        return f"{said} {NOW} {len(os.environ['TOKEN'])}"

    @pipeline
    def example(word: str = "x"):
        return wait(first(word))
"""


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")


@pytest.fixture
def waiting(project: Project) -> Project:
    """A project whose second step says when it has begun, and waits."""
    project.write(WAITS)
    project.fifo("begun")
    project.fifo("gate")
    return project


def engine_of(outcome: Outcome) -> int:
    """The process that a command has said the engine to be."""
    found = re.search(r"its engine is process (\d+) on ", outcome.err)
    assert found, outcome.text
    return int(found[1])


def read_once(fifo: Path) -> str:
    """What somebody writes into a named pipe; not for ever, if nobody does."""
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        ready = select.poll()
        ready.register(reader, select.POLLIN)
        assert ready.poll(120_000), "nobody has begun"
        os.set_blocking(reader.fileno(), True)
        return reader.read()


def begun(project: Project) -> None:
    """Come back when the step has begun."""
    read_once(project.folder / "begun")


def go_on(project: Project) -> None:
    (project.folder / "gate").write_text("")


def test_what_was_submitted_is_what_runs_and_needs_no_terminal(waiting: Project) -> None:
    submitted = waiting.upshift(
        "run", "pipeline.py", "--detach", "-p", "word=hello", "-t", "nightly", "--run-id-file", "id"
    )
    engine = engine_of(submitted)
    assert os.getsid(engine) == engine
    begun(waiting)
    waiting.write("raise SystemExit('edited')")
    run = (waiting.folder / "id").read_text()
    refused = waiting.upshift("resume", run, "--same-code", "--detach", expect=2)
    assert f"another engine owns run {run}" in refused.err
    go_on(waiting)
    assert "[first] it is hello\n" in waiting.upshift("logs", run, "-f").out
    assert "wait: completed in" in waiting.upshift("logs", run, "--engine", "-f").out
    (listed,) = json.loads(waiting.upshift("runs", "--json").out)
    assert (listed["status"], listed["tags"]) == ("completed", ["nightly"])
    value = waiting.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value == "hello as submitted as submitted 16\n"
    records = [file.read_bytes() for file in waiting.home.rglob("*") if file.is_file()]
    assert not any(b"never-to-be-seen" in content for content in records)


def test_a_run_that_lost_its_engine_says_so_and_another_one_attaches_to_its_step(waiting: Project) -> None:
    engine = engine_of(waiting.upshift("run", "pipeline.py", "--detach"))
    begun(waiting)
    watch = os.pidfd_open(engine)
    os.kill(engine, signal.SIGKILL)
    select.select([watch], [], [])
    os.close(watch)
    shown = waiting.upshift("show", "latest").out
    assert "interrupted" in shown
    assert re.search(r"lost: its process on \S+ has ended", shown), shown
    waiting.upshift("resume", "latest", "--detach")
    go_on(waiting)
    waiting.upshift("logs", "latest", "--engine", "-f")
    shown = waiting.show()
    assert shown["status"] == "completed"
    assert [len(step["tasks"][0]["attempts"]) for step in shown["steps"]] == [1, 1]
    assert "lost" not in waiting.upshift("show", "latest").out


def test_a_detached_flow_can_be_cancelled_and_resumed(project: Project) -> None:
    project.fifo("begun")
    project.fifo("gate")
    project.write(
        """
        class Waits(FlowSpec):
            word = Parameter("word", default="x")

            @step
            def start(self):
                open("begun", "w").close()
                self.said = self.word + open("gate").read()
                self.next(self.end)

            @step
            def end(self):
                print("said", self.said)

        if __name__ == "__main__":
            Waits()
        """,
        "flow.py",
        header="from upshift import FlowSpec, Parameter, step\n",
    )
    project.python("flow.py", "run", "--detach", "--word", "hi")
    begun(project)
    assert "is being cancelled" in project.upshift("cancel", "latest").out
    stopped = project.upshift("logs", "latest", "--engine", "-f").out
    assert "was cancelled" in stopped
    project.python("flow.py", "resume", "--detach")
    begun(project)
    go_on(project)
    assert "[end] said hi\n" in project.upshift("logs", "latest", "-f").out
    assert project.show()["status"] == "completed"
    project.upshift("logs", "latest", "--engine", "-f")


def test_what_cannot_run_is_refused_before_anything_is_recorded(project: Project) -> None:
    project.write("import no_such_module")
    assert "no_such_module" in project.upshift("run", "pipeline.py", "--detach", expect=2).err
    project.write(WAITS)
    environment = {"TOKEN": ""}
    assert "TOKEN" in project.upshift("run", "pipeline.py", "--detach", env=environment, expect=2).err
    both = project.upshift("run", "pipeline.py", "--detach", "--debug", "wait", expect=2)
    assert "--detach and --debug exclude each other" in both.err
    assert project.upshift("runs", "--json").out == "[]\n"
    project.run("@step\ndef f() -> int: return 1\n@pipeline\ndef example(): return f()")
    alone = project.upshift("logs", "latest", "--engine", expect=2)
    assert "has no detached engine" in alone.err
