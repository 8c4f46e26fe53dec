"""Steps in containers of this machine, from outside: what they get, how they end, what is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from boxes import WAITING, Waiting, containers, own_folders, project_on

import upshift
from containers import CONF, EngineWithImage, engine_with_image
from contract.contract_kit import Ground
from project import Project
from upshift.backends.base import Ended, Job
from upshift.code.runtime_package import runtime_blob
from upshift.model.spec import Code, EntryPoint, TaskId, TaskSpec, to_json
from upshift.runtime.storage.store import open_store

MEGABYTES = 10**6


@pytest.fixture(scope="module")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker")


@pytest.fixture(scope="module")
def podman_with_image() -> Iterator[EngineWithImage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(CONF))
        yield from engine_with_image("podman")


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path, docker_with_image: EngineWithImage) -> Iterator[Project]:
    """A project with a target ``box`` whose steps run in containers of Docker. None may be left."""
    yield project_on(docker_with_image, tmp_path / "project", upshift_home)
    assert docker_with_image.left() == []
    assert own_folders(upshift_home) == []


@pytest.fixture(params=["docker", "podman"])
def either(
    request: pytest.FixtureRequest, tmp_path: Path, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """The same, of each engine in turn."""
    monkeypatch.setenv("CONTAINERS_CONF", str(CONF))
    made: EngineWithImage = request.getfixturevalue(f"{request.param}_with_image")
    yield project_on(made, tmp_path / "project", upshift_home)
    assert made.left() == []
    assert own_folders(upshift_home) == []


def test_places_and_variables_are_those_of_the_project(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_DATA", "here alone")
    project.write("""
import ctypes, os, subprocess, sys, traceback

@step(retries=0)
def crash() -> int:
    return ctypes.string_at(0)

@step(retries=0)
def read() -> str:
    print(os.getcwd().split(os.sep)[1:3])
    try:
        1 / 0
    except ZeroDivisionError:
        traceback.print_exc()
    failing = "import pipeline; pipeline.fail()"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", failing], env=found)
    return os.environ["MY_DATA"]

def fail():
    raise ValueError("in a process of the step's own")

@pipeline
def crashing():
    return crash()

@pipeline
def reading():
    return read()
