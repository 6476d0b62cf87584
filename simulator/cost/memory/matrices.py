"""Weight matrices as a matrix optimizer such as Muon sees them: sizes on a device, and the cost of orthogonalization.

`state` counts the bytes of the optimizer state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from simulator.cost.derived import Pricing, of_work
from simulator.cost.dtypes import FP32, HALF
from simulator.cost.operations.conditions import Conditions, conditions_of
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Weight
from simulator.cost.operations.sums import tensor_class
from simulator.question.scenario.block import Array, KindArray
from simulator.question.specs.model import LayerKind
from simulator.question.specs.optimizers import OPTIMIZERS


class UpdatedMatrix(NamedTuple):
    """A matrix that an optimizer updates whole: gate and up are one, q, k and v three (`muon_split_qkv`)."""

    weight: Weight
    """The weight, with the outputs of all weights that share its input."""

    def sides(self, pricing: Pricing) -> tuple[Array, Array]:
        """Return the inputs and outputs of a device's part of the matrix, each of shape (n,)."""
        block, weight = pricing.block, self.weight
        inputs, outputs = (np.full(len(block), float(side)) for side in (weight.inputs, weight.outputs))
        cut = block.expert_tensor_parallel if weight.routed else block.tensor_parallel
        if weight.split.endswith("row"):
            return inputs / cut, outputs
        return inputs, outputs if weight.split == "replicated" else outputs / cut

    def on_device(self, pricing: Pricing) -> Array:
        """Return how many such matrices a device has, shape (n,): its share of the experts, or one."""
        ranks = pricing.block.expert_parallel if self.weight.routed else 1.0
        return np.asarray(self.weight.copies / ranks * np.ones(len(pricing)))


@lru_cache(maxsize=512)
def layer_matrices(conditions: Conditions, kind: LayerKind) -> tuple[UpdatedMatrix, ...]:
    """Return the matrices of a layer."""
    return tuple(_matrices(conditions, kind))


def _matrices(conditions: Conditions, kind: LayerKind) -> Iterator[UpdatedMatrix]:
    for operation in layer_operations(conditions, kind):
        weights = [weight for weight in operation.weights if tensor_class(operation, weight) == "matrix"]
        if operation.group == "attention_projection":
            yield from map(UpdatedMatrix, weights)
            continue
        alike = {(weight.inputs, weight.split, weight.copies): weight for weight in weights}
        outputs: Counter[tuple[int, str, int]] = Counter()
        for weight in weights:
            outputs[weight.inputs, weight.split, weight.copies] += weight.outputs
        yield from (UpdatedMatrix(weight._replace(outputs=outputs[key])) for key, weight in alike.items())


class MatrixFigures(NamedTuple):
    """A figure for dense matrices and for routed experts' matrices, each of shape (n,)."""

    dense: Array
    routed: Array


@of_work
def largest_matrix(pricing: Pricing) -> MatrixFigures:
    """Return the parameters of the largest matrix on a device; for experts, of one expert."""
    sizes = {False: np.zeros(len(pricing)), True: np.zeros(len(pricing))}
    for matrix in _model_matrices(pricing):
        inputs, outputs = matrix.sides(pricing)
        sizes[matrix.weight.routed] = np.maximum(sizes[matrix.weight.routed], inputs * outputs)
    return MatrixFigures(sizes[False], sizes[True])


def _model_matrices(pricing: Pricing) -> Iterator[UpdatedMatrix]:
    conditions = conditions_of(pricing.scenario)
    for kind in pricing.scenario.model.layer_kinds:
        yield from layer_matrices(conditions, kind)


@of_work
def orthogonal_flops(pricing: Pricing, kind: LayerKind) -> MatrixFigures:
    """Return the FLOP that orthogonalize the updates of a layer's matrices on a device (T21).

    A Newton-Schulz iteration on m x n, m the shorter side, takes `4 m^2 n + 2 m^3`: X Xᵀ, its square, and their product
    with X (Jordan et al. 2024). Each tensor-parallel rank works on its own part (`--muon-tp-mode blockwise`).
    """
    steps = float(OPTIMIZERS[pricing.scenario.framework.optimizer].newton_schulz_steps)
    flops = {False: np.zeros(len(pricing)), True: np.zeros(len(pricing))}
    for matrix in layer_matrices(conditions_of(pricing.scenario), kind) if steps else ():
        sides = matrix.sides(pricing)
        short, long = np.minimum(*sides), np.maximum(*sides)
        each = steps * (4.0 * short**2 * long + 2.0 * short**3)
        flops[matrix.weight.routed] = flops[matrix.weight.routed] + each * matrix.on_device(pricing)
    return MatrixFigures(flops[False], flops[True])


@of_work
def orthogonal_bytes(pricing: Pricing) -> Array:
    """Return the fp32 temporaries for one matrix at a time, shape (n,): update, two iterates, X Xᵀ and its square."""
    largest = np.zeros(len(pricing))
    if OPTIMIZERS[pricing.scenario.framework.optimizer].newton_schulz_steps:
        for matrix in _model_matrices(pricing):
            inputs, outputs = matrix.sides(pricing)
            largest = np.maximum(largest, 3.0 * inputs * outputs + 2.0 * np.minimum(inputs, outputs) ** 2)
    return FP32 * largest


def gathered_bytes(pricing: Pricing, ranks: Array) -> KindArray:
    """Return the bytes of 16-bit copies of whole matrices that ranks gather, shape (kinds, n) (M2).

    Equal matrices are spread over the `ranks` by an exchange; the remainder is gathered on each rank (InternLM/xtuner
    b934f46, v1/optim/muon.py, `remainder_strategy` agrs). A layer's experts are one tensor.
    """
    copies, contents = OPTIMIZERS[pricing.scenario.framework.optimizer].gathered_copies, pricing.contents
    counts: dict[UpdatedMatrix, KindArray] = {}
    for kind, layers in zip(contents.layer_kinds, contents.with_prediction, strict=True):
        for matrix in layer_matrices(conditions_of(pricing.scenario), kind):
            alike = UpdatedMatrix(matrix.weight._replace(name=""))
            counts[alike] = counts.get(alike, 0.0) + layers
    largest = np.zeros((len(contents.ranks), len(pricing)))
    for matrix, count in counts.items():
        inputs, outputs = matrix.sides(pricing)
        left = np.where((ranks > 1.0) & (count > 0.0), np.maximum(np.mod(count, ranks), 1.0), 0.0)
        largest = np.maximum(largest, left * inputs * outputs * matrix.on_device(pricing))
    return HALF * copies * largest
