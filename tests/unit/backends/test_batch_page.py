"""The Terraform file of the page on AWS Batch: it is HCL, and allows what is called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hcl2
import pytest

from upshift.backends.batch import cluster

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "aws-batch.md"


@pytest.fixture(scope="module")
def terraform() -> dict[str, Any]:
    found = re.search(
        r'^```terraform title="main.tf"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    made: dict[str, Any] = hcl2.loads(found[1])
    return made


def test_it_makes_what_the_page_says(terraform: dict[str, Any]) -> None:
    made = {kind.strip('"') for one in terraform["resource"] for kind in one}
    assert made >= {
        "aws_batch_compute_environment",
        "aws_batch_job_queue",
        "aws_ecr_repository",
        "aws_iam_role",
        "aws_s3_bucket",
    }


def test_who_submits_may_call_all_that_is_called(terraform: dict[str, Any]) -> None:
    source = Path(cluster.__file__).read_text()
    called = set(re.findall(r'(?:call|pages|_end)\(\s*"(\w+)"', source)) - {"get_caller_identity"}
    assert {"submit_job", "describe_jobs", "get_log_events", "get_role"} <= called
    text = str(terraform["data"])
    for operation in called:
        name = "".join(word.capitalize() for word in operation.split("_"))
        assert re.search(rf"(batch|logs|iam):{name}\b", text), name
