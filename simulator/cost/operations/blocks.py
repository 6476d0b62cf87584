"""Operations around mixers and networks: norms, additions, activations, casts, streams, embeddings, output layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from simulator.cost.derived import remembered
from simulator.cost.dtypes import (
    FP32,
    HALF,
    activation_input_bytes,
    adapter_bytes,
    element_bytes,
    fp4_bytes,
    narrow_element_bytes,
)
from simulator.cost.operations.record import (
    Amount,
    Collective,
    Conditions,
    Operation,
    OperationGroup,
    Saved,
    Split,
    Spread,
    Weight,
)
from simulator.question.frameworks import profile
from simulator.question.specs.model import ModelSpec


def vector(name: str, length: int, split: Split = "replicated") -> Weight:
    """Return the weight of a norm scale or a bias."""
    return Weight(name, 1, length, split, matmul=False)


def columns(model: ModelSpec, widths: Mapping[str, int]) -> tuple[Weight, ...]:
    """Return products of the hidden state with outputs of these widths, by name."""
    return tuple(Weight(name, model.hidden_size, width, "column") for name, width in widths.items())


def norm(conditions: Conditions, name: str, weight: str) -> Operation:
    """Return a norm with the input of the linear layer behind it: saves its input, fp32 statistics and its output.

    RMSNorm has a scale and saves one number per token; LayerNorm has a scale, mostly a bias, and saves two. A fused
    norm saves its 16-bit input; one of elementwise operations `composed_norm_bytes` or
    `composed_layer_norm_bytes` per feature instead.
    fp8 saves the output in 8 bits. Without `keep_gathered_inputs` the output is saved split over the sequence-parallel
    group and gathered again in backward (Korthikanti et al. 2022, section 4.2.2). A composed norm casts to fp32 and
    back, squares, averages and multiplies twice: 36 bytes.
    """
    model = conditions.model
    hidden, centred = float(model.hidden_size), model.norm != "rms_norm"
    return Operation(
        name=name,
        group="norm",
        weights=norm_weights(conditions, weight, model.hidden_size),
        saved=(
            Saved(f"{name}_input", norm_copies(conditions) * hidden, "sequence"),
            Saved(f"{name}_statistics", (2.0 if centred else 1.0) * FP32, "sequence"),
            linear_input(conditions, f"{name}_output"),
        ),
        moved=(
            Amount(_again(conditions.framework.recomputed_norm_share) * norm_bytes(conditions) * hidden, "sequence"),
        ),
    )


def norm_bytes(conditions: Conditions) -> float:
    """Return the bytes per feature that a norm moves: input and output in one kernel, 36 composed."""
    return 9.0 * FP32 if _composed(conditions) > FP32 else 2.0 * element_bytes(conditions)


def _composed(conditions: Conditions) -> float:
    """Return the bytes per feature that a norm of elementwise operations saves; 0 for one kernel."""
    profile, rms = conditions.framework, conditions.model.norm == "rms_norm"
    if profile.compiled or (rms and profile.fused_rms_norm):
        return 0.0
    return float(profile.composed_norm_bytes if rms else profile.composed_layer_norm_bytes)


def norm_copies(conditions: Conditions) -> float:
    """Return the bytes per feature that a norm saves of its input; in fp32 training every copy is fp32.

    A frozen scale needs no copy of what it multiplies: a composed norm keeps an fp32 copy less.
    """
    if not (saved := _composed(conditions)):
        return element_bytes(conditions)
    if conditions.lora_rank is not None:
        return max(saved - FP32, min(saved, FP32))
    return saved if element_bytes(conditions) == HALF else max(saved, 2.0 * FP32)


def _again(share: float) -> float:
    """Return the passes where a share of layers is recomputed, relative to the usual three."""
    return 1.0 + share / 3.0


def _saved_product(conditions: Conditions, width: float) -> float:
    """Return the bytes saved of an activation function's output: none where it is recomputed."""
    return (1.0 - conditions.framework.recomputed_activation_share) * narrow_element_bytes(conditions) * width


def norm_weights(conditions: Conditions, name: str, width: int) -> tuple[Weight, ...]:
    """Return the scale and bias of a norm of the model's kind, as far as it has them."""
    match conditions.model.norm:
        case "layer_norm_unweighted":
            return ()
        case "layer_norm":
            return (vector(name, width), vector(f"{name}_bias", width))
        case _:
            return (vector(name, width),)


