"""The backend ``skypilot``: each attempt is a managed job, on machines that are rented for it.

A managed job is started again by SkyPilot where its machines are taken away. Upshift retries by itself, from
the last checkpoint: so a job that recovers has ended as ``preempted``, and is cancelled. SkyPilot takes
machines down without a word to what runs there, so steps are stopped through the store.

Its SDK is called through :mod:`.agent`, in the Python that has it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs

from upshift.backends.base import DEVICES, Ask, Capabilities, Finding, Offer, Sink
from upshift.backends.cluster import ClusterBackend
from upshift.backends.registry import options_of, text_option
from upshift.backends.scheduler import Launch, NotNow, Reach, State
from upshift.backends.skypilot.task import FIRST_NODE, grants, task_of, unnamed
from upshift.errors import BackendError, ConfigError, RequestRefused
from upshift.images.building.builder import Destination
from upshift.model.configuration import Target
from upshift.model.settings.skypilot import SkyPilotSettings
from upshift.model.spec import TaskSpec
from upshift.runtime.launch import seats

_AGENT = Path(__file__).with_name("agent.py")
_LONGEST_LINE = 512  # of a script, in which its interpreter is named


class Refused(BackendError):
    """SkyPilot has refused a call."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"SkyPilot refuses it: {said}")
        self.kind = kind  # its own class of errors
        self.said = said


def python_of(command: str | None = None) -> str:
    """The interpreter that has SkyPilot: this one, or that of its command ``sky``.

    Raises
    ------
    BackendError
        There is none.
    """
    if command is None and importlib.util.find_spec("sky") is not None:
        return sys.executable
    path = shutil.which(command or "sky")
    if path is not None:
        with open(path, "rb") as file:
            first = file.readline(_LONGEST_LINE).decode(errors="replace")
        if first.startswith("#!") and "python" in first:
            return first[2:].split()[0].strip()
    raise BackendError(
        f"{command or 'sky'} is no command of SkyPilot's here",
        why="Steps are given to SkyPilot through its own Python package.",
        fix='Install it, best in an environment of its own: uv tool install "skypilot[aws]", with the clouds '
        "that you use. Where its command is not on the PATH, the target names it: "
        'options = { sky = "/opt/sky/bin/sky" }.',
    )


