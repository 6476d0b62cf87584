"""Reader of runs of Hugging Face's Trainer, in whose words axolotl, LLaMA-Factory, ms-swift, oumi and TRL are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from simulator.files import read_words
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand, half_precision
from simulator.frameworks.configuration import configuration
from simulator.frameworks.documents import Key, written_keys
from simulator.frameworks.models import QUANTIZED, named_model
from simulator.frameworks.take import part, places_of, read_optimizer, take
from simulator.question.frameworks.stacks import IN_16_BITS, library_options, stack_options
from simulator.question.recipe import A_NODE, Recipe
from simulator.question.scenario.layout import Layout

MODEL: Final = ("model_name_or_path", "model", "model_name")
_TUNING: Final = ("finetuning_type", "tuner_type")
_NESTED: Final = ("use_bnb_nested_quant", "double_quantization", "bnb_4bit_use_double_quant")
_LOADED: Final = ("load_in_4bit", "load_in_8bit")
_BITS: Final = ("quantization_bit", "quant_bits", "quant_method", "load_in_kbits")
_KEYWORDS: Final = "gradient_checkpointing_kwargs"
_REENTRANT: Final = (
    *(f"{_KEYWORDS}.use_reentrant", "gradient_checkpointing_use_reentrant"),
    *("use_reentrant_gc", "use_reentrant"),
)
_SAVED: Final = ("additional_target", "lora_modules_to_save", "modules_to_save")
_ADAPTED: Final = ("lora_target", "lora_target_modules", "target_modules")
_EVERY: Final = frozenset(("all", "all-linear", "all_linear"))
_TOGETHER: Final = re.compile(r"\(([\w|]{1,80})\)_proj")
_PATH: Final = frozenset(
    ("model", "language_model", "layers", "mlp", "self_attn", "cross_attn", "d", "_checkpoint_wrapped_module")
)  # words of a pattern of whole paths that name no linear layer
_LORA_RANK: Final = 8
_ADAPTER_LENGTH: Final = 128
_MICRO_BATCH_SIZE: Final = 8
_STORED_IN_4_BITS: Final = re.compile(r"(?i)(?<!-unsloth)-bnb-4bit/?$")
"""Ending of unsloth's checkpoints in nested 4 bits; `-unsloth-bnb-4bit` keeps some layers in 16."""
_STORED: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PARAMETERS_ON_HOST: Final = "zero_optimization.offload_param.device"
_VERSIONS: Final = ("fsdp_version", "fsdp_config.version", "fsdp_config.fsdp_version")
_FSDP_STAGES: Final = {"hybrid_shard_zero2": 2, "hybrid_shard": 3, "full_shard": 3, "shard_grad_op": 2}
"""ZeRO stage by FSDP strategy; names that contain another one come first."""


