"""Operations of parallel residual streams: hyper-connections mix them, residual blocks read them by attention.

Hyper-connections follow transformers 5.23.0 (models/deepseek_v4) and Megatron-LM d98e8a6
(transformer/hyper_connection.py); residual blocks, Megatron-Bridge 067f987 (models/kimi/kimi_k3_layers.py). Sums
nothing.
"""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Operation, Saved, Weight


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
        weights=(
            Weight(f"{name}_mixing", model.stream_width, mixed, "replicated"),
            vector(f"{name}_mixing_bias", mixed),
            vector(f"{name}_mixing_scale", 3),
        ),
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
            weights=(
                Weight("head_mixing", width, streams, "replicated"),
                vector("head_mixing_bias", streams),
                vector("head_mixing_scale", 1),
            ),
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
