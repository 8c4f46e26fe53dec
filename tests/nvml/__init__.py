"""NVIDIA GPUs without any: the true nvidia-ml-py, with a stand-in for the driver's library.

``library.c`` is compiled once a session. What it says is in a file that :class:`FakeNvml` writes; it is
read again when it changes, so that a test can lose a GPU in the middle of a run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

GIB = 1 << 30
SOURCE = Path(__file__).with_name("library.c")

DRIVER_NOT_LOADED, UNKNOWN, GPU_IS_LOST, RESET_REQUIRED = 9, 999, 15, 16
NO_PERMISSION, VERSION_MISMATCH, NOT_SUPPORTED = 4, 18, 3
"""What functions of NVML return, by the names of ``nvmlReturn_t``."""

_AS_THEY_ARE = (
    *("uuid", "memory", "used", "capability", "busy", "temperature", "clock", "memory_clock", "ecc", "error"),
    *("pci", "pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received"),
)


@attrs.define(kw_only=True)
class Instance:
    """A MIG instance. A value of None is ``N/A``.

    Parameters
    ----------
    busy
        Percent; None: its GPU is older than Hopper, and does not tell.
    """

    profile: str = "1g.10gb"
    memory: int | None = 10 * GIB
    used: int | None = 0
    busy: int | None = None
    uuid: str | None = None
    processes: dict[int, int | None] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Gpu:
    """A GPU. A value of None is ``N/A``.

    Parameters
    ----------
    uuid
        None: made of its number.
    busy, power, temperature, clock, memory_clock
        %, W, °C, MHz, MHz.
    pci, numa_node
        Its address on the bus, as NVML has it, and what sysfs says of that.
    links
        Numbers of the GPUs that NVLink joins it with.
    pcie_sent, pcie_received, nvlink_sent, nvlink_received
        Bytes a second.
    instances
        MIG instances, if it is cut into some; an empty list: it is to be, and is not.
    xid
        Xid events so far, the newest last.
    error
        What each question about it returns.
    errors
        What a function returns when it is asked about this GPU, by the function's name.
    """

    uuid: str | None = None
    model: str | None = "NVIDIA H100 80GB HBM3"
    memory: int | None = 80 * GIB
    used: int | None = 0
    capability: str | None = "9.0"
    busy: int | None = 0
    power: float | None = 100.0
    temperature: int | None = 40
    clock: int | None = 1980
    memory_clock: int | None = 2619
    ecc: int | None = 0
    pcie_sent: int | None = 0
    pcie_received: int | None = 0
    nvlink_sent: int | None = None
    nvlink_received: int | None = None
    pci: str | None = None
    numa_node: int = -1
    links: Sequence[int] = ()
    processes: dict[int, int | None] = attrs.field(factory=dict)
    instances: list[Instance] | None = None
    xid: list[int] = attrs.field(factory=list)
    error: int | None = None
    errors: dict[str, int] = attrs.field(factory=dict)


class FakeNvml:
    """A machine with NVIDIA GPUs, for the processes that are started with :meth:`environment`.

    Parameters
    ----------
    folder
        Where its files go.
    library
        The compiled stand-in.
    gpus
        The GPUs, or how many.
    driver, cuda
        Versions.
    hang, crash
        Name of a function that never returns, or that ends the process with SIGSEGV.
    errors
        What functions return, by name: ``{"nvmlInitWithFlags": DRIVER_NOT_LOADED}``.
    count
        How many GPUs the library says there are.

    All of these can be changed afterwards; :meth:`write` then says so to the processes that run.
    """

    def __init__(
        self,
        folder: Path,
        library: Path,
        gpus: int | Sequence[Gpu] = 1,
        *,
        driver: str | None = "570.86.15",
        cuda: str | None = "12.8",
        hang: str | None = None,
        crash: str | None = None,
        errors: Mapping[str, int] | None = None,
        count: int | None = None,
    ) -> None:
        self.root = folder / "devices"
        self.gpus = [Gpu() for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.driver, self.cuda, self.hang, self.crash, self.count = driver, cuda, hang, crash, count
        self.errors = dict(errors or {})
        self._scenario = folder / "nvml.txt"
        self._library = library
        (self.root / "dev").mkdir(parents=True, exist_ok=True)
        for name in ("nvidiactl", *(f"nvidia{number}" for number in range(len(self.gpus)))):
            (self.root / "dev" / name).touch()
        for number, gpu in enumerate(self.gpus):
            if gpu.pci is not None:
                folder = self.root / "sys/bus/pci/devices" / gpu.pci[4:].lower()
                folder.mkdir(parents=True)
                (folder / "numa_node").write_text(f"{gpu.numa_node}\n")
            gpu.uuid = gpu.uuid or f"GPU-{number:08x}-0000-4000-8000-000000000000"
            for place, instance in enumerate(gpu.instances or ()):
                instance.uuid = instance.uuid or f"MIG-{number:08x}-{place + 1:04x}-4000-8000-000000000000"
        self.write()

    @property
    def uuids(self) -> list[str]:
        """Those of the GPUs."""
        return [str(gpu.uuid) for gpu in self.gpus]

    def environment(self) -> dict[str, str]:
        """What a process has to be started with to see these GPUs."""
        return {
            "LD_LIBRARY_PATH": str(self._library.parent),
            "NVML_SCENARIO": str(self._scenario),
            "UPSHIFT_DEVICE_ROOT": str(self.root),
        }

    def write(self) -> None:
        """Let the library say what these objects say now. It never reads half of it."""
        half = self._scenario.with_suffix(".half")
        half.write_text("".join(f"{line}\n" for line in self._lines()), encoding="utf-8")
        os.replace(half, self._scenario)

    def _lines(self) -> Iterator[str]:
        major, _, minor = (self.cuda or "").partition(".")
        yield from _values(
            driver=self.driver,
            cuda=int(major) * 1000 + int(minor) * 10 if self.cuda else None,
            hang=self.hang,
            crash=self.crash,
            count=self.count,
        )
        yield from _errors(self.errors)
        for number, gpu in enumerate(self.gpus):
            yield "[gpu]"
            yield from _values(
                name=gpu.model,
                minor=number,
                mig=0 if gpu.instances is None else 1,
                gpm=int(any(instance.busy is not None for instance in gpu.instances or ())),
                power=None if gpu.power is None else int(gpu.power * 1000),
                xid=f"{len(gpu.xid)}:{gpu.xid[-1]}" if gpu.xid else None,
                links=",".join(map(str, gpu.links)) or None,
                **{name: getattr(gpu, name) for name in _AS_THEY_ARE},
            )
            yield from _errors(gpu.errors)
            yield from _processes(gpu.processes)
            for place, instance in enumerate(gpu.instances or ()):
                yield "[instance]"
                yield from _values(
                    uuid=instance.uuid,
                    name=f"{gpu.model} MIG {instance.profile}",
                    memory=instance.memory,
                    used=instance.used,
                    busy=instance.busy,
                    id=place + 1,
                )
                yield from _processes(instance.processes)


def _values(**values: Any) -> Iterator[str]:
    for name, value in values.items():
        if value is not None:
            yield f"{name}={value}"


def _errors(errors: Mapping[str, int]) -> Iterator[str]:
    for function, code in errors.items():
        yield f"error.{function}={code}"


def _processes(processes: Mapping[int, int | None]) -> Iterator[str]:
    for pid, size in processes.items():
        yield f"process={pid}:{'N/A' if size is None else size}"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE], check=True
    )
    return library


@pytest.fixture
def fake_nvml(tmp_path: Path, nvml_library: Path) -> Callable[..., FakeNvml]:
    """Makes a :class:`FakeNvml`: ``fake_nvml(2)``, ``fake_nvml([Gpu(busy=None)], driver="535.54.03")``."""

    def make(gpus: int | Sequence[Gpu] = 1, **options: Any) -> FakeNvml:
        return FakeNvml(tmp_path, nvml_library, gpus, **options)

    return make
