"""What is noted of who has a device counts for the process that has it, and for no other."""

from __future__ import annotations

import os
from pathlib import Path

from upshift.model.spec import TaskId
from upshift.runtime.supervisor import device_pool

TASK = TaskId(run="20261121-164606-8yvk", step="train", index=3)


def test_the_task_is_named_as_long_as_its_process_has_the_device() -> None:
    assert device_pool.noted("GPU-0", os.getpid()) is None
    device_pool.note(["GPU-0", "GPU-1"], TASK)
    named = device_pool.noted("GPU-1", os.getpid())
    assert named == "train[3] of run 20261121-164606-8yvk"
    assert device_pool.held_by(os.getpid(), [], named) == f"is held by {named}"
    assert device_pool.noted("GPU-0", os.getppid()) is None, "somebody else has it since"
    assert device_pool.noted("GPU-0", None) is None


def test_a_home_that_cannot_be_written_keeps_nobody_from_a_device(upshift_home: Path) -> None:
    upshift_home.parent.mkdir(parents=True, exist_ok=True)
    upshift_home.write_text("no folder")
    device_pool.note(["GPU-0"], TASK)
    assert device_pool.noted("GPU-0", os.getpid()) is None
