"""What users of other tools look for and Upshift does not have, or has not yet: what to do instead."""

from __future__ import annotations

_NAMES = {
    "Deployer": "Nothing is deployed: let cron, a systemd timer or CI call `python flow.py run`.",
}

_ELSEWHERE = {
    "Client": "Runs and values are found by upshift.get_run, list_runs, get_artifact and list_artifacts.",
    "flow": "A pipeline is a function with @pipeline, or a class: from upshift import FlowSpec.",
    "get_pipeline_context": "In a step, upshift.current has the run.",
    "get_run_logger": "The output and logs of a step are kept: upshift logs RUN.",
    "get_step_context": "In a step, upshift.current has the run, step and attempt.",
    "log_artifact": "The return value of a step is kept with a name and a version: upshift artifacts.",
    "log_metadata": "Numbers and texts are logged by name: upshift.log(loss=0.1).",
    "log_metric": "Metrics are logged by name: upshift.log(loss=0.1, step=1).",
    "task": "A task of other tools is a step here: from upshift import step.",
}
_TASK = "Call it in a pipeline, {name}(…): each call is a task. {name}.map(items) makes one for each item."
_CLOCK = "Nothing in Upshift runs by the clock: let cron, a systemd timer or CI call `upshift run`."
_OPTIONS = {
    "enable_cache": "Use cache=False or cache=True.",
    "schedule": _CLOCK,
    "step_operator": 'Use on="docker", or another target.',
}

_METHODS = {
    "pipeline": {
        "deploy": _CLOCK,
        "map": "A step is mapped, and not a pipeline: STEP.map(items).",
        "plan": "To see what would run where: upshift plan FILE:{name}",
        "schedule": _CLOCK,
        "serve": _CLOCK,
        "submit": "Call it: {name}(…) runs it, and gives the run.",
    },
    "step": {
        "delay": _TASK,
        "expand": _TASK,
        "partial": "{name}.map(items, other=unmapped(value)) gives one value to all tasks.",
        "remote": _TASK,
        "run": "Call it: {name}(…) runs it here, and is a task where a pipeline calls it.",
        "starmap": "{name}.map(a=…, b=…) takes one list for each parameter.",
        "submit": _TASK,
    },
}

NOT_YET = "is not in this version of Upshift."
_OTHERS = ("metaflow", "zenml")


def name_to_come(name: str) -> str | None:
    """Why there is no ``upshift.NAME`` and what to do meanwhile; None: nor will there be one."""
    if name in _ELSEWHERE:
        return f"upshift has no {name!r}. {_ELSEWHERE[name]}"
    advice = _NAMES.get(name)
    return None if advice is None else f"{name} {NOT_YET} {advice}"


def option_of_another_tool(name: str) -> str | None:
    """What to say in place of an option that another tool has; None: it is none of those."""
    return _OPTIONS.get(name)


def module_of_another_tool(name: str) -> str | None:
    """What to import in place of another tool's module; None: it is no such module."""
    if name not in _OTHERS:
        return None
    return (
        "In Upshift: from upshift import step, pipeline. The page coming-from of the documentation has "
        "the other names."
    )


def method_of_another_tool(kind: str, name: str) -> str | None:
    """What to call in place of a method that another tool's steps or pipelines have; None: it is none."""
    return _METHODS[kind].get(name)
