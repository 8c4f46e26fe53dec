"""Metrics in a person's words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from upshift.model.spec.telemetry import MetricSummary, MetricValue
from upshift.runtime.storage.metrics import from_json

_LONGEST = 40


def told(values: Mapping[str, MetricValue], step: float | None = None) -> str:
    """Some metrics in a line: ``loss 0.231, accuracy 0.91 (step 120)``."""
    text = ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
    return text if step is None else f"{text} (step {value_text(step)})"


def newest(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricValue]:
    """The newest value of each metric; the name says whose it is, where it is not rank 0's."""
    return {name + of_rank(summary.rank): summary.last for name, summary in metrics.items()}


def of_rank(rank: int) -> str:
    """`` (rank 1)``; empty for rank 0, which goes without saying."""
    return f" (rank {rank})" if rank else ""


def value_text(value: MetricValue) -> str:
    """A value: numbers with four figures, or as integers; a long text is cut, and cannot move the cursor."""
    value = from_json(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else f"{value:g}"
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    line = "".join(c if c.isprintable() else "?" for c in " ".join(value.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
