"""The same flows, run by Metaflow itself and by Upshift once their imports are changed.

Metaflow is in an environment of its own beside that of the tests, which ``make test`` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project import Project
from upshift.cli.other_tools import migrated

pytestmark = pytest.mark.timeout(300)  # Metaflow starts an interpreter for each task

PYTHON = Path(f"{sys.prefix}-metaflow") / "bin" / "python"

HEADER = "from metaflow import FlowSpec, JSONType, Parameter, catch, current, parallel, retry, step\n"
LOOK = """
import json, sys
from metaflow import Flow, namespace

namespace(None)
run = Flow(sys.argv[1]).latest_run
told = {
    step.id: sorted(
        json.dumps({a.id: repr(a.data) for a in task if a.id != "name"}, sort_keys=True) for task in step
    )
    for step in run
}
print(json.dumps({"successful": run.successful, "finished": run.finished, "steps": told}))
"""

FLOWS = {
    "Classes": '''
class Shared:
    """No flow by itself."""

    greeting = "hello"

    def greet(self, who):
        return f"{self.greeting} {who}"

class Base(Shared, FlowSpec):
    sizes = [1, 2]
    _hidden = 4

    @step
    def start(self):
        """Begin."""
        self._private = 5
        self.values = {"a": [1]}
        self.about = [self.name, str(self), self.input, self.index, self.foreach_stack(), self._hidden]
        self.now = [current.flow_name, current.step_name, current.is_running_flow, current.retry_count]
        self.next(self.end)

    @step
    def end(self):
        self.ended = "base"

class Classes(Base):
    """A flow of flows."""

    text = Parameter("text", default="t")
    whole = Parameter("whole", default=1)
    real = Parameter("real", default=1.5, help="A number.")
    yes = Parameter("yes", default=True)
    no = Parameter("no", type=bool, default=False)
    table = Parameter("table", default='{"b": 1}', type=JSONType)
    parts = Parameter("parts", default="a,b", separator=",")
    nothing = Parameter("nothing")
    other_name = Parameter("other-name", default=2)
    made = Parameter("made", default=lambda context: context.parameter_name, type=str)

    def __init__(self, *args, **kwargs):
        self.early = 1
        super().__init__(*args, **kwargs)

    @property
    def total(self):
        return sum(self.sizes)

    @step
    def end(self):
        """Say what is known."""
        super().end()
        self.values["a"].append(2)
        self.ended += " and more"
        self.told = [self.total, self._private, self.greet("you"), hasattr(self, "none"), self.early]
''',
    "Ends": """
class Ends(FlowSpec):
    @step(start=True)
    def begin(self):
        self.x = 1
        self.next(self.done)

    @step(end=True)
    def done(self):
        self.y = self.x + 1
""",
    "Nested": """
class Nested(FlowSpec):
    @step
    def start(self):
        self.common = "c"
        self.xs = (1, 2)
        self.next(self.outer, foreach="xs")

    @step
    def outer(self):
        self.x = self.input
        self.letters = "ab"[: self.x]
        self.next(self.inner, foreach="letters")

    @step
    def inner(self):
        self.where = (self.input, self.index, self.foreach_stack())
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.where = [one.where for one in inputs]
        self.merge_artifacts(inputs, include=["common", "x"])
        self.next(self.close)

    @step
    def close(self, inputs):
        self.where = [one.where for one in inputs]
        self.merge_artifacts(inputs, exclude=["x"])
        self.next(self.end)

    @step
    def end(self):
        self.outside = [self.input, self.index, len(self.where)]
""",
    "Merges": """
class Merges(FlowSpec):
    p = Parameter("p", default=7)

    @step
    def start(self):
        self.same = 1
        self.next(self.b, self.a)

    @step
    def a(self):
        self.only_a = "a"
        self.both = 1
        self._private = 5
        self.next(self.join)

    @step
    def b(self):
        self.both = 2
        self.next(self.join)

    @step
    def join(self, inputs):
        self.both = inputs.a.both + inputs.b.both
        self.merge_artifacts(inputs)
        self.has = [self.only_a, self.same, self.p, self._private, sum(1 for _ in inputs)]
        self.next(self.end)

    @step
    def end(self):
        pass
