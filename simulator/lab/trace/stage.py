"""Count of a stage's bytes: a rank of the reference trainer on fake tensors, in a process group without other ranks."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as pipeline_stage
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.job import Traced, TraceRequest
from simulator.lab.trainer.model import Stage
from simulator.lab.trainer.watch import OPTIMIZER, PARAMETERS, TEMPORARY, LiveBytes, Watch, declare_gradients
from simulator.lab.trainer.worker import boundary, loss_context, passes_of, spread_stage


def trace_stage(request: TraceRequest) -> Traced:
    """Build the rank's stages, run a step and count its bytes. Torch's process group stays open."""
    started = time.perf_counter()
    job, layout = request.job, request.job.layout
    replica = layout.data_parallel * layout.tensor_parallel
    distributed.init_process_group("fake", store=FakeStore(), rank=request.stage * replica, world_size=layout.devices)
    mesh = init_device_mesh("cpu", job.mesh_shape, mesh_dim_names=("pp", "dp", "tp"))
    # Built outside of the mode of fake tensors, in which a mesh of several dimensions cannot be sliced.
    stages = [spread_stage(job, mesh, request.stage, chunk) for chunk in range(len(job.chunks(request.stage)))]
    counter = LiveBytes()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", _agree_with_nobody))  # noqa: SLF001
        stack.enter_context(mock.patch.object(schedules, "_batch_p2p", _keeping(schedules._batch_p2p)))  # noqa: SLF001
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counter)
        stack.enter_context(loss_context(layout.tensor_parallel))
        base = _Rank(mesh, stages, counter, request).run()
    return Traced(
        stage=request.stage,
        peak_bytes=counter.peak,
        moment=counter.peak_moment,
        parts_bytes=counter.peak_parts,
        base_bytes=base,
        micro_batches=job.micro_batches,
        seconds=time.perf_counter() - started,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        torch_version=torch.__version__,
    )


class _Rank:
    """Rank with its optimizer, all of it counted."""

    def __init__(self, mesh: DeviceMesh, stages: Sequence[Stage], counter: LiveBytes, request: TraceRequest) -> None:
        job = request.job
        for stage in stages:
            stage.to_empty(device="cpu")
            stage.tie()
        parameters = [parameter for stage in stages for parameter in stage.parameters()]
        counter.register(PARAMETERS, parameters)
        declare_gradients(counter, parameters)
        self._counter = counter
        self._optimizer = torch.optim.AdamW(parameters, foreach=True)
        self._passes = passes_of(stages, job, mesh, _Moments(Backend(job), stages, counter))
        sequences = job.micro_batches * job.layout.micro_batch_size
        self._tokens = torch.zeros((sequences, job.seq_length), dtype=torch.int64)
        # Torch makes receive buffers for every micro batch of the step, and its interleaved schedule keeps what was
        # sent until the end of it.
        self._received = _missing_buffers(request)
        self._sent = _missing_buffers(request) if job.layout.virtual_stages > 1 else []

    def run(self) -> int:
        """Run a step, in which the counter finds its peak; return the bytes alive after it."""
        # A first optimizer step makes the states: it needs gradients and no passes.
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        with self._counter.born_as(OPTIMIZER):
            self._optimizer.step()
        self._optimizer.zero_grad()
        self._counter.reset_peak()
        self._passes.run(self._tokens, self._tokens)
        self._sent.clear()
        self._counter.moment = None
        with self._counter.born_as(TEMPORARY, "optimizer step"):
            self._optimizer.step()
        self._optimizer.zero_grad()
        return self._counter.current


class _Moments(Watch):
    """Names the moments of a step as the predictions do."""

    def __init__(self, backend: Backend, stages: Sequence[Stage], counter: LiveBytes) -> None:
        super().__init__(backend, stages)
        self._counter = counter
        self._moments = counter
        for stage in stages:
            if stage.norm is not None:
                stage.norm.register_forward_pre_hook(self._loss_begins)
            if stage.embedding is not None:
                stage.embedding.register_forward_hook(self._table_used)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Mark the forward pass of one micro batch through one stage."""
        self._moments.moment = None
        with super().forward():
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Mark the backward pass of one micro batch through one stage."""
        with super().backward():
            yield
        # Between passes only gradients are reduced, and only with a pipeline.
        self._moments.moment = "gradient reduction"

    def _loss_begins(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._moments.moment = "loss"
        if inputs[0].requires_grad:
            inputs[0].register_hook(lambda _gradient: self._now(None))

    def _table_used(self, _module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda _gradient: self._now("embedding gradient"))

    def _now(self, moment: str | None) -> None:
        self._moments.moment = moment


def _agree_with_nobody(_schedule: object, stages: Sequence[Any], _backward: object, _done: object) -> None:
    """Replace the ranks' agreement on shapes: every rank knows all of them beforehand."""
    for stage in stages:
        stage._inference_mode = pipeline_stage.InferenceMode.STATIC  # noqa: SLF001 - what the agreement sets


@dataclass(slots=True)
class _Sent:
    """Exchange that keeps its tensors until it is waited for, as real ones do and fake ones do not."""

    works: Sequence[Any]
    tensors: Sequence[torch.Tensor]

    def wait(self) -> None:
        """Wait for all of it."""
        for work in self.works:
            work.wait()
        self.tensors = ()


def _keeping(batch: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[_Sent]]:
    """Return `batch` with exchanges that keep what they send until they are waited for."""

    def started(operations: Sequence[distributed.P2POp], desc: str | None = None) -> Sequence[_Sent]:
        works = batch(operations, desc)
        sends = [operation.tensor for operation in operations if operation.op is distributed.isend]
        return [_Sent(works, sends)] if works else []

    return started


def _missing_buffers(request: TraceRequest) -> list[torch.Tensor]:
    """Return boundary tensors of the micro batches that are not run, for one direction of the exchange."""
    layout = request.job.layout
    if layout.pipeline_parallel == 1:
        return []
    missing = request.micro_batches - request.job.micro_batches
    ends = (request.stage == 0) + (request.stage == layout.pipeline_parallel - 1)
    shape, dtype = boundary(request.job)
    return [torch.empty(shape, dtype=dtype) for _ in range(missing * (2 * layout.virtual_stages - ends))]
