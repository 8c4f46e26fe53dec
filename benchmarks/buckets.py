"""A large object to a bucket and back, beside boto3's own transfer manager."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import defaultdict

from benchmarks.harness import PROGRAMS, Effort, Report, Row, fresh_home, program

CLIENTS = ("ours", "boto3")
WAYS = {"up": "upload", "down": "download"}


def measure(effort: Effort) -> Report:
    """Seconds and CPU seconds of uploads and downloads, as multiples of boto3's."""
    size = (1 << 30) if not effort.quick else 64 << 20
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    with fresh_home() as home:
        source = home / "source"
        with open(source, "wb") as file:
            file.truncate(size)
        command = [sys.executable, str(PROGRAMS / "empty_bucket.py"), str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
                for _ in range(effort.rounds(5)):
                    for client in CLIENTS:
                        result = program(
                            "transfers", client, endpoint, str(source), str(home / "copy"), home=home
                        )
                        for way in WAYS:
                            found[client, way].append(result[way])
            finally:
                server.kill()
    rows = []
    for way, called in WAYS.items():
        (wall, cpu), (their_wall, their_cpu) = (
            [statistics.median(column) for column in zip(*found[client, way], strict=True)]
            for client in CLIENTS
        )
        rows += [
            Row(what=f"floor: {called}, boto3", value=their_wall, unit="s"),
            Row(what=f"{called}, times boto3's", value=wall / their_wall, unit="×", target=1.2),
            Row(what=f"CPU of an {called}" if way == "up" else f"CPU of a {called}", value=cpu, unit="s"),
            Row(what=f"CPU of the {called}, times boto3's", value=cpu / their_cpu, unit="×", target=1.2),
        ]
    return Report(
        title="Buckets",
        how=f"An object of {size >> 20:,} MiB to a server on loopback that keeps nothing, and back into a "
        "file, in turns with boto3's transfer manager. Without TLS both compute the SHA-256 that S3 wants "
        f"then, and a CRC-32. {effort.rounds(5)} rounds, medians; CPU is that of the client.",
        rows=rows,
    )
