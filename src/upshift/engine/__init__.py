"""Walks the graph: scheduling, attempts, retries, reuse, resume, events."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RunOptions:
    """How a run is to be done."""

    target: str | None = None  # where steps run that name no place themselves; None: the default target
    strict: bool | None = None  # refuse what cannot be honoured in full; None: as each backend has it
    reuse: bool = True  # whether results of earlier runs may be reused
    keep_going: bool | None = None  # go on with what needs no failed step; None: as the pipeline has it
    tags: tuple[str, ...] = ()  # words to find the run by
    debug: str | None = None  # a step, or one task ``train[3]`` of it, that runs in this very process
    user: str | None = None  # who runs it; None: the name of the operating system's user
    max_workers: int | None = None  # how many tasks run at a time, at most
    max_splits: int | None = None  # how many items a list has, at most, that a step is mapped over
    origin: str | None = None  # the run whose completed tasks are taken over, whatever its code
    again: tuple[str, ...] = ()  # steps of which none is taken over
    detach: bool = False  # whether the engine is submitted to the target, and not this process
