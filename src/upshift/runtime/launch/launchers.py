"""What becomes of each argument of a launcher here; what is not named is handed on.

Upshift's supervisor is the launcher. So what says how processes are started is done by Upshift, or means
nothing; what says how Accelerate is to train is handed to the Accelerate in each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from upshift.model.checks import MOST_PROCESSES, shown
from upshift.runtime.launch import argument_tables as tables
from upshift.runtime.launch.argument_tables import Argument


@attrs.frozen
class RefusedArgument:
    """An argument that cannot mean anything here."""

    why: str
    fix: str
    idle: Any = None  # a value that asks for nothing, beside the default
    secret: bool = False  # whether nobody may see what was given

    def asked_by(self, value: Any, default: Any) -> bool:
        """Whether a value asks for what is refused, where its argument has this default."""
        return not any(type(value) is type(idle) and value == idle for idle in (self.idle, default, *_IDLE))

    def shown(self, value: Any) -> str:
        """A value as an error shows it."""
        return "…" if self.secret else shown(value)


_IDLE: Final[tuple[Any, ...]] = (None, False, "", [], {})
"""What asks for nothing, whatever it is given for."""


@attrs.frozen
class Bounds:
    """Which whole numbers an argument takes."""

    least: int
    most: int | None
    expected: str  # the same in words

    def hold(self, value: Any) -> bool:
        """Whether it is one of them."""
        return bool(self.least <= value and (self.most is None or value <= self.most))


@attrs.frozen
class DependentArguments:
    """Arguments that mean something only if another one has a value, of which the launcher says nothing."""

    names: tuple[str, ...]  # or what these begin with
    of: str  # the other argument
    value: Any = True  # that it needs; None: any but "no"

    def holds(self, name: str) -> bool:
        """Whether an argument is among these."""
        return name.startswith(self.names) and name != self.of

    def works(self, given: Mapping[str, Any]) -> bool:
        """Whether they mean something beside these arguments."""
        found = given.get(self.of)
        return found not in (None, "no") if self.value is None else found == self.value

    @property
    def needs(self) -> str:
        """What they need, as the user would write it."""
        return f"{self.of}={'…' if self.value is None else repr(self.value)}"


@attrs.frozen
class Launcher:
    """A launcher, and what becomes of its arguments."""

    name: str  # "accelerate" or "torchrun"
    command: str  # what people call it
    version: str  # of the packaged table
    read: str  # the day on which that was read
    arguments: Mapping[str, Argument]
    # What it calls the number of processes and of nodes, the port of the process of rank 0, and that each
    # keeps to the CPUs near its device.
    processes: str
    nodes: str
    port: str
    numa: str
    bounds: Mapping[str, Bounds]  # what its parser does not check
    done: Mapping[str, str]  # what Upshift does itself, and how
    refused: Mapping[str, RefusedArgument]  # what it refuses, and why
    parts: tuple[DependentArguments, ...] = ()  # what needs another argument
    on_devices: tuple[str, ...] = ()  # flags by which each process has a device
    rivals: tuple[str, ...] = ()  # flags of which it takes one at most
    written: str | None = None  # the decorator, if it is not called run_with_…

    @property
    def decided(self) -> frozenset[str]:
        """What Upshift does itself, and does not hand on."""
        return frozenset(self.done) - set(self.on_devices) - set(self.rivals)

    @property
    def decorator(self) -> str:
        """As the user writes it."""
        return self.written or f"@run_with_{self.name}"


_NO_SCRIPT = RefusedArgument(
    "The step's function is what every process runs; there is no script.",
    "Leave it out: call the code in the step.",
)
_LOGS = RefusedArgument(
    "Upshift keeps what each process writes in a log of its own, and one of all of them.",
    "Leave it out: upshift logs RUN STEP --rank N.",
)
_NODES = RefusedArgument(
    "Upshift tells each process where it is, and where the one of rank 0 listens.",
    "Leave it out; the number of nodes is num_nodes of the request.",
)
_RENDEZVOUS = RefusedArgument("Upshift brings the processes together itself.", "Leave it out.")
_RESTARTS = RefusedArgument(
    "A failed attempt starts again as a whole, with all of its processes.",
    "Set the number of retries: @step(retries=…), or @retry.",
)
_SUPERVISED = RefusedArgument(
    "The supervisor hears from the kernel when a process ends; it does not look now and then.",
    "Leave it out.",
)
_DEVICES = RefusedArgument(
    "Upshift hands out devices that no other step holds, and each process has one of them.",
    "Set the number: ResourceSettings(gpu_count=…), or @resources(gpu=…).",
    "all",
)
_TPU = RefusedArgument(
    "PyTorch/XLA starts the processes of a TPU machine itself, from one process.",
    'Write a plain step with ResourceSettings(accelerator="tpu-…"), and call torch_xla.launch(…) in it.',
)
_CLOUD = RefusedArgument(
    "Where a step runs is its target.",
    "Leave it out; a secret of the step is @step(secrets={…}).",
    secret=True,
)
_HOSTS = RefusedArgument(
    "The nodes are those that the target gives to the step.", "Leave it out: ResourceSettings(num_nodes=…)."
)

_COUNT = Bounds(1, MOST_PROCESSES, f"a whole number from 1 to {MOST_PROCESSES:,}")
_PORT = Bounds(0, 65535, "a port from 1 to 65535, or 0 for one that is free")

ACCELERATE: Final = Launcher(
    name="accelerate",
    command="accelerate launch",
    version=tables.ACCELERATE_VERSION,
    read=tables.ACCELERATE_READ,
    arguments=tables.ACCELERATE_ARGUMENTS,
    processes="num_processes",
    nodes="num_machines",
    port="main_process_port",
    numa="enable_cpu_affinity",
    on_devices=("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"),
    rivals=("cpu", "multi_gpu", "use_deepspeed", "use_fsdp"),
    bounds={
        "num_processes": _COUNT,
        "num_machines": _COUNT,
        "num_cpu_threads_per_process": _COUNT,
        "main_process_port": _PORT,
    },
    done={
        "config_file": "read before a run; what it says is part of what the step is",
        "deepspeed_config_file": "read before a run; its text is part of what the step is, "
        "and is handed on as a file",
        "quiet": "always so: an error shows the lines of your code",
        "cpu": "no process gets a device; num_processes are started, and form a group (gloo)",
        "multi_gpu": "a GPU for each process; without a gpu_count "
        "it asks for num_processes / num_machines a node",
        "use_fsdp": "as multi_gpu, and handed on",
        "use_deepspeed": "as multi_gpu, and handed on",
        "use_megatron_lm": "as multi_gpu, and handed on",
        "num_processes": "how many processes over all nodes; "
        "without it one for each GPU that is asked for, or one",
        "num_machines": "the same as num_nodes of the request",
        "enable_cpu_affinity": "each process keeps to the CPUs of the NUMA node of its device; "
        "the default where a machine has several processes, which False turns off",
        "num_cpu_threads_per_process": "size of the native thread pools of each process; "
        "without it its part of the CPUs that are granted",
        "main_process_port": "the port of the process of rank 0; 0, or without it, one that is free",
        "same_network": "always so: the nodes of a step reach each other",
        "role": "ROLE_NAME of each process",
    },
    refused={
        "tpu": _TPU,
        "tpu_use_cluster": _TPU,
        "tpu_use_sudo": _TPU,
        "vm": _TPU,
        "env": RefusedArgument(
            "It is for TPU pods.",
            'Set it in DockerSettings(runtime_environment={"NAME": "value"}) of the step.',
        ),
        "main_training_function": attrs.evolve(_NO_SCRIPT, idle="main"),
        "downcast_bf16": attrs.evolve(_TPU, idle="no"),
        "gpu_ids": _DEVICES,
        "machine_rank": attrs.evolve(_NODES, idle=0),
        "main_process_ip": _NODES,
        "tee": _LOGS,
        "log_dir": _LOGS,
        "rdzv_backend": _RENDEZVOUS,
        "rdzv_conf": _RENDEZVOUS,
        "max_restarts": _RESTARTS,
        "monitor_interval": _SUPERVISED,
        "module": _NO_SCRIPT,
        "no_python": _NO_SCRIPT,
        "training_script": _NO_SCRIPT,
        "training_script_args": _NO_SCRIPT,
        "deepspeed_hostfile": _HOSTS,
        "deepspeed_exclusion_filter": _HOSTS,
        "deepspeed_inclusion_filter": _HOSTS,
        "deepspeed_multinode_launcher": attrs.evolve(_RENDEZVOUS, idle="standard"),
        "mpirun_hostfile": _HOSTS,
        "mpirun_ccl": RefusedArgument(
            "It sets CCL_WORKER_COUNT where mpirun starts the processes; here Upshift starts them.",
            'Leave it out, or set that: DockerSettings(runtime_environment={"CCL_WORKER_COUNT": "1"}).',
        ),
        "aws_access_key_id": _CLOUD,
        "aws_secret_access_key": _CLOUD,
    },
    parts=(
        DependentArguments(("fsdp_",), "use_fsdp"),
        DependentArguments(("megatron_lm_",), "use_megatron_lm"),
        DependentArguments(("parallelism_config_",), "use_parallelism_config"),
        DependentArguments(("fp8_",), "mixed_precision", "fp8"),
        DependentArguments(("dynamo_",), "dynamo_backend", None),
        DependentArguments(("deepspeed_", "zero", "offload_", "gradient_"), "use_deepspeed"),
    ),
)

TORCHRUN: Final = Launcher(
    name="torchrun",
    command="torchrun",
    version=tables.TORCHRUN_VERSION,
    read=tables.TORCHRUN_READ,
    arguments=tables.TORCHRUN_ARGUMENTS,
    processes="nproc_per_node",
    nodes="nnodes",
    port="master_port",
    numa="numa_binding",
    bounds={"master_port": _PORT},
    done={
        "nnodes": 'the same as num_nodes of the request: a number, or a range such as "2:4"',
        "nproc_per_node": 'how many processes on each node; "gpu" or "auto": one for each GPU',
        "master_port": "the port of the process of rank 0; 0, or without it, one that is free",
        "standalone": "always so on one node; with several it is refused",
        "role": "ROLE_NAME of each process",
        "numa_binding": '"node": each process keeps to the CPUs of the NUMA node of its device; '
        "the default where a machine has several processes. Other values are refused",
    },
    refused={
        "rdzv_backend": _RENDEZVOUS,
        "rdzv_endpoint": _RENDEZVOUS,
        "rdzv_id": _RENDEZVOUS,
        "rdzv_conf": _RENDEZVOUS,
        "max_restarts": _RESTARTS,
        "monitor_interval": _SUPERVISED,
        "start_method": RefusedArgument(
            "Upshift starts each process as it starts that of any step.", "Leave it out."
        ),
        "event_log_handler": RefusedArgument("See the record of the run.", "Leave it out: upshift show RUN."),
        "module": _NO_SCRIPT,
        "no_python": _NO_SCRIPT,
        "run_path": _NO_SCRIPT,
        "training_script": _NO_SCRIPT,
        "training_script_args": _NO_SCRIPT,
        "log_dir": _LOGS,
        "redirects": _LOGS,
        "tee": _LOGS,
        "local_ranks_filter": _LOGS,
        "duplicate_stdout_filters": _LOGS,
        "duplicate_stderr_filters": _LOGS,
        "logs_specs": _LOGS,
        "node_rank": _NODES,
        "master_addr": _NODES,
        "local_addr": _NODES,
        "signals_to_handle": RefusedArgument(
            "Upshift stops a step with SIGTERM, which every process gets.",
            "Leave it out: handle SIGTERM in the step.",
        ),
        "shutdown_timeout": RefusedArgument(
            "How long a process has after SIGTERM is an option of the step.",
            "Write it there: @step(grace=…).",
        ),
        "virtual_local_rank": RefusedArgument(
            "Every process sees all devices of its node, and LOCAL_RANK says which one is its own.",
            "Leave it out: Accelerate and PyTorch choose by LOCAL_RANK.",
        ),
    },
)

LAUNCHERS: Final[Mapping[str, Launcher]] = {"accelerate": ACCELERATE, "torchrun": TORCHRUN}

PARALLEL: Final = Launcher(
    name="parallel",
    command="self.next(…, num_parallel=…)",
    version="",
    read="",
    arguments={},
    processes="num_parallel",
    nodes="num_parallel",
    port="",
    numa="",
    bounds={},
    done={},
    refused={},
    written="@parallel",
)
"""Of a flow: so many nodes with one process each; on a target without nodes all on one machine."""


def launcher(name: str) -> Launcher:
    """The launcher of this name."""
    return PARALLEL if name == PARALLEL.name else LAUNCHERS[name]
