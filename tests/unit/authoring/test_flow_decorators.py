"""Metaflow's decorators: what they become, and what is said to who uses them wrongly."""

from __future__ import annotations

from typing import Any

import pytest

import upshift
from upshift import (
    FlowSpec,
    GraphError,
    MisuseError,
    SettingsError,
    batch,
    card,
    catch,
    conda,
    conda_base,
    current,
    environment,
    kubernetes,
    project,
    pypi,
    pypi_base,
    resources,
    retry,
    schedule,
    secrets,
    slurm,
    step,
    trigger,
    trigger_on_finish,
)
from upshift.model.graph import task_id
from upshift.model.settings.step import StepSettings


def settings_of(*decorators: Any) -> StepSettings:
    """What a step with these decorators was told."""

    def work(self: Any) -> None: ...

    made: Any = work
    for decorator in decorators:
        made = decorator(made)
    return step(made).options.settings


def test_variables_of_a_step_are_its_runtime_environment() -> None:
    docker = settings_of(environment(vars={"A": "x", "N": 2}), pypi(packages={"numpy": "1.26.4"})).docker
    assert docker is not None
    assert docker.runtime_environment == {"A": "x", "N": "2"}
    assert docker.requirements == ["numpy==1.26.4"] or docker.requirements == ("numpy==1.26.4",)


def test_secrets_are_sources_by_variable() -> None:
    assert settings_of(secrets(sources=["env:HF_TOKEN"])).secrets == {"HF_TOKEN": "env:HF_TOKEN"}
    assert settings_of(secrets(sources={"A": "file:a.txt"})).secrets == {"A": "file:a.txt"}


def test_packages_of_pypi_and_conda_are_requirements() -> None:
    said = {"numpy": "1.26", "pandas": ">=2,<3", "rich": "", "conda-forge::pytorch": "2.4"}
    docker = settings_of(conda(libraries=said, python="3.11")).docker
    assert docker is not None
    assert list(docker.requirements or ()) == ["numpy==1.26", "pandas>=2,<3", "rich", "torch==2.4"]
    assert docker.parent_image == "python:3.11-slim"


@pytest.mark.parametrize(
    ("decorator", "target"), [(kubernetes, "kubernetes"), (batch, "aws-batch"), (slurm, "slurm")]
)
def test_a_backends_decorator_moves_the_step_there(decorator: Any, target: str) -> None:
    settings = settings_of(decorator(cpu=2, memory=500))
    assert (settings.on, settings.resources.cpu_count, settings.resources.memory) == (
        target,
        2,
        500_000_000,
    )
    assert settings_of(decorator).on == target
    assert settings.origins["on"].endswith(f"(@{decorator.__name__})")


def test_batch_asks_for_devices_an_image_and_what_aws_batch_alone_knows() -> None:
    settings = settings_of(
        batch(
            trainium=16, memory="400GiB", image="ml/neuron:1", queue="trn", efa=8, aws_batch_tags={"a": "b"}
        )
    )
    assert settings.resources.accelerator == "Trainium:16" and settings.docker is not None
    assert settings.docker.parent_image == "ml/neuron:1"
    assert settings.backends == {"aws-batch": {"queue": "trn", "efa": 8, "tags": {"a": "b"}}}
    assert settings.origins["aws-batch.efa"].endswith("(@batch)")


def test_batch_beside_resources_asks_for_the_larger_of_each_value() -> None:
    asked = settings_of(batch(cpu=2, memory=8000, inferentia=1), resources(cpu=4, memory=4000, gpu=2))
    request = asked.resources
    assert (request.cpu_count, request.memory, request.accelerator) == (4, 8_000_000_000, "Inferentia")
    assert request.gpu_count == 2 and asked.on == "aws-batch"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: environment(vars="A=1"), ["@environment: vars=", "a dict"]),
        (lambda: environment(vars={"9": "x"}), ["@environment: vars"]),
        (lambda: environment(variables={}), ["no option 'variables'", "vars"]),
        (lambda: secrets(sources=["aws-secrets-manager.token"]), ["cannot be read", "env:NAME"]),
        (lambda: secrets(sources=["env:X"], role="arn"), ["role is not supported"]),
        (lambda: secrets(sources="env:X"), ["sources=", "a list"]),
        (lambda: catch(var="not a name"), ["@catch: var="]),
        (lambda: catch(print_exception="no"), ["print_exception"]),
        (lambda: card(type="notebook"), ["type='notebook'", "current.card.append"]),
        (lambda: card(options={"x": 1}), ["options="]),
        (lambda: pypi(packages=["numpy"]), ["@pypi: packages=", "a dict"]),
        (lambda: pypi(packages={"numpy": None}), ["packages['numpy']"]),
        (lambda: pypi(packages={"num py": "1"}), ["@pypi: packages"]),
        (lambda: pypi(python="three"), ["python='three'", "3.11"]),
        (lambda: conda(packages={"cudatoolkit": "11.8"}), ["not a Python package", "parent_image"]),
        (lambda: kubernetes(cpus=1), ["@kubernetes has no option 'cpus'", "cpu"]),
        (lambda: batch(vcpus=1), ["@batch has no option 'vcpus'", "cpu_count"]),
        (lambda: batch(quueue="gpu"), ["@batch has no option 'quueue'", "queue"]),
        (lambda: batch(iam_role="admin"), ["iam_role='admin'", "arn:aws:iam::123456789012:role/NAME"]),
        (lambda: batch(swappiness=60), ["swappiness=60 has no effect without max_swap"]),
        (lambda: batch(efs_volumes="/data"), ["efs_volumes='/data'", "fs-0123456789abcdef0"]),
        (lambda: batch(host_volumes=["data"]), ["host_volumes='data'", "/data:/mnt/data"]),
        (lambda: batch(ephemeral_storage=20), ["ephemeral_storage=20", "from 21 to 200"]),
        (lambda: batch(tmpfs_size="big"), ["tmpfs_size='big'", "MiB"]),
        (lambda: batch(log_options=["x"]), ["log_options=", "awslogs-group"]),
        (lambda: batch(tags={"aws:x": "y"}), ["tags['aws:x']", "do not begin"]),
        (lambda: project(name="no/name"), ["@project: name="]),
        (lambda: schedule(cron="daily"), ["cron='daily'", "fields"]),
        (lambda: trigger(), ["@trigger takes event or events"]),
        (lambda: trigger_on_finish(flow="A", flows=["B"]), ["takes flow or flows"]),
        (lambda: trigger_on_finish(flows="AB"), ["a list of names"]),
    ],
)
def test_what_makes_no_sense_is_said_with_its_line(make: Any, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    assert "test_flow_decorators.py:" in str(caught.value.where)


def test_two_decorators_that_say_different_things_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"docker\.requirements is set twice"):
        settings_of(pypi(packages={"numpy": "1"}), pypi(packages={"numpy": "2"}))
    with pytest.raises(SettingsError, match=r"docker\.runtime_environment is set twice"):
        settings_of(environment(vars={"A": "1"}), environment(vars={"A": "2"}))