def trainer_run(arguments: Arguments, *, deepspeed: bool) -> Recipe:
    """Return the run of a trainer's words, DeepSpeed's configuration included."""
    # Refuse LLaMA-Factory's stages but pretraining and finetuning, by whichever launcher its program starts.
    stage = arguments.text("stage", "stage") if arguments.has("finetuning_type") else None
    if stage not in (None, "pt", "sft", "dpo", "kto"):
        arguments.not_modelled(f"stage {stage[:20]}: a second model or another loss is not modelled", "stage")
    if arguments.has("fsdp_config"):
        arguments.not_modelled("fsdp_config: what this configuration sets is not read", "fsdp_config")
    targets = take(arguments)
    model = _model(arguments)
    own = arguments.has("finetuning_type")  # LLaMA-Factory's, which recomputes unless told otherwise
    usual: dict[str, Any] = {
        "micro_batch_size": _MICRO_BATCH_SIZE,
        "zero_stage": _fsdp_stage(arguments),
        "recompute": "full" if own and not arguments.switch("recompute", "disable_gradient_checkpointing") else "none",
    }
    layout = Layout(**usual | part(targets, "layout"))
    rank, workload = _lora_rank(arguments), part(targets, "workload")
    batch, sequence = workload.get("global_batch_size"), workload.get("seq_length")
    narrow = _quantised(arguments, rank, again=layout.recompute == "full", deepspeed=deepspeed)
    options = _types(arguments, deepspeed=deepspeed, adapters=rank is not None, narrow=bool(narrow)) | narrow
    if "hybrid_shard" in (arguments.text("zero_stage", "fsdp") or "").lower():
        options["sharding_degree"] = A_NODE  # torch 2.9, distributed/fsdp/api.py
    options |= _flat(arguments) if layout.zero_stage and not deepspeed else {}
    options |= _eager(arguments, rank, model, layout, deepspeed=deepspeed) | part(targets, "option")
    options |= read_optimizer(arguments, "optim", "torch", bound=True)
    wide = options.get("parameter_dtype") != "bf16" and (bool(narrow) or "frozen_dtype" in options)
    options |= saved_modules(arguments, rank, *_SAVED, wide=wide) | adapter_targets(arguments, rank, *_ADAPTED)
    if options.get("optimizer") == "adafactor" and _fsdp_stage(arguments) and not arguments.has(*_VERSIONS):
        # transformers v4.57.1, optimization.py (`_get_options`): what has one dimension has a whole second moment.
        arguments.not_modelled("adafactor: its state over FSDP 1's flat parameters is not priced", "optim")
    if stage in ("dpo", "kto"):
        # LLaMA-Factory ff6d4d1, hparams/finetuning_args.py: `use_ref_model`.
        loss = arguments.text("frozen_reference", "pref_loss") or ""
        options |= preference(arguments, loss if loss in ("orpo", "simpo") else stage, adapters=rank is not None)
        if "frozen_reference" in options:
            message = f"stage {stage}: the frozen copy is priced as the trained weights are, and may be of 16 bits"
            arguments.remark("upper-bound", "warning", message, "stage", bound="state")
    on_host = arguments.text("offload", _PARAMETERS_ON_HOST) not in (None, "none")
    if on_host and layout.zero_stage < 3 and "zero_stage" not in arguments.incomplete:
        # DeepSpeed v0.19.5, runtime/engine.py: its optimizers of stages 1 and 2 are not given `offload_param`.
        options.pop("offload_parameters", None)
        message = f"offload_param has no effect with ZeRO stage {layout.zero_stage}: only stage 3 reads it"
        arguments.remark("inactive-flag", "warning", message, _PARAMETERS_ON_HOST)
        arguments.entries.pop(_PARAMETERS_ON_HOST)
    for name in (_PARAMETERS_ON_HOST, "zero_optimization.offload_optimizer.device"):
        if arguments.text("offload", name) == "nvme":
            arguments.not_modelled("offload to nvme is not modelled", name)
    return Recipe(
        framework="torch",
        model=model,
        seq_length=sequence,
        global_batch_size=batch,
        gradient_accumulation_steps=None if batch else workload.get("gradient_accumulation_steps", 1),
        precision=_precision(arguments),
        lora_rank=rank,
        options=options | _liger(arguments, model, (sequence or 0) * layout.micro_batch_size),
        layout=layout,
        experts_open=True,
    )


def _model(arguments: Arguments) -> str | None:
    """Return the model; one that bitsandbytes stored in 4 bits is loaded so."""
    name = arguments.text("model", *MODEL) or ""
    whole = _STORED_IN_4_BITS.sub("", name)
    if whole != name and not arguments.has(*_BITS):
        arguments.add_defaults(("load_in_4bit=true",), next(filter(None, map(arguments.entry, MODEL))).value_line)
    return named_model(arguments, whole, *MODEL)


def _eager(
    arguments: Arguments, rank: int | None, model: str | None, layout: Layout, *, deepspeed: bool
) -> dict[str, str]:
    """Return the switches of the library's own layers (transformers 5.23.0, models/llama/modeling_llama.py).

    Several or packed sequences have masks (M41); peft casts an adapter's input (0.19, `_cast_input_dtype`); DeepSpeed
    has adapters in 16 bits (0.16.4, runtime/engine.py). The Trainer drops logits and gradients; bitsandbytes keeps
    embeddings in 32 bits (4.57.1, `create_optimizer`). Without an engine there are autocast and DDP.
    """
    padded = layout.micro_batch_size > 1 and not arguments.has("block_size")  # run_clm.py cuts whole blocks
    masked = padded or arguments.any_switch("seq_length", "packing", "neat_packing")
    eager = {"fused_rms_norm": "false", "composed_norm_bytes": "6", "dense_masks": "all" if masked else "windows"}
    if model:
        spec = models.load_model(model)
        eager |= library_options("transformers", spec.architecture, spec.activation)
    if not deepspeed:
        casts = any(arguments.any_switch("precision", word) for word in ("bf16", "fp16"))
        eager |= {"release_grads": "true", "plain_module": "true", "autocast": str(casts).lower()}
    if rank is not None:
        return eager | {"adapter_copies": str(not deepspeed).lower(), "loss_bytes_per_logit": "12"}
    word = "" if (entry := arguments.entry("optim")) is None else entry.text
    return eager | ({"wide_table_moments": "true"} if "8bit" in word and "torch" not in word else {})


