"""What goes over the network: of the whole node or container, since the kernel does not tell by process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator

from upshift.runtime.proc import read

COUNTERS = "/proc/self/net/dev"
DEVICES = "/sys/class/net"
FRESH = 1.0
"""Seconds for which a reading will do where a step starts."""


class Network:
    """Bytes received and sent so far, other than over loopback."""

    def __init__(self, counters: str = COUNTERS, devices: str = DEVICES) -> None:
        self._counters = counters
        self._devices = devices
        self._read_at = float("-inf")
        self._latest: tuple[int, int] | None = None

    def counts(self, *, age: float = 0.0) -> tuple[int, int] | None:
        """Bytes received and sent; None: there is no network, or the kernel does not tell.

        Parameters
        ----------
        age
            Seconds that the reading may be old.
        """
        now = time.monotonic()
        if now - self._read_at > age:
            self._read_at = now
            self._latest = self._read()
        return self._latest

    def _read(self) -> tuple[int, int] | None:
        found = {name: counts for name, *counts in _interfaces(read(self._counters) or "")}
        chosen = self._counted(found)
        if not chosen:
            return None
        return sum(found[name][0] for name in chosen), sum(found[name][1] for name in chosen)

    def _counted(self, names: Collection[str]) -> list[str]:
        """Devices, and none that passes on to others (bridges, tunnels, bonds): that would count twice.

        A container has no device of its own; there it is everything but loopback.
        """
        real = [name for name in names if os.path.exists(f"{self._devices}/{name}/device")]
        return real or [name for name in names if name != "lo"]


def _interfaces(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, bytes received and sent of each interface: ``/proc/net/dev``, proc(5)."""
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        yield name.strip(), int(fields[0]), int(fields[8])
