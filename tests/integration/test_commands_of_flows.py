"""The command line of flows beyond running them: decorators from outside, new runs from old ones, values."""

from __future__ import annotations

import itertools
import pickle

import pytest

import upshift
from project import Project

FLOW = """
import os
from upshift import *
from upshift import current

@project(name="shop")
class Works(FlowSpec):
    factor = Parameter("factor", default=3)

    @step
    def start(self):
        open("started", "a").write("x")
        self.xs = [1, 2, 3]
        self.next(self.work, foreach="xs")

    @step
    def work(self):
        current.card.append(f"item {self.input}")
        if self.input == 2 and current.retry_count == 0 and not os.path.exists("mended"):
            raise ValueError("not mended")
        self.y = self.input * self.factor
        self.next(self.join)

    @step
    def join(self, inputs):
        self.ys = [one.y for one in inputs]
        self.text = "long" * 1000
        self.next(self.end)

    @step
    def end(self):
        self.told = (current.origin_run_id, current.branch_name)

if __name__ == "__main__":
    Works()
"""


@pytest.fixture
def flow(project: Project) -> Project:
    project.write(FLOW, "flow.py", header="")
    return project


def test_a_decorator_for_all_steps_is_given_from_outside(flow: Project) -> None:
    done = flow.upshift(
        *("run", "flow.py", "--with", "retry:times=1,minutes_between_retries=0"),
        *("--with", 'environment:vars={"A": "1", "B": "2"}', "--max-workers", "1", "--run-id-file", "id"),
    )
    run = upshift.get_run((flow.folder / "id").read_text())
    assert run.output.ys == [3, 6, 9]
    assert "trying again (1 of 1)" in done.err
    begun = sorted((a.started, a.ended) for task in run["work"].tasks for a in task.attempts)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(begun))


def test_what_with_asks_for_is_said_to_come_from_there(flow: Project) -> None:
    refused = flow.upshift("run", "flow.py", "--strict", "--with", "resources:memory=900000000", expect=2)
    assert "--with resources:memory=900000000" in refused.text
    assert "None" not in refused.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("retri:times=1", ["no decorator is called 'retri'", "retry"]),
        ("retry:tims=1", ["@retry has no option 'tims'", "times"]),
        ("retry:times=many", ["times='many'"]),
        ("retry:times", ["'times' has no value", "OPTION=VALUE"]),
        ("kubernetes:gpus=1", ["@kubernetes has no option 'gpus'", "ResourceSettings(gpu_count=…)"]),
    ],
)
def test_a_wrong_decorator_from_outside_is_refused(flow: Project, given: str, words: list[str]) -> None:
    refused = flow.upshift("run", "flow.py", "--with", given, expect=2)
    for word in words:
        assert word in refused.err


def test_a_list_longer_than_allowed_stops_the_run(flow: Project) -> None:
    failed = flow.upshift("run", "flow.py", "--max-num-splits", "2", expect=1)
    assert "3 tasks would follow start, and --max-num-splits allows 2" in failed.err
    (flow.folder / "mended").touch()
    flow.upshift("run", "flow.py", "--max-num-splits", "3")


@pytest.mark.processes
def test_a_new_run_takes_over_what_another_has_done(flow: Project) -> None:
    flow.upshift("run", "flow.py", "-p", "factor=5", expect=1)
    origin = upshift.get_run("latest").id
    (flow.folder / "mended").touch()
    flow.write(
        FLOW.replace("self.input * self.factor", "self.input * self.factor + 100"), "flow.py", header=""
    )
    flow.python("flow.py", "resume", "--origin-run-id", origin, "-t", "second")
    run = upshift.get_run("latest")
    assert run.id != origin
    assert run.tags == ("project:shop", "second")
    assert (run.output.ys[1], run.output.told) == (110, (origin, f"user.{run.user}"))
    assert [task.cached for task in run["work"].tasks].count(False) >= 1
    assert (flow.folder / "started").read_text() == "x"

    flow.python("flow.py", "--branch", "blue", "resume", "end")
    newest = upshift.get_run("latest")
    assert newest.output.told == (run.id, "test.blue")
    assert [newest[name].tasks[0].cached for name in ("start", "join", "end")] == [True, True, False]
    assert "taken over from run" in flow.tasks("join")[0]["cache_reason"]
    assert "has no step 'nowhere'" in flow.python("flow.py", "resume", "nowhere", expect=2).err


