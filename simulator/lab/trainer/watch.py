"""Observation of a step from outside: the bytes of tensors alive in it, and the seconds of its passes.

    >>> with LiveBytes() as counter:
    ...     x = torch.ones(1024, 256, requires_grad=True)
    ...     (x * x).sum().backward()
    >>> counter.peak, counter.peak_parts
    (4194312, {'activations': 1048584, 'temporary': 3145728})

Memory inside a kernel and the blocks of an allocator are no tensors.
"""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Self
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.model import Stage

PARAMETERS, GRADIENTS, OPTIMIZER, OTHER = "parameters", "gradients", "optimizer", "other"
ACTIVATIONS = "activations"
"""Category of tensors born outside of a backward pass, by default."""
TEMPORARY = "temporary"
"""Category of tensors born in a backward pass, recomputed ones included."""
GATHERED = "gathered"
"""Category of whole parameters that sharded data parallelism assembles from their parts."""
REDUCTION = "reduction"
"""Category of buffers in which it adds up the gradients of all replicas."""

_NAMED = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, GATHERED)
_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001 - what traces of collectives are made of


class LiveBytes(TorchDispatchMode):
    """Context that counts every storage from its birth to its end.

    A storage is counted once, however many tensors view it, under the category that it was declared with, or else by
    the moment of its birth. Memory inside one operator is not seen: it is no tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        """Bytes alive now."""
        self.peak = 0
        """Most bytes alive at once since the start or the last `reset_peak`."""
        self.peak_parts: dict[str, int] = {}
        """Bytes by category at that peak."""
        self.peak_moment = ""
        """Moment of that peak: `forward`, `backward`, or the caller's word."""
        self.moment: str | None = None
        """Caller's word for the present moment; None to tell forward from backward automatically."""
        self._category: str | None = None
        self._parts: dict[str, int] = {}
        self._alive: dict[int, tuple[int, str]] = {}
        self._paused = False
        self._patches = ExitStack()

    def register(self, category: str, tensors: Iterable[torch.Tensor | None]) -> None:
        """Count the tensors under this category from now on, those born before this context included."""
        for tensor in tensors:
            for local in _locals(tensor):
                self._count(local.untyped_storage(), category)
        self._mark_peak()

    @contextmanager
    def born_as(self, category: str | None = None, moment: str | None = None) -> Iterator[None]:
        """Count tensors born inside under this category, and call this time `moment`."""
        before = self._category, self.moment
        self._category, self.moment = category or self._category, moment or self.moment
        try:
            yield
        finally:
            self._category, self.moment = before

    @property
    def parts(self) -> dict[str, int]:
        """Bytes alive now by category."""
        return {name: size for name, size in self._parts.items() if size}

    def reset_peak(self) -> None:
        """Reset the peak to the bytes alive now."""
        moment = self.moment or ("backward" if _in_backward() else "forward")
        self.peak, self.peak_parts, self.peak_moment = self.current, self.parts, moment

    def __enter__(self) -> Self:
        """Start counting."""
        for owner, name, wrap in self._wrapped():
            self._patches.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        super().__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        """Stop counting; the figures stay."""
        self._paused = True
        super().__exit__(*failure)
        self._patches.close()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator and count its results."""
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            # A distributed tensor: its operators on the local parts are dispatched themselves.
            return NotImplemented
        if func is _WAIT and isinstance(args[0], FakeTensor):
            # Waiting hands back the tensor waited for; for a fake one torch makes a second.
            return args[0]
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            for leaf in tree_leaves(result):
                for local in _locals(leaf):
                    storage = local.untyped_storage()
                    if storage._cdata not in self._alive:  # noqa: SLF001 - a storage's identity has no other name
                        self._count(storage, self._category or (TEMPORARY if _in_backward() else ACTIVATIONS))
            self._mark_peak()
        return result

    def _count(self, storage: torch.UntypedStorage, category: str) -> None:
        key = storage._cdata  # noqa: SLF001
        if key not in self._alive:
            weakref.finalize(storage, self._change, key, None, "").atexit = False
        self._change(key, storage.nbytes(), category)

    def _change(self, key: int, size: int | None, category: str) -> None:
        """Set the size and category of a storage; size None removes it."""
        old_size, old_category = self._alive.pop(key, (0, category))
        self.current -= old_size
        self._parts[old_category] = self._parts.get(old_category, 0) - old_size
        if size is not None:
            self._alive[key] = (size, category)
            self.current += size
            self._parts[category] = self._parts.get(category, 0) + size

    def _mark_peak(self) -> None:
        if self.current > self.peak:
            self.reset_peak()

    def _wrapped(self) -> Iterator[tuple[object, str, Callable[[Any], Any]]]:
        """Yield (owner, name, wrapper) of the functions of torch that counting wraps."""
        # Sharding is worked out on tensors of the global shape that hold no data and never existed on the device.
        yield ShardingPropagator, "_propagate_tensor_meta_non_cached", self._uncounted
        # Sharded data parallelism frees and brings back storages in place.
        yield torch.UntypedStorage, "resize_", self._resizing
        for name in ("unshard", "wait_for_unshard"):
            yield _fsdp_param_group.FSDPParamGroup, name, partial(self._born_inside, GATHERED)
        yield _fsdp_param_group, "foreach_reduce", partial(self._born_inside, REDUCTION)

    def _uncounted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            before, self._paused = self._paused, True
            try:
                return function(*args, **kwargs)
            finally:
                self._paused = before

        return paused

    def _resizing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = function(storage, size)
            known = self._alive.get(storage._cdata)  # noqa: SLF001
            if known is not None:
                self._change(storage._cdata, storage.nbytes(), known[1])  # noqa: SLF001
                self._mark_peak()
            return result

        return resize

    def _born_inside(self, category: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.born_as(category):
                return function(*args, **kwargs)

        return counted


def _in_backward() -> bool:
    """Tell whether autograd runs a backward pass now, recomputation included."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch asks itself this way


