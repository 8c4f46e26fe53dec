"""What Ray is asked for and what it answers. ``UPDATE_GOLDEN=1`` writes the golden files."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

from upshift.backends.base import Job
from upshift.backends.ray.backend import Ray, RayBackend, cause_of, request_of
from upshift.backends.ray.dashboard import Dashboard, address_of, findings, offer, read_nodes, token_of
from upshift.backends.scheduler import Launch, NotNow
from upshift.errors import BackendError, ConfigError, RequestRefused, SettingsError
from upshift.model.configuration import Target
from upshift.model.settings.ray import RaySettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, Device, EntryPoint, Hardware, TaskId, TaskSpec

GOLDEN = Path(__file__).parent / "ray_jobs"

SMALL = Launch(
    name="add-1-0123456789ab",
    comment="upshift 20260101-000000-aaaa add[1] attempt 1",
    command=("/env/bin/python", "/home/ann/.upshift/code/ab", "--scheduled", "/shared/store/1.1.spec.json"),
    granted=Hardware(nodes=1),
    settings={},
)
LARGE = attrs.evolve(
    SMALL,
    name="train-0123456789ab",
    command=("/my env/bin/python", "/home/ann/.upshift/code/ab", "--scheduled", "/shared/it's/spec.json"),
    granted=Hardware(
        cpu_count=7.5,
        memory=64 * 10**9,
        gpus=(Device(vendor="nvidia", model="H200", kind="H200"),) * 2,
        nodes=1,
    ),
    settings={
        "resources": {"licence": 2.0},
        "labels": {"ray.io/market-type": "!spot"},
        "env_vars": {"HF_HOME": "/shared/hf"},
    },
)


GANG = attrs.evolve(LARGE, granted=attrs.evolve(LARGE.granted, nodes=3, details={"avoids": ["10.0.0.7"]}))


@pytest.mark.parametrize(("name", "launch"), [("small", SMALL), ("large", LARGE)])
def test_a_job_asks_for_what_was_granted_and_said(name: str, launch: Launch) -> None:
    golden, request = GOLDEN / f"{name}.json", request_of(launch)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(request)
    assert request == golden.read_text()


def test_a_job_on_several_nodes_asks_ray_itself_for_what_each_is_to_have() -> None:
    request = json.loads(request_of(GANG))
    assert request["entrypoint_num_cpus"] == 0 and "entrypoint_num_gpus" not in request
    shell, text, asked = request["entrypoint"].rpartition("\n' ")[0], *shlex.split(request["entrypoint"])[-2:]
    assert "/proc/$PPID/exe" in shell
    compile(text, "gang", "exec")
    said = json.loads(asked)
    assert said["nodes"] == 3 and said["avoids"] == ["10.0.0.7"]
    assert said["bundle"] == {
        "CPU": 8,
        "GPU": 2,
        "memory": 64 * 10**9,
        "licence": 2.0,
        "accelerator_type:H200": 0.001,
    }
    assert said["command"] == list(GANG.command) and said["labels"] == {"ray.io/market-type": "!spot"}
    assert request["metadata"]["asks"].endswith("label ray.io/market-type=!spot on each of 3 nodes")


def test_a_request_for_several_nodes_gets_them_where_enough_have_what_each_is_to_have() -> None:
    assert offered(num_nodes=3).granted.nodes == 3
    found = offered(num_nodes=2, gpu_count=1)  # of whatever type
    assert (found.granted.nodes, len(found.granted.gpus), found.shortfalls) == (2, 1, ())
    assert offered(num_nodes=(2, 8)).granted.nodes == 3
    assert offered(num_nodes=(1, 8), accelerator="H200").granted.nodes == 1
    lost = offer(ResourceSettings(num_nodes=(2, 8)), {}, NODES, avoid=["10.0.0.1", "10.0.0.4"]).granted
    assert (lost.nodes, lost.details["avoids"]) == (2, ["10.0.0.1"])
    kept = offer(ResourceSettings(num_nodes=3), {}, NODES, avoid=["10.0.0.1"]).granted
    assert kept.nodes == 3 and "avoids" not in kept.details
    grown = offer(ResourceSettings(num_nodes=9), {}, NODES, grows=True)
    assert (grown.granted.nodes, grown.shortfalls) == (9, ())


def test_less_than_a_cpu_is_asked_for_as_it_is() -> None:
    half = attrs.evolve(SMALL, granted=Hardware(cpu_count=0.5, nodes=1))
    assert json.loads(request_of(half))["entrypoint_num_cpus"] == 0.5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resources": ["licence"]}, ["resources=", "amounts by name"]),
        ({"resources": {"licence": -1}}, ["resources['licence']=-1"]),
        ({"resources": {"GPU": 1}}, ["Write ResourceSettings(gpu_count=…)"]),
        ({"resources": {"accelerator_type:H200": 1}}, ["Write ResourceSettings(accelerator=…)"]),
        ({"labels": {"zone": ""}}, ["labels['zone']"]),
        ({"env_vars": {"A B": "c"}}, ["env_vars['A B']"]),
        ({"env_vars": {"DEBUG": 1}}, ["env_vars['DEBUG']=1"]),
        ({"num_gpus": 2}, ["no field 'num_gpus'", "ResourceSettings(gpu_count=…)"]),
        ({"runtime_env": {}}, ["no field 'runtime_env'", "env_vars"]),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_would(
    fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        RaySettings(**fields)
    for word in words:
        assert word in str(caught.value)


# Offers

GIB = 1 << 30


def node(ip: str, *, state: str = "ALIVE", labels: dict[str, str] | None = None, **total: float) -> Any:
    named = {name.replace("__", ":"): amount for name, amount in total.items()}
    return {"node_ip": ip, "state": state, "labels": labels or {}, "resources_total": named}


NODES = read_nodes(
    [
        node("10.0.0.1", CPU=16, memory=32 * GIB, licence=1, object_store_memory=1, node__x=1),
        node("10.0.0.2", CPU=48, memory=512 * GIB, GPU=8, accelerator_type__H200=1, labels={"zone": "a"}),
        node("10.0.0.3", CPU=96, memory=256 * GIB, GPU=4, accelerator_type__A100=1),
        node("10.0.0.4", CPU=512, memory=512 * GIB, GPU=16, state="DEAD"),
    ]
)
UNTYPED = read_nodes([node("10.0.0.9", CPU=8, memory=8 * GIB, GPU=2)])


def offered(said: dict[str, Any] | None = None, nodes: Any = NODES, **request: Any) -> Any:
    return offer(ResourceSettings(**request), said or {}, nodes)


def test_what_is_asked_for_is_granted_as_it_was_written() -> None:
    found = offered(cpu_count=2, memory="64MB", gpu_count=0)
    assert (found.granted.cpu_count, found.granted.memory, found.granted.gpus) == (2, 64_000_000, ())
    assert found.shortfalls == ()


@pytest.mark.parametrize(
    ("request_", "model", "count"),
    [
        ({"gpu_count": 2}, None, 2),
        ({"accelerator": "H200:8"}, "H200", 8),
        ({"accelerator": ["H100:8", "A100:4"]}, "A100", 4),
        ({"gpu_count": 1, "gpu_memory": "100GB"}, "H200", 1),
        ({"gpu_count": 1, "gpu_vendor": "nvidia"}, "H200", 1),
        ({"gpu_count": 1, "gpu_vendor": "nvidia", "cpu_count": 90}, "A100", 1),
    ],
)
def test_devices_are_asked_for_by_the_type_that_nodes_say(
    request_: dict[str, Any], model: str, count: int
) -> None:
    found = offered(**request_)
    assert found.shortfalls == ()
    assert [device.model for device in found.granted.gpus] == [model] * count


@pytest.mark.parametrize(
    ("request_", "nodes", "words"),
    [
        ({"cpu_count": 97}, NODES, ["97 CPUs", "its largest node is 10.0.0.2 with 48 CPUs", "8 × H200"]),
        ({"memory": "2TB"}, NODES, ["2 TB of memory", "10.0.0.2"]),
        ({"accelerator": "H200:9"}, NODES, ["9 × H200", "8 × H200"]),
        ({"accelerator": "B200"}, NODES, ["1 × B200", "none"]),
        ({"accelerator": "H200"}, UNTYPED, ["gpu_count alone asks for any"]),
        ({"cpu_count": 90, "memory": "400GB"}, NODES, ["all of it on one node"]),
        ({"cpu_count": 60, "accelerator": "H200"}, NODES, ["1 × H200", "none"]),
        ({"disk": "1GB"}, NODES, ["Ray does not hand out disk"]),
        ({"shared_memory": "1GB"}, NODES, ["/dev/shm"]),
        ({"num_nodes": 4}, NODES, ["4 nodes | 3 |", "10.0.0.2 with 48 CPUs"]),
        ({"num_nodes": 2, "accelerator": "H200:8"}, NODES, ["2 nodes | 1 |", "asked for on each"]),
        ({"cpu_count": 1}, (), ["1 CPUs", "no nodes"]),
    ],
)
def test_what_no_node_can_give_is_refused_with_the_largest_one(
    request_: dict[str, Any], nodes: Any, words: list[str]
) -> None:
    (shortfall,) = offered(nodes=nodes, **request_).shortfalls
    text = f"{shortfall.asked} | {shortfall.got} | {shortfall.why}"
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"resources": {"licence": 2}}, ["no node of the cluster has 2 × licence", "1 × licence"]),
        ({"labels": {"zone": "b"}}, ["no node of the cluster has label zone=b"]),
    ],
)
def test_resources_and_labels_that_no_node_has_are_refused(said: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RequestRefused) as caught:
        offered(said)
    for word in words:
        assert word in str(caught.value)


def test_a_selector_of_labels_is_left_to_ray() -> None:
    assert offered({"labels": {"zone": "in(b, c)"}}).shortfalls == ()


def test_where_nodes_are_added_what_is_not_there_yet_is_granted() -> None:
    asked = ResourceSettings(cpu_count=200, accelerator="B200:8")
    found = offer(asked, {"labels": {"zone": "b"}}, NODES, grows=True)
    assert found.shortfalls == ()
    assert [device.model for device in found.granted.gpus or ()] == ["B200"] * 8


def test_how_a_cluster_is_is_told_by_its_nodes_and_devices() -> None:
    told = {one.name: (one.status, one.text) for one in findings(NODES)}
    assert told["nodes"][1].startswith("3 nodes, the largest 10.0.0.2 with 48 CPUs")
    assert told["devices"] == ("ok", "8 × H200, 4 × A100")
    assert [one.status for one in findings(())] == ["problem"]


# Options of a target


@pytest.mark.parametrize(
    ("said", "environ", "address"),
    [
        (None, {}, "http://127.0.0.1:8265"),
        ("head:8265", {"RAY_API_SERVER_ADDRESS": "http://other:1"}, "http://head:8265"),
        ("https://ray.example.org/team/", {}, "https://ray.example.org/team"),
        (None, {"RAY_API_SERVER_ADDRESS": "http://head:8265"}, "http://head:8265"),
        (None, {"RAY_ADDRESS": "http://head:8265"}, "http://head:8265"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "http://127.0.0.1:8265"),
    ],
)
def test_the_dashboard_is_found_as_by_ray_job_submit(
    said: str | None, environ: dict[str, str], address: str
) -> None:
    assert address_of(said, environ) == address


@pytest.mark.parametrize("said", ["ray://head:10001", "auto://", "http://", "http://head:port"])
def test_an_address_of_something_else_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="no address of a dashboard"):
        address_of(said, {})


def test_a_token_comes_from_where_rays_own_commands_have_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    assert token_of({"RAY_AUTH_TOKEN": "own"}) == "own"
    assert token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) == "from a file"
    assert token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) is None
    assert token_of({"RAY_AUTH_TOKEN": "own", "RAY_AUTH_MODE": "disabled"}) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adress": "x"}, ["no option 'adress'", "address"]),
        ({"address": 8265}, ["address = 8265"]),
        ({"autoscaling": "yes"}, ["autoscaling = 'yes'", "true or false"]),
        ({"resources": {"CPU": 2}}, ["target 'cluster': resources has 'CPU'"]),
    ],
)
def test_options_of_a_target_that_mean_nothing_are_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RayBackend(Target(name="cluster", backend="ray", options=options), store="/s", sink=print)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("python", "begins"),
    [
        (None, "python=$(sed -n "),
        ("/opt/my env/bin/python", "exec env -u RAY_JOB_CONFIG_JSON_ENV_VAR"),
    ],
)
def test_where_nodes_share_a_bucket_they_have_a_python_of_their_own(python: str | None, begins: str) -> None:
    options = {} if python is None else {"python": python}
    target = Target(name="cluster", backend="ray", options=options)
    backend = RayBackend(target, store="s3://bucket/x", sink=print)
    spec = TaskSpec(
        task=TaskId(run="r", step="train"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="m", qualname="train"),
        code=Code(project="/p"),
        store="s3://bucket/x",
        runtime=f"sha256:{'a' * 64}",
    )
    job = Job(spec=spec, spec_path="runs/r/tasks/train/0.1.spec.json")
    command = json.loads(request_of(backend.launch_of(job, "train-1")))["entrypoint"]
    assert command.startswith(begins)
    assert command.endswith(f" s3://bucket/x/blobs/sha256/aa/{'a' * 62} s3://bucket/x/{job.spec_path}")
    assert ("'/opt/my env/bin/python' -Sc " if python else "exec env") in command
    assert sys.executable not in command and str(Path.home()) not in command
    assert not backend.capabilities.environments and RayBackend.capabilities.environments
    backend.close()


# Causes

DIED = """Job supervisor actor died: The actor died unexpectedly before finishing this task.
\tclass_name: JobSupervisor
\tactor_id: 30b8e6d5
\tpid: 123
\tname: _ray_internal_job_actor_x
\tnamespace: SUPERVISOR_ACTOR_RAY_NAMESPACE
\tip: 127.0.0.3
"""


@pytest.mark.parametrize(
    ("error", "message", "code", "reason", "words"),
    [
        ("JOB_ENTRYPOINT_COMMAND_ERROR", "…", 127, "infrastructure", "exit code 127"),
        ("JOB_ENTRYPOINT_COMMAND_ERROR", "…", -9, "infrastructure", "killed by signal 9"),
        (
            "JOB_ENTRYPOINT_COMMAND_ERROR",
            "… logs:\nupshift: node 10.0.0.2 was lost: The actor died unexpectedly.\n",
            1,
            "infrastructure",
            "node 10.0.0.2 was lost: The actor died unexpectedly",
        ),
        (
            "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
            "Job supervisor actor failed to start within 900.0 seconds. This",
            None,
            "infrastructure",
            "gave up starting it after 15 min",
        ),
        (
            "JOB_SUPERVISOR_ACTOR_DIED",
            DIED + "The actor died because its node has died. Node Id: ab",
            None,
            "infrastructure",
            "its node was lost",
        ),
        (
            "JOB_SUPERVISOR_ACTOR_DIED",
            DIED + "Task was killed due to the node running low on memory.",
            None,
            "out-of-memory",
            "its node ran out of memory",
        ),
        (
            "JOB_SUPERVISOR_ACTOR_DIED",
            DIED + "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
            "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) …",
            None,
            "infrastructure",
            "Ray's process beside it died: The actor is dead because its worker process has died",
        ),
        (
            "RUNTIME_ENV_SETUP_FAILURE",
            "runtime_env setup failed: x",
            None,
            "infrastructure",
            "setup failed: x",
        ),
        (None, "", None, "infrastructure", "the job failed"),
    ],
)
def test_why_a_job_failed_is_told_by_its_cause(
    error: str | None, message: str, code: int | None, reason: str, words: str
) -> None:
    found, said = cause_of(error, message, code)
    assert found == reason
    assert words in said


# A dashboard that answers as it is told

Answer = Callable[[str, str, dict[str, Any]], tuple[int, str]]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    asked: list[tuple[str, str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is more than one packet

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, self.headers.get("Authorization")))
            status, text = answer(self.command, self.path, json.loads(content or b"{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "text", "kind", "words"),
    [
        (
            400,
            "Traceback\nValueError: Resource quantities >1 must be whole numbers.",
            BackendError,
            "must be whole",
        ),
        (500, "RuntimeError: Request failed with status code 400: bad label.", BackendError, "bad label"),
        (500, "No available agent to submit job, please try again later.", NotNow, "No available agent"),
        (503, "", NotNow, "HTTP 503"),
        (401, "Unauthorized", BackendError, "RAY_AUTH_TOKEN"),
        (404, "not found", BackendError, "no dashboard"),
        (200, "<html>", BackendError, "no dashboard"),
    ],
)
def test_what_ray_answers_is_a_refusal_or_a_reason_to_try_again(
    status: int, text: str, kind: type[Exception], words: str
) -> None:
    with answering(lambda *_: (status, text)) as (address, _):
        ray = Ray(Dashboard(address, {"RAY_AUTH_MODE": "disabled"}))
        with pytest.raises(kind) as caught:
            ray.submit(request_of(SMALL), {})
        ray.dashboard.close()
    assert words in str(caught.value)


def test_a_job_that_was_taken_before_is_not_submitted_twice_and_the_token_is_sent() -> None:
    def answer(method: str, path: str, content: dict[str, Any]) -> tuple[int, str]:
        assert content["runtime_env"]["env_vars"]["UPSHIFT_ORDER"] == "{}"
        return 500, "ValueError: Job with submission_id add-1-0123456789ab already exists. Please use another"

    with answering(answer) as (address, asked):
        ray = Ray(Dashboard(address, {"RAY_AUTH_TOKEN": "secret"}))
        assert ray.submit(request_of(SMALL), {"UPSHIFT_ORDER": "{}"}) == "add-1-0123456789ab"
        ray.dashboard.close()
    assert asked == [("POST", "/api/jobs/", "Bearer secret")]


def test_a_few_jobs_are_asked_for_by_name_and_many_by_one_list() -> None:
    jobs = {f"job-{i}": {"submission_id": f"job-{i}", "status": "RUNNING"} for i in range(9)}

    def answer(method: str, path: str, content: dict[str, Any]) -> tuple[int, str]:
        name = path.rpartition("/")[2]
        if not name:
            return 200, json.dumps(
                [*jobs.values(), {"submission_id": None, "type": "DRIVER", "status": "RUNNING"}]
            )
        return (200, json.dumps(jobs[name])) if name in jobs else (404, "does not exist")

    with answering(answer) as (address, asked):
        ray = Ray(Dashboard(address, {}))
        assert ray.states(["job-1", "gone"]).keys() == {"job-1"}
        assert len(asked) == 2
        assert ray.states([*jobs, "gone"]).keys() == jobs.keys()
        assert len(asked) == 3
        ray.dashboard.close()
