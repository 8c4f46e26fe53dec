"""What AWS Batch answers, and what that means: answers as its API reference documents them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import boto3
import pytest
from botocore import exceptions
from botocore.stub import ANY, Stubber
from test_batch_jobs import ROLE, SMALL, environment

from upshift.backends.base import Ask
from upshift.backends.batch.api import Api, cause_of
from upshift.backends.batch.backend import BatchBackend
from upshift.backends.batch.cluster import AwsBatch
from upshift.backends.batch.definition import request_of
from upshift.backends.scheduler import NotNow
from upshift.errors import BackendError, ConfigError, MissingExtra, RequestRefused
from upshift.model.configuration import Target

ARN = "arn:aws:batch:eu-west-1:123456789012"
INSTANCE = "arn:aws:ecs:eu-west-1:123456789012:container-instance/ml/0123abcd"


class Aws:
    """AWS, as far as a test says what it answers, in this order."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = Api("eu-west-1")
        self.batch = AwsBatch(self.api)
        self._stack = stack
        self._stubs: dict[str, Stubber] = {}
        monkeypatch.setattr(self.api, "_client", lambda service: self._stub(service).client)

    def _stub(self, service: str) -> Stubber:
        if service not in self._stubs:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
            stub = Stubber(boto3.client(service, region_name="eu-west-1", **keys))
            stub.activate()
            self._stubs[service] = stub
        return self._stubs[service]

    def answers(
        self,
        operation: str,
        answer: dict[str, Any],
        asked: dict[str, Any] | None = None,
        *,
        of: str = "batch",
    ) -> None:
        """The next call is of this operation, with these arguments, and is answered so."""
        self._stub(of).add_response(operation, answer, asked)

    def refuses(self, operation: str, code: str, message: str = "no", *, of: str = "batch") -> None:
        """The next call is of this operation, and is refused."""
        self._stub(of).add_client_error(operation, service_error_code=code, service_message=message)

    def has_queue(self, *environments: dict[str, Any], **more: Any) -> None:
        """It is asked for queue and compute environments."""
        order = [
            {"order": n, "computeEnvironment": one["computeEnvironmentArn"]}
            for n, one in enumerate(environments)
        ]
        queue = {
            "jobQueueName": "gpu",
            "jobQueueArn": f"{ARN}:job-queue/gpu",
            "state": "ENABLED",
            "status": "VALID",
            "priority": 1,
            "computeEnvironmentOrder": order,
            **more,
        }
        self.answers("describe_job_queues", {"jobQueues": [queue]})
        if environments:
            self.answers(
                "describe_compute_environments", {"computeEnvironments": [_whole(e) for e in environments]}
            )

    def done(self) -> None:
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()


def _whole(said: dict[str, Any]) -> dict[str, Any]:
    resources = {"subnets": ["subnet-1"], **said["computeResources"]}
    return {**said, "ecsClusterArn": "arn", "computeResources": resources}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    with ExitStack() as stack:
        made = Aws(stack, monkeypatch)
        yield made
        made.done()


def job(status: str, id: str = "j-1", **more: Any) -> dict[str, Any]:
    return {
        "jobId": id,
        "jobName": "train-0123456789ab",
        "jobQueue": f"{ARN}:job-queue/gpu",
        "status": status,
        "startedAt": 1700000000000,
        "jobDefinition": f"{ARN}:job-definition/upshift-ab:1",
        **more,
    }


