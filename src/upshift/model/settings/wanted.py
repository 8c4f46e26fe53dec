"""What a request for accelerators comes down to: an ordered list of what would satisfy it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from upshift.model.settings.catalogue import Kind
from upshift.model.settings.kinds import kind_named, kind_of_model
from upshift.model.settings.sizes import format_size

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