def linear_input(conditions: Conditions, name: str) -> Saved:
    """Return the hidden state that a block's first products save; 8 bits under fp8."""
    output: Spread = "whole" if conditions.framework.keep_gathered_inputs else "sequence"
    saved = 1.0 - conditions.framework.recomputed_norm_share
    return Saved(name, saved * narrow_element_bytes(conditions) * conditions.model.hidden_size, output)


def post_norm(conditions: Conditions, name: str, weight: str) -> Operation:
    """Return a norm behind a block: its output enters an addition, which saves nothing."""
    whole = norm(conditions, name, weight)
    return whole._replace(saved=whole.saved[:2])


def residual(conditions: Conditions, name: str) -> Operation:
    """Return an addition to the residual stream: two reads, one write; dropout saves a byte per number (M4)."""
    hidden = float(conditions.model.hidden_size)
    masks = (Saved(f"{name}_mask", hidden, "sequence"),) if conditions.framework.hidden_dropout else ()
    moved = Amount(3.0 * element_bytes(conditions) * hidden, "sequence")
    return Operation(name=name, group="residual", saved=masks, moved=(moved,))


def cast(conditions: Conditions, width: float, spread: Spread) -> tuple[Amount, ...]:
    """Return the bytes of casting a product's 16-bit input: fp8 writes it and its transpose; NVFP4 reads it twice.

    NVFP4 needs a tensor's largest number before it casts (TransformerEngine, NVFP4 quantization); MXFP4 scales by
    block.
    """
    if conditions.precision == "fp4":
        reads = 2.0 if conditions.framework.fp4_recipe == "nvfp4" else 1.0
        return (Amount((reads * HALF + 2.0 * fp4_bytes(conditions)) * width, spread),)
    return (Amount(4.0 * width, spread),) if conditions.precision == "fp8" else ()


def separate_products(conditions: Conditions, name: str, products: int) -> tuple[tuple[Saved, ...], tuple[Amount, ...]]:
    """Return what `products` that read one tensor save beside it, and the bytes that they move if not joined in one.

    Their input gradients are added up: two reads and one write per sum; every tensor-parallel rank has the whole one.
    With `copied_inputs` each reads a copy of its own, and the gradient of the block's output is copied too (M3).
    """
    hidden, apart = float(conditions.model.hidden_size), not conditions.framework.fused_projections
    further = products - 1.0 if apart else 0.0
    summed = Amount(3.0 * further * element_bytes(conditions) * hidden, "whole")
    if not conditions.framework.copied_inputs:
        return (), (summed,) if further else ()
    saved = Saved(f"{name}_input_copies", further * narrow_element_bytes(conditions) * hidden, "unsplit")
    copied = Amount(2.0 * (further + 2.0) * element_bytes(conditions) * hidden, "unsplit")
    return (saved,) if further else (), (summed, copied)


def tensor_collective(conditions: Conditions, pattern: Literal["gather", "reduce"]) -> Collective:
    """Return a gather or scatter of `2 T h` around a tensor-parallel block; an all-reduce is the traffic of both."""
    amount = element_bytes(conditions) * conditions.model.hidden_size
    return Collective(group="tensor", pattern=pattern, amount=amount, spread="whole", beside="products")


def projection(name: str, weights: tuple[Weight, ...], *saved: Saved, moved: tuple[Amount, ...] = ()) -> Operation:
    """Return an operation beside a mixer's core: its products, norms and gates."""
    return Operation(name=name, group="attention_projection", weights=weights, saved=saved, moved=moved)


def first_products(conditions: Conditions, name: str, weights: tuple[Weight, ...], *saved: Saved) -> Operation:
    """Return the products of a mixer that read the norm's output, which is cast and gathered once for all of them."""
    whole = projection(name, weights, *saved, moved=cast(conditions, float(conditions.model.hidden_size), "sequence"))
    return whole._replace(collectives=(tensor_collective(conditions, "gather"),), calls=0.5)


def network(
    conditions: Conditions, name: str, width: int, group: OperationGroup, prefix: str = ""
) -> tuple[Operation, ...]:
    """Return a feed-forward network for all tokens: gate and up (or up alone), activation, down.

    Weight names start with `prefix`.
    """
    hidden, bias = conditions.model.hidden_size, conditions.model.mlp_bias
    into = into_products(conditions)
    first = [Weight(f"{prefix}{name}", hidden, width, "column") for name in into]
    first += [vector(f"{prefix}{name}_bias", width, "column") for name in into if bias]
    last = (Weight(f"{prefix}down", width, hidden, "row"), *((vector(f"{prefix}down_bias", hidden),) if bias else ()))
    gather, reduce = tensor_collective(conditions, "gather"), tensor_collective(conditions, "reduce")
    saved, moved = separate_products(conditions, name, len(into))
    return (
        Operation(
            name=f"{name}_{'_'.join(into)}",
            group=group,
            weights=tuple(first),
            saved=saved,
            moved_backward=moved,
            collectives=(gather,),
        ),
        activation(conditions, name, group, float(width), "tensor"),
        Operation(name=f"{name}_down", group=group, weights=last, collectives=(reduce,)),
    )


