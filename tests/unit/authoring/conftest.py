"""What the tests of authoring share: a store, and pipelines composed into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upshift import Pipeline
from upshift.model.graph import Graph
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def compose(store: Store) -> Callable[..., Graph]:
    """The graph of a pipeline, for these arguments."""

    def composed(pipeline: Pipeline[..., Any], **arguments: object) -> Graph:
        return pipeline.build(arguments, store)

    return composed
