"""Megatron-LM and Pai-Megatron-Patch command lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.megatron.core import core_options, remark_connections
from simulator.frameworks.megatron.cut import Cut, cut_of
from simulator.frameworks.megatron.model import fields_of, model_of
from simulator.frameworks.megatron.options import options_of
from simulator.frameworks.mindspeed.special import STAGES, is_mindspeed
from simulator.frameworks.purpose import encoder_task
from simulator.frameworks.values import Value
from simulator.question.frameworks.profiles import MEGATRON
from simulator.question.scenario.layout import BY_NAME, SETTINGS, Layout
from simulator.question.vocabulary import Offload, RecomputeMethod, RecomputeMode, RecomputeModule
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.readers.megatron_flags import FLAGS, PASSED
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

LAYOUT_OPTIONS: Final = frozenset(setting.key for setting in SETTINGS) - {"dp", "recompute_layer_list"}
"""Options without which there is no layout."""


_NO_DECODER: Final = re.compile(r"bert|t5|retro|vision|vlm|multimodal|mimo|biencoder|ict\b")
"""Parts of the names of Megatron's scripts that train no decoder alone."""


def is_megatron(launch: TrainingCommand) -> bool:
    """Whether a launch has the flags that every Megatron run has."""
    flags = " ".join(value.text for value in launch.arguments)
    return any(f"--{name}" in flags for name in ("tensor-model-parallel-size", "num-layers", "micro-batch-size"))


def read_megatron(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch."""
    return launched(given_of(launch, file), launch)


def given_of(launch: TrainingCommand, file: str) -> Given:
    """The flags of a launch."""
    given = Given(file, FLAGS, PASSED, complete=True)
    add_words(given, launch.arguments)
    return given


def launched(given: Given, launch: TrainingCommand) -> Recipe:
    """The recipe of a launch with these flags."""
    nodes, devices = cluster_of(launch, given)
    title = PurePath(launch.script.text).name
    folder = PurePath(launch.script.text).parent.name
    other = no_decoder(title) or (no_decoder(folder) if _NO_DECODER.fullmatch(folder) else "") or encoder_task(launch)
    if other:
        given.remark("not-modelled", "error", other)
    remark_connections(given, launch)
    recipe = megatron_recipe(given, launch.environment, "megatron-shell", title, nodes, devices)
    return dataclasses.replace(recipe, options={**recipe.options, **core_options(given, launch)})


def no_decoder(title: str) -> str:
    """What to say of a script or a configuration whose name tells another model than a decoder; empty of others."""
    kind = _NO_DECODER.search(title.lower())
    return f"{title[:60]}: models with an encoder are not modelled ({kind[0]})" if kind else ""


def megatron_recipe(  # noqa: PLR0913, PLR0917  what a launch and a configuration file have in common
    given: Given,
    environment: Mapping[str, Value] | None,
    dialect: str,
    title: str,
    nodes: int | None,
    devices: int | None,
) -> Recipe:
    """The recipe of Megatron's flags; `environment` is None where the recipe says nothing about it."""
    model, fields = model_of(given, fields_of(given))
    pipeline = given.integer("pp", "pipeline-model-parallel-size", high=2**16) or 1
    places = given.integer("num_hidden_layers", "num-layers", low=0)
    places = places or (models.load_model(model).num_hidden_layers if model else None)
    cut = cut_of(given, places, pipeline)
    layout = _layout(given, places, pipeline, cut)
    precision = _precision(given)
    global_batch = given.integer("global_batch_size", "global-batch-size", high=2**27) or _largest_batch(given)
    recipe = Recipe(
        file=given.file,
        title=title,
        framework="megatron",
        stack="mindspeed-llm" if is_mindspeed(given) else None,
        dialect=dialect,
        model=model,
        model_fields=fields,
        seq_length=given.integer("seq_length", "seq-length", "encoder-seq-length", high=2**27),
        global_batch_size=global_batch,
        gradient_accumulation_steps=None if global_batch or "global_batch_size" in given.incomplete else 1,
        precision=precision,
        lora_rank=_lora(given),
        options=options_of(given, environment, layout, _key_value_heads(model, fields), places),
        layout=layout,
        virtual_stage_layers=cut.layers_per_chunk,
        nodes=nodes,
        devices_per_node=devices,
    )
    _contradictions(given, recipe)
    return finished(given, dataclasses.replace(recipe, options={**_usual_dispatch(given, dialect), **recipe.options}))


def _usual_dispatch(given: Given, dialect: str) -> dict[str, str]:
    """An all-gather, the default of Megatron-LM's `--moe-token-dispatcher-type` (core_v0.6.0 to core_v0.19.0)."""
    own = dialect in ("megatron-shell", "megatron-yaml") and not given.has("deepspeed")
    told = given.has("moe-token-dispatcher-type") or given.has("overlap-moe-expert-parallel-comm")
    return {"expert_dispatch": "allgather"} if own and given.has("num-experts") and not told else {}


_STEP: Final = re.compile(r"\d+(?:\.\d+)?[KMBT]?:(\d{1,9})", re.ASCII)


def _largest_batch(given: Given) -> int | None:
    """The largest batch of `--step-batch-size-schedule "0:768 250B:1536"`, which no global batch may stand beside.

    Fewer micro batches keep no more in flight, so it holds for the whole run (arguments.py:680 of core_v0.19.0).
    """
    text = given.text("global_batch_size", "step-batch-size-schedule")
    if text is None:
        return None
    steps = [_STEP.fullmatch(step) for step in text.strip("\"'").split()]
    sizes = [int(step[1]) for step in steps if step]
    if len(sizes) != len(steps) or not sizes:
        given.not_modelled("step-batch-size-schedule: not read", "step-batch-size-schedule")
        return None
    given.remark("not-modelled", "warning", "the largest batch of the schedule is priced", "step-batch-size-schedule")
    return max(sizes)


def _key_value_heads(model: str | None, fields: Mapping[str, Any]) -> int | None:
    own: int | None = fields.get("num_key_value_heads")
    return own or (models.load_model(model).num_key_value_heads if model else None)


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


def _layout(given: Given, places: int | None, pipeline: int, cut: Cut) -> Layout:
    """Degrees, schedule, recompute and offload; `places` are the layers with those that do nothing."""
    tensor = given.integer("tp", "tensor-model-parallel-size", "model-parallel-size", high=2**16) or 1
    mode, method, count, listed = _recompute(given, places, pipeline, cut.chunks)
    modules = _modules(given) if mode == "selective" else BY_NAME["recompute_modules"].default
    sharded = given.switch("zero_stage", "use-distributed-optimizer")
    expert, expert_tensor = _experts(given, tensor)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        context_parallel=given.integer("cp", "context-parallel-size", high=2**16) or 1,
        expert_parallel=expert,
        expert_tensor_parallel=expert_tensor,
        virtual_stages=cut.chunks,
        schedule=cut.schedule,
        micro_batch_size=given.integer("micro_batch_size", "micro-batch-size", "batch-size", high=2**16) or 1,
        sequence_parallel=given.switch("sequence_parallel", "sequence-parallel"),
        zero_stage=_fsdp(given) or int(sharded),
        recompute=mode,
        recompute_modules=modules,
        recompute_method=method,
        recompute_layers=count,
        recompute_layer_list=listed,
        offload=_offload(given),
        stage_layers=cut.stage_layers,
        chunk_layers=cut.chunk_layers,
    )


