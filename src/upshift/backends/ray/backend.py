"""The backend ``ray``: jobs by the Jobs API of the dashboard.

The package ``ray`` is not needed here: it has hundreds of megabytes, and its version would have to be that of
the cluster. Its command ``ray job submit`` speaks the same HTTP.

A job of Ray's is a command that an actor starts on a node with what it asks for. Stopped, that actor sends
SIGTERM to all processes at once, and SIGKILL seconds later; one that waits is not withdrawn, but stopped once
it starts. So steps are cancelled through the store.

A job on several nodes runs at once, on the head, and waits for its placement group itself: :mod:`.gang`.

Nodes have the store as a folder, and with it the Python that runs Upshift; or the store is in a bucket, and
they have a Python of their own.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import attrs

from upshift.backends.base import DEVICES, Ask, Capabilities, Capacity, Finding, Offer, Sink
from upshift.backends.cluster import ClusterBackend
from upshift.backends.engines import Engines, Journey
from upshift.backends.ray import gang
from upshift.backends.ray.dashboard import (
    TYPE,
    Dashboard,
    Node,
    Unknown,
    address_of,
    findings,
    offer,
    read_nodes,
)
from upshift.backends.registry import flag_option, options_of, text_option
from upshift.backends.scheduler import Launch, NotNow, Reach, State
from upshift.errors import BackendError
from upshift.model.configuration import Target, home
from upshift.model.settings.ray import RaySettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec import TaskSpec
from upshift.runtime.launch import seats
from upshift.runtime.supervisor.protocol import ORDER_FILE

MOST = 100
"""Jobs at once: the dashboard's node keeps 60 to 100 MB for each (ray #60159)."""
FEW = 3
"""Jobs that are asked for one by one; more of them by one list, which has all jobs of the cluster."""
STARTING = 3.0
"""Seconds that a job may be pending without being held to wait for something."""
STOP_WAIT = 15
"""Seconds between SIGTERM and SIGKILL where somebody else stops a job: ``RAY_JOB_STOP_WAIT_TIME_S``."""
_RAY_ITSELF = (
    r"PYTHONPATH=$(sed -n 's#^[^/]*\(/.*\)/ray/_raylet[.]so$#\1#p' /proc/$PPID/maps | head -n 1) "
    'exec "$(readlink /proc/$PPID/exe)"'
)
"""In a shell that Ray starts for a job: the Python that runs Ray, with the packages that it has there."""
_ITS_PYTHON = (
    r"python=$(sed -n 's#^[^/]*\(/.*\)/lib[^/]*/python[^/]*/[^/]*/ray/_raylet[.]so$#\1/bin/python3#p' "
    '/proc/$PPID/maps | head -n 1); test -x "$python" || python=$(readlink /proc/$PPID/exe); '
)
"""The same without more than its own environment: what ``python`` is in a job of Ray's."""
_UNWANTED = ("RAY_JOB_CONFIG_JSON_ENV_VAR", "PYTHONBREAKPOINT", "OMP_NUM_THREADS")
"""What Ray adds to the environment of a job, and a step is not to have: the variables of the job once more, a
debugger of Ray's, and the threads of a worker."""
_SHARE = 0.001
"""What is asked of a resource that only says of which type a node is."""
_OUT_OF_MEMORY = re.compile(r"(?i)running low on memory|OutOfMemoryError|OUT_OF_MEMORY")
_NODE_LOST = re.compile(
    r"(?i)node (?:has |was )?(?:died|dead|is dead|terminated|preempted)|its node|NODE_DIED"
)
_OF_GANG = re.compile(r"^upshift: (node .* was lost: .*)$", re.MULTILINE)
_PREEMPTED = re.compile(r"(?i)preempt")
_PREFACE = re.compile(r"Runtime env is setting up|Running entrypoint for job")


def request_of(launch: Launch) -> str:
    """What is posted to ``/api/jobs/``, as JSON; pure, and the same for the same launch."""
    granted, said = launch.granted, launch.settings
    cpus = 1 if granted.cpu_count is None else granted.cpu_count
    cpus = math.ceil(cpus) if cpus > 1 else cpus  # of more than one, Ray takes whole ones only
    resources = dict(said.get("resources", {}))
    kinds = {device.model for device in granted.gpus or () if device.model}
    resources.update({f"{TYPE}{kind}": _SHARE for kind in kinds})
    without = [name for name in _UNWANTED if name not in said.get("env_vars", {})]
    if (granted.nodes or 1) > 1:
        return _gang_of(launch, cpus, resources, without)
    request: dict[str, Any] = {
        "submission_id": launch.name,
        "entrypoint": _entrypoint(launch.command, without),
        "entrypoint_num_cpus": cpus,  # with none at all it would run on the head
        "metadata": {"upshift": launch.comment, "asks": _asked(launch)},
        "runtime_env": {"env_vars": _variables(launch)},
    }
    if granted.gpus:
        request["entrypoint_num_gpus"] = len(granted.gpus)
    if granted.memory is not None:
        request["entrypoint_memory"] = math.ceil(granted.memory)
    if resources:
        request["entrypoint_resources"] = resources
    if said.get("labels"):
        request["entrypoint_label_selector"] = dict(said["labels"])
    return json.dumps(request, indent=2, ensure_ascii=False) + "\n"