@pytest.mark.parametrize(
    ("said", "phase", "node"),
    [
        ({"status": "SUBMITTED"}, "pending", None),
        ({"status": "PENDING"}, "pending", None),
        ({"status": "STARTING", "container": {"containerInstanceArn": INSTANCE}}, "pending", "0123abcd"),
        ({"status": "RUNNING", "container": {"containerInstanceArn": INSTANCE}}, "running", "0123abcd"),
        ({"status": "SUCCEEDED", "container": {"exitCode": 0}}, "ended", None),
    ],
)
def test_a_job_is_in_one_of_three_phases(
    aws: Aws, said: dict[str, Any], phase: str, node: str | None
) -> None:
    aws.answers("describe_jobs", {"jobs": [job(said.pop("status"), **said)]}, {"jobs": ["j-1"]})
    state = aws.batch.states(["j-1"])["j-1"]
    assert (state.phase, state.node, state.why, state.reason) == (phase, node, None, None)


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        ({"statusReason": "Host EC2 (instance i-0abc) terminated."}, "preempted", ["taken back", "i-0abc"]),
        ({"statusReason": "Your Spot Task was interrupted."}, "preempted", ["Spot"]),
        (
            {
                "container": {
                    "reason": "OutOfMemoryError: Container killed due to memory usage",
                    "exitCode": 137,
                }
            },
            "out-of-memory",
            ["beyond its memory"],
        ),
        ({"statusReason": "Job attempt duration exceeded timeout"}, "timeout", ["time limit"]),
        (
            {"statusReason": "no longer needed", "isTerminated": True},
            "cancelled",
            ["somebody", "no longer needed"],
        ),
        ({"statusReason": "cancelled by Upshift"}, "cancelled", ["cancelled"]),
        (
            {"container": {"reason": "CannotPullContainerError: manifest unknown"}},
            "infrastructure",
            ["image cannot be pulled", "manifest unknown", "execution role"],
        ),
        (
            {"statusReason": "ResourceInitializationError: unable to pull secrets or registry auth"},
            "infrastructure",
            ["secrets", "execution role"],
        ),
        (
            {"statusReason": "ECS was unable to assume the role 'arn:aws:iam::1:role/other' of this task."},
            "infrastructure",
            ["its role cannot be taken", "ecs-tasks.amazonaws.com", "role/other"],
        ),
        (
            {"container": {"reason": "CannotInspectContainerError: timeout", "exitCode": 1}},
            "infrastructure",
            ["lost sight"],
        ),
        ({"container": {"exitCode": 137}}, "infrastructure", ["137", "gives no reason"]),
        (
            {"container": {"exitCode": 2}, "statusReason": "Essential container in task exited"},
            "infrastructure",
            ["exit code 2"],
        ),
        (
            {"attempts": [{"container": {"reason": "OutOfMemoryError", "exitCode": 137}}]},
            "out-of-memory",
            ["memory"],
        ),
        ({"statusReason": "Task failed to start"}, "infrastructure", ["Task failed to start"]),
    ],
)
def test_why_a_job_has_failed_is_said_by_its_cause(
    said: dict[str, Any], reason: str, words: list[str]
) -> None:
    cause, message = cause_of(job("FAILED", **said), interruptible=True)
    assert cause == reason
    for word in words:
        assert word in message


def test_an_instance_that_nobody_took_back_was_lost() -> None:
    said = job("FAILED", statusReason="Host EC2 (instance i-0abc) terminated.")
    assert cause_of(said, interruptible=False)[0] == "infrastructure"


@pytest.mark.parametrize(
    ("said", "hopeless"),
    [
        ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - more vCPUs than any instance has", True),
        ("MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - CE max", True),
        ("MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS - no role", False),
        ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - p5.48xlarge", False),
    ],
)
def test_what_stands_at_the_head_of_a_queue_says_itself_why(aws: Aws, said: str, hopeless: bool) -> None:
    aws.answers("describe_jobs", {"jobs": [job("RUNNABLE", statusReason=said)]})
    aws.has_queue(environment("ce", "p5.48xlarge"))
    aws.answers("get_job_queue_snapshot", {"frontOfQueue": {"jobs": []}})
    state = aws.batch.states(["j-1"])["j-1"]
    assert (state.phase, state.why, state.hopeless) == ("pending", said, hopeless)


