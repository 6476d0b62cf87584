"""ERNIEKit, PaddleNLP and PaddleFormers: command lines and configuration files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.arguments import half_precision
from simulator.frameworks.configuration import configuration
from simulator.frameworks.documents import Key
from simulator.frameworks.launch import plain_path
from simulator.frameworks.named import QUANTIZED, known_model, note_fewer_bits
from simulator.frameworks.purpose import require_training_switches
from simulator.frameworks.run import finished
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Offload, RecomputeMethod, RecomputeMode, RecomputeModule
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.readers.paddle_flags import FLAGS, PASSED
from simulator.recipes.readers.paddle_options import SHARDING, has_fp8_experts, options_of, pipeline_config
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

_LORA_RANK: Final = 8
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_OWN_FLAGS: Final = frozenset(
    ("tensor_parallel_degree", "pipeline_parallel_degree", "fp16_opt_level", "sharding_parallel_degree")
)
_OWN_WITH_MODEL: Final = frozenset(
    ("sharding", "recompute", "recompute_granularity", "unified_checkpoint", "amp_master_grad", "dataset_name_or_path")
)
"""Keys that say so beside a model: PaddleNLP 2.8.1, paddlenlp/trainer/training_args.py, llm/utils/argument.py."""
_TP: Final = ("tensor_parallel_degree", "tensor_model_parallel_size")
_PP: Final = ("pipeline_parallel_degree", "pipeline_model_parallel_size")
_SHAPE: Final = {
    "num_hidden_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "num_key_value_heads": ("num_key_value_heads",),
    "num_experts": ("moe_num_experts", "n_routed_experts"),
    "num_experts_per_tok": ("moe_k", "num_experts_per_tok"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_num_layers", "multi_token_pred_depth"),
}
"""Fields of the model that a recipe may set instead of the model's own."""
_STAGES: Final = ("SFT", "PT", "PRETRAIN", "ERNIE_PRETRAIN", "DSV3_PRETRAIN")
_PREFERENCE: Final = re.compile(r"(?:^|[_\W])(dpo|kto|simpo|orpo|ppo|grpo|rlhf|reward)(?:[_\W]|$)", re.ASCII)
"""Names of scripts and files that train on preferences."""
_REFERENCE: Final = ("dpo", "kto")
"""Those priced: answers lie in one packed sequence of `max_seq_len`, and a frozen copy of the model scores them, or
where adapters are trained the model without them. PaddleNLP 037e4a6, llm/alignment/dpo/run_dpo.py; 4596ac3,
kto/run_kto.py; 136516b, paddlenlp/trl/dpo_trainer.py (`_wrap_ref_model`: 16-bit weights, cut as the model is)."""
_NO_REFERENCE: Final = ("or", "orpo", "simpo")
"""Losses of DPO's trainer that have no such copy: the same file."""
_REWARD: Final = ("reward", "rm")
"""Reward models: one score a token in place of logits, of pairs in one packed sequence. PaddleNLP ee302b6,
llm/alignment/rm/flashmask/reward_model.py."""
_PADDLEFORMERS_DEGREES: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "sharding_parallel_size")
"""Degrees as PaddleFormers spells them; without a word it shards as stage 1 (trainer/training_args.py of 1.2.0)."""


def is_paddle(names: Iterable[str]) -> bool:
    """Whether flags or keys are of a Paddle trainer."""
    found = set(names)
    parallel = {"per_device_train_batch_size", "tensor_model_parallel_size"} <= found
    return bool(found & _OWN_FLAGS) or parallel or ("model_name_or_path" in found and bool(found & _OWN_WITH_MODEL))


