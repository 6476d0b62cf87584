"""Timings of a machine's operations: every rank runs the same one at the same time, sharing links as in training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from simulator.errors import one_line
from simulator.files import write_file
from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.job import COLLECTIVES, RATES_NAME, MeasuredRates, RatesJob, Timed, Timing, to_json
from simulator.lab.trainer.model import KERNELS
from simulator.lab.trainer.process import failure_of

DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
WARM_UPS: Final = 2
"""First repeats of a timing, which are dropped."""
SHORTEST_SECONDS: Final = 1e-3
"""Shortest duration of a repeat, which runs its operation often enough to last it."""

Run = Callable[[], object]


def measure(job: RatesJob, folder: Path, rank: int) -> None:
    """Measure as rank `rank`; the first rank writes the rates into `folder`."""
    backend = Backend(job)
    backend.join(job, rank)
    memory_bytes, usable_bytes = _memory(job, backend)
    measured = MeasuredRates(
        device_name=backend.name,
        versions=backend.versions,
        devices=job.devices,
        memory_bytes=memory_bytes,
        usable_bytes=usable_bytes,
        timed=timings(job, backend),
    )
    if rank == 0:
        write_file(folder / RATES_NAME, to_json(measured))
    distributed.barrier()
    distributed.destroy_process_group()


def _memory(job: RatesJob, backend: Backend) -> tuple[int, int]:
    """Return the bytes of one device, and how many of them are free; ranks on a processor divide both."""
    if backend.module is None:
        memory = psutil.virtual_memory()
        return memory.total // job.devices, memory.available // job.devices
    free, whole = backend.module.mem_get_info()
    return int(whole), int(free)


def timings(job: RatesJob, backend: Backend) -> tuple[Timed, ...]:
    """Time the job's operations, without those that need a second rank or a device apart from its host."""
    impossible = {*(() if job.devices > 1 else COLLECTIVES), *(() if backend.module is not None else ("host_copy",))}
    attempts = (_timed(job, backend, timing) for timing in job.timings if timing.operation not in impossible)
    return tuple(timed for timed in attempts if timed is not None)


def _timed(job: RatesJob, backend: Backend, timing: Timing) -> Timed | None:
    """Return a timing; None where any rank's device has no kernel for it: no rank may time alone."""
    try:
        forward, backward = _OPERATIONS[timing.operation](timing, backend)
        missing = 0.0
    except RuntimeError as error:
        if failure_of(error, distributed.get_rank()).kind == "out-of-memory":
            raise
        print(one_line(f"not timed: {timing}: {error}"), file=sys.stderr, flush=True)  # noqa: T201 - a rank's log
        missing = 1.0
    lacking = torch.tensor([missing], device=backend.device)
    distributed.all_reduce(lacking, op=distributed.ReduceOp.MAX)
    if float(lacking):
        return None
    return Timed(
        timing=timing,
        forward_seconds=_repeat(job, backend, forward),
        backward_seconds=_repeat(job, backend, backward) if backward is not None else (),
    )


def _repeat(job: RatesJob, backend: Backend, run: Run) -> tuple[float, ...]:
    """Return the seconds of one run in every repeat, those of the slowest rank."""
    inner = 1
    timings: list[float] = []
    for repeat in range(WARM_UPS + job.repeats):
        distributed.barrier()
        backend.synchronize()
        start = time.perf_counter()
        for _ in range(inner):
            run()
        backend.synchronize()
        seconds = torch.tensor([(time.perf_counter() - start) / inner], device=backend.device)
        distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX)
        slowest = float(seconds)
        if repeat >= WARM_UPS:
            timings.append(slowest)
        else:
            # All ranks know the same time, so they agree on how often to run.
            inner = max(int(SHORTEST_SECONDS / slowest), 1)
    return tuple(timings)


def _random(backend: Backend, precision: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=DTYPES[precision], device=backend.device)


def _both_passes(compute: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> tuple[Run, Run]:
    """Return a forward pass, and the gradients of all inputs from its result."""
    for tensor in inputs:
        tensor.requires_grad_()
    result = compute()
    gradient = torch.randn_like(result)
    return compute, lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def _gemm(timing: Timing, backend: Backend) -> tuple[Run, Run]:
    sizes = timing.sizes
    x = _random(backend, timing.precision, sizes["rows"], sizes["inner"])
    weight = _random(backend, timing.precision, sizes["columns"], sizes["inner"])
    return _both_passes(lambda: functional.linear(x, weight), (x, weight))


def _attention(timing: Timing, backend: Backend) -> tuple[Run, Run]:
    sizes = timing.sizes
    query, key, value = (
        _random(backend, timing.precision, sizes["batch"], sizes[heads], sizes["tokens"], sizes["head_dim"])
        for heads in ("heads", "kv_heads", "kv_heads")
    )

    def attend() -> torch.Tensor:
        with sdpa_kernel(KERNELS):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return _both_passes(attend, (query, key, value))


def _add(timing: Timing, backend: Backend) -> tuple[Run, None]:
    x, y = (_random(backend, timing.precision, timing.sizes["elements"]) for _ in range(2))
    result = torch.empty_like(x)
    return lambda: torch.add(x, y, out=result), None


def _swiglu(timing: Timing, backend: Backend) -> tuple[Run, Run]:
    gate, up = (_random(backend, timing.precision, timing.sizes["elements"]) for _ in range(2))
    return _both_passes(lambda: functional.silu(gate) * up, (gate, up))


def _optimizer(timing: Timing, backend: Backend) -> tuple[Run, None]:
    parameter = torch.nn.Parameter(torch.randn(timing.sizes["parameters"], device=backend.device))
    parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW([parameter], foreach=True).step, None


def _host_copy(timing: Timing, backend: Backend) -> tuple[Run, None]:
    host = torch.empty(timing.sizes["bytes"], dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device=backend.device)
    return lambda: device.copy_(host, non_blocking=True), None


def _collective(timing: Timing, backend: Backend) -> tuple[Run, None]:
    """Return a collective over all ranks; `bytes` is the whole tensor, of which a rank may hold a share."""
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    dtype = DTYPES[timing.precision]
    held = max(timing.sizes["bytes"] // (ranks * dtype.itemsize), 1)
    whole = torch.ones(held * ranks, dtype=dtype, device=backend.device)
    part = torch.ones(held, dtype=dtype, device=backend.device)

    def send() -> None:
        # Both directions at once, as a pipeline in its steady state.
        ahead, behind = (rank + 1) % ranks, (rank - 1) % ranks
        received = torch.empty_like(whole)
        requests = distributed.batch_isend_irecv(
            [distributed.P2POp(distributed.isend, whole, ahead), distributed.P2POp(distributed.irecv, received, behind)]
        )
        for request in requests:
            request.wait()

    # Names in newer releases of torch; vendors' builds are often older.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    runs: dict[str, Run] = {
        "all_gather": lambda: gather(whole, part),
        "reduce_scatter": lambda: scatter(part, whole),
        "all_reduce": lambda: distributed.all_reduce(whole),
        "send": send,
    }
    return runs[timing.operation], None


_OPERATIONS: Final[dict[str, Callable[[Timing, Backend], tuple[Run, Run | None]]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "add": _add,
    "swiglu": _swiglu,
    "optimizer": _optimizer,
    "host_copy": _host_copy,
    **dict.fromkeys(COLLECTIVES, _collective),
}
