"""The backends ``docker`` and ``podman``: each attempt in a container on this machine, with real limits."""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from upshift.backends.base import (
    DEVICES,
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    Offer,
    Sink,
    Waiting,
    secrets_of,
)
from upshift.backends.docker.container import (
    HOME,
    INSIDE,
    RUNTIME,
    Container,
    OwnFolder,
    labels_of,
    name_for_several,
    name_of,
    run_arguments,
    serving,
    sweep,
    sweeping,
)
from upshift.backends.docker.launching import (
    PATIENCE,
    ContainerLaunch,
    DeviceBroker,
    Key,
    LentDevices,
    Pool,
    exit_code,
    key_of,
    order_for,
    order_in_turn,
    state_of,
    violent_end,
)
from upshift.backends.docker.offers import HIDDEN, DeviceInjector, offer, read_options, refuse_missing_mounts
from upshift.backends.docker.watch import ContainerWatch
from upshift.backends.local.offers import ThisMachine
from upshift.errors import BackendError, ImageError, UpshiftError
from upshift.images.containers.engine import DOCKER, PODMAN, ContainerEngine, find_engine
from upshift.images.containers.facts import elsewhere, facts_of, is_rootless, limits, way_back
from upshift.model.configuration import Target
from upshift.model.spec import Hardware, TaskSpec
from upshift.runtime.storage.store import open_store

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination
    from upshift.runtime.supervisor.device_pool import Grant


