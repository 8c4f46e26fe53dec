"""The steps that the contract's jobs run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def add(a: int, b: int) -> int:
    print("adding")
    print("on stderr", file=sys.stderr)
    return a + b


def pair() -> tuple[int, str]:
    return 1, "x"


def listed() -> list[int]:
    return [1, 2, 3]


def fail() -> None:
    raise ValueError("as it was told to")


def wait() -> None:
    threading.Event().wait()


def twice(n: int) -> int:
    return 2 * n


def say_supervisor() -> None:
    print(os.getppid(), flush=True)
    threading.Event().wait()


def say_and_wait() -> None:
    print("waiting", flush=True)
    threading.Event().wait()


def backwards(data: bytes) -> bytes:
    return data[::-1]


def say_secret() -> str:
    print("it is", os.environ["TOKEN"])
    return os.environ["TOKEN"]


def fill() -> None:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def until_there(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.05)


def in_turn(path: str, says: str, ends: str = "") -> str:
    print(says, flush=True)
    until_there(path)
    if ends == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return says
