"""Steps: what a decorated function still is, and what it can be told."""

from __future__ import annotations

import asyncio
import datetime
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from upshift import (
    DockerSettings,
    GraphError,
    MisuseError,
    ResourceSettings,
    Retry,
    SettingsError,
    gpu_profile,
    pipeline,
    resources,
    retry,
    run_with_torchrun,
    step,
    timeout,
)
from upshift.backends.fake import FakeSettings
from upshift.errors import location
from upshift.model.graph import Graph

Compose = Callable[..., Graph]


@step
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@step
def halves(x: int) -> tuple[int, int]:
    return x // 2, x - x // 2


def definition(compose: Compose, one: Any, *, outer: Any = pipeline) -> Any:
    """The definition that a step gets in a pipeline of its own."""

    @outer
    def only() -> None:
        one()

    (found,) = compose(only).steps.values()
    return found


def test_outside_a_pipeline_a_step_is_its_function() -> None:
    assert add(1, b=2) == 3
    assert add.after(3)(1) == 2


def test_outside_a_pipeline_map_is_a_loop() -> None:
    assert add.map([1, 2], b=10) == [11, 12]
    assert halves.map(range(3)) == ([0, 0, 1], [0, 1, 1])


def test_a_step_keeps_name_text_and_signature() -> None:
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 1) -> 'int'"


def test_with_options_gives_a_changed_copy_and_leaves_the_step() -> None:
    slow = add.with_options(name="slow", timeout=60, retries=2)
    quick = slow.with_options(timeout=datetime.timedelta(seconds=5))
    assert (add.name, slow.name, quick.name) == ("add", "slow", "slow")
    assert (add.options.settings.timeout, slow.options.settings.timeout, quick.options.settings.timeout) == (
        None,
        60,
        5,
    )
    assert quick.options.settings.retry == Retry(times=2)


def test_with_options_merges_settings_field_by_field(compose: Compose) -> None:
    base = step(settings={"resources": {"cpu_count": 4, "memory": "1GB"}})(_nothing)
    changed = base.with_options(settings={"resources": ResourceSettings(cpu_count=1)})
    request = definition(compose, changed).settings.resources
    assert (request.cpu_count, request.memory) == (1, 10**9)


def test_resources_work_above_and_below_step(compose: Compose) -> None:
    above = resources(cpu=2, gpu=1, memory=300)(step(_nothing))
    below = step(resources(cpu=2, gpu=1, memory=300)(_fresh()))
    for one in (above, below):
        assert definition(compose, one).settings.resources == ResourceSettings(
            cpu_count=2, gpu_count=1, memory="300MB"
        )


def test_a_function_with_options_of_a_step_is_none_and_is_not_called_while_a_pipeline_is_composed(
    compose: Compose,
) -> None:
    called = []

    @retry
    @resources(memory="1GB")
    def helper(x: int) -> int:
        called.append(x)
        return x

    @pipeline
    def composed() -> None:
        helper(2)

    with pytest.raises(MisuseError, match="helper is called in a pipeline, and is not a step") as caught:
        compose(composed)
    assert not called
    assert isinstance(caught.value, RuntimeError)
    for place in (caught.value.where, caught.value.fix):
        assert place is not None and "test_steps.py:" in place
    assert helper(3) == 3  # elsewhere it is the function that it was
    made = step(helper)
    assert made.options.settings.retry is not None and made.options.settings.resources.memory == 10**9
    assert (
        step(_passing(helper)).options.settings.resources == made.options.settings.resources
    )  # what wraps it has them too
    assert inspect.getclosurevars(made.__upshift_function__).nonlocals == {
        "called": [3]
    }  # no wrapper of ours


def _passing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def passing(x: int = 5) -> Any:
        return function(x)

    return passing


@pytest.mark.parametrize("other", [retry, resources(cpu=2), run_with_torchrun(nproc_per_node=2)])
def test_a_pipeline_takes_no_options_of_a_step_from_above_or_below(other: Callable[..., Any]) -> None:
    for decorated in (lambda: pipeline(other(_fresh())), lambda: other(pipeline(_fresh()))):
        with pytest.raises(GraphError, match="has decorators of a step, and cannot be a pipeline"):
            decorated()


