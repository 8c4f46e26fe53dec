"""What mypy, and so an editor, sees of steps and pipelines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = """
from __future__ import annotations
from typing import Annotated
from upshift import Retry, Run, ResourceSettings, get_run, pipeline, resources, retry, step, timeout, unmapped

class Data: ...
class Model: ...

@step
def load(path: str = "x") -> Data: ...  # type: ignore[empty-body]

@step(settings={"resources": ResourceSettings(gpu_count=1)}, retries=Retry(times=2))
def train(data: Data, lr: float = 0.1) -> Model: ...  # type: ignore[empty-body]

@resources(gpu=1, memory="1GB")
@retry
@step
@timeout(minutes=5)
def split(data: Data) -> tuple[Annotated[Data, "train"], Data]: ...  # type: ignore[empty-body]

@step
def save(model: Model) -> None: ...

@pipeline
def training(lr: float = 0.1) -> Model:
    return train(load(), lr)

@pipeline(tags=["a"])
def both() -> tuple[Model, Model]:
    return training().output, training(0.5).output
"""

TYPES = {
    "train": "Step[[data: Data, lr: float =], Model]",
    "load()": "Data",
    "train(load(), lr=0.5)": "Model",
    "split(load())": "tuple[Data, Data]",
    "train.map(data=[load()])": "list[Model]",
    "train.map(data=unmapped(load()), lr=[0.1])": "list[Model]",
    "split.map([load()])": "tuple[list[Data], list[Data]]",
    "train.with_options(timeout=5)": "Step[[data: Data, lr: float =], Model]",
    "train.with_options(on='x').after(load())": "Step[[data: Data, lr: float =], Model]",
    "train.when(True)(load())": "Model",
    "train.after(save(train(load())))(load())": "Model",
    "training": "Pipeline[[lr: float =], Model]",
    "training.with_options(tags='a')": "Pipeline[[lr: float =], Model]",
    "training(lr=0.2)": "Run[Model]",
    "training(lr=0.2).output": "Model",
    "both().output[1]": "Model",
    "training().status": "str",
    "get_run('latest')": "Run[Any]",
}

MISTAKES = {
    "train()": 'Missing positional argument "data"',
    "train(load(), learning_rate=1)": 'Unexpected keyword argument "learning_rate"',
    "train('x')": 'Argument 1 to "__call__" of "Step" has incompatible type "str"; expected "Data"',
    "save(load())": 'has incompatible type "Data"; expected "Model"',
    "training('x')": 'has incompatible type "str"; expected "float"',
    "step(retires=2)": "retires",
    "train.with_options(retires=2)": 'Unexpected keyword argument "retires"',
    "resources(gpus=2)": 'Unexpected keyword argument "gpus"',
    "train(unmapped(load()))": 'expected "Data"',
}


def checked(code: str, folder: Path) -> list[str]:
    """What mypy says to lines of code, without the file's name."""
    file = folder / "snippet.py"
    file.write_text(code)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--no-incremental",
        "--config-file=",
    ]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, cwd=folder)
    assert not done.stderr, done.stderr
    return [re.sub(r"\bsnippet\.", "", line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy says to each expression; one run of it for all of them."""
    pytest.importorskip("mypy")
    lines = [*(f"reveal_type({e})" for e in TYPES), *MISTAKES]
    output = checked(HEADER + "\n".join(lines) + "\n", tmp_path_factory.mktemp("types"))
    first = HEADER.count("\n") + 1
    found: dict[str, list[str]] = {expression: [] for expression in [*TYPES, *MISTAKES]}
    found["elsewhere"] = []
    for line in output:
        match = re.match(r"[^:]+:(\d+): (.*)", line)
        assert match, line
        number = int(match[1]) - first
        found[[*TYPES, *MISTAKES][number] if number >= 0 else "elsewhere"].append(match[2])
    return found


def test_the_users_module_is_clean(said: dict[str, list[str]]) -> None:
    assert said["elsewhere"] == []


@pytest.mark.parametrize("expression", TYPES)
def test_types_survive(said: dict[str, list[str]], expression: str) -> None:
    (line,) = said[expression]
    revealed = line.partition('Revealed type is "')[2].rstrip('"')
    assert re.sub(r"\b(builtins|upshift\.[a-z.]+)\.", "", revealed).replace("def (", "(") == TYPES[expression]


@pytest.mark.parametrize("expression", MISTAKES)
def test_mistakes_are_seen_before_anything_runs(said: dict[str, list[str]], expression: str) -> None:
    assert any(MISTAKES[expression] in line for line in said[expression]), said[expression]
