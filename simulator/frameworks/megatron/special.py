"""Settings that several of Megatron-LM's flags decide together and so have no row in its table.

Each function takes the run's arguments and the values that `frameworks.take` returned by target, and adds or corrects
some: recompute, sharding, offload, experts, precision and number types, attention, exchanges.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.cost.dtypes import FP32, HALF
from simulator.errors import UnsupportedError
from simulator.files import read_words
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import plain, table_of
from simulator.frameworks.logs import note_samples
from simulator.frameworks.take import Targets, places_of, read_optimizer
from simulator.frameworks.values import PlainValue, known_value
from simulator.frameworks.write import WordPair, Writing
from simulator.question.frameworks.stacks import MEGATRON
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import read_yaml
from simulator.question.vocabulary import FP4_RECIPES, FP8_RECIPES, OFFLOADED_MODULES

_WHOLE: Final = "full_iteration"
_ATTENTION: Final = frozenset(("attn", "mamba"))
_ROUTER: Final = frozenset(("moe_router", "moe_preprocess"))
_NETWORKS: Final = frozenset(("mlp", "moe"))
_WHOLE_LAYER: Final = frozenset(("full", "none", "null", "layer", "full_iteration_inference"))
"""Words that name no part of a layer in training, those for inference among them."""
_IMPLEMENTATIONS: Final = ("local", "transformer_engine", _WHOLE)
CAPTURED_SWITCHES: Final = ("cuda_graphs", "expert_capacity", "expert_stash")
_PARTS: Final = {"attention": "attn", "attention_router": "attn moe_router", "network": "mlp"}
_USUAL_STASH: Final = "1.1"  # default of Megatron's own arguments (core_v0.18.2, megatron/training/arguments.py)


def set_captured(arguments: Arguments, targets: Targets) -> None:
    """Set the parts that CUDA graphs capture, and the size of the experts' buffers relative to the mean."""
    names = ("cuda-graph-scope", "cuda-graph-modules")
    texts = (arguments.text("cuda_graphs", name) or "" for name in names)
    scope = {word.rpartition(".")[2] for text in texts for word in re.findall(r"[\w.]+", text)}
    words = frozenset(scope - _WHOLE_LAYER)
    kind = arguments.text("cuda_graphs", "cuda-graph-impl") or ""
    if arguments.any_switch("cuda_graphs", "enable-cuda-graph", "external-cuda-graph"):
        kind = kind if kind in _IMPLEMENTATIONS else "local"
    # Where no implementation is chosen, a scope captures nothing (megatron/training/training.py, core_v0.15.3).
    if kind == _WHOLE or (kind == "local" and _WHOLE in words):
        targets["option.cuda_graphs"] = _WHOLE
    elif kind in _IMPLEMENTATIONS:
        if foreign := words - (_ATTENTION | _ROUTER | _NETWORKS):
            message = f"CUDA graphs of {', '.join(sorted(foreign))[:60]} by --cuda-graph-impl {kind} are not modelled"
            arguments.not_modelled(message, *names)
        targets["option.cuda_graphs"] = _captured(words)
    elif kind not in ("", "none"):
        message = f"--cuda-graph-impl {kind[:40]}: known are none, {', '.join(_IMPLEMENTATIONS)}"
        arguments.not_modelled(message, "cuda-graph-impl")
    capacity = arguments.share("expert_capacity", "moe-expert-rank-capacity-factor", most=64.0)
    if capacity is not None:
        targets["option.expert_capacity"] = str(max(float(capacity), 1.0))
    if arguments.switch("expert_stash", "moe-paged-stash"):
        factor = arguments.share("expert_stash", "moe-paged-stash-buffer-size-factor-cuda", most=64.0) or _USUAL_STASH
        targets["option.expert_stash"] = str(max(float(factor), 1.0))


def _captured(words: frozenset[str]) -> str:
    """Return the switch's value for the captured parts of a layer; all of it where none is named."""
    parts = (words & _ATTENTION, words & _NETWORKS)
    if not words or all(parts):
        return "layers"
    if parts[1]:
        return "network"
    return "attention_router" if words & _ROUTER else "attention"


_PARTLY: Final = {"network": False, "attention_router": True}
"""Captured parts that only models without, or only models with experts have."""


