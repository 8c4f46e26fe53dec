"""What the processes of one step are given: values of any type, and large ones once for all of them."""

from __future__ import annotations

import pytest

import upshift
from project import Project
from told import TELL, told

VALUES = """
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import pandas as pd

@dataclass
class Plan:
    rate: float
    layers: list[int] = field(default_factory=lambda: [3, 5])

def kept(value):
    if isinstance(value, pd.DataFrame):
        return ["DataFrame", value.to_csv(), [str(kind) for kind in value.dtypes]]
    if isinstance(value, np.ndarray):
        return ["array", value.tolist(), str(value.dtype)]
    return [type(value).__name__, repr(value)]

GIVEN = {
    "nothing": None,
    "left_out": None,
    "number": 7,
    "numbers": [1, 2.5, None],
    "table": {"a": [1, 2], "b": {"c": "text with 'quotes', --dashes and\\nlines"}},
    "flag": False,
    "empty": "",
    "plan": Plan(0.5),
    "frame": pd.DataFrame({"x": [1, 2], "name": ["a", None], "day": pd.to_datetime(["2026-01-01", None])}),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
}

@run_with_torchrun(nproc_per_node=2)
@step
def act(
    nothing: None,
    number: Optional[int],
    numbers: list,
    table: dict[str, object],
    flag: bool,
    empty: str,
    plan: Plan,
    frame: pd.DataFrame,
    array: np.ndarray,
    left_out: Optional[int] = None,
) -> list:
    values = {name: kept(value) for name, value in locals().items()}
    tell(**values)
    assert values == {name: kept(value) for name, value in GIVEN.items()}, values
    return [nothing, plan.rate, frame]
"""


@pytest.mark.parametrize("made_by", ["the pipeline", "steps"])
def test_values_of_any_type_reach_every_rank_as_they_are(project: Project, made_by: str) -> None:
    given = "GIVEN[name]" if made_by == "the pipeline" else "make(name)"
    code = f"""
@step
def make(name: str) -> object:
    return GIVEN[name]

@pipeline
def example():
    return act(**{{name: {given} for name in GIVEN if name != "left_out"}})
"""
    project.run(TELL + VALUES + code)
    first, second = told(project.folder, 2)
    assert first == second
    assert len(first) == 10
    nothing, rate, frame = upshift.get_run("latest").output
    assert nothing is None
    assert rate == 0.5
    assert frame["x"].tolist() == [1, 2]


def test_arguments_by_position_are_bound_to_their_names(project: Project) -> None:
    project.run(
        TELL
        + """
@run_with_torchrun(nproc_per_node=2)
@step
def act(a: int, b: str = "b", *, c: float = 0.5) -> str:
    tell(got=[a, b, c])
    return f"{a} {b} {c}"

@pipeline
def example():
    return act(1, "two", c=3.0)
"""
    )
    assert [rank["got"] for rank in told(project.folder, 2)] == [[1, "two", 3.0]] * 2
    assert upshift.get_run("latest").output == "1 two 3.0"


def test_tensors_reach_every_rank(project: Project) -> None:
    pytest.importorskip("torch")
    project.run(
        TELL
        + """
import torch

@step
def make() -> dict[str, torch.Tensor]:
    return {"weights": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)}

@run_with_torchrun(nproc_per_node=2)
@step
def act(tensors: dict[str, torch.Tensor], plain: torch.Tensor) -> torch.Tensor:
    kinds = [str(tensor.dtype) for tensor in tensors.values()]
    tell(sum=tensors["weights"].sum().item(), kinds=kinds, plain=plain.tolist())
    return tensors["weights"] + upshift.current.rank

@pipeline
def example():
    return act(make(), torch.tensor([1, 2]))
"""
    )
    expected = {"sum": 15.0, "kinds": ["torch.float32", "torch.bfloat16"], "plain": [1, 2]}
    assert told(project.folder, 2) == [expected, expected]
    assert upshift.get_run("latest").output.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_large_array_is_in_memory_once_for_all_ranks(project: Project) -> None:
    """Each rank reads all of 400 MB, and writes to a page; copies would not fit into what they may use."""
    project.run(
        TELL
        + """
import numpy as np

COUNT = 50_000_000

@step
def make() -> np.ndarray:
    return np.arange(COUNT)

def mapping(address):
    "The file that is mapped at an address: its device and inode."
    for line in open("/proc/self/maps"):
        span, _, _, device, inode, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return f"{device} {inode}"

def private():
    "Bytes of memory that are no file's: also pages of a file that were written to here."
    rows = dict(line.split(":") for line in open("/proc/self/smaps_rollup").readlines()[1:])
    return sum(int(rows[name].split()[0]) * 1024 for name in ("Anonymous", "Swap"))

@run_with_torchrun(nproc_per_node=4)
@step(settings={"resources": ResourceSettings(memory="300MB")})
def act(array: np.ndarray) -> int:
    before, where = private(), mapping(array.ctypes.data)
    total = int(array.sum())
    array[0] = upshift.current.rank  # nobody else sees it
    tell(where=where, total=total, first=int(array[0]), grown=private() - before)
    return total

@pipeline
def example():
    return act(make())
"""
    )
    ranks = told(project.folder, 4)
    assert {rank["total"] for rank in ranks} == {50_000_000 * 49_999_999 // 2}
    assert [rank["first"] for rank in ranks] == [0, 1, 2, 3]
    (where,) = {rank["where"] for rank in ranks}
    assert where.split()[1] != "0"
    assert max(rank["grown"] for rank in ranks) < 20_000_000
    assert project.attempt("act")["used"]["memory"] < 300_000_000


def test_files_and_folders_are_copied_once_for_all_ranks(project: Project) -> None:
    done = project.run(
        TELL
        + """
from pathlib import Path

@step
def make() -> dict[str, Path]:
    folder = Path("folder")
    folder.mkdir()
    for number in range(200):
        (folder / str(number)).write_bytes(bytes(100_000))
    return {"data": folder}

@run_with_torchrun(nproc_per_node=3)
@step
def act(files: dict[str, Path]) -> int:
    tell(where=str(files["data"]), size=sum(file.stat().st_size for file in files["data"].iterdir()))
    return 1

@pipeline
def example():
    return act(make())
"""
    )
    first, *others = told(project.folder, 3)
    assert first["size"] == 20_000_000
    assert others == [first, first]
    assert "its own copy" not in done.text
