"""Runs whose store is a bucket, from outside: two homes, as two machines that share nothing else."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buckets import BucketHere
from counted import Requests
from postgres_here import postgres_here
from project import Project
from upshift.runs.checking import check_store
from upshift.runtime.storage.objects import open_objects

SQUARES = """
from pathlib import Path
import upshift

@step
def numbers(n: int) -> list[bytes]:
    return [bytes([x]) * 400_000 for x in range(n)]

@step
def square(x: bytes) -> bytes:
    print("squaring", x[0])
    upshift.log(loss=1 / (1 + x[0]))
    return bytes([x[0] ** 2]) * 500_000

@step
def folder(values: list[bytes], name: str) -> Path:
    out = Path(f"made-{name}")
    out.mkdir()
    for number, value in enumerate(values):
        (out / f"{number} ä.bin").write_bytes(value)
    return out

@step
def names(made: Path) -> list[str]:
    return sorted(path.name for path in made.iterdir())

@pipeline
def squares(n: int = 3, name: str = "a"):
    return names(folder(square.map(x=numbers(n)), name))
"""
WAITING = """
from pathlib import Path

@step
def data() -> int:
    with open("ran", "a") as file:
        file.write("data ")
    return 5

@step
def slow(x: int) -> int:
    with open("ran", "a") as file:
        file.write("slow ")
    Path("ready").open("w").write("now")
    Path("go").open().read()
    return x + 1

@pipeline
def waiting():
    return slow(data())
"""
TALKING = """
@step(cache=False)
def talk() -> None:
    for number in range(3):
        print("line", number, flush=True)
        open("go").read()
    print("the end", end="", flush=True)

@pipeline
def talking():
    talk()
"""
LATE = """
from pathlib import Path

@step
def big() -> bytes:
    return bytes(2_000_000)

@step
def slow(x: bytes) -> int:
    Path("ready").open("w").write("now")
    Path("go").open().read()
    return len(x)

@pipeline
def early():
    return big()

@pipeline
def late():
    return slow(big())
"""
PATIENCE = 60.0


@pytest.fixture
def store(bucket: BucketHere, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store in a bucket, which every command of this test uses."""
    address = f"{bucket.address}/team"
    monkeypatch.setenv("UPSHIFT_STORE", address)
    return address


