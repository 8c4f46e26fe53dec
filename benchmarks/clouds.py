"""Kubernetes and AWS Batch: what the engine itself pays, beside an API server that is a script."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import attrs

from benchmarks.harness import Effort, Report, Row, clean_environment, fresh_home
from tests.kubernetes_scripted import Scripted
from tests.stand_in_registry import StandInRegistry
from upshift.backends.batch.definition import request_of
from upshift.backends.kubernetes.api import Api
from upshift.backends.kubernetes.cluster import Kubernetes
from upshift.backends.scheduler import Launch
from upshift.model.spec import Hardware

MANIFESTS, PODS = 10_000, 1_000
_STEPS = """
from upshift import pipeline, step

@step(cache=False)
def one(item: int) -> int:
    return item

@pipeline
def many():
    for number in range({pods}):
        one(number)
"""
_LAUNCH = Launch(
    name="train-0123456789ab",
    comment="upshift 20260101-000000-aaaa train[17] attempt 1",
    command=("python3", "-c", "x" * 8000, "s3://b/blobs/sha256/ab/cd", "s3://b/runs/1.1.spec.json"),
    granted=Hardware(cpu_count=4, memory=8 << 30, nodes=1),
    settings={"queue": "q", "iam_role": "arn:aws:iam::123456789012:role/step"},
    image="registry.example.org/ml@sha256:0123",
)


def measure(effort: Effort) -> Report:
    """CPU time of rendering, and memory of an engine whose steps are pods."""
    manifests, pods = effort.size(MANIFESTS), effort.size(PODS)
    memory, watches = _engine(pods)
    return Report(
        title="Kubernetes and AWS Batch",
        how=f"Manifests, and job definitions with their submissions: CPU time of rendering {manifests:,} "
        f"that differ in their name. Memory: of `upshift run` of {pods:,} steps, each of which is a pod of "
        "its own that has been created and is running, at its peak; the API server is a script in another "
        "process, and nothing runs in the pods.",
        rows=[
            Row(
                what=f"{manifests:,} manifests of Kubernetes", value=_manifests(manifests), unit="s", target=3
            ),
            Row(what=f"{manifests:,} jobs of AWS Batch", value=_jobs(manifests), unit="s", target=3),
            Row(what=f"engine with {pods:,} pods", value=memory, unit="MB", target=250),
            Row(what="watches that it has", value=watches, unit="", target=1),
        ],
    )


def _python() -> bytes:
    """The layer of an image that has a Python, as far as a look at it goes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as layer:
        python = tarfile.TarInfo("usr/local/bin/python3.11")
        python.mode = 0o755
        layer.addfile(python)
        link = tarfile.TarInfo("usr/local/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
        layer.addfile(link)
    return packed.getvalue()


def _manifests(count: int) -> float:
    cluster = Kubernetes(Api(), options={"namespace": "ml"})
    began = time.process_time()
    for number in range(count):
        cluster.render(attrs.evolve(_LAUNCH, name=f"train-{number:012x}", settings={}))
    return time.process_time() - began


def _jobs(count: int) -> float:
    began = time.process_time()
    for number in range(count):
        json.dumps(request_of(attrs.evolve(_LAUNCH, name=f"train-{number:012x}")))
    return time.process_time() - began


def _engine(pods: int) -> tuple[float, int]:
    """Megabytes that an engine has at its peak, and how many watches."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="upshift-bench-"))
        home = stack.enter_context(fresh_home())
        project = Path(folder)
        server = Scripted(project / "server", runs=False)
        registry = stack.enter_context(StandInRegistry())
        registry.add("base", "1", layers=(_python(),))
        (project / "many.py").write_text(_STEPS.format(pods=pods))
        (project / "upshift.toml").write_text(
            f'[targets.pods]\nbackend = "kubernetes"\nmounts = {{ "{home}" = "{home}" }}\n'
            f'options = {{ image = "{registry.name}/base:1", autoscaling = true }}\n'
        )
        engine = subprocess.Popen(
            [sys.executable, "-m", "upshift", "run", "many.py", "--on", "pods"],
            env={
                **clean_environment(),
                "UPSHIFT_HOME": str(home),
                "KUBECONFIG": str(server.kubeconfig),
            },
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            while len(server.all("pods")) < pods:
                if engine.poll() is not None:
                    assert engine.stderr is not None
                    raise RuntimeError(engine.stderr.read().decode())
                time.sleep(0.2)
            time.sleep(5)  # it hears of the last ones
            status = Path(f"/proc/{engine.pid}/status").read_text()
            (peak,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            return peak * 1024 / 1e6, server.watches
        finally:
            engine.kill()
            engine.wait()
            server.close()
