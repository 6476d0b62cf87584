"""Megatron-LM and Pai-Megatron-Patch command lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from simulator.question.scenario.layout import SETTINGS, Layout, Offload, RecomputeMethod, RecomputeMode
from simulator.recipes.readers import models
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.given import Given
from simulator.recipes.readers.megatron_flags import FLAGS, PASSED, TOKENIZERS
from simulator.recipes.readers.megatron_options import options_of
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import Launch
from simulator.recipes.shell.values import Value

LAYOUT_OPTIONS: Final = frozenset(setting.key for setting in SETTINGS) - {"dp", "recompute_layer_list"}
"""Options without which there is no layout."""


def is_megatron(launch: Launch) -> bool:
    """Whether a launch has the flags that every Megatron run has."""
    flags = " ".join(value.text for value in launch.arguments)
    return any(f"--{name}" in flags for name in ("tensor-model-parallel-size", "num-layers", "micro-batch-size"))


def read_megatron(launch: Launch, file: str) -> Recipe:
    """The recipe of one launch."""
    given = Given(file, FLAGS, PASSED)
    given.add_arguments(launch.arguments)
    nodes, devices = cluster_of(launch, given)
    title = PurePath(launch.script.text).name
    return megatron_recipe(given, launch.environment, "megatron-shell", title, nodes, devices)


def megatron_recipe(  # noqa: PLR0913, PLR0917  what a launch and a configuration file have in common
    given: Given,
    environment: Mapping[str, Value] | None,
    dialect: str,
    title: str,
    nodes: int | None,
    devices: int | None,
) -> Recipe:
    """The recipe of Megatron's flags; `environment` is None where the recipe says nothing about it."""
    model, fields = _model(given, _fields(given))
    layers = fields.get("num_hidden_layers") or (models.load_model(model).num_hidden_layers if model else None)
    virtual = given.integer("layers_per_virtual_stage", "num-layers-per-virtual-pipeline-stage", low=0)
    layout = _layout(given, layers if isinstance(layers, int) else None, virtual or None)
    precision = _precision(given)
    global_batch = given.integer("global_batch_size", "global-batch-size", high=2**27)
    recipe = Recipe(
        file=given.file,
        title=title,
        framework="megatron",
        dialect=dialect,
        model=model,
        model_fields=fields,
        seq_length=given.integer("seq_length", "seq-length", high=2**27),
        global_batch_size=global_batch,
        gradient_accumulation_steps=None if global_batch or "global_batch_size" in given.incomplete else 1,
        precision=precision,
        options=options_of(given, environment, layout),
        layout=layout,
        virtual_stage_layers=virtual or None,
        nodes=nodes,
        devices_per_node=devices,
    )
    _schedule(given)
    _contradictions(given, recipe)
    return finished(given, recipe)


def _schedule(given: Given) -> None:
    """Refuse a pipeline schedule with other activations in flight than 1F1B and the interleaved one."""
    for name in ("enable-zero-bubble", "zero-bubble-v-schedule", "enable-1f1b-v"):
        if given.switch("schedule", name):
            given.remark("not-modelled", "error", f"--{name}: this pipeline schedule is not modelled", name)
    given.incomplete.discard("schedule")
    given.places.pop("schedule", None)


