"""The frameworks, each with its own defaults; `stacks` holds what somebody's runs set over them."""

from __future__ import annotations

from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.limits import FrameworkLimits
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.vocabulary import RECOMPUTE_MODULES

MEGATRON = FrameworkProfile(
    name="megatron",
    version="megatron-core 0.16.1",
    # The distributed optimizer of megatron-core is stage 1; its CPU offloading refuses pipelines.
    limits=FrameworkLimits(
        zero_stage=1,
        zero_stage_with_pipeline=1,
        experts_need_sequence_parallel=True,
        activation_offload_with_pipeline=False,
        activation_offload_with_recompute=False,
        interleaving_of_two_stages_without_overlap=False,
        # megatron-core 0.12 and later: `--recompute-modules`.
        recompute_modules=tuple(one for one in RECOMPUTE_MODULES if one != "moe_gate_up"),
        # `--recompute-method block`.
        recomputes_leading_layers=True,
        replicates_kv_heads=True,
        unequal_chunks=True,
        # megatron/training/arguments.py: no --expert-tensor-parallel-size is --tensor-model-parallel-size.
        splits_experts_as_layers=True,
        # megatron-core 0.12 and later, token_dispatcher.py: the flex dispatcher.
        expert_dispatches=("deepep", "hybridep"),
        offloads=("optimizer_tensorwise",),
    ),
    keep_qkv_output=True,
    # megatron-core 0.6 to 0.16, tensor_parallel/cross_entropy.py, kernel by kernel over fp32 logits: cast 6, maximum 4,
    # difference 8, exponent 8, sum 4, quotient 8; backward product 8, cast 6.
    loss_traffic_bytes=52,
    # The same file: 16-bit logits beside their fp32 cast, in place of which softmax and gradient are computed. In one
    # kernel the cast cannot be overwritten: SimuMax' B200 rows have 8, PyTorch's compiled functions up to 10.
    loss_bytes_per_logit=6,
    fused_loss_bytes_per_logit=8,
    # megatron-core, tensor_parallel/layers.py; TransformerEngine, module/linear.py and layernorm_linear.py.
    overlap_tensor_gradients=True,
    # megatron-core since 0.4, distributed/param_and_grad_buffer.py: `grad_data.zero_`, `*=` of the factor, norm.
    gradient_passes=4.0,
    # Every release with latent attention does both (0.10 is the first).
    copy_latent_value=True,
    fuse_latent_norm=True,
    # 0.13 and later; recipes of older releases say so.
    probabilities_in_experts=True,
    # linear_qkv and linear_fc1 are one module each.
    shared_adapters=True,
)
"""Megatron-LM by its own arguments' defaults, with TransformerEngine: no overlap of collectives but pipeline sends."""

PADDLE = FrameworkProfile(
    name="paddle",
    version="PaddleNLP 2.8.1",
    # PaddleNLP training_args: only stage 1 beside a pipeline.
    limits=FrameworkLimits(
        zero_stage_with_pipeline=1,
        pads_vocabulary=False,
        recompute_modules=("core_attn", "moe_gate_up"),
        offloads=("optimizer", "optimizer_tensorwise"),
    ),
    gradient_dtype="bf16",
    # paddlenlp/transformers/llama/modeling.py: LlamaRMSNorm unless use_fused_rms_norm.
    fused_rms_norm=False,
    composed_norm_bytes=6,
    master_gradients=True,
    growing_pool=True,
    fp32_router=True,
    loss_bytes_per_logit=10,
    # paddle/distributed/fleet/meta_parallel/pipeline_parallel.py, `PipelineParallelWithInterleave`.
    warm_up_whole_batch=True,
    overlap_p2p=False,
)
"""PaddleNLP / ERNIEKit trainers, fp16_opt_level O2 (bf16 weights with fp32 master copies and moments)."""

TORCH = FrameworkProfile(
    name="torch",
    version="PyTorch 2.13",
    # torch.distributed.pipelining of PyTorch 2.13, schedules.py: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
    limits=FrameworkLimits(
        default_zero_stage=3, recomputes_operations=True, schedules=("1f1b", "zb_h1", "zb_v", "dualpipev")
    ),
    fused_swiglu=False,
    fused_rotary=False,
    # torch.utils.checkpoint, `set_checkpoint_early_stop`: the default since 2.1.
    recompute_stops_early=True,
    attention_kernel="sdpa",
    fused_projections=False,
    # torchtitan 0.2.2, `context_parallel_rotate_method`: allgather unless told otherwise.
    cp_communication="gathered_ring",
    keep_gathered_inputs=True,
    parameter_dtype="fp32",
    master_weights=False,
    fused_gradient_accumulation=False,
    foreach_optimizer=True,
    fully_shard=True,
    # torch.distributed.tensor, DTensor.
    functional_collectives=True,
    # FSDP2 gathers the next unit and scatters the last one on streams of their own.
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    # torchao 0.9 and later, float8_linear.py: weights and inputs are cast where they are used, and saved as they came.
    fp8_weight_cache=False,
    fp8_inputs=False,
    fp8_recipe="tensorwise",
    loss_bytes_per_logit=12,
    split_loss_bytes_per_logit=4,
    attention_matrix_bytes=4,
)
"""PyTorch FSDP2 with DTensor tensor parallelism: fp32 sharded parameters, bf16 compute, AdamW (foreach)."""

PROFILES: dict[str, FrameworkProfile] = {p.name: p for p in (MEGATRON, PADDLE, TORCH)}


def profile_of(name: str) -> FrameworkProfile:
    """The profile called `name` with the framework's own defaults. Raises InputError for an unknown one."""
    if name not in PROFILES:
        raise InputError(
            f"unknown framework '{name}'{did_you_mean(name, list(PROFILES))}; allowed: {', '.join(PROFILES)}"
        )
    return PROFILES[name]
