"""Writer of torchtitan's job configurations; a setting without a key is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from simulator.errors import UnsupportedError
from simulator.frameworks.flags import table_of
from simulator.frameworks.torchtitan.read import LAUNCH, cut_words, published
from simulator.frameworks.write import Head, WordPair, Writing
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

_EXPRESSIBLE: tuple[str, ...] = (
    *("expandable_segments", "sharding_degree", "sharding_replicas", "fp8_param_gather", "cp_communication"),
    *("compiled", "fused_cross_entropy", "loss_bytes_per_logit", "recompute_stops_early", "foreach_optimizer"),
)


def torchtitan_config(scenario: Scenario, layout: Layout, head: Head) -> str:
    """Return the configuration. Raises UnsupportedError for settings that torchtitan has no key for."""
    case = Writing(scenario, layout, table_of("torchtitan"))
    case.refuse_switches(_EXPRESSIBLE, "torchtitan")
    allocator = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " if scenario.framework.expandable_segments else ""
    launch = (
        f"{LAUNCH}{allocator}torchrun --nnodes {head.nodes} --nproc_per_node {head.devices_per_node} "
        "-m torchtitan.train --job.config_file THIS_FILE"
    )
    lines = [f"# {line}" for line in (*head.lines, launch)]
    for section, keys in (("model", _model(case)), *_sections(case), ("optimizer", _optimizer(case))):
        lines += ["", f"[{section}]", *(f"{name} = {text}" for name, text in keys)]
    return "\n".join(lines) + "\n"


def _sections(case: Writing) -> Iterator[tuple[str, Iterator[WordPair]]]:
    """Yield the sections of a layout with their keys."""
    yield "training", _training(case)
    yield "parallelism", _parallelism(case)
    yield "activation_checkpoint", _recompute(case)
    yield "compile", _compile(case)
    if case.scenario.precision == "fp8":
        gathers = str(case.scenario.framework.fp8_param_gather).lower()
        yield "quantize.linear.float8", iter([("enable_fsdp_float8_all_gather", gathers)])


def _model(case: Writing) -> Iterator[WordPair]:
    name = case.shipped_name("torchtitan")
    if name not in published():
        raise UnsupportedError(f"model {name}: torchtitan has no flavor of it that is known")
    family, flavor = published()[name]
    yield "name", f'"{family}"'
    yield "flavor", f'"{flavor}"'
    if case.scenario.precision == "fp8":
        yield "converters", '["float8"]'


def _training(case: Writing) -> Iterator[WordPair]:
    scenario, layout = case.scenario, case.layout
    if scenario.lora_rank is not None:
        raise UnsupportedError("--lora-rank: torchtitan's training configuration has no adapters")
    if scenario.precision == "fp16":
        raise UnsupportedError("--precision fp16: torchtitan trains in bf16, fp8 or fp32")
    yield "seq_len", str(scenario.seq_length)
    size = layout.micro_batch_size
    if layout.pipeline_parallel > 1:
        # The local batch is all that a replica passes through the pipeline per step.
        size = scenario.global_batch_size // layout.data_parallel
    yield "local_batch_size", str(size)
    yield "global_batch_size", str(scenario.global_batch_size)
    yield "mixed_precision_param", f'"{"float32" if scenario.precision == "fp32" else "bfloat16"}"'
    yield "mixed_precision_reduce", '"float32"'
    yield "steps", "1000"


def _parallelism(case: Writing) -> Iterator[WordPair]:
    layout = case.layout
    if layout.sequence_parallel != (layout.tensor_parallel > 1):
        raise UnsupportedError("--no-sequence-parallel: torchtitan's tensor parallelism always has it")
    if layout.offload != "none":
        raise UnsupportedError(f"--offload {layout.offload}: torchtitan's configuration has no key for it")
    if layout.zero_stage == 1:
        raise UnsupportedError("--zero-stage 1: torchtitan shards gradients too (--zero-stage 2 or 3), or nothing")
    shards = _shards(case)
    replicas = layout.data_parallel // shards if shards > 0 else case.scenario.framework.sharding_replicas
    yield "data_parallel_replicate_degree", str(replicas)
    yield "data_parallel_shard_degree", str(shards)
    if layout.zero_stage:
        yield "fsdp_reshard_after_forward", f'"{"always" if layout.zero_stage == 3 else "never"}"'
    yield "tensor_parallel_degree", str(layout.tensor_parallel)
    yield "context_parallel_degree", str(layout.context_parallel)
    if layout.context_parallel > 1:
        kind = case.scenario.framework.cp_communication
        if kind not in ("ring", "gathered_ring"):
            raise UnsupportedError(f"--option cp_communication={kind}: torchtitan's context parallelism is a ring")
        yield "context_parallel_rotate_method", f'"{"alltoall" if kind == "ring" else "allgather"}"'
    yield "pipeline_parallel_degree", str(layout.pipeline_parallel)
    if layout.pipeline_parallel > 1:
        yield "pipeline_parallel_schedule", f'"{_schedule(layout)}"'
        yield "pipeline_parallel_microbatch_size", str(layout.micro_batch_size)
        yield from cut_words(layout)
    if case.scenario.model.is_moe:
        yield "expert_parallel_degree", str(layout.expert_parallel)
        yield "expert_tensor_parallel_degree", str(layout.expert_tensor_parallel)


def _shards(case: Writing) -> int:
    """Return the number of ranks that share the state; -1 means all remaining ones to torchtitan."""
    layout = case.layout
    if not layout.zero_stage:
        return 1
    if case.scenario.framework.sharding_replicas > 1:
        return -1
    degree = min(case.scenario.framework.sharding_degree, layout.data_parallel * layout.context_parallel)
    if degree:
        if degree % layout.context_parallel:
            raise UnsupportedError(f"--option sharding_degree={degree}: torchtitan shards over whole context groups")
        return degree // layout.context_parallel
    return layout.data_parallel if layout.data_parallel > 1 else -1


def _schedule(layout: Layout) -> str:
    """Return the schedule's name in torch.distributed.pipelining. Raises UnsupportedError without one."""
    match layout.schedule:
        case "1f1b":
            return "1F1B" if layout.virtual_stages == 1 else "Interleaved1F1B"
        case "zb_h1":
            if layout.virtual_stages == 1:
                raise UnsupportedError("--schedule zb_h1: torchtitan's InterleavedZeroBubble needs --vpp 2 or more")
            return "InterleavedZeroBubble"
        case "zb_v":
            return "ZBVZeroBubble"
        case "dualpipev":
            return "DualPipeV"
        case "dualpipe":
            raise UnsupportedError("--schedule dualpipe: torchtitan has DualPipeV (--schedule dualpipev)")
        case _:
            assert_never(layout.schedule)


