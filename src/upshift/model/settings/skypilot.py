"""What a step is told for SkyPilot alone: :class:`SkyPilotSettings`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from upshift.model.checks import Told, bad_value, flag, line, number, refuse_unknown_fields
from upshift.model.settings.sizes import FORMS, parse_size

_OWNER = "SkyPilotSettings"
_ACCELERATORS = re.compile(r"([A-Za-z][\w.-]*(?: [\w.-]+)*)(?::(\d+))?")
_GB = 10**9


def _word(value: Any, field: Any) -> str | None:
    return None if value is None else line(_OWNER, field.name, value).strip()


def _accelerators(value: Any, field: Any) -> str | None:
    """One name and a count, as SkyPilot writes them: ``"H100:8"``; a dictionary of one entry is the same."""
    if value is None:
        return None
    if isinstance(value, Mapping) and len(value) == 1:
        [(name, count)] = value.items()
        value = f"{name}:{number(_OWNER, field.name, count, least=1, most=1024, whole=True)}"
    found = _ACCELERATORS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise bad_value(_OWNER, field.name, value, 'a name and a count: "H100:8", "tpu-v6e-8"')
    return f"{found[1]}:{found[2] or 1}"


def _gigabytes(value: Any, field: Any) -> int | None:
    """Whole GB, the unit of SkyPilot's ``disk_size``."""
    if value is None:
        return None
    try:
        return math.ceil(parse_size(value, unit="GB") / _GB)
    except ValueError:
        raise bad_value(_OWNER, field.name, value, f"GB, or {FORMS}") from None


def _variables(value: Any, field: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise bad_value(_OWNER, field.name, value, 'texts by name: {"team": "vision"}')
    for name, said in value.items():
        known = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", name)
        if not known or not isinstance(said, str):
            raise bad_value(_OWNER, f"{field.name}[{name!r}]", said, "text, under a name")
    return dict(value)


def _options(value: Any, field: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise bad_value(_OWNER, field.name, value, 'a list of options: ["--ulimit=memlock=-1"]')
    return tuple(line(_OWNER, field.name, option) for option in value)


def _whole(value: Any, field: Any) -> int | None:
    return None if value is None else number(_OWNER, field.name, value, least=-1000, most=1000, whole=True)


def _money(value: Any, field: Any) -> float | None:
    return None if value is None else number(_OWNER, field.name, value, least=0.001, most=10**6)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class SkyPilotSettings:
    """How SkyPilot is asked for a step, beside its resources: ``settings={"skypilot": SkyPilotSettings(…)}``.

    The options of a target of SkyPilot's have the same names, and count where a step says nothing.

    Parameters
    ----------
    accelerators
        Accelerators by SkyPilot's own name, such as ``"tpu-v6e-8"`` or ``"A100-80GB:8"``; otherwise those of
        ``ResourceSettings(accelerator=…)``. Both only where they mean the same.
    accelerator_args
        What a TPU takes beside its name: ``{"runtime_version": "v2-alpha-tpuv6e"}``.
    infra
        Where: ``"aws"``, ``"aws/us-east-1"``, ``"gcp/*/us-central1-a"``, ``"kubernetes/my-context"``.
    cloud, region, zone
        The same in three fields.
    instance_type
        The type of machine, in place of one that SkyPilot chooses by CPUs, memory and accelerators.
    use_spot
        Whether machines may be taken away again, for a lower price. An attempt that loses its machine
        ends as ``preempted``.
    disk_size
        Of the machine's disk, in GB, or with a unit: ``"500GB"``. ``ResourceSettings(disk=…)`` counts
        where it is more.
    disk_tier, network_tier
        ``"low"``, ``"medium"``, ``"high"``, ``"ultra"`` or ``"best"``; ``"standard"`` or ``"best"``.
    local_disk
        A disk of the machine's own: ``"nvme:1000+"``.
    max_hourly_cost
        Dollars that a machine may cost in an hour.
    priority
        Of the job among others that wait for their controller: from -1000 to 1000.
    labels
        Tags of the machines, or labels of pods.
    envs
        Variables of the step's environment.
    docker_run_options
        Options of ``docker run`` for the image of the step: ``["--ulimit=memlock=-1"]``.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    accelerators: str | None = attrs.field(default=None, converter=Told(_accelerators))
    accelerator_args: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_variables))
    infra: str | None = attrs.field(default=None, converter=Told(_word))
    cloud: str | None = attrs.field(default=None, converter=Told(_word))
    region: str | None = attrs.field(default=None, converter=Told(_word))
    zone: str | None = attrs.field(default=None, converter=Told(_word))
    instance_type: str | None = attrs.field(default=None, converter=Told(_word))
    use_spot: bool | None = attrs.field(default=None, converter=flag(_OWNER))
    disk_size: int | None = attrs.field(default=None, converter=Told(_gigabytes))
    disk_tier: str | None = attrs.field(default=None, converter=Told(_word))
    network_tier: str | None = attrs.field(default=None, converter=Told(_word))
    local_disk: str | None = attrs.field(default=None, converter=Told(_word))
    max_hourly_cost: float | None = attrs.field(default=None, converter=Told(_money))
    priority: int | None = attrs.field(default=None, converter=Told(_whole))
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_variables))
    envs: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_variables))
    docker_run_options: tuple[str, ...] = attrs.field(factory=tuple, converter=Told(_options))
    _elsewhere: ClassVar[dict[str, str]] = {
        "cpus": "ResourceSettings(cpu_count=…)",
        "memory": "ResourceSettings(memory=…)",
        "num_nodes": "ResourceSettings(num_nodes=…)",
        "shm_size": "ResourceSettings(shared_memory=…)",
        "image_id": 'DockerSettings(parent_image=…), or image = "…" of the target',
        "docker_run_args": "docker_run_options",
        "any_of": 'ResourceSettings(accelerator=["H100:8", "A100:8"])',
        "ordered": 'ResourceSettings(accelerator=["H100:8", "A100:8"])',
        **dict.fromkeys(("job_recovery", "retry_until_up"), "@step(retries=…)"),
        "secrets": "@step(secrets={…})",
        "workspace": "active_workspace in SkyPilot's own configuration",
        "file_mounts": "External(…), or a value that another step returns",
        **dict.fromkeys(
            ("down", "idle_minutes_to_autostop", "cluster_name", "stream_logs", "workdir", "task_name"),
            "nothing: each attempt is a managed job, and its machines go with it",
        ),
    }

    def __attrs_post_init__(self) -> None:
        apart = [name for name in ("cloud", "region", "zone") if getattr(self, name) is not None]
        if self.infra is not None and apart:
            raise bad_value(_OWNER, "infra", self.infra, f"infra alone, or {', '.join(apart)}")
