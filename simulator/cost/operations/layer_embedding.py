"""A second embedding of the tokens, of which every layer reads a part of its own behind its two blocks (Gemma 4).

transformers 5.23.0, models/gemma4/modeling_gemma4.py. The projection of the first embedding to every layer's part is
listed with the layer that reads it. Sums nothing.
"""

from __future__ import annotations

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import post_norm, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Kept, Operation, Weight


def layer_embedding(conditions: Conditions) -> tuple[Operation, ...]:
    """A layer's part: the stream through a narrow gate times the part, widened, normed and added; nothing without.

    The stream stays for the gate's product; of the narrow tensors the gate, what its activation makes, the part and
    their product.
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
            kept=(
                Kept("layer_embedding_input", element * hidden, "sequence"),
                Kept("layer_embedding_parts", 4.0 * element * part, "sequence"),
            ),
            moved=(Amount(element * (4.0 * hidden + 6.0 * part), "sequence"),),
        ),
        post_norm(conditions, "layer_embedding_norm", "layer_embedding_norm"),
    )


def layer_table(conditions: Conditions) -> tuple[Operation, ...]:
    """The table of all layers' parts, and the norm of what the first embedding adds to them; nothing without."""
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
