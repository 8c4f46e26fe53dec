"""``python -m upshift.runtime SPEC``: the supervisor of one task, under any backend or by hand.

The other processes of the runtime start here, too; what each of them needs is imported for it alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from upshift.runtime.children import take_arguments


def main() -> NoReturn:
    """Run what the command line says."""
    own = take_arguments()
    start = _PROCESSES.get(own[0]) if own else None
    if start is None:
        sys.exit(_by_hand(own))
    sys.exit(start(own[1:]))


def _step(own: Sequence[str]) -> NoReturn:
    from upshift.runtime.supervisor import starters

    starters.main(*map(int, own[:3]))


def _fork_server(own: Sequence[str]) -> NoReturn:
    from upshift.runtime.supervisor import forkable, forkserver

    forkable.watch()
    forkable.quiet_pools()
    forkserver.main(int(own[0]), own[1])


def _accelerator(own: Sequence[str]) -> NoReturn:
    from upshift.runtime.accelerators import agent
    from upshift.runtime.confine import detach

    vendor, interval, answers, parent = own[:4]
    detach(int(parent))
    agent.main(vendor, float(interval), int(answers))


def _framework(own: Sequence[str]) -> NoReturn:
    from upshift.runtime.accelerators import frameworks

    frameworks.main(own[0])


def _report(own: Sequence[str]) -> int:
    _be_ready()
    from upshift.runtime.supervisor import single_task

    return single_task.run_for_backend(own[0])


def _serve(own: Sequence[str]) -> int:
    _be_ready()
    from upshift.runtime.supervisor import container_init

    return container_init.serve(own)


def _be_ready() -> None:
    """As the first process of a container, say so before more is imported: the order comes meanwhile."""
    # It is not stopped by signals that it does not handle yet: keep them.
    used = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, used)
    own_home = os.path.join(os.environ.get("UPSHIFT_HOME", ""), "home")
    if os.path.isdir(own_home) and not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = own_home  # that of a user whom the image does not know is /
    os.write(1, b'{"event": "ready"}\n')


def _scheduled(own: Sequence[str]) -> int:
    path, *rest = own
    number = rest[0] if rest else None
    if number is not None and number.startswith("$"):  # the number of an element is in this variable
        number = os.environ[number[1:]]
    element = None if number is None else int(number)
    if element is not None:
        from upshift.runtime.supervisor import array_element

        if array_element.is_taken(path, element):
            return 0
    from upshift.runtime.supervisor import single_task

    return single_task.run_for_scheduler(path, element)


def _by_hand(own: Sequence[str]) -> int:
    import argparse  # what only people need: a supervisor of a backend starts without it

    parser = argparse.ArgumentParser(
        prog="python -m upshift.runtime", description="Run one task from its spec, and record its result."
    )
    parser.add_argument("spec", metavar="SPEC", help="path of a task's spec (JSON)")
    parser.add_argument("--store", help="address of the store, instead of the one in the spec")
    arguments = parser.parse_args(own)
    from upshift.runtime.supervisor.single_task import run_by_hand

    return run_by_hand(arguments.spec, arguments.store)


_PROCESSES: dict[str, Callable[[Sequence[str]], int]] = {
    "--step": _step,
    "--forkserver": _fork_server,
    "--accelerator": _accelerator,
    "--framework": _framework,
    "--report": _report,
    "--serve": _serve,
    "--scheduled": _scheduled,
}


if __name__ == "__main__":
    main()
