"""``@run_with_accelerate`` and ``@run_with_torchrun``: where they may stand, and what a step has of them."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import upshift
from upshift import (
    GraphError,
    MisuseError,
    ResourceSettings,
    SettingsError,
    UpshiftError,
    pipeline,
    resources,
    run_with_accelerate,
    run_with_torchrun,
    step,
)
from upshift.authoring.composing.definitions import Analysis
from upshift.model.graph import StepDefinition
from upshift.model.spec.hardware import Launch
from upshift.runtime import usercode
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def code_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project of these steps is this repository: reading all of it takes seconds, each time."""
    monkeypatch.setattr(Analysis, "function", lambda self, function: {})
    monkeypatch.setattr(Analysis, "needed", lambda self: {})


def plain(x: int = 1) -> int:
    return x


def _definition(train: Any, store: Store) -> StepDefinition:
    @pipeline
    def example() -> Any:
        return train(2)

    (definition,) = example.build({}, store).steps.values()
    return definition


def _launch(train: Any, store: Store) -> Launch:
    launch = _definition(train, store).launch
    assert launch is not None
    return launch


def test_it_stands_above_or_below_step(store: Store) -> None:
    above = run_with_accelerate(num_processes=2, cpu=True, mixed_precision="no")(step(plain))
    below = step(run_with_accelerate(num_processes=2, cpu=True, mixed_precision="no")(_copy(plain)))
    expected = Launch(
        launcher="accelerate", processes=2, arguments={"cpu": True, "mixed_precision": "no"}, devices=False
    )
    assert _launch(above, store) == _launch(below, store) == expected


def _copy(function: Callable[..., Any]) -> Any:
    import types

    return types.FunctionType(function.__code__, function.__globals__, function.__name__)


def test_it_goes_with_other_decorators_and_changed_copies(store: Store) -> None:
    train = resources(memory="1GB")(run_with_torchrun(nproc_per_node=2)(step(plain)))
    definition = _definition(train.with_options(name="again", timeout=5), store)
    assert definition.launch == Launch(launcher="torchrun", processes=2)
    assert (definition.settings.resources.memory, definition.settings.timeout) == (10**9, 5)


def test_without_arguments_it_may_stand_bare(store: Store) -> None:
    assert _launch(run_with_accelerate(step(plain)), store) == Launch(launcher="accelerate", counted=False)
    assert _launch(run_with_torchrun(step(plain)), store) == Launch(launcher="torchrun", counted=False)


def test_it_is_known_whether_somebody_says_how_many_processes(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"distributed_type": "NO", "num_processes": 1}')
    gpus = step(settings={"resources": ResourceSettings(gpu_count=4)})(plain)
    for told in (
        run_with_accelerate(num_processes=1)(step(plain)),
        run_with_accelerate(config_file=str(tmp_path / "a.json"))(step(plain)),
        run_with_accelerate(gpus),
        run_with_torchrun(nproc_per_node=1)(step(plain)),
        run_with_torchrun(nproc_per_node="gpu")(gpus),
    ):
        assert _launch(told, store).counted
    assert not _launch(run_with_accelerate(num_processes=None, cpu=True)(step(plain)), store).counted
    assert not _launch(run_with_torchrun(nnodes=2)(step(plain)), store).counted


def test_what_the_step_asks_for_is_merged(store: Store) -> None:
    definition = _definition(run_with_accelerate(num_processes=4, multi_gpu=True)(step(plain)), store)
    assert definition.settings.resources == ResourceSettings(gpu_count=4)
    assert definition.settings.origins["gpu_count"].endswith("(@run_with_accelerate)")
    assert "test_launching.py:" in definition.settings.origins["gpu_count"]
    assert definition.settings.origins["launch"] == definition.settings.origins["gpu_count"]


def test_a_contradiction_with_the_pipelines_request_is_refused_when_it_is_composed(store: Store) -> None:
    train = run_with_accelerate(num_processes=4, multi_gpu=True)(step(plain))

    @pipeline(settings={"resources": ResourceSettings(gpu_count=2)})
    def example() -> Any:
        return train(1)

    with pytest.raises(SettingsError, match="num_processes=4 contradicts gpu_count=2"):
        example.build({}, store)


def test_ports_times_and_gpus_are_read(store: Store) -> None:
    train = run_with_accelerate(num_processes=2, main_process_port=29511, hang=datetime.timedelta(minutes=1))
    launch = _launch(train(step(plain)), store)
    assert (launch.port, launch.hang) == (29511, 60.0)
    assert _launch(run_with_torchrun(master_port=0)(step(plain)), store).port is None
    gpus = step(settings={"resources": ResourceSettings(gpu_count=4)})(plain)
    launch = _launch(run_with_torchrun(nproc_per_node="gpu")(gpus), store)
    assert (launch.processes, launch.devices) == (4, True)


