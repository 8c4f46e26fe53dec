"""The part of a checkup that steps on GPUs need: devices, driver, device files, frameworks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from upshift.model.settings.sizes import format_size
from upshift.model.spec import Device, Framework
from upshift.report.doctor import Check, Status
from upshift.runtime.accelerators import compatibility, frameworks
from upshift.runtime.accelerators.agent import DEADLINE, SLOW, Snapshot, asking
from upshift.runtime.accelerators.evidence import (
    FRAMEWORKS,
    CudaDriver,
    DriverQuestion,
    Evidence,
    container,
    container_name,
    device_files,
    kernel_driver,
    listed,
    visibility,
)
from upshift.runtime.accelerators.explain import PLATFORM_NAMES, DeviceFault, explain, falls_short, judged
from upshift.runtime.accelerators.files import device_root
from upshift.runtime.accelerators.matching import listing
from upshift.runtime.accelerators.vendor import MAKERS, Inventory
from upshift.runtime.accelerators.vendors import present
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.device_monitor import DeviceMonitor
from upshift.runtime.supervisor.device_pool import name_of, process_of

_DEVICES, _FRAMEWORKS = "devices", "frameworks"
# PCI vendor ids, and the classes of what computes: display, 3D, processing accelerator. Source: pci.ids.
_BUS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel", "0x1da3": "habana", "0x1d0f": "neuron"}
_COMPUTES = ("0x0300", "0x0302", "0x0380", "0x1200")
_HANGS = (
    "If the vendor's own tool (nvidia-smi, rocm-smi, …) hangs or fails as well, the driver does: "
    "look at `dmesg`, and restart the machine."
)
_INTEGRATED = "intel"
"""Its graphics are in most processors, and no reason to miss a driver."""


def devices(*, environment: bool = True) -> Iterator[Check]:
    """Everything that has to do with devices, and with the frameworks of this environment."""
    snapshots = _snapshots()
    inventories = [snapshot.inventory for snapshot in snapshots]
    found = [inventory for inventory in inventories if inventory.devices]
    if not found:
        yield _none(inventories, contained=not environment)
    for inventory in inventories:
        yield from _inventory(inventory)
    driver = None
    told: set[str] = set()  # the causes that are told, of which what comes after would be told again
    for vendor in _vendors(inventories):
        yield from _files(vendor, told)
        if vendor == "nvidia":
            driver = _ask_driver()
            yield from _driver(driver, told)
        yield from _variables(vendor, [i for i in inventories if i.vendor == vendor])
    for snapshot in snapshots:
        yield from _users(snapshot)
    if environment:
        yield from _frameworks([inventory for inventory in found if judged(inventory.vendor)], driver, told)


def _check(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group=_DEVICES, name=name, status=status, text=text, remedy=remedy)


def _say_slow() -> None:
    sys.stderr.write("\n".join(asking(vendor.name) for vendor in present()) + "\n")


def _snapshots() -> list[Snapshot]:
    """Every vendor's devices with a reading of each, as far as they can be had in time."""
    if not present():
        return []
    loop = Loop()
    accelerators = DeviceMonitor(loop)
    over = False

    def give_up() -> None:
        nonlocal over
        over = True

    loop.after(DEADLINE + 5, give_up)
    loop.after(SLOW, lambda: None if accelerators.known else _say_slow())
    accelerators.want()

    def complete() -> bool:
        read = {snapshot.inventory.vendor for snapshot in accelerators.latest if snapshot.readings}
        return accelerators.known and all(i.vendor in read or not i.devices for i in accelerators.inventories)

    while not over and not complete():
        loop.turn()
    latest = {snapshot.inventory.vendor: snapshot for snapshot in accelerators.latest}
    found = [latest.get(i.vendor) or Snapshot(inventory=i, at=0.0) for i in accelerators.inventories]
    accelerators.close()
    return found


# -- devices and driver ---------------------------------------------------------------------------


def _none(inventories: list[Inventory], *, contained: bool) -> Check:
    remedy = _on_the_bus()
    instead = "a step that asks for GPUs runs on the CPU here, and says so; --strict refuses it"
    if contained:
        instead = "a step that asks for GPUs is refused here; with --best-effort it runs on the CPU"
    if not inventories and remedy is None:
        return _check("devices", f"none: {instead}", status="warning" if contained else "absent")
    makers = ", ".join(MAKERS.get(i.vendor, i.vendor) for i in inventories)
    seen = f" ({makers})" if makers else ""
    return _check("devices", f"none that can be used{seen}: {instead}", status="problem", remedy=remedy)


