"""Parameters and metrics of runs as plain values, from the records alone: nothing is unpickled."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from upshift.errors import UsageError
from upshift.model.plain import TEXT, flat, is_opaque, opaque, words
from upshift.model.spec.task import Artifact
from upshift.model.spec.telemetry import MetricSummary, MetricValue
from upshift.runtime.storage.artifacts import described
from upshift.runtime.storage.metrics import from_json


def plain_params(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Each parameter in plain form; ``texts`` is as in :class:`~upshift.model.graph.Graph`."""
    found = {name: described(artifact) for name, artifact in saved.items()}
    for name, text in texts.items():
        if name not in found or is_opaque(found[name]):
            kind = saved[name].type if name in saved else "object"
            found[name] = opaque(kind, text) if isinstance(text, str) else text
    return found


def flat_params(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Each value in plain form, by the name that ``--param`` takes: ``{"config.lr": 0.1, "n": [64]}``."""
    plain = plain_params(saved, texts)
    return {key: value for name, param in plain.items() for key, value in flat(param, name).items()}


def param_items(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> list[str]:
    """The parameters in words: ``["config.lr=0.1", "n=[64]"]``."""
    return [f"{name}={words(value)}" for name, value in flat_params(saved, texts).items()]


def params_as_json(saved: Mapping[str, Artifact], texts: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for ``--json``: a value without a JSON form as its type, size and digest."""
    return {
        name: _artifact(saved.get(name), param.get(TEXT)) if is_opaque(param) else param
        for name, param in plain_params(saved, texts).items()
    }


def _artifact(artifact: Artifact | None, text: str | None) -> dict[str, Any]:
    known = {field: getattr(artifact, field, None) for field in ("type", "digest", "bytes")}
    return {**known, "text": text}


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
                fix='Use mode="max" or mode="min".',
            )
    if mode not in ("max", "min"):
        raise UsageError(f"mode={mode!r} is unknown", fix='Use mode="max" or mode="min".')
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
