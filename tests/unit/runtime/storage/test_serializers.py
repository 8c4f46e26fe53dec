"""Third parties add serializers by entry point, and theirs win."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upshift.errors import NotSerializable
from upshift.model.spec import Artifact
from upshift.runtime.storage import serializers
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.serializers import prepare, serializers_for
from upshift.runtime.storage.store import Store, open_store

PACKAGE = """
from upshift.runtime.storage.serializers import Serializer

class Point:
    def __init__(self, x): self.x = x

class Special(Point): pass

class PointSerializer(Serializer):
    def accepts(self, value): return isinstance(value, Point)
    def dump(self, value, store):
        return None if value.x is None else [b"point", str(value.x).encode()]
    def load(self, content, store): return Point(int(bytes(content[5:])))

class ArraySerializer(Serializer):
    def accepts(self, value): return value.ndim == 3
    def dump(self, value, store): return [b"cube"]
    def load(self, content, store): return "a cube"

class Broken(Serializer):
    def accepts(self, value): return True
    def dump(self, value, store): raise RuntimeError("no room for it")
"""
ENTRY_POINTS = """
[upshift.serializers]
upshift_points.Point = upshift_points:PointSerializer
numpy.ndarray = upshift_points:ArraySerializer
decimal = upshift_points:Broken
fractions = upshift_points_gone:Serializer
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package that registers serializers."""
    site = tmp_path / "site"
    information = site / "upshift_points-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: upshift-points\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "upshift_points.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(site))
    serializers._plugins.cache_clear()
    serializers._load_plugin.cache_clear()
    yield importlib.import_module("upshift_points")
    sys.modules.pop("upshift_points")
    serializers._plugins.cache_clear()
    serializers._load_plugin.cache_clear()


def test_a_type_of_a_third_party_uses_its_serializer(store: Store, points: Any) -> None:
    for value in (points.Point(3), points.Special(3)):
        artifact = save(value, store)
        assert artifact.serializer == "plugin:upshift_points.Point"
        assert load(artifact, store).x == 3  # type: ignore[attr-defined]


def test_a_third_party_wins_over_what_comes_with_upshift_where_it_accepts(store: Store, points: Any) -> None:
    assert load(save(np.zeros((1, 1, 1)), store), store) == "a cube"
    assert save(np.zeros((1, 1)), store).serializer == "numpy"


def test_plain_values_ask_no_third_party(points: Any) -> None:
    assert [serializer.name for serializer in serializers_for({"a": 1})] == ["json"]


def test_a_serializer_that_declines_leaves_the_value_to_the_next(store: Store, points: Any) -> None:
    assert save(points.Point(None), store).serializer == "pickle"


def test_a_serializer_that_fails_is_named(store: Store, points: Any) -> None:
    from decimal import Decimal

    with pytest.raises(NotSerializable, match=r"price of type decimal\.Decimal") as caught:
        save(Decimal(1), store, name="price")
    assert "serializer 'plugin:decimal': RuntimeError: no room for it" in str(caught.value)


def test_a_registration_that_cannot_be_imported_is_named(store: Store, points: Any) -> None:
    from fractions import Fraction

    with pytest.raises(NotSerializable, match="registered as upshift_points_gone:Serializer") as caught:
        save(Fraction(1), store)
    assert "No module named 'upshift_points_gone'" in str(caught.value)


def test_a_serializer_that_is_not_installed_is_named(store: Store) -> None:
    for name in ("plugin:polars", "hologram"):
        artifact = Artifact(digest="sha256:" + "0" * 64, serializer=name, type="X", bytes=1, inline="")
        with pytest.raises(NotSerializable, match=f"there is no serializer '{name}' here") as caught:
            load(artifact, store)
        assert "Install the package that registers it" in str(caught.value)


def test_preparing_finds_what_is_registered(points: Any) -> None:
    prepare()
    assert "upshift_points.Point" in serializers._plugins()
    assert "cloudpickle" in sys.modules
