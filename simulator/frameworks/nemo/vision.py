"""Vision towers beside a decoder: an upper bound of the bytes that one adds to a device. Their time is not priced.

Shapes: `Qwen3VLVisionModel` of transformers 4.57, which Megatron-Bridge v0.6.0 builds of Megatron's layers
(models/qwen_vl/modelling_qwen3_vl/vision_model.py). Images: `MockVLMSFTDatasetConfig` (data/builders/mock_vlm_sft.py),
whose processor leaves 256 x 256 pixels as they are.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, NamedTuple

from simulator.frameworks.python_values import Instance
from simulator.question.specs.documents import read_yaml

_MOCK: Final = "MockVLMSFTDatasetConfig"
_IMAGE_SIZE, _IMAGES = (256, 256), 1
"""Default size in pixels and number of images per sample."""
_WHOLE_BYTES, _SHARDED_BYTES = 6, 12
"""Bytes per trained parameter: weight and gradient; then master copy and two moments, which replicas may shard."""


class VisionTower(NamedTuple):
    """Sizes of the vision tower of one model."""

    hub: str
    """Name of the whole model on Hugging Face."""
    model: str
    """Shipped spec of its decoder."""
    layers: int
    hidden_size: int
    intermediate_size: int
    patch_size: int
    """Side of a patch, in pixels."""
    temporal_patch_size: int
    positions: int
    """Number of learned positions."""
    merge_size: int
    """Side of the square of patches that becomes one token."""
    mergers: int
    """Number of networks that turn patches into tokens: one at the end, and one per layer whose output the decoder
    adds."""
    out_size: int
    """Width of a token."""

    @property
    def parameters(self) -> int:
        """Number of parameters of the tower."""
        hidden, wide = self.hidden_size, self.intermediate_size
        patch = 3 * self.temporal_patch_size * self.patch_size**2 * hidden + hidden
        layer = 4 * hidden * hidden + 2 * hidden * wide + 9 * hidden + wide
        merged = hidden * self.merge_size**2
        merger = merged * merged + merged + merged * self.out_size + self.out_size
        # The last merger normalises a patch, the others the merged patches.
        norms = 2 * hidden + 2 * merged * (self.mergers - 1)
        return patch + self.positions * hidden + self.layers * layer + self.mergers * merger + norms

    def kept_bytes(self, pixels: int) -> float:
        """Return the bytes kept for `pixels` in 16 bits: ten tensors of the width and two wide ones a layer."""
        patches = pixels / self.patch_size**2
        layer = 20 * self.hidden_size + 4 * self.intermediate_size
        merger = 8 * self.hidden_size + self.out_size
        return patches * (self.layers * layer + self.mergers * merger)

    def most_bytes(self, pixels: int, passes: int, replicas: int) -> float:
        """Return the most bytes on a device: `passes` micro batches in flight, optimizer state over `replicas`."""
        return (_WHOLE_BYTES + _SHARDED_BYTES / replicas) * self.parameters + passes * self.kept_bytes(pixels)


@functools.cache
def _towers() -> dict[str, VisionTower]:
    table = read_yaml(Path(__file__).with_name("vision_towers.yaml"))
    return {hub: VisionTower(hub=hub, **table["shape"], **sizes) for hub, sizes in table["towers"].items()}


def tower_of(hub: str) -> VisionTower | None:
    """Return the tower of a model by its name on Hugging Face; None without one."""
    return _towers().get(hub)


def sample_pixels(dataset: object) -> int | None:
    """Return the pixels of a sample of Megatron-Bridge's mock images; None for other data, which only a run knows."""
    if not isinstance(dataset, Instance) or not dataset.kind.endswith(_MOCK):
        return None
    size = dataset.fields.get("image_size", _IMAGE_SIZE)
    images = dataset.fields.get("num_images", _IMAGES)
    if not (isinstance(size, list | tuple) and len(size) == 2 and isinstance(images, int)):
        return None
    return int(size[0]) * int(size[1]) * images
