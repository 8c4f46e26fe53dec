"""``@checkpoint`` of flows: what Metaflow's ``current.checkpoint`` saves, finds and loads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import upshift
from project import Project
from upshift import SettingsError, UsageError, checkpoint
from upshift.authoring.flow.checkpoints import FlowCheckpoint

pytestmark = pytest.mark.processes

HEADER = """import os
from pathlib import Path
from upshift import FlowSpec, checkpoint, current, parallel, retry, step
"""

TRAINING = """
class Training(FlowSpec):
    @step
    def start(self):
        self.next(self.train)

    @retry(times=1, minutes_between_retries=0)
    @checkpoint
    @step
    def train(self):
        own = current.checkpoint
        state = Path(own.directory, "state")
        self.began = (own.is_loaded, own.info and (own.info.name, own.info.metadata["epoch"]))
        epoch = int(state.read_text()) if own.is_loaded else 0
        while epoch < 4:
            if epoch == 2 and current.retry_count == 0:
                os._exit(1)
            epoch += 1
            state.write_text(str(epoch))
            saved = own.save(name=f"epoch-{epoch}", metadata={"epoch": epoch})
            if epoch == 3:
                self.best = saved
        self.listed = [one["name"] for one in own.list()]
        self.first = own.list(attempt=0, name="epoch-2")[0].key
        self.next(self.end)

    @checkpoint(load_policy="none")
    @step
    def end(self):
        Path(current.checkpoint.directory, "else").touch()
        current.checkpoint.load(self.best)
        self.files = sorted(os.listdir(current.checkpoint.directory))
        current.checkpoint.load(self.best, path="copy")
        self.epoch = Path("copy", "state").read_text()
"""


def flow(project: Project, code: str) -> None:
    project.write(code, "flow.py", header=HEADER)


def test_an_attempt_goes_on_from_what_the_one_before_has_saved(project: Project) -> None:
    flow(project, TRAINING)
    done = project.upshift("run", "flow.py")
    output = upshift.get_run("latest").output
    assert output.began == (True, ("epoch-2", 2))
    assert "train continues from checkpoint 1.2" in done.out
    # What is not referred to any more has gone, as the next one replaces it.
    assert output.listed[0] in ("epoch-4", "epoch-3")
    assert {"epoch-3", "epoch-2"} <= {*output.listed}
    assert output.first == f"Training/{upshift.get_run('latest').id}/train/0/0/epoch-2.1"
    # The one that was kept as an artifact is loaded by another step.
    assert (output.files, output.epoch) == (["state"], "3")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda own: own.save(), "there is nothing to save in"),
        (lambda own: own.save("no-such-file"), "there is nothing to save in no-such-file"),
        (lambda own: own.save(__file__, metadata={"a": {1}}), "metadata of a checkpoint cannot be kept"),
        (lambda own: own.load("Training/1/train/1"), "is not a checkpoint that can be loaded"),
        (lambda own: own.list(task="a/b"), "checkpoints of other tasks cannot be listed"),
    ],
)
def test_what_cannot_be_saved_or_loaded_is_said(use: Callable[[FlowCheckpoint], object], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        use(FlowCheckpoint("Training/1/train/0", load=False))
    assert refused.value.where is not None
    assert __file__.rpartition("/")[2] in refused.value.where


def test_node_0_saves_for_a_step_on_several_nodes(project: Project) -> None:
    code = """
class Several(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @retry(times=1, minutes_between_retries=0)
    @checkpoint
    @parallel
    @step
    def train(self):
        own = current.checkpoint
        self.loaded = (own.is_loaded, os.listdir(own.directory))
        if not own.is_loaded and (current.rank == 0 or EVERY):
            own.save("flow.py")
        if not own.is_loaded:
            raise ValueError("once more")
        self.next(self.join)

    @step
    def join(self, inputs):
        self.loaded = [one.loaded for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass
"""
    flow(project, code.replace("EVERY", "True"))
    failed = project.upshift("run", "flow.py", expect=None).err  # the second attempt may find a checkpoint
    assert "node 1 saves a checkpoint, and so would node 0" in failed
    code = code.replace("if not own.is_loaded:\n", "if not own.is_loaded and current.rank == 0:\n")
    flow(project, code.replace("EVERY", "False").replace('"flow.py"', '"flow.py", name="mine"'))
    project.upshift("run", "flow.py")
    assert upshift.get_run("latest").output.loaded == [(True, ["flow.py"])] * 2


def test_what_the_decorator_cannot_do_is_said() -> None:
    with pytest.raises(SettingsError, match="load_policy='eager' is not supported"):
        checkpoint(load_policy="eager")
    with pytest.raises(SettingsError, match="temp_dir_root is not supported"):
        checkpoint(temp_dir_root="/mnt")
    with pytest.raises(SettingsError, match="no option 'load'"):
        checkpoint(load="fresh")


def test_a_step_of_a_function_does_without_it(project: Project) -> None:
    code = "from upshift import pipeline\n@checkpoint\n@step\ndef one(): ...\n@pipeline\ndef ones(): one()\n"
    project.write(code, header=HEADER)
    refused = project.upshift("run", "pipeline.py", expect=2).err
    assert "step 'one' has @checkpoint, and is not a step of a flow" in refused
    assert "Every step has upshift.current.checkpoint" in refused
