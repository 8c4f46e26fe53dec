"""Calls SkyPilot's SDK for the backend, in the Python that has it: a line of JSON asks, another one answers.

SkyPilot wants versions of packages that others need otherwise, and takes seconds to be imported. So it stays
in an environment of its own, and this program, which knows nothing of Upshift, runs there for as long as it
is spoken to. Written against SkyPilot 0.14: ``sky/client/sdk.py``, ``sky/jobs/client/sdk.py``.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from typing import Any

FIELDS = ["job_id", "job_name", "status", "failure_reason", "details", "region", "infra", "recovery_count"]
NOT_NOW = (
    "ApiServerConnectionError",
    "ConcurrentWorkerExhaustedError",
    "ExecutionRetryableError",
    "FetchClusterInfoError",
    "NetworkError",
    "RequestInterruptedError",
    "ServerTemporarilyUnavailableError",
    "SkyletUnavailableError",
    "ConnectionError",
    "Timeout",
)
"""Errors that may be gone in a moment; subclasses, too. Any other one refuses."""


def about(sky: Any) -> Any:
    """Versions of the SDK and of its server, which this starts where it is to run here; and the clouds."""
    clouds = sky.get(sky.client.sdk.enabled_clouds())
    return {"client": sky.__version__, "server": sky.api_info().version, "clouds": sorted(map(str, clouds))}


def _task(sky: Any, text: str, secrets: dict[str, str]) -> Any:
    import yaml

    return sky.Task.from_yaml_config({**yaml.safe_load(text), **({"secrets": secrets} if secrets else {})})


def optimize(sky: Any, task: str) -> Any:
    """Raises where no cloud has such a machine."""
    with sky.Dag() as dag:
        dag.add(_task(sky, task, {}))
    sky.get(sky.optimize(dag))


def launch(sky: Any, task: str, secrets: dict[str, str]) -> Any:
    """Submit a managed job; gives its number."""
    made = _task(sky, task, secrets)
    numbers, _ = sky.get(sky.jobs.launch(made, name=made.name))
    return numbers[0] if isinstance(numbers, list) else numbers


def jobs(sky: Any, ids: list[int] | None) -> Any:
    """What is known of these jobs; None: of all of this user's."""
    try:
        answer = sky.get(sky.jobs.queue_v2(refresh=False, job_ids=ids, fields=FIELDS))
    except Exception as error:
        if _is_a(error, ("ClusterNotUpError",)):  # there is no controller, so no job either
            return []
        raise
    records = [record.model_dump(mode="json") for record in answer[0]]
    return [{field: record.get(field) for field in FIELDS} for record in records]


def cancel(sky: Any, ids: list[int]) -> Any:
    """End jobs, and take down their machines."""
    sky.get(sky.jobs.cancel(job_ids=ids))


def log(sky: Any, id: int) -> Any:
    """The last lines that a job has printed."""
    said = io.StringIO()
    sky.jobs.tail_logs(job_id=id, follow=False, tail=20, output_stream=said)
    return said.getvalue()


def _is_a(error: BaseException, names: tuple[str, ...]) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


def answer(sky: Any, line: str) -> dict[str, Any]:
    """The answer to one line of input."""
    asked = json.loads(line)
    calls = {call.__name__: call for call in (about, optimize, launch, jobs, cancel, log)}
    try:
        return {"answer": calls[asked["call"]](sky, **asked["with"])}
    except Exception as error:  # of whatever kind: the backend says it
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
        return {"refused": not _is_a(error, NOT_NOW), "error": type(error).__name__, "said": said}


def main() -> None:
    """Answer until nobody asks any more."""
    to_backend = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SkyPilot prints what it does
    import sky

    for line in sys.stdin:
        to_backend.write(json.dumps(answer(sky, line)) + "\n")
        to_backend.flush()


if __name__ == "__main__":
    main()
