"""Runs looked at as with Metaflow's client, and flows run from Python."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import upshift
from project import Project
from upshift import DataArtifact, Flow, Metaflow, Run, Runner, Step, Task
from upshift.authoring.flow.runner import ExecutingRun
from upshift.errors import MisuseError, NotFound, UsageError

SHAPES = """
from upshift import FlowSpec, Parameter, step

class Shapes(FlowSpec):
    scale = Parameter("scale", default=10)
    fail = Parameter("fail", default=False)

    @step
    def start(self):
        self._hidden = 1
        self.xs = [1, 2]
        self.next(self.outer, foreach="xs")

    @step
    def outer(self):
        self.ys = [self.input, self.input + 1]
        self.next(self.inner, foreach="ys")

    @step
    def inner(self):
        print("inner", self.input)
        self.y = self.input * self.scale
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.y = sum(one.y for one in inputs)
        self.next(self.close)

    @step
    def close(self, inputs):
        self.total = sum(one.y for one in inputs)
        self.count = 0
        self.next(self.again)

    @step
    def again(self):
        self.count += 1
        self.more = self.count < 3
        self.next({True: self.again, False: self.end}, condition="more")

    @step
    def end(self):
        if self.fail:
            raise ValueError("as asked")

if __name__ == "__main__":
    Shapes()
