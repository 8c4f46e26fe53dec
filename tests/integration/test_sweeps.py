"""Sweeps and comparisons, as a person sees them: what tells tasks and runs apart, and which is the best."""

from __future__ import annotations

import json
import re

import pytest

import upshift
from project import Project
from upshift.errors import NotFound, UsageError

SWEEP = """
import upshift
from dataclasses import dataclass

@dataclass
class Config:
    lr: float = 0.1
    depth: int = 2
    mode: str = "fast"

@step
def configs(lrs: list[float], config: Config) -> list[Config]:
    return [Config(lr, depth, config.mode) for lr in lrs for depth in (1, 2)]

@step
def fit(config: Config, data: bytes) -> float:
    assert config.lr < 5, "too fast"
    for step in range(3):
        upshift.log(step=step, loss=config.lr * (4 - step) / config.depth, note="x")
    return config.lr

@pipeline
def sweep(config: Config = Config(), lrs: list[float] = [0.5, 0.25, 1.0], late: bool = False):
    found = configs(lrs, config) if late else [Config(lr, depth) for lr in lrs for depth in (1, 2)]
    return fit.map(config=found, data=unmapped(b"x" * 3000))

@pipeline
def single(config: Config = Config()):
    return fit(config, b"x")
"""


@pytest.mark.parametrize("late", ["false", "true"])
def test_the_tasks_of_a_sweep_have_names_whether_its_items_are_known_before_or_not(
    project: Project, late: str
) -> None:
    project.write(SWEEP)
    project.upshift("run", "pipeline.py:sweep", "-p", f"late={late}")
    shown = project.upshift("show", "latest", "--tasks").out
    for line in (
        r"task +lr +depth +loss +note +time",
        r"fit\[0\] +0\.5 +1 +1 +█▅▁ +x +\S+ \S+",
        r"fit\[3\] +0\.25 +2 +0\.25 \* +█▅▁ +x +\S+ \S+",
        r"\* best",
        r"the same in all tasks: config\.mode='fast'",
        r"fit ×6 +loss +0\.25–2 +0\.25 \[3\] +0\.25 +4 +18",
    ):
        assert re.search(rf"^{line}$", shown, re.M), (line, shown)
    page = project.upshift("report", "latest", "-o", "-").out
    assert re.search(r'"title":"loss","kind":"number","values":\[[^]]*\],"of":"metric","best":3}', page)
    best = project.upshift("show", "latest", "fit", "--sort", "loss").out.splitlines()
    assert best[0] == "fit ×6, by loss, best first"
    assert [line.split()[0] for line in best[3:9]] == [f"fit[{index}]" for index in (3, 1, 2, 0, 5, 4)]
    by_lr = project.upshift("show", "latest", "fit", "--sort", "lr").out.splitlines()
    assert [line.split()[0] for line in by_lr[3:9]] == [f"fit[{index}]" for index in (2, 3, 0, 1, 4, 5)]
    assert "there is no metric, parameter or input 'nope'" in (
        project.upshift("show", "latest", "fit", "--sort", "nope", expect=2).err
    )


def test_one_task_is_shown_with_its_inputs(project: Project) -> None:
    project.write(SWEEP)
    project.upshift("run", "pipeline.py:sweep", "-p", "lrs=[1.0, 9.0]", "--keep-going", expect=1)
    shown = project.upshift("show", "latest", "fit[1]").out
    assert "inputs   config.lr=1.0, config.depth=2, config.mode='fast', data=<bytes, 3 KB>" in shown
    assert re.search(r"^fit\[1\] +loss +1 +1 +2 +3 +█▅▁$", shown, re.M)
    failed = project.upshift("show", "latest", "fit[2]").out
    assert "fit[2] failed (user-error)" in failed and "too fast" in failed
    assert "\n  item:  lr=9.0, depth=1\n" in failed
    page = project.upshift("report", "latest", "-o", "-").out
    assert '<p class="quiet"><bdi>lr=9.0, depth=1</bdi></p>' in page
    assert "fit[2] with lr=9.0, depth=1 failed" in str(upshift.get_run("latest")._repr_html_())
    assert "fit[1]" not in failed
    table = project.upshift("show", "latest", "fit").out
    failed = r"^fit\[2\] +9\.0 +1 +– +– +failed +\S+ \S+ +user-error: AssertionError: too fast.*$"
    assert re.search(failed, table, re.M), table
    (task,) = json.loads(project.upshift("show", "latest", "fit[1]", "--json").out)["steps"][0]["tasks"]
    assert task["inputs"] == {
        "config": {"$type": "pipeline.Config", "lr": 1.0, "depth": 2, "mode": "fast"},
        "data": {"$type": "bytes", "$text": "<bytes, 3 KB>"},
    }


