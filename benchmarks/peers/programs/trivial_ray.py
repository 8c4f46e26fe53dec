"""One trivial task."""

import ray


@ray.remote
def one() -> int:
    return 1


if __name__ == "__main__":
    ray.init()
    assert ray.get(one.remote()) == 1
