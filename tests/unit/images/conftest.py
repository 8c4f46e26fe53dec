"""A registry that does what a test says, and registries that know no login of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registry_kit import open_registries

from stand_in_registry import StandInRegistry
from upshift.images.registries.client import Registries


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry() as stand_in:
        yield stand_in


@pytest.fixture
def registries() -> Iterator[Registries]:
    with open_registries() as opened:
        yield opened