def keeps_inputs(conditions: Conditions) -> bool:
    """Return whether products keep their inputs apart from autograd's saved tensors, as an 8-bit base does (M38)."""
    framework = conditions.framework
    return conditions.lora_rank is not None and framework.quantised_base and framework.quantised_bits == "8"


def merges_experts(conditions: Conditions) -> bool:
    """Return whether adapters of routed experts multiply a merged copy of all experts' weights (M40)."""
    adapts_any = conditions.lora_rank is not None and conditions.model.is_moe
    return adapts_any and profile.merges_experts(conditions.framework)


def adapts(conditions: Conditions, group: OperationGroup, name: str) -> bool:
    """Return whether the product of a weight has an adapter (M2).

    peft 0.21 takes networks beside merged experts for those, and gives them none.
    """
    targets, plain = conditions.framework.adapter_targets, name.removeprefix("expert_").removeprefix("shared_")
    passed = ("false",) if name == "router" else ("false", "router") if name.startswith("expert_") else ()
    if conditions.lora_rank is None or group == "residual" or conditions.framework.expert_adapters in passed:
        return False
    if group != "experts" and plain in ("gate", "up", "down") and merges_experts(conditions):
        return False
    if targets in ("all", "attention"):
        return (targets == "all" and name != "head") or group == "attention_projection"
    # peft 0.19, utils/constants.py: what most models' mapping names.
    return plain in (("q", "v", "q_b", "kv_b") if targets == "query_value" else targets.split("+"))


def casts_listed(conditions: Conditions) -> tuple[bool, bool]:
    """Return whether autocast runs the operations of its list in fp32, and whether norms are among them (M36)."""
    framework = conditions.framework
    listed = framework.autocast and not framework.compiled and element_bytes(conditions) < FP32
    return listed, listed and conditions.model.norm != "rms_norm" and not framework.composed_layer_norm_bytes


def input_casts(conditions: Conditions) -> Literal["none", "each", "wide"]:
    """Return which inputs adapters cast: each, or over bitsandbytes under autocast what fp32 norms put out (M36)."""
    framework = conditions.framework
    if conditions.lora_rank is None or not framework.adapter_copies:
        return "none"
    if not framework.quantised_base or not (framework.autocast or framework.widened_rest):
        return "each"
    return "wide" if framework.autocast and (framework.widened_rest or puts_out_wide(conditions)) else "none"


def multiplies_dropped(conditions: Conditions) -> bool:
    """Return whether DoRA multiplies the base with what adapters drop at random, apart from what its layer reads."""
    framework = conditions.framework
    return framework.decomposed_adapters == "apart" and framework.adapter_dropout == "before"


def decomposing(conditions: Conditions) -> tuple[float, float, bool, float]:
    """Return DoRA's bytes of a number: of adapters, in autocast, whether weights are copied, kept of these (M42)."""
    framework, width, element = conditions.framework, adapter_bytes(conditions), element_bytes(conditions)
    narrow = element if framework.autocast else width
    copied = framework.quantised_base or width > (FP32 if framework.frozen_dtype == "fp32" else element)
    keeps = multiplies_dropped(conditions) and (copied or narrow < width)
    return width, narrow, copied, narrow * keeps


def puts_out_wide(conditions: Conditions) -> bool:
    """Return whether products over a quantised base read fp32 as autocast has it (M36), or magnitudes make it (M42)."""
    framework = conditions.framework
    magnified = framework.decomposed_adapters != "none" and adapter_bytes(conditions) > decomposing(conditions)[1]
    return framework.quantised_base and (casts_listed(conditions)[1] or magnified)


