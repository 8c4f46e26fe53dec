"""Steps of flows on several nodes at once: ``num_parallel`` with ``@parallel``."""

from __future__ import annotations

import re
from typing import Any

import pytest

import upshift
from project import Project
from upshift import UpshiftError
from upshift.authoring.flow.parallel import Parallel, TorchRun

pytestmark = pytest.mark.processes

HEADER = (
    "import os\nfrom upshift import FlowSpec, Parameter, catch, current, parallel, retry, step, torchrun\n"
)
TARGETS = """
[targets.three]
backend = "local"
options = { nodes = 3 }
[targets.two]
backend = "local"
options = { nodes = 2 }
"""

TRAINING = """
class Training(FlowSpec):
    nodes = Parameter("nodes", default=2)
    fail = Parameter("fail", default="no")

    @step
    def start(self):
        self.common = "c"
        self.next(self.train, num_parallel=self.nodes + 1)

    @retry(times=1, minutes_between_retries=0)
    @parallel
    @step
    def train(self):
        own = current.parallel
        if own.node_index == 1 and self.fail == ("once" if current.retry_count == 0 else "always"):
            raise ValueError("this node fails")
        self.place = (own.node_index, own.num_nodes, own.control_task_id, current.is_parallel)
        self.where = (self.input, self.index, self.foreach_stack())
        self.tasks = (current.task_id, current.retry_count, own.main_ip == os.environ["MASTER_ADDR"])
        self.next(self.join)

    @step
    def join(self, inputs):
        self.places = [one.place for one in inputs]
        self.wheres = [one.where for one in inputs]
        self.tasks = [one.tasks for one in inputs]
        self.first = inputs.train.place
        self.outside = (self.input, self.index, self.foreach_stack(), current.is_parallel)
        self.merge_artifacts(inputs, include=["common"])
        self.next(self.end)

    @step
    def end(self):
        pass
"""


def flow(project: Project, code: str) -> None:
    project.write(code, "flow.py", header=HEADER)
    (project.folder / "upshift.toml").write_text(TARGETS)


@pytest.mark.parametrize(
    ("target", "nodes"),
    [("local", 3), ("three", 3), ("two", 4)],
    ids=["processes of one machine", "a node each", "two on each node"],
)
def test_the_artifacts_of_every_node_are_joined(project: Project, target: str, nodes: int) -> None:
    flow(project, TRAINING)
    project.upshift("run", "flow.py", "--on", target, "-p", f"nodes={nodes - 1}", "-p", "fail=once")
    output = upshift.get_run("latest").output
    assert output.places == [(index, nodes, "0", True) for index in range(nodes)]
    assert output.wheres == [(index, index, [(index, None, index)]) for index in range(nodes)]
    names = ["0", *(f"0_node_{index}" for index in range(1, nodes))]
    assert output.tasks == [(name, 1, True) for name in names]  # all of them a second time
    assert output.first == output.places[0]
    assert (output.outside, output.common) == ((None, None, [], False), "c")


def test_a_node_that_fails_ends_all_and_is_named(project: Project) -> None:
    flow(project, TRAINING.replace('self.fail == ("once" if current.retry_count == 0 else "always")', "True"))
    failed = project.upshift("run", "flow.py", "--on", "three", expect=1)
    assert "step train failed on rank 1, node 127.0.0.2 in attempt 2 (user-error): ValueError" in failed.err
    assert "where: flow.py:" in failed.err
    project.upshift("resume", "latest", expect=1)
    flow(project, TRAINING)
    project.upshift("resume", "latest")
    assert len(upshift.get_run("latest").output.places) == 3


IN_A_FOREACH = """
N = 2

class Several(FlowSpec):
    letters = "ab"

    @step
    def start(self):
        self.next(self.outer, foreach="letters")

    @step
    def outer(self):
        self.letter = self.input
        self.next(self.train, num_parallel=N)

    @catch(var="why", print_exception=False)
    @parallel
    @step
    def train(self):
        self.told = (self.letter, self.index, self.foreach_stack(), current.parallel.control_task_id)
        if (self.letter, self.index) == ("b", 1):
            raise ValueError("caught")
        self.next(self.close)

    @step
    def close(self, inputs):
        self.told = [one.told for one in inputs]
        self.whys = ["caught" in str(one.why) for one in inputs]
        self.next(self.join)

    @step
    def join(self, inputs):
        self.told = [one.told for one in inputs]
        self.whys = [one.whys for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
"""

MAIN = """
if __name__ == "__main__":
    Several()
"""


def test_each_item_of_a_foreach_may_have_nodes_of_its_own(project: Project) -> None:
    flow(project, IN_A_FOREACH)
    project.upshift("run", "flow.py")
    output = upshift.get_run("latest").output
    assert output.told == [
        [(letter, node, [(item, 2, letter), (node, None, node)], str(item)) for node in range(2)]
        for item, letter in enumerate("ab")
    ]
    assert output.whys == [[False, False], [False, True]]


