"""The example that fine-tunes a language model: less loss, a curve in the report, an adapter that works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import upshift
from nvml import FakeNvml
from project import Outcome, Project

for package in ("torch", "accelerate", "transformers", "peft"):
    pytest.importorskip(package)

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora" / "pipeline.py"
LICENSE = EXAMPLE.parents[2] / "LICENSE"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Project:
    base = tmp_path_factory.mktemp("lora")
    return Project(base / "project", base / "home")


@pytest.fixture(scope="module")
def first_run(example: Project) -> Outcome:
    temporary = example.folder / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    return example.upshift("run", str(EXAMPLE), "--param", "gpus=false", env=env, timeout=110)


@pytest.fixture
def run(
    example: Project, first_run: Outcome, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> upshift.Run:
    monkeypatch.setenv("UPSHIFT_HOME", str(example.home))
    return upshift.list_runs(pipeline="lora")[-1]


def test_text_that_it_has_not_seen_is_less_of_a_surprise(run: upshift.Run, first_run: Outcome) -> None:
    before, after = run.output
    assert 4 < before < 7
    assert after < before - 0.5
    assert f"with the adapter: loss {after:.2f}" in first_run.out
    assert "Warning" not in first_run.out


def test_two_processes_shared_the_work(example: Project, run: upshift.Run) -> None:
    attempt = example.attempt("finetune", run.id)
    assert attempt["granted"]["processes"] == 2
    assert [rank["world_size"] for rank in attempt["seen"]["ranks"]] == [2, 2]
    curve = run["finetune"].tasks[0].attempts[-1].metrics["loss"]
    # In each of eight passes half of about 64 rows for each process, four at a time.
    assert 7 <= len(curve) / 8 <= 9
    assert list(curve.steps) == list(range(len(curve)))


def test_its_loss_goes_down_and_the_curve_is_in_the_report(example: Project, run: upshift.Run) -> None:
    losses = run["finetune"].tasks[0].attempts[-1].metrics["loss"].values
    assert sum(losses[-8:]) / 8 < sum(losses[:8]) / 8 - 0.8
    page = example.folder / "report.html"
    example.upshift("report", run.id, "--output", str(page))
    text = page.read_text(encoding="utf-8")
    assert f"loss: last {losses[-1]:.4g}. Arrow keys tell the values." in text
    assert "with the adapter" in text


@pytest.mark.filterwarnings("ignore::FutureWarning")  # what PEFT asks Transformers for is theirs
def test_the_adapter_works_outside_the_run(run: upshift.Run) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter, base = run["finetune"].output, run["pretrain"].output
    kept = json.loads((adapter / "adapter_config.json").read_text())
    assert kept["r"] == 8
    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    tokens = tokenizer(LICENSE.read_text(encoding="utf-8")[-2000:], return_tensors="pt")["input_ids"][:, :128]
    tuned = model(input_ids=tokens, labels=tokens).loss.item()
    with model.disable_adapter():
        plain = model(input_ids=tokens, labels=tokens).loss.item()
    assert tuned < plain - 0.5


def test_another_rate_trains_the_adapter_only(example: Project, run: upshift.Run) -> None:
    env = {"TMPDIR": str(example.folder / "tmp")}
    params = ("--param", "gpus=false", "--param", "rate=0.01", "--param", "epochs=1")
    example.upshift("run", str(EXAMPLE), *params, env=env, timeout=110)
    cached = {s["name"]: all(t["cached"] for t in s["tasks"]) for s in example.show()["steps"]}
    assert cached == {"split": True, "pretrain": True, "finetune": False, "compare": False}


def test_copied_elsewhere_it_takes_other_texts(example: Project) -> None:
    (example.folder / "copied.py").write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    (example.folder / "notes").mkdir()
    (example.folder / "notes" / "one.md").write_text("Some words.")
    params = ("--param", "gpus=false", "--param", "pages=notes", "--param", "text=notes/one.md")
    assert "finetune" in example.upshift("plan", "copied.py", *params).out
    assert "there is no file" in example.upshift("plan", "copied.py", expect=2).err


def test_where_there_are_two_gpus_each_process_gets_one(
    example: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    env = fake_nvml(2).environment()
    plan = example.upshift("plan", str(EXAMPLE), "--param", "gpus=true", "--strict", "--json", env=env)
    (step,) = (step for step in json.loads(plan.out)["steps"] if step["name"] == "finetune")
    assert (step["launch"]["per_node"], step["launch"]["devices"]) == (2, True)
    assert len(step["granted"]["gpus"]) == 2
    assert step["shortfalls"] == []
