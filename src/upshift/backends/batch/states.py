"""How a job of AWS Batch is, and why it waits or has ended, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from upshift.backends.batch.queues import Queue
from upshift.backends.scheduler import State

WAITING = frozenset({"SUBMITTED", "PENDING", "RUNNABLE"})
BY_US = "cancelled by Upshift"
"""The reason that we give."""
HOPELESS = re.compile(
    r"MISCONFIGURATION:(COMPUTE_ENVIRONMENT_MAX_RESOURCE|JOB_RESOURCE_REQUIREMENT"
    r"|EC2_INSTANCE_CONFIGURATION_UNSUPPORTED)"
)
"""Reasons of waiting that do not go away by themselves: AWS Batch, "Jobs stuck in a RUNNABLE status"."""
STUCK = re.compile(r"(CAPACITY|MISCONFIGURATION|ACTION_REQUIRED|UNDETERMINED)\b")
_LOST = re.compile(r"Host EC2 .*terminated")
_INTERRUPTED = re.compile(r"(?i)spot\W*(task|instance)?\W*(was )?interrupt|SpotInterruption")
_MEMORY = re.compile(r"OutOfMemory")
_TIME = re.compile(r"(?i)attempt duration exceeded timeout|attemptDurationSeconds")
_HINTS = (
    (
        re.compile(r"CannotPull"),
        "the image cannot be pulled: see that it is there, and that the execution role, or the role of the "
        "instances, may read it",
    ),
    (
        re.compile(r"ResourceInitializationError"),
        "what it needs at its start cannot be had: see that the execution role may read its secrets and "
        "write logs, and that its subnet leads to them",
    ),
    (
        re.compile(r"(?i)unable to assume|assume.*role"),
        "its role cannot be taken: ecs-tasks.amazonaws.com has to be trusted by it",
    ),
    (re.compile(r"CannotInspectContainer|DockerTimeout"), "the agent of ECS lost sight of its container"),
    (
        re.compile(r"(?i)no such device|error gathering device"),
        "its instance lacks a device that it was given",
    ),
)
_KILLED = 137


def state_of(job: Mapping[str, Any], queue: Queue | None, why: str | None = None) -> State:
    """A job as DescribeJobs or ListJobs has it; ``why`` it waits, where its queue says so."""
    status = job["status"]
    if status in WAITING:
        said = job.get("statusReason") or ""
        if STUCK.match(said):
            return State(phase="pending", why=said, hopeless=bool(HOPELESS.match(said)))
        return State(phase="pending", why=why if status == "RUNNABLE" else None)
    container = job.get("container") or {}
    arn = container.get("containerInstanceArn") or container.get("taskArn") or ""
    node = arn.rpartition("/")[2] or None
    if status == "STARTING":
        return State(phase="pending", node=node)
    if status == "RUNNING":
        return State(phase="running", node=node)
    if status == "SUCCEEDED":
        return State(phase="ended", node=node)
    reason, message = cause_of(job, interruptible=queue is not None and queue.interruptible)
    return State(
        phase="ended", reason=reason, message=f"{message}, job {job['jobId']} of AWS Batch", node=node
    )


def cause_of(job: Mapping[str, Any], *, interruptible: bool) -> tuple[str, str]:
    """Why a job has failed: what AWS calls ``statusReason``, and its container's ``reason`` and exit code."""
    container = job.get("container") or {}
    attempt = (job.get("attempts") or [{}])[-1]
    inner = container.get("reason") or (attempt.get("container") or {}).get("reason") or ""
    outer = job.get("statusReason") or attempt.get("statusReason") or ""
    code = container.get("exitCode", (attempt.get("container") or {}).get("exitCode"))
    said = "; ".join(dict.fromkeys(filter(None, (inner, outer))))
    if job.get("isCancelled") or job.get("isTerminated") or BY_US in outer:
        return "cancelled", "somebody cancelled the job" + (
            f": {outer}" if outer and BY_US not in outer else ""
        )
    if _INTERRUPTED.search(said) or (_LOST.search(said) and interruptible):
        return "preempted", f"its Spot instance was taken back: {said}"
    if _LOST.search(said):
        return "infrastructure", f"its instance was lost: {said}"
    if _MEMORY.search(said):
        return "out-of-memory", f"the job went beyond its memory: {said}"
    if _TIME.search(said):
        return "timeout", f"the job reached its time limit: {said}"
    for pattern, hint in _HINTS:
        if pattern.search(said):
            return "infrastructure", f"{hint}. AWS reports: {said}"
    if code == _KILLED:
        return (
            "infrastructure",
            f"its container was killed (exit code {code}), and AWS gives no reason: {said}",
        )
    if code not in (None, 0):
        return "infrastructure", f"its supervisor ended with exit code {code}"
    return "infrastructure", said or "the job failed"
