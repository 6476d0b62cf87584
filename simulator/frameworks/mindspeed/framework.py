"""Reader of MindSpeed's flags beside its table; scripts name no release: the oldest that has their flags is assumed."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.documents import as_text
from simulator.frameworks.flags import table_of
from simulator.frameworks.framework import Extension, Framework
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.stacks import releases
from simulator.records import Record

_PREFERENCES: Final = ("dpo",)  # stages that compare a chosen with a rejected answer, under a frozen copy of the model
_SCORES: Final = ("rm", "orm")  # stages that train a score in place of the logits
_STAGES: Final = frozenset(("sft", "pt", "simpo", "orpo", *_PREFERENCES, *_SCORES))
_RELEASE: Final = re.compile(r"MindSpeed(?:-LLM)?-v(\d+)\.(\d+)")
_CORE: Final = re.compile(r"core_v0\.(\d+)")
_EARLY_CORE: Final = 8
"""Megatron core of MindSpeed-LLM up to v2.1 (docs/pytorch/install_guide.md); MindSpeed v2.1.0 also runs on 0.12."""
_LAST_ON_EARLY_CORE: Final = "MindSpeed-LLM-v2.1"
_REPEATED_AS_NEEDED: Final = (2, 3)
_VARIABLE: Final = ("variable-seq-lengths", "no-pad-to-seq-lengths")
_EXCHANGES: Final = ("context-parallel-algo", "cp-comm-type")
Options = dict[str, str]
"""Switches as text, by name."""


def extended(arguments: Arguments, run: Recipe, _: LaunchCommand | None) -> Recipe:
    """Return the run with MindSpeed's behaviour; runs of other stacks unchanged."""
    if not is_mindspeed(arguments) or run.layout is None:
        return run
    release = release_of(arguments)
    layers = arguments.integer("num_hidden_layers", "num-layers", low=0)
    layers = layers or (models.load_model(run.model).num_hidden_layers if run.model else 0)
    facts = _Facts(arguments, run.layout, release, layers)
    own = {name: as_text(value) for name, value in releases()[release].items()}
    own |= _kept_tensors(facts) | _recomputed(facts) | _trained(arguments) | _kernels(facts) | _overlapped(facts)
    own |= _runtime(arguments)
    options = own | dict(run.options)
    options |= _exchange(facts, run, options)
    return dataclasses.replace(run, stack="mindspeed-llm", options=options)


def is_mindspeed(arguments: Arguments) -> bool:
    """Whether a run has flags that only MindSpeed has, and not DeepSpeed's engine."""
    own, others = table_of("mindspeed"), table_of("megatron", "pai", "flagscale")
    return not arguments.has("deepspeed") and any(name in own and name not in others for name in arguments.entries)


class _Facts(Record):
    """Inputs of a run's switches."""

    arguments: Arguments
    layout: Layout
    release: str
    layers: int
    """Layers of the model, no-op layers included; 0 where unknown."""

    @property
    def is_legacy(self) -> bool:
        """Whether the models are MindSpeed's legacy ones, not those of Megatron's core."""
        return not self.arguments.has("use-mcore-models")

    @property
    def is_oldest(self) -> bool:
        """Whether the release is the oldest in the table."""
        return self.release == next(iter(releases()))

    @property
    def number(self) -> tuple[int, int]:
        """The release as a number."""
        return _number(self.release)


def release_of(arguments: Arguments) -> str:
    """Return the oldest release that has all flags of a run that change memory or speed."""
    tables = table_of("mindspeed"), table_of("megatron")
    needed = [(0, 0)]
    for name in arguments.entries:
        flags = [table[name] for table in tables if name in table]
        if flags and flags[0].effect != "no_effect":
            needed.append(min(_since(flag.first) for flag in flags))
    # The core's own implementation became the default with v26, whose scripts ask for the local one.
    if arguments.text("flash_attention", "transformer-impl") == "local":
        needed.append((26, 0))
    return next(name for name in releases() if _number(name) >= max(needed) or name == [*releases()][-1])


def _since(version: str) -> tuple[int, int]:
    """Return the first release of MindSpeed with a flag, by the version of MindSpeed or Megatron's core that has it."""
    if version.startswith(_LAST_ON_EARLY_CORE):
        return _number(next(iter(releases())))
    if own := _RELEASE.match(version):
        return int(own[1]), int(own[2])
    core = _CORE.match(version)
    return (2, 1) if core and int(core[1]) > _EARLY_CORE else (0, 0)


