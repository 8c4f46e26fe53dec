"""What an attempt used over time, as charts: CPU, memory, disk, network, and each of its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.report.html.charts import Chart, Line
from upshift.runtime.storage.series import COLUMNS, GPU_COLUMNS, Number, Series


@attrs.frozen(kw_only=True)
class Quantity:
    """One chart of several columns.

    Parameters
    ----------
    title
        Of the chart.
    columns
        Column to label; a label may be empty where there is one.
    high
        Where the axis ends, whatever the values are.
    always
        Whether it is shown though nothing but zero was measured.
    """

    title: str
    columns: Mapping[str, str]
    high: float | None = None
    always: bool = False


_WHOLE = (
    Quantity(title="CPU", columns={"cpu": ""}, always=True),
    Quantity(title="Memory", columns={"memory": ""}, always=True),
    Quantity(title="Disk", columns={"read": "read", "written": "written"}),
    Quantity(title="Network of the node", columns={"received": "received", "sent": "sent"}),
)
_LITTLE = 0.05
"""Share of a GPU's memory that its driver and contexts may take beside what the step is told to use."""
_EACH_GPU = (
    Quantity(title="GPU busy", columns={"busy": ""}, high=100.0, always=True),
    Quantity(title="GPU memory", columns={"memory": ""}, always=True),
    Quantity(title="GPU memory of this step alone", columns={"own_memory": ""}),
    Quantity(title="GPU power", columns={"power": ""}),
    Quantity(title="GPU temperature", columns={"temperature": ""}),
    Quantity(title="GPU clock", columns={"clock": ""}),
    Quantity(title="PCIe received", columns={"pcie_received": ""}),
    Quantity(title="PCIe sent", columns={"pcie_sent": ""}),
    Quantity(title="NVLink received", columns={"nvlink_received": ""}),
    Quantity(title="NVLink sent", columns={"nvlink_sent": ""}),
    Quantity(title="Other processes on the GPU", columns={"processes": ""}),
    Quantity(title="Uncorrected memory errors", columns={"ecc_errors": ""}),
)


def usage(series: Series, *, cpus: float | None, memory: int | None) -> list[Chart]:
    """The charts of the step as a whole.

    Parameters
    ----------
    series
        The samples.
    cpus, memory
        What was granted; None: nothing limits it, or it is not known.
    """
    limits = {"CPU": (cpus, "granted"), "Memory": (memory, "limit")}
    charts, moments = [], times(series)
    for quantity in _WHOLE:
        lines = [Line(label, moments, v) for label, v in _columns(series, quantity, "", COLUMNS)]
        if _worth_it(lines, quantity):
            value, what = limits.get(quantity.title, (None, ""))
            charts.append(
                Chart(
                    title=quantity.title,
                    unit=COLUMNS[next(iter(quantity.columns))],
                    lines=lines,
                    span=span(series),
                    limit=None if value is None else (float(value), what),
                )
            )
    return charts


def gpu_usage(series: Series) -> list[Chart]:
    """The charts of its GPUs, a line for each of these in every chart."""
    charts, moments = [], times(series)
    numbers = gpu_numbers(series)
    for quantity in _EACH_GPU:
        lines = [
            Line(f"GPU {number}{f' {label}' if label else ''}", moments, values)
            for number in numbers
            for label, values in _columns(series, quantity, f"gpu.{number}.", GPU_COLUMNS)
        ]
        if _worth_it(lines, quantity) and not _same_as_all(series, quantity):
            charts.append(
                Chart(
                    title=quantity.title,
                    unit=GPU_COLUMNS[next(iter(quantity.columns))],
                    lines=lines,
                    span=span(series),
                    high=quantity.high,
                    from_zero=quantity.title not in ("GPU temperature", "GPU clock"),
                    limit=_memory_limit(series, quantity),
                    marks=list(xids(series)),
                )
            )
    return charts


def times(series: Series) -> list[float]:
    """When the samples were taken, in seconds since the attempt started."""
    return [float(moment or 0.0) for moment in series.columns["time"]]


def span(series: Series) -> tuple[float, float]:
    """From the start of the attempt to the last sample."""
    return 0.0, times(series)[-1]


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
    """Those values of a column that are there."""
    return [float(value) for value in values if value is not None]


def _columns(
    series: Series, quantity: Quantity, prefix: str, units: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[Number]]]:
    for column, label in quantity.columns.items():
        values = series.columns.get(prefix + column)
        if values is not None and any(value is not None for value in values):
            yield label, values


def _worth_it(lines: Sequence[Line], quantity: Quantity) -> bool:
    return bool(lines) and (quantity.always or any(value for line in lines for value in line.ys))


def _same_as_all(series: Series, quantity: Quantity) -> bool:
    """Whether the step was, but for a little, alone on its GPUs."""
    if "own_memory" not in quantity.columns:
        return False
    for number in gpu_numbers(series):
        whole, own = (
            known(series.columns.get(f"gpu.{number}.{name}", ())) for name in ("memory", "own_memory")
        )
        if len(whole) != len(own) or max(whole, default=0) - max(own, default=0) > _LITTLE * max(
            whole, default=0
        ):
            return False
    return True


def _memory_limit(series: Series, quantity: Quantity) -> tuple[float, str] | None:
    if quantity.title != "GPU memory":
        return None
    sizes: set[Any] = {gpu.get("memory") for gpu in series.gpus}
    return (float(sizes.pop()), "device") if len(sizes) == 1 and all(sizes) else None
