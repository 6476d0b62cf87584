"""Words of Paddle's trainers that depend on each other and so have no row in the tables: layout and switches."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import table_of
from simulator.frameworks.take import Targets, part
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.specs.model import ModelSpec

_MICRO_BATCH_SIZE: Final = 8
_CHUNK_TOKENS: Final = 8192
"""Tokens per chunk of ERNIE's fused head and loss, by default."""
_DEGREE: Final = "sharding_parallel_degree"
_PADDLEFORMERS_DEGREES: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "sharding_parallel_size")
"""Degrees as PaddleFormers spells them; it shards as stage 1 by default (trainer/training_args.py of 1.2.0)."""
_GRANULARITIES: Final = {"full": "full", "full_attn": "attention", "core_attn": "selective", "selective": "selective"}
_RELEASES: Final = "enable_release_grads"


def layout_of(arguments: Arguments, targets: Targets, spec: ModelSpec | None) -> Layout:
    """Return the layout of a run; `spec` is None for a model whose sizes are not known."""
    layers = targets.get("model.num_hidden_layers") or (spec.num_hidden_layers if spec else None)
    sizes: dict[str, Any] = {"micro_batch_size": _MICRO_BATCH_SIZE, **part(targets, "layout")}
    tensor = sizes.get("tensor_parallel", 1)
    sizes["sequence_parallel"] = sizes.get("sequence_parallel", False) and tensor > 1
    expert, own = sizes.pop("expert_parallel", None), sizes.pop("expert_tensor_parallel", 1)
    if spec is None:
        sizes |= {"expert_parallel": expert or 1, "expert_tensor_parallel": own}
    elif spec.is_moe:
        degrees = _experts(arguments, (expert, own), tensor, spec)
        sizes["expert_parallel"], sizes["expert_tensor_parallel"] = degrees
    sizes |= _recompute(arguments, layers)
    sizes |= _gate_up(arguments, sizes["recompute"], layers)
    sharding = arguments.text("zero_stage", "sharding") or ""
    if "offload" in sharding:
        sizes.setdefault("offload", "optimizer")
    if arguments.switch("offload", "tensorwise_offload_optimizer"):
        sizes["offload"] = "optimizer_tensorwise"
    sizes["zero_stage"] = _zero_stage(arguments, sharding)
    sizes["stage_layers"] = _cut(arguments, layers, sizes.get("pipeline_parallel", 1))
    return Layout(**sizes)


def _experts(arguments: Arguments, degrees: tuple[int | None, int], tensor: int, spec: ModelSpec) -> tuple[int, int]:
    """Return expert parallel size and expert tensor parallel size, by the stated `degrees` or the group.

    PaddleNLP 3.0.0b4 splits Mixtral's experts over the tensor parallel group (transformers/mixtral/modeling.py) and
    keeps DeepSeek's whole on every rank (transformers/deepseek_v2/modeling.py).
    """
    group = arguments.text("ep", "moe_group") or _default_group(arguments, spec)
    size, own = degrees
    if group in ("mp", "tp"):
        return tensor, 1
    if size:
        return size, own
    spread = arguments.switch("ep", "use_expert_parallel")
    if spread or group not in (None, "dummy", "none", ""):
        message = "experts are spread over ranks; over how many is not said"
        arguments.not_modelled(message, "moe_group", "use_expert_parallel", fix="--ep N")
    return 1, tensor if spec.architecture == "mixtral" else 1


def _default_group(arguments: Arguments, spec: ModelSpec) -> str | None:
    """Return the default group of ERNIE's experts in PaddleFormers, recognised by its spelling of the degrees.

    Its tuning keeps the model's default, the tensor parallel group: transformers/ernie4_5_moe/configuration.py and
    nn/pp_model.py of 321f3a8. ERNIEKit passes `moe_group`, by default "dummy".
    """
    tuned = arguments.has(*_PADDLEFORMERS_DEGREES) and not arguments.has("use_expert_parallel", "moe_group")
    return "mp" if tuned and spec.architecture == "ernie4_5_moe" else None


def _zero_stage(arguments: Arguments, sharding: str) -> int:
    if not arguments.has("sharding") and arguments.has(*_PADDLEFORMERS_DEGREES):
        sharding = "stage1"
    degree = arguments.integer("sharding_degree", _DEGREE, low=-1, high=2**20)
    stage = re.search(r"stage([123])", sharding)
    if stage is None and sharding.strip() not in ("", "none", "None"):
        message = f"sharding '{sharding[:40]}': allowed are stage1, stage2, stage3"
        arguments.remark("unknown-value", "error", message, "sharding")
    # At a degree of 1 the trainer empties the setting, whatever the stage.
    return 0 if stage is None or degree == 1 else int(stage[1])