""")
    crashed = project.upshift("run", "pipeline.py:crashing", "--on", "box", expect=1).err
    assert f'File "{project.folder}/pipeline.py", line ' in crashed
    assert "where: pipeline.py:" in crashed and "/upshift/code" not in crashed
    read = project.upshift("run", "pipeline.py:reading", "--on", "box", expect=1).err
    assert 'DockerSettings(runtime_environment={"MY_DATA": "…"})' in read
    printed = project.upshift("logs", "latest", "read").out
    assert "['upshift', 'code']" in printed  # where the step is
    assert "ValueError: in a process of the step's own" in printed
    shown = re.findall(r'File "(.*)/pipeline.py", line', printed)
    assert len(shown) >= 2 and set(shown) == {str(project.folder)}, printed


def test_doctor_says_what_becomes_of_a_step(either: Project) -> None:
    done = either.upshift("doctor", "box", "--submit", "--json", expect=None)
    found = {one["name"]: one for one in json.loads(done.out)["checks"] if one["group"] == "a trivial step"}
    assert list(found)[-6:] == ["submitted", "running", "node", "seen", "ended", "store"], done.out
    assert "completed: Python 3" in found["ended"]["text"]


def test_a_step_gets_what_it_asks_for_and_sees_no_more(either: Project) -> None:
    either.run(
        """
        import os

        @step(settings={"resources": ResourceSettings(cpu_count=1, memory="300MB", shared_memory="20MB")})
        def look(x: int) -> dict:
            shared = os.statvfs("/dev/shm")
            return {
                "x": x, "user": os.getuid(), "home": os.path.expanduser("~"), "folder": os.getcwd(),
                "shared": shared.f_blocks * shared.f_frsize, "first": os.getppid(),
            }

        @pipeline
        def example():
            return look(7)
        """,
        *("--on", "box"),
    )
    found = upshift.get_run("latest").output
    assert found["x"] == 7 and found["user"] == os.getuid() and found["home"] == "/upshift/home"
    assert found["folder"].startswith("/upshift/code/") and found["first"] == 1
    assert abs(found["shared"] - 20 * MEGABYTES) < 4096
    attempt = either.attempt("look")
    assert attempt["granted"]["cpu_count"] == attempt["seen"]["cpu_count"] == 1
    assert attempt["granted"]["enforced_by"] == {"cpu": "cgroup", "memory": "cgroup", "gpus": "cgroup"}
    assert attempt["granted"]["memory_limit"] == "cgroup"
    assert abs(attempt["seen"]["memory"] - 300 * MEGABYTES) < 4096
    assert attempt["node"] == os.uname().nodename


def test_what_a_step_prints_logs_and_leaves_behind(project: Project) -> None:
    outcome = project.run(
        """
        import os, pathlib, upshift

        @step
        def work() -> str:
            print("at work")
            upshift.log(step=1, loss=0.25)
            pathlib.Path("~/kept").expanduser().write_text("mine")
            pathlib.Path("/tmp/kept").write_text("mine")
            return pathlib.Path("~/kept").expanduser().read_text()

        @pipeline
        def example():
            return work()
        """,
        *("--on", "box"),
    )
    assert "at work" in outcome.out and "loss 0.25" in outcome.err


def test_a_step_beyond_its_memory_is_told_apart_by_the_kernels_own_count(either: Project) -> None:
    outcome = either.run(
        """
        @step(settings={"resources": ResourceSettings(memory="120MB")})
        def eat() -> int:
            print("eating")
            held = []
            while True:
                held.append(bytearray(10_000_000))

        @pipeline
        def example():
            return eat()
        """,
        *("--on", "box"),
        expect=1,
    )
    assert "eating" in outcome.out
    assert "asked for 120 MB of memory, and reached 120 MB, where the kernel stopped it" in outcome.err
    assert either.attempt("eat")["reason"] == "out-of-memory"
    assert not (either.folder / "oom").exists()  # Podman writes it where it was started


def test_a_supervisor_beyond_the_memory_is_told_apart_by_the_engines_own_word(project: Project) -> None:
    outcome = project.run(
        """
        @step(settings={"resources": ResourceSettings(memory="120MB")})
        def eat() -> int:
            # The kernel is to take the supervisor.
            for process, score in (("1", "1000"), ("self", "0")):
                with open(f"/proc/{process}/oom_score_adj", "w") as file:
                    file.write(score)
            held = []
            while True:
                held.append(bytearray(10_000_000))

        @pipeline
        def example():
            return eat()
        """,
        *("--on", "box"),
        expect=1,
    )
    assert project.attempt("eat")["reason"] == "out-of-memory"
    assert "the container went beyond its memory of 120 MB, says Docker" in outcome.err


def test_a_run_whose_engine_was_killed_goes_on_and_is_found_again(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    waiting = Waiting(project, docker_with_image)
    waiting.kill_engine()
    assert containers(docker_with_image) == [waiting.container]
    resuming = project.start("resume", "latest")
    waiting.go("found again")
    out, err = resuming.communicate(timeout=60)
    assert resuming.returncode == 0, out + err
    assert upshift.get_run("latest").output == "found again"
    assert len(project.tasks("wait")[0]["attempts"]) == 1


def events_from_now() -> list[str]:
    """Words for Docker, which prints what happens; also what happens before it is listened to."""
    return ["events", "--since", f"{time.time():.6f}"]


HELD_BACK = """#!/bin/sh
# A docker whose containers wait for an order that never comes: until the test closes a pipe.
case "$*" in run*"--name upshift-one-"*) exec {docker} "$@" <"{order}" >/dev/null ;; esac
exec {docker} "$@"
"""
TELLING = """#!/bin/sh
# A docker that tells when it is first asked for a log.
if [ "$1" = logs ] && [ -p "{told}" ]; then echo attached >"{told}" && rm "{told}"; fi
exec {docker} "$@"
"""


def in_front(folder: Path, script: str, **names: object) -> str:
    """A ``PATH`` on which this script is docker."""
    folder.mkdir()
    docker = folder / "docker"
    docker.write_text(script.format(docker=shutil.which("docker"), **names))
    docker.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_container_whose_engine_is_killed_before_its_order_runs_nothing_and_the_task_runs(
    project: Project, docker_with_image: EngineWithImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "@step(retries=0)\ndef one() -> int:\n    return 1\n\n@pipeline\ndef example():\n    return one()\n"
    )
    order, told = tmp_path / "order", tmp_path / "told"
    for pipe in (order, told):
        os.mkfifo(pipe)
    label = "label=dev.upshift.task=one"
    begun = [*events_from_now(), "--filter", label, "--filter", "event=start", "--format", "{{.Actor.ID}}"]
    with subprocess.Popen(
        [*docker_with_image.engine.command, *begun], stdout=subprocess.PIPE, text=True
    ) as events:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", in_front(tmp_path / "held", HELD_BACK, order=order))
            engine = project.start("run", "pipeline.py", "--on", "box")
            pipe = os.open(order, os.O_WRONLY)
        assert events.stdout is not None and events.stdout.readline()
        events.kill()
    os.killpg(engine.pid, signal.SIGKILL)
    engine.communicate()
    assert len(containers(docker_with_image)) == 1
    monkeypatch.setenv("PATH", in_front(tmp_path / "telling", TELLING, told=told))
    resuming = project.start("resume", "latest")
    assert told.read_text() == "attached\n"
    os.close(pipe)
    out, err = resuming.communicate(timeout=60)
    assert resuming.returncode == 0, out + err
    assert upshift.get_run("latest").output == 1


def test_a_container_that_nobody_watches_ends_and_leaves_nothing(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    waiting = Waiting(project, docker_with_image)
    gone = [*events_from_now(), "--filter", f"container={waiting.container}", "--filter", "event=destroy"]
    with subprocess.Popen(
        [*docker_with_image.engine.command, *gone], stdout=subprocess.PIPE, text=True
    ) as events:
        waiting.kill_engine()
        waiting.go()
        assert events.stdout is not None and "destroy" in events.stdout.readline()
        events.kill()
    assert containers(docker_with_image) == []
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").output == "done"
    assert len(project.tasks("wait")[0]["attempts"]) == 1


def test_ctrl_c_ends_the_container(project: Project, docker_with_image: EngineWithImage) -> None:
    waiting = Waiting(project, docker_with_image)
    os.killpg(waiting.engine.pid, signal.SIGINT)
    out, err = waiting.engine.communicate(timeout=60)
    assert waiting.engine.returncode == 130, out + err
    assert containers(docker_with_image) == []
    assert project.attempt("wait")["reason"] == "cancelled"


def test_a_run_that_nobody_owns_is_cancelled_with_its_container(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    waiting = Waiting(project, docker_with_image)
    waiting.kill_engine()
    outcome = project.upshift("cancel", "latest")
    assert "1 of its tasks still ran and were stopped" in outcome.text
    assert containers(docker_with_image) == []
    assert project.attempt("wait")["reason"] == "cancelled"


def test_a_run_has_steps_here_and_in_containers_at_once(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    code = (
        WAITING.replace("@step(retries=0)", '@step(retries=0, on="box")').replace(
            "    return wait(path)", "    return wait(path), here(path)"
        )
        + """
