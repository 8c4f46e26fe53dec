"""A Slurm whose login node is reached through a real sshd on loopback; here, its commands know no cluster."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from contract.contract_kit import Ground
from project import Project
from slurm_here import SlurmHere, instead, slurm_here
from upshift.backends.base import Ended, Started, Waiting
from upshift.errors import BackendError

_SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.own
AuthorizedKeysFile {folder}/client.pub
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv SLURM_CONF={conf}
"""
_CLIENT = """
Host login
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/client
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
"""


@attrs.define
class LoginNode:
    """An sshd of its own, in a folder with keys and configurations."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        log = self.folder / "log"
        self._process = subprocess.Popen([program, "-D", "-f", self.folder / "server", "-E", log])
        while True:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """It, and all of its connections."""
        if self._process is None:
            return
        sessions = [self._process.pid]
        for process in sessions:
            with contextlib.suppress(OSError):
                sessions += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        for process in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def accepted(self) -> int:
        """How many connections there were."""
        return (self.folder / "log").read_text().count("Accepted publickey")


@pytest.fixture
def node(tmp_path: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginNode]:
    cluster = slurm_here()
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("sshd is not installed: make engines")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    folder = tmp_path / "login"
    folder.mkdir(mode=0o700)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", folder / name], check=True)
    said = {"port": port, "folder": folder, "user": getpass.getuser(), "conf": cluster.folder / "slurm.conf"}
    (folder / "server").write_text(_SERVER.format(**said))
    (folder / "client.conf").write_text(_CLIENT.format(**said))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    Path("/run/sshd").mkdir(exist_ok=True)
    instead(
        "ssh",
        f"os.execv(real, [real, '-F', {str(folder / 'client.conf')!r}, *sys.argv[1:]])",
        tmp_path,
        monkeypatch,
    )
    made = LoginNode(folder, port)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ground(node: LoginNode, tmp_path: Path) -> Iterator[Ground]:
    made = Ground("slurm", tmp_path / "ground", options={"ssh": "login"})
    yield made
    made.close()


def until(there: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def submitted(cluster: SlurmHere, handle: str) -> int:
    return len(cluster.run("squeue", "--states=all", "--noheader", f"--name={handle}").splitlines())


def test_steps_are_submitted_through_one_connection_and_secrets_arrive(
    node: LoginNode, tmp_path: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    project = Project(tmp_path / "project", upshift_home)
    project.write(
        '[targets.cluster]\nbackend = "slurm"\noptions = { ssh = "login" }\n', "upshift.toml", header=""
    )
    project.write("""
        @step(secrets={"TOKEN": "env:TOKEN"})
        def first() -> int:
            import os
            print("in job", os.environ["SLURM_JOB_ID"], "from", os.environ["SSH_CONNECTION"].split()[0])
            return len(os.environ["TOKEN"])

        @step
        def second(x: int) -> int:
            return x + 1

        @pipeline
        def example():
            return second(first())
    """)
    done = project.upshift("run", "pipeline.py", "--on", "cluster", timeout=90)
    assert "[first] in job" in done.out and "from 127.0.0.1" in done.out
    import upshift

    assert upshift.get_run("latest").output == len("never-to-be-seen") + 1
    assert node.accepted == 1
    assert "answers, through ssh login" in project.upshift("doctor", "cluster").out
    assert b"never-to-be-seen" not in b"".join(
        file.read_bytes() for file in (upshift_home / "store").rglob("*") if file.is_file()
    )


def test_a_login_that_asks_for_a_password_is_refused_in_words(node: LoginNode, ground: Ground) -> None:
    (node.folder / "client.pub").write_text((node.folder / "host.pub").read_text())
    with pytest.raises(BackendError, match="ssh login does not let Upshift in") as refused:
        ground.open().asked()
    assert "Permission denied" in str(refused.value) and "ssh-copy-id" in str(refused.value)


def test_while_the_login_node_is_away_jobs_go_on_and_others_wait(
    node: LoginNode, ground: Ground, tmp_path: Path
) -> None:
    watched = ground.open()
    running = watched.submit(ground.job("until_there", inputs={"path": str(tmp_path / "go")}))
    watched.until(Started, running)
    node.stop()
    later = watched.submit(ground.job("add", inputs={"a": 1, "b": 2}))
    assert "ssh login does not answer" in watched.until(Waiting, later).why
    (tmp_path / "go").touch()
    assert watched.until(Ended, running).reason is None  # heard of through the store
    node.start()
    assert watched.until(Ended, later).reason is None


def test_a_job_that_was_taken_before_the_connection_broke_is_not_submitted_again(
    node: LoginNode, ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    instead(
        "ssh",
        f"""
        ended = subprocess.run([real, *sys.argv[1:]]).returncode
        if "sbatch --parsable" in sys.argv[-1] and not os.path.exists({str(broken)!r}):
            open({str(broken)!r}, "w").close()
            print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
            sys.exit(255)
        sys.exit(ended)
        """,
        tmp_path / "more",
        monkeypatch,
    )
    watched = ground.open()
    handle = watched.submit(ground.job("add", inputs={"a": 1, "b": 2}))
    assert "Broken pipe" in watched.until(Waiting, handle).why
    assert watched.until(Ended, handle).reason is None
    assert broken.exists() and submitted(slurm_here(), handle) == 1


def test_an_engine_that_is_submitted_through_ssh_works_without_it(
    node: LoginNode, tmp_path: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    project = Project(tmp_path / "project", upshift_home)
    project.write(
        '[targets.cluster]\nbackend = "slurm"\noptions = { ssh = "login", time = "10m" }\n',
        "upshift.toml",
        header="",
    )
    begun, gate = project.folder / "begun", project.folder / "gate"
    project.write(f"""
        import os, time

        @step(cache=False, secrets={{"TOKEN": "env:TOKEN"}})
        def waits() -> int:
            open({str(begun)!r}, "w").close()
            while not os.path.exists({str(gate)!r}):
                time.sleep(0.05)
            return len(os.environ["TOKEN"])

        @pipeline
        def example():
            return waits()
    """)
    submitted = project.upshift("run", "pipeline.py", "--on", "cluster", "--detach", timeout=90)
    assert "its engine is job " in submitted.err
    until(begun.exists, 120)
    node.stop()
    gate.touch()
    log = project.upshift("logs", "latest", "--engine", "-f", timeout=90).out
    assert "waits: completed in" in log
    import upshift

    assert upshift.get_run("latest").output == len("never-to-be-seen")
    assert b"never-to-be-seen" not in b"".join(
        file.read_bytes() for file in (upshift_home / "store").rglob("*") if file.is_file()
    )