def _recompute(arguments: Arguments, layers: int | None) -> dict[str, Any]:
    """Return the layout fields of recompute: whole layers, some of them, or a part of each."""
    name = "recompute_granularity"
    granularity = arguments.text("recompute", name) or "full"
    others = arguments.integers("recompute_layers", "no_recompute_layers")
    if not arguments.switch("recompute", "recompute", default=arguments.has("recompute_num_layers")):
        if arguments.has(name) and "recompute" not in arguments.incomplete:
            message = f"{name} {granularity[:40]} has no effect: recompute is off"
            arguments.remark("inactive-flag", "note", message, name)
        return {"recompute": "none"}
    mode = _GRANULARITIES.get(granularity, "full")
    if granularity == "selective":
        modules = arguments.text("recompute", "recompute_modules") or ""
        if modules.strip("[]\"' ") != "core_attn":
            arguments.not_modelled(f"{name} selective: only of core_attn is modelled", name)
    elif mode != "full" and others:
        message = f"{granularity} of some layers only is not modelled"
        arguments.not_modelled(message, "no_recompute_layers", fix=f"--recompute {mode}")
    if mode != "full":
        return {"recompute": mode}
    if granularity not in _GRANULARITIES:
        message = f"{name} '{granularity[:40]}': allowed are full, full_attn, core_attn"
        arguments.remark("unknown-value", "error", message, name)
    if arguments.has("refined_recompute"):
        arguments.not_modelled("operators kept from recompute are not modelled", "refined_recompute")
    if others and layers:
        again = tuple(layer for layer in range(layers) if layer not in others)
        return {"recompute": mode, "recompute_method": "list", "recompute_layer_list": again}
    method = "block" if arguments.text("recompute_method", "recompute_method") == "block" else "uniform"
    count = arguments.integer("recompute_layers", "recompute_num_layers") or 1
    return {"recompute": mode, "recompute_method": method, "recompute_layers": count}


def _gate_up(arguments: Arguments, mode: str, layers: int | None) -> dict[str, Any]:
    """Return the layers whose routed experts recompute gate and up in ERNIE's fused node; listed unless all do.

    Beside another recompute it is priced only where both cover every layer and the other recomputes only the core.
    """
    name = "recompute_fwd_gate_up"
    text = (arguments.text("recompute", name) or "false").lower()
    arguments.forget("recompute")
    if text == "false" or not layers or not _has_fp8_experts(arguments):
        return {}
    numbers = range(layers) if text == "true" else sorted({*arguments.integers("recompute", name)})
    listed = tuple(layer for layer in numbers if layer < layers)
    if not listed:
        return {}
    if mode == "none":
        again = {"recompute_method": "list", "recompute_layer_list": listed}
        return {"recompute": "selective", "recompute_modules": ("moe_gate_up",), **again}
    if mode == "selective" and len(listed) == layers:
        return {"recompute_modules": (*BY_NAME["recompute_modules"].default, "moe_gate_up")}
    message = f"{name} beside another recompute of other layers or parts: what it frees is not priced"
    arguments.remark("activations-bound", "warning", message, name)
    return {}


