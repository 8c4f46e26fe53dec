"""What a step asks for: :class:`ResourceSettings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Union

import attrs

from upshift.errors import SettingsError, nearest, user_location
from upshift.model.checks import (
    MOST_BYTES,
    MOST_CPUS,
    MOST_DEVICES,
    MOST_NODES,
    Told,
    bad_value,
    number,
    refuse_unknown_fields,
    shown,
)
from upshift.model.settings.sizes import FORMS, format_size, meant_by, parse_size

if TYPE_CHECKING:
    from upshift.model.settings.accelerator import Accelerator, Wanted

VENDORS = ("nvidia", "amd", "intel", "habana", "neuron", "tpu")
SIZES = ("memory", "gpu_memory", "disk", "shared_memory")
"""The fields that are amounts of bytes."""
_AMOUNTS = ("cpu_count", "memory", "gpu_memory", "disk", "shared_memory")
"""The fields of which a step gets the larger of two values."""
LEAST_CPUS = 0.01
"""No container engine grants less."""
LEAST_GPU_MEMORY = 10**9
LEAST_MEMORY = 10**6
"""Bytes. No step needs less, and a smaller number without a unit was meant in another unit."""


def _counted(value: Any, field: str, *, least: int, most: int) -> int | None:
    if value is None:
        return None
    return number("ResourceSettings", field, value, least=least, most=most, whole=True)  # type: ignore[no-any-return]


def _nodes(value: Any, field: Any) -> int | tuple[int, int] | None:
    """A number, or the least and the most that will do; these as one number where they are the same."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _counted(value, field.name, least=1, most=MOST_NODES)
    if len(value) != 2:
        raise bad_value("ResourceSettings", field.name, value, "a number, or the least and the most: (2, 4)")
    least, most = (_counted(number, field.name, least=1, most=MOST_NODES) for number in value)
    if least is None or most is None or least > most:
        raise bad_value("ResourceSettings", field.name, value, "the least before the most: (2, 4)")
    return least if least == most else (least, most)


def _cpus(value: Any) -> float | None:
    if value is None:
        return None
    return number("ResourceSettings", "cpu_count", value, least=LEAST_CPUS, most=MOST_CPUS)  # type: ignore[no-any-return]


def _gpu_count(value: Any, field: Any) -> int | None:
    if isinstance(value, float) and 0 < value < float("inf") and value % 1:
        from upshift.model.settings.accelerator import WHOLE

        raise bad_value("ResourceSettings", field.name, value, f"a whole number. {WHOLE}")
    return _counted(value, field.name, least=0, most=MOST_DEVICES)


def _bytes(value: Any, field: Any) -> int | None:
    return _size(value, value, field.name)


def _at_least(value: Any, field: Any) -> int | None:
    """The memory of a GPU: ``"40GB"`` means at least that, as ``">=40GB"`` says."""
    amount = value.strip() if isinstance(value, str) else value
    if isinstance(amount, str) and amount[:1] in tuple("<>=≥≤"):
        least = amount.removeprefix(">=").removeprefix("≥")
        if least == amount:
            expected = 'the least that will do: "40GB", or ">=40GB", which means the same'
            raise bad_value("ResourceSettings", field.name, value, expected)
        amount = least
    return _size(amount, value, field.name)


def _size(amount: Any, written: Any, field: str) -> int | None:
    """Bytes of an amount, which the user wrote so."""
    if amount is None:
        return None
    try:
        size = parse_size(amount)
    except ValueError:
        size = 0
    gpu = field == "gpu_memory"
    if 0 < size < (LEAST_GPU_MEMORY if gpu else LEAST_MEMORY):
        more = 'a GPU has more: "40GB"' if gpu else "a step needs more"
        expected = f"at least {format_size(LEAST_GPU_MEMORY if gpu else LEAST_MEMORY)}: {more}"
        if str(amount).strip()[-1].isdigit():
            expected = f"{FORMS}; a number alone is bytes, of which {more}"
        raise bad_value("ResourceSettings", field, written, expected)
    if size <= 0:
        raise bad_value("ResourceSettings", field, written, FORMS, meant=meant_by(amount))
    if size > MOST_BYTES:
        raise bad_value("ResourceSettings", field, written, f"at most {format_size(MOST_BYTES)}")
    return size


