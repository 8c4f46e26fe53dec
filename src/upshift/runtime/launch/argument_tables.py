"""Every argument of ``accelerate launch`` and of ``torchrun``, by its Python name.

Two tables, written by
``UPDATE_TABLES=1 make test ARGS=tests/unit/runtime/launch/test_argument_tables.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

INT, FLOAT, TEXT, LIST = "int", "float", "text", "list"
FLAG = "flag"
"""True or False; on a command line it stands by itself."""
SWITCH = "switch"
"""True or False; on a command line it takes the text ``true`` or ``false``."""
WORD = "word"
"""True, False or a text; on a command line a text in any case."""


@attrs.frozen
class Argument:
    """What a launcher's parser says of one of its arguments."""

    kind: str  # "int", "float", "text", "list", "flag", "switch" or "word"
    default: Any = None  # what it is where it is not given
    choices: tuple[str, ...] = ()  # the only values that it takes; empty: any of its kind


# -- accelerate launch

ACCELERATE_VERSION: Final = "1.15.0"
ACCELERATE_READ: Final = "2026-11-21"
"""The day on which the parser of this version was read."""

ACCELERATE_ARGUMENTS: Final[Mapping[str, Argument]] = {
    "config_file": Argument(TEXT),
    "quiet": Argument(FLAG, False),
    "cpu": Argument(FLAG, False),
    "multi_gpu": Argument(FLAG, False),
    "tpu": Argument(FLAG, False),
    "mixed_precision": Argument(TEXT, None, ("no", "fp16", "bf16", "fp8")),
    "num_processes": Argument(INT),
    "num_machines": Argument(INT),
    "num_cpu_threads_per_process": Argument(INT),
    "enable_cpu_affinity": Argument(FLAG, False),
    "dynamo_backend": Argument(
        TEXT,
        None,
        (
            "no",
            "eager",
            "aot_eager",
            "inductor",
            "aot_ts_nvfuser",
            "nvprims_nvfuser",
            "cudagraphs",
            "ofi",
            "fx2trt",
            "onnxrt",
            "tensorrt",
            "aot_torchxla_trace_once",
            "torhchxla_trace_once",
            "tvm",
        ),
    ),
    "dynamo_mode": Argument(TEXT, "default", ("default", "reduce-overhead", "max-autotune")),
    "dynamo_use_fullgraph": Argument(FLAG, False),
    "dynamo_use_dynamic": Argument(FLAG, False),
    "dynamo_use_regional_compilation": Argument(FLAG, False),
    "use_deepspeed": Argument(FLAG, False),
    "use_fsdp": Argument(FLAG, False),
    "use_parallelism_config": Argument(FLAG, False),
    "use_megatron_lm": Argument(FLAG, False),
    "gpu_ids": Argument(TEXT),
    "same_network": Argument(FLAG, False),
    "machine_rank": Argument(INT),
    "main_process_ip": Argument(TEXT),
    "main_process_port": Argument(INT),
    "tee": Argument(TEXT, "0"),
    "log_dir": Argument(TEXT),
    "role": Argument(TEXT, "default"),
    "rdzv_backend": Argument(TEXT, "static"),
    "rdzv_conf": Argument(TEXT, ""),
    "max_restarts": Argument(INT, 0),
    "monitor_interval": Argument(FLOAT, 0.1),
    "module": Argument(FLAG, False),
    "no_python": Argument(FLAG, False),
    "tpu_use_cluster": Argument(FLAG, False),
    "tpu_use_sudo": Argument(FLAG, False),
    "vm": Argument(LIST),
    "env": Argument(LIST),
    "main_training_function": Argument(TEXT),
    "downcast_bf16": Argument(FLAG, False),
    "deepspeed_config_file": Argument(TEXT),
    "zero_stage": Argument(INT),
    "offload_optimizer_device": Argument(TEXT),
    "offload_param_device": Argument(TEXT),
    "offload_optimizer_nvme_path": Argument(TEXT),
    "offload_param_nvme_path": Argument(TEXT),
    "gradient_accumulation_steps": Argument(INT),
    "gradient_clipping": Argument(FLOAT),
    "zero3_init_flag": Argument(SWITCH),
    "zero3_save_16bit_model": Argument(SWITCH),
    "deepspeed_hostfile": Argument(TEXT),
    "deepspeed_exclusion_filter": Argument(TEXT),
    "deepspeed_inclusion_filter": Argument(TEXT),
    "deepspeed_multinode_launcher": Argument(TEXT),
    "deepspeed_moe_layer_cls_names": Argument(TEXT),
    "fsdp_version": Argument(TEXT, "1", ("1", "2")),
    "fsdp_offload_params": Argument(SWITCH, False),
    "fsdp_min_num_params": Argument(INT, 100000000),
    "fsdp_sharding_strategy": Argument(TEXT, "FULL_SHARD"),
    "fsdp_reshard_after_forward": Argument(WORD, "true"),
    "fsdp_auto_wrap_policy": Argument(TEXT),
    "fsdp_transformer_layer_cls_to_wrap": Argument(TEXT),
    "fsdp_backward_prefetch": Argument(TEXT),
    "fsdp_state_dict_type": Argument(TEXT),
    "fsdp_forward_prefetch": Argument(SWITCH, False),
    "fsdp_use_orig_params": Argument(SWITCH, True),
    "fsdp_cpu_ram_efficient_loading": Argument(SWITCH, True),
    "fsdp_sync_module_states": Argument(SWITCH, True),
    "fsdp_activation_checkpointing": Argument(SWITCH, False),
    "fsdp_activation_checkpointing_offload": Argument(SWITCH, False),
    "megatron_lm_tp_degree": Argument(INT, 1),
    "megatron_lm_use_custom_fsdp": Argument(SWITCH, False),
    "megatron_lm_no_load_optim": Argument(SWITCH, False),
    "megatron_lm_eod_mask_loss": Argument(SWITCH, False),
    "megatron_lm_overlap_cpu_optimizer_d2h_h2d": Argument(SWITCH, False),
    "megatron_lm_no_save_optim": Argument(SWITCH, False),
    "megatron_lm_optimizer_cpu_offload": Argument(SWITCH, False),
    "megatron_lm_use_precision_aware_optimizer": Argument(SWITCH, False),
    "megatron_lm_decoder_last_pipeline_num_layers": Argument(INT),
    "megatron_lm_pp_degree": Argument(INT, 1),
    "megatron_lm_num_micro_batches": Argument(INT),
    "megatron_lm_sequence_parallelism": Argument(SWITCH),
    "megatron_lm_recompute_activations": Argument(SWITCH),
    "megatron_lm_use_distributed_optimizer": Argument(SWITCH),
    "megatron_lm_gradient_clipping": Argument(FLOAT, 1.0),
    "megatron_lm_recompute_granularity": Argument(TEXT),
    "megatron_lm_recompute_method": Argument(TEXT),
    "megatron_lm_recompute_num_layers": Argument(INT),
    "megatron_lm_attention_backend": Argument(SWITCH),
    "megatron_lm_expert_model_parallel_size": Argument(INT),
    "megatron_lm_context_parallel_size": Argument(INT),
    "megatron_lm_attention_dropout": Argument(FLOAT),
    "megatron_lm_hidden_dropout": Argument(FLOAT),
    "megatron_lm_attention_softmax_in_fp32": Argument(SWITCH),
    "megatron_lm_expert_tensor_parallel_size": Argument(INT),
    "megatron_lm_calculate_per_token_loss": Argument(SWITCH),
    "megatron_lm_use_rotary_position_embeddings": Argument(SWITCH),
    "fp8_backend": Argument(TEXT, None, ("ao", "te", "msamp")),
    "fp8_use_autocast_during_eval": Argument(FLAG, False),
    "fp8_margin": Argument(INT, 0),
    "fp8_interval": Argument(INT, 1),
    "fp8_format": Argument(TEXT, "HYBRID", ("HYBRID", "E4M3", "E5M2")),
    "fp8_amax_history_len": Argument(INT, 1024),
    "fp8_amax_compute_algo": Argument(TEXT, "most_recent", ("max", "most_recent")),
    "fp8_override_linear_precision": Argument(TEXT, (False, False, False)),
    "fp8_opt_level": Argument(TEXT, "O2", ("O1", "O2")),
    "fp8_enable_fsdp_float8_all_gather": Argument(SWITCH, True),
    "fp8_pad_inner_dim": Argument(SWITCH, True),
    "aws_access_key_id": Argument(TEXT),
    "aws_secret_access_key": Argument(TEXT),
    "debug": Argument(FLAG, False),
    "mpirun_hostfile": Argument(TEXT),
    "parallelism_config_dp_replicate_size": Argument(INT, 1),
    "parallelism_config_dp_shard_size": Argument(INT, 1),
    "parallelism_config_tp_size": Argument(INT, 1),
    "parallelism_config_cp_size": Argument(INT, 1),
    "parallelism_config_cp_backend": Argument(TEXT, "torch", ("torch",)),
    "parallelism_config_cp_comm_strategy": Argument(TEXT, "allgather"),
    "parallelism_config_sp_size": Argument(INT, 1),
    "parallelism_config_sp_backend": Argument(TEXT, "deepspeed", ("deepspeed",)),
    "parallelism_config_sp_seq_length": Argument(TEXT),
    "parallelism_config_sp_seq_length_is_variable": Argument(SWITCH, True),
    "parallelism_config_sp_attn_implementation": Argument(TEXT, "sdpa"),
}