def test_of_several_requests_on_one_step_the_larger_of_each_value_counts(compose: Compose) -> None:
    @resources(cpu=2, gpu=4, memory="1GB")
    @step(settings={"resources": ResourceSettings(cpu_count=8, gpu_count=0, disk="5GB")})
    @resources(memory=2000)
    def one() -> None: ...

    found = definition(compose, one)
    assert found.settings.resources == ResourceSettings(cpu_count=8, gpu_count=4, memory="2GB", disk="5GB")
    said = {field: origin.partition(" ")[2] for field, origin in found.settings.origins.items()}
    assert said == {
        "cpu_count": "(@step)",
        "gpu_count": "(@resources)",
        "memory": "(@resources)",
        "disk": "(@step)",
    }
    assert all("test_steps.py:" in origin for origin in found.settings.origins.values())


def test_two_kinds_of_accelerator_on_one_step_are_refused() -> None:
    with pytest.raises(SettingsError, match="accelerator is set twice on one step: 'H100:8' and 'A100'"):
        resources(accelerator="A100")(step(settings={"resources": {"accelerator": "H100:8"}})(_nothing))


def test_the_count_of_an_accelerator_takes_part_in_the_larger() -> None:
    one = resources(gpu=16)(step(settings={"resources": {"accelerator": "H100:8"}})(_nothing))
    assert one.options.settings.resources == ResourceSettings(accelerator="H100", gpu_count=16)


def test_a_kind_and_a_count_from_two_places_have_the_origin_of_each(compose: Compose) -> None:
    outer = pipeline(settings={"resources": {"accelerator": "H100:8"}})
    one = resources(gpu=2)(step(_fresh()))
    found = definition(compose, one, outer=outer)
    assert [str(wanted) for wanted in found.settings.resources.alternatives] == ["2 × H100"]
    said = {field: origin.partition(" ")[2] for field, origin in found.settings.origins.items()}
    assert said == {"accelerator": "(@pipeline)", "gpu_count": "(@resources)"}
    narrowed = step(settings={"resources": {"accelerator": "A100"}})(_fresh())
    found = definition(compose, narrowed, outer=outer)
    assert [str(wanted) for wanted in found.settings.resources.alternatives] == ["8 × A100"]
    said = {field: origin.partition(" ")[2] for field, origin in found.settings.origins.items()}
    assert said == {"accelerator": "(@step)", "gpu_count": "(@pipeline)"}


def test_requests_that_contradict_each_other_name_both_places(compose: Compose) -> None:
    with pytest.raises(SettingsError, match=r"accelerator='T4' contradicts gpu_memory of 40 GB") as caught:
        resources(gpu_memory=">=40GB")(step(settings={"resources": {"accelerator": "T4"}})(_fresh()))
    assert caught.value.where is not None
    assert "(@step)" in caught.value.where
    assert "(@resources)" in caught.value.where
    outer = pipeline(settings={"resources": {"gpu_memory": "40GB"}})
    one = step(settings={"resources": {"accelerator": "T4"}})(_fresh())
    with pytest.raises(SettingsError, match="contradicts") as caught:
        definition(compose, one, outer=outer)
    assert caught.value.where is not None
    assert "(@pipeline)" in caught.value.where


def test_trainium_and_inferentia_are_counted_in_devices_as_in_metaflow() -> None:
    def asked(**options: Any) -> list[str]:
        request = resources(**options)(step(_fresh())).options.settings.resources
        return [str(wanted) for wanted in request.alternatives]

    assert asked(trainium=16) == ["16 × Trainium"]
    assert asked(inferentia=4) == ["4 × Inferentia"]
    assert asked(trainium=0) == ["0 × GPU"]
    assert asked(gpu_memory=40_000) == ["1 × GPU, ≥ 40 GB"]  # a bare number of @resources is MB
    assert asked(accelerator=["H100:8", "A100-80GB:8"]) == ["8 × H100", "8 × A100-80GB"]