@step
def here(path: str) -> int:
    return os.getpid()
"""
    )
    waiting = Waiting(project, docker_with_image, code, *("--on", "local"))
    waiting.go("in a container")
    out, err = waiting.engine.communicate(timeout=60)
    assert waiting.engine.returncode == 0, out + err
    inside, here = upshift.get_run("latest").output
    assert inside == "in a container" and here > 1


def test_a_container_that_is_stopped_from_outside_was_not_cancelled(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    waiting = Waiting(project, docker_with_image)
    docker_with_image.engine.run(["stop", waiting.container])
    out, err = waiting.engine.communicate(timeout=60)
    assert waiting.engine.returncode == 1, out + err
    assert "the container was stopped from outside (SIGTERM)" in err
    assert project.attempt("wait")["reason"] == "stopped-from-outside"


def test_a_step_finds_its_code_as_it_was_shipped_whatever_another_one_has_written_there(
    either: Project,
) -> None:
    (either.folder / "helper.py").write_text("WORD = 'shipped'\n")
    code = """
        import os, pathlib, upshift

        @step(cache=False)
        def look() -> tuple:
            import helper
            here = pathlib.Path.cwd()
            (here / "helper.py").write_text("WORD = 'changed by a step before'\\n")
            (here / "left").write_text("of a step before")
            runtime = os.path.dirname(os.path.dirname(upshift.__file__))
            try:
                pathlib.Path(runtime, "left").touch()
            except OSError as error:
                return helper.WORD, sorted(os.listdir(here / "..")) == [here.name], error.strerror

        @pipeline
        def example():
            return look()
        """
    for _ in range(2):
        either.run(code, "--on", "box")
        assert upshift.get_run("latest").output == ("shipped", True, "Read-only file system")


SIGNALS = """
import signal

