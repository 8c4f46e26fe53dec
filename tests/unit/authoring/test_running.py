"""Calling a pipeline: what the engine is given, and what a user sees of errors."""

from __future__ import annotations

import asyncio
import sys
import traceback
from pathlib import Path
from typing import Any

import attrs
import pytest
from silent_progress import Silent

import upshift.authoring.composing.definitions as definitions
import upshift.authoring.running as running
from upshift import GraphError, NotFound, RunFailed, SettingsError, pipeline, step
from upshift.engine import RunOptions
from upshift.model.spec.codec import decode
from upshift.model.spec.task import Code
from upshift.runtime import usercode


@step
def add(a: int, b: int = 1) -> int:
    return a + b


@pipeline(tags=["daily"])
def sums(a: int, tags: str = "mine", on: int = 3) -> int:
    return add(a, on)


@attrs.define
class Engine:
    """Stands for the engine: keeps what it was given."""

    given: list[dict[str, Any]] = attrs.field(factory=list)
    error: Exception | None = None

    def execute(self, graph: Any, **rest: Any) -> str:
        self.given.append({"graph": graph, **rest})
        if self.error is not None:
            raise self.error
        return "the run"

    @property
    def options(self) -> RunOptions:
        options = self.given[-1]["options"]
        assert isinstance(options, RunOptions)
        return options


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    engine = Engine()
    monkeypatch.setattr(running, "execute", engine.execute)
    monkeypatch.chdir(tmp_path)
    return engine


def test_calling_a_pipeline_gives_its_graph_to_the_engine(engine: Engine) -> None:
    assert sums(1, tags="theirs") == "the run"
    given = engine.given[-1]
    assert [node.name for node in given["graph"].nodes] == ["add"]
    assert set(given["graph"].params) == {"a", "tags", "on"}
    assert engine.options == RunOptions(tags=("daily",))


def test_options_of_a_run_do_not_collide_with_parameters(engine: Engine) -> None:
    changed = sums.with_options(tags=["nightly", "gpu"], strict=True, keep_going=True)
    changed(1, tags="theirs", on=5)
    assert engine.options == RunOptions(tags=("nightly", "gpu"), strict=True, keep_going=True)
    changed.with_options(keep_going=False, strict=False)(1)
    assert (engine.options.keep_going, engine.options.strict) == (False, False)


def test_what_the_command_line_says_goes_before_what_the_pipeline_says(engine: Engine) -> None:
    local = sums.with_options(strict=True, on_failure="continue")
    local.run({"a": 1}, options=RunOptions(strict=False, tags=("t",), reuse=False), progress=Silent())
    assert engine.options == RunOptions(strict=False, tags=("daily", "t"), keep_going=True, reuse=False)


def test_a_target_that_does_not_exist_is_refused(engine: Engine) -> None:
    with pytest.raises(NotFound, match="no target is named 'clutser'"):
        sums.with_options(on="clutser")(1)
    assert not engine.given


def test_the_run_knows_where_the_pipeline_is(engine: Engine, tmp_path: Path) -> None:
    sums(1)
    source = engine.given[-1]["source"]
    assert source["file"] == __file__
    assert source["pipeline"] == "sums"
    assert source["cwd"] == str(tmp_path)
    assert source["options"] is None
    code = engine.given[-1]["code"]
    assert decode(Code, source["code"]) == code
    project = Path(code.project)
    assert project / code.file == Path(__file__)
    assert Path(__file__).parent in [(project / path).resolve() for path in code.paths]


def test_the_run_knows_the_options_of_a_changed_copy(engine: Engine) -> None:
    sums.with_options(tags="other", retries=2)(1)
    source = engine.given[-1]["source"]
    assert source["pipeline"] == "sums"
    assert source["options"]["tags"] == ["other"]
    assert source["options"]["steps"]["retry"]["times"] == 2


def test_a_pipeline_that_no_module_knows_has_no_name_to_resume_by(engine: Engine) -> None:
    @pipeline
    def local() -> None: ...

    local()
    assert engine.given[-1]["source"]["pipeline"] is None


def test_a_pipeline_runs_inside_a_running_event_loop(engine: Engine) -> None:
    async def main() -> Any:
        return sums(1)

    assert asyncio.run(main()) == "the run"


