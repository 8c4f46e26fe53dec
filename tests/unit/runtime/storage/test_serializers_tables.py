"""pandas and pyarrow tables: as Arrow files where nothing is lost, else by pickle; always equal."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mapped import is_mapped
from upshift.runtime.storage.artifacts import load, save
from upshift.runtime.storage.serializers import tables
from upshift.runtime.storage.store import Store, open_store

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


@pytest.fixture(params=["copied", "viewed"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of any size are read as small ones are, and as large ones."""
    monkeypatch.setattr(tables, "LARGE", sys.maxsize if request.param == "copied" else 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def mixed() -> Any:
    frame = pd.DataFrame(
        {
            "int": [1, 2, 3],
            "float": [0.5, np.nan, np.inf],
            "text": pd.Series(["x", None, "ü"], dtype="string"),
            "kind": pd.Categorical(["b", "a", "b"], categories=["b", "a", "c"], ordered=True),
            "when": pd.to_datetime(["2026-01-01", None, "2026-06-01"]).tz_localize("Europe/Berlin"),
            "long": pd.to_timedelta([1, 2, 3], unit="s"),
            "count": pd.array([1, None, 3], dtype="Int64"),
            "flag": pd.array([True, None, False], dtype="boolean"),
        },
        index=pd.Index([5, 6, 8], name="id"),
    )
    frame.attrs = {"source": "here", "version": [1, 2]}
    return frame


def in_runs(rows: int) -> Any:
    """Types that follow each other in blocks and alone, some of which Arrow keeps as pandas does."""
    when = pd.date_range("2026", periods=rows, freq="h").as_unit("ns")
    frame = pd.DataFrame(
        {
            "a": np.arange(rows) * 0.5,
            "gap": np.where(np.arange(rows) % 3 == 1, np.nan, 1.0),
            "text": pd.Series(["x"] * rows, dtype="string"),
            **{f"small{number}": np.arange(rows, dtype=np.int8) for number in range(3)},
            "half": np.arange(rows, dtype=np.float32),
            "flag": np.arange(rows) % 2 == 0,
            "when": when,
            "until": when,
            "maybe": when.where(np.arange(rows) != 1),
            "last": np.ones(rows),
        }
    )
    frame.columns.name = "columns"
    return frame


AS_ARROW = {
    "in runs": in_runs(7),
    "in runs, every other row": in_runs(20)[::2],
    "in runs, with an index": in_runs(5).set_index("when"),
    "wide": pd.DataFrame(np.random.default_rng(0).normal(size=(33, 300)).astype(np.float32)),
    "mixed": mixed(),
    "a part": mixed().iloc[1:],
    "matrix": pd.DataFrame(np.arange(12.0).reshape(4, 3)),
    "one column": pd.DataFrame({"x": np.arange(5.0)}),
    "empty": pd.DataFrame({"x": np.arange(0)}),
    "column levels": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])),
    "row levels": pd.DataFrame(
        {"v": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", None])
    ),
    "range": pd.DataFrame({"v": [1, 2]}, index=pd.RangeIndex(4, 8, 2)),
    "text labels": pd.DataFrame({"v": [1, 2]}, index=["r", "s"]),
    "arrow types": pd.DataFrame({"v": pd.array([0.5, None], dtype=pd.ArrowDtype(pa.float64()))}),
    "series": pd.Series([1, 2, 3], name="n"),
    "series without name": pd.Series(["a", "b"], dtype="string"),
    "series named by a number": pd.Series([0.5], name=3, index=["x"]),
}
AS_PICKLE = {
    "mixed objects": pd.DataFrame({"o": [1, "a", None]}),
    "labels twice": pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "frequency": pd.Series([1, 2, 3], index=pd.date_range("2026", periods=3)),
    "periods": pd.DataFrame({"p": pd.period_range("2026", periods=2, freq="D")}),
    "intervals": pd.Series(pd.interval_range(0, 3)),
    "complex": pd.DataFrame({"c": np.arange(3) * 1j}),
    "nullable floats": pd.DataFrame({"f": pd.array([1.0, None], dtype="Float64")}),
    "sparse": pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 1])}),
    "attributes that JSON changes": pd.DataFrame({"x": [1]}).__finalize__(None),
    "no duplicates allowed": pd.DataFrame({"x": [1]}).set_flags(allows_duplicate_labels=False),
    "named by a tuple": pd.Series([1], name=("a", 1)),
}
AS_PICKLE["attributes that JSON changes"].attrs = {"pair": (1, 2)}


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(
            one, other, check_exact=True, check_freq=True, check_column_type=True, check_index_type=True
        )
        assert [type(label) for label in one.columns] == [type(label) for label in other.columns]
    else:
        pd.testing.assert_series_equal(one, other, check_exact=True, check_freq=True, check_index_type=True)
    assert one.attrs == other.attrs
    assert type(one.index) is type(other.index)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", AS_ARROW)
