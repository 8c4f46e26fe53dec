"""What a step is told for Ray alone: :class:`RaySettings`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import Told, bad_value, line, number, refuse_unknown_fields

_OWN = {
    **dict.fromkeys(("CPU", "num_cpus"), "ResourceSettings(cpu_count=…)"),
    **dict.fromkeys(("GPU", "num_gpus"), "ResourceSettings(gpu_count=…)"),
    "memory": "ResourceSettings(memory=…)",
}
"""Resources of Ray that are asked for otherwise, and how."""
_ACCELERATOR = "accelerator_type:"


def _table(value: Any, field: str, of: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise bad_value("RaySettings", field, value, of)
    return value


def _resources(value: Any, field: Any) -> dict[str, float]:
    for name in _table(value, "resources", 'amounts by name: {"licence": 1}'):
        instead = "ResourceSettings(accelerator=…)" if name.startswith(_ACCELERATOR) else _OWN.get(name)
        if instead is not None:
            raise SettingsError(
                f"RaySettings: resources has {name!r}", where=user_location(), fix=f"Write {instead}."
            )
        number("RaySettings", f"resources[{name!r}]", value[name], most=10**12)
    return {name: float(amount) for name, amount in value.items()}


def _labels(value: Any, field: Any) -> dict[str, str]:
    table = _table(value, "labels", 'values by name: {"ray.io/market-type": "on-demand"}')
    return {name: line("RaySettings", f"labels[{name!r}]", said) for name, said in table.items()}


def _variables(value: Any, field: Any) -> dict[str, str]:
    for name, said in _table(value, "env_vars", 'values by variable: {"HF_HOME": "/shared/hf"}').items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or not isinstance(said, str):
            raise bad_value("RaySettings", f"env_vars[{name!r}]", said, "text, of a name for a variable")
    return dict(value)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class RaySettings:
    """How Ray is asked for a step, beside its resources: ``settings={"ray": RaySettings(…)}``.

    The options of a target of Ray's have the same names, and count where a step says nothing.

    Parameters
    ----------
    resources
        Amounts of the cluster's own resources, as nodes were started with ``--resources``:
        ``{"licence": 1}``.
    labels
        Labels of the node that it runs on, ``{"ray.io/market-type": "on-demand"}``, as nodes were started
        with ``--labels``. A value may be one of Ray's label selectors: ``"!spot"``, ``"in(a, b)"``.
    env_vars
        Variables of its environment, beside those of the node.

    Raises
    ------
    SettingsError
        A field is unknown, or its value is invalid.
    """

    resources: Mapping[str, float] = attrs.field(factory=dict, converter=Told(_resources))
    labels: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_labels))
    env_vars: Mapping[str, str] = attrs.field(factory=dict, converter=Told(_variables))
    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("num_cpus", "entrypoint_num_cpus"), "ResourceSettings(cpu_count=…)"),
        **dict.fromkeys(("num_gpus", "entrypoint_num_gpus"), "ResourceSettings(gpu_count=…)"),
        **dict.fromkeys(("memory", "entrypoint_memory"), "ResourceSettings(memory=…)"),
        "accelerator_type": "ResourceSettings(accelerator=…)",
        "entrypoint_resources": "resources",
        **dict.fromkeys(("label_selector", "entrypoint_label_selector"), "labels"),
        "runtime_env": "env_vars; packages and files come from the environment and the project",
    }
