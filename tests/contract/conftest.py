"""Every backend goes through the same suite. To add one, add its name, and to Ground.open how it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_kit import Ground, Watched

BACKENDS = ["fake", "local"]


@pytest.fixture(params=BACKENDS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def watched(ground: Ground) -> Watched:
    return ground.open()
