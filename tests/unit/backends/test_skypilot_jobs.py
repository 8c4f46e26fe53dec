"""What SkyPilot is asked for and what it answers. ``UPDATE_GOLDEN=1`` writes the golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skypilot_here import Sky, sky_stand_in
from upshift.backends.base import Ask
from upshift.backends.scheduler import Launch, NotNow
from upshift.backends.skypilot.backend import Sdk, SkyPilot, SkyPilotBackend
from upshift.backends.skypilot.task import grants, task_of
from upshift.errors import BackendError, ConfigError, RequestRefused, SettingsError
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.skypilot import SkyPilotSettings

GOLDEN = Path(__file__).parent / "skypilot_tasks"
yaml = pytest.importorskip("yaml")

ASKED = {
    "small": (ResourceSettings(), {}),
    "gpus": (
        ResourceSettings(
            cpu_count=7.5, memory="64GB", accelerator="H100:8", disk="1TB", shared_memory="16GiB"
        ),
        {
            "infra": "aws/us-east-1",
            "use_spot": True,
            "disk_size": 256,
            "labels": {"team": "vision", "cost/center": "7"},
            "envs": {"HF_HOME": "/data/hf"},
            "docker_run_options": ("--ulimit=memlock=-1",),
        },
    ),
    "nodes": (ResourceSettings(gpu_count=1, accelerator="RTX-A6000", num_nodes=3), {"max_hourly_cost": 4.5}),
    "tpu": (ResourceSettings(accelerator="tpu-v5e-8"), {"accelerator_args": {"runtime_version": "v2"}}),
    "machine": (
        ResourceSettings(cpu_count=96, memory="1TB"),
        {"instance_type": "trn1.32xlarge", "accelerators": "Trainium:16"},
    ),
}


def launch(name: str) -> Launch:
    request, settings = ASKED[name]
    return Launch(
        name=f"{name}-0123456789ab",
        comment=f"upshift 20260101-000000-aaaa {name} attempt 1",
        command=("python3", "-c", "import sys\n\nprint('it''s')\n", "s3://b/blobs/ab", "s3://b/spec.json"),
        granted=grants(request, settings)[0],
        settings=settings,
        image=None if name == "small" else "registry.example.org/ml/train@sha256:00",
        environment={"AWS_REGION": "eu-west-1"},
    )


@pytest.mark.parametrize("name", ASKED)
def test_a_task_asks_for_what_was_granted_and_said(name: str) -> None:
    golden, task = GOLDEN / f"{name}.yaml", task_of(launch(name))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(task)
    assert task == golden.read_text()
    read = yaml.safe_load(task)
    assert read["name"] == launch(name).name
    assert read["run"].endswith("' s3://b/blobs/ab s3://b/spec.json\n")


@given(
    st.builds(
        ResourceSettings,
        cpu_count=st.none() | st.floats(0.1, 512),
        memory=st.none() | st.integers(10**8, 10**13),
        accelerator=st.none() | st.sampled_from(["H100:8", "A100-80GB:2", "tpu-v6e-8", "Trainium:16", "L4"]),
        num_nodes=st.none() | st.integers(1, 64),
        disk=st.none() | st.integers(10**8, 10**14),
        shared_memory=st.none() | st.integers(10**8, 10**12),
    )
)
def test_a_machine_has_at_least_what_is_asked_for(request: ResourceSettings) -> None:
    (granted,) = grants(request, {})
    sketch = attrs.evolve(launch("small"), granted=granted)
    resources = yaml.safe_load(task_of(sketch)).get("resources", {})
    assert int(resources.get("cpus", "0+")[:-1]) >= (request.cpu_count or 0)
    assert int(resources.get("memory", "0+")[:-1]) * 2**30 >= (request.memory or 0)
    assert resources.get("disk_size", 0) * 10**9 >= (request.disk or 0)
    assert ("accelerators" in resources) == (request.accelerator is not None)


@pytest.mark.parametrize(
    ("request_", "settings", "what"),
    [
        (ResourceSettings(accelerator="A100-80GB/1g.10gb:2"), {}, "SkyPilot rents no slices of GPUs"),
        (ResourceSettings(accelerator="H100:8"), {"accelerators": "A100:8"}, "asks for: 8 × H100"),
        (ResourceSettings(gpu_count=0), {"accelerators": "A100:8"}, "asks for: no GPUs"),
        (ResourceSettings(gpu_count=4), {"accelerators": "A100:8"}, "asks for: 4 × GPU"),
    ],
)
def test_what_skypilot_cannot_be_told_is_refused(
    request_: ResourceSettings, settings: dict[str, str], what: str
) -> None:
    with pytest.raises(RequestRefused) as caught:
        grants(request_, settings)
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("request_", "asked"),
    [(ResourceSettings(gpu_count=2), "2 × GPU"), (ResourceSettings(gpu_memory="40GB"), "1 × GPU, ≥ 40 GB")],
)
def test_accelerators_without_a_name_are_not_granted(
    skypilot: SkyPilot, request_: ResourceSettings, asked: str
) -> None:
    offer = skypilot.offer(Ask(request=request_), {})
    assert [(one.asked, one.got) for one in offer.shortfalls] == [(asked, "none")]
    assert 'accelerator="A100:2"' in offer.shortfalls[0].why


def test_both_may_say_the_same() -> None:
    (granted,) = grants(ResourceSettings(accelerator="H100:8"), {"accelerators": "H100:8"})
    assert [device.kind for device in granted.gpus or ()] == ["H100"] * 8
    (granted,) = grants(ResourceSettings(gpu_count=8), {"accelerators": "A100-80GB:8"})
    assert [device.kind for device in granted.gpus or ()] == ["A100-80GB"] * 8


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"accelerators": "H100:x"}, "accelerators='H100:x' is invalid"),
        ({"accelerators": {"H100": 1, "A100": 1}}, "is invalid"),
        ({"use_spot": "yes"}, "use_spot='yes' is invalid"),
        ({"infra": "aws", "region": "us-east-1"}, "infra='aws' is invalid"),
        ({"disk_size": "big"}, "disk_size='big' is invalid"),
        ({"labels": {"a": 1}}, "labels['a']=1 is invalid"),
        ({"cpus": 4}, "SkyPilotSettings has no field 'cpus'"),
        ({"idle_minutes_to_autostop": 5}, "has no field 'idle_minutes_to_autostop'"),
    ],
)
def test_settings_are_checked_where_they_are_written(fields: dict[str, object], what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        SkyPilotSettings(**fields)
    assert what in caught.value.what
    assert caught.value.where is not None
    assert "test_skypilot_jobs.py" in caught.value.where


def test_a_store_has_to_be_a_bucket(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        SkyPilotBackend(Target(name="sky", backend="skypilot"), store=str(tmp_path), sink=print)
    assert f"its store is the folder {tmp_path}" in caught.value.what


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sky]:
    with sky_stand_in(tmp_path, monkeypatch) as here:
        yield here


@pytest.fixture
def skypilot(sky: Sky) -> Iterator[SkyPilot]:
    sdk = Sdk(str(sky.command))
    yield SkyPilot(sdk)
    sdk.close()


TASK = 'name: "{}"\nrun: |\n  echo "$GREETING"\n  {}\n'


def test_a_job_is_found_by_its_name_and_told_how_it_is(skypilot: SkyPilot, sky: Sky) -> None:
    assert skypilot.find(["a", "b"]) == {}
    id = skypilot.submit(TASK.format("a", "cat /dev/zero >/dev/null"), {"GREETING": "hello"})
    assert skypilot.find(["a", "b"]) == {"a": id}
    assert skypilot.states([id, "99"])[id].phase == "running"
    assert sky.job(id)["config"]["secrets"] == {"GREETING": "hello"}
    sky.until_printed(id, "hello")
    skypilot.stop([id], grace=True)
    assert skypilot.states([id])[id].phase == "running"  # its supervisor has word in the store
    skypilot.stop([id], grace=False, kill=True)
    state = skypilot.states([id])[id]
    assert (state.phase, state.reason) == ("ended", "cancelled")
    assert state.message == f"somebody cancelled the job: job {id} of SkyPilot"
    assert skypilot.words(id) == "it printed: hello"


def test_a_job_that_recovers_was_preempted_and_is_cancelled(skypilot: SkyPilot, sky: Sky) -> None:
    id = skypilot.submit(TASK.format("a", "cat /dev/zero >/dev/null"), {"GREETING": "hello"})
    sky.becomes(id, "RECOVERING")
    state = skypilot.states([id])[id]
    assert (state.phase, state.reason) == ("ended", "preempted")
    assert skypilot.states([id])[id].reason == "cancelled"


def test_what_refuses_and_what_may_pass_are_told_apart(skypilot: SkyPilot, sky: Sky) -> None:
    sky.refuses("ResourcesUnavailableError: Catalog does not contain any instances.")
    with pytest.raises(RequestRefused) as refused:
        skypilot.offer(Ask(request=ResourceSettings(accelerator="H100:8")), {})
    assert "Catalog does not contain any instances." in refused.value.what
    with pytest.raises(BackendError, match="Catalog does not"):
        skypilot.submit(TASK.format("a", "true"), {})
    sky.refuses("ServerTemporarilyUnavailableError: \x1b[31mToo many requests\x1b[0m")
    with pytest.raises(NotNow, match=r"SkyPilot does not answer: Too many requests$"):
        skypilot.states(["1"])


def test_the_best_machine_that_there_is_is_taken(skypilot: SkyPilot) -> None:
    offer = skypilot.offer(Ask(request=ResourceSettings(accelerator=["H100:8", "A100:8"])), {})
    assert offer.granted is not None
    assert {device.kind for device in offer.granted.gpus or ()} == {"H100"}
    found = {finding.name: finding for finding in skypilot.findings({})}
    assert found["clouds"].text == "aws"
    assert found["submission"].status == "ok"


def test_an_sdk_that_dies_is_started_again(skypilot: SkyPilot, sky: Sky) -> None:
    sky.breaks()
    with pytest.raises(NotNow, match="SkyPilot does not answer: its SDK ended with 1"):
        skypilot.states(["1"])
    sky.is_mended()
    assert skypilot.find(["a"]) == {}


def test_without_skypilot_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError) as caught:
        Sdk().call("about")
    assert caught.value.what == "sky is no command of SkyPilot's here"
    assert 'uv tool install "skypilot[aws]"' in (caught.value.fix or "")
