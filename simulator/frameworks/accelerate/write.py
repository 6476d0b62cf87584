"""Writer of scripts of TRL 1.9 (`trl/scripts/sft.py`) under `accelerate launch` 1.15, sharded by FSDP or DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.errors import UnsupportedError
from simulator.frameworks.flags import table_of
from simulator.frameworks.write import Head, WordPair, Writing, flags, shell
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model

_TITLE: Final = "accelerate"
_STORED: Final = ("parameter_dtype", "gradient_dtype", "master_weights")
_TYPES: Final = (*_STORED, "foreach_optimizer")
"""Switches that distinguish DeepSpeed's optimizer from PyTorch's."""
_ENGINE: Final = ("bf16", "bf16", True, False)
"""Their values under DeepSpeed; other values need a DeepSpeed configuration file."""
_NAMED: Final = (*_TYPES, "expandable_segments", "flash_attention", "optimizer", "quantised_base", "quantised_bits")
_OPTIMIZERS: Final = {
    **dict.fromkeys(("lion", "paged_lion", "paged_adamw"), "{}_32bit"),
    **dict.fromkeys(("adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "adafactor", "sgd"), "{}"),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), "{}"),
}  # the trainer's words by optimizer (transformers 5.23.0, training_args.py, `OptimizerNames`)
_LAID_OUT: Final = ("data_parallel", "stage_layers", "zero_stage", "recompute", "recompute_method", "recompute_layers")


def accelerate_script(scenario: Scenario, layout: Layout, head: Head) -> str:
    """Return the script. Raises UnsupportedError for settings without a word of launcher or trainer."""
    case = Writing(scenario, layout, table_of("transformers", "trl"))
    case.refuse_switches(_NAMED, _TITLE)
    case.refuse_layout((*_LAID_OUT, "offload"), _TITLE)
    adapters = scenario.lora_rank is not None
    lines = [
        "MASTER_ADDR=${MASTER_ADDR:-localhost}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        "NODE_RANK=${NODE_RANK:-0}",
        "TRAINER=${TRAINER:-trl/scripts/sft.py}",
        "DATASET=${DATASET:-trl-lib/Capybara}",
        "OUTPUT=${OUTPUT:-checkpoints}",
    ]
    if scenario.framework.expandable_segments:
        lines.append("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    arguments = [
        f"--num_machines {head.nodes} --num_processes {scenario.devices} --machine_rank $NODE_RANK",
        "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT",
        *flags([*_precision(scenario), *_sharding(scenario.framework, layout, adapters=adapters)], dashes=False),
        "$TRAINER",
        *flags(accelerate_words(scenario, layout), dashes=False),
        "--packing --dataset_name $DATASET --output_dir $OUTPUT",
    ]
    return shell(lines, "accelerate launch", arguments, head)


def accelerate_words(scenario: Scenario, layout: Layout) -> Iterator[WordPair]:
    """Yield the trainer's words. Raises UnsupportedError for settings without one."""
    case = Writing(scenario, layout, table_of("transformers", "trl"))
    name = case.shipped_name(_TITLE)
    if (hub_id := next((alias for alias in load_model(name).aliases if "/" in alias), None)) is None:
        raise UnsupportedError(f"model {name}: its id on Hugging Face is not known")
    yield "model_name_or_path", hub_id
    yield "max_length", str(scenario.seq_length)
    yield "per_device_train_batch_size", str(layout.micro_batch_size)
    yield "gradient_accumulation_steps", str(case.accumulation)
    yield "gradient_checkpointing", _recompute(layout)
    yield from _adapters(scenario)
    if (optimizer := scenario.framework.optimizer) != PROFILES["torch"].optimizer:
        if optimizer not in _OPTIMIZERS:
            raise UnsupportedError(f"--optimizer {optimizer}: the trainer has no word for it")
        yield "optim", _OPTIMIZERS[optimizer].format(optimizer)
    elif not scenario.framework.foreach_optimizer and not scenario.framework.master_weights:
        yield "optim", "adamw_torch_fused"
    if scenario.framework.quantised_base:
        bits = scenario.framework.quantised_bits
        yield f"load_in_{bits}bit", "true"
        if bits == "4" and scenario.framework.quantised_scale_bytes < PROFILES["torch"].quantised_scale_bytes:
            yield "use_bnb_nested_quant", "true"
    if not scenario.framework.flash_attention:
        yield "attn_implementation", "eager"
    if _is_half(scenario.framework) and not scenario.framework.quantised_base:
        yield from (("dtype", "bfloat16"), ("bf16", "false"))
    elif scenario.lora_rank is not None and not (scenario.framework.quantised_base or scenario.frozen_in_fp32):
        yield "dtype", "float16" if scenario.precision == "fp16" else "bfloat16"