def read_paddle(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch; a configuration file that it names is read beside the recipe."""
    given = Given(file, FLAGS, PASSED, complete=True)
    positional = add_words(given, launch.arguments)
    for word in positional:
        name, equals, text = word.text.partition("=")
        if word.text.endswith(_SUFFIXES) and (word.known or launch.written(word.text) is not None):
            _add_file(given, launch, file, word)
        elif equals and word.known:
            given.add(name, [known_value(text, word.line)], word.line)
    nodes, devices = cluster_of(launch, given)
    if launch.program in ("erniekit", "paddleformers-cli"):
        nodes = nodes if "nnodes" in launch.options else _environment_count(launch, "NNODES")
    title = PurePath(launch.script.text).name
    whole = launch.program == "erniekit" or _prefers(given, title)
    return _recipe(given, title, "paddle-shell", nodes, devices, whole_sends=whole)


def read_paddle_document(path: Path, keys: Iterable[Key]) -> Recipe:
    """The recipe of a configuration file on its own."""
    given = Given(str(path), FLAGS, PASSED, complete=True)
    _add_keys(given, str(path), keys)
    dialect = "paddle-json" if path.suffix.lower() == ".json" else "paddle-yaml"
    return _recipe(given, "", dialect, None, None, whole_sends=_prefers(given, ""))


def _prefers(given: Given, script: str) -> bool:
    """Whether pairs of answers are trained on: these trainers ask for more than the others."""
    return re.search("dpo|kto", f"{script} {given.text('stage', 'stage') or ''}".lower()) is not None


def _environment_count(launch: TrainingCommand, name: str) -> int | None:
    value = launch.environment.get(name)
    return int(value.text) if value is not None and re.fullmatch(r"[0-9]{1,6}", value.text, re.ASCII) else 1


def _add_file(given: Given, launch: TrainingCommand, file: str, word: PlainValue) -> None:
    """Take the keys of a file; flags of the command line count over them."""
    flags = given.entries
    given.entries = {}
    found = configuration(launch, file, word.text, word.line)
    if found is None:
        given.need(launch.files[plain_path(word.text)].causes, "tp")
    else:
        _add_keys(given, found.file, found.keys)
    given.entries |= flags


def _add_keys(given: Given, file: str, keys: Iterable[Key]) -> None:
    for key in keys:
        given.add(key.name, key.values, key.line, file)


def _recipe(  # noqa: PLR0913  what a launch and a configuration file have in common
    given: Given, title: str, dialect: str, nodes: int | None, devices: int | None, *, whole_sends: bool
) -> Recipe:
    given.complete_names()
    require_training_switches(given)
    name = given.text("model", "model_name_or_path")
    model = known_model(given, name, "model_name_or_path") if name else None
    spec = models.load_model(model) if model in models.model_names() else None
    fields = _fields(given)
    layers = fields.get("num_hidden_layers") or (spec.num_hidden_layers if spec else None)
    layout = _layout(given, layers, spec)
    steps = given.integer("gradient_accumulation_steps", "gradient_accumulation_steps", high=2**20)
    batch = given.integer("global_batch_size", "global_batch_size", high=2**27)
    lora_rank = _lora(given)
    purpose = _purpose(given, f"{title} {PurePath(given.file).name}".lower(), lora_rank)
    recipe = Recipe(
        file=given.file,
        title=title,
        framework="paddle",
        dialect=dialect,
        model=model,
        model_fields=fields,
        seq_length=given.integer("seq_length", "max_seq_len", "max_seq_length", "max_length", "seq_length", high=2**27),
        global_batch_size=batch,
        gradient_accumulation_steps=steps
        or (1 if batch is None and "gradient_accumulation_steps" not in given.incomplete else None),
        precision=_precision(given),
        lora_rank=lora_rank,
        options=options_of(given, layout) | purpose | _network(spec),
        layout=layout,
        nodes=nodes,
        devices_per_node=devices,
    )
    _schedule(given, layout)
    _contradictions(given, layout, whole_sends=whole_sends)
    note_fewer_bits(given, recipe)
    return finished(given, recipe)


def _network(spec: ModelSpec | None) -> dict[str, str]:
    """What Paddle's own network of a model does whatever the flags say: ChatGLM2's has no flash kernel.

    `CoreAttention` of paddlenlp/transformers/chatglm_v2/modeling.py, 2.8.1.
    """
    return {"flash_attention": "false"} if spec is not None and spec.architecture == "glm" else {}


def _fields(given: Given) -> dict[str, Any]:
    """Fields of the model that the recipe sets itself."""
    found = {field: given.integer(field, *names, low=0) for field, names in _SHAPE.items()}
    fields: dict[str, Any] = {field: number for field, number in found.items() if number}
    if given.has("tie_word_embeddings"):
        fields["tie_word_embeddings"] = given.switch("tie_word_embeddings", "tie_word_embeddings")
    return fields


def _purpose(given: Given, names: str, lora_rank: int | None) -> dict[str, str]:
    """The switches of a frozen copy of the model, on every pipeline rank of its own stage, and of its pass.

    What trains neither a language model nor on preferences is refused.
    """
    stage = (given.text("stage", "stage") or "").upper()
    named = _PREFERENCE.search(names)
    kind = stage.lower() or (named[1] if named else "dpo" if given.has("loss_type") else "")
    found: dict[str, str] = {}
    if kind in _REFERENCE:
        loss = given.text("frozen_reference", "loss_type", "dpo_loss_type") or ""
        free = given.switch("frozen_reference", "reference_free") or loss in _NO_REFERENCE
        if lora_rank is None and not free:
            found["frozen_reference"] = "true"
        if not free:
            found["reference_forward"] = "true"
    elif kind in _REWARD:
        found["score_head"] = "true"
    elif stage and stage not in _STAGES:
        said = (
            f"stage {stage[:40]}: only pretraining, fine-tuning, DPO, KTO and rewards of language models are modelled"
        )
        given.not_modelled(said, "stage")
    elif kind and stage not in _STAGES:
        said = f"training on preferences by {kind}, with a model that generates, is not modelled"
        given.not_modelled(said, "loss_type")
    given.incomplete.discard("stage")
    given.places.pop("stage", None)
    return found


def _schedule(given: Given, layout: Layout) -> None:
    """Refuse a pipeline schedule with other activations in flight than 1F1B and the interleaved one."""
    if layout.pipeline_parallel == 1:
        return
    names = ("pipeline_schedule_mode", "pp_schedule_mode")
    mode = (given.text("schedule", *names) or "1F1B").upper()
    if mode not in ("1F1B", "VPP"):
        given.not_modelled(f"pipeline schedule {mode[:40]} is not modelled", *names)
    for name in ("use_dualpipev", "use_dualpipe"):
        if given.switch("schedule", name):
            given.not_modelled(f"pipeline schedule of {name} is not modelled", name)


def _layout(given: Given, layers: int | None, spec: ModelSpec | None) -> Layout:
    tensor = max(given.integer("tp", *_TP, low=-1, high=2**16) or 1, 1)
    pipeline = max(given.integer("pp", *_PP, low=-1, high=2**16) or 1, 1)
    sequence = given.switch("sequence_parallel", "sequence_parallel")
    mode, method, count, listed = _recompute(given, layers)
    mode, modules, again = _gate_up(given, mode, layers)
    if again:
        method, listed = "list", again
    expert, expert_tensor = _experts(given, tensor, spec) if spec is not None and spec.is_moe else (1, 1)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=_context(given),
        expert_parallel=expert,
        expert_tensor_parallel=expert_tensor,
        virtual_stages=given.integer("vpp", "virtual_pp_degree", "virtual_pipeline_model_parallel_size", high=2**16)
        or 1,
        micro_batch_size=given.integer("micro_batch_size", "per_device_train_batch_size", "batch_size", high=2**16)
        or 8,
        sequence_parallel=sequence and tensor > 1,
        zero_stage=_zero_stage(given),
        recompute=mode,
        recompute_modules=modules,
        recompute_method=method,
        recompute_layers=count,
        recompute_layer_list=listed,
        offload=_offload(given),
        stage_layers=_cut(given, layers, pipeline),
    )


def _context(given: Given) -> int:
    names = ("context_parallel_degree", "context_parallel_size", "sep_parallel_degree", "sep_parallel_size")
    return max(given.integer("cp", *names, low=-1, high=2**16) or 1, 1)


def _experts(given: Given, tensor: int, spec: ModelSpec) -> tuple[int, int]:
    """Expert parallel size and tensor parallel size of an expert.

    PaddleNLP 3.0.0b4 splits Mixtral's experts over the tensor parallel group (transformers/mixtral/modeling.py) and
    keeps DeepSeek's whole on every rank (transformers/deepseek_v2/modeling.py).
    """
    group = given.text("ep", "moe_group") or _default_group(given, spec)
    size = given.integer("ep", "expert_parallel_degree", "expert_model_parallel_size", low=-1, high=2**16)
    if group in ("mp", "tp"):
        return tensor, 1
    if size and size > 0:
        own = ("expert_tensor_model_parallel_size", "expert_tensor_parallel_degree")
        return size, max(given.integer("etp", *own, low=-1, high=2**16) or 1, 1)
    spread = given.switch("ep", "use_expert_parallel")
    if spread or group not in (None, "dummy", "none", ""):
        said = "experts are spread over ranks; over how many is not said"
        given.not_modelled(said, "moe_group", "use_expert_parallel", fix="--ep N")
    return 1, tensor if spec.architecture == "mixtral" else 1


def _default_group(given: Given, spec: ModelSpec) -> str | None:
    """Where ERNIE's experts are in PaddleFormers without a word, told from ERNIEKit by how it spells the degrees.

    Its tuning leaves the model's own default, the tensor parallel group: transformers/ernie4_5_moe/configuration.py and
    nn/pp_model.py of 321f3a8. ERNIEKit hands over `moe_group`, by default "dummy".
    """
    tuned = given.has(*_PADDLEFORMERS_DEGREES) and not given.has("use_expert_parallel", "moe_group")
    return "mp" if tuned and spec.architecture == "ernie4_5_moe" else None


def _zero_stage(given: Given) -> int:
    usual = "" if given.has("sharding") or not given.has(*_PADDLEFORMERS_DEGREES) else "stage1"
    text = given.text("zero_stage", "sharding") or usual
    degree = given.integer("sharding_degree", *SHARDING, low=-1, high=2**20)
    match = re.search(r"stage([123])", text)
    if match is None:
        if text.strip() not in ("", "none", "None"):
            given.remark(
                "unknown-value", "error", f"sharding '{text[:40]}': allowed are stage1, stage2, stage3", "sharding"
            )
        return 0
    stage = int(match[1])
    if degree == 1:
        # The trainer then empties the setting, whatever the stage.
        return 0
    return stage


def _offload(given: Given) -> Offload:
    whole = given.switch("offload", "offload_optim") or "offload" in (given.text("zero_stage", "sharding") or "")
    if given.switch("offload", "tensorwise_offload_optimizer"):
        return "optimizer_tensorwise"
    return "optimizer" if whole else "none"


def _recompute(given: Given, layers: int | None) -> tuple[RecomputeMode, RecomputeMethod, int, tuple[int, ...]]:
    granularity = given.text("recompute", "recompute_granularity") or "full"
    active = given.switch("recompute", "recompute", "use_recompute", default=given.has("recompute_num_layers"))
    kept = _numbers(given, "recompute_layers", "no_recompute_layers")
    if not active:
        if given.has("recompute_granularity") and "recompute" not in given.incomplete:
            given.remark(
                "inactive-flag",
                "note",
                f"recompute_granularity {granularity[:40]} has no effect: recompute is off",
                "recompute_granularity",
            )
        return "none", "uniform", 1, ()
    if granularity in ("core_attn", "full_attn"):
        if kept:
            given.not_modelled(
                f"{granularity} of some layers only is not modelled",
                "no_recompute_layers",
                fix="--recompute attention" if granularity == "full_attn" else "--recompute selective",
            )
        return "attention" if granularity == "full_attn" else "selective", "uniform", 1, ()
    if granularity == "selective":
        modules = given.text("recompute", "recompute_modules") or ""
        if modules.strip("[]\"' ") != "core_attn":
            said = "recompute_granularity selective: only of core_attn is modelled"
            given.not_modelled(said, "recompute_granularity")
        return "selective", "uniform", 1, ()
    if granularity != "full":
        given.remark(
            "unknown-value",
            "error",
            f"recompute_granularity '{granularity[:40]}': allowed are full, full_attn, core_attn",
            "recompute_granularity",
        )
    if given.has("refined_recompute"):
        given.not_modelled("operators kept from recompute are not modelled", "refined_recompute")
    if kept and layers:
        return "full", "list", 1, tuple(layer for layer in range(layers) if layer not in kept)
    method: RecomputeMethod = "block" if given.text("recompute_method", "recompute_method") == "block" else "uniform"
    return "full", method, given.integer("recompute_layers", "recompute_num_layers") or 1, ()


def _gate_up(
    given: Given, mode: RecomputeMode, layers: int | None
) -> tuple[RecomputeMode, tuple[RecomputeModule, ...], tuple[int, ...]]:
    """Layers whose routed experts do gate and up again, in ERNIE's fused node of experts; listed where not all do.

    Beside another recompute they are priced where both are of every layer, and nothing but the core is done again.
    """
    usual: tuple[RecomputeModule, ...] = BY_NAME["recompute_modules"].default
    text = (given.text("recompute", "recompute_fwd_gate_up") or "false").lower()
    given.places.pop("recompute", None)
    if text == "false" or not layers or not has_fp8_experts(given):
        return mode, usual, ()
    numbers = range(layers) if text == "true" else sorted(_numbers(given, "recompute", "recompute_fwd_gate_up"))
    listed = tuple(layer for layer in numbers if layer < layers)
    if not listed:
        return mode, usual, ()
    if mode == "none":
        return "selective", ("moe_gate_up",), listed
    if mode == "selective" and len(listed) == layers:
        return "selective", (*usual, "moe_gate_up"), ()
    said = "recompute_fwd_gate_up beside another recompute of other layers or parts: what it frees is not priced"
    given.remark("activations-bound", "warning", said, "recompute_fwd_gate_up")
    return mode, usual, ()


def _numbers(given: Given, option: str, name: str) -> frozenset[int]:
    """Whole numbers of a list, in brackets or not."""
    text = given.text(option, name) or ""
    words = re.split(r"[\s,\[\]]+", text.strip("[] "))
    numbers = [word for word in words if word]
    if not all(re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) for word in numbers):
        raise given.refusal(given.entry(name), f"'{text[:40]}' given; must be a list of whole numbers")
    return frozenset(int(word) for word in numbers)


def _cut(given: Given, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Layers per stage of a list over the model's items: embedding, layers, norm, head."""
    text = given.text("stage_layers", "pp_seg_method") or ""
    if not re.match(r"\s*(?:\[\s*)?[0-9]", text):
        given.places.pop("stage_layers", None)
        return ()
    starts = sorted(_numbers(given, "stage_layers", "pp_seg_method"))
    if layers is None:
        return ()
    items = layers + 3
    starts = [start for start in starts if start < items]
    if len(starts) != pipeline or starts[0] != 0:
        raise given.refusal(given.entry("pp_seg_method"), f"must list {pipeline} first items, the first of them 0")
    ends = [*starts[1:], items]
    return tuple(min(end, layers + 1) - max(start, 1) for start, end in zip(starts, ends, strict=True))


def _precision(given: Given) -> str | None:
    if given.has("weight_quantize_algo"):
        given.not_modelled(QUANTIZED, "weight_quantize_algo")
    kind = given.text("precision", "compute_type")
    if kind in ("bf16", "fp16", "fp8"):
        return kind
    if kind is not None:
        given.not_modelled(f"compute_type {kind[:40]} is not modelled", "compute_type")
        return None
    return half_precision(given, bf16=given.switch("precision", "bf16"), fp16=given.switch("precision", "fp16"))


def _lora(given: Given) -> int | None:
    kind = (given.text("lora_rank", "fine_tuning") or "").lower()
    if given.switch("lora_rank", "lora") or kind == "lora":
        given.places.pop("lora_rank", None)
        return given.integer("lora_rank", "lora_rank", high=2**16) or _LORA_RANK
    given.places.pop("lora_rank", None)
    return None


def _contradictions(given: Given, layout: Layout, *, whole_sends: bool) -> None:
    """What the flags say against each other; some trainers end where a pipeline would send parts."""
    config = pipeline_config(given)
    asked = given.switch("sequence_parallel", "sequence_parallel")
    if asked and layout.tensor_parallel == 1 and "tp" not in given.incomplete:
        given.remark(
            "inactive-flag", "note", "sequence_parallel has no effect: tensor parallel is 1", "sequence_parallel"
        )
    if layout.tensor_parallel > 1 and not asked and "sequence_parallel" not in given.incomplete:
        given.remark(
            "no-sequence-parallel",
            "warning",
            f"tensor parallel {layout.tensor_parallel} without sequence_parallel keeps whole activations between "
            "the layers",
            *_TP,
            fix="sequence_parallel 1",
        )
    piped = layout.sequence_parallel and layout.pipeline_parallel > 1
    if whole_sends and piped and "disable_partial_send_recv" not in config:
        given.remark(
            "partial-send-recv",
            "error",
            "sequence_parallel with pipeline stages needs disable_partial_send_recv",
            "pipeline_parallel_config",
            "sequence_parallel",
            fix='pipeline_parallel_config "disable_partial_send_recv"',
        )
    if given.has("lr_scheduler") and given.has("lr_scheduler_type"):
        given.remark(
            "repeated-flag",
            "note",
            "lr_scheduler and lr_scheduler_type are two names of one setting",
            "lr_scheduler",
            fix="keep lr_scheduler_type",
        )
    optimizer = given.text("optimizer", "optim")
    if optimizer and not optimizer.lower().startswith("adamw"):
        given.not_modelled(f"optimizer {optimizer[:40]}: only AdamW is modelled", "optim")
    steps, warmup = given.text("steps", "max_steps"), given.text("steps", "warmup_steps")
    counts = [int(text) for text in (steps, warmup) if text and re.fullmatch(r"[0-9]{1,9}", text, re.ASCII)]
    if len(counts) == 2 and counts[1] > counts[0] > 0:
        given.remark(
            "warmup-exceeds-steps", "note", f"warmup_steps {warmup} is more than max_steps {steps}", "warmup_steps"
        )
    for option in ("steps", "optimizer", "pipeline_parallel_config", "schedule", "stage"):
        given.incomplete.discard(option)
        given.places.pop(option, None)
