"""The images and environments of a run, each made once, by a thread of its own, when the first task needs it.

::

    task ── hold ──► its image is there ────────────────────────► goes on at once
                └──► is made: the task waits ── inbox ──► then: goes on, or fails

Everything but the making itself happens in the engine's own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.engine.tasks import TaskState
from upshift.errors import RecipeError, UpshiftError
from upshift.model.spec.task import Failure
from upshift.report import ImageChange

if TYPE_CHECKING:
    from upshift.engine.images import MadeImage
    from upshift.engine.journal import Journal
    from upshift.engine.schedule import Clock
    from upshift.images.base import Image, Progress
    from upshift.images.environments import PreparedEnvironment
    from upshift.images.preparing import Prepared

Then = Callable[[TaskState, "Failure | None"], None]
"""Told, by the engine's thread, that the image of a task is there, or why it cannot be."""

_PATIENCE = 5.0
"""Seconds to wait for builders that were told to stop."""


class _Stopped(Exception):
    """Raised in a builder whose image is no longer needed."""


@attrs.define(eq=False)
class _Making:
    """One image, and the tasks that wait for it."""

    prepared: Prepared | PreparedEnvironment | MadeImage
    steps: tuple[str, ...]
    waiting: list[tuple[TaskState, Then]] = attrs.field(factory=list)
    thread: threading.Thread | None = None
    began: float = 0.0
    told: bool = False
    image: Image | None = None
    failure: Failure | None = None


class Building:
    """Makes the images of one run."""

    def __init__(
        self,
        prepared: Mapping[str, Prepared | PreparedEnvironment | MadeImage],
        *,
        inbox: SimpleQueue[Any],
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._inbox = inbox
        self._journal = journal
        self._clock = clock
        self._stopped = threading.Event()
        self._of: dict[str, _Making] = {}
        same: dict[Any, list[str]] = {}
        for step, image in prepared.items():
            same.setdefault(image.same, []).append(step)
        for steps in same.values():
            making = _Making(prepared[steps[0]], tuple(steps))
            self._of.update(dict.fromkeys(steps, making))

    def hold(self, task: TaskState, then: Then) -> bool:
        """Whether the task waits for its image; ``then`` is called when it need not wait any more.

        At once if the image cannot be made; not at all once :meth:`close` was called.
        """
        making = self._of.get(task.node.node.step)
        if making is None or making.image is not None:
            return False
        if making.failure is not None:
            then(task, making.failure)
            return True
        making.waiting.append((task, then))
        return True

    def start(self) -> bool:
        """Begin with the images that tasks wait for; whether there were any.

        It is not done at once: what can be forked from this process is forked before it has threads.
        """
        wanted = [m for m in dict.fromkeys(self._of.values()) if m.waiting and m.thread is None]
        for making in wanted:
            making.began = self._clock.monotonic()
            making.thread = threading.Thread(
                target=self._make, args=(making,), name="upshift-image", daemon=True
            )
            making.thread.start()
        return bool(wanted)

    def image_of(self, step: str) -> Image | None:
        """The image that a step runs in; None: its place runs none."""
        making = self._of.get(step)
        return making.image if making else None

    @property
    def unfinished(self) -> list[tuple[str, ...]]:
        """The steps of each image that is being made."""
        busy = [m for m in dict.fromkeys(self._of.values()) if m.thread and not (m.image or m.failure)]
        return [making.steps for making in busy]

    def close(self) -> None:
        """Let go of what is still being made: nobody wants it any more."""
        self._stopped.set()
        deadline = self._clock.monotonic() + _PATIENCE
        for making in self._of.values():
            if making.thread is not None:
                making.thread.join(max(0.0, deadline - self._clock.monotonic()))

    # In the thread of an image

    def _make(self, making: _Making) -> None:
        def tell(progress: Progress) -> None:
            if self._stopped.is_set():
                raise _Stopped
            self._inbox.put(lambda: self._progress(making, progress))

        try:
            image = making.prepared.make(tell)
        except _Stopped:
            return
        except UpshiftError as error:
            failure = _failure(error, making.prepared.noun)
            self._inbox.put(lambda: self._failed(making, failure))
        except BaseException as error:
            wrong = error  # a mistake of ours is raised where the run ends for it
            self._inbox.put(lambda: _raise(wrong))
        else:
            self._inbox.put(lambda: self._made(making, image))

    # In the engine's thread

    def _progress(self, making: _Making, progress: Progress) -> None:
        making.told = True
        noun = making.prepared.noun
        self._journal.image(ImageChange(steps=making.steps, status="making", progress=progress, noun=noun))

    def _made(self, making: _Making, image: Image) -> None:
        making.image = image
        self._over(making, "made", name=image.name or image.reference)

    def _failed(self, making: _Making, failure: Failure) -> None:
        making.failure = failure
        making.told = True
        self._over(making, "failed")

    def _over(self, making: _Making, status: str, *, name: str | None = None) -> None:
        if making.told:  # what is there already is not told of
            seconds = self._clock.monotonic() - making.began
            noun = making.prepared.noun
            self._journal.image(
                ImageChange(steps=making.steps, status=status, name=name, seconds=seconds, noun=noun)
            )
        waiting, making.waiting = making.waiting, []
        for task, then in waiting:
            then(task, making.failure)


def _failure(error: UpshiftError, noun: str) -> Failure:
    several = error.why is not None and "\n" in error.why  # lines of a builder's output
    return Failure(
        reason="user-error" if isinstance(error, RecipeError) else "infrastructure",
        message=f"its {noun} cannot be made: {error.what if several else error.in_short}",
        traceback=error.why if several else None,
        where=error.where,
        fix=error.fix,
    )


def _raise(error: BaseException) -> None:
    raise error
