"""What AWS says: its APIs through boto3, the states of jobs, and the types of EC2's instances.

An error is one that refuses, or one to be tried again; a job has a state, and a reason to wait or to end.

Instance types are dated data, ``instances.csv``. Read in November 2026 from EC2's DescribeInstanceTypes, as
moto 5.2 has recorded it, and for ``p3`` from its page of EC2.
``UPDATE_TABLES=1 make test ARGS=tests/unit/backends/test_instance_types.py`` writes it again.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.backends.scheduler import NotNow, State
from upshift.errors import BackendError, ConfigError, MissingExtra
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.kinds import kind_named
from upshift.model.settings.sizes import format_size

TRIES = 6
"""How often botocore tries a call again by itself, with backoff, before it is ours to wait."""
SILENCE = 30.0
"""Seconds after which an answer is not waited for any more."""
_BUSY = frozenset(
    {
        *("TooManyRequestsException", "ThrottlingException", "Throttling", "ThrottledException"),
        *("RequestLimitExceeded", "RequestThrottled", "SlowDown", "ServiceUnavailable", "ServerException"),
        *("InternalFailure", "InternalError", "InternalServerError", "RequestTimeout"),
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_UNKNOWN = frozenset({"UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException"})
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized"})
_AGAIN = "Renew them, as with aws sso login: they are read again."
_SIGN_IN = (
    "Sign in as for AWS's own command: aws configure, aws sso login, or AWS_PROFILE. "
    "See: aws sts get-caller-identity"
)


class Refused(BackendError):
    """What AWS says to a call that it does not take."""

    def __init__(self, what: str, *, code: str = "", said: str = "", fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.code = code
        self.said = said


class Api:
    """Calls of an account in a region. Threads may share it."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        try:
            import boto3  # noqa: F401
        except ImportError:
            raise MissingExtra(
                "AWS Batch needs boto3, which is not installed", fix='pip install "upshift[aws]"'
            ) from None
        self._region = region or os.environ.get("AWS_REGION") or None
        self._profile = profile
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str:
        """Where it is."""
        return str(self._client("batch").meta.region_name)

    def call(self, operation: str, *, service: str = "batch", **arguments: Any) -> dict[str, Any]:
        """What an operation answers: ``call("submit_job", jobName=…)``.

        Raises
        ------
        Refused
            AWS does not take it.
        NotNow
            It may take it later, or has taken it and not said so.
        """
        from botocore import exceptions

        try:
            return dict(getattr(self._client(service), operation)(**arguments))
        except exceptions.ClientError as error:
            said = error.response.get("Error", {})
            raise self._refusal(operation, said.get("Code", ""), said.get("Message", str(error))) from None
        except exceptions.ParamValidationError as error:
            raise Refused(f"AWS would not take it: {error}") from None
        except (
            exceptions.SSOTokenLoadError,
            exceptions.UnauthorizedSSOTokenError,
            exceptions.TokenRetrievalError,
            exceptions.CredentialRetrievalError,
        ) as error:
            self._forget()
            raise NotNow(f"the credentials for AWS have expired: {error}. {_AGAIN}") from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise Refused("there are no credentials for AWS", said=str(error), fix=_SIGN_IN) from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
            raise NotNow(f"AWS does not answer: {error}") from None
        except exceptions.BotoCoreError as error:
            raise Refused(f"AWS cannot be asked: {error}", fix=_SIGN_IN) from None

    def pages(self, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """What an operation of AWS Batch lists, page by page."""
        token: str | None = None
        while True:
            answer = self.call(operation, **arguments, **({"nextToken": token} if token else {}))
            yield from answer.get(key, ())
            token = answer.get("nextToken")
            if not token:
                return

    def _refusal(self, operation: str, code: str, message: str) -> Exception:
        name = "".join(word.capitalize() for word in operation.split("_"))
        if code in _BUSY:
            return NotNow(f"AWS takes no more calls for now: {message}")
        if code in _EXPIRED:
            self._forget()
            return NotNow(f"the credentials for AWS have expired. {_AGAIN}")
        if code in _UNKNOWN:
            return Refused("AWS does not know the credentials", code=code, said=message, fix=_SIGN_IN)
        if code in _DENIED:
            return Refused(
                f"AWS does not allow it: {message}",
                code=code,
                said=message,
                fix=f"Have {name} allowed: the policy of who submits is in the page on AWS Batch.",
            )
        return Refused(f"AWS Batch refuses it: {message}", code=code, said=message)

    def _client(self, service: str) -> Any:
        import boto3
        from botocore import exceptions
        from botocore.config import Config

        with self._lock:
            if service not in self._clients:
                config = Config(
                    retries={"mode": "standard", "max_attempts": TRIES},
                    read_timeout=SILENCE,
                    connect_timeout=SILENCE,
                )
                try:
                    session = boto3.session.Session(profile_name=self._profile, region_name=self._region)
                    self._clients[service] = session.client(service, config=config)
                except exceptions.ProfileNotFound as error:
                    raise ConfigError(
                        str(error), fix="Name another one: profile of the target, or AWS_PROFILE."
                    ) from None
                except exceptions.NoRegionError:
                    raise ConfigError(
                        "the region of AWS Batch is not set",
                        fix='Set options = { region = "eu-west-1" } of the target, or AWS_REGION.',
                    ) from None
            return self._clients[service]

    def _forget(self) -> None:
        """Read credentials anew at the next call."""
        with self._lock:
            self._clients.clear()


WAITING = frozenset({"SUBMITTED", "PENDING", "RUNNABLE"})
BY_US = "cancelled by Upshift"
"""The reason that we give."""
_HOPELESS = re.compile(
    r"MISCONFIGURATION:(COMPUTE_ENVIRONMENT_MAX_RESOURCE|JOB_RESOURCE_REQUIREMENT"
    r"|EC2_INSTANCE_CONFIGURATION_UNSUPPORTED)"
)
"""Reasons of waiting that do not go away by themselves: AWS Batch, "Jobs stuck in a RUNNABLE status"."""
_STUCK = re.compile(r"(CAPACITY|MISCONFIGURATION|ACTION_REQUIRED|UNDETERMINED)\b")
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


def state_of(job: Mapping[str, Any], *, interruptible: bool, why: str | None = None) -> State:
    """A job as DescribeJobs or ListJobs has it; ``why`` it waits, where its queue says so.

    The instances of a queue with Spot ones are ``interruptible``.
    """
    status = job["status"]
    if status in WAITING:
        said = job.get("statusReason") or ""
        if _STUCK.match(said):
            return State(phase="pending", why=said, hopeless=bool(_HOPELESS.match(said)))
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
    reason, message = cause_of(job, interruptible=interruptible)
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


TABLE = Path(__file__).with_name("instances.csv")
MIB = 1 << 20
_BUNDLES = {
    "default_arm64": ("m6g", "c6g", "r6g", "c7g"),
    "default_x86_64": ("m6i", "c6i", "r6i", "c7i"),
    "optimal": ("m6i", "c6i", "r6i", "c7i", "c4", "m4", "r4", "c5", "m5", "r5"),
}
"""API_ComputeResource, ``instanceTypes``; ``optimal`` with what it was until November 2025."""
REGISTERED = 0.93
"""Of an instance's memory this much is there for jobs, or more: its kernel and the agent of ECS take the rest
(AWS Batch, "Compute resource memory management")."""


@attrs.frozen(kw_only=True)
class InstanceType:
    """A type of instance."""

    name: str
    vcpus: int
    memory: int  # MiB, of which jobs get a little less
    architecture: str  # "x86_64", "arm64"
    device: str | None = None  # the kind of its accelerators
    count: int = 0
    efa: int = 0  # network interfaces of type EFA, at most

    @property
    def vendor(self) -> str | None:
        """Whose accelerators it has."""
        return kind_named(self.device).vendor if self.device else None

    def has(self, wanted: Wanted) -> bool:
        """Whether it has these devices."""
        if wanted.count > self.count or self.device is None:
            return not wanted.count
        kind = kind_named(self.device)
        return wanted.admits(vendor=kind.vendor, model=kind.name, kind=kind.name, memory=kind.memory)

    def holds(self, *, vcpus: float = 0, memory: float = 0, efa: float = 0) -> bool:
        """Whether a job with so much, in MiB, may start on one."""
        return vcpus <= self.vcpus and memory < self.memory and efa <= self.efa

    def __str__(self) -> str:
        devices = f", {self.count} × {self.device}" if self.device else ""
        return f"{self.name} with {self.vcpus} vCPUs, {format_size(self.memory * MIB)} of memory{devices}"


@functools.cache
def table() -> Mapping[str, InstanceType]:
    """All that are known, by name."""
    with TABLE.open(newline="") as file:
        return {
            row["type"]: InstanceType(
                name=row["type"],
                vcpus=int(row["vcpus"]),
                memory=int(row["memory"]),
                architecture=row["architecture"],
                device=row["device"] or None,
                count=int(row["count"] or 0),
                efa=int(row["efa"] or 0),
            )
            for row in csv.DictReader(file)
        }


def types_of(names: Collection[str]) -> tuple[tuple[InstanceType, ...], tuple[str, ...]]:
    """The types that a compute environment may start, by what it names: types, families; and unknown ones."""
    found: dict[str, InstanceType] = {}
    unknown = []
    families: dict[str, list[InstanceType]] = {}
    for one in table().values():
        families.setdefault(one.name.partition(".")[0], []).append(one)
    for name in names:
        if name in table():
            found[name] = table()[name]
            continue
        members = [one for family in _BUNDLES.get(name, (name,)) for one in families.get(family, ())]
        found.update((one.name, one) for one in members if not one.name.endswith(".metal"))
        if not members:
            unknown.append(name)
    return tuple(sorted(found.values(), key=size)), tuple(unknown)


def size(one: InstanceType) -> tuple[int, int, int, str]:
    """The sort key from the smallest type to the largest."""
    return one.count, one.vcpus, one.memory, one.name
