"""``python -m upshift.cli.one_step STORE ORDER step|end …``: the command of a pod of another orchestrator.

::

    this process ── forks ──► prepares: walks the graph, makes the spec         ends, and its memory with it
                 ── starts ─► the supervisor of the attempt                     gets the signals of this one
                 ── forks ──► tells: what the orchestrator has to know of it    ends

So only the supervisor and this process run beside the step, and this process imports nothing before it forks.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upshift.engine.exported import Order
    from upshift.engine.one_step import OneStep


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; returns 0 when it is done or was not needed."""
    said = _parsed(arguments)
    if said.what == "end":
        return int(_apart(lambda: _end(said)))
    found = _attempted(said, again=False)
    if found["goes_on"]:
        found = _attempted(said, again=True)
    return int(found["code"])


def _attempted(said: argparse.Namespace, *, again: bool) -> dict[str, Any]:
    """Run the next attempt, if there is one; ``again``: the one that continues after a failure."""
    prepared: dict[str, Any] = _apart(lambda: _prepared(said, again))
    if "spec" in prepared:
        _supervised(f"{said.store}/{prepared['spec']}")
    elif prepared["code"]:
        return {"code": prepared["code"], "goes_on": False}
    found: dict[str, Any] = _apart(lambda: _finished(said))
    return found


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m upshift.cli.one_step")
    parser.add_argument("store", help="address of the store")
    parser.add_argument("order", help="digest of what was exported")
    parser.add_argument("what", choices=["step", "end"])
    parser.add_argument("--run", required=True, help="id of the run")
    parser.add_argument("--node", help="node of the graph, or step of a flow")
    parser.add_argument("--at", action="append", default=[], type=lambda text: int(float(text)))
    parser.add_argument("--tell", action="append", default=[], nargs=2, metavar=("WHAT", "FILE"))
    parser.add_argument("--param", action="append", default=[], nargs=2, metavar=("NAME", "VALUE"))
    return parser.parse_args(arguments)


def _apart(work: Callable[[], Any]) -> Any:
    """Do something in a fork, so that this process stays small; exits where that fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import json

        from upshift.cli import exit_code_of

        os.close(reading)

        def told() -> int:
            with open(writing, "w") as pipe:
                json.dump(work(), pipe)
            return 0

        code = exit_code_of(told)
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
    import json

    return json.loads(text)


def _supervised(spec: str) -> None:
    """Run the supervisor of an attempt, and forward signals to it. It leaves the outcome in the store."""
    import upshift

    package = os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))
    process = subprocess.Popen([sys.executable, package, "--scheduled", spec])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    process.wait()


def _opened(said: argparse.Namespace) -> tuple[OneStep, Order]:
    from upshift.engine.exported import Order
    from upshift.engine.one_step import OneStep
    from upshift.model.spec.codec import from_json
    from upshift.runtime.storage.store import open_direct

    store = open_direct(said.store)
    order = from_json(Order, bytes(store.read(said.order)))
    return OneStep(order, said.order, store.with_options(**order.options), said.run), order


def _prepared(said: argparse.Namespace, again: bool) -> dict[str, Any]:
    from upshift.authoring.resume import changed, composed_again

    step, order = _opened(said)
    given = changed(order, dict(said.param))
    step.begin((lambda: composed_again(order, step.store, given)) if given else None)
    caught = step.outcome(said.node, said.at).failure if again else None
    prepared = step.prepare(said.node, said.at, caught)
    if prepared.said:
        print(f"upshift: {prepared.said}", file=sys.stderr)
    return {"code": int(prepared.failed)} if prepared.spec is None else {"spec": prepared.spec}


def _finished(said: argparse.Namespace) -> dict[str, Any]:
    """The outcome of the task; of a result, the parts that Kubeflow needs are written to files."""
    step, _ = _opened(said)
    outcome = step.outcome(said.node, said.at)
    if outcome.failure is not None:
        failure = outcome.failure
        print(f"upshift: {failure.reason}: {failure.in_a_line}", file=sys.stderr)
        return {"code": 1, "goes_on": outcome.goes_on}
    for what, file in said.tell:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as output:
            output.write(step.told(said.node, said.at, what))
    return {"code": 0, "goes_on": False}


def _end(said: argparse.Namespace) -> int:
    step, _ = _opened(said)
    print(f"upshift: run {said.run} is {step.end()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
