"""What a step is told for Slurm alone: :class:`SlurmSettings`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, bad_value, flag, line, refuse_unknown_fields
from upshift.model.settings.sizes import parse_span

_OWN = {
    **dict.fromkeys(
        ("--job-name", "--comment", "--output", "--error", "--input", "--open-mode", "--parsable")
    ),
    **dict.fromkeys(
        ("--array", "--requeue", "--no-requeue", "--export", "--export-file", "--wrap", "--wait")
    ),
    **dict.fromkeys(
        ("--test-only", "--signal", "--chdir", "--get-user-env", "--kill-on-invalid-dep", "--hold")
    ),
    **dict.fromkeys(("--cpus-per-task", "-c"), "ResourceSettings(cpu_count=…)"),
    **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu"), "ResourceSettings(memory=…)"),
    **dict.fromkeys(("--gpus", "--gpus-per-node", "--gpus-per-task", "-G"), "ResourceSettings(gpu_count=…)"),
    **dict.fromkeys(("--nodes", "-N"), "ResourceSettings(num_nodes=…)"),
    **dict.fromkeys(("--ntasks", "--ntasks-per-node", "-n"), "ResourceSettings(cpu_count=…)"),
    "--tmp": "ResourceSettings(disk=…)",
    **{f"--{name}": f"{name}=…" for name in ("partition", "account", "qos", "time", "constraint")},
    **{f"--{name}": f"{name}=…" for name in ("gres", "exclusive", "reservation")},
    "-p": "partition=…",
    "-A": "account=…",
    "-q": "qos=…",
    "-t": "time=…",
    "-C": "constraint=…",
}
"""Options of ``sbatch`` that are said otherwise, and how; None: Upshift needs them itself."""
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?")
FORMS = 'a span such as "90m", "12h" or "2d", or as Slurm writes it: "12:30:00", "1-12:00"'


def minutes_of(text: str) -> int:
    """Minutes of a time limit; Slurm rounds up to whole ones.

    Raises
    ------
    ValueError
        It is none.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if clock is None:
        return max(1, math.ceil(parse_span(text) / 60))
    days, first, second, third = (int(part or 0) for part in clock.groups())
    if clock[1] is None and clock[4] is None:  # sbatch(1): "minutes:seconds"
        return max(1, first + (second > 0))
    return max(1, (days * 24 + first) * 60 + second + (third > 0))


def _word(value: Any, field: Any) -> str | None:
    if value is None:
        return None
    text = line("SlurmSettings", field.name, value).strip()
    if re.search(r"[\s'\"\\]", text) or text.startswith("-"):
        raise bad_value("SlurmSettings", field.name, value, "one word, as sbatch takes it")
    return text


def _time(value: Any) -> str | None:
    if value is None:
        return None
    try:
        minutes_of(value if isinstance(value, str) else "")
    except ValueError:
        raise bad_value("SlurmSettings", "time", value, FORMS) from None
    return str(value).strip()


def _extra(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise bad_value("SlurmSettings", "extra", value, 'a list of options: ["--nice=100"]')
    for option in value:
        name = str(option).partition("=")[0]
        line("SlurmSettings", "extra", option)
        if not re.fullmatch(r"--?[A-Za-z][A-Za-z0-9-]*(=[^\s'\"\\]+)?", option):
            expected = 'options of sbatch, each one word: ["--nice=100", "--hint=nomultithread"]'
            raise bad_value("SlurmSettings", "extra", option, expected)
        if name in _OWN:
            instead = _OWN[name]
            raise SettingsError(
                f"SlurmSettings: extra has {name}",
                where=user_location(),
                why=None if instead else "Upshift sets it itself.",
                fix=f"Write {instead}" if instead else "Leave it out.",
            )
    return tuple(value)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class SlurmSettings:
    """How Slurm is asked for a step, beside its resources: ``settings={"slurm": SlurmSettings(…)}``.

    The options of a target of Slurm's have the same names, and count where a step says nothing.

    Parameters
    ----------
    partition
        Where it runs: ``"gpu"``, or several, ``"gpu,spare"``. Default: the cluster's own.
    account
        Who is charged.
    qos
        The quality of service.
    time
        How long it may run: ``"12h"``, or ``"1-12:00:00"`` as Slurm writes it. Default: the step's
        ``timeout`` with a few minutes around it; without one, that of the partition.
    constraint
        Features that its node has: ``"infiniband"``.
    gres
        Generic resources, ``"gpu:tesla:2"``, in place of what is written for ``gpu_count`` and
        ``accelerator``.
    exclusive
        Whether nobody else's job runs on its node.
    reservation
        The reservation that it runs in.
    extra
        More options for ``sbatch``: ``["--nice=100"]``. What a field or ``ResourceSettings`` says is
        not among them.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    partition: str | None = attrs.field(default=None, converter=Told(_word))
    account: str | None = attrs.field(default=None, converter=Told(_word))
    qos: str | None = attrs.field(default=None, converter=Told(_word))
    time: str | None = attrs.field(default=None, converter=_time)
    constraint: str | None = attrs.field(default=None, converter=Told(_word))
    gres: str | None = attrs.field(default=None, converter=Told(_word))
    exclusive: bool = attrs.field(default=False, converter=flag("SlurmSettings", required=True))
    reservation: str | None = attrs.field(default=None, converter=Told(_word))
    extra: tuple[str, ...] = attrs.field(default=(), converter=_extra)
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("cpus_per_task", "ntasks"), "ResourceSettings(cpu_count=…)"),
        **dict.fromkeys(("gpus", "gpus_per_node"), "ResourceSettings(gpu_count=…)"),
        **dict.fromkeys(("mem", "memory", "memory_per_cpu"), "ResourceSettings(memory=…)"),
        "nodes": "ResourceSettings(num_nodes=…)",
        **dict.fromkeys(("run_time_limit", "walltime", "timeout"), "time"),
        **dict.fromkeys(("queue",), "partition"),
    }
