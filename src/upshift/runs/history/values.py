"""Parameters and metrics of runs as plain values, and as tables in notebooks and pandas.

All of it is from the records alone: nothing is unpickled.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from upshift.errors import MissingExtra, UpshiftError, UsageError
from upshift.model.plain import TEXT, flat, is_opaque, opaque, words
from upshift.model.spec.task import Artifact
from upshift.model.spec.telemetry import MetricSummary, MetricValue
from upshift.runtime.storage.artifacts import described
from upshift.runtime.storage.metrics import from_json

if TYPE_CHECKING:
    import pandas


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


T = TypeVar("T")

SHOWN = 20
"""Rows that are shown."""
_NARROW = 80
_GAP = 2


class Drawn:
    """Draws itself in a notebook. How is known to the reports, above this layer, and looked up only there."""

    def _repr_html_(self) -> str | None:
        objects = import_module("upshift.report.notebook")
        try:
            return str(objects.html_of(objects.drawn(self)))
        except UpshiftError:  # what is to be drawn is not there any more; its text still is
            return None


class Rows(Drawn, list[T]):
    """A list whose items are rows of a table."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each item: what it is, and dotted names for what it was given and measured."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a table of pandas.

        Raises
        ------
        MissingExtra
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtra("to_pandas() needs pandas", fix="pip install pandas") from None
        rows = self.rows()
        return pandas.DataFrame(rows, columns=_columns(rows))

    def shown(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The columns in which a row says something, and the first rows."""
        rows = self.rows()
        told = {
            name
            for row in rows
            for name, value in row.items()
            if value not in (None, []) and value is not False
        }
        return [name for name in _columns(rows) if name in told], rows[:SHOWN]

    def __repr__(self) -> str:
        heads, rows = self.shown()
        if not rows:
            return "[]"
        columns = [[name, *(cell_text(row.get(name)) for row in rows)] for name in heads]
        lines = _side_by_side(columns, max(shutil.get_terminal_size().columns, _NARROW))
        more = [f"… and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return "\n".join([*lines, *more])


def _side_by_side(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of text; where there is no room for all columns, those go first that say the same in each row."""
    widths = [max(map(len, column)) for column in columns]
    same = [at for at, column in enumerate(columns) if at and len(set(column[1:])) == 1 < len(column) - 1]
    left = [at for at in range(len(columns)) if at not in same]
    dropped = [*reversed(same), *reversed(left[1:])]
    shown = list(range(len(columns)))
    while dropped and sum(widths[at] for at in shown) + _GAP * len(shown) > width:
        shown.remove(dropped.pop(0))
    more = " …" if len(shown) < len(columns) else ""
    return [
        (" " * _GAP).join(line[at].ljust(widths[at]) for at in shown).rstrip() + more
        for line in zip(*columns, strict=True)
    ]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all rows: what an item is, then what it was given, then what was measured."""
    names = dict.fromkeys(name for row in rows for name in row)
    return sorted(names, key=lambda name: (name.startswith("metrics."), "." in name))


def named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under ``prefix.name``; those that are not plain data in words."""
    return {f"{prefix}.{name}": words(v) if is_opaque(v) else v for name, v in values.items()}


def measured(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a run as columns; of a mapped step the best value, the least and the greatest."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(value, list):
            found[f"metrics.{name}"] = value
            continue
        best = best_of(value, mode_of(name))
        numbers = [known for one in value if (known := number(one)) is not None]
        found[f"metrics.{name}"] = None if best is None else value[best]
        found[f"metrics.{name}.min"] = min(numbers, default=None)
        found[f"metrics.{name}.max"] = max(numbers, default=None)
    return found


def cell_text(value: object) -> str:
    """A value of a column as people read it."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
