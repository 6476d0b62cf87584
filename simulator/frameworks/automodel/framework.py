"""NeMo Automodel's configuration files: FSDP2 over models of Transformers or its own.

Read at NVIDIA-NeMo/Automodel 36044ad (August 2026): `nemo_automodel/recipes/llm/{train_ft,benchmark}.py`,
`components/distributed/{config,parallelizer,utils}.py`, `components/moe/parallelizer.py`,
`components/loss/masked_ce.py`, `components/utils/model_utils.py`, `recipes/vlm/finetune.py`,
`components/datasets/vlm/collate_fns.py`, `_transformers/auto_model.py`, whose defaults apply where a key is absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simulator.cost.operations.sums import active_parameters, total_parameters
from simulator.frameworks import models
from simulator.frameworks.arguments import OFF, Arguments, LaunchCommand
from simulator.frameworks.configuration import over_file
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.logs import with_longest_sample
from simulator.frameworks.take import part, read_optimizer, take
from simulator.question.frameworks.stacks import IN_16_BITS
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout, rank_layers
from simulator.question.specs.documents import of_fields
from simulator.question.specs.families.reading import model_of_config
from simulator.question.specs.names import variants

_NODES: Final = ("slurm.nodes", "benchmark.num_nodes")
"""Nodes of the job, else those that a benchmark's rates are told for."""
_OTHERWISE: Final = ("ci.local_batch_size", "ci.global_batch_size", "ci.cluster_tag", "ci.nproc_per_node")
"""Keys by which the repository's own tests run a file with other sizes, or on other devices."""
_NODE: Final = 8  # devices of a node of the examples
_NAMES: Final = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config")
_LENGTHS: Final = ("packed_sequence.packed_sequence_size", "packed_sequence.pack_size", "dataset.seq_len")
"""Lengths that every sample has: packs, and the benchmark's made-up data."""
_CUT: Final = "dataloader.collate_fn.max_length"
"""Length that samples are cut to, and of models that see images also filled up to."""
_BOUNDS: Final = (_CUT, "dataset.seq_length", "dataset.max_length")
_EAGER: Final = {"fused_rms_norm": "false", "composed_norm_bytes": "6", "repeat_kv": "true"}
_RECIPES: Final = ("recipe", "recipe._target_")
_PREDICTING: Final = (
    *("qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "deepseek_v4", "deepseek_ref"),
    *("step3p7", "minimax_m3", "minimax_m3_vl_text"),
)  # architectures whose prediction layers its own classes build and train (`components/models/*/mtp.py`)
_KNOWN: Final = {
    "model._target_": ("NeMoAutoModelForCausalLM", "NeMoAutoModelForImageTextToText", "build_gpt2_model"),
    **dict.fromkeys(
        _RECIPES,
        (
            *("TrainFinetuneRecipeForNextTokenPrediction", "BenchmarkingRecipeForNextTokenPrediction"),
            "FinetuneRecipeForVLM",
        ),
    ),
}  # classes that train a decoder of text, or one with an encoder of images


_STARTED: Final = re.compile(
    r"(?:.*/)?examples/[lv]lm_\w+/\w+\.py|nemo_automodel\.\S+|(?:.*/)?nemo_automodel/recipes/[lv]lm/\w+\.py"
)  # programs that train by a configuration file
_is_own: Final = marked("_target_ step_scheduler.local_batch_size|distributed.strategy")


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a command line trains by a file: `examples/llm_finetune/finetune.py -c FILE --key value`."""
    named = not {"-c", "--config"}.isdisjoint(launch.texts)
    return named and _STARTED.fullmatch(launch.script.text) is not None


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a command line; flags override the file's keys."""
    if (laid := over_file(arguments, launch)) is None:
        return Recipe(framework="torch")
    document, keys = laid
    if not _is_own({name for key in document.keys for name in (key.dotted, key.name)}):
        arguments.not_modelled(f"{document.file[-80:]}: no configuration of the decoders that are read")
    return read(arguments, keys) or Recipe(framework="torch")


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of a configuration file."""
    arguments.add_keys(keys)
    _require_text(arguments)
    targets = take(arguments)
    fields = _stated_sizes(arguments, keys) or part(targets, "model")
    name = next((text for key in _NAMES if (text := arguments.text("model", key))), "")
    model = models.named_model(arguments, name, *_NAMES)
    if model is not None and "ImageTextToText" in (arguments.text("model", "model._target_") or ""):
        model = next((each for each in variants() if each.replace("-vl-", "-") == model), model)
        if models.load_model(model).encoder is None:
            arguments.not_modelled(f"{name[-80:]}: what reads its images is not known", "model._target_")
    rank = arguments.integer("lora_rank", "peft.dim") or 8 if arguments.has("peft._target_", "peft.dim") else None
    layout = Layout(**_layout(arguments, model, targets))
    whole = arguments.text("parameter_dtype", "model.torch_dtype") in ("float32", "fp32", "torch.float32")
    is_te = arguments.text("fused_rms_norm", "model.backend.rms_norm") == "te"
    fused = {"fused_rms_norm": "true", "repeat_kv": "false"} if is_te else _EAGER
    narrow = arguments.has("model.backend.te_fp8.recipe") or arguments.switch("precision", "fp8.enabled")
    narrow_base = arguments.switch("quantised_base", "quantization.load_in_4bit")
    quantised = {"quantised_base": "true", "merged_expert_adapters": "none"} if narrow_base else {}
    types = {"frozen_dtype": "fp32"} if whole else IN_16_BITS
    options = {**types, **fused, **quantised, **_loss(arguments), **part(targets, "option")}
    options |= _optimizer(arguments)
    if model is not None and models.load_model(model).architecture in _PREDICTING:
        options["mtp"] = "true"
    counts = (arguments.integer("nodes", key) for key in _NODES)
    arguments.nodes = next((count for count in counts if count), None)
    if arguments.nodes is None and not arguments.has(*_OTHERWISE) and (tried := arguments.integer("nodes", "ci.nodes")):
        arguments.nodes = tried
        message = f"taken on {tried} node{'s' * (tried > 1)}, as its repository's own tests run it"
        arguments.remark("hosts-assumed", "note", message, "ci.nodes", fix="--nodes N")
    sees = "FinetuneRecipeForVLM" in (arguments.text("model", *_RECIPES) or "")
    lengths = (*_LENGTHS, _CUT) if sees else _LENGTHS
    exact = next((key for key in lengths if arguments.integer("seq_length", key, low=0)), None)
    run = Recipe(
        framework="torch",
        model=model,
        model_fields=fields if model is not None or "architecture" in fields else {},
        seq_length=arguments.integer("seq_length", exact) if exact else _bound(arguments, model, fields),
        global_batch_size=targets.get("workload.global_batch_size"),
        precision="fp8" if narrow else "bf16",
        lora_rank=rank,
        options=options,
        layout=layout,
        experts_open=bool(quantised),
    )
    late = arguments.switch("zero_stage", "distributed.defer_fsdp_grad_sync", default=True)
    whole_gradients = _unsharded_bytes(run, layout, arguments.nodes or 1) if late else 0.0
    run = replace(run, unpriced_bytes=_wrapped_bytes(run, layout) + whole_gradients)
    if model is not None and models.load_model(model).encoder is not None:
        run = _of_parts(arguments, run)
    if exact:
        return run
    named = (arguments.text("d", key) for key in ("dataset.dataset_name", "dataset.path_or_dataset_id"))
    return with_longest_sample(arguments, run, set(filter(None, named)))


_CLASS: Final = re.compile(r"transformers\.models\.(\w{1,60})\.\w+\.\w+")
"""Class of a configuration, in the folder of its `model_type`."""


def _stated_sizes(arguments: Arguments, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the model's fields where its configuration stands in the file itself, by class and sizes; else none."""
    named = _CLASS.fullmatch(arguments.text("model", "model.config._target_") or "")
    builds = "build_gpt2_model" in (arguments.text("model", "model._target_") or "")
    section = ("model",) if builds else ("model", "config")
    sizes = {key.name: key.content for key in keys if key.path[:-1] == section}
    kind = "gpt2" if builds else named[1] if named is not None else ""
    if not kind or sizes.keys().isdisjoint(("num_hidden_layers", "n_layer")):
        return {}
    spec = model_of_config({**sizes, "model_type": kind}, f"{arguments.file}: {'.'.join(section)}", "recipe")
    return of_fields(spec, but=("name", "note"), defaults=False)


def _of_parts(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run of a model that sees images: with a `freeze_config` its encoder rests (`model_utils.py`: 364).

    Beside adapters all rests but where they are: at the encoder too, unless its modules are left out.
    """
    frozen = any(name.startswith("freeze_config.") for name in arguments.entries)
    rests = frozen and arguments.switch("encoder", "freeze_config.freeze_vision_tower", default=True)
    if run.lora_rank is not None:
        entries = map(arguments.entry, ("peft.exclude_modules", "peft.target_modules"))
        left, taken = (entry.values if entry else () for entry in entries)
        of_text = bool(taken) and all("language_model" in value.text for value in taken)
        rests = rests or of_text or any("vis" in value.text for value in left)
    decoder = not arguments.switch("decoder", "freeze_config.freeze_language_model")
    encoder = None if rests else run.lora_rank or 0
    return models.of_parts(arguments, run, encoder, projector=run.lora_rank is None, decoder=decoder)


def _require_text(arguments: Arguments) -> None:
    """Remark what is trained beside a decoder."""
    for key, known in _KNOWN.items():
        text = arguments.text("model", key) or ""
        if text and not any(name in text for name in known):
            arguments.not_modelled(f"{text[-80:]}: what trains more than a decoder of text is not modelled", key)


def _layout(arguments: Arguments, model: str | None, targets: dict[str, Any]) -> dict[str, Any]:
    """Return the layout's fields: what stays gathered behind a forward pass, and the pipeline's own micro batch."""
    fields = part(targets, "layout")
    pipeline, experts = fields.get("pipeline_parallel", 1), fields.get("expert_parallel", 1)
    fields["zero_stage"] = 2 if pipeline > 1 else 3
    if experts > 1 and not arguments.switch("zero_stage", "distributed.moe.reshard_after_forward"):
        fields["zero_stage"] = 2
    if arguments.has("distributed.reshard_after_forward"):
        fields["zero_stage"] = 3 if arguments.switch("zero_stage", "distributed.reshard_after_forward") else 2
    if pipeline > 1:
        micro = arguments.integer("micro_batch_size", "distributed.pipeline.pp_microbatch_size")
        fields["micro_batch_size"] = micro or 1
        if model is not None:
            fields |= _cut(arguments, models.load_model(model).num_hidden_layers, pipeline)
    return fields


def _cut(arguments: Arguments, layers: int, pipeline: int) -> dict[str, Any]:
    """Return the layers of each stage: as equal as can be, longer ones first (pipelining/functional.py: 98, 182)."""
    several = "interleaved" in (arguments.text("schedule", "distributed.pipeline.pp_schedule") or "1f1b").lower()
    per_stage = arguments.integer("stage_layers", "distributed.pipeline.layers_per_stage")
    stages = -(-layers // per_stage) if per_stage else pipeline * (2 if several else 1)
    if rest := stages % pipeline:
        up = arguments.text("stage_layers", "distributed.pipeline.round_virtual_stages_to_pp_multiple") == "up"
        stages += pipeline - rest if up else -rest
    if not pipeline <= stages <= layers:
        arguments.not_modelled(f"{layers} layers make no {stages} stages", "distributed.pipeline.layers_per_stage")
        return {}
    sizes = tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
    ranks = rank_layers(sizes, pipeline)
    equal = len(set(sizes)) == 1
    return {
        "virtual_stages": stages // pipeline,
        "stage_layers": () if equal else ranks,
        "chunk_layers": () if equal or stages == pipeline else sizes,
    }


def _bound(arguments: Arguments, model: str | None, fields: Mapping[str, Any]) -> int | None:
    """Return the longest sample: what the file cuts to, else what the model allows."""
    bound = next((size for key in _BOUNDS if (size := arguments.integer("seq_length", key))), None)
    if bound is not None and (arguments.text("seq_length", "dataset.padding") or "") == "max_length":
        return bound
    allowed = models.load_model(model).max_position_embeddings if model else None
    longest = bound or fields.get("max_position_embeddings", allowed)
    message = f"samples are priced as long as {'the file' if bound else 'the model'} allows, {longest}"
    arguments.remark("activations-bound", "warning", message, *_BOUNDS, bound="length")
    return longest


def _loss(arguments: Arguments) -> dict[str, str]:
    """Return the switches of the loss: logits of 16 bits beside fp32 ones, log-softmax and gradients (masked_ce.py)."""
    name = (arguments.text("loss_bytes_per_logit", "loss_fn._target_") or "").rpartition(".")[2]
    arguments.forget("loss_bytes_per_logit")
    if name not in ("", "MaskedCrossEntropy"):
        message = f"{name[:60]} is priced as a plain loss, which keeps more"
        arguments.remark("activations-bound", "warning", message, "loss_fn._target_")
    narrow = arguments.has("loss_fn.fp32_upcast") and (arguments.text("loss", "loss_fn.fp32_upcast") or "") in OFF
    return {"loss_bytes_per_logit": "8" if narrow else "14"}


def _optimizer(arguments: Arguments) -> dict[str, str]:
    """Return the switches of the optimizer and of the types of its state.

    TransformerEngine 2.16, optimizers/fused_adam.py: moments are fp32 unless typed; a master copy of 16-bit weights
    keeps their lost bits alone where asked. FlashAdamW's moments of 8 bits and at most 16 bits of a master copy are
    priced as 16 bits each.
    """
    own = dict.fromkeys(("adam", "fusedadam", "flashadamw"), "adamw")
    switches = read_optimizer(arguments, "optimizer._target_", "torch", own=own)
    name = (arguments.text("optimizer", "optimizer._target_") or "").rpartition(".")[2].lower()
    if name == "flashadamw":
        message = "FlashAdamW's moments of 8 bits are priced as of 16"
        arguments.remark("upper-bound", "warning", message, "optimizer._target_", bound="state")
        return {**switches, "master_weights": "true", "master_weight_dtype": "bf16"}
    if name != "fusedadam":
        return switches
    keys = ("optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype")
    texts = (arguments.text("optimizer_dtype", key) or "torch.float32" for key in keys)
    moments = {_DTYPES.get(text.rpartition(".")[2], "") for text in texts}
    if len(moments) > 1 or "" in moments:
        arguments.not_modelled("moments of two types, or of 8 bits, are not modelled", "optimizer.exp_avg_dtype")
    master = arguments.switch("master_weights", "optimizer.master_weights")
    remainders = arguments.switch("master_weight_dtype", "optimizer.store_param_remainders")
    copies = {"master_weights": "true", "master_weight_dtype": "bf16" if remainders else "fp32"} if master else {}
    return {**switches, "optimizer_dtype": min(moments) or "fp32", **copies}


_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16"}


def _wrapped_bytes(run: Recipe, layout: Layout) -> float:
    """Return what checkpoints of a layer's norms, attention and network keep beside that of the whole layer.

    Three more inputs of 16 bits: parallelizer.py wraps each part of a dense model's layer.
    """
    if run.model is None or layout.recompute != "full":
        return 0.0
    spec = models.load_model(run.model)
    tokens = layout.micro_batch_size * (run.seq_length or spec.max_position_embeddings or 0)
    return 0.0 if spec.is_moe else 6.0 * tokens * spec.hidden_size * spec.num_hidden_layers / layout.context_parallel


def _unsharded_bytes(run: Recipe, layout: Layout, nodes: int) -> float:
    """Return the fp32 gradients that FSDP2 leaves whole between micro batches (`defer_fsdp_grad_sync`, utils.py: 236).

    With as many devices as a node has or more; a pipeline's schedule reduces once, and adapters have few.
    """
    group = max(_NODE * nodes // (layout.replica * layout.context_parallel), 1)
    once = (run.global_batch_size or 0) <= layout.micro_batch_size * group
    if run.model is None or run.lora_rank or layout.pipeline_parallel > 1 or once:
        return 0.0
    spec, experts = models.load_model(run.model), 0.0
    whole = total_parameters(spec)
    if spec.is_moe and spec.num_experts > spec.num_experts_per_tok:
        unused = whole - active_parameters(spec, include_input_embedding=True)
        experts = unused * spec.num_experts / (spec.num_experts - spec.num_experts_per_tok)
    # Experts that are spread over all devices of a group are each whole on one.
    spread = experts / layout.expert_parallel if layout.expert_parallel < group else 0.0
    return 4.0 * (whole - experts + spread) / layout.tensor_parallel


FRAMEWORK: Final = Framework(
    title="NeMo Automodel",
    profile="torch",
    launches=(LaunchForm("automodel-shell", 11, is_launch, read_launch),),
    files=(FileForm("automodel-yaml", 19, _is_own, read),),
)