@pytest.mark.parametrize(
    ("environment_", "front", "words"),
    [
        ({}, ["j-9", "j-8", "j-1"], "2 jobs are before it in queue 'gpu'"),
        ({}, ["j-9", "j-1"], "1 job is before it"),
        ({}, ["j-1"], "it is the first in queue 'gpu', and an instance is being looked for"),
        ({}, ["j-7"], "it waits for its turn in queue 'gpu'"),
        ({}, None, "it waits for its turn in queue 'gpu'"),
        ({"desired": 1024}, ["j-1"], "compute environment ce has all of its 1024 vCPUs at work"),
        ({"state": "DISABLED"}, None, "compute environment ce is disabled"),
        ({"status": "INVALID", "reason": "CLIENT_ERROR - role"}, None, "ce is INVALID: CLIENT_ERROR - role"),
    ],
)
def test_what_waits_further_back_is_explained_by_its_queue(
    aws: Aws, environment_: dict[str, Any], front: list[str] | None, words: str
) -> None:
    desired = environment_.pop("desired", 0)
    made = environment("ce", "p5.48xlarge", **environment_)
    made["computeResources"]["desiredvCpus"] = desired
    aws.answers("describe_jobs", {"jobs": [job("RUNNABLE")]})
    aws.has_queue(made)
    if not environment_:
        jobs = [{"jobArn": f"{ARN}:job/{id}", "earliestTimeAtPosition": 1} for id in front or ()]
        if front is None:
            aws.refuses("get_job_queue_snapshot", "AccessDeniedException")
        else:
            aws.answers("get_job_queue_snapshot", {"frontOfQueue": {"jobs": jobs}})
    assert words in str(aws.batch.states(["j-1"])["j-1"].why)


def test_jobs_are_described_by_the_hundred_and_what_was_just_submitted_is_not_lost(aws: Aws) -> None:
    ids = [f"j-{number}" for number in range(101)]
    aws.answers("describe_jobs", {"jobs": [job("PENDING", id) for id in ids[:100]]}, {"jobs": ids[:100]})
    aws.answers("describe_jobs", {"jobs": []}, {"jobs": ids[100:]})
    assert set(aws.batch.states(ids)) == set(ids[:100])
    aws.answers("describe_job_definitions", {"jobDefinitions": []})
    aws.answers("register_job_definition", _registered(1))
    aws.answers("submit_job", {"jobId": "j-new", "jobName": "x"})
    id = aws.batch.submit(aws.batch.render(SMALL), {})
    aws.answers("describe_jobs", {"jobs": []})
    assert aws.batch.states([id])[id].phase == "pending"


def _registered(revision: int) -> dict[str, Any]:
    name = request_of(SMALL)["RegisterJobDefinition"]["jobDefinitionName"]
    arn = f"{ARN}:job-definition/{name}:{revision}"
    return {"jobDefinitionName": name, "jobDefinitionArn": arn, "revision": revision}


def test_a_definition_is_registered_once_and_reused_by_its_content(aws: Aws) -> None:
    known = {**_registered(3), "type": "container", "status": "ACTIVE"}
    aws.answers("describe_job_definitions", {"jobDefinitions": [{**known, **_registered(2)}, known]})
    for number in range(2):
        asked = {
            "jobName": SMALL.name,
            "jobQueue": "cpu",
            "jobDefinition": _registered(3)["jobDefinitionArn"],
            **dict.fromkeys(("retryStrategy", "propagateTags", "tags"), ANY),
            "containerOverrides": {
                "resourceRequirements": ANY,
                "environment": [
                    {"name": "AWS_REGION", "value": "eu-west-1"},
                    {"name": "UPSHIFT_ORDER", "value": "{}"},
                    {"name": "UPSHIFT_RUNTIME", "value": SMALL.command[-2]},
                    {"name": "UPSHIFT_SPEC", "value": SMALL.command[-1]},
                ],
            },
        }
        aws.answers("submit_job", {"jobId": f"j-{number}", "jobName": SMALL.name}, asked)
        assert aws.batch.submit(aws.batch.render(SMALL), {"UPSHIFT_ORDER": "{}"}) == f"j-{number}"


def test_a_definition_that_somebody_deregistered_is_registered_again(aws: Aws) -> None:
    active = {**_registered(1), "type": "container", "status": "ACTIVE"}
    aws.answers("describe_job_definitions", {"jobDefinitions": [active]})
    aws.refuses("submit_job", "ClientException", "JobDefinition is not ACTIVE")
    aws.answers("describe_job_definitions", {"jobDefinitions": [{**active, "status": "INACTIVE"}]})
    aws.answers("describe_job_definitions", {"jobDefinitions": []})
    aws.answers("register_job_definition", _registered(2))
    aws.answers("submit_job", {"jobId": "j-2", "jobName": SMALL.name})
    assert aws.batch.submit(aws.batch.render(SMALL), {}) == "j-2"


