"""Operations of feed-forward networks: a dense one, and routed experts with their exchanges."""

from __future__ import annotations

from typing import Literal, assert_never

from simulator.cost.dtypes import FP32, HALF, dispatched_bytes, element_bytes, expert_input_bytes, narrow_element_bytes
from simulator.cost.operations.blocks import (
    activation,
    cast,
    columns,
    first_products,
    into_products,
    network,
    norm,
    post_norm,
    tensor_collective,
    vector,
)
from simulator.cost.operations.record import Amount, Collective, Conditions, Operation, Saved, Spread, Weight
from simulator.records import replace


def dense(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition of a dense layer."""
    first, *others = network(conditions, "ffn", conditions.model.intermediate_size, "feed_forward")
    return (first._replace(moved=cast(conditions, float(conditions.model.hidden_size), "sequence"), calls=0.5), *others)


def linear(conditions: Conditions) -> tuple[Operation, ...]:
    """Return a product of the hidden size in place of a mixer or feed-forward network (Megatron's `heterogeneous`)."""
    weights = columns(conditions.model, {"linear": conditions.model.hidden_size})
    product, reduce = first_products(conditions, "linear", weights), tensor_collective(conditions, "reduce")
    return (product._replace(group="feed_forward", collectives=(*product.collectives, reduce)),)


def experts(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations between the norm and the residual addition of a mixture-of-experts layer."""
    model = conditions.model
    shared: tuple[Operation, ...] = ()
    if model.num_shared_experts:
        shared = network(conditions, "shared_experts", model.shared_width, "shared_experts", "shared_")
    if model.shared_expert_gate:
        shared = (*shared, _shared_gate(conditions))
    return (
        _router(conditions),
        *_latent(conditions, "into"),
        *(_in_fixed_buffers(conditions, each) for each in (_dispatch(conditions), *_networks(conditions))),
        _combine(conditions),
        *_latent(conditions, "back"),
        *shared,
    )


def _in_fixed_buffers(conditions: Conditions, operation: Operation) -> Operation:
    """Return an operation of routed experts with tensors sized for more copies than the average (T12)."""
    stash, capacity = conditions.framework.expert_stash, conditions.framework.expert_capacity
    if stash == capacity == 1.0:
        return operation
    return operation._replace(
        saved=tuple(tensor._replace(amount=stash * tensor.amount) for tensor in operation.saved),
        temporary=tuple(amount._replace(amount=capacity * amount.amount) for amount in operation.temporary),
    )


def hashed_experts(conditions: Conditions) -> tuple[Operation, ...]:
    """Return experts chosen by a table of token numbers: the router only weights them, without a correction bias."""
    return experts(conditions._replace(model=replace(conditions.model, router_bias=False)))


def experts_beside(conditions: Conditions) -> tuple[Operation, ...]:
    """Return a gated network and experts that read the same tokens, each with its own norms (Gemma 4).

    transformers 5.23.0, models/gemma4/modeling_gemma4.py: the network's output and the experts' input and output are
    normed; the router scales every feature of an unweighted norm, and every expert's weight.
    """
    model = conditions.model
    scales = (vector("router_scale", model.hidden_size), vector("expert_scale", model.num_experts))
    router, *others = experts(conditions)
    return (
        *network(conditions, "ffn", model.intermediate_size, "feed_forward"),
        post_norm(conditions, "ffn_network_norm", "network_norm_behind"),
        norm(conditions, "experts_norm", "experts_norm"),
        router._replace(weights=(*router.weights, *scales)),
        *others,
        post_norm(conditions, "experts_post_norm", "experts_norm_behind"),
    )


def _shared_gate(conditions: Conditions) -> Operation:
    """Return the gate of the shared experts' output, one number per token; its gradient needs that output."""
    hidden, element = conditions.model.hidden_size, element_bytes(conditions)
    return Operation(
        name="shared_experts_gate",
        group="shared_experts",
        weights=(Weight("shared_expert_gate", hidden, 1, "replicated"),),
        saved=(
            Saved("shared_experts_output", element * hidden, "sequence"),
            Saved("shared_experts_gate", element, "sequence"),
        ),
        moved=(Amount(2.0 * element * hidden, "sequence"),),
    )


def _latent(conditions: Conditions, direction: Literal["into", "back"]) -> tuple[Operation, ...]:
    """Return the projections around experts of a narrower hidden state, replicated on every rank; each saves its input.

    The projection into it reads the norm's output, which is saved already.
    """
    model = conditions.model
    if not model.expert_latent_size:
        return ()
    narrow = model.expert_latent_size
    ends = (model.hidden_size, narrow) if direction == "into" else (narrow, model.hidden_size)
    bias = (vector(f"latent_{direction}_bias", ends[1]),) if model.mlp_bias else ()
    weights = (Weight(f"latent_{direction}", *ends, "replicated"), *bias)
    if direction == "into":
        return (Operation(name="latent_into", group="experts", weights=weights),)
    saved = Saved("latent_output", narrow_element_bytes(conditions) * narrow, "sequence")
    back = Operation(name="latent_back", group="experts", weights=weights, saved=(saved,))
    if not model.expert_latent_norm:
        return (back,)
    entered = Saved("latent_norm_input", element_bytes(conditions) * narrow, "sequence")
    statistics = Saved("expert_norm_statistics", FP32, "sequence")
    normed = Operation(
        name="latent_norm", group="experts", weights=(vector("latent_norm", narrow),), saved=(entered, statistics)
    )
    return (normed, back)


def _router(conditions: Conditions) -> Operation:
    """Return the router, with fp32 logits and probabilities of every expert.

    megatron-core since 0.13 saves the logits and a routing map, `5 E` a token, and `24 K` for the chosen experts:
    scores, their sums and indices, probabilities in the order of the copies. A trained one keeps a cast copy of its
    input of `router_input_bytes`.
    """
    model = conditions.model
    saved = 2.0 * FP32 * model.num_experts
    if conditions.framework.probabilities_in_experts:
        saved = (FP32 + 1.0) * model.num_experts + 6.0 * FP32 * model.num_experts_per_tok
    bias = (vector("router_bias", model.num_experts),) if model.router_bias else ()
    if conditions.lora_rank is None:
        saved += float(conditions.framework.router_input_bytes) * model.hidden_size
    return Operation(
        name="router",
        group="router",
        weights=(Weight("router", model.hidden_size, model.num_experts, "replicated"), *bias),
        saved=(Saved("router", saved, "sequence"),),
        calls=0.5,
    )


def _exchange(conditions: Conditions, pattern: Literal["gather", "reduce"]) -> tuple[Collective, ...]:
    """Return the exchange of tokens to experts (`gather`) or back, mirrored in the backward pass (T9)."""
    sizes = (dispatched_bytes(conditions), element_bytes(conditions))
    sent, returned = sizes if pattern == "gather" else sizes[::-1]
    amount, ratio = sent * conditions.model.expert_width, returned / sent
    dispatch = conditions.framework.expert_dispatch
    match dispatch:
        case "alltoall":
            return (
                Collective("expert", "all_to_all", amount, "copies_tensor", "experts", ratio),
                Collective("expert_tensor", pattern, amount, "copies", "experts", ratio),
            )
        case "allgather":
            each: Literal["gather_each", "reduce_each"] = "gather_each" if pattern == "gather" else "reduce_each"
            return (Collective("expert_ranks", each, amount, "sequence", "experts", ratio),)
        case "deepep" | "hybridep":
            return (Collective("expert_ranks", "once", amount, "sequence", "experts", ratio),)
    assert_never(dispatch)


_BY_ELEMENT = 92.0
"""Bytes per feature that dispatch or combine moves in 16-bit training if it gathers and scatters by element."""


def _permuted(conditions: Conditions) -> tuple[Amount, ...]:
    """Return the bytes that dispatch or combine moves to order copies by expert.

    DeepEP and HybridEP order one copy per rank into one per expert: `2 R h` and as much of the ranks' copies per pass.
    Their backward pass mirrors the forward one, two passes where other kernels count three. By element, dispatch and
    combine each move `92 R h` over both passes: four gathers of 12 bytes, four scatters of 14 to 16 on zeros, the
    weighting, and for each of the eight the index made contiguous, 8.
    """
    element, hidden = element_bytes(conditions), float(conditions.model.expert_width)
    if conditions.framework.expert_dispatch in ("deepep", "hybridep"):
        mirrored = 2.0 / 3.0 * element * hidden
        return (Amount(mirrored, "copies"), Amount(mirrored, "reached"))
    if conditions.framework.indexed_dispatch:
        return (Amount(_BY_ELEMENT / 3.0 * (element / HALF) * hidden, "copies"),)
    return (Amount(5.0 / HALF * element * hidden, "copies"),)


_POOLED: tuple[Spread, ...] = ("pooled", "copies")  # gradients alive at once in the all-gather's backward pass


def _dispatch(conditions: Conditions) -> Operation:
    """Return the copies' way to their experts: permutation, exchange, gather over an expert's tensor-parallel ranks.

    All-gather brings the probabilities and choices of all tokens (`MoEAllGatherTokenDispatcher`, megatron-core 0.19.0,
    transformer/moe/token_dispatcher.py): for each local expert `masked_select` saves its fp32 input and mask, and the
    dispatcher another mask. Its backward pass expands the copies' gradient to all tokens.
    """
    hidden, gathers = float(conditions.model.expert_width), conditions.framework.expert_dispatch == "allgather"
    choices = (
        (Saved("pooled_choices", (FP32 + 2.0) * conditions.model.num_experts, "pooled_choices"),) if gathers else ()
    )
    gradients = tuple(Amount(element_bytes(conditions) * hidden, spread) for spread in _POOLED) if gathers else ()
    return Operation(
        name="dispatch",
        group="dispatch",
        saved=(Saved("dispatched_tokens", expert_input_bytes(conditions) * hidden, "copies"), *choices),
        temporary=gradients,
        moved=(*_permuted(conditions), *cast(conditions, 2.0 / 3.0 * hidden, "copies")),
        collectives=_exchange(conditions, "gather"),
    )


_PROJECTED = frozenset(("experts_gate_up", "experts_up"))  # outputs of the routed experts' first products


def _networks(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the routed experts' networks."""
    model = conditions.model
    hidden, width, count = model.expert_width, model.moe_intermediate_size, model.num_experts
    into = into_products(conditions)
    first = [Weight(f"expert_{name}", hidden, width, "expert_column", copies=count) for name in into]
    last = [Weight("expert_down", width, hidden, "expert_row", copies=count)]
    if model.mlp_bias:
        sizes = {f"expert_{name}_bias": width for name in into}
        first += [Weight(name, 1, size, "expert_column", count, matmul=False) for name, size in sizes.items()]
        last += [Weight("expert_down_bias", 1, hidden, "expert_row", count, matmul=False)]
    inner = activation(conditions, "experts", "experts", float(width), "copies_tensor")
    if conditions.framework.probabilities_in_experts and not _weighs_inside(conditions):
        unweighted = Saved("experts_unweighted", element_bytes(conditions) * width, "copies_tensor")
        inner = inner._replace(saved=(*inner.saved, unweighted))
    if conditions.framework.fp8_experts != "none":
        # Gate and up alone are saved; the product is recomputed with the output's gradient.
        inner = inner._replace(saved=tuple(tensor for tensor in inner.saved if tensor.name in _PROJECTED))
    if conditions.framework.fused_experts:
        # The fused products do the memory traffic of the activation and its casts.
        inner = inner._replace(moved=())
    # Gradients of inputs and outputs are alive beside those of gate and up.
    ends = Amount(2.0 * element_bytes(conditions) * hidden, "copies")
    # Biases are added, weighted by fp32 router probabilities, in separate kernels. The product and the sum are fp32,
    # then joined and cast: 28 bytes per output, and as many in backward (megatron-core, experts.py, `_apply_bias`).
    biased = (Amount(2.0 / 3.0 * 28.0 * model.expert_width, "copies"),) if model.mlp_bias else ()
    return (
        Operation(name=f"experts_{'_'.join(into)}", group="experts", weights=tuple(first)),
        inner._replace(temporary=(*inner.temporary, ends)),
        Operation(name="experts_down", group="experts", weights=tuple(last), moved=biased),
    )


def _weighs_inside(conditions: Conditions) -> bool:
    """Return whether the activation's kernel weighs its output with the router's probabilities (M3).

    Those of gated networks and of squared ReLU do. Other activations save what they put out for the gradient of the
    probabilities (megatron-core d98e8a6, transformer/moe/experts.py, `bias_act_func`).
    """
    framework = conditions.framework
    return framework.compiled or (
        framework.fused_swiglu if conditions.model.gated else conditions.model.activation == "squared_relu"
    )


def _combine(conditions: Conditions) -> Operation:
    """Return the copies' way back to their tokens, weighted.

    The routing weights' gradient needs the experts' outputs if they are weighted here; if weighted inside the experts,
    it needs only tensors that those save. `index_add_`, in place of `scatter_add_` where results repeat, keeps what it
    adds (d98e8a6, transformer/moe/moe_utils.py, `unpermute`; PyTorch 2.13, derivatives.yaml).
    """
    framework = conditions.framework
    hidden, element = float(conditions.model.expert_width), element_bytes(conditions)
    weighted = framework.probabilities_in_experts and framework.deterministic_kernels != "all"
    outputs = () if weighted else (Saved("expert_outputs", element * hidden, "copies"),)
    return Operation(
        name="combine",
        group="dispatch",
        saved=outputs,
        moved=_permuted(conditions),
        collectives=_exchange(conditions, "reduce"),
    )
