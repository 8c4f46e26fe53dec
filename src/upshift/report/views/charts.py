"""Charts as plain numbers, and those of what an attempt used over time.

Where there are more samples than a screen has room for, a line is the mean of each few, and its band
reaches from the least to the most of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.report.human import DASH, amount, between
from upshift.runtime.storage.series import COLUMNS, GPU_COLUMNS, Number, Series


@attrs.frozen(kw_only=True)
class Cell:
    """A value of a table, as text and as the number to sort by."""

    text: str = ""  # what it says
    value: float | None = None  # the number that it is sorted by; None: it is sorted by its text
    status: str | None = None  # a status that the text is a word for
    anchor: str | None = None  # what of the same view it leads to
    # ``"best"`` of its column, ``"short"`` of what was asked for, ``"soft"``: beside the point
    mark: str | None = None


@attrs.frozen(kw_only=True)
class Table:
    """Rows of cells below their titles; ``numeric`` has the columns of figures."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: Sequence[int] = ()

    def without_empty(self, keep: int = 1) -> Table:
        """A table without the columns after the first ``keep`` that are empty in every row."""
        shown = [
            at
            for at in range(len(self.heads))
            if at < keep or any(row[at].text not in ("", DASH) for row in self.rows)
        ]
        return Table(
            title=self.title,
            heads=[self.heads[at] for at in shown],
            rows=[[row[at] for at in shown] for row in self.rows],
            numeric=[new for new, at in enumerate(shown) if at in self.numeric],
        )


def told(value: float | None, unit: str) -> Cell:
    """An amount, or a dash where it is not known."""
    return Cell(text=DASH) if value is None else Cell(text=amount(value, unit), value=value)


def texts(values: Iterable[object]) -> list[Cell]:
    """Cells of plain text."""
    return [Cell(text=str(value)) for value in values]


MOST = 400
"""Points of a line."""
_LITTLE = 0.05
"""Share of a GPU's memory that its driver and contexts may take beside what the step is told to use."""


@attrs.frozen(kw_only=True)
class Line:
    """One line of a chart."""

    label: str = ""  # empty where a chart has one line
    x: Sequence[float]  # ascending
    y: Sequence[float | None]  # None: not known there
    # the least and the most, where a point stands for several values
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    times: Sequence[float] | None = None  # seconds for each point, where ``x`` is a count
    task: int | None = None  # the place of the task whose line it is among those of its step


@attrs.frozen(kw_only=True)
class Chart:
    """Lines over time, or over a count."""

    title: str
    unit: str  # as :func:`upshift.report.human.amount` knows it
    lines: Sequence[Line]
    across: str = "s"  # unit of the x: ``"s"``, or a count's name
    span: tuple[float, float] | None = None  # the first and the last x; None: those of the lines
    high: float | None = None  # where the axis ends, whatever the values are
    from_zero: bool = True  # whether the axis begins at zero
    limit: tuple[float, str] | None = None  # a value that must not be passed, and what it is called
    marks: Sequence[tuple[float, str]] = ()  # moments of interest, and what happened
    summary: str = ""


@attrs.frozen(kw_only=True)
class _Quantity:
    """One chart of several columns, each with a label, which may be empty where there is one."""

    title: str
    columns: Mapping[str, str]
    high: float | None = None
    from_zero: bool = True
    always: bool = False
    """Whether it is shown though nothing but zero was measured."""


