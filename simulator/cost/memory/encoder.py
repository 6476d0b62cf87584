"""Bytes of an encoder of images on the ranks that hold the input table (M31).

`question.specs.vision` has its parameters and what an image becomes.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import element_bytes, gradient_bytes, optimizer_bytes_per_parameter, parameter_bytes
from simulator.cost.memory.activations import in_flight, stage_activations
from simulator.cost.memory.state import shard_degrees
from simulator.cost.operations.sums import sequences
from simulator.question.scenario.block import Array, StageArray


def images_of_micro_batch(pricing: Pricing) -> Array:
    """Return the images of a micro batch on a device, shape (n,): tensor and context ranks each encode all."""
    images = pricing.scenario.images
    return sequences(pricing) * float(images.number if images else 0)


def encoder_bytes(pricing: Pricing) -> StageArray | float:
    """Return the bytes of the encoder and its activations, shape (pipeline_parallel, n); 0 without images (M31).

    Frozen, it keeps its weights; its pass saves nothing, and its working set counts as far as it is larger than what
    the language model's pass saves afterwards. Trained, it has gradients and optimizer state, sharded as the ZeRO stage
    says, and saves the activations of every micro batch in flight; full recompute keeps the inputs of layers. A frozen
    copy of the model has an encoder too.
    """
    scenario, contents, block = pricing.scenario, pricing.contents, pricing.block
    images, encoder = scenario.images, scenario.model.encoder
    if images is None or encoder is None:
        return 0.0
    stored, element = parameter_bytes(scenario), element_bytes(scenario)
    degree = shard_degrees(pricing).dense
    shards = [np.where(block.zero_stage >= stage, degree, 1.0) for stage in (1, 2, 3)]
    trained = images.trained_parameters(encoder)
    whole = encoder.parameters + encoder.projector_parameters
    frozen = images.frozen_parameters(encoder) + whole * scenario.framework.frozen_reference
    beside = gradient_bytes(scenario) / shards[1] + optimizer_bytes_per_parameter(scenario) / shards[0]
    state = (frozen * element + trained * stored) / shards[2] + trained * beside
    patches = images_of_micro_batch(pricing) * images.each(encoder).patches
    working, saved = encoder.widths
    if images.trains_encoder:
        full = pricing.recomputes("full")
        of_layers = np.where(full, encoder.layers * encoder.width + saved, encoder.layers * saved)
        activations = element * patches * of_layers * in_flight(pricing)
    else:
        passing = element * patches * working
        activations = np.maximum(passing - contents.on_ranks(stage_activations(pricing).one_micro_batch), 0.0)
    held: StageArray = contents.on_ranks(contents.embeddings * np.ones(len(pricing))) * (state + activations)
    return held
