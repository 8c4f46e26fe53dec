"""Running flows from Python, each in a process of its own: :class:`Runner`."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from upshift.errors import MisuseError, UsageError, user_location
from upshift.model.checks import shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from upshift.runs.history.runs import Run

_STREAMS = ("stdout", "stderr")
_LOOK = 0.05
"""Seconds between two looks at a process that was started."""

_TYPED = {"tags": "tag", "decospecs": "with"}
"""What is given as a list, and its option, which is repeated."""

_FLAGS = {"cache": "--no-cache", "strict": "--best-effort", "keep_going": "--stop-on-failure"}
"""Options without a value, and what is typed where they are not wanted."""

_WITHOUT_EFFECT = ("pylint", "profile", "file_read_timeout")
"""Options of Metaflow's that nothing here depends on."""


class _Cleaned:
    """Cleans up when its ``with`` block ends."""

    def cleanup(self) -> None:
        """What to do then."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()


class ExecutingRun(_Cleaned):
    """A run that a :class:`Runner` has started.

    Attributes
    ----------
    command
        What was called.
    folder
        Where its output is kept until :meth:`cleanup`.
    """

    def __init__(self, command: Sequence[str], folder: str | None, environment: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="upshift-runner-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        id_file = str(self.folder / "run")
        self.command = [*command, "--run-id-file", id_file]
        with self._path("stdout").open("wb") as out, self._path("stderr").open("wb") as err:
            self._process = subprocess.Popen(
                self.command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def cleanup(self) -> None:
        """Remove what was written down of it: its output, and the id of the run."""
        self._remove()

    @property
    def run(self) -> Run[Any]:
        """The run as it stands; this waits until it has begun.

        Raises
        ------
        UsageError
            It did not: :attr:`stderr` says why.
        """
        from upshift.runs.history.runs import get_run

        file = self.folder / "run"
        while not file.exists() or not file.read_text():
            if self.returncode is not None and not file.exists():
                raise UsageError(
                    f"no run has begun: exit code {self.returncode}", why=self.stderr.strip() or None
                )
            time.sleep(_LOOK)
        return get_run(file.read_text())

    @property
    def returncode(self) -> int | None:
        """The exit code; None: it goes on."""
        return self._process.poll()

    @property
    def status(self) -> str:
        """``"running"``, ``"successful"`` or ``"failed"``."""
        code = self.returncode
        return "running" if code is None else "failed" if code else "successful"

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._path("stdout").read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What it has printed so far to the other stream."""
        return self._path("stderr").read_text("utf-8", "replace")

    def terminate(self) -> None:
        """Interrupt the run, as ``Ctrl-C`` does."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    async def wait(self, timeout: float | None = None, stream: str | None = None) -> ExecutingRun:
        """Wait until it ends.

        Parameters
        ----------
        timeout
            Seconds at most.
        stream
            ``"stdout"`` or ``"stderr"``: print it meanwhile.

        Raises
        ------
        TimeoutError
            It goes on after ``timeout``.
        """
        try:
            await asyncio.wait_for(self._over(stream), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"the run has not ended after {timeout} s") from None
        return self

    async def stream_log(self, stream: str, position: int = 0) -> AsyncIterator[tuple[int, str]]:
        """The lines of a stream as they are printed, each with the position behind it.

        Parameters
        ----------
        stream
            ``"stdout"`` or ``"stderr"``.
        position
            Where to begin: 0, or what came with an earlier line.
        """
        if stream not in _STREAMS:
            raise UsageError(
                f"there is no stream {shown(stream)}", where=user_location(), fix='Use "stdout" or "stderr".'
            )
        with self._path(stream).open("rb") as file:
            file.seek(position)
            while True:
                over = self.returncode is not None  # looked at first: what it printed last is read below
                line = file.readline()
                if line.endswith(b"\n") or (line and over):
                    position += len(line)
                    yield position, line.decode("utf-8", "replace").rstrip("\r\n")
                    continue
                if over:
                    return
                file.seek(position)
                await asyncio.sleep(_LOOK)

    async def _over(self, stream: str | None) -> None:
        if stream is not None:
            async for _, line in self.stream_log(stream):
                sys.stdout.write(f"{line}\n")
        while self.returncode is None:
            await asyncio.sleep(_LOOK)

    def _path(self, stream: str) -> Path:
        return self.folder / stream

    def __repr__(self) -> str:
        return f"<ExecutingRun {' '.join(self.command)}: {self.status}>"


class Runner(_Cleaned):
    """Runs a flow in a process of its own: ``Runner("flow.py").run(alpha=0.1).run.data.score``.

    Its methods take what ``python flow.py run`` takes, by name: parameters of the flow, and options such as
    ``max_workers=4`` or ``tags=["mine"]``. As a ``with`` block it removes what it has written to disk.

    Parameters
    ----------
    flow_file
        The file of the flow.
    show_output
        Whether :meth:`run` and :meth:`resume` pass on what the flow prints.
    env
        Variables for it, beside those of this process.
    cwd
        The folder that it runs in.
    options
        What stands before ``run`` on the command line.
    """

    def __init__(
        self,
        flow_file: str,
        show_output: bool = True,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> None:
        if not os.path.isfile(os.path.join(cwd or "", flow_file)):
            raise UsageError(f"there is no file {shown(flow_file)}", where=user_location())
        self._command = [sys.executable, flow_file, *_typed(options)]
        self._show = show_output
        self._environment = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._runs: list[ExecutingRun] = []

    def run(self, **given: Any) -> ExecutingRun:
        """Run the flow, and wait until it is over; it may have failed: see :attr:`ExecutingRun.status`."""
        return self._wait(self._start("run", given))

    def resume(self, **given: Any) -> ExecutingRun:
        """Finish a run: ``resume(origin_run_id="20261123-160338-9g7y")``; without that the last one."""
        return self._wait(self._start("resume", given))

    async def async_run(self, **given: Any) -> ExecutingRun:
        """Start the flow, and return once its run has begun; ``await running.wait()`` for its end."""
        return await self._begun(self._start("run", given))

    async def async_resume(self, **given: Any) -> ExecutingRun:
        """:meth:`resume`, returning once it has begun."""
        return await self._begun(self._start("resume", given))

    def cleanup(self) -> None:
        """Remove what it has written down of its runs."""
        for run in self._runs:
            run.cleanup()

    def _start(self, command: str, given: Mapping[str, Any]) -> ExecutingRun:
        run = ExecutingRun([*self._command, command, *_typed(given)], self._cwd, self._environment)
        self._runs.append(run)
        return run

    def _wait(self, run: ExecutingRun) -> ExecutingRun:
        try:
            shown = [0, 0]
            while run.returncode is None:
                time.sleep(_LOOK)
                self._pass_on(run, shown)
            self._pass_on(run, shown)
        except BaseException:  # an interrupt, say
            run.terminate()
            raise
        return run

    def _pass_on(self, run: ExecutingRun, shown: list[int]) -> None:
        if not self._show:
            return
        for number, (text, stream) in enumerate(((run.stdout, sys.stdout), (run.stderr, sys.stderr))):
            print(text[shown[number] :], end="", file=stream, flush=True)
            shown[number] = len(text)

    async def _begun(self, run: ExecutingRun) -> ExecutingRun:
        await asyncio.to_thread(getattr, run, "run")
        return run


class NBRunner:
    """Runs a flow that is written in a cell of a notebook; the last line of that cell makes it.

    ::

        run = NBRunner(Training).nbrun(depths=[2, 4])
        print(run.data.best)

    The cell, up to the end of the class, is written to a file for as long as that takes, and run in a process
    of its own: what the flow needs has to stand there.

    Parameters
    ----------
    flow
        The class.
    show_output, env, options
        As for :class:`Runner`.
    base_dir
        The folder that the flow runs in.

    Raises
    ------
    MisuseError
        This is no notebook.
    """

    def __init__(
        self,
        flow: type[Any],
        show_output: bool = True,
        *,
        env: Mapping[str, str] | None = None,
        base_dir: str | None = None,
        **options: Any,
    ) -> None:
        cell = _cell()
        if cell is None:
            raise MisuseError(
                "NBRunner runs what a cell of a notebook has, and this is no notebook",
                where=user_location(),
                fix='Run the file of the flow: Runner("flow.py").run(…)',
            )
        code = _until_class(cell, flow.__name__)
        called = f'\n\n\nif __name__ == "__main__":\n    {flow.__name__}()\n'
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{flow.__name__}_", suffix=".py", dir=base_dir or os.getcwd(), delete=False
        ) as file:
            file.write(code + called)
        self._remove = weakref.finalize(self, _discard, file.name)
        self._runner = Runner(file.name, show_output, env=env, cwd=base_dir, **options)
        self.run = self._runner.run
        self.resume = self._runner.resume
        self.async_run = self._runner.async_run
        self.async_resume = self._runner.async_resume

    def nbrun(self, **given: Any) -> Run[Any]:
        """Run the flow, and clean up: the run."""
        return self._finished(self._runner.run(**given))

    def nbresume(self, **given: Any) -> Run[Any]:
        """Finish a run, and clean up: the run."""
        return self._finished(self._runner.resume(**given))

    def cleanup(self) -> None:
        """Remove the file of the cell, and what was written down of the runs."""
        self._remove()
        self._runner.cleanup()

    def _finished(self, running: ExecutingRun) -> Run[Any]:
        try:
            return running.run
        finally:
            self.cleanup()


def _cell() -> str | None:
    """The cell that runs; None: this is no notebook."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    cells = None if shell is None else shell.user_ns.get("In")
    return cells[-1] if cells else None


def _until_class(cell: str, name: str) -> str:
    """What a cell has up to the end of a class, but for lines of IPython's."""
    lines = ["" if line.startswith(("%", "!")) else line for line in cell.splitlines()]
    for statement in ast.parse("\n".join(lines)).body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return "\n".join(lines[: statement.end_lineno])
    raise MisuseError(
        f"the cell that runs does not have the class {name}",
        where=user_location(),
        why="NBRunner runs the flow in a separate process that has only the code of this cell.",
        fix="Write what the flow needs, the class, and NBRunner below it into one cell.",
    )


def _discard(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _typed(given: Mapping[str, Any]) -> list[str]:
    """Options as they are typed on a command line."""
    typed: list[str] = []
    for name, value in given.items():
        option = f"--{_TYPED.get(name, name).replace('_', '-')}"
        if name in _FLAGS:
            typed.append(option if value else _FLAGS[name])
        elif name in _TYPED:
            typed += [part for one in value for part in (option, one)]
        elif value is not None and name not in _WITHOUT_EFFECT:
            typed += [option, value if isinstance(value, str) else json.dumps(value)]
    return typed
