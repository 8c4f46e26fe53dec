"""Steps that run in images: refused before anything is built, built when needed, each image once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from subprocess import CompletedProcess
from typing import Any

import attrs
import pytest
from engine_kit import Bench, JumpingClock

from made_up_images import MadeUpBuilder, MadeUpEngine, made_up_destination, made_up_lock, made_up_parent
from settings_kit import with_settings
from upshift.backends.fake import Fail, FakeBackend, FakeCluster
from upshift.config import DockerSettings, ResourceSettings
from upshift.engine import RunOptions
from upshift.engine.forecast import make_plan
from upshift.engine.images import needs_of
from upshift.errors import BackendError, ImageError, RecipeError, RunCancelled, RunFailed, SettingsError
from upshift.images import preparing
from upshift.images.base import ERROR, WARNING, Finding, Image
from upshift.images.building.builder import Destination, FoundImage
from upshift.model.configuration import Target
from upshift.model.graph import FromStep, Graph, Node, StepDefinition
from upshift.model.spec import Code, EntryPoint
from upshift.model.spec.hardware import Device, Hardware
from upshift.report import ImageChange
from upshift.report.page import report_page
from upshift.report.terminal import Page
from upshift.report.terminal.show import show_run
from upshift.report.views.plan import Plan, plan_as_json

PARENT = "python:3.11-slim"
SIX = DockerSettings(parent_image=PARENT, requirements=["six"])
IDNA = DockerSettings(parent_image=PARENT, requirements=["idna"])


class PatientClock(JumpingClock):
    """Waits for what another thread of the engine has to say."""

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        return inbox.get(timeout=30) if deadline is None else super().wait(inbox, deadline)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> MadeUpBuilder:
    builder = MadeUpBuilder()

    def made(destination: Destination, *others: object) -> MadeUpBuilder:
        builder.destination = destination
        return builder

    monkeypatch.setattr(preparing, "Builder", made)
    monkeypatch.setattr(preparing, "resolve", made_up_lock)
    return builder


@pytest.fixture
def bench(bench: Bench, builder: MadeUpBuilder) -> Bench:
    bench.clock = PatientClock()
    parents = [made_up_parent(f"python:3.{minor}-slim") for minor in range(10, 16)]
    bench.cluster = FakeCluster(bench.script, destination=made_up_destination(*parents))
    return bench


def one() -> int:
    return 1


def twice(x: int) -> int:
    return 2 * x


def chain(bench: Bench, first: DockerSettings | None, second: DockerSettings | None, **fields: Any) -> Graph:
    return bench.graph(
        {
            "one": (bench.step(one, docker=first, **fields), {}),
            "twice": (bench.step(twice, docker=second, **fields), {"x": FromStep(node="one")}),
        }
    )


def plan_of(bench: Bench, graph: Graph, **options: Any) -> Plan:
    return make_plan(
        graph,
        code=Code(project=str(bench.project)),
        configuration=bench.configuration,
        options=RunOptions(**options),
        open_backend=bench.cluster.open,
        clock=bench.clock,
    )


def images_of(bench: Bench) -> dict[str, str | None]:
    return {job.spec.task.step: job.spec.image for job in bench.cluster.submitted}


def test_equal_images_are_built_once_and_each_step_runs_in_its_own(
    bench: Bench, builder: MadeUpBuilder
) -> None:
    run = bench.run(chain(bench, SIX, SIX))
    assert run.output == 2
    assert len(builder.made) == 1
    [spec, other] = [job.spec for job in bench.cluster.submitted]
    assert spec.image == other.image == f"sha256:{1:064x}"
    assert (spec.interpreter, spec.user) == ("/usr/local/bin/python3", None)
    assert [attempt.image for step in run.steps for attempt in step.tasks[0].attempts] == [spec.image] * 2
    assert f"in image {spec.image[:19]}" in report_page(run)
    assert f"in image {spec.image[:19]}" in " ".join(show_run(run, page=Page(width=200)).split())


def test_different_settings_are_different_images(bench: Bench, builder: MadeUpBuilder) -> None:
    user = attrs.evolve(IDNA, user="1000:1000")
    bench.run(chain(bench, SIX, user))
    assert len(builder.made) == 2
    assert images_of(bench) == {"one": f"sha256:{1:064x}", "twice": f"sha256:{2:064x}"}
    assert [job.spec.user for job in bench.cluster.submitted] == [None, "1000:1000"]


@pytest.mark.parametrize(("facts", "findings"), [("{}", 1), ('{"SecurityOptions": ["name=rootless"]}', 0)])
def test_a_user_who_cannot_write_the_store_is_named_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, facts: str, findings: int
) -> None:
    def run(engine: MadeUpEngine, args: Sequence[str], **options: Any) -> CompletedProcess[str]:
        return CompletedProcess(args, 0, facts if args[0] == "info" else "", "")

    monkeypatch.setattr(MadeUpEngine, "run", run)
    stranger = attrs.evolve(SIX, user=f"{os.getuid() + 1}:{os.getgid() + 1}")
    first, second = (step.image for step in plan_of(bench, chain(bench, stranger, SIX)).steps)
    assert first is not None and second is not None
    said = [finding.what for finding in first.findings]
    assert len(said) == findings and all("cannot write the store" in what for what in said)
    assert second.findings == ()


def test_nothing_is_built_where_everything_is_reused(bench: Bench, builder: MadeUpBuilder) -> None:
    graph = chain(bench, SIX, SIX)
    bench.run(graph)
    builder.there.clear()
    again = bench.run(graph)
    assert [step.tasks[0].cached for step in again.steps] == [True, True]
    assert len(builder.made) == 1


def test_an_image_that_is_there_is_not_told_of(bench: Bench, builder: MadeUpBuilder) -> None:
    bench.run(chain(bench, SIX, SIX))
    assert [change.status for change in bench.watcher.images] == ["making", "made"]
    assert bench.watcher.images[-1].name == "upshift:1"
    assert bench.watcher.images[-1].steps == ("one", "twice")
    bench.watcher.images.clear()
    bench.run(chain(bench, SIX, SIX), reuse=False)
    assert (bench.watcher.images, len(builder.made)) == ([], 1)


def test_an_image_is_built_when_the_first_task_needs_it(bench: Bench, builder: MadeUpBuilder) -> None:
    bench.outcomes["one", 0] = Fail("user-error", "ValueError: no")
    with pytest.raises(RunFailed, match="step one failed"):
        bench.run(chain(bench, SIX, IDNA))
    assert len(builder.made) == 1


def test_other_steps_go_on_while_an_image_is_built(bench: Bench, builder: MadeUpBuilder) -> None:
    builder.gate = threading.Event()
    graph = Graph(
        pipeline="p",
        steps={
            "twice": bench.step(twice, docker=SIX),
            "one": bench.step(one, docker=IDNA),
            "open": bench.step(open_gate, docker=None),
        },
        nodes=(
            Node(name="twice", step="twice", inputs={"x": bench.const(4)}),
            Node(name="open", step="open"),
        ),
        output=FromStep(node="twice"),
    )
    bench.functions["open_gate"] = builder.gate.set
    builder.there[_recipe_of_default(bench, graph)] = FoundImage(image=Image(reference="sha256:0", recipe=""))
    assert bench.run(graph).output == 8
    assert bench.ran() == ["open", "twice"]


def open_gate() -> None:
    raise AssertionError("the test has another function in its place")


def _recipe_of_default(bench: Bench, graph: Graph) -> str:
    [step] = [step for step in plan_of(bench, graph).steps if step.name == "open"]
    assert step.image is not None
    assert step.image.recipe is not None
    return step.image.recipe


def test_an_image_that_cannot_be_built_fails_its_steps_with_the_builders_words(
    bench: Bench, builder: MadeUpBuilder
) -> None:
    builder.error = ImageError(
        "the Dockerfile failed at line 3", why="RUN make\nmake: not found", fix="Install make."
    )
    with pytest.raises(
        RunFailed, match=r"step one failed \(infrastructure\): its image cannot be made"
    ) as info:
        bench.run(chain(bench, SIX, SIX))
    assert "the Dockerfile failed at line 3" in info.value.what
    assert info.value.why == "RUN make\nmake: not found"
    assert "Install make." in (info.value.fix or "")
    run = bench.look("latest")
    assert [step.status for step in run.steps] == ["failed", "cancelled"]
    assert bench.ran() == []
    assert [change.status for change in bench.watcher.images] == ["making", "failed"]


def test_an_image_that_fails_for_what_was_asked_is_the_users_error(
    bench: Bench, builder: MadeUpBuilder
) -> None:
    builder.error = RecipeError("no index has one of the requirements")
    with pytest.raises(RunFailed, match=r"step one failed \(user-error\): its image cannot be made"):
        bench.run(chain(bench, SIX, SIX))


def test_what_needs_an_image_that_failed_later_on_fails_too_and_runs_nowhere_else(
    bench: Bench, builder: MadeUpBuilder
) -> None:
    builder.error = ImageError("no space left on device")
    graph = Graph(
        pipeline="p",
        steps={"one": bench.step(one, docker=SIX), "twice": bench.step(twice, docker=SIX)},
        nodes=(
            Node(name="one", step="one"),
            Node(name="early", step="twice", inputs={"x": bench.const(1)}),
            Node(name="late", step="twice", inputs={"x": bench.const(2)}, after=("first",)),
            Node(name="first", step="first"),
        ),
    )
    graph = attrs.evolve(graph, steps={**graph.steps, "first": bench.step(first, docker=SIX, on="plain")})
    plain = Target(name="plain", backend="fake", store=str(bench.folder / "store"))
    targets = {**bench.configuration.targets, "plain": plain}
    bench.configuration = attrs.evolve(bench.configuration, targets=targets)
    cluster, slow = bench.cluster, FakeCluster(bench.script, instant=False)

    def told(change: ImageChange) -> None:
        if change.status == "failed":
            slow.finish()

    def opened(target: Target, **parts: Any) -> Any:
        return (slow if target.name == "plain" else cluster).open(target, **parts)

    bench.cluster = FakeCluster(bench.script)
    bench.cluster.open = opened
    bench.watcher.image_changed = told
    with pytest.raises(RunFailed):
        bench.run(graph, keep_going=True)
    run = bench.look("latest")
    assert {step.name: step.status for step in run.steps} == {
        "one": "failed",
        "early": "failed",
        "first": "completed",
        "late": "failed",
    }
    assert cluster.submitted == []


def first() -> int:
    return 0


def test_a_build_that_failed_is_tried_again_when_the_run_is_resumed(
    bench: Bench, builder: MadeUpBuilder
) -> None:
    graph = chain(bench, SIX, SIX)
    builder.error = ImageError("no space left on device")
    with pytest.raises(RunFailed) as info:
        bench.run(graph)
    builder.error = None
    assert bench.run(graph, resume=info.value.run.id).output == 2


def test_what_an_engine_of_ours_does_wrong_is_not_hidden(bench: Bench, builder: MadeUpBuilder) -> None:
    builder.error = ZeroDivisionError("ours")
    with pytest.raises(ZeroDivisionError, match="ours"):
        bench.run(chain(bench, SIX, SIX))
    assert bench.look("latest").status == "failed"


def test_a_run_that_is_cancelled_stops_the_building(bench: Bench, builder: MadeUpBuilder) -> None:
    builder.gate = threading.Event()
    canceller = threading.Thread(target=_cancel_once_it_builds, args=(bench, builder))
    canceller.start()
    with pytest.raises(RunCancelled):
        bench.run(chain(bench, SIX, SIX))
    canceller.join()
    assert builder.stopped.wait(30)
    assert bench.watcher.notices == [
        "stopping, as upshift cancel asks: nothing runs; image of one, twice is given up"
    ]
    assert [step.status for step in bench.look("latest").steps] == ["cancelled", "cancelled"]


def _cancel_once_it_builds(bench: Bench, builder: MadeUpBuilder) -> None:
    from upshift.engine.control import ask, socket_path

    assert builder.began.wait(30)
    assert ask(str(socket_path(bench.catalog.runs(limit=1)[0].id)), "cancel") == "cancelling"


def test_errors_are_refused_before_anything_is_built(bench: Bench, builder: MadeUpBuilder) -> None:
    builder.findings = [
        Finding(severity=ERROR, field="apt_packages", what="it has no root", fix="Use an engine.")
    ]
    with pytest.raises(ImageError, match="the image of one and twice will not do") as info:
        bench.run(chain(bench, SIX, IDNA))
    assert info.value.why == "one, twice: it has no root"
    assert (info.value.fix, info.value.exit_code) == ("Use an engine.", 2)
    assert info.value.where == "steps.py:1"
    assert (builder.made, bench.catalog.runs()) == ([], [])
    plan = plan_of(bench, chain(bench, SIX, IDNA))
    assert (plan.exit_code, [step.refused for step in plan.steps]) == (2, [True, True])
    assert str(plan.problem) == str(info.value)


def test_different_images_of_one_name_are_refused(bench: Bench, builder: MadeUpBuilder) -> None:
    first, second = (attrs.evolve(settings, image_tag="v1") for settings in (SIX, IDNA))
    with pytest.raises(ImageError, match="the image of one and twice will not do") as caught:
        bench.run(chain(bench, first, second))
    assert 'one and twice run in different images, which would all be called "v1"' in str(caught.value)
    assert (builder.made, bench.cluster.submitted) == ([], [])
    bench.run(chain(bench, first, attrs.evolve(second, target_repository="team/other")))
    bench.run(chain(bench, first, first), reuse=False)
    assert len(builder.made) == 2


def test_a_place_that_cannot_be_reached_is_refused_before_anything_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: FakeBackend) -> None:
        raise BackendError("the daemon does not answer", fix="Start it.")

    monkeypatch.setattr(FakeBackend, "destination", unreachable)
    with pytest.raises(ImageError, match="the daemon does not answer") as info:
        bench.run(chain(bench, SIX, SIX))
    assert (info.value.exit_code, info.value.fix, bench.catalog.runs()) == (2, "Start it.", [])
    plan = plan_of(bench, chain(bench, SIX, SIX))
    assert (plan.exit_code, [step.refused for step in plan.steps]) == (2, [True, True])


def test_a_warning_is_told_before_the_run_and_stops_nothing(bench: Bench, builder: MadeUpBuilder) -> None:
    builder.findings = [
        Finding(
            severity=WARNING, field="x", what="it is old", evidence="built in 2019", fix="Take a new one."
        )
    ]
    bench.run(chain(bench, SIX, IDNA))
    assert bench.watcher.notices == ["one, twice: it is old (built in 2019). Take a new one."]


def test_settings_that_name_what_is_not_there_are_refused_as_in_a_plan(bench: Bench) -> None:
    graph = chain(bench, DockerSettings(requirements="nowhere.txt"), None)
    with pytest.raises(SettingsError, match=r"nowhere\.txt") as info:
        bench.run(graph)
    assert str(plan_of(bench, graph).problem) == str(info.value)


def test_a_registry_that_is_down_is_in_the_plan_and_no_crash(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        def __enter__(self) -> Down:
            return self

        def __exit__(self, *error: object) -> None: ...

        def digest(self, reference: object) -> None:
            raise ImageError("registry.example.org cannot be reached", fix="Try again.")

    monkeypatch.setattr("upshift.images.registries.client.Registries", Down)
    elsewhere = DockerSettings(parent_image="registry.example.org/ml:1")
    plan = plan_of(bench, chain(bench, elsewhere, SIX))
    assert [step.refused for step in plan.steps] == [True, False]
    assert plan.exit_code == 2
    assert "registry.example.org cannot be reached" in str(plan.problem)
    assert [task.reason for task in plan.steps[0].tasks] == [None]
    shown = plan_as_json(plan)["steps"][0]["image"]
    assert [finding["what"] for finding in shown["findings"]] == ["registry.example.org cannot be reached"]
    assert shown["recipe"]["digest"] is None


def test_a_plan_says_what_would_be_built_and_what_is_there(bench: Bench, builder: MadeUpBuilder) -> None:
    graph = chain(bench, SIX, IDNA)
    first = plan_of(bench, graph)
    assert [step.image.builds for step in first.steps if step.image] == [True, True]
    assert builder.made == []
    bench.run(chain(bench, SIX, SIX))
    second = plan_of(bench, graph)
    assert [step.image.builds for step in second.steps if step.image] == [False, True]
    assert [task.action for step in second.steps for task in step.tasks] == ["reused", "runs"]


# What makes work equal


def test_a_result_is_not_reused_from_another_image(bench: Bench) -> None:
    bench.run(chain(bench, SIX, SIX))
    again = bench.run(chain(bench, IDNA, SIX))
    assert [step.tasks[0].cached for step in again.steps] == [False, True]
    assert again["one"].tasks[0].cache_reason == "image changed: requirements"


def test_another_parent_under_the_same_name_makes_new_work(bench: Bench) -> None:
    bench.run(chain(bench, SIX, SIX))
    bench.cluster.destination = made_up_destination(made_up_parent(number=7))
    again = bench.run(chain(bench, SIX, SIX))
    assert not again["one"].tasks[0].cached
    assert again["one"].tasks[0].cache_reason == (
        "image changed: what its settings name: the parent image, or a file"
    )


def test_names_for_an_image_make_no_new_work(bench: Bench) -> None:
    bench.run(chain(bench, SIX, SIX))
    again = bench.run(chain(bench, attrs.evolve(SIX, image_tag="v2"), SIX))
    assert [step.tasks[0].cached for step in again.steps] == [True, True]


def test_packages_of_this_environment_do_not_count_in_an_image(bench: Bench) -> None:
    code = {"steps.one (steps.py)": "code:1", "package numpy": "1.26.4"}
    bench.run(chain(bench, SIX, SIX, code=code))
    again = bench.run(chain(bench, SIX, SIX, code=code | {"package numpy": "2.0.0"}))
    assert [step.tasks[0].cached for step in again.steps] == [True, True]


def test_what_ran_in_this_environment_is_not_what_runs_in_an_image(bench: Bench) -> None:
    here = FakeCluster(bench.script)
    there, bench.cluster = bench.cluster, here
    code = {"steps.one (steps.py)": "code:1", "package numpy": "1.26.4"}
    bench.run(chain(bench, None, None, code=code))
    bench.cluster = there
    again = bench.run(chain(bench, None, None, code=code))
    assert again["one"].tasks[0].cache_reason == "image changed: this environment → an image"


def test_a_resumed_run_keeps_what_ran_in_the_same_image(bench: Bench, builder: MadeUpBuilder) -> None:
    bench.outcomes["twice", 1] = Fail("user-error", "ValueError: no")
    graph = chain(bench, SIX, IDNA)
    with pytest.raises(RunFailed) as info:
        bench.run(graph)
    run = bench.run(graph, resume=info.value.run.id)
    assert bench.ran() == ["one", "twice", "twice"]
    assert (run.output, len(builder.made)) == (2, 2)


# What a step needs of its image


def definition(**fields: Any) -> StepDefinition:
    return StepDefinition(
        entry=EntryPoint(module="m", qualname="f"), **with_settings(fields, resources="request")
    )


def test_a_step_without_a_request_for_devices_needs_none() -> None:
    granted = Hardware(gpus=(Device(vendor="nvidia", compute_capability="9.0"),))
    assert needs_of(definition(), granted).gpus == frozenset()
    assert needs_of(definition(request=ResourceSettings(gpu_count=0)), None).gpus == frozenset()


def test_devices_are_those_that_are_granted() -> None:
    wants = definition(request=ResourceSettings(gpu_count=1))
    granted = Hardware(gpus=(Device(vendor="amd", compute_capability="gfx942"),))
    needs = needs_of(wants, granted, driver="535.54.03")
    assert (needs.gpus, needs.architectures, needs.driver) == ({"amd"}, ("gfx942",), "535.54.03")


@pytest.mark.parametrize(
    ("request_", "vendors"),
    [
        (ResourceSettings(gpu_count=2), {"nvidia"}),
        (ResourceSettings(accelerator="H100:2"), {"nvidia"}),
        (ResourceSettings(accelerator="MI300X"), {"amd"}),
        (ResourceSettings(gpu_count=1, gpu_vendor="intel"), {"intel"}),
    ],
)
def test_devices_that_nobody_knows_yet_are_of_the_vendor_asked_for(
    request_: ResourceSettings, vendors: set[str]
) -> None:
    assert needs_of(definition(request=request_)).gpus == vendors


@pytest.mark.parametrize(
    ("accelerator", "architectures"),
    [
        ("B200:1", ("10.0",)),
        (["L4:1", "T4:1"], ("7.5", "8.9")),
        ("A100", ("8.0",)),
        ("MI300X:8", ()),
        ("other:Fancy:1", ()),
    ],
)
def test_a_named_accelerator_says_what_the_image_has_to_run_on(
    accelerator: str | list[str], architectures: tuple[str, ...]
) -> None:
    request = ResourceSettings(accelerator=accelerator)
    assert needs_of(definition(request=request)).architectures == architectures
    here = Hardware(gpus=(Device(vendor="nvidia", index=0, compute_capability="9.0"),))
    assert needs_of(definition(request=request), here).architectures == ("9.0",)


def test_what_the_code_imports_is_needed_by_its_normal_name() -> None:
    code = {"m.f (m.py)": "code:1", "package Scikit_Learn": "1.5.0", "package upshift": "0.1"}
    assert needs_of(definition(code=code)).imports == {"scikit-learn": "1.5.0"}


def test_a_step_that_travels_by_value_needs_the_same_python() -> None:
    by_value = StepDefinition(entry=EntryPoint(module="m", qualname="f", python="3.11"))
    assert needs_of(by_value).python == "3.11"


def test_a_place_that_runs_no_images_leaves_everything_as_it_is(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script)
    bench.run(chain(bench, SIX, None))
    assert images_of(bench) == {"one": None, "twice": None}


def test_steps_of_two_places_run_each_in_its_own_way(bench: Bench, builder: MadeUpBuilder) -> None:
    store = str(bench.folder / "store")
    targets = {name: Target(name=name, backend="fake", store=store) for name in ("here", "there")}
    bench.configuration = attrs.evolve(bench.configuration, targets=targets, default_target="here")
    here, there = FakeCluster(bench.script), bench.cluster

    def opened(target: Target, **parts: Any) -> Any:
        return (there if target.name == "there" else here).open(target, **parts)

    graph = bench.graph(
        {
            "one": (bench.step(one, docker=SIX), {}),
            "twice": (bench.step(twice, docker=SIX, on="there"), {"x": FromStep(node="one")}),
        }
    )
    bench.cluster = FakeCluster(bench.script)
    bench.cluster.open = opened
    assert bench.run(graph).output == 2
    assert [job.spec.image for job in here.submitted] == [None]
    assert [job.spec.image for job in there.submitted] == [f"sha256:{1:064x}"]