def captured_words(case: Writing) -> Iterator[WordPair]:
    """Yield the flags of CUDA graphs and experts' buffers. Raises UnsupportedError where Megatron-LM would not start.

    The conditions: Megatron-LM d98e8a6, megatron/core/transformer/transformer_config.py:1868, 2210, 2798-2870 and
    megatron/training/arguments.py:1235.
    """
    profile, kind = case.scenario.framework, case.scenario.framework.cuda_graphs
    mixture = case.scenario.model.is_moe
    if kind in _PARTLY and mixture != _PARTLY[kind]:
        supported = "with drop-padding MoE" if mixture else "for MoE"
        raise UnsupportedError(f"--option cuda_graphs={kind}: moe cuda graph is only supported {supported}")
    if kind == _WHOLE:
        yield "cuda_graph_impl", _WHOLE
        yield "no_check_for_nan_in_loss_and_grad", ""
        if profile.offloaded_modules:
            # Megatron-LM asks for a number beside such graphs and suggests none; one is the fewest that overlap.
            yield "fine_grained_offloading_max_inflight_offloads", "1"
    elif kind != "none":
        yield "cuda_graph_impl", "transformer_engine"
        if parts := _PARTS.get(kind):
            yield "cuda_graph_modules", parts
    capacity, stash = profile.expert_capacity, profile.expert_stash
    if not mixture or capacity == stash == 1.0:
        return
    if profile.expert_dispatch != "hybridep" or not profile.fused_experts:
        raise UnsupportedError(
            "experts' buffers of fixed sizes (expert_capacity, expert_stash): Megatron-LM has them with "
            "--option expert_dispatch=hybridep --option fused_experts=true"
        )
    yield "moe_expert_rank_capacity_factor", str(capacity)
    if stash > 1.0:
        yield "moe_paged_stash", ""
        yield "moe_paged_stash_buffer_size_factor_cuda", str(stash)


_ANY_SHAPE: Final = ("no-vocabulary", "not-modelled")
"""Rules whose remarks a named model makes obsolete, where they name no line."""


def normalize_flags(arguments: Arguments, renamed: Mapping[str, str]) -> None:
    """Turn flags stated as `true` or `false` into Megatron's switches, under Megatron's names."""
    entries, arguments.entries = arguments.entries, {}
    for name, own in entries.items():
        new = renamed.get(name, name)
        flag = table_of("megatron", "mindspeed", "pai", "flagscale", "megatron_deepspeed").get(new)
        switch = flag is not None and flag.kind == "switch" and flag.effect != "no_effect"
        for entry in own:
            if not (switch and entry.is_off):
                values = () if switch and not entry.causes else entry.values
                changed = dataclasses.replace(entry, name=new, values=values)
                arguments.entries.setdefault(new, []).append(changed)


def add_layers(arguments: Arguments, model: str | None, line: int) -> None:
    """Add the number of layers of a named model, which cuts depend on, unless the recipe states it."""
    if model is not None and not arguments.has("num-layers"):
        layers = models.load_model(model).num_hidden_layers
        arguments.add("--num-layers", [known_value(str(layers), line)], line)


def with_model(run: Recipe, model: str | None) -> Recipe:
    """Return the run with a named model; shapes that the run states replace the model's."""
    if model is None:
        return dataclasses.replace(run, model=None, model_fields={})
    own = {name: value for name, value in run.model_fields.items() if name in run.places}
    remarks = tuple(remark for remark in run.remarks if remark.place or remark.rule not in _ANY_SHAPE)
    remarks = tuple(remark for remark in remarks if remark.rule != "no-vocabulary")
    return dataclasses.replace(run, model=model, model_fields=models.differing(model, own), remarks=remarks)


def take_model(arguments: Arguments, run: Recipe, model: str | None) -> Recipe:
    """Return `with_model` of a run whose remarks and places are still with its arguments."""
    whole = dataclasses.replace(run, places=arguments.places, remarks=tuple(arguments.remarks))
    settled = with_model(whole, model)
    arguments.remarks = list(settled.remarks)
    return settled


ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables that configure PyTorch's allocator."""
_DTYPES: Final = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}
_STRATEGIES: Final = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FSDP_TYPES: Final = (
    "megatron-fsdp-main-params-dtype",
    "megatron-fsdp-main-grads-dtype",
    "megatron-fsdp-grad-comm-dtype",
)
_POST_TRAINING: Final = "megatron/post_training/arguments.py"
_CORE: Final = re.compile(r"core_v(\d+\.\d+\.\d+)", re.ASCII)
_SWITCHED: Final = [0, 15, 3]  # first core in which post-training has a switch of its own
_QUEUE: Final = 1e9
_LARGEST_TABLE: Final = 262_144
_LARGEST_HIDDEN: Final = 16_384
_STEP: Final = re.compile(r"\d+(?:\.\d+)?[KMBT]?:(\d{1,9})", re.ASCII)
_ALL: Final = 2**31  # limit of deferred micro batches where none is stated