@trigger(event="data")
@schedule(weekly=True)
@project(name="shop", branch="blue")
@pypi_base(packages={"numpy": "1.26"})
class Decorated(FlowSpec):
    @step
    def start(self) -> None:
        self.next(self.end)

    @pypi(disabled=True)
    @step
    def end(self) -> None: ...


class Inherits(Decorated):
    pass


@pytest.mark.parametrize("flow", [Decorated, Inherits])
def test_decorators_of_a_flow_are_kept_with_it_and_its_subclasses(
    flow: type[FlowSpec], tmp_path: Any
) -> None:
    pipeline = flow.__upshift_pipeline__
    assert pipeline.marks["project"]["name"] == "shop"
    assert pipeline.marks["schedule"]["weekly"] is True
    assert pipeline.marks["trigger"]["events"] == ["data"]
    assert "test_flow_decorators.py:" in pipeline.marks["trigger"]["where"]
    assert pipeline.options.tags == ("project:shop", "project_branch:test.blue")
    from upshift.runtime.storage.store import open_store

    graph = pipeline.build({}, open_store(str(tmp_path)))
    assert list(graph.steps["start"].settings.docker.requirements) == ["numpy==1.26"]  # type: ignore[union-attr, arg-type]
    assert graph.steps["end"].settings.docker is None


def test_a_decorator_of_a_flow_is_for_classes_of_flows() -> None:
    with pytest.raises(MisuseError, match="@conda_base is above Other, which is not a flow"):

        @conda_base(packages={"numpy": "1"})
        class Other:  # type: ignore[type-var]
            pass


def test_what_decides_the_way_cannot_be_caught() -> None:
    class Chooses(FlowSpec):
        @catch(var="failed")
        @step
        def start(self) -> None:
            self.xs = [1]
            self.next(self.each, foreach="xs")

        @step
        def each(self) -> None:
            self.next(self.join)

        @step
        def join(self, inputs: Any) -> None:
            self.next(self.end)

        @step
        def end(self) -> None: ...

    with pytest.raises(GraphError, match="'start' has @catch, and also chooses the next step"):
        assert Chooses.__upshift_pipeline__.shape


def test_steps_of_pipelines_have_no_catch() -> None:
    @catch(var="failed")
    @step
    def work() -> int:
        return 1

    @upshift.pipeline
    def composed() -> None:
        work()

    with pytest.raises(GraphError, match="has @catch, and is not a step of a flow"):
        composed()


@pytest.mark.parametrize(
    ("node", "index", "identity"),
    [
        ("end", None, "0"),
        ("train", 3, "3"),
        ("inner.3", 1, "3.1"),
        ("gather.1", None, "1"),
        ("again#2", None, "0#2"),
    ],
)
def test_a_task_is_told_from_the_others_of_its_step(node: str, index: int | None, identity: str) -> None:
    assert task_id(node, index) == identity


def test_names_of_metaflow_are_there_in_flows_only() -> None:
    assert not current.is_running_flow
    assert "run_id" not in current
    assert current.get("run_id", "none") == "none"


def test_a_retried_and_caught_step_keeps_both() -> None:
    settings = settings_of(retry(times=2, minutes_between_retries=1), catch(var="failed"))
    assert settings.retry is not None
    assert settings.catch is not None
    assert (settings.retry.times, settings.retry.pause(1), settings.catch.var) == (2, 60, "failed")
