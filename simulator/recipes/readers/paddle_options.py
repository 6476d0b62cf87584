"""Switches of the framework profile as Paddle trainers' flags set them."""

from __future__ import annotations

from typing import Final

from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.flags import flags_of
from simulator.question.scenario.layout import Layout

_CHUNK_TOKENS: Final = 8192
"""Tokens per chunk of ERNIE's fused head and loss when the recipe names none."""
_UNFUSED: Final = ("eager", "sdpa_math")
_MTP: Final = ("num_nextn_predict_layers", "mtp_num_layers", "multi_token_pred_depth")
SHARDING: Final = ("sharding_parallel_degree", "sharding_parallel_size", "sharding_degree")


def options_of(given: Given, layout: Layout) -> dict[str, str]:
    """Switches of the framework profile as the recipe sets them."""
    found: dict[str, str] = {}
    if given.has("amp_master_grad"):
        found["gradient_dtype"] = "fp32" if given.switch("gradient_dtype", "amp_master_grad") else "bf16"
    if given.switch("optimizer_dtype", "use_lowprecision_moment"):
        found["optimizer_dtype"] = "bf16"
    if given.text("parameter_dtype", "fp16_opt_level") == "O1":
        found |= {"parameter_dtype": "fp32", "master_weights": "false", "gradient_dtype": "fp32"}
    found |= _fused(given)
    if given.text("flash_attention", "_attn_implementation", "attn_implementation", "attn_impl") in _UNFUSED:
        found["flash_attention"] = "false"
    found |= _state(given, layout) | _overlap(given) | _loss(given) | _experts(given)
    if layout.context_parallel > 1 and given.has("sep_parallel_degree", "sep_parallel_size"):
        found["cp_communication"] = "all_to_all"
    # PaddleFleet, models/gpt: a prediction module's stage holds a copy of the input table ("mtp_embed").
    shared = given.switch("mtp", "enable_mtp_magic_send")
    if shared or any(given.integer("mtp", name, low=0) for name in _MTP):
        found["mtp"] = "true"
    for switch in given.incomplete & set(found):
        del found[switch]
    return found


def _fused(given: Given) -> dict[str, str]:
    """Kernels that are one where a recipe says so; PaddleFormers' norms are unless it says otherwise."""
    # erniekit/hparams/model_args.py of ERNIEKit 1.3.0: fuse_rms_norm is on by default.
    found = {"fused_rms_norm": "true"} if is_paddleformers(given) else {}
    for switch, *names in (
        ("fused_rms_norm", "fuse_rms_norm", "use_fused_rms_norm"),
        ("fused_swiglu", "fuse_swiglu"),
        ("flash_attention", "use_flash_attention", "use_flash_attn"),
    ):
        if given.has(*names):
            found[switch] = str(given.switch(switch, *names)).lower()
    return found


def has_fp8_experts(given: Given) -> bool:
    """Whether routed experts compute in fp8, in ERNIE's fused node."""
    return given.switch("fp8_experts", "use_fp8_fuse_node")


def _experts(given: Given) -> dict[str, str]:
    """What experts and the norm before attention keep.

    The fused node keeps its input in 8 bits (`dequant_input`) and what gate and up put out, unless that is done again
    (`ExpertsGroupGemmContiguousNode`, fp8 utilities of the ERNIE pre-training toolkit); its README says that weighting
    inside the experts saves their outputs (`use_combine_before_a2a`), and the norm before q, k and v its own
    (`use_rms_qkv_recompute`), one of a layer's two.
    """
    found: dict[str, str] = {}
    if has_fp8_experts(given) and given.switch("fp8_experts", "dequant_input"):
        # Without clear_origin_weight_when_offline_quant the 16-bit weights stay beside both narrow copies.
        kept = given.switch("fp8_experts", "offline_quant_expert_weight")
        found["fp8_experts"] = "kept" if kept else "cast"
    elif has_fp8_experts(given):
        said = "use_fp8_fuse_node without dequant_input: what experts keep is priced in 16 bits"
        given.remark("activations-bound", "warning", said, "use_fp8_fuse_node")
    elif given.switch("fp8_experts", "use_fp8_mlp"):
        said = "use_fp8_mlp: experts in fp8 keep inputs and gate and up projections alone; priced in bf16"
        given.remark("activations-bound", "warning", said, "use_fp8_mlp")
    if given.switch("probabilities_in_experts", "use_combine_before_a2a"):
        found["probabilities_in_experts"] = "true"
    if given.switch("recomputed_norm_share", "use_rms_qkv_recompute"):
        found["recomputed_norm_share"] = "0.5"
    return found


