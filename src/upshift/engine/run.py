"""A run from its beginning to its end: :func:`execute`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.building import Building
from upshift.engine.control import Command, Control, interrupts, leaving_at_sigterm, socket_path
from upshift.engine.driver import Driver
from upshift.engine.images import MadeImage, StepImages
from upshift.engine.journal import Journal, RunRecord, new_row, new_run_id
from upshift.engine.keys import CodeNamed, Keys
from upshift.engine.offers import GrantPlan, grant_plans, short_of_processes
from upshift.engine.preflight import Preflight, preflight, takes_no_steps
from upshift.engine.recovery import Admission, Recovery, take_over
from upshift.engine.reuse import Reuse
from upshift.engine.schedule import Clock, SystemClock
from upshift.engine.specs import Keeper, Shipped, Specs, ship
from upshift.engine.targets import OpenBackend, OpenTarget
from upshift.engine.tasks import FAILED
from upshift.engine.walk import Walk
from upshift.errors import (
    EngineStopped,
    LeaseLost,
    RunCancelled,
    RunFailed,
    RunOwned,
    UpshiftError,
    together,
)
from upshift.model.configuration import Configuration, home
from upshift.model.graph import Graph
from upshift.model.settings.secrets import secret_files
from upshift.model.settings.sizes import parse_size
from upshift.model.spec.task import Code, Failure, TaskId
from upshift.report import Progress
from upshift.report.human import count, on_rank, worth_a_look
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import forget_removed, open_catalog
from upshift.runs.catalog.rebuild import Backlog
from upshift.runs.catalog.rows import Detached, RunRow, awaits_engine
from upshift.runs.history.records import growth_of
from upshift.runs.history.runs import Run
from upshift.runs.lease import Lease, here
from upshift.runtime.step import randomness
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.claims import removed
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.engine.replanning import Debugged
    from upshift.runs.publishing import Publisher


def execute(
    graph: Graph,
    *,
    code: Code,
    source: Mapping[str, Any],  # where the pipeline comes from; ``cwd``: the steps' working folder
    configuration: Configuration,
    options: RunOptions,
    progress: Progress,
    resume: str | None = None,
    code_named: CodeNamed | None = None,  # None: only a record of the code is at hand
    detached: str | None = None,  # the token of the submission that this engine is; None: it is none
    made: Mapping[str, MadeImage] | None = None,  # the images that it was submitted with
    open_backend: OpenBackend = open_registered,
    clock: Clock | None = None,
) -> Run:
    """Run a graph, or finish the run ``resume``: what that has done with the same code and inputs is kept."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    clock = clock or SystemClock()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(
            preflight(
                graph,
                configuration,
                options,
                project=code.project,
                inbox=inbox,
                announce=progress.notice,
                builds=True,
                made=made,
                open_backend=open_backend,
            )
        )
        graph, store, places, images = found.graph, found.store, found.places, found.images
        keys = Keys(code_named)
        refuse(found, configuration, options, keys if resume is None else None, now=clock.now())
        plans = grant_plans(found.offered)
        debug = None
        if options.debug:
            from upshift.engine.replanning import debugged  # other runs have no step in this process

            debug = debugged(options.debug, graph, store=store.address, inbox=inbox)
        own = [debug.plan.place] if debug else []
        grow = growth_of(graph, store)
        walk = Walk(graph, truth=lambda artifact: artifacts.plain_value(artifact, store), grow=grow)
        stack.enter_context(store.claims.held())
        shipped = ship(code, places.values(), store, exclude=secret_files(code.project))
        run = _Run(
            graph=graph,
            code=code,
            source=source,
            options=options,
            progress=progress,
            places=tuple(dict.fromkeys([*places.values(), *own])),
            plans=plans,
            debugged=debug,
            images=images,
            walk=walk,
            store=store,
            catalog=stack.enter_context(
                contextlib.closing(Backlog(open_catalog(configuration), store, progress.notice))
            ),
            inbox=inbox,
            keys=keys,
            clock=clock,
            shipped=shipped,
            detached=detached,
            bucket_cache=parse_size(configuration.bucket_cache),
        )
        return run.execute(resume)


def refuse(
    found: Preflight,
    configuration: Configuration,
    options: RunOptions,
    keys: Keys | None,  # None: of a run that is resumed
    *,
    now: float,
) -> None:
    """Raise what a run is refused for before anything runs."""
    launcher = None
    if keys is not None and any(proposal.missing for proposal in found.offered.values()):
        from upshift.engine.forecast import forecast, launcher_missing  # other runs foretell nothing

        with contextlib.closing(open_catalog(configuration)) as catalog:
            forecasts = forecast(found, catalog, keys, reusing=options.reuse, now=now)
            launcher = launcher_missing(found, forecasts)
    problem = together([*found.problems, *filter(None, (launcher, takes_no_steps(found)))])
    if problem is not None:
        raise problem


