"""What a driver works with: :class:`Work`."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.engine.building import Building
from upshift.engine.clock import Clock
from upshift.engine.debug import Debugged
from upshift.engine.journal import Journal
from upshift.engine.keys import Keys
from upshift.engine.leftovers import Leftovers
from upshift.engine.places import Place, Terms
from upshift.engine.reuse import Reuse
from upshift.engine.specs import Specs
from upshift.engine.tasks import Task
from upshift.engine.walk import Walk
from upshift.runtime.storage.store import Store


@attrs.define(kw_only=True)
class Work:
    """Everything that a driver works with."""

    walk: Walk
    terms: dict[str, Terms]
    places: tuple[Place, ...]
    store: Store
    specs: Specs
    keys: Keys
    reuse: Reuse
    journal: Journal
    leftovers: Leftovers
    clock: Clock
    inbox: SimpleQueue[Any]
    building: Building
    project: str
    keep_going: bool = False
    submitted: Callable[[], None] = attrs.field(default=lambda: None)
    """Called once something was submitted, and again: threads may be started from now on."""
    debugged: Debugged | None = None

    def is_debugged(self, task: Task) -> bool:
        """Whether the task runs in this process, for a debugger."""
        return self.debugged is not None and self.debugged.holds(task)

    def terms_of(self, task: Task) -> Terms:
        """What a task gets."""
        if self.debugged is not None and self.debugged.holds(task):
            return self.debugged.terms
        if task.terms is not None:
            return task.terms
        return self.terms[task.node.node.step]