def _entrypoint(command: Sequence[str], without: Iterable[str]) -> str:
    """The command for a shell, without these variables."""
    program, *words = command
    found, python = (_ITS_PYTHON, '"$python"') if program == gang.OF_RAY else ("", shlex.quote(program))
    return found + " ".join(["exec env", *(f"-u {name}" for name in without), python, shlex.join(words)])


def _gang_of(launch: Launch, cpus: float, resources: Mapping[str, float], without: list[str]) -> str:
    """The same of a step on several nodes: :mod:`.gang` is the entry point, and asks for the nodes."""
    granted, said = launch.granted, launch.settings
    bundle: dict[str, float] = {"CPU": cpus, **resources}
    if granted.gpus:
        bundle["GPU"] = len(granted.gpus)
    if granted.memory is not None:
        bundle["memory"] = math.ceil(granted.memory)
    asked = {
        "name": launch.name,
        "nodes": granted.nodes,
        "bundle": bundle,
        "labels": dict(said.get("labels", {})),
        "avoids": list(granted.details.get("avoids", ())),
        "command": list(launch.command),
        "order": ORDER_FILE,  # where the nodes find how many they are, and their token
        "seat": [seats.NODE, seats.MAIN, seats.NAME, seats.OWN_ADDRESS],
        "without": without,
    }
    text = Path(gang.__file__).read_text(encoding="utf-8").partition('"""\n\n')[2]
    request = {
        "submission_id": launch.name,
        "entrypoint": f"{_RAY_ITSELF} {shlex.join(['-c', text, json.dumps(asked, ensure_ascii=False)])}",
        "entrypoint_num_cpus": 0,
        "metadata": {"upshift": launch.comment, "asks": _asked(launch), "nodes": str(granted.nodes)},
        "runtime_env": {"env_vars": _variables(launch)},
    }
    return json.dumps(request, indent=2, ensure_ascii=False) + "\n"


