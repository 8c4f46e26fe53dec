"""Steps with many processes that use Accelerate and PyTorch as they are."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

import upshift
from nvml import FakeNvml
from project import Project
from told import TELL, told

pytest.importorskip("torch")
pytest.importorskip("accelerate")

HEADER = "from upshift import ResourceSettings, pipeline, run_with_accelerate, run_with_torchrun, step\n"


def ranks_seen(step: str) -> list[dict[str, Any]]:
    seen = upshift.get_run("latest")[step].tasks[0].attempts[-1].seen
    assert seen is not None
    ranks: list[dict[str, Any]] = seen.details["ranks"]
    return ranks


def test_two_processes_on_cpus_are_two_and_work_together(project: Project) -> None:
    project.run("""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> list:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import gather_object

    accelerator = Accelerator(mixed_precision="bf16")
    mean = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]), "mean").item()
    mine = (accelerator.num_processes, accelerator.process_index, accelerator.mixed_precision, mean)
    return gather_object([mine])

@pipeline
def example():
    return train()
""")
    assert upshift.get_run("latest").output == [(2, 0, "bf16", 1.5), (2, 1, "bf16", 1.5)]
    seen = ranks_seen("train")
    assert [(rank["rank"], rank["world_size"], rank["device"]) for rank in seen] == [
        (0, 2, None),
        (1, 2, None),
    ]
    assert len({rank["pid"] for rank in seen}) == 2


def test_arguments_reach_the_accelerator(project: Project) -> None:
    project.run("""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2, mixed_precision="bf16", debug=True)
@step
def train() -> list:
    import os
    from accelerate import Accelerator

    accelerator = Accelerator()
    return [accelerator.mixed_precision, accelerator.num_processes, os.environ["ACCELERATE_DEBUG_MODE"]]

@pipeline
def example():
    return train()
""")
    assert upshift.get_run("latest").output == ["bf16", 2, "true"]


def test_torchrun_forms_a_group_that_is_taken_down_and_an_accelerator_finds_one(project: Project) -> None:
    outcome = project.run("""
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step
def sums() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()

@run_with_torchrun(nproc_per_node=2)
@step
def finds() -> int:
    from accelerate import Accelerator

    return Accelerator().num_processes

@pipeline
def example():
    return sums(), finds()
""")
    assert upshift.get_run("latest").output == (3.0, 2)
    assert [rank["group"] for rank in project.attempt("finds")["seen"]["ranks"]] == [2, 2]
    assert "never formed a group" not in outcome.text


def test_processes_that_are_each_in_a_group_of_one_are_refused(project: Project) -> None:
    project.run(
        """
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step
def train(folder: str) -> int:
    import os
    import torch.distributed as dist

    meeting = "file://" + os.path.join(folder, "meeting" + os.environ["RANK"])
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    return 1

@pipeline
def example(folder: str):
    return train(folder)
""",
        "-p",
        f"folder={project.folder}",
        expect=1,
    )
    error = project.attempt("train")["error"]
    assert error["message"].startswith("each of the 2 processes has worked in a group of its own")
    assert error["fix"].startswith("Leave out rank and world_size where the step calls init_process_group()")
    assert 1 in [rank["group"] for rank in project.attempt("train")["seen"]["ranks"]]


@pytest.mark.parametrize(
    "launcher", ["run_with_accelerate(cpu=True, num_processes=2)", "run_with_torchrun(nproc_per_node=2)"]
)
def test_processes_of_which_accelerate_counts_one_are_refused_where_it_counts(
    project: Project, launcher: str
) -> None:
    project.run(
        f"""
from upshift import run_with_accelerate, run_with_torchrun

@{launcher}
@step
def train() -> int:
    from accelerate import PartialState

    state = PartialState()
    raise LookupError("the work was about to be done")

@pipeline
def example():
    return train()
""",
        expect=1,
    )
    error = project.attempt("train")["error"]
    assert "Accelerate counts 1 process where 2 were started" in error["message"]
    assert error["where"].startswith("pipeline.py:")
    assert "PartialState(cpu=True)" in error["fix"]


def test_a_state_of_accelerate_that_is_told_to_use_cpus_counts_all(project: Project) -> None:
    project.run("""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> int:
    from accelerate import PartialState

    return PartialState(cpu=True).num_processes

@pipeline
def example():
    return train()
""")
    assert upshift.get_run("latest").output == 2


def test_processes_that_never_meet_are_remarked_on(project: Project) -> None:
    outcome = project.run("""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> int:
    return 1

@pipeline
def example():
    return train()
