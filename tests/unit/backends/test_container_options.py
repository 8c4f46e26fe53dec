"""Options and mounts of targets whose steps run in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upshift.backends.docker.offers import OPTIONS, read_options, refuse_missing_mounts
from upshift.errors import ConfigError, NotFound
from upshift.model.configuration import Target, load_configuration


def target(mounts: dict[str, str] | None = None, **options: Any) -> Target:
    return Target(name="box", backend="docker", options=options, mounts=mounts or {})


def test_without_options_the_engine_is_the_backends_own() -> None:
    read = read_options(target(), "podman")
    assert (read.engine, read.image, read.network, read.gpus, read.arguments) == (
        *("podman", None, None, None),
        (),
    )


def test_what_is_said_counts() -> None:
    read = read_options(
        target(
            engine="podman",
            image="base:1",
            network="host",
            gpus="cdi",
            arguments=["--add-host", "db:10.0.0.7"],
            device_wait="5m",
            busy_devices="use",
        ),
        "docker",
    )
    assert (read.engine, read.image, read.network) == ("podman", "base:1", "host")
    assert (read.gpus, read.arguments) == ("cdi", ("--add-host", "db:10.0.0.7"))
    assert (read.wait, read.share) == (300.0, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"imgae": "x"}, ("no option 'imgae'", "image")),
        ({"engine": "dokcer"}, ("engine = 'dokcer' is invalid", "docker, podman")),
        ({"image": " "}, ("image = ' ' is invalid", "Write a string")),
        ({"image": 3}, ("image = 3 is invalid",)),
        ({"gpus": "all"}, ("gpus = 'all' is invalid", "runtime, cdi")),
        ({"arguments": "--add-host x"}, ("arguments = '--add-host x' is invalid", "a list of strings")),
        ({"device_wait": "soon"}, ("device_wait = 'soon' is invalid",)),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(target(**options), "docker")
    for word in ("target 'box'", *words):
        assert word in str(caught.value)


def test_every_option_is_in_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "containers.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert all(any(f"`{option}`" in row.split("|")[1] for row in rows) for option in OPTIONS)


def test_a_mount_has_to_be_there(tmp_path: Path) -> None:
    refuse_missing_mounts(target({"/data": str(tmp_path)}))
    with pytest.raises(ConfigError, match="/nowhere is not there"):
        refuse_missing_mounts(target({"/data": "/nowhere"}))
    for inside in ("data", "/data/../etc"):
        with pytest.raises(ConfigError, match="is not an absolute path"):
            refuse_missing_mounts(target({inside: str(tmp_path)}))


def test_docker_and_podman_need_no_configuration(tmp_path: Path) -> None:
    configuration = load_configuration(tmp_path, {})
    for name in ("docker", "podman", "local"):
        found = configuration.target(name)
        assert (found.name, found.backend, dict(found.options)) == (name, name, {})
    with pytest.raises(NotFound, match="no target is named 'dokcer'"):
        configuration.target("dokcer")
