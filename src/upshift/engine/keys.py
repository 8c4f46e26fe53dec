"""The key of a task: what its result depends on, as far as Upshift sees it; and the words for how two differ.

Nothing of the pipeline, the run or the node's name is in it, so that equal work is found again from
another pipeline. Its parts are the code, the inputs, the outputs that are to be saved, the
environment, the image, the launch plan and the version of Python. Where pickled inputs name classes
or functions, the code behind these names is a part of its own, after a ``+``.

Where a step runs in an image, that decides which Python and which packages it gets: the digest of the
image's recipe, its parent's digest included, stands for both.

The words for what is different are the same for the same thing everywhere::

    code changed: constant CFG in side.py, normalize in features.py, clean in it.py (new), numpy 1.26 → 2.0
    environment changed: MODE
    image changed: requirements
    launch changed: processes 2 → 4, mixed_precision no → bf16
    input changed: lr: 0.1 → 0.2, data from load
    code of its inputs changed: features.Data, or what it reaches
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from upshift.engine.tasks import NodeState
from upshift.model.graph import FromStep, Node, StepDefinition
from upshift.model.plain import UNKNOWN, changes, is_opaque, words
from upshift.model.spec.codec import encode
from upshift.model.spec.hardware import Launch
from upshift.model.spec.task import CODE, DEBUGGED, ONCE, Artifact, Value
from upshift.runtime.storage import artifacts

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


_NAMED = 3
"""Things of one kind that are named."""
_SHOWN = 32
"""Characters of a value that is small enough to be shown."""
_WHERE, _BELOW = "it runs in", "made of"
_TITLE = re.compile(r"(?P<kind>(?:[^()]+ )?)(?P<path>[^ ()]+) \((?P<file>[^()]+)\)(?P<note>.*)")
"""What a fingerprint calls a piece of code: ``constant pkg.side.CFG (pkg/side.py)``."""


def changed_parts(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """What is different of a key's parts, inputs apart; None: nothing is."""
    changed = [_part(name, before.get(name), now[name]) for name in now if before.get(name) != now[name]]
    return "; ".join(changed) or None


def with_images(
    *keys: tuple[Mapping[str, Any], StepDefinition],
) -> tuple[dict[str, Any], ...]:
    """The parts of the keys of these steps, with images as people know them in place of their digests."""
    moved = len({definition.image is None for _, definition in keys}) > 1
    changed = []
    for parts, definition in keys:
        said = {} if definition.settings.docker is None else encode(definition.settings.docker)
        where = "this environment" if definition.image is None else "an image"
        image = {_WHERE: where} if moved else {**said, _BELOW: definition.image}
        parts = {**parts, "image": image}
        if moved:  # another Python and other packages go without saying
            reached = parts["code"]["reached"]
            own = {name: what for name, what in reached.items() if not name.startswith(PACKAGES)}
            parts |= {"python": None, "code": {**parts["code"], "reached": own}}
        changed.append(parts)
    return tuple(changed)


def changed_inputs(before: Mapping[str, Value], now: Mapping[str, Value], node: Node) -> str | None:
    """Which inputs are different, small plain ones with their values; None: none is."""
    names = [
        name
        for name in {**now, **before}
        if name not in before or name not in now or fingerprint(before[name]) != fingerprint(now[name])
    ]
    if not names:
        return None
    told = (_input(name, before.get(name), now.get(name), node) for name in names)
    return "input changed: " + _listed(text for texts in told for text in texts)


def changed_code_of(inputs: Mapping[str, Value]) -> str:
    """The words for inputs that are the same, and name classes or functions whose code changed."""
    names = sorted(set[str]().union(*map(code_in, inputs.values())))
    reaches = "what it reaches" if len(names) == 1 else "what they reach"
    return f"code of its inputs changed: {_listed(n.replace(':', '.') for n in names)}, or {reaches}"


def _input(name: str, before: Value | None, now: Value | None, node: Node) -> list[str]:
    """What is different of an input: of an object its fields, with their values where these are short."""
    source = node.inputs.get(name)
    bare = f"{name} from {source.node}" if isinstance(source, FromStep) else name
    old, new = (UNKNOWN if value is None else artifacts.described(value) for value in (before, now))
    if is_opaque(old) or is_opaque(new):
        return [bare]
    told = []
    for field, one, other in changes(old, new, name):
        texts = _shown(one), _shown(other)
        known = texts[0] is not None and texts[1] is not None
        told.append(f"{field}: {texts[0]} → {texts[1]}" if known else bare if field == name else field)
    return told or [bare]


def _shown(plain: Any) -> str | None:
    """A plain value that is small, as Python writes it."""
    if plain is UNKNOWN:
        return "unset"
    text = words(plain)
    text = text if isinstance(plain, str) else text.replace(", ", ",")
    # A comma and a blank part one input from the next.
    return None if is_opaque(plain) or len(text) > _SHOWN or ", " in text else text


