"""What is different about a task since it last ran, in words; the same words for the same thing everywhere.

::

    code changed: constant CFG in side.py, normalize in features.py, clean in it.py (new), numpy 1.26 → 2.0
    environment changed: MODE
    image changed: requirements
    launch changed: processes 2 → 4, mixed_precision no → bf16
    input changed: lr: 0.1 → 0.2, data from load
    code of its inputs changed: features.Data, or what it reaches
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import attrs

from upshift.engine.keys import PACKAGE, PACKAGES, REQUIRED, code_in, fingerprint, key_parts, without_file
from upshift.engine.offers import degraded_of, how_degraded
from upshift.engine.tasks import COMPLETED, NodeState, TaskState
from upshift.errors import StoreError
from upshift.model.graph import FromStep, Graph, Node, StepDefinition
from upshift.model.plain import UNKNOWN, changes, is_opaque, words
from upshift.model.spec.artifact import Value
from upshift.model.spec.codec import encode, from_json
from upshift.model.spec.task import TaskId, TaskResult
from upshift.model.spec.work import same_inputs, same_work
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rows import RunRow, TaskRow
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

_RUNS_COMPARED = 10
"""Earlier runs that are looked into for a reason why there is no result."""

_NAMED = 3
"""Things of one kind that are named."""

_SHOWN = 32
"""Characters of a value that is small enough to be shown."""

_WHERE, _BELOW = "it runs in", "made of"

_TITLE = re.compile(r"(?P<kind>(?:[^()]+ )?)(?P<path>[^ ()]+) \((?P<file>[^()]+)\)(?P<note>.*)")
"""What a fingerprint calls a piece of code: ``constant pkg.side.CFG (pkg/side.py)``."""


@attrs.define(eq=False)
class History:
    """What the newest earlier run of the same pipeline did, read when somebody asks."""

    _run: str
    _pipeline: str
    _catalog: Catalog
    _store: Store
    _project: str
    _runs: list[tuple[RunRow, Graph]] | None = attrs.field(init=False, default=None)
    _by_node: dict[str, str | None] = attrs.field(init=False, factory=dict)
    _degraded: dict[str, dict[int | None, TaskResult]] = attrs.field(init=False, factory=dict)
    _tasks: dict[str, tuple[str, dict[int | None, TaskRow]] | None] = attrs.field(init=False, factory=dict)

    def why(self, task: TaskState, inputs: Mapping[str, Value]) -> str:
        """What is different from the newest earlier result of the same step."""
        name = task.node.node.name
        if name not in self._tasks:
            self._compare(task.node)
        earlier = self._tasks[name]
        if earlier is None:
            return "first run"
        run, rows = earlier
        row = rows.get(task.index)
        if row is None or row.status != COMPLETED:
            return "first run of this task"
        different = self._by_node[name]
        if different is not None:
            return different
        if task.key is not None and same_work(row.key, task.key):
            return f"no result of run {run} may be reused"
        if task.key is not None and row.key is not None and same_inputs(row.key, task.key):
            return changed_code_of(inputs)
        before = self._inputs(row)
        different = None if before is None else changed_inputs(before, inputs, task.node.node)
        return different or "input changed"

    def changed(self, state: NodeState) -> str | None:
        """What is different about a node from its newest earlier result, inputs apart."""
        name = state.node.name
        if name not in self._tasks:
            self._compare(state)
        return "first run" if self._tasks[name] is None else self._by_node[name]

    def degraded(self, task: TaskState) -> str | None:
        """How the newest earlier result was made, if with less than asked for."""
        name = task.node.node.name
        if name not in self._tasks:
            self._compare(task.node)
        earlier = self._tasks[name]
        if earlier is None:
            return None
        if name not in self._degraded:
            self._degraded[name] = degraded_of(earlier[0], name, self._catalog, self._store)
        of_all = next(iter(self._degraded[name].values()), None) if task.index is None else None
        made = self._degraded[name].get(task.index, of_all)
        if made is None:
            return None
        how = how_degraded(made.task, self._catalog, self._store)
        return f"the result of run {made.task.run} was made {how}"

    def _compare(self, state: NodeState) -> None:
        name = state.node.name
        self._tasks[name] = self._by_node[name] = None
        for row, graph in self._earlier():
            node = next((n for n in graph.nodes if n.name == name), None)
            if node is None:
                continue
            rows = {t.task.index: t for t in self._catalog.tasks(row.id, name) if t.status == COMPLETED}
            if rows:
                self._tasks[name] = (row.id, rows)
                definition = graph.definition(node)
                before, now = key_parts(definition, node), key_parts(state.definition, state.node)
                if before["image"] != now["image"]:  # digests say nothing to people
                    before, now = with_images((before, definition), (now, state.definition))
                self._by_node[name] = changed_parts(before, now)
                return

    def _inputs(self, row: TaskRow) -> Mapping[str, Value] | None:
        """What an earlier task was given, whoever did its work; None: that is not recorded any more."""
        task, number = row.task, 1
        if row.origin is not None:
            run, step, index, number = row.origin
            task = TaskId(run=run, step=step, index=index)
        while True:
            try:
                spec = self._store.read_spec(self._store.spec_path(task, number))
            except StoreError:
                return None
            if same_work(spec.key, row.key):  # an attempt before a run was resumed may be of other work
                return spec.inputs
            number += 1

    def _earlier(self) -> list[tuple[RunRow, Graph]]:
        if self._runs is None:
            self._runs = []
            for row in self._catalog.runs(pipeline=self._pipeline, limit=_RUNS_COMPARED + 1):
                content = None
                if row.id != self._run and row.store == self._store.address and self._is_ours(row):
                    content = self._store.read_record(row.id, "graph.json")
                if content is not None:
                    self._runs.append((row, from_json(Graph, content)))
        return self._runs

    def _is_ours(self, row: RunRow) -> bool:
        """Whether a run is of this project; a file that makes one begin may have come or gone above it."""
        there = str(row.source.get("code", {}).get("project", self._project))
        return os.path.commonpath([there, self._project]) in (there, self._project)


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
        return "launch changed: " + _launch(before, now)
    if name == "outputs":
        return "the outputs are saved in another way"
    return f"python changed: {before} → {now}" if name == "python" else f"{name} changed"


def _launch(before: object, now: object) -> str:
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
