"""The accelerators that Upshift knows by name, as dated data; and which of them a name means.

Users, drivers, schedulers and clouds use many names for one thing; each of them becomes one kind. Memory is
what the data sheet says; what a driver reports differs from that by a few percent, either way. An accelerator
that is not here is asked for as ``other:NAME``. Names stay: requests of old runs have them.

Read in November 2026. Sources:

* NVIDIA: data sheets of the products; compute capabilities of https://developer.nvidia.com/cuda-gpus
  and https://developer.nvidia.com/cuda-legacy-gpus; MIG: https://docs.nvidia.com/datacenter/tesla/
  mig-user-guide/ (supported GPUs, supported MIG profiles) and, for those that it leaves out, the
  GPU operator's default-mig-parted-config. Drivers differ in the names of profiles of the largest
  GPUs: 7g.278gb of a GB300 is 7g.251gb to a newer one
* AMD: https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html
* AWS: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/
* Google: https://docs.cloud.google.com/tpu/docs/ (v2 to tpu7x) and
  https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
* Intel: data sheets of Max, Flex and Gaudi
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from difflib import SequenceMatcher

import attrs

from upshift.errors import SettingsError, user_location


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
        As in :data:`upshift.model.settings.resources.VENDORS`.
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
    drivers
        What drivers call it although people mean a whole family by it.
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
    drivers: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cores: int | None = None
    slices: Slices | None = None

    def meets(self, asked: Kind) -> bool:
        """Whether this is what who asks for ``asked`` wants: the kind itself, or one of its family."""
        return asked.name == self.name or asked.name in self.families


_GB, _GIB = 10**9, 2**30


def _nvidia(
    name: str,
    memory: int | None,
    capability: str,
    *aliases: str,
    of: str = "",
    mig: str = "",
    driver: str = "",
) -> Kind:
    """Memory in GB; ``of``: its families; ``driver``: what NVML calls it, where that is a family's name."""
    return Kind(
        name=name,
        vendor="nvidia",
        memory=None if memory is None else memory * _GB,
        capability=capability,
        aliases=aliases,
        families=tuple(of.split()),
        partitions=tuple(mig.split()),
        drivers=(driver,) if driver else (),
    )


def _amd(name: str, memory: int, architecture: str, *aliases: str) -> Kind:
    """Memory in GiB, as AMD's tables have it."""
    return Kind(name=name, vendor="amd", memory=memory * _GIB, capability=architecture, aliases=aliases)


def _intel(vendor: str, name: str, memory: int, *aliases: str) -> Kind:
    """A kind whose memory is given in GB."""
    return Kind(name=name, vendor=vendor, memory=memory * _GB, aliases=aliases)


def _neuron(name: str, memory: int, cores: int, *aliases: str) -> Kind:
    """A kind of AWS, whose memory is given in GiB."""
    return Kind(name=name, vendor="neuron", memory=memory * _GIB, cores=cores, aliases=aliases)


def _tpu(name: str, memory: int, *aliases: str, cores: int, machine: int, dimensions: int) -> Kind:
    """Memory in GiB, of one chip."""
    slices = Slices(cores=cores, per_machine=machine, dimensions=dimensions)
    return Kind(name=name, vendor="tpu", memory=memory * _GIB, aliases=aliases, slices=slices)


_MIG_40 = "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
_MIG_80 = "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
_MIG_94 = "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"
_MIG_96 = "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"
_MIG_141 = "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"
_MIG_144 = "1g.18gb 1g.18gb+me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"
_MIG_180 = "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"
_MIG_186 = "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"
_MIG_B300 = "1g.34gb 1g.34gb+me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"
_MIG_GB300 = "1g.35gb 1g.35gb+me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb"
_MIG_PRO_6000 = (
    "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx 2g.48gb+me.all "
    "2g.48gb-me 4g.96gb 4g.96gb+gfx"
)
_MIG_A30 = "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"