def _experts(given: Given, tensor: int) -> tuple[int, int]:
    """Expert parallel size, and tensor parallel size of an expert: that of the other layers where none is given."""
    expert = given.integer("ep", "expert-model-parallel-size", high=2**16) or 1
    own = given.integer("etp", "expert-tensor-parallel-size", high=2**16)
    if given.switch("etp", "moe-tp-extend-ep"):
        return expert * tensor, 1
    return expert, own or (tensor if given.has("num-experts", "num-moe-experts") else 1)


def _fsdp(given: Given) -> int:
    """ZeRO stage of PyTorch's FSDP2, and of Megatron's FSDP as far as it is one of the distributed optimizer."""
    if given.switch("zero_stage", "use-torch-fsdp2"):
        return 3
    strategy = given.text("zero_stage", "data-parallel-sharding-strategy")
    sharded = any(given.switch("zero_stage", name) for name in ("use-megatron-fsdp", "use-custom-fsdp"))
    if sharded and strategy not in (None, "no_shard", "optim"):
        name = "data-parallel-sharding-strategy"
        given.not_modelled(f"--{name}: Megatron's FSDP of gradients and weights is not modelled", name)
        return 1
    return int(sharded and strategy == "optim")


def _recompute(
    given: Given, places: int | None, pipeline: int, chunks: int
) -> tuple[RecomputeMode, RecomputeMethod, int, tuple[int, ...]]:
    granularity = given.text("recompute", "recompute-granularity")
    selective = given.switch("recompute", "recompute-activations")
    if given.switch("recompute", "checkpoint-activations"):
        granularity = granularity or "full"
    method = given.text("recompute_method", "recompute-method", "activations-checkpoint-method")
    count = given.integer("recompute_layers", "recompute-num-layers", "activations-checkpoint-num-layers", low=0)
    if given.switch("recompute_modules", "moe-layer-recompute"):
        granularity = granularity or "selective"
    if granularity == "full":
        if method != "block":
            return "full", "uniform", count or 1, ()
        return _recomputed_blocks(given, 1 if count is None else count, places, pipeline, chunks)
    if granularity not in (None, "selective"):
        said = f"--recompute-granularity {granularity[:40]}: allowed are selective, full"
        given.remark("unknown-value", "error", said, "recompute-granularity")
    return ("selective" if selective or granularity == "selective" else "none"), "uniform", 1, ()


