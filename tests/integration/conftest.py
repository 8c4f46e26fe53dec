"""Integration tests look at Upshift from outside: the command line and the public Python API."""

from __future__ import annotations

from pathlib import Path

import pytest

from prepared import Prepared
from project import Project


@pytest.fixture
def project(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    upshift_home: Path,
    prepared: Prepared,
) -> Project:
    """An empty project; ``upshift.get_run`` in the test sees its runs."""
    about_processes = request.node.get_closest_marker("processes") is not None
    return Project(tmp_path / "project", upshift_home, None if about_processes else prepared)
