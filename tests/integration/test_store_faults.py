"""A full disk, a read-only store, content that is damaged or gone."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

import upshift
from project import UPSHIFT, Outcome, Project

CHAIN = """
import numpy as np

def note(name):
    with open("ran.log", "a") as log:
        log.write(name + "\\n")

@step
def make(n: int) -> np.ndarray:
    note("make")
    return np.arange(n, dtype=np.float64)

@step
def total(data: np.ndarray) -> float:
    note("total")
    return float(data.sum())

@pipeline
def example(n: int = 1_000_000):
    return total(make(n))
"""


def ran(project: Project) -> list[str]:
    log = Path(project.folder, "ran.log")
    return log.read_text().split() if log.exists() else []


def blobs(project: Project) -> list[Path]:
    return [p for p in (project.home / "store" / "blobs").rglob("*") if p.is_file()]


def big_blob(project: Project) -> Path:
    (blob,) = [b for b in blobs(project) if b.stat().st_size > 8_000_000]
    return blob


def mounted(project: Project, options: str, then: str = "") -> Outcome:
    """Run the pipeline with a tmpfs as its store, in a mount namespace that ends with the command."""
    store = project.home / "store"
    store.mkdir(parents=True)
    script = (
        f"mount -t tmpfs -o {options} tmpfs {shlex.quote(str(store))} && {then or 'true'} && "
        f"exec {shlex.quote(UPSHIFT)} run pipeline.py"
    )
    namespace = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    return project.call(["unshare", *namespace, "sh", "-c", script])


@pytest.mark.parametrize("size", ["4m", "64k"])
def test_a_full_disk_is_named_with_its_folder_and_what_to_do(project: Project, size: str) -> None:
    project.write(CHAIN)
    outcome = mounted(project, f"size={size}")
    assert outcome.code == 1, outcome.text
    assert "No space left" in outcome.err
    assert str(project.home / "store") in outcome.err
    assert "Traceback" not in outcome.err


def test_after_a_full_disk_resume_completes_the_run(project: Project) -> None:
    project.write(CHAIN)
    # The store survives the failure here: a folder whose file system is full only for a while.
    outcome = mounted(project, "size=4m")
    assert outcome.code == 1
    project.upshift("run", "pipeline.py")
    assert upshift.get_run("latest").output == sum(range(1_000_000))


def test_a_read_only_store_is_named_before_anything_runs(project: Project) -> None:
    project.write(CHAIN)
    store = shlex.quote(str(project.home / "store"))
    outcome = mounted(project, "size=64m", then=f"mount -o remount,ro {store}")
    assert outcome.code in (1, 2), outcome.text
    assert str(project.home / "store") in outcome.err
    assert "Read-only" in outcome.err or "read-only" in outcome.err
    assert "Traceback" not in outcome.err
    assert ran(project) == []


def test_a_store_that_is_a_file(project: Project) -> None:
    project.write(CHAIN)
    project.home.mkdir()
    (project.home / "store").write_text("not a folder")
    outcome = project.upshift("run", "pipeline.py", expect=None)
    assert outcome.code in (1, 2)
    assert str(project.home / "store") in outcome.err


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "gone"])
def test_the_producer_of_damaged_content_runs_again(project: Project, damage: str) -> None:
    project.run(CHAIN)
    blob = big_blob(project)
    content = bytearray(blob.read_bytes())
    before = blob.stat()
    if damage == "flipped":  # in place, with the times of before
        blob.chmod(0o644)
        with blob.open("r+b") as file:
            file.seek(4_000_000)
            file.write(bytes([content[4_000_000] ^ 0xFF]))
        os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        blob.unlink()
    if damage == "truncated":
        blob.write_bytes(content[:5_000_000])
    elif damage == "emptied":
        blob.write_bytes(b"")
    # A change in the last step makes its input needed again.
    project.write(CHAIN.replace("float(data.sum())", "float(data.sum() + 1)"))
    project.upshift("run", "pipeline.py")
    assert upshift.get_run("latest").output == sum(range(1_000_000)) + 1
    assert ran(project) == ["make", "total", "make", "total"]
    statuses = {s["name"]: s["tasks"][0]["cached"] for s in project.show()["steps"]}
    assert statuses == {"make": False, "total": False}


def test_what_is_not_needed_again_is_not_made_again(project: Project) -> None:
    project.run(CHAIN)
    project.upshift("run", "pipeline.py")
    assert ran(project) == ["make", "total"]


def test_reading_a_damaged_output_says_so(project: Project) -> None:
    project.run(CHAIN)
    blob = big_blob(project)
    content = bytearray(blob.read_bytes())
    content[-1] ^= 0xFF
    blob.unlink()
    blob.write_bytes(content)
    make = upshift.get_run("latest")["make"]
    with pytest.raises(upshift.UpshiftError, match="digest"):
        _ = make.output


def test_a_catalog_that_is_gone_loses_no_work(project: Project) -> None:
    project.run(CHAIN)
    for file in project.home.glob("catalog.db*"):
        file.unlink()
    project.upshift("run", "pipeline.py")
    assert upshift.get_run("latest").output == sum(range(1_000_000))
