"""A step whose framework sees fewer devices than it was granted ends at the import, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from frameworks import cuda_driver, fake_jax, fake_tensorflow, fake_torch
from upshift.model.spec import Device, Hardware, TaskResult

FILES = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")


class Machine:
    """Runs steps that were granted GPUs, on a machine with device files and a driver."""

    def __init__(self, bench: Any, cuda_library: Path) -> None:
        self.bench = bench
        self.packages = bench.folder / "site-packages"
        self.environment = {
            **cuda_driver(cuda_library, "9.0"),
            "UPSHIFT_DEVICE_ROOT": str(bench.folder / "root"),
        }
        self._library = cuda_library
        for name in FILES[:3]:
            self.file(name)
        (bench.folder / "root/proc/driver/nvidia").mkdir(parents=True)
        self.kernel("580.65.06")

    def file(self, name: str) -> Path:
        path: Path = self.bench.folder / "root/dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    def kernel(self, driver: str) -> None:
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon Aug  4 2026\n"
        (self.bench.folder / "root/proc/driver/nvidia/version").write_text(text)

    def driver(self, *devices: str, **options: Any) -> None:
        self.environment |= cuda_driver(self._library, *devices, **options)

    def run(
        self, source: str, *, granted: int = 1, vendor: str = "nvidia", env: Mapping[str, str] | None = None
    ) -> TaskResult:
        self.bench.write(source)
        spec = self.bench.spec("train", location="steps.py:1", grace=0.5)
        gpus = tuple(
            Device(vendor=vendor, model="NVIDIA H100", uuid=f"GPU-{i}", index=i) for i in range(granted)
        )
        # Granted by another backend: it is not for the supervisor to see to it.
        spec = attrs.evolve(spec, granted=Hardware(gpus=gpus, nodes=1))
        self.spec = spec
        path = Path(self.bench.store.address) / self.bench.store.write_spec(spec)
        self.done = subprocess.run(
            [sys.executable, "-m", "upshift.runtime", str(path)],
            env={**os.environ, **self.environment, "PYTHONPATH": str(self.packages), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        result = self.bench.store.read_result(spec.task, 1)
        assert result is not None, self.done.stderr
        return result


@pytest.fixture
def machine(bench: Any, cuda_library: Path) -> Machine:
    return Machine(bench, cuda_library)


def cause(result: TaskResult) -> str:
    assert result.failure is not None and result.failure.reason == "hardware", result.failure
    assert result.seen is not None
    return str(result.seen.details["diagnosis"]["cause"])


TRAIN = "import torch\ndef train():\n    return 'trained'\n"
LATE = "def train():\n    import torch\n    return 'trained'\n"


# -- with the real PyTorch, built for CPUs --------------------------------------------------------


def test_the_cpu_build_of_pytorch_is_named_with_the_line_of_the_import_and_the_remedy(
    machine: Machine,
) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch is built for CUDA")
    result = machine.run(LATE)
    assert cause(result) == "cpu-only"
    assert result.failure is not None
    assert result.failure.message == (
        f"PyTorch {torch.__version__} is built for CPUs only: it cannot use the GPU granted"
    )
    assert result.failure.where == "steps.py:2"
    assert "pip install --force-reinstall 'torch==" in str(result.failure.fix)
    assert result.seen is not None
    (framework,) = result.seen.details["frameworks"]
    assert framework["name"] == "torch" and framework["devices"] == 0
    assert framework["version"] == torch.__version__


# -- what is seen ---------------------------------------------------------------------------------


def test_a_framework_that_sees_the_grant_is_recorded_and_the_step_goes_on(machine: Machine) -> None:
    fake_torch(machine.packages)
    result = machine.run(TRAIN)
    assert machine.bench.output(result) == "trained"
    assert result.seen is not None
    assert result.seen.details["frameworks"] == [
        {
            "name": "torch",
            "version": "2.13.0+cu130",
            "built_for": "cuda 13.0",
            "devices": 1,
            "architectures": ["sm_80", "sm_90"],
        }
    ]
    assert "diagnosis" not in result.seen.details


def test_without_a_grant_nobody_looks(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(
        "def train():\n"
        "    import sys, torch\n"
        "    return list(sys.modules), [type(finder).__name__ for finder in sys.meta_path]\n",
        granted=0,
    )
    modules, finders = machine.bench.output(result)
    assert not {"upshift.runtime.step.sighting", "upshift.runtime.accelerators.explain"} & set(modules)
    assert "ImportHook" not in finders
    assert result.seen is not None and "frameworks" not in result.seen.details


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda m: m.driver(version="12.2"), "no-libraries"),
        (lambda m: m.driver("9.0", version="12.4"), "old-driver"),
        (lambda m: m.driver("12.0"), "no-kernels"),
        (lambda m: m.driver("7.0"), "no-kernels"),
        (lambda m: m.driver(init=802), "not-ready"),
        (lambda m: m.driver(init=803), "mismatch"),
        (lambda m: m.driver(init=999), "unknown"),
        (lambda m: m.driver(), "unknown"),
        (lambda m: m.environment.pop("LD_LIBRARY_PATH"), "no-libraries"),
        (lambda m: (m.driver(init=999), os.unlink(m.file("nvidia-uvm"))), "devices"),
    ],
)
def test_what_is_wrong_with_the_machine_is_told_apart(
    machine: Machine, break_it: Callable[[Machine], object], expected: str
) -> None:
    fake_torch(machine.packages)
    break_it(machine)
    if expected == "no-libraries":
        machine.environment.pop("LD_LIBRARY_PATH", None)
    assert cause(machine.run(LATE)) == expected


def test_a_device_file_that_may_not_be_opened_is_named(machine: Machine) -> None:
    if os.geteuid() == 0:  # whom no mode keeps out: a folder cannot be opened for writing by anybody
        os.unlink(machine.file("nvidia0"))
        machine.file("nvidia0/file")
    else:
        machine.file("nvidia0").chmod(0)
    fake_torch(machine.packages)
    machine.driver(init=100)
    result = machine.run(LATE)
    assert cause(result) == "permissions"
    assert result.failure is not None and "/dev/nvidia0 cannot be opened" in result.failure.message


def test_a_variable_that_the_step_sets_itself_is_named(machine: Machine) -> None:
    fake_torch(machine.packages, devices=1)
    machine.driver("9.0", "9.0")
    result = machine.run(
        "import os\ndef train():\n    os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n    import torch\n", granted=2
    )
    assert cause(result) == "hidden"
    assert result.failure is not None
    assert result.failure.message.startswith("CUDA_VISIBLE_DEVICES=1 hides devices")
    assert result.failure.message.endswith("PyTorch 2.13.0+cu130 sees 1 of the 2 GPUs granted")
    assert result.failure.where == "steps.py:4"


def test_what_the_framework_says_itself_counts_more_than_what_was_concluded(machine: Machine) -> None:
    fake_torch(machine.packages, devices=1)
    machine.driver(init=999)
    result = machine.run(LATE)
    assert machine.bench.output(result) == "trained"
    assert result.seen is not None and result.seen.details["frameworks"][0]["devices"] == 1


def test_a_driver_that_does_not_start_is_no_proof(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(machine.packages)
    machine.driver("9.0", hang=True)
    patched = "import upshift.runtime.accelerators.evidence as e; e.DEADLINE = 0.5\n"
    result = machine.run(patched + LATE)
    assert machine.bench.output(result) == "trained"
    assert result.seen is not None and "devices" not in result.seen.details["frameworks"][0]


def test_a_build_for_rocm_is_asked_in_a_process_of_its_own_once(machine: Machine) -> None:
    (machine.bench.folder / "root/dev/dri").mkdir()
    for name in ("kfd", "dri/renderD128"):
        machine.file(name)
    log = machine.bench.folder / "imports"
    fake_torch(
        machine.packages,
        version="2.13.0+rocm7.2",
        cuda=None,
        hip="7.2.1",
        architectures=("gfx942",),
        devices=1,
        more=f"""
        with open({str(log)!r}, "a") as file:
            file.write("imported\\n")
        """,
    )
    for imports in (2, 3):  # the step, and at first the process that is asked
        result = machine.run(LATE, vendor="amd")
        assert machine.bench.output(result) == "trained"
        assert result.seen is not None
        assert result.seen.details["frameworks"][0]["built_for"] == "rocm 7.2"
        assert result.seen.details["frameworks"][0]["devices"] == 1
        assert log.read_text().count("imported") == imports


# -- TensorFlow and JAX ---------------------------------------------------------------------------


def test_tensorflow_without_its_libraries_is_told_in_its_own_words(machine: Machine) -> None:
    fake_tensorflow(machine.packages, stderr="W0000 Cannot dlopen some GPU libraries. Please …\n")
    machine.driver(init=999)
    result = machine.run("def train():\n    import tensorflow as tf\n")
    assert cause(result) == "no-libraries"
    assert result.failure is not None and "Cannot dlopen some GPU libraries" in result.failure.message
    assert result.failure.fix == (
        "pip install --upgrade 'tensorflow[and-cuda]'\n"
        "Or, if this step needs no GPU for it: gpu_count=0, or UPSHIFT_MAY_MISS=tensorflow."
    )


def test_jax_without_a_plugin_is_built_for_cpus(machine: Machine) -> None:
    fake_jax(machine.packages, plugin=None)
    result = machine.run("def train():\n    import jax\n")
    assert cause(result) == "cpu-only"
    assert result.failure is not None and result.failure.fix is not None
    assert result.failure.fix.splitlines()[0] == "pip install --upgrade 'jax[cuda13]'"


@pytest.mark.parametrize("platforms", ["cpu", "tpu, cpu"])
def test_jax_that_was_told_to_compute_without_gpus_is_not_taken_to_see_them(
    machine: Machine, platforms: str
) -> None:
    fake_jax(machine.packages)
    result = machine.run("def train():\n    import jax\n", env={"JAX_PLATFORMS": platforms})
    assert cause(result) == "hidden"
    assert result.failure is not None
    assert result.failure.message == f"JAX_PLATFORMS={platforms} keeps JAX 0.8.1 from the GPU granted"
    assert str(result.failure.fix).count("UPSHIFT_MAY_MISS=jax") == 1


@pytest.mark.parametrize("platforms", ["", "cuda", "gpu,cpu"])
def test_jax_that_may_use_gpus_is_content(machine: Machine, platforms: str) -> None:
    fake_jax(machine.packages)
    result = machine.run("def train():\n    import jax\n", env={"JAX_PLATFORMS": platforms})
    assert result.failure is None


def test_jax_with_a_plugin_sees_what_the_driver_shows(machine: Machine) -> None:
    fake_jax(machine.packages)
    result = machine.run("def train():\n    import jax\n    return 'trained'\n")
    assert machine.bench.output(result) == "trained"
    assert result.seen is not None
    assert result.seen.details["frameworks"][0]["built_for"] == "cuda 13"


def test_a_framework_that_another_package_imports_is_no_reason_to_stop(machine: Machine) -> None:
    fake_tensorflow(machine.packages, cuda=None)
    helper = machine.packages / "tensorboard.py"
    helper.write_text("import tensorflow\n")
    result = machine.run(
        "def train():\n    import tensorboard\n    return 'trained'\n",
    )
    assert machine.bench.output(result) == "trained"
    log = machine.bench.log(result).decode()
    assert "is built for CPUs only: it cannot use the GPU granted. The step continues." in log


def test_a_package_that_imports_pytorch_is_no_excuse(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None, version="2.13.0+cpu")
    (machine.packages / "lightning.py").write_text("import torch\n")
    result = machine.run("def train():\n    import lightning\n")
    assert cause(result) == "cpu-only"
    assert result.failure is not None and result.failure.where == "steps.py:2"


def test_a_framework_beside_one_that_sees_everything_may_see_less(machine: Machine) -> None:
    fake_torch(machine.packages)
    fake_tensorflow(machine.packages, cuda=None)
    result = machine.run("def train():\n    import torch, tensorflow\n    return 'trained'\n")
    assert machine.bench.output(result) == "trained"
    assert not result.degraded


def test_the_user_may_say_that_a_framework_needs_no_devices(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(LATE, env={"UPSHIFT_MAY_MISS": "jax, torch"})
    assert machine.bench.output(result) == "trained"
    assert b"granted. The step continues, as UPSHIFT_MAY_MISS says." in machine.bench.log(result)
    assert result.degraded and result.seen is not None
    assert result.seen.details["missed_by"] == ["torch"]


def test_a_name_that_is_no_framework_is_told(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(LATE, env={"UPSHIFT_MAY_MISS": "pytorch"})
    assert cause(result) == "cpu-only"
    log = machine.bench.log(result).decode()
    assert "upshift: UPSHIFT_MAY_MISS=pytorch is invalid. Did you mean 'torch'? Known: jax, " in log


@pytest.mark.parametrize("vendor", ["neuron", "tpu", "habana"])
def test_devices_that_frameworks_show_otherwise_are_recorded_only(machine: Machine, vendor: str) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(LATE, vendor=vendor)
    assert machine.bench.output(result) == "trained"
    assert result.seen is not None and result.seen.details["frameworks"][0]["name"] == "torch"


# -- the step cannot get around it ----------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "    try:\n        import torch\n    except Exception:\n        pass\n    return 1\n",
        "    try:\n        import torch\n    except:\n        pass\n    return 1\n",
        "    try:\n        import torch\n    except BaseException:\n        raise ValueError('hidden')\n",
        "    try:\n        import torch\n    finally:\n        raise ValueError('hidden')\n",
        "    import threading\n    t = threading.Thread(target=lambda: __import__('torch'))\n"
        "    t.start(); t.join()\n    return 1\n",
    ],
)
def test_whatever_the_step_does_with_the_exception_the_failure_is_this_one(
    machine: Machine, body: str
) -> None:
    fake_torch(machine.packages, cuda=None)
    assert cause(machine.run("def train():\n" + body)) == "cpu-only"


def test_a_step_that_goes_on_regardless_is_ended(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(
        "def train():\n"
        "    import threading\n"
        "    try:\n        import torch\n    except BaseException:\n        pass\n"
        "    threading.Event().wait()\n"
    )
    assert cause(result) == "cpu-only"


def test_what_the_step_has_to_put_in_order_it_may(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(
        "def train():\n    try:\n        import torch\n    finally:\n        print('in order')\n"
    )
    assert cause(result) == "cpu-only"
    assert b"in order" in machine.bench.log(result)


# -- the import is left alone ---------------------------------------------------------------------


def test_an_import_that_fails_fails_as_ever_and_may_be_tried_again(machine: Machine) -> None:
    mark = machine.bench.folder / "mark"
    fake_torch(
        machine.packages,
        more=f"""
        import os
        if not os.path.exists({str(mark)!r}):
            open({str(mark)!r}, "w").close()
            raise ImportError("libtorch.so: not yet")
        """,
    )
    result = machine.run(
        "def train():\n"
        "    try:\n        import torch\n    except ImportError as error:\n        print(error)\n"
        "    import torch\n    return torch.__version__\n"
    )
    assert machine.bench.output(result) == "2.13.0+cu130"
    assert b"libtorch.so: not yet" in machine.bench.log(result)
    assert result.seen is not None and len(result.seen.details["frameworks"]) == 1


def test_modules_look_as_if_nobody_had_looked(machine: Machine) -> None:
    fake_torch(machine.packages)
    result = machine.run(
        "def train():\n"
        "    import importlib, importlib.util, inspect, sys\n"
        "    assert importlib.util.find_spec('torch').origin.endswith('torch/__init__.py')\n"
        "    assert 'torch' not in sys.modules\n"
        "    import torch\n"
        "    assert type(torch.__loader__).__name__ == 'SourceFileLoader'\n"
        "    assert vars(torch.__loader__).keys() == {'name', 'path'}\n"
        "    assert torch.__spec__.loader is torch.__loader__\n"
        "    assert 'cu130' in inspect.getsource(torch)\n"
        "    return importlib.reload(torch).__version__\n"
    )
    assert machine.bench.output(result) == "2.13.0+cu130"


def test_threads_that_import_at_once_get_the_same_module(machine: Machine) -> None:
    fake_torch(machine.packages)
    result = machine.run(
        "def train():\n"
        "    import threading\n"
        "    found = []\n"
        "    def get(): found.append(__import__('torch'))\n"
        "    threads = [threading.Thread(target=get) for _ in range(8)]\n"
        "    for t in threads: t.start()\n"
        "    for t in threads: t.join()\n"
        "    return len(found), len(set(map(id, found)))\n"
    )
    assert machine.bench.output(result) == (8, 1)
    assert result.seen is not None and len(result.seen.details["frameworks"]) == 1


def test_a_file_of_the_users_with_the_name_of_a_framework_is_not_judged(machine: Machine) -> None:
    (machine.bench.folder / "jax.py").write_text("answer = 42\n")
    result = machine.run("def train():\n    import jax\n    return jax.answer\n")
    assert machine.bench.output(result) == 42
    assert result.seen is not None and "it does not tell" in result.seen.details["frameworks"][0]["problem"]


def test_processes_that_the_step_forks_import_what_they_like(machine: Machine) -> None:
    fake_torch(machine.packages, cuda=None)
    result = machine.run(
        "def train():\n"
        "    import os\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        import torch\n"
        "        os._exit(7)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
    )
    assert machine.bench.output(result) == 7


# -- memory of a device ---------------------------------------------------------------------------


def test_gpu_memory_that_ran_out_is_told_apart_from_host_memory(machine: Machine) -> None:
    text = (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
        "1.23 GiB is free. Including non-PyTorch memory, this process has 77.91 GiB memory in use."
    )
    result = machine.run(
        "class OutOfMemoryError(RuntimeError):\n    __module__ = 'torch'\n"
        f"def train():\n    raise OutOfMemoryError({text!r})\n"
    )
    failure = result.failure
    assert failure is not None and failure.reason == "out-of-memory"
    assert failure.message.startswith("GPU 0 is out of memory (NVIDIA H100): 21.5 GB could not be allocated")
    assert failure.where == "steps.py:4"
    assert failure.memory is None  # more memory of the host would not help
    assert failure.fix is not None and 'gpu_memory=">=106GB"' in failure.fix
    assert failure.traceback is not None and "Tried to allocate 20.00 GiB" in failure.traceback


def test_host_memory_that_pytorch_wants_is_host_memory(machine: Machine) -> None:
    pytest.importorskip("torch")
    result = machine.run("def train():\n    import torch\n    torch.empty(10**15)\n", granted=0)
    failure = result.failure
    assert failure is not None and failure.reason == "out-of-memory"
    assert failure.message == "host memory ran out: 4 PB could not be allocated"
    assert failure.memory is not None
    assert failure.fix is not None and "memory=…" in failure.fix


@pytest.mark.parametrize(
    "line", ['{"diagnosis": 3}', '{"framework": {}}', '{"diagnosis": {"failure": {}}}', '{"framework": [1]}']
)
def test_what_a_step_writes_to_its_supervisor_itself_does_no_harm(machine: Machine, line: str) -> None:
    result = machine.run(
        "def train():\n"
        "    import upshift.runtime.messages as m\n"
        f"    m.channel.write({line!r}.encode() + b'\\n')\n"
        "    return 'trained'\n"
    )
    assert machine.bench.output(result) == "trained"