def _locals(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors with a storage of their own in `value`: itself, or a distributed tensor's local part."""
    if isinstance(value, DTensor):
        yield from _locals(value._local_tensor)  # noqa: SLF001 - to_local() records an operation
    elif isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass_type(type(value)):
            for name in value.__tensor_flatten__()[0]:
                yield from _locals(getattr(value, name))
        else:
            yield value


class Watch:
    """Observer of a training rank. Passes run inside `forward` and `backward`, the optimizer inside `update`."""

    def __init__(self, backend: Backend, stages: Sequence[Stage]) -> None:
        self._backend, self._stages = backend, stages
        self._counter: LiveBytes | None = None
        self._marks: dict[str, list[tuple[Any, Any]]] = {"forward": [], "backward": []}
        self._steps: dict[str, list[float]] = {"forward": [], "backward": []}

    def forward(self) -> AbstractContextManager[None]:
        """Time the forward pass of one micro batch through one stage."""
        return self._timed("forward")

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
            states = [value for state in optimizer.state.values() for value in state.values()]
            counter.register(OPTIMIZER, [value for value in states if isinstance(value, torch.Tensor)])
            counter.reset_peak()
            handles = declare_gradients(counter, parameters)
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


def declare_gradients(counter: LiveBytes, parameters: Iterable[torch.nn.Parameter]) -> list[Any]:
    """Count the gradients of parameters as such once they are accumulated; return the handles that end it."""

    def declare(parameter: torch.Tensor) -> None:
        counter.register(GRADIENTS, [parameter.grad])

    return [parameter.register_post_accumulate_grad_hook(declare) for parameter in parameters]


def _unreduced(stage: Stage) -> Iterator[torch.Tensor | None]:
    """Yield whole gradients that wait for their reduction, which data parallelism keeps apart from parameters."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001 - no other way to see them
                yield from (parameter.unsharded_accumulated_grad for parameter in group.fsdp_params)


def _alive(device: torch.device) -> list[torch.Tensor]:
    """Return every tensor of this process on the device, receive buffers of torch included."""
    tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    return [local for tensor in tensors for local in _locals(tensor) if local.device == device]