def test_typed_tables_are_arrow_files_and_come_back_equal(store: Store, name: str) -> None:
    artifact = save(AS_ARROW[name], store)
    assert artifact.serializer == "pandas"
    assert_same(AS_ARROW[name], load(artifact, store))
    assert save(AS_ARROW[name].copy(), store).digest == artifact.digest


@pytest.mark.parametrize("name", AS_PICKLE)
def test_tables_that_arrow_would_change_come_back_equal_all_the_same(store: Store, name: str) -> None:
    artifact = save(AS_PICKLE[name], store)
    assert artifact.serializer == "pickle"
    assert_same(AS_PICKLE[name], load(artifact, store))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", [*AS_ARROW, *sorted(AS_PICKLE.keys() - {"sparse"})])
def test_a_table_that_was_loaded_may_be_changed_in_place(store: Store, name: str) -> None:
    table: Any = (AS_ARROW | AS_PICKLE)[name]
    artifact = save(table, store)
    again: Any = load(artifact, store)
    if len(again) and isinstance(again, pd.DataFrame):
        for position in range(again.shape[1]):
            again.iloc[0, position] = again.iloc[0, position]
    elif len(again):
        again.iloc[0] = again.iloc[0]
    assert_same(table, load(artifact, store))


def test_columns_of_numbers_and_times_are_views_of_the_mapped_file(store: Store) -> None:
    frame = in_runs(100_001)
    again: Any = load(save(frame, store), store)
    assert_same(frame, again)
    mapped = {name for name in again if is_mapped(again[name].to_numpy())}
    assert mapped == {"a", "gap", "small0", "small1", "small2", "half", "when", "until", "last"}
    assert len(again._mgr.blocks) < len(again.columns)
    again.iloc[0, 0] = 7.0
    assert is_mapped(again["a"].to_numpy())  # which nobody else sees: the mapping is private
    assert_same(frame, load(save(frame, store), store))

    series: Any = load(save(frame["a"], store), store)
    assert is_mapped(series.to_numpy())


def test_without_pyarrow_pandas_goes_through_pickle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    artifact = save(AS_ARROW["matrix"], store)
    assert artifact.serializer == "pickle"
    assert_same(AS_ARROW["matrix"], load(artifact, store))


TABLE = {
    "a": pa.array([1, None, 3]),
    "text": pa.chunked_array([["x"], ["y", None]]),
    "nested": pa.array([[1], [], None]),
    "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
}


def test_arrow_tables_come_back_equal(store: Store) -> None:
    for table in (
        pa.table(TABLE).replace_schema_metadata({"k": "v"}),
        pa.table(TABLE).slice(1),
        pa.table({}),
        pa.concat_tables([pa.table({"d": pa.array([word]).dictionary_encode()}) for word in "xy"]),
    ):
        artifact = save(table, store)
        again: Any = load(artifact, store)
        assert artifact.serializer == "arrow"
        assert again.equals(table)
        assert again.schema.equals(table.schema, check_metadata=True)


def test_an_arrow_blob_is_an_arrow_file(store: Store) -> None:
    table = pa.table({"x": list(range(1000))})
    with pa.ipc.open_file(str(store.blob_path(save(table, store).digest))) as reader:
        assert reader.read_all().equals(table)


def test_arrow_tables_are_written_and_mapped_without_a_copy(store: Store) -> None:
    table = pa.table({"x": np.arange(1_000_000.0), "y": np.arange(1_000_000)})
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    again: Any = load(save(table, store), store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < table.nbytes / 10
    assert pa.total_allocated_bytes() - before < table.nbytes / 10
    assert again.equals(table)
