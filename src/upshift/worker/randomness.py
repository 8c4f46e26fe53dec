"""Random numbers of a task: its own, and the same again when the user seeded the generator.

Tasks are forked from one process, so without this all of them would draw the same "random"
numbers. Each starts instead from the state that the user's modules left behind, mixed with the
task's name: seeded at module level, a task draws the same numbers in every run; unseeded, that
state is random itself.
"""

from __future__ import annotations

import hashlib
import random
import sys

from upshift.spec.task import TaskId


class Randomness:
    """The global generators of Python and numpy, as the user's modules left them."""

    def __init__(self) -> None:
        self._state = b""

    def capture(self) -> None:
        """Look at the generators. ``random`` reseeds itself at a fork, so look before it."""
        digest = hashlib.sha256(repr(random.getstate()).encode())
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            digest.update(repr(numpy.get_state(legacy=False)["state"]["key"].tobytes()).encode())
        self._state = digest.digest()

    def enter(self, task: TaskId) -> None:
        """Seed the generators of this process for a task."""
        if not self._state:  # a fresh interpreter: the user's modules have just been imported
            self.capture()
        seed = hashlib.sha256(self._state + str(task).encode()).digest()
        random.seed(seed)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed([int.from_bytes(seed[i : i + 4], "big") for i in range(0, 32, 4)])
