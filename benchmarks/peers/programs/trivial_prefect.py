"""One trivial step."""

from prefect import flow, task


@task
def one() -> int:
    return 1


@flow
def trivial() -> int:
    return one()


if __name__ == "__main__":
    trivial()
