"""``accelerator="H100:8"``: how a kind, a slice of it and a count are written, and read.

::

    H100:8              eight of them; without a count one, or as many as gpu_count says
    A100-80GB/1g.10gb:2 two MIG slices of this profile
    tpu-v5e-8:2x4       a TPU slice, named as Google does, and its topology
    other:B900:8        a kind, or a MIG profile of one, that Upshift does not know

What a request comes down to is an ordered list of :class:`Wanted`, each of which would satisfy it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from upshift.errors import SettingsError, nearest, user_location
from upshift.model.checks import MOST_DEVICES
from upshift.model.settings.kinds import KINDS, Kind, kind_named, kind_of_model, members
from upshift.model.settings.sizes import format_size

FORMS = (
    'a kind and a count such as "H100:8", a MIG slice such as "A100-80GB/1g.10gb:2", a TPU slice such as '
    '"tpu-v5e-8" or "tpu-v5e-8:2x4", or a list of these in order of preference'
)
WHOLE = (
    "Whole devices are handed out, and slices where a device has been cut with MIG: "
    'accelerator="A100-80GB/1g.10gb" asks for one of 10 GB'
)
"""What to say of half a GPU."""
_OTHER = "other:"
_PARTS = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9 ._-]*?)(?:/(?P<partition>[A-Za-z0-9.+-]+))?"
    r"(?::(?P<count>[1-9]\d{0,5})|:(?P<topology>[1-9]\d*(?:x[1-9]\d*)+))?"
)
_SIZED = re.compile(r"(.+)-([1-9]\d{0,5})")
_PROFILE = re.compile(r"[1-9]g\.\d+gb([+-][a-z.]+)*")
_SPACED = re.compile(r"\s*([:/])\s*")
_ANY = re.compile(r"(gpus?|cuda|any)(?::(?P<count>\d+))?", re.IGNORECASE)
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{4,}(-[0-9a-f]+)*(:\d+)?", re.IGNORECASE)
_REVERSED = re.compile(r"(\d+)\s*[:xX*]\s*([A-Za-z].*)|([A-Za-z].*?)\s*[xX*]\s*(\d+)")


@attrs.frozen
class Accelerator:
    """One kind of accelerator that a request names.

    Parameters
    ----------
    name
        The kind's name, or what the user calls one that Upshift does not know.
    kind
        None: not known.
    partition
        MIG profile; None: whole devices.
    count
        How many, where the text says it; of a TPU slice its chips.
    topology
        Of a TPU slice: ``"2x4"``.
    """

    name: str
    kind: Kind | None = None
    partition: str | None = None
    count: int | None = None
    topology: str | None = None

    @classmethod
    def parse(cls, text: str) -> Accelerator:
        """Read a kind, or a slice of one, with its count.

        Raises
        ------
        SettingsError
            No kind is called so; the nearest names are shown.
        ValueError
            It has another form; the message is what was expected.
        """
        text = _SPACED.sub(r"\1", text.strip())
        other = text.startswith(_OTHER)
        found = _PARTS.fullmatch(text.removeprefix(_OTHER))
        _refuse_no_kind(text)
        if found is None:
            _refuse_reversed(text)
            raise ValueError(_expected(text))
        name, partition = found["name"].strip(), found["partition"]
        count = int(found["count"]) if found["count"] else None
        try:
            kind: Kind | None = kind_named(name)
        except SettingsError as unknown:
            kind, chips = _slice(name)
            if kind is not None and count is not None:
                raise ValueError(f"{name!r} alone: it is one slice, named for its size") from None
            if kind is None and not other:
                _refuse_reversed(name)
                instead = f"One that Upshift does not know is asked for as {_OTHER + text!r}."
                raise SettingsError(
                    unknown.what, where=unknown.where, fix=f"{unknown.fix} {instead}"
                ) from None
            count = chips if kind is not None else count
        if partition is not None:
            _check_partition(None if other else kind, partition)
        if found["topology"]:
            count = _check_topology(name, kind, found["topology"], count)
        if (count or 0) > MOST_DEVICES:
            raise ValueError(f"at most {MOST_DEVICES:,} of them")
        return cls(kind.name if kind else name, kind, partition, count, found["topology"])

    def counted(self, count: int | None) -> Accelerator:
        """As many of it; None: however many are asked for elsewhere."""
        topology = self.topology if count == self.count else None
        return attrs.evolve(self, count=count, topology=topology)

    def narrower(self, other: Accelerator) -> Accelerator | None:
        """The one of the two that the other is content with too, and the larger count; None: neither is."""
        if self.partition != other.partition:
            return None
        count = max((c for c in (self.count, other.count) if c is not None), default=None)
        topologies = {a.topology for a in (self, other) if a.topology and a.count == count}
        if self.name == other.name or (self.kind and other.kind and self.kind.meets(other.kind)):
            inner = self
        elif self.kind and other.kind and other.kind.meets(self.kind):
            inner = other
        else:
            return None
        if len(topologies) > 1:
            return None
        return attrs.evolve(inner, count=count, topology=topologies.pop() if topologies else None)

    def __str__(self) -> str:
        """The text that is read as this."""
        known = self.kind and (self.partition is None or self.partition in _profiles(self.kind))
        name = self.name if known else _OTHER + self.name
        if self.kind and self.kind.slices and self.count is not None:
            size = f"{name}-{self.count * self.kind.slices.cores}"
            return f"{size}:{self.topology}" if self.topology else size
        slice_of = f"/{self.partition}" if self.partition else ""
        return f"{name}{slice_of}" + (f":{self.count}" if self.count is not None else "")


def _slice(text: str) -> tuple[Kind | None, int | None]:
    """The generation and the chips of a TPU slice, from its name."""
    sized = _SIZED.fullmatch(text)
    if sized is None:
        return None, None
    try:
        kind = kind_named(sized[1])
    except SettingsError:
        return None, None
    if kind.slices is None:
        return None, None
    chips, left = divmod(int(sized[2]), kind.slices.cores)
    if left:
        raise ValueError(
            f"an even number: the name of a {kind.name} slice counts TensorCores, of which a chip has "
            f"{kind.slices.cores}"
        )
    return kind, chips


def _check_partition(kind: Kind | None, profile: str) -> None:
    if kind is None:
        if not _PROFILE.fullmatch(profile):
            raise ValueError('a MIG profile after the slash, for example "1g.10gb"')
        return
    profiles = _profiles(kind)
    if not profiles:
        able = ", ".join(
            k.name for k in KINDS if k.partitions and k.name in ("A100-80GB", "H100-80GB", "H200")
        )
        raise ValueError(f"whole devices: {kind.name} has no MIG, which {able} and others have")
    if profile not in profiles:
        close = nearest(profile, profiles)
        hint = f"{close!r} perhaps: " if close else ""
        other = f"{_OTHER}{kind.name}/{profile}"
        raise ValueError(
            f"{hint}the MIG profiles of {kind.name} are {', '.join(profiles)}; one that its driver names "
            f"otherwise is {other!r}"
        )


def _profiles(kind: Kind) -> list[str]:
    return list(dict.fromkeys(p for member in members(kind) for p in member.partitions))


def _check_topology(name: str, kind: Kind | None, topology: str, chips: int | None) -> int:
    """The chips of a TPU slice, if its topology fits it."""
    if kind is None or kind.slices is None:
        raise ValueError("a count after the colon; topologies such as 2x4 are of TPU slices")
    sides = [int(side) for side in topology.split("x")]
    if len(sides) != kind.slices.dimensions:
        form = "2x4" if kind.slices.dimensions == 2 else "2x2x1"
        raise ValueError(f"a topology of {kind.slices.dimensions} dimensions for {kind.name}, such as {form}")
    if chips is not None and math.prod(sides) != chips:
        raise ValueError(
            f"a topology of {chips} chips, which is what {name!r} has; {topology} has {math.prod(sides)}"
        )
    return math.prod(sides)


def _expected(text: str) -> str:
    """What was expected, for a text that has another form."""
    if re.search(r"[|,]", text):
        return f"a list of alternatives: {[part.strip() for part in re.split('[|,]', text)]!r}"
    if re.fullmatch(r".+:\d*\.\d+", text):
        return f"a whole count. {WHOLE}"
    if found := re.fullmatch(r"(.+):([1-9]g\.\d+gb\S*?)(:\d+)?", text):
        return f"the MIG profile after a slash: {f'{found[1]}/{found[2]}{found[3] or str()}'!r}"
    if text.endswith(":") and text != _OTHER:
        return f"a count after the colon, or no colon: {text + '8'!r}, {text[:-1]!r}"
    if re.fullmatch(r".+:0+", text):
        return "a count of at least 1; gpu_count=0 asks for none"
    found = _PARTS.fullmatch(text.removeprefix(_OTHER).rpartition(":")[0])
    if found and not found["count"]:
        name = text.rpartition(":")[0]
        return f"a count after the colon, or no colon: {f'{name}:8'!r}, {name!r}"
    return FORMS


def _refuse_no_kind(text: str) -> None:
    """Say how any GPU is asked for, and that one device is not."""
    found = _ANY.fullmatch(text)
    if found is not None:
        fix = f"Any GPU: gpu_count={max(1, int(found['count'] or 1))}."
    elif _UUID.fullmatch(text):
        fix = "One device cannot be named; CUDA_VISIBLE_DEVICES in the shell limits the run."
    else:
        return
    raise SettingsError(f"no accelerator is called {text!r}", where=user_location(), fix=fix)


def _refuse_reversed(text: str) -> None:
    """Say how ``8xH100`` and ``H100x8`` are written."""
    found = _REVERSED.fullmatch(text)
    if found is None:
        return
    name, count = (found[2], found[1]) if found[1] else (found[3], found[4])
    with contextlib.suppress(SettingsError):
        kind = kind_named(name)
        raise ValueError(f"the kind first, then a colon and the count: {f'{kind.name}:{count}'!r}")


_SORTS = {
    "nvidia": "NVIDIA GPU",
    "amd": "AMD GPU",
    "intel": "Intel GPU",
    "habana": "Gaudi",
    "neuron": "Neuron device",
    "tpu": "TPU chip",
}


@attrs.frozen(kw_only=True)
class Wanted:
    """One way to satisfy a request: so many devices of this sort on each node. None: any.

    Parameters
    ----------
    count
        Devices, or partitions of devices, on each node. 0: none may be seen.
    name
        The kind's name, or, of one that Upshift does not know, what the user calls it.
    kind
        In the catalogue; a family stands for all of its members.
    vendor
        As in :data:`upshift.model.settings.resources.VENDORS`.
    memory
        Bytes of each device, or of each partition, at least.
    partition
        MIG profile: ``"1g.10gb"``. None: whole devices.
    topology
        Of a TPU slice: ``"2x4"``.
    """

    count: int
    name: str | None = None
    kind: Kind | None = None
    vendor: str | None = None
    memory: int | None = None
    partition: str | None = None
    topology: str | None = None

    def admits(
        self,
        *,
        vendor: str | None,
        model: str | None = None,
        kind: str | None = None,
        memory: int | None = None,
        partition: str | None = None,
    ) -> bool:
        """Whether a device, or a partition of one, is of this sort.

        Parameters
        ----------
        vendor, model, kind, memory, partition
            As in :class:`upshift.model.spec.hardware.Device`. Memory may be a few percent below the data
            sheet's, since drivers keep some for themselves; a device that does not tell how much it
            has counts as its kind.
        """
        if (self.vendor is not None and vendor != self.vendor) or partition != self.partition:
            return False
        known = kind_named(kind) if kind else kind_of_model(model)
        if self.kind is not None and (known is None or not known.meets(self.kind)):
            return False
        if self.kind is None and self.name is not None and not _is_called(self.name, model):
            return False
        if self.memory is None:
            return True
        nominal = partition_memory(partition) if partition else known and known.memory
        return max(memory or 0, nominal or 0) >= self.memory

    def __str__(self) -> str:
        """``8 × H100, ≥ 40 GB each``; of a TPU slice ``tpu-v5e-8 (2x4)``."""
        each = f", ≥ {format_size(self.memory)}" if self.memory is not None else ""
        each += " each" if each and self.count > 1 else ""
        if self.kind is not None and self.kind.slices is not None:
            cores = self.kind.slices.cores
            shape = self.topology or (f"{self.count} chips" if cores > 1 else "")
            return f"{self.name}-{self.count * cores}" + (f" ({shape})" if shape else "") + each
        what = self.name or _SORTS.get(self.vendor or "", "GPU")
        what += f"/{self.partition}" if self.partition else ""
        return f"{self.count} × {what}{each}"

    def as_json(self) -> dict[str, Any]:
        """Every field by name, null where it is of no matter; the kind by its name."""
        return {f.name: getattr(self, f.name) for f in attrs.fields(Wanted) if f.name != "kind"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wanted:
        """The inverse of :meth:`as_json`."""
        return cls(**data, kind=kind_of_model(data["name"]))


def partition_memory(profile: str) -> int | None:
    """Bytes of a MIG profile: 10 GB of ``1g.10gb``."""
    found = re.match(r"\d+g\.(\d+)gb", profile)
    return int(found[1]) * 10**9 if found else None


def _is_called(name: str, model: str | None) -> bool:
    """Whether a driver's name of a device has the words that a user calls it by."""
    words = re.findall(r"[a-z0-9.]+", (model or "").lower())
    return set(re.findall(r"[a-z0-9.]+", name.lower())) <= set(words)
