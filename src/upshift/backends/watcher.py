"""Watches jobs that a scheduler has, on a thread: their live records, and now and then the scheduler.

A job that completed is told by its own record; of any other the scheduler says why it ended, which may say
more than its supervisor could know.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from upshift.backends.base import Logged, LogGrew, Noticed, Started
from upshift.backends.jobs import Jobs, Watched
from upshift.backends.scheduler import Arrays, Cluster, NotNow, State, nodes_of, words_of
from upshift.errors import BackendError, UpshiftError
from upshift.model.settings.retry import STOPPED
from upshift.runtime.storage.live import name_of as name_in
from upshift.runtime.supervisor.array_element import element_in
from upshift.runtime.supervisor.protocol import AT_ONCE, WITH_GRACE

LOOK = (0.1, 0.5)
"""Seconds between two looks at live records: where something happens, and where nothing has for QUIET."""
LOOK_IN_BUCKET = (0.5, 2.0)
"""The same where a look is a request: a list of the live records of a run."""
QUIET = 10.0
ASK = 5.0
"""Seconds between two questions to the scheduler."""
BURST = 3
"""How many of those questions are asked sooner than that, because something has happened, where none was
asked before: never are there more than these and one in ASK seconds, however many jobs there are."""
SILENCE = 15.0
"""Seconds without an answer of the scheduler after which people are told: a controller that starts again is
away for less."""
SOON = 1.0
"""Seconds after which a job that was submitted is asked for: it may wait, and its user wants to know why."""
LATE = (5.0, 60.0)
"""Seconds that a result is looked for once a job has ended: where it failed, and where it says that it did
not. A shared folder may show late what another node has written (nfs(5), ``acdirmax``)."""
WORD = (2.0, 5.0)
"""Seconds after which supervisors of several nodes that have said that the attempt is over, or that the first
node is gone, are believed, though the scheduler has the job yet: it may wait for minutes for a lost node."""


class Watcher:
    """What is heard of jobs, and done to those that are to stop."""

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        arrays: Arrays | None,
        *,
        pauses: tuple[float, float],
        advice: Callable[[Watched, State], str],
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._arrays = arrays
        self._pauses = pauses
        self._advice = advice  # where to look if no supervisor has said a word
        self._idle: dict[str, None] = {}  # elements whose tasks others have taken, while they wait
        self._ask_at = 0.0
        self._asked: deque[float] = deque(maxlen=BURST)
        self._happened = 0.0
        self._withdrew = 0.0
        self._silent: float | None = None  # since when a question was not answered, by the monotonic clock
        self._missed: str | None = None  # who does not answer, once people are told

    def submitted(self) -> None:
        """The scheduler has taken jobs. Called under the lock of the jobs, as :meth:`found` is."""
        now = self._happened = time.monotonic()
        self._ask_at = min(self._ask_at, now + SOON)

    def found(self) -> None:
        """Jobs of an earlier engine are to be watched."""
        self._ask_at = 0.0

    def run(self) -> None:
        """Watch until the jobs are let go of."""
        while True:
            with self._jobs.changed:
                if not self._jobs.closed and not any(w.id for w in self._jobs.by_handle.values()):
                    self._jobs.changed.wait_for(
                        lambda: self._jobs.closed or any(w.id for w in self._jobs.by_handle.values())
                    )
                else:
                    busy = time.monotonic() - self._happened < QUIET
                    self._jobs.changed.wait(self._pauses[0] if busy else self._pauses[1])
                if self._jobs.closed:
                    return
                watched = [w for w in self._jobs.by_handle.values() if w.id is not None]
            try:
                self._look(watched)
                self._jobs.sweep()
                self._settle(watched)
                self._stop(watched)
                self._withdraw()
                now = time.monotonic()
                if now >= self._ask_at and not (
                    len(self._asked) == BURST and now - self._asked[0] < BURST * ASK
                ):
                    self._asked.append(now)
                    self._ask_at = now + ASK
                    self._ask(watched)
                    self._answered(watched)
            except (NotNow, UpshiftError, OSError) as error:
                self._unanswered(watched, error)
            except Exception as error:  # of ours: no job must hang for it
                for one in watched:
                    self._jobs.end(one, "infrastructure", words_of(error))

    def _unanswered(self, all_watched: Iterable[Watched], error: Exception) -> None:
        """The scheduler or the store does not answer, and is asked again: the jobs go on. Tell so, once."""
        now = time.monotonic()
        self._silent = now if self._silent is None else self._silent
        if self._missed is not None or now - self._silent < SILENCE:
            return
        self._missed = self._cluster.title if isinstance(error, (NotNow, BackendError)) else "the store"
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - self._silent)))
        words = words_of(error).rstrip(".")
        for watched in self._still(all_watched):
            if watched.started:
                text = f"since {since}, {words}. Running steps continue"
                self._jobs.tell(Noticed(handle=watched.handle, text=text))
            else:
                self._jobs.wait(watched, words)

    def _answered(self, all_watched: Iterable[Watched]) -> None:
        """Tell those who were told of a silence that it is over."""
        if self._missed is not None and self._silent is not None:
            text = f"{self._missed} answers again, after {time.monotonic() - self._silent:.0f} s"
            for watched in self._still(all_watched):
                self._jobs.tell(Noticed(handle=watched.handle, text=text))
        self._silent = self._missed = None

    def _still(self, all_watched: Iterable[Watched]) -> list[Watched]:
        return [watched for watched in all_watched if watched.handle in self._jobs.by_handle]

    def _stop(self, all_watched: Iterable[Watched]) -> None:
        """Stop what is to be stopped by now."""
        now = time.monotonic()
        due: dict[tuple[bool, bool], list[Watched]] = {}
        with self._jobs.changed:
            for watched in all_watched:
                if watched.stops and watched.stops[0][0] <= now:
                    due.setdefault(watched.stops[0][1:], []).append(watched)
        for (grace, kill), those in due.items():
            for watched in those:
                if watched.own is not None and not self._may_stop(watched):
                    self._idle[f"{watched.base}_{watched.own}"] = None
                    self._jobs.end(watched, "cancelled", "cancelled before it began")
                elif not (kill or self._cluster.signals):
                    self._tell(watched, WITH_GRACE if grace else AT_ONCE)
            ids = [w.id for w in those if w.id is not None and w.handle in self._jobs.by_handle]
            if ids:
                self._cluster.stop(ids, grace=grace, kill=kill)
            with self._jobs.changed:
                for watched in those:
                    watched.stops = [stop for stop in watched.stops if stop[0] > now]
            self._soon()

    def _tell(self, watched: Watched, signal: Signals) -> None:
        """Leave word for a supervisor that no signal reaches, and see that it does not begin later."""
        store, task, attempt = self._jobs.store_of(watched.spec), watched.spec.task, watched.spec.attempt
        store.write_stop(task, attempt, signal.name)
        if not watched.started:
            store.claim_attempt(task, attempt, by="an engine that cancelled it")
            watched.fenced = True

    def _may_stop(self, watched: Watched) -> bool:
        """Whether an element may run a task, which it is told to stop then; else none will."""
        spec, store = watched.spec, self._jobs.store_of(watched.spec)
        if store.claim_attempt(spec.task, spec.attempt, by="an engine that cancelled it"):
            return False
        self.follow(watched)
        with contextlib.suppress(OSError):
            store.write_stop(spec.task, spec.attempt, "")
        return True

    def follow(self, watched: Watched) -> bool:
        """Whether the element has changed that a task is with, by its claim."""
        claim = self._jobs.store_of(watched.spec).claimed_by(watched.spec.task, watched.spec.attempt)
        return claim is not None and self._is_with(watched, element_in(claim))

    def _is_with(self, watched: Watched, element: int | None) -> bool:
        if element is None or element == watched.element:
            return False
        if watched.element == watched.own:
            self._idle[f"{watched.base}_{watched.own}"] = None
        watched.element, watched.over, watched.missing = element, None, None
        return True

    def _withdraw(self) -> None:
        """Take back elements that have nothing left to do."""
        now = time.monotonic()
        if self._idle and self._arrays is not None and now - self._withdrew >= SOON:
            ids, self._withdrew = list(self._idle), now
            self._arrays.withdraw(ids)
            for id in ids:
                self._idle.pop(id)

    def _look(self, all_watched: Iterable[Watched]) -> None:
        """Hear the live records that have changed."""
        runs: dict[tuple[str, str], dict[str, Watched]] = {}
        for watched in all_watched:
            spec = watched.spec
            runs.setdefault((spec.store, spec.task.run), {})[name_in(spec.task, spec.attempt)] = watched
        for (_, run), by_name in runs.items():
            store = self._jobs.store_of(next(iter(by_name.values())).spec)
            for name, said in store.live.hear(run, by_name):
                self._hear(by_name[name], said)

    def _hear(self, watched: Watched, said: Mapping[str, Any]) -> None:
        self._happened = time.monotonic()
        self._is_with(watched, said.get("element"))
        handle, before = watched.handle, watched.said
        if "node" in said and not watched.started:
            watched.started = True
            self._jobs.tell(Started(handle=handle, node=said["node"]))
        if said.get("log", 0) != before.get("log", 0):
            self._jobs.tell(LogGrew(handle=handle, size=said["log"]))
        if said.get("logged") != before.get("logged"):
            self._jobs.tell(Logged(handle=handle, values=said["logged"], step=said["step"]))
        for text in said.get("noticed", [])[len(before.get("noticed", [])) :]:
            self._jobs.tell(Noticed(handle=handle, text=text))
        watched.said = said
        ended = said.get("ended")
        alone = nodes_of(watched.spec) == 1
        if ended is not None and (ended["completed"] or (alone and self._explains_itself(watched))):
            self._jobs.end(watched, None, None)
        elif ended is not None or "lost" in said:
            watched.told = watched.told or time.monotonic()
            self._soon()
        else:
            watched.told = None

    def _explains_itself(self, watched: Watched) -> bool:
        """Whether an attempt has recorded why it did not complete, and the scheduler knows no better."""
        result = self._jobs.store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
        return result is not None and (result.failure is None or result.failure.reason != STOPPED)

    def _ask(self, all_watched: Sequence[Watched]) -> None:
        """Ask the scheduler how the jobs are."""
        asked = {
            w.id
            for w in all_watched
            if w.id is not None and w.handle in self._jobs.by_handle and w.over is None
        }
        states = self._cluster.states(asked - {None}) if asked else {}
        gone = State(
            phase="ended", reason="infrastructure", message=f"{self._cluster.title} does not know it any more"
        )
        hopeless: dict[Watched, str | None] = {}
        for watched in all_watched:
            if watched.id not in asked:
                continue
            state = states.get(watched.id, gone)
            if state.phase == "ended":
                watched.over = state
            elif state.hopeless:
                hopeless[watched] = state.why
            elif state.phase == "pending" and watched.fenced:
                # It was fenced before this was asked: whatever the scheduler does with it, nothing begins.
                self._jobs.end(watched, "cancelled", "cancelled before it began")
            elif state.phase == "pending" and state.why:
                self._jobs.wait(watched, f"{self._cluster.title} has it wait: {state.why}")
        if hopeless:
            self._cluster.stop([w.id for w in hopeless if w.id and w.element is None], grace=False)
            for watched, why in hopeless.items():
                if watched.element is not None:
                    self._idle[f"{watched.base}_{watched.element}"] = None
                self._jobs.end(watched, "infrastructure", f"{self._cluster.title} can never start it: {why}")

    def _settle(self, all_watched: Iterable[Watched]) -> None:
        """Tell the end of jobs of which the scheduler has told it, once their result is there too."""
        for watched in all_watched:
            now = time.monotonic()
            if watched.over is None and watched.told is not None and nodes_of(watched.spec) > 1:
                watched.over = self._believed(watched, now - watched.told)
            state = watched.over
            if state is None or watched.handle not in self._jobs.by_handle:
                continue
            if watched.own is not None and self.follow(watched):
                continue
            recorded = self._jobs.store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
            said = watched.said.get("ended")
            if recorded is not None:
                self._jobs.end(watched, state.reason, state.message)
            elif said is not None and said["problem"] and watched.fenced:
                self._jobs.end(watched, "cancelled", "cancelled before it began")
            elif said is not None and said["problem"]:
                self._jobs.end(watched, "infrastructure", said["problem"])
            elif watched.missing is None:
                watched.missing = now
            elif now - watched.missing > LATE[state.reason is None] or watched.cancelled:
                self._jobs.end(watched, *self._cause(watched, state))

    def _believed(self, watched: Watched, since: float) -> State | None:
        """The end of a job by what its supervisors have said; None: only the scheduler knows why."""
        result = self._jobs.store_of(watched.spec).read_result(watched.spec.task, watched.spec.attempt)
        lost, ended = watched.said.get("lost"), watched.said.get("ended") or {}
        if result is not None:
            explained = result.failure is None or result.failure.reason != STOPPED
        else:
            explained = bool(lost or ended.get("problem"))
        if since < (WORD["lost" in watched.said] if explained else LATE[1]):
            return None
        assert watched.id is not None  # it has been started
        self._cluster.stop([watched.id], grace=False, kill=True)
        return State(phase="ended", reason="infrastructure" if lost else None)

    def _cause(self, watched: Watched, state: State) -> tuple[str, str]:
        """Why there is no result of a job that has ended."""
        if watched.cancelled:
            return "cancelled", "it was stopped before it could record anything"
        lost = watched.said.get("lost")
        if lost and state.reason in (None, "infrastructure"):  # as one of its nodes has seen it
            return "infrastructure", lost
        message = state.message or f"{self._cluster.title} says that it completed, but there is no result"
        silent = watched.id is not None and not watched.said
        if watched.id is not None and (silent or state.vague):
            words = self._cluster.words(watched.id)
            message += f" ({words})" if words and words not in message else ""
        if silent:  # the node may not see what it needs, which its shell has said
            printed = "" if watched.printed is None else _printed(watched.printed, self._cluster.noise)
            message += f"; it printed: {printed}" if printed else ""
            message += self._advice(watched, state)
        return state.reason or "infrastructure", message

    def _soon(self) -> None:
        """Ask the scheduler at the next look."""
        self._ask_at = min(self._ask_at, (self._asked[-1] if self._asked else 0.0) + 2 * self._pauses[0])


def _printed(path: Path, noise: re.Pattern[str]) -> str:
    """The last lines of a file, if there are some, that are not of the scheduler's taking processes down."""
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return " / ".join([line.strip() for line in lines if line.strip() and not noise.match(line)][-3:])
