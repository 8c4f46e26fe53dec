"""What a step imports works as what that distribution requires."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project

from upshift.code.fingerprint import installed
from upshift.code.fingerprint.installed import required

Install = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from fresh_project(tmp_path, monkeypatch)


def forget() -> None:
    """As a new process would begin."""
    for kept in (installed.modules_in, installed.metadata_of):
        kept.cache_clear()
    for known in (installed._required, installed._places, installed._known):
        known.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution into a folder of ``sys.path``, in place of another version of it."""
    target = tmp_path / "site"
    target.mkdir()
    monkeypatch.syspath_prepend(str(target))

    def put(name: str, version: str, *requires: str) -> None:
        for old in target.glob(f"{name}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        metadata = target / f"{name}-{version}.dist-info"
        metadata.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", *(f"Requires-Dist: {one}" for one in requires)]
        (metadata / "METADATA").write_text("\n".join([*lines, "", "Requires-Dist: described"]))
        (metadata / "RECORD").write_text(f"{name}.py,,\n")
        (target / f"{name}.py").write_text("def f(x): return x\n")
        forget()

    yield put
    forget()
    for name in ("ta", "tb", "tc"):
        sys.modules.pop(name, None)


def test_what_is_required_below_counts_with_its_version(project: Project, install: Install) -> None:
    install("ta", "1.0", "tb>=1")
    install("tb", "1.0", "tc", "ta")
    install("tc", "1.0")
    project.write({"pipe.py": "import ta\ndef step(x): return ta.f(x)\n"})

    before = project.fingerprint()
    install("tc", "1.1")
    after = project.fingerprint()

    assert {name: what for name, what in before.items() if "package" in name} == {
        "package ta": "1.0",
        "required package tb": "1.0",
        "required package tc": "1.0",
    }
    assert after == {**before, "required package tc": "1.1"}


def test_extras_count_where_they_are_asked_for(install: Install) -> None:
    install("ta", "1.0", "tb[Fast]; python_version >= '3'")
    install("tb", "1.0", 'tc; extra == "fast"', 'td; extra == "slow"')
    install("tc", "2.0")
    install("td", "2.0")
    assert required("ta") == {"tb": "1.0", "tc": "2.0"}
    assert required("tb") == {}
    install("ta", "1.0", "tb; sys_platform == 'nowhere'")
    assert required("ta") == {"tb": "1.0"}, "what is installed counts, wherever it is required"


def test_what_is_not_installed_counts_when_it_is(install: Install) -> None:
    install("ta", "1.0", "t-b.x (>=1,<3)")
    assert required("ta") == {}
    install("t_b_x", "1.0")
    assert required("ta") == {"t-b-x": "1.0"}


def test_metadata_is_read_again_when_it_is_another(install: Install, tmp_path: Path) -> None:
    install("tb", "1.0")
    install("ta", "1.0", "tb")
    assert required("ta") == {"tb": "1.0"}
    metadata = tmp_path / "site" / "ta-1.0.dist-info" / "METADATA"
    stamp = metadata.stat()
    metadata.write_text("Name: ta\n" + " " * (stamp.st_size - 9))
    os.utime(metadata, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    forget()
    assert required("ta") == {"tb": "1.0"}, "it is kept as long as the file looks the same"
    os.utime(metadata, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    forget()
    assert required("ta") == {}


def test_an_extra_counts_where_it_is_asked_for() -> None:
    assert installed._holds(None, ())
    assert installed._holds("python_version < '3.11'", ())
    assert installed._holds('extra == "a-b" or extra == "c"', ("a-b",))
    assert not installed._holds("(extra == 'a' or extra == 'b') and os_name != ''", ("c",))
