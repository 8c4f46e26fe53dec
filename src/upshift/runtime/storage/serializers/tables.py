"""Tables as Arrow IPC: pyarrow's own, mapped when they are read, and those of pandas.

Not every pandas table survives Arrow: some indexes, types and labels come back as others. So one is
written as Arrow only if its types are known to keep their values, and if its first row comes back
with the same types, index, labels and attributes. All others are left to pickle.

Of large tables, columns of numbers and times without gaps come back as views of the memory that was read,
those of one type that follow each other as one block. What pandas keeps in another form than Arrow (text,
categories, booleans, times with gaps or zones) is copied.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.protocol import Serializer, is_plain
from upshift.runtime.storage.store import Store

LARGE = 1 << 16
"""Bytes of a block of columns from which on a copy costs more than a view."""
_KINDS = frozenset("biufMm")
_VIEWED = frozenset("iufMm")
"""Kinds of NumPy types that are the same in Arrow, but for gaps."""
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
        return _from_table(_from_ipc(content), content)


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
    import numpy
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
    metadata = {**table.schema.metadata, _NOTES: json.dumps(notes)}
    for position, dtype in enumerate(frame.dtypes):
        is_float = isinstance(dtype, numpy.dtype) and dtype.kind == "f"
        if is_float and table.column(position).null_count:  # NaN is a number, and no gap
            numbers = pyarrow.array(frame.iloc[:, position].to_numpy(), from_pandas=False)
            table = table.set_column(position, table.schema.field(position), numbers)
    return table.replace_schema_metadata(metadata)


def _from_table(table: Any, content: memoryview) -> Any:
    import pandas

    frame = _viewed(table, content) if len(content) >= LARGE else _copied(table)
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


def _viewed(table: Any, content: memoryview) -> Any:
    """The table that was read from ``content``, as pandas has it, with views of that where it can."""
    import pandas

    empty = table.slice(0, 0).to_pandas(use_threads=False)  # its types and labels
    runs = list(_runs(table, list(empty.dtypes), content))
    if len(content) < len(runs) * LARGE:
        return _copied(table)
    viewed = {at for columns, view in runs if view is not None for at in columns}
    others = _copied(table.select([at for at in range(table.num_columns) if at not in viewed]))
    index = others.index
    others.index = rows = pandas.RangeIndex(table.num_rows)
    pieces, taken = [], 0
    for columns, view in runs:
        if view is None:
            piece = others.iloc[:, taken : taken + len(columns)]
            taken += len(columns)
        else:
            piece = pandas.DataFrame(view.T, index=rows, copy=False)
        piece.columns = columns
        pieces.append(piece)
    frame = _beside(pieces) if len(pieces) > 1 else (*pieces, others)[0]
    frame.index, frame.columns = index, empty.columns
    frame.attrs = empty.attrs
    return frame


def _beside(pieces: Sequence[Any]) -> Any:
    """Tables side by side, without a copy of any."""
    import pandas

    on_write = pandas.option_context("mode.copy_on_write", True)  # as pandas 3 always does
    with on_write if int(pandas.__version__.partition(".")[0]) < 3 else contextlib.nullcontext():
        return pandas.concat(pieces, axis="columns")


def _runs(table: Any, dtypes: Sequence[Any], content: memoryview) -> Iterator[tuple[range, Any]]:
    """Columns that are one block of memory, with a view of it that has one in each row; None: they are not.

    Arrow writes columns one after the other, each from an address that it rounds up.
    """
    import numpy

    rows = table.num_rows
    places = [_place(table.column(at), dtype, content) for at, dtype in enumerate(dtypes)]
    begin = 0
    while begin < len(places):
        first, dtype, end = places[begin], dtypes[begin], begin + 1
        if first is None:
            while end < len(places) and places[end] is None:
                end += 1
            yield range(begin, end), None
        else:
            step = rows * dtype.itemsize
            if end < len(places) and (second := places[end]) is not None:
                step = max(step, second - first)
            while end < len(places) and dtypes[end] == dtype and places[end] == first + (end - begin) * step:
                end += 1
            shape, strides = (end - begin, rows), (step, dtype.itemsize)
            yield range(begin, end), numpy.ndarray(shape, dtype, content, first, strides)
        begin = end


def _place(column: Any, dtype: Any, content: memoryview) -> int | None:
    """Where in ``content`` the values of a column are as NumPy has them; None: they are not."""
    import numpy
    import pyarrow

    if not isinstance(dtype, numpy.dtype) or dtype.kind not in _VIEWED:
        return None
    if column.num_chunks != 1 or column.null_count or column.type != pyarrow.from_numpy_dtype(dtype):
        return None
    chunk = column.chunk(0)
    at = chunk.buffers()[1].address - pyarrow.py_buffer(content).address + chunk.offset * dtype.itemsize
    return int(at) if 0 <= at <= len(content) - len(chunk) * dtype.itemsize else None


def _copied(table: Any) -> Any:
    """The table in memory of its own; pyarrow leaves alone, and read-only, what it need not copy."""
    import pandas

    frame = table.to_pandas(use_threads=False)
    alone = {dtype for dtype, count in Counter(frame.dtypes).items() if count == 1}
    for position, dtype in enumerate(frame.dtypes):
        if dtype in alone or pandas.api.types.is_extension_array_dtype(dtype):
            frame.isetitem(position, frame.iloc[:, position].copy())
    return frame


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
    again = _from_table(_to_table(head), memoryview(b""))
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
