"""Outputs of tasks by name, and the artifacts of flows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import attrs

import upshift
from upshift.errors import NotFound, suggestion
from upshift.model.checks import shown
from upshift.model.graph import INPUTS, STATE
from upshift.model.spec.task import Artifact, Collected, Value
from upshift.runs.history.places import Placed, found
from upshift.runtime.storage.manifest import State

Held = Callable[[Artifact], Mapping[str, Artifact]]
"""What a state holds, by name."""


class Outputs(Mapping[str, object]):
    """Values by name, in order, each loaded when it is first asked for."""

    def __init__(self, owner: str, loaders: Mapping[str, Callable[[], object]], noun: str = "output") -> None:
        self._owner = owner
        self._loaders = loaders
        self._noun = noun
        self._values: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._loaders:
            raise NotFound(f"{self._owner} has no {self._noun} {name!r}", fix=suggestion(name, self._loaders))
        if name not in self._values:
            self._values[name] = self._loaders[name]()
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def get(self, name: str, default: Any = None) -> Any:
        """The value of this name, or ``default``."""
        return self[name] if name in self._loaders else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __repr__(self) -> str:
        return f"<{self._noun}s of {self._owner}: {', '.join(self)}>"


class Artifacts(dict[str, Artifact]):
    """What a task saved, by output; ``artifacts.score`` is one of what the step set on ``self``."""

    def __init__(self, saved: Mapping[str, Artifact], task: upshift.Task) -> None:
        super().__init__(saved)
        self._task = task

    @property
    def visible(self) -> list[str]:
        """Names of what the step has set or inherited, but for those that begin with an underscore."""
        return [name for name in self._task.data if not name.startswith(("_", "@"))] if self else []

    def named(self, name: str) -> DataArtifact:
        """An artifact by its name."""
        state = self._task.data if self else State()
        if name not in state:
            raise NotFound(
                f"task {self._task.pathspec!r} has no artifact {shown(name)}",
                fix=suggestion(name, self.visible),
            )
        return DataArtifact(self._task, name)

    def __getattr__(self, name: str) -> DataArtifact:
        if name.startswith("__") or not self or name not in self._task.data:
            raise AttributeError(f"no artifact is called {name!r}: {', '.join(self.visible)}")
        return DataArtifact(self._task, name)


def set_by_step(left: Artifact, inputs: Mapping[str, Value], held: Held) -> dict[str, Artifact]:
    """The artifacts in the state that a task left which it set or changed.

    A step that joins has set what those that it joins do not agree on.
    """
    given, told = _given(inputs, held), left.plain or {}
    return {
        name: attrs.evolve(artifact, plain=told.get(name))
        for name, artifact in held(left).items()
        if not name.startswith(("_", "@")) and given.get(name) != {artifact.digest}
    }


def _given(inputs: Mapping[str, Value], held: Held) -> dict[str, set[str]]:
    """The digests of each artifact in the states that a task goes on from."""
    joined = [state for name in inputs if name.startswith(INPUTS) for state in _states(inputs[name])]
    found: dict[str, set[str]] = {}
    for state in joined or _states(inputs.get(STATE)):
        for name, artifact in held(state).items():
            found.setdefault(name, set()).add(artifact.digest)
    return found


def _states(value: Value | None) -> list[Artifact]:
    if isinstance(value, Collected):
        return [state for item in value.items for state in _states(item)]
    return [] if value is None else [value]


class DataArtifact(Placed):
    """A value that a task of a flow left.

    Parameters
    ----------
    task
        The task; or where the value is: ``"Training/20261123-160338-9g7y/train/3/score"``.
    name
        What it is called.

    Raises
    ------
    NotFound
        There is no such artifact.
    """

    def __init__(self, task: upshift.Task | str, name: str = "") -> None:
        if isinstance(task, str):
            at, _, name = task.rpartition("/")
            owner: upshift.Task = found(at, "artifact").artifacts.named(name).parent
        else:
            owner = task
        self.parent: upshift.Task = owner
        self.id: str = name
        self.pathspec = f"{owner.pathspec}/{name}"
        self._artifact = owner.data.artifacts.get(name)

    @functools.cached_property
    def data(self) -> Any:
        """The value."""
        return self.parent.data[self.id]

    @property
    def sha(self) -> str | None:
        """The digest of its content: equal ones are equal values."""
        return None if self._artifact is None else self._artifact.digest

    @property
    def size(self) -> int | None:
        """Bytes."""
        return None if self._artifact is None else self._artifact.bytes

    @property
    def created_at(self) -> datetime | None:
        """When the task that left it ended, in UTC."""
        return self.parent.finished_at

    finished_at = created_at

    def __repr__(self) -> str:
        return f"<DataArtifact {self.pathspec}>"
