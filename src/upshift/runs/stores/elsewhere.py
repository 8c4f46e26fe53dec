"""Logs of a run that an engine on another machine works on, brought from their bucket while they grow."""

from __future__ import annotations

import time
from collections.abc import Collection

from upshift.errors import StoreUnavailable
from upshift.runtime.storage.live import LiveBucket
from upshift.runtime.storage.records import live_folder
from upshift.runtime.storage.replica import Replica
from upshift.runtime.storage.store import Store

EVERY = 2.0
"""Seconds between two looks at the bucket: one list each, or two where nodes say how they go."""


class Elsewhere:
    """Brings the logs that an engine puts whole, and what nodes tell of theirs, into this machine's files."""

    def __init__(self, replica: Replica, run: str) -> None:
        self._replica = replica
        self._run = run
        self._live = LiveBucket(replica, replica.replace_record)
        self._due = 0.0
        self.files: Collection[str] = ()  # the run's objects in the bucket, when this was last looked at
        self.problem: StoreUnavailable | None = None  # why nothing new can be seen

    def hear(self, *, now: bool = False) -> None:
        """Bring what is new, if it is time to look again."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        try:
            folder = f"{live_folder(self._run)}/"
            self.files = self._replica.bring_logs(self._run)
            told = {key.removeprefix(folder).split("/")[0] for key in self.files if key.startswith(folder)}
            for _ in self._live.hear(self._run, told) if told else ():
                pass
            self.problem = None
        except StoreUnavailable as error:
            self.problem = error


def elsewhere(store: Store, run: str) -> Elsewhere | None:
    """For a run of another machine in a bucket; None: whoever works on it writes into files that are here."""
    replica = store.replica
    return None if replica is None or not replica.is_elsewhere(run) else Elsewhere(replica, run)
