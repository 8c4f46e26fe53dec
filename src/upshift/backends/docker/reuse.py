"""Containers that serve the tasks of one mapped step, one after the other.

A task gets a container in which another task of its step has completed and left nothing behind, where there
is one or soon will be, and a new one elsewhere. So there are about as many as tasks run at once. What could
tell two tasks apart by it keeps a container of its own: see :func:`key_of`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

from upshift.backends.docker.launching import ContainerLaunch, Key
from upshift.backends.docker.options import Options
from upshift.model.spec import Hardware, TaskSpec, encode

SOON = 2.0
"""Seconds that a task waits for a container in which another one has just completed."""


def key_of(spec: TaskSpec, options: Options) -> Key | None:
    """Which attempts may have the container of this one after it; None: it has one for itself.

    A retry has, for what was there may have been the reason; several processes, devices, a user of the
    image's own and arguments of the user's, which may do away with any bound, are not shared either.
    """
    granted, docker = spec.granted or Hardware(), spec.settings.docker
    if docker is not None and docker.reuse_container is False:
        return None
    if spec.task.index is None or spec.attempt > 1 or spec.launch is not None or granted.gpus:
        return None
    if spec.user is not None or options.arguments:
        return None
    same = spec.task.run, spec.task.step, spec.store, spec.image, spec.interpreter, spec.runtime
    return (*same, json.dumps(encode(granted), sort_keys=True))


class Pool:
    """The containers that have nothing to do now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: list[ContainerLaunch] = []
        self._soon: Counter[Key] = Counter()
        self._waiting: Counter[Key] = Counter()
        self._spoilt: set[Key] = set()
        self._open = True

    def reusable(self, key: Key | None) -> Key | None:
        """The key, unless containers were not as before when an attempt with it had completed."""
        with self._changed:
            return None if key in self._spoilt else key

    def expects(self, key: Key) -> bool:
        """Whether it is worth while to :meth:`take`."""
        with self._changed:
            return any(launch.key == key for launch in self._free) or self._soon[key] > self._waiting[key]

    def take(self, key: Key) -> ContainerLaunch | None:
        """A container, waited for where one will be free soon; None: there is none."""
        deadline = time.monotonic() + SOON
        with self._changed:
            self._waiting[key] += 1
            try:
                while self._open:
                    for launch in self._free:
                        if launch.key == key and not launch.gone:
                            self._free.remove(launch)
                            return launch
                    left = deadline - time.monotonic()
                    if not self._soon[key] or left <= 0:
                        break
                    self._changed.wait(left)
            finally:
                self._waiting[key] -= 1
        return None

    def expect(self, key: Key) -> None:
        """A container is about to be free: :meth:`settle` follows."""
        with self._changed:
            self._soon[key] += 1

    def settle(
        self,
        key: Key,
        launch: ContainerLaunch | None,
        *,
        expected: bool,  # whether :meth:`expect` was called
        spoilt: bool,  # whether what runs there leaves something behind
    ) -> bool:
        """A container is free, or not: False, and it has to go."""
        gone = self._take_gone()
        with self._changed:
            self._soon[key] -= expected
            if spoilt:
                self._spoilt.add(key)
            kept = launch is not None and self._open
            if launch is not None and kept:
                self._free.append(launch)
            self._changed.notify_all()
        for other in gone:
            other.remove()
        return kept

    def close(self) -> None:
        """Let all of them go, and wait until they are gone."""
        with self._changed:
            self._open = False
            free, self._free = self._free, []
            self._changed.notify_all()
        for launch in free:
            launch.dismiss()
        for launch in free:
            launch.remove()

    def _take_gone(self) -> list[ContainerLaunch]:
        """Take out the containers that have left by themselves, for want of orders."""
        with self._changed:
            gone = [launch for launch in self._free if launch.gone]
            self._free = [launch for launch in self._free if launch not in gone]
        return gone
