"""A plan for a person: what would run where and with what, the graph first, then each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from upshift.model.settings.retry import RETRYABLE
from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, TIMES, count, counted, duration, number
from upshift.report.terminal import (
    GAP,
    Page,
    cells,
    columns,
    cut,
    draw,
    fit,
    heading,
    labelled,
    pad,
    wrap,
)
from upshift.report.terminal.images import finding_lines, in_order, in_short, origins_of
from upshift.report.views.records import SHORT, side_by_side
from upshift.runs.history.values import param_items

if TYPE_CHECKING:
    from upshift.code.packages import PackagePart
    from upshift.model.settings.retry import Retry
    from upshift.report.views.plan import Plan, PlannedCode, PlannedStep, PlannedTask

_MARKS = {"runs": "●", "reused": "○", "depends": "◐", "skipped": "□", "fails": "×", "refused": "×"}
_MEANINGS = {
    "runs": "to run",
    "reused": "reused",
    "depends": "undecided",
    "skipped": "skipped",
    "fails": "fails",
    "refused": "refused",
}
_STYLES = dict(zip(_MEANINGS.values(), ("cyan", "blue", "yellow", "dim", "red", "red"), strict=True))
_SIZES = frozenset({"memory", "gpu_memory", "disk", "shared_memory"})
_HEADINGS = ("step", "tasks", "what", "on", "asked", "granted")
_NOTES = 20
"""Columns that notes beside a step of the graph take at least."""
_LISTED = 6
"""Files left out, and reasons of the tasks of one step, that are named."""


def show_plan(plan: Plan, *, page: Page | None = None) -> str:
    """Everything that a plan says."""
    page = page or Page()
    parts = [
        _header(plan, page),
        _graph(plan, page),
        _table(plan, page),
        _to_come(plan, page),
        show_code(plan.code, page),
    ]
    return "\n\n".join(filter(None, parts))


def show_scripts(plan: Plan, page: Page) -> str:
    """What the targets of the steps would be given: each script as it is; words beside them are comments."""
    if plan.document is not None:
        if "IMAGE" not in plan.document:
            return plan.document.rstrip("\n")
        note = _comment("IMAGE stands for an image that is not made yet.", page)
        return f"{note}\n\n{plan.document}".rstrip("\n")
    parts = [_script_of(step, page) for step in plan.steps]
    if any(step.scripts for step in plan.steps):
        note = "RUN stands for the id of the run, from which the names of jobs are derived."
        if any("IMAGE" in script for step in plan.steps for script in step.scripts or ()):
            note += " IMAGE stands for an image that is not made yet."
        parts.append(_comment(note, page))
    return "\n\n".join([*parts, *filter(None, [_to_come(plan, page, comment=True)])])


def _comment(text: str, page: Page, style: str | None = None) -> str:
    lines = (f"# {line}" for line in wrap(text, page.width - 2))
    return "\n".join(page.paint(line, style) if style else line for line in lines)


def _script_of(step: PlannedStep, page: Page) -> str:
    title = f"{_title(step)} on {step.target}"
    what = action(step)
    if what not in ("runs", "depends"):
        told = f"{title}: {_MEANINGS[what]}, nothing is submitted"
    elif step.scripts is None:
        told = f"{title}: backend {step.backend} starts tasks itself, there is no script to show"
    else:
        told = title
        if step.secrets:  # which no script has in it
            told += f", with {', '.join(f'{secret.name}=***' for secret in step.secrets)} in its environment"
        if step.mapped and step.length is None:
            told += ", one of its tasks: how many there are is not known yet"
    return "\n\n".join(
        [_comment(told, page, "bold"), *(script.rstrip("\n") for script in step.scripts or ())]
    )


def _to_come(plan: Plan, page: Page, *, comment: bool = False) -> str:
    """What is not known before steps have chosen where to go."""
    if not plan.to_come:
        return ""
    text = f"then, as steps choose while the run goes on: {', '.join(plan.to_come)}"
    return _comment(text, page) if comment else "\n".join(wrap(text, page.width))


def action(step: PlannedStep) -> str:
    """What will become of a step as a whole: of its tasks' actions the one that matters most."""
    if step.refused:
        return "refused"
    found = {task.action for task in step.tasks}
    return next((name for name in ("fails", "runs", "depends", "reused") if name in found), "skipped")


