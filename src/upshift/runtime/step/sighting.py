"""What PyTorch, TensorFlow and JAX see of the devices that a step was granted: checked after their import.

A framework that sees less than the grant would train on the CPU for hours. So the step ends there, with
the cause and the remedy (:mod:`upshift.runtime.accelerators.explain`). Nothing of this is set up for a
step without a grant of devices.

What is counted, in this process, without touching a device::

    built for no devices, or told to use none ────────────────────────▶ 0
    built for CUDA ─▶ the driver, asked in a process of its own, ─────▶ what it shows to this environment
                      while the import goes on
    built for ROCm or XPU, and wherever that count falls short ───────▶ the framework's own word, in a
                                                                        process of its own
What this cannot see: a framework that is imported in a process that the step starts; devices that break
after the import; libraries that use devices without these frameworks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType

import attrs

from upshift.errors import is_user_file, location, suggestion
from upshift.model.spec import Device, Failure, Framework, TaskSpec
from upshift.runtime.accelerators import compatibility, frameworks
from upshift.runtime.accelerators.evidence import (
    PLATFORMS,
    CudaDriver,
    DriverQuestion,
    gather,
    leaves_out_gpus,
    vendor_of,
    visibility,
)
from upshift.runtime.accelerators.explain import (
    MAY_MISS,
    DeviceFault,
    expected,
    explain,
    falls_short,
    judged,
    may_miss,
    or_without,
)
from upshift.runtime.messages import Diagnosis, channel, tell
from upshift.runtime.step.explaining import Halted
from upshift.runtime.usercode import HOOK, ImportHook


class Sighting:
    """Looks at what frameworks see in the process of a step, as soon as each has been imported."""

    def __init__(self, spec: TaskSpec) -> None:
        self.refused: Failure | None = None
        self._spec = spec
        self._granted: tuple[Device, ...] = (spec.granted.gpus if spec.granted else None) or ()
        self._vendor = vendor_of(self._granted)
        self._intended = visibility(self._vendor, *frameworks.NAMES)
        self._pid = os.getpid()
        self._checked: set[str] = set()
        self._content: set[str] = set()
        self._question: DriverQuestion | None = None
        self._driver: CudaDriver | None = None
        self._guard = threading.RLock()
        self._hook = ImportHook(self.wanted, before=self.expect, after=self.imported)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look at each framework that is imported meanwhile."""
        tell(_misnamed(may_miss(os.environ)))
        self._hook.begin()
        try:
            yield
        finally:
            self._hook.end()
            if self._question is not None:
                self._question.close()
            if self.refused is not None:  # whatever the step has made of it
                raise Halted(self.refused)

    def look_around(self, module: ModuleType | None) -> None:
        """Look at the frameworks that were imported already, in the process that this one is forked from."""
        for name in frameworks.NAMES:
            found = sys.modules.get(name)
            if found is not None and not _half_imported(found):
                where = _line_of_import(module, name, self._spec)
                self.check(name, found, where=where, direct=where is not None)

    def wanted(self, name: str) -> bool:
        """Whether this is a framework that was not looked at yet, in the step's own process."""
        return name in frameworks.NAMES and name not in self._checked and os.getpid() == self._pid

    def expect(self) -> None:
        """A framework is about to be imported: ask the driver meanwhile."""
        with contextlib.suppress(OSError):
            if self._vendor == "nvidia" and self._question is None and self._driver is None:
                self._question = DriverQuestion()

    def imported(self, name: str, module: ModuleType) -> None:
        """A framework has been imported, right now, by what is on this thread's stack."""
        where, direct = _importer(self._spec)
        self.check(name, module, where=where, direct=direct)

    def check(self, name: str, module: ModuleType, *, where: str | None, direct: bool) -> None:
        """Look at one framework, once."""
        with self._guard:
            if name in self._checked or os.getpid() != self._pid:
                return
            self._checked.add(name)
            try:
                finding = self._look(name, module)
            except Exception as error:  # whatever goes wrong here, the import does not
                tell([f"what {name} sees of the devices granted could not be checked: {error!r}"])
                return
            if finding is not None:
                self._refuse(name, finding, where or self._spec.location, direct)

    def _look(self, name: str, module: ModuleType) -> DeviceFault | None:
        framework = frameworks.described(name, module)
        if framework.problem is None and judged(self._vendor):
            framework = self._counted(name, framework)
        channel.tell(framework)
        if not falls_short(gather(self._granted, framework, self._driver, self._intended)):
            if framework.devices:
                self._content.add(name)
            return None
        driver = self._asked_driver() if self._vendor == "nvidia" else None
        return explain(gather(self._granted, framework, driver, self._intended))

    def _counted(self, name: str, framework: Framework) -> Framework:
        """The framework, with the number of devices that it sees."""
        if framework.built_for is None:
            return framework
        if leaves_out_gpus(os.environ.get(PLATFORMS.get(name, ""), "")):
            return attrs.evolve(framework, devices=0)
        least = expected(self._granted)
        platform, _, version = framework.built_for.partition(" ")
        if platform == "cuda" and self._vendor == "nvidia":
            driver = self._asked_driver()
            shown = _shown(driver, version)
            if shown is None or shown >= least:
                return attrs.evolve(framework, devices=shown)
        elif platform not in ("rocm", "xpu"):
            return framework
        variables = visibility(self._vendor, name)
        own = frameworks.ask_once(name, framework, least=least, variables=variables)
        return attrs.evolve(framework, devices=own.devices, problem=own.problem)

    def _asked_driver(self) -> CudaDriver:
        if self._driver is None:
            self.expect()
            question, self._question = self._question, None
            self._driver = question.answer() if question else CudaDriver(problem="it could not be asked")
        return self._driver

    def _refuse(self, name: str, finding: DeviceFault, where: str | None, direct: bool) -> None:
        found = Diagnosis(failure=None, framework=name, cause=finding.cause, evidence=finding.evidence)
        if self._for_another(name, direct):
            tell([f"{finding.sentence}. The step continues."])
            return
        if name in may_miss(os.environ):
            channel.send("diagnosis", found)
            tell([f"{finding.sentence}. The step continues, as {MAY_MISS} says."])
            return
        remedy = or_without(name, finding.remedy)
        failure = Failure(reason="hardware", message=finding.sentence, where=where, fix=remedy)
        self.refused = failure
        # First of all the supervisor hears of it: it ends the step, whatever that does with the exception.
        channel.send("diagnosis", attrs.evolve(found, failure=failure))
        raise Halted(failure)

    def _for_another(self, name: str, direct: bool) -> bool:
        """Whether it is for another framework to use the devices.

        TensorFlow and JAX are imported by packages that compute with something else: torch.utils.tensorboard.
        """
        return bool(self._content) or (name != "torch" and not direct)


