"""What a rank finds in its environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from upshift.model.spec.hardware import Launch, Rank
from upshift.runtime.launch.ranks import GROUP, alone, defaults, environment_of, threads_of, variables

ONE = Rank(address="127.0.0.1", port=29411)
FIFTH = Rank(
    rank=5, world_size=8, local_rank=1, local_world_size=4, node=1, nodes=2, address="10.0.0.1", port=29411
)


def test_a_rank_gets_what_torchrun_gives() -> None:
    assert variables(Launch(launcher="torchrun"), FIFTH, task="train") == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "8",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29411",
        "TORCHELASTIC_RUN_ID": "train",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_the_list_of_the_group_s_variables_is_complete() -> None:
    given = variables(Launch(launcher="torchrun"), FIFTH, task="train")
    assert tuple(given) == GROUP


def test_the_installed_torchrun_sets_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import json
    import os
    import subprocess

    script = tmp_path / "show.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))\n")
    environment = {name: value for name, value in os.environ.items() if name not in GROUP}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=1",
        str(script),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    seen = json.loads(done.stdout)
    added = {name for name in seen if name not in environment}
    ours = variables(Launch(launcher="torchrun"), ONE, task="train")
    # Its own: the file by which it hears of errors, and the signals that it passes on. LC_CTYPE is Python's.
    own = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "LC_CTYPE"}
    assert added - own == set(ours) | {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    for name in ("RANK", "WORLD_SIZE", "ROLE_NAME", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"):
        assert seen[name] == ours[name]


def test_a_role_that_was_named_is_told() -> None:
    launch = Launch(launcher="torchrun", arguments={"role": "trainer"})
    assert variables(launch, ONE, task="train")["ROLE_NAME"] == "trainer"


def test_one_process_of_accelerate_is_in_no_group() -> None:
    launch = Launch(launcher="accelerate", arguments={"num_cpu_threads_per_process": 2})
    assert variables(launch, ONE, task="train") == {"OMP_NUM_THREADS": "2"}


@pytest.mark.parametrize(("asked", "stays"), [({}, "7"), ({"num_cpu_threads_per_process": 3}, "3")])
def test_a_size_of_thread_pools_that_was_set_stays_unless_one_was_asked_for(
    asked: dict[str, int], stays: str
) -> None:
    launch = Launch(launcher="accelerate", arguments=asked)
    own = {"OMP_NUM_THREADS": "7"}
    given = environment_of(launch, FIFTH, task="train", devices=False, own=own, inherited={})
    assert given["OMP_NUM_THREADS"] == stays


def test_what_the_user_has_set_is_no_default() -> None:
    given = environment_of(
        Launch(launcher="torchrun"),
        FIFTH,
        task="train",
        devices=True,
        own={"NCCL_DEBUG": "INFO"},
        inherited={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )
    assert given["NCCL_DEBUG"] == "INFO"
    assert "TORCH_DISTRIBUTED_DEBUG" not in given


def test_one_process_of_torchrun_is_a_group_of_one() -> None:
    assert variables(Launch(launcher="torchrun"), ONE, task="train")["WORLD_SIZE"] == "1"


@pytest.mark.parametrize("argument", ["multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm"])
def test_what_needs_a_group_has_one_of_one_process_too(argument: str) -> None:
    assert not alone(Launch(launcher="accelerate", arguments={argument: True}), ONE)
    assert alone(Launch(launcher="accelerate", arguments={argument: False}), ONE)


def test_several_processes_of_accelerate_know_their_group() -> None:
    given = variables(Launch(launcher="accelerate", arguments={"cpu": True}), FIFTH, task="train")
    assert (given["RANK"], given["WORLD_SIZE"], given["MASTER_PORT"]) == ("5", "8", "29411")


@pytest.mark.parametrize(
    ("arguments", "room", "threads"), [({}, 2, 2), ({}, 0, 1), ({"num_cpu_threads_per_process": 6}, 2, 6)]
)
def test_a_rank_has_a_thread_for_each_cpu_of_its_own(
    arguments: dict[str, Any], room: int, threads: int
) -> None:
    assert threads_of(Launch(launcher="accelerate", arguments=arguments), room) == threads


def test_on_one_node_nothing_is_asked_of_the_network() -> None:
    assert defaults(ONE, devices=True)["GLOO_SOCKET_IFNAME"] == "lo"


def test_several_nodes_meet_by_the_interface_that_leads_to_the_main_one() -> None:
    assert defaults(FIFTH, devices=True, interface="eth1")["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "GLOO_SOCKET_IFNAME" not in defaults(FIFTH, devices=True)


def test_errors_of_nccl_are_written_down() -> None:
    assert defaults(FIFTH, devices=True)["NCCL_DEBUG"] == "WARN"


def test_without_devices_accelerate_is_told_so() -> None:
    assert defaults(ONE, devices=False)["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in defaults(ONE, devices=True)


def test_the_page_names_what_is_set_by_default() -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/distributed.md").read_text(encoding="utf-8")
    for name, value in defaults(ONE, devices=False).items():
        assert f"| `{name}` | `{value}`" in page