def adapted(conditions: Conditions, operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, Weight, bool]]:
    """Yield the weights of a layer that have adapters, and whether each is the first of a joint product."""
    sharing, names = conditions.framework.shared_adapters, {each.name for each in operations}
    linear = "scan_projection" in names or (sharing in _MIXED and "query_key_value" not in names)
    if linear and conditions.framework.adapter_targets not in ("all", "attention"):  # a list names attention's products
        operations = tuple(each for each in operations if each.group != "attention_projection")
    for operation, weight in ((each, weight) for each in operations for weight in each.weights if weight.matmul):
        joint = _joint(sharing, operation, weight)
        if any(adapts(conditions, operation.group, name) for name in joint):
            yield operation, weight, weight.name == joint[0]


def _joint(sharing: str, operation: Operation, weight: Weight) -> Sequence[str]:
    """Return the weights of an operation that are one product with one adapter."""
    side, of_group = (weight.inputs, weight.split), operation.group in _SHARING.get(sharing, ())
    if weight.split.endswith("column") and (of_group or sharing == "true" or operation.name == "scan_projection"):
        return [each.name for each in operation.weights if each.matmul and (each.inputs, each.split) == side]
    parts = ("qg",) if sharing in _MIXED and operation.name == "query_key_value" else _MIXED.get(sharing, ())
    return next((names for names in parts if weight.name in names), (weight.name,))


_SHARING: Final = {"network": ("feed_forward", "shared_experts"), "attention": ("attention_projection",)}
_MIXED: Final = {"mixers": ("qkv",), "gates": ("qkvz", "ab")}  # joint products of linear attention, by their letters


def decomposed(conditions: Conditions, operations: tuple[Operation, ...]) -> tuple[Weight, ...]:
    """Return the weights of operations whose adapters have magnitudes (M42)."""
    decomposes = conditions.framework.decomposed_adapters != "none"
    return tuple(weight for _, weight, _ in adapted(conditions, operations)) if decomposes else ()


def into_products(conditions: Conditions) -> tuple[str, ...]:
    """Return the names of the products that read the input of a feed-forward network."""
    return ("gate", "up") if conditions.model.gated else ("up",)


def activation(conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread) -> Operation:
    """Return the activation of the model's feed-forward networks, gated or plain."""
    chosen = gated_activation if conditions.model.gated else plain_activation
    return chosen(conditions, name, group, width, spread)


def plain_activation(
    conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread
) -> Operation:
    """Return GELU or (squared) ReLU: saves its input, `2 T f`, and its output for the next product (fp8: half).

    ReLU saves its output only, beside an adapter's copy of it. It reads one tensor and writes one; its backward pass
    holds the input's gradient.
    """
    element = element_bytes(conditions)
    copied = input_casts(conditions) == "each" and not keeps_inputs(conditions)
    number = activation_input_bytes(conditions) * (copied or conditions.model.activation != "relu")
    entered = (Saved(f"{name}_up", (number + _composed_bytes(conditions)) * width, spread),) if number else ()
    return Operation(
        name=f"{name}_activation",
        group=group,
        saved=(*entered, Saved(f"{name}_product", _saved_product(conditions, width), spread)),
        temporary=_inner_gradients(conditions, width, spread),
        moved=(Amount(2.0 * element * width, spread), *cast(conditions, width, spread)),
    )


def _inner_gradients(conditions: Conditions, width: float, spread: Spread) -> tuple[Amount, ...]:
    """Return the gradient of an activation's product, and what is there beside it, in fp32 behind norms in fp32 (M12).

    The product is there until its own gradient is, but as adapters cast it.
    """
    wide = spread == "tensor" and input_casts(conditions) == "wide"
    product = (FP32 if wide else element_bytes(conditions)) * width
    return (Amount(product, spread), Amount((conditions.model.gated + 0.5 * wide) * product, spread))


def _composed_bytes(conditions: Conditions) -> float:
    """Return what elementwise operations save of an inner feature, of a function that they make up."""
    framework = conditions.framework
    return 0.0 if framework.compiled else framework.composed_activation_bytes / HALF * element_bytes(conditions)


def gated_activation(
    conditions: Conditions, name: str, group: OperationGroup, width: float, spread: Spread
) -> Operation:
    """Return SwiGLU or GeGLU: saves gate and up `4 T f`, silu `2 T f` if unfused, product `2 T f` (fp8: half).

    It reads gate and up and writes their product, `6 f` a token; composed of two kernels also silu, `4 f`. Its backward
    pass holds the gradients of gate and up. The product is the next matrix product's input, cast there in fp8.
    """
    element, fused = element_bytes(conditions), conditions.framework.fused_swiglu or conditions.framework.compiled
    share = conditions.framework.recomputed_activation_share
    entered = 2.0 * activation_input_bytes(conditions) + _composed_bytes(conditions)
    again = _again(share)
    silu = () if fused else (Saved(f"{name}_silu", (1.0 - share) * element * width, spread),)
    return Operation(
        name=f"{name}_activation",
        group=group,
        saved=(
            Saved(f"{name}_gate_up", entered * width, spread),
            *silu,
            Saved(f"{name}_product", _saved_product(conditions, width), spread),
        ),
        temporary=_inner_gradients(conditions, 0.0 if conditions.framework.gradients_in_place else width, spread),
        moved=(
            Amount(again * (6.0 if fused else 10.0) / HALF * element * width, spread),
            *cast(conditions, width, spread),
        ),
    )


