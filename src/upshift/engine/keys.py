"""The key of a task: what its result depends on, as far as Upshift sees it.

Nothing of the pipeline, the run or the node's name is in it, so that equal work is found again from
another pipeline. Its parts are the code, the inputs, the outputs that are to be saved, the
environment, the image, the launch plan and the version of Python.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from upshift.engine.tasks import NodeState
from upshift.graph import Node, StepDefinition
from upshift.spec.artifact import Artifact, Value
from upshift.spec.codec import encode

ONCE = "once:"
"""Prefix of the key of a task that is never reused by another run, only kept when its own is resumed."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Keys:
    """Makes keys. What the tasks of a node have in common is put together once for the node."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._shared: dict[str, tuple[Mapping[str, Value], dict[str, str]]] = {}

    def key(self, state: NodeState, inputs: Mapping[str, Value]) -> str:
        """The key of a task of this node with these inputs."""
        name = state.node.name
        parts = self._parts.get(name)
        if parts is None:
            parts = self._parts[name] = digest(key_parts(state.definition, state.node))
        named = self._shared_inputs(state)
        if state.node.over:
            named = named | {p: fingerprint(inputs[p]) for p in state.node.over}
        key = digest([parts, named])
        return key if state.definition.cache else ONCE + key

    def _shared_inputs(self, state: NodeState) -> dict[str, str]:
        assert state.shared is not None, "inputs come before keys"
        known = self._shared.get(state.node.name)
        if known is None or known[0] is not state.shared:
            known = (state.shared, {p: fingerprint(value) for p, value in state.shared.items()})
            self._shared[state.node.name] = known
        return known[1]


def same_work(one: str | None, other: str | None) -> bool:
    """Whether two keys are of the same work, whether or not other runs may reuse it."""
    return one is not None and other is not None and one.removeprefix(ONCE) == other.removeprefix(ONCE)


def key_parts(definition: StepDefinition, node: Node) -> dict[str, Any]:
    """What a key is made of beside the inputs, by name; plain JSON."""
    entry = definition.entry
    code: Any = dict(definition.code)
    if not code:
        code = {entry.qualname: entry.payload.digest if entry.payload else entry.module}
    return {
        "code": {"entry": [entry.module, entry.qualname], "reached": code},
        "outputs": [[name, name in node.by_item] for name in definition.outputs],
        "environment": dict(definition.environment),
        "image": None if definition.docker is None else encode(definition.docker),
        "launch": encode(definition.launch),
        "python": PYTHON,
    }


def fingerprint(value: Value) -> str:
    """What stands for an input in a key."""
    if isinstance(value, Artifact):
        return f"{value.serializer}:{value.digest}"
    return digest([value.form, value.keys, [fingerprint(item) for item in value.items]])


def digest(data: Any) -> str:
    """``algorithm:hex`` of the canonical JSON of plain data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "blake2b:" + hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