def _number(stack: str) -> tuple[int, int]:
    major, _, minor = stack.rpartition("v")[2].partition(".")
    return int(major), int(minor or 99)


def _kernels(facts: _Facts) -> Options:
    """Return the switches of fused kernels: rotation, legacy norms and SwiGLU, the experts' products.

    MindSpeed v1.0.RC3_core_r0.6.0, docs/features: rotary-embedding, megatron_moe/megatron-moe-gmm and
    megatron-moe-allgather-dispatcher. Experts without grouped products are sliced up to core 0.8; gathers by element
    are what `--moe-permutation-async-comm` gives the all-gather dispatcher there.
    """
    arguments = facts.arguments
    own = {"fused_rotary": "false"}
    if facts.is_legacy:
        for switch, flag in (("fused_rms_norm", "use-fused-rmsnorm"), ("fused_swiglu", "use-fused-swiglu")):
            own[switch] = str(arguments.switch(switch, flag)).lower()
    if arguments.has("num-experts") and facts.is_oldest:
        own["sliced_experts"] = str(not arguments.has("moe-grouped-gemm")).lower()
        own["indexed_dispatch"] = str(_gathers(arguments)).lower()
    return own


def _gathers(arguments: Arguments) -> bool:
    """Whether the all-gather dispatcher moves tokens element by element."""
    kind = arguments.text("expert_dispatch", "moe-token-dispatcher-type")
    return kind == "allgather" and arguments.switch("indexed_dispatch", "moe-permutation-async-comm")