"""


@pytest.fixture(autouse=True)
def own_namespace() -> Iterator[None]:
    yield
    upshift.default_namespace()


@pytest.fixture
def shapes(project: Project) -> Project:
    project.write(SHAPES, "flow.py", header="")
    project.upshift("run", "flow.py", "--tag", "mine")
    return project


def test_a_run_is_looked_at_from_its_flow_down_to_a_value(shapes: Project) -> None:
    run = Flow("Shapes").latest_run
    assert run is not None
    assert (run.successful, run.finished) == (True, True)
    assert run.finished_at is not None
    assert run.created_at < run.finished_at
    assert run.data is not None
    assert run.data.total == 80
    assert run["start"].task.data.xs == [1, 2]
    assert "xs" in run["start"].task.data
    assert run["start"].task.artifacts.xs.data == [1, 2]
    assert [artifact.id for artifact in run["start"].task] == ["scale", "fail", "xs"]
    assert run["close"].task["total"].data == 80
    assert run.end_task is not None
    assert run.end_task.pathspec == f"Shapes/{run.id}/end/0"


def test_a_step_has_all_of_its_tasks_wherever_in_a_foreach_or_a_loop(shapes: Project) -> None:
    run = Run(f"Shapes/{upshift.get_run('latest').id}")
    assert [step.id for step in run] == ["start", "outer", "inner", "gather", "close", "again", "end"]
    assert [task.data.y for task in run["inner"]] == [10, 20, 20, 30]
    assert [task.id for task in run["inner"]] == ["0.0", "0.1", "1.0", "1.1"]
    assert run["inner"]["1.1"].stdout == "inner 3\n"
    assert [task.data.count for task in run["again"]] == [1, 2, 3]
    assert [task.id for task in run["again"]] == ["0", "#2", "#3"]
    assert len(run["inner"]) == len(list(run["inner"].tasks())) == 4
    assert [step.id for step in run.steps()] == [step.id for step in run]
    assert run["inner"].status == "completed"
    assert run["inner"].output[3].y == 30  # type: ignore[index]
    assert run["again"].parent.id == run.id
    with pytest.raises(NotFound, match="has no task '7'"):
        run["inner"]["7"]


def test_all_is_found_by_its_place(shapes: Project) -> None:
    at = f"Shapes/{upshift.get_run('latest').id}"
    assert Run(at).pathspec == at
    assert Step(f"{at}/inner").pathspec == f"{at}/inner"
    assert Task(f"{at}/inner/0.1").pathspec == f"{at}/inner/0.1"
    assert Task(f"{at}/inner/0.1").parent.id == "inner"
    artifact = DataArtifact(f"{at}/inner/0.1/y")
    assert (artifact.data, artifact.pathspec) == (20, f"{at}/inner/0.1/y")
    assert artifact.size == 2
    assert artifact.sha
    for place, words in {
        f"{at}/inner": "is not a place of a task",
        f"{at}/inner/0.1/y/z": "not a place of a task",
    }.items():
        with pytest.raises(UsageError, match=words):
            Task(place)
    with pytest.raises(NotFound, match="is one of Shapes, not of 'Other'"):
        Run(f"Other/{Run(at).id}")
    with pytest.raises(NotFound, match="has no artifact 'yy'"):
        DataArtifact(f"{at}/inner/0.1/yy")


def test_why_a_task_failed_is_told(shapes: Project) -> None:
    shapes.upshift("run", "flow.py", "-p", "fail=true", expect=1)
    flow = Flow("Shapes")
    assert flow.latest_run is not None
    assert flow.latest_successful_run is not None
    assert flow.latest_run.id != flow.latest_successful_run.id
    assert [run.successful for run in flow] == [False, True]
    assert flow.latest_run.data is None
    task = flow.latest_run["end"].task
    assert task is not None
    assert (task.finished, task.successful) == (True, False)
    assert task.exception is not None
    assert task.exception.message == "ValueError: as asked"


def test_tags_are_given_and_taken(shapes: Project) -> None:
    run = Flow("Shapes").latest_run
    assert run is not None
    assert run.user_tags == {"mine"}
    assert f"user:{run.user}" in run.system_tags
    run.add_tag("good")
    run.replace_tag("mine", ["better", "best"])
    run.remove_tags(["best"])
    assert run.tags == upshift.get_run("latest").tags == ("good", "better")
    assert [found.id for found in Flow("Shapes").runs("good", "better")] == [run.id]
    assert list(Flow("Shapes").runs("mine")) == []
    assert "good" in shapes.upshift("runs", "--tag", "good").out or run.id in shapes.upshift("runs").out
    with pytest.raises(UsageError, match="is not a tag"):
        run.add_tag(" ")


def test_a_namespace_is_what_is_seen(shapes: Project) -> None:
    user = upshift.get_namespace()
    assert user is not None
    assert user.startswith("user:")
    assert [flow.id for flow in Metaflow()] == ["Shapes"]
    assert upshift.namespace("user:nobody") == upshift.get_namespace() == "user:nobody"
    with pytest.raises(NotFound, match="no run in the namespace 'user:nobody'"):
        Flow("Shapes")
    assert list(Metaflow()) == []
    upshift.namespace("mine")
    assert Flow("Shapes").latest_run is not None
    upshift.namespace(None)
    assert Metaflow()["Shapes"].latest_run is not None
    assert upshift.default_namespace() == user
    assert upshift.get_metadata().startswith("local@/")
    with pytest.raises(NotFound, match="Other"):
        Flow("Other")


def test_a_pipeline_of_functions_is_looked_at_in_the_same_way(project: Project) -> None:
    project.write(
        """
        @step
        def double(x):
            return 2 * x

        @pipeline
        def doubling():
            return double.map([1, 2])
        """
    )
    project.upshift("run", "pipeline.py")
    run = Flow("doubling").latest_run
    assert run is not None
    assert [task.data.output for task in run["double"]] == [2, 4]
    assert Task(f"{run.pathspec}/double/1").artifacts.output.data == 4


def ran(runner: Runner, **given: object) -> ExecutingRun:
    """A run that is over, and had no reason to fail."""
    running = runner.run(**given)
    assert running.status == "successful", running.stderr
    return running


def test_a_flow_is_run_from_python(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write(SHAPES, "flow.py", header="")
    with Runner("flow.py", cwd=str(project.folder)) as runner:
        running = ran(runner, scale=2, tags=["mine"])
        assert running.run.data.total == 16
        assert running.run.tags == ("mine",)
        assert "inner 3" in running.stdout
        assert "inner 3" in capfd.readouterr().out
        folder = running.folder
        assert folder.exists()
    assert not folder.exists()


def test_a_run_from_python_may_fail_and_go_on(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write(SHAPES, "flow.py", header="")
    with Runner("flow.py", show_output=False, cwd=str(project.folder)) as runner:
        failed = runner.run(fail=True)
        assert (failed.status, failed.returncode, failed.run.successful) == ("failed", 1, False)
        assert "ValueError: as asked" in failed.stderr
        project.write(SHAPES.replace("if self.fail:", "if False:"), "flow.py", header="")
        resumed = runner.resume(origin_run_id=failed.run.id)
        assert (resumed.status, resumed.run.successful) == ("successful", True)
        refused = runner.run(scael=3)
        assert refused.status == "failed"
        with pytest.raises(UsageError, match="no run has begun: exit code 2"):
            _ = refused.run
    assert capfd.readouterr().out == ""
    with pytest.raises(UsageError, match="there is no file"):
        Runner("none.py")


def test_a_flow_is_followed_while_it_runs(project: Project) -> None:
    project.write(SHAPES, "flow.py", header="")

    async def follow() -> list[str]:
        async with Runner("flow.py", show_output=False, cwd=str(project.folder)) as runner:
            running = await runner.async_run()
            assert running.run.pipeline == "Shapes"
            lines = [line async for _, line in running.stream_log("stdout")]
            await running.wait(timeout=60)
            assert running.status == "successful"
            return lines

    assert sorted(line for line in asyncio.run(follow()) if "inner" in line) == [
        f"[inner.{i}[{j}]] inner {i + j + 1}" for i in (0, 1) for j in (0, 1)
    ]


def test_steps_and_tasks_know_what_is_before_and_after_them(shapes: Project) -> None:
    run = Flow("Shapes").latest_run
    assert run is not None

    def beside(step: str) -> tuple[list[str], list[str]]:
        return [one.id for one in run[step].parent_steps], [one.id for one in run[step].child_steps]

    assert beside("start")[0] == []
    assert beside("gather") == (["inner"], ["close"])
    assert beside("close")[0] == ["gather"]
    assert beside("again") == (["close", "again"], ["again", "end"])
    for step in run:
        for task in step:
            assert all(task.pathspec in before.child_task_pathspecs for before in task.parent_tasks)
            assert all(task.pathspec in after.parent_task_pathspecs for after in task.child_tasks)
    close = run["close"].task
    assert close is not None
    assert [one.pathspec for one in close.parent_tasks] == [one.pathspec for one in run["gather"]]
    assert close.data.total == sum(one.data.y for one in close.parent_tasks)


def test_what_has_a_place_has_the_tags_of_its_run(shapes: Project) -> None:
    run = Flow("Shapes").latest_run
    assert run is not None
    task = run["end"].task
    assert task is not None
    assert task.path_components == ["Shapes", run.id, "end", "0"]
    assert task["total"].system_tags == task.parent.system_tags == run.system_tags
    assert task.is_in_namespace
    assert task.metadata_dict["attempt"] == "0"
    assert {one.name: one.value for one in task.metadata} == task.metadata_dict
    assert [line for _, line in task.loglines("stdout")] == task.stdout.splitlines()
    assert task.stderr == "" and list(task.loglines("stderr")) == []  # it is in stdout
    upshift.namespace("user:nobody")
    assert not task.is_in_namespace
    with pytest.raises(NotFound, match=f"run {run.id} is not in the namespace 'user:nobody'"):
        upshift.Run(run.pathspec)
    upshift.namespace(None)
    assert upshift.Run(run.pathspec).is_in_namespace


NOTEBOOK = """
from IPython.testing.globalipapp import start_ipython
start_ipython().run_cell('''
from upshift import FlowSpec, NBRunner, Parameter, step
class Cell(FlowSpec):
    n = Parameter("n", default=2)
    @step
    def start(self):
        self.x = self.n * 2
        self.next(self.end)
    @step
    def end(self):
        pass
print("left", NBRunner(Cell, show_output=False).nbrun(n=4).data.x)
''', store_history=True)
"""


@pytest.mark.processes
def test_a_flow_in_a_cell_of_a_notebook_runs(project: Project) -> None:
    project.write(NOTEBOOK, "notebook.py", header="")
    assert "left 8" in project.python("notebook.py").out
    assert [path.name for path in project.folder.glob("Cell*")] == []
    with pytest.raises(MisuseError, match="this is no notebook"):
        upshift.NBRunner(upshift.FlowSpec)
