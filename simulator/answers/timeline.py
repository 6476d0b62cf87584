"""Timeline of an estimate: the passes and the memory of every pipeline rank over one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.cost.pricing.estimate import ChunkTime, Estimate
from simulator.cost.schedule.schedule import HELD, PASSES, EventRun, PipelineWork, run
from simulator.errors import UnsupportedError
from simulator.question.scenario.block import block_of
from simulator.records import Record

MOST_PASSES = 400_000
"""Most passes of a step in a timeline."""
AFTER = ("data_parallel", "optimizer", "offload")
"""Parts of a step after its passes, in order."""


class Timeline(Record, kw_only=True):
    """The passes of one step over time."""

    estimate: Estimate
    passes: EventRun
    send_seconds: float
    """Seconds from the end of a pass to the pass on another rank that waits for it."""
    after_seconds: Mapping[str, float]
    """Seconds of every rank's work after its passes, by part, in order."""

    @property
    def seconds(self) -> float:
        """Seconds from the first pass to the end of the step."""
        return self.passes.makespan_seconds + sum(self.after_seconds.values())

    @property
    def difference(self) -> float:
        """Relative difference to the estimate's step time, which closed formulas give."""
        return self.seconds / self.estimate.throughput.step_seconds - 1.0

    def resident_bytes(self, rank: int) -> float:
        """Return the bytes alive throughout the step: the allocated bytes of the estimate less its activations."""
        stage = self.estimate.memory.stages[rank]
        return stage.allocated_bytes - stage.parts_bytes["activations"]

    def bytes_alive(self, rank: int) -> Iterator[tuple[float, float]]:
        """Yield seconds from the start of the step and the bytes alive from then on, at every change."""
        activations = self.estimate.memory.stages[rank].parts_bytes["activations"]  # when most passes are alive
        of_pass, alive = activations / max(self.passes.most_alive(rank), 1), self.resident_bytes(rank)
        yield 0.0, alive
        for event in self.passes.events[rank]:
            alive += of_pass * float(HELD[PASSES.index(event.ran.kind)])
            yield (event.start_seconds if event.ran.kind == "forward" else event.end_seconds), alive


def timeline(estimate: Estimate, micro_batches: int | None = None) -> Timeline:
    """Run the schedule of an estimate, of its first `micro_batches` alone if fewer. Raises UnsupportedError."""
    if estimate.violations:
        raise UnsupportedError(f"timeline: the layout is refused: {estimate.violations[0].message}")
    layout, speed = estimate.layout, estimate.throughput
    count = estimate.global_batch_size // (layout.micro_batch_size * layout.data_parallel)
    shown = count if micro_batches is None else min(count, micro_batches)
    block = block_of([layout])
    ranks, chunks = block.pipeline_parallel, int(block.chunks[0])
    if 2 * shown * ranks * chunks > MOST_PASSES:
        raise UnsupportedError(
            f"timeline: {2 * shown * ranks * chunks:,} passes, at most {MOST_PASSES:,} are shown; a smaller "
            "--global-batch-size shows the same schedule"
        )
    parts = speed.parts_seconds
    schedule = speed.schedule
    sends = float(schedule.sends(ranks, chunks))
    # A rank's own passes hide its sends; the others are waited for while the pipeline fills and drains.
    send = parts["pipeline_sends"] / (sends * (count + ranks - 1.0)) if sends else 0.0
    seconds = [
        stage.chunk_seconds or (ChunkTime(stage.forward_seconds / chunks, stage.backward_seconds / chunks),) * chunks
        for stage in speed.stages
    ]
    pipeline = PipelineWork(
        forward_seconds=[[chunk.forward_seconds for chunk in of_rank] for of_rank in seconds],
        backward_seconds=[[chunk.backward_seconds for chunk in of_rank] for of_rank in seconds],
        weight_seconds=[[chunk.weight_seconds for chunk in of_rank] for of_rank in seconds],
        micro_batches=shown,
        send_seconds=send,
    )
    pace = max(stage.forward_seconds + stage.backward_seconds for stage in speed.stages)
    known = count * pace + sum(parts[name] for name in ("bubble", "pipeline_sends", *AFTER))
    after = {name: parts[name] for name in AFTER if parts[name]}
    if speed.step_seconds > known:
        after["overhead"] = speed.step_seconds - known
    return Timeline(estimate=estimate, passes=run(schedule, pipeline), send_seconds=send, after_seconds=after)
