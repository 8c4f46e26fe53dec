"""Runs versions of small projects, each in a fork of this process: one request a line, one answer a line.

A version is imported, composed and keyed as ``upshift run`` does it. Each task is then called in a fork of
its own, unless a result with its key is among those that are known. Only the engine is left out, which
would take ten times as long.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import pkgutil
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import upshift
from upshift.authoring.composing.definitions import file_of, project_of
from upshift.authoring.loading import find_pipeline, load_module
from upshift.code.fingerprint import look_up
from upshift.engine.keys import Keys
from upshift.engine.tasks import TaskState, task_inputs
from upshift.engine.walk import Walk
from upshift.model.spec.calls import bind
from upshift.model.spec.task import ONCE
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.usercode import resolve

LIMIT = 20
"""Seconds that a version may take."""


class Evaluation:
    """The tasks of one version, called or taken from what is known."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._known_file = Path(request["known"])
        self._reusing = request["reuse"]
        self._known: dict[str, Any] = {}
        if self._known_file.exists():
            self._known = pickle.loads(self._known_file.read_bytes())
        file = Path(request["file"])
        module = load_module(file)
        pipeline = find_pipeline(module, file, "example" if hasattr(module, "example") else None)
        self._store: Store = open_store(request["store"])
        with self._store.claims.held():
            self._graph = pipeline.build(request["arguments"], self._store)
        function = pipeline.callee.function
        self._keys = Keys(look_up(project_of(function), file_of(function)))

    def tasks(self) -> dict[str, dict[str, Any]]:
        """What became of each task, by its name."""
        walk = Walk(self._graph, truth=lambda artifact: artifacts.plain_value(artifact, self._store))
        walk.start()
        found = {}
        while walk.ready:
            task = walk.ready.popleft()
            inputs, _ = task_inputs(task, walk.nodes, lambda a: artifacts.items_of(a, self._store))
            key = self._keys.key(task.node, inputs)
            walk.began(task)
            known = self._known.get(key) if self._reusing and not key.startswith(ONCE) else None
            alone = len(self._graph.nodes) == 1 and task.index is None
            called = self._called if alone else self._called_apart
            outputs, value = known or called(task, inputs)
            found[str(task)] = {"key": key, "cached": known is not None, "value": value}
            if alone:  # its inputs are what they would be if nothing was reused
                found[str(task)]["truth"] = value if known is None else self._called(task, inputs)[1]
            if outputs is None:
                break  # it raised
            self._known[key] = (outputs, value)
            walk.completed(task, outputs)
        if self._reusing:
            self._known_file.write_bytes(pickle.dumps(self._known))
        return found

    def _called_apart(self, task: TaskState, inputs: Any) -> Any:
        return in_child(lambda: self._called(task, inputs))

    def _called(self, task: TaskState, inputs: Any) -> tuple[Any, str]:
        definition = task.node.definition
        entry = definition.entry
        function: Any
        if entry.payload is not None:
            function = artifacts.load(entry.payload, self._store)
        else:
            function = resolve(sys.modules[entry.module], entry.qualname)
        values = {name: artifacts.load_value(value, self._store) for name, value in inputs.items()}
        args, kwargs = bind(function, values)
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            return None, f"raised {type(error).__name__}: {error}"
        values = [value] if len(definition.outputs) == 1 else value
        by_item = task.node.node.by_item
        return {
            name: artifacts.save(one, self._store, by_item=name in by_item)
            for name, one in zip(definition.outputs, values, strict=True)
        }, re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def in_child(work: Any) -> Any:
    """What a call gives, in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(work(), stream)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        content = stream.read()
    os.waitpid(child, 0)
    if not content:
        raise RuntimeError("the child died")
    return pickle.loads(content)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run one version, in this very process."""
    signal.alarm(LIMIT)
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    try:
        return {"tasks": Evaluation(request).tasks()}
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        return {"tasks": {}, "error": text}


def main() -> None:
    """Import what versions need, with the libraries that are named, and answer requests."""
    for package in (upshift.authoring, upshift.code, upshift.runtime.storage):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".arrays"):  # needs NumPy
                importlib.import_module(module.name)
    for library in sys.argv[1:]:
        importlib.import_module(library)
    gc.freeze()
    gc.disable()
    del sys.path[0]  # the folder of this file, which is no part of anybody's project
    for line in sys.stdin:
        found = in_child(lambda: answer(json.loads(line)))  # noqa: B023
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