def _misnamed(may: Iterable[str]) -> Iterator[str]:
    """Words about each of these that is no framework that is looked at."""
    for name in sorted(set(may).difference(frameworks.NAMES)):
        yield f"{MAY_MISS}={name} is invalid. {suggestion(name, frameworks.NAMES)}"


def _shown(driver: CudaDriver, cuda: str) -> int | None:
    """How many devices the CUDA runtime of this version gets from the driver; None: not known."""
    if driver.capabilities is not None:
        runs = compatibility.driver_runs(cuda, None, driver.cuda)
        return 0 if runs is False else len(driver.capabilities)
    return 0 if driver.library is None or driver.code is not None else None


# -- where it was imported ------------------------------------------------------------------------


def _half_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _importer(spec: TaskSpec) -> tuple[str | None, bool]:
    """The user's line behind the import that goes on in this thread, and whether it is the import itself."""
    frame: FrameType | None = sys._getframe(1)
    direct = True
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file, spec.code.project):
            return location(file, frame.f_lineno, spec.cwd), direct
        direct = direct and (file in (__file__, HOOK) or "importlib" in file)
        frame = frame.f_back
    return None, False


def _line_of_import(module: ModuleType | None, name: str, spec: TaskSpec) -> str | None:
    """The line of the user's module that imports a framework; None: it does so by way of others."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    import ast

    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        if any(found.partition(".")[0] == name for found in names):
            return location(file, getattr(node, "lineno", 1), spec.cwd)
    return None
