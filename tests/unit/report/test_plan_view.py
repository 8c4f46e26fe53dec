"""What ``upshift plan`` prints, from plans as the engine makes them."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from upshift.code.packages import LeftOut, PackagePart
from upshift.images.base import ERROR, WARNING, Contents, Finding, Ingredients, Recipe
from upshift.images.building.builder import Destination
from upshift.images.preparing import Prepared
from upshift.model.settings.retry import Retry
from upshift.model.spec import Hardware
from upshift.model.spec.hardware import Launch, Shortfall
from upshift.report.terminal import Page, cells
from upshift.report.terminal.plan import show_plan, show_scripts
from upshift.report.views.plan import Edge, Plan, PlannedCode, PlannedStep, PlannedTask, PlannedValue

REUSED = PlannedTask(index=None, action="reused", reason="same code, inputs and environment as run r1")
RUNS = PlannedTask(index=None, action="runs", reason="code changed: scale in features.py")


def step(name: str, *needs: str, **fields: Any) -> PlannedStep:
    defaults: dict[str, Any] = {
        "step": name,
        "location": "flow.py:9",
        "needs": tuple(Edge(step=needed, kind="data") for needed in needs),
        "mapped": False,
        "length": 1,
        "tasks": (REUSED,),
        "target": "local",
        "backend": "local",
        "request": (),
        "asked": Hardware(),
        "granted": Hardware(),
        "strict": False,
        "shortfalls": (),
        "refused": False,
        "retry": Retry(),
        "timeout": None,
        "cache": True,
        "cache_expires": None,
        "docker": {},
        "images": False,
    }
    return PlannedStep(name=name, **{**defaults, **fields})


def plan(*steps: PlannedStep, **fields: Any) -> Plan:
    code = PlannedCode(project="/home/u/project", files=3, bytes=2_000)
    defaults: dict[str, Any] = {"target": "local", "store": "/s", "params": {}, "texts": {}, "code": code}
    return Plan(pipeline="digits", steps=steps, **{**defaults, **fields})


def mapped(*tasks: PlannedTask, **fields: Any) -> PlannedStep:
    edges = (Edge(step="load", kind="item"),)
    return step("score", mapped=True, length=len(tasks), tasks=tasks, needs=edges, **fields)


def test_the_first_lines_say_what_will_happen() -> None:
    text = show_plan(plan(step("load"), step("train", "load", tasks=(RUNS,)), texts={"folds": "5"}))
    assert text.splitlines()[0] == "plan of digits · 2 steps: 1 to run, 1 reused"
    assert "params   folds=5" in text


def test_the_graph_has_a_line_for_each_step_and_says_what_lines_cannot() -> None:
    steps = (
        step("load"),
        mapped(REUSED, RUNS),
        step("report", "score", needs=(Edge(step="score", kind="data"), Edge(step="load", kind="after"))),
        step(
            "deploy", tasks=(attrs.evolve(RUNS, action="skipped"),), needs=(Edge(step="load", kind="when"),)
        ),
    )
    lines = show_plan(plan(*steps)).split("\n\n")[1].splitlines()
    assert lines == [
        "○    load",
        "├─●  score ×2  for each of load",
        "├─○  report    after load",
        "□    deploy    when load",
        "● to run   ○ reused   □ skipped",
    ]


def test_a_graph_that_is_too_wide_to_draw_names_what_each_step_needs() -> None:
    steps = [step(f"load_{i}") for i in range(30)]
    text = show_plan(plan(*steps, step("join", *(s.name for s in steps))), page=Page(80))
    assert "○  load_7" in text
    assert "○  join     needs load_0, load_1," in text
    assert "│" not in text


def test_a_request_shows_its_origins_its_grant_and_what_it_does_not_get() -> None:
    short = Shortfall(field="gpu_count", asked="8 GPUs", got="none", why="this machine has no GPU")
    train = step(
        "train",
        asked=Hardware.asked(attrs.evolve(_request())),
        granted=Hardware(cpu_count=2, gpus=()),
        request=(
            PlannedValue(field="cpu_count", value=2.0, origin="flow.py:3 (@step)"),
            PlannedValue(field="memory", value=4_000_000_000, origin="flow.py:3 (@step)"),
            PlannedValue(field="gpu_count", value=8, origin="flow.py:20 (@pipeline)"),
        ),
        shortfalls=(short,),
        tasks=(RUNS,),
    )
    text = show_plan(plan(train))
    assert "asks     cpu_count=2, memory=4 GB: flow.py:3 (@step)" in text
    assert "         gpu_count=8: flow.py:20 (@pipeline)" in text
    assert "degraded asked 8 GPUs, gets none: this machine has no GPU" in text
    assert re.search(r"8 × GPU +no GPU !", text)
    refused = show_plan(plan(attrs.evolve(train, strict=True, refused=True)))
    assert re.search(r"train +1 +refused +local", refused)
    assert "refused  asked 8 GPUs" in refused
    assert not re.search(r"^  why", refused, re.M), "it neither runs nor is reused"
    assert "× refused" in refused


def _request() -> Any:
    from upshift.config import ResourceSettings

    return ResourceSettings(cpu_count=2, gpu_count=8)


def test_tasks_of_one_step_with_different_reasons_are_counted() -> None:
    text = show_plan(plan(step("load"), mapped(REUSED, REUSED, RUNS)))
    assert "why      2 of 3 reused: same code, inputs and environment as run r1" in text
    assert "1 of 3 runs: code changed: scale in features.py" in text


def test_a_step_that_waits_for_others_says_for_which() -> None:
    open_ = PlannedTask(index=None, action="depends", depends_on=("load", "split"))
    text = show_plan(plan(step("load", tasks=(RUNS,)), step("fit", "load", tasks=(open_,))))
    assert "depends on load, split; reused if its inputs turn out the same as before" in text
    changed = attrs.evolve(open_, reason="code changed: scale in features.py")
    text = show_plan(plan(step("fit", tasks=(changed,))))
    assert "depends on load, split; code changed: scale in features.py" in text


def test_the_number_of_tasks_is_a_question_where_nobody_knows_it() -> None:
    open_ = PlannedTask(index=None, action="depends", depends_on=("load",))
    unknown = attrs.evolve(mapped(open_), length=None)
    text = show_plan(plan(step("load", tasks=(RUNS,)), unknown))
    assert "score ×?" in text
    assert re.search(r"score +\? +undecided", text)


def test_retries_timeouts_launches_and_images_are_told() -> None:
    short = Shortfall(field="image", asked="image x", got="this environment", why="backend local has none")
    text = show_plan(
        plan(
            step(
                "train",
                retry=Retry(times=2, delay=5, on=("preempted",)),
                timeout=600.0,
                launch=Launch(launcher="torchrun", processes=2, numa_binding=False, port=29500, hang=60.0),
                launch_origin="flow.py:8 (@run_with_torchrun)",
                docker={"parent_image": "x", "requirements": ("torch",)},
                docker_origins={"parent_image": "flow.py:9 (@pipeline)", "requirements": "flow.py:3 (@step)"},
                shortfalls=(short,),
            ),
        )
    )
    assert re.search(r"retries  2, the first after 5\.00 s, .* on preempted", text)
    assert "timeout  10 min 00 s for each attempt" in text
    assert (
        "launch torchrun, 2 processes, not bound to NUMA nodes, port 29500, stopped after 1 min 00 s "
        "without progress: flow.py:8 (@run_with_torchrun)" in " ".join(text.split())
    )
    assert re.search(
        r"image    parent_image=x, requirements=\['torch'\]\n +parent_image: flow.py:9 \(@pipeline\); "
        r"requirements: flow.py:3 \(@step\)\n +not used: backend local has none",
        text,
    )


def test_what_holds_for_each_use_of_a_step_is_said_once() -> None:
    request = (PlannedValue(field="cpu_count", value=2.0, origin="flow.py:3 (@step)"),)
    text = show_plan(plan(step("add", request=request), step("add_2", step="add", request=request)))
    assert text.count("flow.py:3") == 1
    assert "asks     as add" in text


def test_the_code_package_and_what_it_leaves_out() -> None:
    code = PlannedCode(
        project="/p", files=2, bytes=1_500, left_out=(LeftOut(path=".env", why="looks like a secret"),)
    )
    text = show_plan(plan(step("load"), code=code))
    assert "code     2 files, 1.5 KB, of /p" in text
    assert "left out .env (looks like a secret)" in text
    text = show_plan(plan(step("load"), code=PlannedCode(project="/p", problem="it is too large")))
    assert "code     no package of /p: it is too large" in text


def test_what_a_code_package_holds_the_largest_first() -> None:
    parts = (
        PackagePart(name="src/", files=180, bytes=1_100_000),
        PackagePart(name="data/", files=1, bytes=80_000),
        PackagePart(name="flow.py", files=1, bytes=2_000),
    )
    code = PlannedCode(project="/p", files=182, bytes=1_182_000, parts=parts)
    text = show_plan(plan(step("load"), code=code))
    assert "holds    src/ (180 files, 1.1 MB), data/ (1 file, 80 KB), flow.py (2 KB)" in text
    many = tuple(PackagePart(name=f"{i}.py", files=1, bytes=1) for i in range(9))
    text = show_plan(plan(step("load"), code=attrs.evolve(code, parts=many)))
    assert "5.py (1 B), 3 more: --json" in text
    assert "holds" not in show_plan(plan(step("load"), code=attrs.evolve(code, parts=many[:1])))


def test_what_is_known_of_an_image_is_below_its_step_with_what_was_found() -> None:
    recipe = Recipe(parent="python:3.11-slim", platform="linux/amd64", requirements=("pandas==2.3.3",))
    found = Finding(
        severity=ERROR, field="parent_image", what="python:3.11-slim has no CUDA", fix="Use another."
    )
    image = Prepared(
        ingredients=Ingredients(recipe=recipe, origins={"requirements": "flow.py:3 (@step)"}, notes=("so",)),
        destination=Destination(platform="linux/amd64"),
        parent=None,
        contents=Contents(python="3.11.9", cuda=""),
        findings=(found,),
        recipe="sha256:" + "b" * 64,
    )
    text = show_plan(plan(step("train", image=image), step("train_2", step="train", image=image)))
    assert [line.strip() for line in text.splitlines() if line.startswith("  image") or " " * 11 in line] == [
        "image    python:3.11-slim, and pandas==2.3.3",
        "requirements: flow.py:3 (@step)",
        "the parent holds Python 3.11.9, no CUDA (its configuration)",
        "is not built: 1 error, recipe sha256:bbbbbbbbbbbb",
        "so",
        "✗ parent_image: python:3.11-slim has no CUDA",
        "→ Use another.",
    ]


def test_what_holds_for_several_steps_in_one_image_is_said_once() -> None:
    found = Finding(severity=WARNING, field="platform", what="it is emulated", fix="Wait.")

    def image(origin: str) -> Prepared:
        recipe = Recipe(parent="python:3.11-slim", platform="linux/amd64")
        return Prepared(
            ingredients=Ingredients(recipe=recipe, origins={"parent_image": origin}),
            destination=Destination(platform="linux/amd64"),
            parent=None,
            contents=Contents(),
            findings=(found,),
            recipe="sha256:" + "b" * 64,
        )

    shared = "flow.py:20 (@pipeline)"
    text = show_plan(
        plan(
            step("load", image=image(shared)),
            step("train", image=image(shared)),
            step("own", image=image("flow.py:3 (@step)")),
            step("far", image=image(shared), target="elsewhere"),
        )
    )
    assert text.count("image    as load") == 1 and text.count("image    as") == 1
    assert text.count("it is emulated") == 3


def test_a_pipeline_without_steps() -> None:
    assert "plan of digits · 0 steps" in show_plan(plan())
    assert "No steps." not in show_plan(plan()).splitlines()[0]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_page(width: int) -> None:
    long = "a_step_whose_name_is_really_rather_long_for_a_page"
    tasks = (attrs.evolve(RUNS, reason="code changed: " + ", ".join(f"function_{i}" for i in range(30))),)
    steps = [step(f"{long}_{i}", tasks=tasks, target="a-cluster", backend="slurm") for i in range(12)]
    text = show_plan(plan(*steps, step("join", *(s.name for s in steps))), page=Page(width))
    assert max(cells(line) for line in text.splitlines()) <= width


def test_on_a_narrow_page_what_a_step_asks_for_stands_below_its_name() -> None:
    hardware = Hardware(cpu_count=2, memory=8 * 10**9)
    steps = [
        step("load", asked=hardware, granted=Hardware(cpu_count=1, memory=8 * 10**9)),
        attrs.evolve(
            mapped(REUSED, RUNS), needs=(Edge(step="load", kind="item"), Edge(step="load", kind="when"))
        ),
    ]
    lines = show_plan(plan(*steps), page=Page(40)).splitlines()
    at = lines.index("load")
    assert lines[at + 1] == "  reused · local"
    assert lines[at + 2] == "  asked    2 CPU, 8 GB"
    assert lines[at + 3].startswith("  granted  1 CPU")
    assert "step  tasks" not in "\n".join(lines)
    assert "for each of load" in "\n".join(lines)


def test_colours_only_where_they_are_wanted() -> None:
    steps = (step("load"), mapped(REUSED, RUNS))
    plain = show_plan(plan(*steps))
    coloured = show_plan(plan(*steps), page=Page(100, colour=True))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_scripts_are_shown_as_they_are_and_where_there_are_none_that_is_said() -> None:
    from upshift.model.settings.secrets import NeededSecret

    long = "exec python " + 200 * "x"
    secret = NeededSecret(name="TOKEN", source="env:TOKEN", origin=None, problem=None)
    steps = (
        step("load"),
        step("clean", tasks=(RUNS,)),
        mapped(RUNS, RUNS, target="cluster", backend="slurm", secrets=(secret,), scripts=(long, "b\n")),
    )
    assert show_scripts(plan(*steps), Page()).split("\n\n") == [
        "# load on local: reused, nothing is submitted",
        "# clean on local: backend local starts tasks itself, there is no script to show",
        "# score ×2 on cluster, with TOKEN=*** in its environment",
        long,
        "b",
        "# RUN stands for the id of the run, from which the names of jobs are derived.",
    ]