def test_retry_with_and_without_options() -> None:
    assert retry(step(_nothing)).options.settings.retry == Retry(times=3)
    assert step(retry(times=1, delay=2, on="preempted")(_fresh())).options.settings.retry == Retry(
        times=1, delay=2, on="preempted"
    )


def test_minutes_between_retries_are_a_constant_pause() -> None:
    policy = retry(times=4, minutes_between_retries=2)(step(_nothing)).options.settings.retry
    assert policy is not None
    assert [policy.pause(n) for n in (1, 2, 3)] == [120, 120, 120]


def test_the_amounts_of_timeout_add_up() -> None:
    assert timeout(hours=1, minutes=1, seconds=1)(step(_nothing)).options.settings.timeout == 3661


def test_what_is_set_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="timeout is set twice on one step"):
        timeout(seconds=5)(step(timeout=6)(_nothing))


def test_the_settings_of_a_pipeline_are_those_of_its_steps_where_they_say_nothing(compose: Compose) -> None:
    outer = pipeline(
        settings={
            "resources": ResourceSettings(cpu_count=2, memory="2GB"),
            "docker": DockerSettings(parent_image="a", requirements=["b"], runtime_environment={"X": 1}),
        },
        retries=5,
        cache=False,
    )
    one = step(settings={"resources": {"cpu_count": 1}, "docker": {"requirements": ["c"]}}, cache=True)(
        _nothing
    )
    found = definition(compose, one, outer=outer)
    assert found.settings.resources == ResourceSettings(cpu_count=1, memory="2GB")
    assert found.settings.docker == DockerSettings(
        parent_image="a", requirements=["c"], runtime_environment={"X": 1}
    )
    assert found.environment == {"X": "1"}
    assert (found.settings.retry.times, found.settings.cache) == (5, True)
    assert found.settings.origins["memory"].endswith("(@pipeline)")
    assert found.settings.origins["cpu_count"].endswith("(@step)")


def test_settings_of_an_image_are_blamed_on_the_line_that_made_them(compose: Compose) -> None:
    settings = DockerSettings(platform="linux/arm64")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    found = definition(compose, step(settings={"docker": settings})(_nothing))
    assert found.settings.origins["docker.platform"] == f"{location(__file__, line)} (@step)"
    assert DockerSettings(platform="linux/arm64") == settings