def set_layout(arguments: Arguments, targets: Targets, layers: int | None, chunks: int) -> None:
    """Correct the layout's fields; `layers` include no-op layers, `chunks` are those of a pipeline rank."""
    _set_experts(arguments, targets)
    _set_sharding(arguments, targets)
    _set_recompute(arguments, targets, layers, chunks)
    _set_offload(arguments, targets)
    _set_offloaded_modules(arguments, targets)


def _set_experts(arguments: Arguments, targets: Targets) -> None:
    """Split an expert like the other layers unless a flag decides, as megatron/training/arguments.py does."""
    tensor = targets.get("layout.tensor_parallel", 1)
    if arguments.switch("etp", "moe-tp-extend-ep"):
        targets["layout.expert_parallel"] = targets.get("layout.expert_parallel", 1) * tensor
        targets["layout.expert_tensor_parallel"] = 1
    elif arguments.has("num-experts"):
        targets.setdefault("layout.expert_tensor_parallel", tensor)


def _set_sharding(arguments: Arguments, targets: Targets) -> None:
    """Set the ZeRO stage of PyTorch's FSDP2, and of Megatron's FSDP where it shards only the optimizer."""
    strategy = arguments.text("zero_stage", "data-parallel-sharding-strategy")
    if arguments.switch("zero_stage", "use-torch-fsdp2"):
        targets["layout.zero_stage"] = 3
        names = ("fully_shard", "widened_gradients", "overlap_grad_reduce", "overlap_param_gather")
        # megatron-core 0.19, torch_fully_sharded_data_parallel.py: weights and gradients are of the type computed with,
        # every micro batch's gradients are reduced, and fp32 master weights take fp32 copies of the gradients.
        targets |= {"option.gradient_dtype": "bf16"} | {f"option.{name}": "true" for name in names}
        if arguments.has("fp8-format"):
            message = "--use-torch-fsdp2: 8-bit copies of whole layers are priced, as if they were kept for all of them"
            arguments.remark("upper-bound", "warning", message, "use-torch-fsdp2")
    elif arguments.switch("zero_stage", "use-megatron-fsdp"):
        flag = arguments.table.get("data_parallel_sharding_strategy")
        _set_own_sharding(arguments, targets, strategy or (flag.default if flag is not None else ""))


def _set_own_sharding(arguments: Arguments, targets: Targets, strategy: str) -> None:
    """Set what Megatron's FSDP of gradients, and of weights, does by layers; see `sharding_room`."""
    name = "data-parallel-sharding-strategy"
    if strategy == "no_shard":
        return
    if strategy not in _STRATEGIES or ("zero_stage" not in arguments.incomplete and not arguments.has(name)):
        # core_v0.15.0 shards nothing where it is absent, core_v0.19.0 everything.
        message = f"--{name}: allowed are no_shard, {', '.join(_STRATEGIES)}; where it is absent, the version decides"
        arguments.not_modelled(message, name, "use-megatron-fsdp", fix=f"give --{name}")
        return
    targets["layout.zero_stage"] = _STRATEGIES[strategy]
    for kind in _FSDP_TYPES:
        dtype = arguments.text("zero_stage", kind)
        if dtype not in (None, "auto", "fp32") or (dtype == "fp32" and arguments.has("grad-reduce-in-bf16")):
            arguments.not_modelled(f"--{kind} {dtype}: only the types of other flags are priced", kind)
    if strategy == "optim":
        return
    targets |= {f"option.{switch}": "true" for switch in ("fully_shard", "overlap_grad_reduce", "overlap_param_gather")}
    arguments.remark("upper-bound", "warning", f"--{name} {strategy}: room is left for all of its buffers", name)
    if not arguments.has("hidden-size") or targets.get("layout.pipeline_parallel", 1) > 1:
        message = f"--{name} {strategy}: with a pipeline or a model by name Megatron's FSDP is not modelled"
        arguments.not_modelled(message, name)
    if targets.get("option.fp8_param_gather") == "true":
        # Weights are stored in 8 bits and in parts; transposes are made as they are gathered (README of megatron_fsdp).
        targets["option.fp8_weight_cache"] = "false"