ACCELERATE_FIELDS: Final = (
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "fp8_config",
    "deepspeed_config",
    "fsdp_config",
    "parallelism_config",
    "megatron_lm_config",
    "mpirun_config",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "command_file",
    "commands",
    "tpu_vm",
    "tpu_env",
    "dynamo_config",
)
"""What a configuration file of this version may say."""


# -- torchrun

TORCHRUN_VERSION: Final = "2.13.0"
TORCHRUN_READ: Final = "2026-11-21"
"""The day on which the parser of this version was read."""

TORCHRUN_ARGUMENTS: Final[Mapping[str, Argument]] = {
    "nnodes": Argument(TEXT, "1:1"),
    "nproc_per_node": Argument(TEXT, "1"),
    "rdzv_backend": Argument(TEXT, "static"),
    "rdzv_endpoint": Argument(TEXT, ""),
    "rdzv_id": Argument(TEXT, "none"),
    "rdzv_conf": Argument(TEXT, ""),
    "standalone": Argument(FLAG, False),
    "max_restarts": Argument(INT, 0),
    "monitor_interval": Argument(FLOAT, 0.1),
    "start_method": Argument(TEXT, "spawn", ("spawn", "fork", "forkserver")),
    "event_log_handler": Argument(TEXT, "null"),
    "role": Argument(TEXT, "default"),
    "module": Argument(FLAG, False),
    "no_python": Argument(FLAG, False),
    "run_path": Argument(FLAG, False),
    "log_dir": Argument(TEXT),
    "redirects": Argument(TEXT, "0"),
    "tee": Argument(TEXT, "0"),
    "local_ranks_filter": Argument(TEXT, ""),
    "duplicate_stdout_filters": Argument(LIST, []),
    "duplicate_stderr_filters": Argument(LIST, []),
    "node_rank": Argument(INT, 0),
    "master_addr": Argument(TEXT, "127.0.0.1"),
    "master_port": Argument(INT),
    "local_addr": Argument(TEXT),
    "logs_specs": Argument(TEXT),
    "numa_binding": Argument(TEXT, None, ("node", "socket", "exclusive", "core-complex")),
    "signals_to_handle": Argument(TEXT, "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    "shutdown_timeout": Argument(INT),
    "virtual_local_rank": Argument(FLAG, False),
}
