"""The four records side by side, and the devices among them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device, Hardware
from upshift.report.html.elements import Html, join, tag
from upshift.report.html.groups import Rows
from upshift.report.html.scales import amount
from upshift.report.html.usage import gpu_numbers, known
from upshift.report.human import DASH
from upshift.report.records import RECORDS, SHORT
from upshift.runs.history import Attempt
from upshift.runtime.storage.series import Series


def is_short(rows: Rows) -> bool:
    """Whether less was granted than was asked for."""
    return any(cell.endswith(SHORT) for row in rows for cell in row)


def records_view(rows: Rows) -> Html:
    """The table; nothing where nothing is known."""
    if not rows:
        return Html("")
    head = [tag("th", {"scope": "col"}, record) for record in RECORDS]
    body = [
        tag(
            "tr",
            None,
            [_cell(record, cell) for record, cell in zip(RECORDS, row, strict=True)],
        )
        for row in rows
    ]
    return tag(
        "table", {"class": "records"}, tag("thead", None, tag("tr", None, head)), tag("tbody", None, body)
    )


def devices_view(attempt: Attempt, series: Series | None) -> Html:
    """A row for each GPU: what it is, and what it did."""
    devices = _devices(attempt, series)
    if not devices:
        return Html("")
    rows = [_device(number, device, series, attempt) for number, device in enumerate(devices)]
    names = ("GPU", "model", "memory", "busy, mean", "busy, peak", "memory, peak", "power, mean", "hottest")
    shown = [i for i, _ in enumerate(names) if i < 2 or any(row[i] != DASH for row in rows)]
    head = [tag("th", {"scope": "col"}, names[i]) for i in shown]
    body = [tag("tr", None, [tag("td", None, row[i]) for i in shown]) for row in rows]
    facts = " · ".join(_about(devices[0], attempt, series))
    return join(
        tag("p", {"class": "quiet"}, facts) if facts else None,
        tag(
            "div",
            {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": "GPUs"},
            tag(
                "table",
                {"class": "plain devices"},
                tag("thead", None, tag("tr", None, head)),
                tag("tbody", None, body),
            ),
        ),
        [tag("p", {"class": "warn"}, line) for line in _problems(attempt)],
    )


def _cell(record: str, text: str) -> Html:
    short = text.endswith(SHORT)
    shown = tag("span", {"class": "short", "title": "less than was asked for"}, text) if short else text
    empty = text == DASH
    return tag("td", {"data-name": record, "class": "none" if empty else None}, shown)


def _devices(attempt: Attempt, series: Series | None) -> Sequence[Device]:
    """The devices of the record that tells most."""
    for record in (attempt.used, attempt.granted):
        if record is not None and record.gpus:
            return record.gpus
    if series is None:
        return ()
    return [
        Device(uuid=gpu.get("uuid"), model=gpu.get("model"), memory=gpu.get("memory"), index=number)
        for number, gpu in enumerate(series.gpus)
    ]


def _device(number: int, device: Device, series: Series | None, attempt: Attempt) -> tuple[str, ...]:
    used: Mapping[str, Any] = device.details
    live = _live(number, series) if series is not None else {}
    values = {key: used.get(key, live.get(key)) for key in (*live, *used)}

    def told(key: str, unit: str) -> str:
        value = values.get(key)
        return DASH if value is None else amount(value, unit)

    index = number if device.index is None else device.index
    model = " ".join(filter(None, (device.model or device.kind or "?", device.partition)))
    return (
        f"{index}" if not device.node else f"{index} of node {device.node}",
        model,
        DASH if device.memory is None else format_size(device.memory),
        told("busy_mean", "%"),
        told("busy_peak", "%"),
        told("memory_peak", "bytes"),
        told("power_mean", "W"),
        told("temperature_peak", "°C"),
    )


def _live(number: int, series: Series) -> dict[str, float]:
    """The same from the samples, for an attempt that has no record yet."""
    if number not in gpu_numbers(series):
        return {}
    columns = {key: known(series.columns.get(f"gpu.{number}.{key}", ())) for key in _WANTED.values()}
    found = {}
    for key, column in _WANTED.items():
        values = columns[column]
        if values:
            found[key] = max(values) if key.endswith("peak") else sum(values) / len(values)
    return found


_WANTED = {
    "busy_mean": "busy",
    "busy_peak": "busy",
    "memory_peak": "memory",
    "power_mean": "power",
    "temperature_peak": "temperature",
}


def _about(device: Device, attempt: Attempt, series: Series | None) -> Iterator[str]:
    """Vendor, driver, and what the frameworks in the step made of the devices."""
    seen = attempt.seen.details if attempt.seen else {}
    used = attempt.used.details if attempt.used else {}
    listed = series.gpus[0] if series is not None and series.gpus else {}
    if device.vendor:
        yield device.vendor
    if device.compute_capability:
        yield f"compute capability {device.compute_capability}"
    driver = seen.get("driver") or used.get("gpu_driver") or listed.get("driver")
    if driver:
        yield f"driver {driver}"
    if seen.get("runtime"):
        yield f"runs {seen['runtime']}"
    for framework in seen.get("frameworks", ()):
        built = f" for {framework['built_for']}" if framework.get("built_for") else ""
        sees = f" sees {framework['devices']}" if framework.get("devices") is not None else ""
        yield f"{framework.get('name')} {framework.get('version')}{built}{sees}"


def _problems(attempt: Attempt) -> list[str]:
    used: Hardware | None = attempt.used
    lines = []
    for device in (used.gpus or ()) if used else ():
        label = f"GPU {device.index}" if device.index is not None else f"GPU {device.uuid}"
        if device.details.get("problem"):
            lines.append(f"{label}: {device.details['problem']}")
        if device.details.get("ecc_errors"):
            lines.append(f"{label}: {device.details['ecc_errors']} uncorrected memory errors")
        lines += [
            f"{label}: Xid {event['code']} after {event['at']} s"
            for event in device.details.get("xids") or ()
        ]
    return lines
