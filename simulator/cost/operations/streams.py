"""Residual streams beside each other that hyper-connections mix, and residual blocks that are read by attention.

Hyper-connections as transformers 5.23.0 (models/deepseek_v4) and Megatron-LM d98e8a6 (transformer/hyper_connection.py)
have them; residual blocks as Megatron-Bridge 067f987 has them (models/kimi/kimi_k3_layers.py). Sums nothing.
"""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.blocks import vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Kept, Operation, Weight


def collapsed(conditions: Conditions, name: str) -> Operation:
    """The streams as one for a block to read: weights of every token from a product with all streams.

    The streams stay, for that product, for the sum and for what is handed on; of the `n + n + n^2` weights what the
    product put out and what sigmoid and the Sinkhorn iterations start from. The norm reads the streams, the product
    does, and the sum reads them and writes one.
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
        kept=(
            Kept(f"{name}_streams", element * model.stream_width, "sequence"),
            Kept(f"{name}_stream_weights", 2.0 * FP32 * mixed, "sequence"),
        ),
        moved=(Amount(element * (3.0 * model.stream_width + model.hidden_size), "sequence"),),
    )


def expanded(conditions: Conditions, name: str) -> Operation:
    """A block's output to every stream, and the streams mixed with each other; what the block put out stays.

    The mix reads and writes the streams, the expansion writes them, and the sum reads both and writes one.
    """
    model, element = conditions.model, element_bytes(conditions)
    return Operation(
        name=f"{name}_residual",
        group="residual",
        kept=(Kept(f"{name}_block_output", element * model.hidden_size, "sequence"),),
        moved=(Amount(element * (6.0 * model.stream_width + model.hidden_size), "sequence"),),
    )


def last_streams(conditions: Conditions) -> tuple[Operation, ...]:
    """The streams as one before the last norm; nothing where there is one."""
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
            kept=(Kept("last_streams", element_bytes(conditions) * width, "sequence"),),
        ),
    )


def aggregated(conditions: Conditions, name: str) -> Operation:
    """What a block reads where residual blocks stand: a softmax over the stream and those of earlier blocks.

    The stream stays beside what is made of it; the earlier ones are copied together once a block. That bank has a row
    more from block to block: of all layers' rows this keeps the mean.
    """
    model, element = conditions.model, element_bytes(conditions)
    hidden, blocks = float(model.hidden_size), -(-model.num_hidden_layers // model.residual_block)
    rows = (blocks + 1) / 2.0
    bank = element * hidden * blocks * (blocks + 1) / 2.0 / (2.0 * model.num_hidden_layers)
    return Operation(
        name=f"{name}_aggregate",
        group="residual",
        weights=(vector(f"{name}_aggregate_norm", model.hidden_size), _score(name, model.hidden_size)),
        kept=(
            Kept(f"{name}_aggregate_input", element * hidden, "sequence"),
            Kept(f"{name}_bank", bank, "sequence"),
            Kept(f"{name}_aggregate_statistics", 2.0 * FP32 * (rows + 1.0), "sequence"),
        ),
        moved=(Amount(element * hidden * (2.0 * rows + 3.0), "sequence"),),
    )


def last_aggregate(conditions: Conditions) -> tuple[Operation, ...]:
    """What the last norm reads where residual blocks stand; nothing elsewhere."""
    model = conditions.model
    if not model.residual_block:
        return ()
    weights = (vector("last_aggregate_norm", model.hidden_size), _score("last", model.hidden_size))
    return (Operation(name="last_aggregate", group="output", weights=weights),)


def _score(name: str, hidden: int) -> Weight:
    """The product that scores a stream."""
    return Weight(f"{name}_aggregate_score", hidden, 1, "replicated")
