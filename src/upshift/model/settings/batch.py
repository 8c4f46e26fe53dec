"""What a step is told for AWS Batch alone: :class:`BatchSettings`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, bad_value, flag, line, number, refuse_unknown_fields
from upshift.model.settings.sizes import parse_size

_OWNER = "BatchSettings"
_MIB = 1 << 20
MOST_MIB = 1 << 26
"""64 TiB: no instance has as much memory."""
MOST_EFA = 64
EPHEMERAL = (21, 200)
"""GiB of disk that a task on Fargate can be given beyond the 20 that each has: API_EphemeralStorage."""
MOST_TAGS = 50
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_FOLDER = re.compile(r"/[^:\s]*")
_EFS = re.compile(r"(fs-[0-9a-f]+)(?::(/[^:\s]+))?")
_DRIVERS = ("awsfirelens", "awslogs", "fluentd", "gelf", "journald", "json-file", "splunk", "syslog")
"""API_LogConfiguration of AWS Batch."""


def _line(value: Any, field: Any) -> str | None:
    return None if value is None else line(_OWNER, field.name, value).strip()


def _role(value: Any, field: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not _ROLE.fullmatch(value)):
        raise bad_value(_OWNER, field.name, value, 'the ARN of a role: "arn:aws:iam::123456789012:role/NAME"')
    return value


def _mebibytes(value: Any, field: Any) -> int | None:
    if value is None:
        return None
    what = 'a number of MiB, as AWS Batch counts them, or a size such as "8GiB"'
    if isinstance(value, str):
        try:
            value = math.ceil(parse_size(value) / _MIB)
        except ValueError:
            raise bad_value(_OWNER, field.name, value, what) from None
    return int(number(_OWNER, field.name, value, most=MOST_MIB, whole=True, what=what))


def _counted(least: int, most: int) -> Told:
    def convert(value: Any, field: Any) -> int | None:
        if value is None:
            return None
        return int(number(_OWNER, field.name, value, least=least, most=most, whole=True))

    return Told(convert)


def _listed(value: Any, field: Any) -> Sequence[Any]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        raise bad_value(_OWNER, field.name, value, "a list of texts")
    return texts


def _host_volumes(value: Any, field: Any) -> tuple[str, ...]:
    for text in _listed(value, field):
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) not in (1, 2) or not all(map(_FOLDER.fullmatch, parts)):
            expected = (
                'folders of the instance: ["/data"], or ["/data:/mnt/data"] for another path in the step'
            )
            raise bad_value(_OWNER, field.name, text, expected)
    return tuple(_listed(value, field))


def _efs_volumes(value: Any, field: Any) -> tuple[str, ...]:
    for text in _listed(value, field):
        if not isinstance(text, str) or not _EFS.fullmatch(text):
            expected = 'file systems: ["fs-0123456789abcdef0"], or ["fs-0123456789abcdef0:/data"]'
            raise bad_value(_OWNER, field.name, text, expected)
    return tuple(_listed(value, field))


def mount_of(volume: str) -> tuple[str, str]:
    """A host's folder or a file system, and where a step finds it."""
    source, _, path = volume.partition(":")
    return source, path or (f"/mnt/{source}" if source.startswith("fs-") else source)


def _folder(value: Any, field: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not re.fullmatch(r"/[^:\s]+", value)):
        raise bad_value(_OWNER, field.name, value, 'an absolute path: "/scratch"')
    return value


def _driver(value: Any, field: Any) -> str | None:
    if value is not None and value not in _DRIVERS:
        raise bad_value(_OWNER, field.name, value, f"one of {', '.join(_DRIVERS)}")
    return value  # type: ignore[no-any-return]


def _options(value: Any, field: Any) -> dict[str, str]:
    what = 'values by option: {"awslogs-group": "/ml"}, or ["awslogs-group:/ml"]'
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        texts = _listed(value, field)
        if not all(isinstance(text, str) and text.partition(":")[2] for text in texts):
            raise bad_value(_OWNER, field.name, value, what)
        value = {text.partition(":")[0].strip(): text.partition(":")[2].strip() for text in texts}
    return _table(value, field, what)


def _tags(value: Any, field: Any) -> dict[str, str]:
    if value is None:
        return {}
    table = _table(value, field, 'values by key: {"team": "vision"}')
    if len(table) > MOST_TAGS - 1:
        raise bad_value(_OWNER, field.name, value, f"at most {MOST_TAGS - 1}; Upshift adds one of its own")
    for key, text in table.items():
        if key.lower().startswith("aws:") or len(key) > 128 or len(text) > 256:
            expected = 'keys of at most 128 characters that do not begin with "aws:", values of at most 256'
            raise bad_value(_OWNER, f"tags[{key!r}]", text, expected)
    return table


