"""In place of SkyPilot: its SDK as Upshift calls it, whose jobs are processes of this machine.

No cloud can be had for tests. Jobs are kept in the folder ``SKY_STAND_IN``; its file ``refuses`` has an error
that the next calls raise, ``TYPE: text``, and ``NUMBER.status`` what becomes of a job in the cloud. There are
``MACHINES``. While somebody has a lock on ``rented``, no job gets one, and that file has the status of jobs
meanwhile; if it still has one then, those that waited get no machine at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.stand-in"

_FOLDER = Path(os.environ["SKY_STAND_IN"])
MACHINES = 8
_NODES = """
count=$1 run=$2 ended=$3
exec 8>>rented 9>>"machine.$4"
flock --shared 8 && test ! -s rented || exit 1
exec 8>&-
flock 9
touch "$ended.begun"
cd /
rank=1
while [ "$rank" -lt "$count" ]; do SKYPILOT_NODE_RANK=$rank bash -c "$run" & rank=$((rank + 1)); done
SKYPILOT_NODE_RANK=0 bash -c "$run"
code=$?
kill $(jobs -p) 2>/dev/null
wait
echo "$code" >"$ended.part" && mv "$ended.part" "$ended"
"""


class ResourcesUnavailableError(Exception):
    """No cloud has such a machine."""


class ClusterNotUpError(Exception):
    """There is no controller."""


class ServerTemporarilyUnavailableError(Exception):
    """The server is busy."""


class Task:
    """What is to run."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.name = config, config["name"]

    @staticmethod
    def from_yaml_config(config: dict[str, Any]) -> Task:
        return Task(config)


class Dag:
    """Tasks."""

    def __enter__(self) -> Dag:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, task: Task) -> None:
        _refused()


def _refused() -> None:
    with contextlib.suppress(FileNotFoundError):
        kind, _, said = (_FOLDER / "refuses").read_text().partition(": ")
        raise globals()[kind](said)


def get(request: Any) -> Any:
    """What a request gives: here at once."""
    return request


def optimize(dag: Dag) -> None:
    """There is a machine for everything."""


def api_info() -> Any:
    return SimpleNamespace(version=__version__)


def _launch(task: Task, name: str) -> Any:
    _refused()
    number = 1 + len(list(_FOLDER.glob("*.json")))
    nodes = task.config.get("num_nodes", 1)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SKY_STAND_IN")},
        **task.config.get("envs", {}),
        **task.config["secrets"],
        "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * nodes),
    }
    ended = _FOLDER / f"{number}.exit"
    with open(_FOLDER / "rented", "a") as rented, contextlib.suppress(BlockingIOError):
        fcntl.flock(rented, fcntl.LOCK_SH | fcntl.LOCK_NB)
        Path(f"{ended}.begun").touch()
    with open(_FOLDER / f"{number}.log", "wb") as log:
        process = subprocess.Popen(
            [
                *("bash", "-c", _NODES, "job", str(nodes), task.config["run"]),
                str(ended),
                str(number % MACHINES),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=_FOLDER,
            start_new_session=True,
        )
    said = {"job_id": number, "job_name": name, "pid": process.pid, "config": task.config}
    draft = _FOLDER / f"{number}.draft"
    draft.write_text(json.dumps(said))
    draft.rename(_FOLDER / f"{number}.json")
    return [number], None


def _status(number: int) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (_FOLDER / f"{number}.status").read_text()
    with contextlib.suppress(FileNotFoundError):
        return "FAILED" if int((_FOLDER / f"{number}.exit").read_text()) else "SUCCEEDED"
    if (_FOLDER / f"{number}.exit.begun").exists():
        return "RUNNING"
    with contextlib.suppress(FileNotFoundError):
        return (_FOLDER / "rented").read_text() or "STARTING"
    return "STARTING"


def _queue(refresh: bool, job_ids: list[int] | None, fields: list[str]) -> Any:
    _refused()
    found = [json.loads(path.read_text()) for path in _FOLDER.glob("*.json")]
    if not found:
        raise ClusterNotUpError("No in-progress managed jobs.")
    known = [one for one in found if job_ids is None or one["job_id"] in job_ids]
    records = [{**one, "status": _status(one["job_id"]), "infra": "AWS (us-east-1)"} for one in known]
    return [SimpleNamespace(model_dump=lambda mode, one=one: one) for one in records], 0, {}, 0


def _cancel(job_ids: list[int]) -> None:
    for number in job_ids:
        said = json.loads((_FOLDER / f"{number}.json").read_text())
        if _status(number) in ("STARTING", "RUNNING", "RECOVERING"):
            (_FOLDER / f"{number}.status").write_text("CANCELLED")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(said["pid"], signal.SIGKILL)


def _tail_logs(job_id: int, follow: bool, tail: int, output_stream: Any) -> None:
    output_stream.write((_FOLDER / f"{job_id}.log").read_text())


client = SimpleNamespace(sdk=SimpleNamespace(enabled_clouds=lambda: ["aws"]))
jobs = SimpleNamespace(launch=_launch, queue_v2=_queue, cancel=_cancel, tail_logs=_tail_logs)
