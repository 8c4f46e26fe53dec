"""``upshift gc``, from outside."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import upshift
from project import Project
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import RunRow

SUMS = """
@step
def numbers(n: int, table: bytes) -> list[bytes]:
    return [bytes([x]) * 5000 for x in range(n)]

@step
def square(x: bytes) -> bytes:
    print("squaring", x[0])
    return bytes([x[0] ** 2]) * 6000

@step
def total(values: list[bytes]) -> int:
    return sum(value[0] for value in values)

@pipeline
def sums(n: int = 4):
    return total(square.map(x=numbers(n, b"t" * 7000)))
"""


def gc(project: Project, *args: str) -> dict[str, dict[str, dict[str, int]]]:
    said: dict[str, dict[str, dict[str, int]]] = json.loads(project.upshift("gc", "--json", *args).out)
    return said


def counts(amounts: dict[str, dict[str, int]]) -> dict[str, int]:
    return {kind: amount["count"] for kind, amount in amounts.items()}


def snapshot(project: Project) -> list[str]:
    """All that users can see of all runs."""
    listed = project.upshift("runs", "--json").out
    seen = [listed]
    for run in json.loads(listed):
        seen += [project.upshift("show", run["id"], "--json").out, project.upshift("logs", run["id"]).out]
    return seen


def files(project: Project) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in project.home.rglob("*") if path.is_file()}


# What goes, and what is said


def test_where_nothing_is_there_is_nothing_to_remove(project: Project) -> None:
    assert "Nothing to remove: there is no store yet" in project.upshift("gc").out
    assert "Nothing to remove" in project.upshift("gc", "--dry-run", "--older-than", "1d").out
    assert gc(project)["removed"] == {}
    assert not project.home.exists()


def test_without_options_only_what_no_run_refers_to_goes(project: Project) -> None:
    project.run(SUMS)
    project.write(SUMS.replace("7000", "8000"))
    project.upshift("plan", "pipeline.py")
    before = snapshot(project)
    said = project.upshift("gc", "--dry-run").out
    assert re.search(r"would remove +1 value +8 KB\nwould keep +1 run .*\n +10 values", said), said
    assert "8 KB would be freed." in said
    said = project.upshift("gc").out
    assert re.search(r"removed +1 value +8 KB\nkept +1 run .*\n +10 values", said), said
    assert "Nothing to remove." in project.upshift("gc").out
    assert snapshot(project) == before
    assert upshift.get_run("latest").output == 14


def test_a_dry_run_changes_nothing(project: Project) -> None:
    project.run(SUMS)
    project.upshift("run", "pipeline.py", "-p", "n=3")
    project.upshift("gc")
    before = files(project)
    said = gc(project, "--dry-run", "--keep-last", "1")
    assert files(project) == before
    done = gc(project, "--keep-last", "1")
    assert (said["removed"], said["kept"]) == (done["removed"], done["kept"])
    assert counts(done["removed"])["runs"] == 1


def test_runs_go_by_number_age_pipeline_or_name(project: Project) -> None:
    project.write(SUMS + SUMS[SUMS.index("@pipeline") :].replace("def sums", "def other"))
    for _ in range(3):
        project.upshift("run", "pipeline.py:sums")
    project.upshift("run", "pipeline.py:other")
    assert counts(gc(project, "-n", "--older-than", "1h")["removed"]) == {}
    assert counts(gc(project, "-n", "--older-than", "0s")["removed"])["runs"] == 4
    assert counts(gc(project, "-n", "--keep-last", "1")["removed"])["runs"] == 2
    assert counts(gc(project, "-n", "--keep-last", "1", "--older-than", "1h")["removed"]) == {}
    assert counts(gc(project, "-n", "--older-than", "0s", "--pipeline", "other")["removed"])["runs"] == 1
    latest = upshift.get_run("latest").id
    assert counts(gc(project, "--run", "latest", "--run", latest)["removed"])["runs"] == 1
    assert {run.pipeline for run in upshift.list_runs()} == {"sums"}
    assert "no run has an id that starts with" in project.upshift("show", latest, expect=2).err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--run", "nope"), "no run has an id that starts with 'nope'"),
        (("--pipeline", "sums"), "Add --keep-last N or --older-than AGE"),
        (("--pipeline", "smus", "--keep-last", "1"), "there is no run of a pipeline 'smus'"),
        (("--run", "latest", "--keep-last", "1"), "Run gc once for each"),
        (("--rebuild-catalog", "--dry-run"), "--rebuild-catalog goes alone"),
        (("--older-than", "3 moons"), 'for example "30d"'),
        (("--keep-last", "0"), "0 is not in the range"),
    ],
)
def test_nonsense_is_refused_and_nothing_removed(
    project: Project, args: tuple[str, ...], message: str
) -> None:
    project.run(SUMS)
    before = files(project)
    assert message in project.upshift("gc", *args, expect=2).err
    assert files(project) == before


# Reuse


def test_what_a_kept_run_reused_is_kept_and_reused_again(project: Project) -> None:
    project.run(SUMS)
    first = upshift.get_run("latest").id
    project.upshift("run", "pipeline.py")
    before = project.upshift("show", "latest", "--json").out, project.upshift("logs", "latest").out
    assert "squaring 3" in before[1]
    done = gc(project, "--run", first)
    assert counts(done["kept"])["results"] == 6
    assert (project.upshift("show", "latest", "--json").out, project.upshift("logs", "latest").out) == before
    assert upshift.get_run("latest").output == 14
    project.upshift("run", "pipeline.py")
    assert all(task["cached"] for step in project.show()["steps"] for task in step["tasks"])
    assert project.show()["steps"][1]["tasks"][0]["cache_reason"].endswith(first)


def test_a_result_goes_with_the_last_run_that_has_it(project: Project) -> None:
    project.run(SUMS)
    project.upshift("run", "pipeline.py")
    assert counts(gc(project, "--older-than", "0s")["removed"]) == {"runs": 2, "values": 10}
    assert list((project.home / "store" / "runs").iterdir()) == []
    project.upshift("run", "pipeline.py")
    assert not any(task["cached"] for step in project.show()["steps"] for task in step["tasks"])
    assert upshift.get_run("latest").output == 14


def test_content_that_somebody_removed_is_made_again(project: Project) -> None:
    project.run(SUMS)
    for blob in (project.home / "store" / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert counts(gc(project)["removed"]) == {}
    project.upshift("run", "pipeline.py")
    assert upshift.get_run("latest").output == 14


# Live runs


WAITING = """
from pathlib import Path

