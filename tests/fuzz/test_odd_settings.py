"""Whatever a setting, an option of a decorator or an argument of a public function is: it is taken, and then
a plan can be made with it, or refused with its name and what would be right.

``UPSHIFT_FUZZ_CASES`` is how many cases each class and function gets, ``UPSHIFT_TEST_SEED`` what they are
chosen by.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import upshift
from forked import Ended, forked
from odd import Odd
from upshift.authoring.loading import load_module
from upshift.authoring.running import plan
from upshift.engine import RunOptions
from upshift.errors import UpshiftError
from upshift.report.terminal.plan import show_plan
from upshift.report.views.plan import plan_as_json
from upshift.runtime.launch.arguments import known_arguments

CASES = int(os.environ.get("UPSHIFT_FUZZ_CASES", "5"))
SEED = os.environ.get("UPSHIFT_TEST_SEED", "1")
SECONDS = 30
"""Until a call counts as hanging."""
BYTES = 1 << 29
"""What a call may take beyond what the tests have."""
LONGEST = 4000
"""Characters that a message may have."""

USUAL: Mapping[str, Sequence[Any]] = {
    "cpu_count": (2, 0.5),
    "memory": ("16GB", 10**9),
    "accelerator": ("H100:8", ["H100", "A100-80GB/1g.10gb:2"]),
    "gpu_memory": ("40GB", ">=40GB"),
    "parent_image": ("python:3.12-slim",),
    "requirements": (["torch==2.4.*"], "requirements.txt"),
    "apt_packages": (["git"],),
    "environment": ({"A": "b"},),
    "runtime_environment": ({"A": "b"},),
    "python_package_installer": ("uv",),
    "python_package_installer_args": ({"index-url": "https://example.org/simple"},),
    "user": ("1000:1000",),
    "platform": ("linux/amd64",),
    "image_tag": ("v1",),
    "on": ("local", "out-of-memory"),
    "times": (3,),
    "settings": ({"resources": {"cpu_count": 1}, "docker": {"apt_packages": ["git"]}},),
    "secrets": ({"TOKEN": "env:HOME"},),
    "timeout": (30,),
    "tags": (["a"],),
    "num_processes": (2,),
    "nproc_per_node": (2, "gpu"),
    "mixed_precision": ("bf16",),
    "uri": ("/shared/data", "s3://bucket/data"),
    "flag": (True, False),
}
"""What makes sense for some fields; others get a small number."""


PROJECT = """
import upshift
from upshift import DockerSettings, External, ResourceSettings, Retry, pipeline, step

def work(x=1) -> int:
    return 1

def told(**options):
    @pipeline
    def example():
        return step(**options)(work)()
    return example

def decorated(decorate):
    @pipeline
    def example():
        return step(decorate(work))()
    return example

def given(value):
    @pipeline
    def example():
        return step(work)(value)
    return example

def mapped(value):
    @pipeline
    def example():
        return step(work).map(value)
    return example

def of_pipeline(**options):
    @pipeline(**options)
    def example():
        return step(work)()
    return example

def again(**options):
    return told().with_options(**options)

def step_again(**options):
    @pipeline
    def example():
        return step(work).with_options(**options)()
    return example

