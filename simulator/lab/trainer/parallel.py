"""Parallelism of a stage: tensor parallelism, recomputation and FSDP2, applied in this order. Computes no pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from simulator.errors import UnsupportedError
from simulator.lab.trainer.job import TrainingJob
from simulator.lab.trainer.limits import check_layout
from simulator.lab.trainer.model import Attention, DecoderLayer, Stage
from simulator.lab.trainer.norm import RMSNorm
from simulator.question.scenario.layout import Layout, model_chunks


class _SameEverywhere(ParallelStyle):
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
    layout = job.layout
    chunks = model_chunks(layout.stage_layers, layout.virtual_stages, layout.chunk_layers)[pipeline_rank]
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
    plan: dict[str, ParallelStyle] = {}
    if stage.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if stage.norm is not None:
        plan["norm"] = _SameEverywhere()
        plan["head"] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(stage, mesh, plan)
    gather = {"input_layouts": (stream,), "desired_input_layouts": (Replicate(),)}
    of_layer: dict[str, ParallelStyle] = {
        "attention_norm": _SameEverywhere(),
        "attention": PrepareModuleInput(**gather),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": RowwiseParallel(output_layouts=stream),
        "ffn_norm": _SameEverywhere(),
        "ffn": PrepareModuleInput(**gather),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=stream),
    }
    for layer in stage.layers.values():
        assert isinstance(layer, DecoderLayer)  # noqa: S101 - recomputation wraps layers later
        styles = dict(of_layer)
        if isinstance(layer.attention.query_norm, RMSNorm):
            styles |= {"attention.query_norm": _SameEverywhere(), "attention.key_norm": _SameEverywhere()}
        parallelize_module(layer, mesh, styles)
    for name, module in stage.named_modules():
        if isinstance(module, RMSNorm):
            # Norms of heads see this rank's heads; the others this rank's tokens, with sequence parallelism.
            module.rows_are_split = sequence_parallel or name.endswith(("query_norm", "key_norm"))
    stage.tie()


def loss_context(tensor_parallel: int) -> AbstractContextManager[None]:
    """Return the context of both passes: with tensor parallelism, the loss of logits split over the vocabulary."""
    return loss_parallel() if tensor_parallel > 1 else nullcontext()


def apply_recompute(stage: Stage, layout: Layout) -> None:
    """Wrap the recomputed modules: whole layers, most of their operations, or the attention core."""
    check_layout(layout)
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


ATTENTION_OPERATIONS = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
"""Attention's kernels, whose outputs per-operation checkpointing keeps."""


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
    if precision not in ("bf16", "fp32"):
        raise UnsupportedError(f"precision {precision}: the reference trainer computes in bf16 or fp32")
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


def sharded(stage: Stage) -> FSDPModule:
    """Return the stage as an FSDPModule. Raises TypeError before data parallelism is applied."""
    if not isinstance(stage, FSDPModule):
        raise TypeError("data parallelism is not applied yet")
    return stage
