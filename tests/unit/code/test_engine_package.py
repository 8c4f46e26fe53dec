"""What can be relied on of the engine's package: it does a run under any Python, with nothing installed."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from test_bootstrap import started
from test_runtime_package import VERSIONS, interpreter

from upshift.code import runtime_package as package
from upshift.code.runtime_package import bootstrap, engine_package, runtime_blob
from upshift.errors import MissingExtra
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def names(store: Store, *extras: str) -> list[str]:
    with zipfile.ZipFile(store.blob_path(engine_package(store, extras=extras))) as archive:
        return archive.namelist()


def test_it_holds_all_of_upshift_and_nothing_compiled(store: Store) -> None:
    held = names(store)
    assert {"__main__.py", "upshift/cli/detached.py", "upshift/engine/run.py"} <= set(held)
    assert {"_vendor/click/__init__.py", "_vendor/cloudpickle/cloudpickle.py"} <= set(held)
    assert not [name for name in held if name.endswith((".so", ".pyc"))]
    assert not [name for name in held if name.startswith("_vendor/boto")]
    assert [name for name in held if name.startswith("_vendor/attrs-") and "LICENSE" in name]


def test_clients_of_aws_are_in_it_where_they_are_asked_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3  # which imports six, as the backend does: that takes itself for a package then

    assert boto3.__version__
    held = names(store, "aws")
    assert [name for name in held if name.startswith("_vendor/six")][-1] == "_vendor/six.py"
    of_services = {name.split("/")[3] for name in held if name.startswith("_vendor/botocore/data/")}
    assert {"batch", "logs", "endpoints.json"} <= of_services and "ec2" not in of_services
    monkeypatch.setitem(package.EXTRAS, "aws", {"boto3": ("no_such_module",)})
    with pytest.raises(MissingExtra, match="an engine elsewhere needs boto3") as error:
        engine_package(open_store(str(tmp_path / "other")), extras=("aws",))
    assert error.value.fix == 'pip install "upshift[aws]"'


def test_the_same_files_give_the_same_package(store: Store, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    assert engine_package(store) == engine_package(other) != engine_package(store, extras=("aws",))


@pytest.mark.parametrize("version", [one for one in VERSIONS if interpreter(one)])
def test_an_engine_can_be_imported_with_nothing_installed_and_makes_the_same_runtime(
    version: str, store: Store, tmp_path: Path
) -> None:
    address = f"{store.address}/{blob_key(engine_package(store, extras=('aws',)))}"
    program = tmp_path / "more"
    program.mkdir()
    (program / "tried.py").write_text(
        "import sys, click, upshift.cli.detached, upshift.authoring.resume, upshift.engine.run\n"
        "import upshift.backends.kubernetes.backend, upshift.backends.batch.backend\n"
        "from upshift.backends.batch.api import Api\n"
        "from upshift.code.runtime_package import runtime_blob\n"
        "from upshift.runtime.storage.store import open_store\n"
        "Api('eu-west-1')._client('batch').meta.service_model.operation_names\n"
        "assert not [name for name in ('blake3', 'psutil', 'rich', 'jinja2') if name in sys.modules]\n"
        "print(__name__, sys.argv[1:], runtime_blob(open_store(sys.argv[1])))\n"
    )
    python = interpreter(version)
    assert python is not None
    done = subprocess.run(
        [python, "-Sc", bootstrap(store.address), address, "-m", "tried", str(tmp_path / "new"), "two"],
        env={**os.environ, "UPSHIFT_NODE_HOME": str(tmp_path / "node"), "PYTHONPATH": str(program)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout == f"__main__ {[str(tmp_path / 'new'), 'two']!r} {runtime_blob(store)}\n"


def test_further_packages_can_be_imported_from(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("theirs.py", "import upshift.engine; print('theirs', upshift.engine.__name__)")
    digest, _ = store.put((tmp_path / "more.zip").read_bytes(), algorithm="sha256")
    addresses = [f"{store.address}/{blob_key(one)}" for one in (engine_package(store), digest)]
    done = started(*addresses, "-m", "theirs", UPSHIFT_NODE_HOME=str(tmp_path / "node"))
    assert (done.stdout, done.stderr) == ("theirs upshift.engine\n", "")
