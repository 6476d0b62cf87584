"""Rank of a run of the reference trainer: builds its stages, trains on random tokens, measures, writes its result.

    >>> train(job, folder, rank=0)
    >>> from_json(RankResult, (folder / "rank-0.json").read_text()).peak_bytes

`parallel` spreads the stages and runs their passes, `watch` measures them.
"""

from __future__ import annotations

import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from simulator.files import write_file
from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.job import RESULT_NAME, RankResult, TrainingJob, to_json
from simulator.lab.trainer.model import Stage
from simulator.lab.trainer.parallel import TiedTable, loss_context, passes_of, spread_stage
from simulator.lab.trainer.watch import Watch, peak_parts

LEARNING_RATE = 3e-4


def train(job: TrainingJob, folder: Path, rank: int) -> None:
    """Train as rank `rank` and write the result into `folder`. The job is one that the trainer can run."""
    # A stage returns a view of tensor parallelism's result; nothing here changes it in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    backend = Backend(job)
    backend.join(job, rank)
    mesh = init_device_mesh(backend.kind, job.mesh_shape, mesh_dim_names=("pp", "dp", "tp"))
    # Set once the threads of all groups have their stacks: from here on memory is for tensors.
    backend.limit_memory(job.memory_limit_bytes)
    result = Trainer(job, backend, mesh).train()
    distributed.barrier()
    write_file(folder / RESULT_NAME.format(rank=rank), to_json(result))
    distributed.destroy_process_group()


class Trainer:
    """Stages of one rank, with their data and optimizer."""

    def __init__(self, job: TrainingJob, backend: Backend, mesh: DeviceMesh) -> None:
        """Build everything on the rank's device."""
        self._job, self._backend, self._mesh = job, backend, mesh
        self._pipeline_rank = mesh["pp"].get_local_rank()
        self._chunks = job.chunks(self._pipeline_rank)
        self._stages = [self._build(index) for index in range(len(self._chunks))]
        backend.release_unused()
        self._watch = Watch(backend, self._stages)
        pipelined = job.layout.pipeline_parallel > 1
        self._tied = TiedTable(self._stages, mesh) if pipelined and job.model.tie_word_embeddings else None
        if self._tied is not None:
            self._tied.start()
        self._passes = passes_of(self._stages, job, mesh, self._watch)
        parameters = [parameter for stage in self._stages for parameter in stage.parameters()]
        # One launch of kernels for all tensors is torch's default on accelerators; here it is the same everywhere.
        self._optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)
        tokens, targets = replica_batch(job, mesh["dp"].get_local_rank())
        self._tokens, self._targets = tokens.to(backend.device), targets.to(backend.device)

    def train(self) -> RankResult:
        """Run the warm-up and timed steps, measure the memory and return the result."""
        job = self._job
        warm = [self._timed_step(keep=False) for _ in range(job.warmup_steps)]
        base = self._settle()
        timed = [self._timed_step(keep=True) for _ in range(job.steps)]
        memory = self._memory(base)
        return RankResult(
            rank=distributed.get_rank(),
            stage=self._pipeline_rank,
            layers=sum(layers for _, layers in self._chunks),
            step_seconds=tuple(seconds for seconds, _ in timed),
            losses=self._global_losses([loss for _, loss in (*warm, *timed)]),
            forward_seconds=self._watch.median_seconds("forward"),
            backward_seconds=self._watch.median_seconds("backward"),
            device_name=self._backend.name,
            versions=self._backend.versions,
            **memory,
        )

    def _build(self, chunk: int) -> Stage:
        """Return one model chunk with values by the job's seed: whole weights never exist on the device."""
        stage = spread_stage(self._job, self._mesh, self._pipeline_rank, chunk)
        stage.to_empty(device=self._backend.device)
        stage.tie()
        stage.initialize(self._job.seed)
        return stage

    def _timed_step(self, *, keep: bool) -> tuple[float, float | None]:
        """Return the seconds of a step, from when all ranks are ready for it, and its loss."""
        distributed.barrier()
        self._backend.synchronize()
        start = time.perf_counter()
        losses = self._step()
        self._backend.synchronize()
        seconds = time.perf_counter() - start
        self._watch.end_of_step(keep=keep)
        return seconds, float(torch.stack(losses).mean()) if losses else None

    def _step(self) -> list[torch.Tensor]:
        with loss_context(self._job.layout.tensor_parallel):
            losses = self._passes.run(self._tokens, self._targets)
        if self._tied is not None:
            self._tied.add_gradients()
        with self._watch.update():
            self._optimizer.step()
        self._optimizer.zero_grad()
        return losses

    def _settle(self) -> int | None:
        """Reset the allocator's peaks; return the bytes alive now, None on a CPU, where a separate step counts them."""
        if self._backend.module is None:
            return None
        self._backend.reset_peak()
        return self._backend.allocator("memory_allocated")

    def _memory(self, base: int | None) -> dict[str, Any]:
        """Return the bytes that the rank measured, by the fields of its result."""
        if base is not None:
            return {
                "base_bytes": base,
                "peak_bytes": self._backend.allocator("max_memory_allocated"),
                "peak_parts": {},
                "reserved_bytes": self._backend.allocator("max_memory_reserved"),
                "device_bytes": self._backend.device_bytes(),
            }
        distributed.barrier()
        with self._watch.counted(self._optimizer) as counter:
            base = counter.current
            self._step()
        counted = {"base_bytes": base, "peak_bytes": counter.peak, "peak_parts": peak_parts(counter)}
        return counted | {"reserved_bytes": None, "device_bytes": None}

    def _global_losses(self, losses: list[float | None]) -> tuple[float, ...]:
        """Return the mean losses over the replicas; empty where this rank does not compute the loss."""
        known = [loss for loss in losses if loss is not None]
        if not known:
            return ()
        values = torch.tensor(known, device=self._backend.device)
        distributed.all_reduce(values, group=self._mesh["dp"].get_group())
        return tuple((values / self._job.layout.data_parallel).tolist())


def replica_batch(job: TrainingJob, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and target tokens of one data-parallel replica, shape (sequences, tokens).

    Every step trains on the same batch, which the model can learn by heart: a wrong gradient shows in the losses.
    """
    sequences = job.global_batch_size // job.layout.data_parallel
    first = replica * sequences
    tokens = torch.stack([_sequence(job, first + index) for index in range(sequences)])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _sequence(job: TrainingJob, index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{job.seed} sequence {index}".encode()))
    return torch.randint(job.model.vocab_size, (job.seq_length + 1,), generator=generator)
