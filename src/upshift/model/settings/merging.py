"""How two requests become one: the same rules whatever decorator or backend a value comes from.

``over``: inner settings where they are set, outer ones elsewhere. ``beside``: of two that stand on
one step, the larger of each value that is set. A value that is only implied (the one device that
``accelerator="H100"`` asks for) never counts against one that was said, and 0 is a value.
"""

from __future__ import annotations

from typing import Any

from upshift.errors import SettingsError, user_location
from upshift.model.checks import shown
from upshift.model.settings.accelerator import Accelerator
from upshift.model.settings.resources import ResourceSettings

_AMOUNTS = ("cpu_count", "memory", "gpu_memory", "num_nodes", "disk", "shared_memory")


def over(inner: ResourceSettings, outer: ResourceSettings) -> ResourceSettings:
    """``inner`` where it is set, ``outer`` elsewhere.

    Raises
    ------
    SettingsError
        What is left of the two contradicts itself.
    """
    said, elsewhere = inner.explicit(), outer.explicit()
    merged = elsewhere | said
    if "accelerator" in said:
        if any(one.kind for one in inner.named):
            merged.pop("gpu_vendor", None)  # the kind says whose it is
            merged |= {"gpu_vendor": said["gpu_vendor"]} if "gpu_vendor" in said else {}
        if any(one.count for one in inner.named):
            merged.pop("gpu_count", None)
            merged |= {"gpu_count": said["gpu_count"]} if "gpu_count" in said else {}
        elif "gpu_count" not in said and any(one.count for one in outer.named):
            merged["gpu_count"] = outer.gpu_count
    elif "gpu_count" in said and outer.named:
        merged["accelerator"] = _texts([one.counted(None) for one in outer.named])
    if "gpu_count" not in said and inner.gpu_count and outer.gpu_count == 0:
        merged["gpu_count"] = inner.gpu_count
    return ResourceSettings(**merged)


def beside(one: ResourceSettings, other: ResourceSettings) -> ResourceSettings:
    """The larger of each value that either sets; of two kinds the one that meets both.

    Raises
    ------
    SettingsError
        They name kinds or vendors of which no device can be both.
    """
    said = (one.explicit(), other.explicit())
    merged: dict[str, Any] = {}
    for field in _AMOUNTS:
        values = [fields[field] for fields in said if field in fields]
        if values:
            merged[field] = max(values)
    vendors = {fields["gpu_vendor"] for fields in said if "gpu_vendor" in fields}
    if len(vendors) > 1:
        raise _twice("gpu_vendor", *(fields["gpu_vendor"] for fields in said))
    if vendors:
        merged["gpu_vendor"] = vendors.pop()
    counts = [fields["gpu_count"] for fields in said if "gpu_count" in fields]
    least = max(counts, default=None)
    named = _both(one, other)
    if least is not None and all(a.count is None or a.count <= least for a in named):
        named = [a.counted(None) for a in named]
        merged["gpu_count"] = least
    elif least is not None:
        named = [a.counted(max(a.count or 0, least)) for a in named]
    if named:
        merged["accelerator"] = _texts(named)
    return ResourceSettings(**merged)


def _both(one: ResourceSettings, other: ResourceSettings) -> list[Accelerator]:
    """The alternatives that meet both requests, in their order."""
    if not one.named or not other.named:
        return list(one.named or other.named)
    pairs = zip(one.named, other.named, strict=False)
    narrowed = [a.narrower(b) for a, b in pairs]
    found = [a for a in narrowed if a is not None]
    if len({len(one.named), len(other.named), len(found)}) > 1:
        raise _twice("accelerator", one.accelerator, other.accelerator)
    return found


def _texts(accelerators: list[Accelerator]) -> str | tuple[str, ...]:
    texts = tuple(map(str, accelerators))
    return texts if len(texts) > 1 else texts[0]


def _twice(field: str, one: Any, other: Any) -> SettingsError:
    return SettingsError(
        f"{field} is set twice on one step: {shown(one)} and {shown(other)}",
        where=user_location(),
        why="No device is both.",
        fix=f"Set {field} once.",
    )
