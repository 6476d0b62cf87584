"""Every mixer and feed-forward network against the five figures worked by hand in `by_hand`."""

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.operations.layer import FEED_FORWARDS, MIXERS
from simulator.cost.operations.record import Collective, Operation, conditions_of, summed
from simulator.cost.operations.sums import extent, total
from simulator.cost.timing.products import layer_flops_per_token
from simulator.question.specs.model import FeedForward, LayerKind, Mixer
from tests.mixers import by_hand
from tests.mixers.by_hand import SPLIT, ByHand, Figures
from tests.scenario.cases import only, pricing, scenario_of


def received(pricing: Pricing, collective: Collective) -> float:
    """Bytes that a device receives in both passes, by what each pattern does."""
    block = pricing.block
    ranks = {
        "tensor": only(block.tensor_parallel),
        "context": only(block.context_parallel),
        "expert": only(block.expert_parallel),
        "expert_tensor": only(block.expert_tensor_parallel),
    }[collective.group]
    size = collective.amount * only(extent(pricing, collective.spread))
    others = {
        # Of the whole all but its own part; every other member's part of what each sends; of every step as much.
        "gather": (ranks - 1) / ranks,
        "reduce": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks,
        "ring": ranks - 1,
    }[collective.pattern]
    return (1 + collective.backward) * size * others


def figures(hand: ByHand, operations: tuple[Operation, ...], kind: LayerKind) -> Figures:
    """What the listed operations come to on the device of `by_hand`."""
    scenario = scenario_of(hand.model, seq_length=32, global_batch_size=16, devices=4 if hand.cut else 1)
    here = pricing(scenario, micro_batch_size=2, **(SPLIT if hand.cut else {}))
    moved = summed(amount for each in operations for amount in each.moved)
    backward = summed(amount for each in operations for amount in each.moved_backward)
    collectives = [each for operation in operations for each in operation.collectives] if hand.cut else []
    return Figures(
        saved=only(total(here, summed(tensor for each in operations for tensor in each.saved))),
        temporary=max((only(total(here, summed(each.temporary))) for each in operations), default=0.0),
        moved=3 * only(total(here, moved)) + only(total(here, backward)),
        flop=layer_flops_per_token(scenario, kind),
        exchanged=sum(received(here, each) for each in collectives),
    )


def test_every_part_of_a_layer_has_five_figures_and_their_source() -> None:
    assert set(by_hand.MIXERS) == set(MIXERS)
    assert set(by_hand.FEED_FORWARDS) == set(FEED_FORWARDS)
    for hand in (*by_hand.MIXERS.values(), *by_hand.FEED_FORWARDS.values()):
        assert len(hand.source) > len("a source")
        zeros = {name for name, size in hand.figures._asdict().items() if size == 0}
        assert zeros == set(hand.nothing)
        assert all(hand.nothing.values())


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mixer(mixer: Mixer) -> None:
    hand = by_hand.MIXERS[mixer]
    operations = MIXERS[mixer](conditions_of(scenario_of(hand.model)))
    found = figures(hand, operations, LayerKind(mixer, "none"))
    assert found._asdict() == pytest.approx(hand.figures._asdict())


@pytest.mark.parametrize("network", FEED_FORWARDS)
def test_a_feed_forward_network(network: FeedForward) -> None:
    hand = by_hand.FEED_FORWARDS[network]
    operations = FEED_FORWARDS[network](conditions_of(scenario_of(hand.model)))
    found = figures(hand, operations, LayerKind("none", network))
    assert found._asdict() == pytest.approx(hand.figures._asdict())