def test_logs_are_found_by_the_place_of_a_task(project: Project) -> None:
    project.write(
        """
from upshift import FlowSpec, step

class Nested(FlowSpec):
    @step
    def start(self):
        self.xs = "ab"
        self.next(self.outer, foreach="xs")

    @step
    def outer(self):
        self.ys = [1, 2]
        self.next(self.inner, foreach="ys")

    @step
    def inner(self):
        print(self.foreach_stack())
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.next(self.end)

    @step
    def end(self, inputs):
        print("over")

if __name__ == "__main__":
    Nested()
""",
        "flow.py",
        header="",
    )
    project.upshift("run", "flow.py")
    run = upshift.get_run("latest").id
    one = "[(1, 2, 'b'), (0, 2, 1)]\n"
    assert project.python("flow.py", "logs", "latest/inner/1.0").out == one
    assert project.python("flow.py", "logs", "show", f"Nested/{run}/inner/1.0").out == one
    assert project.python("flow.py", "logs", "latest/end").out == "over\n"
    assert "has no task inner/7" in project.python("flow.py", "logs", "latest/inner/7", expect=2).err


@pytest.mark.processes
def test_artifacts_and_cards_of_a_step_are_printed(flow: Project) -> None:
    (flow.folder / "mended").touch()
    flow.upshift("run", "flow.py")
    run = upshift.get_run("latest").id
    dumped = flow.python("flow.py", "dump", "latest/work").out
    assert f"{run}/work/1\n  factor: 3\n  xs: [1, 2, 3]\n  y: 6\n" in dumped
    assert "text: (4,002 characters)" in flow.python("flow.py", "dump", f"Works/{run}/join/0").out
    flow.python("flow.py", "dump", "latest/work/2", "--include", "y", "--file", "dumped")
    assert pickle.loads((flow.folder / "dumped").read_bytes()) == {f"{run}/work/2": {"y": 9}}
    flow.python("flow.py", "tag", "add", "latest", "good", "better")
    flow.python("flow.py", "tag", "remove", "latest", "good")
    assert flow.python("flow.py", "tag", "list").out == "project:shop\nbetter\n"
    listed = flow.python("flow.py", "card", "list", "latest/work").out
    assert f"{run}/work/2  Note  text/markdown  6 B" in listed
    flow.python("flow.py", "card", "view", "latest")
    assert "item 3" in (flow.folder / f"upshift-report-{run}.html").read_text()
    assert "has no task work/7" in flow.python("flow.py", "dump", "latest/work/7", expect=2).err
    assert "is not a place of a step" in flow.python("flow.py", "dump", "latest", expect=2).err


CONFIGURED = """
from upshift import *

@project(name=config_expr("config.name"))
class Configured(FlowSpec):
    words = IncludeFile("words", default="words.txt")
    raw = IncludeFile("raw", is_text=False)
    config = Config("config", default="config.json")
    other = Config("other", default="none.toml", default_value={"xs": [{"a": 1}]})

    @environment(vars={"DEPTH": config.model.depth, "SAME": config_expr("config.model.depth")})
    @step
    def start(self):
        import os
        self.told = (self.config.model.depth, self.other.xs[0].a, os.environ["DEPTH"] + os.environ["SAME"])
        self.seen = (current.project_name, current.namespace, get_namespace())
        self.next(self.end)

    @step
    def end(self):
        self.texts = (self.words, self.raw)

if __name__ == "__main__":
    Configured()
"""


@pytest.fixture
def configured(project: Project) -> Project:
    project.write(CONFIGURED, "flow.py", header="")
    (project.folder / "words.txt").write_text("one two")
    (project.folder / "config.json").write_text('{"name": "shop", "model": {"depth": 3}}')
    return project


@pytest.mark.processes
def test_files_and_configurations_reach_steps_and_decorators(configured: Project) -> None:
    (configured.folder / "raw.bin").write_bytes(b"\xff")
    configured.upshift("run", "flow.py", "-p", "raw=raw.bin")
    output = upshift.get_run("latest").output
    assert output.texts == ("one two", b"\xff")
    assert output.told == (3, 1, "33")
    assert output.seen[0] == "shop"
    assert "project:shop" in upshift.get_run("latest").tags
    configured.python("flow.py", "--config-value", "config", '{"name": "b", "model": {"depth": 5}}', "run")
    assert upshift.get_run("latest").output.told == (5, 1, "55")
    (configured.folder / "deep.toml").write_text('name = "c"\n[model]\ndepth = 7\n')
    configured.python("flow.py", "--config", "config", "deep.toml", "run", "--namespace", "user:ann")
    assert upshift.get_run("latest").output.told == (7, 1, "77")
    assert upshift.get_run("latest").output.seen == ("c", "user:ann", "user:ann")


