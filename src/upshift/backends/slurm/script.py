"""The batch script of a job, and the container of its supervisors: pure, and the same for the same launch.

Apptainer and Pyxis keep user, environment and devices as they are on the node; Docker and Podman are told.
Folders are bound under their own paths.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from upshift.backends.scheduler import Launch
from upshift.model.settings.slurm import minutes_of
from upshift.runtime.launch import seats

MIB = 1 << 20
ROOM = 300
"""Seconds beyond a step's own timeout and grace for what comes before and after it."""


LEAVING = 60
"""Seconds that the supervisors of an attempt are given to end once one of them has."""


_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_HERE = frozenset({"TMPDIR", "DISPLAY", "XAUTHORITY", "HOSTNAME", "DBUS_SESSION_BUS_ADDRESS", *_DEVICES})
"""Variables that mean something on this machine only."""


def script_of(launch: Launch, containers: Containers | None = None) -> str:
    """The script, for ``sbatch`` on its standard input; a step with an image runs in a container."""
    options = "".join(f"#SBATCH {option}\n" for option in options_of(launch))
    inside = containers if launch.image is not None else None
    before = "" if inside is None else inside.before(launch)
    command = shlex.join(launch.command) if inside is None else inside.command(launch)
    starter = [*_on_all_nodes(launch, *(inside.of_srun(launch) if inside else ()))]
    if starter and inside is not None and inside.differs:  # which devices it has, each node knows of its own
        before, command = "", shlex.join(["sh", "-c", f"{before}exec {command}"])
    if starter:
        command = f"{shlex.join(starter)} {command}"
    element = ' "$SLURM_ARRAY_TASK_ID"' if launch.elements else ""
    # exec: signals reach the supervisor itself, or srun, which hands them on to all of them.
    return f"#!/bin/sh\n{options}\n{before}exec {command}{element}\n"


def options_of(launch: Launch) -> Iterator[str]:
    """What Slurm is asked for; each field of the request, and each setting, in a line of its own."""
    granted, said = launch.granted, launch.settings
    yield f"--job-name={launch.name}"
    yield f'--comment="{launch.comment}"'
    if launch.elements:
        yield f"--array={ranges(launch.elements)}"
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if said.get(name):
            yield f"--{name}={said[name]}"
    nodes = granted.nodes or 1
    yield f"--nodes={nodes}"
    yield f"--ntasks={nodes}"
    if nodes > 1:
        yield "--ntasks-per-node=1"
    if granted.details.get("avoids"):
        yield f"--exclude={','.join(granted.details['avoids'])}"
    if granted.cpu_count is not None:
        yield f"--cpus-per-task={math.ceil(granted.cpu_count)}"
    if granted.memory is not None:
        yield f"--mem={math.ceil(granted.memory / MIB)}M"
    if said.get("gres"):
        yield f"--gres={said['gres']}"
    elif granted.gpus:
        kinds = {device.model for device in granted.gpus}
        kind = kinds.pop() if len(kinds) == 1 else None
        yield "--gres=gpu:" + (f"{kind}:" if kind else "") + str(len(granted.gpus))
    if granted.disk is not None:
        yield f"--tmp={math.ceil(granted.disk / MIB)}M"
    minutes = time_of(launch)
    if minutes is not None:
        yield f"--time={minutes}"
    if said.get("exclusive"):
        yield "--exclusive"
    yield "--no-requeue"  # a step is tried again by what its retries say
    if launch.output is not None:
        name = launch.output.replace("%", "%%")  # sbatch(1), "FILENAME PATTERN"
        if "://" in launch.command[-1]:  # a node that does not see this folder writes to its own /tmp
            name = os.path.basename(name)
            yield f'--chdir="{os.path.dirname(launch.output)}"'
        if launch.elements:
            name = f"{name.removesuffix('.out')}.%a.out"
        yield f'--output="{name}"'
    yield from said.get("extra", ())


def _on_all_nodes(launch: Launch, *more: str) -> Iterator[str]:
    """What starts a supervisor on each of several nodes: what ends one of them, the others find out.

    Where srun has ``more`` to do, it starts one on a single node, too.
    """
    granted = launch.granted
    nodes = granted.nodes or 1
    if nodes == 1 and not more:
        return
    yield from ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    if granted.cpu_count is not None:  # srun(1): it does not follow from that of sbatch since 22.05
        yield f"--cpus-per-task={math.ceil(granted.cpu_count)}"
    # Whatever a site has set: the processes are pinned, and their failures told, by the supervisors.
    yield from ("--cpu-bind=none", "--mpi=none", "--input=none", "--export=ALL", "--kill-on-bad-exit=0")
    yield f"--wait={LEAVING}"
    yield from more


def time_of(launch: Launch) -> int | None:
    """The time limit in minutes; None: what the partition says."""
    if launch.settings.get("time"):
        return minutes_of(launch.settings["time"])
    if launch.timeout is None:
        return None
    return math.ceil((launch.timeout + launch.grace + ROOM) / 60)