""",
    "Ways": """
class Ways(FlowSpec):
    n = Parameter("n", default=2)

    @step
    def start(self):
        self.count = 0
        self.next(self.loop)

    @step
    def loop(self):
        self.count += 1
        self.more = self.count < self.n
        self.next({True: self.loop, False: self.work}, condition="more")

    @retry(times=1, minutes_between_retries=0)
    @step
    def work(self):
        self.tries = current.retry_count
        if self.tries < 1:
            raise ValueError("once more")
        self.next(self.fail)

    @catch(var="failed", print_exception=False)
    @step
    def fail(self):
        raise ValueError("caught")
        self.next(self.end)

    @step
    def end(self):
        self.told = [self.failed is not None, "caught" in str(self.failed), self.count]
        self.failed = None
""",
}
PARALLEL = """
class Several(FlowSpec):
    nodes = Parameter("nodes", default=3)

    @step
    def start(self):
        self.common = "c"
        self.next(self.train, num_parallel=self.nodes)

    @parallel
    @step
    def train(self):
        own = current.parallel
        self.told = (own.num_nodes, own.node_index, own.main_ip, own.control_task_id, current.is_parallel)
        self.where = (self.input, self.index, self.foreach_stack(), current.task_id.partition("_")[2])
        self.next(self.join)

    @step
    def join(self, inputs):
        self.told = [one.told[:3] for one in inputs]
        self.where = [one.where for one in inputs]
        self.count = len(list(inputs))
        self.outside = (self.input, self.index, self.foreach_stack())
        self.merge_artifacts(inputs, include=["common"])
        self.next(self.end)

    @step
    def end(self):
        pass
"""
UNLIKE = {("Several", "train", "told"), ("Ways", "fail", "failed")}
"""Artifacts that are told in another way: how an exception looks, and what the task of a step is called."""

START = """
class Wrong(FlowSpec):
    constant = 1
    p = Parameter("p", default=1)

    @step
    def start(self):
        {start}
        self.next(self.a, self.b)

    @step
    def a(self):
        self.x = 1
        self.next(self.join)

    @step
    def b(self):
        self.x = 2
        self.next(self.join)

    @step
    def join(self, inputs):
        {join}
        self.next(self.end)

    @step
    def end(self):
        {end}
"""
FAILS = {
    "raise ValueError('no')": "ValueError: no",
    "self.constant = 2": "constant",
    "self.p = 2": "self.p is a parameter",
    "self.x = self": "neither a flow nor",
    "print(self.none)": "has no attribute 'none'",
    "self.input = 2": "input",
}
JOINS = {
    "self.merge_artifacts(inputs)": "x has several values",
    "self.merge_artifacts(inputs, include=['none'])": "no step that is joined has none",
    "self.merge_artifacts(inputs, include=['x'], exclude=['y'])": "exclude or include, not both",
}
REFUSABLE = """
class Refused(FlowSpec):
    @step
    def start(self):
        STATEMENT

    @step
    def work(self):
        self.next(self.end)

    @step
    def alone(self):
        self.next(self.end)

    def helper(self):
        pass

    @step
    def end(self):
        pass