def is_paddleformers(given: Given) -> bool:
    """Whether a recipe has keys that PaddleFormers has and PaddleNLP has not."""
    own = frozenset(flags_of("paddleformers")) - frozenset(flags_of("paddlenlp"))
    return any(name in own for name in given.entries)


def _state(given: Given, layout: Layout) -> dict[str, str]:
    """How long gradients live, and over how many ranks state is shared."""
    found = {}
    names = ("release_grads", "pp_release_grads", "sd_release_grads")
    released = any(given.switch("release_grads", name) for name in names) or "enable_release_grads" in pipeline_config(
        given
    )
    if released and layout.zero_stage < 2:
        # The trainer turns it off where gradients are sharded.
        found["release_grads"] = "true"
    degree = given.integer("sharding_degree", *SHARDING, low=-1, high=2**20)
    if degree is not None and degree > 1 and layout.zero_stage:
        found["sharding_degree"] = str(degree)
    return found


def _overlap(given: Given) -> dict[str, str]:
    """What runs under the computation."""
    text = given.text("overlap", "sharding_parallel_config") or ""
    given.places.pop("overlap", None)
    found = {}
    if "enable_stage1_overlap" in text or "enable_sharding_comm_overlap" in text:
        found["overlap_grad_reduce"] = "true"
    if "broadcast_overlap" in text:
        found["overlap_param_gather"] = "true"
    return found


def _loss(given: Given) -> dict[str, str]:
    """How the head and the loss are computed."""
    sparse = given.switch("loss", "use_sparse_head_and_loss_fn")
    fused = given.switch("loss", "use_fused_head_and_loss_fn")
    if sparse and fused:
        given.remark(
            "contradiction",
            "warning",
            "use_sparse_head_and_loss_fn and use_fused_head_and_loss_fn are both on; the sparse one is taken",
            "use_fused_head_and_loss_fn",
            fix="drop one of them",
        )
    if sparse:
        given.remark(
            "upper-bound",
            "note",
            "the sparse head skips tokens without a label; how many the data decide, all are priced",
            "use_sparse_head_and_loss_fn",
            fix="--option labelled_token_fraction=SHARE",
        )
    found = _gathered_logits(given)
    if fused and not sparse:
        if given.switch("loss", "use_recompute_loss_fn", default=not given.has("use_recompute_loss_fn")):
            tokens = (
                given.integer("loss", "loss_subbatch_sequence_length", "loss_subbatch_seqlen", high=2**27)
                or _CHUNK_TOKENS
            )
            return found | {"cross_entropy_chunk_tokens": str(tokens)}
        given.remark(
            "inactive-flag",
            "warning",
            "use_fused_head_and_loss_fn has no effect without use_recompute_loss_fn",
            "use_fused_head_and_loss_fn",
        )
    return found


def _gathered_logits(given: Given) -> dict[str, str]:
    if not given.has("tensor_parallel_output"):
        return {}
    on = given.switch("vocabulary_parallel_loss", "tensor_parallel_output")
    return {"vocabulary_parallel_loss": str(on).lower()}


def pipeline_config(given: Given) -> str:
    """The words of the pipeline's configuration."""
    text = given.text("pipeline_parallel_config", "pipeline_parallel_config") or ""
    given.places.pop("pipeline_parallel_config", None)
    # PaddleFormers' later spelling: each word a key of its own, the other way round.
    if not given.switch("pipeline_parallel_config", "partial_send_recv", default=True):
        text += " disable_partial_send_recv"
    given.places.pop("pipeline_parallel_config", None)
    return text