def sharding_room(arguments: Arguments, targets: Targets, sizes: Mapping[str, Any]) -> float:
    """Return the most bytes of Megatron FSDP's buffers beyond the two layers and the table that ZeRO gathers.

    Gradients of 1e9 parameters, or of two layers, wait for their reduction, and half as many weights are gathered ahead
    (Megatron-LM d98e8a6, megatron_fsdp.py: 420 to 444); double buffers limit both to two layers. Experts are cut over
    the ranks that have the same ones (`_get_parameter_groups`, `is_expert_param`). Tables are not split into units:
    their weights and gradients are gathered whole (mcore_fsdp_adapter.py).
    """
    if targets.get("option.fully_shard") != "true" or "option.widened_gradients" in targets:
        for name in ("fsdp-double-buffer", "use-nccl-ub"):
            if arguments.switch("sharding_buffers", name):
                arguments.remark("not-modelled", "warning", f"--{name}: these buffers are not priced", name)
        return 0.0
    hidden: int = targets.get("model.hidden_size", _LARGEST_HIDDEN)
    width: float = targets.get("model.intermediate_size", 4 * hidden)
    experts = (sizes.get("num_experts") or 0) / targets.get("layout.expert_parallel", 1)
    width += experts * (sizes.get("moe_intermediate_size") or width)
    layer = hidden * (4 * hidden + 3 * width)
    table = (sizes.get("vocab_size") or _LARGEST_TABLE) * hidden
    doubled = arguments.any_switch("sharding_buffers", "fsdp-double-buffer", "use-nccl-ub")
    queue = FP32 * layer if doubled else (FP32 + HALF / 2.0) * max(_QUEUE, 2.0 * layer)
    return queue + (2.0 * FP32 + HALF) * table


def bias_room(arguments: Arguments, targets: Targets) -> float:
    """Return the most bytes of the table that `--use-alibi-mask` adds to the scores: 8-byte numbers of every head.

    Pai-Megatron-Patch a098ca5, megatron_patch/model/baichuan/language_model.py: of the tokens' type, on every rank.
    """
    on = arguments.switch("position_bias", "use-alibi-mask")
    sequence: int = targets.get("workload.seq_length", 0)
    heads: int = targets.get("model.num_attention_heads", 0)
    return 8.0 * heads * sequence**2 if on else 0.0


def drop_idle_exports(arguments: Arguments) -> None:
    """Drop the flags of post-training where nothing switches it on.

    From core_v0.15.3 on, pretrain_gpt.py and model_provider.py read them only beside `--modelopt-enabled`, which a
    loaded checkpoint or a teacher implies (megatron/post_training/utils.py); before, the flags themselves switch it on.
    """
    switches = ("modelopt-enabled", "load", "export-kd-teacher-load")
    if arguments.bags or any(arguments.has(name) or plain(name) in arguments.maybe for name in switches):
        return
    flags = [flag for name in arguments.entries if (flag := arguments.table.get(name)) and flag.file == _POST_TRAINING]
    cores = [match[1].split(".") for flag in flags if (match := _CORE.match(flag.first))]
    if any([*map(int, core)] >= _SWITCHED for core in cores):
        for flag in flags:
            arguments.entries.pop(flag.name)


def _set_recompute(arguments: Arguments, targets: Targets, layers: int | None, chunks: int) -> None:
    method = targets.pop("layout.recompute_method", "uniform")
    count = arguments.integer("recompute_layers", "recompute-num-layers", low=0)
    mode = targets.get("layout.recompute", "none")
    if mode == "selective":
        _set_modules(arguments, targets)
    if mode != "full":
        return
    if method != "block":
        targets["layout.recompute_layers"] = count or 1
        return
    pipeline = targets.get("layout.pipeline_parallel", 1)
    size = (layers or 0) // (pipeline * chunks)
    count = 1 if count is None else count
    spread = chunks > 1 and arguments.switch("recompute_layers", "enable-recompute-layers-per-pp-rank")
    if count == 0:
        targets["layout.recompute"] = "none"
    elif spread and count % chunks:
        # MindSpeed v2.1.0, core/transformer/transformer_block.py: layer l of chunk c where l x chunks + c < count.
        again = [(chunk, layer) for chunk in range(chunks) for layer in range(size) if layer * chunks + chunk < count]
        starts = [(chunk * pipeline + rank) * size + layer for chunk, layer in again for rank in range(pipeline)]
        targets |= {"layout.recompute_method": "list", "layout.recompute_layer_list": tuple(sorted(starts))}
    else:
        count = count // chunks if spread else count
        targets |= {"layout.recompute_method": "block", "layout.recompute_layers": min(count, size or count)}


def _set_modules(arguments: Arguments, targets: Targets) -> None:
    """Set the modules of selective recompute; `--moe-layer-recompute` is the older word for one of them."""
    words = re.findall(r"[^\s,\[\]'\"]+", arguments.text("recompute_modules", "recompute-modules") or "core_attn")
    known = MEGATRON.limits.recompute_modules
    if arguments.switch("recompute_modules", "moe-layer-recompute"):
        words.append("moe")
    for word in words:
        if word not in known:
            message = f"--recompute-modules {word[:40]}: allowed are {', '.join(known)}"
            arguments.not_modelled(message, "recompute-modules")
    if modules := tuple(module for module in known if module in words):
        targets["layout.recompute_modules"] = modules