def _mixing(name: str, width: int, mixed: int, scales: int) -> tuple[Weight, ...]:
    product = Weight(f"{name}_mixing", width, mixed, "replicated")
    return (product, vector(f"{name}_mixing_bias", mixed), vector(f"{name}_mixing_scale", scales))


def collapsed(conditions: Conditions, name: str) -> Operation:
    """Return the streams joined into a block's input, weighted per token by a product with all streams.

    The streams are saved for that product, the sum and the residual; of the `n + n + n^2` weights, the product's output
    and the input of sigmoid and Sinkhorn iterations. Norm, product and sum each read the streams; the sum writes one.
    """
    model, element = conditions.model, element_bytes(conditions)
    streams = model.residual_streams
    mixed = (2 + streams) * streams
    return Operation(
        name=f"{name}_streams",
        group="residual",
        weights=_mixing(name, model.stream_width, mixed, 3),
        saved=(
            Saved(f"{name}_streams", element * model.stream_width, "sequence"),
            Saved(f"{name}_stream_weights", 2.0 * FP32 * mixed, "sequence"),
        ),
        moved=(Amount(element * (3.0 * model.stream_width + model.hidden_size), "sequence"),),
    )


def expanded(conditions: Conditions, name: str) -> Operation:
    """Return a block's output added to every stream, and the streams mixed; the block's output is saved.

    The mix reads and writes the streams, the expansion writes them, and the sum reads both and writes one.
    """
    model, element = conditions.model, element_bytes(conditions)
    return Operation(
        name=f"{name}_residual",
        group="residual",
        saved=(Saved(f"{name}_block_output", element * model.hidden_size, "sequence"),),
        moved=(Amount(element * (6.0 * model.stream_width + model.hidden_size), "sequence"),),
    )


