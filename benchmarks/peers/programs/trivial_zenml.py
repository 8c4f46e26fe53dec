"""One trivial step, run anew each time."""

from zenml import pipeline, step


@step
def one() -> int:
    return 1


@pipeline(enable_cache=False)
def trivial() -> None:
    one()


if __name__ == "__main__":
    trivial()
