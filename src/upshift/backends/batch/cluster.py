"""AWS Batch through its API: what a queue would take, and its jobs.

Jobs go by SubmitJob, DescribeJobs, CancelJob and TerminateJob.
A job is terminated by SIGTERM and, 30 s later, SIGKILL, and has nothing else that could reach its supervisor:
steps are cancelled through the store. Answers right after a submission may lack the job.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from upshift.backends.base import Ask, Finding, Offer
from upshift.backends.batch.api import BY_US, WAITING, Api, Refused, state_of
from upshift.backends.batch.definition import LOGS, NOT_BUILT, REGISTER, SUBMIT, job_name, request_of
from upshift.backends.batch.queues import Queue, findings, offer, read_queue
from upshift.backends.scheduler import Launch, NotNow, State
from upshift.errors import BackendError, RequestRefused, suggestion
from upshift.runtime.launch import seats

T = TypeVar("T")

MOST_DESCRIBED = 100
"""Jobs that DescribeJobs takes: API_DescribeJobs."""
LARGEST_DEFINITION, LARGEST_SUBMISSION, LONGEST_OVERRIDES = 24 << 10, 30 << 10, 8192
"""Bytes, and characters: AWS Batch, "Service quotas"; metaflow #977."""
SHARE = 20.0
"""Seconds for which an element of an array may begin further tasks: its time limit is longer than that."""
FRESH = 30.0
"""Seconds for which what a queue says of itself is believed, where jobs wait in it."""
ANSWERED_LATE = 60.0
"""Seconds for which a job may be missing from answers that was just submitted."""
_WORDS = 3
"""Lines of what a job has printed that are shown."""
SEAT = {
    seats.NODE: "$AWS_BATCH_JOB_NODE_INDEX",
    seats.MAIN: "$AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
}
"""AWS Batch, "Environment variables for multi-node parallel jobs"; node 0 does not have the second one."""
_NONE = re.compile(r"(?!)")
_TRUSTED = "ecs-tasks.amazonaws.com"


