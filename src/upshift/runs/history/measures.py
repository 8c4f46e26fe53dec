"""Metrics as single values: the last one of each task, and which of several is the best."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from upshift.errors import UsageError
from upshift.model.spec.telemetry import MetricSummary, MetricValue
from upshift.runtime.storage.metrics import from_json

Mode = Literal["max", "min"]

_LOWER, _HIGHER, _NEITHER = (
    frozenset(words.split())
    for words in (
        "brier cer cost duration eer err error fid kl latency logloss loss mae mape mse nll perplexity ppl "
        "regret rmse seconds ter time violations wer",
        "acc accuracy ap auc auprc auroc bleu correlation dice f1 fps hit hits iou kappa likelihood map mcc "
        "miou mrr ndcg pearson precision psnr r2 recall return reward rouge score sensitivity spearman "
        "specificity ssim success throughput",
        "coef coefficient epoch epochs id index lr scale seed step steps weight",
    )
)
"""Words in the names of metrics of which less is better, of which more is, and of which neither holds."""
_WORD = re.compile(r"[A-Z]?[a-z]+[0-9]?|[A-Z]+[0-9]?|[0-9]+")


def mode_of(metric: str) -> Mode | None:
    """Which value of a metric is the best, by its name; None: that does not tell."""
    for word in reversed([word.lower() for word in _WORD.findall(metric)]):
        if word in _NEITHER:
            return None
        if word in _LOWER or word in _HIGHER:
            return "min" if word in _LOWER else "max"
    return None


def known_mode(metric: str, mode: str | None) -> Mode:
    """How to choose among values of a metric.

    Raises
    ------
    UsageError
        ``mode`` is invalid, or is not said and the name does not tell.
    """
    if mode is None:
        mode = mode_of(metric)
        if mode is None:
            raise UsageError(
                f"whether more or less of {metric!r} is better is not known",
                why="Only names such as accuracy and loss tell.",
                fix='Say mode="max" or mode="min".',
            )
    if mode not in ("max", "min"):
        raise UsageError(f"mode={mode!r} is unknown", fix='Say mode="max" or mode="min".')
    return "max" if mode == "max" else "min"


def last_values(summaries: Mapping[str, MetricSummary]) -> dict[str, MetricValue]:
    """The newest value of each metric."""
    return {name: from_json(summary.last) for name, summary in summaries.items()}


def number(value: object) -> float | None:
    """A value that can be compared: a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def best_of(values: Sequence[object], mode: Mode | None) -> int | None:
    """The place of the best value; None: there is none, or nobody knows which."""
    numbers = {at: known for at, value in enumerate(values) if (known := number(value)) is not None}
    if mode is None or not numbers:
        return None
    return (max if mode == "max" else min)(numbers, key=numbers.__getitem__)


def qualified(steps: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What several steps logged, by metric; by ``step.metric``, where several steps logged the same one."""
    every = list(steps)
    names = [name for _, metrics in every for name in metrics]
    return {
        name if names.count(name) == 1 else f"{step}.{name}": value
        for step, metrics in every
        for name, value in metrics.items()
    }
