"""The entry point of a step on several nodes: a placement group with a supervisor in each of its bundles.

It travels as the text of a command, and is run by the Python that runs Ray, whichever that is: only there is
the package ``ray`` of the cluster's own version.

::

    job of 0 CPUs, on the head ── placement group, STRICT_SPREAD ──► actor on each node ──► supervisor
                               ◄── how it ended ───────────────────

The supervisors decide all that is to be decided. Ray kills an actor whose job or node is gone, and the
supervisor ends with it; one that ends makes the others end.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from typing import Any

OF_RAY = "python-of-ray"
"""In the place of a command's program: the Python that runs Ray, where each node has its own."""
LEAVING = 60.0
"""Seconds that supervisors are given to end once one of them has."""
SAID = 2000
"""Characters of what a supervisor prints that are shown."""
PR_SET_PDEATHSIG = 1


class Node:
    """An actor with the resources of a bundle."""

    def address(self) -> str:
        """That by which Ray knows the node."""
        import ray

        return str(ray.util.get_node_ip_address())

    def supervise(
        self, command: list[str], environment: dict[str, str], without: list[str]
    ) -> tuple[int, str]:
        """Run a supervisor to its end: its exit code, and what it has printed."""
        here, prctl = os.getpid(), ctypes.CDLL(None).prctl

        def end_with_it() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != here:
                os._exit(1)

        program, *words = command
        own = {name: value for name, value in os.environ.items() if name not in without}
        done = subprocess.run(
            [sys.executable if program == OF_RAY else program, *words],
            env={**own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_it,
        )
        return done.returncode, done.stdout[-SAID:]


def main(asked: dict[str, Any]) -> int:
    """Run the supervisors; gives the exit code of the first one that failed."""
    order = os.environ[asked["order"]]
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(log_to_driver=False, logging_level="ERROR")
    labels = dict(asked["labels"])
    avoided = [node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] in asked["avoids"]]
    if avoided:
        labels["ray.io/node-id"] = f"!in({','.join(avoided)})"
    nodes, bundle = asked["nodes"], asked["bundle"]
    group = placement_group(
        [bundle] * nodes,
        strategy="STRICT_SPREAD",
        name=asked["name"],
        bundle_label_selector=[labels] * nodes if labels else None,
    )
    while not group.wait(timeout_seconds=3600):
        pass
    more = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}
    actors = [
        ray.remote(Node)
        .options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory"),
            resources=more or None,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        )
        .remote()
        for number in range(nodes)
    ]
    addresses = ray.get([actor.address.remote() for actor in actors])
    running = {}
    for number, (actor, address) in enumerate(zip(actors, addresses, strict=True)):
        seat = dict(zip(asked["seat"], (str(number), addresses[0], address, address), strict=True))
        told = order if "://" in order else f"{order}.{number}"  # an object, or a file for each node
        own = {asked["order"]: told, "RAY_ADDRESS": os.environ["RAY_ADDRESS"]}
        running[actor.supervise.remote(asked["command"], {**seat, **own}, asked["without"])] = address
    code, ended = 0, False
    while running:
        done, _ = ray.wait(list(running), timeout=LEAVING if ended else None)
        if not done:
            break
        ended = True
        for one in done:
            address = running.pop(one)
            try:
                own_code, said = ray.get(one)
            except ray.exceptions.RayError as error:
                own_code = 1
                lines = [line for line in str(error).splitlines() if line.strip()]
                said = f"upshift: node {address} was lost: {lines[0] if lines else type(error).__name__}"
            if said:
                sys.stdout.write(said.rstrip("\n") + "\n")
            code = code or own_code
    return code


if __name__ == "__main__":
    code = main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code if 0 <= code < 256 else 128 - code)  # Ray ends what is left with the job
