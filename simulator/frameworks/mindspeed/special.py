"""What MindSpeed's own flags set: its release, what it keeps, what it does again, and what training is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.flags import flags_of
from simulator.question.frameworks.mindspeed import MINDSPEED
from simulator.question.scenario.layout import Layout
from simulator.recipes.readers.megatron_flags import FLAGS
from simulator.recipes.readers.megatron_flags import MINDSPEED as OWN

PREFERENCES: Final = ("dpo",)
"""Stages that compare a chosen and a rejected answer under a frozen copy of the model."""
PAIRS: Final = ("dpo", "simpo", "orpo", "rm", "orm")
"""Stages whose samples are pairs, where `--is-pairwise-dataset` says so."""
SCORES: Final = ("rm", "orm")
"""Stages that train one score instead of the logits."""
STAGES: Final = frozenset(("sft", "pt", *PREFERENCES, *PAIRS, *SCORES))
_RELEASE: Final = re.compile(r"MindSpeed(?:-LLM)?-v(\d+)\.(\d+)")
_CORE: Final = re.compile(r"core_v0\.(\d+)")
_EARLY_CORE: Final = 8
"""Megatron's core below MindSpeed-LLM up to v2.1 (docs/pytorch/install_guide.md); MindSpeed v2.1.0 is on 0.12 too."""
_LAST_ON_EARLY_CORE: Final = "MindSpeed-LLM-v2.1"
_REPEATED_AS_NEEDED: Final = (2, 3)
_VARIABLE: Final = ("variable-seq-lengths", "no-pad-to-seq-lengths")


def is_mindspeed(given: Given) -> bool:
    """Whether a launch has flags that only MindSpeed has.

    Names of another framework's files and commands that stand for Megatron's flags are that framework's, and a launch
    of DeepSpeed's engine has its own.
    """
    scripted = given.complete and dict(given.table) == FLAGS and not given.has("deepspeed")
    return scripted and any(name in OWN for name in given.entries)


def is_legacy(given: Given) -> bool:
    """Whether the models are MindSpeed's older ones instead of those of Megatron's core."""
    return is_mindspeed(given) and not given.has("use-mcore-models")


def release_of(given: Given) -> str:
    """The stack of the oldest release that has the flags of a launch, as far as they matter; scripts name none."""
    tables = flags_of("mindspeed"), flags_of("megatron")
    found = [(0, 0)]
    for name in given.entries:
        flags = [table[name] for table in tables if name in table]
        if flags and flags[0].effect != "no_effect":
            found.append(min(_since(flag.first) for flag in flags))
    # The core's own implementation became the default with v26, whose scripts ask for the local one.
    if given.text("flash_attention", "transformer-impl") == "local":
        found.append((26, 0))
    return next(name for name in MINDSPEED if _number(name) >= max(found) or name == [*MINDSPEED][-1])


def _since(version: str) -> tuple[int, int]:
    """The release of MindSpeed that has a flag of this version of it, or of Megatron's core."""
    if version.startswith(_LAST_ON_EARLY_CORE):
        return _number(next(iter(MINDSPEED)))
    if own := _RELEASE.match(version):
        return int(own[1]), int(own[2])
    core = _CORE.match(version)
    return (2, 1) if core and int(core[1]) > _EARLY_CORE else (0, 0)


def _number(stack: str) -> tuple[int, int]:
    major, _, minor = stack.rpartition("v")[2].partition(".")
    return int(major), int(minor or 99)


def mindspeed_options(given: Given, layout: Layout, places: int | None) -> Mapping[str, str]:
    """Switches of a MindSpeed launch: of its release, and of its flags."""
    if not is_mindspeed(given):
        return {}
    found = {name: _text(value) for name, value in MINDSPEED[release_of(given)].items()}
    return found | _kept(given) | _again(given, layout, places) | _trained(given) | _kernels(given)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_FUSED_EVERYWHERE: Final = {"fused_rotary": "use-fused-rotary-pos-emb"}
_FUSED_IN_LEGACY: Final = {"fused_rms_norm": "use-fused-rmsnorm", "fused_swiglu": "use-fused-swiglu"}
"""Kernels that models of Megatron's core have by default, the older ones where a flag asks for them."""