def _part(name: str, before: object, now: object) -> str:
    if name == "code" and isinstance(before, dict) and isinstance(now, dict):
        return "code changed: " + _code(before["reached"], now["reached"])
    if name in ("environment", "secrets") and isinstance(before, dict) and isinstance(now, dict):
        names = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return f"{name} changed: " + _listed(names)
    if name == "image" and isinstance(before, dict) and isinstance(now, dict):
        return "image changed: " + _image(before, now)
    if name == "launch":
        return "launch changed: " + _launch_change(before, now)
    if name == "outputs":
        return "the outputs are saved in another way"
    return f"python changed: {before} → {now}" if name == "python" else f"{name} changed"


def _launch_change(before: object, now: object) -> str:
    """How its processes are started: what is different, and between which values where these are short."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"{_processes(before)} → {_processes(now)}"
    parts = ("arguments", "files")
    flat = [{**one, **one["arguments"], **one["files"], **dict.fromkeys(parts)} for one in (before, now)]
    changed = []
    for name in dict.fromkeys((*flat[0], *flat[1])):
        old, new = (launch.get(name) for launch in flat)
        if old != new and (name == "devices" or name in before["files"] or name in now["files"]):
            changed.append("whether each process has a device" if name == "devices" else name)
        elif old != new:
            changed.append(f"{name} {'unset' if old is None else old} → {'unset' if new is None else new}")
    return _listed(changed)


def _processes(launch: object) -> str:
    if not isinstance(launch, dict):
        return "one process"
    number = launch["processes"]
    return f"{launch['launcher']} with {number} process{'' if number == 1 else 'es'}"


def _image(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    if _WHERE in now:
        return f"{before[_WHERE]} → {now[_WHERE]}"
    names = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    fields = [name for name in names if name != _BELOW]
    # Equal settings give another image where a file that they name has changed, or the parent.
    return _listed(fields) or "what its settings name: the parent image, or a file"


def _code(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The pieces that differ: what was edited first, then what is reached for the first time, or no more."""
    titles = {without_file(name): name for name in now}
    before = {titles.get(without_file(name), name): said for name, said in before.items()}
    differ = {name: None for name in now if name in before and before[name] != now[name]}
    # A class that was edited usually has other attributes, too.
    edited = [name for name in differ if name.partition(" of ")[2] not in differ]
    new = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    constants = {_file(name) for name in edited if name.startswith("constant ")}
    words: list[str] = []
    for name in (*edited, *new, *gone):
        said = before.get(name), now.get(name)
        words += _definitions(name, *said, constants) or [_piece(name, *said)]
    return _listed(dict.fromkeys(words)) or "another function"


def _definitions(title: str, before: str | None, now: str | None, constants: set[str]) -> list[str]:
    """What was edited in a module that counts whole: its digest is followed by those of its definitions."""
    if before is None or now is None or "=" not in now:
        return []
    old, new = ({part.partition("=")[0]: part for part in said.split(" ")[1:]} for said in (before, now))
    file = _file(title)
    found = []
    for part in {**new, **old}:
        if old.get(part) == new.get(part):
            continue
        end = " (new)" if part not in old else " (removed)" if part not in new else ""
        if part:
            name = f"constant {part[1:]}" if part.startswith(":") else part
            found.append(f"{name} in {file}{end}")
        elif file not in constants:  # else that says it
            found.append(f"what {file} does when it is imported")
    return found


def _file(title: str) -> str:
    match = _TITLE.fullmatch(title)
    return title if match is None else match["file"]


def _piece(name: str, before: str | None, now: str | None) -> str:
    """One piece of code, or one package with its versions."""
    if name.startswith(PACKAGES):
        package = name.removeprefix(REQUIRED).removeprefix(PACKAGE)
        return f"{package} {before or 'unused'} → {now or 'unused'}"
    end = " (new)" if before is None else " (no longer used)" if now is None else ""
    return described(name) + end


def described(title: str) -> str:
    """``constant CFG in pkg/side.py`` of ``constant pkg.side.CFG (pkg/side.py)``."""
    match = _TITLE.fullmatch(title)
    if match is None:
        return title
    kind, path, file, note = match.group("kind", "path", "file", "note")
    if kind == "top level of ":
        return f"what {file} does when it is imported"
    if kind == "body of ":
        return f"what {_within(path, file)} in {file} does beside calling steps"
    name = _within(path, file)
    return f"{kind}{name} in {file}{note}" if name else f"{kind}{file}{note}"


def _within(path: str, file: str) -> str:
    """What is left of a dotted path without the module that the file is; empty: it is the module."""
    parts = PurePath(file).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    for start in range(len(parts)):  # the folder that modules are imported from may be further down
        module = ".".join(parts[start:])
        if path == module:
            return ""
        if path.startswith(module + "."):
            return path[len(module) + 1 :]
    return path


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(every[:_NAMED]) + (", …" if len(every) > _NAMED else "")
