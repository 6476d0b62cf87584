"""Launches of Megatron-LM: its words, with those for CUDA graphs and for experts' buffers of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.megatron import special
from simulator.frameworks.megatron.core import cut_of
from simulator.frameworks.megatron.model import count_layers, fields_of, model_of
from simulator.frameworks.take import part, take
from simulator.frameworks.values import PlainValue
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout


def read(arguments: Arguments, environment: Mapping[str, PlainValue] | None, *, own: bool = False) -> Recipe:
    """Return the run that Megatron's flags describe, without remarks on unread ones.

    `environment` is None where the recipe does not state it; `own` says that Megatron-LM itself reads the flags, so
    that its defaults apply. Raises InputError for an invalid value.
    """
    special.drop_idle_exports(arguments)
    count_layers(arguments)
    targets = take(arguments)
    layers: int | None = targets.get("model.num_hidden_layers")
    tensor = targets.get("layout.tensor_parallel", 1)
    shape = fields_of(arguments, targets)
    model, fields = model_of(arguments, shape, tensor)
    spec = models.load_model(model) if model else None
    layers = layers or (spec.num_hidden_layers if spec else None)
    cut = cut_of(arguments, layers, targets.get("layout.pipeline_parallel", 1), targets.get("layout.virtual_stages", 1))
    special.set_layout(arguments, targets, layers, cut.chunks)
    sizes: dict[str, Any] = part(targets, "layout") | {
        "virtual_stages": cut.chunks,
        "schedule": cut.schedule,
        "stage_layers": cut.stage_layers,
        "chunk_layers": cut.chunk_layers,
    }
    layout = Layout(**sizes)
    rank: int | None = targets.get("workload.lora_rank")
    special.set_adapters(arguments, targets, rank)
    precision = special.precision(arguments)
    batch = targets.get("workload.global_batch_size") or special.largest_batch(arguments)
    special.set_options(arguments, targets, environment, layout)
    special.remark_contradictions(arguments, layout)
    stated = shape | ({"vocab_size": spec.vocab_size} if spec else {}) | fields
    return Recipe(
        framework="megatron",
        model=model,
        model_fields=fields,
        shape=stated,
        seq_length=targets.get("workload.seq_length"),
        global_batch_size=batch,
        gradient_accumulation_steps=None if batch or "global_batch_size" in arguments.incomplete else 1,
        precision=precision,
        lora_rank=rank,
        options={**(special.usual_dispatch(arguments) if own else {}), **part(targets, "option")},
        layout=layout,
        unpriced_bytes=special.sharding_room(arguments, targets, stated.get("vocab_size"))
        + special.bias_room(arguments, targets),
        virtual_stage_layers=cut.layers_per_chunk,
    )