KINDS: tuple[Kind, ...] = (
    # NVIDIA, Blackwell
    _nvidia("B200", 180, "10.0", mig=_MIG_180),
    _nvidia("GB200", 186, "10.0", mig=_MIG_186),
    _nvidia("B300", 288, "10.3", "B300 SXM6 AC", mig=_MIG_B300),
    _nvidia("GB300", 288, "10.3", mig=_MIG_GB300),
    _nvidia("GB10", 128, "12.1", "DGX Spark"),
    _nvidia(
        "RTX-PRO-6000",
        96,
        "12.0",
        "RTX PRO 6000 Blackwell",
        "RTX PRO 6000 Blackwell Server Edition",
        "RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        mig=_MIG_PRO_6000,
    ),
    _nvidia("RTX-PRO-4500", 32, "12.0", "RTX PRO 4500 Blackwell"),
    _nvidia("RTX-PRO-4000", 24, "12.0", "RTX PRO 4000 Blackwell"),
    _nvidia("RTX5090", 32, "12.0"),
    _nvidia("RTX5080", 16, "12.0"),
    _nvidia("RTX5070Ti", 16, "12.0"),
    _nvidia("RTX5070", 12, "12.0"),
    # NVIDIA, Hopper
    _nvidia("H200", 141, "9.0", mig=_MIG_141),
    _nvidia("H200-SXM", 141, "9.0", "H200-SXM5", "H200 141GB HBM3e", of="H200", mig=_MIG_141, driver="H200"),
    _nvidia("H200-NVL", 141, "9.0", of="H200", mig=_MIG_141),
    _nvidia("GH200", None, "9.0"),
    _nvidia("GH200-96GB", 96, "9.0", "GH200 480GB", "GH200 120GB", of="GH200", mig=_MIG_96),
    _nvidia("GH200-144GB", 144, "9.0", "GH200 144G HBM3e", of="GH200", mig=_MIG_144),
    _nvidia("H100", None, "9.0"),
    _nvidia("H100-80GB", 80, "9.0", of="H100", mig=_MIG_80),
    _nvidia(
        "H100-SXM", 80, "9.0", "H100 80GB HBM3", "H100-SXM5", "H100-MEGA", of="H100-80GB H100", mig=_MIG_80
    ),
    _nvidia("H100-PCIe", 80, "9.0", of="H100-80GB H100", mig=_MIG_80),
    _nvidia("H100-NVL", 94, "9.0", of="H100", mig=_MIG_94),
    _nvidia("H800", 80, "9.0", "H800 PCIe", mig=_MIG_80),
    _nvidia("H20", 96, "9.0", mig=_MIG_96),
    # NVIDIA, Ada Lovelace
    _nvidia("L40S", 48, "8.9"),
    _nvidia("L40", 48, "8.9"),
    _nvidia("L4", 24, "8.9"),
    _nvidia("RTX-6000-Ada", 48, "8.9", "RTX 6000 Ada Generation"),
    _nvidia("RTX-5000-Ada", 32, "8.9", "RTX 5000 Ada Generation"),
    _nvidia("RTX-4000-Ada", 20, "8.9", "RTX 4000 Ada Generation", "RTX 4000 SFF Ada Generation"),
    _nvidia("RTX4090", 24, "8.9"),
    _nvidia("RTX4080", 16, "8.9", "RTX 4080 SUPER"),
    _nvidia("RTX4070Ti", 12, "8.9"),
    _nvidia("RTX4070", 12, "8.9"),
    # NVIDIA, Ampere
    _nvidia("A100", None, "8.0"),
    _nvidia("A100-40GB", 40, "8.0", of="A100", mig=_MIG_40),
    _nvidia("A100-SXM4-40GB", 40, "8.0", "A100-40GB-SXM", of="A100-40GB A100", mig=_MIG_40),
    _nvidia("A100-PCIe-40GB", 40, "8.0", "A100-40GB-PCIe", of="A100-40GB A100", mig=_MIG_40),
    _nvidia("A100-80GB", 80, "8.0", of="A100", mig=_MIG_80),
    _nvidia("A100-SXM4-80GB", 80, "8.0", "A100-80GB-SXM", of="A100-80GB A100", mig=_MIG_80),
    _nvidia("A100-PCIe-80GB", 80, "8.0", "A100 80GB PCIe", of="A100-80GB A100", mig=_MIG_80),
    _nvidia("A800-80GB", 80, "8.0", "A800-SXM4-80GB", "A800 80GB PCIe", mig=_MIG_80),
    _nvidia("A30", 24, "8.0", mig=_MIG_A30),
    _nvidia("A40", 48, "8.6"),
    _nvidia("A16", 16, "8.6"),
    _nvidia("A10G", 24, "8.6"),
    _nvidia("A10", 24, "8.6"),
    _nvidia("A2", 16, "8.6"),
    _nvidia("RTX-A6000", 48, "8.6", "A6000"),
    _nvidia("RTX-A5000", 24, "8.6", "A5000"),
    _nvidia("RTX-A4000", 16, "8.6", "A4000"),
    _nvidia("RTX3090", 24, "8.6", "RTX 3090 Ti"),
    _nvidia("RTX3080Ti", 12, "8.6"),
    _nvidia("RTX3080", None, "8.6"),  # 10 or 12 GB
    _nvidia("RTX3070", 8, "8.6"),
    _nvidia("RTX3060", None, "8.6"),  # 8 or 12 GB
    # NVIDIA, Turing and older
    _nvidia("T4", 16, "7.5", "T4G"),
    _nvidia("Quadro-RTX-8000", 48, "7.5"),
    _nvidia("Quadro-RTX-6000", 24, "7.5"),
    _nvidia("TITAN-RTX", 24, "7.5"),
    _nvidia("RTX2080Ti", 11, "7.5"),
    _nvidia("V100", None, "7.0"),
    _nvidia("V100-16GB", 16, "7.0", of="V100"),
    _nvidia("V100-SXM2-16GB", 16, "7.0", of="V100-16GB V100"),
    _nvidia("V100-PCIe-16GB", 16, "7.0", of="V100-16GB V100"),
    _nvidia("V100-32GB", 32, "7.0", of="V100"),
    _nvidia("V100-SXM2-32GB", 32, "7.0", "V100-SXM3-32GB", "V100-SXM2-32GB-LS", of="V100-32GB V100"),
    _nvidia("V100-PCIe-32GB", 32, "7.0", "V100S-PCIE-32GB", of="V100-32GB V100"),
    _nvidia("TITAN-V", 12, "7.0"),
    _nvidia("P100", None, "6.0"),
    _nvidia("P100-16GB", 16, "6.0", "P100-PCIE-16GB", "P100-SXM2-16GB", of="P100"),
    _nvidia("P100-12GB", 12, "6.0", "P100-PCIE-12GB", of="P100"),
    _nvidia("P40", 24, "6.1"),
    _nvidia("P4", 8, "6.1"),
    _nvidia("GTX1080Ti", 11, "6.1"),
    _nvidia("M60", 8, "5.2"),
    _nvidia("K80", 12, "3.7"),  # one of the two GPUs of a board
    # AMD
    _amd("MI355X", 288, "gfx950", "MI355X OAM"),
    _amd("MI350X", 288, "gfx950", "MI350X OAM"),
    _amd("MI325X", 256, "gfx942", "MI325X OAM"),
    _amd("MI308X", 192, "gfx942", "MI308X OAM"),
    _amd("MI300X", 192, "gfx942", "MI300X OAM", "MI300X VF"),
    _amd("MI300A", 128, "gfx942"),
    _amd("MI250X", 64, "gfx90a", "MI250X OAM", "MI250X / MI250"),  # one of its two dies, as ROCm counts
    _amd("MI250", 64, "gfx90a", "MI250 OAM"),  # likewise
    _amd("MI210", 64, "gfx90a"),
    _amd("MI100", 32, "gfx908"),
    _amd("W7900", 48, "gfx1100", "Radeon PRO W7900"),
    _amd("RX7900XTX", 24, "gfx1100"),
    # Intel
    _intel("intel", "Max-1550", 128),
    _intel("intel", "Max-1100", 48),
    _intel("intel", "Flex-170", 16),
    _intel("habana", "Gaudi3", 128, "HL-325", "HL-325L", "HL-338"),
    _intel("habana", "Gaudi2", 96, "HL-225", "HL-225B"),
    _intel("habana", "Gaudi", 32, "Gaudi1", "HL-205", "Gaudi HL-205"),
    # AWS: whole devices, each with so many NeuronCores
    _neuron("Trainium3", 144, 8, "trn3"),
    _neuron("Trainium2", 96, 8, "trn2"),
    _neuron("Trainium", 32, 2, "Trainium1", "trn1", "trn1n"),
    _neuron("Inferentia2", 32, 2, "inf2"),
    _neuron("Inferentia", 8, 4, "Inferentia1", "inf1"),
    # Google: chips. The number in a slice's name counts the TensorCores, of which v5e and v6e have one
    _tpu("tpu-v7", 192, "tpu7x", "tpu-v7x", "v7x", "TPU7x", "Ironwood", cores=2, machine=4, dimensions=3),
    _tpu(
        "tpu-v6e",
        32,
        "v6e",
        "Trillium",
        "TPU v6 lite",
        "tpu-v6e-slice",
        "tpu-v6e-device",
        cores=1,
        machine=8,
        dimensions=2,
    ),
    _tpu("tpu-v5p", 95, "v5p", "TPU v5", "tpu-v5p-slice", cores=2, machine=4, dimensions=3),
    _tpu(
        "tpu-v5e",
        16,
        "v5e",
        "v5litepod",
        "tpu-v5litepod",
        "TPU v5 lite",
        "tpu-v5-lite-podslice",
        "tpu-v5-lite-device",
        cores=1,
        machine=8,
        dimensions=2,
    ),
    _tpu("tpu-v4", 32, "v4", "tpu-v4-podslice", cores=2, machine=4, dimensions=3),
    _tpu("tpu-v3", 32, "v3", "tpu-v3-device", "tpu-v3-slice", cores=2, machine=4, dimensions=2),
    _tpu("tpu-v2", 16, "v2", cores=2, machine=4, dimensions=2),
)


