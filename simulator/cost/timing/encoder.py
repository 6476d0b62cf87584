"""Seconds of an encoder of images on the ranks that hold the input table (T29).

`question.specs.vision` has its sizes, `memory.encoder` its bytes; `timing.pipeline` adds the seconds to the first
stage.
"""

from __future__ import annotations

from simulator.cost.derived import Pricing
from simulator.cost.dtypes import element_bytes
from simulator.cost.memory.encoder import images_of_micro_batch
from simulator.cost.timing.products import attention_rate, memory_rate, wide_gemm_rate
from simulator.question.scenario.block import Array


def encoder_seconds(pricing: Pricing) -> tuple[Array, Array]:
    """Return the seconds of both passes over the images of a micro batch, each of shape (n,) (T29).

    Products run at the rate of 16-bit ones, attention over all patches of an image or a tile, or of a window, and
    elementwise work moves what a layer saves twice. A trained encoder's backward pass takes twice its forward one; a
    frozen one has none, and its projector, where trained, its own. A frozen copy has a forward pass.
    """
    scenario, count = pricing.scenario, images_of_micro_batch(pricing)
    images, encoder = scenario.images, scenario.model.encoder
    if images is None or encoder is None:
        return count, count
    image = images.each(encoder)
    scores = 4.0 * encoder.layers * encoder.width * encoder.attended_patches(image, images.frames)
    moved = 2.0 * element_bytes(scenario) * encoder.layers * encoder.widths[1]
    of_patch = 2.0 * encoder.parameters / wide_gemm_rate(scenario)
    forward = image.patches * (of_patch + scores / attention_rate(scenario) + moved / memory_rate(scenario))
    projector = 2.0 * encoder.projector_parameters * image.tokens / wide_gemm_rate(scenario)
    passes = 1.0 if images.rank else 2.0 * images.trains_encoder
    backward = passes * forward + 2.0 * projector * images.trains_projector
    # Images that fill the longest sequence fill shorter ones too.
    count = count * (scenario.sample_tokens / scenario.seq_length if images.fills else 1.0)
    passes = 1.0 + scenario.framework.reference_forward
    return count * passes * (forward + projector), count * backward
