"""One attempt in a container, from its launch to its end, on a thread of its own.

::

    engine's 'run'  ◄── order ──┐                           ready: it is there, give it its order
         │                    Watch ──► events              started, log, logged
         └── lines of JSON ────┘                            ended: the result is in the store

Until it has its order the container does nothing, and without one it ends: an engine that is killed while
it starts a container leaves nothing behind that would run a task twice. After that the container goes on
whoever watches it. A later engine, or this one where the connection broke, reads ``logs`` instead.

A container that serves several attempts (:class:`.Pool`) is watched by one after the other: each reads its
output from its own order up to the word that nothing of the attempt is left.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import attrs

from upshift.backends.base import Ended, Event, Logged, LogGrew, Noticed, Sink, Started, Waiting
from upshift.backends.docker.launching import (
    KILLED,
    PATIENCE,
    ContainerLaunch,
    Pool,
    complaint,
    exit_code,
    state_of,
    talk,
    violent_end,
)
from upshift.errors import ImageError
from upshift.images.containers.engine import ContainerEngine
from upshift.runtime.supervisor.forkable import OWN_THREAD_PREFIX
from upshift.runtime.supervisor.protocol import AT_ONCE, RAN_NOTHING, TAKEN, WITH_GRACE

PULLING = 2.0
"""Seconds after which it is said that a container still does not run."""
ENDING = 10.0
"""Seconds after the last grace that a container is given to end by itself."""
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two questions to an engine that does not answer; then the last one again."""
GIVEN_UP = 300.0
"""Seconds after which an engine that does not answer is not waited for any more."""
TRIES = 5
"""How often a container is started that ran nothing, before that is the end of its job."""