def _cut(arguments: Arguments, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Return layers per stage from a list of first items among embedding, layers, norm and head."""
    name = "pp_seg_method"
    text = arguments.text("stage_layers", name) or ""
    if not re.match(r"\s*(?:\[\s*)?[0-9]", text):
        arguments.forget("stage_layers")
        return ()
    starts = sorted({*arguments.integers("stage_layers", name)})
    if layers is None:
        return ()
    items = layers + 3
    starts = [start for start in starts if start < items]
    if len(starts) != pipeline or starts[0] != 0:
        raise arguments.refusal(arguments.entry(name), f"must list {pipeline} first items, the first of them 0")
    ends = [*starts[1:], items]
    return tuple(min(end, layers + 1) - max(start, 1) for start, end in zip(starts, ends, strict=True))


def options_of(arguments: Arguments, targets: Targets, layout: Layout) -> dict[str, str]:
    """Return the switches of the framework profile that the recipe sets."""
    options: dict[str, str] = part(targets, "option")
    if arguments.text("parameter_dtype", "fp16_opt_level") == "O1":
        options |= {"parameter_dtype": "fp32", "master_weights": "false", "gradient_dtype": "fp32"}
    if layout.context_parallel == 1:
        options.pop("cp_communication", None)
    if _RELEASES in pipeline_config(arguments):
        options["release_grads"] = "true"
    if layout.zero_stage >= 2:
        # The trainer disables it with sharded gradients.
        options.pop("release_grads", None)
    degree = arguments.integer("sharding_degree", _DEGREE, low=-1, high=2**20)
    if degree is not None and degree > 1 and layout.zero_stage:
        options["sharding_degree"] = str(degree)
    options |= _overlap(arguments) | _loss(arguments) | _fp8_experts(arguments)
    return {name: text for name, text in options.items() if name not in arguments.incomplete}


def usual_options(arguments: Arguments) -> dict[str, str]:
    """Return the default switches of a recipe with keys of PaddleFormers or ERNIEKit.

    `fuse_rms_norm` is on by default: erniekit/hparams/model_args.py of ERNIEKit 1.3.0.
    """
    own, others = table_of("paddleformers"), table_of("paddlenlp")
    is_later = any(name in own and name not in others for name in arguments.entries)
    return {"fused_rms_norm": "true"} if is_later and "fused_rms_norm" not in arguments.incomplete else {}


def _has_fp8_experts(arguments: Arguments) -> bool:
    """Whether routed experts compute in fp8, in ERNIE's fused node."""
    return arguments.switch("fp8_experts", "use_fp8_fuse_node")


def _fp8_experts(arguments: Arguments) -> dict[str, str]:
    """Return the switches of the tensors that fp8 experts keep.

    The fused node keeps its input in 8 bits (`dequant_input`) and the output of gate and up, unless that is recomputed
    (`ExpertsGroupGemmContiguousNode`, fp8 utilities of the ERNIE pre-training toolkit). Its README says that weighting
    inside the experts saves their outputs (`use_combine_before_a2a`), and the norm before q, k and v its own
    (`use_rms_qkv_recompute`), one of a layer's two.
    """
    option = "fp8_experts"
    if _has_fp8_experts(arguments) and arguments.switch(option, "dequant_input"):
        # Without clear_origin_weight_when_offline_quant the 16-bit weights stay beside both narrow copies.
        return {option: "kept" if arguments.switch(option, "offline_quant_expert_weight") else "cast"}
    if _has_fp8_experts(arguments):
        message = "use_fp8_fuse_node without dequant_input: what experts keep is priced in 16 bits"
        arguments.remark("activations-bound", "warning", message, "use_fp8_fuse_node")
    elif arguments.switch(option, "use_fp8_mlp"):
        message = "use_fp8_mlp: experts in fp8 keep inputs and gate and up projections alone; priced in bf16"
        arguments.remark("activations-bound", "warning", message, "use_fp8_mlp")
    return {}


def _overlap(arguments: Arguments) -> dict[str, str]:
    """Return the switches of communication that overlaps computation."""
    text = arguments.text("overlap_grad_reduce", "sharding_parallel_config") or ""
    options = {}
    if "enable_stage1_overlap" in text or "enable_sharding_comm_overlap" in text:
        options["overlap_grad_reduce"] = "true"
    if "broadcast_overlap" in text:
        options["overlap_param_gather"] = "true"
    return options


def _loss(arguments: Arguments) -> dict[str, str]:
    """Return the tokens that head and loss process at a time, as a switch."""
    sparse, fused = "use_sparse_head_and_loss_fn", "use_fused_head_and_loss_fn"
    on = {name: arguments.switch("loss", name) for name in (sparse, fused)}
    if all(on.values()):
        message = f"{sparse} and {fused} are both on; the sparse one is taken"
        arguments.remark("contradiction", "warning", message, fused, fix="drop one of them")
    if on[sparse]:
        message = "the sparse head skips tokens without a label; how many the data decide, all are priced"
        arguments.remark("upper-bound", "note", message, sparse, fix="--option labelled_token_fraction=SHARE")
    elif on[fused]:
        if arguments.switch("loss", "use_recompute_loss_fn", default=not arguments.has("use_recompute_loss_fn")):
            tokens = arguments.integer("loss", "loss_subbatch_sequence_length", high=2**27) or _CHUNK_TOKENS
            return {"cross_entropy_chunk_tokens": str(tokens)}
        message = f"{fused} has no effect without use_recompute_loss_fn"
        arguments.remark("inactive-flag", "warning", message, fused)
    return {}


def pipeline_config(arguments: Arguments) -> str:
    """Return the words of the pipeline's configuration."""
    option = "pipeline_parallel_config"
    text = arguments.text(option, option) or ""
    # PaddleFormers' later spelling: a key per word, with the opposite meaning.
    if not arguments.switch(option, "partial_send_recv", default=True):
        text += " disable_partial_send_recv"
    arguments.forget(option)
    return text
