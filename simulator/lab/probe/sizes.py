"""Sizes of the operations that a probe times: small on a processor, large on an accelerator. Times nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.lab.trainer.limits import TRAINED_PRECISIONS
from simulator.lab.trainer.measured_rates import COLLECTIVES, RatesJob, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the operations timed on one kind of machine; all are counts."""

    rows: tuple[int, ...]
    """Tokens of a matrix product."""
    widths: tuple[tuple[int, int], ...]
    """Inner and outer width of a matrix product."""
    tokens: tuple[int, ...]
    """Sequences of attention."""
    heads: int
    head_dims: tuple[int, ...]
    elements: tuple[int, ...]
    """Tensors of elementwise kernels."""
    parameters: tuple[int, ...]
    """Tensors that the optimizer updates."""
    copies: tuple[int, ...]
    """Bytes copied from the host."""
    messages: tuple[int, ...]
    """Bytes of a collective's whole tensor."""


PROCESSOR = Sizes(
    rows=(256, 1024),
    widths=((256, 768), (512, 1408), (1024, 2816)),
    tokens=(256, 512, 1024),
    heads=8,
    head_dims=(32, 64, 128),
    elements=(2**17, 2**19, 2**21),
    parameters=(2**18, 2**20, 2**22),
    copies=(),
    messages=(2**10, 2**14, 2**17, 2**19, 2**21, 2**23),
)
ACCELERATOR = Sizes(
    rows=(4096, 16384),
    widths=((2048, 5632), (4096, 14336), (8192, 28672)),
    tokens=(1024, 4096, 16384),
    heads=16,
    head_dims=(64, 128),
    elements=(2**24, 2**26, 2**28),
    parameters=(2**24, 2**26, 2**28),
    copies=(2**24, 2**28),
    messages=(2**14, 2**18, 2**21, 2**24, 2**26, 2**28),
)
DISPATCH = 8
"""Rows and widths of a product so small that its time is that of starting it."""


def rates_job(devices: int, backend: str, *, threads: int = 1) -> RatesJob:
    """Return the job of all timings on `devices` ranks."""
    sizes = PROCESSOR if backend == "cpu" else ACCELERATOR
    return RatesJob(timings=tuple(_timings(sizes)), devices=devices, backend=backend, threads=threads)


def _timings(sizes: Sizes) -> Iterator[Timing]:
    for precision in TRAINED_PRECISIONS:
        yield from _computing(sizes, precision)
    for parameters in sizes.parameters:
        yield Timing(operation="optimizer", precision="fp32", sizes={"parameters": parameters})
    for copied in sizes.copies:
        yield Timing(operation="host_copy", sizes={"bytes": copied})
    for operation in COLLECTIVES:
        for message in sizes.messages:
            yield Timing(operation=operation, sizes={"bytes": message})


def _computing(sizes: Sizes, precision: str) -> Iterator[Timing]:
    dispatch = {"rows": DISPATCH, "inner": DISPATCH, "columns": DISPATCH}
    yield Timing(operation="gemm", precision=precision, sizes=dispatch)
    for rows in sizes.rows:
        for inner, columns in sizes.widths:
            product = {"rows": rows, "inner": inner, "columns": columns}
            yield Timing(operation="gemm", precision=precision, sizes=product)
    heads = {"batch": 1, "heads": sizes.heads, "kv_heads": sizes.heads // 2}
    for tokens in sizes.tokens:
        for head_dim in sizes.head_dims:
            attention = heads | {"tokens": tokens, "head_dim": head_dim}
            yield Timing(operation="attention", precision=precision, sizes=attention)
    for elements in sizes.elements:
        yield Timing(operation="add", precision=precision, sizes={"elements": elements})
        yield Timing(operation="swiglu", precision=precision, sizes={"elements": elements})
