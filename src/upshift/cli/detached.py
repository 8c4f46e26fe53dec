"""``python -m upshift.cli.detached``: the engine that ``--detach`` has submitted, or started, at its work."""

from __future__ import annotations

import contextlib
import os
import sys

from upshift.cli.output import exit_code_of
from upshift.engine.awaited import record_refused
from upshift.engine.detached import Order
from upshift.errors import EngineStopped, LeaseLost, RunFailed, UpshiftError
from upshift.report.terminal.plain import PlainProgress


class _Telling(PlainProgress):
    """Plain lines; and whoever waits for it at the other end of a pipe hears when it has the run."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(sys.stderr, sys.stdout)
        self._descriptor = descriptor

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # whoever waited has gone
                os.write(self._descriptor, b"!")
            os.close(self._descriptor)
        super().run_started(run, pipeline, target, steps)


def _print_to(log: str) -> None:
    """Print to this file, where not whoever started this process has seen to it: Ray has logs of its own."""
    with contextlib.suppress(OSError):
        if not (os.path.exists(log) and os.path.samestat(os.fstat(1), os.stat(log))):
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)


def work() -> int:
    """Do the run; 0: it has completed."""
    from upshift.authoring.resume import resume_detached
    from upshift.runtime.supervisor.starters.thread_pools import quiet_pools

    order = Order.taken()
    descriptor = int(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.argv[1:] = []
    _print_to(order.log)
    quiet_pools()
    if descriptor is not None:
        os.set_inheritable(descriptor, False)
    progress = _Telling(descriptor)
    try:
        resume_detached(order, progress)
    except RunFailed:
        order.clear(over=True)
        raise
    except (EngineStopped, LeaseLost):
        raise
    except UpshiftError as error:
        record_refused(order.run, order.token, error, order.configuration)
        order.clear(over=False)
        raise
    finally:
        progress.close()
    order.clear(over=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(work))
