"""``upshift migrate``: imports are changed, all else stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from upshift.cli.other_tools import migrate, migrated
from upshift.errors import UsageError


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from metaflow import FlowSpec  # the base\n", "from upshift import FlowSpec  # the base\n"),
        (
            "from metaflow import (\n    FlowSpec,  # a class\n    step as s,\n)\n",
            "from upshift import (\n    FlowSpec,  # a class\n    step as s,\n)\n",
        ),
        ("import os, metaflow as mf\nmf.step\n", "import os, upshift as mf\nmf.step\n"),
        (
            'import metaflow\n"metaflow"; metaflow.current.run_id\n',
            'import upshift\n"metaflow"; upshift.current.run_id\n',
        ),
        ("import metaflow  # ü\r\nx = metaflow.step\r\n", "import upshift  # ü\r\nx = upshift.step\r\n"),
        ("from metaflow.cards import Markdown\n", "from upshift.cards import Markdown\n"),
        ("from metaflow import Flow, Run, Step, Task, namespace, get_metadata\n",
         "from upshift import Flow, Run, Step, Task, namespace, get_metadata\n"),
        (
            "from metaflow.exception import MetaflowException\n",
            "from upshift import UpshiftError as MetaflowException\n",
        ),
        (
            "from metaflow.plugins.datatools.s3.s3 import S3, S3PutObject, MetaflowS3NotFound\n",
            "from upshift import S3, S3PutObject, NotFound as MetaflowS3NotFound\n",
        ),
        (
            "def load():\n    from metaflow import Deployer, Parameter; é = 1\n",
            "def load():\n    from upshift import Parameter\n    from metaflow import Deployer; é = 1\n",
        ),
        (
            "from zenml.config import ResourceSettings, DockerSettings\n",
            "from upshift import ResourceSettings, DockerSettings\n",
        ),
        (
            "from zenml import step\n@step(enable_cache=False)  # always\ndef f(): ...\n",
            "from upshift import step\n@step(cache=False)  # always\ndef f(): ...\n",
        ),
        (
            "from zenml.integrations.huggingface.steps import run_with_accelerate\n",
            "from upshift import run_with_accelerate\n",
        ),
        ("from zenml import Client, pipeline\n", "from upshift import pipeline\nfrom zenml import Client\n"),
        ("from metaflowers import x\n", "from metaflowers import x\n"),
        ("from .metaflow import y\n", "from .metaflow import y\n"),
    ],
)  # fmt: skip
def test_imports_are_changed_and_nothing_else(before: str, after: str) -> None:
    assert migrated(before, "flow.py")[0] == after


NODES = """from metaflow import FlowSpec, checkpoint, parallel, torchrun_parallel
class Nodes(FlowSpec):
    nodes = 2
    @checkpoint(load_policy="fresh")
    def start(self):
        n = 2
        self.shards = [1]
        self.next(self.train, num_parallel={})
"""


def test_nodes_of_a_step_are_mapped() -> None:
    changed, unmapped = migrated(NODES.format("self.nodes"), "flow.py")
    assert not unmapped
    head = "from upshift import FlowSpec, checkpoint, parallel, torchrun as torchrun_parallel"
    assert changed.splitlines()[0] == head


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("from metaflow import step, Deployer\n", 1, ["Deployer of metaflow stays", "Nothing is deployed"]),
        ("import metaflow\nmetaflow.Deployer\n", 2, ["Deployer of metaflow stays"]),
        (
            "from metaflow.plugins.aws import client\n",
            1,
            ["client of metaflow", "no counterpart"],
        ),
        (
            "from metaflow import step, Checkpoint\n",
            1,
            ["Checkpoint of metaflow stays", "current.checkpoint"],
        ),
        ("import metaflow\nmetaflow.deepspeed\n", 2, ["run_with_accelerate(use_deepspeed=True)"]),
        (
            "from metaflow import checkpoint\n@checkpoint(load_policy='eager')\ndef f(): ...\n",
            2,
            ["checkpoint() has no load_policy='eager'", "fresh"],
        ),
        (
            "from metaflow import current\ncurrent.torch.run(entrypoint='a', local_output_dir='b')\n",
            2,
            ["run() has no local_output_dir='b'", "self.model"],
        ),
        (
            NODES.format("len(self.shards)"),
            8,
            ["num_parallel=len(self.shards)", "self.shards is set in a step"],
        ),
        (NODES.format("n + 1"), 8, ["num_parallel=n + 1", "n is set in a step", "Parameter"]),
        ("\nfrom zenml.client import Client\n", 2, ["Client of zenml.client stays", "get_run"]),
        ("from zenml import log_metadata\n", 1, ["upshift.log"]),
        ("import zenml.client\n", 1, ["no module like zenml.client"]),
        (
            "from zenml import step\n@step(\n    experiment_tracker='m')\ndef f(): ...\n",
            3,
            ["step() has no option 'experiment_tracker'"],
        ),
        ("from zenml import step\nstep(step_operator='k')\n", 2, ['on="docker"']),
    ],
)
def test_what_has_no_counterpart_is_listed_with_its_line(source: str, line: int, words: list[str]) -> None:
    (found,) = migrated(source, "flow.py")[1]
    assert found.line == line
    for word in words:
        assert word in found.what


def test_files_are_changed_only_where_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, none = tmp_path / "flow.py", tmp_path / "none.py"
    file.write_bytes(b"# coding: latin-1\nfrom metaflow import step, Deployer  # \xfc\n")
    none.write_text("import os\n")
    shown = CliRunner().invoke(migrate, ["flow.py", "none.py"])
    assert shown.exit_code == 0
    assert "+from upshift import step\n" in shown.stdout
    assert "flow.py:2: Deployer of metaflow stays" in shown.stderr
    assert "none.py: no import of Metaflow or ZenML to change" in shown.stderr
    assert b"upshift" not in file.read_bytes()
    CliRunner().invoke(migrate, ["flow.py", "--write"])
    changed = b"# coding: latin-1\nfrom upshift import step\nfrom metaflow import Deployer  # \xfc\n"
    assert file.read_bytes() == changed


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not valid Python: invalid syntax") as refused:
        migrated("x = 1\nfrom from\n", "flow.py")
    assert refused.value.where == "flow.py:2"
    for name in (tmp_path / "none.py", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            migrate.callback([str(name)], write=False)  # type: ignore[misc]