@step(cache=False)
def look() -> tuple:
    kinds = {number.name: str(signal.getsignal(number)) for number in signal.valid_signals()
             if isinstance(number, signal.Signals) and number != signal.SIGHUP}
    return kinds, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))

@pipeline
def example():
    return look()
"""


def test_a_step_has_the_signals_that_it_has_without_a_container(project: Project) -> None:
    project.run(SIGNALS, "--on", "local")
    there = upshift.get_run("latest").output
    project.run(SIGNALS, "--on", "box")
    assert without_addresses(upshift.get_run("latest").output) == without_addresses(there)


def without_addresses(found: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(found))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_log_that_cannot_be_written_is_told_while_the_step_goes_on(project: Project) -> None:
    store = project.home / "store"
    store.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", store], check=True)
    try:
        outcome = project.run(
            """
            @step(retries=0)
            def noisy() -> None:
                for number in range(300_000):
                    print(number, 60 * "x")

            @pipeline
            def example():
                noisy()
            """,
            *("--on", "box"),
            expect=1,
        )
        assert f"noisy: the log cannot be written: No space left on device ({store}/" in outcome.err
        assert "the result could not be written" in outcome.err and "Traceback" not in outcome.err
    finally:
        subprocess.run(["umount", store], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_fails_the_task_and_not_the_run(project: Project) -> None:
    folder = project.home / "containers"
    folder.mkdir(parents=True)
    (project.folder / "large.bin").write_bytes(os.urandom(200_000))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        outcome = project.run(
            """
            @step(retries=0)
            def there() -> int:
                return 1

            @step(on="local")
            def here() -> int:
                return 2

            @pipeline
            def example():
                return there(), here()
            """,
            *("--on", "box", "--keep-going"),
            expect=1,
        )
        assert own_folders(project.home) == []
    finally:
        subprocess.run(["umount", folder], check=True)
    assert project.attempt("there")["reason"] == "infrastructure"
    assert project.tasks("here")[0]["status"] == "completed"
    assert "No space left on device" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_what_root_leaves_in_a_killed_container_of_another_user_is_removed(
    docker_with_image: EngineWithImage, tmp_path: Path, upshift_home: Path
) -> None:
    tmp_path.chmod(0o755)
    project = project_on(docker_with_image, tmp_path / "theirs", tmp_path / "theirs" / "home")
    code = WAITING.replace(
        "@step(retries=0)",
        '@step(retries=0, settings={"docker": DockerSettings('
        f'parent_image={docker_with_image.image!r}, user="0:0")}})',
    ).replace(
        '    with open(path + "/started"',
        "    os.makedirs('/tmp/sub/closed', mode=0o700)\n    with open(path + \"/started\"",
    )
    waiting = Waiting(project, docker_with_image, code, prefix=lambda project: become(project, 54322))
    docker_with_image.engine.run(["kill", waiting.container])
    out, err = waiting.engine.communicate(timeout=60)
    assert waiting.engine.returncode == 1, out + err
    assert "killed from outside" in err and "Traceback" not in err
    assert own_folders(project.home) == []
    assert docker_with_image.left() == []


def become(project: Project, user: int) -> list[str]:
    """What makes a command one of this user's, who gets the project."""
    group = os.stat("/var/run/docker.sock").st_gid
    for path in (project.folder, *project.folder.rglob("*")):
        os.chown(path, user, group)
    # With the right to read all: where these tests run from may be closed to others.
    read = "+dac_read_search"
    variables = [f"{name}=worker" for name in ("USER", "LOGNAME")] + [f"HOME={project.folder}"]
    identity = [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    return ["setpriv", *identity, f"--inh-caps={read}", f"--ambient-caps={read}", "env", *variables]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_what_another_user_runs_is_that_users_own(docker_with_image: EngineWithImage, tmp_path: Path) -> None:
    user = 54321
    tmp_path.chmod(0o755)
    project = project_on(docker_with_image, tmp_path / "theirs", tmp_path / "theirs" / "home")
    project.write(
        """
        import getpass, os, pathlib

        @step
        def work() -> tuple:
            pathlib.Path("~/x").expanduser().write_text("x")
            pathlib.Path("y").write_text("y")
            return os.getuid(), getpass.getuser(), os.access("/tmp", os.W_OK)

        @pipeline
        def example():
            return work()

        if __name__ == "__main__":
            assert example().output == (54321, "worker", True)
        """
    )
    outcome = project.call(
        [*become(project, user), sys.executable, "pipeline.py"], env={"UPSHIFT_DEFAULT_TARGET": "box"}
    )
    assert outcome.code == 0, outcome.text
    roots = [path for path in project.folder.rglob("*") if path.lstat().st_uid != user]
    assert roots == []
    assert own_folders(project.home) == []
    assert docker_with_image.left() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to any group")
def test_a_user_by_number_writes_a_store_of_a_group_and_has_a_home(
    project: Project, docker_with_image: EngineWithImage
) -> None:
    project.home.mkdir()
    os.chown(project.home, -1, 54321)
    project.home.chmod(0o2770)
    before = os.umask(0o007)
    try:
        project.run(
            f"""
            import os, pathlib, tempfile

            image = DockerSettings(parent_image={docker_with_image.image!r}, user="1000:1000")

            @step(settings={{"docker": image}})
            def one() -> tuple[int, str]:
                pathlib.Path("beside").write_text("x")
                (pathlib.Path.home() / "x").write_text("x")
                with tempfile.NamedTemporaryFile():
                    return os.getuid(), str(pathlib.Path.home())

            @pipeline
            def example():
                return one()
            """,
            *("--on", "box"),
        )
    finally:
        os.umask(before)
    assert upshift.get_run("latest").output == (1000, "/upshift/home")


def test_a_user_of_the_images_own_is_told_what_it_lacks(
    project: Project, docker_with_image: EngineWithImage, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    outcome = project.run(
        f"""
        image = DockerSettings(parent_image={docker_with_image.image!r}, user="nobody")

        @step(settings={{"docker": image}})
        def one() -> int:
            return 1

        @pipeline
        def example():
            return one()
        """,
        *("--on", "box"),
        expect=1,
    )
    assert (
        "it runs as nobody, who has to have access to the store; without user=… it runs as you" in outcome.err
    )


def test_the_container_of_an_attempt_that_was_given_up_ends_before_the_next_one_starts(
    docker_with_image: EngineWithImage, tmp_path: Path, upshift_home: Path
) -> None:
    ground = Ground("docker", tmp_path, image=docker_with_image.image)
    lost = ground.open()
    first = ground.job("wait")
    handle = lost.started(first)
    lost.backend.close()
    second = attrs.evolve(first.spec, attempt=2)
    job = Job(spec=second, spec_path=ground.store.write_spec(second))
    watched = ground.open()
    again = watched.started(job)
    assert containers(docker_with_image) == [again] != [handle]
    watched.cancel(again, grace=0)
    watched.until(Ended, again)
    ground.close()
    assert docker_with_image.left() == []


def test_a_container_that_was_killed_while_nobody_watched_says_so_to_the_next_engine(
    docker_with_image: EngineWithImage, tmp_path: Path, upshift_home: Path
) -> None:
    ground = Ground("docker", tmp_path, image=docker_with_image.image)
    lost = ground.open()
    second = attrs.evolve(ground.job("wait").spec, attempt=2)  # which has a container of its own
    job = Job(spec=second, spec_path=ground.store.write_spec(second))
    handle = lost.started(job)
    lost.backend.close()
    docker_with_image.engine.run(["kill", handle])
    watched = ground.open()
    ended = watched.attach(handle, job)
    if ended is None:  # it was just about to go
        ended = watched.until(Ended, handle)
    assert ended.reason == "infrastructure"
    assert (ended.message or "").startswith(
        "the container was killed from outside (exit code 137), says Docker"
    )
    ground.close()
    assert docker_with_image.left() == []


def test_what_a_step_left_running_ends_with_it(project: Project) -> None:
    project.run(
        """
        import subprocess

        @step
        def leave() -> int:
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return 1

        @pipeline
        def example():
            return leave()
        """,
        *("--on", "box"),
    )


def test_a_step_that_takes_too_long_is_stopped(project: Project) -> None:
    outcome = project.run(
        """
        import threading

        @step(timeout=1)
        def wait() -> int:
            threading.Event().wait()

        @pipeline
        def example():
            return wait()
        """,
        *("--on", "box"),
        expect=1,
    )
    assert "the step was still running after 1 s" in outcome.err


SECRET = "s3cret-of-the-test"


def test_a_secret_is_in_no_place_that_the_engine_shows(
    project: Project, docker_with_image: EngineWithImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", SECRET)
    code = WAITING.replace("@step(retries=0)", '@step(secrets={"TOKEN": "env:TOKEN_OF_TEST"})').replace(
        "return pipe.read()", 'print(os.environ["TOKEN"]); return pipe.read() + os.environ["TOKEN"][:2]'
    )
    waiting = Waiting(project, docker_with_image, code)
    shown = docker_with_image.engine.run(["inspect", waiting.container]).stdout
    logged = docker_with_image.engine.run(["logs", waiting.container]).stdout
    waiting.go("ok")
    out, err = waiting.engine.communicate(timeout=60)
    assert waiting.engine.returncode == 0, out + err
    assert json.loads(shown)[0]["State"]["Running"] is True
    for text in (shown, logged, out, err):
        assert SECRET not in text
    assert "***" in out
    kept = [
        path for path in project.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert kept == []
    assert upshift.get_run("latest").output == "oks3"


def test_a_program_that_is_not_in_the_image_is_named(project: Project) -> None:
    toml = project.folder / "upshift.toml"
    toml.write_text(toml.read_text() + 'arguments = ["--entrypoint", "/nowhere/python3"]\n')
    outcome = project.run(
        """
        @step
        def one() -> int:
            return 1

        @pipeline
        def example():
            return one()
        """,
        *("--on", "box"),
        expect=1,
    )
    assert project.attempt("one")["reason"] == "infrastructure"
    assert "/nowhere/python3: no such file or directory" in outcome.err, outcome.err


def test_a_supervisor_without_an_order_runs_nothing(
    docker_with_image: EngineWithImage, tmp_path: Path, upshift_home: Path
) -> None:
    store = open_store(str(tmp_path / "store"))
    runtime = store.blob_path(runtime_blob(store))
    mount = ["--mount", f"type=bind,source={store.root},target={store.root},readonly"]
    command = ["run", "--rm", "--interactive", *mount, docker_with_image.image, "python3"]
    ended = docker_with_image.engine.run(
        [*command, str(runtime), "--report", f"{store.root}/no.json"], input="", check=False
    )
    assert ended.returncode == 2 and "cannot read" in ended.stdout
    spec = store.root / "spec.json"
    spec.write_bytes(
        to_json(
            TaskSpec(
                task=TaskId(run="r", step="s"),
                attempt=1,
                pipeline="p",
                entry=EntryPoint(module="m", qualname="f"),
                code=Code(project="/"),
                store=store.address,
            )
        )
    )
    ended = docker_with_image.engine.run(
        [*command, str(runtime), "--report", str(spec)], input="", check=False
    )
    assert (ended.returncode, ended.stdout) == (3, '{"event": "ready"}\n')
    assert not (store.root / "runs").exists()


def test_gc_removes_what_a_container_has_left_whose_engine_was_killed(project: Project) -> None:
    project.run("@step\ndef one() -> int:\n    return 1\n\n@pipeline\ndef example():\n    return one()\n")
    left = project.home / "containers" / "upshift-one-1-0123456789ab" / "home"
    left.mkdir(parents=True)
    (left / "kept").write_text("of a step")
    project.upshift("gc")
    assert own_folders(project.home) == []


TRAINING = """
import os, signal, sys
from upshift import current

@step(retries=2, timeout=8)
def train() -> list[str]:
    latest = current.checkpoint.latest
    seen = [] if latest is None else (latest / "seen").read_text().split()
    for epoch in range(len(seen), 6):
        if epoch == 2 and current.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while epoch == 4 and current.attempt == 2 and not current.stopping:
            sum(range(10_000))
        seen.append(f"{current.attempt}:{epoch}")
        with current.checkpoint.save() as folder:
            (folder / "seen").write_text(" ".join(seen))
        if current.attempt == 2 and current.stopping:
            sys.exit()
    return seen

@pipeline
def example():
    return train()
"""


def test_a_step_in_a_container_goes_on_from_its_checkpoints(either: Project) -> None:
    either.run(TRAINING, "--on", "box", timeout=120)
    attempts = upshift.get_run("latest")["train"].tasks[0].attempts
    assert [attempt.reason for attempt in attempts] == ["stopped-from-outside", "timeout", None]
    assert upshift.get_run("latest").output == ["1:0", "1:1", "2:2", "2:3", "2:4", "3:5"]
    assert list((either.home / "store").glob("checkpoints/*")) == []