def finished(given: Given, recipe: Recipe) -> Recipe:
    """The recipe with what was found on the way; without a layout where something of it is missing."""
    given.remark_repeated()
    given.remark_unread()
    given.note_others()
    shaped = recipe.model is not None or "num_hidden_layers" in recipe.model_fields
    given.note_bags({"model": not shaped, "seq_length": recipe.seq_length is None, "precision": not recipe.precision})
    layout = None if given.incomplete & LAYOUT_OPTIONS else recipe.layout
    if layout and given.devices and recipe.nodes is None:
        replica = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
        if given.devices % replica == 0:
            layout = dataclasses.replace(layout, data_parallel=given.devices // replica)
            given.places["dp"] = given.places["devices"]
    remarks = sorted(given.remarks, key=lambda remark: remark.place.line if remark.place else 0)
    found = dataclasses.replace(recipe, layout=layout, places=given.places, flags=given.flags())
    return dataclasses.replace(found, unknowns=given.unknowns(), remarks=tuple(remarks))


def _fields(given: Given) -> dict[str, Any]:
    """The model's shape as the flags give it."""
    sizes = {
        "num_hidden_layers": ("num-layers",),
        "hidden_size": ("hidden-size",),
        "intermediate_size": ("ffn-hidden-size",),
        "num_attention_heads": ("num-attention-heads",),
        "head_dim": ("kv-channels",),
        "max_position_embeddings": ("max-position-embeddings",),
        "num_experts": ("num-experts",),
        "num_experts_per_tok": ("moe-router-topk",),
        "moe_intermediate_size": ("moe-ffn-hidden-size",),
        "q_lora_rank": ("q-lora-rank",),
        "kv_lora_rank": ("kv-lora-rank",),
        "qk_nope_head_dim": ("qk-head-dim",),
        "qk_rope_head_dim": ("qk-pos-emb-head-dim",),
        "v_head_dim": ("v-head-dim",),
        "num_nextn_predict_layers": ("mtp-num-layers",),
    }
    found: dict[str, Any] = {}
    for field, names in sizes.items():
        number = given.integer(field, *names, low=0)
        if number is not None:
            found[field] = number
    heads = found.get("num_attention_heads")
    groups = given.integer("num_key_value_heads", "num-query-groups")
    grouped = given.switch("num_key_value_heads", "group-query-attention")
    if heads and "num_key_value_heads" not in given.incomplete:
        found["num_key_value_heads"] = groups if grouped and groups else heads
    if "tie_word_embeddings" not in given.incomplete:
        found["tie_word_embeddings"] = not given.switch("tie_word_embeddings", "untie-embeddings-and-output-weights")
    found["attention_bias"] = given.switch("attention_bias", "add-qkv-bias")
    found["qk_norm"] = given.switch("qk_norm", "qk-layernorm")
    _derive(given, found)
    return found


def _derive(given: Given, found: dict[str, Any]) -> None:
    """Sizes that follow from others, as Megatron derives them."""
    hidden, heads = found.get("hidden_size"), found.get("num_attention_heads")
    if hidden and heads and "head_dim" not in found and "head_dim" not in given.incomplete and hidden % heads == 0:
        found["head_dim"] = hidden // heads
    if hidden and "intermediate_size" not in found and "intermediate_size" not in given.incomplete:
        gated = given.switch("intermediate_size", "swiglu")
        found["intermediate_size"] = int(hidden * 4 * 2 / 3 / 64) * 64 if gated else 4 * hidden
    if found.get("num_experts"):
        found.setdefault("num_experts_per_tok", 2)
        found.setdefault("moe_intermediate_size", found.get("intermediate_size"))
        shared = given.integer("num_shared_experts", "moe-shared-expert-intermediate-size")
        if shared and found["moe_intermediate_size"]:
            found["num_shared_experts"] = max(1, shared // found["moe_intermediate_size"])
        found["first_k_dense_replace"] = _leading_dense(given)
    else:
        for field in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            found.pop(field, None)
    if given.switch("attention", "multi-latent-attention"):
        found["attention"] = "mla"
        if found.get("qk_nope_head_dim") and found.get("qk_rope_head_dim"):
            found["head_dim"] = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    else:
        for field in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            found.pop(field, None)


def _leading_dense(given: Given) -> int:
    """Dense layers before the first with experts, of `--moe-layer-freq`."""
    text = (given.text("first_k_dense_replace", "moe-layer-freq") or "1").replace(" ", "")
    match = re.fullmatch(r"[(\[]*\[?0\]?\*(\d{1,4})\+\[?1\]?\*\d{1,4}[)\]]*", text, re.ASCII)
    if match:
        return int(match[1])
    if text != "1":
        given.remark(
            "not-modelled",
            "error",
            f"--moe-layer-freq {text[:40]}: only leading dense layers are modelled",
            "moe-layer-freq",
        )
    return 0


def _model(given: Given, fields: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The shipped model of that shape, and the fields in which the recipe differs from it."""
    vocabulary, assumed = _vocabulary(given)
    shape = {**fields, **({"vocab_size": vocabulary} if vocabulary else {})}
    model = models.by_shape(shape)
    padding = given.integer("vocab_size", "make-vocab-size-divisible-by") or 128
    padding *= given.integer("tp", "tensor-model-parallel-size") or 1
    if model is None:
        shape["vocab_size"] = _padded(vocabulary, padding) if vocabulary else None
        if not vocabulary:
            del shape["vocab_size"]
            given.remark(
                "no-vocabulary",
                "warning",
                "the recipe does not say how large the vocabulary is",
                "tokenizer-type",
                "patch-tokenizer-type",
                fix="--model-field vocab_size=N",
            )
        return None, {**shape, "architecture": _architecture(shape)}
    spec = models.load_model(model)
    known = vocabulary if vocabulary and not _near(vocabulary, spec.vocab_size) else spec.vocab_size
    if assumed and known != spec.vocab_size:
        given.remark(
            "vocabulary-assumed",
            "note",
            f"vocabulary of {known} is what {assumed} has; the script does not say",
            "tokenizer-model",
            "tokenizer-type",
            fix="--model-field vocab_size=N",
        )
    shape["vocab_size"] = _padded(known, padding)
    shape.pop("max_position_embeddings", None)
    return model, models.differing(model, shape)


def _architecture(shape: Mapping[str, object]) -> str:
    """A family whose layers have these parts."""
    if shape.get("attention") == "mla":
        return "deepseek_v3"
    if shape.get("qk_norm"):
        return "qwen3_moe" if shape.get("num_experts") else "qwen3"
    if shape.get("num_experts"):
        return "mixtral"
    return "qwen2" if shape.get("attention_bias") else "llama"


def _near(count: int, spec: int) -> bool:
    """Whether a tokenizer's entries are a model's vocabulary without its padding."""
    return spec - 600 <= count <= spec


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _vocabulary(given: Given) -> tuple[int | None, str]:
    """Vocabulary, and the tokenizer it is assumed from."""
    padded = given.integer("vocab_size", "padded-vocab-size")
    plain = given.integer("vocab_size", "vocab-size")
    if padded or plain:
        return padded or plain, ""
    # A flag that is read waits for its value: the next one is read only where those before do not tell.
    for flag in ("patch-tokenizer-type", "tokenizer-type", "tokenizer-model"):
        text = given.text("tokenizer", flag) or ""
        given.incomplete.discard("tokenizer")
        given.places.pop("tokenizer", None)
        for part, count in TOKENIZERS.items():
            if part in text.lower() and not text.lower().endswith("qwen2tokenizer"):
                return count, PurePath(text).name
    return None, ""


def _layout(given: Given, layers: int | None, virtual: int | None) -> Layout:
    """Degrees, schedule, recompute and offload."""
    tensor = given.integer("tp", "tensor-model-parallel-size", high=2**16) or 1
    pipeline = given.integer("pp", "pipeline-model-parallel-size", high=2**16) or 1
    chunks = given.integer("vpp", "num-virtual-stages-per-pipeline-rank", high=2**16) or 1
    if virtual and layers and layers % (pipeline * virtual) == 0:
        chunks = layers // (pipeline * virtual)
    mode, method, count = _recompute(given)
    sharded = given.switch("zero_stage", "use-distributed-optimizer")
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=given.integer("cp", "context-parallel-size", high=2**16) or 1,
        expert_parallel=given.integer("ep", "expert-model-parallel-size", high=2**16) or 1,
        expert_tensor_parallel=given.integer("etp", "expert-tensor-parallel-size", high=2**16)
        or (tensor if given.has("num-experts") else 1),
        virtual_stages=chunks,
        micro_batch_size=given.integer("micro_batch_size", "micro-batch-size", high=2**16) or 1,
        sequence_parallel=given.switch("sequence_parallel", "sequence-parallel"),
        zero_stage=_fsdp(given) or int(sharded),
        recompute=mode,
        recompute_method=method,
        recompute_layers=count,
        offload=_offload(given),
        stage_layers=_cut(given, layers, pipeline),
    )


def _fsdp(given: Given) -> int:
    """ZeRO stage of Megatron's FSDP, as far as it is one of the distributed optimizer."""
    strategy = given.text("zero_stage", "data-parallel-sharding-strategy")
    sharded = any(given.switch("zero_stage", name) for name in ("use-megatron-fsdp", "use-custom-fsdp"))
    torch = given.switch("zero_stage", "use-torch-fsdp2")
    if torch or (sharded and strategy not in (None, "no_shard", "optim")):
        name = "use-torch-fsdp2" if torch else "data-parallel-sharding-strategy"
        given.remark(
            "not-modelled", "error", f"--{name}: Megatron's FSDP of gradients and weights is not modelled", name
        )
        return 1
    return int(sharded and strategy == "optim")


def _cut(given: Given, layers: int | None, pipeline: int) -> tuple[int, ...]:
    """Layers per stage, where the first or the last is given."""
    first = given.integer("stage_layers", "decoder-first-pipeline-num-layers", low=0)
    last = given.integer("stage_layers", "decoder-last-pipeline-num-layers", low=0)
    for name in (
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
        "standalone-embedding-stage",
    ):
        if given.switch("stage_layers", name):
            given.remark("not-modelled", "error", f"--{name}: this cut of the layers is not modelled", name)
    if layers is None or (first is None and last is None):
        return ()
    inner = pipeline - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if inner <= 0 or rest < 0 or rest % inner or inner > 4096:
        given.remark(
            "no-even-share",
            "error",
            f"{layers} layers on {pipeline} stages with {first} first and {last} last leaves no even share",
            "decoder-first-pipeline-num-layers",
            "decoder-last-pipeline-num-layers",
        )
        return ()
    return (
        *((first,) if first is not None else ()),
        *([rest // inner] * inner),
        *((last,) if last is not None else ()),
    )


def _recompute(given: Given) -> tuple[RecomputeMode, RecomputeMethod, int]:
    granularity = given.text("recompute", "recompute-granularity")
    selective = given.switch("recompute", "recompute-activations")
    method = given.text("recompute_method", "recompute-method")
    count = given.integer("recompute_layers", "recompute-num-layers", low=0) or 1
    modules = given.text("recompute", "recompute-modules")
    if modules and modules != "core_attn" and granularity != "full":
        given.remark(
            "not-modelled",
            "error",
            f"--recompute-modules {modules[:60]}: only core_attn is modelled",
            "recompute-modules",
        )
    if granularity == "full":
        return "full", "block" if method == "block" else "uniform", count
    if granularity not in (None, "selective"):
        given.remark(
            "unknown-value",
            "error",
            f"--recompute-granularity {granularity[:40]}: allowed are selective, full",
            "recompute-granularity",
        )
    return ("selective" if selective or granularity == "selective" else "none"), "uniform", 1


def _offload(given: Given) -> Offload:
    fraction = given.text("offload", "optimizer-offload-fraction")
    policy = given.text("offload", "optimizer-offload-policy")
    optimizer = given.switch("offload", "optimizer-cpu-offload") or policy is not None
    optimizer = optimizer or given.text("offload", "optimizer") == "hybridadam"
    if optimizer and policy == "auto" and fraction is None:
        given.remark(
            "not-modelled",
            "error",
            "how much of the optimizer is offloaded is decided during the run",
            "optimizer-offload-policy",
            fix="--optimizer-offload-policy static with --optimizer-offload-fraction",
        )
    layers = given.integer("offload", "cpu-offloading-num-layers", low=0)
    if layers or given.switch("offload", "cpu-offloading"):
        if layers is not None and layers + 1 < (given.integer("num_hidden_layers", "num-layers") or 0):
            given.remark(
                "not-modelled",
                "error",
                f"activations of {layers} layers only are offloaded; only those of all layers of a stage are modelled",
                "cpu-offloading-num-layers",
            )
        return "activations"
    return "optimizer_tensorwise" if optimizer else "none"


def _precision(given: Given) -> str | None:
    narrow = given.text("precision", "fp8-format") or given.text("precision", "fp8-recipe")
    half = given.switch("precision", "bf16"), given.switch("precision", "fp16")
    if all(half):
        given.remark("contradiction", "error", "--bf16 and --fp16 are both given", "fp16", fix="drop one of them")
    if "precision" in given.incomplete:
        return None
    if narrow:
        return "fp8"
    if not any(half):
        given.remark(
            "full-precision", "warning", "neither --bf16 nor --fp16: Megatron-LM trains in fp32", fix="add --bf16"
        )
        return "fp32"
    return "bf16" if half[0] else "fp16"


def _contradictions(given: Given, recipe: Recipe) -> None:
    """What the flags say against each other."""
    layout = recipe.layout
    if layout is None:
        return
    if given.has("recompute-activations") and given.text("recompute", "recompute-granularity") == "full":
        given.remark(
            "contradiction",
            "warning",
            "--recompute-activations is selective, --recompute-granularity full counts",
            "recompute-activations",
            fix="drop --recompute-activations",
        )
    if layout.tensor_parallel > 1 and not layout.sequence_parallel and "sequence_parallel" not in given.incomplete:
        given.remark(
            "no-sequence-parallel",
            "warning",
            f"tensor parallel {layout.tensor_parallel} without --sequence-parallel keeps whole activations "
            "between the layers",
            "tensor-model-parallel-size",
            fix="add --sequence-parallel",
        )
    shaped = given.has("num-layers", "hidden-size") and "intermediate_size" not in given.incomplete
    if shaped and not given.has("swiglu"):
        given.remark("not-modelled", "error", "no --swiglu: only gated feed-forward networks are modelled")
    if given.text("normalization", "normalization") == "LayerNorm":
        given.remark("not-modelled", "warning", "LayerNorm is priced as RMSNorm", "normalization")
    if given.has("rampup-batch-size"):
        given.remark("not-modelled", "warning", "the global batch after its ramp is priced", "rampup-batch-size")
    _priced_otherwise(given)
    if given.has("recompute-method") and layout.recompute == "none" and "recompute" not in given.incomplete:
        given.remark(
            "contradiction",
            "warning",
            "--recompute-method has no effect without --recompute-granularity full",
            "recompute-method",
        )


def _priced_otherwise(given: Given) -> None:
    """Flags for which something else is priced."""
    if given.switch("parameter_dtype", "fp8-param-gather"):
        given.remark(
            "not-modelled", "warning", "weights in fp8 are not modelled; 16 bits are priced", "fp8-param-gather"
        )
    optimizer = given.text("optimizer", "optimizer")
    if optimizer and "adam" not in optimizer.lower():
        given.remark("not-modelled", "warning", f"optimizer {optimizer[:40]} is priced as Adam", "optimizer")