def _on_the_bus() -> str | None:
    """What to do about a device that is there and has no driver; None: there is none."""
    for folder in sorted(Path(device_root(), "sys/bus/pci/devices").glob("*")):
        vendor = _BUS.get(_text(folder / "vendor"))
        if vendor in (None, _INTEGRATED) or not _text(folder / "class").startswith(_COMPUTES):
            continue
        device = f"A device of {MAKERS.get(vendor, vendor)} is in this machine ({folder.name})"
        kind = container(device_root())
        if kind:
            return f"{device}, and was not passed into this {container_name(kind)}."
        return f"{device}, and has no driver: install it."
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _inventory(inventory: Inventory) -> Iterator[Check]:
    maker = MAKERS.get(inventory.vendor, inventory.vendor)
    kinds: dict[str, int] = {}
    for device in inventory.devices:
        kinds[_described(device)] = kinds.get(_described(device), 0) + 1
    for kind, number in kinds.items():
        yield _check(maker, kind if number == 1 else f"{number} × {kind}")
    for problem in inventory.problems:
        yield _check(
            maker,
            problem.removeprefix(f"{inventory.vendor}: "),
            status="warning" if kinds else "problem",
            remedy=_HANGS if inventory.unknown else None,
        )
    if inventory.driver or inventory.runtime:
        platform = PLATFORM_NAMES.get(inventory.vendor, "runtime")
        runs = f", which runs {platform} up to {inventory.runtime}" if inventory.runtime else ""
        yield _check(f"{maker} driver", f"{inventory.driver or 'unknown'}{runs}")


def _described(device: Device) -> str:
    model = device.model or device.kind or "device"
    parts = [f"slice {device.partition} of {model}" if device.partition else model]
    if device.memory:
        parts.append(format_size(device.memory))
    if device.compute_capability:
        parts.append(compatibility.capability_name(device.compute_capability))
    return ", ".join(parts)


def _vendors(inventories: list[Inventory]) -> list[str]:
    return [inventory.vendor for inventory in inventories if judged(inventory.vendor)]


def _files(vendor: str, told: set[str]) -> Iterator[Check]:
    evidence = _evidence((Device(vendor=vendor),), _ANY[vendor], None)
    finding = explain(evidence)
    if finding.cause in ("devices", "permissions"):
        told.add(finding.cause)
        yield _check("device files", finding.sentence, status="problem", remedy=finding.remedy)
    elif evidence.files:
        usable = [file.path for file in evidence.files if file.problem is None]
        yield _check("device files", f"{listed(usable)}: can be opened")


_ANY = {
    vendor: Framework(name="a framework", version="", built_for=built_for, devices=0)
    for vendor, built_for in (("nvidia", "cuda"), ("amd", "rocm"), ("intel", "xpu"))
}
"""One that could use the devices, if they were in order."""


def _ask_driver() -> CudaDriver | None:
    try:
        return DriverQuestion().answer()
    except OSError:
        return None


def _driver(driver: CudaDriver | None, told: set[str]) -> Iterator[Check]:
    if driver is None:
        return
    if driver.capabilities:
        number = len(driver.capabilities)
        shown = "1 device" if number == 1 else f"{number} devices"
        yield _check("CUDA", f"starts, runs CUDA up to {driver.cuda}, and shows {shown}")
        return
    finding = explain(_evidence((Device(vendor="nvidia"),), _ANY["nvidia"], driver, files=False))
    if _follows(finding, told):
        yield _check("CUDA", f"does not start, as of the above: {driver.problem}", status="warning")
        return
    told.add(finding.cause)
    text = f"does not start: {driver.problem}" if finding.cause == "unknown" else finding.sentence
    remedy = "nvidia-smi and dmesg may tell more." if finding.cause == "unknown" else finding.remedy
    yield _check("CUDA", text, status="problem", remedy=remedy)


def _follows(finding: DeviceFault, told: set[str]) -> bool:
    """Whether a fault was reported already, or most likely follows from one that was."""
    return finding.cause in told or (finding.cause == "unknown" and bool(told))