def test_what_is_too_long_for_batch_is_refused_before_it_is_sent(aws: Aws) -> None:
    with pytest.raises(BackendError, match=r"overrides a definition has 9,\d+ characters.*8,192"):
        aws.batch.submit(aws.batch.render(SMALL), {"UPSHIFT_ORDER": "x" * 9000})


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("TooManyRequestsException", NotNow, ["takes no more calls for now"]),
        ("ThrottlingException", NotNow, ["takes no more calls for now"]),
        ("ServerException", NotNow, ["for now"]),
        ("ExpiredTokenException", NotNow, ["credentials for AWS have expired", "aws sso login"]),
        (
            "UnrecognizedClientException",
            BackendError,
            ["does not know the credentials", "get-caller-identity"],
        ),
        ("AccessDeniedException", BackendError, ["does not allow it", "Have SubmitJob allowed"]),
        ("ClientException", BackendError, ["AWS Batch refuses it: no"]),
    ],
)
def test_what_may_be_different_soon_is_told_from_a_refusal(
    aws: Aws, code: str, error: type[Exception], words: list[str]
) -> None:
    aws.answers(
        "describe_job_definitions", {"jobDefinitions": [{**_registered(1), "type": "c", "status": "ACTIVE"}]}
    )
    aws.refuses("submit_job", code)
    if code == "ClientException":
        active = {**_registered(1), "type": "c", "status": "ACTIVE"}
        aws.answers("describe_job_definitions", {"jobDefinitions": [active]})
    with pytest.raises(error) as caught:
        aws.batch.submit(aws.batch.render(SMALL), {})
    for word in words:
        assert word in str(caught.value)


def test_credentials_that_expire_under_way_are_read_again_and_the_jobs_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, made = Api("eu-west-1"), []

    class Session:
        def __init__(self, **said: Any) -> None:
            made.append(said)

        def client(self, service: str, **more: Any) -> Any:
            client = boto3.client(
                service, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
            )
            stub = Stubber(client)
            if len(made) == 1:
                stub.add_client_error("describe_jobs", service_error_code="ExpiredTokenException")
            else:
                stub.add_response("describe_jobs", {"jobs": [job("RUNNING")]})
            stub.activate()
            return client

    monkeypatch.setattr(boto3.session, "Session", Session)
    batch = AwsBatch(api)
    with pytest.raises(NotNow, match="have expired"):
        batch.states(["j-1"])
    assert batch.states(["j-1"])["j-1"].phase == "running"
    assert made == [{"profile_name": None, "region_name": "eu-west-1"}] * 2


def test_no_such_queue_is_said_with_the_nearest_name(aws: Aws) -> None:
    aws.answers("describe_job_queues", {"jobQueues": []}, {"jobQueues": ["gppu"]})
    listed = {
        "jobQueueName": "gpu",
        "jobQueueArn": "a",
        "state": "ENABLED",
        "priority": 1,
        "computeEnvironmentOrder": [],
    }
    aws.answers("describe_job_queues", {"jobQueues": [listed]})
    with pytest.raises(RequestRefused) as refused:
        aws.batch.offer(Ask(), {"queue": "gppu"})
    assert "no job queue 'gppu' in eu-west-1" in str(refused.value) and "gpu" in str(refused.value.fix)
    with pytest.raises(RequestRefused, match="no job queue"):
        aws.batch.offer(Ask(), {})


def test_a_throttled_look_at_the_queue_is_refused_in_words(aws: Aws) -> None:
    aws.refuses("describe_job_queues", "TooManyRequestsException", "Too Many Requests")
    with pytest.raises(BackendError, match="takes no more calls for now: Too Many Requests"):
        aws.batch.offer(Ask(), {"queue": "gpu"})


