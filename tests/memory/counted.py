"""What tests count beside the formulas: saved tensors by name, parameters of prediction modules."""

from simulator.cost.derived import Pricing
from simulator.cost.operations.blocks import prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions, conditions_of
from simulator.cost.operations.sums import extent, weights_of
from simulator.question.scenario.block import Array
from simulator.question.specs.model import LayerKind, ModelSpec


def layer_tensors(pricing: Pricing, kind: LayerKind) -> dict[str, Array]:
    """The tensors that a layer saves when nothing is recomputed (M3)."""
    operations = layer_operations(conditions_of(pricing.scenario), kind)
    return {
        tensor.name: tensor.amount * extent(pricing, tensor.spread)
        for operation in operations
        for tensor in operation.saved
    }


def mtp_parameters(model: ModelSpec) -> int:
    """The parameters of all prediction modules, which the totals omit."""
    conditions = Conditions(model)
    if model.num_nextn_predict_layers == 0:
        return 0
    module = (*prediction(conditions), *layer_operations(conditions, model.prediction_kind))
    return model.num_nextn_predict_layers * sum(weight.parameters for weight in weights_of(module))