def _variables(vendor: str, inventories: list[Inventory]) -> Iterator[Check]:
    hidden = {i.hidden_by.partition("=")[0]: listing(i.hidden) for i in inventories if i.hidden_by}
    for name, value in visibility(vendor).items():
        left_out = f", without {hidden[name]}" if name in hidden else ""
        yield _check(
            name, f"is set to {value!r}: steps get devices from among those{left_out}", status="warning",
            remedy=f"unset {name}, if that was not meant.",
        )  # fmt: skip


def _users(snapshot: Snapshot) -> Iterator[Check]:
    readings = {reading.uuid: reading for reading in snapshot.readings}
    for device in snapshot.inventory.devices:
        reading = readings.get(device.uuid or "")
        if reading is None:
            continue
        name = name_of(device)
        if reading.problem:
            yield _check(name, f"does not work: {reading.problem}", status="problem")
        elif reading.processes:
            users = [process_of(pid, size) for pid, size in sorted(reading.processes.items())]
            yield _check(name, f"in use by {listed(users)}", status="warning")


# -- frameworks -----------------------------------------------------------------------------------


def _frameworks(found: list[Inventory], driver: CudaDriver | None, told: set[str]) -> Iterator[Check]:
    installed = frameworks.installed()
    if not installed:
        text = "none of " + ", ".join(FRAMEWORKS.values())
        yield Check(group=_FRAMEWORKS, name="installed", text=f"{text} in this environment")
        return
    if not found:
        for framework in installed:
            yield Check(group=_FRAMEWORKS, name=FRAMEWORKS[framework.name], text=_build(framework))
        return
    with ThreadPoolExecutor(len(installed)) as pool:
        asked = list(pool.map(lambda framework: frameworks.ask(framework.name), installed))
    known = {framework.name: framework.version for framework in installed}
    findings = [_judged(_named(one, known[one.name]), found, driver, told) for one in asked]
    some_see = any(finding.status == "ok" for finding in findings)
    for finding in findings:
        # Beside one that sees everything, another may be for CPUs.
        milder = some_see and finding.status == "problem"
        yield attrs.evolve(finding, status="warning") if milder else finding


def _named(framework: Framework, version: str) -> Framework:
    """With the version that is installed, where it could not say its own."""
    return framework if framework.devices is not None else attrs.evolve(framework, version=version)


def _build(framework: Framework) -> str:
    if framework.problem:
        return f"{framework.version}, {framework.problem}"
    return f"{framework.version}, built for {framework.built_for or 'CPUs only'}"


def _judged(framework: Framework, found: list[Inventory], driver: CudaDriver | None, told: set[str]) -> Check:
    name = FRAMEWORKS[framework.name]
    if framework.devices is None:
        return Check(
            group=_FRAMEWORKS, name=name, status="problem", text=_build(framework),
            remedy=f"python -c 'import {framework.name}' shows more.",
        )  # fmt: skip
    shortages = []
    for inventory in found:
        evidence = _evidence(inventory.devices, framework, driver if inventory.vendor == "nvidia" else None)
        if not falls_short(evidence):
            sees = "1 device" if framework.devices == 1 else f"{framework.devices} devices"
            return Check(group=_FRAMEWORKS, name=name, text=f"{_build(framework)}, sees {sees}")
        shortages.append(explain(evidence))
    finding = shortages[0]
    if _follows(finding, told):
        text = f"{_build(framework)}, sees {framework.devices or 'no'} devices, as of the above"
        return Check(group=_FRAMEWORKS, name=name, status="warning", text=text)
    return Check(
        group=_FRAMEWORKS,
        name=name,
        status="problem",
        text=finding.sentence.removeprefix(f"{name} "),
        remedy=finding.remedy,
    )


def _evidence(
    devices: tuple[Device, ...], framework: Framework, driver: CudaDriver | None, *, files: bool = True
) -> Evidence:
    root = device_root()
    vendor = devices[0].vendor or "nvidia"
    return Evidence(
        granted=devices,
        framework=framework,
        files=device_files(vendor, root) if files else (),
        kernel_driver=kernel_driver(root) if vendor == "nvidia" else None,
        driver=driver,
        container=container(root),
        machine=os.uname().machine,
        whose="of this machine",
    )
