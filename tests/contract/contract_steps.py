"""The steps that the contract's jobs run."""

from __future__ import annotations

import sys
import threading


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
