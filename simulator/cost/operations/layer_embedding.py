"""A second token embedding, of which every layer reads its own part behind its two blocks (Gemma 4). Sums nothing.

Source: transformers 5.23.0, models/gemma4/modeling_gemma4.py. Each layer lists the projection of the first embedding to
its part.
"""

from __future__ import annotations

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import post_norm, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Operation, Saved, Weight


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