""")
    assert "the 2 processes never formed a group" in outcome.text
    assert outcome.text.count("never formed a group") == 1


def test_a_module_that_looks_at_its_rank_when_imported_finds_it(project: Project) -> None:
    code = (
        TELL
        + """
import os
from accelerate import Accelerator
from upshift import run_with_accelerate

LOCAL_RANK = int(os.environ.get("LOCAL_RANK", -1))
accelerator = Accelerator(cpu=True)

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> None:
    tell(local=LOCAL_RANK, found=accelerator.process_index, of=accelerator.num_processes)

@pipeline
def example():
    train()

if __name__ == "__main__":
    example()
"""
    )
    expected = [{"local": rank, "found": rank, "of": 2} for rank in range(2)]
    project.run(code)
    assert told(project.folder, 2) == expected
    project.write(code.replace("-> None:\n    tell", "-> None:\n    print()\n    tell"))
    for file in project.folder.glob("rank*.json"):
        file.unlink()
    project.python("pipeline.py")
    assert told(project.folder, 2) == expected


def test_a_port_that_is_fixed_and_taken_is_refused_with_who_has_it(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = project.run(
            f"""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2, main_process_port={port})
@step
def train() -> int:
    return 1

@pipeline
def example():
    return train()
""",
            expect=1,
        )
    assert f"main_process_port={port} is taken: Process {os.getpid()} (" in outcome.text
    assert "leave out main_process_port" in outcome.text
    assert "(infrastructure)" in outcome.text


def test_an_accelerate_that_cannot_be_imported_is_said_with_the_remedy(project: Project) -> None:
    project.write("raise ImportError('not for this test')\n", "accelerate/__init__.py", header="")
    project.write("__version__ = '1.0.0'\n", "accelerate/commands/launch.py", header="")
    outcome = project.run(
        """
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> int:
    return 1

@pipeline
def example():
    return train()
""",
        expect=1,
    )
    assert "runs with Accelerate, which cannot be imported where it runs: not for this test" in outcome.text
    assert "pip install accelerate" in outcome.text


def test_each_rank_has_a_gpu_of_its_own(project: Project, fake_nvml: Callable[..., FakeNvml]) -> None:
    project.run(
        """
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step(settings={"resources": ResourceSettings(gpu_count=2)})
def train() -> str:
    import os

    return os.environ["CUDA_VISIBLE_DEVICES"]

@pipeline
def example():
    return train()
""",
        env=fake_nvml(2).environment(),
    )
    visible = upshift.get_run("latest").output.split(",")
    assert [rank["device"] for rank in ranks_seen("train")] == visible
    assert len(set(visible)) == 2


def test_batches_shrink_until_they_fit_on_every_rank(project: Project) -> None:
    project.run("""
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> list:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size, gather_object

    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=64, reduce_batch_size_fn=lambda: tried[-1] // 2)
    def batches(batch_size):
        tried.append(batch_size)
        torch.empty(batch_size if batch_size <= 16 else 2**60)
        return batch_size

    return gather_object([(batches(), tried)])

@pipeline
def example():
    return train()
""")
    assert upshift.get_run("latest").output == [(16, [64, 32, 16])] * 2


def test_a_rank_without_memory_for_any_batch_is_named(project: Project) -> None:
    outcome = project.run(
        """
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def train() -> int:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size

    accelerator = Accelerator()

    @find_executable_batch_size(starting_batch_size=4)
    def fit(batch_size):
        torch.empty(2**60 if accelerator.process_index == 1 else 1)

    fit()
    accelerator.wait_for_everyone()
    return 1

@pipeline
def example():
    return train()
""",
        expect=1,
    )
    assert "train failed on rank 1 (out-of-memory): host memory ran out" in outcome.text


def test_an_allocation_that_failed_on_a_rank_is_named(project: Project) -> None:
    outcome = project.run(
        """
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step
def train() -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        torch.empty(5 * 10**14, dtype=torch.uint8)
    dist.barrier()
    return 1

@pipeline
def example():
    return train()
""",
        expect=1,
    )
    assert (
        "failed on rank 1 (out-of-memory): host memory ran out: 500 TB could not be allocated" in outcome.text
    )


def test_a_torch_that_sees_no_gpu_is_found_out_before_any_user_code(
    project: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    outcome = project.run(
        """
from upshift import run_with_accelerate

@run_with_accelerate(num_processes=2, multi_gpu=True)
@step
def train() -> int:
    print("user code ran")
    return 1

@pipeline
def example():
    return train()
""",
        env=fake_nvml(2).environment(),
        expect=1,
    )
    assert "(hardware)" in outcome.text
    assert "torch" in outcome.text
    assert "user code ran" not in outcome.text