class DockerBackend:
    """Runs tasks in containers of Docker."""

    name: ClassVar[str] = "docker"
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "disk", "shared_memory"},
        secrets=frozenset({"env", "file"}),
        images=True,
    )
    default_engine: ClassVar[str] = DOCKER

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        self._options = read_options(target, self.default_engine)
        refuse_missing_mounts(target)
        self._target = target
        self._store = store
        self._sink = sink
        self._machine = ThisMachine()
        self._broker = DeviceBroker()
        self._pool = Pool()
        self._watches: dict[Handle, ContainerWatch] = {}
        self._lock = threading.Lock()

    # -- what there is -----------------------------------------------------------------------------

    @cached_property
    def _engine(self) -> ContainerEngine:
        _refuse_other_machines(self._options.engine)
        return find_engine(self._options.engine)

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        return facts_of(self._engine)

    @cached_property
    def _injector(self) -> DeviceInjector:
        return DeviceInjector(self._engine, self._facts, self._options.gpus)

    def capacity(self) -> Capacity:
        """The CPUs and the memory of this machine, and its accelerators once an offer was about some."""
        return Capacity(hardware=self._machine.hardware)

    def offer(self, ask: Ask) -> Offer:
        """The request, as far as this machine and its container engine go."""
        here = self._machine
        here.look_for(ask.request)
        return offer(
            ask.request,
            here.hardware,
            here.inventories,
            engine=self._engine,
            facts=self._facts,
            injector=self._injector,
        )

    def findings(self) -> Iterator[Finding]:
        """The engine."""
        place = self.destination()
        yield Finding(name="engine", text=f"{self._engine.title}, {place.platform}")
        if place.registry:
            yield Finding(name="registry", text=place.registry)

    def destination(self) -> Destination:
        """This machine's engine."""
        from upshift.images.building.builder import Destination

        try:
            engine = self._engine
        except ImageError as error:
            raise BackendError(error.what, where=error.where, why=error.why, fix=error.fix) from None
        return Destination(
            platform=engine.platform,
            engine=engine,
            registry=self._target.registry,
            driver=next((one.driver for one in self._machine.inventories if one.vendor == "nvidia"), None),
            parent=self._options.image,
        )

    # -- jobs --------------------------------------------------------------------------------------

    def scripts(self, jobs: Sequence[Job]) -> None:
        """It starts jobs itself."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Start the container of each, once it has its devices."""
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> Handle | BackendError:
        handle = name_of(job.spec)
        try:
            secrets = secrets_of(job.spec)
        except BackendError as error:
            return error
        if not self._watches:
            threading.Thread(target=_tidy, name="upshift-tidy", daemon=True).start()
        watch = self._watch(handle, job)
        try:
            self._launch(job, watch, secrets)
        except BackendError as error:
            self._forget(watch)
            return error
        return handle

    def _launch(self, job: Job, watch: ContainerWatch, secrets: Mapping[str, str]) -> None:
        if job.spec.granted is not None and job.spec.granted.gpus:
            self._ask(job, watch, secrets)
            return
        key = self._pool.reusable(key_of(job.spec, self._options))
        if key is not None and self._pool.expects(key):
            threading.Thread(
                target=self._take, args=(job, watch, secrets, key), name=f"upshift-{watch.name}", daemon=True
            ).start()
        else:
            self._start(job, watch, secrets, None, key)

    def _take(self, job: Job, watch: ContainerWatch, secrets: Mapping[str, str], key: Key) -> None:
        """Give it to a container that has served another one, which may have to be waited for."""
        launch = self._pool.take(key)
        try:
            if launch is None:
                self._start(job, watch, secrets, None, key)
                return
            with _in_short():
                self._unpack(job.spec, launch.own)
                order = self._order_in_turn(job, watch, secrets)
        except Exception as error:  # on a thread, where nobody else hears of it
            if launch is not None:
                launch.remove()
            watch.end("infrastructure", _words(error))
        else:
            watch.launch(attrs.evolve(launch, order=order))

    def _order_in_turn(self, job: Job, watch: ContainerWatch, secrets: Mapping[str, str]) -> bytes:
        path = os.path.join(open_store(job.spec.store, **job.spec.store_options).address, job.spec_path)
        return order_in_turn(order_for(job.spec, secrets, None), watch.name, path)

    def _launch_again(self, job: Job, watch: ContainerWatch) -> None:
        """Its container is gone, and ran nothing."""
        try:
            self._launch(job, watch, secrets_of(job.spec))
        except Exception as error:  # on a thread, where nobody else hears of it
            watch.end("infrastructure", _words(error))

    def _ask(self, job: Job, watch: ContainerWatch, secrets: Mapping[str, str]) -> None:
        def ready(grant: Grant | None) -> None:
            try:
                self._start(job, watch, secrets, None if grant is None else LentDevices(grant, self._broker))
            except Exception as error:  # the broker is there for others, too
                if grant is not None:
                    grant.give_back()
                watch.end("infrastructure", _words(error))

        self._broker.ask(
            watch.name,
            job.spec,
            ready=ready,
            tell=lambda why: self._sink(Waiting(handle=watch.name, why=why)),
            refuse=lambda failure: watch.end(failure.reason, failure.message),
            wait=self._options.wait,
            share=self._options.share,
        )
        if watch.cancelled:  # before the broker knew of it
            self._broker.cancel(watch.name)

    def _start(
        self,
        job: Job,
        watch: ContainerWatch,
        secrets: Mapping[str, str],
        lent: LentDevices | None,
        key: Key | None = None,
    ) -> None:
        spec = job.spec
        with _in_short():
            name = watch.name if key is None else name_for_several(spec)
            own = OwnFolder(name)
            try:
                grant = None if lent is None else lent.grant
                container = self._container(job, name, own, grant, several=key is not None)
                order = order_for(spec, secrets, grant)
                launch = ContainerLaunch(
                    name=name,
                    arguments=tuple(run_arguments(container, self._engine.name)),
                    order=order if key is None else self._order_in_turn(job, watch, secrets),
                    own=own,
                    before=_before(spec),
                    grant=lent,
                    sweeping=tuple(run_arguments(sweeping(container, own.mount), self._engine.name)),
                    key=key,
                )
            except BaseException:
                own.remove()
                raise
        watch.launch(launch)

    def _unpack(self, spec: TaskSpec, own: OwnFolder) -> None:
        from upshift.runtime.storage.home_folders import unpack

        if spec.code.package is not None:
            unpack(spec.code.package, open_store(spec.store, **spec.store_options), own.code)

    def _container(
        self, job: Job, name: str, own: OwnFolder, grant: Grant | None, *, several: bool = False
    ) -> Container:
        from upshift.code.runtime_package import runtime_blob
        from upshift.runtime.storage.home_folders import unpacked_runtime

        spec, granted = job.spec, job.spec.granted or Hardware()
        store = open_store(spec.store, **spec.store_options)
        runtime = unpacked_runtime(spec.runtime or runtime_blob(store), store)
        self._unpack(spec, own)
        if spec.image is None:
            raise BackendError(
                f"{spec.task} has no image to run in",
                fix="Name one: DockerSettings(parent_image=…), or the option image of the target.",
            )
        mine = spec.user is None
        rootless = is_rootless(self._facts)
        keep_id = rootless and self._engine.name == PODMAN and mine
        ours = "0:0" if rootless and self._engine.name != PODMAN else f"{os.getuid()}:{os.getgid()}"
        devices = grant.devices if grant is not None else None
        mounts = own.mounts(store.address, runtime, self._mounts(devices=bool(devices)))
        host_network = self._options.network == "host"
        half = None if self._machine.memory is None else self._machine.memory // 2
        honoured = limits(self._facts)
        task = ("--report", os.path.join(store.address, job.spec_path))
        return Container(
            name=name,
            image=spec.image,
            program=spec.interpreter or "python3",
            arguments=(RUNTIME, *(("--serve", *(m.target for m in mounts)) if several else task)),
            labels=labels_of(spec, several=several),
            environment=self._environment(mine=mine, devices=bool(devices)),
            mounts=mounts,
            user=ours if mine else spec.user,
            groups=() if rootless else _groups(store.address, mine=mine),
            keep_id=keep_id,
            cpus=granted.cpu_count if "cpu_count" in honoured else None,
            memory=granted.memory if "memory" in honoured else None,
            shared_memory=granted.shared_memory or granted.memory or half,
            gpus=self._injector.arguments(devices) if devices else (),
            network=self._options.network,
            hostname=None if host_network else self._machine.name,
            more=self._options.arguments,
        )

    def _mounts(self, *, devices: bool) -> dict[str, str]:
        mounts = dict(self._target.mounts)
        if devices:  # whose locks the supervisor takes over
            from upshift.runtime.accelerators.files import lock_folder

            mounts[str(lock_folder())] = str(lock_folder())
        return mounts

    def _environment(self, *, mine: bool, devices: bool) -> dict[str, str]:
        variables = {"UPSHIFT_HOME": INSIDE}
        if mine:  # who has no line in the image's passwd
            with contextlib.suppress(KeyError, OSError):
                variables |= dict.fromkeys(("USER", "LOGNAME"), getpass.getuser())
            variables["HOME"] = HOME
        if devices:
            from upshift.runtime.accelerators.files import LOCKS, lock_folder

            variables[LOCKS] = str(lock_folder())
        else:
            variables |= HIDDEN
        return variables

    def _watch(self, handle: Handle, job: Job) -> ContainerWatch:
        spec = job.spec
        watch = ContainerWatch(
            self._engine,
            handle,
            pool=self._pool,
            sink=self._sink,
            node=self._machine.name,
            memory=spec.granted.memory if spec.granted is not None else None,
            user=spec.user,
            again=partial(self._launch_again, job),
            over=self._forget,
        )
        with self._lock:
            self._watches[handle] = watch
        return watch

    def _forget(self, watch: ContainerWatch) -> None:
        with self._lock:
            if self._watches.get(watch.name) is watch:
                del self._watches[watch.name]

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Read the log of each one's container, if there is one."""
        return {handle: self._attach(handle, job) for handle, job in jobs.items()}

    def _attach(self, handle: Handle, job: Job) -> Ended | None:
        with self._lock:
            watch = self._watches.get(handle)
            if watch is not None and not watch.told:
                return None
        container = None if watch is not None else self._container_of(handle)
        if container is None:
            return self._ended(handle, job)
        self._watch(handle, job).attach(container)
        return None

    def _ended(self, handle: Handle, job: Job) -> Ended:
        """How a job ended that nobody watched: what its engine remembers of its container."""
        path = os.path.join(open_store(job.spec.store, **job.spec.store_options).address, job.spec_path)
        since = os.stat(path).st_mtime if os.path.exists(path) else time.time()
        memory = None if job.spec.granted is None else job.spec.granted.memory
        code = exit_code(self._engine, handle, since)
        reason, message = violent_end(self._engine, handle, since, code=code, memory=memory) or (None, None)
        return Ended(handle=handle, reason=reason, message=message)

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Handles follow from attempts."""
        names = [name_of(job.spec) for job in jobs]
        return [name if self._container_of(name) is not None else None for name in names]

    def _container_of(self, handle: Handle) -> str | None:
        """The container that has the job: named after it, or one that serves several."""
        for name in filter(None, (handle, serving(handle))):
            state = state_of(self._engine, name)
            if state is None:
                raise BackendError(
                    f"{self._engine.title} does not say whether {name} still runs",
                    fix=f"See whether it works: {self._engine.name} ps --all",
                )
            if state == "created":  # its engine was killed before it could start it
                self._engine.run(["rm", "--force", name], check=False)
            elif state:
                return name
        return None

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """SIGTERM to the steps' processes, SIGKILL after ``grace`` seconds; then to the containers."""
        for handle in handles:
            with self._lock:
                watch = self._watches.get(handle)
            if watch is not None:
                watch.cancel(grace)
                self._broker.cancel(handle)

    def close(self) -> None:
        """Watch nothing any more; what has ended is gone when this returns."""
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.leave()
        deadline = time.monotonic() + PATIENCE
        for watch in watches:
            watch.join(deadline)
        self._pool.close()
        self._broker.close()
        _tidy()