def test_zero_gpus_override_those_of_the_pipeline(compose: Compose) -> None:
    outer = pipeline(settings={"resources": {"gpu_count": 4}})
    one = step(settings={"resources": {"gpu_count": 0}})(_nothing)
    assert definition(compose, one, outer=outer).settings.resources.gpu_count == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: step(retires=3), ["@step has no option 'retires'", "Did you mean 'retries'?"]),
        (lambda: step("a"), ["@step gets the text 'a'", "@step(name='a')"]),
        (lambda: add.with_options(timout=3), ["with_options has no option 'timout'", "'timeout'"]),
        (lambda: pipeline(tag="x"), ["@pipeline has no option 'tag'", "Did you mean 'tags'?"]),
        (lambda: resources(gpus=1), ["@resources has no option 'gpus'", "Did you mean 'gpu'?"]),
        (lambda: resources(4), ["@resources takes its options by name", "cpu, gpu"]),
        (lambda: retry(3), ["@retry takes its options by name", "Write @retry(times=3)."]),
        (
            lambda: gpu_profile(1),
            ["takes its options by name", "Write @gpu_profile(interval=1)."],
        ),
        (lambda: timeout(60), ["@timeout takes its options by name", "Write @timeout(seconds=60)."]),
        (
            lambda: step(gpu_count=1),
            [
                'Write @step(settings={"resources": ResourceSettings(gpu_count=1)}), '
                "or put @resources(gpu_count=1) above it."
            ],
        ),
        (lambda: step(accelerator="H100"), ["ResourceSettings(accelerator='H100')"]),
        (lambda: step(resources=8), ['Write @step(settings={"resources": ResourceSettings(…)}), or put']),
        (lambda: step(docker=None), ['Write @step(settings={"docker": DockerSettings(…)}).']),
        (lambda: step(gpus=2), ["or put @resources(gpu_count=2) above it."]),
        (lambda: step(memory=4), ["or put @resources(memory='16GB') above it."]),
        (lambda: add.with_options(gpu_count=4), ['Write with_options(settings={"resources": Resource']),
        (lambda: resources(cpu=1, cpu_count=2), ["cpu and cpu_count are the same thing"]),
        (
            lambda: resources(memory="16GBB"),
            ["@resources: memory='16GBB' is invalid", "a bare number is MB"],
        ),
        (
            lambda: resources(memory=0.5),
            ["@resources: memory=0.5 is invalid", 'A bare number is MB: memory=500, or "500MB".'],
        ),
        (lambda: resources(disk=-4), ["@resources: disk=-4 is invalid", "disk=500"]),
        (lambda: resources(memory="16G"), ["memory='16G' is invalid", "Did you mean '16GB'?"]),
        (lambda: resources(gpu=-1), ["gpu_count=-1 is invalid"]),
        (lambda: resources(gpu=0.5), ["gpu_count=0.5 is invalid", "MIG"]),
        (lambda: resources(accelerator="A100:"), ["accelerator='A100:' is invalid"]),
        (lambda: resources(gpu_memory=40), ["gpu_memory=40 is invalid", "a bare number is MB"]),
        (lambda: resources(gpu_memory="40"), ["gpu_memory='40' is invalid", "GPU has more"]),
        (lambda: resources(trainium=1.5), ["@resources: trainium=1.5 is invalid", "devices"]),
        (
            lambda: resources(trainium=1, accelerator="H100:2"),
            ["name a kind each", "accelerator=['Trainium:1', 'H100:2']"],
        ),
        (lambda: retry(times=-1), ["times=-1 is invalid"]),
        (lambda: retry(minutes_between_retries=1, delay=3), ["a constant pause"]),
        (lambda: retry(on="oom"), ["on='oom' is not a cause of failure"]),
        (lambda: timeout(), ["@timeout: seconds=0.0 is invalid"]),
        (lambda: timeout(minuts=1), ["Did you mean 'minutes'?"]),
        (lambda: step(settings={"resorces": {}}), ["no settings 'resorces'", "Did you mean 'resources'?"]),
        (lambda: step(settings={"resources": 4}), ["settings['resources']=4 is invalid"]),
        (lambda: step(settings=ResourceSettings()), ["settings=", "is invalid"]),
        (lambda: step(settings={"docker": {"parent_img": "x"}}), ["Did you mean 'parent_image'?"]),
        (lambda: step(timeout=0), ["@step: timeout=0 is invalid", "from 0.001 to 315,360,000"]),
        (lambda: step(timeout="30min"), ["timeout='30min' is invalid"]),
        (lambda: step(cache="no"), ["cache='no' is invalid", "True or False"]),
        (lambda: step(cache_expires=-1), ["cache_expires=-1 is invalid"]),
        (lambda: step(retries=True), ["retries=True is invalid"]),
        (lambda: step(name="a/b"), ["name='a/b' is invalid"]),
        (lambda: step(on=""), ["on='' is invalid"]),
        (lambda: step(secrets={"T": "T"}), ["secrets['T'] does not name the source of the value"]),
        (lambda: pipeline(on_failure="ignore"), ["on_failure='ignore'", '"stop" or "continue"']),
        (lambda: pipeline(tags=[1]), ["tags[0]=1 is invalid"]),
        (lambda: pipeline(strict=1), ["strict=1 is invalid"]),
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_users_line(
    make: Callable[[], object], words: list[str]
) -> None:
    with pytest.raises((SettingsError, GraphError)) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    assert "test_steps.py:" in str(caught.value)


