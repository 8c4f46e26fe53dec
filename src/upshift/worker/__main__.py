"""``python -m upshift.worker SPEC``: the supervisor of one task, under any backend or by hand."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from upshift.spec import Failure
    from upshift.worker.stock import Grant

EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 130}


def main() -> NoReturn:
    """Run what the command line says."""
    if sys.argv[1:2] == ["--step"]:
        from upshift.worker import fresh

        fresh.main(*map(int, sys.argv[2:5]))
    if sys.argv[1:2] == ["--forkserver"]:
        from upshift.worker import forkserver

        forkserver.main(int(sys.argv[2]), sys.argv[3])
    if sys.argv[1:2] == ["--accelerator"]:
        from upshift.accelerators import agent
        from upshift.worker.confine import detach

        vendor, interval, answers, parent = sys.argv[2:6]
        detach(int(parent))
        agent.main(vendor, float(interval), int(answers))
    if sys.argv[1:2] == ["--framework"]:
        from upshift.accelerators import frameworks

        frameworks.main(sys.argv[2])
    parser = argparse.ArgumentParser(
        prog="python -m upshift.worker", description="Run one task from its spec, and record its result."
    )
    parser.add_argument("spec", metavar="SPEC", help="path of a task's spec (JSON)")
    parser.add_argument("--store", help="address of the store, instead of the one in the spec")
    arguments = parser.parse_args()
    sys.exit(_run(Path(arguments.spec), arguments.store))


def _run(path: Path, store_address: str | None) -> int:
    import attrs

    from upshift.config.secrets import read_secrets
    from upshift.errors import UpshiftError
    from upshift.spec import TaskSpec, from_json
    from upshift.store.store import open_store
    from upshift.worker.console import Console
    from upshift.worker.fresh import FreshStarter
    from upshift.worker.loop import Loop
    from upshift.worker.supervisor import Supervisor

    try:
        spec = from_json(TaskSpec, path.read_bytes())
        if store_address:
            spec = attrs.evolve(spec, store=store_address)
        store = open_store(spec.store, durability=spec.durability)
        if store.read_result(spec.task, spec.attempt) is not None:
            raise UpshiftError(
                f"attempt {spec.attempt} of {spec.task} has a result already",
                fix="A result never changes. Set another attempt in the spec to run it again.",
            )
        secrets = read_secrets(spec.secrets, project=spec.code.project)
    except OSError as error:
        return _complain(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        return _complain(f"{path} is not a task's spec: {error}")
    except UpshiftError as error:
        return _complain(str(error))

    loop = Loop()
    console = Console()
    name = f"worker-{os.getpid()}"
    supervisor = Supervisor(name, loop=loop, watcher=console)
    starter = FreshStarter(loop, exited=supervisor.exited, kin=lambda: supervisor.kin)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # what matters is the byte in the pipe

    def stop() -> None:
        os.read(reader, 16)
        supervisor.devices.cancel(spec)
        supervisor.cancel(spec.task, spec.attempt, spec.grace)

    loop.watch(reader, stop)
    problem: Exception | None = None

    def start(grant: Grant | None) -> None:
        nonlocal problem
        try:
            supervisor.start(spec, store, starter, secrets, grant)
        except (OSError, UpshiftError) as error:
            problem = error

    def refuse(failure: Failure) -> None:
        nonlocal problem
        try:
            supervisor.refuse(spec, store, failure)
        except UpshiftError as error:
            problem = error

    def tell(why: str) -> None:
        sys.stderr.write(f"{spec.task} {why}\n")

    supervisor.devices.ask(spec, ready=start, tell=tell, refuse=refuse)
    while supervisor.busy or supervisor.devices.asking:
        loop.turn()
    supervisor.close()
    if problem is not None:
        return _complain(f"the task could not be started: {problem}", code=1)
    result = store.read_result(spec.task, spec.attempt)
    if console.problem or result is None:
        return _complain(console.problem or "the result could not be read back", code=1)
    if result.failure is not None:
        _complain(f"{spec.task}: {result.failure.reason}: {result.failure.message}")
    return EXIT_CODES[result.status]


def _complain(text: str, *, code: int = 2) -> int:
    sys.stderr.write(text + "\n")
    return code


if __name__ == "__main__":
    main()
