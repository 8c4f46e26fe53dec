"""Accelerate's configuration file: what it says of the processes, and what of it cannot be honoured."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from upshift import MissingExtra, ResourceSettings, SettingsError
from upshift.model.spec.hardware import Launch
from upshift.runtime.launch.accelerate import read_config
from upshift.runtime.launch.merging import LaunchRequest

WRITTEN = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
"""As ``accelerate config`` writes it."""

yaml = pytest.importorskip("yaml")


def _file(folder: Path, text: str, name: str = "accelerate.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def _refused(file: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        read_config(file, where="train.py:3")
    assert caught.value.where == "train.py:3"
    return str(caught.value)


@pytest.mark.parametrize(("said", "expected"), [("false", None), ("true", True)])
def test_a_file_can_bind_processes_to_numa_nodes(tmp_path: Path, said: str, expected: bool | None) -> None:
    text = WRITTEN.replace("enable_cpu_affinity: false", f"enable_cpu_affinity: {said}")
    config = read_config(_file(tmp_path, text), where=None)
    assert config.numa_binding is expected
    assert "enable_cpu_affinity" not in config.text


def test_what_accelerate_config_writes_is_honoured(tmp_path: Path) -> None:
    config = read_config(_file(tmp_path, WRITTEN), where=None)
    kept = yaml.safe_load(config.text)
    assert (kept["mixed_precision"], kept["distributed_type"]) == ("bf16", "MULTI_GPU")
    assert not {"num_processes", "num_machines", "main_process_port"} & set(kept)
    assert (config.processes, config.nodes, config.port, config.devices) == (4, 1, None, True)


def test_all_that_accelerate_config_asks_for_is_known(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    module = pytest.importorskip("accelerate.commands.config.cluster")
    text = ""
    for part, name in re.findall(
        r'(\w+_config)\[\s*((?:prefix \+ )?"\w+")\s*\] = ', inspect.getsource(module)
    ):
        begin = {"dynamo_config": "dynamo_", "megatron_lm_config": "megatron_lm_"}.get(part, f"{part}_")
        text += f"{part}: {{{name.replace('prefix + ', begin).replace(chr(34), '')}: null}}\n"
    said = [yaml.safe_load(line) for line in text.splitlines()]
    assert len(said) > 40
    for one in said:
        read_config(_file(tmp_path, json.dumps({"distributed_type": "NO", **one}), "one.json"), where=None)


def test_what_is_written_by_other_names_is_handed_on_by_those_that_are_read(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_GPU\nfp8_config: {amax_history_length: 16, margin: 1}\n"
    kept = json.loads(read_config(_file(tmp_path, text), where=None).text)
    assert kept["fp8_config"] == {"fp8_amax_history_len": 16, "margin": 1}


def test_choices_are_taken_in_capitals_as_accelerate_config_writes_them(tmp_path: Path) -> None:
    text = (
        "distributed_type: FSDP\ndynamo_config: {dynamo_backend: INDUCTOR}\nfsdp_config: {fsdp_version: 2}\n"
    )
    kept = json.loads(read_config(_file(tmp_path, text), where=None).text)
    assert kept["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}


@pytest.mark.parametrize(
    ("text", "processes", "devices"),
    [
        ("distributed_type: MULTI_CPU\nnum_processes: 2", 2, False),
        ("distributed_type: 'NO'\nuse_cpu: true", 1, False),
        ("distributed_type: 'NO'", 1, None),
        ("distributed_type: NO", 1, None),
        ("distributed_type: FSDP\nnum_processes: 8", 8, True),
        ("distributed_type: DEEPSPEED\nnum_processes: -1", None, True),
    ],
)
def test_it_says_how_many_and_whether_they_have_devices(
    tmp_path: Path, text: str, processes: int | None, devices: bool | None
) -> None:
    config = read_config(_file(tmp_path, text), where=None)
    assert (config.processes, config.devices) == (processes, devices)


def test_json_is_read_without_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    text = '{"distributed_type": "MULTI_GPU", "num_processes": 2, "main_process_port": 29501}'
    config = read_config(_file(tmp_path, text, "accelerate.json"), where=None)
    assert (config.processes, config.port) == (2, 29501)
    with pytest.raises(MissingExtra, match="which needs PyYAML") as caught:
        read_config(_file(tmp_path, WRITTEN), where=None)
    assert "pip install" in str(caught.value) and "JSON" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "what", "fix"),
    [
        ("machine_rank: 1", "machine_rank: 1 in", "num_nodes"),
        ("main_process_ip: 10.0.0.1", "main_process_ip: '10.0.0.1' in", "num_nodes"),
        ("gpu_ids: 0,1", "gpu_ids: ", "gpu_count"),
        ("rdzv_backend: c10d", "rdzv_backend: 'c10d' in", "Leave it out"),
        ("compute_environment: AMAZON_SAGEMAKER", "compute_environment: 'AMAZON_SAGEMAKER'", "LOCAL_MACHINE"),
        ("distributed_type: XLA", "distributed_type: 'XLA' in", "torch_xla.launch"),
        ("tpu_name: pod", "tpu_name: 'pod' in", "torch_xla.launch"),
        ("deepspeed_config: {deepspeed_hostfile: hosts}", "deepspeed_hostfile: 'hosts' in", "num_nodes"),
        ("mpirun_config: {mpirun_hostfile: hosts}", "mpirun_hostfile: 'hosts' in", "num_nodes"),
        ("num_processes: many", "num_processes: 'many' in", "whole number"),
        ("num_processes: -4", "num_processes: -4 in", "from 1 to 100,000"),
        ("num_processes: 0", "num_processes: 0 in", "from 1 to 100,000"),
        ("num_machines: -2", "num_machines: -2 in", "from 1 to 100,000"),
        ("main_process_port: 99999", "main_process_port: 99999 in", "a port from 1 to 65535"),
        ("distributed_type: MULTI_FOO", "distributed_type: 'MULTI_FOO' in", "'MULTI_GPU'"),
        ("distributed_type: multi_gpu", "distributed_type: 'multi_gpu' in", "Did you mean 'MULTI_GPU'?"),
        ("mixed_precision: bf61", "mixed_precision: 'bf61' in", "Did you mean 'bf16'?"),
        ("mixed_precision: no", "mixed_precision: False in", "'no', 'fp16'"),
        ("dynamo_config: {dynamo_backend: TVN}", "dynamo_backend: 'TVN' in", "Did you mean 'tvm'?"),
        ("use_cpu: maybe", "use_cpu: 'maybe' in", "true or false"),
        ("deepspeed_config: [1]", "deepspeed_config: [1] in", "names with values"),
        ("mixed_precison: bf16", "has 'mixed_precison'", "Did you mean 'mixed_precision'?"),
        ("deepspeed_config: {zero_stag: 3}", "has 'zero_stag'", "Did you mean 'zero_stage'?"),
        ("fsdp_config: {version: 2, offlod_params: 1}", "has 'offlod_params'", "'fsdp_offload_params'"),
        ("num_processes: 2", "does not say distributed_type", "'MULTI_GPU'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(
    tmp_path: Path, line: str, what: str, fix: str
) -> None:
    if "distributed_type" not in line and line != "num_processes: 2":
        line += "\ndistributed_type: MULTI_GPU"
    text = _refused(_file(tmp_path, line))
    assert what in text and fix in text and "accelerate.yaml" in text


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in _refused(tmp_path / "not_there.yaml")
    assert "is not a configuration of Accelerate" in _refused(_file(tmp_path, "- 1\n- 2\n"))
    assert "It is not valid YAML" in _refused(_file(tmp_path, "a: [1"))
    assert "It is not valid JSON" in _refused(_file(tmp_path, "{", "accelerate.json"))


def _beside(file: Path, **said: Any) -> tuple[Launch, ResourceSettings]:
    asked = LaunchRequest(launcher="accelerate", files={"config_file": file}, **said)
    return asked.beside(ResourceSettings(), {})[:2]


def test_the_decorator_wins_over_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, WRITTEN)
    launch, request = _beside(file)
    assert (launch.processes, list(launch.files), request.gpu_count) == (4, ["config_file"], 4)
    launch, request = _beside(file, processes=2, devices=False, port=29600)
    assert (launch.processes, launch.devices, launch.port, request.gpu_count) == (2, False, 29600, None)


def test_where_processes_meet_is_no_part_of_what_the_file_says(tmp_path: Path) -> None:
    plain, _ = _beside(_file(tmp_path, WRITTEN))
    other, _ = _beside(_file(tmp_path, f"# on another day\n{WRITTEN}main_process_port: 29511\n"))
    assert (other.port, other.files) == (29511, plain.files)


def test_a_secret_that_the_file_names_is_not_shown(tmp_path: Path) -> None:
    text = _refused(_file(tmp_path, "aws_secret_access_key: hunter2hunter2"))
    assert "aws_secret_access_key" in text and "hunter2" not in text


def test_what_the_file_says_contradicts_a_request_as_well(tmp_path: Path) -> None:
    asked = LaunchRequest(launcher="accelerate", files={"config_file": _file(tmp_path, WRITTEN)})
    with pytest.raises(SettingsError, match="num_processes=4 contradicts gpu_count=2"):
        asked.beside(ResourceSettings(gpu_count=2), {})


def test_what_deepspeed_is_told_is_read_whoever_names_it(tmp_path: Path) -> None:
    of_deepspeed = _file(tmp_path, '{"zero_optimization": {"stage": 2}}', "ds.json")
    config = _file(
        tmp_path,
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
    )
    launch, _ = _beside(config)
    assert launch.files["deepspeed_config_file"] == of_deepspeed.read_text()
    assert "ds.json" not in launch.files["config_file"]
    asked = LaunchRequest(launcher="accelerate", files={"deepspeed_config_file": of_deepspeed})
    assert asked.beside(ResourceSettings(), {})[0].files == {
        "deepspeed_config_file": of_deepspeed.read_text()
    }
    before = launch.files
    of_deepspeed.write_text("{}")
    assert _beside(config)[0].files != before
    of_deepspeed.write_text("[1]")
    with pytest.raises(SettingsError, match="is not a configuration of DeepSpeed"):
        _beside(config)
    of_deepspeed.unlink()
    with pytest.raises(SettingsError, match=r"deepspeed_config_file='.*ds\.json' cannot be read"):
        _beside(config)