_WHOLE = (
    _Quantity(title="CPU", columns={"cpu": ""}, always=True),
    _Quantity(title="Memory", columns={"memory": ""}, always=True),
    _Quantity(title="Disk", columns={"read": "read", "written": "written"}),
    _Quantity(title="Network of the node", columns={"received": "received", "sent": "sent"}),
)
_EACH_GPU = (
    _Quantity(title="GPU busy", columns={"busy": ""}, high=100.0, always=True),
    _Quantity(title="GPU memory", columns={"memory": ""}, always=True),
    _Quantity(title="GPU memory of this step alone", columns={"own_memory": ""}),
    _Quantity(title="GPU power", columns={"power": ""}),
    _Quantity(title="GPU temperature", columns={"temperature": ""}, from_zero=False),
    _Quantity(title="GPU clock", columns={"clock": ""}, from_zero=False),
    _Quantity(title="PCIe received", columns={"pcie_received": ""}),
    _Quantity(title="PCIe sent", columns={"pcie_sent": ""}),
    _Quantity(title="NVLink received", columns={"nvlink_received": ""}),
    _Quantity(title="NVLink sent", columns={"nvlink_sent": ""}),
    _Quantity(title="Other processes on the GPU", columns={"processes": ""}),
    _Quantity(title="Uncorrected memory errors", columns={"ecc_errors": ""}),
)


def usage(series: Series, *, cpus: float | None, memory: int | None) -> list[Chart]:
    """The charts of the step as a whole; ``cpus`` and ``memory`` were granted, None: no limit is known."""
    limits = {"CPU": (cpus, "granted"), "Memory": (memory, "limit")}
    charts, parts = [], Parts(times(series))
    for quantity in _WHOLE:
        found = list(_columns(series, quantity, "", COLUMNS))
        if _worth_it(found, quantity):
            value, what = limits.get(quantity.title, (None, ""))
            limit = None if value is None else (float(value), what)
            unit = COLUMNS[next(iter(quantity.columns))]
            charts.append(_chart(quantity, unit, found, parts, limit=limit))
    return charts


def gpu_usage(series: Series) -> list[Chart]:
    """The charts of its GPUs, a line for each of these in every chart."""
    charts, parts = [], Parts(times(series))
    numbers, marks = gpu_numbers(series), list(xids(series))
    for quantity in _EACH_GPU:
        found = [
            (f"GPU {number}", values)
            for number in numbers
            for _, values in _columns(series, quantity, f"gpu.{number}.", GPU_COLUMNS)
        ]
        if _worth_it(found, quantity) and not _same_as_all(series, quantity):
            unit = GPU_COLUMNS[next(iter(quantity.columns))]
            limit = _memory_limit(series, quantity)
            charts.append(_chart(quantity, unit, found, parts, limit=limit, marks=marks))
    return charts


class Parts:
    """Samples along ascending places in at most ``most`` parts, so that columns are shortened alike."""

    def __init__(self, xs: Sequence[float], most: int = MOST) -> None:
        self._slices: list[slice] | None = None
        self.x: Sequence[float] = [_short(x, 10) for x in xs]
        if len(xs) <= most:
            return
        scale = most / ((xs[-1] - xs[0]) or 1.0)
        starts: dict[int, int] = {}
        for at, x in enumerate(xs):
            starts.setdefault(min(int((x - xs[0]) * scale), most - 1), at)
        ends = [*list(starts.values())[1:], len(xs)]
        self._slices = [slice(start, end) for start, end in zip(starts.values(), ends, strict=True)]
        self.x = [_short(sum(xs[part]) / (part.stop - part.start), 6) for part in self._slices]

    def line(self, label: str, values: Sequence[float | None], figures: int = 4, **more: Any) -> Line:
        """One column as a line; where nobody knew a value it has a gap."""
        if self._slices is None:
            return Line(label=label, x=self.x, y=[_drawn(value, figures) for value in values], **more)
        y: list[float | None] = []
        low: list[float | None] = []
        high: list[float | None] = []
        for part in self._slices:
            known = [v for v in values[part] if v is not None and math.isfinite(v)]
            y.append(_short(sum(known) / len(known), figures) if known else None)
            low.append(_short(min(known), figures) if known else None)
            high.append(_short(max(known), figures) if known else None)
        return Line(label=label, x=self.x, y=y, low=low, high=high, **more)

    def means(self, values: Sequence[float]) -> Sequence[float]:
        """The mean of each part."""
        if self._slices is None:
            return values
        return [sum(values[part]) / (part.stop - part.start) for part in self._slices]


