"""The order of passes against PyTorch's own schedules, pass by pass."""

from typing import Any

import pytest

from simulator.cost.schedule.orders import DualPipeV, ZeroBubbleH1, ZeroBubbleV
from simulator.cost.schedule.schedule import Schedule

WORDS = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "input_gradient"}
WORDS["BACKWARD_WEIGHT"] = "weight_gradient"


def of_torch(name: str, rank: int, ranks: int, chunks: int, micro_batches: int) -> list[tuple[str, int, int]]:
    """Kind, micro batch and stage of every pass that PyTorch lists for a rank; pairs as their passes."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = schedules.get_schedule_class(name)
    made: Any = kind.__new__(kind)
    made.pp_group_size, made.n_local_stages, made.rank = ranks, chunks, rank
    made.num_stages = made._num_stages = ranks * chunks
    made._n_microbatches = micro_batches
    made.number_of_rounds = max(1, micro_batches // ranks)
    made.microbatches_per_round = micro_batches // made.number_of_rounds
    actions = [one for one in made._calculate_single_rank_operations(rank) if one is not None]
    passes = [part for one in actions for part in (one.sub_actions or (one,))]
    return [(WORDS[one.computation_type.name], one.microbatch_index, one.stage_index) for one in passes]


@pytest.mark.parametrize(
    ("name", "schedule", "chunks"),
    [
        ("InterleavedZeroBubble", ZeroBubbleH1(), 1),
        ("InterleavedZeroBubble", ZeroBubbleH1(), 2),
        ("InterleavedZeroBubble", ZeroBubbleH1(), 3),
        ("ZBVZeroBubble", ZeroBubbleV(), 2),
        ("DualPipeV", DualPipeV(), 2),
    ],
)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (2, 10), (4, 8), (4, 16), (8, 16), (8, 40)])
def test_the_order_is_that_of_pytorch(
    name: str, schedule: Schedule, chunks: int, ranks: int, micro_batches: int
) -> None:
    places = schedule.places(ranks, chunks)
    for rank in range(ranks):
        found = [
            (one.kind, one.micro_batch, int(places[rank, one.chunk]))
            for one in schedule.order(rank, ranks, chunks, micro_batches)
        ]
        assert found == of_torch(name, rank, ranks, chunks, micro_batches)
