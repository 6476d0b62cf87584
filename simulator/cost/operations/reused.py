"""Operations of attention over an earlier layer's keys and values (Gemma 4): only queries are projected."""

from __future__ import annotations

from simulator.cost.dtypes import FP32, element_bytes
from simulator.cost.operations.attention import context_exchange, core_attention, output_projection, rotation
from simulator.cost.operations.blocks import cast, norm_bytes, tensor_collective, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.record import Amount, Operation, Saved, Weight
from simulator.question.specs.model import Mixer


def reused(conditions: Conditions, mixer: Mixer) -> tuple[Operation, ...]:
    """Return the operations between norm and residual addition; the layer that made keys and values saves them.

    transformers 5.23.0, models/gemma4/modeling_gemma4.py: the last layer of each kind before the first that reuses.
    """
    model, element, heads = conditions.model, element_bytes(conditions), conditions.model.heads(mixer)
    query = float(heads.query_width)
    projection = Operation(
        name="query",
        group="attention_projection",
        weights=(Weight("q", model.hidden_size, heads.query_width, "column"),),
        saved=(Saved("query_projection", element * query, "tensor"),) if model.qk_norm else (),
        moved=cast(conditions, float(model.hidden_size), "sequence"),
        collectives=(tensor_collective(conditions, "gather"),),
        calls=0.5,
    )
    norm = Operation(
        name="query_norm",
        group="attention_projection",
        weights=(vector("q_norm", heads.size),),
        saved=(Saved("qk_norm_statistics", FP32 * heads.queries, "tensor"),),
        moved=(Amount(norm_bytes(conditions) * query, "tensor"),),
    )
    return (
        projection,
        *((norm,) if model.qk_norm else ()),
        rotation(conditions, mixer, (Saved("rotated_query", element * query, "tensor"),), keys=False),
        context_exchange(conditions, mixer, float(heads.key_width + heads.value_width)),
        core_attention(conditions, mixer),
        output_projection(conditions, heads.output_width),
    )
