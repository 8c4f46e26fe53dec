"""What ``gc`` is about to remove from a bucket, and how everybody else keeps what they need of it.

A bucket has no locks that hold while somebody looks and then writes. So ``gc`` removes in two steps::

    gc         writes what it condemns, then looks which engines have a lease; once all of those have ended,
               it removes what no record refers to by then
    engines    write their lease, then read what is condemned; of that they reuse no run, and before they
               rely on content they take it off the list

Either ``gc`` sees the lease of an engine, or the engine sees what is condemned; no clock decides. While
content is being removed, its list cannot be changed: whoever needs some of it waits, and puts it there anew.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection

import attrs

from upshift.errors import NotFound, StoreError, StoreUnavailable
from upshift.runtime.storage.objects.base import Objects, Version

STATE = "gc/state"
EVERYBODY = "*"
"""Among the engines of a state: it was not looked yet which are at work."""
CONDEMNED, REMOVING, IDLE = "condemned", "removing", "idle"
_PATIENCE = 600.0
"""Seconds to wait for a ``gc`` that removes content which is needed."""
_PREFIX = "blobs/"


@attrs.frozen(kw_only=True)
class State:
    """What ``gc`` is about to do in a bucket."""

    phase: str = IDLE
    runs: frozenset[str] = frozenset()  # removed ones; some of their results may stay
    blobs: frozenset[str] = frozenset()  # their keys
    engines: frozenset[str] = frozenset()
    """The runs whose engines may not know of this."""


def read_state(objects: Objects) -> tuple[State, Version | None]:
    """The state, and its version; None: there was no ``gc`` yet."""
    import gzip  # few processes read it

    found = objects.get(STATE)
    if found is None:
        return State(), None
    try:
        said = json.loads(gzip.decompress(found.data))
        blobs = frozenset(_PREFIX + rest for rest in said["blobs"])
        state = State(
            phase=said["phase"],
            runs=frozenset(said["runs"]),
            blobs=blobs,
            engines=frozenset(said["engines"]),
        )
    except (ValueError, OSError, EOFError, KeyError, TypeError):
        raise StoreError(
            f"{objects.address}/{STATE} is damaged",
            why="It says what gc is about to remove from the bucket.",
            fix="See that no gc works on the bucket, and remove that object.",
        ) from None
    return state, found.version


def write_state(objects: Objects, state: State, version: Version | None) -> Version | None:
    """Replace this version of the state. None: somebody else has."""
    import gzip

    said = {
        "phase": state.phase,
        "runs": sorted(state.runs),
        "blobs": sorted(key.removeprefix(_PREFIX) for key in state.blobs),
        "engines": sorted(state.engines),
    }
    content = gzip.compress(json.dumps(said).encode(), compresslevel=1, mtime=0)
    return objects.put(STATE, content, absent=version is None, match=version)


class Condemned:
    """What is condemned in a bucket, as a process knows it that has a lease, or works for an engine."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._keys: frozenset[str] | None = None
        self._guard = threading.Lock()

    def look(self) -> tuple[State, Version | None]:
        """Read it now."""
        state, version = read_state(self._objects)
        self._keys = state.blobs
        return state, version

    def rescue(self, keys: Collection[str]) -> None:
        """See that content which this process is about to put, or to rely on, is not removed.

        Raises
        ------
        StoreUnavailable
            A ``gc`` that was killed had begun to remove it.
        """
        with self._guard:
            if self._keys is None:
                self.look()
            assert self._keys is not None
            if not self._keys.isdisjoint(keys):
                self._take_off(frozenset(keys))

    def _take_off(self, keys: frozenset[str]) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            state, version = self.look()
            if state.blobs.isdisjoint(keys):
                return
            if state.phase == CONDEMNED:
                left = attrs.evolve(state, blobs=state.blobs - keys)
                if write_state(self._objects, left, version) is not None:
                    self._keys = left.blobs
                    return
                continue
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"gc has not come to its end in {self._objects.address}",
                    why="It was about to remove content that this run needs, and seems to have been killed.",
                    fix="Run it again: upshift gc",
                )
            time.sleep(1.0)


def removed(run: str) -> NotFound:
    """The error for a run that ``gc`` has removed."""
    return NotFound(f"run {run} was removed by upshift gc", fix="Start it anew.")
