"""Finishing a run: which pipeline, which arguments and which code it goes on with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from silent_progress import Silent

import upshift
from upshift import LoadError, NotFound, Pipeline
from upshift.authoring import running
from upshift.authoring.loading import load_pipeline
from upshift.authoring.resume import resume_run
from upshift.authoring.running import remembered, source_of
from upshift.engine import RunOptions
from upshift.model.configuration import load_configuration
from upshift.model.spec.codec import encode, to_json
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.catalog.rows import RunRow
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

CODE = """
from upshift import pipeline, step

@step
def add(a, b=1):
    return a + b

@pipeline
def sums(a, names=()):
    return add(add(a))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "project" / "resumable.py"
    path.parent.mkdir()
    path.write_text(CODE)
    yield path
    sys.modules.pop("resumable", None)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the engine is given."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(running, "execute", lambda graph, **rest: given.update(graph=graph, **rest))
    return given


@pytest.fixture
def record(store: Store) -> Callable[..., None]:
    """Records a run that was started earlier, as the engine does."""

    def record(pipeline: Pipeline[..., Any], arguments: dict[str, object], **changes: Any) -> None:
        graph = pipeline.build(arguments, store)
        store.write_record("20260101-000000-abcd", "graph.json", to_json(graph))
        row = RunRow(
            id="20260101-000000-abcd",
            pipeline=graph.pipeline,
            status="failed",
            target="local",
            user="me",
            tags=("daily",),
            started=1.0,
            ended=None,
            store=store.address,
            source={**source_of(pipeline), "cwd": "/data", **changes},
            params={name: encode(artifact) for name, artifact in graph.params.items()},
        )
        catalog = open_catalog(load_configuration())
        catalog.add_run(row)
        catalog.close()

    return record


def resume(ref: str = "latest", *, same_code: bool = False, **changes: bool | None) -> None:
    resume_run(ref, same_code=same_code, progress=Silent(), **changes)


def edit(file: Path) -> None:
    """The user changes the pipeline, and comes back in another process."""
    file.write_text(CODE.replace("add(add(a))", "add(a)"))
    sys.modules.pop("resumable", None)


def test_a_run_goes_on_with_its_arguments_and_the_code_as_it_is_now(
    file: Path, store: Store, record: Callable[..., None], given: dict[str, Any]
) -> None:
    record(load_pipeline(str(file)), {"a": 5, "names": ("x", "y")})
    edit(file)
    resume("20260101")
    assert given["resume"] == "20260101-000000-abcd"
    graph = given["graph"]
    assert len(graph.nodes) == 1
    assert {n: artifacts.load(a, store) for n, a in graph.params.items()} == {"a": 5, "names": ("x", "y")}
    assert given["options"] == RunOptions(target="local", tags=("daily",))
    assert given["source"]["cwd"] == "/data"
    assert given["code"].file == "resumable.py"


def test_the_options_of_a_changed_copy_are_kept(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    copy = load_pipeline(str(file)).with_options(
        retries=4, strict=True, settings={"resources": {"memory": "1GB"}}
    )
    record(copy, {"a": 5})
    edit(file)
    resume()
    (definition,) = given["graph"].steps.values()
    assert definition.settings.retry.times == 4
    assert definition.settings.resources.memory == 10**9
    assert given["options"].strict is True


def test_a_run_goes_on_with_the_options_that_it_was_started_with(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    options = RunOptions(strict=True, reuse=False, keep_going=True)
    record(load_pipeline(str(file)), {"a": 5}, run=remembered(options, options))
    resume()
    assert given["options"] == attrs.evolve(options, target="local", tags=("daily",))


def test_options_that_the_user_gives_anew_replace_the_recorded_ones_for_good(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    options = RunOptions(strict=True, reuse=False, keep_going=True)
    record(load_pipeline(str(file)), {"a": 5}, run=remembered(options, options))
    resume(strict=False, keep_going=False)
    assert given["options"] == RunOptions(
        strict=False, reuse=False, keep_going=False, target="local", tags=("daily",)
    )
    record(load_pipeline(str(file)), {"a": 5}, run=given["source"]["run"])
    resume()
    assert given["options"].strict is False
    assert given["options"].keep_going is False


def test_what_the_run_left_to_the_pipeline_is_as_the_pipeline_says_now(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    pipeline = load_pipeline(str(file))
    record(pipeline, {"a": 5}, run=remembered(RunOptions(), RunOptions(strict=True, keep_going=True)))
    file.write_text(CODE.replace("@pipeline\n", '@pipeline(on_failure="continue")\n'))
    sys.modules.pop("resumable", None)
    resume()
    assert (given["options"].strict, given["options"].keep_going) == (None, True)
    resume(keep_going=False)
    assert given["options"].keep_going is False


def test_a_recorded_graph_goes_on_with_what_its_pipeline_said_then(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    settled = RunOptions(strict=True, keep_going=True)
    record(load_pipeline(str(file)), {"a": 5}, file=None, run=remembered(RunOptions(), settled))
    resume()
    assert (given["options"].strict, given["options"].keep_going) == (True, True)
    assert given["source"]["run"]["settled"] == encode(given["options"])


def test_a_complete_run_stays_as_it_is(
    file: Path,
    store: Store,
    record: Callable[..., None],
    given: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(load_pipeline(str(file)), {"a": 5})
    with closing(open_catalog(load_configuration())) as catalog:
        catalog.update_run("20260101-000000-abcd", status="completed", ended=2.0)
        before = catalog.run("latest")
    file.unlink()
    run = upshift.resume("latest")
    assert not given
    assert run.row == before
    assert "run 20260101-000000-abcd is already complete" in capsys.readouterr().err


def test_same_code_takes_the_recorded_graph_and_package(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    pipeline = load_pipeline(str(file))
    code = {**source_of(pipeline)["code"], "package": "blake3:00"}
    record(pipeline, {"a": 5}, code=code)
    edit(file)
    resume(same_code=True)
    assert len(given["graph"].nodes) == 2
    assert given["code"].package == "blake3:00"


def test_same_code_is_refused_where_the_code_was_not_recorded(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    record(load_pipeline(str(file)), {"a": 5})
    with pytest.raises(NotFound, match="the code of run 20260101-000000-abcd was not recorded"):
        resume(same_code=True)
    assert not given


def test_a_run_of_a_notebook_goes_on_with_the_recorded_graph(
    file: Path, record: Callable[..., None], given: dict[str, Any]
) -> None:
    record(load_pipeline(str(file)), {"a": 5}, file=None)
    resume()
    assert len(given["graph"].nodes) == 2


def test_a_file_that_is_gone(file: Path, record: Callable[..., None], given: dict[str, Any]) -> None:
    record(load_pipeline(str(file)), {"a": 5})
    file.unlink()
    with pytest.raises(LoadError) as caught:
        resume()
    assert "resumable.py" in str(caught.value)
    assert "--same-code" in str(caught.value)


def test_a_parameter_that_is_gone(file: Path, record: Callable[..., None], given: dict[str, Any]) -> None:
    record(load_pipeline(str(file)), {"a": 5, "names": ("x",)})
    file.write_text(CODE.replace(", names=()", ""))
    sys.modules.pop("resumable", None)
    with pytest.raises(TypeError, match="has no argument 'names'"):
        resume()


def test_an_unknown_run() -> None:
    with pytest.raises(NotFound, match="nosuchrun"):
        resume("nosuchrun")