def _compile(case: Writing) -> Iterator[WordPair]:
    """Yield the keys of compilation: layers, the loss, or both."""
    profile = case.scenario.framework
    if profile.fused_cross_entropy != (profile.loss_bytes_per_logit == _COMPILED_LOSS_BYTES):
        raise UnsupportedError(
            f"--option loss_bytes_per_logit={profile.loss_bytes_per_logit}: torchtitan's loss takes "
            f"{_COMPILED_LOSS_BYTES} compiled (--option fused_cross_entropy=true), else "
            f"{PROFILES['torch'].loss_bytes_per_logit}"
        )
    parts = [name for name, on in (("model", profile.compiled), ("loss", profile.fused_cross_entropy)) if on]
    yield "enable", str(bool(parts)).lower()
    if parts:
        yield "components", "[" + ", ".join(f'"{part}"' for part in parts) + "]"


_COMPILED_LOSS_BYTES = 4  # bytes per logit: the logit and its gradient, in 16 bits each


def _optimizer(case: Writing) -> Iterator[WordPair]:
    yield "name", '"AdamW"'
    yield "implementation", f'"{"foreach" if case.scenario.framework.foreach_optimizer else "fused"}"'
    yield "lr", "1e-5"


def _recompute(case: Writing) -> Iterator[WordPair]:
    mode = case.layout.recompute
    match mode:
        case "none":
            yield "mode", '"none"'
        case "full":
            yield from _recomputed_layers(case)
        case "operations":
            yield "mode", '"selective"'
            yield "selective_ac_option", '"op"'
        case _:
            raise UnsupportedError(f"--recompute {mode}: torchtitan recomputes whole layers, or keeps some operations")
    if mode != "none":
        yield "early_stop", str(case.scenario.framework.recompute_stops_early).lower()


def _recomputed_layers(case: Writing) -> Iterator[WordPair]:
    """Yield the keys that recompute every layer, or every n-th."""
    layout, layers = case.layout, case.scenario.model.num_hidden_layers
    if layout.recompute_method == "uniform" and layout.recompute_layers == 1:
        yield "mode", '"full"'
        return
    every = layout.recompute_layer_list[0] + 1 if layout.recompute_layer_list else 0
    if not every or layout.recompute_layer_list != tuple(range(every - 1, layers, every)):
        raise UnsupportedError("--recompute-layers: torchtitan recomputes every layer, every n-th, or none")
    yield "mode", '"selective"'
    yield "selective_ac_option", f'"{every}"'


def torchtitan_words(scenario: Scenario, layout: Layout) -> Iterator[WordPair]:
    """Yield the keys of a layout by section and name. Raises UnsupportedError for settings without one."""
    for section, keys in _sections(Writing(scenario, layout, table_of("torchtitan"))):
        yield from ((f"{section}.{name}", text) for name, text in keys)
