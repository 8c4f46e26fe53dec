"""A pipeline of one trivial step."""

from upshift import pipeline, step


@step
def one() -> int:
    return 1


@pipeline
def trivial() -> int:
    return one()