class ContainerWatch:
    """Watches an attempt in a container, and tells; from before there is one, so that it can be cancelled."""

    def __init__(
        self,
        engine: ContainerEngine,  # the engine that has it
        name: str,  # the job's handle, which is the container's name where it serves this attempt alone
        *,
        pool: Pool,  # takes the container where it may serve another one
        sink: Sink,  # takes what happens
        node: str,  # what this machine is called
        memory: int | None,  # bytes that it may have; None: no limit
        user: str | None,  # who it runs as, where the image's settings say that; None: this user
        # called where the container is gone and ran nothing: to launch it once more
        again: Callable[[ContainerWatch], None],
        over: Callable[[ContainerWatch], None],  # called once nothing of it is left
    ) -> None:
        self.name = name
        self.told = False
        """Whether its end was told."""
        self._container = name
        self._engine = engine
        self._pool = pool
        self._sink = sink
        self._node = node
        self._memory = memory
        self._user = user
        self._again = again
        self._over = over
        self._since = time.time()
        self._launch: ContainerLaunch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._timers: list[threading.Timer] = []
        self._lock = threading.RLock()
        self._ordered = False
        self._left = threading.Event()
        self._cancelled: float | None = None
        self._last: dict[str, Any] | None = None
        self._begun = False
        self._expected = False
        self._done: dict[str, Any] | None = None
        self._ran_nothing = False
        self._tries = 0

    # -- what a backend does with it ---------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is to end."""
        return self._cancelled is not None

    def launch(self, launch: ContainerLaunch) -> None:
        """Start the container, unless nobody wants it any more."""
        with self._lock:
            if self._cancelled is None and not self._left.is_set():
                self._launch, self._ordered, self._process = launch, False, launch.process
                self._container, self._begun, self._done = launch.name, False, None
                self._since = time.time()
                self._tries += 1
                self._begin(self._run)
                return
        launch.remove()
        if launch.grant is not None:
            launch.grant.give_back()
        self.end("cancelled", "cancelled before it was started")

    def end(self, reason: str, message: str) -> None:
        """There will be no container."""
        self._tell_end(reason, message)
        self._over(self)

    def attach(self, container: str) -> None:
        """Watch the container, which runs."""
        self._container, self._ordered = container, True
        self._begin(self._resume)

    def cancel(self, grace: float) -> None:
        """End it: ``grace`` seconds for the step, and what it takes for the supervisor to record that."""
        with self._lock:
            if self._cancelled is not None and grace >= self._cancelled:
                return
            self._cancelled = grace
            if self._launch is None and not self._ordered:
                return  # launch() will see it
            if not self._ordered:
                self._withdraw()
                self._later(max(grace, 1.0), self._kill)
            elif grace > 0:
                self._later(0, lambda: self._signal(WITH_GRACE.name))
                self._later(grace, lambda: self._signal(AT_ONCE.name))
                self._later(grace + ENDING, self._kill)
            else:
                self._later(0, lambda: self._signal(AT_ONCE.name))
                self._later(ENDING, self._kill)

    def leave(self) -> None:
        """Watch it no more. What has its order goes on; :meth:`join` waits for the rest of what has ended."""
        with self._lock:
            self._left.set()
            if not self.told:
                for timer in self._timers:
                    timer.cancel()
                if self._ordered and self._process is not None:
                    self._process.kill()  # the engine's command, not the container
                elif not self._ordered:
                    self._withdraw()

    def join(self, deadline: float) -> None:
        """Wait until it is watched no more; until then at most, by the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    # -- on its thread -----------------------------------------------------------------------------

    def _begin(self, what: Callable[[], None]) -> None:
        def work() -> None:
            problem: str | None = None
            try:
                what()
            except Exception as error:  # of ours, or of the engine's: the job must not hang for it
                problem = str(error)
            self._finish(problem)

        self._thread = threading.Thread(target=work, name=f"{OWN_THREAD_PREFIX}{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._launch is not None
        launch = self._launch
        for before in launch.before:  # a task is never run by two attempts at once
            self._engine.run(["rm", "--force", before], timeout=PATIENCE, check=False)
        if self._process is None:
            with open(launch.own.said, "wb") as said:
                try:
                    command = [*self._engine.command, *launch.arguments]
                    # Podman leaves a file "oom" in its working folder where a container runs out of memory.
                    self._process = talk(command, stdin=subprocess.PIPE, stderr=said, folder=launch.own.path)
                except OSError as error:
                    self._tell_end("infrastructure", f"{self._engine.command[0]}: {error.strerror}")
                    return
        with self._lock:
            self._later(PULLING, self._explain)
            if self._left.is_set() or self._cancelled is not None:
                self._withdraw()
            elif launch.process is not None:
                self._give_order()
        assert self._process.stdout is not None
        self._listen(self._process.stdout)
        if self._done is not None:
            self._conclude(self._done["code"])
            return
        code = self._process.wait()
        self._process.stdout.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended without its order
                self._process.stdin.close()
        certain = code in (*RAN_NOTHING, KILLED) and launch.key is None
        if self._last is None and self._ordered and not certain:
            self._resume()  # the command ended, and perhaps not the container
            return
        self._conclude(code)

    def _resume(self) -> None:
        """Read what the container has said, and says; until it is certain that it has ended.

        Nobody waits for one that is left, but where its attempt has ended and it is about to.
        """
        silent = time.monotonic()
        tries = 0
        while self.told or not self._left.is_set():
            state = state_of(self._engine, self._container)
            if state == "":
                self._conclude(exit_code(self._engine, self._container, self._since))
                return
            if state is not None:
                tries = 0
                with self._lock:
                    command = [*self._engine.command, "logs", "--follow", self._container]
                    self._process = talk(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    if self._left.is_set() and not self.told:
                        self._process.kill()
                with self._process as process:
                    assert process.stdout is not None
                    self._listen(process.stdout)
                silent = time.monotonic()
            elif self._left.is_set():
                return
            elif time.monotonic() - silent > GIVEN_UP:
                title = self._engine.title
                self._tell_end("infrastructure", f"{title} has not answered for {GIVEN_UP:g} s")
                return
            elif tries == 0:
                self._sink(Waiting(handle=self.name, why=f"waits for {self._engine.title} to answer again"))
            self._left.wait(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._hear(line)
            if self._done is not None and self._launch is not None:
                return  # what follows is the next one's

    def _hear(self, line: bytes) -> None:
        news: Event | None = None
        try:
            said = json.loads(line)
            event = said["event"]
            if said.get("of", self.name) != self.name:  # another attempt that the container has served
                return
            if event == "started":
                news = Started(handle=self.name, node=self._node)
            elif event == "log":
                news = LogGrew(handle=self.name, size=int(said["size"]))
            elif event == "logged":
                news = Logged(handle=self.name, values=dict(said["values"]), step=said["step"])
            elif event == "noticed":
                news = Noticed(handle=self.name, text=str(said["text"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # whatever else is there
            return
        self._begun = self._begun or "of" in said
        if event == "ready":
            self._give_order()
        elif event == "over":
            self._done = said
        elif event == "ended":
            self._last = said
            self._expect_more()
            if said.get("completed"):  # what is left of it ends while the engine goes on
                self._tell_end(None, None)
        if news is not None and not self._left.is_set():
            self._sink(news)

    def _give_order(self) -> None:
        with self._lock:
            process, launch = self._process, self._launch
            if self._ordered or process is None or launch is None or process.stdin is None:
                return
            if self._left.is_set() or self._cancelled is not None:
                return
            self._ordered = True
            if launch.grant is not None:
                launch.grant.hand_over()
            if launch.key is not None:
                launch.own.serve(self.name)
            with contextlib.suppress(OSError):  # it has ended already
                process.stdin.write(launch.order)
                process.stdin.flush()
                if launch.key is None:
                    process.stdin.close()

    def _expect_more(self) -> None:
        """The attempt has ended: nobody is to look for it here any more, and another may soon run here."""
        launch = self._launch
        if launch is not None and launch.key is not None:
            launch.own.serve(None)
            if self._serves_on and not self._expected:
                self._expected = True
                self._pool.expect(launch.key)

    @property
    def _serves_on(self) -> bool:
        """Whether nothing that is known of the attempt speaks against another one in its container."""
        completed = self._last is not None and bool(self._last.get("completed"))
        return completed and self._cancelled is None and not self._left.is_set()

    def _withdraw(self) -> None:
        """Give the container no order, so that it ends."""
        if self._process is not None and self._process.stdin is not None and not self._ordered:
            with contextlib.suppress(OSError, ValueError):  # it has ended already, or knows
                self._process.stdin.write(b"\n")
                self._process.stdin.close()

    # -- its end -----------------------------------------------------------------------------------

    def _conclude(self, code: int | None) -> None:
        """The container is gone: tell why, unless it has said that itself."""
        if self._left.is_set() and not self._ordered:
            return
        last = self._last
        if self._left.is_set() and last is None:
            return
        if last is not None:
            problem = None if last.get("problem") is None else str(last["problem"])
            if problem and self._user is not None:
                who = f"it runs as {self._user}, who has to have access to the store"
                problem += f" ({who}; without user=… it runs as you)"
            self._tell_end("infrastructure" if problem else None, problem)
        elif self._cancelled is not None:
            self._tell_end("cancelled", "it was stopped before it could record anything")
        elif not self._ordered:
            self._tell_end("infrastructure", self._complaint(code))
        elif self._tries < TRIES and (code in RAN_NOTHING if self._is_own else not self._begun):
            self._ran_nothing = True
        else:
            self._tell_end(*self._cause(code))

    @property
    def _is_own(self) -> bool:
        """Whether the container serves this attempt alone."""
        return self._container == self.name

    def _cause(self, code: int | None) -> tuple[str, str]:
        """Why a supervisor ended without a word, by what the engine knows."""
        own = code if self._done is None else None
        killed = violent_end(self._engine, self._container, self._since, code=own, memory=self._memory)
        if killed is not None:
            return killed
        if code == TAKEN:
            return "infrastructure", "somebody else took the devices each time when they were handed over"
        if self._done is not None:
            return "infrastructure", f"the supervisor in the container was killed (exit code {code})"
        words = self._complaint(code) if self._launch is not None else f"exit code {code}"
        return "infrastructure", f"the supervisor in the container died: {words}"

    def _complaint(self, code: int | None) -> str:
        said = complaint(None if self._launch is None else self._launch.own.said)
        return said or f"{self._engine.title} ended it with {code}"

    def _tell_end(self, reason: str | None, message: str | None) -> None:
        with self._lock:
            if self.told or self._left.is_set():
                return
            self.told = True
        self._sink(Ended(handle=self.name, reason=reason, message=message))

    def _finish(self, problem: str | None) -> None:
        if problem is not None:
            self._tell_end("infrastructure", problem)
        with self._lock:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
            launch, self._launch = self._launch, None
            goes_on = self._left.is_set() and self._ordered and not self.told
            again, self._ran_nothing = self._ran_nothing and not self.told, False
            self._ordered = self._ordered and not again
        if launch is not None:
            if launch.grant is not None:
                launch.grant.give_back()
            if goes_on:
                launch.own.leave()
            elif not self._hand_on(launch):
                self._remove(launch)
        (self._again if again else self._over)(self)

    def _hand_on(self, launch: ContainerLaunch) -> bool:
        """Whether others may have the container now."""
        key, over, process = launch.key, self._done, self._process
        if key is None or process is None:
            return False
        launch = attrs.evolve(launch, order=b"", before=(), process=process)
        free, spoilt = None, False
        if over is not None and self._serves_on and process.poll() is None:
            spoilt = not (over["fit"] and launch.own.clear())
            free = None if spoilt else launch
        expected, self._expected = self._expected, False
        if self._pool.settle(key, free, expected=expected, spoilt=spoilt):
            return True
        if over is not None:
            launch.remove()
        return False

    def _remove(self, launch: ContainerLaunch) -> None:
        """What is in its folder of another user's, only that user can remove."""
        if not launch.own.remove() and launch.sweeping:
            with contextlib.suppress(ImageError):
                self._engine.run(launch.sweeping, timeout=PATIENCE, check=False)
            launch.own.remove()

    # -- beside it ---------------------------------------------------------------------------------

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, what)
        timer.name = f"{OWN_THREAD_PREFIX}timer"
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _explain(self) -> None:
        """Tell why the container takes long to start: its image is pulled."""
        if self._ordered or self.told or self._left.is_set() or self._launch is None:
            return
        said = self._complaint(None)
        if "Unable to find image" in said or "Trying to pull" in said:
            image = next((word.strip("'") for word in said.split() if word.startswith("'")), "its image")
            self._sink(Waiting(handle=self.name, why=f"pulls {image}"))

    def _signal(self, signal: str) -> None:
        with contextlib.suppress(ImageError):  # it has ended, or its end will tell
            self._engine.run(["kill", "--signal", signal, self._container], timeout=PATIENCE, check=False)

    def _kill(self) -> None:
        """Remove the container, and end a start that is under way."""
        process = self._process
        if process is not None and not self._ordered:
            process.kill()
        with contextlib.suppress(ImageError):
            self._engine.run(["rm", "--force", self._container], timeout=PATIENCE, check=False)
