"""``python -m upshift.runtime SPEC``: the supervisor of one task, under any backend or by hand."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from upshift.runtime.interpreter import take_arguments


def main() -> NoReturn:
    """Run what the command line says."""
    own = take_arguments()
    if own[:1] == ["--step"]:
        from upshift.runtime.supervisor.starters import direct

        direct.main(*map(int, own[1:4]))
    if own[:1] == ["--forkserver"]:
        from upshift.runtime.supervisor.serving import forkserver
        from upshift.runtime.supervisor.starters import asked_at_import, thread_pools

        asked_at_import.watch()
        thread_pools.quiet_pools()
        forkserver.main(int(own[1]), own[2])
    if own[:1] == ["--accelerator"]:
        from upshift.runtime.accelerators import agent
        from upshift.runtime.confine import detach

        vendor, interval, answers, parent = own[1:5]
        detach(int(parent))
        agent.main(vendor, float(interval), int(answers))
    if own[:1] == ["--framework"]:
        from upshift.runtime.accelerators import frameworks

        frameworks.main(own[1])
    if own[:1] in (["--report"], ["--serve"]):
        # The first process of a container is not stopped by signals that it does not handle yet: keep them.
        used = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, used)
        own_home = os.path.join(os.environ.get("UPSHIFT_HOME", ""), "home")
        if os.path.isdir(own_home) and not os.access(os.path.expanduser("~"), os.W_OK):
            os.environ["HOME"] = own_home  # that of a user whom the image does not know is /
        os.write(1, b'{"event": "ready"}\n')  # so that the order comes while the rest is imported
        if own[0] == "--serve":
            from upshift.runtime.supervisor.serving import init

            sys.exit(init.serve(own[1:]))
        from upshift.runtime.supervisor.serving import single_task

        sys.exit(single_task.run_for_backend(own[1]))
    if own[:1] == ["--scheduled"]:
        number = own[2] if own[2:] else None
        if number is not None and number.startswith("$"):  # the number of an element is in this variable
            number = os.environ[number[1:]]
        path, element = own[1], None if number is None else int(number)
        if element is not None:
            from upshift.runtime.supervisor.serving import array

            if array.is_taken(path, element):
                sys.exit(0)
        from upshift.runtime.supervisor.serving import single_task

        sys.exit(single_task.run_for_scheduler(path, element))
    import argparse  # what only people need: a supervisor of a backend starts without it

    parser = argparse.ArgumentParser(
        prog="python -m upshift.runtime", description="Run one task from its spec, and record its result."
    )
    parser.add_argument("spec", metavar="SPEC", help="path of a task's spec (JSON)")
    parser.add_argument("--store", help="address of the store, instead of the one in the spec")
    arguments = parser.parse_args(own)
    from upshift.runtime.supervisor.serving.single_task import run_by_hand

    sys.exit(run_by_hand(arguments.spec, arguments.store))


if __name__ == "__main__":
    main()
