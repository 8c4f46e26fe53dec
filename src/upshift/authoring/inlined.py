"""What a pipeline gives when it is called inside another one: :class:`Inlined`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from upshift.errors import GraphError, user_location


class Inlined:
    """A pipeline inside another one. There is no run of its own: its steps are steps of the outer.

    Parameters
    ----------
    pipeline
        Its name.
    output
        What its function returned: placeholders, or plain values.
    results
        A placeholder of each of its steps, for ``.after``.
    """

    __slots__ = ("output", "pipeline", "results")

    def __init__(self, pipeline: str, output: Any, results: tuple[Any, ...]) -> None:
        self.pipeline = pipeline
        self.output = output
        self.results = results

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.output, (tuple, list)):
            raise self._refusal("returned one value, and cannot be unpacked", "Use .output, or pass it on.")
        return iter(self.output)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise self._refusal(
            f"has no .{name} here", "It is part of the pipeline that calls it: use .output, or pass it on."
        )

    def __bool__(self) -> NoReturn:
        raise self._refusal(
            "has not run yet, and cannot be tested for truth",
            "To run a step only if a result is true: step.when(flag)(…).",
        )

    def __repr__(self) -> str:
        return f"<pipeline {self.pipeline!r}, inside another one>"

    def _refusal(self, what: str, fix: str) -> GraphError:
        return GraphError(
            f"pipeline {self.pipeline!r}, inside another one, {what}", where=user_location(), fix=fix
        )