def _exchange(facts: _Facts, run: Recipe, options: Options) -> Options:
    """Return the default exchange of context parallelism, and whether key-value heads are repeated for it.

    Tokens for heads up to v2.0, later a ring: `--context-parallel-algo` of MindSpeed v1.0.RC2 to v2.1.0_core_r0.8.0,
    mindspeed/arguments.py; from v2.1.0_core_r0.12.1 on features_manager/context_parallel/context_parallel_feature.py
    defines it again. The former fail where the heads do not divide (v2.0.0_core_r0.8.0, mindspeed/arguments.py:744).
    """
    arguments, layout = facts.arguments, facts.layout
    if layout.context_parallel == 1:
        return {}
    heads = arguments.integer("num_attention_heads", "num-attention-heads") or 0
    own: Options = {}
    even = heads % (layout.tensor_parallel * layout.context_parallel) == 0
    if not arguments.has(*_EXCHANGES) and facts.is_oldest and even:
        message = "context parallelism exchanges tokens for heads, the default of MindSpeed up to v2.0"
        fix = "add --context-parallel-algo ulysses_cp_algo or megatron_cp_algo"
        arguments.remark(
            "release-assumed", "note", f"{message}; later ones have a ring", "context-parallel-size", fix=fix
        )
        own["cp_communication"] = "all_to_all"
    kind = {**options, **own}.get("cp_communication", "ring")
    shared = run.model_fields.get("num_key_value_heads")
    shared = shared or (models.load_model(run.model).num_key_value_heads if run.model else None)
    if kind.startswith("all_to_all") and isinstance(shared, int):
        exchanging = int(options.get("cp_inner_degree", layout.context_parallel))
        own |= _repeated_heads(facts, heads, shared // layout.tensor_parallel, exchanging)
    return own


def _repeated_heads(facts: _Facts, queries: int, heads: int, exchanging: int) -> Options:
    """Return whether key-value heads are repeated to the query heads before the exchange, as a switch.

    Up to v2.2.0 always (core/transformer/dot_product_attention.py:246, --kv-head-repeat-before-uly-alltoall), later
    where a rank's `heads` are fewer than the ranks that exchange: MindSpeed v26.0.0, ulysses_context_parallel.py:187.
    """
    arguments = facts.arguments
    if queries <= (arguments.integer("num_key_value_heads", "num-query-groups") or queries):
        return {}
    always = facts.number < _REPEATED_AS_NEEDED
    if always and heads >= exchanging:
        message = (
            "key-value heads are priced as repeated, as MindSpeed up to v2.2 does; later ones repeat what is needed"
        )
        arguments.remark("upper-bound", "warning", message, "context-parallel-algo", "context-parallel-size")
    return {"repeat_kv": "true"} if always or heads < exchanging else {}


def _kept_tensors(facts: _Facts) -> Options:
    """Return the switches of masks, position tables, boundary tensors and dispatchers' buffers."""
    arguments = facts.arguments
    own: Options = {}
    variable = arguments.any_switch("kept_boundaries", *_VARIABLE)
    if facts.is_legacy:
        own["attention_mask"] = "none" if variable else "layers"
    elif arguments.text("attention_mask", "attention-mask-type") == "general":
        own["attention_mask"] = _general_mask(facts)
    if arguments.text("position_embedding_type", "position-embedding-type") == "alibi":
        own |= _bias_tables(facts)
    if variable:
        # Tensor sizes travel with every micro batch: mindspeed/core/pipeline_parallel, variable_seq_lengths.
        own["kept_boundaries"] = "false"
    if not arguments.has("recompute-granularity"):
        # Routed hidden states of the last micro batch that a dispatcher's attributes reference.
        if arguments.switch("kept_dispatches", "moe-alltoall-overlap-comm"):
            own["kept_dispatches"] = "3"
        elif _gathers(arguments) and not facts.is_oldest:
            own["kept_dispatches"] = "8"
    arguments.forget("attention_mask", "position_embedding_type", "kept_boundaries", "kept_dispatches")
    return own


def _bias_tables(facts: _Facts) -> Options:
    """Return the switches of ALiBi's tables, and of the masks that every layer's attention makes beside them.

    `Alibi` is one object for all layers (MindSpeed-LLM v1.0.RC3, modellink/model/alibi.py; v26.1.0,
    tasks/models/common/alibi.py). A squared mask filled with infinity makes a table of all heads, from it one for every
    sequence, and the newer core a third at the start; otherwise only a flash kernel's covers every score. A ring of
    ranks passes only slopes (MindSpeed 028de58c, features_manager/context_parallel/context_parallel_feature.py), or
    nothing.
    """
    arguments = facts.arguments
    flash = arguments.switch("attention_mask", "use-flash-attn")
    filled = [arguments.switch("position_bias_tables", name) for name in ("square-alibi-mask", "fill-neg-inf")]
    arguments.forget("position_bias_tables")
    if facts.layout.context_parallel > 1:
        return {}
    own = {"attention_mask": "layers"} if flash else {}
    if all(filled):
        return own | {"position_bias_tables": "2" if facts.is_legacy else "3"}
    return own | ({"position_bias_tables": "1"} if flash else {})


def _general_mask(facts: _Facts) -> str:
    """Return the mask of `--attention-mask-type general`; with reset masks, lengths of documents may replace it.

    features_manager/megatron_basic/training_basic.py of MindSpeed-LLM: from v2.3.0 on the loader makes no mask if
    tokens are exchanged for heads, from v26.0.0 on none, and get_attention_mask of MindSpeed (model/transformer.py:66
    of v26.0.0) then returns one of 2048 x 2048, unless a ring makes its own.
    """
    arguments = facts.arguments
    if not arguments.switch("attention_mask", "reset-attention-mask"):
        return "sequence"
    ulysses = arguments.text("cp_communication", "context-parallel-algo") == "ulysses_cp_algo"
    alone = facts.layout.context_parallel == 1
    if (ulysses and facts.number >= (2, 3)) or (alone and facts.number >= (26, 0)):
        return "compressed"
    message = "the mask of the whole sequence is priced; the ring makes those of its parts alone"
    if ulysses:
        message = (
            "the mask of the whole sequence, which MindSpeed-LLM before v2.3 makes, is priced; later ones make none"
        )
    if ulysses or facts.number >= (26, 0):
        arguments.remark("upper-bound", "warning", message, "reset-attention-mask")
    return "sequence"


def _recomputed(facts: _Facts) -> Options:
    """Return the shares of layers whose activation functions, norms, experts or networks are recomputed."""
    arguments, layout = facts.arguments, facts.layout
    layers = max(facts.layers / layout.pipeline_parallel, 1.0)
    own: Options = {}

    def share(switch: str, flag: str, freed: float) -> None:
        count = arguments.integer(switch, flag, low=0)
        own[switch] = f"{freed if count is None else freed * min(count / layers, 1.0):.9g}"

    if arguments.switch("recomputed_activation_share", "recompute-activation-function"):
        share("recomputed_activation_share", "recompute-activation-function-num-layers", 1.0)
    if arguments.switch("recomputed_norm_share", "recompute-norm"):
        # With sequence parallelism the product after a norm keeps its part of the input anyway: seen in the peak
        # of v2.0.0's llama3_mcore_tp2_pp2_vpp2_noop_layer.
        share("recomputed_norm_share", "recompute-norm-num-layers", 0.0 if layout.sequence_parallel else 1.0)
    # MindSpeed v26.0.0, megatron-moe-zero-memory.md: 70 and 90 % of what recomputing the experts whole frees.
    freed = {"level0": 0.7, "level1": 0.9}.get(arguments.text("recomputed_expert_share", "moe-zero-memory") or "")
    if freed is not None:
        share("recomputed_expert_share", "moe-zero-memory-num-layers", freed)
    # MindSpeed v2.1.0, docs/features/swap_attention.md: the count is then of recomputed networks.
    if arguments.switch("swapped_attention", "swap-attention") and not arguments.has("recompute-granularity"):
        chunks = 1 if arguments.has("enable-recompute-layers-per-pp-rank") else layout.virtual_stages
        count = arguments.integer("recompute_layers", "recompute-num-layers", low=0) or 0
        own["recomputed_network_share"] = f"{min(count * chunks / layers, 1.0):.9g}"
    return own


def _trained(arguments: Arguments) -> Options:
    """Return the switches of a second model, or of scores in place of logits; refuse stages that train more."""
    stage = arguments.text("stage", "stage")
    if stage and stage not in _STAGES:
        message = f"--stage {stage[:40]}: a second model or a head beside the language model's is not modelled"
        arguments.not_modelled(message, "stage")
    own = {"frozen_reference": "true", "reference_forward": "true"} if stage in _PREFERENCES else {}
    # MindSpeed-LLM 015ce048, mindspeed_llm/tasks/posttrain/orm/orm_model.py: the inherited output layer stays, without
    # gradients.
    return own | ({"score_head": "true", "unused_output_layer": "true"} if stage in _SCORES else {})


def _runtime(arguments: Arguments) -> Options:
    """Return the switch of MindSpore, which runs the same Python code.

    MSAdapter maps PyTorch's functions to MindSpore's operators one by one (Ascend/MindSpeed-Core-MS,
    docs/develop_guide.md), so what a step keeps is the same; the pool and the kernels' workspaces are its own.
    """
    runtime = arguments.text("unmeasured_runtime", "ai-framework") or "pytorch"
    arguments.forget("unmeasured_runtime")
    if runtime == "mindspore":
        message = "--ai-framework mindspore: no run on it was measured; priced as on PyTorch, in a wider range"
        arguments.remark("not-modelled", "warning", message, "ai-framework")
        return {"unmeasured_runtime": "true"}
    if runtime != "pytorch":
        arguments.not_modelled(f"--ai-framework {runtime[:20]}: allowed are pytorch and mindspore", "ai-framework")
    return {}


def _overlapped(facts: _Facts) -> Options:
    """Return the switches of forward passes that overlap backward ones of other micro batches, in a pipeline.

    The second forward pass of recomputed layers is not overlapped (MindSpeed 028de58c, overlap_funcs/bwd.py).
    """
    arguments, layout = facts.arguments, facts.layout
    overlaps = arguments.switch("fb_overlap", "moe-fb-overlap") and layout.pipeline_parallel > 1
    if not overlaps:
        return {}
    if layout.recompute != "full":
        return {"overlap_expert_exchange": "true", "delayed_weight_gradients": "true"}
    message = "--moe-fb-overlap beside full recompute: the exchange's time is priced as exposed"
    arguments.remark("not-modelled", "warning", message, "moe-fb-overlap")
    return {"delayed_weight_gradients": "true"}


FRAMEWORK: Final = Framework(
    title="MindSpeed and MindSpeed-LLM",
    profile="megatron",
    extends="megatron",
    order=20,
    extension=Extension(extend=extended),
)
