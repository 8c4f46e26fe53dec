"""Flows run: shapes, artifacts, parameters, failures, and the command line of a flow's own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import upshift
from project import Project
from upshift.report.views.run import result_of

HEADER = "from upshift import FlowSpec, JSONType, Parameter, current, retry, step\n"

TRAINING = """
class Training(FlowSpec):
    depths = Parameter("depths", default=[2, 4, 8], type=JSONType)
    scale = Parameter("scale", default=1.5, help="What scores are multiplied by.")
    names = Parameter("names", separator=",", default="a,b")

    @step
    def start(self):
        self.name = "digits"
        self.next(self.train, foreach="depths")

    @step
    def train(self):
        print("training", self.input)
        self.score = self.input * self.scale
        self.position = self.index
        self.next(self.join)

    @step
    def join(self, inputs):
        self.scores = [one.score for one in inputs]
        self.positions = [one.position for one in inputs]
        self.merge_artifacts(inputs, include=["name"])
        self.next(self.end)

    @step
    def end(self):
        self.told = [self.name, self.scale, self.names]

if __name__ == "__main__":
    Training()
"""


def flow(project: Project, code: str) -> None:
    project.write(code, "flow.py", header=HEADER)


def test_an_item_that_is_changed_in_place_is_the_same_in_the_steps_that_follow(project: Project) -> None:
    project.write(
        """
from upshift import FlowSpec, step

