"""What a target of a scheduler may say, whichever it is."""

from __future__ import annotations

from typing import Any

import pytest

from upshift.backends.ray.backend import RayBackend
from upshift.backends.slurm.backend import SlurmBackend
from upshift.errors import ConfigError
from upshift.model.configuration import Target

FOLDER = "/shared/store"


@pytest.mark.parametrize("backend", [RayBackend, SlurmBackend])
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"mounts": {"/data": "/data"}}, "target 'cluster': the {name} backend mounts nothing"),
        ({"options": {"nonsense": 1}}, "target 'cluster': backend '{name}' has no option 'nonsense'"),
    ],
)
def test_what_no_job_of_a_scheduler_can_use_is_refused(
    backend: Any, said: dict[str, Any], words: str
) -> None:
    target = Target(name="cluster", backend=backend.name, **said)
    with pytest.raises(ConfigError) as refused:
        backend(target, store=FOLDER, sink=lambda _: None)
    assert refused.value.what == words.format(name=backend.name)


@pytest.mark.parametrize(
    ("backend", "option", "words"),
    [
        (RayBackend, {"resources": 3}, "target 'cluster': resources=3 is invalid"),
        (SlurmBackend, {"exclusive": "yes"}, "target 'cluster': exclusive='yes' is invalid"),
    ],
)
def test_an_option_that_steps_could_set_is_checked_as_theirs_is(
    backend: Any, option: dict[str, Any], words: str
) -> None:
    target = Target(name="cluster", backend=backend.name, options=option)
    with pytest.raises(ConfigError) as refused:
        backend(target, store=FOLDER, sink=lambda _: None)
    assert refused.value.what.startswith(words)
