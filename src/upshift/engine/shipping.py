"""The user's code on its way: what other machines need, and what ``--same-code`` needs later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.engine.places import Place
from upshift.engine.specs import Shipped
from upshift.errors import UpshiftError
from upshift.model.spec.task import Code
from upshift.runtime.storage.store import Store


def ship(code: Code, places: Iterable[Place], store: Store, *, exclude: Sequence[Path]) -> Shipped | None:
    """Put code and runtime into the store, if any step runs on another machine.

    Parameters
    ----------
    code, places, store
        What to ship, if one of the places is on another machine, and where to.
    exclude
        Files that are no code.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    """
    if not any(place.backend.capabilities.remote for place in places):
        return None
    from upshift.code.packages import make_package
    from upshift.code.runtime_package import runtime_blob

    package = code.package or make_package(Path(code.project), store, exclude=exclude).digest
    return Shipped(code=attrs.evolve(code, package=package), runtime=runtime_blob(store))


class Keeper:
    """Keeps a package of the code of a run on this machine, while its first tasks run.

    A run with steps elsewhere has its package already. Here nothing waits for it, so it is made by a
    thread, which tells the engine's own through its inbox.

    Parameters
    ----------
    code
        The user's code.
    store
        Where the package goes.
    inbox
        The engine's inbox.
    exclude
        Files that are no code.
    keep
        Called by the engine's thread with the code and its package.
    give_up
        Called by the engine's thread with the reason why there is no package.
    """

    def __init__(
        self,
        code: Code,
        store: Store,
        inbox: SimpleQueue[Any],
        *,
        exclude: Sequence[Path],
        keep: Callable[[Code], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._code = code
        self._store = store
        self._inbox = inbox
        self._exclude = exclude
        self._keep = keep
        self._give_up = give_up
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if that has not happened yet."""
        if self._thread is None and self._code.package is None:
            self._thread = threading.Thread(target=self._make, name="upshift-package", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        if self._thread is not None:
            self._thread.join()

    def _make(self) -> None:
        from upshift.code.packages import make_package

        try:
            digest = make_package(Path(self._code.project), self._store, exclude=self._exclude).digest
        except Exception as error:
            # Whatever it is, the run does not need the package; its user is told.
            reason = repr(error)
            if isinstance(error, UpshiftError):
                reason = error.what + (f". {' '.join(error.fix.split())}" if error.fix else "")
            self._inbox.put(lambda: self._give_up(reason))
        else:
            code = attrs.evolve(self._code, package=digest)
            self._inbox.put(lambda: self._keep(code))
