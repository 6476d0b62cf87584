"""What MindSpeed-LLM does with memory beside Megatron's own ways, by release.

Read from Ascend/MindSpeed-LLM v1.0.RC3 to v26.1.0 and Ascend/MindSpeed v2.1.0_core_r0.12.1, and found again in the
allocated bytes of MindSpeed-LLM's continuous integration (tests/st/baseline_results of each release).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_ALL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        # fp32 copies of a rank's part of 16-bit gradients: megatron/core/optimizer, until gradients are zeroed.
        "widened_gradients": True,
        # mindspeed/core/pipeline_parallel: the tensors of the last sends are attributes of the schedule.
        "kept_boundaries": True,
        # mindspeed/core/transformer/flash_attention: one mask of 2048 x 2048 serves every causal sequence.
        "attention_mask": "compressed",
        "keep_qkv_output": True,
        "copy_latent_value": True,
        "fuse_latent_norm": False,
        # Core 0.12.1 weighs the outputs of the experts.
        "probabilities_in_experts": False,
        # features_manager/pipeline_parallel/dualpipev_feature.py: unless --dualpipev-dw-detach.
        "splits_last_backward": False,
        # The prediction modules' losses are done one after the other.
        "losses_in_turn": True,
        # No run of it tells the bytes of a fused loss: as many as those of its own.
        "fused_loss_bytes_per_logit": 0,
        # mindspeed_llm/core/ssm: the scan is composed of matrix products, whose matrices autograd keeps.
        "composed_scan": True,
    }
)
MINDSPEED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "mindspeed-v2.0": {
            **_ALL,
            "largest_tensor_step": True,
            "loss_bytes_per_logit": 10,
            # Megatron's core 0.8, pipeline_parallel/schedules.py.
            "warm_up_whole_batch": True,
        },
        "mindspeed-v2.2": {**_ALL, "largest_tensor_step": True, "loss_bytes_per_logit": 10},
        "mindspeed-v2.3": {**_ALL, "largest_tensor_step": True, "loss_bytes_per_logit": 6},
        "mindspeed-v26": {**_ALL, "largest_tensor_step": False, "loss_bytes_per_logit": 6},
    }
)
"""Switches by release, oldest first; a name stands for the releases after the one before it, up to its own.

The second is the first on Megatron's core 0.12. The bytes of a logit are those of the measured peaks: 9 to 11 up to
v2.2, 5 to 7 in v26.
"""
