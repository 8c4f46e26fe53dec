"""Every backend goes through the same suite. To add one, add its name, and to Ground.open how it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_kit import BACKENDS, LOCAL_BUCKET, RAY_BUCKET, SLURM_BUCKET, Ground, Watched
from means import (
    BatchMeans,
    ContainerMeans,
    FakeMeans,
    KubernetesMeans,
    LocalMeans,
    RayMeans,
    SkyPilotMeans,
    SlurmMeans,
)

from batch_here import BatchHere, batch_here
from buckets import KEYS, BucketHere
from containers import CONF, EngineWithImage, engine_with_image
from kubernetes_here import cluster
from ray_here import ray_here
from skypilot_here import sky_stand_in
from slurm_here import slurm_here

IN_CONTAINERS = ("docker", "podman")


@pytest.fixture(params=BACKENDS)
def ground(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    if request.param in ("slurm", SLURM_BUCKET):
        monkeypatch.setenv("SLURM_CONF", slurm_here().environment["SLURM_CONF"])
        monkeypatch.setenv("UPSHIFT_HOME", str(request.getfixturevalue("one_home")))
    if request.param == "ray":
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", ray_here().address)
        monkeypatch.setenv("UPSHIFT_HOME", str(request.getfixturevalue("one_home")))
    if request.param == "kubernetes":
        with cluster(request.getfixturevalue("home_of_pods")) as (folder, image, server):
            mounts, means = {str(folder): str(folder)}, KubernetesMeans(server)
            made = Ground("kubernetes", folder, image=image, mounts=mounts, means=means)
            yield made
            made.close()
        return
    if request.param == SLURM_BUCKET:
        bucket: BucketHere = request.getfixturevalue("bucket")
        monkeypatch.setenv("UPSHIFT_NODE_HOME", f"{request.getfixturevalue('one_home')}/$SLURMD_NODENAME")
        means = SlurmMeans(slurm_here())
        made = Ground("slurm", tmp_path, store=f"{bucket.address}/team", means=means)
        yield made
        made.close()
        return
    if request.param == "skypilot":
        store = request.getfixturevalue("bucket")
        monkeypatch.setenv("UPSHIFT_HOME", str(request.getfixturevalue("one_home")))
        with sky_stand_in(tmp_path, monkeypatch) as sky:
            there = {"UPSHIFT_NODE_HOME": str(request.getfixturevalue("home_of_pods"))}
            options = {"sky": str(sky.command), "envs": there}
            address, means = f"{store.address}/team", SkyPilotMeans(sky)
            made = Ground(request.param, tmp_path, options=options, store=address, means=means)
            yield made
            made.close()
        return
    if request.param == "aws-batch":
        here, in_docker = request.getfixturevalue("batch_with_image")
        for name, value in here.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UPSHIFT_HOME", str(request.getfixturevalue("one_home")))
        store = f"{here.bucket.address}/{tmp_path.name}"
        means = BatchMeans(in_docker, here)
        made = Ground(
            request.param, tmp_path, image=in_docker.image, options=here.options, store=store, means=means
        )
        yield made
        made.close()
        return
    if request.param == RAY_BUCKET:
        bucket = request.getfixturevalue("bucket")
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", ray_here().address)
        there = {**KEYS, "UPSHIFT_NODE_HOME": str(request.getfixturevalue("one_home"))}
        address = f"{bucket.address}/team"
        made = Ground("ray", tmp_path, options={"env_vars": there}, store=address, means=RayMeans())
        yield made
        made.close()
        return
    if request.param == LOCAL_BUCKET:
        bucket = request.getfixturevalue("bucket")
        made = Ground("local", tmp_path, store=f"{bucket.address}/team", means=LocalMeans())
        yield made
        made.close()
        return
    if request.param not in IN_CONTAINERS:
        means = {
            "fake": FakeMeans,
            "local": LocalMeans,
            "ray": RayMeans,
            "slurm": lambda: SlurmMeans(slurm_here()),
        }
        made = Ground(request.param, tmp_path, means=means[request.param]())
        yield made
        made.close()
        return
    engine: EngineWithImage = request.getfixturevalue(f"{request.param}_with_image")
    made = Ground(request.param, tmp_path, image=engine.image, means=ContainerMeans(engine))
    yield made
    made.close()
    assert engine.left() == []


@pytest.fixture(scope="session")
def one_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime is unpacked once for all jobs of a scheduler."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def batch_with_image() -> Iterator[tuple[BatchHere, EngineWithImage]]:
    """AWS Batch, and an image for its jobs, which have their credentials by it as from a role."""
    for engine in engine_with_image("docker", KEYS):
        with batch_here() as here:
            yield here, engine


@pytest.fixture
def watched(ground: Ground) -> Watched:
    return ground.open()


@pytest.fixture(scope="session")
def docker_with_image() -> Iterator[EngineWithImage]:
    yield from engine_with_image("docker")


@pytest.fixture(scope="session")
def podman_in_session() -> Iterator[EngineWithImage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(CONF))
        yield from engine_with_image("podman")


@pytest.fixture
def podman_with_image(podman_in_session: EngineWithImage, monkeypatch: pytest.MonkeyPatch) -> EngineWithImage:
    monkeypatch.setenv("CONTAINERS_CONF", str(CONF))
    return podman_in_session
