"""Reader of ERNIEKit, PaddleNLP and PaddleFormers: what several words, or the model, decide together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand, half_precision
from simulator.frameworks.configuration import take_files
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import table_of
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import QUANTIZED, known_model, note_fewer_bits
from simulator.frameworks.purpose import require_training_switches
from simulator.frameworks.take import Targets, part, read_optimizer, take
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import model_names, variants

_LORA_RANK: Final = 8
_OWN_FLAGS: Final = frozenset(
    ("tensor_parallel_degree", "pipeline_parallel_degree", "fp16_opt_level", "sharding_parallel_degree")
)
_OWN_WITH_MODEL: Final = frozenset(
    ("sharding", "recompute", "recompute_granularity", "unified_checkpoint", "amp_master_grad", "dataset_name_or_path")
)
"""Keys that mark a file as Paddle's beside a model: PaddleNLP 2.8.1, paddlenlp/trainer/training_args.py,
llm/utils/argument.py."""
_LENGTHS: Final = ("max_seq_len", "max_seq_length", "max_length", "seq_length")
"""Words of the sequence length, by precedence."""
_STAGES: Final = ("SFT", "PT", "PRETRAIN", "ERNIE_PRETRAIN", "DSV3_PRETRAIN", "VL-SFT")
_PREFERENCE: Final = re.compile(r"(?:^|[_\W])(dpo|kto|simpo|orpo|ppo|grpo|rlhf|reward)(?:[_\W]|$)", re.ASCII)
"""Names of scripts and files of training on preferences."""
_REFERENCE: Final = ("dpo", "kto")
"""Preference losses that are priced: answers are packed into a sequence of `max_seq_len`, scored by a frozen copy of
the model, or under adapters by the model without them. PaddleNLP 037e4a6, llm/alignment/dpo/run_dpo.py; 4596ac3,
kto/run_kto.py; 136516b, paddlenlp/trl/dpo_trainer.py (`_wrap_ref_model`: 16-bit weights, cut as the model is)."""
_NO_REFERENCE: Final = ("or", "orpo", "simpo")  # losses of DPO's trainer without a frozen copy: the same file
_REWARD: Final = ("reward", "rm")
"""Reward models: one score per token in place of logits, on pairs packed into one sequence. PaddleNLP ee302b6,
llm/alignment/rm/flashmask/reward_model.py."""


def is_file(names: Collection[str]) -> bool:
    """Whether flags or keys belong to a Paddle trainer."""
    own = set(names)
    parallel = {"per_device_train_batch_size", "tensor_model_parallel_size"} <= own
    return bool(own & _OWN_FLAGS) or parallel or ("model_name_or_path" in own and bool(own & _OWN_WITH_MODEL))


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts a Paddle trainer, by its launcher or its flags."""
    if launch.launcher == "paddle":
        return bool(launch.flags) or any(text.endswith((".json", ".yaml", ".yml")) for text in launch.texts)
    return launch.launcher not in ("accelerate", "other") and is_file(launch.flags)


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the configuration file of a launch, alone or after `--config`; `key=value` and flags override its keys.

    `--config`: PaddleFormers, examples/experiments/ernie_pretrain/ernie/pretrain.py.
    """
    named = arguments.entry("config")
    stated = () if named is None else named.values[:1] or [known_value("--config", named.place.line)]
    take_files(arguments, launch, (*words, *stated), _add_keys)


def _add_keys(arguments: Arguments, keys: Iterable[Key], file: str) -> None:
    for key in keys:
        arguments.add(key.name, key.values, key.line, file)


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    return _recipe(arguments, PurePath(launch.script.text).name, whole_sends=launch.program == "erniekit")


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    _add_keys(arguments, keys, arguments.file)
    return _recipe(arguments, "", whole_sends=False)


def _recipe(arguments: Arguments, title: str, *, whole_sends: bool) -> Recipe:
    """Return the run of a recipe, with the trainer's defaults for words that it omits."""
    run = paddle_run(arguments, title, whole_sends=whole_sends)
    return replace(run, options={**usual_options(arguments), **run.options})


