"""The key of a task: what its result depends on, as far as Upshift sees it.

Nothing of the pipeline, the run or the node's name is in it, so that equal work is found again from
another pipeline. Its parts are the code, the inputs, the outputs that are to be saved, the
environment, the image, the launch plan and the version of Python. Where pickled inputs name classes
or functions, the code behind these names is a part of its own, after a ``+``.

Where a step runs in an image, that decides which Python and which packages it gets: the digest of the
image's recipe, its parent's digest included, stands for both.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from upshift.engine.tasks import NodeState
from upshift.model.graph import Node, StepDefinition
from upshift.model.spec.artifact import Artifact, Value
from upshift.model.spec.codec import encode
from upshift.model.spec.launch import Launch
from upshift.model.spec.work import CODE, DEBUGGED, ONCE

CodeNamed = Callable[[str], Mapping[str, str]]
"""The fingerprint of what a pickle names, ``module:qualname``, in the code as it is now."""

PACKAGE = "package "
"""What an installed package is called in a fingerprint: ``package numpy``, with its version."""

REQUIRED = "required package "
"""What one is called that another one requires."""

PACKAGES = (PACKAGE, REQUIRED)

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Keys:
    """Makes keys. What the tasks of a node have in common is put together once for the node."""

    def __init__(self, code_named: CodeNamed | None) -> None:
        # None: the user's code is not in this process, only recorded. What runs then is kept when its run
        # is resumed, and reused by no other if its inputs name code.
        self._code_named = code_named
        self._code: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._shared: dict[str, tuple[Mapping[str, Value], dict[str, str], set[str]]] = {}

    def key(self, state: NodeState, inputs: Mapping[str, Value]) -> str:
        """The key of a task of this node with these inputs."""
        name = state.node.name
        parts = self._parts.get(name)
        if parts is None:
            parts = self._parts[name] = digest(_placeless(key_parts(state.definition, state.node)))
        named, code = self._inputs(state, inputs)
        key = digest([parts, named])
        if code:
            key += CODE + self._digest_of(code)
        return key if state.definition.settings.reusable else ONCE + key

    def stream(self, state: NodeState, inputs: Mapping[str, Value], twin: int) -> str:
        """What the random numbers of a task follow from: its function and its inputs.

        So they are the same under another name, at another place of a list, and after an edit of the code.
        """
        entry = state.definition.entry
        return digest([entry.module, entry.qualname, self._inputs(state, inputs)[0], twin])

    def _inputs(self, state: NodeState, inputs: Mapping[str, Value]) -> tuple[dict[str, str], set[str]]:
        """What stands for each input, and the code that they name."""
        named, code = self._shared_inputs(state)
        if state.node.over:
            own = [inputs[p] for p in state.node.over]
            named = named | dict(zip(state.node.over, map(fingerprint, own), strict=True))
            code = code.union(*map(code_in, own))
        return named, code

    def _shared_inputs(self, state: NodeState) -> tuple[dict[str, str], set[str]]:
        assert state.shared is not None, "inputs come before keys"
        known = self._shared.get(state.node.name)
        if known is None or known[0] is not state.shared:
            named = {p: fingerprint(value) for p, value in state.shared.items()}
            code = set[str]().union(*map(code_in, state.shared.values()))
            known = self._shared[state.node.name] = (state.shared, named, code)
        return known[1:]

    def _digest_of(self, names: set[str]) -> str:
        if self._code_named is None:
            return ""
        for name in names - self._code.keys():
            self._code[name] = digest(dict(self._code_named(name)))
        return digest({name: self._code[name] for name in names}).partition(":")[2]


def debugged_key(key: str) -> str:
    """The key of a task that a person steps through: its result is no other task's, nor its own later."""
    return ONCE + DEBUGGED + key.removeprefix(ONCE)


def is_debugged(key: str) -> bool:
    """Whether the key comes from :func:`debugged_key`."""
    return key.startswith(ONCE + DEBUGGED)


def key_parts(definition: StepDefinition, node: Node) -> dict[str, Any]:
    """What a key is made of beside the inputs, by name; plain JSON."""
    entry = definition.entry
    code: Any = dict(definition.code)
    if not code:
        code = {entry.qualname: entry.payload.digest if entry.payload else entry.module}
    if definition.image is not None:
        code = {name: what for name, what in code.items() if not name.startswith(PACKAGES)}
    docker = definition.settings.docker
    return {
        "code": {"entry": [entry.module, entry.qualname], "reached": code},
        "outputs": [[name, name in node.by_item] for name in definition.outputs],
        "environment": dict(definition.environment),
        "secrets": dict(
            definition.settings.secret_sources
        ),  # their sources; a new value of a token is no new work
        "image": definition.image or (None if docker is None else encode(docker)),
        "launch": None if definition.launch is None else _launch(definition.launch),
        "python": PYTHON if definition.image is None else None,
    }


def _placeless(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts without the files of the code, which depend on where the project begins."""
    reached: dict[str, list[str]] = {}
    for title, said in parts["code"]["reached"].items():
        reached.setdefault(without_file(title), []).append(said)
    return {**parts, "code": {**parts["code"], "reached": {n: sorted(said) for n, said in reached.items()}}}


def without_file(title: str) -> str:
    """``pkg.features.normalize`` of ``pkg.features.normalize (pkg/features.py)``."""
    name, parenthesis, rest = title.partition(" (")
    return name + rest.partition(")")[2] if parenthesis else title


def _launch(launch: Launch) -> dict[str, Any]:
    """What a result may depend on of how its processes are started: which port they meet at is not."""
    said = {name: getattr(launch, name) for name in ("launcher", "processes", "devices")}
    return {**said, "arguments": dict(launch.arguments), "files": dict(launch.files)}


def fingerprint(value: Value) -> str:
    """What stands for an input in a key."""
    if isinstance(value, Artifact):
        return f"{value.serializer}:{value.identity or value.digest}"
    return digest([value.form, value.keys, [fingerprint(item) for item in value.items]])


def code_in(value: Value) -> set[str]:
    """The classes and functions that an input names."""
    if isinstance(value, Artifact):
        return set(value.code)
    found: set[str] = set()
    for item in value.items:
        if isinstance(item, Artifact):
            found.update(item.code)
        else:
            found |= code_in(item)
    return found


def digest(data: Any) -> str:
    """``algorithm:hex`` of the canonical JSON of plain data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "blake2b:" + hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
