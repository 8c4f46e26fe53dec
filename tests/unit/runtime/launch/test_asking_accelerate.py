"""What Accelerate itself sets for its arguments is what a rank gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upshift.errors import MissingExtra, UpshiftError
from upshift.model.spec.hardware import Device, Launch, Rank
from upshift.runtime.launch import accelerate as asking
from upshift.runtime.launch.accelerate import ask

pytest.importorskip("torch")
pytest.importorskip("accelerate")

GPUS = tuple(Device(vendor="nvidia", model="NVIDIA A100", uuid=f"GPU-{n}") for n in range(2))
FIRST, SECOND = (
    Rank(rank=rank, world_size=2, local_rank=rank, local_world_size=2, port=29411) for rank in range(2)
)
ONLY = Rank(port=29411)
COMPARED = ("ACCELERATE_", "FSDP_", "KMP_")


def launch(config: str | None = None, **arguments: Any) -> Launch:
    files = {} if config is None else {"config_file": config}
    return Launch(launcher="accelerate", processes=2, arguments=arguments, files=files)


@pytest.fixture(autouse=True)
def _no_default_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands import launch as commands

    monkeypatch.setattr(commands, "default_config_file", "/nowhere/default_config.yaml")


def really_launched(folder: Path, *command_line: str) -> dict[str, str]:
    """What ``accelerate launch`` gives to its first process of this command line."""
    script = folder / "show.py"
    script.write_text(
        "import json, os\nif os.environ.get('RANK', '0') == '0': print(json.dumps(dict(os.environ)))\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.launch", *command_line, str(script)]
    # Packages that other tests have imported here may have set some: scikit-learn does.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(COMPARED)}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, str] = json.loads(done.stdout)
    return {name: value for name, value in seen.items() if name.startswith(COMPARED)}


@pytest.mark.parametrize(
    ("arguments", "devices", "rank", "command_line"),
    [
        (
            {"multi_gpu": True, "mixed_precision": "bf16", "dynamo_backend": "eager", "debug": True},
            GPUS,
            FIRST,
            "--multi_gpu --num_processes 2 --main_process_port 0 --mixed_precision bf16 "
            "--dynamo_backend eager --debug",
        ),
        (
            {
                "use_fsdp": True,
                "fsdp_offload_params": True,
                "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
                "fsdp_min_num_params": 2000,
            },
            GPUS,
            FIRST,
            "--use_fsdp --num_processes 2 --main_process_port 0 --fsdp_offload_params true "
            "--fsdp_auto_wrap_policy SIZE_BASED_WRAP --fsdp_min_num_params 2000",
        ),
        (
            {"cpu": True, "mixed_precision": "bf16"},
            (),
            ONLY,
            "--cpu --num_processes 1 --mixed_precision bf16",
        ),
    ],
    ids=["gpus", "fsdp", "cpu"],
)
def test_a_rank_gets_what_accelerate_launch_gives(
    arguments: dict[str, Any], devices: tuple[Device, ...], rank: Rank, command_line: str, tmp_path: Path
) -> None:
    real = really_launched(tmp_path, *command_line.split())
    found = ask(launch(**arguments), rank, devices).variables
    assert dict(found) == real


def test_processes_without_devices_are_told_to_use_cpus() -> None:
    given: tuple[dict[str, Any], ...] = ({"cpu": True}, {"multi_gpu": True}, {})
    for arguments in given:
        assert ask(launch(**arguments), FIRST, ()).variables["ACCELERATE_USE_CPU"] == "True"
    assert "ACCELERATE_USE_CPU" not in ask(launch(multi_gpu=True), FIRST, GPUS).variables


def test_threads_of_several_ranks_are_not_pinned_to_the_same_cpus() -> None:
    assert not {"KMP_AFFINITY", "KMP_BLOCKTIME"} & set(ask(launch(cpu=True), FIRST, ()).variables)


@pytest.mark.parametrize("threads", ["3", "4,2"])
def test_what_upshift_decides_is_not_asked(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    found = ask(
        launch(multi_gpu=True, num_processes=8, main_process_port=1, num_cpu_threads_per_process=9),
        FIRST,
        GPUS,
    ).variables
    assert not {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & set(found)


def test_one_device_of_those_asked_for_is_enough() -> None:
    found = ask(launch(multi_gpu=True, mixed_precision="fp16"), ONLY, GPUS[:1]).variables
    assert found["ACCELERATE_MIXED_PRECISION"] == "fp16"


def test_what_is_for_devices_only_is_said_where_there_are_none() -> None:
    found = ask(launch(use_fsdp=True), FIRST, ())
    assert "ACCELERATE_USE_FSDP" not in found.variables
    assert "use_fsdp is for devices" in found.remarks[0]


CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 7
main_training_function: main
machine_rank: 0
use_cpu: false
fsdp_config:
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: true
  fsdp_reshard_after_forward: false
"""


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_configuration_counts_below_arguments(form: str) -> None:
    yaml = pytest.importorskip("yaml")
    text = CONFIG if form == "yaml" else json.dumps(yaml.safe_load(CONFIG))
    found = ask(launch(text), FIRST, GPUS).variables
    assert found["ACCELERATE_USE_FSDP"] == "true"
    assert found["FSDP_STATE_DICT_TYPE"] == "SHARDED_STATE_DICT"
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    changed = ask(
        launch(text, mixed_precision="no", fsdp_state_dict_type="FULL_STATE_DICT"), FIRST, GPUS
    ).variables
    assert changed["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
    assert changed["ACCELERATE_MIXED_PRECISION"] == "no"


@pytest.mark.parametrize("config", [None, "distributed_type: DEEPSPEED\nnum_processes: 2\n"])
def test_what_deepspeed_is_told_is_a_file_as_long_as_the_process_lives(
    config: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_SCRATCH", str(tmp_path / "scratch"))
    files = {"deepspeed_config_file": '{"zero_optimization": {"stage": 2}}'}
    if config is not None:
        files["config_file"] = config
    told = Launch(
        launcher="accelerate",
        processes=2,
        arguments={"use_deepspeed": True} if config is None else {},
        files=files,
    )
    found = ask(told, FIRST, GPUS).variables
    assert found["ACCELERATE_USE_DEEPSPEED"] == "true"
    file = Path(found["ACCELERATE_DEEPSPEED_CONFIG_FILE"])
    assert json.loads(file.read_text()) == {"zero_optimization": {"stage": 2}}
    assert file.is_relative_to(tmp_path / "scratch")


def test_a_configuration_of_this_machine_is_not_read_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands import launch as commands

    file = tmp_path / "default_config.yaml"
    file.write_text(CONFIG)
    monkeypatch.setattr(commands, "default_config_file", str(file))
    first, second = (ask(launch(multi_gpu=True), rank, GPUS) for rank in (FIRST, SECOND))
    assert "ACCELERATE_USE_FSDP" not in first.variables
    assert first.remarks == [
        f"{file} is not read, since it is of this machine and not of the step: name it by config_file=…"
    ]
    assert second.remarks == []
    assert commands.default_config_file == str(file)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"multi_gpu": True, "mixed_precision": "fp8"}, "FP8 is not available"),
        ({"multi_gpu": True, "fsdp_min_num_params": "many"}, "invalid int value"),
    ],
)
def test_what_accelerate_refuses_is_said_with_its_reason(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UpshiftError, match="does not take what the launch of this step asks for") as refused:
        ask(launch(**arguments), FIRST, GPUS)
    assert why in str(refused.value.why)


def test_an_argument_of_another_version_is_named() -> None:
    with pytest.raises(UpshiftError, match="has no argument 'warp_speed'") as refused:
        ask(launch(warp_speed=9), FIRST, GPUS)
    assert "newer version of accelerate" in str(refused.value.fix)


def test_without_accelerate_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.commands.launch", None)
    with pytest.raises(MissingExtra) as missing:
        ask(launch(), FIRST, ())
    assert 'requirements=["accelerate"]' in str(missing.value.fix)


def test_switches_are_written_as_the_parser_reads_them() -> None:
    from accelerate.commands.launch import launch_command_parser

    parser = launch_command_parser()
    given = {
        "fsdp_offload_params": True,
        "parallelism_config_sp_seq_length_is_variable": False,
        "debug": False,
    }
    known = {action.dest for action in parser._actions}
    given = {name: value for name, value in given.items() if name in known}
    parsed = parser.parse_args(asking._command_line(parser, given))
    assert parsed.fsdp_offload_params in (True, "true")
    assert not getattr(parsed, "parallelism_config_sp_seq_length_is_variable", False)
    assert not parsed.debug