def summary(columns: Sequence[Sequence[float | None]], unit: str, limit: tuple[float, str] | None) -> str:
    """What the values were, in words: of one line its mean and peak, of several the range of these."""
    each = [k for column in columns if (k := [v for v in column if v is not None and math.isfinite(v)])]
    if not each:
        return ""
    means, peaks = [sum(values) / len(values) for values in each], [max(values) for values in each]
    words = functools.partial(amount, unit=unit)
    told = [f"mean {between(means, words)}", f"peak {between(peaks, words)}"]
    return " · ".join(told if limit is None else [*told, f"{limit[1]} {words(limit[0])}"])


def times(series: Series) -> list[float]:
    """When the samples were taken, in seconds since the attempt started."""
    return [float(moment or 0.0) for moment in series.columns["time"]]


def gpu_numbers(series: Series) -> list[int]:
    """Numbers of the GPUs that there are samples of."""
    names = {column.split(".")[1] for column in series.columns if column.startswith("gpu.")}
    return sorted(int(number) for number in names if number.isdecimal())


def xids(series: Series) -> Iterator[tuple[float, str]]:
    """When a driver told of an event, and which: ``Xid 79 on GPU 0``."""
    for number in gpu_numbers(series):
        codes = series.columns.get(f"gpu.{number}.xid", ())
        for moment, code in zip(times(series), codes, strict=False):
            if code:
                yield moment, f"Xid {code:.0f} on GPU {number}"


def known(values: Sequence[Number]) -> list[float]:
    """The values of a column without the missing ones."""
    return [float(value) for value in values if value is not None]


_Found = Sequence[tuple[str, Sequence[Number]]]


def _chart(quantity: _Quantity, unit: str, found: _Found, parts: Parts, **more: Any) -> Chart:
    return Chart(
        title=quantity.title,
        unit=unit,
        lines=[parts.line(label, values) for label, values in found],
        span=(0.0, parts.x[-1]),
        high=quantity.high,
        from_zero=quantity.from_zero,
        summary=summary([values for _, values in found], unit, more.get("limit")),
        **more,
    )


def _columns(
    series: Series, quantity: _Quantity, prefix: str, units: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[Number]]]:
    for column, label in quantity.columns.items():
        values = series.columns.get(prefix + column)
        if values is not None and any(value is not None and math.isfinite(value) for value in values):
            yield label, values


def _worth_it(found: _Found, quantity: _Quantity) -> bool:
    return bool(found) and (quantity.always or any(value for _, values in found for value in values))


def _same_as_all(series: Series, quantity: _Quantity) -> bool:
    """Whether the step was, but for a little, alone on its GPUs."""
    if "own_memory" not in quantity.columns:
        return False
    for number in gpu_numbers(series):
        whole, own = (
            known(series.columns.get(f"gpu.{number}.{name}", ())) for name in ("memory", "own_memory")
        )
        beside = max(whole, default=0) - max(own, default=0)
        if len(whole) != len(own) or beside > _LITTLE * max(whole, default=0):
            return False
    return True


def _memory_limit(series: Series, quantity: _Quantity) -> tuple[float, str] | None:
    if quantity.title != "GPU memory":
        return None
    sizes: set[Any] = {gpu.get("memory") for gpu in series.gpus}
    return (float(sizes.pop()), "device") if len(sizes) == 1 and all(sizes) else None


def _drawn(value: float | None, figures: int) -> float | None:
    return None if value is None or not math.isfinite(value) else _short(value, figures)


def _short(value: float, figures: int) -> float:
    """A number with this many figures, as an integer if it is one, to keep pages small."""
    rounded = float(f"{value:.{figures}g}")
    return int(rounded) if rounded.is_integer() else rounded
