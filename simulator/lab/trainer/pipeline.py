"""Passes of a step over its micro batches: gradient accumulation, or torch's own pipeline schedules.

Updates no weight, and writes no schedule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from simulator.lab.trainer.job import TrainingJob
from simulator.lab.trainer.limits import micro_batches
from simulator.lab.trainer.model import Stage
from simulator.lab.trainer.watch import Watch


class Passes(Protocol):
    """Forward and backward passes of a whole step."""

    def run(self, tokens: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Add the mean loss's gradients to the parameters; return the losses by micro batch where they are known."""


def passes_of(stages: Sequence[Stage], job: TrainingJob, mesh: DeviceMesh, watch: Watch) -> Passes:
    """Return the passes of a rank's stages: a pipeline, or gradient accumulation."""
    if job.layout.pipeline_parallel > 1:
        return Pipeline(stages, job, mesh["pp"].get_group(), watch)
    return Accumulation(stages[0], job, watch)


class Accumulation:
    """Passes of one stage without a pipeline: one micro batch after the other."""

    def __init__(self, stage: Stage, job: TrainingJob, watch: Watch) -> None:
        self._stage = stage
        self._micro_batches = micro_batches(job)
        self._zero_stage = job.layout.zero_stage
        self._watch = watch

    def run(self, tokens: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Run both passes, as in `Passes`."""
        losses = []
        count = self._micro_batches
        chunks = zip(tokens.tensor_split(count), targets.tensor_split(count), strict=True)
        for index, (inputs, labels) in enumerate(chunks):
            self._announce(last=index == count - 1)
            with self._watch.forward():
                loss = self._stage(inputs, labels) / count
            with self._watch.backward():
                loss.backward()
            losses.append(loss.detach() * count)
            del loss
        return losses

    def _announce(self, *, last: bool) -> None:
        """Tell data parallelism whether the passes to come are the step's last ones."""
        stage = self._stage
        if not isinstance(stage, FSDPModule):
            return
        stage.set_is_last_backward(last)
        # Below ZeRO 2 whole gradients add up over the micro batches; below ZeRO 3 gathered parameters stay meanwhile.
        stage.set_requires_gradient_sync(last or self._zero_stage >= 2)
        stage.set_reshard_after_backward(last or self._zero_stage == 3)


class Pipeline:
    """Passes of a rank's stages, one per model chunk, driven by torch's own schedules.

    What torch's schedules do with sharded data parallelism holds: gradients are reduced once, after the last micro
    batch, whatever the ZeRO stage, and parameters stay gathered from a backward pass on.
    """

    def __init__(self, stages: Sequence[Stage], job: TrainingJob, group: ProcessGroup, watch: Watch) -> None:
        count = micro_batches(job)
        rank, size = group.rank(), group.size()
        total = size * len(stages)
        wrapped = [
            _WatchedStage(stage, job, index=chunk * size + rank, total=total, group=group, watch=watch)
            for chunk, stage in enumerate(stages)
        ]

        def scaled(loss: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
            """Scale the loss, which the stage itself computes."""
            return loss / count

        options: dict[str, Any] = {"loss_fn": scaled, "scale_grads": False}
        self._schedule = (
            ScheduleInterleaved1F1B(list(wrapped), count, **options)
            if len(wrapped) > 1
            else Schedule1F1B(wrapped[0], count, **options)
        )
        self._first, self._last = rank == 0, rank == size - 1
        self._count = count

    def run(self, tokens: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Run both passes, as in `Passes`."""
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if self._first else ()
        # The last stage returns losses: nothing of the size of the logits is handed to the schedule, which keeps
        # what it is handed. The target goes to the stage; to the schedule it only says that there is a loss.
        extra = {"labels": targets, "target": targets} if self._last else {}
        self._schedule.step(*inputs, losses=losses, return_outputs=False, **extra)
        return [loss.detach() * self._count for loss in losses]


class _WatchedStage(PipelineStage):
    """Stage whose shapes are known beforehand, so that no pass is run to find them."""

    def __init__(  # noqa: PLR0913 - what torch's stage takes, and who watches
        self, stage: Stage, job: TrainingJob, *, index: int, total: int, group: ProcessGroup, watch: Watch
    ) -> None:
        layout, model = job.layout, job.model
        tokens = job.seq_length // (layout.tensor_parallel if layout.sequence_parallel else 1)
        batch = layout.micro_batch_size
        stream = torch.empty(
            (batch, tokens, model.hidden_size),
            dtype=torch.bfloat16 if job.precision == "bf16" else torch.float32,
            device="meta",
            requires_grad=True,
        )
        indices = torch.empty((batch, job.seq_length), dtype=torch.int64, device="meta")
        loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
        super().__init__(
            stage,
            index,
            total,
            next(stage.parameters()).device,
            input_args=indices if index == 0 else stream,
            output_args=loss if index == total - 1 else stream,
            group=group,
        )
        self._watch = watch

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        """Run one micro batch forward; only the last stage has a use for the target."""
        target = {"target": kwargs["labels"]} if self.is_last and kwargs else {}
        with self._watch.forward():
            return super().forward_one_chunk(fwd_chunk_id, args, target, save_forward_output)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """Run one micro batch backward."""
        with self._watch.backward():
            super().backward_one_chunk(*args, **kwargs)