def _precision(arguments: Arguments) -> str | None:
    """Return the compute type: autocast's, else the type that weights are stored in."""
    bf16 = arguments.any_switch("precision", "bf16", "bf16.enabled")
    fp16 = arguments.any_switch("precision", "fp16", "fp16.enabled")
    stored = arguments.text("parameter_dtype", "torch_dtype")
    if not (bf16 or fp16) and stored in _STORED and "precision" not in arguments.incomplete:
        arguments.places.setdefault("precision", arguments.places["parameter_dtype"])
        return _STORED[stored]
    return half_precision(arguments, bf16=bf16, fp16=fp16)


def note_unsharded(arguments: Arguments) -> None:
    """Remark that the launcher may shard the state although the file does not."""
    if not arguments.has("fsdp"):
        message = "a configuration of `accelerate launch` may shard the state; priced without"
        arguments.remark("upper-bound", "warning", message, *MODEL, bound="sharding", fix="--set config_file=PATH")


def _flat(arguments: Arguments) -> dict[str, str]:
    """Return the switch of FSDP 1, which transformers before 5.10 and other launchers take without a version."""
    if "fsdp" not in arguments.defaults and not arguments.has(*_VERSIONS):
        message = "transformers from 5.10 on takes FSDP 2 where no version is stated; priced is FSDP 1"
        arguments.remark("upper-bound", "warning", message, "fsdp", bound="units", fix="state the version")
    return {"flat_parameters": "true"}


def _fsdp_stage(arguments: Arguments) -> int:
    shards = (arguments.text("zero_stage", "fsdp") or "").lower()
    return next((stage for name, stage in _FSDP_STAGES.items() if name in shards), 0)


def _lora_rank(arguments: Arguments) -> int | None:
    """Return the rank of the trained adapters; None where all weights are trained."""
    kind = arguments.text("lora_rank", *_TUNING)
    arguments.forget("lora_rank")
    if kind == "adapter":
        # ms-swift 3602360, tuners/adapter.py: two matrices behind each feed-forward network; LoRA has them at all of a
        # layer's products, and keeps more for them.
        message = "adapters at every linear layer are priced"
        arguments.remark("upper-bound", "warning", message, *_TUNING, bound="adapters")
        return arguments.integer("lora_rank", "adapter_length", high=2**16) or _ADAPTER_LENGTH
    if kind not in (None, "full", "lora"):
        arguments.not_modelled(f"finetuning_type {kind[:40]} is not modelled", *_TUNING)
    ranks = ("lora_r", "lora_rank")
    switch = next((name for name in ("use_peft", "use_lora") if arguments.has(name)), None)
    rank = arguments.entry(*ranks)
    adapters = arguments.switch("lora_rank", switch) if switch is not None else rank is not None and not rank.is_off
    if kind == "full" or not (kind == "lora" or adapters):
        return None
    return arguments.integer("lora_rank", *ranks, high=2**16) or _LORA_RANK


def _quantised(arguments: Arguments, rank: int | None, *, again: bool, deepspeed: bool) -> dict[str, str]:
    """Return the switches of frozen weights of 4 or 8 bits under adapters, as bitsandbytes stores them; refuse others.

    bitsandbytes 0.46, functional.py: one fp32 scale per 64 weights, or (nested) 8 bits, and fp32 per 256 of them. Other
    weights are fp32 where peft prepares the model (`prepare_model_for_kbit_training`), as TRL and most scripts do and
    LLaMA-Factory ff6d4d1 and ms-swift 3602360 do not.
    """
    names = [name for name in (*_LOADED, *_BITS) if arguments.has(name)]
    names = [name for name in names if arguments.text("quantization", name) not in ("16", "32")]
    narrow = [name for name in names if name not in _LOADED or arguments.switch("quantization", name)]
    if not narrow:
        return {}
    texts = {(arguments.text("quantised_base", name) or "").lower() for name in narrow} - {"", "true", "1", "yes", "on"}
    texts |= {(arguments.text("quantised_base", "quantization_method") or "bnb").lower()}
    texts |= {text for name, text in zip(_LOADED, ("4", "8"), strict=True) if name in narrow}
    if rank is None or not texts <= {"4", "8", "bnb", "bitsandbytes"} or {"4", "8"} <= texts:
        arguments.forget("quantised_base")
        arguments.not_modelled(QUANTIZED, *narrow)
        return {}
    own = arguments.has(*_TUNING)
    if "8" in texts:
        eight = {"quantised_base": "true", "quantised_bits": "8", "widened_rest": str(not own).lower()}
        reentrant = arguments.has("finetuning_type") or (own and deepspeed)
        return eight | (_ends_early(arguments, reentrant=reentrant) if again else {})
    nested = arguments.switch("quantised_scale_bytes", *_NESTED, default=own)
    nested = nested or _STORED_IN_4_BITS.search(arguments.text("model", *MODEL) or "") is not None
    arguments.forget("quantised_scale_bytes")
    scale = str(1 + 4 / 256) if nested else "4"
    return {"quantised_base": "true", "quantised_scale_bytes": scale, "widened_rest": str(not own).lower()}