def _modules(given: Given) -> tuple[RecomputeModule, ...]:
    """What selective recompute does again; `--moe-layer-recompute` is the older word for one of them."""
    words = re.findall(r"[^\s,\[\]'\"]+", given.text("recompute_modules", "recompute-modules") or "core_attn")
    known = MEGATRON.limits.recompute_modules
    if given.switch("recompute_modules", "moe-layer-recompute"):
        words.append("moe")
    for word in words:
        if word not in known:
            given.not_modelled(f"--recompute-modules {word[:40]}: allowed are {', '.join(known)}", "recompute-modules")
    return tuple(module for module in known if module in words) or BY_NAME["recompute_modules"].default


def _recomputed_blocks(
    given: Given, count: int, places: int | None, pipeline: int, chunks: int
) -> tuple[RecomputeMode, RecomputeMethod, int, tuple[int, ...]]:
    """Recompute of the first layers: of each chunk, or with MindSpeed's flag of each pipeline rank."""
    if count == 0:
        return "none", "uniform", 1, ()
    size = (places or 0) // (pipeline * chunks)
    if chunks == 1 or not given.switch("recompute_layers", "enable-recompute-layers-per-pp-rank"):
        return "full", "block", min(count, size or count), ()
    if count % chunks == 0:
        return "full", "block", min(count // chunks, size or count), ()
    # MindSpeed v2.1.0, core/transformer/transformer_block.py: layer l of chunk c where l x chunks + c < count.
    kept = [(chunk, layer) for chunk in range(chunks) for layer in range(size) if layer * chunks + chunk < count]
    starts = [(chunk * pipeline + rank) * size + layer for chunk, layer in kept for rank in range(pipeline)]
    return "full", "list", 1, tuple(sorted(starts))


def _lora(given: Given) -> int | None:
    """LoRA rank of MindSpeed-LLM; adapters on some of the linear layers only are not modelled."""
    rank = given.integer("lora_rank", "lora-r", high=2**16)
    targets = frozenset((given.text("lora_rank", "lora-target-modules") or "").split())
    given.places.pop("lora_rank", None)
    if rank is not None and targets not in _LORA_TARGETS:
        shown = " ".join(sorted(targets))[:120] or "nothing"
        said = f"LoRA on {shown}: only adapters on all linear layers are modelled"
        given.not_modelled(said, "lora-target-modules", "lora-r")
    return rank


_LORA_TARGETS: Final = (
    frozenset(("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")),
    frozenset(("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")),
)
"""All linear layers, by the names of the core's and of the legacy modules."""


def _offload(given: Given) -> Offload:
    fraction = given.text("offload", "optimizer-offload-fraction")
    policy = given.text("offload", "optimizer-offload-policy")
    optimizer = given.switch("offload", "optimizer-cpu-offload") or policy is not None
    optimizer = optimizer or given.text("offload", "optimizer") == "hybridadam"
    if optimizer and policy == "auto" and fraction is None:
        given.not_modelled(
            "how much of the optimizer is offloaded is decided during the run",
            "optimizer-offload-policy",
            fix="--optimizer-offload-policy static with --optimizer-offload-fraction",
        )
    layers = given.integer("offload", "cpu-offloading-num-layers", low=0)
    if layers or given.switch("offload", "cpu-offloading"):
        if layers is not None and layers + 1 < (given.integer("num_hidden_layers", "num-layers") or 0):
            given.not_modelled(
                f"activations of {layers} layers only are offloaded; only those of all layers of a stage are modelled",
                "cpu-offloading-num-layers",
            )
        return "activations"
    swapped = given.switch("offload", "swap-optimizer")
    return "optimizer_tensorwise" if optimizer or swapped else "none"


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
    """Settings whose value decides whether they are priced."""
    optimizer = given.text("optimizer", "optimizer")
    if optimizer and "adam" not in optimizer.lower():
        given.remark("not-modelled", "error", f"optimizer {optimizer[:40]}: only Adam is modelled", "optimizer")
    if given.text("transformer", "transformer-type") == "huggingface":
        # Pai-Megatron-Patch a098ca5, examples/*/finetune_huggingface_*.py: AutoModelForCausalLM.from_pretrained, whose
        # sizes are the checkpoint's and whose layers are those of transformers; megatron_patch/training.py wraps it.
        said = "--transformer-type huggingface: transformers builds the layers, of the sizes that the checkpoint has"
        given.remark("not-modelled", "error", said, "transformer-type")
    stage = given.text("stage", "stage")
    if stage and dict(given.table) == FLAGS and stage not in STAGES:
        said = f"--stage {stage[:40]}: a second model or a head beside the language model's is not modelled"
        given.remark("not-modelled", "error", said, "stage")
    if given.switch("fb_overlap", "moe-fb-overlap") and (given.integer("pp", "pipeline-model-parallel-size") or 1) > 1:
        # Forward passes run under backward ones of other micro batches: without a pipeline there are none to take. A
        # run of MindSpeed-LLM (deepseek_v3_mcore_tp2_pp2_ep2_dualpipev_fb) takes a fifth more than the passes hold.
        said = "--moe-fb-overlap: what its layers keep for the overlap is not priced"
        given.remark("not-modelled", "error", said, "moe-fb-overlap")
    for option in ("stage", "spec", "fb_overlap", "transformer"):
        given.places.pop(option, None)