_BRANDS = frozenset(
    (
        *("nvidia", "tesla", "geforce", "amd", "radeon", "instinct", "intel", "habana", "habanalabs"),
        *("aws", "amazon", "google", "cloud", "data", "center", "gpu", "graphics", "generation"),
    )
)
"""Words that say no more than the rest of a name does."""
_SHARING = re.compile(r"-(SHARED|MIG-.*)$", re.IGNORECASE)
"""What a node's label has after the product's name: how the device is shared out."""
_MARKS = re.compile(r"\((r|tm|c)\)")
_COMMON = ("H100", "A100-80GB", "L4", "T4", "MI300X")
"""A few that are shown where no name is near."""
_ALIKE = 0.6
"""How alike a name must be to be shown for another; 1 is the same."""
_LOOKALIKES = str.maketrans({"o": "0", "i": "1", "l": "1"})


def kind_named(text: str) -> Kind:
    """The kind that a user means; case, spaces, dashes and brand names do not count.

    Raises
    ------
    SettingsError
        There is none; the nearest names are shown.
    """
    kind = _known().get(_folded(text))
    if kind is None:
        close = _nearest(text)
        raise SettingsError(
            f"no accelerator is called {text!r}",
            where=user_location(),
            fix=f"Did you mean {' or '.join(map(repr, close))}?"
            if close
            else "The page reference/accelerators of the documentation has all of them, "
            + ", ".join(_COMMON)
            + " among them.",
        )
    return kind


