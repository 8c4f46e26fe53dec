"""Names that users of other tools look for: what is not there yet says so, and what to do meanwhile."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import upshift
from upshift import LoadError, NotFound
from upshift.authoring.loading import load_module
from upshift.backends.registry import backend_names, open_backend
from upshift.model.configuration import Target

TO_COME = ["Deployer"]


@pytest.mark.parametrize("name", TO_COME)
def test_a_name_to_come_says_so_however_it_is_asked_for(name: str) -> None:
    with pytest.raises(ImportError, match=rf"^{name} is not in this version of Upshift\. \S+"):
        exec(f"from upshift import {name}")
    with pytest.raises(AttributeError, match=rf"^{name} is not in this version of Upshift\. \S+"):
        getattr(upshift, name)
    assert not hasattr(upshift, name)
    assert name not in dir(upshift)


def test_any_other_name_is_just_unknown() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Flows'"):
        exec("from upshift import Flows")
    with pytest.raises(AttributeError, match="has no attribute 'Flows'"):
        upshift.Flows  # type: ignore[attr-defined]  # noqa: B018
    exec("from upshift import errors, config")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("task", "from upshift import step"),
        ("flow", "@pipeline"),
        ("Client", "get_run"),
        ("get_step_context", "upshift.current"),
        ("log_metadata", r"upshift\.log\(loss=0\.1\)"),
    ],
)
def test_names_of_other_tools_lead_to_those_here(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"upshift has no {name!r}.*{instead}"):
        exec(f"from upshift import {name}")


@pytest.mark.parametrize(
    ("option", "instead"), [("schedule", "cron"), ("enable_cache", "cache=False"), ("step_operator", "on=")]
)
def test_options_of_other_tools_lead_to_those_here(option: str, instead: str) -> None:
    with pytest.raises(upshift.SettingsError, match=rf"no option {option!r}") as caught:
        upshift.step(**{option: True})  # type: ignore[call-overload]
    assert instead in str(caught.value.fix)


@pytest.mark.parametrize(
    ("name", "instead"), [("submit", "fit.map(items)"), ("delay", "fit(…)"), ("partial", "unmapped(value)")]
)
def test_methods_of_other_tools_steps_lead_to_those_here(name: str, instead: str) -> None:
    @upshift.step
    def fit(x: int) -> int:
        return x

    with pytest.raises(AttributeError, match=f"'Step' object has no attribute {name!r}") as caught:
        getattr(fit, name)
    assert instead in str(caught.value)
    assert not hasattr(fit, "anything")


@pytest.mark.parametrize(
    ("name", "instead"),
    [("submit", "training(…)"), ("plan", "upshift plan FILE:training"), ("serve", "cron")],
)
def test_methods_of_other_tools_pipelines_lead_to_those_here(name: str, instead: str) -> None:
    @upshift.pipeline
    def training() -> None:
        pass

    with pytest.raises(AttributeError, match=f"'Pipeline' object has no attribute {name!r}") as caught:
        getattr(training, name)
    assert instead in str(caught.value)
    assert not hasattr(training, "anything")


def test_parameters_of_a_flow_are_given_on_its_command_line() -> None:
    class Training(upshift.FlowSpec):
        pass

    with pytest.raises(upshift.MisuseError, match="gets n=3") as caught:
        Training(n=3)
    assert str(caught.value.fix).endswith("run --n …")


def test_fields_of_current_in_other_tools_lead_to_those_here() -> None:
    with pytest.raises(AttributeError, match=r"no 'run_id'; here it is current\.run$"):
        upshift.current.run_id  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no 'nonsense'$"):
        upshift.current.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("loss", 0.1), "Write upshift.log(loss=0.1)."),
        (("val/loss", 0.1, 3), "Write upshift.log({'val/loss': 0.1}, step=3)."),
    ],
)
def test_metrics_by_position_lead_to_those_by_name(arguments: tuple[object, ...], fix: str) -> None:
    with pytest.raises(upshift.SettingsError) as caught:
        upshift.log(*arguments)  # type: ignore[arg-type]
    assert caught.value.fix == fix


def test_the_import_path_of_another_tool_has_its_names() -> None:
    steps = importlib.import_module("upshift.integrations.huggingface.steps")
    assert steps.run_with_accelerate is upshift.run_with_accelerate
    assert not hasattr(steps, "no_such_name")


def test_a_file_that_needs_such_a_name_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "flow_to_come.py"
    file.write_text("import upshift\nfrom upshift import Deployer\n")
    with pytest.raises(LoadError, match="not in this version of Upshift") as caught:
        load_module(file)
    assert caught.value.where == f"{file}:2"


def test_the_backend_for_tests_is_not_offered() -> None:
    assert "fake" not in backend_names()
    assert "local" in backend_names()
    with pytest.raises(NotFound) as caught:
        open_backend(Target(name="t", backend="locl"), store="/nowhere", sink=lambda event: None)
    assert "fake" not in str(caught.value)
    assert "Did you mean 'local'?" in str(caught.value)
