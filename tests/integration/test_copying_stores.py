"""``upshift store copy`` and ``upshift store check``, from outside: folders and buckets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from buckets import BucketHere
from project import Project

PIPELINE = """
from pathlib import Path

@step
def numbers(n: int) -> list[bytes]:
    return [bytes([x]) * 400_000 for x in range(n)]

@step
def square(x: bytes) -> bytes:
    print("squaring", x[0])
    return bytes([x[0] ** 2]) * 500_000

@step
def folder(values: list[bytes]) -> Path:
    out = Path("made")
    out.mkdir()
    for number, value in enumerate(values):
        (out / f"{number} ä.bin").write_bytes(value)
    (out / "empty").touch()
    return out

@pipeline
def squares(n: int = 3, name: str = "a"):
    return folder(square.map(x=numbers(n)))
"""


def copy(
    project: Project, source: object, destination: object, *args: str, expect: int = 0
) -> dict[str, Any]:
    done = project.upshift("store", "copy", str(source), str(destination), "--json", *args, expect=expect)
    said: dict[str, Any] = json.loads(done.out)
    return said


def check(project: Project, store: object, expect: int = 0) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(
        project.upshift("store", "check", str(store), "--json", expect=expect).out
    )
    return said


def seen(project: Project) -> list[str]:
    """All that users can see of all runs, but for where their stores are."""
    runs = sorted(run["id"] for run in json.loads(project.upshift("runs", "--json").out))
    told = []
    for run in runs:
        shown = json.loads(project.upshift("show", run, "--json").out)
        shown.pop("store", None)
        told += [json.dumps(shown), project.upshift("logs", run).out]
    return [*told, project.upshift("artifacts", "show", "squares/folder@1", "--json").out]


@pytest.fixture
def ran(project: Project) -> Project:
    """A project whose second run has results of the first."""
    project.run(PIPELINE)
    project.upshift("run", "pipeline.py", "-p", "name=b")
    return project


@pytest.fixture(params=["folder", "bucket", "google_bucket", "container"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty place of each kind."""
    if request.param == "folder":
        return str(tmp_path / "archive")
    here = request.getfixturevalue(request.param)
    return f"az://{here}/team/archive" if request.param == "container" else f"{here.address}/team/archive"


def test_runs_come_back_from_an_archive_as_they_were(ran: Project, archive: str) -> None:
    store = ran.home / "store"
    before = seen(ran)
    first = copy(ran, store, archive)
    assert len(first["runs"]) == 2 and first["values"] > 4 and not first["problems"]
    again = copy(ran, store, archive)
    assert (again["values"], again["values_there_already"]) == (0, first["values"])
    whole = check(ran, archive)
    assert (whole["runs"], whole["values"], whole["problems"]) == (2, first["values"], [])
    shutil.rmtree(ran.home)
    back = copy(ran, archive, store)
    assert (back["values"], back["problems"]) == (first["values"], [])
    assert seen(ran) == before
    assert check(ran, store)["problems"] == []
    assert "3 reused" in ran.upshift("plan", "pipeline.py").out
    removed = json.loads(ran.upshift("gc", "--json").out)["removed"]
    assert "values" not in removed and "results" not in removed  # gc knows all of it


def test_one_run_comes_with_the_results_that_it_has_of_others(
    ran: Project, bucket: BucketHere, tmp_path: Path
) -> None:
    newest, _ = (run["id"] for run in json.loads(ran.upshift("runs", "--json").out))
    shown = ran.upshift("show", newest, "--json").out
    assert copy(ran, ran.home / "store", bucket.address, "--run", newest[:-2])["runs"] == [newest]
    assert check(ran, bucket.address)["problems"] == []
    shutil.rmtree(ran.home)
    copy(ran, bucket.address, ran.home / "store", "--run", newest)
    assert ran.upshift("show", newest, "--json").out == shown
    assert [run["id"] for run in json.loads(ran.upshift("runs", "--json").out)] == [newest]
    json.loads(ran.upshift("gc", "--json").out)
    assert check(ran, ran.home / "store")["problems"] == []  # also after gc has had a look