async def _async() -> None: ...
def _generator() -> Any:
    yield 1


async def _async_generator() -> Any:
    yield 1


class _Callable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_async, "async function"),
        (_generator, "generator"),
        (_async_generator, "async generator"),
        (_Callable, "a class"),
        (_Callable(), "not a plain function"),
        (len, "not a plain function"),
        (staticmethod(_generator), "not a plain function"),
        (lambda: 1, "a lambda has no name"),
        (add, "'add' is a step already"),
    ],
)
@pytest.mark.parametrize("decorate", [step, pipeline])
def test_what_is_no_plain_function_is_refused(decorate: Any, what: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        decorate(what)
    assert "test_steps.py:" in str(caught.value)
    assert caught.value.fix


def test_a_lambda_with_a_name_is_a_step(compose: Compose) -> None:
    double = step(name="double")(lambda: 4)
    assert double() == 4
    assert definition(compose, double).entry.payload is not None


def test_a_step_runs_inside_a_running_event_loop() -> None:
    async def main() -> int:
        return add(1)

    assert asyncio.run(main()) == 2


def test_a_step_of_a_module_pickles_by_name() -> None:
    assert pickle.loads(pickle.dumps(add)) is add


def test_a_step_that_no_module_knows_pickles_by_value() -> None:
    @step(timeout=5)
    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1)

    copy = cloudpickle.loads(cloudpickle.dumps(count))
    assert copy is not count
    assert copy(3) == 3
    assert copy.options.settings.timeout == 5


def _nothing() -> None: ...


def _fresh() -> Callable[[], None]:
    """A function that no other test has decorated."""

    def nothing() -> None: ...

    return nothing


@pytest.mark.parametrize("amount", [300, 300.5, "300", " 4096 ", 10**6 - 1])
def test_a_number_of_bytes_that_no_step_can_do_with_is_refused(amount: object) -> None:
    with pytest.raises(SettingsError, match="a number and one of B, KB, KiB, MB") as caught:
        ResourceSettings(memory=amount)  # type: ignore[arg-type]
    assert "a number alone is bytes" in str(caught.value)
    assert ResourceSettings(memory=10**6).memory == 10**6


def test_a_method_that_lacks_arguments_is_told_that_steps_are_functions(compose: Compose) -> None:
    class Model:
        @step
        def fit(self, x: int) -> int:
            return x

    @pipeline
    def fits(keyword: bool) -> None:
        Model().fit(x=1) if keyword else Model().fit(1)

    for keyword in (False, True):
        with pytest.raises(GraphError, match="is missing the argument") as caught:
            compose(fits, keyword=keyword)
        assert "a step is a function, not a method" in str(caught.value)


def test_a_step_that_is_returned_uncalled_is_named(compose: Compose) -> None:
    @step
    def one() -> int:
        return 1

    @pipeline
    def forgets() -> object:
        return one

    with pytest.raises(GraphError) as caught:
        compose(forgets)
    assert caught.value.what == "the return value is the step 'one' itself, not its result"
    assert caught.value.fix == "Call it: one()."


def test_a_backends_own_settings_are_checked_where_they_are_typed_and_carried_whole(compose: Compose) -> None:
    one = step(settings={"fake": FakeSettings(priority=3)})(_fresh())
    found = definition(compose, one, outer=pipeline(settings={"fake": {"queue": "long"}}))
    assert found.settings.backends == {"fake": {"queue": "long", "priority": 3}}
    assert found.settings.origins["fake.priority"].endswith("(@step)")
    with pytest.raises(SettingsError, match="FakeSettings has no field 'prioritty'"):
        step(settings={"fake": {"prioritty": 3}})
    with pytest.raises(SettingsError, match="has no settings 'dokcer'") as refused:
        step(settings={"dokcer": {}})
    assert "docker" in str(refused.value.fix)
    with pytest.raises(SettingsError, match="has no settings 'local'"):  # it takes none
        step(settings={"local": {}})
