"""A run whose engine is a job of its target, or a process of its own on this machine: ``--detach``.

::

    here:   checks; graph, options and code into the store; the run pending, for this submission's token
            └─► Cluster.submit, or a process in a session of its own
    there:  the lease, the token, and then the run from its record, as resume --same-code has it

So what was submitted is what runs, whatever becomes of the files. What the engine needs to know beside that
is its order. Where nodes see the Python and the folders of this machine, that is in one variable of its
environment, where a catalog's password is as safe as a step's secret. Pods, and jobs in the cloud, see
nothing but the store. The engine travels there as a package (:mod:`upshift.code.runtime_package`), its order
is a record of the run, and images are made before::

    bootstrap ─► package ─► order ─► the run

Such an engine reaches its own cluster, and runs steps of the target ``local`` beside itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.engines import TRAVELING, EngineJob, Engines, Journey
from upshift.backends.scheduler import Launch
from upshift.code.packages import make_package
from upshift.code.runtime_package import bootstrap, engine_package
from upshift.engine import RunOptions
from upshift.engine.images import MadeImage
from upshift.engine.journal import new_row, new_run_id
from upshift.engine.keys import CodeNamed, Keys
from upshift.engine.ownerless import confirm_free, record_lost
from upshift.engine.preflight import Preflight, preflight
from upshift.engine.recovery import take_over
from upshift.engine.run import refuse
from upshift.errors import BackendError, NotFound, RequestRefused, UpshiftError, UsageError
from upshift.model.configuration import Configuration, Target, home, make_folder
from upshift.model.graph import Graph
from upshift.model.settings.secrets import NeededSecret, secret_files
from upshift.model.spec.codec import decode, encode, from_json, to_json
from upshift.model.spec.task import Code
from upshift.report import Progress
from upshift.runs.catalog.catalog import catalog_place
from upshift.runs.catalog.opening import open_catalog, reopen
from upshift.runs.catalog.rows import Detached
from upshift.runs.history.runs import Run, get_run
from upshift.runs.lease import Lease, here
from upshift.runs.publishing import published
from upshift.runtime.storage.claims import removed
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.usercode import SOURCES

ORDER = "UPSHIFT_ENGINE"
"""The variable in which a submitted engine finds its :class:`Order`."""
_MODULE = "upshift.cli.detached"
_COMMAND = (sys.executable, "-m", _MODULE)


@attrs.frozen(kw_only=True)
class Order:
    """What an engine is to do."""

    run: str
    token: str
    configuration: Configuration  # as it was when it was submitted
    log: str | None  # where it prints; None: to the store, and as any program
    home: str | None = None  # a folder of its own for its state; None: that of its environment
    environments: str | None = None  # where those of steps are kept, which nodes see
    images: Mapping[str, MadeImage] | None = None  # of steps, made before; None: the engine makes them

    @classmethod
    def taken(cls, address: str | None = None, environ: Any = os.environ) -> Order:
        """That of this process, whose environment keeps nothing of it; or the one at this address."""
        if address is not None:
            return _read_order(address)
        text = environ.pop(ORDER, None)
        if text is None:
            raise UsageError("this is what upshift run --detach starts", fix="Use that.")
        order = decode(cls, json.loads(text))
        if order.home is not None:
            environ["UPSHIFT_HOME"] = order.home
            make_folder(home())
            if order.environments is not None:
                make_folder(Path(order.environments))
                (home() / "environments").symlink_to(order.environments)
        return order

    def clear(self, *, over: bool) -> None:
        """Remove the home of this engine; where the run is over, those of its earlier engines, too.

        Jobs that an engine has left behind run code that is there.
        """
        if self.home is not None:
            own = Path(self.home)
            for folder in own.parent.glob(f"{self.run}.*") if over else [own]:
                shutil.rmtree(folder, ignore_errors=True)

    def text(self) -> str:
        """As it travels."""
        return json.dumps(encode(self))


def submit(
    graph: Graph,
    *,
    code: Code,
    source: Mapping[str, Any],
    configuration: Configuration,
    options: RunOptions,
    progress: Progress,
    resume: str | None = None,
    code_named: CodeNamed | None = None,
) -> Run:
    """Have a run done, or finished, by an engine that is submitted; as :func:`~upshift.engine.run.execute`.

    Gives the run as it is once the engine was taken. Raises ``UpshiftError`` where nothing runs.
    """
    now = time.time()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(
            preflight(
                graph,
                configuration,
                options,
                project=code.project,
                inbox=SimpleQueue(),
                announce=progress.notice,
                builds=configuration.target(options.target).backend in TRAVELING,
            )
        )
        refuse(found, configuration, options, Keys(code_named) if resume is None else None, now=now)
        store = found.store
        engines = _engines_of(found, configuration.catalog)
        journey = None if engines is None else engines.journey
        images = None
        if engines is not None and journey is not None:
            _confirm_reached(found, engines)
            images = found.images.made_now(progress.notice)
        stack.enter_context(store.claims.held())
        if code.package is None:
            package = make_package(Path(code.project), store, exclude=secret_files(code.project))
            code = attrs.evolve(code, package=package.digest)
        catalog = stack.enter_context(contextlib.closing(open_catalog(configuration)))
        earlier = None if resume is None else catalog.run(resume)
        run = earlier.id if earlier else new_run_id(now)
        token = secrets.token_hex(6)
        engine = Detached(
            token=token,
            name=f"engine-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', graph.pipeline)[:40]}-{token}",
            log=str(store.root / "runs" / run / log_of(token)),
            host=socket.gethostname(),
            since=now,
            target=None if engines is None else found.target.name,
        )
        launch = None
        if engines is not None:
            launch = engines.launch(
                EngineJob(
                    name=engine.name,
                    comment=f"upshift {run} engine",
                    command=_COMMAND
                    if journey is None
                    else _command_of(store, _at_address(store, run, _order_name(token)), journey),
                    output=engine.log if journey is None else None,
                    environment={} if journey is None else _surroundings(store, journey),
                )
            )
        row = new_row(
            run,
            graph,
            status="pending",
            target=found.target.name,
            store=store,
            options=options,
            source={**source, "code": code, "engine": here(), **engine.source()},
            earlier=earlier,
            now=now,
        )
        order = _order(run, engine, configuration, engines=engines, images=images, store=store.name)
        with Lease(run, store.address, notice=progress.notice) as lease:
            if earlier is not None:
                earlier = take_over(run, catalog, store)
                confirm_free(earlier, configuration)
            if not store.claim_run(run):
                raise removed(run)
            if store.replica is not None:
                store.replica.prepare()
            with published(store, run, lease):
                store.write_record(run, "graph.json", to_json(attrs.evolve(graph, sources={})))
                store.write_record(run, SOURCES, to_json({}))
                if journey is not None:
                    store.write_record(run, _order_name(token), to_json(order))
                    if found.images.prepared:
                        store.write_record(run, "images.json", to_json(found.images.record()))
                store.write_record(run, "run.json", to_json(row))
                catalog.add_run(row)
                if earlier is not None:
                    reopen(run, catalog)
        try:
            where = _start(order, engine, launch, engines, _variables(found))
        except UpshiftError as error:
            with Lease(run, store.address) as lease:
                record_lost(row, catalog, store, lease, f"it was not taken: {error.in_short}")
            raise
        names = [node.name for node in graph.nodes]
        progress.run_started(run, graph.pipeline, row.target, names)
        progress.notice(f"its engine is {where}")
        progress.notice(f"upshift logs {run} -f follows it, upshift cancel {run} stops it")
    return get_run(run, configuration)


# -- parts ---------------------------------------------------------------------------------------------


def _engines_of(found: Preflight, catalog: str | None) -> Engines | None:
    """Where the engine is to run; None: on this machine."""
    place = found.places[None]
    backend = place.backend
    if not backend.capabilities.remote or backend.name in ("docker", "podman"):
        return None
    engines: Engines | None = getattr(backend, "engines", None)
    if engines is None:
        raise RequestRefused(
            f"target {place.target.name!r} runs no engines",
            why=getattr(place.backend, "no_engines", "Its backend has no way to start one."),
            fix="Leave --detach out, and keep this machine on.",
        )
    lacking = [secret for secret in _needed(found) if secret.source.startswith("env:")]
    if lacking and not engines.private:
        first = lacking[0]
        raise RequestRefused(
            f"secret {first.name} ({first.source}) cannot be brought to an engine on {place.target.name!r}",
            where=first.origin,
            why="The variables of its jobs can be read by others.",
            fix="Leave --detach out, or keep the value in a file: file:PATH.",
        )
    if engines.journey is None and not engines.private and re.search(r"//[^/@]*:[^/@]*@", catalog or ""):
        raise RequestRefused(
            f"the password of the catalog cannot be brought to an engine on {place.target.name!r}",
            why="The variables of its jobs can be read by others.",
            fix="Leave --detach out, or keep the password in ~/.pgpass.",
        )
    return engines


def _needed(found: Preflight) -> list[NeededSecret]:
    return [secret for some in found.secrets.values() for secret in some]


def _variables(found: Preflight) -> dict[str, str]:
    """The variables of this process that the engine reads secrets from."""
    named = (secret.source.partition(":")[::2] for secret in _needed(found))
    return {name: os.environ[name] for scheme, name in named if scheme == "env" and name in os.environ}


def _start(
    order: Order,
    engine: Detached,
    launch: Launch | None,
    engines: Engines | None,
    variables: Mapping[str, str],
) -> str:
    if engines is not None and launch is not None:
        told = {} if engines.journey is not None else {ORDER: order.text()}
        return engines.submit(launch, {**told, **variables} if engines.private else told)
    return _start_here(order, engine)


def _start_here(order: Order, engine: Detached) -> str:
    """Start the engine on this machine, out of reach of this terminal, and wait until it has the run."""
    told, tells = os.pipe()
    with open(engine.log, "ab") as log, open(told, "rb") as answers:
        try:
            process = subprocess.Popen(
                [*_COMMAND, str(tells)],
                env={**os.environ, ORDER: order.text()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[tells],
                start_new_session=True,
            )
        finally:
            os.close(tells)
        if answers.read(1):
            process.returncode = 0  # it is nobody's child any more
            return f"process {process.pid} on {engine.host}"
        process.wait()
    said = Path(engine.log).read_text(errors="replace").strip()
    raise BackendError(
        "the engine has not begun",
        why="\n".join(said.splitlines()[-10:]) or f"It ended with {process.returncode}.",
        fix=f"All that it printed is in {engine.log}.",
    )


def _order(
    run: str,
    engine: Detached,
    configuration: Configuration,
    *,
    engines: Engines | None,
    images: Mapping[str, MadeImage] | None,
    store: str,
) -> Order:
    """What the engine is told; on another machine it has a home of its own."""
    if engines is not None and engines.journey is not None:
        there = attrs.evolve(
            configuration,
            source=None,
            catalog=None,
            targets=_targets_there(configuration, engines),
            store=store,
        )
        return Order(run=run, token=engine.token, log=None, configuration=there, images=images)
    apart = engines is not None
    place = catalog_place(configuration.catalog)
    catalog = configuration.catalog
    if isinstance(place, Path):  # a file cannot be written from two machines at once
        catalog = None if apart else str(place)
    seen = engines.seen if engines is not None else lambda target: target
    targets = {
        name: attrs.evolve(seen(target) or target, store=_absolute(target.store))
        for name, target in configuration.targets.items()
    }
    return Order(
        run=run,
        token=engine.token,
        log=engine.log,
        configuration=attrs.evolve(
            configuration,
            source=None,
            catalog=catalog,
            store=_absolute(configuration.store) or str(home() / "store"),
            targets=targets,
        ),
        home=str(home() / "detached" / f"{run}.{engine.token}") if apart else None,
        environments=str((home() / "environments").resolve()) if apart else None,
    )


def _absolute(address: str | None) -> str | None:
    if address is None or "://" in address:
        return address
    return os.path.abspath(os.path.expanduser(address))


# -- an engine that has nothing of this machine ----------------------------------------------------------


def log_of(token: str) -> str:
    """The name of the file with what an engine prints, beside the records of its run."""
    return f"engine-{token}.log"


def _order_name(token: str) -> str:
    """The record of a run with the order of an engine."""
    return f"engine-{token}.json"


def _at_address(store: Store, run: str, name: str) -> str:
    """A record of a run, as others find it who see the store."""
    return f"{store.name}/runs/{run}/{name}"


def _read_order(address: str) -> Order:
    """The order at an address. Raises ``NotFound`` where there is none."""
    place, _, rest = address.rpartition("/runs/")
    run, _, name = rest.partition("/")
    store = open_store(place)
    store.bring_run(run)
    content = store.read_record(run, name)
    if content is None:
        raise NotFound(f"{address} is not there", fix=f"See the state of the run: upshift show {run}")
    return from_json(Order, content)


def _command_of(store: Store, order: str, journey: Journey) -> tuple[str, ...]:
    """The command of an engine; its package is in the store then."""
    digest = engine_package(store, extras=journey.extras)
    if store.replica is not None:
        store.replica.upload_blob(blob_key(digest), str(store.blob_path(digest)))
    package = f"{store.name}/{blob_key(digest)}"
    return (journey.python, "-Sc", bootstrap(store.name), package, "-m", _MODULE, order)


def _surroundings(store: Store, journey: Journey) -> dict[str, str]:
    """The variables of an engine that are no secrets."""
    found = {} if journey.home is None else {"UPSHIFT_NODE_HOME": journey.home}
    return found if store.replica is None else {**found, **store.replica.objects.environment}


def _confirm_reached(found: Preflight, engines: Engines) -> None:
    """Refuse a run of which the engine cannot do a step. Raises ``RequestRefused``."""
    own = found.target.name
    for name in found.graph.used:
        definition = found.graph.steps[name]
        target = found.places[definition.settings.on].target
        if target.backend != "local" and engines.seen(target) is None:
            raise RequestRefused(
                f"step {name} runs on target {target.name!r}, which an engine on {own!r} does not reach",
                where=definition.location,
                why=f"It runs inside the cluster of {own!r}, and has nothing of this machine.",
                fix="Leave --detach out, or have the step run on a target of the same cluster.",
            )
        for secret in found.secrets.get(name, ()):
            if secret.source.startswith("file:"):
                raise RequestRefused(
                    f"secret {secret.name} ({secret.source}) cannot be brought to an engine on {own!r}",
                    where=secret.origin,
                    why="The file is on this machine, and the engine is not.",
                    fix="Leave --detach out, or name a source that the node of the step reads by itself.",
                )


def _targets_there(configuration: Configuration, engines: Engines) -> dict[str, Target]:
    """The targets that an engine reaches, as it has them."""
    found = {}
    for name, target in configuration.targets.items():
        seen = target if target.backend == "local" else engines.seen(target)
        if seen is not None:
            found[name] = seen
    return found
