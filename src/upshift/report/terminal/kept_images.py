"""The images that Upshift has built, and what of them was removed, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import attrs

from upshift.images.reference import shortened
from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, ago, count
from upshift.report.terminal.images import short
from upshift.report.terminal.layout import GAP, Page, columns, cut, fit, heading

if TYPE_CHECKING:
    from upshift.images.kept import Kept

_HEADINGS = ("image", "of project", "recipe", "size", "built", "in")


def kept_table(images: Sequence[Kept], page: Page | None = None, now: datetime | None = None) -> str:
    """One line for each image; a size in an engine is with the parent, which images share."""
    page = page or Page()
    rows = [
        (
            _title(image).removeprefix(f"{image.place}:"),
            f"{image.project}{', another home' if image.ours is False else ''}" if image.project else DASH,
            short(image.recipe) or DASH,
            DASH if image.bytes is None else format_size(image.bytes),
            DASH if image.made is None else ago(datetime.fromtimestamp(image.made, timezone.utc), now),
            image.place + (f", {count(image.containers, 'container')}" if image.containers else ""),
        )
        for image in images
    ]
    natural = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    least = [12, *(min(width, 8) for width in natural[1:])]
    widths = fit(natural, page.width - GAP * (len(natural) - 1), least)
    lines = heading(_HEADINGS, widths, page)
    for row in rows:
        lines.append(columns([cut(cell, width) for cell, width in zip(row, widths, strict=True)], widths))
    return "\n".join(lines)


def kept_json(images: Sequence[Kept]) -> list[dict[str, Any]]:
    """The same as JSON: sizes are bytes, times ISO 8601 in UTC."""
    return [
        {
            **attrs.asdict(image),
            "made": None
            if image.made is None
            else datetime.fromtimestamp(image.made, timezone.utc).isoformat().replace("+00:00", "Z"),
        }
        for image in images
    ]


def pruned_text(
    removed: Sequence[Kept],
    stayed: Mapping[str, str],
    others: Sequence[Kept] = (),
    ageless: Sequence[Kept] = (),
    *,
    dry_run: bool,
) -> str:
    """What was removed, and what stays and why.

    Parameters
    ----------
    removed
        The images.
    stayed
        Names of images, each with the reason.
    others
        Images that stay because somebody else had them built.
    ageless
        Images that stay because they do not tell when they were built, where that counts.
    dry_run
        Whether nothing was changed.
    """
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {_title(image)}, in {image.place}" for image in removed]
    lines += [f"{'would stay' if dry_run else 'stays'}: {name}: {why}" for name, why in stayed.items()]
    lines = lines or ["Nothing to remove."]
    foreign = [image for image in others if image.ours is False]
    if foreign:
        verb, them = ("was", "it") if len(foreign) == 1 else ("were", "them")
        lines.append(
            f"{count(len(foreign), 'more image')} {verb} not built with this UPSHIFT_HOME: "
            f"upshift image list shows whose, --all removes {them} as well."
        )
    for place in dict.fromkeys(image.place for image in others if image.ours is None):
        number = sum(image.place == place and image.ours is None for image in others)
        stays, them = ("stays", "it") if number == 1 else ("stay", "them")
        lines.append(
            f"{count(number, 'image')} in {place} {stays}: a registry does not tell who had {them} built. "
            f"--all removes {them}."
        )
    for place in dict.fromkeys(image.place for image in ageless):
        number = sum(image.place == place for image in ageless)
        stays = "would stay" if dry_run else "stays" if number == 1 else "stay"
        was, goes = ("it was", "it goes") if number == 1 else ("they were", "they go")
        lines.append(
            f"{count(number, 'more image')} in {place} {stays}, since nothing tells when {was} built. "
            f"Without --older-than {goes}."
        )
    return "\n".join(lines)


def _title(image: Kept) -> str:
    return shortened(image.names[0]) if image.names else short(image.reference)
