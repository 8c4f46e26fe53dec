"""``upshift.log``: numbers that a step tells while it runs.

Each call is one write to the pipe to the supervisor (:mod:`upshift.runtime.messages`), nothing is held
back: what was logged is kept, though the step be killed in the next instant. What a call looks like on
the way is drawn in :mod:`upshift.runtime.messages`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from upshift.errors import SettingsError, UsageError, user_location
from upshift.model.checks import shown
from upshift.model.spec.telemetry import MetricValue
from upshift.runtime.messages import BEFORE, BETWEEN, FARTHEST, LARGE, PIPE_BUF, channel
from upshift.runtime.storage.metrics import as_json

LONGEST_NAME = 200
LONGEST_TEXT = 2900
"""Bytes of a text in JSON: it has to fit into one write, beside its name and the step."""
_KNOWN = 1000
"""Sets of names that are remembered in the form that they have on the way."""
_quoted = json.JSONEncoder(ensure_ascii=False).encode
_beginnings: dict[tuple[str, ...], str] = {}


def log(
    metrics: Mapping[str, object] | None = None,
    /,
    *misplaced: NoReturn,
    step: float | None = None,
    **more: object,
) -> None:
    """Record metrics of the running step: ``upshift.log(step=i, loss=loss)``.

    They are shown live, by ``upshift show``, ``upshift compare`` and in the report, and are in
    ``run["train"].tasks[0].attempts[-1].metrics``. What was logged is kept, however the step ends. Threads
    of the step may log, and processes that it forks. Where no step runs, as in a notebook or under a
    debugger, each call is printed and nothing is kept.

    Parameters
    ----------
    metrics
        Values by name, for names that are no identifiers: ``upshift.log({"val/loss": x}, step=i)``.
    step
        The caller's own count: of batches, of epochs.
    **more
        Values by name. A value is a number, a boolean or a text; one of NumPy, PyTorch and the like counts
        as what its ``item()`` is. NaN and infinities are kept as such.

    Raises
    ------
    SettingsError
        A value is none of these, a name is none, or one is given twice.
    UsageError
        There is nothing to record.
    """
    at = time.monotonic()
    if misplaced:
        raise _by_position(metrics, *misplaced)
    if metrics is not None:
        more = _merged(metrics, more)
        if not more:
            return
    elif not more:
        raise UsageError(
            "upshift.log() got no metric",
            where=user_location(),
            fix="Name one: upshift.log(step=i, loss=loss).",
        )
    texts = []
    for name, value in more.items():
        kind = type(value)
        if (kind is float and value - value == 0.0) or (kind is int and -LARGE < value < LARGE):  # type: ignore
            texts.append(repr(value))
        else:
            texts.append(_quoted(_plain(name, value)))
    if step is not None and not (type(step) is int and -LARGE < step < LARGE):
        step = _step(step)
    if channel:
        with contextlib.suppress(OSError):  # the supervisor has died, and this process will in a moment
            _send(at, step, tuple(more), texts)
    else:
        _print(step, more)


def _send(at: float, step: float | None, names: tuple[str, ...], texts: list[str]) -> None:
    """Say it in one line, or in several if it is too much for one."""
    beginning = _beginnings.get(names) or _begun(names)
    values = ",".join(texts)
    line = f"{beginning}{at!r},{'null' if step is None else step},{values}]]}}\n".encode("utf-8", "replace")
    if len(line) <= PIPE_BUF:
        channel.write(line)
        return
    half = len(names) // 2
    _send(at, step, names[:half], texts[:half])
    _send(at, step, names[half:], texts[half:])


def _begun(names: tuple[str, ...]) -> str:
    for name in names:
        if (
            not isinstance(name, str)
            or not name.strip()
            or len(name) > LONGEST_NAME
            or not name.isprintable()
        ):
            raise SettingsError(
                f"upshift.log(): a metric cannot be called {name!r:.100}",
                where=user_location(),
                fix=f"A name is a text of at most {LONGEST_NAME} characters that can be printed.",
            )
    if len(_beginnings) >= _KNOWN:
        _beginnings.clear()
    beginning = _beginnings[names] = f"{BEFORE.decode()}{_quoted(list(names))}{BETWEEN.decode()}["
    return beginning


def _by_position(name: object, *values: object) -> SettingsError:
    """The error for ``log("loss", 0.1)``, and for ``log("loss", 0.1, 3)``, as other tools have it."""
    said = name if isinstance(name, str) and name.isidentifier() else None
    call = f"{said}={shown(values[0])}" if said else f"{{{shown(name)}: {shown(values[0])}}}"
    if len(values) > 1:
        call += f", step={shown(values[1])}"
    return SettingsError(
        "upshift.log() takes values by name, not by position",
        where=user_location(),
        fix=f"Write upshift.log({call}).",
    )


def _merged(metrics: object, more: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(metrics, Mapping):
        raise SettingsError(
            f"upshift.log() takes values by name, and got {_described(metrics)}",
            where=user_location(),
            fix="Write upshift.log(loss=x) or upshift.log({'val/loss': x}); for a text, print() it.",
        )
    twice = metrics.keys() & more.keys()
    if twice:
        raise SettingsError(f"upshift.log(): the metric {min(twice)!r} is given twice", where=user_location())
    return {**metrics, **more}


def _plain(name: str, value: object) -> MetricValue:
    """The value as JSON has it.

    Raises
    ------
    SettingsError
        It is no number, boolean or text.
    """
    found = value
    if not isinstance(value, (bool, int, float, str)) or hasattr(value, "item"):
        found = _converted(value)
    if isinstance(found, bool):
        return found
    if isinstance(found, int) and -LARGE < found < LARGE:
        return int(found)
    if isinstance(found, (int, float)):
        try:
            return as_json(float(found))
        except OverflowError:
            raise _wrong(name, f"an integer of {found.bit_length()} bits") from None  # type: ignore
    if isinstance(found, str):
        text = str.__str__(found)
        if len(_quoted(text).encode("utf-8", "replace")) <= LONGEST_TEXT:
            return text
        raise _wrong(
            name, f"a text of {len(text):,} characters", "Print it, or upshift.current.card.append(text)."
        )
    raise _wrong(name, _described(value))


def _converted(value: object) -> object:
    """The plain value in a scalar of NumPy, PyTorch, …; None: it is none."""
    for method in ("item", "__float__"):
        convert: Callable[[Any], object] | None = getattr(type(value), method, None)
        if convert is not None:
            with contextlib.suppress(Exception):  # it has many elements, or anything else
                return convert(value)
    return None


def _step(step: object) -> float:
    plain = type(step) in (int, float)
    found = step if plain else _converted(step) if not isinstance(step, (bool, str)) else None
    if isinstance(found, (int, float)) and not isinstance(found, bool) and -FARTHEST <= found <= FARTHEST:
        return found
    what = f"an integer of {step.bit_length()} bits" if type(step) is int else _described(step)
    raise SettingsError(
        f"upshift.log(): step is {what}",
        where=user_location(),
        fix="Give the number of the batch, of the epoch, …, or leave it out.",
    )


def _wrong(name: object, what: str, fix: str | None = None) -> SettingsError:
    return SettingsError(
        f"upshift.log(): the metric {name!r} is {what}",
        where=user_location(),
        fix=fix or "A metric is one number, boolean or text; of many numbers log, for example, the mean.",
    )


def _described(value: object) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    if isinstance(shape, tuple) and shape:
        return f"of type {kind} and shape {tuple(shape)}"
    return f"the text {value!r:.60}" if isinstance(value, str) else f"of type {kind}"


def _print(step: float | None, metrics: Mapping[str, object]) -> None:
    """The words for a call where nobody keeps it."""
    from upshift.runtime.storage.metrics import told

    values = {name: _plain(name, value) for name, value in metrics.items()}
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stdout
        sys.stdout.write(f"{told(values, step)}\n")