def _variables(launch: Launch) -> dict[str, str]:
    """The environment of a job."""
    said = launch.settings.get("env_vars", {})
    return {**launch.environment, **said, "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}


def _asked(launch: Launch) -> str:
    """The request of a job in words."""
    granted, said = launch.granted, launch.settings
    parts = [f"{granted.cpu_count or 1:g} CPUs" if (granted.cpu_count or 1) != 1 else "1 CPU"]
    if granted.memory is not None:
        parts.append(f"{format_size(granted.memory)} of memory")
    if granted.gpus:
        parts.append(f"{len(granted.gpus)} × {granted.gpus[0].model or 'GPU'}")
    parts += [f"{amount:g} × {name}" for name, amount in said.get("resources", {}).items()]
    parts += [f"label {name}={value}" for name, value in said.get("labels", {}).items()]
    each = f" on each of {granted.nodes} nodes" if (granted.nodes or 1) > 1 else ""
    return ", ".join(parts) + each


@attrs.define(eq=False, slots=False)
class Ray:
    """A cluster through its dashboard."""

    dashboard: Dashboard
    grows: bool = False  # whether an autoscaler adds nodes
    home: str | None = None  # the folder of this machine that nodes have, too; None: they share none
    title: str = "Ray"
    signals: bool = False
    seat: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    noise: re.Pattern[str] = _PREFACE
    _pending: dict[str, float] = attrs.field(factory=dict, repr=False)  # since when, by the monotonic clock
    _placed: set[str] = attrs.field(factory=set, repr=False)  # jobs on several nodes that have them

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What the nodes of the cluster have."""
        if ask.avoid is not None:
            vars(self).pop("nodes", None)  # they have changed since
        return offer(ask.request, settings, self.nodes, grows=self.grows, avoid=ask.avoid or ())

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """What the dashboard shows of nodes, devices and jobs."""
        nodes = self.nodes
        version = self.dashboard.ask("GET", "/api/version").get("ray_version", "")
        yield Finding(name="access", text=f"Ray {version} answers at {self.dashboard.address}")
        yield from findings(nodes)
        jobs = Counter(job["status"] for job in self.dashboard.ask("GET", "/api/jobs/"))
        waiting = jobs["PENDING"]
        yield Finding(name="jobs", text=f"{jobs['RUNNING']} under way, {waiting} waiting, of all users")
        self.offer(Ask(), settings)

    def render(self, launch: Launch) -> str:
        """As :func:`request_of`."""
        return request_of(launch)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, looked at once."""
        try:
            said = self.dashboard.ask("GET", "/api/v0/nodes?limit=10000&detail=1")
            return read_nodes(said["data"]["result"]["result"])
        except NotNow as error:
            raise BackendError(
                str(error),
                fix='Name the dashboard of the cluster: address = "http://HEAD:8265" of the target, or '
                "RAY_API_SERVER_ADDRESS. See that it runs: ray status.",
            ) from None
        except (Unknown, KeyError, TypeError):
            raise BackendError(
                f"{self.dashboard.address} is no dashboard of Ray's, or one that is too old",
                fix="Upshift is tested with Ray 2.60.",
            ) from None

    def submit(self, script: str, more: Mapping[str, str]) -> str:
        """The id is ours: the name of the job."""
        request = json.loads(script)
        shared = {} if self.home is None else {"UPSHIFT_HOME": self.home}
        request["runtime_env"]["env_vars"] = {**more, **request["runtime_env"]["env_vars"], **shared}
        try:
            self.dashboard.ask("POST", "/api/jobs/", request)
        except Unknown:
            raise BackendError(f"{self.dashboard.address} is no dashboard of Ray's") from None
        except BackendError as error:
            if "already exists" not in error.in_short:  # it was taken, and nobody has heard of that
                raise
        return str(request["submission_id"])

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """One question each for a few, one list for many."""
        jobs = list(self._jobs(ids))
        self._look_for_nodes(jobs)
        return {job["submission_id"]: self._state(job) for job in jobs}

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """Names are ids."""
        return {job["submission_id"]: job["submission_id"] for job in self._jobs(names)}

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """What waits is stopped once it starts; what runs has word in the store unless it is to be killed."""
        jobs = list(self._jobs(ids))
        self._look_for_nodes(jobs)
        for job in jobs:
            if self._waits(job) or (kill and job["status"] == "RUNNING"):
                with contextlib.suppress(Unknown, BackendError):  # it has ended
                    self.dashboard.ask("POST", f"/api/jobs/{quote(job['submission_id'])}/stop", {})

    def words(self, id: str) -> str | None:
        """The last lines that its command has printed."""
        try:
            said = self.dashboard.ask("GET", f"/api/jobs/{quote(id)}/logs")["logs"] or ""
        except (Unknown, BackendError):
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip() and not _PREFACE.search(line)]
        return "it printed: " + " / ".join(lines[-3:]) if lines else None

    def _jobs(self, ids: Collection[str]) -> Iterable[Mapping[str, Any]]:
        """What is known of these; of one that is not known any more, nothing."""
        try:
            if len(ids) > FEW:
                return [job for job in self.dashboard.ask("GET", "/api/jobs/") if job["submission_id"] in ids]
            found = []
            for id in ids:
                try:
                    found.append(self.dashboard.ask("GET", f"/api/jobs/{quote(id)}"))
                except Unknown:
                    continue
            return found
        except BackendError as error:
            raise NotNow(error.in_short) from None

    def _look_for_nodes(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """See which jobs on several nodes have them: their entry point runs, and waits for them."""
        if not any(map(self._waits, (job for job in jobs if job["status"] == "RUNNING"))):
            return
        try:
            said = self.dashboard.ask("GET", "/api/v0/placement_groups?limit=10000")["data"]["result"][
                "result"
            ]
        except (BackendError, Unknown, KeyError, TypeError) as error:
            raise NotNow(f"Ray does not say which placement groups there are: {error}") from None
        self._placed.update(group["name"] for group in said if group["state"] != "PENDING")

    def _waits(self, job: Mapping[str, Any]) -> bool:
        """Whether a job has not what it asks for yet."""
        if job["status"] == "RUNNING":
            return "nodes" in (job.get("metadata") or {}) and job["submission_id"] not in self._placed
        return bool(job["status"] == "PENDING")

    def _state(self, job: Mapping[str, Any]) -> State:
        id, status = job["submission_id"], job["status"]
        node = urlsplit(job.get("driver_agent_http_address") or "").hostname
        if self._waits(job):
            since = self._pending.setdefault(id, time.monotonic())
            asks = (job.get("metadata") or {}).get("asks", "what it asks for")
            waits = time.monotonic() - since > STARTING
            who = "the nodes do not have" if "nodes" in (job.get("metadata") or {}) else "no node has"
            return State(phase="pending", why=f"{who} {asks} free yet" if waits else None)
        self._pending.pop(id, None)
        if status == "RUNNING":
            return State(phase="running", node=node)
        if status == "SUCCEEDED":
            return State(phase="ended", node=node)
        if status == "STOPPED":
            return State(phase="ended", reason="cancelled", message="somebody stopped the job", node=node)
        reason, message = cause_of(
            job.get("error_type"), job.get("message") or "", job.get("driver_exit_code")
        )
        at = f" on {node}" if node else ""
        return State(phase="ended", reason=reason, message=f"{message}{at}, job {id} of Ray", node=node)


def cause_of(error: str | None, message: str, code: int | None) -> tuple[str, str]:
    """Why a job has failed, from its ``error_type``, and where that says little, from its message."""
    if error == "JOB_ENTRYPOINT_COMMAND_ERROR":
        lost = _OF_GANG.search(message)
        if lost is not None:
            return "infrastructure", lost[1].strip().rstrip(".")
        if code is not None and code < 0:
            return "infrastructure", f"its supervisor was killed by signal {-code}"
        return "infrastructure", f"its supervisor ended with exit code {code}"
    if error == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT":
        found = re.search(r"within ([\d.]+) seconds", message)
        after = f" after {float(found[1]) / 60:g} min" if found else ""
        return (
            "infrastructure",
            f"Ray gave up starting it{after}: RAY_JOB_START_TIMEOUT_SECONDS of the head says when",
        )
    said = _first(message)
    if _OUT_OF_MEMORY.search(message):
        return "out-of-memory", f"Ray killed it, as its node ran out of memory: {said}"
    if _PREEMPTED.search(message):
        return "preempted", f"its node was preempted: {said}"
    if _NODE_LOST.search(message):
        return "infrastructure", f"its node was lost: {said}"
    if error == "JOB_SUPERVISOR_ACTOR_DIED":
        return "infrastructure", f"Ray's process beside it died: {said}"
    return "infrastructure", said or "the job failed"


def _first(message: str) -> str:
    """What Ray says of an actor that died, without its own names."""
    told = [line.strip() for line in message.splitlines() if line.strip()]
    of_itself = re.compile(
        r"class_name:|actor_id:|pid:|name:|namespace:|ip:|job_id:|.*The actor died unexpectedly"
    )
    said = [line for line in told if not of_itself.match(line)]
    return (said or told or [""])[0].removeprefix("Job supervisor actor died: ")[:300].rstrip(".")


class RayBackend(ClusterBackend):
    """Runs tasks as jobs of Ray's."""

    name: ClassVar[str] = "ray"
    settings: ClassVar[type] = RaySettings
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "num_nodes"},
        secrets=frozenset({"env", "file"}),
        environments=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        own = ("address", "autoscaling", "detach", "python")
        options = options_of(target, RaySettings, own=own)
        grows = flag_option(target, "autoscaling")
        address = text_option(target, "address", 'Write address = "http://HEAD:8265".')
        self._python = text_option(target, "python", 'Write python = "/opt/venv/bin/python".')
        self._alone = "://" in store  # whether nodes have nothing of this machine
        cluster = Ray(Dashboard(address_of(address)), grows=grows, home=None if self._alone else str(home()))
        if self._alone:
            self.capabilities = attrs.evolve(type(self).capabilities, environments=False)
        super().__init__(cluster, name=self.name, store=store, sink=sink, options=options, is_seen=True)
        self._dashboard = cluster.dashboard
        self._address_said = address
        python = self._python or gang.OF_RAY
        self.engines = Engines(
            target,
            cluster,
            RaySettings,
            options,
            private=False,
            seen=self._seen,
            journey=Journey(python=python, images=False) if self._alone else None,
        )

    def _seen(self, target: Target) -> Target | None:
        """A target as an engine on a node has it, by the same address of the dashboard."""
        if not self._alone:
            return target
        if target.backend != self.name or target.options.get("address") != self._address_said:
            return None
        return attrs.evolve(target, options={**target.options, "address": self._dashboard.address})

    def reach(self, spec: TaskSpec) -> Reach:
        """Folders and the Python of this machine; or the bootstrap, and the Python that the nodes have."""
        python = spec.interpreter or self._python or (gang.OF_RAY if self._alone else None)
        return Reach(python=python, bootstrap=self._alone)

    def images(self) -> Finding:
        """What steps run in."""
        if not self._alone:
            return super().images()
        return Finding(name="images", text=f"none: steps run in {self._python or 'the Python that runs Ray'}")

    def capacity(self) -> Capacity:
        """Ray queues jobs itself, and its head has a process's memory for each."""
        return Capacity(jobs=MOST)

    def close(self) -> None:
        """Stop watching; the jobs continue."""
        super().close()
        self._dashboard.close()