def test_each_node_is_a_task_to_whoever_looks(project: Project) -> None:
    flow(
        project,
        IN_A_FOREACH.replace("raise", "print('node', self.index, 'raises')\n            raise") + MAIN,
    )
    project.upshift("run", "flow.py")
    run = upshift.get_run("latest")
    step = run["train"]
    assert [task.id for task in step] == ["0", "0_node_1", "1", "1_node_1"]
    assert [task.data.told[:2] for task in step] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert [task.id for task in step.control_tasks()] == ["0", "1"]
    assert step.control_task.pathspec == step.task.pathspec == f"{run.pathspec}/train/0"
    assert run["start"].control_task is None
    node = upshift.Task(f"{run.pathspec}/train/1_node_1")
    assert node.stdout == "node 1 raises\n"
    assert (
        node["told"].data
        == upshift.DataArtifact(f"{node.pathspec}/told").data
        == ("b", 1, *node.data.told[2:])
    )
    assert [task.id for task in run["close"]["1"].parent_tasks] == ["1", "1_node_1"]
    assert [task.id for task in run["outer"]["0"].child_tasks] == ["0", "0_node_1"]
    assert len(step.tasks) == len(step) == 2
    dumped = project.python("flow.py", "dump", "latest/train/1_node_1", "--include", "told").out
    assert dumped == f"{run.id}/train/1_node_1\n  told: {node.data.told!r}\n"


def test_a_number_of_nodes_that_changes_is_refused(project: Project) -> None:
    changed = TRAINING.replace("self.nodes + 1", "int(os.environ.get('UPSHIFT_NODES', 1 + bool(current)))")
    flow(project, changed)
    failed = project.upshift("run", "flow.py", expect=1)
    assert "num_parallel is 2, and was 1 before the run" in failed.err
    assert "where: flow.py:" in failed.err


def test_a_plan_and_show_tell_of_the_nodes(project: Project) -> None:
    flow(project, TRAINING)
    planned = project.upshift("plan", "flow.py").out
    assert "parallel, 3 processes: flow.py:" in planned
    assert "asked 3 nodes, gets 1: this is one machine" in planned
    assert "num_parallel" in project.upshift("plan", "flow.py", "-p", "nodes=-1", expect=2).err
    refused = project.upshift("run", "flow.py", "--strict", expect=2).err
    assert "asked 3 nodes, gets 1" in refused


def test_a_step_of_a_function_has_no_nodes_of_a_flow(project: Project) -> None:
    project.write(
        "from upshift import pipeline\n@parallel\n@step\ndef one(): ...\n@pipeline\ndef ones(): one()\n",
        header=HEADER,
    )
    refused = project.upshift("run", "pipeline.py", expect=2).err
    assert "step 'one' has @parallel, and is not a step of a flow" in refused
    assert "@run_with_torchrun(nproc_per_node=2)" in refused


TORCHRUN = """
class Trained(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @torchrun(nproc_per_node=1)
    @step
    def train(self):
        current.torch.run(entrypoint="train.py", entrypoint_args={"epochs": 3, "quick": None})
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass
"""
SCRIPT = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:])
"""


def test_torchrun_starts_a_script_on_every_node(project: Project) -> None:
    pytest.importorskip("torch")
    flow(project, TORCHRUN)
    project.write(SCRIPT, "train.py", header="")
    done = project.upshift("run", "flow.py:Trained")
    for rank in range(2):
        assert f"[train] [rank {rank}] rank {rank} of 2 ['--epochs', '3', '--quick']" in done.out


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "current.torch.run has no script to run"),
        ({"entrypoint": "a.py", "cloud_output_dir": "s3://a"}, "no option 'cloud_output_dir'"),
        ({"entrypoint": "a.py", "nproc_per_node": 0}, "nproc_per_node=0 is invalid"),
    ],
)
def test_what_torchrun_cannot_do_is_said(said: dict[str, Any], words: str) -> None:
    with pytest.raises(UpshiftError, match=re.escape(words)) as refused:
        TorchRun(Parallel(), processes=1, port=None).run(**said)
    assert refused.value.where is not None
    assert __file__.rpartition("/")[2] in refused.value.where


OWN_BODY = """
from upshift import run_with_torchrun

class Body(FlowSpec):
    @step
    def start(self):
        self.common = "c"
        self.next(self.train)

    @run_with_torchrun(nproc_per_node=2)
    @step
    def train(self):
        self.mine = (current.rank, current.world_size, current.parallel.num_nodes, current.is_parallel)
        self.letters = "ab"
        self.next(self.each, foreach="letters")

    @run_with_torchrun(nproc_per_node=2)
    @step
    def each(self):
        self.rank = current.rank
        self.next(self.join)

    @step
    def join(self, inputs):
        self.ranks = [(one.input, one.rank, one.common, one.mine) for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
"""


def test_the_body_of_a_step_may_be_run_by_several_processes_of_which_the_first_counts(
    project: Project,
) -> None:
    flow(project, OWN_BODY)
    project.upshift("run", "flow.py")
    mine = (0, 2, 1, False)
    assert upshift.get_run("latest").output.ranks == [("a", 0, "c", mine), ("b", 0, "c", mine)]
