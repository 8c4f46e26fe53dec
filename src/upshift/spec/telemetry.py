"""What a running step tells of itself, beside its result: metrics, cards, what its frameworks see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import attrs

MetricValue = Union[bool, int, float, str, None]


@attrs.frozen(kw_only=True)
class Metric:
    """One call of ``upshift.log(...)``.

    Parameters
    ----------
    at
        Seconds since the attempt started.
    values
        By name.
    step
        The caller's own count (of batches, of epochs); None: not said.
    rank
        Of the process that logged it.
    """

    at: float
    values: Mapping[str, MetricValue]
    step: float | None = None
    rank: int = 0


@attrs.frozen(kw_only=True)
class Card:
    """One thing to look at: a picture, a table, a text.

    Parameters
    ----------
    title
        For people.
    media
        Media type of the content: ``"image/png"``, ``"image/svg+xml"``, ``"text/html"``,
        ``"text/markdown"``.
    digest, bytes
        The content, a blob.
    at
        Seconds since the attempt started.
    """

    title: str
    media: str
    digest: str
    bytes: int
    at: float = 0.0


@attrs.frozen(kw_only=True)
class Framework:
    """What a framework sees of the accelerators, in the step's own process.

    Parameters
    ----------
    name, version
        ``"torch"``, ``"2.13.0+cpu"``.
    built_for
        What it was compiled for: ``"cuda 12.6"``, ``"rocm 6.2"``; None: for no accelerator.
    devices
        How many it sees; None: it could not say.
    architectures
        Compute capabilities that it has kernels for: ``"sm_90"``.
    problem
        Its own words, where asking it failed.
    """

    name: str
    version: str
    built_for: str | None = None
    devices: int | None = None
    architectures: tuple[str, ...] = ()
    problem: str | None = None
