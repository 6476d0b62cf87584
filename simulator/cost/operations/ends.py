"""Operations before and after the layers: input table, output layer, prediction modules. Sums nothing."""

from __future__ import annotations

from functools import lru_cache

from simulator.cost.dtypes import element_bytes
from simulator.cost.operations.blocks import norm, post_norm, vector
from simulator.cost.operations.conditions import Conditions
from simulator.cost.operations.layer_embedding import layer_table
from simulator.cost.operations.record import Operation, Saved, Weight
from simulator.cost.operations.streams import last_aggregate, last_streams


def embedding(conditions: Conditions) -> Operation:
    """Return the input token table, a lookup without a product."""
    model = conditions.model
    table = Weight("embedding", model.vocab_size, model.hidden_size, "vocabulary", matmul=False)
    return Operation(name="embedding", group="embedding", weights=(table,))


def inputs(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the first rank's other operations: learned positions, norm and dropout of the embedded tokens.

    Weights are replicated on every rank. Dropout saves a byte of mask per number: `embedding_dropout` of Megatron-LM
    core_v0.19.0, megatron/core/models/common/embeddings/language_model_embedding.py.
    """
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


@lru_cache(maxsize=64)
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
    if conditions.framework.score_head:
        head = Weight("score", model.hidden_size, 1, "replicated")
    return (
        last._replace(saved=(inputs, statistics, output._replace(amount=labelled)), moved=()),
        *last_streams(conditions),
        *last_aggregate(conditions),
        Operation(name="output_layer", group="output", weights=(head,)),
    )


def prediction(conditions: Conditions) -> tuple[Operation, ...]:
    """Return the operations of a multi-token prediction (MTP) module without its layer; none if the model has none.

    As in DeepSeek-V3: two norms over the joined inputs, the projection `eh_proj` from twice the hidden size, and a norm
    before the shared head. The main model owns the token table and the head.
    """
    model = conditions.model
    if model.num_nextn_predict_layers == 0:
        return ()
    hidden = model.hidden_size
    joined = (vector("mtp_embedding_norm", hidden), vector("mtp_hidden_norm", hidden))
    return (
        Operation(name="prediction_norms", group="prediction", weights=joined),
        Operation(
            name="prediction_projection",
            group="prediction",
            weights=(Weight("eh_proj", 2 * hidden, hidden, "column"),),
        ),
        Operation(name="prediction_final_norm", group="prediction", weights=(vector("mtp_final_norm", hidden),)),
        *(operation._replace(group="prediction") for operation in last_streams(conditions)),
    )
