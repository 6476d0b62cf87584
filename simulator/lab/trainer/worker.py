"""Rank of a run of the reference trainer: it spreads its stages, trains on random tokens, measures, writes its result.

Stages are spread over devices, and their passes run, by torch's own parallelism and schedules: tensor parallelism,
recomputation and FSDP2, in this order.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, parallel
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

from simulator.files import write_file
from simulator.lab.trainer.backend import Backend
from simulator.lab.trainer.job import RESULT_NAME, RankResult, TrainingJob, to_json
from simulator.lab.trainer.model import Attention, DecoderLayer, RMSNorm, Stage
from simulator.lab.trainer.watch import Watch, peak_parts
from simulator.question.scenario.layout import Layout

ATTENTION_OPERATIONS = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
"""Attention's kernels, whose outputs per-operation checkpointing keeps."""


class _SameEverywhere(parallel.ParallelStyle):
    """Style of a module whose parameters are whole on every rank and that works on plain tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            whole = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(whole))
        return module


def spread_stage(job: TrainingJob, mesh: DeviceMesh, pipeline_rank: int, chunk: int) -> Stage:
    """Return a model chunk of a pipeline rank on the device `meta`, spread by the job's layout.

    `mesh` has the dimensions `dp` and `tp`. Give it memory by `to_empty`, then call `tie` and `initialize`.
    """
    layout, chunks = job.layout, job.chunks(pipeline_rank)
    first, layers = chunks[chunk]
    last_rank = pipeline_rank == layout.pipeline_parallel - 1
    with torch.device("meta"):
        stage = Stage(
            job.model,
            range(first, first + layers),
            seq_length=job.seq_length,
            embedding=pipeline_rank == 0 and chunk == 0,
            head=last_rank and chunk == len(chunks) - 1,
        )
    apply_tensor_parallel(stage, mesh["tp"], sequence_parallel=layout.sequence_parallel)
    apply_recompute(stage, layout)
    # In fp32 and without replicas there is nothing to cast, to gather or to reduce.
    if job.precision != "fp32" or layout.data_parallel > 1:
        apply_data_parallel(stage, mesh["dp"], layout, job.precision)
    return stage


def apply_tensor_parallel(stage: Stage, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the stage's weights over `mesh`, of one dimension.

    With sequence parallelism the residual stream is split over the tokens, and so is what a stage takes and returns;
    the token table sees all tokens. The loss is computed on logits split over the vocabulary: run both passes inside
    `loss_context`.
    """
    if mesh.size() == 1:
        return
    stream = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, parallel.ParallelStyle] = {}
    if stage.embedding is not None:
        plan["embedding"] = parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if stage.norm is not None:
        plan["norm"] = _SameEverywhere()
        plan["head"] = parallel.ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
    parallel.parallelize_module(stage, mesh, plan)
    gather = {"input_layouts": (stream,), "desired_input_layouts": (Replicate(),)}
    of_layer: dict[str, parallel.ParallelStyle] = {
        "attention_norm": _SameEverywhere(),
        "attention": parallel.PrepareModuleInput(**gather),
        **{f"attention.{name}": parallel.ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": parallel.RowwiseParallel(output_layouts=stream),
        "ffn_norm": _SameEverywhere(),
        "ffn": parallel.PrepareModuleInput(**gather),
        "ffn.gate": parallel.ColwiseParallel(),
        "ffn.up": parallel.ColwiseParallel(),
        "ffn.down": parallel.RowwiseParallel(output_layouts=stream),
    }
    for layer in stage.layers.values():
        assert isinstance(layer, DecoderLayer)  # noqa: S101 - recomputation wraps layers later
        styles = dict(of_layer)
        if isinstance(layer.attention.query_norm, RMSNorm):
            styles |= {"attention.query_norm": _SameEverywhere(), "attention.key_norm": _SameEverywhere()}
        parallel.parallelize_module(layer, mesh, styles)
    for name, module in stage.named_modules():
        if isinstance(module, RMSNorm):
            # Norms of heads see this rank's heads; the others this rank's tokens, with sequence parallelism.
            module.rows_are_split = sequence_parallel or name.endswith(("query_norm", "key_norm"))
    stage.tie()


def loss_context(tensor_parallel: int) -> AbstractContextManager[None]:
    """Return the context of both passes: with tensor parallelism, the loss of logits split over the vocabulary."""
    return parallel.loss_parallel() if tensor_parallel > 1 else nullcontext()


def apply_recompute(stage: Stage, layout: Layout) -> None:
    """Wrap the recomputed modules: whole layers, most of their operations, or the attention core."""
    indices = list(stage.layers)
    if layout.recompute == "selective":
        for layer in stage.layers.values():
            for module in layer.modules():
                if isinstance(module, Attention):
                    module.core = checkpoint_wrapper(module.core, preserve_rng_state=False)
    elif layout.recompute == "operations":
        for index in indices:
            stage.layers[index] = checkpoint_wrapper(
                stage.layers[index], preserve_rng_state=False, context_fn=_keeping_operations
            )
    elif layout.recompute == "full":
        chosen = {
            "uniform": indices,
            "block": indices[: layout.recompute_layers],
            "list": [index for index in indices if int(index) in layout.recompute_layer_list],
        }[layout.recompute_method]
        for index in chosen:
            stage.layers[index] = checkpoint_wrapper(stage.layers[index], preserve_rng_state=False)


def _keeping_operations() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a layer's two forward passes: attention, scatters and every second product are kept."""
    products = {False: 0, True: 0}
    saved = (*ATTENTION_OPERATIONS, torch.ops._c10d_functional.reduce_scatter_tensor.default)  # noqa: SLF001

    def policy(context: SelectiveCheckpointContext, operation: object, *_: object, **__: object) -> CheckpointPolicy:
        keep = operation in saved
        if operation == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply_data_parallel(stage: Stage, mesh: DeviceMesh, layout: Layout, precision: str) -> None:
    """Shard the stage over `mesh`, of one dimension (FSDP2), and set the types it computes in.

    ZeRO 3 frees gathered parameters after each use; 2 and 1 keep them until the step; 0 shards nothing. Below ZeRO 2
    whole gradients add up over the micro batches: call `stage.set_requires_gradient_sync(False)` for all but the last.
    """
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if precision == "bf16"
        else MixedPrecisionPolicy()
    )
    units: list[nn.Module | list[nn.Module]] = []
    ends = [module for module in (stage.embedding, stage.norm, stage.head) if module is not None]
    if stage.tied and len(ends) == 3:
        units.append(ends)
    else:
        units += [stage.embedding] if stage.embedding is not None else []
        units += [[stage.norm, stage.head]] if stage.norm is not None and stage.head is not None else []
    for unit in (*stage.layers.values(), *units, stage):
        if layout.zero_stage == 0:
            replicate(unit, mesh=mesh, mp_policy=policy)
        else:
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=layout.zero_stage == 3)


