"""Names and their values, each saved by itself and loaded when it is touched: :class:`State`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from upshift.model.spec.task import Artifact


class State:
    """What a step of a flow leaves for those that follow, which may be ``many``; plain data ``about`` it."""

    def __init__(
        self,
        values: Mapping[str, object] = {},
        artifacts: Mapping[str, Artifact] = {},
        *,
        load: Callable[[Artifact], object] | None = None,
        by_item: Iterable[str] = (),
        base: Artifact | None = None,
        about: Mapping[str, Any] = {},
        many: bool = False,
    ) -> None:
        self.values = values
        self.artifacts = artifacts
        self.by_item = frozenset(by_item)
        self.base = base
        self.about = about
        self.many = many
        self._load = load

    def replaced(
        self,
        *,
        values: Mapping[str, object] | None = None,
        artifacts: Mapping[str, Artifact] | None = None,
        about: Mapping[str, Any] | None = None,
        many: bool = False,
    ) -> State:
        """A state with these in place of its own."""
        return State(
            self.values if values is None else values,
            self.artifacts if artifacts is None else artifacts,
            load=self._load,
            by_item=self.by_item,
            base=self.base,
            about=self.about if about is None else about,
            many=many,
        )

    def __getitem__(self, name: str) -> object:
        if name in self.values:
            return self.values[name]
        assert self._load is not None
        return self._load(self.artifacts[name])

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name not in self:
            raise AttributeError(f"{name!r} is not among the artifacts: {', '.join(self)}")
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values or name in self.artifacts

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.artifacts, *self.values)))

    def __repr__(self) -> str:
        return f"<state of {', '.join(self)}>"