def paddle_run(arguments: Arguments, title: str, *, whole_sends: bool) -> Recipe:
    """Return the run; `whole_sends` says that its trainer fails where a pipeline sends partial tensors."""
    arguments.complete_names()
    require_training_switches(arguments)
    targets = take(arguments)
    name = arguments.text("model", "model_name_or_path")
    model = known_model(arguments, name, "model_name_or_path") if name else None
    spec = models.load_model(model) if model in (*model_names(), *variants()) else None
    layout = layout_of(arguments, targets, spec)
    # Return the rank of the trained adapters; None where all weights are trained.
    kind = (arguments.text("lora_rank", "fine_tuning") or "").lower()
    adapters = arguments.switch("lora_rank", "lora") or kind == "lora"
    arguments.forget("lora_rank")
    lora_rank = (arguments.integer("lora_rank", "lora_rank", high=2**16) or _LORA_RANK) if adapters else None
    purpose = _purpose(arguments, f"{title} {PurePath(arguments.file).name}".lower(), lora_rank)
    workload = part(targets, "workload")
    if "global_batch_size" not in workload and "gradient_accumulation_steps" not in arguments.incomplete:
        workload.setdefault("gradient_accumulation_steps", 1)
    # ChatGLM2's network has no flash kernel: `CoreAttention` of paddlenlp/transformers/chatglm_v2/modeling.py, 2.8.1.
    network = {"flash_attention": "false"} if spec is not None and spec.architecture in ("glm", "chatglm") else {}
    run = Recipe(
        framework="paddle",
        model=model,
        model_fields=part(targets, "model"),
        seq_length=arguments.integer("seq_length", *_LENGTHS, high=2**27),
        precision=_precision(arguments),
        lora_rank=lora_rank,
        options=options_of(arguments, targets, layout) | purpose | network,
        layout=layout,
        **workload,
    )
    pairs = re.search("dpo|kto", f"{title} {arguments.text('stage', 'stage') or ''}".lower())
    _note_schedule(arguments, layout)
    _note_contradictions(arguments, layout, whole_sends=whole_sends or pairs is not None)
    for option in ("steps", "optimizer", "pipeline_parallel_config", "schedule", "stage"):
        arguments.incomplete.discard(option)
        arguments.forget(option)
    note_fewer_bits(arguments, run)
    if spec is not None and spec.encoder is not None:
        return _of_parts(arguments, run)
    if spec is not None and "VL" in (arguments.text("stage", "stage") or ""):
        arguments.not_modelled(f"stage VL-SFT: {spec.name} sees no images", "stage")
    return run


_FREEZES: Final = frozenset(["freeze_vision", "freeze_aligner", "freeze_llm"])