def _ends_early(arguments: Arguments, *, reentrant: bool) -> dict[str, str]:
    """Return the switch of the kind of checkpoint, of a tuner that has it `reentrant` by default.

    LLaMA-Factory ff6d4d1 (`use_reentrant_gc`), ms-swift 3602360 with an engine (trainers/mixin.py; without, several
    ranks have the other). The Trainer's default turned with transformers 5, and TRL's at another time.
    """
    said = re.search(r"use_reentrant\W+(true|false)", (arguments.text("recompute", _KEYWORDS) or "").lower())
    if said is None and not reentrant and not arguments.has(*_REENTRANT):
        message = f"{_KEYWORDS}: without use_reentrant, checkpoints over a base of 8 bits keep the inputs of products"
        arguments.remark("activations-bound", "warning", message)
        return {}
    option = "recompute_stops_early"
    reentrant = said[1] == "true" if said else arguments.switch(option, *_REENTRANT, default=reentrant)
    return {option: str(not reentrant).lower()}


def adapter_targets(arguments: Arguments, rank: int | None, *names: str) -> dict[str, str]:
    """Return the switch of the layers with adapters: those of a list, or all where it names others."""
    entry = arguments.entry(*names)
    if rank is None or entry is None or arguments.switch("adapter_targets", "lora_target_linear"):
        return {}
    experts = arguments.text("adapter_targets", "lora_target_parameters", "target_parameters") or ""
    text = _TOGETHER.sub(lambda each: " ".join(f"{word}_proj" for word in each[1].split("|")), entry.text)
    words = set() if entry.causes else set(re.findall(r"[\w-]+", f"{text} {experts}")) - _PATH - {"experts"}
    if places := places_of(words):
        return {"adapter_targets": places}
    if words.isdisjoint(_EVERY):
        arguments.remark("not-modelled", "warning", "layers with adapters: priced as all", *names)
    return {"adapter_targets": "all"}


def peft_targets(arguments: Arguments, run: Recipe) -> Recipe:
    """Return a run with adapters where peft 0.21 has them unless told (`utils/constants.py`), or it stops."""
    if run.lora_rank is None or any(name in each for name in ("lora_target", "target_m") for each in arguments.entries):
        return run
    family = models.load_model(run.model).architecture if run.model else "llama"
    targets = read_words("peft").get(family, "")
    if not targets:
        message = f"peft has no usual layers with adapters for {family}, and the run stops: name them"
        arguments.not_modelled(message, fix="target modules `all-linear`, for all linear layers")
    return replace(run, options={"adapter_targets": targets or "all", **run.options})


def saved_modules(arguments: Arguments, rank: int | None, *named: str, wide: bool = False) -> dict[str, str]:
    """Return the switches of whole modules that are trained beside adapters; `wide` where the base is loaded in fp32.

    LLaMA-Factory ff6d4d1, model/adapter.py, `init_adapter`: what is trained is cast to fp32, but under `pure_bf16`.
    """
    text = arguments.text("saved_modules", *named) or ""
    modules = re.findall(r"[\w-]+(?![\w.-])", text)
    names = [name for name in modules if name.lower() not in ("none", "null")]
    if rank is not None and ("{" in text or not modules) and arguments.has(*named) and text not in ("", "[]"):
        arguments.not_modelled(f"{text[:40]}: modules beside adapters are not read", *named)
    if rank is None or not names or "{" in text:
        arguments.forget("saved_modules")
        return {}
    known = read_words("ends")
    if other := next((name for name in names if name not in known), None):
        message = f"{other[:40]}: of modules beside adapters only the input table and the output layer are priced"
        arguments.not_modelled(message, *named)
    ends = {known[name] for name in names if name in known}
    own = arguments.has("additional_target") and not arguments.switch("parameter_dtype", "pure_bf16")
    chosen = {"saved_modules": "both" if len(ends) > 1 else next(iter(ends), "none")}
    return chosen | {"saved_modules_dtype": "fp32" if own or wide else "bf16"}


