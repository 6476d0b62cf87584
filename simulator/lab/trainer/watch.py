"""Observation of a step: seconds of its passes, and the bytes alive in it.

Watches from outside: no pass computes anything else because it is watched.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.live_bytes import GATHERED, TEMPORARY, LiveBytes
from simulator.lab.trainer.model import Stage

PARAMETERS, GRADIENTS, OPTIMIZER, OTHER = "parameters", "gradients", "optimizer", "other"
_NAMED = (PARAMETERS, GRADIENTS, OPTIMIZER, "activations", GATHERED)


class Watch:
    """Observer of a training rank. Passes run inside `forward` and `backward`, the optimizer inside `update`."""

    def __init__(self, backend: Backend, stages: Sequence[Stage]) -> None:
        self._backend, self._stages = backend, stages
        self._counter: LiveBytes | None = None
        self._marks: dict[str, list[tuple[Any, Any]]] = {"forward": [], "backward": []}
        self._steps: dict[str, list[float]] = {"forward": [], "backward": []}

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Time the forward pass of one micro batch through one stage."""
        with self._timed("forward"):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Time the backward pass of one micro batch through one stage."""
        with self._timed("backward"):
            yield
        if self._counter is not None:
            self._counter.register(GRADIENTS, [grad for stage in self._stages for grad in _unreduced(stage)])

    @contextmanager
    def update(self) -> Iterator[None]:
        """Count the tensors of the optimizer's step as temporary."""
        if self._counter is None:
            yield
        else:
            with self._counter.born_as(TEMPORARY, "optimizer"):
                yield

    def end_of_step(self, *, keep: bool) -> None:
        """Add up the passes of the step, once the device has finished its work."""
        for name, marks in self._marks.items():
            seconds = sum(self._between(start, end) for start, end in marks)
            marks.clear()
            if keep:
                self._steps[name].append(seconds)

    def median_seconds(self, name: str) -> float | None:
        """Return the median seconds per kept step in `forward` or `backward` passes; None without any."""
        return statistics.median(self._steps[name]) if self._steps[name] else None

    @contextmanager
    def counted(self, optimizer: torch.optim.Optimizer) -> Iterator[LiveBytes]:
        """Count the bytes alive inside the context, those of every present tensor included."""
        gc.collect()
        counter = LiveBytes()
        parameters = [parameter for stage in self._stages for parameter in stage.parameters()]
        with counter:
            alive = _alive(self._backend.device)
            counter.register(OTHER, alive)
            # Sharded data parallelism empties these storages between gathers of parameters.
            counter.register(GATHERED, [tensor for tensor in alive if not tensor.untyped_storage().nbytes()])
            counter.register(PARAMETERS, parameters)
            counter.register(OPTIMIZER, _states(optimizer))
            counter.reset_peak()
            handles = [p.register_post_accumulate_grad_hook(_declaring(counter)) for p in parameters]
            self._counter = counter
            try:
                yield counter
            finally:
                self._counter = None
                for handle in handles:
                    handle.remove()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = self._mark()
        yield
        self._marks[name].append((start, self._mark()))

    def _mark(self) -> Any:
        if self._backend.module is None:
            return time.perf_counter()
        event = self._backend.module.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        if self._backend.module is None:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1000.0


def peak_parts(counter: LiveBytes) -> dict[str, int]:
    """Return the bytes at the counter's peak in the categories of a rank's result."""
    parts = {name: counter.peak_parts.get(name, 0) for name in _NAMED}
    return parts | {OTHER: counter.peak - sum(parts.values())}


def _declaring(counter: LiveBytes) -> Callable[[torch.Tensor], None]:
    def declare(parameter: torch.Tensor) -> None:
        counter.register(GRADIENTS, [parameter.grad])

    return declare


def _unreduced(stage: Stage) -> Iterator[torch.Tensor | None]:
    """Yield whole gradients that wait for their reduction, which data parallelism keeps apart from parameters."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001 - no other way to see them
                yield from (parameter.unsharded_accumulated_grad for parameter in group.fsdp_params)


def _alive(device: torch.device) -> list[torch.Tensor]:
    """Return every tensor of this process on the device, receive buffers of torch included."""
    tensors = [_local(value) for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    return [tensor for tensor in tensors if tensor.device == device]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001 - to_local() records it


def _states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
