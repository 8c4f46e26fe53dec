"""What a user gives to a launcher: taken, or refused with the nearest name and the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from upshift import SettingsError
from upshift.runtime.launch import arguments
from upshift.runtime.launch.arguments import check, refuse_idle

Installed = Callable[..., None]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _forget()
    monkeypatch.setattr(arguments, "_folder", lambda package: None)
    yield
    _forget()


@pytest.fixture
def another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Puts a package in front of the path whose parser takes what is said."""

    def make(package: str, version: str, file: str, function: str, *options: str) -> None:
        versioned = tmp_path / package / ("version.py" if package == "torch" else "__init__.py")
        parser = tmp_path / package / file
        parser.parent.mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        versioned.write_text(f'__version__ = "{version}"\n')
        body = "\n    ".join(f"p.add_argument({option})" for option in options)
        parser.write_text(f"import not_there\n\ndef {function}():\n    {body}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        _forget()

    yield make
    _forget()


def _forget() -> None:
    arguments.installed_version.cache_clear()
    arguments.installed_arguments.cache_clear()


def _said(launcher: str, **given: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        check(launcher, given)
    assert caught.value.where is not None and "test_argument_checking.py" in caught.value.where
    return str(caught.value)


@pytest.mark.usefixtures("nothing_installed")
def test_arguments_are_taken_as_their_launcher_has_them() -> None:
    given = {
        "num_processes": 4.0,
        "multi_gpu": True,
        "mixed_precision": "bf16",
        "fsdp_version": 2,
        "fsdp_offload_params": True,
        "fsdp_use_orig_params": "False",
        "gradient_clipping": 1,
        "fp8_override_linear_precision": (True, False, False),
        "deepspeed_config_file": Path("ds.json"),
        "main_process_port": None,
    }
    assert check("accelerate", given) == {
        "num_processes": 4,
        "multi_gpu": True,
        "mixed_precision": "bf16",
        "fsdp_version": "2",
        "fsdp_offload_params": True,
        "fsdp_use_orig_params": False,
        "gradient_clipping": 1.0,
        "fp8_override_linear_precision": "true,false,false",
        "deepspeed_config_file": "ds.json",
    }
    long = 1048576
    assert check("accelerate", {"parallelism_config_sp_seq_length": long, "fsdp_version": 2.0}) == {
        "parallelism_config_sp_seq_length": "1048576",
        "fsdp_version": "2",
    }
    assert check("torchrun", {"nproc_per_node": 4, "nnodes": "2"}) == {"nproc_per_node": "4", "nnodes": "2"}


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("given", "taken"), [(False, "false"), ("FULL_SHARD", "FULL_SHARD")])
def test_what_is_a_switch_or_a_strategy_by_version_takes_both(given: Any, taken: str) -> None:
    name = "fsdp_reshard_after_forward"
    assert check("accelerate", {name: given}) == {name: taken}


@pytest.mark.usefixtures("nothing_installed")
def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    taken = check("accelerate", {"num_processes": numpy.int64(2), "gradient_clipping": numpy.float32(0.5)})
    assert taken == {"num_processes": 2, "gradient_clipping": 0.5}
    assert {type(value) for value in taken.values()} == {int, float}
    assert check("torchrun", {"nproc_per_node": numpy.int64(2)}) == {"nproc_per_node": "2"}


def test_a_secret_is_not_shown() -> None:
    text = _said("accelerate", aws_secret_access_key="hunter2hunter2")
    assert "aws_secret_access_key=… cannot be honoured" in text and "hunter2" not in text


@pytest.mark.usefixtures("nothing_installed")
def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    text = _said("accelerate", num_process=4)
    assert text.startswith("@run_with_accelerate: accelerate launch has no argument 'num_process'\n")
    assert "Did you mean 'num_processes'?" in text and "As of version" in text
    assert "Did you mean 'nproc_per_node'?" in _said("torchrun", nproc_pernode=4)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"num_processes": "4"},
            "num_processes='4' is invalid\n*Did you mean 4? Expected a whole number.",
        ),
        ({"num_processes": 2.5}, "num_processes=2.5 is invalid\n*Expected a whole number."),
        ({"num_cpu_threads_per_process": 0}, "num_cpu_threads_per_process=0 is invalid\n*from 1 to 100,000."),
        (
            {"num_cpu_threads_per_process": -2},
            "num_cpu_threads_per_process=-2 is invalid\n*from 1 to 100,000.",
        ),
        ({"num_processes": True}, "num_processes=True is invalid\n*Expected a whole number."),
        ({"multi_gpu": 1}, "multi_gpu=1 is invalid\n*Expected True or False."),
        (
            {"multi_gpu": "True"},
            "multi_gpu='True' is invalid\n*Did you mean True? Expected True or False.",
        ),
        (
            {"fsdp_offload_params": "yes"},
            "fsdp_offload_params='yes' is invalid\n*Expected True or False.",
        ),
        (
            {"mixed_precision": "BF16"},
            "mixed_precision='BF16' \n*Did you mean 'bf16'?\n*one of 'no', 'fp16', 'bf16', 'fp8'.",
        ),
        ({"mixed_precision": "fp32"}, "Did you mean 'no'?"),
        ({"gradient_clipping": 10**400}, "Expected a number."),
        ({"num_processes": float("inf")}, "Expected a whole number."),
        ({"gradient_clipping": "1.5"}, "Did you mean 1.5? Expected a number."),
        ({"dynamo_backend": object}, "Expected one of 'no', 'eager'"),
        ({"zero3_init_flag": 3}, "Expected True or False."),
        ({"offload_param_device": object()}, "Expected a text or a number."),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(given: dict[str, Any], expected: str) -> None:
    text = _said("accelerate", **given)
    for part in expected.split("\n*"):
        assert part in text