def _set_offload(arguments: Arguments, targets: Targets) -> None:
    policy = arguments.text("offload", "optimizer-offload-policy")
    fraction = arguments.text("offload", "optimizer-offload-fraction")
    if policy is not None or arguments.text("offload", "optimizer") == "hybridadam":
        targets["layout.offload"] = "optimizer_tensorwise"
        if policy == "auto" and fraction is None:
            message = "how much of the optimizer is offloaded is decided during the run"
            fix = "--optimizer-offload-policy static with --optimizer-offload-fraction"
            arguments.not_modelled(message, "optimizer-offload-policy", fix=fix)
    layers = arguments.integer("offload", "cpu-offloading-num-layers", low=0)
    if layers or arguments.switch("offload", "cpu-offloading"):
        targets["layout.offload"] = "activations"
        if layers is not None and layers + 1 < targets.get("model.num_hidden_layers", 0):
            message = f"activations of {layers} layers only are offloaded"
            more = "; only those of all layers of a stage are modelled"
            arguments.not_modelled(message + more, "cpu-offloading-num-layers")


def _set_offloaded_modules(arguments: Arguments, targets: Targets) -> None:
    """Set the modules of `--fine-grained-activation-offloading`, without which they have no effect."""
    if not arguments.switch("offloaded_modules", "fine-grained-activation-offloading"):
        return
    words = re.findall(r"[^\s,\[\]'\"]+", arguments.text("offloaded_modules", "offload-modules") or "")
    if not words:
        message = "--fine-grained-activation-offloading needs --offload-modules"
        arguments.not_modelled(message, "fine-grained-activation-offloading", fix="add --offload-modules")
    elif set(words) - set(OFFLOADED_MODULES):
        message = f"--offload-modules {' '.join(words)[:60]}: allowed are {', '.join(OFFLOADED_MODULES)}"
        arguments.not_modelled(message, "offload-modules")
    targets["option.offloaded_modules"] = ",".join(word for word in OFFLOADED_MODULES if word in words)


def largest_batch(arguments: Arguments) -> int | None:
    """Return the largest batch of `--step-batch-size-schedule "0:768 250B:1536"`, which excludes a global batch.

    Fewer micro batches keep no more in flight, so it bounds the whole run (arguments.py:680 of core_v0.19.0).
    """
    name = "step-batch-size-schedule"
    text = arguments.text("global_batch_size", name)
    if text is None:
        return None
    steps = [_STEP.fullmatch(step) for step in text.strip("\"'").split()]
    sizes = [int(step[1]) for step in steps if step]
    if len(sizes) != len(steps) or not sizes:
        arguments.not_modelled(f"{name}: not read", name)
        return None
    arguments.remark("not-modelled", "warning", "the largest batch of the schedule is priced", name)
    return max(sizes)


def precision(arguments: Arguments) -> str | None:
    """Return the type of the matrix products; Megatron-LM's default is fp32."""
    narrow = arguments.text("precision", "fp8-format") or arguments.text("precision", "fp8-recipe")
    half = arguments.switch("precision", "bf16"), arguments.switch("precision", "fp16")
    if all(half):
        arguments.remark("contradiction", "error", "--bf16 and --fp16 are both given", "fp16", fix="drop one of them")
    if "precision" in arguments.incomplete:
        return None
    if arguments.text("precision", "fp4-format") is not None:
        recipe = arguments.text("precision", "fp4-recipe") or "nvfp4"
        if recipe not in FP4_RECIPES:
            arguments.not_modelled(f"--fp4-recipe {recipe[:40]}: known are {', '.join(FP4_RECIPES)}", "fp4-recipe")
        return "fp4"
    if narrow:
        return "fp8"
    if not any(half):
        message = "neither --bf16 nor --fp16: Megatron-LM trains in fp32"
        arguments.remark("full-precision", "warning", message, fix="add --bf16")
        return "fp32"
    return "bf16" if half[0] else "fp16"


def set_adapters(arguments: Arguments, targets: Targets, rank: int | None) -> None:
    """Set the linear layers with LoRA adapters (MindSpeed-LLM)."""
    layers = (arguments.text("lora_rank", "lora-target-modules") or "").split()
    places, kinds = places_of(layers), {"q+k+v+o+gate+up+down": "all", "q+k+v+o": "attention"}
    if rank is not None and places:
        targets["option.adapter_targets"] = kinds.get(places, places)
    elif rank is not None:
        message = f"LoRA on {' '.join(layers)[:120] or 'nothing'}: its layers are not known"
        arguments.not_modelled(message, "lora-target-modules", "lora-r")