@step
def data() -> bytes:
    return b"d" * 5000

@step
def slow(x: bytes, table: bytes) -> int:
    Path("ready").open("w").write("now")
    Path("go").open().read()
    return len(x) + len(table)

@pipeline
def waiting():
    return slow(data(), b"t" * 4000)
"""


def test_a_live_run_is_refused_by_name_and_spared_otherwise(project: Project) -> None:
    project.write(WAITING)
    ready, go = project.fifo("ready"), project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = upshift.get_run("latest").id
    refused = project.upshift("gc", "--run", run, expect=2).err
    assert f"run {run} is live" in refused
    assert f"upshift cancel {run}" in refused
    said = project.upshift("gc", "--older-than", "0s").out
    assert f"Run {run} stays: it is live." in said
    assert gc(project, "--keep-last", "1", "-n")["removed"] == {}
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    # Its task still runs, and records its result, which somebody may resume to.
    assert "is live" in project.upshift("gc", "--run", run, expect=2).err
    go.write_text("on")
    done = project.upshift("resume", run)
    assert "completed" in done.err
    assert upshift.get_run(run).output == 9000
    assert counts(gc(project, "--run", run)["removed"]) == {"runs": 1, "values": 3}


def test_a_run_that_was_interrupted_can_be_removed(project: Project) -> None:
    project.write(WAITING)
    ready, _ = project.fifo("ready"), project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = upshift.get_run("latest").id
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    project.upshift("cancel", run)
    assert counts(gc(project, "--run", run)["removed"])["runs"] == 1
    assert upshift.list_runs() == []
    assert list((project.home / "store" / "leases").iterdir()) == []


def test_a_run_that_was_removed_cannot_be_resumed(project: Project) -> None:
    project.run(SUMS.replace("return sum", "1 / 0; return sum"), expect=1)
    run = upshift.get_run("latest").id
    kept = Catalog(project.home / "catalog.db")
    row = kept.run(run)
    gc(project, "--run", run)
    assert "no run has an id that starts with" in project.upshift("resume", run, expect=2).err
    (project.home / "store" / "runs" / run).mkdir()
    (project.home / "store" / "runs" / run / "removed.json").write_text("{}")
    kept.add_run(row)  # another catalog that still knows it
    kept.close()
    assert f"run {run} was removed by upshift gc" in project.upshift("resume", run, expect=2).err


# Two engines and one cache


def test_two_engines_fill_one_cache_at_once(project: Project) -> None:
    project.write(SUMS)
    for n in ("9", "10", "11"):
        engines = [project.start("run", "pipeline.py", "-p", f"n={n}") for _ in range(2)]
        outputs = [engine.communicate(timeout=60) for engine in engines]
        assert [engine.returncode for engine in engines] == [0, 0], outputs
    runs = upshift.list_runs()
    assert len(runs) == 6
    for one, other in zip(runs[::2], runs[1::2], strict=True):
        assert one.output == other.output == sum(x**2 for x in range(int(one.params["n"])))  # type: ignore[call-overload]
        for step in ("numbers", "square"):
            artifacts = [[task.artifacts for task in run[step].tasks] for run in (one, other)]
            assert artifacts[0] == artifacts[1]
            assert one[step].output == other[step].output
    assert counts(gc(project)["removed"]) == {}
    project.upshift("run", "pipeline.py", "-p", "n=11")
    assert all(task["cached"] for step in project.show()["steps"] for task in step["tasks"])


# Another version's store


def test_a_store_of_a_newer_upshift_is_refused_by_every_command(project: Project) -> None:
    project.run(SUMS)
    (project.home / "store" / "format").write_text("2\n")
    before = files(project)
    for command in (("run", "pipeline.py"), ("plan", "pipeline.py"), ("show", "latest"), ("gc",)):
        refused = project.upshift(*command, expect=2).err
        assert "was made by a newer version of Upshift" in refused, command
        assert "It is of version 2; this Upshift supports versions up to 1." in refused
        assert "pip install --upgrade upshift" in refused
    assert files(project) == before


def test_a_store_that_cannot_be_cleaned_does_not_keep_the_others_from_it(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        with monkeypatch.context() as patch:
            patch.setenv("UPSHIFT_STORE", str(tmp_path / name))
            project.run(SUMS)
            project.write(SUMS.replace("7000", "8000"))
            project.upshift("plan", "pipeline.py")
    (tmp_path / "first" / "format").write_text("2\n")
    (project.home / "engines" / "dead.sock").touch()
    cleaned = project.upshift("gc", "--json", expect=2)
    said = json.loads(cleaned.out)
    assert counts(said["removed"]) == {"values": 1, "processes": 1}
    assert [failed["store"] for failed in said["failed_stores"]] == [str(tmp_path / "first")]
    assert "was made by a newer version of Upshift" in said["failed_stores"][0]["problem"]
    assert "pip install --upgrade upshift" in cleaned.err
    (tmp_path / "second" / "claims.lock").unlink()
    (tmp_path / "second" / "claims.lock").mkdir()
    refused = project.upshift("gc", expect=1)
    assert refused.out == ""
    assert "gc failed on 2 stores" in refused.err
    assert "the store cannot be cleaned" in refused.err
    assert "pip install --upgrade upshift" in refused.err


def test_a_store_of_an_older_upshift_is_reused_collected_and_marked(project: Project) -> None:
    project.run(SUMS)
    (project.home / "store" / "format").unlink()
    assert counts(gc(project)["removed"]) == {}
    project.upshift("run", "pipeline.py")
    assert all(task["cached"] for step in project.show()["steps"] for task in step["tasks"])
    assert (project.home / "store" / "format").read_text() == "1\n"


def test_a_result_of_a_newer_upshift_is_not_reused_and_keeps_what_it_names(project: Project) -> None:
    project.run(SUMS)
    (result,) = (project.home / "store" / "runs").glob("*/tasks/total/*.result.json")
    rewrite(result, version=2, novelty=["blake3:" + "0" * 64])
    project.upshift("run", "pipeline.py")
    (task,) = project.tasks("total")
    assert not task["cached"]
    assert "missing or damaged" in task["cache_reason"]
    assert all(task["cached"] for task in project.tasks("square"))
    assert counts(gc(project)["removed"]) == {}
    result.write_bytes(b"torn" + result.read_bytes())
    assert counts(gc(project)["removed"]) == {}


def rewrite(result: Path, **fields: object) -> None:
    body = json.dumps({**json.loads(result.read_bytes().partition(b"\n")[2]), **fields}).encode()
    result.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


# The catalog, made anew


def test_the_catalog_is_rebuilt_and_says_the_same(project: Project) -> None:
    project.run(SUMS, "-t", "one", "-t", "two")
    project.upshift("run", "pipeline.py")
    project.upshift("run", "pipeline.py", "--no-cache", "-p", "n=2")
    project.write(SUMS.replace('print("squaring", x[0])', "assert x[0] < 3"))
    project.upshift("run", "pipeline.py", "--keep-going", expect=1)
    before = snapshot(project)
    for damaged in (None, b"no database" * 500):
        for path in project.home.glob("catalog.db*"):
            path.unlink()
        if damaged is not None:
            (project.home / "catalog.db").write_bytes(damaged)
        said = project.upshift("gc", "--rebuild-catalog").out
        assert said.startswith("The catalog has 4 runs.\n")
        assert ("catalog.db.old" in said) == (damaged is not None)
        assert snapshot(project) == before
    project.upshift("resume", "latest", expect=1)
    project.upshift("run", "pipeline.py", "-p", "n=2")
    assert project.tasks("numbers")[0]["cached"]


def test_a_catalog_that_is_gone_is_no_first_day(project: Project) -> None:
    project.run(SUMS)
    before = snapshot(project)
    for command in (("runs",), ("show", "latest"), ("plan", "pipeline.py"), ("gc", "--dry-run")):
        for path in project.home.glob("catalog.db*"):
            path.unlink()
        assert "it is rebuilt from the store" in project.upshift(*command).err
        assert snapshot(project) == before
    (project.home / "catalog.db").unlink()
    project.upshift("run", "pipeline.py")
    assert all(task["cached"] for task in project.tasks("square"))


def test_what_cannot_come_back_is_said(project: Project) -> None:
    project.write(WAITING)
    ready, _ = project.fifo("ready"), project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = upshift.get_run("latest").id
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    project.upshift("gc", "--rebuild-catalog")
    assert upshift.get_run(run).interrupted, "what the catalog knew is still there"
    project.upshift("cancel", run)
    (record,) = (project.home / "store" / "runs").glob("*/run.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "running", "ended": None}))
    (project.home / "catalog.db").unlink()
    assert f"Run {run} was interrupted" in project.upshift("gc", "--rebuild-catalog").out


# Many runs


def test_ten_thousand_runs_are_listed_page_by_page(project: Project) -> None:
    catalog = Catalog(project.home / "catalog.db")
    runs = [
        RunRow(
            id=f"20260101-{number:06}-aaaa",
            pipeline=f"p{number % 10}",
            status="completed" if number % 3 else "failed",
            target="local",
            store=str(project.home / "store"),
            started=1.7e9 + number,
            ended=1.7e9 + number + 1,
            user="ada" if number % 2 else "bob",
            tags=("nightly",) if number % 100 == 0 else (),
        )
        for number in range(10_000)
    ]
    catalog.replace_runs((row.id, row, (), ()) for row in runs)
    catalog.close()
    shown = project.upshift("runs")
    lines = [line for line in shown.out.splitlines() if line.startswith("2026")]
    assert [line.split()[0] for line in lines] == [row.id for row in runs[:-51:-1]]
    assert "These are the newest 50; there are more: --limit N" in shown.err
    listed = json.loads(project.upshift("runs", "--json").out)
    assert [run["id"] for run in listed] == [row.id for row in reversed(runs)]
    assert len(json.loads(project.upshift("runs", "--json", "--tag", "nightly", "--user", "bob").out)) == 100
    assert len(project.upshift("runs", "--pipeline", "p3", "--limit", "700").out.splitlines()) == 702
    assert "is the beginning of several runs" in project.upshift("show", "20260101-00", expect=2).err
    assert "has no graph" in project.upshift("show", "20260101-000000", expect=1).err
    assert upshift.get_run("latest").id == runs[-1].id
    assert len(upshift.list_runs(tag="nightly", limit=7)) == 7


def test_show_finds_one_run_among_thousands(project: Project) -> None:
    project.run(SUMS)
    run = upshift.get_run("latest")
    catalog = Catalog(project.home / "catalog.db")
    row = catalog.run(run.id)
    catalog.replace_runs(
        (f"x{n:05}", attrs.evolve(row, id=f"x{n:05}", started=1.0), (), ()) for n in range(10_000)
    )
    catalog.close()
    assert project.show(run.id[:-1])["id"] == run.id
    assert project.show()["steps"][2]["tasks"][0]["outputs"][0]["type"] == "int"
    assert project.upshift("logs", "latest").out.count("squaring") == 4


def test_gc_that_is_killed_is_finished_by_the_next(project: Project) -> None:
    project.run(SUMS)
    for n in ("1", "2", "3"):
        project.upshift("run", "pipeline.py", "-p", f"n={n}")
    code = (
        "import os, signal, sys\n"
        "from upshift.runs import collect\n"
        "left, real = [int(sys.argv[1])], os.unlink\n"
        "def unlink(path):\n"
        "    left[0] -= 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if left[0] < 0 else real(path)\n"
        "collect.os.unlink = unlink\n"
        "from upshift.cli import main\n"
        "main(['gc', '--keep-last', '1'])\n"
    )
    for left in (0, 3, 9):
        killed = project.call([sys.executable, "-c", code, str(left)])
        assert killed.code == -signal.SIGKILL
        assert upshift.get_run("latest").output == 5
        assert [run.id for run in upshift.list_runs()] == [upshift.get_run("latest").id]
    done = gc(project)
    assert "values" in done["removed"] or "runs" in done["removed"]
    assert gc(project)["removed"] == {}
    project.upshift("run", "pipeline.py", "-p", "n=3")
    assert all(task["cached"] for step in project.show()["steps"] for task in step["tasks"])


def test_two_gcs_at_once_are_refused(project: Project) -> None:
    project.run(SUMS)
    code = (
        "import sys\n"
        "from upshift.runs.needed import Claimed\n"
        "with Claimed(sys.argv[1]).working():\n"
        "    print('works', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(project.home / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "works\n"
    assert "another gc works on the store" in project.upshift("gc", expect=2).err
    project.upshift("run", "pipeline.py", "-p", "n=2")  # runs do not mind
    other.communicate("")
    project.upshift("gc")