def _table(value: Any, field: Any, what: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise bad_value(_OWNER, field.name, value, what)
    return {key: line(_OWNER, f"{field.name}[{key!r}]", text) for key, text in value.items()}


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class BatchSettings:
    """How AWS Batch is asked for a step, beside its resources: ``settings={"aws-batch": BatchSettings(…)}``.

    The options of a target of AWS Batch have the same names, and count where a step says nothing.

    Parameters
    ----------
    queue
        The job queue, by name or ARN.
    iam_role
        ARN of the role that the step has: it reads and writes the store with it.
    execution_role
        ARN of the role that starts the container: Fargate, ``aws:…`` secrets and private registries need it.
    max_swap
        Swap space in MiB, or ``"8GiB"``; 0: none. EC2 only.
    swappiness
        From 0, only when there is no other way, to 100. EC2 only.
    efa
        Network interfaces of type EFA, per node. EC2 only.
    host_volumes
        Folders of the instance that the step sees: ``["/data"]``, or ``["/data:/mnt/data"]``. EC2 only.
    efs_volumes
        EFS file systems: ``["fs-0123456789abcdef0"]`` is found at ``/mnt/fs-0123456789abcdef0``,
        ``["fs-0123456789abcdef0:/data"]`` at ``/data``.
    use_tmpfs
        Whether there is a file system in memory. EC2 only.
    tmpfs_size
        Its size in MiB, or ``"8GiB"``. Default: half of the step's memory.
    tmpfs_path
        Where it is. Default: ``/upshift_tmp``.
    tmpfs_tempdir
        Whether temporary files of the step go there. Default: True.
    ephemeral_storage
        Disk in GiB, from 21 to 200, of a task on Fargate; ``ResourceSettings(disk=…)`` says the same.
    log_driver
        Where what the container prints goes beside the store: ``"awslogs"``, which is the default, ….
    log_options
        Options of the driver: ``{"awslogs-group": "/ml"}``.
    tags
        Tags of the jobs: ``{"team": "vision"}``.
    privileged
        Whether the container has the rights of root on its instance. EC2 only.
    assign_public_ip
        Whether a task on Fargate gets a public address, which it needs in a subnet without a NAT gateway.
    share_identifier
        Whose share the job counts as, in a queue with a fair-share policy.
    scheduling_priority
        From 0 to 9999; the higher one is first within its share.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    queue: str | None = attrs.field(default=None, converter=Told(_line))
    iam_role: str | None = attrs.field(default=None, converter=Told(_role))
    execution_role: str | None = attrs.field(default=None, converter=Told(_role))
    max_swap: int | None = attrs.field(default=None, converter=Told(_mebibytes))
    swappiness: int | None = attrs.field(default=None, converter=_counted(0, 100))
    efa: int | None = attrs.field(default=None, converter=_counted(0, MOST_EFA))
    host_volumes: tuple[str, ...] = attrs.field(default=(), converter=Told(_host_volumes))
    efs_volumes: tuple[str, ...] = attrs.field(default=(), converter=Told(_efs_volumes))
    use_tmpfs: bool = attrs.field(default=False, converter=flag(_OWNER, required=True))
    tmpfs_size: int | None = attrs.field(default=None, converter=Told(_mebibytes))
    tmpfs_path: str | None = attrs.field(default=None, converter=Told(_folder))
    tmpfs_tempdir: bool = attrs.field(default=True, converter=flag(_OWNER, required=True))
    ephemeral_storage: int | None = attrs.field(default=None, converter=_counted(*EPHEMERAL))
    log_driver: str | None = attrs.field(default=None, converter=Told(_driver))
    log_options: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_options))
    tags: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_tags))
    privileged: bool = attrs.field(default=False, converter=flag(_OWNER, required=True))
    assign_public_ip: bool = attrs.field(default=False, converter=flag(_OWNER, required=True))
    share_identifier: str | None = attrs.field(default=None, converter=Told(_line))
    scheduling_priority: int | None = attrs.field(default=None, converter=_counted(0, 9999))
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("cpu", "vcpus"), "ResourceSettings(cpu_count=…)"),
        "gpu": "ResourceSettings(gpu_count=…)",
        **{name: f"ResourceSettings({name}=…)" for name in ("memory", "shared_memory")},
        "disk": "ResourceSettings(disk=…), or ephemeral_storage",
        "trainium": 'ResourceSettings(accelerator="Trainium:16")',
        "inferentia": 'ResourceSettings(accelerator="Inferentia:16")',
        **dict.fromkeys(("num_nodes", "num_parallel"), "ResourceSettings(num_nodes=…)"),
        "image": "DockerSettings(parent_image=…)",
        "aws_batch_tags": "tags",
        "job_priority": "scheduling_priority",
        "job_queue": "queue",
        **dict.fromkeys(("job_role", "job_role_arn", "role"), "iam_role"),
        "execution_role_arn": "execution_role",
        "secrets": '@step(secrets={"NAME": "aws:ARN"})',
        "timeout": "@step(timeout=…)",
        **dict.fromkeys(("attempts", "retry_strategy"), "@step(retries=…)"),
        **dict.fromkeys(("environment", "env"), "DockerSettings(runtime_environment=…)"),
        "executable": "nothing of it: the Python of the image is found",
    }

    def __attrs_post_init__(self) -> None:
        if self.swappiness is not None and self.max_swap is None:
            raise SettingsError(
                f"{_OWNER}: swappiness={self.swappiness} has no effect without max_swap",
                where=user_location(),
                why="Without it a container uses the swap space of its instance, if there is some.",
                fix="Set max_swap, in MiB.",
            )