def _of_parts(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run of a model that sees images, with what it trains (PaddleFormers 0366076, cli/utils/mllm_utils.py).

    Adapters stand in every part that is not frozen. Batches are as long as their longest sample unless packed or
    divided over ranks (cli/train/sft/workflow.py of 000afbc).
    """
    frozen = (arguments.text("encoder", "freeze_config") or "").split()
    if not arguments.any_switch("packing", "packing", "sequence_parallel"):
        note_samples(arguments, next((name for name in _LENGTHS if arguments.has(name)), _LENGTHS[0]))
    if not _FREEZES.issuperset(frozen):
        arguments.not_modelled("other parts that are not trained are not priced", "freeze_config")
    encoder, decoder = None if "freeze_vision" in frozen else run.lora_rank or 0, "freeze_llm" not in frozen
    return models.of_parts(arguments, run, encoder, projector="freeze_aligner" not in frozen, decoder=decoder)


def _precision(arguments: Arguments) -> str | None:
    if arguments.has("weight_quantize_algo"):
        arguments.not_modelled(QUANTIZED, "weight_quantize_algo")
    kind = arguments.text("precision", "compute_type")
    if kind is None:
        if all(arguments.has(name) and not arguments.switch("precision", name) for name in ("bf16", "fp16")):
            return "fp32" if "precision" not in arguments.incomplete else None
        bf16, fp16 = (arguments.switch("precision", name) for name in ("bf16", "fp16"))
        return half_precision(arguments, bf16=bf16, fp16=fp16)
    if kind in ("bf16", "fp16", "fp8"):
        return kind
    arguments.not_modelled(f"compute_type {kind[:40]} is not modelled", "compute_type")
    return None


def _purpose(arguments: Arguments, names: str, lora_rank: int | None) -> dict[str, str]:
    """Return the switches of the purpose: language modelling, preferences or rewards; others are refused."""
    stage = (arguments.text("stage", "stage") or "").upper()
    named = _PREFERENCE.search(names)
    kind = stage.lower() or (named[1] if named else "dpo" if arguments.has("loss_type") else "")
    options: dict[str, str] = {}
    if kind in _REFERENCE:
        loss = arguments.text("frozen_reference", "loss_type") or ""
        if arguments.switch("frozen_reference", "reference_free") or loss in _NO_REFERENCE:
            return options
        options["reference_forward"] = "true"
        if lora_rank is None:
            options["frozen_reference"] = "true"
    elif kind in _REWARD:
        options["score_head"] = "true"
    elif stage and stage not in _STAGES:
        trained = "only pretraining, fine-tuning, DPO, KTO and rewards of language models are modelled"
        arguments.not_modelled(f"stage {stage[:40]}: {trained}", "stage")
    elif kind and stage not in _STAGES:
        message = f"training on preferences by {kind}, with a model that generates, is not modelled"
        arguments.not_modelled(message, "loss_type")
    return options


def _note_schedule(arguments: Arguments, layout: Layout) -> None:
    """Refuse pipeline schedules other than 1F1B and the interleaved one: they keep other activations."""
    if layout.pipeline_parallel == 1:
        return
    mode = (arguments.text("schedule", "pipeline_schedule_mode") or "1F1B").upper()
    if mode not in ("1F1B", "VPP"):
        arguments.not_modelled(f"pipeline schedule {mode[:40]} is not modelled", "pipeline_schedule_mode")
    for name in ("use_dualpipev", "use_dualpipe"):
        if arguments.switch("schedule", name):
            arguments.not_modelled(f"pipeline schedule of {name} is not modelled", name)


def _note_contradictions(arguments: Arguments, layout: Layout, *, whole_sends: bool) -> None:
    """Remark flags that contradict each other."""
    sequence, tensor = "sequence_parallel", layout.tensor_parallel
    divides = arguments.switch(sequence, sequence)
    if divides and tensor == 1 and "tp" not in arguments.incomplete:
        arguments.remark("inactive-flag", "note", "sequence_parallel has no effect: tensor parallel is 1", sequence)
    if tensor > 1 and not divides and sequence not in arguments.incomplete:
        message = f"tensor parallel {tensor} without sequence_parallel keeps whole activations between the layers"
        fix = "sequence_parallel 1"
        arguments.remark("no-sequence-parallel", "warning", message, "tensor_parallel_degree", fix=fix)
    piped = layout.sequence_parallel and layout.pipeline_parallel > 1
    if whole_sends and piped and "disable_partial_send_recv" not in pipeline_config(arguments):
        message = "sequence_parallel with pipeline stages needs disable_partial_send_recv"
        fix = 'pipeline_parallel_config "disable_partial_send_recv"'
        arguments.remark("partial-send-recv", "error", message, "pipeline_parallel_config", sequence, fix=fix)
    if arguments.has("lr_scheduler") and arguments.has("lr_scheduler_type"):
        message = "lr_scheduler and lr_scheduler_type are two names of one setting"
        arguments.remark("repeated-flag", "note", message, "lr_scheduler", fix="keep lr_scheduler_type")
    read_optimizer(arguments, "optim", "paddle")
    steps, warmup = arguments.text("steps", "max_steps"), arguments.text("steps", "warmup_steps")
    counts = [int(text) for text in (steps, warmup) if text and re.fullmatch(r"[0-9]{1,9}", text, re.ASCII)]
    if len(counts) == 2 and counts[1] > counts[0] > 0:
        message = f"warmup_steps {warmup} is more than max_steps {steps}"
        arguments.remark("warmup-exceeds-steps", "note", message, "warmup_steps")


_MICRO_BATCH_SIZE: Final = 8
_CHUNK_TOKENS: Final = 8192  # tokens per chunk of ERNIE's fused head and loss, by default
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
        if (arguments.text("recompute", "recompute_modules") or "").strip("[]\"' ") != "core_attn":
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
    if not re.match(r"\s*(?:\[\s*)?[0-9]", arguments.text("stage_layers", name) or ""):
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

    `fuse_rms_norm` is on by default: erniekit/hparams/model_args.py of ERNIEKit 1.3.0; `amp_master_grad` too, in
    PaddleFormers: paddleformers/trainer/training_args.py of 1.2.0.
    """
    own, others = table_of("paddleformers"), table_of("paddlenlp")
    is_later = any(name in own and name not in others for name in arguments.entries)
    usual = {"fused_rms_norm": "true"} if is_later else {}
    if arguments.has(*_PADDLEFORMERS_DEGREES):
        usual["gradient_dtype"] = "fp32"
    return {name: text for name, text in usual.items() if name not in arguments.incomplete}


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
        arguments.remark("inactive-flag", "warning", f"{fused} has no effect without use_recompute_loss_fn", fused)
    return {}


def pipeline_config(arguments: Arguments) -> str:
    """Return the words of the pipeline's configuration."""
    option = "pipeline_parallel_config"
    text = arguments.text(option, option) or ""
    # PaddleFormers' later spelling: a key per word, with the opposite meaning.
    if not arguments.switch(option, "partial_send_recv", default=True):
        text += " disable_partial_send_recv"
    return text