def passes_of(stages: Sequence[Stage], job: TrainingJob, mesh: DeviceMesh, watch: Watch) -> Accumulation | Pipeline:
    """Return the passes of a rank's stages: a pipeline, or gradient accumulation."""
    if job.layout.pipeline_parallel > 1:
        return Pipeline(stages, job, mesh["pp"].get_group(), watch)
    return Accumulation(stages[0], job, watch)


class Accumulation:
    """Passes of one stage without a pipeline: one micro batch after the other."""

    def __init__(self, stage: Stage, job: TrainingJob, watch: Watch) -> None:
        self._stage = stage
        self._micro_batches = job.micro_batches
        self._zero_stage = job.layout.zero_stage
        self._watch = watch

    def run(self, tokens: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Add the mean loss's gradients to the parameters; return the losses by micro batch where they are known."""
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
        count = job.micro_batches
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
        """Add the mean loss's gradients to the parameters; return the losses by micro batch where they are known."""
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if self._first else ()
        # The last stage returns losses: nothing of the size of the logits is handed to the schedule, which keeps
        # what it is handed. The target goes to the stage; to the schedule it only says that there is a loss.
        extra = {"labels": targets, "target": targets} if self._last else {}
        self._schedule.step(*inputs, losses=losses, return_outputs=False, **extra)
        return [loss.detach() * self._count for loss in losses]


def boundary(job: TrainingJob) -> tuple[tuple[int, int, int], torch.dtype]:
    """Return shape and type of the residual stream that a stage hands to the next, of one micro batch."""
    tokens = job.seq_length // (job.layout.tensor_parallel if job.layout.sequence_parallel else 1)
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    return (job.layout.micro_batch_size, tokens, job.model.hidden_size), dtype


class _WatchedStage(PipelineStage):
    """Stage whose shapes are known beforehand, so that no pass is run to find them."""

    def __init__(  # noqa: PLR0913 - what torch's stage takes, and who watches
        self, stage: Stage, job: TrainingJob, *, index: int, total: int, group: ProcessGroup, watch: Watch
    ) -> None:
        shape, dtype = boundary(job)
        stream = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        indices = torch.empty((job.layout.micro_batch_size, job.seq_length), dtype=torch.int64, device="meta")
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
        self, chunk: int, inputs: tuple[Any, ...], kwargs: Any = None, *more: Any, **named: Any
    ) -> Any:
        """Run one micro batch forward; only the last stage has a use for the target."""
        target = {"target": kwargs["labels"]} if self.is_last and kwargs else {}
        with self._watch.forward():
            return super().forward_one_chunk(chunk, inputs, target, *more, **named)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """Run one micro batch backward."""
        with self._watch.backward():
            super().backward_one_chunk(*args, **kwargs)


