"""Runs a pipeline of Kubeflow's by processes in place of pods: ``python kubeflow_pods.py FILE JSON``.

As ``run_kubeflow.py`` of the engines is called. It knows steps that come after each other, retries, and that
which comes at the end whatever became of the others; no loops, and no conditions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any


def pod(
    document: dict[str, Any], component: dict[str, Any], inputs: dict[str, Any], more: dict[str, str]
) -> int:
    """One process; gives its exit code."""
    container = document["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    values = {
        "{{$.inputs.parameters['" + name + "']}}": str(said.get("runtimeValue", {}).get("constant", ""))
        for name, said in inputs.items()
    }
    arguments = [values.get(argument, argument) for argument in container["args"]]
    if "--param" in arguments:  # those of the run have their defaults, which are what was exported
        arguments = arguments[: arguments.index("--param")]
    environment = {one["name"]: one["value"] for one in container.get("env", ())}
    process = subprocess.Popen(
        [sys.executable, *container["command"][1:], *arguments], env={**os.environ, **environment, **more}
    )
    told: list[int] = []

    def stop(number: int, frame: Any) -> None:
        told.append(number)
        os.kill(process.pid, number)

    signal.signal(signal.SIGTERM, stop)
    code = process.wait()
    if told:
        sys.exit(1)  # nothing that follows is started
    return code


def main(file: str, said: str) -> None:
    """Run all of it."""
    with open(file) as text:
        document = json.loads(text.readline())  # JSON is YAML, and read in no time
    given, components = json.loads(said), document["components"]
    done: set[str] = set()
    failed = False
    pending = dict(components["comp-steps"]["dag"]["tasks"])
    while pending and not failed:
        name = next(one for one, task in pending.items() if set(task.get("dependentTasks", ())) <= done)
        task = pending.pop(name)
        tries = 1 + task.get("retryPolicy", {}).get("maxRetryCount", 0)
        component = components[task["componentRef"]["name"]]
        inputs = task["inputs"]["parameters"]
        failed = all(pod(document, component, inputs, given["environment"]) for _ in range(tries))
        done.add(name)
    end = document["root"]["dag"]["tasks"].get("end")
    if end is not None:
        pod(document, components[end["componentRef"]["name"]], {}, given["environment"])
    print(f"finished with status {'FAILURE' if failed else 'SUCCESS'}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
