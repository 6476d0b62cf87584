"""A job configuration of torchtitan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from simulator.errors import UnsupportedError
from simulator.question.frameworks.profiles import PROFILES
from simulator.question.scenario.layout import Layout
from simulator.recipes.check.case import Case
from simulator.recipes.emit.recompute import torchtitan_recompute
from simulator.recipes.emit.words import Head, default_cut_only, refuse_switches, shipped_name

_EXPRESSIBLE: tuple[str, ...] = (
    "sharding_degree",
    "sharding_replicas",
    "fp8_param_gather",
    "cp_communication",
    "compiled",
    "fused_cross_entropy",
    "loss_bytes_per_logit",
    "recompute_stops_early",
    "foreach_optimizer",
)

_FLAVORS: dict[str, tuple[str, str]] = {
    "llama3-8b": ("llama3", "8B"),
    "llama3.1-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3.1-70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
}
"""Model and flavor in torchtitan by shipped name."""


def torchtitan_config(case: Case, head: Head) -> str:
    """The configuration. Raises UnsupportedError for what torchtitan has no key for."""
    refuse_switches(case, _EXPRESSIBLE, "torchtitan")
    launch = (
        f"Launch: torchrun --nnodes {head.nodes} --nproc_per_node {head.devices_per_node} "
        "-m torchtitan.train --job.config_file THIS_FILE"
    )
    lines = [f"# {line}" for line in (*head.lines, launch)]
    for section, keys in (("model", _model(case)), *_sections(case), ("optimizer", _optimizer(case))):
        lines += ["", f"[{section}]", *keys]
    return "\n".join(lines) + "\n"


def _sections(case: Case) -> Iterator[tuple[str, Iterator[str]]]:
    """The sections that lay a case out, with their keys."""
    yield "training", _training(case)
    yield "parallelism", _parallelism(case)
    yield "activation_checkpoint", torchtitan_recompute(case)
    yield "compile", _compile(case)
    if case.scenario.precision == "fp8":
        yield "quantize.linear.float8", _float8(case)


def _model(case: Case) -> Iterator[str]:
    name = shipped_name(case, "torchtitan")
    if name not in _FLAVORS:
        raise UnsupportedError(f"model {name}: torchtitan has no flavor of it that is known")
    family, flavor = _FLAVORS[name]
    yield f'name = "{family}"'
    yield f'flavor = "{flavor}"'
    if case.scenario.precision == "fp8":
        yield 'converters = ["float8"]'


def _training(case: Case) -> Iterator[str]:
    scenario, layout = case.scenario, case.layout
    if scenario.lora_rank is not None:
        raise UnsupportedError("--lora-rank: torchtitan's training configuration has no adapters")
    if scenario.precision == "fp16":
        raise UnsupportedError("--precision fp16: torchtitan trains in bf16, fp8 or fp32")
    yield f"seq_len = {scenario.seq_length}"
    size = layout.micro_batch_size
    if layout.pipeline_parallel > 1:
        # The local batch is what a replica passes through the pipeline at once.
        size = scenario.global_batch_size // layout.data_parallel
    yield f"local_batch_size = {size}"
    yield f"global_batch_size = {scenario.global_batch_size}"
    yield f'mixed_precision_param = "{"float32" if scenario.precision == "fp32" else "bfloat16"}"'
    yield 'mixed_precision_reduce = "float32"'
    yield "steps = 1000"


def _parallelism(case: Case) -> Iterator[str]:
    layout = case.layout
    if layout.sequence_parallel != (layout.tensor_parallel > 1):
        raise UnsupportedError("--no-sequence-parallel: torchtitan's tensor parallelism always has it")
    if layout.offload != "none":
        raise UnsupportedError(f"--offload {layout.offload}: torchtitan's configuration has no key for it")
    if layout.zero_stage == 1:
        raise UnsupportedError("--zero-stage 1: torchtitan shards gradients too (--zero-stage 2 or 3), or nothing")
    shards = _shards(case)
    replicas = layout.data_parallel // shards if shards > 0 else case.scenario.framework.sharding_replicas
    yield f"data_parallel_replicate_degree = {replicas}"
    yield f"data_parallel_shard_degree = {shards}"
    if layout.zero_stage:
        yield f'fsdp_reshard_after_forward = "{"always" if layout.zero_stage == 3 else "never"}"'
    yield f"tensor_parallel_degree = {layout.tensor_parallel}"
    yield f"context_parallel_degree = {layout.context_parallel}"
    if layout.context_parallel > 1:
        kind = case.scenario.framework.cp_communication
        if kind not in ("ring", "gathered_ring"):
            raise UnsupportedError(f"--option cp_communication={kind}: torchtitan's context parallelism is a ring")
        yield f'context_parallel_rotate_method = "{"alltoall" if kind == "ring" else "allgather"}"'
    yield f"pipeline_parallel_degree = {layout.pipeline_parallel}"
    if layout.pipeline_parallel > 1:
        yield from _pipeline(case)
    if case.scenario.model.is_moe:
        yield f"expert_parallel_degree = {layout.expert_parallel}"
        yield f"expert_tensor_parallel_degree = {layout.expert_tensor_parallel}"


def _shards(case: Case) -> int:
    """Ranks that share the state; -1 is torchtitan's word for all that are left."""
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


def _pipeline(case: Case) -> Iterator[str]:
    layout = case.layout
    if not default_cut_only(case):
        raise UnsupportedError(f"--stage-layers {list(layout.stage_layers)}: torchtitan cuts the layers by itself")
    yield f'pipeline_parallel_schedule = "{_schedule(layout)}"'
    yield f"pipeline_parallel_microbatch_size = {layout.micro_batch_size}"
    if layout.virtual_stages > 1:
        yield f"pipeline_parallel_layers_per_stage = {layout.stage_layers[0] // layout.virtual_stages}"


def _schedule(layout: Layout) -> str:
    """Its name in torch.distributed.pipelining. Raises UnsupportedError for one it has none for."""
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


def _compile(case: Case) -> Iterator[str]:
    """What is compiled: layers, the loss, or both."""
    profile = case.scenario.framework
    if profile.fused_cross_entropy != (profile.loss_bytes_per_logit == _COMPILED_LOSS_BYTES):
        raise UnsupportedError(
            f"--option loss_bytes_per_logit={profile.loss_bytes_per_logit}: torchtitan's loss takes "
            f"{_COMPILED_LOSS_BYTES} compiled (--option fused_cross_entropy=true), else "
            f"{PROFILES['torch'].loss_bytes_per_logit}"
        )
    parts = [name for name, on in (("model", profile.compiled), ("loss", profile.fused_cross_entropy)) if on]
    yield f"enable = {str(bool(parts)).lower()}"
    if parts:
        yield "components = [" + ", ".join(f'"{part}"' for part in parts) + "]"


_COMPILED_LOSS_BYTES = 4
"""The logits and their gradient, 16 bits each."""


def _float8(case: Case) -> Iterator[str]:
    yield f"enable_fsdp_float8_all_gather = {str(case.scenario.framework.fp8_param_gather).lower()}"


def _optimizer(case: Case) -> Iterator[str]:
    yield 'name = "AdamW"'
    yield f'implementation = "{"foreach" if case.scenario.framework.foreach_optimizer else "fused"}"'
    yield "lr = 1e-5"


def torchtitan_words(case: Case) -> Iterator[str]:
    """The keys, `section.key = value`, that say a case's layout. Raises UnsupportedError for what there is none for."""
    for section, keys in _sections(case):
        yield from (f"{section}.{key}" for key in keys)
