"""Slurm whose login node and nodes share a folder by NFS: what one of them writes, the other sees late.

Each client believes for a minute what it has looked up, and sends what was written when a file is closed. If
Upshift had to wait for that, nothing would follow a log, and what nodes have recorded would count as lost.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from nfs import KEPT, Shared
from project import Project
from slurm_here import SlurmHere, slurm_here
from talking import TALKING, is_whole, until_printed_by_both

STEPS = """
    import os, time

    from upshift import current

    @step(cache=False, grace=30)
    def make(gate: str) -> list[bytes]:
        print("it waits", flush=True)
        while not os.path.exists(gate):
            time.sleep(0.05)
        print("it goes on", flush=True)
        return [bytes([x]) * 300_000 for x in range(4)]

    @step(cache=False)
    def size(x: bytes) -> int:
        return len(x) + x[0]

    @step(cache=False, retries=1)
    def total(sizes: list[int]) -> str:
        latest = current.checkpoint.latest
        if latest is not None:
            return f"{sum(sizes)} after {(latest / 'epoch').read_text()}"
        with current.checkpoint.save() as folder:
            (folder / "epoch").write_text("one")
        raise ValueError("these are the step's own words")

    @pipeline
    def example(gate: str):
        return total(size.map(x=make(gate)))
"""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    here = slurm_here()
    monkeypatch.setenv("SLURM_CONF", here.environment["SLURM_CONF"])
    return here


class Engine:
    """A run whose engine is on the login node. What it prints is heard as it comes."""

    def __init__(self, site: Site, *arguments: str) -> None:
        prefix = site.shared.login(site.login.folder)
        self.process = site.login.start(*arguments, prefix=prefix)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        assert self.process.stdout is not None and self.process.stderr is not None
        self._streams = (self.process.stdout, self.process.stderr)
        self._threads = [threading.Thread(target=self._hear, args=(stream,)) for stream in self._streams]
        for thread in self._threads:
            thread.start()

    def _hear(self, stream: Iterator[str]) -> None:
        for line in stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify()

    def until_it_says(self, text: str) -> None:
        """Wait for a line; not as long as a client believes what it knows."""
        with self._changed:
            there = self._changed.wait_for(lambda: any(text in line for line in self._lines), KEPT * 3 / 4)
        assert there, self.said

    @property
    def said(self) -> str:
        return "".join(self._lines)

    def end(self) -> int:
        code = self.process.wait(120)
        self.close()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread, stream in zip(self._threads, self._streams, strict=True):
            thread.join()
            stream.close()


class Site:
    """A login node and nodes, with everything but the gate in the folder that they share."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.gate = shared.place / "gate"
        self.login = Project(shared.folder / "project", shared.folder / "home")
        self.login.write(STEPS)
        settings = f'store = "{shared.folder}/store"\n[targets.cluster]\nbackend = "slurm"\n'
        self.login.write(settings, "upshift.toml", header="")
        # A third machine, by the client of the nodes.
        self.elsewhere = Project(self.login.folder, shared.place / "home")
        self._engines: list[Engine] = []

    def start(self, until: str = "[make] it waits") -> tuple[Engine, str]:
        """Run it, until it says this; gives its id, too."""
        parameter = f"gate={self.gate}"
        engine = Engine(self, "run", "pipeline.py", "--on", "cluster", "--param", parameter)
        self._engines.append(engine)
        engine.until_it_says(until)
        found = re.search(r"^run (\S+):", engine.said, re.MULTILINE)
        assert found, engine.said
        return engine, found[1]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture
def site(slurm: SlurmHere, shared_folder: Callable[..., Shared]) -> Iterator[Site]:
    made = Site(shared_folder())
    yield made
    made.close()


def test_a_run_is_followed_and_what_its_nodes_write_is_found(site: Site, slurm: SlurmHere) -> None:
    engine, run = site.start()
    # It is seen from elsewhere, and nobody takes it over.
    assert "it waits" in site.elsewhere.upshift("logs", run).out
    assert "another engine owns run" in site.elsewhere.upshift("resume", run, expect=2).err
    site.gate.touch()
    assert engine.end() == 0, engine.said
    assert "[make] it goes on" in engine.said
    assert site.elsewhere.show(run)["status"] == "completed"
    value = site.elsewhere.python("-c", "import upshift; print(upshift.get_run('latest').output)").out
    assert value == f"{4 * 300_000 + 6} after one\n"
    first, second = site.elsewhere.tasks("total", run)[0]["attempts"]
    assert (first["reason"], second["status"]) == ("user-error", "completed")
    assert "these are the step's own words" in first["error"]["message"]
    assert [len(task["attempts"]) for task in site.elsewhere.tasks("size", run)] == [1] * 4
    store = site.shared.folder / "store"
    # The folder of a lease may stay, where the file that was open in it went a moment later: .nfs….
    assert [*store.glob("runs/*/live/*"), *store.glob("leases/*/[!.]*"), *store.glob("tmp/[!.]*")] == []


def test_ranks_print_while_the_store_does_not_answer(site: Site) -> None:
    site.login.write(TALKING)
    told = site.gate.with_name("gate.told")
    os.mkfifo(told)
    engine, run = site.start("[talk] [rank 1] it waits")
    with site.shared.silent():
        site.gate.touch()
        until_printed_by_both(told, KEPT)
    assert engine.end() == 0, engine.said
    assert is_whole(site.elsewhere.upshift("logs", run).out.splitlines())


def test_a_run_is_cancelled_from_another_machine(site: Site, slurm: SlurmHere) -> None:
    engine, run = site.start()
    asked = site.elsewhere.upshift("cancel", run)
    assert "is asked to stop: its engine on login looks every 5 s" in asked.text
    assert engine.end() == 130, engine.said
    assert site.elsewhere.show(run)["status"] == "cancelled"
    assert site.elsewhere.attempt("make", run)["reason"] == "cancelled"


def test_a_run_whose_engine_was_killed_is_finished_from_another_machine(site: Site, slurm: SlurmHere) -> None:
    engine, run = site.start()
    assert site.elsewhere.show(run)["status"] == "running"
    engine.close()
    site.gate.touch()
    done = site.elsewhere.upshift("resume", run, timeout=200)
    assert "waiting up to 30 s to see whether the engine" in done.err
    assert site.elsewhere.show(run)["status"] == "completed"
    (only,) = site.elsewhere.tasks("make", run)[0]["attempts"]
    assert only["status"] == "completed"