def test_while_a_module_is_imported_a_pipeline_does_nothing(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "at_module_level.py"
    file.write_text(
        "from upshift import pipeline\n"
        "@pipeline\n"
        "def example(): ...\n"
        "run = example()\n"
        'print(run.output, f"{run.output:.4f}", run["train"].tasks[0].attempts[-1].used)\n'
        "for step in run.steps: print(step)\n"
        "if run.output > 0.9: print('good')\n"
        "total = 1 + run.output * 2 - float(run.output)\n"
        "after = len(run.steps)\n"
    )
    try:
        module = usercode.import_file(file)
        assert module.after == 0
        assert not module.run
        assert str(module.run) == "(not run)"
    finally:
        sys.modules.pop("at_module_level", None)
        sys.path.remove(str(tmp_path))
    assert not engine.given


def test_a_missing_argument_of_a_pipeline(engine: Engine) -> None:
    with pytest.raises(GraphError) as caught:
        sums()  # type: ignore[call-arg]
    assert "pipeline 'sums' is missing the argument 'a'" in str(caught.value)
    assert "test_running.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "what", "write"),
    [
        (lambda: sums.run(), "is missing the argument 'a'", "Write sums(a=…)."),
        (lambda: sums(on=2), "is missing the argument 'a'", "Write sums(a=…, on=2)."),
        (lambda: sums.run(a=1), "takes a dictionary in .run(…), and gets a=1", "Write sums(a=1)."),
        (lambda: sums.run(3), "takes a dictionary in .run(…), and gets 3", "Write sums(3)."),
        (lambda: sums.run(onn=2), "has no argument 'onn'", "Did you mean 'on'?"),
        (lambda: sums.run({"onn": 2}), "has no argument 'onn'", "Did you mean 'on'?"),
    ],
)
def test_a_wrong_way_to_run_a_pipeline_is_told_with_the_call_to_write(
    engine: Engine, call: Any, what: str, write: str
) -> None:
    with pytest.raises(GraphError) as caught:
        call()
    assert caught.value.what == f"pipeline 'sums' {what}"
    assert "test_running.py:" in str(caught.value.where)
    assert str(caught.value.why).startswith("It is sums(a: int, tags: str = 'mine', on: int = 3), ")
    assert "test_running.py:" in str(caught.value.why)
    assert caught.value.fix == write
    assert not engine.given


def test_a_pipeline_whose_parameters_have_defaults_is_run_without_a_word(engine: Engine) -> None:
    @pipeline
    def counting(n: int = 3) -> int:
        return add(n)

    assert counting.run(progress=Silent()) == "the run"
    assert len(engine.given) == 1


def test_errors_show_the_users_frames_only(engine: Engine) -> None:
    engine.error = RunFailed("step 'add' failed", run="the run")
    with pytest.raises(RunFailed) as caught:
        sums(1)
    assert caught.value.run == "the run"

    @pipeline
    def branching() -> None:
        if add(1):
            pass

    with pytest.raises(GraphError) as refused:
        branching()
    files = [frame.filename for frame in traceback.extract_tb(refused.value.__traceback__)]
    assert files[0] == files[-1] == __file__
    # Python adds the frame of the call itself; below it there is nothing of ours.
    assert sum("upshift/authoring" in file for file in files) <= 1


def test_an_exception_of_the_pipeline_function_is_the_users_own(engine: Engine) -> None:
    @pipeline
    def broken() -> None:
        {}["missing"]

    with pytest.raises(KeyError) as caught:
        broken()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "broken")
    with pytest.raises(GraphError) as shown:
        broken.run({}, progress=Silent())
    message = str(shown.value)
    assert "pipeline 'broken' raised KeyError: 'missing'" in message
    assert "test_running.py:" in message
    assert "upshift/authoring" not in message


def test_a_bug_of_ours_keeps_its_frames(engine: Engine) -> None:
    engine.error = ZeroDivisionError("in the engine")
    with pytest.raises(ZeroDivisionError):
        sums.run({"a": 1}, progress=Silent())
    with pytest.raises(ZeroDivisionError) as caught:
        sums(1)
    assert "upshift/authoring/running.py" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_a_bug_of_ours_below_the_pipeline_function_keeps_its_frames(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "entry_point", None)
    with pytest.raises(TypeError) as caught:
        sums(1)
    assert "upshift/authoring/composing/definitions.py" in "".join(
        traceback.format_tb(caught.value.__traceback__)
    )


def test_options_of_a_pipeline_that_make_no_sense() -> None:
    with pytest.raises(SettingsError, match="with_options has no option 'tag'"):
        sums.with_options(tag="x")  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="keep_going='yes' is invalid"):
        sums.with_options(keep_going="yes")  # type: ignore[arg-type]