def ranges(elements: Collection[int]) -> str:
    """Numbers of an array's elements as Slurm writes them: ``0-7,9``."""
    found: list[list[int]] = []
    for number in sorted(elements):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


KINDS = ("pyxis", "apptainer", "docker", "podman")
NOT_INSIDE = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables of this machine's Python, where an image would get all of them."""
INSIDE = (
    "UPSHIFT_ORDER",
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"),
    "AZURE_STORAGE_CONNECTION_STRING",
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CPUS_PER_TASK"),
    *("SLURM_NODEID", "SLURM_LAUNCH_NODE_IPADDR", "SLURMD_NODENAME"),
)
"""Those that Docker and Podman hand on, by name alone, so that no value is on a command line."""


@attrs.frozen(kw_only=True)
class Containers:
    """What a cluster runs containers with, and which folders of its nodes they see."""

    kind: str
    home: str  # UPSHIFT_HOME
    mounts: Mapping[str, str] = attrs.field(factory=dict)  # by the path inside

    @property
    def differs(self) -> bool:
        """Whether the command is another one on each node."""
        return self.kind in ("docker", "podman")

    def before(self, launch: Launch) -> str:
        """Lines of the script before its command: they leave in ``$@`` what only the node knows."""
        if self.kind in ("apptainer", "pyxis"):
            return f"unset {' '.join(NOT_INSIDE)}\n"
        lines = ["set --"]
        if self.kind == "podman" and launch.user is None:  # without root, ids inside are others than outside
            lines += ['if [ "$(id -u)" -ne 0 ]; then set -- --userns=keep-id; fi']
        if launch.granted.gpus and self.kind == "docker":
            lines += [r'set -- --gpus "\"device=$CUDA_VISIBLE_DEVICES\""']
        elif launch.granted.gpus:
            each = 'set -- "$@" --device "nvidia.com/gpu=$device"'
            lines += [f"for device in $(echo \"$CUDA_VISIBLE_DEVICES\" | tr , ' '); do {each}; done"]
        return "\n".join(lines) + "\n"

    def of_srun(self, launch: Launch) -> Iterator[str]:
        """Further options of ``srun``."""
        if self.kind != "pyxis":
            return
        registry, _, name = (launch.image or "").partition("/")
        image = name if registry == "docker.io" else f"{registry}#{name}"
        yield f"--container-image={image}"
        yield "--container-mounts=" + ",".join(f"{there}:{inside}" for inside, there in self.mounts.items())
        yield from ("--container-workdir=/", "--no-container-mount-home", "--no-container-entrypoint")

    def command(self, launch: Launch) -> str:
        """What runs the launch's command in a container, for a shell."""
        vendors = {device.vendor for device in launch.granted.gpus or ()}
        if self.kind == "pyxis":
            return shlex.join(launch.command)
        if self.kind == "apptainer":
            options = ["apptainer", "exec", "--no-home", "--pwd", "/"]
            if launch.granted.gpus:
                options += ["--rocm" if vendors == {"amd"} else "--nv"]
            for inside, there in self.mounts.items():
                options += ["--bind", f"{there}:{inside}"]
            return shlex.join([*options, f"docker://{launch.image}", *launch.command])
        program, *arguments = launch.command
        options = [self.kind, "run", "--rm", "--network=host", "--workdir=/", f"--entrypoint={program}"]
        options += ["--security-opt=label=disable"] if self.kind == "podman" else []
        options += self._limits(launch)
        for inside, there in self.mounts.items():
            options += ["--volume", f"{there}:{inside}"]
        for name in dict.fromkeys((*INSIDE, *seats.VARIABLES, *launch.environment)):
            options += ["--env", name]
        options += ["--env", "HOME=/tmp", "--env", f"UPSHIFT_HOME={self.home}"]
        user = f"--user={shlex.quote(launch.user)}" if launch.user else '--user="$(id -u):$(id -g)"'
        image = shlex.join([launch.image or "", *arguments])
        return f'{shlex.join(options)} {user} "$@" {image}'

    def _limits(self, launch: Launch) -> Iterable[str]:
        """Those of the container, which is none of the job's processes."""
        granted = launch.granted
        if granted.memory is not None:
            yield from (f"--memory={granted.memory}b", f"--memory-swap={granted.memory}b")
            yield f"--shm-size={granted.memory // 2}b"
        if granted.cpu_count is not None:
            yield f"--cpus={granted.cpu_count:g}"


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a job gets of this process's environment, as from ``sbatch`` itself: ``--export=ALL``.

    Not what belongs to a job in which this runs itself, whose own would be overridden by it, nor what
    means something on this machine only.
    """
    conf = {"SLURM_CONF"} & environ.keys()
    return {
        name: value
        for name, value in environ.items()
        if name in conf
        or (not re.match(r"(SLURMD?|SBATCH|SRUN|SCANCEL|SQUEUE|PMIX?|XDG)_", name) and name not in _HERE)
    }
