"""Images as text and as JSON: before they are built, while that is done, those kept and those removed."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from upshift.images.base import ERROR, NOTE, WARNING, Contents, Finding, Image, Lock, Recipe, shortened
from upshift.model.settings.sizes import format_size
from upshift.report import ImageChange
from upshift.report.human import DASH, ago, count, elapsed
from upshift.report.terminal import (
    GAP,
    Outlet,
    Page,
    cells,
    cleaned,
    columns,
    cut,
    fit,
    heading,
    pad,
    shows,
    wants_colour,
    wrap,
)
from upshift.report.terminal.tally import Clock, Pace, ending, image_of, making

if TYPE_CHECKING:
    from upshift.images.base import Progress
    from upshift.images.built import BuiltImage
    from upshift.images.preparing import Prepared


GLYPHS = "✗→"
"""What the stream has to be able to show."""
_MARKS = {ERROR: ("✗", "X", "red"), WARNING: ("!", "!", "yellow"), NOTE: ("·", "-", "dim")}
_ORDER = (ERROR, WARNING, NOTE)
_LABEL = 8
_FIGURES = 12
"""Hexadecimal figures of a digest that are shown, as container engines do."""
_SHOWN = 12
_VALUE = 60
"""Columns of one value that is shown."""
_TOLD = ("torch", "tensorflow", "jax", "torchvision", "torchaudio", "accelerate", "numpy")
"""Packages of an image that are named; the others are counted."""


def show_image(
    prepared: Prepared, *, steps: Sequence[str], place: str, page: Page | None = None, glyphs: bool = True
) -> str:
    """Everything that is known of an image that may have to be built."""
    page = page or Page()
    first, *more = wrap(f"{image_of(steps)} · {place}", page.width)
    lines = [page.paint(first, "bold"), *more]
    for label, text in _facts(prepared):
        for number, line in enumerate(wrap(text, page.width - 2 - _LABEL)):
            lines.append(f"  {page.paint(pad('' if number else label, _LABEL), 'dim')}{line}")
    for finding in in_order(prepared.findings):
        lines += finding_lines(finding, page, glyphs=glyphs, indent=2)
    return "\n".join(line.rstrip() for line in lines)


def in_short(prepared: Prepared) -> list[str]:
    """An image in a few lines without its findings, as a plan shows it below a step."""
    ingredients, recipe = prepared.ingredients, prepared.ingredients.recipe
    added = "" if recipe.adds_nothing else f", and {'; '.join(adds(recipe))}"
    held = holds(prepared.contents)
    digest = f", recipe {short(prepared.recipe)}" if prepared.recipe else ""
    lines = [
        (shortened(recipe.parent) if recipe.parent else "its own Dockerfile") + added,
        ingredients.origins and origins_of(ingredients.origins),
        held and f"the parent holds {held}",
        outlook(prepared) + digest,
        *ingredients.notes,
    ]
    return [line for line in lines if line]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, notes last."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def finding_lines(finding: Finding, page: Page, *, glyphs: bool = True, indent: int = 0) -> list[str]:
    """What was found, what says so, and what to do about it, each on lines of its own."""
    mark, plain, style = _MARKS[finding.severity]
    mark = mark if glyphs else plain
    arrow = "→ " if glyphs else "-> "
    margin = " " * indent
    column = indent + cells(mark) + 1
    text = f"{finding.field}: {finding.what}" if finding.field else finding.what
    first, *rest = wrap(text, page.width - column)
    lines = [f"{margin}{page.paint(mark, style)} {first}", *(" " * column + line for line in rest)]
    below = [
        (line, "") for line in (finding.evidence, finding.source and f"source: {finding.source}") if line
    ]
    below += [(finding.fix, arrow)] if finding.fix else []
    for said, lead in below:
        for number, line in enumerate(wrap(said, page.width - column - cells(lead))):
            begin = lead if number == 0 else " " * cells(lead)
            lines.append(" " * column + page.paint(begin + line, "dim"))
    return lines


def _facts(prepared: Prepared) -> Iterable[tuple[str, str]]:
    ingredients, recipe, parent = prepared.ingredients, prepared.ingredients.recipe, prepared.parent
    yield "parent", shortened(recipe.parent) if recipe.parent else "as the Dockerfile has it"
    if parent is not None:
        size = "" if parent.bytes is None else f", {format_size(parent.bytes)}"
        where = ", in the container engine" if parent.in_engine else ""
        yield "", f"{parent.platform}{size}, {short(parent.digest)}{where}"
    held = holds(prepared.contents)
    if parent is not None or held:
        yield "holds", held or "nothing is known of what is in it"
    for number, text in enumerate(adds(recipe)):
        yield "" if number else "adds", text
    if ingredients.origins:
        yield "from", origins_of(ingredients.origins)
    for number, note in enumerate(ingredients.notes):
        yield "" if number else "note", note
    if prepared.lock is not None:
        yield "locked", locked(prepared.lock)
    if prepared.recipe is not None:
        yield "recipe", short(prepared.recipe)
    yield "image", outlook(prepared)


def holds(contents: Contents) -> str:
    """What is in an image, as far as it is known; empty: nothing is."""
    parts = []
    if contents.python:
        parts.append(f"Python {contents.python}")
    if contents.cuda is not None:
        parts.append(f"CUDA {contents.cuda}" if contents.cuda else "no CUDA")
    packages = contents.packages or {}
    named = [f"{name} {packages[name]}" for name in _TOLD if name in packages]
    parts += named
    if len(packages) > len(named):
        parts.append(count(len(packages) - len(named), "more package" if named else "package"))
    return f"{', '.join(parts)} ({contents.source})" if parts else ""


def adds(recipe: Recipe) -> list[str]:
    """What a recipe puts on its parent, a line for each kind of thing."""
    if recipe.skip_build:
        return ["nothing: skip_build"]
    lines = []
    if recipe.dockerfile is not None:
        lines.append(f"what a Dockerfile makes, which copies {count(len(recipe.context), 'file')}")
    if recipe.apt_packages:
        lines.append(f"apt packages {', '.join(recipe.apt_packages)}")
    if recipe.requirements:
        lines.append(" ".join([_some(recipe.requirements), *recipe.installer_args]))
    if recipe.environment:
        lines.append(f"variables {_some([f'{name}={value}' for name, value in recipe.environment.items()])}")
    if recipe.user:
        lines.append(f"the user {recipe.user}")
    return lines or ["nothing: the parent is the image"]


def locked(lock: Lock) -> str:
    """What requirements were resolved to, the first of it."""
    named = [f"{one.name} {one.version}" for one in lock.packages]
    return f"{count(len(named), 'package')}: {_some(named)}" if named else "nothing: the parent has it all"


def changes(prepared: Prepared) -> list[str]:
    """What resolving requirements again has changed, a line each."""
    if prepared.lock is None:
        return ["no requirements"]
    before = prepared.before.versions if prepared.before is not None else {}
    now = prepared.lock.versions
    lines = [
        f"{name} {before[name]} → {now[name]}" for name in now if before.get(name, now[name]) != now[name]
    ]
    lines += [f"{name} {now[name]} added" for name in now if name not in before] if before else []
    lines += [f"{name} {before[name]} removed" for name in before if name not in now]
    if lines or prepared.lock == prepared.before:
        return lines or ["requirements resolve to what they did before"]
    return [
        f"resolved for the first time: {locked(prepared.lock)}"
        if not before
        else "other files of the same versions"
    ]


def _some(things: Sequence[str]) -> str:
    """The first of them, each in a line and cut; a lock has hundreds, with hashes."""
    shown = [cut(thing.partition(" --hash")[0].replace("\n", "\\n"), _VALUE) for thing in things[:_SHOWN]]
    more = len(things) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def origins_of(origins: Mapping[str, str]) -> str:
    """Who said what: fields that were said in one place together."""
    said: dict[str, list[str]] = {}
    for field, origin in origins.items():
        said.setdefault(origin, []).append(field)
    return "; ".join(f"{', '.join(fields)}: {origin}" for origin, fields in said.items())


def outlook(prepared: Prepared) -> str:
    """What a run would do about the image, in a line."""
    if prepared.errors:
        return f"is not built: {count(len(prepared.errors), 'error')}"
    if prepared.image is not None and not prepared.builds:
        return f"is there: {called(prepared.image)}"
    return f"would be built {_how(prepared)}"


def called(image: Image) -> str:
    """What people know an image by: its name, and the digest in short."""
    name, _, digest = image.reference.rpartition("@")
    return f"{shortened(image.name or name)}, {short(digest)}" if image.name or name else short(digest)


def short(digest: str) -> str:
    """The beginning of a digest, as people compare it; JSON has the whole."""
    algorithm, colon, figures = digest.partition(":")
    return f"{algorithm}:{figures[:_FIGURES]}" if colon else digest


def _how(prepared: Prepared) -> str:
    destination = prepared.destination
    engine = destination.engine
    if engine is not None:
        return f"and loaded into {engine.title}"
    return f"and pushed to {destination.registry}" if destination.registry else ""


_HEADINGS = ("image", "of project", "recipe", "size", "built", "in")


def kept_table(images: Sequence[BuiltImage], page: Page | None = None, now: datetime | None = None) -> str:
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


def kept_json(images: Sequence[BuiltImage]) -> list[dict[str, Any]]:
    """Built images as JSON: sizes in bytes, times in ISO 8601 in UTC."""
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
    removed: Sequence[BuiltImage],
    stayed: Mapping[str, str],
    others: Sequence[BuiltImage] = (),  # somebody else had them built
    ageless: Sequence[BuiltImage] = (),  # they do not tell when they were built, where that counts
    *,
    dry_run: bool,
) -> str:
    """What was removed, and what stays and why."""
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


def _title(image: BuiltImage) -> str:
    return shortened(image.names[0]) if image.names else short(image.reference)


INTERVAL = 5.0
"""Seconds, at least, between two lines on one stage, where lines stay."""
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")


class Building:
    """What is said of one image; a context, which leaves the terminal in order."""

    def __init__(self, stream: TextIO, steps: Sequence[str], clock: Clock = time.monotonic) -> None:
        self._outlet = Outlet(stream)
        self._steps = tuple(steps)
        self._clock = clock
        self._began = clock()
        self._terminal = stream.isatty()
        self._page = Page(self._width(), wants_colour(stream))
        self._glyphs = shows(stream, GLYPHS)
        self._pace = Pace(INTERVAL)
        self._now = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="image display", daemon=True)

    def __enter__(self) -> Building:
        if self._terminal:
            self._ticking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if error is not None:
            self._line(ending(self._change("failed")))

    def say(self, text: str) -> None:
        """A line on the image."""
        self._line(f"{image_of(self._steps)}: {text}")

    def found(self, finding: Finding) -> None:
        """What was found of it, but for what is only worth knowing: that is for ``show``."""
        if finding.severity != NOTE:
            self._line("\n".join(finding_lines(finding, self._page, glyphs=self._glyphs)))

    def tell(self, progress: Progress) -> None:
        """Something happens; from any thread."""
        if self._terminal:
            self._now = _CONTROLS.sub("", making(progress))
            self._draw()
            return
        with self._lock:
            due = self._pace.due(self._change("making", progress), self._clock())
        if due:
            self.say(making(progress))

    def made(self, image: Image, *, was_there: bool) -> Image:
        """The image is complete: built now, or found."""
        self._stop()
        if was_there:
            self.say(f"is there: {shortened(image.name or image.reference)}")
        else:
            self._line(ending(self._change("made", name=image.name)))
        return image

    def _change(self, status: str, progress: Progress | None = None, name: str | None = None) -> ImageChange:
        return ImageChange(
            steps=self._steps,
            status=status,
            progress=progress,
            name=name,
            seconds=self._clock() - self._began,
        )

    def _line(self, text: str) -> None:
        with self._lock:
            if self._terminal:
                self._outlet.draw("\r\x1b[K")
            self._outlet.write(f"{text}\n")

    def _tick(self) -> None:
        while not self._over.wait(1.0):  # the line shows seconds that pass
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._over.is_set():
                line = f"{image_of(self._steps)} · {elapsed(self._clock() - self._began)} · {self._now}"
                line = cut(cleaned(line).removesuffix(" · "), self._width() - 1)
                self._outlet.draw(f"\r\x1b[K{line}")

    def _stop(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._terminal:
            self._ticking.join()
            with self._lock:
                self._outlet.draw("\r\x1b[K")

    def _width(self) -> int:
        return shutil.get_terminal_size((100, 0)).columns