def _types(arguments: Arguments, *, deepspeed: bool, adapters: bool, narrow: bool) -> dict[str, str]:
    """Return the switches for the types of weights, gradients and moments; `narrow` weights are of 4 bits."""
    if deepspeed:
        wide = arguments.text("gradient_dtype", "data_types.grad_accum_dtype") == "fp32"
        # transformers 4.57 needs PyTorch 2, whose Adam makes a root for all tensors at once.
        own = {"gradient_dtype": "fp32" if wide else "bf16", "step_temporaries": "1"}
        return stack_options("deepspeed") | own
    # accelerate 1.15, `prepare_model`: sharded weights are widened to fp32 in mixed precision.
    widened = bool(_fsdp_stage(arguments)) and arguments.any_switch("precision", "bf16", "fp16") and not adapters
    stored, said = arguments.text("parameter_dtype", "torch_dtype"), arguments.has("torch_dtype", "finetuning_type")
    if not widened and not narrow and (stored == "auto" or not said):
        # transformers 5.0, modeling_utils.py, `from_pretrained`; TRL 1.16 loads in fp32.
        message = "weights have the checkpoint's type, or fp32 where transformers is older than 5; priced in fp32"
        arguments.remark("upper-bound", "warning", message, "torch_dtype", bound="types")
    pure, half = arguments.switch("parameter_dtype", "pure_bf16"), _STORED.get(stored or "", "fp32") != "fp32"
    half = half and not widened
    if pure or (half and not adapters):
        return dict(IN_16_BITS)
    # LLaMA-Factory loads frozen weights in the compute type; adapters are fp32 (peft 0.12, `autocast_adapter_dtype`).
    wide = adapters and not narrow and not half and not arguments.has(*_TUNING)
    return {"frozen_dtype": "fp32"} if wide else {}


def _liger(arguments: Arguments, model: str | None, tokens: int) -> dict[str, str]:
    """Return the switches of Liger's kernels: head and loss take the tokens whose logits are as large as the input.

    Chunks as in `ops/fused_linear_cross_entropy.py` of Liger-Kernel 0.5.
    """
    on = arguments.any_switch("kernels", "use_liger_kernel")
    if not on or model is None or not tokens:
        return {}
    spec = models.load_model(model)
    chunk = 1 << (-(-tokens // (-(-spec.vocab_size // spec.hidden_size))) - 1).bit_length()
    return {"cross_entropy_chunk_tokens": str(chunk), "fused_rms_norm": "true", "fused_swiglu": "true"}


def preference(arguments: Arguments, kind: str, *, adapters: bool) -> dict[str, str]:
    """Return the switches of a preference loss: pairs of answers, a frozen copy of the model, scores.

    TRL 1.9, trainer/dpo_trainer.py and kto_trainer.py: adapters are switched off in place of a copy.
    """
    pairs = {} if kind == "kto" else {"sequences_per_sample": "2"}
    if kind.startswith("reward") or kind == "rm":
        return {"score_head": "true", **pairs}
    if kind in ("orpo", "simpo", "cpo"):
        return pairs
    if kind not in ("dpo", "kto"):
        arguments.not_modelled(f"{kind}: training with a model that generates is not modelled")
        return {}
    loss = (arguments.text("frozen_reference", "loss_type") or "").lower()
    free = arguments.any_switch("frozen_reference", "reference_free", "precompute_ref_log_probs")
    arguments.forget("frozen_reference")
    if free or loss in ("or", "orpo", "simpo"):
        return pairs
    return pairs | {"reference_forward": "true"} | ({} if adapters else {"frozen_reference": "true"})


def add_fsdp(arguments: Arguments, launch: LaunchCommand) -> None:
    """Replace `--fsdp_config`, JSON or the name of a file of it, by its keys (`fsdp_config.activation_checkpointing`).

    transformers 4.57, training_args.py: a key's `fsdp_` in front may be left out.
    """
    entry = arguments.entry("fsdp_config")
    if entry is None or entry.causes:
        return
    if entry.text.lstrip().startswith("{"):
        keys: Sequence[Key] = written_keys(f"{arguments.file}:{entry.value_line}", "x.json", entry.values[0])
        file = arguments.file
    else:
        configured = configuration(launch, arguments.file, entry.text, entry.value_line)
        keys, file = (configured.keys, configured.file) if configured else ((), "")
    if keys:
        del arguments.entries["fsdp_config"]
    for key in keys:
        arguments.add(f"fsdp_config.{key.name.removeprefix('fsdp_')}", key.values, key.line or entry.value_line, file)
