"""Integration tests look at Upshift from outside: the command line and the public Python API."""

from __future__ import annotations

from pathlib import Path

import pytest

from project import Project


@pytest.fixture
def project(tmp_path: Path, upshift_home: Path) -> Project:
    """An empty project; ``upshift.get_run`` in the test sees its runs."""
    return Project(tmp_path / "project", upshift_home)
