"""Keys and sections of NeMo and Megatron-Bridge that decide neither memory nor speed."""

from __future__ import annotations

from typing import Final

SECTIONS: Final = frozenset(
    [
        "exp_manager",
        "experiment",
        "ub_tp_comm_overlap_cfg",
        "selective_tuning",
        "p_tuning",
        "adapter_tuning",
        "ia3_tuning",
        "tokenizer",
        "data",
        "dataset",
        "checkpoint",
        "checkpointing",
        "logger",
        "log",
        "logging",
        "run",
        "results",
        "rng",
        "scheduler",
        "sched",
        "hydra",
        "nsys_profile",
        "profiling",
        "launcher",
        "cluster",
        "env_vars",
        "dist",
        "defaults",
        "steerable_attributes",
        "regression",
    ]
)
"""Sections whose keys change neither memory nor speed, but for those that are flags."""
OWN_PASSED: Final = frozenset(
    [
        "contiguous_param_buffer",
        "force_head_dtype",
        "reward_model_type",
        "gradient_clip_algorithm",
        "limit_train_batches",
        "no_shared_fs",
        "norm_init_weight",
        "lora_tuning",
        "max_time",
        "num_sanity_val_steps",
        "precision_config",
        "sequence_length",
    ]
)
"""Keys of its trainer and of older versions, in no table, that change neither memory nor speed."""