@pytest.mark.parametrize(
    ("decorate", "expected"),
    [
        (run_with_accelerate(num_processes=2, enable_cpu_affinity=True), True),
        (run_with_accelerate(num_processes=2, enable_cpu_affinity=False), False),
        (run_with_torchrun(nproc_per_node=2, numa_binding="node"), True),
        (run_with_torchrun(nproc_per_node=2), None),
    ],
)
def test_processes_can_be_bound_to_numa_nodes(
    decorate: Callable[[Any], Any], expected: bool | None, store: Store
) -> None:
    launch = _definition(decorate(step(plain)), store).launch
    assert launch is not None
    assert (launch.numa_binding, launch.arguments) == (expected, {})


def test_other_ways_to_bind_them_are_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        run_with_torchrun(nproc_per_node=2, numa_binding="core-complex")
    assert "numa_binding='core-complex' cannot be honoured" in str(caught.value)
    assert 'Write numa_binding="node"' in str(caught.value)


def test_what_is_always_so_is_no_argument_of_the_launch(store: Store) -> None:
    train = run_with_accelerate(num_processes=1, quiet=True, same_network=True, gpu_ids="all")(step(plain))
    assert _launch(train, store) == Launch(launcher="accelerate", processes=1)


def test_a_configuration_file_is_found_from_the_working_folder(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text('{"distributed_type": "MULTI_CPU", "num_processes": 3}')
    monkeypatch.chdir(tmp_path)
    train = run_with_accelerate(config_file="a.json")(step(plain))
    monkeypatch.chdir("/")
    assert _launch(train, store).processes == 3
    assert run_with_accelerate(config_file="not_there.yaml")(step(plain))(3) == 3  # it is read for a run


def test_outside_a_pipeline_the_function_is_called() -> None:
    assert run_with_accelerate(num_processes=2, cpu=True)(step(plain))(5) == 5


@pytest.mark.parametrize(
    ("decorate", "text"),
    [
        (lambda: run_with_accelerate(4), "takes its arguments by name, not by position"),
        (lambda: run_with_accelerate(step(plain), num_processes=2), "by name, not by position"),
        (lambda: run_with_accelerate(num_process=4), "Did you mean 'num_processes'?"),
        (lambda: run_with_accelerate(num_processes=0), "num_processes=0 is invalid"),
        (lambda: run_with_accelerate(num_machines=-1), "num_machines=-1 is invalid"),
        (lambda: run_with_accelerate(main_process_port=70000), "a port from 1 to 65535"),
        (lambda: run_with_accelerate(hang=0), "hang=0 is invalid"),
        (lambda: run_with_accelerate(hung=3), "Did you mean 'hang'?"),
        (lambda: run_with_accelerate(cpu=True, multi_gpu=True), "cpu=True and multi_gpu=True contradict"),
        (lambda: run_with_accelerate(use_parallelism_config=True), "needs use_fsdp=True and fsdp_version=2"),
        (lambda: run_with_torchrun(nproc_per_node=0), "nproc_per_node=0 is invalid"),
        (lambda: run_with_torchrun(nproc_per_node="cpu"), "must not depend on the machine"),
        (lambda: run_with_torchrun(nproc_per_node=2.5), "a whole number from 1 to 100,000"),
        (lambda: run_with_torchrun(nproc_per_node="²"), "a whole number from 1 to 100,000"),
        (lambda: run_with_torchrun(nnodes="²"), "nnodes='²' is invalid"),
        (lambda: run_with_torchrun(master_port=70000), "a port from 1 to 65535"),
        (lambda: run_with_torchrun(nproc_per_node="four"), "a whole number from 1 to 100,000"),
        (lambda: run_with_torchrun(nnodes="4:2"), "nnodes='4:2' is invalid"),
        (lambda: run_with_torchrun(nnodes="1:2:3"), "nnodes='1:2:3' is invalid"),
        (lambda: run_with_torchrun(nnodes="x"), "nnodes='x' is invalid"),
        (lambda: run_with_torchrun(standalone=True, nnodes=2), "standalone=True contradicts nnodes=2"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(decorate: Callable[[], Any], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        decorate()
    assert text in str(caught.value)
    assert "test_launching.py:" in str(caught.value.where)


def test_standalone_is_one_node(store: Store) -> None:
    launch = _definition(run_with_torchrun(standalone=True, nproc_per_node=2)(step(plain)), store).launch
    assert launch == _definition(run_with_torchrun(nnodes=1, nproc_per_node=2)(step(plain)), store).launch


def test_checking_does_not_import_torch() -> None:
    import subprocess

    code = (
        "import sys, upshift; upshift.run_with_accelerate(num_processes=2, mixed_precision='bf16');"
        "upshift.run_with_torchrun(nproc_per_node=2);"
        "print(sorted({'torch', 'accelerate', 'yaml', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_in_a_worker_what_its_version_does_not_know_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports may hold steps for other images than its own, with other versions of the launcher."""
    monkeypatch.setattr(usercode, "_importing", 1)
    monkeypatch.setattr(usercode, "_began", None)
    made = step(plain)
    assert run_with_accelerate(of_another_version=True)(made) is made
    assert run_with_torchrun(of_another_version=True)(made) is made
    monkeypatch.setattr(usercode, "_began", 1.0)  # upshift run imports the file
    with pytest.raises(SettingsError, match="has no argument"):
        run_with_accelerate(of_another_version=True)


# Misuse


train = run_with_accelerate(num_processes=2, cpu=True)(step(plain))
ordinary = step(name="ordinary")(plain)


@pytest.mark.parametrize(
    "body",
    [
        lambda: run_with_accelerate(ordinary)(x=1),
        lambda: run_with_accelerate(num_processes=2)(ordinary)(1),
        lambda: run_with_torchrun(nproc_per_node=2)(ordinary)(1),
    ],
)
def test_inside_a_pipeline_it_shows_the_right_way(body: Callable[[], Any], store: Store) -> None:
    @pipeline
    def example() -> Any:
        return body()

    with pytest.raises(MisuseError) as caught:
        example.build({}, store)
    assert isinstance(caught.value, UpshiftError) and isinstance(caught.value, RuntimeError)
    text = str(caught.value)
    assert "is applied inside a pipeline" in text and "    @step\n" in text
    assert "test_launching.py:" in text


def test_the_right_way_has_the_arguments_that_were_given(store: Store) -> None:
    @pipeline
    def example() -> Any:
        return run_with_accelerate(num_processes=8, mixed_precision="bf16", hang=9)(ordinary)(1)

    with pytest.raises(MisuseError) as caught:
        example.build({}, store)
    given = "@run_with_accelerate(num_processes=8, mixed_precision='bf16', hang=9)"
    assert f"{given}\n" in str(caught.value)
    first = run_with_torchrun(nproc_per_node=3)
    for twice in (
        lambda: run_with_accelerate(num_processes=4, cpu=True)(first(step(plain))),
        lambda: step(run_with_accelerate(num_processes=4, cpu=True)(first(_copy(plain)))),
    ):
        with pytest.raises(MisuseError) as caught:
            twice()
        both = ("@run_with_torchrun(nproc_per_node=3)", "@run_with_accelerate(num_processes=4, cpu=True)")
        line = next(line for line in str(caught.value).splitlines() if "# or" in line)
        assert sorted(line.strip().removeprefix("fix:").strip().split("  # or ")) == sorted(both)


def test_made_before_and_applied_inside_a_pipeline_it_is_refused_too(store: Store) -> None:
    made = run_with_accelerate(num_processes=2)

    @pipeline
    def example() -> Any:
        return made(ordinary)(1)

    with pytest.raises(MisuseError, match="applied inside a pipeline") as caught:
        example.build({}, store)
    assert "def ordinary(…)" in str(caught.value) or "def plain(…)" in str(caught.value)


def test_a_module_that_a_pipeline_imports_while_it_is_composed_may_have_such_steps(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "launched_late.py").write_text(
        "from upshift import run_with_accelerate, step\n"
        "@run_with_accelerate(num_processes=2, cpu=True)\n@step\ndef late(x: int) -> int:\n    return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    @pipeline
    def example() -> Any:
        from launched_late import late  # type: ignore[import-not-found]

        return late(1)

    (definition,) = example.build({}, store).steps.values()
    assert definition.launch is not None and definition.launch.processes == 2


@pytest.mark.parametrize("again", [run_with_accelerate(num_processes=2, cpu=True), run_with_torchrun()])
def test_wrapped_twice_it_is_refused(again: Callable[[Any], Any]) -> None:
    with pytest.raises(MisuseError, match="runs with accelerate already, and is wrapped again") as caught:
        again(train)
    assert "@run_with_accelerate(num_processes=2, cpu=True)" in str(caught.value)
    with pytest.raises(MisuseError, match="is wrapped again"):
        step(again(run_with_accelerate(num_processes=3)(_copy(plain))))
    with pytest.raises(MisuseError, match="is wrapped again"):
        run_with_accelerate(num_processes=3)(step(again(_copy(plain))))


def test_a_secret_is_not_shown_in_the_right_way_either(store: Store) -> None:
    @pipeline
    def example() -> Any:
        return run_with_accelerate(num_processes=2, aws_secret_access_key="hunter2hunter2")(ordinary)(1)

    with pytest.raises(MisuseError, match="aws_secret_access_key=…") as caught:
        example.build({}, store)
    assert "hunter2" not in str(caught.value)


def test_what_can_be_no_step_cannot_be_launched() -> None:
    @pipeline
    def example() -> None: ...

    with pytest.raises(GraphError, match="decorators of a step, and cannot be a pipeline"):
        run_with_accelerate(num_processes=2)(example)


def test_the_names_are_those_of_the_package() -> None:
    assert upshift.run_with_accelerate is run_with_accelerate
    assert "num_processes" in (run_with_accelerate.__doc__ or "")
