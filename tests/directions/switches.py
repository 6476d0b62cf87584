"""Which way each switch of a framework profile goes, by its documents: figures that rise or fall along its values.

A figure that is not named stays as it is. `?` may go either way, for the reason that `because` gives.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from simulator.question.vocabulary import CAPTURES, OFFLOADED_MODULES, OPTIMIZERS
from tests.directions.questions import QUESTIONS, Fields, Figure

Way = Literal["+", "-", "?"]
Spared = Callable[[str, Fields], bool]
"""Whether the layout of a question is one of those where a figure may go the other way."""


def none_spared(_question: str, _layout: Fields) -> bool:
    return False


class Course(NamedTuple):
    """Values of a switch in order, and what they move."""

    values: tuple[str, ...]
    moves: Mapping[Figure, Way]
    beside: Mapping[str, str] = {}
    """Other switches without which it does nothing."""
    spared: Spared = none_spared
    because: str = ""
    """Why a figure may go either way, or none moves."""


def moves(text: str) -> dict[Figure, Way]:
    """Figures with their ways, from text such as `saved- seconds?`."""
    found: dict[Figure, Way] = {}
    for word in text.split():
        assert word[:-1] in get_args(Figure), word
        assert word[-1] in get_args(Way), word
        found[word[:-1]] = word[-1]  # type: ignore[index,assignment]
    return found


def along(
    values: str, text: str, beside: str = "", spared: Spared = none_spared, because: str = ""
) -> tuple[Course, ...]:
    """A course along values; a blank stands between them, and `''` is none of them."""
    words = tuple("" if word == "''" else word for word in values.split())
    others = dict(pair.split("=", 1) for pair in beside.split())
    return (Course(words, moves(text), others, spared, because),)


def on(text: str, beside: str = "", spared: Spared = none_spared, because: str = "") -> tuple[Course, ...]:
    """A switch that is turned on."""
    return along("false true", text, beside, spared, because)


def each(first: str, values: tuple[str, ...], text: str, **more: Any) -> tuple[Course, ...]:
    """From the first value to each of the others; `more` as of `along`."""
    return tuple(course for value in values for course in along(f"{first} {value}", text, **more))


def selective(_question: str, layout: Fields) -> bool:
    return layout.get("recompute") == "selective"


def activations_away(_question: str, layout: Fields) -> bool:
    return layout.get("offload") == "activations"


def away_or_again(_question: str, layout: Fields) -> bool:
    """Modules that are offloaded beside whole layers, or done again with them, are refused."""
    return activations_away(_question, layout) or layout.get("recompute", "none") not in ("none", "selective")


def of_paddle(question: str, _layout: Fields) -> bool:
    return QUESTIONS[question].profile == "paddle"


def of_units(question: str, _layout: Fields) -> bool:
    return QUESTIONS[question].profile == "torch"


def narrow(question: str, _layout: Fields) -> bool:
    return QUESTIONS[question].fields.get("precision") in ("fp8", "fp4")


def expandable(question: str, _layout: Fields) -> bool:
    return QUESTIONS[question].stack == "torchtitan"


THRIFTY = "saved- device- host-"
LAVISH = "saved+ device+ host+"
STATE = "state+ device+"
ZERO_3 = "live_parameters=1000000000 fully_shard=false"
BF16 = "parameter_dtype=bf16 fully_shard=false"
GRADIENTS = f"{BF16} gradient_dtype=bf16 master_weights=true"
_EXCHANGES = ("all_gather", "all_to_all", "all_to_all_ring")
_LARGE = ("core_attn", "attn_proj", "fused_group_mlp", "qkv_linear")
_MODULES = tuple(word for word in OFFLOADED_MODULES if word not in _LARGE)

SWITCHES: dict[str, tuple[Course, ...]] = {
    # What a layer keeps.
    # Statistics are kept of every row, where selective recompute keeps nothing of unfused scores.
    # On short sequences tiles that are not full cost more than a better kernel gains.
    "flash_attention": on(f"{THRIFTY} seconds?", spared=selective, because="part of a tile costs a whole"),
    "attention_kernel": (
        *along("flash_1 sdpa_flash flash_2", "seconds-"),
        *each("flash_2", ("sdpa", "flash_3"), "seconds?", because="part of a tile costs a whole"),
        *each("device", ("unfused", "ck", "aiter", "npu"), "seconds?", because="other devices' kernels"),
        *along("flash_2 math", f"{LAVISH} seconds?", because="a moment of other tensors"),
    ),
    "attention_matrix_bytes": along("2 4", f"{LAVISH} seconds+", "flash_attention=false"),
    "attention_dropout": on(LAVISH, "flash_attention=false"),
    # Where recompute ends with the last tensor that is read, a mask is the last.
    "hidden_dropout": on(f"{LAVISH} flop+ seconds+"),
    "fused_rms_norm": on(f"{THRIFTY} seconds-"),
    "composed_norm_bytes": along("6 8", LAVISH, "fused_rms_norm=false"),
    "composed_activation_bytes": along("0 6", LAVISH),
    "composed_layer_norm_bytes": along("0 12", f"{LAVISH} passes+ seconds+"),
    "router_input_bytes": along("0 4", LAVISH),
    "fused_swiglu": on(f"{THRIFTY} seconds-"),
    "fused_rotary": on("saved- device- seconds-"),
    "compiled": on(f"{THRIFTY} flop- seconds-"),
    "recompute_stops_early": on("flop- seconds-"),
    "returned_scores": on("device+", "flash_attention=false recompute_stops_early=false"),
    "keep_qkv_output": on(LAVISH),
    "rope_tables_per_call": on(LAVISH),
    "repeat_kv": on(LAVISH),
    "dense_masks": along("none windows all", LAVISH, "attention_kernel=sdpa"),
    "copy_latent_value": on(THRIFTY),
    "fuse_latent_norm": on("saved- device-"),
    "probabilities_in_experts": on(f"{THRIFTY} flop- seconds-"),
    "recomputed_activation_share": along("0.0 0.5 1.0", f"{THRIFTY} seconds+"),
    "recomputed_norm_share": along("0.0 0.5 1.0", f"{THRIFTY} seconds+"),
    "fp8_experts": (
        *along("none cast", THRIFTY, spared=narrow),  # inputs in 8 bits anyway, but without scales by block
        *along("cast kept", STATE),
    ),
    # With offload the two layers that stay are those of the widest kind, which may be a dense one.
    "recomputed_expert_share": along("0.0 0.5 1.0", f"{THRIFTY} flop+ seconds+", spared=activations_away),
    "recomputed_network_share": along("0.0 0.5 1.0", f"{THRIFTY} flop+ seconds+"),
    "swapped_attention": on("saved- device- host+ seconds+", spared=activations_away),
    "offloaded_modules": (
        *each("''", _MODULES, "saved- device- host+", spared=away_or_again),
        *along("'' qkv_linear", "saved- device- host+ seconds+", spared=away_or_again),
        *along("'' fused_group_mlp", "saved- device- host+ seconds+", spared=away_or_again),
        *along("'' core_attn core_attn,attn_proj", "saved- device- host+ seconds+", spared=away_or_again),
    ),
    "composed_scan": on(LAVISH),
    "keep_gathered_inputs": on("saved+ device+"),
    "copied_inputs": on("saved+ device+ host+ seconds+", "fused_projections=false"),
    # Data types of the training state.
    "parameter_dtype": along(
        "bf16 fp32", "state? device? host? seconds?", because="fp32 ones are sharded earlier, and have no master copy"
    ),
    # Paddle keeps an fp32 copy of a rank's part beside 16-bit ones. FSDP2's have their parameters' type.
    "gradient_dtype": along("bf16 fp32", "state+ device+ seconds+", spared=lambda *at: of_paddle(*at) or of_units(*at)),
    "reduce_dtype": (
        *along("bf16 fp32", "seconds+"),
        *along("gradient fp32", "seconds+", "gradient_dtype=bf16"),
    ),
    "optimizer": (
        *along(
            "sgd adafactor adamw_8bit lion sgd_momentum muon adamw",
            "state+ host+ device? seconds?",
            because="Muon's step works on whole matrices",
        ),
        *along("adamw paged_adamw paged_adamw_8bit", "state- device- host? seconds?", because="state goes to the host"),
        *along("lion paged_lion", "state- device- host+"),
        *along("adamw_4bit adamw_8bit", "state+ device+ host+ seconds+"),
        *along("adamw_4bit adamw_torch_8bit", "state+ device+ host+ seconds+"),
        *along("paged_lion_8bit lion_8bit lion", "state+ device+ host? seconds?", because="state goes to the host"),
    ),
    "optimizer_dtype": along("fp8 bf16 fp32", f"{STATE} host+ seconds+"),
    "master_weights": on(f"{STATE} host+ seconds+", "parameter_dtype=bf16"),
    "master_weight_dtype": along("bf16 fp32", f"{STATE} host+ seconds+", "parameter_dtype=bf16 master_weights=true"),
    "fp32_router": on(
        "state? device? host? seconds?", "parameter_dtype=bf16", because="wider parameters, but no master copy of them"
    ),
    "step_in_backward": on("state- device-", "fully_shard=false foreach_optimizer=false"),
    "whole_table_state": on(f"{STATE} host+ seconds+", "optimizer=muon"),
    "wide_table_moments": on(f"{STATE} seconds+", "optimizer=adamw_8bit"),
    "release_grads": on("state- device-", "fully_shard=false"),
    "sharding_degree": along("2 4 0", "state- device- host- seconds?", because="more ranks exchange smaller parts"),
    "sharding_replicas": along("1 2 4", f"{STATE} host+ seconds?", because="parts are summed between the groups"),
    "builds_whole_layers": on("", because="steps need more here"),
    "builds_in_fp32": on("device+"),
    "buffers_weights": on("device?", because="only more than a step where few activations stand beside it"),
    "kept_gathers": on("device+", ZERO_3),
    "outer_unit": on("device+"),
    "split_blocks": along("0 0.3", "device+", ZERO_3),
    "live_parameters": along("1000000000 2000000000", "device+", "fully_shard=false"),
    "reuse_parameters": along("1 1000000000", "device+", ZERO_3),
    "prefetch_parameters": along("50000000 500000000", "device+", ZERO_3),
    "reduction_parameters": along("1 500000000", "state? device+", ZERO_3, because="a bucket stays at stage 3 alone"),
    "reduction_buffers": along("0 1 2", "device+", ZERO_3),
    "step_temporaries": along("0 1 2", "device+", "foreach_optimizer=true"),
    "step_parameters": along(
        "100000000 1000000000",
        "device+ host?",
        f"{ZERO_3} foreach_optimizer=false prefetch_parameters=1",
        because="pinned groups are powers of two",
    ),
    "offload_fraction": along("0.0 0.5 1.0", "state- device- host+ seconds+"),
    "host_gradient_bytes": along("0 4", "host+"),
    "host_accumulation_bytes": along("0 4", "host+"),
    "host_weight_bytes": along("0 4", "host+"),
    "host_pinned_bytes": along("0 4", "host+"),
    "offload_parameters": on("state- device- host+ seconds+"),
    "loads_on_host": along("none sharded always", "host+"),
    "saves_on_host": along("none weights", "host+") + along("none state", "host+"),
    # A joint product has one dummy gradient, as large as those of its parts together. Paddle copies inputs.
    "fused_projections": on(f"{STATE} saved+ seconds-", spared=of_paddle),
    "shared_adapters": along("false network true", "state- device- host- flop- seconds-")
    + along("false attention true", "state- device- host- flop- seconds-")
    + along("false mixers gates", "state- device- host- flop- seconds-"),
    "joint_adapters": along(
        "none whole padded",
        "saved? host? device?",
        "adapter_dropout=before",
        because="one input less, but outputs kept",
    ),
    "adapter_targets": along("all attention query_value", f"state- {THRIFTY} flop- seconds-")
    + along("q+k+v+o+gate+up+down+head attention", f"state- {THRIFTY} flop- seconds-"),
    "expert_adapters": along(
        "false router true", "state+ device+ flop+ seconds+ saved?", because="inputs are read by adapters alone"
    ),
    "merged_expert_adapters": along("none folded added", "state+ device+ saved+ flop+ seconds+"),
    "decomposed_adapters": along(
        "none joint apart", "state+ device+ saved+ host+ seconds+ flop+", "adapter_dropout=before"
    ),
    "fused_gradient_accumulation": on(f"{STATE} seconds-"),
    "dummy_weight_gradients": along("none linear all", STATE, "fused_gradient_accumulation=true"),
    "foreach_optimizer": on("device+"),
    "largest_tensor_step": on("device+", "fully_shard=false foreach_optimizer=false"),
    "widened_gradients": on(STATE, GRADIENTS),
    "master_gradients": on(STATE, GRADIENTS),
    "gradient_copies": on(STATE, f"{BF16} gradient_dtype=fp32"),
    "quantised_base": on("state- device- seconds+"),
    "quantised_bits": along("4 8", f"saved+ {STATE} seconds+", "quantised_base=true"),
    "quantised_scale_bytes": along("1.016 2 4", f"{STATE} seconds+", "quantised_base=true"),
    "quantised_experts": on("state- device- seconds+", "quantised_base=true"),
    "quantised_head": on("state? device?", "quantised_base=true", because="a head of 4 bits, and another table"),
    "gradients_in_place": on("device-"),
    "loads_unquantised": on("device?", "quantised_base=true", because="only more than a step where little is saved"),
    "quantising_bytes": along("0 256", "device?", "quantised_base=true", because="only more than a step of few tokens"),
    "plain_module": on("saved+ state+ device?", because="FSDP reduces in 16 bits; elsewhere there are buckets"),
    "autocast": on(LAVISH),
    "flat_parameters": on("device+", "plain_module=true"),
    "backward_prefetch": on("device+", "plain_module=true flat_parameters=true"),
    "sync_each_batch": on("device?", "plain_module=true", because="parts of 4 bytes may be more than all of 2"),
    "widened_rest": on(f"saved? {STATE} host+", "quantised_base=true", because="a table in fp32 makes the stream fp32"),
    "frozen_dtype": along("compute fp32", f"saved+ {STATE}", "plain_module=true"),
    "saved_modules": along("none output both", f"{STATE} flop+ host+ seconds+")
    + along("none embedding", f"{STATE} host+ seconds+"),
    "saved_modules_dtype": along("bf16 fp32", f"{STATE} saved+ host+ seconds+", "saved_modules=both"),
    "adapter_copies": on(f"{LAVISH} state-", "flat_parameters=true"),
    "adapter_dropout": each("none", ("before", "after"), LAVISH),
    "loss_chunks": along("1 8", "device-"),
    "rotary_tables": along("0 1000000", "state+ device+"),
    "frozen_reference": on(STATE),
    "reference_gradients": on(STATE, "frozen_reference=true fully_shard=false"),
    "reference_forward": on("seconds+"),
    # Data and objective.
    "sequences_per_sample": along("1 2", f"{LAVISH} seconds+"),
    # Adapters of one output are trained, of a vocabulary none.
    "score_head": on("state- device- flop- seconds- host?", because="adapters of the one output that is trained"),
    "unused_output_layer": on(STATE, "score_head=true fully_shard=false"),
    # What stays between steps.
    "attention_mask": (
        *along("none compressed", STATE),
        *along("none sequence", f"{STATE} seconds+"),
        *along("sequence layers", STATE),
    ),
    "position_bias_tables": along("0 1 3", f"state+ {LAVISH}"),
    "kept_boundaries": on("state+ device?", because="they take the place of buffers"),
    "kept_dispatches": along("0 3", STATE),
    "fully_shard": on("state? device? seconds?", "parameter_dtype=fp32 gradient_dtype=fp32", because="another engine"),
    "fp8_weight_cache": on(f"{STATE} seconds-"),
    "fp8_recipe": (
        *along("delayed tensorwise", "seconds+"),
        *along("delayed blockwise", f"{LAVISH} seconds+", "fp8_inputs=true"),
        *along("blockwise mxfp8", STATE, "fp8_inputs=true fp8_weight_cache=true"),
    ),
    "fp4_recipe": along("nvfp4 mxfp4", f"state- {THRIFTY} seconds-"),
    "fp8_param_gather": on("state- device- seconds-"),
    "fp8_attention": on("seconds?", because="on Hopper kernels of 8 bits are slower: 0.90 of those of 16"),
    "fp8_output_layer": on("seconds-"),
    "fp8_inputs": on(f"{THRIFTY} seconds-"),
    "fp8_activation_inputs": on(THRIFTY),
    "fp8_dispatch": on("seconds-"),
    # Output layer and loss.
    "fused_cross_entropy": on("device? seconds-", because="Megatron's kernel keeps 10 bytes a logit, not 6"),
    "loss_bytes_per_logit": along("6 12", "device+"),
    "fused_loss_bytes_per_logit": along("4 12", "device+", "fused_cross_entropy=true"),
    "split_loss_bytes_per_logit": along("0 4", "device+"),
    "losses_in_turn": on("device-", "loss_bytes_per_logit=32"),
    "cross_entropy_chunk_tokens": along("0 1024", "device-"),
    "cross_entropy_chunk_mib": along("16 64", "device+", "cross_entropy_chunk_tokens=1"),
    "vocabulary_parallel_loss": on("device- seconds-"),
    "loss_traffic_bytes": along("32 52", "seconds+"),
    "labelled_token_fraction": along("0.5 1.0", "device+ flop+ seconds+"),
    "deferred_head_gradients": along("0 2 4", "device+"),
    # Communication.
    "tp_comm_overlap": on("device+ seconds?", because="products in pieces are slower"),
    "functional_collectives": on("seconds+"),
    "overlap_tensor_gradients": on("seconds-"),
    "gradient_passes": along("0 4", "seconds+"),
    "cp_communication": (
        # Keys and values of all ranks in place of two at a time; the same of them is sent.
        *along(
            "ring gathered_ring", "saved- device? seconds?", because="gathered keys and values, no buffers of a ring"
        ),
        *each("ring", _EXCHANGES, "saved? device? seconds?", because="each sends and holds something else"),
    ),
    "cp_inner_degree": along(
        "1 2", "device? seconds?", "cp_communication=all_to_all_ring", because="heads in place of a ring"
    ),
    "overlap_grad_reduce": on("seconds-"),
    "overlap_param_gather": on("seconds-"),
    "zero_broadcasts": on("seconds+"),
    "overlap_p2p": on("seconds-"),
    "scattered_sends": on("seconds-"),
    "host_paced_layers": on("seconds+"),
    "cuda_graphs": each("none", tuple(word for word in CAPTURES if word != "none"), "seconds-"),
    "blocking_launches": on("seconds+"),
    "deterministic_kernels": along("none products all", LAVISH),
    "expandable_segments": on("device-"),
    "communicator_buffer_mib": along("100 400", "device+"),
    "eager_modules": on("device+"),
    "growing_pool": on("device-", spared=expandable),
    # Experts.
    "expert_imbalance": along("0.5 1.0 1.5", f"{LAVISH} seconds+"),
    "expert_dispatch": (
        *along("alltoall allgather", f"{LAVISH} seconds?", because="all tokens to all ranks, but no copies"),
        *along("alltoall deepep", "seconds-"),
        *along("deepep hybridep", "", because="they are priced alike"),
    ),
    "grouped_experts": on("device+"),
    "sliced_experts": on("seconds+ device-"),
    "indexed_dispatch": on("seconds+"),
    "overlap_expert_exchange": on("device+ seconds-"),
    "delayed_weight_gradients": on("device+", "fully_shard=false"),
    "fused_experts": on("seconds-"),
    "expert_capacity": along("1.0 1.5", "device+"),
    "expert_stash": along("1.0 1.5", LAVISH),
    "warm_up_whole_batch": on("device+"),
    "splits_last_backward": on("seconds-"),
    "mtp": on(f"state+ {LAVISH} flop+ seconds+"),
    "unmeasured_runtime": on("", because="it widens ranges, which no scenario without a calibration has"),
}
"""By the name of the switch."""
assert set(OPTIMIZERS) == {value for course in SWITCHES["optimizer"] for value in course.values}