def _kernels(given: Given) -> dict[str, str]:
    """What runs as one kernel: rotation, a collective with its product (MC2), a device's experts, moving their tokens.

    MindSpeed v1.0.RC3_core_r0.6.0, docs/features: rotary-embedding, mc2, megatron_moe/megatron-moe-gmm and
    megatron-moe-allgather-dispatcher. MC2 is for sequence parallelism. Experts without grouped products are sliced up
    to core 0.8; gathers by element are what `--moe-permutation-async-comm` gives the all-gather dispatcher there.
    """
    asked = _FUSED_EVERYWHERE | (_FUSED_IN_LEGACY if is_legacy(given) else {})
    found = {switch: str(given.switch(switch, name)).lower() for switch, name in asked.items()}
    if any(given.switch("fused_collectives", name) for name in ("use-mc2", "use-ascend-mc2")):
        found["fused_collectives"] = "true"
    if given.has("num-experts") and release_of(given) == next(iter(MINDSPEED)):
        found["sliced_experts"] = str(not given.has("moe-grouped-gemm")).lower()
        gathers = given.text("expert_dispatch", "moe-token-dispatcher-type") == "allgather"
        permutes = given.switch("indexed_dispatch", "moe-permutation-async-comm")
        found["indexed_dispatch"] = str(gathers and permutes).lower()
    return found


def overlapped(options: Mapping[str, str]) -> dict[str, str]:
    """Fused collectives are overlapped, whatever Megatron's own flag says."""
    return {"tp_comm_overlap": "true"} if options.get("fused_collectives") == "true" else {}


def usual_exchange(given: Given, layout: Layout) -> str:
    """How context parallelism exchanges where no flag tells it: tokens for heads up to v2.0, later in a ring.

    `--context-parallel-algo` of MindSpeed v1.0.RC2 to v2.1.0_core_r0.8.0, mindspeed/arguments.py; from
    v2.1.0_core_r0.12.1 on features_manager/context_parallel/context_parallel_feature.py defines it again. The former
    end where the heads do not divide (v2.0.0_core_r0.8.0, mindspeed/arguments.py:744).
    """
    heads = given.integer("num_attention_heads", "num-attention-heads") or 0
    splits = layout.tensor_parallel * layout.context_parallel
    if not is_mindspeed(given) or release_of(given) != next(iter(MINDSPEED)) or heads % splits:
        return "ring"
    said = "context parallelism exchanges tokens for heads, the default of MindSpeed up to v2.0; later ones have a ring"
    fix = "add --context-parallel-algo ulysses_cp_algo or megatron_cp_algo"
    given.remark("release-assumed", "note", said, "context-parallel-size", fix=fix)
    return "all_to_all"


def repeated_heads(given: Given, heads: int, exchanging: int) -> dict[str, str]:
    """Whether key-value heads are repeated to the query heads before tokens are exchanged for heads.

    Up to v2.2.0 always (core/transformer/dot_product_attention.py:246, --kv-head-repeat-before-uly-alltoall), later
    where a rank's `heads` are fewer than the ranks that exchange: MindSpeed v26.0.0, ulysses_context_parallel.py:187.
    """
    queries = given.integer("num_attention_heads", "num-attention-heads") or 0
    shared = queries > (given.integer("num_key_value_heads", "num-query-groups") or queries)
    if not shared or not is_mindspeed(given):
        return {}
    always = _number(release_of(given)) < _REPEATED_AS_NEEDED
    if always and heads >= exchanging:
        said = "key-value heads are priced as repeated, as MindSpeed up to v2.2 does; later ones repeat what is needed"
        given.remark("upper-bound", "warning", said, "context-parallel-algo", "context-parallel-size")
    return {"repeat_kv": "true"} if always or heads < exchanging else {}


def _kept(given: Given) -> dict[str, str]:
    """Masks, tables of positions, boundary tensors, what dispatchers keep."""
    found: dict[str, str] = {}
    variable = any(given.switch("kept_boundaries", name) for name in _VARIABLE)
    if is_legacy(given):
        found["attention_mask"] = "none" if variable else "layers"
    elif given.text("attention_mask", "attention-mask-type") == "general":
        found["attention_mask"] = _general_mask(given)
    if given.text("position_embedding_type", "position-embedding-type") == "alibi":
        found["position_bias_tables"] = "true"
        if given.switch("attention_mask", "use-flash-attn"):
            # Every layer's attention builds its own: dot_product_attention.py of MindSpeed-LLM v1.0.RC3 to v26.1.0, and
            # legacy/model/transformer.py of v2.0.0; of three readings the nearest to baichuan2_13b's bytes in v2.0.0.
            found["attention_mask"] = "layers"
    if variable:
        # Sizes are sent with every micro batch: mindspeed/core/pipeline_parallel, variable_seq_lengths.
        found["kept_boundaries"] = "false"
    if not given.has("recompute-granularity"):
        found |= _dispatched(given)
    for option in ("attention_mask", "position_embedding_type", "kept_boundaries", "kept_dispatches"):
        given.places.pop(option, None)
    return found


