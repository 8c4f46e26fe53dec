"""``python -m upshift.cli.detached [DESCRIPTOR|ORDER]``: the engine of a detached run.

Its order is in its environment, or at the address ORDER in a store. Through DESCRIPTOR, a pipe, it reports to
the command that started it that the run has begun.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from upshift.cli import exit_code_of
from upshift.engine.detached import Order, log_of
from upshift.engine.ownerless import record_refused
from upshift.errors import EngineStopped, LeaseLost, RunFailed, UpshiftError
from upshift.model.configuration import make_folder
from upshift.report.terminal.progress import PlainProgress
from upshift.runtime.storage.replica import upload
from upshift.runtime.storage.store import open_store

_at_end: list[Callable[[], None]] = []


class _Telling(PlainProgress):
    """Plain lines of progress, and a byte into the pipe once the run has begun."""

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
    """Redirect stdout and stderr to this file, unless they are; Ray has logs of its own."""
    with contextlib.suppress(OSError):
        if not (os.path.exists(log) and os.path.samestat(os.fstat(1), os.stat(log))):
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)


class _Copied:
    """A stream that writes everything to a file, too."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream = stream
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text)
        self._file.flush()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _print_to_store(order: Order) -> None:
    """Write the output to the store as well; the engine uploads it, and this process the rest at its end."""
    store = open_store(order.configuration.store or "", **order.configuration.store_options)
    key = f"runs/{order.run}/{log_of(order.token)}"
    path = store.root / key
    make_folder(path.parent)
    file = path.open("a", encoding="utf-8", errors="replace")
    sys.stdout, sys.stderr = _Copied(sys.stdout, file), _Copied(sys.stderr, file)
    if (replica := store.replica) is not None:
        _at_end.append(lambda: upload(replica.objects, key, str(path)))


def work() -> int:
    """Do the run; returns 0 when it has completed."""
    from upshift.authoring.resume import resume_detached
    from upshift.runtime.supervisor.forkable import quiet_pools

    said = sys.argv[1] if len(sys.argv) > 1 else None
    del sys.argv[1:]
    descriptor, address = (int(said), None) if said is not None and said.isdigit() else (None, said)
    order = Order.taken(address)
    if order.log is None:
        _print_to_store(order)
    else:
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


def main() -> int:
    """Do the run and upload the rest of its output; returns the exit code."""
    code = exit_code_of(work)
    for finish in _at_end:
        with contextlib.suppress(UpshiftError):  # the bucket is away: what the pod or job printed is left
            finish()
    return code


if __name__ == "__main__":
    sys.exit(main())
