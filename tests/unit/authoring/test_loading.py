"""``FILE[:PIPELINE]``: the pipeline that is meant, or what is wrong with the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from upshift import LoadError, NotFound, SettingsError, UsageError
from upshift.authoring.loading import load_pipeline

ONE = """
from upshift import pipeline, step

@step
def add(a: int) -> int:
    return a + 1

@pipeline
def sums(a: int = 1):
    return add(a)
"""
TWO = ONE + "\n@pipeline\ndef products():\n    return add(2)\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files of a project, and gives the last one; the working folder is the project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
        return path.relative_to(tmp_path)

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def message(text: str, kind: type[UsageError] = LoadError) -> str:
    with pytest.raises(kind) as caught:
        load_pipeline(text)
    shown = str(caught.value)
    assert "upshift/authoring" not in shown
    assert "importlib" not in shown
    return shown


def test_a_name_of_upshift_that_is_not_imported_says_how_to_import_it(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text("from upshift import step\nimage = DockerSettings(requirements=['six'])\n")
    with pytest.raises(LoadError, match="NameError: name 'DockerSettings'") as caught:
        load_pipeline(str(file))
    assert caught.value.fix == "Import it: from upshift import DockerSettings"
    file.write_text("image = Nothing()\n")
    with pytest.raises(LoadError) as caught:
        load_pipeline(str(file))
    assert caught.value.fix is None


def test_of_many_files_the_nearest_are_named(tmp_path: Path) -> None:
    for number in range(80):
        (tmp_path / f"other{number}.py").touch()
    (tmp_path / "train.py").touch()
    with pytest.raises(LoadError, match="there is no file") as caught:
        load_pipeline(str(tmp_path / "trian.py"))
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("Did you mean 'train.py'? Known: train.py, ")
    assert caught.value.fix.endswith(" and 75 more.")


def test_the_only_pipeline_of_a_file(write: Write) -> None:
    assert load_pipeline(str(write(one=ONE))).name == "sums"


def test_a_named_pipeline(write: Write) -> None:
    assert load_pipeline(f"{write(two=TWO)}:products").name == "products"


def test_a_pipeline_that_the_file_defines_goes_before_those_that_it_imports(write: Write) -> None:
    file = write(
        one=ONE, user="from one import sums\nfrom upshift import pipeline\n@pipeline\ndef own(): ...\n"
    )
    assert load_pipeline(str(file)).name == "own"
    assert load_pipeline(f"{file}:sums").name == "sums"


def test_a_pipeline_that_is_imported_is_found_where_there_is_no_other(write: Write) -> None:
    assert load_pipeline(str(write(one=ONE, user="from one import sums\n"))).name == "sums"


def test_two_names_of_one_pipeline_are_one(write: Write) -> None:
    assert load_pipeline(str(write(one=ONE + "\nmain = sums\n"))).name == "sums"


def test_several_pipelines_are_listed_with_their_lines(write: Write) -> None:
    shown = message(str(write(two=TWO)))
    assert "two.py has 2 pipelines, and none is named" in shown
    assert "sums, two.py:8" in shown
    assert "products, two.py:12" in shown
    assert "Name one: two.py:sums" in shown


def test_a_pipeline_that_is_not_there(write: Write) -> None:
    shown = message(f"{write(two=TWO)}:summs", NotFound)
    assert "two.py has no pipeline 'summs'" in shown
    assert "Did you mean 'sums'?" in shown
    assert "'add' in two.py is not a pipeline" in message("two.py:add", NotFound)


def test_a_file_without_a_pipeline(write: Write) -> None:
    shown = message(str(write(empty="x = 1")))
    assert "empty.py has no pipeline" in shown
    assert "@pipeline" in shown


def test_a_file_that_is_not_there(write: Write) -> None:
    write(pipeline=ONE)
    shown = message("pipelin.py")
    assert "there is no file pipelin.py" in shown
    assert "Did you mean 'pipeline.py'?" in shown
    assert "there is no file nowhere/x.py" in message("nowhere/x.py")


def test_a_folder(write: Write, tmp_path: Path) -> None:
    write(one=ONE)
    shown = message(".")
    assert "is a folder" in shown
    assert "one.py" in shown


def test_a_file_of_another_kind(write: Write, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    write(one=ONE)
    assert "notes.txt is not a Python file" in message("notes.txt")


def test_a_colon_without_a_name(write: Write) -> None:
    assert "names no pipeline after the colon" in message(f"{write(one=ONE)}:")


def test_a_module_that_is_missing(write: Write) -> None:
    shown = message(str(write(one=ONE + "\nimport no_such_package.deep\n")))
    assert "one.py cannot be imported: ModuleNotFoundError: No module named 'no_such_package'" in shown
    assert "one.py:12" in shown
    assert "Install 'no_such_package'" in shown


def test_a_package_of_the_project_that_is_not_beside_the_file(tmp_path: Path, write: Write) -> None:
    (tmp_path / "upshift.toml").touch()
    (tmp_path / "circle").mkdir()
    file = write(**{"circle/b": "", "circle/a": ONE + "\nfrom circle.b import g\n"})
    assert f"PYTHONPATH={tmp_path} upshift run {file}" in message(str(file))


@pytest.mark.parametrize("line", ["from zenml import step", "import metaflow.plugins"])
def test_a_module_of_another_tool_is_told_upshifts_names(write: Write, line: str) -> None:
    shown = message(str(write(seed=f"{line}\n")))
    assert "fix:   In Upshift: from upshift import step, pipeline. The page coming-from" in shown
    assert "Install" not in shown


@pytest.mark.parametrize("use", ["from upshift import Deployer", "import upshift\nupshift.Deployer"])
def test_a_name_to_come_is_told_once(write: Write, use: str) -> None:
    shown = message(str(write(helper=f"{use}\n", seed="import helper\n")))
    assert shown.splitlines() == [
        "seed.py cannot be imported: Deployer is not in this version of Upshift",
        f"  where: helper.py:{len(use.splitlines())}",
        "  fix:   Nothing is deployed: let cron, a systemd timer or CI call `python flow.py run`.",
    ]


def test_an_exception_shows_the_users_own_traceback(write: Write) -> None:
    shown = message(
        str(write(helper="def fail():\n    return 1 / 0\n", user="import helper\nhelper.fail()\n"))
    )
    assert "user.py cannot be imported: ZeroDivisionError: division by zero" in shown
    assert "where: helper.py:2" in shown
    assert "user.py" in shown
    assert "return 1 / 0" in shown


def test_a_syntax_error_shows_the_line(write: Write) -> None:
    shown = message(str(write(broken="\ndef broken(:\n    pass\n")))
    assert "SyntaxError" in shown
    assert "where: broken.py:2" in shown
    assert "def broken(:\n                    ^" in shown


def test_a_syntax_error_in_another_file_names_that_file(write: Write) -> None:
    shown = message(str(write(helper="def broken(:\n", user="import helper\n")))
    assert "helper.py:1" in shown


def test_a_file_that_exits(write: Write) -> None:
    shown = message(str(write(one=ONE + "\nimport sys\nsys.exit(3)\n")))
    assert "SystemExit: 3" in shown
    assert '__name__ == "__main__"' in shown


def test_a_setting_that_makes_no_sense_is_shown_as_it_is(write: Write) -> None:
    shown = message(
        str(write(one=ONE.replace("@step", '@step(settings={"resources": {"memory": "16GBB"}})'))),
        SettingsError,
    )
    assert "memory='16GBB' is invalid" in shown
    assert "one.py:4" in shown


def test_a_pipeline_at_module_level_does_not_run(write: Write) -> None:
    file = write(one=ONE + "\nrun = sums()\nprint(run.output + 1, run['add'].tasks[0])\n")
    assert load_pipeline(str(file)).name == "sums"


def test_what_fails_after_a_pipeline_at_module_level_is_not_held_against_it(write: Write) -> None:
    assert load_pipeline(str(write(one=ONE + "\nassert sums().output == 2\n"))).name == "sums"


def test_a_file_above_the_working_folder_is_named_without_dots(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(above="from upshift import step\n\n\n@step(retires=3)\ndef f(): ...\n")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert f"where: {tmp_path / 'above.py'}:4" in message("../above.py", SettingsError)