@attrs.define(eq=False)
class AwsBatch:
    """The job queues of an account in a region."""

    api: Api
    title: str = "AWS Batch"
    signals: bool = False
    dense: bool = True
    largest: int = 10_000  # API_ArrayProperties
    noise: re.Pattern[str] = _NONE
    seat: Mapping[str, str] = attrs.field(factory=lambda: dict(SEAT), repr=False)
    _queues: dict[str, tuple[float, Queue]] = attrs.field(factory=dict, repr=False)  # when it was looked at
    _lines: dict[str, tuple[float, dict[str, int]]] = attrs.field(factory=dict, repr=False)
    _definitions: dict[str, str] = attrs.field(factory=dict, repr=False)  # their ARNs
    _submitted: dict[str, float] = attrs.field(factory=dict, repr=False)
    _arrays: dict[str, tuple[Any, dict[int, dict[str, Any]]]] = attrs.field(factory=dict, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)

    # -- before anything is submitted --------------------------------------------------------------

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What the queue can start, by its compute environments."""
        return offer(ask, settings, soon(lambda: self.queue(settings.get("queue"))))

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """Who is asking, the queue, its compute environments, and the roles."""
        who = self.api.call("get_caller_identity", service="sts").get("Arn", "somebody")
        yield Finding(name="access", text=f"{who} in {self.api.region}")
        queue = self.queue(settings.get("queue"))
        yield from findings(settings, queue)
        for field in ("iam_role", "execution_role"):
            if settings.get(field):
                yield from self._role(field, settings[field])
        counts = {
            status: len(self.api.call("list_jobs", jobQueue=queue.name, jobStatus=status)["jobSummaryList"])
            for status in ("RUNNING", "RUNNABLE")
        }
        shown = {
            status: f"{count}" if count < MOST_DESCRIBED else f"{count} or more"
            for status, count in counts.items()
        }
        yield Finding(
            name="jobs", text=f"{shown['RUNNING']} running, {shown['RUNNABLE']} waiting, of all users"
        )

    def queue(self, name: str | None, *, fresh: float | None = None) -> Queue:
        """A queue by name or ARN, looked at once; or not longer ago than so many seconds."""
        if not name:
            raise RequestRefused(
                "no job queue of AWS Batch is set",
                fix='Name it: options = { queue = "…" } of the target, or @batch(queue="…"). See: aws batch '
                "describe-job-queues",
            )
        looked, queue = self._queues.get(name, (0.0, None))
        if queue is not None and (fresh is None or time.monotonic() - looked < fresh):
            return queue
        found = self.api.call("describe_job_queues", jobQueues=[name])["jobQueues"]
        if not found:
            known = [one["jobQueueName"] for one in self.api.pages("describe_job_queues", "jobQueues")]
            raise RequestRefused(
                f"AWS Batch has no job queue {name!r} in {self.api.region}",
                fix=suggestion(name, known) if known else "There is none at all: name another region.",
            )
        names = [one["computeEnvironment"] for one in found[0].get("computeEnvironmentOrder", ())]
        environments: list[dict[str, Any]] = []
        if names:
            answer = self.api.call("describe_compute_environments", computeEnvironments=names)
            environments = answer["computeEnvironments"]
        queue = read_queue(found[0], environments)
        for key in {name, queue.name, queue.arn}:
            self._queues[key] = (time.monotonic(), queue)
        return queue

    def _role(self, field: str, arn: str) -> Iterator[Finding]:
        """Whether a role is there, and containers may take it, as far as we may look."""
        name = arn.rpartition("/")[2]
        try:
            role = self.api.call("get_role", service="iam", RoleName=name)["Role"]
        except Refused as error:
            if error.code == "NoSuchEntity":
                yield Finding(
                    name="role",
                    text=f"{field} {name} is not there",
                    status="problem",
                    remedy="Name another one, or create it: the page on AWS Batch has its policies.",
                )
            else:
                yield Finding(name="role", text=f"{field} {name} cannot be looked at: {error.said}")
            return
        trusted = _TRUSTED in json.dumps(role.get("AssumeRolePolicyDocument", {}))
        yield Finding(
            name="role",
            text=f"{field} {name}" if trusted else f"{field} {name} does not trust {_TRUSTED}",
            status="ok" if trusted else "problem",
            remedy=None if trusted else f"Let {_TRUSTED} call sts:AssumeRole, in the role's trust policy.",
        )

    # -- submitting --------------------------------------------------------------------------------

    def render(self, launch: Launch) -> str:
        """As :func:`.definition.request_of`."""
        return json.dumps(request_of(launch), indent=2, ensure_ascii=False) + "\n"

    def share(self, launch: Launch) -> float:
        """A small part of its time limit."""
        return SHARE

    def submit(self, script: str, environment: Mapping[str, str]) -> str:
        """Register the definition if nobody has, and submit; again, if it was deregistered meanwhile."""
        request = json.loads(script)
        definition, submission = request[REGISTER], request[SUBMIT]
        if any(one["image"] == NOT_BUILT for one in _containers(definition)):
            raise BackendError("it has no image to run in", fix="Name one: the option image of the target.")
        for overrides in _overrides(submission):
            variables = {one["name"]: one["value"] for one in overrides["environment"]} | dict(environment)
            overrides["environment"] = [
                {"name": name, "value": text} for name, text in sorted(variables.items())
            ]
            _refuse_long(overrides, LONGEST_OVERRIDES, "what overrides a definition", "characters")
        _refuse_long(definition, LARGEST_DEFINITION, "a job definition", "bytes")
        _refuse_long(submission, LARGEST_SUBMISSION, "a submission", "bytes")
        for last in (False, True):
            arn = self._definition(definition)
            try:
                answer = self.api.call("submit_job", **{**submission, "jobDefinition": arn})
            except Refused as error:
                if error.code == "ClientException" and not last and not self._is_active(arn):
                    self._definitions.pop(definition["jobDefinitionName"], None)
                    continue
                raise
            self._submitted[answer["jobId"]] = time.monotonic()
            return str(answer["jobId"])
        raise AssertionError("the last try raises or returns")

    def _definition(self, definition: Mapping[str, Any]) -> str:
        """The ARN of a definition with this content; its name follows from that."""
        name = definition["jobDefinitionName"]
        with self._lock:
            if name not in self._definitions:
                known = self.api.pages(
                    "describe_job_definitions", "jobDefinitions", jobDefinitionName=name, status="ACTIVE"
                )
                found = max(known, key=lambda one: int(one["revision"]), default=None)
                if found is None:
                    found = self.api.call("register_job_definition", **definition)
                self._definitions[name] = str(found["jobDefinitionArn"])
            return self._definitions[name]

    def _is_active(self, arn: str) -> bool:
        found = self.api.call("describe_job_definitions", jobDefinitions=[arn])["jobDefinitions"]
        return any(one.get("status") == "ACTIVE" for one in found)

    # -- watching ----------------------------------------------------------------------------------

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """By 100 ids; elements of large arrays by what has changed of their array."""
        elements: dict[str, set[int]] = {}
        for id in ids:
            base, _, number = id.partition("_")
            if number:
                elements.setdefault(base, set()).add(int(number))
        large = {base for base, numbers in elements.items() if len(numbers) > MOST_DESCRIBED}
        asked = [id for id in ids if id.partition("_")[0] not in large]
        try:
            jobs = self._described([*map(_their, asked), *large])
            known = {id: jobs[_their(id)] for id in asked if _their(id) in jobs}
            for base in large & jobs.keys():
                for index, job in self._elements(jobs[base], elements[base]).items():
                    known[f"{base}_{index}"] = job
            found = {id: self._state(job) for id, job in known.items()}
        except BackendError as error:
            raise NotNow(error.in_short) from None
        now = time.monotonic()
        for id in ids:
            submitted = self._submitted.get(id.partition("_")[0])
            if id not in found and submitted is not None and now - submitted < ANSWERED_LATE:
                found[id] = State(phase="pending")  # answers right after a submission may be empty
        return found

    def _described(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """These jobs, by their ids; of those that are not known any more, nothing."""
        all_ids, found = list(dict.fromkeys(ids)), {}
        for start in range(0, len(all_ids), MOST_DESCRIBED):
            some = all_ids[start : start + MOST_DESCRIBED]
            found.update({job["jobId"]: job for job in self.api.call("describe_jobs", jobs=some)["jobs"]})
        return found

    def _elements(self, array: Mapping[str, Any], asked: Collection[int]) -> dict[int, dict[str, Any]]:
        """Elements of an array, listed anew where their numbers have changed: those that wait are not listed.

        One of them says for what they wait, and those that completed are listed only if some must be among
        the ones that are asked for.
        """
        id, summary = array["jobId"], array.get("arrayProperties", {}).get("statusSummary", {})
        before, known = self._arrays.get(id, (None, {}))
        if summary != before:
            for status in ("STARTING", "RUNNING", "FAILED"):
                known |= self._listed(id, status) if summary.get(status) else {}
            waiting = sum(summary.get(status, 0) for status in WAITING)
            if len(set(asked) - known.keys()) > waiting:
                known |= self._listed(id, "SUCCEEDED")
            self._arrays[id] = (summary, known)
        waits: dict[str, Any] = {"status": "PENDING"}
        if summary.get("RUNNABLE"):
            answer = self.api.call("list_jobs", arrayJobId=id, jobStatus="RUNNABLE", maxResults=1)
            waits = next(iter(answer["jobSummaryList"]), waits)
        queue = array.get("jobQueue")
        return {
            number: {"jobQueue": queue, **known.get(number, {**waits, "jobId": f"{id}:{number}"})}
            for number in asked
        }

    def _listed(self, array: str, status: str) -> dict[int, dict[str, Any]]:
        listed = self.api.pages("list_jobs", "jobSummaryList", arrayJobId=array, jobStatus=status)
        return {int(job["jobId"].rpartition(":")[2]): job for job in listed}

    def _state(self, job: Mapping[str, Any]) -> State:
        queue = None
        if job["status"] in ("RUNNABLE", "FAILED") and job.get("jobQueue"):
            with contextlib.suppress(BackendError, RequestRefused, NotNow):
                queue = self.queue(job["jobQueue"], fresh=FRESH if job["status"] == "RUNNABLE" else None)
        if job["status"] == "FAILED" and job.get("nodeProperties", {}).get("numNodes"):
            main = self._described([f"{job['jobId']}#0"])  # what became of its container only node 0 says
            job = {
                **job,
                **{key: said for one in main.values() for key, said in one.items() if key == "container"},
            }
        why = None
        if queue is not None and job["status"] == "RUNNABLE":
            why = self._why(job["jobId"], queue)
        return state_of(job, interruptible=queue is not None and queue.interruptible, why=why)

    def _why(self, id: str, queue: Queue) -> str:
        """What a job waits for that is RUNNABLE, and whose own statusReason says nothing."""
        troubles = [e.trouble for e in queue.environments if not e.works]
        if troubles and len(troubles) == len(queue.environments):
            return "; ".join(troubles)
        place = self._line(queue).get(id.partition(":")[0])
        if place is None:
            return f"it waits for its turn in {queue}"
        if place:
            ahead = "1 job is" if place == 1 else f"{place} jobs are"
            return f"{ahead} before it in {queue}"
        full = [e for e in queue.environments if e.works and e.is_full]
        if full:
            all_of_them = (
                f"compute environment {full[0].name} has all of its {full[0].most_vcpus} vCPUs at work"
            )
            return f"it is the first in {queue}, and {all_of_them}"
        return f"it is the first in {queue}, and an instance is being looked for"

    def _line(self, queue: Queue) -> dict[str, int]:
        """The places of jobs at the front of a queue, as far as we may know."""
        looked, places = self._lines.get(queue.arn, (0.0, {}))
        if time.monotonic() - looked < FRESH and looked:
            return places
        places = {}
        with contextlib.suppress(BackendError, NotNow):
            front = self.api.call("get_job_queue_snapshot", jobQueue=queue.name).get("frontOfQueue", {})
            arns = [one["jobArn"] for one in front.get("jobs", ())]
            places = {
                arn.rpartition("/")[2].partition(":")[0]: n for n, arn in reversed(list(enumerate(arns)))
            }
        self._lines[queue.arn] = (time.monotonic(), places)
        return places

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """The newest job of each name, in the queues that we know first, and then in all."""
        wanted = {job_name(name): name for name in names}
        found: dict[str, str] = {}
        try:
            seen = list(dict.fromkeys(queue.name for _, queue in self._queues.values()))
            for place in self._all_queues(seen):
                for name in wanted.keys() - found.keys():
                    filters = [{"name": "JOB_NAME", "values": [name]}]
                    answer = self.api.call("list_jobs", jobQueue=place, filters=filters)
                    jobs = [job for job in answer["jobSummaryList"] if job["jobName"] == name]
                    if jobs:
                        found[name] = str(max(jobs, key=lambda job: job.get("createdAt", 0))["jobId"])
                if len(found) == len(wanted):
                    break
        except BackendError as error:
            raise NotNow(error.in_short) from None
        return {wanted[name]: id for name, id in found.items()}

    def _all_queues(self, first: list[str]) -> Iterator[str]:
        yield from first
        for queue in self.api.pages("describe_job_queues", "jobQueues"):
            if queue["jobQueueName"] not in first:
                yield queue["jobQueueName"]

    # -- stopping ----------------------------------------------------------------------------------

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """What waits is cancelled; what runs has word in the store unless it is to be killed."""
        try:
            for id, job in self._described(map(_their, ids)).items():
                if kill and job["status"] not in ("SUCCEEDED", "FAILED"):
                    self._end("terminate_job", id)
                elif job["status"] in WAITING:
                    self._end("cancel_job", id)
        except BackendError as error:
            raise NotNow(error.in_short) from None

    def withdraw(self, ids: Collection[str]) -> None:
        """One by one: AWS Batch cancels an array only as a whole."""
        for id in ids:
            self._end("terminate_job", _their(id))

    def _end(self, operation: str, id: str) -> None:
        with contextlib.suppress(Refused):  # it has ended
            self.api.call(operation, jobId=id, reason=BY_US)

    def words(self, id: str) -> str | None:
        """The last lines that its container has printed, as CloudWatch has them."""
        try:
            jobs = self._described([_their(id)])
            container = next((job.get("container") or {} for job in jobs.values()), {})
            logs = container.get("logConfiguration") or {}
            stream = container.get("logStreamName")
            if not stream or logs.get("logDriver", "awslogs") != "awslogs":
                return None
            group = logs.get("options", {}).get("awslogs-group", LOGS)
            answer = self.api.call(
                "get_log_events", service="logs", logGroupName=group, logStreamName=stream, limit=20
            )
        except BackendError:
            return None
        lines = [event["message"].strip() for event in answer.get("events", ()) if event["message"].strip()]
        return "it printed: " + " / ".join(lines[-_WORDS:]) if lines else None


def _their(id: str) -> str:
    """The id of an element as AWS writes it."""
    return id.replace("_", ":")


def _containers(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "containerProperties" in definition:
        yield definition["containerProperties"]
    for one in definition.get("nodeProperties", {}).get("nodeRangeProperties", ()):
        yield one["container"]


def _overrides(submission: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "containerOverrides" in submission:
        yield submission["containerOverrides"]
    for one in submission.get("nodeOverrides", {}).get("nodePropertyOverrides", ()):
        yield one["containerOverrides"]


def _refuse_long(request: Mapping[str, Any], most: int, what: str, unit: str) -> None:
    size = len(json.dumps(request))
    if size > most:
        raise BackendError(
            f"{what} has {size:,} {unit}, and AWS Batch takes {most:,}",
            fix="Pass less on the command line, in tags or in log options; large values belong in files.",
        )


def soon(ask: Callable[[], T]) -> T:
    """An answer, or why there is none now."""
    try:
        return ask()
    except NotNow as error:
        raise BackendError(str(error), fix="Try again in a moment: aws batch describe-job-queues") from None
