"""Upload and download an object: ``transfers.py ours|boto3 ENDPOINT FILE COPY``; seconds, CPU seconds."""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

client, endpoint, source, target = sys.argv[1:]
os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}


def ours() -> tuple[Callable[[], object], Callable[[], object]]:
    from upshift.runtime.storage.objects.s3 import Bucket, S3Objects

    objects = S3Objects(Bucket("bench", endpoint=endpoint))

    def upload() -> None:
        with (
            open(source, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            objects.upload("large", [view])

    return upload, lambda: objects.download("large", Path(target))


def theirs() -> tuple[Callable[[], object], Callable[[], object]]:
    import boto3

    s3 = boto3.client("s3", endpoint_url=endpoint)
    return (
        lambda: s3.upload_file(source, "bench", "large"),
        lambda: s3.download_file("bench", "large", target),
    )


def timed(work: Callable[[], object]) -> list[float]:
    def cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    start, before = time.perf_counter(), cpu()
    work()
    return [time.perf_counter() - start, cpu() - before]


upload, download = ours() if client == "ours" else theirs()
print(json.dumps({"up": timed(upload), "down": timed(download)}))
