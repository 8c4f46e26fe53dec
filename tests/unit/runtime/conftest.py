"""A local backend with a project of a few functions, driven without an engine."""

from __future__ import annotations

import queue
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settings_kit import with_settings
from upshift.backends.base import Ask, Ended, Event, Job
from upshift.backends.local.backend import LocalBackend
from upshift.config import ResourceSettings
from upshift.model.configuration import Target
from upshift.model.spec import Code, EntryPoint, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store


class Bench:
    """Runs functions of a module as tasks, and waits for their results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: Store = open_store(str(folder / "store"))
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.backend = self.open()
        self._count = 0

    def open(self) -> LocalBackend:
        target = Target(name="local", backend="local")
        return LocalBackend(target, store=self.store.address, sink=self.events.put)

    def write(self, source: str, module: str = "steps") -> None:
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))

    def spec(
        self,
        function: str,
        *,
        request: dict[str, Any] | None = None,
        inputs: dict[str, object] | None = None,
        **fields: Any,
    ) -> TaskSpec:
        self._count += 1
        settings = ResourceSettings(**(request or {}))
        return TaskSpec(
            task=TaskId(run="run", step=function, index=self._count),
            attempt=1,
            pipeline="test",
            entry=EntryPoint(module="steps", qualname=function),
            code=Code(project=str(self.folder), paths=("",), file="steps.py"),
            store=self.store.address,
            inputs={name: artifacts.save(value, self.store) for name, value in (inputs or {}).items()},
            request=settings,
            granted=self.backend.offer(Ask(request=settings)).granted,
            cwd=str(self.folder),
            **with_settings(fields),
        )

    def submit(self, spec: TaskSpec) -> str:
        (handle,) = self.backend.submit([Job(spec=spec, spec_path=self.store.write_spec(spec))])
        return str(handle)

    def end(self, handle: str) -> Ended:
        """Wait for the end of a job, passing over what else is told."""
        while True:
            event = self.events.get(timeout=60)
            if isinstance(event, Ended) and event.handle == handle:
                return event

    def wait_for(self, kind: type[Any]) -> Any:
        """Wait for the next event of a kind."""
        while True:
            event = self.events.get(timeout=60)
            if isinstance(event, kind):
                return event

    def run(self, function: str, **fields: Any) -> TaskResult:
        """Run a function as a task, and give its result."""
        spec = self.spec(function, **fields)
        ended = self.end(self.submit(spec))
        result = self.store.read_result(spec.task, 1)
        assert result is not None, ended
        return result

    def output(self, result: TaskResult) -> Any:
        assert result.status == "completed", result.failure
        return artifacts.load(result.outputs["output"], self.store)

    def log(self, result: TaskResult) -> bytes:
        path = self.store.log_path(result.task, result.attempt)
        return path.read_bytes() if path.exists() else b""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("UPSHIFT_HOME", str(tmp_path / "home"))
    made = Bench(tmp_path)
    yield made
    made.backend.close()


@pytest.fixture
def project(bench: Bench) -> Callable[[str], Bench]:
    """Write the module whose functions are the steps."""

    def write(source: str) -> Bench:
        bench.write(source)
        return bench

    return write
