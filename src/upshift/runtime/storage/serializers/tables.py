"""Tables as Arrow IPC: pyarrow's own, mapped when they are read, and those of pandas.

Not every pandas table survives Arrow: some indexes, types and labels come back as others. So one is
written as Arrow only if its types are known to keep their values, and if its first row comes back
with the same types, index, labels and attributes. All others are left to pickle.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.plain import is_plain
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

_KINDS = frozenset("biufMm")
_MAGIC = b"ARROW1"
_NOTES = b"upshift"
"""Key in the schema's metadata for what Arrow does not keep: a series' name, numbered columns."""
_COLUMN = "values"


class ArrowSerializer(Serializer):
    """Exactly ``pyarrow.Table``."""

    name = "arrow"

    def accepts(self, value: object) -> bool:
        import pyarrow

        return type(value) is pyarrow.Table

    def dump(self, value: Any, store: Store) -> Sequence[Bytes] | None:
        import pyarrow

        try:
            return _to_ipc(value)
        except pyarrow.ArrowInvalid:  # a file holds one dictionary a column, and the chunks have several
            return _to_ipc(value, stream=True)

    def load(self, content: memoryview, store: Store) -> object:
        return _from_ipc(content)


class PandasSerializer(Serializer):
    """Exactly ``pandas.DataFrame`` and ``pandas.Series``, where pyarrow is installed."""

    name = "pandas"

    def accepts(self, value: object) -> bool:
        import pandas

        return type(value) in (pandas.DataFrame, pandas.Series) and _has_arrow()

    def dump(self, value: Any, store: Store) -> Sequence[Bytes] | None:
        import pyarrow

        try:
            if not _survives(value):
                return None
            return _to_ipc(_to_table(value))
        except (pyarrow.ArrowException, TypeError, ValueError, KeyError, AttributeError):
            return None  # pyarrow and pandas say in all of these ways that a table does not fit

    def load(self, content: memoryview, store: Store) -> object:
        return _from_table(_from_ipc(content))


def _has_arrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


class _Sink:
    """A file that keeps what is written to it as it is; pyarrow hands over columns without a copy."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self._size = 0

    def write(self, data: Any) -> int:
        part = memoryview(data)
        self.parts.append(part)
        self._size += part.nbytes
        return part.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def _to_ipc(table: Any, *, stream: bool = False) -> list[memoryview]:
    import pyarrow

    sink = _Sink()
    # Threads of pyarrow's pool would be alive in a process that may be forked.
    options = pyarrow.ipc.IpcWriteOptions(use_threads=False)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with (
        pyarrow.PythonFile(sink, mode="w") as file,
        new(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    return sink.parts


def _from_ipc(content: memoryview) -> Any:
    import pyarrow

    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    opened = pyarrow.ipc.open_file if content[: len(_MAGIC)] == _MAGIC else pyarrow.ipc.open_stream
    with opened(pyarrow.py_buffer(content), options=options) as reader:
        return reader.read_all()


def _to_table(value: Any) -> Any:
    import pandas
    import pyarrow

    notes: dict[str, Any] = {}
    frame = value
    if isinstance(value, pandas.Series):
        notes["series"] = value.name
        frame = value.to_frame(_COLUMN)
    elif type(value.columns) is pandas.RangeIndex:
        labels = value.columns
        notes["columns"] = [labels.start, labels.stop, labels.step, labels.name]
        frame = value.set_axis([str(label) for label in labels], axis="columns")
    table = pyarrow.Table.from_pandas(frame, nthreads=1)
    return table.replace_schema_metadata({**table.schema.metadata, _NOTES: json.dumps(notes)})


def _from_table(table: Any) -> Any:
    import pandas

    frame = table.to_pandas(use_threads=False)
    # pyarrow copies columns into blocks of one type; one that is alone keeps read-only memory.
    alone = {dtype for dtype, count in Counter(frame.dtypes).items() if count == 1}
    for position, dtype in enumerate(frame.dtypes):
        if dtype in alone or pandas.api.types.is_extension_array_dtype(dtype):
            frame.isetitem(position, frame.iloc[:, position].copy())
    notes = json.loads(table.schema.metadata[_NOTES])
    if "columns" in notes:
        start, stop, step, name = notes["columns"]
        frame.columns = pandas.RangeIndex(start, stop, step, name=name)
    if "series" not in notes:
        return frame
    series = frame[_COLUMN]
    series.attrs = frame.attrs
    series.name = notes["series"]
    return series


def _survives(value: Any) -> bool:
    """Whether it comes back from Arrow as it is."""
    import pandas

    series = isinstance(value, pandas.Series)
    labels = [value.name] if series else [value.columns.name]
    if not (value.flags.allows_duplicate_labels and is_plain([value.attrs, *labels])):
        return False
    columns = [value] if series else [value.iloc[:, position] for position in range(value.shape[1])]
    if not all(map(_keeps_values, (*columns, *_levels(value.index)))):
        return False
    head = value.iloc[:1]
    again = _from_table(_to_table(head))
    return (
        _same_labels(again.index, head.index)
        and (series or _same_labels(again.columns, head.columns))
        and again.equals(head)
        and _types(again) == _types(head)
        and again.attrs == value.attrs
    )


def _types(value: Any) -> list[Any]:
    return [value.dtype] if value.ndim == 1 else list(value.dtypes)


def _levels(index: Any) -> Iterable[Any]:
    import pandas

    return index.levels if isinstance(index, pandas.MultiIndex) else (index,)


def _keeps_values(column: Any) -> bool:
    """Whether each value of a column, or of an index, comes back from Arrow."""
    import pandas

    if getattr(column, "freq", None) is not None:
        return False
    dtype = column.dtype
    if isinstance(
        dtype, (pandas.DatetimeTZDtype, pandas.StringDtype, pandas.BooleanDtype, pandas.ArrowDtype)
    ):
        return True
    if isinstance(dtype, pandas.CategoricalDtype):
        return _keeps_values(dtype.categories)
    if pandas.api.types.is_object_dtype(dtype):
        return bool(pandas.api.types.infer_dtype(column, skipna=False) == "string")
    if isinstance(dtype, pandas.api.extensions.ExtensionDtype):
        # Nullable floats may hold both NaN and NA, which Arrow's reader does not tell apart.
        return dtype.kind in "iu" and pandas.api.types.is_integer_dtype(dtype)
    return dtype.kind in _KINDS


def _same_labels(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one.identical(other) and _label_types(one) == _label_types(other)


def _label_types(index: Any) -> list[Any]:
    return [level.dtype for level in _levels(index)]