"""
NODES = {
    "self.next(self.train)": "'train' has @parallel, and 'start' goes to it without num_parallel",
    "self.next(self.other, num_parallel=2)": "'other' has no @parallel",
    "self.next(self.lost, num_parallel=2)": "does not join its nodes",
}
OF_NODES = """
class Refused(FlowSpec):
    @step
    def start(self):
        STATEMENT

    @parallel
    @step
    def train(self):
        self.next(self.join)

    @parallel
    @step
    def lost(self):
        self.next(self.end)

    @step
    def other(self):
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass
"""
REFUSED = {
    "pass": "does not name the next step",
    "self.next(self.none)": "goes to 'none', which is not a step",
    "self.next(self.helper)": "goes to 'helper', which is not a step",
    "self.next(self.work, forech='xs')": "has no option 'forech'",
    "self.next(self.alone, self.work)": "which does not join them",
    "self.next(self.work)": "nothing goes to step 'alone'",
}


@pytest.fixture
def metaflow(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python with Metaflow in it."""
    if not PYTHON.exists():
        pytest.skip("Metaflow is not installed: make test")
    folder = tmp_path / "metaflow"
    folder.mkdir()
    own = {
        "METAFLOW_HOME": str(folder),
        "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(folder),
        "METAFLOW_USER": "me",
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",  # it starts nodes as "python"
    }

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (folder / "flow.py").write_text(code)
        return subprocess.run(
            [str(PYTHON), "flow.py", *arguments],
            cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run


def source(code: str, name: str) -> str:
    return f'{HEADER}{code}\n\nif __name__ == "__main__":\n    {name}()\n'


def ours(project: Project, code: str) -> None:
    """The same file, with its imports changed."""
    changed, unmapped = migrated(code, "flow.py")
    assert not unmapped
    project.write(changed, "flow.py", header="")


@pytest.mark.processes
@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_leaves_the_same_artifacts(name: str, project: Project, metaflow: Any) -> None:
    code = source(FLOWS[name], name)
    theirs = metaflow(code, "run")
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    expected = json.loads(metaflow(LOOK, name).stdout)
    ours(project, code)
    project.upshift("run", f"flow.py:{name}")
    project.write(migrated(LOOK, "look.py")[0], "look.py", header="")
    found = json.loads(project.python("look.py", name).out)
    assert (found["successful"], found["finished"]) == (expected["successful"], expected["finished"])
    assert {*found["steps"]} == {*expected["steps"]}
    for step, tasks in expected["steps"].items():
        assert told(name, step, found["steps"][step]) == told(name, step, tasks), step


def told(name: str, step: str, tasks: list[str]) -> list[dict[str, str]]:
    found = [json.loads(task) for task in tasks]
    return [{key: a for key, a in task.items() if (name, step, key) not in UNLIKE} for task in found]


@pytest.mark.processes
def test_the_nodes_of_a_step_leave_the_same_artifacts(project: Project, metaflow: Any) -> None:
    code = source(PARALLEL, "Several")
    theirs = metaflow(code, "run")
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    expected = json.loads(metaflow(LOOK, "Several").stdout)["steps"]
    ours(project, code)
    project.upshift("run", "flow.py:Several")
    project.write(migrated(LOOK, "look.py")[0], "look.py", header="")
    found = json.loads(project.python("look.py", "Several").out)["steps"]
    assert len(expected["train"]) == 3
    for step in ("train", "join", "end"):
        assert told("Several", step, found[step]) == told("Several", step, expected[step])


@pytest.mark.processes
def test_show_has_the_same_words(project: Project, metaflow: Any) -> None:
    code = source(FLOWS["Classes"], "Classes")
    theirs = metaflow(code, "show")
    ours(project, code)
    shown = project.python("flow.py", "show").out
    for word in ("A flow of flows.", "start", "Begin.", "end", "Say what is known."):
        assert word in theirs.stdout + theirs.stderr
        assert word in shown


@pytest.mark.processes
@pytest.mark.parametrize(
    ("place", "statement", "words"),
    [*(("start", *one) for one in FAILS.items()), *(("join", *one) for one in JOINS.items())],
)
def test_a_step_that_fails_there_fails_here(
    place: str, statement: str, words: str, project: Project, metaflow: Any
) -> None:
    code = source(START.format(**{"start": "pass", "join": "pass", "end": "pass", place: statement}), "Wrong")
    assert metaflow(code, "run").returncode == 1
    ours(project, code)
    failed = project.upshift("run", "flow.py:Wrong", expect=1)
    assert words in failed.err
    assert "where: flow.py:" in failed.err


@pytest.mark.processes
@pytest.mark.parametrize(("statement", "words"), [*REFUSED.items(), *NODES.items()])
def test_a_flow_that_cannot_run_there_cannot_run_here(
    statement: str, words: str, project: Project, metaflow: Any
) -> None:
    shape = OF_NODES if statement in NODES else REFUSABLE
    code = source(shape.replace("STATEMENT", statement), "Refused")
    theirs = metaflow(code, "check")
    assert theirs.returncode == 1, theirs.stdout
    ours(project, code)
    refused = project.upshift("plan", "flow.py:Refused", expect=2)
    assert words in refused.err
    assert "where: flow.py:" in refused.err