@pytest.mark.parametrize(
    ("launcher", "given", "reason", "instead"),
    [
        ("accelerate", {"machine_rank": 1}, "tells each process where it is", "num_nodes"),
        ("accelerate", {"main_process_ip": "10.0.0.1"}, "tells each process where it is", "num_nodes"),
        ("accelerate", {"max_restarts": 3}, "starts again as a whole", "@step(retries=…)"),
        ("accelerate", {"gpu_ids": "0,1"}, "hands out devices", "gpu_count"),
        ("accelerate", {"module": True}, "there is no script", "Leave it out"),
        ("accelerate", {"mpirun_hostfile": "hosts"}, "that the target gives", "num_nodes"),
        ("accelerate", {"mpirun_ccl": "1"}, "sets CCL_WORKER_COUNT where mpirun", "CCL_WORKER_COUNT"),
        ("accelerate", {"tpu_cluster": True}, "TPU machine itself", "torch_xla.launch"),
        ("accelerate", {"training_script": "train.py"}, "there is no script", "Leave it out"),
        ("accelerate", {"log_dir": "logs"}, "a log of its own", "upshift logs RUN STEP --rank N"),
        ("torchrun", {"rdzv_endpoint": "host:29400"}, "brings the processes together", "Leave it out"),
        ("torchrun", {"node_rank": 1}, "tells each process where it is", "num_nodes"),
        ("torchrun", {"tee": "3"}, "a log of its own", "upshift logs RUN STEP --rank N"),
        ("torchrun", {"virtual_local_rank": True}, "LOCAL_RANK says which", "Leave it out"),
    ],
)
def test_what_cannot_mean_anything_here_is_refused_with_the_reason(
    launcher: str, given: dict[str, Any], reason: str, instead: str
) -> None:
    text = _said(launcher, **given)
    (name,) = given
    assert f"{name}={given[name]!r} cannot be honoured" in text
    assert reason in text and instead in text