def kind_of_model(model: str | None) -> Kind | None:
    """The kind of a device, from what its driver or its node's label calls it; None: not known.

    Parameters
    ----------
    model
        ``"NVIDIA H100 80GB HBM3"``, ``"Tesla-T4-SHARED"``, ``"AMD Instinct MI300X"``.
    """
    folded = _folded(_SHARING.sub("", model or ""))
    return _drivers().get(folded) or _known().get(folded)


def members(kind: Kind) -> tuple[Kind, ...]:
    """The kinds that meet this one, itself among them."""
    return tuple(other for other in KINDS if other.meets(kind))


def most_memory(kind: Kind) -> int | None:
    """Bytes on the largest device of this kind."""
    return max((member.memory for member in members(kind) if member.memory is not None), default=None)


@functools.cache
def _known() -> Mapping[str, Kind]:
    return {_folded(text): kind for kind in reversed(KINDS) for text in (*kind.aliases, kind.name)}


@functools.cache
def _drivers() -> Mapping[str, Kind]:
    return {_folded(text): kind for kind in KINDS for text in kind.drivers}


def _folded(text: str) -> str:
    words = re.findall(r"[a-z0-9.]+", _MARKS.sub(" ", text.lower()))
    return "".join(word for word in words if word not in _BRANDS)


def _nearest(text: str) -> list[str]:
    """The name that it is a misspelling or a part of, or up to four that it may as well be."""
    wanted = _folded(text).translate(_LOOKALIKES)
    scores: dict[str, float] = {}
    partly: set[str] = set()
    for folded, kind in _known().items():
        known = folded.translate(_LOOKALIKES)
        score = SequenceMatcher(None, wanted, known).ratio()
        scores[kind.name] = max(score, scores.get(kind.name, 0.0))
        if len(wanted) > 2 and wanted in known:
            partly.add(kind.name)
    best = max(scores.values())
    alike = {name for name, score in scores.items() if score >= max(_ALIKE, best - 0.05)}
    found = alike if best == 1 else alike | partly
    names = [kind.name for kind in KINDS if kind.name in found and not found.intersection(kind.families)]
    return sorted(names, key=lambda name: -scores[name])[:4]