@pytest.fixture
def anywhere(place: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same in each cloud."""
    monkeypatch.setenv("UPSHIFT_STORE", f"{place}/team")
    return f"{place}/team"


@pytest.fixture
def second(project: Project, tmp_path: Path) -> Project:
    """The same project, as another machine sees it."""
    return project.with_home(tmp_path / "second-home")


def run_of(project: Project) -> str:
    (run,) = (one["id"] for one in json.loads(project.upshift("runs", "--json").out))
    return str(run)


def seen(project: Project, run: str) -> dict[str, Any]:
    """All that users can see of a run, but for where this machine has it."""
    shown = project.show(run)
    shown.pop("store", None)
    logs = project.upshift("logs", run).out
    artifact = json.loads(project.upshift("artifacts", "show", "squares/folder@1", "--json").out)
    return {**shown, "logs": logs, "artifact": artifact}


def whole(store: str) -> None:
    """Nothing that anything in the store names is missing or damaged."""
    assert check_store(open_objects(store)).problems == []


def until_there(store: str, ending: str) -> None:
    """Wait until the store has an object."""
    until = time.monotonic() + PATIENCE
    while not any(key.endswith(ending) for key in listed(store)):
        assert time.monotonic() < until, f"{store} never had {ending}"
        time.sleep(0.05)


def listed(store: str) -> list[str]:
    return [meta.key for meta in open_objects(store).list("")]


def test_another_machine_sees_a_run_and_reuses_its_results(
    project: Project, second: Project, anywhere: str
) -> None:
    project.run(SQUARES)
    run = run_of(project)
    whole(anywhere)
    assert run_of(second) == run
    assert seen(second, run) == seen(project, run)
    again = second.upshift("run", "pipeline.py")
    assert "squaring" not in again.out
    assert [step["status"] for step in second.show()["steps"]] == ["completed"] * 4
    assert all(task["cached"] for step in second.show()["steps"] for task in step["tasks"])
    whole(anywhere)
    # What is made from there on needs content that only the bucket has.
    other = second.upshift("run", "pipeline.py", "-p", "name=b")
    assert "squaring" not in other.out
    assert second.show()["status"] == "completed"
    whole(anywhere)
    value = second.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value == "['0 ä.bin', '1 ä.bin', '2 ä.bin']\n"


def test_what_is_reused_takes_no_requests_of_its_own(
    project: Project, second: Project, store: str, requests: Requests
) -> None:
    tasks = 60
    code = """
        @step
        def each(x: int) -> int:
            return x + 1

        @pipeline
        def mapped(n: int):
            return each.map(x=list(range(n)))
    """
    project.run(code, "-p", f"n={tasks}")
    for machine in (project, second):
        before = len(requests.lines())
        machine.upshift("run", "pipeline.py", "-p", f"n={tasks}")
        assert all(task["cached"] for task in machine.tasks("each"))
        # Whatever a run itself takes, and its leases while it works: nothing of that is for each task.
        assert len(requests.lines()) - before < tasks


def test_a_report_is_made_on_a_machine_that_has_never_seen_the_run(
    project: Project, second: Project, store: str, tmp_path: Path
) -> None:
    project.run(SQUARES)
    second.upshift("report", run_of(project), "--output", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "squaring 2" in page and "loss" in page


def test_a_run_is_owned_and_cancelled_from_another_machine(
    project: Project, second: Project, store: str
) -> None:
    project.write(WAITING)
    ready = project.fifo("ready")
    project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    until_there(store, "/run.json")
    run = run_of(second)
    assert second.show(run)["status"] == "running"
    assert f"another engine owns run {run}" in second.upshift("resume", run, expect=2).err
    (project.home / "engines" / f"{run}.sock").unlink()
    assert f"run {run} is asked to stop: its engine on" in second.upshift("cancel", run).out
    _, err = engine.communicate()
    assert engine.returncode == 130, err
    assert second.show(run)["status"] == project.show(run)["status"] == "cancelled"
    assert not any("/leases/" in f"/{key}" for key in listed(store))
    whole(store)


def test_a_run_is_followed_from_another_machine_line_by_line(
    project: Project, second: Project, anywhere: str
) -> None:
    project.write(TALKING)
    go = project.fifo("go")
    engine = project.start("run", "pipeline.py")
    until_there(anywhere, "/run.json")
    follower = second.start("logs", "latest", "-f")
    assert follower.stdout is not None
    for number in range(3):
        assert follower.stdout.readline() == f"[talk] line {number}\n"
        go.write_text("on")
    out, err = follower.communicate(timeout=PATIENCE)
    assert (out, follower.returncode) == ("[talk] the end\n", 0), err
    engine.communicate()
    assert second.upshift("logs", "latest").out == project.upshift("logs", "latest").out
    assert second.upshift("logs", "latest").out.count("line") == 3


def test_who_follows_a_run_of_another_machine_asks_the_bucket_now_and_then(
    project: Project, second: Project, store: str, requests: Requests
) -> None:
    project.write(TALKING)
    go = project.fifo("go")
    engine = project.start("run", "pipeline.py")
    until_there(store, "/talk/0.1.log")
    follower = second.start("logs", "latest", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[talk] line 0\n"
    begun, before = time.monotonic(), len(requests.lines())
    for number in (1, 2):
        go.write_text("on")
        assert follower.stdout.readline() == f"[talk] line {number}\n"
    asked, seconds = requests.lines()[before:], time.monotonic() - begun
    go.write_text("on")
    follower.communicate(timeout=PATIENCE)
    engine.communicate()
    lease = f"/leases/{run_of(project)}"
    assert len([line for line in asked if line.endswith(lease)]) <= 5 + 1.5 * seconds


def test_a_log_that_was_seen_in_part_is_shown_whole_later(
    project: Project, second: Project, store: str
) -> None:
    project.write(TALKING)
    go = project.fifo("go")
    engine = project.start("run", "pipeline.py")
    until_there(store, "/talk/0.1.log")
    assert second.upshift("logs", "latest").out == "[talk] line 0\n"
    for number in range(3):
        while f"line {number}" not in project.upshift("logs", "latest").out:
            time.sleep(0.05)
        go.write_text("on")
    engine.communicate()
    assert second.upshift("logs", "latest").out == project.upshift("logs", "latest").out


def test_a_run_whose_engine_was_killed_is_finished_by_another_machine(
    project: Project, second: Project, anywhere: str
) -> None:
    project.write(WAITING)
    ready, go = project.fifo("ready"), project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    until_there(anywhere, "/data/0.1.result.json")
    until_there(anywhere, "/slow/0.1.spec.json")
    until_there(anywhere, "/run.json")
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    whole(anywhere)
    run = run_of(second)
    assert second.show(run)["status"] == "cancelled"  # as an interrupted one is called there
    go.write_text("on")  # the task of the killed engine, whose result the bucket will not see
    go_on = second.start("resume", run)
    assert ready.read_text() == "now"
    go.write_text("on")  # the same task again: what the other machine runs is out of reach
    _, err = go_on.communicate()
    assert go_on.returncode == 0, err
    assert (project.folder / "ran").read_text() == "data slow slow "
    for home in (second, project):
        assert home.show(run)["status"] == "completed"
    assert "already complete" in project.upshift("resume", run).err
    whole(anywhere)


def test_what_a_killed_engine_had_not_published_is_published_by_the_next_run(
    project: Project, second: Project, store: str, bucket: BucketHere
) -> None:
    project.write(WAITING)
    ready, go = project.fifo("ready"), project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    go.write_text("on")
    whole(store)
    project.upshift("run", "pipeline.py", "--help")
    project.write(SQUARES, "other.py")
    assert "is in s3://" in project.upshift("run", "other.py").err
    assert any(key.endswith("/data/0.1.result.json") for key in listed(store))
    assert len(json.loads(second.upshift("runs", "--json").out)) == 2
    whole(store)


def test_a_run_that_the_bucket_did_not_take_says_so_and_is_published_by_resume(
    project: Project, second: Project, store: str, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.upshift("run", str(project.write(SQUARES, "first.py")))
    denied = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:PutObject",
                "Resource": f"arn:aws:s3:::{bucket.name}/team/runs/*",
            }
        ],
    }
    bucket.boto3.put_bucket_policy(Bucket=bucket.name, Policy=json.dumps(denied))
    failed = project.run(SQUARES, "-p", "name=c", expect=None)
    assert failed.code != 0
    run = project.show("latest")["id"]
    assert project.show(run)["status"] == "completed"
    assert f"upshift resume {run}, or the next run here, publishes the rest" in failed.err
    whole(store)
    bucket.boto3.delete_bucket_policy(Bucket=bucket.name)
    assert f"what was left of run {run} is in {store} now" in project.upshift("resume", run).err
    assert second.show(run)["status"] == "completed"
    whole(store)


def test_a_bucket_that_is_not_there_refuses_the_run(
    project: Project, bucket: BucketHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_STORE", f"s3://{bucket.name}-other/team")
    refused = project.run(SQUARES, expect=None)
    assert refused.code != 0
    assert f"{bucket.name}-other" in refused.err
    assert "Traceback" not in refused.err
    assert "squaring" not in refused.out


def test_tags_are_seen_by_other_machines(project: Project, second: Project, store: str) -> None:
    def tags(home: Project) -> str:
        return home.python("-c", "import upshift; print(*upshift.get_run('latest').tags)").out

    project.run(SQUARES)
    assert tags(second) == "\n"
    project.python("-c", "import upshift; upshift.get_run('latest').add_tag('best')")
    assert tags(second) == tags(project) == "best\n"


@pytest.fixture
def shared_catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a database that is the catalog of every command of this test."""
    here = postgres_here()
    with here.database() as name:
        monkeypatch.setenv("UPSHIFT_CATALOG", here.url(name))
        yield name


def test_machines_share_a_catalog_and_a_bucket(
    project: Project, second: Project, store: str, shared_catalog: str
) -> None:
    project.run(SQUARES)
    run = run_of(project)
    assert run_of(second) == run
    assert seen(second, run) == seen(project, run)
    named = postgres_here().run("SELECT DISTINCT store FROM upshift.runs", shared_catalog)
    assert named == [(store,)]
    assert second.run(SQUARES).text.count("reused") == 4
    project.upshift("artifacts", "tag", "squares/folder@1", "best")
    assert "best" in second.upshift("artifacts", "show", "squares/folder@best").out
    # A machine whose home is new has nothing but the address of both.
    third = project.with_home(second.home.with_name("third-home"))
    assert third.run(SQUARES).text.count("reused") == 4
    done = json.loads(third.upshift("gc", "--keep-last", "1", "--json").out)
    assert done["removed"]["runs"]["count"] == 1 and done["failed_stores"] == []
    for home in (project, second, third):
        assert len(json.loads(home.upshift("runs", "--json").out)) == 2
    whole(store)


def test_engines_on_two_machines_write_one_catalog_at_once(
    project: Project, second: Project, store: str, shared_catalog: str
) -> None:
    project.write(LATE)
    engines = [home.start("run", "pipeline.py:early") for home in (project, second)]
    for engine in engines:
        out, err = engine.communicate(timeout=PATIENCE)
        assert engine.returncode == 0, out + err
    runs = [json.loads(home.upshift("runs", "--json").out) for home in (project, second)]
    assert [one["id"] for one in runs[0]] == [one["id"] for one in runs[1]] and len(runs[0]) == 2
    assert {one["status"] for one in runs[0]} == {"completed"}
    for one in runs[0]:
        for home in (project, second):
            assert home.show(one["id"])["status"] == "completed"
    whole(store)


def test_a_catalog_in_a_database_is_filled_from_a_bucket(
    project: Project, second: Project, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run(SQUARES)
    run = run_of(project)
    before = seen(project, run)
    here = postgres_here()
    with here.database() as name:
        monkeypatch.setenv("UPSHIFT_CATALOG", here.url(name))
        told = second.upshift("runs").err
        assert f"it is rebuilt from the store {store}: 1 run" in told
        assert seen(second, run) == before
        second.upshift("gc", "--rebuild-catalog")
        assert seen(project, run) == before


def test_gc_frees_a_bucket_and_other_machines_forget_the_run(
    project: Project, second: Project, anywhere: str
) -> None:
    project.run(SQUARES)
    first = run_of(project)
    second.upshift("runs")
    project.run(SQUARES, "-p", "n=4", "-p", "name=b")
    before = listed(anywhere)
    foretold = json.loads(project.upshift("gc", "--dry-run", "--keep-last", "1", "--json").out)
    assert listed(anywhere) == before
    done = json.loads(project.upshift("gc", "--keep-last", "1", "--json").out)
    assert done["removed"] == foretold["removed"] and done["kept"] == foretold["kept"]
    # The squares of the first run are those of the second one, too; the folder of it is its own.
    assert done["removed"]["runs"]["count"] == 1 and done["removed"]["values"]["count"] > 0
    left = [key for key in listed(anywhere) if first in key]
    assert {key.split("/")[3] for key in left if "/tasks/" in key} <= {"square"}
    whole(anywhere)
    kept = run_of(project)
    assert kept != first and run_of(second) == kept
    assert "no run" in second.upshift("resume", first, expect=2).err
    assert "square: reused: 4 tasks" in second.run(SQUARES, "-p", "n=4", "-p", "name=b").text
    project.upshift("gc", "--run", kept)
    third = project.with_home(second.home.with_name("third-home"))
    assert third.upshift("artifacts", "show", "squares/names", expect=None).code == 0
    whole(anywhere)


def test_gc_drops_uploads_that_were_cut(project: Project, store: str, bucket: BucketHere) -> None:
    project.write(LATE)
    project.upshift("run", "pipeline.py:early")
    place = {"Bucket": bucket.name, "Key": "team/blobs/sha256/ab/cut"}
    upload = bucket.boto3.create_multipart_upload(**place)["UploadId"]
    bucket.boto3.upload_part(**place, UploadId=upload, PartNumber=1, Body=bytes(3000))
    told = json.loads(project.upshift("gc", "--dry-run", "--json").out)
    done = json.loads(project.upshift("gc", "--json").out)
    assert told["removed"] == done["removed"] == {"temporary": {"count": 1, "bytes": 3000}}
    assert "Uploads" not in bucket.boto3.list_multipart_uploads(Bucket=bucket.name)
    whole(store)


def test_gc_waits_for_a_run_of_another_machine_that_may_reuse_what_is_to_go(
    project: Project, second: Project, store: str
) -> None:
    project.write(LATE)
    project.upshift("run", "pipeline.py:early")
    first = run_of(project)
    ready, go = project.fifo("ready"), project.fifo("go")
    engine = second.start("run", "pipeline.py:late")
    assert ready.read_text() == "now"
    done = json.loads(project.upshift("gc", "--run", first, "--json").out)
    (at_work,) = done["waiting_for"]
    assert done["later"]["runs"]["count"] == 1 and "values" not in done["removed"]
    said = project.upshift("gc").out
    assert f"can be freed after the end of 1 run that is at work: {at_work}" in said
    go.write_text("on")
    out, err = engine.communicate()
    assert engine.returncode == 0 and "big: reused" in out + err
    done = json.loads(project.upshift("gc", "--json").out)
    assert done["later"] == {} and done["waiting_for"] == [] and "values" not in done["removed"]
    assert done["kept"]["results"]["count"] == 1
    third = project.with_home(second.home.with_name("third-home"))
    assert run_of(third) == at_work
    assert "big: reused" in third.upshift("run", "pipeline.py:early").text
    whole(store)


def test_doctor_tries_the_bucket(project: Project, store: str, bucket: BucketHere) -> None:
    def told() -> dict[str, Any]:
        checks = json.loads(project.upshift("doctor", "--json", expect=None).out)["checks"]
        (found,) = (check for check in checks if check["name"] == "store")
        return dict(found)

    assert told()["status"] == "ok" and store in told()["text"]
    assert listed(store) == []
    bucket.boto3.delete_bucket(Bucket=bucket.name)
    assert told()["status"] == "problem" and bucket.name in told()["text"]