class TiedTable:
    """Equal copies of the table: they start equal, and each step adds up their gradients."""

    def __init__(self, stages: list[Stage], mesh: DeviceMesh) -> None:
        """Find this rank's copy, if it has one. Every rank of the run calls this."""
        ranks = mesh.mesh.movedim(mesh.mesh_dim_names.index("pp"), 0).flatten(1)
        self._copy: torch.nn.Parameter | None = None
        for first, last in zip(ranks[0].tolist(), ranks[-1].tolist(), strict=True):
            group = distributed.new_group([first, last])
            if distributed.get_rank() in (first, last):
                self._group = group
                self._first = first
                owners = [owner for stage in stages for owner in (stage.embedding, stage.head) if owner is not None]
                self._copy = owners[0].weight

    def start(self) -> None:
        """Copy the first rank's values."""
        if self._copy is not None:
            distributed.broadcast(_local(self._copy.detach()), src=self._first, group=self._group)

    def add_gradients(self) -> None:
        """Add up the gradients of both copies."""
        copy = self._copy
        if copy is None or copy.grad is None:
            return
        if isinstance(copy, DTensor) and isinstance(copy.grad, DTensor):
            # A token table that only tensor parallelism splits has a whole gradient, an output layer its part of it.
            copy.grad = copy.grad.redistribute(copy.device_mesh, copy.placements)
        distributed.all_reduce(_local(copy.grad), group=self._group)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
        base = self._backend.settled_bytes()
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

    def _memory(self, base: int | None) -> dict[str, Any]:
        """Return the bytes that the rank measured, by the fields of its result; without `base` a step counts them."""
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
    tokens = torch.stack([_sequence(job, replica * sequences + index) for index in range(sequences)])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _sequence(job: TrainingJob, index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{job.seed} sequence {index}".encode()))
    return torch.randint(job.model.vocab_size, (job.seq_length + 1,), generator=generator)
