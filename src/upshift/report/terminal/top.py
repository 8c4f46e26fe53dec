"""What runs now, as lines of text: ``upshift top``.

A line for each step, and one for each device of this machine; on a page that is too narrow for that
several, so that nothing is cut that tells one step from another.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from types import FrameType

from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, count, elapsed, many, number, of_its_own, processes
from upshift.report.terminal import (
    GAP,
    Page,
    cells,
    cleaned,
    columns,
    cut,
    fit,
    heading,
    spark,
    wants_colour,
    wrap,
)
from upshift.report.views.top import DeviceNow, GpuNow, Now, Running
from upshift.runs.catalog.opening import INTERRUPTED
from upshift.runs.catalog.rows import RunRow
from upshift.runtime.storage.series import Number

_SPARK = 8
"""Columns of a curve, at least; it takes what is left."""
_WIDEST_SPARK = 60
_STEP = 10
"""Columns that the name of a step keeps, at least."""


def lines(now: Now, page: Page) -> list[str]:
    """What runs, what waits, and the devices of this machine."""
    running, devices = [one for one in now.running if one.waits is None], now.devices
    waiting = [one for one in now.running if one.waits is not None]
    clock = datetime.fromtimestamp(now.at).strftime("%H:%M:%S")
    found = [*wrap(f"{_summary(running, waiting)} · {clock}", page.width)]
    if running:
        found += ["", *(_if_it_fits(_table(running, page), page) or _stacked(running, page))]
    if waiting:
        found += ["", *_waiting(waiting, page)]
    if devices:
        found += ["", *(_if_it_fits(_devices(devices, page), page) or _stacked_devices(devices, page))]
    return found


def _if_it_fits(table: list[str], page: Page) -> list[str] | None:
    return table if all(cells(line) <= page.width for line in table) else None


def _summary(running: Sequence[Running], waiting: Sequence[Running]) -> str:
    wait = f", {len(waiting):,} {'wait' if len(waiting) > 1 else 'waits'}" if waiting else ""
    if not running:
        return f"nothing runs{wait}"
    runs = len({one.run.id for one in running})
    return f"{count(len(running), 'step')} of {count(runs, 'run')}{wait}"


def _waiting(waiting: Sequence[Running], page: Page) -> list[str]:
    found = []
    for run, ones in groupby(waiting, key=lambda one: one.run):
        found.append(page.paint(cut(_run(run), page.width), "dim"))
        for one in ones:
            first, *rest = wrap(f"{_name(one)}  waiting: {one.waits}", page.width)
            found += [first, *(f"  {more}" for line in rest for more in wrap(line, page.width - 2))]
    return found


def _table(running: Sequence[Running], page: Page) -> list[str]:
    gpus = any(one.gpus for one in running)
    names = ["step", "time", "CPU", "memory", *(["GPU"] if gpus else []), "last minute"]
    rows = [[_name(one), *_figures(one, gpus=gpus)] for one in running]
    natural = [max(map(cells, column)) for column in zip(names[:-1], *rows, strict=True)]
    room = page.width - GAP * len(natural)
    widths = fit(natural, room - len(names[-1]), [min(natural[0], _STEP), *natural[1:]])
    curve = max(_SPARK, min(_WIDEST_SPARK, room - sum(widths)))
    found = heading(names, [*widths, max(curve, len(names[-1]))], page)
    for run, ones in groupby(zip(running, rows, strict=True), key=lambda pair: pair[0].run):
        found.append(page.paint(cut(_run(run), page.width), "dim"))
        for one, row in ones:
            found.append(columns([_name(one, widths[0]), *row[1:], _curve(one, curve)], [*widths, curve]))
    return found


def _stacked(running: Sequence[Running], page: Page) -> list[str]:
    found = []
    for run, ones in groupby(running, key=lambda one: one.run):
        found += [page.paint(cut(_run(run), page.width), "dim")]
        for one in ones:
            time, cpu, memory, gpu = _figures(one, gpus=True)
            parts = [f"CPU {cpu}", memory, *([f"GPU {gpu}"] if one.gpus else [])]
            found += wrap(f"{_name(one)}  {time}", page.width)
            found += [f"  {line}" for line in wrap(", ".join(parts), page.width - 2)]
            found += [f"  {_curve(one, page.width - 2)}".rstrip()]
    return found


def _run(run: RunRow) -> str:
    interrupted = f" · {INTERRUPTED}, and its tasks continue" if run.status == INTERRUPTED else ""
    return f"{run.id} · {run.pipeline}{interrupted}"


def _name(one: Running, width: int | None = None) -> str:
    """The task; where that is too wide the end of the step's name is missing, and nothing else."""
    index = "" if one.task.index is None else f"[{one.task.index}]"
    attempt = f" #{one.attempt}" if one.attempt > 1 else ""
    node = f" on {one.node}" if one.node and one.node != socket.gethostname() else ""
    together = f" ({many(one.granted)})" if processes(one.granted) else ""
    rest = f"{index}{attempt}{together}{node}"
    return (one.task.step if width is None else cut(one.task.step, max(1, width - cells(rest)))) + rest