def test_elements_of_large_arrays_are_listed_only_where_their_numbers_change(aws: Aws) -> None:
    numbers = range(1000)
    ids = [f"a_{number}" for number in numbers]
    summary = {"RUNNABLE": 996, "RUNNING": 2, "FAILED": 1, "SUCCEEDED": 1, "STARTING": 0}
    array = job("PENDING", "a", arrayProperties={"statusSummary": summary, "size": 1000})

    def listed(status: str, *found: int, **more: Any) -> dict[str, Any]:
        jobs = [
            {"jobId": f"a:{n}", "jobName": "x", "status": status, "arrayProperties": {"index": n}, **more}
            for n in found
        ]
        return {"jobSummaryList": jobs}

    aws.answers("describe_jobs", {"jobs": [array]}, {"jobs": ["a"]})
    aws.answers("list_jobs", listed("RUNNING", 3, 4), {"arrayJobId": "a", "jobStatus": "RUNNING"})
    aws.answers("list_jobs", listed("FAILED", 5, statusReason="Host EC2 (instance i-1) terminated."))
    aws.answers("list_jobs", listed("SUCCEEDED", 6), {"arrayJobId": "a", "jobStatus": "SUCCEEDED"})
    waiting = listed("RUNNABLE", 7, statusReason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - p5")
    aws.answers("list_jobs", waiting)
    aws.has_queue(environment("ce", "p5.48xlarge", kind="SPOT"))
    aws.answers("get_job_queue_snapshot", {"frontOfQueue": {"jobs": []}})
    found = aws.batch.states(ids)
    assert len(found) == 1000
    assert [found[f"a_{n}"].phase for n in (0, 3, 5, 6)] == ["pending", "running", "ended", "ended"]
    assert found["a_5"].reason == "preempted" and str(found["a_999"].why).startswith("CAPACITY")
    aws.answers("describe_jobs", {"jobs": [array]})
    aws.answers("list_jobs", waiting)
    assert aws.batch.states(ids) == found


def test_the_cause_of_a_job_of_several_nodes_is_that_of_its_main_node(aws: Aws) -> None:
    several = job("FAILED", nodeProperties={"numNodes": 2, "mainNode": 0, "nodeRangeProperties": []})
    aws.answers("describe_jobs", {"jobs": [several]})
    aws.has_queue(environment("ce", "p5.48xlarge"))
    main = job("FAILED", "j-1#0", container={"reason": "OutOfMemoryError", "exitCode": 137})
    aws.answers("describe_jobs", {"jobs": [main]}, {"jobs": ["j-1#0"]})
    assert aws.batch.states(["j-1"])["j-1"].reason == "out-of-memory"


def test_a_job_is_found_by_its_name_in_whatever_queue_it_is(aws: Aws) -> None:
    queues = [
        {
            "jobQueueName": name,
            "jobQueueArn": name,
            "state": "ENABLED",
            "priority": 1,
            "computeEnvironmentOrder": [],
        }
        for name in ("cpu", "gpu")
    ]
    aws.answers("describe_job_queues", {"jobQueues": queues})
    filters = [{"name": "JOB_NAME", "values": ["a-b-0123456789ab"]}]
    aws.answers("list_jobs", {"jobSummaryList": []}, {"jobQueue": "cpu", "filters": filters})
    jobs = [
        {"jobId": "old", "jobName": "a-b-0123456789ab", "createdAt": 1},
        {"jobId": "new", "jobName": "a-b-0123456789ab", "createdAt": 2},
    ]
    aws.answers("list_jobs", {"jobSummaryList": jobs}, {"jobQueue": "gpu", "filters": filters})
    assert aws.batch.find(["a.b-0123456789ab"]) == {"a.b-0123456789ab": "new"}


def test_what_waits_is_cancelled_and_what_runs_is_terminated_only_to_kill_it(aws: Aws) -> None:
    jobs = [job("RUNNABLE", "w"), job("RUNNING", "r"), job("SUCCEEDED", "s")]
    aws.answers("describe_jobs", {"jobs": jobs})
    aws.answers("cancel_job", {}, {"jobId": "w", "reason": ANY})
    aws.batch.stop(["w", "r", "s"], grace=True)
    aws.answers("describe_jobs", {"jobs": jobs})
    aws.answers("terminate_job", {}, {"jobId": "w", "reason": ANY})
    aws.refuses("terminate_job", "ClientException", "it has ended")
    aws.batch.stop(["w", "r", "s"], grace=False, kill=True)
    aws.answers("terminate_job", {}, {"jobId": "a:7", "reason": ANY})
    aws.batch.withdraw(["a_7"])


def test_words_are_the_last_lines_in_cloudwatch(aws: Aws) -> None:
    logs = {"logDriver": "awslogs", "options": {"awslogs-group": "/ml"}}
    container = {"logStreamName": "x/default/1", "logConfiguration": logs}
    aws.answers("describe_jobs", {"jobs": [job("FAILED", container=container)]})
    events = [{"message": text, "timestamp": 1} for text in ("a\n", " ", "b", "c", "upshift: no credentials")]
    asked = {"logGroupName": "/ml", "logStreamName": "x/default/1", "limit": 20}
    aws.answers("get_log_events", {"events": events}, asked, of="logs")
    assert aws.batch.words("j-1") == "it printed: b / c / upshift: no credentials"
    aws.answers("describe_jobs", {"jobs": [job("FAILED", container=container)]})
    aws.refuses("get_log_events", "ResourceNotFoundException", of="logs")
    assert aws.batch.words("j-1") is None


def test_doctor_says_who_asks_and_what_is_wrong_with_roles(aws: Aws) -> None:
    identity = {"Arn": "arn:aws:iam::123456789012:user/ann", "Account": "123456789012", "UserId": "x"}
    aws.answers("get_caller_identity", identity, of="sts")
    aws.has_queue(environment("ce", "p5.48xlarge"))
    role = {
        "Path": "/",
        "RoleName": "steps",
        "RoleId": "AROAEXAMPLEEXAMPLE",
        "Arn": ROLE,
        "CreateDate": 1,
        "AssumeRolePolicyDocument": json.dumps({"Principal": {"Service": "ec2.amazonaws.com"}}),
    }
    aws.answers("get_role", {"Role": role}, {"RoleName": "steps"}, of="iam")
    aws.refuses("get_role", "NoSuchEntity", of="iam")
    for count in (2, 100):
        jobs = [{"jobId": str(n), "jobName": "x"} for n in range(count)]
        aws.answers("list_jobs", {"jobSummaryList": jobs})
    said = {"queue": "gpu", "iam_role": ROLE, "execution_role": ROLE.replace("steps", "gone")}
    told = {f"{one.name} {one.text}": one for one in aws.batch.findings(said)}
    assert "access arn:aws:iam::123456789012:user/ann in eu-west-1" in told
    assert told["role iam_role steps does not trust ecs-tasks.amazonaws.com"].status == "problem"
    assert told["role execution_role gone is not there"].status == "problem"
    assert "jobs 2 running, 100 or more waiting, of all users" in told


@contextmanager
def raising(error: Exception, monkeypatch: pytest.MonkeyPatch, api: Api) -> Iterator[None]:
    class Client:
        def describe_jobs(self, **asked: Any) -> Any:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(api, "_client", lambda service: Client())
        yield


def test_no_credentials_or_no_network_are_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api("eu-west-1")
    with raising(exceptions.NoCredentialsError(), monkeypatch, api), pytest.raises(BackendError) as refused:
        api.call("describe_jobs", jobs=["j"])
    assert "no credentials for AWS" in str(refused.value) and "aws sso login" in str(refused.value)
    unreachable = exceptions.EndpointConnectionError(endpoint_url="https://batch")
    with raising(unreachable, monkeypatch, api), pytest.raises(NotNow, match="AWS does not answer"):
        api.call("describe_jobs", jobs=["j"])


def test_a_target_needs_a_bucket_and_options_that_are_known() -> None:
    def opened(store: str = "s3://ml/store", **options: Any) -> BatchBackend:
        return BatchBackend(Target(name="t", backend="aws-batch", options=options), store=store, sink=print)

    assert opened(queue="gpu", region="eu-west-1").capabilities.buckets
    with pytest.raises(ConfigError, match="its store is /shared") as refused:
        opened("/shared")
    assert "s3://BUCKET/PREFIX" in str(refused.value)
    with pytest.raises(ConfigError, match="no option 'quue'"):
        opened(quue="gpu")
    with pytest.raises(ConfigError, match="profile = 5 is invalid"):
        opened(profile=5)
    with pytest.raises(ConfigError, match="iam_role='x' is invalid"):
        opened(iam_role="x")


def test_without_boto3_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(MissingExtra, match="boto3") as missing:
        Api()
    assert 'pip install "upshift[aws]"' in str(missing.value)
