"""The ``upshift`` command, forked from an interpreter that has imported Upshift already.

Most of the time of a short command goes into the start of Python and the import of Upshift. An
:class:`Interpreter` pays for that once: it imports Upshift and then waits; each command is a fork of
it, with the arguments, folder, environment and streams that the test gives. To the test, and to
whatever the command starts, it is a process like any other::

    test                         interpreter                     command
      │ arguments, environment,      │
      │ folder, 3 descriptors        │
      ├─────────────────────────────▶│ fork
      │                              ├──────────────────────────────▶│ upshift.cli.main()
      │ process id                   │                               │
      │◀─────────────────────────────┤                               │
      │ exit code                    │ waits for it                  │ exits
      │◀─────────────────────────────┤◀──────────────────────────────┘

What differs: ``/proc/PID/cmdline`` and ``/proc/PID/environ`` are those of the interpreter, modules are there
before the command begins, and are not taken down at its end. Tests for which that matters are marked
``processes``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import py_compile
import resource
import select
import socket
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

UPSHIFT = str(Path(sys.executable).with_name("upshift"))
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
"""What variables begin with that matter before the first line of Python runs."""
FEW = 2
"""Commands that start in another way before an interpreter is worth it."""


class Prepared:
    """Interpreters that have imported Upshift, started where they are worth it.

    Parameters
    ----------
    folder
        Gives an empty folder.
    usual
        The environment of most commands.
    """

    def __init__(self, folder: Callable[[], Path], usual: Mapping[str, str]) -> None:
        self._folder = folder
        self._usual = _start(usual)
        self._asked: Counter[tuple[tuple[str, str], ...]] = Counter()
        self._interpreters: dict[tuple[Any, ...], list[Interpreter]] = {}

    def interpreter(
        self, environment: Mapping[str, str], libraries: Sequence[str] = ()
    ) -> Interpreter | None:
        """One that would have started the same way in this environment; None: that is not worth it yet.

        There are two of each, which take turns: their hash seeds differ, as those of two commands do. There
        is one that has imported these ``libraries``, too, because that takes seconds.
        """
        start = _start(environment)
        self._asked[start] += 1
        which = (start, *libraries)
        made = self._interpreters.get(which, [])
        if not made:
            if start != self._usual and self._asked[start] <= FEW:
                return None
            made = [Interpreter(self._folder(), environment, libraries) for _ in range(1 if libraries else 2)]
            self._interpreters[which] = made
        return made[self._asked[start] % len(made)]

    def close(self) -> None:
        """End them all; commands go on."""
        for both in self._interpreters.values():
            for one in both:
                one.close()


_COMMAND = """#!{python} -ISs
import json, os, socket, sys
umask = os.umask(0)
os.umask(umask)
order = {{"argv": [{upshift!r}, *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ),
         "umask": umask, "cpus": sorted(os.sched_getaffinity(0))}}