def test_what_is_damaged_or_missing_is_named(ran: Project, bucket: BucketHere, tmp_path: Path) -> None:
    archive = f"{bucket.address}/a"
    copy(ran, ran.home / "store", archive)
    listed = bucket.boto3.list_objects_v2(Bucket=bucket.name)["Contents"]
    keys = [found["Key"] for found in listed]
    large = [found["Key"] for found in listed if found["Size"] == 500_001]
    result = next(key for key in keys if key.endswith(".result.json"))
    bucket.boto3.delete_object(Bucket=bucket.name, Key=large[0])
    bucket.boto3.put_object(Bucket=bucket.name, Key=large[1], Body=b"x" * 500_001)
    bucket.boto3.put_object(Bucket=bucket.name, Key=result, Body=b"torn")
    problems = check(ran, archive, expect=1)["problems"]
    missing, damaged = ("".join(key.split("/")[-2:]) for key in large[:2])
    assert [p for p in problems if f"blob {missing} is missing; runs/" in p and "needs it" in p]
    assert [p for p in problems if f"blob {damaged} is damaged: its content has the digest" in p]
    assert [p for p in problems if p == f"{result.removeprefix('a/')}: it does not match its checksum"]
    told = ran.upshift("store", "check", archive, expect=1)
    assert "Damaged or missing:\n" in told.out
    lost = copy(ran, archive, tmp_path / "other", expect=1)["problems"]
    assert any(missing in p for p in lost) and any(damaged in p for p in lost)
    copy(ran, ran.home / "store", archive, "--again")
    assert check(ran, archive)["problems"] == []


def test_a_damaged_value_of_a_folder_is_replaced_by_a_copy(ran: Project, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    copy(ran, ran.home / "store", archive)
    blob = max((ran.home / "store/blobs").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert len(check(ran, ran.home / "store", expect=1)["problems"]) == 1
    assert copy(ran, archive, ran.home / "store")["values"] == 1
    assert check(ran, ran.home / "store")["problems"] == []


def test_a_run_that_has_not_ended_is_left_out(ran: Project, tmp_path: Path) -> None:
    run = json.loads(ran.upshift("runs", "--json").out)[0]["id"]
    record = ran.home / "store/runs" / run / "run.json"
    record.write_text(record.read_text().replace('"completed"', '"running"'))
    done = ran.upshift("store", "copy", str(ran.home / "store"), str(tmp_path / "archive"))
    assert f"Run {run} is left out: it has not ended." in done.out and "Copied 1 run and" in done.out


def test_what_makes_no_sense_is_refused(ran: Project, bucket: BucketHere, tmp_path: Path) -> None:
    store = str(ran.home / "store")
    for args, words in (
        (["copy", store, store], "source and destination are the same store"),
        (["copy", store, bucket.address, "--run", "nobody"], "has the id 'nobody'"),
        (["copy", store, "hdfs://bucket"], "a store at hdfs:// is not supported"),
        (["copy", str(tmp_path / "nothing"), bucket.address], "there is no store"),
        (["check", str(tmp_path / "nothing")], "there is no store"),
        (["check", "s3://"], "cannot be the name of a bucket"),
    ):
        assert words in ran.upshift("store", *args, expect=2).err
    assert (
        "there is no bucket 'no-such-bucket'"
        in ran.upshift("store", "check", "s3://no-such-bucket", expect=1).err
    )
    bucket.boto3.put_object(Bucket=bucket.name, Key="new/format", Body=b"99\n")
    told = ran.upshift("store", "check", f"{bucket.address}/new", expect=2).err
    assert "was made by a newer version of Upshift" in told


def test_without_credentials_it_says_where_they_could_come_from(
    ran: Project, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = ran.upshift("store", "copy", str(ran.home / "store"), bucket.address, expect=1).err
    assert "no AWS credentials were found" in told and "Traceback" not in told