def last_streams(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the streams joined before the final norm; empty for one stream."""
    model, streams = conditions.model, conditions.model.residual_streams
    if streams == 1:
        return ()
    width = model.stream_width
    return (
        Operation(
            name="last_streams",
            group="output",
            weights=_mixing("head", width, streams, 1),
            saved=(Saved("last_streams", element_bytes(conditions) * width, "sequence"),),
        ),
    )


def aggregated(conditions: Conditions, name: str) -> Operation:
    """Return a block's input under residual blocks: a softmax over the stream and those of earlier blocks.

    The stream and tensors made of it are saved; the earlier streams are copied together once a block. That bank grows
    by a row per block: the mean over all layers counts.
    """
    model, element = conditions.model, element_bytes(conditions)
    hidden, blocks = float(model.hidden_size), -(-model.num_hidden_layers // model.residual_block)
    rows = (blocks + 1) / 2.0
    bank = element * hidden * blocks * (blocks + 1) / 2.0 / (2.0 * model.num_hidden_layers)
    return Operation(
        name=f"{name}_aggregate",
        group="residual",
        weights=(vector(f"{name}_aggregate_norm", model.hidden_size), _score(name, model.hidden_size)),
        saved=(
            Saved(f"{name}_aggregate_input", element * hidden, "sequence"),
            Saved(f"{name}_bank", bank, "sequence"),
            Saved(f"{name}_aggregate_statistics", 2.0 * FP32 * (rows + 1.0), "sequence"),
        ),
        moved=(Amount(element * hidden * (2.0 * rows + 3.0), "sequence"),),
    )


def last_aggregate(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the final norm's input under residual blocks; empty elsewhere."""
    model = conditions.model
    if not model.residual_block:
        return ()
    weights = (vector("last_aggregate_norm", model.hidden_size), _score("last", model.hidden_size))
    return (Operation(name="last_aggregate", group="output", weights=weights),)


def _score(name: str, hidden: int) -> Weight:
    """Return the weight that scores a stream."""
    return Weight(f"{name}_aggregate_score", hidden, 1, "replicated")


def layer_embedding(conditions: Conditions) -> tuple[Operation, ...]:
    """Return a layer's part: a narrow gate of the stream times the part, widened, normed and added; empty without.

    The stream is saved for the gate's product, and four narrow tensors: gate, activation, part and their product.
    """
    model, element = conditions.model, element_bytes(conditions)
    hidden, part = model.hidden_size, model.layer_embedding_size
    if not part:
        return ()
    return (
        Operation(
            name="layer_embedding",
            group="feed_forward",
            weights=(
                Weight("layer_part", hidden, part, "replicated"),
                Weight("layer_gate", hidden, part, "replicated"),
                Weight("layer_back", part, hidden, "replicated"),
            ),
            saved=(
                Saved("layer_embedding_input", element * hidden, "sequence"),
                Saved("layer_embedding_parts", 4.0 * element * part, "sequence"),
            ),
            moved=(Amount(element * (4.0 * hidden + 6.0 * part), "sequence"),),
        ),
        post_norm(conditions, "layer_embedding_norm", "layer_embedding_norm"),
    )


def layer_table(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the table of all layers' parts, and the norm of the first embedding's contribution; empty without."""
    model = conditions.model
    part = model.layer_embedding_size
    if not part:
        return ()
    width = model.num_hidden_layers * part
    weights = (
        Weight("layer_table", model.layer_embedding_rows, width, "vocabulary", matmul=False),
        vector("layer_part_norm", part),
    )
    return (Operation(name="layer_table", group="embedding", weights=weights),)


def embedding(conditions: Conditions) -> Operation:
    """Return the input token table, a lookup without a product."""
    model = conditions.model
    table = Weight("embedding", model.vocab_size, model.hidden_size, "vocabulary", matmul=False)
    return Operation(name="embedding", group="embedding", weights=(table,))


def inputs(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the first rank's other operations: learned positions, norm and dropout of the embedded tokens (M3, M4)."""
    model = conditions.model
    operations: list[Operation] = []
    if model.learned_positions:
        table = Weight("positions", model.learned_positions, model.hidden_size, "replicated", matmul=False)
        operations.append(Operation(name="positions", group="embedding", weights=(table,)))
    if model.embedding_norm:
        operations.append(post_norm(conditions, "embedding_norm", "embedding_norm")._replace(group="embedding"))
    operations += layer_table(conditions)
    if conditions.framework.hidden_dropout:
        mask = Saved("embedding_mask", float(model.hidden_size), "sequence")
        operations.append(Operation(name="embedding_dropout", group="embedding", saved=(mask,)))
    return tuple(operations)


@remembered
def output_layer(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the final norm, and the projection to the vocabulary, which stays 16 bit under fp8.

    Tied embeddings share the storage of the input table; the product is computed all the same. Its input is the
    labelled tokens only.
    """
    model = conditions.model
    last = norm(conditions, "final_norm", "final_norm")
    inputs, statistics, output = last.saved
    labelled = element_bytes(conditions) * model.hidden_size * conditions.framework.labelled_token_fraction
    head = Weight("head", model.hidden_size, model.vocab_size, "vocabulary")
    bias = (vector("head_bias", model.vocab_size, "vocabulary"),) if model.head_bias else ()
    if conditions.framework.score_head:
        head, bias = Weight("score", model.hidden_size, 1, "replicated"), ()
    return (
        last._replace(saved=(inputs, statistics, output._replace(amount=labelled)), moved=()),
        *last_streams(conditions),
        *last_aggregate(conditions),
        Operation(name="output_layer", group="output", weights=(*bias, head)),
    )


def prediction(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations of a multi-token prediction (MTP) module without its layer; none if the model has none.

    As in DeepSeek-V3: two norms over the joined inputs, the projection `eh_proj` from twice the hidden size, and a norm
    before the shared head. The main model owns the token table and the head.
    """
    model, hidden = conditions.model, conditions.model.hidden_size
    if model.num_nextn_predict_layers == 0:
        return ()
    joined = (vector("mtp_embedding_norm", hidden), vector("mtp_hidden_norm", hidden))
    return (
        Operation(name="prediction_norms", group="prediction", weights=joined),
        Operation(
            name="prediction_projection", group="prediction", weights=(Weight("eh_proj", 2 * hidden, hidden, "column"),)
        ),
        Operation(name="prediction_final_norm", group="prediction", weights=(vector("mtp_final_norm", hidden),)),
        *(operation._replace(group="prediction") for operation in last_streams(conditions)),
    )