@attrs.define(kw_only=True)
class _Run:
    """The parts of a run that is being executed."""

    graph: Graph
    code: Code
    source: Mapping[str, Any]
    options: RunOptions
    progress: Progress
    places: tuple[OpenTarget, ...]
    plans: dict[str, GrantPlan]
    debugged: Debugged | None
    images: StepImages
    walk: Walk
    store: Store
    catalog: Backlog
    inbox: SimpleQueue[Any]
    keys: Keys
    clock: Clock
    shipped: Shipped | None
    detached: str | None
    bucket_cache: int  # bytes of content of a bucket that stay on this machine
    record: RunRecord = attrs.field(init=False)
    publisher: Publisher | None = attrs.field(init=False, default=None)  # of a store in a bucket
    unpublished: UpshiftError | None = attrs.field(init=False, default=None)

    def execute(self, resume: str | None) -> Run:
        """Own the run, do it, and say how it ended."""
        now = self.clock.now()
        earlier = None if resume is None else self.catalog.run(resume)
        run_id = earlier.id if earlier else new_run_id(now)
        if self.store.replica is not None:
            self.store.replica.prepare()
        lease = Lease(
            run_id,
            self.store.address,
            engine={"home": str(home()), "socket": str(socket_path(run_id))},
            notice=self.progress.notice,
        )
        with lease:
            forget_removed(self.catalog, self.store)  # from here on gc waits for this run
            if earlier is not None:
                earlier = take_over(run_id, self.catalog, self.store)
                self._confirm_submitted(earlier)
            if not self.store.claim_run(run_id):
                raise removed(run_id)
            if self.store.replica is not None:
                from upshift.runs.publishing import Publisher  # runs in folders publish nothing

                self.publisher = Publisher(self.store, run_id, lease, self.progress.notice)
                self.publisher.begin(known=earlier is not None)
            # The package of code that goes elsewhere is made already.
            shipped = {} if self.shipped is None else {"code": self.shipped.code}
            row = new_row(
                run_id,
                self.graph,
                status="running",
                target=self.places[0].target.name,
                store=self.store,
                options=self.options,
                source={**self.source, **shipped, "engine": here()},
                earlier=earlier,
                now=now,
            )
            self.record = RunRecord(row, self.catalog, self.store, self.progress)
            self.record.begin(self.graph, images=self.images.record() if self.images.prepared else None)
            self.progress.run_started(
                run_id, self.graph.pipeline, row.target, [node.name for node in self.graph.nodes]
            )
            for line in self._notices():
                self.progress.notice(line)
            driver, status = self._drive(lease, resumed=earlier is not None)
        run = Run(self.catalog.run(run_id), self.catalog, self.store)
        raise_unless_completed(
            run, status, driver.first_failure, self.catalog, self.store, shown=self.progress.shows
        )
        if self.unpublished is not None:
            raise self.unpublished
        return run

    def _confirm_submitted(self, row: RunRow) -> None:
        """A submitted engine takes the run as it was left for it, and as nobody has taken it since."""
        engine = Detached.of(row)
        if self.detached is None or (awaits_engine(row) and engine and engine.token == self.detached):
            return
        raise RunOwned(
            f"this engine was submitted for run {row.id}, which does not wait for it any more",
            why=f"It is {row.status}: it was cancelled, or resumed.",
            fix=f"See the state of the run: upshift show {row.id}",
        )

    def _notices(self) -> list[str]:
        lines = []
        if not self.graph.nodes:
            lines.append(
                f"pipeline {self.graph.pipeline} has no steps: nothing ran; a function is a step when it is "
                "decorated with @step"
            )
        if self.debugged is not None:
            text = "runs in this process, neither limited nor pinned (--debug)"
            for short in short_of_processes(self.debugged.plan.launch):
                text += f"; asked {short.asked}, gets {short.got}"
            lines.append(f"{self.options.debug}: {text}")
        return [*lines, *self.images.lines()]

    def _drive(self, lease: Lease, *, resumed: bool) -> tuple[Driver, str]:
        began = self.clock.monotonic()
        control = Control(lease, self.inbox)
        keeper = Keeper(
            self.shipped.code if self.shipped else self.code,
            self.store,
            self.inbox,
            exclude=secret_files(self.code.project),
            keep=self.record.keep_code,
            give_up=self.record.lack_code,
        )

        def start_threads() -> None:
            # Not before the first submit: the local backend forks this process then, which is safe
            # only while no thread but the main one is alive.
            control.start()
            keeper.start()
            if self.publisher is not None:
                self.publisher.start()

        driver = self._driver(resumed=resumed, submitted=start_threads)
        try:
            with contextlib.ExitStack() as signals:
                signals.enter_context(interrupts(lambda: self.inbox.put(Command.INTERRUPT)))
                if self.detached is not None:
                    signals.enter_context(leaving_at_sigterm(self.record.row.id, self.inbox))
                try:
                    status = driver.run()
                    lease.renew()
                except (EngineStopped, LeaseLost) as error:
                    driver.abandon(elsewhere=False)  # its new owner watches what runs on other machines
                    if isinstance(error, EngineStopped):
                        self._publish_rest()
                    raise
                except BaseException:
                    driver.abandon()
                    self.record.end("failed", self.clock.now())
                    self._publish_rest()
                    raise
                keeper.start()  # no earlier submit did, if everything was reused
                keeper.join()
                driver.finish()
            self.record.end(status, self.clock.now())
            self._publish_rest()
        finally:
            if self.publisher is not None:
                self.publisher.stop()
            driver.building.close()
            keeper.join()
            control.close()
        took = self.clock.monotonic() - began
        row = self.record.row
        if not resumed and row.ended is not None:
            took = row.ended - row.started  # as everybody else will tell it
        self.progress.run_ended(row.id, status, took)
        return driver, status

    @property
    def _cwd(self) -> str | None:
        """Where steps of this machine run; None: where their code is, in a package."""
        folder = str(self.source.get("cwd") or os.getcwd())
        return None if self.detached is not None and not os.path.isdir(folder) else folder

    def _driver(self, *, resumed: bool, submitted: Callable[[], None]) -> Driver:
        run = self.record.row.id
        recovery = Recovery(self.places, self.store)
        if resumed:
            recovery = Recovery.of_run(run, self.catalog, self.places, self.store)
        reuse = Reuse(
            run,
            self.graph,
            self.catalog,
            self.store,
            enabled=self.options.reuse,
            project=self.code.project,
            origin=self.options.origin,
            again=self.options.again,
        )
        journal = Journal(run, self.catalog, self.progress)
        return Driver(
            walk=self.walk,
            plans=self.plans,
            debugged=self.debugged,
            places=self.places,
            store=self.store,
            specs=Specs(
                self.graph,
                code=self.code,
                store=self.store,
                cwd=self._cwd,
                shipped=self.shipped,
                draws=randomness.draws(),
            ),
            admission=Admission(self.keys, reuse, recovery, journal, self.store),
            journal=journal,
            building=Building(
                {**self.images.prepared, **self.images.environments, **self.images.made},
                inbox=self.inbox,
                journal=journal,
                clock=self.clock,
            ),
            clock=self.clock,
            inbox=self.inbox,
            project=self.code.project,
            options=self.options,
            submitted=submitted,
        )

    def _publish_rest(self) -> None:
        """Have the bucket hold all of the run, and what earlier ones have left."""
        if self.publisher is None:
            return
        from upshift.runs.publishing import publish_left

        try:
            self.publisher.finish()
        except UpshiftError as error:
            self.unpublished = error
            self.progress.notice(
                f"run {self.record.row.id} is on this machine and not wholly in the bucket: {error.what}; "
                f"upshift resume {self.record.row.id}, or the next run here, publishes the rest"
            )
            return
        publish_left(self.store, self.progress.notice)
        with contextlib.suppress(UpshiftError):  # there is room enough for this run
            for _ in self.publisher.replica.trim(self.bucket_cache):
                pass


