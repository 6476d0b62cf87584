"""Synthetic training data: random tokens that depend on the seed and the sequence's number only."""

from __future__ import annotations

import zlib

import torch

from simulator.lab.trainer.job import TrainingJob


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
