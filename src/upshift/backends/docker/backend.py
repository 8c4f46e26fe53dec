"""The backends ``docker`` and ``podman``: each attempt in a container on this machine, with real limits."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from upshift.backends.base import Capabilities, Handle, Job, Offer, Sink, Waiting, secrets_of
from upshift.backends.docker import folders
from upshift.backends.docker.asking import PATIENCE, state_of
from upshift.backends.docker.container import Container, labels_of, name_of, run_arguments, sweeping
from upshift.backends.docker.desk import Desk, Lent
from upshift.backends.docker.folders import Own
from upshift.backends.docker.gpus import HIDDEN, Handing
from upshift.backends.docker.launching import Launch, order_for
from upshift.backends.docker.offers import offer
from upshift.backends.docker.options import read_options, refuse_missing_mounts
from upshift.backends.docker.watch import Watch
from upshift.errors import BackendError, ImageError, UpshiftError
from upshift.images.containers.engine import DOCKER, PODMAN, ContainerEngine, find_engine
from upshift.images.containers.facts import elsewhere, facts_of, is_rootless, limits, way_back
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Hardware
from upshift.runtime.confine import host_facts
from upshift.runtime.storage.store import open_store

if TYPE_CHECKING:
    from upshift.images.destination import Destination
    from upshift.runtime.accelerators.base import Inventory
    from upshift.runtime.supervisor.devices.pool import Grant


class DockerBackend:
    """Runs tasks in containers of Docker."""

    name: ClassVar[str] = "docker"
    capabilities: ClassVar[Capabilities] = Capabilities(
        fields=frozenset(
            {
                *("cpu_count", "memory", "disk", "shared_memory"),
                *("gpu_count", "accelerator", "gpu_memory", "gpu_vendor"),
            }
        ),
        secrets=frozenset({"env", "file"}),
        images=True,
        remote=True,
        strict=True,
    )
    default_engine: ClassVar[str] = DOCKER

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        self._options = read_options(target, self.default_engine)
        refuse_missing_mounts(target)
        self._target = target
        self._store = store
        self._sink = sink
        self._host = host_facts()
        self._found: Sequence[Inventory] | None = None
        self._desk = Desk()
        self._watches: dict[Handle, Watch] = {}
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
    def _handing(self) -> Handing:
        return Handing(self._engine, self._facts, self._options.gpus)

    def capacity(self) -> Hardware:
        """The CPUs and the memory of this machine, and its accelerators once an offer was about some."""
        gpus = None if self._found is None else tuple(d for found in self._found for d in found.devices)
        return Hardware(
            cpu_count=len(os.sched_getaffinity(0)), memory=self._host["memory"], gpus=gpus, nodes=1
        )

    def offer(self, request: ResourceSettings) -> Offer:
        """The request, as far as this machine and its container engine go."""
        if request.gpu_count and self._found is None:
            self._found = _discover()
        return offer(
            request,
            self.capacity(),
            self._found or (),
            engine=self._engine,
            facts=self._facts,
            handing=self._handing,
        )

    def destination(self) -> Destination:
        """This machine's engine."""
        from upshift.images.destination import Destination

        try:
            engine = self._engine
        except ImageError as error:
            raise BackendError(error.what, where=error.where, why=error.why, fix=error.fix) from None
        return Destination(
            platform=engine.platform,
            engine=engine,
            registry=self._target.registry,
            driver=next((found.driver for found in self._found or () if found.vendor == "nvidia"), None),
            parent=self._options.image,
        )

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Handle:
        """Start its container, once it has its devices."""
        handle = name_of(job.spec)
        secrets = secrets_of(job.spec)
        if not self._watches:
            threading.Thread(target=_tidy, name="upshift-tidy", daemon=True).start()
        watch = self._watch(handle, job)
        try:
            self._launch(job, watch, secrets)
        except BackendError:
            self._forget(watch)
            raise
        return handle

    def _launch(self, job: Job, watch: Watch, secrets: Mapping[str, str]) -> None:
        if job.spec.granted is not None and job.spec.granted.gpus:
            self._ask(job, watch, secrets)
        else:
            self._start(job, watch, secrets, None)

    def _launch_again(self, job: Job, watch: Watch) -> None:
        """Its container is gone, and ran nothing."""
        try:
            self._launch(job, watch, secrets_of(job.spec))
        except Exception as error:  # on a thread, where nobody else hears of it
            watch.end("infrastructure", _words(error))

    def _ask(self, job: Job, watch: Watch, secrets: Mapping[str, str]) -> None:
        def ready(grant: Grant | None) -> None:
            try:
                self._start(job, watch, secrets, None if grant is None else Lent(grant, self._desk))
            except Exception as error:  # the desk is there for others, too
                if grant is not None:
                    grant.give_back()
                watch.end("infrastructure", _words(error))

        self._desk.ask(
            watch.name,
            job.spec,
            ready=ready,
            tell=lambda why: self._sink(Waiting(handle=watch.name, why=why)),
            refuse=lambda failure: watch.end(failure.reason, failure.message),
            wait=self._options.wait,
            share=self._options.share,
        )
        if watch.cancelled:  # before the desk knew of it
            self._desk.cancel(watch.name)

    def _start(self, job: Job, watch: Watch, secrets: Mapping[str, str], lent: Lent | None) -> None:
        spec = job.spec
        with _in_short():
            own = Own(watch.name)
            try:
                grant = None if lent is None else lent.grant
                last = attrs.evolve(spec, attempt=spec.attempt - 1)
                container = self._container(job, watch.name, own, grant)
                launch = Launch(
                    arguments=tuple(run_arguments(container, self._engine.name)),
                    order=order_for(spec, secrets, grant),
                    own=own,
                    before=name_of(last) if last.attempt > 0 else None,
                    grant=lent,
                    sweeping=tuple(run_arguments(sweeping(container, own.mount), self._engine.name)),
                )
            except BaseException:
                own.remove()
                raise
        watch.launch(launch)

    def _container(self, job: Job, handle: Handle, own: Own, grant: Grant | None) -> Container:
        from upshift.code.runtime_package import runtime_blob
        from upshift.runtime.storage.unpacking import unpack, unpacked_runtime

        spec, granted = job.spec, job.spec.granted or Hardware()
        store = open_store(spec.store, **spec.store_options)
        runtime = unpacked_runtime(spec.runtime or runtime_blob(store), store)
        if spec.code.package is not None:
            unpack(spec.code.package, store, own.code)
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
        half = None if self._host["memory"] is None else self._host["memory"] // 2
        honoured = limits(self._facts)
        return Container(
            name=handle,
            image=spec.image,
            program=spec.interpreter or "python3",
            arguments=(
                folders.RUNTIME,
                "--report",
                os.path.join(store.address, job.spec_path),
            ),
            labels=labels_of(spec),
            environment=self._environment(mine=mine, devices=bool(devices)),
            mounts=mounts,
            user=ours if mine else spec.user,
            groups=tuple(sorted({*os.getgroups()} - {os.getgid()})) if mine and not rootless else (),
            keep_id=keep_id,
            cpus=granted.cpu_count if "cpu_count" in honoured else None,
            memory=granted.memory if "memory" in honoured else None,
            shared_memory=granted.shared_memory or granted.memory or half,
            gpus=self._handing.arguments(devices) if devices else (),
            network=self._options.network,
            hostname=None if host_network else self._host["host"],
            more=self._options.arguments,
        )

    def _mounts(self, *, devices: bool) -> dict[str, str]:
        mounts = dict(self._target.mounts)
        if devices:  # whose locks the supervisor takes over
            from upshift.runtime.accelerators.root import lock_folder

            mounts[str(lock_folder())] = str(lock_folder())
        return mounts

    def _environment(self, *, mine: bool, devices: bool) -> dict[str, str]:
        variables = {"UPSHIFT_HOME": folders.INSIDE}
        if mine:  # who has no line in the image's passwd
            with contextlib.suppress(KeyError, OSError):
                variables |= dict.fromkeys(("USER", "LOGNAME"), getpass.getuser())
            variables["HOME"] = folders.HOME
        if devices:
            from upshift.runtime.accelerators.root import LOCKS, lock_folder

            variables[LOCKS] = str(lock_folder())
        else:
            variables |= HIDDEN
        return variables

    def _watch(self, handle: Handle, job: Job) -> Watch:
        spec = job.spec
        watch = Watch(
            self._engine,
            handle,
            sink=self._sink,
            node=self._host["host"],
            memory=spec.granted.memory if spec.granted is not None else None,
            user=spec.user,
            again=partial(self._launch_again, job),
            over=self._forget,
        )
        with self._lock:
            self._watches[handle] = watch
        return watch

    def _forget(self, watch: Watch) -> None:
        with self._lock:
            if self._watches.get(watch.name) is watch:
                del self._watches[watch.name]

    def attach(self, handle: Handle, job: Job) -> bool:
        """Read the log of its container, if there is one."""
        with self._lock:
            watch = self._watches.get(handle)
            if watch is not None and not watch.told:
                return True
        if watch is not None or not self._is_there(handle):
            return False
        self._watch(handle, job).attach()
        return True

    def find(self, job: Job) -> Handle | None:
        """A container is named after its attempt."""
        handle = name_of(job.spec)
        return handle if self._is_there(handle) else None

    def _is_there(self, handle: Handle) -> bool:
        state = state_of(self._engine, handle)
        if state is None:
            raise BackendError(
                f"{self._engine.title} does not say whether {handle} still runs",
                fix=f"See whether it works: {self._engine.name} ps --all",
            )
        if state == "created":  # its engine was killed before it could start it
            self._engine.run(["rm", "--force", handle], check=False)
            return False
        return bool(state)

    def cancel(self, handle: Handle, *, grace: float) -> None:
        """SIGTERM to the step's processes, SIGKILL after ``grace`` seconds; then to the container."""
        with self._lock:
            watch = self._watches.get(handle)
        if watch is not None:
            watch.cancel(grace)
            self._desk.cancel(handle)

    def close(self) -> None:
        """Watch nothing any more; what has ended is gone when this returns."""
        with self._lock:
            watches = list(self._watches.values())
        for watch in watches:
            watch.leave()
        deadline = time.monotonic() + PATIENCE
        for watch in watches:
            watch.join(deadline)
        self._desk.close()
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


def _words(error: Exception) -> str:
    return error.in_short if isinstance(error, UpshiftError) else f"{type(error).__name__}: {error}"


def _discover() -> Sequence[Inventory]:
    from upshift.runtime.accelerators.discovery import discover

    def say(words: str) -> None:  # before the run, and what shows it, has started
        sys.stderr.write(f"{words}\n")

    return discover(slow=say)


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
        folders.sweep()