def _figures(one: Running, *, gpus: bool) -> list[str]:
    granted = one.granted
    cpu, memory = one.now.get("cpu"), one.now.get("memory")
    found = [
        elapsed(one.seconds),
        _of(
            None if cpu is None else f"{cpu:.2f}", granted and granted.cpu_count and number(granted.cpu_count)
        ),
        _of(
            None if memory is None else of_its_own(memory),
            granted and granted.memory and format_size(granted.memory),
        ),
    ]
    if gpus:
        mean = None if one.gpu_mean is None else f"{one.gpu_mean:.2f}"
        found.append(_of(mean, str(len(one.gpus))) if one.gpus else "")
    return found


def _of(used: str | None, granted: object) -> str:
    return f"{used or DASH} of {granted}" if granted else used or DASH


def _curve(one: Running, width: int) -> str:
    values = one.curve()[-width:]
    most = 100.0 if one.gpu_mean is not None else max([1.0, *_known(values)])
    granted = one.granted.cpu_count if one.granted is not None else None
    if one.gpu_mean is None and granted:
        most = max(most, granted)
    return spark(values, width=width, bounds=(0.0, most))


def _known(values: Sequence[Number]) -> list[float]:
    return [value for value in values if value is not None]


def _devices(devices: Sequence[DeviceNow], page: Page) -> list[str]:
    names = ("GPU", "model", "busy", "memory", "power", "temp.", "who has it")
    rows = [_device(one) for one in devices]
    natural = [max(map(cells, column)) for column in zip(names, *rows, strict=True)]
    least = [natural[0], 8, *natural[2:6], _STEP]
    widths = fit(natural, page.width - GAP * (len(natural) - 1), least)
    found = heading(names, widths, page)
    for row in rows:
        found.append(columns([cut(text, width) for text, width in zip(row, widths, strict=True)], widths))
    return found


def _stacked_devices(devices: Sequence[DeviceNow], page: Page) -> list[str]:
    found = []
    for one in devices:
        index, model, busy, memory, power, temperature, who = _device(one)
        known = ", ".join(text for text in (busy, memory, power, temperature) if text != DASH)
        found.append(cut(f"GPU {index}  {model}", page.width))
        found += [f"  {line}" for text in (known, who) if text for line in wrap(text, page.width - 2)]
    return found


def _device(one: DeviceNow) -> tuple[str, str, str, str, str, str, str]:
    device = one.device
    index = DASH if device.index is None else str(device.index)
    name = device.model or device.kind or device.vendor or "GPU"
    model = f"{name} {device.partition}" if device.partition else name
    now = one.now or GpuNow()
    used = None if now.memory is None else format_size(now.memory)
    memory = _of(used, device.memory and format_size(device.memory))
    return (
        *(index, model, _amount(now.busy, "%"), memory),
        *(_amount(now.power, "W"), _amount(now.temperature, "°C"), _who(one)),
    )


def _amount(value: Number, unit: str) -> str:
    return DASH if value is None else f"{value:.0f} {unit}"


def _who(one: DeviceNow) -> str:
    if one.holder is not None:
        return _name(one.holder)
    return "free" if one.pid is None else f"process {one.pid}"


INTERVAL = 1.0
"""Seconds between two drawings."""
_QUIT = b"qQ\x03\x04"

Draw = Callable[[Page], Sequence[str]]


def show(draw: Draw) -> None:
    """Draw what ``draw`` gives, until q, Ctrl-C or the end of the terminal; then leave it as it was."""
    with _terminal():
        while True:
            width, height = shutil.get_terminal_size((80, 24))
            found = draw(Page(width, wants_colour(sys.stdout)))
            lines = (f"{cleaned(line)}\x1b[K\r\n" for line in _fitting(found, height - 1))
            _write("\x1b[H" + "".join(lines) + "\x1b[J")
            if _asked_to_end():
                return


def _fitting(lines: Sequence[str], height: int) -> Sequence[str]:
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], f"… {len(lines) - height + 1:,} more lines: upshift top --once"]


def _asked_to_end() -> bool:
    """Wait until it is time to draw again; True: somebody has seen enough."""
    if not sys.stdin.isatty():
        select.select([], [], [], INTERVAL)
        return False
    if not select.select([sys.stdin], [], [], INTERVAL)[0]:
        return False
    typed = os.read(sys.stdin.fileno(), 64)
    return not typed or any(key in _QUIT for key in typed)


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """A screen of its own without a cursor, and keys as they are pressed."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        _write("\x1b[?1049h\x1b[?25l")
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone
            _write("\x1b[?25h\x1b[?1049l")
        if keyboard is not None and before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