class PodmanBackend(DockerBackend):
    """Runs tasks in containers of Podman."""

    name: ClassVar[str] = "podman"
    default_engine: ClassVar[str] = PODMAN


@contextlib.contextmanager
def _in_short() -> Iterator[None]:
    """Whatever stands in the way of a container is the end of its job alone."""
    try:
        yield
    except UpshiftError as error:
        raise BackendError(error.in_short, where=error.where, fix=error.fix) from None
    except OSError as error:
        raise BackendError(
            f"the container cannot be prepared: {error}",
            fix="Set UPSHIFT_HOME to a folder that can be written, on a disk with enough room.",
        ) from None


def _before(spec: TaskSpec) -> tuple[str, ...]:
    """Where the attempt before may still run, if an engine that did not answer for long was given up."""
    if spec.attempt == 1:
        return ()
    last = name_of(attrs.evolve(spec, attempt=spec.attempt - 1))
    return tuple(filter(None, (last, serving(last))))


def _words(error: Exception) -> str:
    return error.in_short if isinstance(error, UpshiftError) else f"{type(error).__name__}: {error}"


def _groups(store: str, *, mine: bool) -> tuple[int, ...]:
    """Further groups of a container's user: of this one his own, of another that of a store it may write."""
    if mine:
        return tuple(sorted({*os.getgroups()} - {os.getgid()}))
    about = os.stat(store)
    return (about.st_gid,) if about.st_mode & stat.S_IWGRP else ()


def _refuse_other_machines(engine: str) -> None:
    """Folders of this machine are mounted: an engine elsewhere does not have them."""
    named = elsewhere(engine)
    if named is not None:
        raise ImageError(
            f"{named} names an engine on another machine",
            why="Containers get their store and code from folders of this one.",
            fix=way_back(named),
        )


def _tidy() -> None:
    """Remove what containers have left whose engine was killed."""
    with contextlib.suppress(OSError):
        sweep()
