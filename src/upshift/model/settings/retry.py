"""When a failed attempt is tried again, and what follows when it is not: :class:`Retry`, :class:`Catch`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import attrs

from upshift.errors import SettingsError, suggestion, user_location
from upshift.model.checks import MOST_SECONDS, Told, bad_value, number, refuse_unknown_fields, shown

STOPPED = "stopped-from-outside"
"""That a signal of somebody else's ended it, as far as its supervisor knows; its backend may know more."""
REASONS = (
    "user-error",
    "out-of-memory",
    "timeout",
    "preempted",
    STOPPED,
    "hang",
    "hardware",
    "infrastructure",
    "cancelled",
)
"""Why an attempt did not complete; the values of ``reason`` in every record."""

RETRYABLE = tuple(reason for reason in REASONS if reason != "cancelled")
MOST_RETRIES = 10_000
MOST_FACTOR = 1000


def _reasons(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (str, Sequence, Set)):
        raise bad_value("Retry", "on", value, f"a list of causes: {', '.join(RETRYABLE)}")
    reasons = (value,) if isinstance(value, str) else tuple(value)
    for reason in reasons:
        if not isinstance(reason, str) or reason not in RETRYABLE:
            raise SettingsError(
                f"Retry: on={shown(reason)} is not a cause of failure",
                where=user_location(),
                fix=suggestion(str(reason), RETRYABLE),
            )
    return tuple(r for r in RETRYABLE if r in reasons)


def _number(least: float, most: float, *, whole: bool = False) -> Any:
    def convert(value: Any, field: Any) -> Any:
        checked = number("Retry", field.name, value, least=least, most=most, whole=whole)
        return checked if whole else float(checked)

    return Told(convert)


@refuse_unknown_fields
@attrs.frozen(kw_only=True)
class Retry:
    """How often, for what, and after how long a failed attempt is tried again.

    Parameters
    ----------
    times
        Attempts after the first one.
    delay
        Seconds before the second attempt.
    backoff
        Factor on the delay for each further attempt.
    max_delay
        Seconds that the delay never exceeds.
    on
        Causes that are worth another attempt; all of them by default. One of
        ``user-error``, ``out-of-memory``, ``timeout``, ``preempted``, ``stopped-from-outside``, ``hang``,
        ``hardware``, ``infrastructure``.
    memory_factor
        After an attempt that ran out of memory the next one asks for so many times as much, as far as
        there is any.

    Raises
    ------
    SettingsError
        A field is unknown, its value is invalid, or it could never matter.
    """

    times: int = attrs.field(default=0, converter=_number(0, MOST_RETRIES, whole=True))
    delay: float = attrs.field(default=0.0, converter=_number(0, MOST_SECONDS))
    backoff: float = attrs.field(default=2.0, converter=_number(1, MOST_FACTOR))
    max_delay: float = attrs.field(default=300.0, converter=_number(0, MOST_SECONDS))
    on: tuple[str, ...] = attrs.field(default=RETRYABLE, converter=_reasons)
    memory_factor: float = attrs.field(default=1.0, converter=_number(1, MOST_FACTOR))

    def __attrs_post_init__(self) -> None:
        if self.memory_factor > 1 and (not self.times or "out-of-memory" not in self.on):
            why = (
                "times=0 means no further attempt"
                if not self.times
                else f"on={list(self.on)!r} leaves it out"
            )
            raise SettingsError(
                f"Retry: memory_factor={self.memory_factor:g} could never matter: {why}",
                where=user_location(),
                fix='Set times, and keep "out-of-memory" among on.',
            )

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failed attempts."""
        # A large exponent overflows long before it would matter.
        return min(self.max_delay, self.delay * self.backoff ** min(failures - 1, 64))

    def again(self, reason: str | None, failures: int) -> bool:
        """Whether another attempt follows the ``failures``-th failure, which had this reason."""
        return failures <= self.times and reason in self.on

    @classmethod
    def from_value(cls, value: Retry | int) -> Retry:
        """A policy, or a number of retries."""
        return value if isinstance(value, cls) else cls(times=value)


@attrs.frozen(kw_only=True)
class Catch:
    """A flow goes on after a step that failed in all of its attempts.

    Parameters
    ----------
    var
        Name of the artifact that tells why; None: there is none.
    shown
        Whether the exception is printed.
    """

    var: str | None = None
    shown: bool = True