def test_python_has_what_tasks_were_given_and_logged(project: Project) -> None:
    project.write(SWEEP)
    project.upshift("run", "pipeline.py:sweep", "-p", "late=true")
    run = upshift.get_run("latest")
    fit = run["fit"]
    assert run.metrics["loss"] == fit.metrics["loss"] == [1.0, 0.5, 0.5, 0.25, 2.0, 1.0]
    best = fit.best("loss")
    assert (best.index, best.output, best.metrics) == (3, 0.25, {"loss": 0.25, "note": "x"})
    assert fit.best("loss", "max").index == 4
    assert best.flat_inputs["config.lr"] == 0.25
    assert dict(best.plain_inputs) == {"config.lr": 0.25, "config.depth": 2, "config.mode": "fast"}
    assert list(best.inputs) == ["config", "data"] and best.inputs["data"] == b"x" * 3000
    assert run["configs"].tasks[0].inputs["lrs"] == [0.5, 0.25, 1.0]
    table = fit.tasks.to_pandas()
    assert list(table.columns)[:5] == ["task", "index", "status", "cached", "seconds"]
    assert table.sort_values("metrics.loss")["inputs.config.lr"].iloc[0] == 0.25
    assert "<bdi>fit[3]</bdi>" in fit.tasks._repr_html_()
    with pytest.raises(NotFound, match="no task of step 'fit' logged a number 'note'"):
        fit.best("note", "max")
    with pytest.raises(UsageError, match='Use mode="max"'):
        fit.best("note")


def test_runs_are_rows_of_one_table_sorted_by_a_metric(project: Project) -> None:
    project.write(SWEEP)
    for lr in ("0.5", "0.1", "2.0"):
        project.upshift("run", "pipeline.py:single", "-p", f"config.lr={lr}", "-t", f"x{lr}")
    project.upshift("run", "pipeline.py:sweep")
    sweep, slow, best, middle = (run.id for run in upshift.list_runs())
    shown = project.upshift("compare", "--last", "3", "--pipeline", "single").out
    assert [line.split()[:3] for line in shown.splitlines()[1:6] if "─" not in line] == [
        ["run", "lr", "loss"],
        [best, "0.1", "0.1"],
        [middle, "0.5", "0.5"],
        [slow, "2.0", "2"],
    ]
    assert shown.startswith("3 runs of single, by loss, best first\n")
    assert "the same in all runs: config.depth=2, config.mode='fast'" in shown
    report = project.upshift("report", slow, best, sweep, "-o", "-").out
    told = re.sub(r"<[^>]*>", "\n", report.partition('id="runs"')[2].partition("</section>")[0]).split("\n")
    assert [word for word in told if word in (slow, best, sweep)] == [best, sweep, slow]
    for word in ("run", "lr", "loss", "pipeline", "0.1", "2.0", "0.25 (0.25–2)"):
        assert word in told, (word, told)
    assert 'id="runs"' not in project.upshift("report", slow, "-o", "-").out
    narrow = project.upshift("compare", "--last", "4", "--sort", "lr", env={"COLUMNS": "50"}).out
    assert "no room for:" in narrow and max(map(len, narrow.splitlines())) <= 50
    listed = project.upshift("runs", "-m", "loss", "-p", "lr", "--sort", "loss", "--limit", "2").out
    assert [line.split()[0] for line in listed.splitlines()[2:]] == [best, sweep]
    assert listed.splitlines()[2].split()[-2:] == ["0.1", "0.1"]
    found = json.loads(project.upshift("runs", "-m", "loss", "-p", "lr", "--json").out)
    assert [(run["params"]["config.lr"], run["metrics"]["loss"]) for run in found[1:]] == [
        (2.0, 2.0),
        (0.1, 0.1),
        (0.5, 0.5),
    ]
    assert len(found[0]["metrics"]["loss"]) == 6
    assert "No runs." in project.upshift("runs", "--status", "failed").out
    table = upshift.list_runs().to_pandas().set_index("run")
    assert table.loc[best, "metrics.loss"] == 0.1
    assert list(table.loc[sweep, ["metrics.loss", "metrics.loss.min", "metrics.loss.max"]]) == [0.25, 0.25, 2]
    assert table.loc[best, "params.config.lr"] == 0.1
    assert upshift.list_runs(status="failed") == []
    assert [run.id for run in upshift.list_runs(status="completed", limit=1)] == [sweep]


def test_a_parameter_of_a_run_may_be_taken_from_another(project: Project) -> None:
    project.write(SWEEP)
    project.upshift("run", "pipeline.py:single", "-p", "config.lr=0.5", "-p", "config.mode=slow")
    project.upshift("run", "pipeline.py:single", "--params-from", "latest", "-p", "config.lr=0.25")
    run = upshift.get_run("latest")
    assert run.flat_params == {"config.lr": 0.25, "config.depth": 2, "config.mode": "slow"}
    assert run["fit"].tasks[0].cache_reason == "input changed: config.lr: 0.5 → 0.25"
    assert run["fit"].metrics["loss"] == run.metrics["loss"] == 0.25
