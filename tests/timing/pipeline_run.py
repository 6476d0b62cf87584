"""A pipeline run event by event, in Megatron's order, apart from the formulas it checks.

Every rank works down a fixed list of forward and backward passes of model chunks; a pass starts when its rank is free
and the pass it depends on has ended. Sends take no time.
"""

from dataclasses import dataclass
from typing import Literal

Pass = tuple[Literal["F", "B"], int, int]
"""Forward or backward, micro batch, chunk of the rank."""


@dataclass(frozen=True)
class Run:
    makespan: float
    live: list[int]
    """Most chunks of micro batches held at once, by rank."""
    idle: list[float]
    """Time by rank in which it had nothing to do."""


def order(rank: int, ranks: int, micro_batches: int, chunks: int, *, whole: bool = False) -> list[Pass]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards left.

    With `whole` all forwards come first where there are as many micro batches as ranks.
    """
    total = micro_batches * chunks
    if chunks == 1:
        warm_up = min(ranks - rank - 1, total)
    elif whole and micro_batches == ranks:
        warm_up = total
    else:
        warm_up = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)

    def unit(number: int) -> tuple[int, int]:
        """Micro batch and chunk of a rank's pass: `ranks` micro batches through each chunk in turn."""
        if chunks == 1:
            return number, 0
        turn, within = divmod(number, ranks * chunks)
        return turn * ranks + within % ranks, within // ranks

    forward: list[Pass] = [("F", *unit(k)) for k in range(total)]
    backward: list[Pass] = [("B", unit(k)[0], chunks - 1 - unit(k)[1]) for k in range(total)]
    steady = [one for pair in zip(forward[warm_up:], backward, strict=False) for one in pair]
    return forward[:warm_up] + steady + backward[total - warm_up :]


def _waits_for(one: Pass, rank: int, ranks: int, chunks: int) -> Pass | None:
    """The pass whose result this one needs, with the model chunk in place of the rank's."""
    kind, micro_batch, chunk = one
    place = chunk * ranks + rank
    if kind == "F":
        return None if place == 0 else ("F", micro_batch, place - 1)
    last = place == ranks * chunks - 1
    return ("F", micro_batch, place) if last else ("B", micro_batch, place + 1)


def most_alive(passes: list[Pass]) -> int:
    """Most chunks whose forward pass has run and whose backward pass has not ended."""
    live = most = 0
    for kind, _, _ in passes:
        live += 1 if kind == "F" else -1
        most = max(most, live)
    return most


def run(
    forward: list[float], backward: list[float], micro_batches: int, chunks: int = 1, *, whole: bool = False
) -> Run:
    """Run a step of ranks whose whole layers take `forward` and `backward` seconds per micro batch."""
    ranks = len(forward)
    orders = [order(rank, ranks, micro_batches, chunks, whole=whole) for rank in range(ranks)]
    position, clock, busy = [0] * ranks, [0.0] * ranks, [0.0] * ranks
    ended: dict[Pass, float] = {}
    while any(position[r] < len(orders[r]) for r in range(ranks)):
        before = sum(position)
        for rank in range(ranks):
            while position[rank] < len(orders[rank]):
                one = orders[rank][position[rank]]
                needed = _waits_for(one, rank, ranks, chunks)
                if needed is not None and needed not in ended:
                    break
                ready = 0.0 if needed is None else ended[needed]
                work = (forward if one[0] == "F" else backward)[rank] / chunks
                clock[rank] = max(clock[rank], ready) + work
                busy[rank] += work
                ended[one[0], one[1], one[2] * ranks + rank] = clock[rank]
                position[rank] += 1
        assert sum(position) > before, "the schedule hangs"
    makespan = max(clock)
    return Run(makespan, [most_alive(x) for x in orders], [makespan - x for x in busy])
