"""The tools that are compared: how each is installed, set up and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]


@attrs.frozen(kw_only=True)
class Tool:
    """One tool, or one way to use it.

    Parameters
    ----------
    name
        Its name in commands and in the figures that are kept.
    title
        Its name on the page.
    requirements
        What ``pip install`` gets, pinned.
    environment
        The name of the environment where it is installed; ways to use one tool share it.
    program
        The file in ``programs/`` that does with it what is measured.
    imports
        What a user's file imports.
    trivial
        The command that runs one trivial step; ``{programs}`` is the folder of programs.
    steps, tasks
        How long its chain is, and how wide its fan-out: what it does in some seconds.
    variables
        Environment variables that a user would set; ``{home}`` is the folder that has its state.
    files
        Files that a user would write into that folder, by name.
    lacks
        Figures that make no sense for it, and why.
    process, outputs, reuse
        What it does for a step, in a few words: where it runs, what becomes of its outputs, and what of
        them is used again by later runs.
    remark
        What else a reader has to know about the version that is measured.
    """

    name: str
    title: str
    requirements: Sequence[str]
    environment: str
    program: str
    imports: str
    trivial: Sequence[str]
    steps: int
    tasks: int
    variables: Mapping[str, str] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    lacks: Mapping[str, str] = attrs.field(factory=dict)
    process: str
    outputs: str
    reuse: str
    remark: str = ""


UPSHIFT = Tool(
    name="upshift",
    title="Upshift",
    requirements=[str(ROOT)],
    environment="upshift",
    program="with_upshift.py",
    imports="from upshift import pipeline, step",
    trivial=["upshift", "run", str(ROOT / "benchmarks" / "programs" / "trivial.py"), "--no-cache"],
    steps=100,
    tasks=1_000,
    process="a process of its own, forked",
    outputs="kept",
    reuse="by code, inputs and parameters",
)

ZENML = Tool(
    name="zenml",
    title="ZenML",
    requirements=["zenml[local]==0.98.0"],
    environment="zenml",
    program="with_zenml.py",
    imports="from zenml import pipeline, step",
    trivial=["python", "{programs}/trivial_zenml.py"],
    steps=30,
    tasks=50,
    variables={"ZENML_ANALYTICS_OPT_IN": "false"},
    process="the process of the run, one after the other",
    outputs="kept",
    reuse="by code, inputs and parameters",
)

METAFLOW = Tool(
    name="metaflow",
    title="Metaflow",
    requirements=["metaflow==2.19.39"],
    environment="metaflow",
    program="with_metaflow.py",
    imports="from metaflow import FlowSpec, step",
    trivial=["python", "{programs}/trivial_metaflow.py", "run"],
    steps=20,
    tasks=100,
    lacks={"hit": "none"},
    process="a fresh interpreter",
    outputs="kept",
    reuse="none",
    remark="Its shortest flow has two steps, a start and an end.",
)

DAGSTER = Tool(
    name="dagster",
    title="Dagster",
    requirements=["dagster==1.13.29"],
    environment="dagster",
    program="with_dagster.py",
    imports="from dagster import job, op",
    trivial=["dagster", "job", "execute", "-f", "{programs}/trivial_dagster.py", "-j", "trivial"],
    steps=4,
    tasks=12,
    variables={"DAGSTER_HOME": "{home}", "DAGSTER_DISABLE_TELEMETRY": "yes"},
    files={"dagster.yaml": "telemetry:\n  enabled: false\n"},
    lacks={"hit": "none"},
    process="a fresh interpreter (the default executor)",
    outputs="kept",
    reuse="none",
)

DAGSTER_IN_PROCESS = attrs.evolve(
    DAGSTER,
    name="dagster-in-process",
    title="Dagster, in process",
    steps=40,
    tasks=100,
    variables={**DAGSTER.variables, "BENCH_IN_PROCESS": "yes"},
    lacks={"hit": "none", **dict.fromkeys(("import", "trivial", "packages", "size"), "as Dagster")},
    process="the process of the run, one after the other (`in_process_executor`)",
)

PREFECT = Tool(
    name="prefect",
    title="Prefect",
    requirements=["prefect==3.8.8", "fastapi==0.150.0"],
    environment="prefect",
    program="with_prefect.py",
    imports="from prefect import flow, task",
    trivial=["python", "{programs}/trivial_prefect.py"],
    steps=500,
    tasks=300,
    variables={"PREFECT_HOME": "{home}/.prefect", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
    lacks={"hit": "none"},
    process="the process of the run; in threads where mapped",
    outputs="not kept",
    reuse="none",
    remark="FastAPI is held back: with the newest, which pip takes by itself, the server of this version "
    "does not start. A run's end is seen once a second, so the chain is long and its figures are exact to "
    "2 ms. The server goes on recording when a run has ended, and the next run may wait for it; that is not "
    "in the figures.",
)

PREFECT_KEPT = attrs.evolve(
    PREFECT,
    name="prefect-kept",
    title="Prefect, results kept",
    variables={**PREFECT.variables, "BENCH_KEEP": "yes"},
    lacks=dict.fromkeys(("import", "trivial", "packages", "size"), "as Prefect"),
    outputs="kept (`persist_result=True`)",
    reuse="by inputs (`cache_policy=INPUTS`)",
    remark="",
)

RAY = Tool(
    name="ray",
    title="Ray",
    requirements=["ray==2.60.0"],
    environment="ray",
    program="with_ray.py",
    imports="import ray",
    trivial=["python", "{programs}/trivial_ray.py"],
    steps=200,
    tasks=1_000,
    variables={"RAY_USAGE_STATS_ENABLED": "0"},
    lacks={"hit": "none"},
    process="a worker process, used again and again",
    outputs="in shared memory, until the program ends",
    reuse="none",
    remark="The local cluster is started before the clock, except for the run of one step.",
)

LUIGI = Tool(
    name="luigi",
    title="Luigi",
    requirements=["luigi==3.8.1"],
    environment="luigi",
    program="with_luigi.py",
    imports="import luigi",
    trivial=["python", "{programs}/trivial_luigi.py"],
    steps=100,
    tasks=500,
    lacks={"hit": "last file only"},
    process="the process of the run, one after the other",
    outputs="files that the task itself writes",
    reuse="where the file of a task is there; if it is, those before it are not looked at",
)

TOOLS = {
    tool.name: tool
    for tool in (
        UPSHIFT,
        ZENML,
        METAFLOW,
        DAGSTER,
        DAGSTER_IN_PROCESS,
        PREFECT,
        PREFECT_KEPT,
        RAY,
        LUIGI,
    )
}
