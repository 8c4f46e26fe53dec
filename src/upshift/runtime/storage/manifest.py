"""Values that are saved part by part: a list by its items, a :class:`State` by its names.

The content of such an artifact is a manifest: the artifacts of the parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from typing import Any, NamedTuple

import attrs

from upshift.model.spec.codec import decode, encode
from upshift.model.spec.task import Artifact

NAME = "items"
"""What an artifact names as its serializer."""
STATE = "state"
"""The form of a :class:`State`."""
_MARK = b"items\n"
_ONE = (str, bytes, bytearray, memoryview)


def is_list(kind: type[Any]) -> bool:
    """Whether a value of this class is a list, of which each item is a value: one to map over.

    A table, an array, a tensor or a data set has a length and items as well, and is one value all the same.
    """
    if issubclass(kind, tuple):
        return not hasattr(kind, "_fields")  # a named tuple is a record
    return issubclass(kind, (Sequence, MappingView)) and not issubclass(kind, _ONE)


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


class Manifest(NamedTuple):
    """What such a content says: of a state ``names``, the state that has further ones, and ``about``."""

    form: str
    items: tuple[Artifact, ...]
    names: tuple[str, ...] = ()
    base: Artifact | None = None
    about: Mapping[str, Any] = {}


def build(form: str, items: Iterable[Artifact]) -> bytes:
    """The content for a ``"list"`` or ``"tuple"`` of these items."""
    return _written({"form": form, "items": [encode(_bare(item)) for item in items]})


def build_state(
    artifacts: Mapping[str, Artifact], about: Mapping[str, Any], base: Artifact | None = None
) -> bytes:
    """The content for a state with these artifacts, beside those of ``base``."""
    items = [_short(artifact) or encode(_bare(artifact)) for artifact in artifacts.values()]
    data = {"form": STATE, "items": items, "keys": list(artifacts), "about": about}
    return _written(data if base is None else {**data, "base": encode(_bare(base))})


def parse(content: memoryview) -> Manifest:
    """Parse the content of a manifest."""
    if content[: len(_MARK)] != _MARK:
        raise ValueError("not a list of items")
    data = json.loads(bytes(content[len(_MARK) :]))
    items = tuple(
        _long(*item) if isinstance(item, list) else decode(Artifact, item) for item in data["items"]
    )
    base = data.get("base")
    return Manifest(
        data["form"],
        items,
        tuple(data.get("keys", ())),
        None if base is None else decode(Artifact, base),
        data.get("about", {}),
    )


def _written(data: Mapping[str, Any]) -> bytes:
    return _MARK + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _bare(item: Artifact) -> Artifact:
    """The digest of a list is that of its items, however they are described."""
    return item if item.plain is None else attrs.evolve(item, plain=None)


def _short(item: Artifact) -> list[str] | None:
    """A plain value in few words, as every task passes it on: digest, type, content."""
    if item.serializer != "json" or item.inline is None or item.code or item.identity:
        return None
    return [item.digest, item.type, item.inline]


def _long(digest: str, kind: str, inline: str) -> Artifact:
    size = len(inline) // 4 * 3 - inline.count("=", -2)
    return Artifact(digest=digest, serializer="json", type=kind, bytes=size, inline=inline)
