"""What MindSpeed's own flags set: its release, what it keeps, what it does again, and what training is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from simulator.question.frameworks.mindspeed import MINDSPEED
from simulator.question.scenario.layout import Layout
from simulator.recipes.readers.given import Given
from simulator.recipes.readers.megatron_flags import MINDSPEED as OWN
from simulator.recipes.readers.tables import flags_of

PREFERENCES: Final = ("dpo",)
"""Stages that compare a chosen and a rejected answer under a frozen copy of the model."""
PAIRS: Final = ("dpo", "simpo", "orpo", "rm", "orm")
"""Stages whose samples are pairs, where `--is-pairwise-dataset` says so."""
SCORES: Final = ("rm", "orm")
"""Stages that train one score instead of the logits."""
STAGES: Final = frozenset(("sft", "pt", "prm", *PREFERENCES, *PAIRS, *SCORES))
_RELEASE: Final = re.compile(r"MindSpeed-LLM-v(\d+)\.(\d+)")
_VARIABLE: Final = ("variable-seq-lengths", "no-pad-to-seq-lengths")


def is_mindspeed(given: Given) -> bool:
    """Whether a launch has flags that only MindSpeed has."""
    return any(name in OWN for name in given.entries)


def is_legacy(given: Given) -> bool:
    """Whether the models are MindSpeed's older ones instead of those of Megatron's core."""
    return is_mindspeed(given) and not given.has("use-mcore-models")


def release_of(given: Given) -> str:
    """The stack of the oldest release that has all flags of a launch; scripts name no release."""
    known = flags_of("mindspeed")
    firsts = (_RELEASE.match(known[name].first) for name in given.entries if name in known)
    oldest = max(((int(found[1]), int(found[2])) for found in firsts if found), default=(0, 0))
    # The core's own implementation became the default with v26, whose scripts ask for the local one.
    if given.text("flash_attention", "transformer-impl") == "local":
        oldest = max(oldest, (26, 0))
    return next(name for name in MINDSPEED if _number(name) >= oldest or name == [*MINDSPEED][-1])


def _number(stack: str) -> tuple[int, int]:
    major, _, minor = stack.rpartition("v")[2].partition(".")
    return int(major), int(minor or 99)


def mindspeed_options(given: Given, layout: Layout, places: int | None) -> Mapping[str, str]:
    """Switches of a MindSpeed launch: of its release, and of its flags."""
    if not is_mindspeed(given):
        return {}
    found = {name: _text(value) for name, value in MINDSPEED[release_of(given)].items()}
    return found | _kept(given) | _again(given, layout, places) | _trained(given)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kept(given: Given) -> dict[str, str]:
    """Masks, tables of positions, boundary tensors, what dispatchers keep."""
    found: dict[str, str] = {}
    variable = any(given.switch("kept_boundaries", name) for name in _VARIABLE)
    if is_legacy(given):
        found["attention_mask"] = "none" if variable else "layers"
    elif given.text("attention_mask", "attention-mask-type") == "general":
        found["attention_mask"] = "sequence"
    if given.text("position_embedding_type", "position-embedding-type") == "alibi":
        found["position_bias_tables"] = "true"
    if variable:
        # Sizes are sent with every micro batch: mindspeed/core/pipeline_parallel, variable_seq_lengths.
        found["kept_boundaries"] = "false"
    if not given.has("recompute-granularity"):
        found |= _dispatched(given)
    for option in ("attention_mask", "position_embedding_type", "kept_boundaries", "kept_dispatches"):
        given.places.pop(option, None)
    return found


def _dispatched(given: Given) -> dict[str, str]:
    """What a dispatcher's attributes hold of the last micro batch, in routed hidden states."""
    if given.switch("kept_dispatches", "moe-alltoall-overlap-comm"):
        return {"kept_dispatches": "3"}
    gathers = given.text("kept_dispatches", "moe-token-dispatcher-type") == "allgather"
    permutes = given.switch("kept_dispatches", "moe-permutation-async-comm")
    return {"kept_dispatches": "8"} if gathers and permutes and release_of(given) != [*MINDSPEED][0] else {}


def _again(given: Given, layout: Layout, places: int | None) -> dict[str, str]:
    """Shares of the layers whose activation functions, norms or experts are done again."""
    found: dict[str, str] = {}
    layers = max((places or 0) / layout.pipeline_parallel, 1.0)
    parts = (
        ("recomputed_activation_share", "recompute-activation-function", 1.0),
        ("recomputed_norm_share", "recompute-norm", 1.0),
    )
    for switch, name, freed in parts:
        if given.switch(switch, name):
            found[switch] = _share(given, switch, f"{name}-num-layers", layers, freed)
    # MindSpeed v26.0.0, megatron-moe-zero-memory.md: 70 and 90 % of what recomputing the experts whole frees.
    level = given.text("recomputed_expert_share", "moe-zero-memory")
    if level in ("level0", "level1"):
        freed = 0.7 if level == "level0" else 0.9
        found["recomputed_expert_share"] = _share(
            given, "recomputed_expert_share", "moe-zero-memory-num-layers", layers, freed
        )
    if given.switch("swapped_attention", "swap-attention"):
        found["swapped_attention"] = "true"
    return found


def _share(given: Given, switch: str, name: str, layers: float, freed: float) -> str:
    count = given.integer(switch, name, low=0)
    return f"{freed if count is None else freed * min(count / layers, 1.0):.9g}"


def _trained(given: Given) -> dict[str, str]:
    """A second model, pairs, scores, weights in 4 bits."""
    found: dict[str, str] = {}
    stage = given.text("stage", "stage")
    if stage in PREFERENCES:
        found["frozen_reference"] = "true"
    if given.switch("sequences_per_sample", "is-pairwise-dataset"):
        found["sequences_per_sample"] = "2"
    if stage in SCORES:
        found["score_head"] = "true"
    if given.switch("quantised_base", "qlora"):
        found["quantised_base"] = "true"
    given.places.pop("stage", None)
    return found