class Sdk:
    """Each thread that calls has an agent of its own: one may take minutes, while machines are rented."""

    def __init__(self, command: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._command = command
        self._environment = {
            **environ,
            "SKYPILOT_DISABLE_USAGE_COLLECTION": environ.get("SKYPILOT_DISABLE_USAGE_COLLECTION", "1"),
        }
        self._here = threading.local()
        self._agents: list[subprocess.Popen[str]] = []

    def call(self, name: str, **arguments: Any) -> Any:
        """What a function of the agent gives.

        Raises
        ------
        Refused
            SkyPilot does not do it.
        NotNow
            Its server does not answer.
        """
        agent = self._agent()
        assert agent.stdin is not None
        assert agent.stdout is not None
        try:
            agent.stdin.write(json.dumps({"call": name, "with": arguments}) + "\n")
            agent.stdin.flush()
            line = agent.stdout.readline()
        except OSError:
            line = ""
        if not line:
            code = agent.wait()
            self._let_go(agent)
            raise NotNow(
                f"SkyPilot does not answer: its SDK ended with {code}, in {python_of(self._command)}"
            )
        told = json.loads(line)
        if "answer" in told:
            return told["answer"]
        if told["refused"]:
            raise Refused(told["error"], told["said"])
        raise NotNow(f"SkyPilot does not answer: {told['said']}")

    def close(self) -> None:
        """End the agents."""
        for agent in list(self._agents):
            agent.terminate()
            agent.wait()
            self._let_go(agent)

    def _let_go(self, agent: subprocess.Popen[str]) -> None:
        self._agents.remove(agent)
        for stream in (agent.stdin, agent.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what it was to be asked is still unsent
                    stream.close()

    def _agent(self) -> subprocess.Popen[str]:
        agent: subprocess.Popen[str] | None = getattr(self._here, "agent", None)
        if agent is None or agent not in self._agents:
            agent = self._here.agent = subprocess.Popen(
                [python_of(self._command), str(_AGENT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
                start_new_session=True,  # whoever interrupts the engine does not interrupt a submission
            )
            self._agents.append(agent)
        return agent


WAITING = {
    "PENDING": "its controller has not taken it yet",
    "SUBMITTED": "its controller has not taken it yet",
    "STARTING": "machines are being rented",
}
CAUSES = {
    "CANCELLED": ("cancelled", "somebody cancelled the job"),
    "CANCELLING": ("cancelled", "somebody cancelled the job"),
    "FAILED": ("infrastructure", "its supervisor failed"),
    "FAILED_SETUP": ("infrastructure", "its machines could not be set up"),
    "FAILED_PRECHECKS": ("infrastructure", "no cloud has machines like these"),
    "FAILED_NO_RESOURCE": ("infrastructure", "no cloud had machines like these free"),
    "FAILED_CONTROLLER": ("infrastructure", "SkyPilot's controller failed"),
    "RECOVERING": ("preempted", "its machines were taken away"),
}
"""What the states mean by which a job ends otherwise than by itself: ``sky jobs queue --help``."""
SEAT = {seats.NODE: "$SKYPILOT_NODE_RANK", seats.MAIN: f"${FIRST_NODE}"}
"""SkyPilot, "Distributed Jobs on Many Nodes"."""
_PREFACE = re.compile(r"\(.*pid=\d+\)\s*|[├└│]|Job ID:|D \d\d-\d\d ")


@attrs.define(eq=False)
class SkyPilot:
    """SkyPilot through its SDK."""

    sdk: Sdk
    title: str = "SkyPilot"
    signals: bool = False
    asks: bool = True  # whether its optimizer is asked for machines
    seat: Mapping[str, str] = attrs.field(factory=lambda: dict(SEAT), repr=False)
    noise: re.Pattern[str] = _PREFACE

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """The first alternative for which SkyPilot's optimizer finds a machine."""
        lacking = unnamed(ask.request, settings)
        if lacking is not None:
            plain = attrs.evolve(
                ask.request, gpu_count=None, gpu_memory=None, gpu_vendor=None, accelerator=None
            )
            return Offer(granted=grants(plain, settings)[0], shortfalls=(lacking,))
        if not self.asks:
            return Offer(granted=grants(ask.request, settings)[0])
        refusal: Refused | None = None
        for granted in grants(ask.request, settings):
            sketch = Launch(name="test", comment="", command=("true",), granted=granted, settings=settings)
            try:
                self.sdk.call("optimize", task=task_of(sketch))
            except Refused as error:
                refusal = error
            except NotNow as error:
                raise BackendError(str(error), fix="Run: sky api info") from None
            else:
                return Offer(granted=granted)
        assert refusal is not None  # there is an alternative at least
        raise RequestRefused(
            f"SkyPilot would not take a job like this: {refusal.said}",
            why="Its optimizer finds no machine for it.",
            fix="See which clouds are enabled, sky check, and what they have, sky show-gpus --all.",
        )

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """The server, its clouds, its jobs, and whether there is a machine for a step without a request."""
        about = self.sdk.call("about")
        yield Finding(name="access", text=f"SkyPilot {about['server']} answers (SDK {about['client']})")
        if not about["clouds"]:
            yield Finding(
                name="clouds",
                text="none is enabled",
                status="problem",
                remedy="See what they lack: sky check.",
            )
            return
        yield Finding(name="clouds", text=", ".join(about["clouds"]))
        states = Counter(job["status"] for job in self.sdk.call("jobs", ids=None))
        waiting = sum(states[name] for name in WAITING)
        yield Finding(name="jobs", text=f"{states['RUNNING']} under way, {waiting} waiting")
        self.offer(Ask(), settings)
        yield Finding(name="submission", text="SkyPilot's optimizer finds a machine")

    def render(self, launch: Launch) -> str:
        """As :func:`.task.task_of`."""
        return task_of(launch)

    def submit(self, script: str, environment: Mapping[str, str]) -> str:
        """The id is a number; variables are secrets of the job, which SkyPilot shows to nobody."""
        return str(self.sdk.call("launch", task=script, secrets=dict(environment)))

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """One question, however many they are. A job that recovers is over, and ended."""
        found = self.sdk.call("jobs", ids=sorted(map(int, ids)))
        recovering = [job["job_id"] for job in found if job["status"] == "RECOVERING"]
        if recovering:
            self.sdk.call("cancel", ids=recovering)
        return {str(job["job_id"]): _state(job) for job in found}

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """The newest job of each name."""
        listed = sorted(self.sdk.call("jobs", ids=None), key=lambda job: int(job["job_id"]))
        return {job["job_name"]: str(job["job_id"]) for job in listed if job["job_name"] in names}

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """What has no machine yet is cancelled; what runs has word in the store unless it is to be killed."""
        found = self.sdk.call("jobs", ids=sorted(map(int, ids)))
        over = [job["job_id"] for job in found if job["status"] in WAITING or (kill and not _is_over(job))]
        if over:
            self.sdk.call("cancel", ids=over)

    def words(self, id: str) -> str | None:
        """The last lines that it has printed."""
        try:
            said = self.sdk.call("log", id=int(id))
        except Refused:
            return None
        lines = [_PREFACE.sub("", line).strip() for line in said.splitlines()]
        lines = [line for line in lines if line]
        return "it printed: " + " / ".join(lines[-3:]) if lines else None


def _is_over(job: Mapping[str, Any]) -> bool:
    return job["status"] == "SUCCEEDED" or job["status"] in CAUSES


def _state(job: Mapping[str, Any]) -> State:
    """A job's state, from a record of SkyPilot's queue."""
    status, node = job["status"], job.get("infra") or job.get("region")
    if status in WAITING:
        return State(phase="pending", why=job.get("details") or WAITING[status])
    if status in ("RUNNING", "WINDING_DOWN"):
        return State(phase="running", node=node)
    if status == "SUCCEEDED":
        return State(phase="ended", node=node)
    reason, message = CAUSES.get(status, ("infrastructure", f"SkyPilot says {status}"))
    more = job.get("failure_reason")
    return State(
        phase="ended",
        reason=reason,
        message=f"{message}: job {job['job_id']} of SkyPilot" + (f", {more}" if more else ""),
        node=node,
    )


class SkyPilotBackend(ClusterBackend):
    """Runs tasks as managed jobs of SkyPilot's."""

    name: ClassVar[str] = "skypilot"
    settings: ClassVar[type] = SkyPilotSettings
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "disk", "shared_memory", "num_nodes"},
        secrets=frozenset({"env", "file"}),
        images=True,
        buckets=True,
    )

    no_engines = "On a rented machine an engine would need SkyPilot itself, and your login to its API server."

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        options = options_of(target, SkyPilotSettings, own=("sky", "image"))
        self._image = text_option(target, "image")
        if "://" not in store:
            raise ConfigError(
                f"target {target.name!r}: its store is the folder {store}",
                why="Steps on machines that are rented hand on their results through a bucket.",
                fix='Name one: store = "s3://team/upshift".',
            )
        self.options: Mapping[str, Any] = options
        self._registry = target.registry
        self._sdk = Sdk(text_option(target, "sky"))
        self._skypilot = SkyPilot(self._sdk)
        super().__init__(self._skypilot, name=self.name, store=store, sink=sink, options=options)

    def ask_nobody(self) -> None:
        """Take a request for what SkyPilot's optimizer will find, which need not be here."""
        self._skypilot.asks = False

    def reach(self, spec: TaskSpec) -> Reach:
        """Machines know nothing of this one: an image has the Python, the bootstrap brings the rest."""
        return Reach(python=spec.interpreter or "python3")

    def destination(self) -> Destination:
        """Machines take images from a registry; a step that names none runs in that of the target."""
        return Destination(platform="linux/amd64", registry=self._registry, parent=self._image)

    def close(self) -> None:
        """Stop watching; the jobs continue."""
        super().close()
        self._sdk.close()
