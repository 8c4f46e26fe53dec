"""Metaflow's client: flows, runs by pathspec, and namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from upshift.errors import NotFound, user_location
from upshift.model.configuration import load_configuration
from upshift.runs.catalog.catalog import catalog_place, no_pipeline
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.history.outputs import get_namespace
from upshift.runs.history.runs import Run, list_runs


def get_metadata() -> str:
    """Where runs are recorded: ``"local@PATH"``."""
    return f"local@{catalog_place(load_configuration().catalog)}"


class Flow:
    """All runs of a pipeline, newest first. ``Flow("Training").latest_run["train"].task.data.score``

    Parameters
    ----------
    name
        Of the flow, or of a pipeline that is a function.

    Raises
    ------
    NotFound
        It has no run in the namespace.
    """

    def __init__(self, name: str, *, check: bool = True) -> None:
        self.id = self.pathspec = name
        if check and self.latest_run is None:
            catalog = open_catalog()
            if not catalog.runs(pipeline=name, limit=1):
                raise no_pipeline(name, catalog)
            raise NotFound(
                f"{name} has no run in the namespace {get_namespace()!r}",
                where=user_location(),
                fix="See the runs of everybody: namespace(None).",
            )

    @property
    def latest_run(self) -> Run[Any] | None:
        """The newest run; None: the namespace has none."""
        return next(self._runs(limit=1), None)

    @property
    def latest_successful_run(self) -> Run[Any] | None:
        """The newest run of which all is done; None: there is none."""
        return next(self._runs(status="completed", limit=1), None)

    def runs(self, *tags: str) -> Iterator[Run[Any]]:
        """The runs that have all of these tags."""
        return (run for run in self._runs() if {*tags} <= run.user_tags | run.system_tags)

    def __iter__(self) -> Iterator[Run[Any]]:
        return self._runs()

    def __getitem__(self, run: str) -> Run[Any]:
        return Run(f"{self.id}/{run}")

    def _runs(self, **which: Any) -> Iterator[Run[Any]]:
        return iter(list_runs(pipeline=self.id, **_within(), **which))

    def __repr__(self) -> str:
        return f"Flow({self.id!r})"


class Metaflow:
    """All flows that have a run in the namespace: ``Metaflow().flows``."""

    @property
    def flows(self) -> list[Flow]:
        """The flows, by name."""
        names = {run.pipeline for run in list_runs(**_within())}
        return [Flow(name, check=False) for name in sorted(names)]

    def __iter__(self) -> Iterator[Flow]:
        return iter(self.flows)

    def __getitem__(self, name: str) -> Flow:
        return Flow(name)


def _within() -> dict[str, Any]:
    name = get_namespace()
    if name is None:
        return {}
    kind, _, user = name.partition(":")
    return {"user": user} if kind == "user" and user else {"tag": name}
