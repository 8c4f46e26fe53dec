"""What can be relied on of the runtime: it works under any Python from 3.10 on, with nothing installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nvml import FakeNvml
from upshift.code import memo
from upshift.code import runtime_package as runtime
from upshift.code.runtime_package import runtime_blob
from upshift.errors import StoreError
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.store import Store, open_store

VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """A Python of this minor version that can be started, from pyenv or from the PATH."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    for candidate in [*map(str, reversed(installed)), *([on_path] if on_path else [])]:
        asked = [candidate, "-ISc", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return candidate
    return None


@pytest.fixture(params=[found for found in map(interpreter, VERSIONS) if found])
def python(request: pytest.FixtureRequest) -> list[str]:
    """The command of a Python that sees no installed package; each one that this machine has."""
    return [request.param, "-I", "-S"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def names(store: Store) -> list[str]:
    with zipfile.ZipFile(store.blob_path(runtime_blob(store))) as archive:
        return archive.namelist()


def test_it_holds_upshift_and_what_that_needs_and_nothing_compiled(store: Store) -> None:
    held = names(store)
    assert {"__main__.py", "upshift/__init__.py", "upshift/runtime/__main__.py"} <= set(held)
    assert {"_vendor/attr/__init__.py", "_vendor/attrs/__init__.py", "_vendor/threadpoolctl.py"} <= set(held)
    assert {"_vendor/cloudpickle/cloudpickle.py", "_vendor/pynvml.py"} <= set(held)
    assert {name.rpartition(".")[2] for name in held if "/licenses/" not in name} == {"py", "typed"}
    assert sum("/licenses/" in name for name in held) >= 2


def test_engine_backends_and_views_stay_at_home(store: Store) -> None:
    rooms = {name.split("/")[1] for name in names(store) if name.startswith("upshift/")}
    assert rooms == set(runtime.TRAVELS)


def test_the_same_files_give_the_same_blob(store: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    assert runtime_blob(store) == runtime_blob(other)
    other.check(runtime_blob(other))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small Upshift whose changes are seen at once."""
    monkeypatch.setattr(memo, "SETTLED", -(10**18))
    folder = tmp_path / "upshift"
    folder.mkdir()
    (folder / "__init__.py").write_text("one = 1\n")
    monkeypatch.setattr(runtime, "_home_of_upshift", lambda: str(folder))
    return folder


@pytest.mark.usefixtures("package")
def test_it_is_made_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = runtime_blob(store)
    monkeypatch.setattr(runtime, "_sources", None)
    assert runtime_blob(store) == digest
    with pytest.raises(TypeError):  # another store does not have it, so it has to be made
        runtime_blob(open_store(str(tmp_path / "other")))


def test_a_changed_file_makes_another_blob(store: Store, package: Path) -> None:
    first = runtime_blob(store)
    (package / "__init__.py").write_text("two = 2\n")
    second = runtime_blob(store)
    (package / "runtime").mkdir()
    (package / "runtime" / "new.py").write_text("")
    third = runtime_blob(store)
    (package / "engine").mkdir()
    assert len({first, second, third}) == 3 and runtime_blob(store) == third


def test_upshift_that_is_no_folder_of_files_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_home_of_upshift", lambda: str(tmp_path / "some.zip" / "upshift"))
    with pytest.raises(StoreError, match="is not a folder with Python files"):
        runtime_blob(store)


def test_it_can_be_imported_with_nothing_installed(python: list[str], store: Store) -> None:
    blob = store.blob_path(runtime_blob(store))
    code = (
        f"import sys; sys.path.insert(0, {str(blob)!r}); sys.path.append({str(blob / '_vendor')!r})\n"
        "import upshift, upshift.config, upshift.integrations.huggingface.steps\n"
        "for name in upshift.__all__: getattr(upshift, name)\n"
        "import importlib, pkgutil, upshift.runtime\n"
        "for found in pkgutil.walk_packages(upshift.runtime.__path__, 'upshift.runtime.'):\n"
        "    try: found.name.endswith('__main__') or importlib.import_module(found.name)\n"
        "    except ModuleNotFoundError as error: assert not error.name.startswith('upshift'), error\n"
        "print(upshift.model.spec.__file__, __import__('attrs').__file__)\n"
    )
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == [
        f"{blob}/upshift/model/spec/__init__.py",
        f"{blob}/_vendor/attrs/__init__.py",
    ]


def test_an_older_attrs_of_the_image_does(python: list[str], store: Store) -> None:
    blob = store.blob_path(runtime_blob(store))
    code = (
        f"import sys; sys.path.insert(0, {str(blob)!r}); sys.path.append({str(blob / '_vendor')!r})\n"
        "import attr, attrs\n"
        "for package in (attr, attrs):\n"
        "    for new in ('Converter', 'ClassProps', 'NothingType', 'inspect'):\n"  # since 23.2
        "        vars(package).pop(new, None)\n"
        "import upshift, upshift.runtime.supervisor.attempt\n"
        "for name in upshift.__all__: getattr(upshift, name)\n"
        "try: upshift.ResourceSettings(gpu_count='x')\n"
        "except upshift.errors.SettingsError as error: print(error.what)\n"
    )
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ResourceSettings: gpu_count='x' is invalid\n", "")


def test_it_finds_gpus_with_nothing_installed(
    python: list[str], store: Store, fake_nvml: Callable[..., FakeNvml]
) -> None:
    blob = store.blob_path(runtime_blob(store))
    code = (
        f"import sys; sys.path.insert(0, {str(blob)!r}); sys.path.append({str(blob / '_vendor')!r})\n"
        "from upshift.runtime.accelerators.agent import discover\n"
        "print([(i.driver, len(i.devices), i.problems) for i in discover(60)])\n"
    )
    environment = {**os.environ, **fake_nvml(2).environment()}
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("[('570.86.15', 2, ())]", "")


def test_packages_of_the_image_come_before_its_own(python: list[str], store: Store, tmp_path: Path) -> None:
    blob = store.blob_path(runtime_blob(store))
    code = (
        f"import runpy, sys; sys.path.append({str(tmp_path)!r})\n"
        f"sys.argv = ['x', '--help']\n"
        f"try: runpy.run_path({str(blob)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "import threadpoolctl; print(threadpoolctl.__file__)\n"
    )
    (tmp_path / "threadpoolctl.py").write_text("")
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(tmp_path / "threadpoolctl.py")


def test_it_runs_a_spec_with_nothing_installed(python: list[str], store: Store, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "steps.py").write_text(
        "import sys\n"
        "def double(number, text):\n"
        "    print('in the step')\n"
        "    return {'doubled': number * 2, 'text': text, 'python': '%d.%d' % sys.version_info[:2]}\n"
    )
    spec = TaskSpec(
        task=TaskId(run="run1", step="double"),
        attempt=1,
        pipeline="p",
        entry=EntryPoint(module="steps", qualname="double"),
        code=Code(project=str(project), paths=(".",)),
        store=store.address,
        runtime=runtime_blob(store),
        inputs={"number": save(21, store), "text": save("x" * 5000, store)},
        cwd=str(tmp_path),
    )
    path = store.root / store.write_spec(spec)
    assert spec.runtime is not None
    command = [*python[:1], str(store.blob_path(spec.runtime)), str(path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {
        "PYTHONNOUSERSITE": "1"
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = store.read_result(spec.task, 1)
    assert result is not None
    assert result.status == "completed"
    value = load(result.outputs["output"], store)
    version = subprocess.run(
        [*python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    )
    assert value == {"doubled": 42, "text": "x" * 5000, "python": version.stdout.strip()}
    assert "in the step" in store.log_path(spec.task, 1).read_text()


def test_a_run_that_is_started_beside_it_is_refused_in_words(store: Store, tmp_path: Path) -> None:
    blob = store.blob_path(runtime_blob(store))
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(blob)!r}); sys.path.append({str(blob / '_vendor')!r})\n"
        "from upshift import pipeline\n"
        "@pipeline\ndef empty(): pass\nempty()\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", str(script)], capture_output=True, text=True)
    assert "does not travel with a step" in done.stderr and "fix:" in done.stderr
    assert "upshift/authoring" not in done.stderr


def test_the_blob_does_not_depend_on_who_makes_it(store: Store) -> None:
    code = (
        "import sys; from upshift.code.runtime_package import runtime_blob\n"
        "from upshift.runtime.storage.store import open_store; print(runtime_blob(open_store(sys.argv[1])))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, store.address], capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == runtime_blob(store)