MAKERS = {
    "ResourceSettings": lambda **fields: told(settings={"resources": ResourceSettings(**fields)}),
    "DockerSettings": lambda **fields: told(settings={"docker": DockerSettings(**fields)}, on="docker"),
    "DockerSettings of a pipeline": lambda **fields: of_pipeline(settings={"docker": fields}, on="docker"),
    "Retry": lambda **fields: told(retries=Retry(**fields)),
    "@step": told,
    "@pipeline": of_pipeline,
    "Step.with_options": step_again,
    "Pipeline.with_options": again,
    "@resources": lambda **options: decorated(upshift.resources(**options)),
    "@retry": lambda **options: decorated(upshift.retry(**options)),
    "@timeout": lambda **options: decorated(upshift.timeout(**options)),
    "@gpu_profile": lambda **options: decorated(upshift.gpu_profile(**options)),
    "@run_with_accelerate": lambda **options: decorated(upshift.run_with_accelerate(**options)),
    "@run_with_torchrun": lambda **options: decorated(upshift.run_with_torchrun(**options)),
    "External": lambda uri="/data", **fields: given(External(uri, **fields)),
    "HTML": lambda value="": given(upshift.HTML(value)),
    "an input": lambda value=1: given(value),
    "Step.map": lambda value=(1,): mapped(value),
    "get_run": lambda ref="latest": upshift.get_run(ref),
    "resume": lambda ref="latest", **options: upshift.resume(ref, **options),
    "list_runs": lambda **options: upshift.list_runs(**options) and None,
    "log": lambda **values: upshift.log(**values),
}
"""


def fields_of(name: str) -> Sequence[str]:
    """What it can be told, by name."""
    if name.startswith("@run_with"):
        return (*known_arguments(name.removeprefix("@run_with_"))[0], "hang")
    if name in ("an input", "Step.map", "HTML"):
        return ("value",)
    if name == "log":
        return ("step", "loss", "a b", "\udcff", "\x1b[2J")
    things = {
        "Step.with_options": upshift.Step.with_options,
        "Pipeline.with_options": upshift.Pipeline.with_options,
        "DockerSettings of a pipeline": upshift.DockerSettings,
    }
    thing = things.get(name) or getattr(upshift, name.removeprefix("@"))
    if attrs.has(thing):
        return [field.name for field in attrs.fields(thing) if field.init]
    parameters = inspect.signature(thing).parameters.values()
    return [p.name for p in parameters if p.name not in ("self", "function", "configuration")]


def fields(names: Sequence[str], odd: Odd) -> dict[str, Any]:
    """Some of these; one or two are odd."""
    chosen = {odd.one(names) for _ in range(odd.one((1, 1, 2, 3)))}
    wrong = odd.one(sorted(chosen))
    return {
        name: strange(name, odd) if name == wrong or odd.chance(0.2) else odd.one(USUAL.get(name, (1, True)))
        for name in sorted(chosen)
    }


def strange(name: str, odd: Odd) -> Any:
    """An odd value; often of the type that is meant."""
    if odd.chance(0.5):
        return odd.value()
    usual = odd.one(USUAL.get(name, ("", 1)))
    if isinstance(usual, (bool, int, float)):
        return odd.one((-1, 0, 10**8, 10**23, 1e-9, 1e300, -0.5, True, 10**400, float("nan"), float("inf")))
    if isinstance(usual, str):
        return usual + odd.text() if odd.chance(0.3) else odd.text()
    if isinstance(usual, dict):
        return {odd.one((*usual, odd.text())): odd.one((odd.text(), odd.value(1)))}
    return [*usual, odd.one((odd.text(), odd.value(1)))]


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[..., Any]]:
    """A way to a pipeline for each class and function, from a user's file."""
    file = tmp_path_factory.mktemp("odd") / "composing.py"
    file.write_text(PROJECT)
    makers: Mapping[str, Callable[..., Any]] = load_module(file).MAKERS
    return makers


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", re.findall(r'^    "(.*?)": ', PROJECT, re.MULTILINE))
def test_what_makes_no_sense_is_refused_by_name_and_the_rest_can_be_planned(
    name: str, makers: Mapping[str, Callable[..., Any]], tmp_path: Path
) -> None:
    found = []
    for number in range(CASES):
        odd = Odd((SEED, name, number))
        given = fields(fields_of(name), odd)

        def call(given: Mapping[str, Any] = given) -> None:
            use(makers[name], given)

        env = {"HOME": str(tmp_path), "UPSHIFT_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)}
        ended = forked(call, folder=tmp_path, env=env, seconds=SECONDS, most_bytes=4 * BYTES)
        problem = complaint(ended)
        if problem is not None:
            end = "\n".join(f"    {line:.200}" for line in ended.err.strip().splitlines()[-8:])
            found.append(f"[{number}] {problem}: {name} {shown(given)}\n{end}")
    assert not found, f"{len(found)} of {CASES}, seed {SEED}\n\n" + "\n\n".join(found)


def use(make: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Make what it gives; if that is a pipeline, plan a run of it and show the plan."""
    try:
        made = make(**given)
        if isinstance(made, upshift.Pipeline):
            found = plan(made, {}, options=RunOptions())
            json.dumps(plan_as_json(found))
            show_plan(found)
            if found.problem:
                raise found.problem
    except UpshiftError as error:
        check(error)


def check(error: UpshiftError) -> None:
    """A message is one that can be shown, of a sane length, with what to do."""
    text = str(error)
    text.encode()
    assert len(text) < LONGEST, f"a message of {len(text):,} characters"
    assert error.fix or error.why or "Expected" in text, f"nothing to do about: {text}"


def complaint(ended: Ended) -> str | None:
    """What is wrong with how a case ended; None: nothing."""
    if ended.hung:
        return "hangs"
    if ended.code != 0:
        return "was killed" if ended.code is None else "fails"
    if ended.grown > BYTES:
        return f"took {ended.grown:,} bytes"
    return None


def shown(given: Mapping[str, Any]) -> str:
    try:
        return f"{given!r:.300}"
    except Exception as error:
        return f"{list(given)}, which cannot be shown: {error!r}"
