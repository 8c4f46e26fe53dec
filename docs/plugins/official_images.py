"""Lines ``<!-- images by driver -->``, ``… by GPU -->`` and ``… by release -->`` become tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from upshift.images.gpu_checks import OFFICIAL, Official, fits, nearest
from upshift.model.settings.kinds import KINDS
from upshift.runtime.accelerators.compatibility import (
    DRIVER_OF_CUDA,
    LEAST_DRIVER,
    SUPPORTED_BY_CUDA,
    fitting_cuda,
    newest_cuda,
    parse,
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    for what, table in (("driver", by_driver), ("GPU", by_gpu), ("release", by_release)):
        place = f"<!-- images by {what} -->"
        if place in markdown:
            markdown = markdown.replace(place, table())
    return markdown


def by_driver() -> str:
    """For each driver that begins something: the newest image that runs, and the newest without a limit."""
    rows = []
    for driver in _drivers():
        rows.append([driver, newest_cuda(driver) or "", *_for(driver)])
    heads = [
        "driver from",
        "made for CUDA",
        "newest image that runs",
        "newest that can also compile at run time",
    ]
    return _table(heads, rows)


def _drivers() -> list[str]:
    """Where an image more begins to run, or to run without a limit; newest first."""
    found: list[str] = []
    shown = ("–", "–")
    for driver in sorted({*DRIVER_OF_CUDA.values(), *LEAST_DRIVER.values()}, key=parse):
        if _for(driver) != shown:
            shown = _for(driver)
            found.append(driver)
    return found[::-1]


def _for(driver: str) -> tuple[str, str]:
    newest = parse(newest_cuda(driver))
    whole = next((i for i in OFFICIAL if fits(i, driver=driver) and parse(i.cuda) <= newest), None)
    return _name(nearest(driver=driver)), _name(whole)


def by_gpu() -> str:
    """For each compute capability of the catalogue: which CUDA knows it, and the newest image."""
    rows = []
    for capability in sorted(SUPPORTED_BY_CUDA, key=parse, reverse=True):
        models = [kind.name for kind in KINDS if kind.capability == capability]
        image = nearest(architectures=[capability])
        if models:
            shown = ", ".join(models[:4]) + (", …" if len(models) > 4 else "")
            rows.append([capability, shown, fitting_cuda(capability) or "", _name(image)])
    return _table(["compute capability", "GPUs", "CUDA", "newest image, for the oldest driver"], rows)


def by_release() -> str:
    """For each release of PyTorch: its images."""
    rows = []
    for torch in dict.fromkeys(image.torch for image in OFFICIAL):
        images = [image for image in OFFICIAL if image.torch == torch]
        tags = ", ".join(f"`{image.reference.partition(':')[2]}`" for image in images)
        rows.append([torch, images[0].python, tags])
    return _table(["PyTorch", "Python", "tags of `pytorch/pytorch`"], rows)


def _name(image: Official | None) -> str:
    return f"`{image.reference}`" if image else "–"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