written = os.memfd_create("order")
os.write(written, json.dumps(order).encode())
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({address!r})
socket.send_fds(connection, [b"order"], [written, 0, 1, 2])
connection.recv(100)
code = int(connection.recv(100))
os._exit(code if code >= 0 else 128 - code)
"""
"""A program for shells that orders a command, and ends as that does."""


class Interpreter:
    """One that has Upshift, and forks to run commands.

    Parameters
    ----------
    folder
        Empty; the interpreter's socket is there.
    environment
        What it is started with.
    libraries
        Modules that it imports, too.
    most_bytes
        Address space that a command may take; default: any.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        libraries: Sequence[str] = (),
        *,
        most_bytes: int | None = None,
    ) -> None:
        self._address = f"{folder}/socket"
        program = f"{folder}/program.pyc"  # in stack traces its lines are those of the command
        py_compile.compile(__file__, program, dfile=UPSHIFT, doraise=True)
        self._process = subprocess.Popen(
            [sys.executable, program, self._address, *libraries],
            env={**environment, "UPSHIFT_HOME": str(folder)},  # by which leftovers.py knows its forks
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if most_bytes is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (most_bytes, most_bytes))
        self._ready = False
        self._waiting = threading.Lock()

    def close(self) -> None:
        """End the interpreter; commands go on."""
        self._process.communicate()

    def write_command(self, folder: Path) -> None:
        """Put a program ``upshift`` there, for shells."""
        self._wait()
        folder.mkdir(exist_ok=True)
        program = folder / "upshift"
        program.write_text(
            _COMMAND.format(python=sys.executable, upshift=UPSHIFT, address=self._address), encoding="utf-8"
        )
        program.chmod(0o755)

    def _wait(self) -> None:
        with self._waiting:
            if not self._ready:
                assert self._process.stdout is not None
                self._ready = self._process.stdout.readline() == b"ready\n"

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """``upshift ARGUMENTS`` to its end, as ``subprocess.run`` with ``capture_output=True`` does it."""
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(open(os.devnull, "rb"))
            pipes = [os.pipe() for _ in range(2)]
            ours = [stack.enter_context(open(reader, "rb", buffering=0)) for reader, _ in pipes]
            theirs = [stack.enter_context(open(writer, "wb", buffering=0)) for _, writer in pipes]
            command = self.start(arguments, cwd, env, (nothing.fileno(), *(end.fileno() for end in theirs)))
            for end in theirs:
                end.close()
            try:
                out, err = _read_all(ours, timeout)
                return subprocess.CompletedProcess([UPSHIFT, *arguments], command.wait(timeout), out, err)
            except TimeoutError:
                command.kill()
                raise subprocess.TimeoutExpired([UPSHIFT, *arguments], timeout or 0) from None

    def start(
        self,
        arguments: Sequence[str],
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Command:
        """``upshift ARGUMENTS`` with these descriptors as its standard streams."""
        order = {
            "argv": [UPSHIFT, *arguments],
            "cwd": os.fspath(cwd),
            "env": dict(env),
            "umask": _umask(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        self._wait()
        written = os.memfd_create("order")
        try:
            with open(written, "w", closefd=False) as file:
                json.dump(order, file)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.connect(self._address)
            socket.send_fds(connection, [b"order"], [written, *streams])
        finally:
            os.close(written)
        return Command(int(connection.recv(100)), connection)


class Command:
    """A command that was started: its process id, and in the end its exit code."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; negative: the signal that has ended it.

        Raises
        ------
        TimeoutError
            It runs on.
        """
        self._connection.settimeout(timeout)
        code = int(self._connection.recv(100))
        self._connection.close()
        return code

    def kill(self) -> None:
        """SIGKILL, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self.wait()


def _start(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(variable for variable in environment.items() if variable[0].startswith(READ_AT_START))
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read_all(streams: Sequence[IO[bytes]], timeout: float | None) -> list[bytes]:
    end = None if timeout is None else time.monotonic() + timeout
    read = {stream.fileno(): bytearray() for stream in streams}
    poller = select.poll()
    for descriptor in read:
        poller.register(descriptor, select.POLLIN)
    still = set(read)
    while still:
        ready = poller.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError
        for descriptor, _ in ready:
            if chunk := os.read(descriptor, 1 << 20):
                read[descriptor] += chunk
            else:
                poller.unregister(descriptor)
                still.discard(descriptor)
    return [bytes(text) for text in read.values()]


# From here on it is the interpreter that speaks: its program is this file, too.


def _import_upshift(libraries: Sequence[str]) -> None:
    import importlib
    import pkgutil

    sys.path[0] = str(Path(UPSHIFT).parent)
    import upshift

    for module in pkgutil.walk_packages(upshift.__path__, "upshift."):
        if not module.name.endswith(("__main__", ".arrays")):  # the second one is for users of NumPy
            importlib.import_module(module.name)
    assert "numpy" not in sys.modules, "NumPy starts threads, and not every user has it"
    assert len(os.listdir("/proc/self/task")) == 1
    for library in libraries:
        importlib.import_module(library)


def _serve(address: str) -> None:
    """Fork for each order, and say how it ends. Comes back in the forks only."""
    import selectors

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    watched = selectors.DefaultSelector()
    watched.register(listener, selectors.EVENT_READ)
    watched.register(0, selectors.EVENT_READ)
    commands: dict[int, tuple[int, socket.socket]] = {}
    os.write(1, b"ready\n")
    while True:
        for key, _ in watched.select():
            if key.fileobj == 0:  # the tests are over
                os._exit(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                _, descriptors, _, _ = socket.recv_fds(connection, 100, 4)
                pid = os.fork()
                if pid == 0:
                    for mine in (watched, listener, connection, *(other for _, other in commands.values())):
                        mine.close()  # not when it is collected: the number means another file then
                    _become(*descriptors)
                    return
                for descriptor in descriptors:
                    os.close(descriptor)
                exit_descriptor = os.pidfd_open(pid)
                commands[exit_descriptor] = pid, connection
                watched.register(exit_descriptor, selectors.EVENT_READ)
                connection.send(str(pid).encode())
            else:
                pid, connection = commands.pop(key.fd)
                watched.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # nobody wants to know any more
                    connection.send(str(code).encode())
                connection.close()


def _become(order: int, *streams: int) -> None:
    """Be a process with these standard streams, and nothing else that is open."""
    with open(order) as file:
        file.seek(0)
        ordered = json.load(file)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 16)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.umask(ordered["umask"])
    os.sched_setaffinity(0, ordered["cpus"])
    os.chdir(ordered["cwd"])
    os.environ.clear()
    os.environ.update(ordered["env"])
    time.tzset()
    sys.argv[:] = ordered["argv"]


def _stream(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start, where it has made this one."""
    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    raw.name = like.name
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if number else io.BufferedReader(raw),
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=number == 2 or os.isatty(number),
    )


def _main() -> None:
    """Be the command that was ordered, in a main module such as it has."""
    import gc

    address, *libraries = sys.argv[1:]
    _import_upshift(libraries)
    gc.freeze()
    _serve(address)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=UPSHIFT, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(UPSHIFT).read_text(), UPSHIFT, "exec"), main.__dict__)
    except SystemExit as end:
        _end(end.code)
        raise


def _end(code: object) -> None:
    """End as Python does, but leave objects where they are: to take each down copies the page that it is on.

    That would be most of a short command. Comes back where Python itself has something to say.
    """
    import atexit

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is None or isinstance(code, int):
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _main()
