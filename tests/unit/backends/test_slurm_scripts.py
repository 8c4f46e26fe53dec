"""What Slurm is asked for: pure functions, compared with golden files. ``UPDATE_GOLDEN=1`` writes them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from upshift.backends.scheduler import Launch
from upshift.backends.slurm.backend import SlurmBackend
from upshift.backends.slurm.cluster import Login
from upshift.backends.slurm.script import KINDS, Containers, environment, script_of
from upshift.backends.slurm.site import findings, offer, read_site
from upshift.cli import upshift
from upshift.errors import ConfigError, RequestRefused, SettingsError
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.slurm import SlurmSettings, minutes_of
from upshift.model.spec import Device, Hardware

GOLDEN = Path(__file__).parent / "slurm_jobs"
MIB = 1 << 20

SMALL = Launch(
    name="add-1-0123456789ab",
    comment="upshift 20260101-000000-aaaa add[1] attempt 1",
    command=(
        "/env/bin/python",
        "/home/ann/.upshift/code/ab",
        "--scheduled",
        "/shared/store/runs/r/tasks/add/1.1.spec.json",
    ),
    granted=Hardware(nodes=1),
    settings={},
    output="/shared/store/runs/r/tasks/add/1.1.out",
)
LARGE = attrs.evolve(
    SMALL,
    name="train-0123456789ab",
    command=("/my env/bin/python", "/home/ann/.upshift/code/ab", "--scheduled", "/shared/it's/spec.json"),
    granted=Hardware(
        cpu_count=7.5,
        memory=64 * 10**9,
        gpus=(Device(vendor="nvidia", model="h200", kind="H200"),) * 2,
        disk=100 * 10**9,
        nodes=1,
    ),
    settings={
        "partition": "gpu,spare",
        "account": "vision",
        "qos": "high",
        "time": "1-12:00:00",
        "constraint": "infiniband",
        "reservation": "friday",
        "exclusive": True,
        "extra": ["--nice=100"],
    },
)


SEVERAL = attrs.evolve(LARGE, granted=attrs.evolve(LARGE.granted, nodes=4), settings={})
MAPPED = attrs.evolve(
    SMALL,
    name="add-0123456789ab",
    comment="upshift 20260101-000000-aaaa add, 5 tasks",
    command=(*SMALL.command[:-1], "/shared/store/runs/r/tasks/add/add-0123456789ab.array"),
    output="/shared/100%/runs/r/tasks/add/add-0123456789ab.out",
    elements=(0, 1, 2, 7, 9),
)


@pytest.mark.parametrize(
    ("name", "launch"), [("small", SMALL), ("large", LARGE), ("array", MAPPED), ("several_nodes", SEVERAL)]
)
def test_a_script_asks_for_what_was_granted_and_said(name: str, launch: Launch) -> None:
    golden, script = GOLDEN / f"{name}.sh", script_of(launch)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(script)
    assert script == golden.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_an_image_runs_in_a_container_by_what_the_cluster_has(kind: str) -> None:
    store, data = "/shared/store", "/scratch/data of ann"
    containers = Containers(
        kind=kind, home="/home/ann/.upshift", mounts={"/home/ann/.upshift": "/home/ann/.upshift"}
    )
    containers = attrs.evolve(containers, mounts={**containers.mounts, store: store, "/data": data})
    image = "registry.example.org/ml/train@sha256:" + 64 * "a"
    inside = attrs.evolve(LARGE, image=image, command=("python3", *LARGE.command[1:]), settings={})
    mapped = attrs.evolve(MAPPED, image=image, user="1000:1000")
    several = attrs.evolve(inside, granted=SEVERAL.granted)
    script = "\n".join(script_of(launch, containers) for launch in (inside, mapped, several))
    golden = GOLDEN / f"in_{kind}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(script)
    assert script == golden.read_text()
    assert script_of(LARGE, containers) == script_of(LARGE)


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        ({"srun": "echo '--container-image=…'"}, "by pyxis, images in registry.example.org/ml"),
        ({"srun": "true", "apptainer": "true"}, "by apptainer, images in"),
        ({"srun": "true", "docker": "true"}, "none: steps run in"),
    ],
)
def test_what_runs_containers_is_found(
    programs: dict[str, str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    registry = "registry.example.org/ml"
    target = Target(name="cluster", backend="slurm", registry=registry)
    backend = SlurmBackend(target, store=str(tmp_path), sink=lambda event: None)
    assert found in backend.images().text
    assert backend.capabilities.images == ("by" in found)
    assert (backend.destination() is not None) == ("by" in found)


def test_a_kind_of_containers_that_there_is_not_is_refused(tmp_path: Path) -> None:
    target = Target(name="cluster", backend="slurm", options={"containers": "lxc"})
    with pytest.raises(ConfigError, match=r"containers = 'lxc' is invalid"):
        SlurmBackend(target, store=str(tmp_path), sink=lambda event: None)


def test_a_timeout_of_the_step_is_a_time_limit_with_room_around_it() -> None:
    assert "#SBATCH --time=65\n" in script_of(attrs.evolve(SMALL, timeout=3580.0, grace=10.0))
    said = attrs.evolve(SMALL, timeout=3600.0, settings={"time": "30m"})
    assert "#SBATCH --time=30\n" in script_of(said)


def test_gres_takes_the_place_of_what_a_request_would_ask_for() -> None:
    said = attrs.evolve(LARGE, settings={"gres": "gpu:tesla:2,license:1"})
    assert [line for line in script_of(said).splitlines() if "gres" in line] == [
        "#SBATCH --gres=gpu:tesla:2,license:1"
    ]


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90m", 90),
        ("90s", 2),
        ("2d", 2880),
        ("12:30:00", 750),
        ("1-12:00", 2160),
        ("1-00:00:01", 1441),
        ("30:00", 30),
    ],
)
def test_time_limits_round_up_to_minutes(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"time": 90}, ["time=90", '"90m"']),
        ({"time": "soon"}, ["time='soon'"]),
        ({"partition": "a b"}, ["partition='a b'", "one word"]),
        ({"partition": "x\n#SBATCH --uid=0"}, ["partition"]),
        ({"extra": "--nice=1"}, ["extra=", "a list"]),
        ({"extra": ["--nice 1"]}, ["each one word"]),
        ({"extra": ["--mem=3G"]}, ["extra has --mem", "ResourceSettings(memory=…)"]),
        ({"extra": ["--partition=x"]}, ["Write partition=…"]),
        ({"extra": ["--requeue"]}, ["Upshift sets it itself"]),
        ({"exclusive": "yes"}, ["exclusive='yes'"]),
        ({"nodes": 2}, ["no field 'nodes'", "ResourceSettings(num_nodes=…)"]),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_would(
    fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        SlurmSettings(**fields)
    for word in words:
        assert word in str(caught.value)


def test_a_job_gets_the_environment_but_what_belongs_to_another_job_or_to_this_machine() -> None:
    here = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SBATCH_PARTITION": "gpu",
        "SRUN_CPUS_PER_TASK": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": "/local/7",
        "XDG_RUNTIME_DIR": "/run/user/7",
    }
    assert environment(here).keys() == {"PATH", "LD_LIBRARY_PATH", "SLURM_CONF"}


# Offers

NODES = """\
NodeName=c1 Arch=x86_64 CPUEfctv=64 Gres=(null) RealMemory=256000 TmpDisk=0 Partitions=cpu,all,slim
NodeName=g1 CPUEfctv=32 Gres=gpu:a100:4(S:0-1) RealMemory=512000 TmpDisk=0 Partitions=gpu,all,slim State=DOWN
NodeName=g2 CPUEfctv=48 CPUTot=48 Gres=gpu:h200:8 RealMemory=1024000 TmpDisk=100000 Partitions=gpu,all,slim
NodeName=g3 CPUEfctv=48 CPUTot=48 Gres=gpu:blue.one:2 RealMemory=1024000 TmpDisk=100000 Partitions=odd
NodeName=g4 CPUEfctv=48 CPUTot=48 Gres=gpu:2 RealMemory=1024000 TmpDisk=100000 Partitions=untyped
"""
PARTITIONS = """\
PartitionName=cpu AllowAccounts=ALL Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=gpu AllowAccounts=vision,speech Default=NO MaxTime=UNLIMITED State=UP
PartitionName=all AllowAccounts=ALL Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP
PartitionName=slim AllowAccounts=ALL Default=NO MaxNodes=2 MaxTime=UNLIMITED State=UP
PartitionName=odd AllowAccounts=ALL Default=NO MaxTime=UNLIMITED State=UP
PartitionName=untyped AllowAccounts=ALL Default=NO MaxTime=UNLIMITED State=UP
"""
SITE = read_site(NODES, PARTITIONS)


def offered(said: dict[str, Any] | None = None, **request: Any) -> Any:
    return offer(ResourceSettings(**request), {"partition": "all"} if said is None else said, SITE)


def test_a_request_for_several_nodes_gets_them_where_enough_have_what_each_is_to_have() -> None:
    assert offered(num_nodes=3).granted.nodes == 3
    assert offered({"partition": "cpu,all"}, num_nodes=2, memory="400GB").granted.nodes == 2
    found = offered(num_nodes=2, gpu_count=1)  # of whatever kind
    assert (found.granted.nodes, len(found.granted.gpus), found.shortfalls) == (2, 1, ())


def test_a_range_of_nodes_gets_the_most_of_those_that_take_jobs_and_none_that_was_lost() -> None:
    some = "".join(f"NodeName=n{i} CPUTot=4 RealMemory=1000 Partitions=all State=IDLE\n" for i in range(4))
    site = read_site(f"{some}NodeName=n9 CPUTot=4 RealMemory=1000 Partitions=all State=DOWN*", PARTITIONS)

    def found(least: int, most: int, *avoid: str) -> Any:
        request = ResourceSettings(num_nodes=(least, most))
        offered = offer(request, {"partition": "all"}, site, avoid=avoid)
        return offered.granted.nodes, offered.granted.details.get("avoids"), len(offered.shortfalls)

    assert found(2, 3) == (3, None, 0)
    assert found(2, 8) == (4, None, 0)
    assert found(2, 8, "n1", "elsewhere") == (3, ["n1"], 0)
    assert found(4, 8, "n1") == (4, None, 0)  # fewer will not do: it waits for what was lost
    assert found(5, 8) == (5, None, 0)
    assert found(6, 8) == (5, None, 1)
    fixed = offer(ResourceSettings(num_nodes=2), {"partition": "all"}, site, avoid=["n1"]).granted
    assert "#SBATCH --exclude=n1\n" in script_of(attrs.evolve(LARGE, granted=fixed))


def test_a_partition_gives_a_job_no_more_nodes_than_it_says() -> None:
    (shortfall,) = offered({"partition": "slim"}, num_nodes=3).shortfalls
    assert (shortfall.got, shortfall.why) == ("2", "partition 'slim' gives a job no more (MaxNodes)")


def test_what_is_asked_for_is_granted_as_it_was_written() -> None:
    found = offered(cpu_count=2, memory="64MB", gpu_count=0)
    assert (found.granted.cpu_count, found.granted.memory, found.granted.gpus) == (2, 64_000_000, ())
    assert found.shortfalls == ()


@pytest.mark.parametrize(
    ("request_", "model", "count"),
    [
        ({"gpu_count": 2}, None, 2),
        ({"accelerator": "H200:8"}, "h200", 8),
        ({"accelerator": ["H100:8", "A100:4"]}, "a100", 4),
        ({"gpu_count": 1, "gpu_memory": "100GB"}, "h200", 1),
        ({"gpu_count": 1, "gpu_vendor": "nvidia"}, "a100", 1),
    ],
)
def test_devices_are_asked_for_by_the_names_of_the_site(
    request_: dict[str, Any], model: str, count: int
) -> None:
    found = offered(**request_)
    assert found.shortfalls == ()
    assert [device.model for device in found.granted.gpus] == [model] * count


@pytest.mark.parametrize(
    ("request_", "said", "words"),
    [
        ({"cpu_count": 65}, None, ["65 CPUs", "g2 with 48 CPUs", "8 × h200"]),
        ({"memory": "2TB"}, None, ["2 TB", "the largest node"]),
        ({"disk": "1TB"}, None, ["1 TB of disk"]),
        ({"accelerator": "H200:9"}, None, ["9 × H200", "8 × h200"]),
        ({"accelerator": "B200"}, None, ["1 × B200", "none"]),
        ({"gpu_count": 1}, {}, ["partition 'cpu' is c1"]),
        ({"accelerator": "H200"}, {"partition": "odd"}, ['gres="gpu:blue.one:1"']),
        ({"accelerator": "H200"}, {"partition": "untyped"}, ["gpu_count alone"]),
        ({"cpu_count": 60, "gpu_count": 1}, None, ["none"]),
        ({"shared_memory": "1GB"}, None, ["/dev/shm"]),
        ({"num_nodes": 4}, None, ["4 nodes", "3", "'all' has no more nodes with what is asked for"]),
        ({"num_nodes": 3, "cpu_count": 48}, None, ["3 nodes", "| 2 |"]),
        ({"num_nodes": 2, "accelerator": "H200:8"}, None, ["2 nodes", "| 1 |"]),
        ({"num_nodes": 2}, {}, ["2 nodes", "| 1 | partition 'cpu'"]),
        ({"num_nodes": 2}, {"partition": "cpu,odd"}, ["| 1 |"]),
    ],
)
def test_what_no_node_can_give_is_refused_with_the_largest_one(
    request_: dict[str, Any], said: dict[str, Any] | None, words: list[str]
) -> None:
    (shortfall,) = offered(said, **request_).shortfalls
    text = f"{shortfall.asked} | {shortfall.got} | {shortfall.why}"
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"partition": "gpus"}, ["no partition 'gpus'", "gpu"]),
        ({"partition": "gpu"}, ["wants to know the account", "vision, speech"]),
        ({"partition": "gpu", "account": "physics"}, ["account 'physics' may not use", "vision, speech"]),
        ({"time": "2d"}, ["time='2d'", "'cpu'", "1 d"]),
    ],
)
def test_a_partition_account_or_time_that_the_site_refuses_is_told_with_what_there_is(
    said: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RequestRefused) as caught:
        offered(said)
    for word in words:
        assert word in str(caught.value)


def test_doctor_does_not_take_this_machine_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = CliRunner().invoke(upshift, ["doctor", "slurm", "--submit"], env={"COLUMNS": "200"})
    assert "scontrol is not on the PATH" in done.output
    assert "Run this where jobs are submitted, on a login node of the cluster." in done.output
    assert "1 problem: a step would not run on target slurm" in done.output
    assert "CPUs" not in done.output and "trivial" not in done.output


# How it is

UP = read_site(NODES.replace("Partitions=", "State=IDLE Partitions="), PARTITIONS)


def found(said: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one.name, one.status, one.text) for one in findings(said, UP)]


def test_the_nodes_of_a_partition_are_told_with_what_they_have() -> None:
    queue, devices = found({})
    largest = "c1 with 64 CPUs, 268 GB of memory"
    assert queue == ("queue", "ok", f"partition 'cpu': 1 node, the largest {largest}, jobs of 1 d at most")
    assert devices == ("devices", "ok", "none in partition 'cpu'")


def test_nodes_that_take_no_jobs_are_told() -> None:
    queue, devices = found({"partition": "gpu", "account": "vision"})
    assert queue[1] == "warning" and "2 nodes, 1 of which take jobs now" in queue[2]
    assert devices[2] == "8 × h200 in partition 'gpu'"


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*", "MIXED+DRAIN", "IDLE+NOT_RESPONDING", "DOWN"])
def test_a_partition_without_a_node_that_takes_jobs_is_a_problem(state: str) -> None:
    down = read_site(NODES.replace("Partitions=", f"State={state} Partitions="), PARTITIONS)
    (problem,) = findings({}, down)
    assert (problem.status, problem.remedy and "sinfo -R" in problem.remedy) == ("problem", True)
    assert f"partition 'cpu' has no node of 1 that takes jobs: nodes are {state}" in problem.text


def test_a_partition_or_account_that_is_not_there_is_refused() -> None:
    with pytest.raises(RequestRefused, match="no partition 'gpus'"):
        found({"partition": "gpus"})
    with pytest.raises(RequestRefused, match="wants to know the account"):
        found({"partition": "gpu"})


@pytest.mark.parametrize(
    ("ssh", "store", "words"),
    [
        ("-oProxyCommand=true", "/shared/store", "ssh = '-oProxyCommand=true' is invalid"),
        (7, "/shared/store", "ssh = 7 is invalid"),
        ("ann@login", "s3://team/store", "its jobs are submitted through ssh"),
    ],
)
def test_a_login_node_that_makes_no_sense_is_refused(ssh: Any, store: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SlurmBackend(
            Target(name="cluster", backend="slurm", options={"ssh": ssh}),
            store=store,
            sink=lambda event: None,
        )


def test_what_ssh_would_say_again_is_an_error_and_all_else_is_tried_again() -> None:
    login = Login("ann@login")
    assert "ssh-copy-id" in str(login.refusal("ann@login: Permission denied (publickey,password)."))
    assert login.refusal("Host key verification failed.") is not None
    assert login.refusal("ssh: connect to host login port 22: Connection refused") is None
    assert login.refusal("client_loop: send disconnect: Broken pipe") is None


def test_variables_reach_a_login_node_before_the_script_and_on_no_command_line() -> None:
    given = Login("ann@login").input({"UPSHIFT_ORDER": "it's {secret}"}, "#!/bin/sh\ntrue\n")
    reader = Login("ann@login").command(["sh", "-c", 'cat; echo "$UPSHIFT_ORDER"'])[-1]
    done = subprocess.run(["sh", "-c", reader], input=given, capture_output=True, text=True, check=True)
    assert done.stdout == "#!/bin/sh\ntrue\nit's {secret}\n"