def set_options(
    arguments: Arguments, targets: Targets, environment: Mapping[str, PlainValue] | None, layout: Layout
) -> None:
    """Correct the switches; `environment` is None where the recipe does not state it."""
    if environment is not None:
        _set_by_environment(arguments, targets, environment)
    if not _is_fused(arguments, environment or {}):
        targets |= _unfused(arguments)
    # TransformerEngine's loss, before 2.18: its gradient takes the logits' place.
    engine = arguments.text("fused_loss_bytes_per_logit", "cross-entropy-fusion-impl") == "te"
    targets |= {"option.fused_loss_bytes_per_logit": "2"} if engine else {}
    _set_types(arguments, targets)
    _set_context(arguments, targets, layout)
    _set_dispatch(arguments, targets)
    set_captured(arguments, targets)
    if not layout.offload.startswith("optimizer"):
        targets.pop("option.offload_fraction", None)
    if arguments.has("fp8-format", "fp4-format") and arguments.switch("fp8_inputs", name := "first-last-layers-bf16"):
        targets["option.fp8_inputs"] = "false"
        if targets.get("option.fp8_param_gather") == "true":
            arguments.not_modelled(f"--{name}: weights of which some are stored in 8 bits are not priced", name)
        if arguments.has("fp8-format") and targets.get("option.fp8_recipe", "delayed") == "delayed":
            message = f"--{name}: Megatron-LM does not start with it and delayed scaling"
            arguments.not_modelled(message, name, fix="--fp8-recipe tensorwise")
        arguments.remark("upper-bound", "warning", f"--{name}: what those layers keep is priced for all", name)
    arguments.forget("fp8_inputs")
    if targets.get("option.sharding_replicas", "1") == "1" or not layout.zero_stage:
        targets.pop("option.sharding_replicas", None)
    if arguments.switch("deferred_head_gradients", "defer-embedding-wgrad-compute"):
        limit = arguments.integer("deferred_head_gradients", "wgrad-deferral-limit", low=0)
        targets["option.deferred_head_gradients"] = str(limit or _ALL)
    # With sequence parallelism the flag has no effect: input gradients are always reduced asynchronously.
    name = "no-async-tensor-model-parallel-allreduce"
    if not layout.sequence_parallel and arguments.switch("overlap_tensor_gradients", name):
        targets["option.overlap_tensor_gradients"] = "false"


def _set_by_environment(arguments: Arguments, targets: Targets, environment: Mapping[str, PlainValue]) -> None:
    """Set the switches of environment variables: expandable segments, HCCL's buffer in MiB, blocking launches."""
    allocator = next((environment[name] for name in ALLOCATOR if name in environment), None)
    if allocator is not None and not allocator.known:
        arguments.need(allocator.causes, "expandable_segments")
    else:
        text = allocator.text.lower() if allocator else ""
        targets["option.expandable_segments"] = str("expandable_segments:true" in text).lower()
    size, waits = environment.get("HCCL_BUFFSIZE"), environment.get("CUDA_LAUNCH_BLOCKING")
    if size is not None and size.known and re.fullmatch(r"[1-9][0-9]{0,5}", size.text, re.ASCII):
        targets["option.communicator_buffer_mib"] = size.text
    if waits is not None and waits.known and waits.text == "1":
        targets["option.blocking_launches"] = "true"
    products = environment.get("CUBLAS_WORKSPACE_CONFIG")
    if products is not None and products.known and products.text == ":4096:8":
        targets["option.deterministic_kernels"] = "products"


