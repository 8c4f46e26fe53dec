"""What a test does to the place where jobs run: leave no room, have a job never start, lose a node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from batch_here import BatchHere
from containers import EngineWithImage
from kubernetes_scripted import UNSCHEDULABLE, Scripted
from skypilot_here import Sky
from slurm_here import SlurmHere
from upshift.backends.base import Ended, Job, LogGrew
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Hardware

if TYPE_CHECKING:
    from contract_kit import Watched


class Means:
    """Those of a place whose supervisors are processes of this machine."""

    dies = "the supervisor died"
    """What is said of a supervisor that is lost."""
    waits = ""
    """What is said of a job for which there is no room."""
    never = ""
    """What is said of a job that can never start."""
    scarce: Mapping[str, Any] = {}
    """What a job has that no other one can have meanwhile."""

    @contextmanager
    def full(self, watched: Watched) -> Iterator[None]:
        """There is no room for what is scarce."""
        holder = watched.started(watched.ground.job("wait", **self.scarce))
        try:
            yield
        finally:
            watched.cancel(holder, grace=0)
            watched.until(Ended, holder)

    @contextmanager
    def hopeless(self) -> Iterator[Mapping[str, Any]]:
        """Gives the fields of a job that can never start."""
        yield {}

    def too_much(self) -> AbstractContextManager[None]:
        """No machine is large enough for a request of ten thousand CPUs."""
        return nullcontext()

    def lose(self, watched: Watched, handle: str, job: Job) -> None:
        """Have the supervisor die of a job that calls ``say_supervisor``, or more of its node."""
        log = watched.ground.store.log_path(job.spec.task, job.spec.attempt)
        watched.until(LogGrew, handle, lambda: log.read_bytes().endswith(b"\n"))
        self.kill(int(log.read_bytes()))

    def kill(self, supervisor: int) -> None:
        """SIGKILL, as where memory of the node has run out."""
        os.kill(supervisor, signal.SIGKILL)


class LocalMeans(Means):
    """Those of this machine, where one supervisor has forked all tasks."""

    dies = "the fork server died"

    def kill(self, supervisor: int) -> None:
        """What a step sees is its own keeper, which the supervisor has forked."""
        said = Path(f"/proc/{supervisor}/stat").read_text()
        super().kill(int(said.rpartition(")")[2].split()[1]))


class FakeMeans(Means):
    """Those of the fake cluster, which loses the supervisor of ``say_supervisor`` by itself."""

    def lose(self, watched: Watched, handle: str, job: Job) -> None:
        """It is lost already."""


@attrs.frozen
class ContainerMeans(Means):
    """Those of an engine: what is lost is the container."""

    image: EngineWithImage
    dies = "the container was killed from outside"

    def kill(self, supervisor: int) -> None:
        """Kill every container of the test."""
        listed = self.image.engine.run(["ps", "--quiet", "--filter", f"label={self.image.label}"])
        self.image.engine.run(["kill", *listed.stdout.split()])


@attrs.frozen
class SlurmMeans(Means):
    """Those of Slurm: of one node, a job has more than half of the memory."""

    slurm: SlurmHere
    dies = "(signal 9"
    waits = "Slurm has it wait: "
    never = "Slurm can never start it: DependencyNeverSatisfied"
    scarce = {
        "backends": {"slurm": {"partition": "small"}},
        "request": ResourceSettings(memory=5_000_000_000),
        "granted": Hardware(memory=5_000_000_000, nodes=1),
    }

    @contextmanager
    def hopeless(self) -> Iterator[Mapping[str, Any]]:
        """It waits for the failure of a job that has succeeded."""
        done = self.slurm.run("sbatch", "--parsable", "--output=/dev/null", input="#!/bin/sh\ntrue\n")
        yield {"backends": {"slurm": {"extra": [f"--dependency=afternotok:{done}"]}}}


class RayMeans(Means):
    """Those of Ray: of a resource of the test's cluster, there is one."""

    dies = "its supervisor was killed by signal 9"
    waits = "Ray has it wait: no node has 1 CPU, 1 × licence free yet"
    scarce = {"backends": {"ray": {"resources": {"licence": 1}}}}


@attrs.frozen
class KubernetesMeans(Means):
    """Those of the scripted API server; of a real cluster a test changes nothing."""

    server: Scripted | None
    dies = "its supervisor ended with signal 9"
    waits = "Kubernetes has it wait: 0/1 nodes are available: 1 Insufficient cpu"
    never = "Kubernetes can never start it: InvalidImageName"

    @contextmanager
    def _held(self, hold: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> Iterator[None]:
        if self.server is None:
            pytest.skip("a test does not take nodes from a real cluster, or break images of it")
        before, self.server.hold = self.server.hold, hold
        try:
            yield
        finally:
            self.server.hold = before

    def full(self, watched: Watched) -> AbstractContextManager[None]:
        """No pod finds a node."""
        return self._held(lambda pod: UNSCHEDULABLE)

    @contextmanager
    def hopeless(self) -> Iterator[Mapping[str, Any]]:
        """The image of a pod has no valid name."""
        waiting = {"reason": "InvalidImageName", "message": "couldn't parse image name"}
        status = {"containerStatuses": [{"name": "step", "state": {"waiting": waiting}}]}
        with self._held(lambda pod: status):
            yield {}


@attrs.frozen
class BatchMeans(ContainerMeans):
    """Those of the stand-in of AWS Batch, whose jobs are containers of Docker."""

    here: BatchHere
    dies = "its container was killed (exit code 137)"
    waits = "AWS Batch has it wait: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
    never = "AWS Batch can never start it: MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"

    def full(self, watched: Watched) -> AbstractContextManager[None]:
        """EC2 has no instances."""
        return self.here.full(self.waits.partition(": ")[2])

    @contextmanager
    def hopeless(self) -> Iterator[Mapping[str, Any]]:
        """No instance of the compute environment has what it asks for."""
        with self.here.full(self.never.partition(": ")[2]):
            yield {}


@attrs.frozen
class SkyPilotMeans(Means):
    """Those of the stand-in of SkyPilot."""

    sky: Sky
    dies = "its supervisor failed"
    waits = "SkyPilot has it wait: machines are being rented"
    never = "no cloud had machines like these free"

    def full(self, watched: Watched) -> AbstractContextManager[None]:
        """Machines are being rented."""
        return self.sky.full("STARTING")

    @contextmanager
    def hopeless(self) -> Iterator[Mapping[str, Any]]:
        """There are none in any cloud."""
        with self.sky.full("FAILED_NO_RESOURCE"):
            yield {}

    @contextmanager
    def too_much(self) -> Iterator[None]:
        """The optimizer says so."""
        self.sky.refuses("ResourcesUnavailableError: no cloud has a machine of 10000 CPUs")
        yield