def _accelerator(value: Any) -> str | tuple[str, ...] | None:
    """One text, or several, each written in the one way that it is compared in."""
    if value is None:
        return None
    from upshift.model.settings.accelerator import FORMS as KINDS
    from upshift.model.settings.accelerator import Accelerator

    several = isinstance(value, Sequence) and not isinstance(value, str)
    texts = list(value) if several else [value]
    read = []
    for text in texts:
        owner = f"accelerator={shown(text)}"
        if not isinstance(text, str):
            raise bad_value("ResourceSettings", "accelerator", value, KINDS)
        try:
            read.append(str(Accelerator.parse(text)))
        except SettingsError as error:
            raise SettingsError(
                f"ResourceSettings: {owner}: {error.what}", where=error.where, fix=error.fix
            ) from None
        except ValueError as error:
            raise bad_value("ResourceSettings", "accelerator", text, str(error)) from None
    if not read or len(set(read)) < len(read):
        raise bad_value("ResourceSettings", "accelerator", value, f"each alternative once: {KINDS}")
    return tuple(read) if len(read) > 1 else read[0]


def _vendor(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in VENDORS:
        close = nearest(value, VENDORS) if isinstance(value, str) else None
        expected = "one of " + ", ".join(VENDORS) + (f"; {close!r} perhaps" if close else "")
        raise bad_value("ResourceSettings", "gpu_vendor", value, expected)
    return value.lower()


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class ResourceSettings:
    """What a step asks for, per node. A field that is not set asks for nothing; 0 GPUs ask for none.

    Parameters
    ----------
    cpu_count
        CPUs, a fraction allowed.
    gpu_count
        Whole GPUs (or other accelerators), or slices of them. 0 hides every device from the step.
        Not set, ``accelerator``, ``gpu_memory`` or ``gpu_vendor`` ask for one.
    memory
        Host memory: ``"16GB"``, ``"8GiB"``, or bytes.
    accelerator
        Kind, or kind and count: ``"H100:8"``; a MIG slice: ``"A100-80GB/1g.10gb:2"``; a TPU slice:
        ``"tpu-v5e-8"``, with its topology ``"tpu-v5e-8:2x4"``; or a list of these, the best first.
        AWS's are counted in devices: ``"Trainium:16"`` are 16 devices with 32 NeuronCores.
    gpu_memory
        Memory of each GPU, or each slice, at least: ``"40GB"``, or ``">=40GB"``.
    gpu_vendor
        ``"nvidia"``, ``"amd"``, ``"intel"``, ``"habana"``, ``"neuron"`` or ``"tpu"``.
    num_nodes
        Nodes, each with all of the above; ``(2, 4)``: at least 2, and up to 4 where there are so many.
    disk
        Scratch space.
    shared_memory
        Size of ``/dev/shm``.

    Raises
    ------
    SettingsError
        A field is unknown, its value is invalid, or two fields contradict each other.
    """

    cpu_count: float | None = attrs.field(default=None, converter=_cpus)
    gpu_count: int | None = attrs.field(default=None, converter=Told(_gpu_count))
    memory: int | None = attrs.field(default=None, converter=Told(_bytes))
    accelerator: Union[str, tuple[str, ...], None] = attrs.field(default=None, converter=_accelerator)
    gpu_memory: int | None = attrs.field(default=None, converter=Told(_at_least))
    gpu_vendor: str | None = attrs.field(default=None, converter=_vendor)
    num_nodes: Union[int, tuple[int, int], None] = attrs.field(default=None, converter=Told(_nodes))
    disk: int | None = attrs.field(default=None, converter=Told(_bytes))
    shared_memory: int | None = attrs.field(default=None, converter=Told(_bytes))
    _elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("cpu", "cpus"), "cpu_count"),
        **dict.fromkeys(("gpu", "gpus"), "gpu_count"),
        **dict.fromkeys(("nodes", "node_count", "num_parallel"), "num_nodes"),
        **dict.fromkeys(("shm", "shm_size"), "shared_memory"),
        "ram": "memory",
        "trainium": 'accelerator="Trainium:16", in devices',
        "inferentia": 'accelerator="Inferentia:16", in devices',
        "tpu": 'accelerator="tpu-v5e-8"',
    }
    _implied: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.accelerator is None and self.gpu_memory is None and self.gpu_vendor is None:
            return
        named = self.named
        if any(one.count for one in named):
            named = self._count(named)
        elif self.gpu_count is None:
            self._imply(1)
        for accelerator in named:
            self._check(accelerator)

    def _count(self, named: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
        """Let each alternative say its count, where one does; the preferred one's becomes ``gpu_count``."""
        said = [one.count for one in named]
        if self.gpu_count == 0 or (all(said) and self.gpu_count not in (None, said[0])):
            raise bad_value(
                "ResourceSettings",
                "gpu_count",
                self.gpu_count,
                f"{said[0] or 1}, as in accelerator={self.accelerator!r}, or only one of the two",
            )
        named = tuple(one if one.count else one.counted(self.gpu_count or 1) for one in named)
        texts = tuple(map(str, named))
        object.__setattr__(self, "accelerator", texts if len(texts) > 1 else texts[0])
        self._imply(named[0].count or 1)
        return named

    def _imply(self, count: int) -> None:
        """The number of devices, where ``gpu_count`` does not say it."""
        object.__setattr__(self, "gpu_count", count)
        object.__setattr__(self, "_implied", True)

    def _check(self, accelerator: Accelerator) -> None:
        """Refuse what contradicts the kind that is named."""
        from upshift.model.settings.accelerator import partition_memory
        from upshift.model.settings.kinds import most_memory

        kind, name = accelerator.kind, str(accelerator.counted(None))
        if kind is None:
            return
        if self.gpu_vendor not in (None, kind.vendor):
            raise SettingsError(
                f"ResourceSettings: accelerator={self.accelerator!r} contradicts "
                f"gpu_vendor={self.gpu_vendor!r}",
                where=user_location(),
                why=f"{kind.name} is of gpu_vendor {kind.vendor!r}.",
                fix="Leave gpu_vendor out: the kind implies it.",
            )
        slices = kind.slices
        if slices and (accelerator.count or 0) > slices.per_machine and self.most_nodes > 1:
            raise SettingsError(
                f"ResourceSettings: accelerator={self.accelerator!r} contradicts num_nodes={self.num_nodes}",
                where=user_location(),
                why=f"A machine has at most {slices.per_machine} chips of {kind.name}: the slice is several.",
                fix="Leave num_nodes out.",
            )
        most = partition_memory(accelerator.partition) if accelerator.partition else most_memory(kind)
        if self.gpu_memory is not None and most is not None and self.gpu_memory > most:
            raise SettingsError(
                f"ResourceSettings: accelerator={self.accelerator!r} contradicts gpu_memory of "
                f"{format_size(self.gpu_memory)}",
                where=user_location(),
                why=f"{name} has {format_size(most)}.",
                fix="Ask for a larger kind, or for gpu_memory alone.",
            )

    @property
    def named(self) -> tuple[Accelerator, ...]:
        """What ``accelerator`` says, alternative by alternative."""
        if self.accelerator is None:
            return ()
        from upshift.model.settings.accelerator import Accelerator

        texts = (self.accelerator,) if isinstance(self.accelerator, str) else self.accelerator
        return tuple(map(Accelerator.parse, texts))

    @property
    def least_nodes(self) -> int:
        """How many nodes it runs on at least."""
        return self.num_nodes[0] if isinstance(self.num_nodes, tuple) else self.num_nodes or 1

    @property
    def most_nodes(self) -> int:
        """How many nodes it runs on at most."""
        return self.num_nodes[1] if isinstance(self.num_nodes, tuple) else self.num_nodes or 1

    @property
    def is_elastic(self) -> bool:
        """Whether several numbers of nodes will do."""
        return isinstance(self.num_nodes, tuple)

    @property
    def alternatives(self) -> tuple[Wanted, ...]:
        """What would satisfy the request for accelerators, the best first; empty: it says nothing of them."""
        if self.gpu_count is None:
            return ()
        from upshift.model.settings.accelerator import Wanted

        if self.gpu_count == 0:
            return (Wanted(count=0),)
        return tuple(
            Wanted(
                count=one.count or self.gpu_count,
                name=one.name,
                kind=one.kind,
                vendor=one.kind.vendor if one.kind else self.gpu_vendor,
                memory=self.gpu_memory,
                partition=one.partition,
                topology=one.topology,
            )
            for one in self.named
        ) or (Wanted(count=self.gpu_count, vendor=self.gpu_vendor, memory=self.gpu_memory),)

    @property
    def implied_count(self) -> int | None:
        """The devices that are asked for where nothing says how many; None: something does."""
        return None if not self._implied or any(one.count for one in self.named) else self.gpu_count

    def explicit(self) -> dict[str, Any]:
        """The fields that were set, by name; not the count that the others imply."""
        said = {f.name: getattr(self, f.name) for f in attrs.fields(ResourceSettings) if f.init}
        return {
            name: value
            for name, value in said.items()
            if value is not None and not (name == "gpu_count" and self._implied)
        }

    def over(self, outer: ResourceSettings) -> ResourceSettings:
        """These settings, and ``outer``'s where these say nothing.

        Kind and count are two values: ``"H100"`` over ``"A100:8"`` are eight H100. A step that names
        a device where ``outer`` says that there shall be none gets one.
        """
        if self == _NOTHING or outer == _NOTHING:  # most steps: the catalogue is not read for them
            return outer if self == _NOTHING else self
        said, elsewhere = self.explicit(), outer.explicit()
        merged = elsewhere | said
        if "accelerator" in said:
            if any(one.kind for one in self.named):
                merged.pop("gpu_vendor", None)  # the kind says whose it is
                merged |= {"gpu_vendor": said["gpu_vendor"]} if "gpu_vendor" in said else {}
            if any(one.count for one in self.named):
                merged.pop("gpu_count", None)
                merged |= {"gpu_count": said["gpu_count"]} if "gpu_count" in said else {}
            elif "gpu_count" not in said and any(one.count for one in outer.named):
                merged["gpu_count"] = outer.gpu_count
        elif "gpu_count" in said and outer.named:
            merged["accelerator"] = _texts([one.counted(None) for one in outer.named])
        if "gpu_count" not in said and self.gpu_count and outer.gpu_count == 0:
            merged["gpu_count"] = self.gpu_count
        return ResourceSettings(**merged)

    def beside(self, other: ResourceSettings) -> ResourceSettings:
        """The larger of each value that either of the two sets, in whichever order."""
        if self == _NOTHING or other == _NOTHING:
            return other if self == _NOTHING else self
        said = (self.explicit(), other.explicit())
        merged: dict[str, Any] = {}
        for field in _AMOUNTS:
            values = [fields[field] for fields in said if field in fields]
            if values:
                merged[field] = max(values)
        if any("num_nodes" in fields for fields in said):
            merged["num_nodes"] = (
                max(self.least_nodes, other.least_nodes),
                max(self.most_nodes, other.most_nodes),
            )
        vendors = {fields["gpu_vendor"] for fields in said if "gpu_vendor" in fields}
        if len(vendors) > 1:
            raise _twice("gpu_vendor", *(fields["gpu_vendor"] for fields in said))
        if vendors:
            merged["gpu_vendor"] = vendors.pop()
        counts = [fields["gpu_count"] for fields in said if "gpu_count" in fields]
        least = max(counts, default=None)
        named = _both(self, other)
        if least is not None and all(a.count is None or a.count <= least for a in named):
            named = [a.counted(None) for a in named]
            merged["gpu_count"] = least
        elif least is not None:
            named = [a.counted(max(a.count or 0, least)) for a in named]
        if named:
            merged["accelerator"] = _texts(named)
        return ResourceSettings(**merged)

    @classmethod
    def from_value(cls, value: ResourceSettings | Mapping[str, Any]) -> ResourceSettings:
        """Settings, or a mapping of their fields."""
        return value if isinstance(value, ResourceSettings) else cls(**value)


_NOTHING = ResourceSettings()


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
