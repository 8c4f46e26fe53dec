"""The accelerators that Upshift knows by name, as dated data.

Names are those that people, schedulers and clouds use. Memory is what the vendor's data sheet says,
in powers of 1000 as it does: what a driver reports differs by a few percent either way. An
accelerator that is not here can be asked for as ``other:NAME``.

Read in November 2026 from

* NVIDIA: data sheets of each product; compute capabilities from
  https://developer.nvidia.com/cuda-gpus and https://developer.nvidia.com/cuda/gpus/legacy; MIG
  profiles from https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html;
  names as NVML gives them from the table of devices in the driver's README (appendix A)
* AMD: https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
* AWS: https://awsdocs-neuron.readthedocs-hosted.com, "Neuron hardware"
* Google: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and, for topologies,
  https://cloud.google.com/kubernetes-engine/docs/concepts/tpus
* Intel: data sheets of Max, Flex and Gaudi
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

READ = "2026-11"
"""When the table was checked."""


@attrs.frozen(kw_only=True)
class Slices:
    """How Google hands out a generation of TPUs: as slices, named for their size.

    Parameters
    ----------
    cores
        TensorCores of a chip that its slices' names count: ``v4-8`` has 4 chips, ``v5e-8`` has 8.
    per_machine
        The most chips on one machine; a larger slice spans several.
    dimensions
        Of a topology: 2 (``2x4``) or 3 (``2x2x1``).
    """

    cores: int
    per_machine: int
    dimensions: int


@attrs.frozen(kw_only=True)
class Kind:
    """A kind of accelerator, or a family of kinds.

    Parameters
    ----------
    name
        ``"A100-80GB"``.
    vendor
        As in :data:`upshift.config.resources.VENDORS`.
    memory
        Bytes on one device, from the data sheet. None: a family whose members differ.
    capability
        NVIDIA's compute capability, ``"9.0"``; AMD's architecture, ``"gfx942"``. None: has none.
    families
        Names of the families that it belongs to, the closest first: who asks for ``"A100"`` is
        content with an ``"A100-80GB"``.
    aliases
        Other spellings: the driver's, the clouds', people's. Case, spaces and dashes do not count,
        nor does a vendor's or brand's name.
    partitions
        MIG profiles.
    cores
        NeuronCores on one device.
    slices
        Of a TPU.
    """

    name: str
    vendor: str
    memory: int | None = None
    capability: str | None = None
    families: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cores: int | None = None
    slices: Slices | None = None

    def meets(self, asked: Kind) -> bool:
        """Whether this is what who asks for ``asked`` wants: the kind itself, or one of its family."""
        return asked.name == self.name or asked.name in self.families


def _gb(amount: int | None) -> int | None:
    return None if amount is None else amount * 10**9


def _nvidia(
    name: str,
    gigabytes: int | None,
    capability: str,
    *aliases: str,
    of: Iterable[str] = (),
    mig: str = "",
) -> Kind:
    return Kind(
        name=name,
        vendor="nvidia",
        memory=_gb(gigabytes),
        capability=capability,
        aliases=aliases,
        families=tuple(of),
        partitions=tuple(mig.split()),
    )


def _amd(name: str, gigabytes: int, architecture: str, *aliases: str) -> Kind:
    return Kind(name=name, vendor="amd", memory=_gb(gigabytes), capability=architecture, aliases=aliases)


def _plain(vendor: str, name: str, gigabytes: int, *aliases: str, cores: int | None = None) -> Kind:
    return Kind(name=name, vendor=vendor, memory=_gb(gigabytes), aliases=aliases, cores=cores)


def _tpu(name: str, gigabytes: int, *aliases: str, cores: int, per_machine: int, dimensions: int) -> Kind:
    slices = Slices(cores=cores, per_machine=per_machine, dimensions=dimensions)
    return Kind(name=name, vendor="tpu", memory=_gb(gigabytes), aliases=aliases, slices=slices)


_MIG_40 = "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
_MIG_80 = "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
_MIG_94 = "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"
_MIG_96 = "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"
_MIG_141 = "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"

KINDS: tuple[Kind, ...] = (
    # NVIDIA, Blackwell
    _nvidia("B200", 180, "10.0", mig="1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    _nvidia("GB200", 186, "10.0", mig="1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
    # NVIDIA, Hopper
    _nvidia("H200", 141, "9.0", "H200-SXM", mig=_MIG_141),
    _nvidia("GH200", 96, "9.0", "GH200 480GB", mig=_MIG_96),
    _nvidia("H100", None, "9.0"),
    _nvidia("H100-80GB", 80, "9.0", of=["H100"], mig=_MIG_80),
    _nvidia("H100-SXM", 80, "9.0", "H100 80GB HBM3", "H100-SXM5", of=["H100-80GB", "H100"], mig=_MIG_80),
    _nvidia("H100-PCIe", 80, "9.0", of=["H100-80GB", "H100"], mig=_MIG_80),
    _nvidia("H100-NVL", 94, "9.0", of=["H100"], mig=_MIG_94),
    # NVIDIA, Ampere and Ada
    _nvidia("A100", None, "8.0"),
    _nvidia("A100-40GB", 40, "8.0", of=["A100"], mig=_MIG_40),
    _nvidia("A100-SXM4-40GB", 40, "8.0", of=["A100-40GB", "A100"], mig=_MIG_40),
    _nvidia("A100-PCIe-40GB", 40, "8.0", of=["A100-40GB", "A100"], mig=_MIG_40),
    _nvidia("A100-80GB", 80, "8.0", of=["A100"], mig=_MIG_80),
    _nvidia("A100-SXM4-80GB", 80, "8.0", of=["A100-80GB", "A100"], mig=_MIG_80),
    _nvidia("A100-PCIe-80GB", 80, "8.0", "A100 80GB PCIe", of=["A100-80GB", "A100"], mig=_MIG_80),
    _nvidia("L4", 24, "8.9"),
    _nvidia("L40S", 48, "8.9"),
    _nvidia("A10G", 24, "8.6"),
    _nvidia("T4", 16, "7.5"),
    # AMD. An MI250X is two devices of 64 GB, to ROCm as to Kubernetes.
    _amd("MI210", 64, "gfx90a"),
    _amd("MI250X", 64, "gfx90a"),
    _amd("MI300X", 192, "gfx942"),
    _amd("MI325X", 256, "gfx942"),
    # Intel
    _plain("intel", "Max-1550", 128, "Data Center GPU Max 1550"),
    _plain("habana", "Gaudi2", 96, "HL-225"),
    # AWS: whole devices, each with several NeuronCores
    _plain("neuron", "Trainium", 32, "trn1", cores=2),
    _plain("neuron", "Trainium2", 96, "trn2", cores=8),
    _plain("neuron", "Inferentia", 8, "inf1", cores=4),
    _plain("neuron", "Inferentia2", 32, "inf2", cores=2),
    # Google
    _tpu("tpu-v4", 32, "v4", "tpu-v4-podslice", cores=2, per_machine=4, dimensions=3),
    _tpu(
        "tpu-v5e",
        16,
        "v5e",
        "v5litepod",
        "TPU v5 lite",
        "tpu-v5-lite-podslice",
        "tpu-v5-lite-device",
        cores=1,
        per_machine=8,
        dimensions=2,
    ),
    _tpu(
        "tpu-v6e",
        32,
        "v6e",
        "TPU v6 lite",
        "tpu-v6e-slice",
        "tpu-v6e-device",
        cores=1,
        per_machine=8,
        dimensions=2,
    ),
)
