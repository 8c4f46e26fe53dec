"""A supervisor in a container on a node: what comes before its command, by what the cluster has for that.

Apptainer and Pyxis keep user, environment and devices as they are on the node; Docker and Podman are told.
Folders are bound under their own paths. Nothing here starts anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

import attrs

from upshift.backends.scheduler import Launch
from upshift.runtime.launch import seats

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