def raise_unless_completed(
    run: Run,
    status: str,
    first: tuple[TaskId, Failure, int] | None,  # the task that failed first, why, and in which attempt
    catalog: Catalog,
    store: Store,
    *,
    shown: bool,  # whether the traceback was shown while it ran
) -> None:
    """Raise the error of a run that failed or was cancelled; nothing for a completed one."""
    go_on = f"upshift resume {run.id} continues from the last completed step."
    if status == "cancelled":
        raise RunCancelled(f"run {run.id} was cancelled", run=run, fix=go_on)
    if status == "completed":
        return
    if first is None:
        raise RunFailed(f"run {run.id} failed", run=run, fix=f"See upshift show {run.id}.")
    task, failure, attempt = first
    tried = f" in attempt {attempt}" if attempt > 1 else ""
    why = failure.traceback.rstrip() if failure.traceback and not shown else None
    advice = [failure.fix] if failure.fix else []
    log = store.log_path(task, attempt)
    if log.exists():
        alone = "" if failure.rank is None else f" (that rank alone: --rank {failure.rank})"
        advice.append(f"upshift logs {run.id} {task.step} shows what it printed{alone}; the file is {log}")
    result = store.read_result(task, attempt)
    if worth_a_look(failure, () if result is None else result.stacks):
        advice.append(f"upshift show {run.id} --stacks shows where each rank was, call by call")
    failed = sum(tasks for _, how, tasks, _ in catalog.counts(run.id) if how == FAILED)
    if failed > 1:
        advice.append(f"upshift show {run.id} lists {count(failed - 1, 'more task')} that failed")
    advice.append(go_on)
    raise RunFailed(
        f"step {task} failed{on_rank(failure)}{tried} ({failure.reason}): {failure.message}",
        run=run,
        where=failure.where,
        why=why,
        fix="\n".join(advice),
    )
