"""One trivial step."""

from dagster import job, op


@op
def one() -> int:
    return 1


@job
def trivial():
    one()
