"""The pipeline that is being composed in this context, if any: :class:`PipelineScope`."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from upshift.errors import GraphError, user_location

if TYPE_CHECKING:
    from upshift.authoring.composing.composition import Composition
    from upshift.authoring.options import PipelineOptions

_DEEPEST = 100
"""Pipelines inside pipelines inside …; deeper is taken for an endless recursion."""

_current: ContextVar[PipelineScope | None] = ContextVar("upshift_scope", default=None)


def current_scope() -> PipelineScope | None:
    """The pipeline whose function is running now; None outside a pipeline."""
    return _current.get()


class PipelineScope:
    """One pipeline whose function is running. Nested ones share the composition.

    Parameters
    ----------
    composition
        The graph in the making.
    options
        Settings of this pipeline and of those around it, merged.
    path
        Names of the pipelines around it and its own, from the outside in.
    """

    __slots__ = ("_token", "composition", "options", "path")

    def __init__(self, composition: Composition, options: PipelineOptions, path: tuple[str, ...]) -> None:
        if len(path) > _DEEPEST:
            raise GraphError(
                f"pipelines call each other more than {_DEEPEST} deep",
                where=user_location(),
                why=" → ".join([*path[:6], "…"]),
                fix="End the recursion.",
            )
        self.composition = composition
        self.options = options
        self.path = path
        self._token: Token[PipelineScope | None] | None = None

    def __enter__(self) -> PipelineScope:
        self._token = _current.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