def _adapters(scenario: Scenario) -> Iterator[WordPair]:
    """Yield the words of PEFT's adapters, with the dropout that TRL would choose otherwise."""
    if scenario.lora_rank is None:
        return
    if (dropout := scenario.framework.adapter_dropout) == "after":
        raise UnsupportedError("--option adapter_dropout=after: PEFT drops the inputs of adapters")
    yield from (("use_peft", ""), ("lora_r", str(scenario.lora_rank)))
    yield "lora_dropout", "0" if dropout == "none" else table_of("trl")["lora_dropout"].default


def _is_half(profile: FrameworkProfile) -> bool:
    """Whether weights, gradients and moments are bf16, without autocast and master weights."""
    types = {profile.parameter_dtype, profile.gradient_dtype, profile.optimizer_dtype}
    return types == {"bf16"} and not profile.master_weights


def _precision(scenario: Scenario) -> Iterator[WordPair]:
    if scenario.precision not in ("bf16", "fp16"):
        raise UnsupportedError(f"--precision {scenario.precision}: scripts of {_TITLE} are written in bf16 or fp16")
    yield "mixed_precision", "no" if _is_half(scenario.framework) else scenario.precision


def _recompute(layout: Layout) -> str:
    if layout.recompute == "none":
        return "false"
    if layout.recompute != "full" or layout.recompute_method != "uniform" or layout.recompute_layers != 1:
        raise UnsupportedError(f"--recompute {layout.recompute}: the trainer recomputes every layer, or none")
    return "true"


def _sharding(profile: FrameworkProfile, layout: Layout, *, adapters: bool) -> Iterator[WordPair]:
    """Yield the launcher's words for the engine that shards the state."""
    types = tuple(getattr(profile, name) for name in _TYPES)
    if types == _ENGINE:
        yield "use_deepspeed", ""
        yield "zero_stage", str(layout.zero_stage)
        if layout.offload.startswith("optimizer"):
            yield "offload_optimizer_device", "cpu"
        elif layout.offload != "none":
            raise UnsupportedError(f"--offload {layout.offload}: DeepSpeed moves the state by tensor")
        return
    usual, stored = (tuple(getattr(each, name) for name in _STORED) for each in (PROFILES["torch"], profile))
    if stored != usual and not _is_half(profile) and (not adapters or stored != ("bf16", *usual[1:])):
        message = ", ".join(f"{name}={str(value).lower()}" for name, value in zip(_TYPES, _ENGINE, strict=True))
        raise UnsupportedError(f"{_TITLE} shards by FSDP (--stack default), or by DeepSpeed (--option {message})")
    if layout.offload != "none":
        other = "--stack deepspeed" if layout.offload.startswith("optimizer") else "--offload none"
        raise UnsupportedError(f"--offload {layout.offload}: {_TITLE} has no word for it ({other})")
    if layout.zero_stage == 0 and (layout.devices == 1 or not profile.limits.zero_stage):
        return
    if layout.zero_stage not in (2, 3):
        raise UnsupportedError(f"--zero-stage {layout.zero_stage}: FSDP is stage 2 or 3 (--stack deepspeed has others)")
    yield "use_fsdp", ""
    yield "fsdp_version", "2"
    yield "fsdp_reshard_after_forward", str(layout.zero_stage == 3).lower()
    yield "fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"