def _is_fused(arguments: Arguments, environment: Mapping[str, PlainValue]) -> bool:
    """Whether attention is fused, as in TransformerEngine unless the environment forbids it."""
    if arguments.switch("flash_attention", "use-flash-attn"):
        return True
    if arguments.text("flash_attention", "attention-backend") in ("unfused", "local"):
        return False
    if arguments.text("flash_attention", "transformer-impl") == "local":
        return False
    off = [environment.get(name) for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")]
    return not all(value is not None and value.text == "0" for value in off)


def _unfused(arguments: Arguments) -> dict[str, str]:
    """Return the switches of attention without a flash kernel.

    Without TransformerEngine's or its own kernel the softmax is in fp32, then cast (NVIDIA/Megatron-LM d98e8a6,
    core/fusions/fused_softmax.py, `forward_torch_softmax`).
    """
    local = arguments.text("flash_attention", "transformer-impl") == "local"
    wide = arguments.switch("attention_matrix_bytes", "no-masked-softmax-fusion") and local
    return {"option.flash_attention": "false"} | ({"option.attention_matrix_bytes": "4"} if wide else {})


def _set_types(arguments: Arguments, targets: Targets) -> None:
    """Set the types of gradients, moments and master weights, and the fp8 recipe."""
    wide = arguments.switch("gradient_dtype", "accumulate-allreduce-grads-in-fp32")
    if arguments.has("fp16") and not wide and not arguments.has("bf16"):
        targets["option.gradient_dtype"] = "bf16"
    if arguments.switch("gradient_dtype", "use-precision-aware-optimizer"):
        moments = {arguments.text("optimizer_dtype", name) or "fp32" for name in ("exp-avg-dtype", "exp-avg-sq-dtype")}
        grads = arguments.text("gradient_dtype", "main-grads-dtype")
        masters = arguments.text("master_weight_dtype", "main-params-dtype")
        if grads in _DTYPES and not arguments.has("o2-gradient", "grad-reduce-in-bf16"):
            targets["option.gradient_dtype"] = _DTYPES[grads]
        if len(moments) == 1 and moments <= {*_DTYPES, "fp8"}:
            (moment,) = moments
            targets["option.optimizer_dtype"] = _DTYPES.get(moment, moment)
        else:
            arguments.not_modelled("moments in this type are not modelled", "exp-avg-dtype", "exp-avg-sq-dtype")
        if masters in _DTYPES:
            targets.setdefault("option.master_weight_dtype", _DTYPES[masters])
    if arguments.text("mixers", name := "dsa-kernel-backend") == "none":
        arguments.not_modelled("the scores that sparse attention keeps without a kernel are not priced", name)
    named = read_optimizer(arguments, "optimizer", "megatron", own={"sgd": "sgd_momentum"})
    targets |= {f"option.{name}": text for name, text in named.items()}
    recipe = arguments.text("fp8_recipe", "fp8-recipe")
    if recipe in FP8_RECIPES:
        targets["option.fp8_recipe"] = recipe
    elif recipe is not None:
        arguments.not_modelled(f"--fp8-recipe {recipe[:40]}: known are {', '.join(FP8_RECIPES)}", "fp8-recipe")
    scaling = arguments.text("fp4_recipe", "fp4-recipe")
    if scaling in FP4_RECIPES and arguments.has("fp4-format"):
        targets["option.fp4_recipe"] = scaling


def _set_context(arguments: Arguments, targets: Targets, layout: Layout) -> None:
    """Set the exchange of context parallelism; kinds listed per layer are priced only if all are equal."""
    inner = targets.pop("option.cp_inner_degree", None)
    if layout.context_parallel == 1:
        return
    names = ("cp-comm-type", "context-parallel-algo")
    words = re.findall(r"[\w+]+", arguments.text("cp_communication", *names) or "")
    known = read_words("context")
    kinds = {known.get(word, "") for word in words}
    if len(kinds) > 1 or "" in kinds:
        message = f"context parallelism by {', '.join(sorted(set(words)))[:60]} is priced as a ring"
        arguments.remark("not-modelled", "warning", message, *names)
    elif kinds and kinds != {"ring"}:
        targets["option.cp_communication"] = kinds.pop()
    if targets.get("option.cp_communication") == "all_to_all_ring":
        # The innermost of Megatron's sizes, or MindSpeed's degree.
        text = arguments.text("cp_inner_degree", "hierarchical-context-parallel-sizes") or ""
        sizes = re.findall(r"[0-9]{1,5}", text)
        if sizes or inner:
            targets["option.cp_inner_degree"] = sizes[0] if sizes else inner


def _set_dispatch(arguments: Arguments, targets: Targets) -> None:
    """Set the dispatch of tokens to experts, and their imbalance, which a capacity limits."""
    if arguments.switch("deterministic_kernels", name := "deterministic-mode"):
        targets["option.deterministic_kernels"] = "all"
        arguments.remark("not-modelled", "warning", f"--{name}: slower kernels are not priced", name)
    kind = arguments.text("expert_dispatch", "moe-token-dispatcher-type")
    backend = arguments.text("expert_dispatch", "moe-flex-dispatcher-backend") or "deepep"
    if kind in ("alltoall", "alltoall_seq", "allgather"):
        targets["option.expert_dispatch"] = kind.removesuffix("_seq")
    elif kind == "flex" and backend in ("deepep", "hybridep"):
        targets["option.expert_dispatch"] = backend
    factor = arguments.share("expert_imbalance", "moe-expert-capacity-factor", most=64.0)
    padded = arguments.switch("expert_imbalance", "moe-pad-expert-input-to-capacity")
    if factor is not None and (padded or float(factor) < 1.0):
        targets["option.expert_imbalance"] = factor


def usual_experts(arguments: Arguments) -> dict[str, str]:
    """Return the switches of experts that Megatron-LM's defaults set (core_v0.6.0 to core_v0.19.0), unless set.

    The dispatcher is the all-gather, and without `--moe-grouped-gemm` each expert is a module.
    """
    if not arguments.has("num-experts") or arguments.has("deepspeed"):
        return {}
    stated = arguments.has("moe-token-dispatcher-type", "overlap-moe-expert-parallel-comm")
    grouped = arguments.switch("grouped_experts", "moe-grouped-gemm")
    return ({} if stated else {"expert_dispatch": "allgather"}) | ({} if grouped else {"grouped_experts": "false"})


def remark_contradictions(arguments: Arguments, layout: Layout) -> None:
    """Remark flags that contradict each other."""
    if arguments.has("recompute-activations") and layout.recompute == "full":
        message = "--recompute-activations is selective, --recompute-granularity full counts"
        fix = "drop --recompute-activations"
        arguments.remark("contradiction", "warning", message, "recompute-activations", fix=fix)
    tensor = layout.tensor_parallel
    if tensor > 1 and not layout.sequence_parallel and "sequence_parallel" not in arguments.incomplete:
        message = f"tensor parallel {tensor} without --sequence-parallel keeps whole activations between the layers"
        fix = "add --sequence-parallel"
        arguments.remark("no-sequence-parallel", "warning", message, "tensor-model-parallel-size", fix=fix)
    if arguments.has("rampup-batch-size"):
        arguments.remark("not-modelled", "warning", "the global batch after its ramp is priced", "rampup-batch-size")
    if arguments.text("transformer", "transformer-type") == "huggingface":
        # Pai-Megatron-Patch a098ca5, examples/*/finetune_huggingface_*.py: AutoModelForCausalLM.from_pretrained, whose
        # sizes are the checkpoint's and whose layers are those of transformers; megatron_patch/training.py wraps it.
        message = "--transformer-type huggingface: transformers builds the layers, of the sizes that the checkpoint has"
        arguments.not_modelled(message, "transformer-type")
    if arguments.has("recompute-method") and layout.recompute == "none" and "recompute" not in arguments.incomplete:
        message = "--recompute-method has no effect without --recompute-granularity full"
        arguments.remark("contradiction", "warning", message, "recompute-method")


_SEEING: Final = (
    *("img_h", "img_w", "patch_dim", "freeze_lm", "decoder_seq_length", "recompute_vision", "language_model_type"),
    "disable_vision_class_token",
)


def with_encoder(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run with the encoder that flags name: on the first stage, its images as many as a sequence holds.

    Read at NVIDIA/Megatron-LM 00caa53 (`examples/multimodal/model.py`, `multimodal_args.py`).
    """
    if run.layout is None or not arguments.has(*_SEEING):
        return run
    known: Any = read_yaml(Path(__file__).with_name("vision.yaml"))
    inner = known["projectors"].get(arguments.text("model", "language_model_type"))
    network = known["encoders"].get(arguments.text("encoder", "vision_model_type") or "clip")
    width, height, patch = (arguments.integer("encoder", name) for name in ("img_w", "img_h", "patch_dim"))
    if inner is None or network is None or width is None or width != height or patch is None:
        message = "vision models are not priced, but decoders behind encoders of square tiles in examples/multimodal"
        arguments.not_modelled(message, *_SEEING, "vision_model_type")
        return run
    sizes = dict(zip("Lhi", network, strict=False)) | {"p": patch, "e": width, "f": inner}
    heads, hidden = (int(str(run.shape.get(key, 1))) for key in ("num_attention_heads", "hidden_size"))
    tensor = run.layout.tensor_parallel
    # InternViT's 25 heads are as wide as the decoder's, and padded to a multiple of the tensor ranks.
    all_heads = network[3] * network[4] or (24 // tensor + 1) * tensor * (hidden // heads)
    sizes |= {"q": all_heads, "g": 1 + arguments.switch("encoder", "pixel_shuffle"), "o": hidden}
    trained = not arguments.switch("encoder", "freeze_vit")
    if not arguments.switch("recompute", "recompute_vision") and trained and run.layout.recompute == "full":
        arguments.not_modelled("an encoder that keeps what the decoder computes again is not priced", *_SEEING[:2])
    if tensor > 1:
        message = "the encoder is divided over tensor ranks; each is priced with all of it"
        arguments.remark("upper-bound", "warning", message, "vision_model_type", bound="state")
    if not arguments.has("packing_buffer_size"):
        note_samples(arguments, "decoder_seq_length" if arguments.has("decoder_seq_length") else "seq_length")
    decoder = not arguments.switch("decoder", "freeze_lm")
    run = dataclasses.replace(
        run,
        seq_length=arguments.integer("seq_length", "decoder_seq_length") or run.seq_length,
        model_fields={**run.model_fields, "encoder": {"kind": "megatron", "sizes": sizes}},
    )
    return models.of_parts(arguments, run, 0 if trained else None, projector=True, decoder=decoder)