def _general_mask(given: Given) -> str:
    """The mask of `--attention-mask-type general`; documents that are told apart have their lengths in its place.

    features_manager/megatron_basic/training_basic.py of MindSpeed-LLM: from v2.3.0 on the loader makes none beside
    tokens for heads, from v26.0.0 on none at all, and get_attention_mask of MindSpeed (model/transformer.py:66 of
    v26.0.0) then takes the one of 2048 x 2048, unless a ring makes its own.
    """
    if not given.switch("attention_mask", "reset-attention-mask"):
        return "sequence"
    release = _number(release_of(given))
    parts = given.integer("cp", "context-parallel-size", high=2**16) or 1
    ulysses = given.text("cp_communication", "context-parallel-algo") == "ulysses_cp_algo"
    if (ulysses and release >= (2, 3)) or (parts == 1 and release >= (26, 0)):
        return "compressed"
    if ulysses:
        said = "the mask of the whole sequence, which MindSpeed-LLM before v2.3 makes, is priced; later ones make none"
        given.remark("upper-bound", "warning", said, "reset-attention-mask")
    elif release >= (26, 0):
        said = "the mask of the whole sequence is priced; the ring makes those of its parts alone"
        given.remark("upper-bound", "warning", said, "reset-attention-mask")
    return "sequence"


def _dispatched(given: Given) -> dict[str, str]:
    """What a dispatcher's attributes hold of the last micro batch, in routed hidden states."""
    if given.switch("kept_dispatches", "moe-alltoall-overlap-comm"):
        return {"kept_dispatches": "3"}
    gathers = given.text("kept_dispatches", "moe-token-dispatcher-type") == "allgather"
    permutes = given.switch("kept_dispatches", "moe-permutation-async-comm")
    return {"kept_dispatches": "8"} if gathers and permutes and release_of(given) != next(iter(MINDSPEED)) else {}


_REPEATED: Final = (
    (
        "recomputed_activation_share",
        "recompute-activation-function",
        "recompute-activation-function-num-layers",
    ),
    ("recomputed_norm_share", "recompute-norm", "recompute-norm-num-layers"),
)
"""Switch, flag, and the flag that says for how many layers of a pipeline rank."""


def _again(given: Given, layout: Layout, places: int | None) -> dict[str, str]:
    """Shares of the layers whose activation functions, norms or experts are done again."""
    found: dict[str, str] = {}
    layers = max((places or 0) / layout.pipeline_parallel, 1.0)
    for switch, name, layers_of in _REPEATED:
        # With sequence parallelism the product behind a norm keeps its part of the input all the same: seen in the peak
        # of v2.0.0's llama3_mcore_tp2_pp2_vpp2_noop_layer.
        freed = 0.0 if name == "recompute-norm" and layout.sequence_parallel else 1.0
        if given.switch(switch, name):
            found[switch] = _share(given, switch, layers_of, layers, freed)
    # MindSpeed v26.0.0, megatron-moe-zero-memory.md: 70 and 90 % of what recomputing the experts whole frees.
    level = given.text("recomputed_expert_share", "moe-zero-memory")
    if level in ("level0", "level1"):
        freed = 0.7 if level == "level0" else 0.9
        found["recomputed_expert_share"] = _share(
            given, "recomputed_expert_share", "moe-zero-memory-num-layers", layers, freed
        )
    if given.switch("swapped_attention", "swap-attention"):
        found["swapped_attention"] = "true"
        # MindSpeed v2.1.0, docs/features/swap_attention.md: then the count is of networks that are done again.
        if not given.has("recompute-granularity"):
            chunks = 1 if given.has("enable-recompute-layers-per-pp-rank") else layout.virtual_stages
            count = given.integer("recompute_layers", "recompute-num-layers", low=0) or 0
            found["recomputed_network_share"] = f"{min(count * chunks / layers, 1.0):.9g}"
    return found


def _share(given: Given, switch: str, name: str, layers: float, freed: float) -> str:
    count = given.integer(switch, name, low=0)
    return f"{freed if count is None else freed * min(count / layers, 1.0):.9g}"


def _trained(given: Given) -> dict[str, str]:
    """A second model, pairs, scores, weights in 4 bits."""
    found: dict[str, str] = {}
    stage = given.text("stage", "stage")
    if stage in PREFERENCES:
        found |= {"frozen_reference": "true", "reference_forward": "true"}
    if given.switch("sequences_per_sample", "is-pairwise-dataset"):
        found["sequences_per_sample"] = "2"
    if stage in SCORES:
        found["score_head"] = "true"
    if given.switch("quantised_base", "qlora"):
        found["quantised_base"] = "true"
    given.places.pop("stage", None)
    return found