def _header(plan: Plan, page: Page) -> str:
    shares = Counter(action(step) for step in plan.steps)
    told = [f"{shares[name]:,} {meaning}" for name, meaning in _MEANINGS.items() if shares[name]]
    summary = count(len(plan.steps), "step") + (": " + ", ".join(told) if told else "")
    facts = {"target": [plan.target], "store": [plan.store], "params": param_items(plan.params, plan.texts)}
    lines = [
        f"  {page.paint(pad(label, LABEL), 'dim')}{line}"
        for label, items in facts.items()
        if items
        for label, line in labelled(label, items, page.width - 2 - LABEL)
    ]
    first, *rest = wrap(f"plan of {plan.pipeline} · {summary}", page.width)
    title = first.replace(plan.pipeline, page.paint(plan.pipeline, "bold"), 1)
    return "\n".join([title, *rest, *lines])


# The graph


def _graph(plan: Plan, page: Page) -> str:
    if not plan.steps:
        return ""
    actions = {step.name: action(step) for step in plan.steps}
    drawn = draw(
        {step.name: list(dict.fromkeys(edge.step for edge in step.needs)) for step in plan.steps},
        {name: _MARKS[what] for name, what in actions.items()},
        most=page.width // 3,
    )
    lines = drawn or [_MARKS[actions[step.name]] for step in plan.steps]
    left = max(map(cells, lines))
    names = [cut(_title(step), page.width - left - GAP) for step in plan.steps]
    middle = min(max(map(cells, names)), page.width // 3)
    text = []
    for step, line, name in zip(plan.steps, lines, names, strict=True):
        what = actions[step.name]
        notes = _notes(step, everything=drawn is None)
        room = page.width - left - max(middle, cells(name)) - 2 * GAP
        if room >= _NOTES:
            first, *rest = wrap(notes, room)
        else:  # below the name, where there is more room
            first, rest = "", wrap(notes, page.width - left - middle - 2 * GAP) if notes else []
        mark = _MARKS[what]
        painted = pad(line, left).replace(mark, page.paint(mark, _STYLES[_MEANINGS[what]]), 1)
        text.append(columns((painted, page.paint(name, "bold"), page.paint(first, "dim")), (left, middle, 0)))
        text += [" " * (left + middle + 2 * GAP) + page.paint(more, "dim") for more in rest]
    used = [what for what in _MARKS if what in actions.values()]
    text += [page.paint(line, "dim") for line in _legend(used, page.width)]
    return "\n".join(text)


def _legend(used: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for told in (f"{_MARKS[what]} {_MEANINGS[what]}" for what in used):
        if lines and cells(f"{lines[-1]}   {told}") <= width:
            lines[-1] += f"   {told}"
        else:
            lines.append(told)
    return lines


def _title(step: PlannedStep) -> str:
    if not step.mapped:
        return step.name
    return f"{step.name} {TIMES}{'?' if step.length is None else f'{step.length:,}'}"


def _notes(step: PlannedStep, *, everything: bool) -> str:
    """What the lines do not say of a step's needs: their kinds; all of them where there are no lines."""
    words = {"item": "for each of ", "when": "when ", "after": "after ", "data": "needs "}
    by_kind = {
        kind: [edge.step for edge in step.needs if edge.kind == kind]
        for kind in words
        if everything or kind != "data"
    }
    return " · ".join(f"{words[kind]}{', '.join(names)}" for kind, names in by_kind.items() if names)


# The steps


def _table(plan: Plan, page: Page) -> str:
    if not plan.steps:
        return "No steps."
    rows = [
        (step.name, _tasks(step), _MEANINGS[action(step)], _place(step), _hardware(step))
        for step in plan.steps
    ]
    plain = zip(_HEADINGS[:4], zip(*(row[:4] for row in rows), strict=True), strict=True)
    texts = [[name, *column] for name, column in plain]
    texts += [[_HEADINGS[i + 4], *(pair[i] for row in rows for pair in row[4])] for i in (0, 1)]
    natural = [max(map(cells, column)) for column in texts]
    least = [max(cells(word) for text in column for word in text.split() or [""]) for column in texts]
    least[0], least[2], least[3] = min(natural[0], 12), natural[2], min(natural[3], 8)
    room = page.width - GAP * (len(natural) - 1)
    narrow = sum(least) > room
    widths = fit(natural, room, least)
    lines = [] if narrow else heading(_HEADINGS, widths, page)
    first_uses: dict[str, str] = {}
    first_images: dict[object, str] = {}
    for step, row in zip(plan.steps, rows, strict=True):
        lines += _stacked(row, page) if narrow else _block(row, widths, page)
        first_use = first_uses.setdefault(step.step, step.name)
        first_image = first_images.setdefault(_image_key(step), step.name)
        lines += _details(step, first_use, first_image, page)
    if any(cell.endswith(SHORT) for row in rows for pair in row[4] for cell in pair):
        lines.append(page.paint(f"{SHORT.strip()} less than is asked for", "yellow"))
    return "\n".join(lines)


def _tasks(step: PlannedStep) -> str:
    return "?" if step.length is None and step.mapped else f"{1 if step.length is None else step.length:,}"


def _place(step: PlannedStep) -> str:
    return step.target if step.target == step.backend else f"{step.target} ({step.backend})"


def _hardware(step: PlannedStep) -> list[tuple[str, str]]:
    records = side_by_side([{"asked": step.asked, "granted": step.granted}])
    return [(row[0], row[1]) for row in records] or [(DASH, DASH if step.granted else "nothing")]


_Row = tuple[str, str, str, str, list[tuple[str, str]]]


def _block(row: _Row, widths: Sequence[int], page: Page) -> list[str]:
    name, tasks, what, place, hardware = row
    above = []
    if cells(name) > widths[0]:  # a name is what the user types elsewhere: it is never cut
        above, name = [page.paint(name, "bold")], ""
    wrapped = [(wrap(asked, widths[4]), wrap(granted, widths[5])) for asked, granted in hardware]
    sides = [
        (asked[i] if i < len(asked) else "", granted[i] if i < len(granted) else "")
        for asked, granted in wrapped
        for i in range(max(len(asked), len(granted)))
    ]
    places = wrap(place, widths[3])
    lines = []
    for i in range(max(len(sides), len(places))):
        asked, granted = sides[i] if i < len(sides) else ("", "")
        lines.append(
            columns(
                (
                    page.paint(name, "bold") if i == 0 else "",
                    tasks if i == 0 else "",
                    page.paint(what, _STYLES[what]) if i == 0 else "",
                    places[i] if i < len(places) else "",
                    asked,
                    page.paint(granted, "yellow" if granted.endswith(SHORT) else None),
                ),
                widths,
            )
        )
    return above + lines


def _stacked(row: _Row, page: Page) -> list[str]:
    """The cells of a step below each other, where the page is too narrow for a table."""
    name, tasks, what, place, hardware = row
    of = {"?": ", how many tasks is not known yet", "1": ""}.get(tasks, f", {tasks} tasks")
    lines = [page.paint(line, "bold") for line in wrap(name, page.width)]
    told = wrap(f"{what} · {place}{of}", page.width - 2)
    lines += [f"  {line.replace(what, page.paint(what, _STYLES[what]), 1)}" for line in told]
    for record, column in zip(_HEADINGS[4:], zip(*hardware, strict=True), strict=True):
        texts = [text for text in column if text and text != DASH]
        style = "yellow" if any(text.endswith(SHORT) for text in texts) else None
        for label, line in labelled(record, ", ".join(texts) or DASH, page.width - 2 - LABEL):
            lines.append(f"  {page.paint(pad(label, LABEL), 'dim')}{page.paint(line, style)}")
    return lines


def _details(step: PlannedStep, first_use: str, first_image: str, page: Page) -> list[str]:
    """What is to be said below a step; what holds for each use of its function, or image, is said once."""
    image = _image(step) if first_image == step.name else [("image", f"as {first_image}", None)]
    settings = [*_origins(step), *_launch(step), *_shortfalls(step), *_secrets(step), *_limits(step), *image]
    if settings and first_use != step.name:
        settings = [("asks", f"as {first_use}", None)]
    details = [*(() if step.refused else _reasons(step)), *settings]  # it has none to run, or to be reused
    lines = [
        f"  {page.paint(pad(label, LABEL), 'dim')}{page.paint(line, style)}"
        for name, text, style in details
        for label, line in labelled(name, text, page.width - 2 - LABEL)
    ]
    if first_use == first_image == step.name and step.image is not None:
        margin = 2 + LABEL
        for finding in in_order(step.image.findings):
            lines += finding_lines(finding, page, indent=margin)
    return lines


_Detail = tuple[str, str, "str | None"]


def _reasons(step: PlannedStep) -> Iterable[_Detail]:
    """Why its tasks run or not; where their reasons differ, how many have which."""
    actions = dict.fromkeys(task.action for task in step.tasks)
    whys = {what: counted(_why(task) for task in step.tasks if task.action == what) for what in actions}
    groups = sorted(
        ((many, what, why) for what in actions for why, many in whys[what].items() if why),
        key=lambda g: -g[0],
    )
    shown = groups[:_LISTED]
    for i, (many, what, why) in enumerate(shown):
        share = "" if many == len(step.tasks) else f"{many:,} of {len(step.tasks):,} {_verb(what, many)}: "
        yield "why" if i == 0 else "", share + why, None
    if len(groups) > len(shown):
        yield "", f"and {count(len(groups) - len(shown), 'other reason')}: --json", None


def _verb(what: str, many: int) -> str:
    one = {"runs": "run", "depends": "depend", "fails": "fail"}
    return one.get(what, what) if many > 1 else what


def _why(task: PlannedTask) -> str:
    behind = ", ".join(task.depends_on[:_LISTED])
    more = len(task.depends_on) - _LISTED
    behind += f" and {more:,} more" if more > 0 else ""
    if task.action != "depends":
        return "; ".join(filter(None, (task.reason, behind and f"after {behind}")))
    return f"depends on {behind}; {task.reason or 'reused if its inputs turn out the same as before'}"


def _origins(step: PlannedStep) -> Iterable[_Detail]:
    """The request of a step by where its values were set."""
    said: dict[str, list[str]] = {}
    for value in step.request:
        shown = format_size(value.value) if value.field in _SIZES else _plain(value.value)
        if isinstance(value.value, float):
            shown = number(value.value)
        said.setdefault(value.origin or "derived", []).append(f"{value.field}={shown}")
    for i, (origin, values) in enumerate(said.items()):
        yield "asks" if i == 0 else "", f"{', '.join(values)}: {origin}", None


def _launch(step: PlannedStep) -> Iterable[_Detail]:
    """How many processes it has, what their launcher is told, and who said so."""
    launch = step.launch
    if launch is None:
        return
    asked = launch.processes
    nodes = (step.granted.nodes if step.granted else None) or 1
    told = [f"{launch.launcher}, {asked:,} process{'' if asked == 1 else 'es'}"]
    if nodes > 1 and launch.per_node:
        told[0] += f", {launch.per_node} on each node"
    told += [f"{name}={_plain(value)}" for name, value in launch.arguments.items()]
    told += launch.files
    if launch.numa_binding is not None:
        told.append(f"{'' if launch.numa_binding else 'not '}bound to NUMA nodes")
    told += [f"port {launch.port}"] if launch.port is not None else []
    told += [f"stopped after {duration(launch.hang)} without progress"] if launch.hang is not None else []
    yield "launch", f"{', '.join(told)}: {step.launch_origin}", None
    for remark in step.remarks:
        yield "", remark, "yellow"


def _shortfalls(step: PlannedStep) -> Iterable[_Detail]:
    refused = step.granted is None or step.strict
    label, style = ("refused", "red") if refused else ("degraded", "yellow")
    for shortfall in step.shortfalls:
        if shortfall.field != "image":
            yield label, f"asked {shortfall.asked}, gets {shortfall.got}: {shortfall.why}", style
            label = ""
    if step.granted is None and not step.shortfalls:
        yield label, "the backend cannot run it", style


def _secrets(step: PlannedStep) -> Iterable[_Detail]:
    """Names and sources; a value is nowhere to be seen."""
    for i, secret in enumerate(step.secrets):
        label = "secrets" if i == 0 else ""
        if secret.problem is not None:
            yield label, secret.problem.what, "red"
        else:
            yield label, f"{secret.name} from {secret.source}: {secret.origin}", None


def _limits(step: PlannedStep) -> Iterable[_Detail]:
    if step.retry.times:
        yield "retries", _retries(step.retry), None
    if step.timeout is not None:
        yield "timeout", f"{duration(step.timeout)} for each attempt", None
    if step.cache_expires is not None:
        yield "cache", f"a result is reused for {duration(step.cache_expires)}", None


def _retries(retry: Retry) -> str:
    text = f"{retry.times:,}"
    if retry.delay:
        text += f", the first after {duration(retry.delay)}"
        if retry.times > 1 and retry.backoff != 1:
            text += (
                f", each next one {TIMES}{number(retry.backoff)} later, at most {duration(retry.max_delay)}"
            )
    if retry.on != RETRYABLE:
        text += f"; on {', '.join(retry.on)}"
    return text


def _image_key(step: PlannedStep) -> object:
    """What steps have in common of which the same is to be said about their images."""
    known = step.image
    if known is None:
        return step.name
    said = (known.ingredients.origins.items(), known.ingredients.notes, known.findings)
    return step.target, known.digest or repr(known.ingredients.recipe), repr(said)


def _image(step: PlannedStep) -> Iterable[_Detail]:
    if step.image is not None:
        for number, line in enumerate(in_short(step.image)):
            yield "" if number else "image", line, None
        return
    if not step.docker:
        return
    said = ", ".join(f"{name}={cut(_plain(value), 40)}" for name, value in step.docker.items())
    unused = [shortfall for shortfall in step.shortfalls if shortfall.field == "image"]
    style = ("red" if step.strict else "yellow") if unused else None
    yield "image", said, style
    if step.docker_origins:
        yield "", origins_of(step.docker_origins), None
    if unused:
        yield "", f"not used: {unused[0].why}", style


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)


LABEL = 9
"""Columns of the words before what is said."""
"""Parts of it, and files left out, that are named."""
_TIE = "\0"
"""A blank at which no line ends, for as long as lines are made."""


def show_code(code: PlannedCode, page: Page) -> str:
    """What the run would keep of the project, or send to other machines."""
    if code.files is None or code.bytes is None:
        text = f"no package of {code.project}: {code.problem}"
    else:
        text = f"{count(code.files, 'file')}, {format_size(code.bytes)}, of {code.project}"
    lines = labelled("code", text, page.width - LABEL)
    if len(code.parts) > 1:
        parts = [_part(part) for part in code.parts[:_LISTED]]
        more = len(code.parts) - _LISTED
        parts += [f"{more:,} more: --json"] if more > 0 else []
        whole = ", ".join(part.replace(" ", _TIE) for part in parts)  # no line ends within one of them
        held = labelled("holds", whole, page.width - LABEL)
        lines += [(label, line.replace(_TIE, " ")) for label, line in held]
    if code.left_out:
        named = ", ".join(f"{item.path} ({item.why})" for item in code.left_out[:_LISTED])
        more = len(code.left_out) - _LISTED
        named += f" and {more:,} more: --json" if more > 0 else ""
        lines += labelled("left out", named, page.width - LABEL)
    return "\n".join(f"{page.paint(pad(label, LABEL), 'dim')}{line}" for label, line in lines)


def _part(part: PackagePart) -> str:
    many = f"{count(part.files, 'file')}, " if part.name.endswith("/") else ""
    return f"{part.name} ({many}{format_size(part.bytes)})"