def test_what_asks_for_nothing_is_no_request() -> None:
    nothing = {"machine_rank": 0, "gpu_ids": "all", "max_restarts": 0, "tpu": False, "rdzv_backend": "static"}
    assert check("accelerate", {**nothing, "main_training_function": "main", "main_process_ip": None}) == {}
    assert check("torchrun", {"node_rank": 0, "rdzv_id": "none", "tee": "0", "module": False}) == {}


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({"fsdp_version": "2"}, "use_fsdp=True"),
        ({"fsdp_sharding_strategy": 1}, "use_fsdp=True"),
        ({"zero_stage": 3, "use_deepspeed": False}, "use_deepspeed=True"),
        ({"gradient_accumulation_steps": 4, "multi_gpu": True}, "use_deepspeed=True"),
        ({"fp8_backend": "te", "mixed_precision": "bf16"}, "mixed_precision='fp8'"),
        ({"dynamo_mode": "max-autotune", "dynamo_backend": "no"}, "dynamo_backend=…"),
        ({"megatron_lm_pp_degree": 2}, "use_megatron_lm=True"),
        ({"parallelism_config_tp_size": 2}, "use_parallelism_config=True"),
    ],
)
def test_what_would_do_nothing_is_refused_with_what_it_needs(given: dict[str, Any], needs: str) -> None:
    with pytest.raises(SettingsError) as caught:
        refuse_idle("accelerate", check("accelerate", given), given)
    (name, *_) = given
    assert f"{name}={given[name]!r} does nothing without {needs}\n" in str(caught.value)


def test_what_has_what_it_needs_or_asks_for_nothing_is_taken() -> None:
    for given in (
        {"fsdp_version": "2", "use_fsdp": True},
        {"fsdp_version": "1", "dynamo_mode": "default", "fp8_margin": 0},
        {"dynamo_mode": "max-autotune", "dynamo_backend": "inductor"},
        {"fp8_backend": "te", "mixed_precision": "fp8"},
    ):
        refuse_idle("accelerate", check("accelerate", given), given)


def test_an_argument_of_a_newer_version_is_taken(another_version: Installed) -> None:
    options = (
        '"--num_processes", type=int',
        '"--new_wonder", action="store_true"',
        '"--mode", choices=["a"]',
    )
    another_version("accelerate", "99.0.1", "commands/launch.py", "launch_command_parser", *options)
    assert check("accelerate", {"new_wonder": True, "num_processes": 2}) == {
        "new_wonder": True,
        "num_processes": 2,
    }
    assert "Expected one of 'a'." in _said("accelerate", mode="b")
    assert "machine_rank=1 cannot be honoured" in _said("accelerate", machine_rank=1)


def test_an_argument_that_an_older_version_lacks_is_refused(another_version: Installed) -> None:
    option = '"--num_processes", type=int'
    another_version("accelerate", "0.34.0", "commands/launch.py", "launch_command_parser", option)
    text = _said("accelerate", use_parallelism_config=True)
    assert "has no argument 'use_parallelism_config'" in text
    assert "As of version 0.34.0 of accelerate." in text


def test_without_its_source_an_installed_version_counts_as_the_table(another_version: Installed) -> None:
    another_version("accelerate", "99.0.1", "commands/launch.py", "launch_command_parser")
    assert check("accelerate", {"mixed_precision": "fp16"}) == {"mixed_precision": "fp16"}
    assert "As of version 1." in _said("accelerate", new_wonder=True)


def test_what_a_newer_torchrun_has_is_refused_since_nothing_would_do_it(another_version: Installed) -> None:
    options = ('"--nproc-per-node", type=str', '"--new-wonder", action=check_env')
    another_version("torch", "99.0.0+cpu", "distributed/run.py", "get_args_parser", *options)
    long = 1048576
    assert check("accelerate", {"parallelism_config_sp_seq_length": long, "fsdp_version": 2.0}) == {
        "parallelism_config_sp_seq_length": "1048576",
        "fsdp_version": "2",
    }
    assert check("torchrun", {"nproc_per_node": 2}) == {"nproc_per_node": "2"}
    text = _said("torchrun", new_wonder=True)
    assert "new_wonder=True cannot be honoured" in text and "a newer torchrun" in text