@pytest.mark.processes
def test_upshift_run_takes_what_a_flow_takes(configured: Project) -> None:
    (configured.folder / "deep.json").write_text('{"name": "c", "model": {"depth": 7}}')
    options = ("--config", "config", "deep.json", "--config-value", "other", '{"xs": [{"a": 4}]}')
    configured.upshift("run", "flow.py", *options, "--branch", "trial", "--namespace", "")
    run = upshift.get_run("latest")
    assert run.output.told == (7, 4, "77")
    assert run.output.seen == ("c", None, None)
    assert "project_branch:test.trial" in run.tags
    refused = configured.upshift("run", "flow.py", "--config", "confg", "deep.json", expect=2).err
    assert "Configured has no configuration 'confg'" in refused
    assert "Did you mean 'config'?" in refused
    refused = configured.python("flow.py", "--config", "confg", "deep.json", "run", expect=2).err
    assert "Did you mean 'config'?" in refused
    planned = configured.upshift("plan", "flow.py", *options).out
    assert "cache=False" not in planned
    assert "after start" in planned


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("config.model.depth,", "config.model.deep,"), ["has no 'deep'", "depth"]),
        (
            ('"config.json")', '"gone.json")'),
            ["configuration 'config' cannot be read", "gone.json", "flow.py:"],
        ),
        (('default="config.json"', "required=True"), ["configuration 'config' is not given", "--config"]),
        (
            ('("config.model.depth")', '("confog.x")'),
            ["config_expr('confog.x') has no value here", "flow.py:"],
        ),
        (
            ('"words.txt")', '"gone.txt")'),
            ["the file of parameter 'words' cannot be read: gone.txt", "flow.py:"],
        ),
        (("self.texts =", "self.config ="), ["self.config is a configuration", "flow.py:"]),
    ],
)
def test_what_is_wrong_with_files_and_configurations_is_said(
    configured: Project, change: tuple[str, str], words: list[str]
) -> None:
    assert change[0] in CONFIGURED
    configured.write(CONFIGURED.replace(*change), "flow.py", header="")
    failed = configured.upshift("run", "flow.py", expect=None)
    assert failed.code in (1, 2)
    for word in words:
        assert word in failed.err


TWO = """
from upshift import FlowSpec, JSONType, Parameter, step

class NAME(FlowSpec):
    opts = Parameter("opts", default={}, type=JSONType)

    @step
    def start(self):
        print("of NAME")
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    NAME()
"""


def test_latest_is_the_latest_run_of_the_flow(project: Project) -> None:
    for name in ("One", "Two"):
        project.write(TWO.replace("NAME", name), f"{name.lower()}.py", header="")
        project.python(f"{name.lower()}.py", "run")
    assert "of One" in project.python("one.py", "logs", "latest").out
    assert "of One" in project.python("one.py", "logs", "latest/start").out
    project.python("one.py", "tag", "add", "latest", "prod")
    assert {run.pipeline: run.tags for run in upshift.list_runs()} == {"One": ("prod",), "Two": ()}
    assert project.python("one.py", "tag", "list").out == "prod\n"
    project.write(TWO.replace("NAME", "Three"), "three.py", header="")
    refused = project.python("three.py", "tag", "list", expect=None)
    assert refused.code != 0 and "flow Three has no run yet" in refused.err


@pytest.mark.parametrize("text", ["{bad", "[1,", "word"])
def test_a_parameter_of_json_takes_no_other_text(project: Project, text: str) -> None:
    project.write(TWO.replace("NAME", "One"), "one.py", header="")
    for arguments in (
        ("one.py", "run", "--opts", text),
        ("-m", "upshift", "run", "one.py", "-p", f"opts={text}"),
    ):
        refused = project.python(*arguments, expect=2)
        assert "opts" in refused.err and "JSON" in refused.err, refused.err
    project.python("one.py", "run", "--opts", '{"a": [1, null, "x"]}')
    assert upshift.get_run("latest").params["opts"] == {"a": [1, None, "x"]}
    assert len(upshift.list_runs()) == 1
