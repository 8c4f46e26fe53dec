"""What steps made, by name and version: found again, tagged, and given to another pipeline."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3

import pytest

import upshift
from project import Project
from upshift.errors import NotFound, UsageError
from upshift.runs.catalog import database

TRAINING = """
import upshift
from types import SimpleNamespace as Model
from typing import Annotated

@step
def fit(lr: float) -> Annotated[Model, "model"]:
    upshift.log(loss=lr * 2)
    return Model(lr=lr)

@step
def both(lr: float) -> tuple[Annotated[int, "count"], Annotated[bytes, "data"]]:
    return 3, b"x" * 5000

@pipeline
def training(lr: float = 0.5):
    both(lr)
    return fit(lr)

@pipeline
def sweep(lrs: list[float] = [0.5, 0.25, 1.0]):
    return fit.map(lrs)

@step
def score(model: Model, times: int, data: bytes | None) -> float:
    if times > 5:
        raise ValueError("too often")
    return model.lr * times

@pipeline
def serve(model: Model, times: int = 1, data: bytes | None = None, name: str = "artifact:x"):
    return score(model, times, data)
"""


@pytest.fixture
def trained(project: Project) -> Project:
    project.write(TRAINING)
    for lr in ("0.5", "0.1", "0.5"):
        project.upshift("run", "pipeline.py:training", "-p", f"lr={lr}")
    return project


def test_values_are_found_where_the_catalog_cannot_be_written(
    trained: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(trained.home / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        seen = [(one.name, one.version, one.run) for one in upshift.list_artifacts("training/fit")]
    assert [version for _, version, _ in seen] == [2, 1]
    assert [(one.name, one.version, one.run) for one in upshift.list_artifacts("training/fit")] == seen


def test_each_new_result_is_a_version_that_keeps_its_number(trained: Project) -> None:
    newest = upshift.get_artifact("training/fit.model")
    assert (newest.version, newest.value.lr, newest.task) == (2, 0.1, "fit")  # the third run reused the first
    assert upshift.get_artifact("training/model").name == "training/fit.model"
    assert upshift.get_artifact("training/fit", 1).value.lr == 0.5
    assert upshift.get_artifact("training/fit@1").maker.inputs["lr"] == 0.5
    table = upshift.list_artifacts("training/fit").to_pandas()
    assert list(table["version"]) == [2, 1]
    assert list(table["inputs.lr"]) == [0.1, 0.5]
    assert list(table["metrics.loss"]) == [0.2, 1.0]
    assert [one.name for one in upshift.list_artifacts()] == [
        "training/both.count",
        "training/both.data",
        "training/fit.model",
    ]
    runs = [run.id for run in upshift.list_runs()]
    trained.upshift("gc", "--run", runs[1])
    trained.upshift("run", "pipeline.py:training", "-p", "lr=0.3")
    assert [one.version for one in upshift.list_artifacts("training/fit")] == [3, 1]


def test_names_and_versions_that_are_none_are_refused_with_what_there_is(trained: Project) -> None:
    with pytest.raises(NotFound, match="no value is called 'training/fitt'") as refused:
        upshift.get_artifact("training/fitt")
    assert "training/fit" in str(refused.value.fix)
    with pytest.raises(UsageError, match="training/both has several outputs") as several:
        upshift.get_artifact("training/both")
    assert "training/both.count, training/both.data" in str(several.value.fix)
    with pytest.raises(NotFound, match=r"training/fit has no version 7"):
        upshift.get_artifact("training/fit", 7)
    upshift.tag_artifact("training/fit", "production")
    with pytest.raises(NotFound, match="training/fit has no version or tag 'prodction'") as close:
        upshift.get_artifact("training/fit", "prodction")
    assert "production" in str(close.value.fix)
    for tag in ("latest", "3", "a b", ""):
        with pytest.raises(UsageError, match="is invalid"):
            upshift.tag_artifact("training/fit", tag)
    trained.upshift("run", "pipeline.py:sweep")
    with pytest.raises(UsageError, match="sweep/fit has 3 values of run") as mapped:
        upshift.get_artifact("sweep/fit")
    assert "sweep/fit[2]" in str(mapped.value.fix)
    assert upshift.get_artifact("sweep/fit[1]").value.lr == 0.25


def test_a_tag_is_moved_outlives_gc_and_a_lost_catalog(trained: Project) -> None:
    said = trained.upshift("artifacts", "tag", "training/fit@1", "production").out
    assert said == "training/fit.model@1: production\n"
    trained.upshift("artifacts", "tag", "training/fit@2", "good")
    trained.upshift("artifacts", "tag", "training/fit@good", "production")
    assert upshift.get_artifact("training/fit", "production").tags == ("good", "production")
    assert upshift.get_artifact("training/fit", 1).tags == ()
    tagged = upshift.get_artifact("training/fit@good").run
    trained.upshift("gc", "--keep-last", "1")
    assert tagged in [run.id for run in upshift.list_runs()]
    assert "has a value with a tag" in trained.upshift("gc", "--run", tagged, expect=2).err
    for part in trained.home.glob("catalog.db*"):
        part.unlink()
    assert upshift.get_artifact("training/fit", "production").version == 2
    trained.upshift("artifacts", "tag", "training/fit@2", "good", "--remove")
    assert upshift.get_artifact("training/fit@2").tags == ("production",)
    assert "has no tag 'good'" in (
        trained.upshift("artifacts", "tag", "training/fit@2", "good", "--remove", expect=2).err
    )


def test_versions_are_shown_with_their_lineage(trained: Project) -> None:
    trained.upshift("artifacts", "tag", "training/fit@1", "production")
    names = trained.upshift("artifacts").out
    assert re.search(r"^training/fit\.model +2 +– +SimpleNamespace +\S+ \S+ ", names, re.M), names
    shown = trained.upshift("artifacts", "show", "training/fit", "--sort", "loss").out.splitlines()
    assert shown[0] == "training/fit.model, 2 versions, by loss, best first"
    assert [line.split()[:3] for line in shown[3:5]] == [["2", "0.1", "0.2"], ["1", "0.5", "1"]]
    one = trained.upshift("artifacts", "show", "training/fit@production").out
    for line in (
        "tags     production",
        "by       fit of run 2",
        "inputs   lr=0.5",
        "metrics  loss=1",
        "code  ",
    ):
        assert f"  {line}" in one, (line, one)
    found = json.loads(trained.upshift("artifacts", "show", "training/fit", "--json").out)
    fields = "name version tags type digest bytes made run task code inputs metrics"
    assert set(found[0]) == set(fields.split())
    assert (found[1]["tags"], found[1]["inputs"]) == (["production"], {"lr": 0.5})
    every = json.loads(trained.upshift("artifacts", "--json").out)
    assert [one["name"] for one in every][-1] == "training/fit.model"


def test_a_pipeline_takes_a_value_by_name(trained: Project) -> None:
    trained.upshift("artifacts", "tag", "training/fit@1", "production")
    given = "model=artifact:training/fit@production"
    trained.upshift(
        "run", "pipeline.py:serve", "-p", given, "-p", "times=2", "-p", "data=artifact:training/data"
    )
    run = upshift.get_run("latest")
    assert run["score"].output == 1.0
    assert run.params["model"].version == 1
    assert run.params["name"] == "artifact:x"  # a text is a text
    (task,) = run["score"].tasks
    assert task.inputs["model"].lr == 0.5
    shown = trained.upshift("show", "latest", "score").out
    assert "inputs   model.lr=0.5, times=2, data=<training/both.data@2: bytes>" in shown
    assert "model=<artifact training/fit.model@1:" in trained.upshift("show", "latest").out
    trained.upshift("run", "pipeline.py:serve", "--params-from", run.id)
    assert upshift.get_run("latest")["score"].tasks[0].cached
    trained.upshift("run", "pipeline.py:serve", "-p", given, "-p", "times=9", expect=1)
    trained.write(TRAINING.replace("times > 5", "times > 10"))
    trained.upshift("resume", "latest")
    assert upshift.get_run("latest")["score"].output == 4.5
    assert "no value is called" in (
        trained.upshift("run", "pipeline.py:serve", "-p", "model=artifact:training/x", expect=2).err
    )


def test_a_value_of_another_store_is_copied(trained: Project) -> None:
    model = upshift.get_artifact("training/fit", 2)
    (trained.folder / "pyproject.toml").write_text('[tool.upshift]\nstore = "elsewhere"\n')
    trained.upshift("run", "pipeline.py:serve", "-p", "model=artifact:training/fit@2")
    assert upshift.get_run("latest")["score"].output == 0.1
    shutil.rmtree(model.store.root)
    assert upshift.get_run("latest")["score"].tasks[0].inputs["model"].lr == 0.1
