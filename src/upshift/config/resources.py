"""What a step asks for: :class:`ResourceSettings`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from upshift.config.settings import bad_value, refuse_unknown_fields
from upshift.config.sizes import FORMS, parse_size

VENDORS = ("nvidia", "amd", "intel", "habana", "neuron", "tpu")
_LEAST_BARE = 1024**2
"""Bytes. A smaller number without a unit was meant in another unit."""
_ACCELERATOR = re.compile(r"([A-Za-z][A-Za-z0-9._-]*)(?::([1-9]\d*))?")


def _count(*, minimum: int) -> Any:
    def convert(value: Any, field: Any) -> int | None:
        if value is None:
            return None
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
        if not whole or value < minimum:
            raise bad_value("ResourceSettings", field.name, value, f"a whole number of at least {minimum}")
        return int(value)

    return attrs.Converter(convert, takes_field=True)


def _cpus(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise bad_value("ResourceSettings", "cpu_count", value, "a number above 0, for example 4 or 0.5")
    return int(value) if value == int(value) else float(value)


def _bytes(value: Any, field: Any) -> int | None:
    if value is None:
        return None
    try:
        size = parse_size(value)
    except ValueError:
        size = 0
    if size <= 0:
        raise bad_value("ResourceSettings", field.name, value, FORMS)
    if size < _LEAST_BARE and str(value).strip()[-1].isdigit():
        expected = f"{FORMS}; a number alone is bytes, of which a step needs more"
        raise bad_value("ResourceSettings", field.name, value, expected)
    return size


def _accelerator(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _ACCELERATOR.fullmatch(value):
        raise bad_value(
            "ResourceSettings", "accelerator", value, 'a kind, or kind:count, for example "H100:8"'
        )
    return value


def _vendor(value: Any) -> str | None:
    if value is None:
        return None
    if value not in VENDORS:
        raise bad_value("ResourceSettings", "gpu_vendor", value, "one of " + ", ".join(VENDORS))
    return str(value)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class ResourceSettings:
    """What a step asks for, per node. A field that is not set asks for nothing; 0 GPUs ask for none.

    Parameters
    ----------
    cpu_count
        CPUs, a fraction allowed.
    gpu_count
        Whole GPUs (or other accelerators). 0 hides every device from the step.
    memory
        Host memory: ``"16GB"``, ``"8GiB"``, or bytes.
    accelerator
        Kind, or kind and count: ``"H100:8"``.
    gpu_memory
        Memory of each GPU, at least.
    gpu_vendor
        ``"nvidia"``, ``"amd"``, ``"intel"``, ``"habana"``, ``"neuron"`` or ``"tpu"``.
    num_nodes
        Nodes, each with all of the above.
    disk
        Scratch space.
    shared_memory
        Size of ``/dev/shm``.

    Raises
    ------
    SettingsError
        A field is unknown, or its value makes no sense.
    """

    cpu_count: float | None = attrs.field(default=None, converter=_cpus)
    gpu_count: int | None = attrs.field(default=None, converter=_count(minimum=0))
    memory: int | None = attrs.field(default=None, converter=attrs.Converter(_bytes, takes_field=True))
    accelerator: str | None = attrs.field(default=None, converter=_accelerator)
    gpu_memory: int | None = attrs.field(default=None, converter=attrs.Converter(_bytes, takes_field=True))
    gpu_vendor: str | None = attrs.field(default=None, converter=_vendor)
    num_nodes: int | None = attrs.field(default=None, converter=_count(minimum=1))
    disk: int | None = attrs.field(default=None, converter=attrs.Converter(_bytes, takes_field=True))
    shared_memory: int | None = attrs.field(default=None, converter=attrs.Converter(_bytes, takes_field=True))

    def __attrs_post_init__(self) -> None:
        named = self.accelerator and _ACCELERATOR.fullmatch(self.accelerator)
        count = int(named[2]) if named and named[2] else None
        if count is not None and self.gpu_count not in (None, count):
            raise bad_value(
                "ResourceSettings",
                "gpu_count",
                self.gpu_count,
                f"{count}, as in accelerator={self.accelerator!r}, or only one of the two",
            )
        if named and self.gpu_count is None:
            object.__setattr__(self, "gpu_count", count or 1)

    @property
    def accelerator_kind(self) -> str | None:
        """``"H100"`` of ``"H100:8"``."""
        return self.accelerator.partition(":")[0] if self.accelerator else None

    def explicit(self) -> dict[str, Any]:
        """The fields that were set, by name."""
        return {k: v for k, v in attrs.asdict(self).items() if v is not None}

    def over(self, outer: ResourceSettings) -> ResourceSettings:
        """These settings where they are set, ``outer``'s elsewhere."""
        merged = outer.explicit() | self.explicit()
        if "gpu_count" in self.explicit() and self.accelerator is None and "accelerator" in merged:
            merged["accelerator"] = outer.accelerator_kind
        return ResourceSettings(**merged)

    @classmethod
    def from_value(cls, value: ResourceSettings | Mapping[str, Any]) -> ResourceSettings:
        """Settings, or a mapping of their fields."""
        return value if isinstance(value, ResourceSettings) else cls(**value)