class Items(FlowSpec):
    @step
    def start(self):
        self.items = [[1], [2]]
        self.next(self.change, foreach="items")

    @step
    def change(self):
        self.input.append(9)
        self.seen = [self.input, self.foreach_stack()[0][2]]
        self.next(self.look)

    @step
    def look(self):
        self.told = (self.seen, self.input)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.told = [one.told for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
""",
        "flow.py",
        header="",
    )
    project.upshift("run", "flow.py")
    assert upshift.get_run("latest").output.told == [([[n, 9], [n, 9]], [n]) for n in (1, 2)]


def test_a_foreach_is_joined_in_the_order_of_its_list(project: Project) -> None:
    flow(project, TRAINING)
    project.upshift("run", "flow.py", "-p", "scale=2")
    run = upshift.get_run("latest")
    assert run.output.scores == [4.0, 8.0, 16.0]
    assert run.output.positions == [0, 1, 2]
    assert run.output.told == ["digits", 2.0, ["a", "b"]]
    assert [task.index for task in run["train"].tasks] == [0, 1, 2]
    assert run.params == {"depths": [2, 4, 8], "scale": 2.0, "names": "a,b"}


@pytest.mark.processes
def test_a_flow_is_run_by_its_own_file(project: Project) -> None:
    flow(project, TRAINING)
    done = project.python(
        "flow.py", "run", "--depths", "[3]", "--names=x,y", "--run-id-file", "id", "-t", "mine"
    )
    assert "completed" in done.err
    run = upshift.get_run((project.folder / "id").read_text())
    assert run.output.told == ["digits", 1.5, ["x", "y"]]
    assert run.tags == ("mine",)
    shown = project.python("flow.py", "show").out
    for text in (
        "Training · flow.py:3",
        "--scale",
        "What scores are multiplied by.",
        "for each item → train",
    ):
        assert text in shown
    assert "nothing is wrong with its 4 steps" in project.python("flow.py", "check").out
    assert "is already complete" in project.python("flow.py", "resume").err
    assert "training 3" in project.python("flow.py", "logs", "latest").out
    assert "plan of Training" in project.python("flow.py", "plan").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--scale", "x"], ["'scale'", "does not fit", "number"]),
        (["run", "--scael", "1"], ["--scael"]),
        (["rnu"], ["Did you mean 'run'?"]),
    ],
)
@pytest.mark.processes
def test_what_is_typed_wrong_is_said(project: Project, arguments: list[str], words: list[str]) -> None:
    flow(project, TRAINING)
    outcome = project.python("flow.py", *arguments, expect=2)
    for word in words:
        assert word in outcome.err


EVERY_SHAPE = """
class Shapes(FlowSpec):
    n = Parameter("n", default=2)

    @step
    def start(self):
        self.xs = list(range(self.n))
        self.next(self.outer, foreach="xs")

    @step
    def outer(self):
        self.ys = "ab"[: self.input + 1]
        self.ys = list(self.ys)
        self.next(self.inner, foreach="ys")

    @step
    def inner(self):
        self.stack = self.foreach_stack()
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.stacks = [one.stack for one in inputs]
        self.mine = (self.index, self.input)
        self.next(self.close)

    @step
    def close(self, inputs):
        self.stacks = [one.stacks for one in inputs]
        self.mine = [one.mine for one in inputs]
        self.count = 0
        self.next(self.again)

    @step
    def again(self):
        self.count += 1
        self.more = self.count < 3
        self.next({True: self.again, False: self.choose}, condition="more")

    @step
    def choose(self):
        self.kind = "two"
        self.next({"one": self.single, "two": self.double}, condition="kind")

    @step
    def single(self):
        self.next(self.end)

    @step
    def double(self):
        self.next(self.left, self.right)

    @step
    def left(self):
        self.side = "L"
        self.next(self.meet)

    @step
    def right(self):
        self.side = "R"
        self.next(self.meet)

    @step
    def meet(self, inputs):
        self.side = inputs.left.side + inputs.right.side
        self.merge_artifacts(inputs)
        self.next(self.end)

    @step
    def end(self):
        pass
"""


def test_shapes_that_are_known_only_while_running(project: Project) -> None:
    flow(project, EVERY_SHAPE)
    project.upshift("run", "flow.py")
    run = upshift.get_run("latest")
    assert run.output.stacks == [
        [[(0, 2, 0), (0, 1, "a")]],
        [[(1, 2, 1), (0, 2, "a")], [(1, 2, 1), (1, 2, "b")]],
    ]
    assert run.output.mine == [(0, 0), (1, 1)]
    assert (run.output.count, run.output.kind, run.output.side) == (3, "two", "LR")
    names = [shown["name"] for shown in project.show()["steps"]]
    assert names.index("inner.0") < names.index("gather.0") < names.index("close")
    assert {"outer.0", "outer.1", "inner.1", "again", "again#2", "again#3", "left", "end"} <= set(names)
    assert "single" not in names
    assert "again#2" in project.upshift("show", "latest").out
    assert "gather.1" in project.upshift("report", "latest", "-o", "-").out
    planned = project.upshift("plan", "flow.py").out
    assert "plan of Shapes · 1 step" in planned
    assert "as steps choose while the run goes on: outer, inner, gather" in planned


def test_a_foreach_over_nothing_joins_nothing(project: Project) -> None:
    flow(project, TRAINING.replace('self.merge_artifacts(inputs, include=["name"])', 'self.name = "none"'))
    project.upshift("run", "flow.py", "-p", "depths=[]")
    run = upshift.get_run("latest")
    assert run.output.scores == []
    assert run.output.told == ["none", 1.5, ["a", "b"]]


FAILING = """
import os

class Failing(FlowSpec):
    @step
    def start(self):
        self.xs = [1, 2]
        open("started", "a").write("x")
        self.next(self.outer, foreach="xs")

    @step
    def outer(self):
        self.ys = [self.input, self.input * 10]
        self.next(self.inner, foreach="ys")

    @retry(times=1, minutes_between_retries=0)
    @step
    def inner(self):
        if current.attempt == 1 and self.input == 1:
            raise ValueError("the first attempt")
        if self.input == 20 and not os.path.exists("mended"):
            raise ValueError("not mended")
        self.y = self.input
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.y = sum(one.y for one in inputs)
        self.next(self.close)

    @step
    def close(self, inputs):
        self.y = [one.y for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
"""


def test_a_run_that_failed_deep_inside_is_resumed(project: Project) -> None:
    flow(project, FAILING)
    failed = project.upshift("run", "flow.py", expect=1)
    assert "inner.1[1] failed in attempt 2" in failed.err
    assert "flow.py:" in failed.err
    (project.folder / "mended").touch()
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").output.y == [11, 22]
    assert (project.folder / "started").read_text() == "x"


def test_results_are_reused_only_where_a_step_asks_for_it(project: Project) -> None:
    code = """
class Cached(FlowSpec):
    @step
    def start(self):
        self.x = 1
        self.next(self.middle)

    @step(cache=True)
    def middle(self):
        self.next(self.end)

    @step
    def end(self):
        pass
"""
    for reused in (False, True):
        flow(project, code)
        project.upshift("run", "flow.py")
        run = upshift.get_run("latest")
        assert [run[name].task.cached for name in ("start", "middle", "end")] == [False, reused, False]
    assert run["start"].task.code == {}
    assert run["middle"].task.code


def test_editing_a_flow_does_not_undo_what_is_done(project: Project) -> None:
    """As in Metaflow; only steps that say cache=True are done again when their code has changed."""
    flow(project, FAILING)
    project.upshift("run", "flow.py", expect=1)
    flow(project, FAILING.replace('raise ValueError("not mended")', "pass"))
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").output.y == [11, 22]
    assert (project.folder / "started").read_text() == "x"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("self.alpha = 1", ["self.alpha is a parameter", "another name"]),
        ("self.each = 1", ["self.each is a step", "another name"]),
        ("self.limit = 1", ["self.limit is a constant of the class", "another name"]),
        ("self.mine = self", ["neither a flow nor the inputs of a join can be saved", "part of an artifact"]),
        ("self.merge_artifacts([])", ["step 'work' joins nothing"]),
        ("self.next = 1", ["self.next is a method of every flow", "another name"]),
        ("print(self.nothing)", ["has no attribute 'nothing'", "Known: alpha, limit, xs"]),
        ("self.xs = 3", ["foreach='xs'", "is 3, which is not a list"]),
        ("return", ["ended without self.next"]),
    ],
)
def test_what_a_step_does_wrong_is_said_with_its_line(
    project: Project, statement: str, words: list[str]
) -> None:
    code = f"""
class Wrong(FlowSpec):
    limit = 3
    alpha = Parameter("alpha", default=1)

    @step
    def start(self):
        self.xs = [1]
        self.next(self.work)

    @step
    def work(self):
        {statement}
        self.next(self.each, foreach="xs")

    @step
    def each(self):
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass
"""
    flow(project, code)
    failed = project.upshift("run", "flow.py", expect=1)
    for word in words:
        assert word in failed.err
    assert "where: flow.py:" in failed.err


CLASSES = """
class Shared:
    greeting = "hello"

    def greet(self, who):
        return f"{self.greeting} {who}"

class Base(Shared, FlowSpec):
    sizes = [1, 2]

    def __init__(self, *args, **kwargs):
        self.early = 1
        super().__init__(*args, **kwargs)

    @step
    def start(self):
        self.first = [self.name, str(self), self.early, self.input, self.index]
        self.early = 2
        self.letters = "ab"
        self.next(self.each, foreach="letters")

    @step
    def each(self):
        self.said = self.greet(self.input)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.said = [one.said for one in inputs]
        self.merge_artifacts(inputs, include=["first", "early"])
        self.next(self.end)

    @step
    def end(self):
        self.ended = "base"

class Derived(Base):
    made = Parameter("made", default=lambda context: context.flow_name + "." + context.parameter_name)
    table = Parameter("table", default='{"a": [1]}', type=JSONType)

    @property
    def total(self):
        return sum(self.sizes)

    @step
    def end(self):
        super().end()
        self.ended += " and more"
        self.seen = [self.made, self.table, self.total, self.early]

if __name__ == "__main__":
    Derived()
"""


def test_a_flow_is_a_class_like_any_other(project: Project) -> None:
    """Bases, mixins, constants, properties, __init__ and super() do what they do elsewhere."""
    flow(project, CLASSES)
    project.upshift("run", "flow.py:Derived")
    run = upshift.get_run("latest")
    assert run.output.said == ["hello a", "hello b"]
    assert run.output.first == ["Derived", "<flow Derived step start>", 1, None, None]
    assert run.output.ended == "base and more"
    assert run.output.seen == ["Derived.made", {"a": [1]}, 3, 2]
    assert (run.output.sizes, run.output.greeting) == ([1, 2], "hello")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('Parameter("n", default=lambda context: 1 / 0)', ["default of parameter 'n'", "ZeroDivisionError"]),
        ('Parameter("n", default="{a", type=JSONType)', ["Parameter('n')", "is not valid JSON"]),
    ],
)
def test_a_default_that_is_none_is_said_before_anything_runs(
    project: Project, code: str, words: list[str]
) -> None:
    flow(
        project,
        f"""
class Defaults(FlowSpec):
    n = {code}

    @step
    def start(self):
        self.next(self.end)

    @step
    def end(self):
        pass
""",
    )
    failed = project.upshift("run", "flow.py", expect=2)
    for word in (*words, "flow.py:4"):
        assert word in failed.err


def test_values_that_differ_are_not_merged(project: Project) -> None:
    flow(project, TRAINING.replace(', include=["name"]', ""))
    failed = project.upshift("run", "flow.py", "-p", "depths=[2, 4]", expect=1)
    for word in ("merge_artifacts: position, score have several values", "exclude=", "flow.py:"):
        assert word in failed.err


def test_what_a_step_does_not_touch_is_not_loaded(project: Project) -> None:
    flow(
        project,
        """
class Loud:
    def __init__(self):
        self.x = 1

    def __setstate__(self, state):
        open("loaded", "a").write("x")
        self.__dict__.update(state)

class Lazy(FlowSpec):
    @step
    def start(self):
        self.loud = Loud()
        self.small = [1]
        self.next(self.middle)

    @step
    def middle(self):
        self.small.append(2)
        self.next(self.end)

    @step
    def end(self):
        pass
""",
    )
    project.upshift("run", "flow.py")
    assert not (project.folder / "loaded").exists()
    assert upshift.get_run("latest").output.small == [1, 2]
    look = "import upshift; print(upshift.get_run('latest').output.loud.x)"
    assert project.python("-c", look).out == "1\n"


def test_garbage_collection_keeps_what_states_refer_to(project: Project) -> None:
    flow(
        project,
        """
class Large(FlowSpec):
    @step
    def start(self):
        self.large = bytes(100_000)
        for number in range(40):
            setattr(self, f"small_{number}", "x" * number)  # the state itself is too large for its record
        self.next(self.end)

    @step
    def end(self):
        pass
""",
    )
    project.upshift("run", "flow.py")
    project.upshift("gc")
    assert upshift.get_run("latest").output.large == bytes(100_000)


def test_a_flow_of_metaflow_runs_when_its_import_is_changed(project: Project) -> None:
    """Its page on accelerators, word for word; what this machine has not got is said."""
    project.write("def my_gpu_routine(): print('on the way')\n", "my_script.py", header="")
    code = """
from upshift import FlowSpec, step, resources

class GPUFlow(FlowSpec):

    @resources(memory=32000, cpu=4, gpu=1)
    @step
    def start(self):
        from my_script import my_gpu_routine
        my_gpu_routine()
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == '__main__':
    GPUFlow()
"""
    project.write(code, "gpuflow.py", header="")
    done = project.upshift("run", "gpuflow.py")
    assert "[start] on the way" in done.out
    assert "asked 1 × GPU, gets none: this machine has none" in done.err
    assert project.attempt("start")["asked"]["memory"] == 32_000_000_000


def test_what_a_run_made_is_told_by_artifact(project: Project) -> None:
    flow(project, TRAINING)
    project.upshift("run", "flow.py")
    shown = project.upshift("show", "latest").out
    assert "cache=False" not in shown
    table = shown.partition("\noutput ")[2].splitlines()[2:]
    assert [line.split()[:-2] for line in table] == [
        ["start.name", "str"],
        ["train.score", "3", "×", "float"],
        ["train.position", "3", "×", "int"],
        ["join.scores", "list"],
        ["join.positions", "list"],
        ["end.told", "list"],
    ]
    (task,) = [
        line for line in project.upshift("show", "latest", "train[1]").out.splitlines() if ".score" in line
    ]
    assert task.split()[:4] == ["train.score", "1", "×", "float"]
    results = [value.name for value in result_of(upshift.get_run("latest"))]
    assert sorted(results) == ["name", "positions", "scores", "told"]


def test_the_record_of_a_run_is_plain_json(project: Project, tmp_path: Path) -> None:
    flow(project, TRAINING)
    project.upshift("run", "flow.py")
    shown = json.loads(project.upshift("show", "latest", "--json").out)
    assert [step["name"] for step in shown["steps"]] == ["start", "train", "join", "end"]
    assert len(shown["steps"][1]["tasks"]) == 3
