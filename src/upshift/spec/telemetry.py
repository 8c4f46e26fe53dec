"""What a running step tells of itself, beside its result: metrics, cards, what its frameworks see."""

from __future__ import annotations

from typing import Union

import attrs

MetricValue = Union[bool, int, float, str]


@attrs.frozen(kw_only=True)
class MetricSummary:
    """A metric over an attempt, in short. Plain JSON: infinities and what is no number are texts there.

    Parameters
    ----------
    last
        The newest value; ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` are numbers.
    step
        The caller's own count (of batches, of epochs) with it; None: not said.
    min, max
        Of the finite numbers; None: there are none.
    count
        Number of values.
    """

    last: MetricValue
    step: float | None = None
    min: float | None = None
    max: float | None = None
    count: int = 1


@attrs.frozen(kw_only=True)
class Card:
    """One thing to look at: a picture, a table, a text.

    Parameters
    ----------
    title
        For people.
    media
        Media type of the content: ``"image/png"``, ``"image/jpeg"``, ``"image/svg+xml"``, ``"text/html"``,
        ``"text/markdown"``, ``"application/vnd.plotly+json"`` …
    digest, bytes
        The content, a blob; text is UTF-8.
    script
        Digest of a blob with the JavaScript that draws it, one for all cards that need the same.
    at
        Seconds since the attempt started.
    """

    title: str
    media: str
    digest: str
    bytes: int
    script: str | None = None
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
