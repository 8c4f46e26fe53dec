"""How many threads native pools have, by CPUs and by what their user has said."""

from __future__ import annotations

import pytest

from upshift.runtime.supervisor import forkable
from upshift.runtime.supervisor.forkable import VARIABLES, inherited, size_variables, users_own

OWN = {"OMP_NUM_THREADS": "7"}


@pytest.fixture(autouse=True)
def quieted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A process with quiet pools, whose user has set one variable."""
    monkeypatch.setattr(forkable, "_quieted", set())
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    forkable.quiet_pools()
    return {name: forkable.os.environ[name] for name in VARIABLES}


def test_pools_are_quiet_but_those_of_the_user(quieted: dict[str, str]) -> None:
    assert quieted == dict.fromkeys(VARIABLES, "1") | {"MKL_NUM_THREADS": "5"}


def test_cpus_that_were_granted_size_all_pools(quieted: dict[str, str]) -> None:
    size_variables(quieted, 3, {})
    assert quieted == dict.fromkeys(VARIABLES, "3")


def test_without_a_grant_what_the_user_has_set_is_left() -> None:
    environment = dict.fromkeys(VARIABLES, "1") | {"MKL_NUM_THREADS": "5"}
    size_variables(environment, None, {})
    assert environment == {"MKL_NUM_THREADS": "5"}


@pytest.mark.parametrize("cpus", [None, 3])
def test_what_the_step_itself_has_set_stays_and_pools_without_a_variable_follow_it(
    quieted: dict[str, str], cpus: int | None
) -> None:
    own = OWN | {"OPENBLAS_NUM_THREADS": "2"}
    size_variables(quieted | own, cpus, own)
    environment = quieted | own
    size_variables(environment, cpus, own)
    assert environment.pop("MKL_NUM_THREADS", None) == (None if cpus else "5")
    assert environment == own


def test_what_made_pools_quiet_is_not_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert users_own() == {}
    assert set(VARIABLES) & inherited().keys() == {"MKL_NUM_THREADS"}
    monkeypatch.setattr(forkable, "_quieted", set())
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert users_own() == OWN
