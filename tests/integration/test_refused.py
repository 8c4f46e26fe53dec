"""Mistakes that are refused before anything runs: exit 2, what is wrong, where, and what to do."""

from __future__ import annotations

import re

import pytest

import upshift
from project import Outcome, Project

ADD = """
@step
def add(a: int, b: int = 1) -> int:
    return a + b

@pipeline
def sums(a: int = 1, scale: float = 1.0, names: list[str] = []):
    return add(a)
"""


def refused(project: Project, outcome: Outcome) -> str:
    """The message; nothing ran."""
    assert outcome.code == 2, outcome.text
    assert "Traceback" not in outcome.text
    assert project.upshift("runs", "--json").out.strip() == "[]"
    return outcome.err


def in_a_step(settings: str) -> str:
    return f"""
@step(settings={{"resources": {settings}}})
def train():
    pass

@pipeline
def training():
    train()
"""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ('ResourceSettings(memory="16GBB")', ["memory", "16GBB", "GiB", "pipeline.py:3"]),
        ('ResourceSettings(memory="lots")', ["memory", "lots"]),
        ('ResourceSettings(memory="-1GB")', ["memory", "-1GB"]),
        ("ResourceSettings(cpu_count=-1)", ["cpu_count", "-1"]),
        ("ResourceSettings(gpu_count=-2)", ["gpu_count", "-2"]),
        ("ResourceSettings(num_nodes=0)", ["num_nodes", "0"]),
        ("ResourceSettings(cpus=4)", ["cpus", "cpu_count", "pipeline.py:3"]),
        ('{"cpu_cuont": 4}', ["cpu_cuont", "cpu_count"]),
        ("4", ["resources"]),
    ],
)
def test_a_setting_that_makes_no_sense(project: Project, settings: str, named: list[str]) -> None:
    message = refused(project, project.run(in_a_step(settings), expect=None))
    for word in named:
        assert word in message


def test_an_unknown_kind_of_settings(project: Project) -> None:
    code = in_a_step("None").replace('"resources"', '"resorces"')
    message = refused(project, project.run(code, expect=None))
    assert "resorces" in message
    assert "resources" in message


def test_a_misspelt_docker_setting(project: Project) -> None:
    code = """
@step(settings={"docker": DockerSettings(parent_img="python:3.12")})
def train(): ...

@pipeline
def training(): train()
"""
    message = refused(project, project.run(code, expect=None))
    assert "parent_img" in message
    assert "parent_image" in message


def test_a_file_that_is_not_there(project: Project) -> None:
    message = refused(project, project.upshift("run", "pipelin.py", expect=None))
    assert "pipelin.py" in message


def test_a_file_without_a_pipeline(project: Project) -> None:
    message = refused(project, project.run("x = 1", expect=None))
    assert "pipeline.py" in message
    assert "@pipeline" in message


def test_a_file_with_several_pipelines_and_none_named(project: Project) -> None:
    code = ADD + "@pipeline\ndef products():\n    return add(2)\n"
    message = refused(project, project.run(code, expect=None))
    assert "sums" in message
    assert "products" in message
    project.upshift("run", "pipeline.py:products")


def test_a_pipeline_that_the_file_does_not_have(project: Project) -> None:
    project.write(ADD)
    message = refused(project, project.upshift("run", "pipeline.py:summs", expect=None))
    assert "summs" in message
    assert "sums" in message


def test_an_unknown_parameter(project: Project) -> None:
    message = refused(project, project.run(ADD, "--param", "scael=2", expect=None))
    assert "scael" in message
    assert "scale" in message


@pytest.mark.parametrize("value", ["a=x", "a=1.5", "scale=fast", "names=3"])
def test_a_parameter_of_the_wrong_type(project: Project, value: str) -> None:
    message = refused(project, project.run(ADD, "--param", value, expect=None))
    name, _, text = value.partition("=")
    assert name in message
    assert text in message


def test_a_file_that_cannot_be_imported_shows_the_users_own_frames(project: Project) -> None:
    outcome = project.run(ADD + "\nimport no_such_package_at_all\n", expect=None)
    assert outcome.code == 2
    assert "no_such_package_at_all" in outcome.err
    assert "pipeline.py" in outcome.err
    assert "/upshift/authoring" not in outcome.err


def test_a_file_with_a_syntax_error_names_the_line(project: Project) -> None:
    outcome = project.run("\ndef broken(:\n    pass\n", expect=None)
    assert outcome.code == 2
    assert "pipeline.py" in outcome.err
    assert "broken" in outcome.err
    assert "/upshift/authoring" not in outcome.err


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("add()", ["'a'", "pipeline.py:8"]),
        ("add(1, c=2)", ["'c'", "pipeline.py:8"]),
        ("if add(1):\n        add(2)", ["add", "pipeline.py:8", ".when"]),
        ("add(1) + 1", ["add", "pipeline.py:8"]),
        ("add.map(a=[1, 2], b=[1, 2, 3])", ["2", "3", "pipeline.py:8"]),
    ],
)
def test_a_pipeline_that_cannot_be_composed(project: Project, body: str, named: list[str]) -> None:
    code = f"""
@step
def add(a: int, b: int = 1) -> int:
    return a + b
@pipeline
def sums():
    {body}
"""
    message = refused(project, project.run(code, expect=None))
    for word in named:
        assert word in message


def test_an_unknown_target(project: Project) -> None:
    message = refused(project, project.run(ADD, "--on", "clutser", expect=None))
    assert "clutser" in message
    assert "local" in message


def test_a_strict_run_refuses_what_this_machine_cannot_give(project: Project) -> None:
    code = in_a_step('ResourceSettings(memory="900TB")')
    message = refused(project, project.run(code, "--strict", expect=None))
    assert "train" in message
    assert "900" in message


def test_each_advice_is_given_once_and_other_targets_only_where_there_are_some(project: Project) -> None:
    code = in_a_step('ResourceSettings(memory="900TB", accelerator="H100:64")')
    (fix,) = re.findall(r"fix: +(.*)", refused(project, project.run(code, "--strict", expect=None)))
    assert fix == "Request less. Without --strict, the run continues with what is available."
    (project.folder / "upshift.toml").write_text('[targets.big]\nbackend = "local"\n')
    (fix,) = re.findall(r"fix: +(.*)", refused(project, project.run(code, "--strict", expect=None)))
    assert fix.startswith("Request less. Or choose another target with --on. Without --strict")


def test_a_broken_configuration_file(project: Project) -> None:
    project.write(ADD)
    (project.folder / "upshift.toml").write_text("default_target = [\n")
    outcome = project.upshift("run", "pipeline.py", expect=2)
    assert "upshift.toml" in outcome.err


def test_an_unknown_run(project: Project) -> None:
    for command in ("show", "resume", "cancel", "logs"):
        outcome = project.upshift(command, "nosuchrun", expect=2)
        assert "nosuchrun" in outcome.err


def test_mistakes_in_python_are_exceptions_with_the_users_line() -> None:
    with pytest.raises(upshift.UpshiftError) as caught:
        upshift.ResourceSettings(memory="16GBB")
    assert "test_refused.py" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_what_a_step_says_of_its_place_is_named_where_the_command_line_cannot_help(project: Project) -> None:
    code = """
@step(on="local", settings={"resources": ResourceSettings(memory="900TB")})
def train() -> int:
    return 1

@pipeline
def example():
    return train()
"""
    message = refused(project, project.run(code, "--strict", expect=None))
    assert "train has on='local' at pipeline.py:3 (@step), which --on does not change." in message
