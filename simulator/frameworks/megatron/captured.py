"""Megatron's words for CUDA graphs and for experts' buffers of fixed size, read and written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Final

from simulator.errors import UnsupportedError
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import table_of
from simulator.frameworks.take import Targets
from simulator.frameworks.values import known_value
from simulator.frameworks.write import WordPair, Writing
from simulator.question.recipe import Recipe

_WHOLE: Final = "full_iteration"
_ATTENTION: Final = frozenset(("attn", "mamba"))
_ROUTER: Final = frozenset(("moe_router", "moe_preprocess"))
_NETWORKS: Final = frozenset(("mlp", "moe"))
_WHOLE_LAYER: Final = frozenset(("full", "none", "null", "layer", "full_iteration_inference"))
"""Words that name no part of a layer in training, those for inference among them."""
_IMPLEMENTATIONS: Final = ("local", "transformer_engine", _WHOLE)
CAPTURED_SWITCHES: Final = ("cuda_graphs", "expert_capacity", "expert_stash")
_PARTS: Final = {"attention": "attn", "attention_router": "attn moe_router", "network": "mlp"}
_USUAL_STASH: Final = "1.1"
"""Default of Megatron's own arguments (core_v0.18.2, megatron/training/arguments.py)."""


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


def captured_words(case: Writing) -> Iterator[WordPair]:
    """Yield the flags of CUDA graphs and experts' buffers. Raises UnsupportedError where Megatron-LM would not start.

    The conditions: Megatron-LM d98e8a6, megatron/core/transformer/transformer_config.py:1868, 2210, 2798-2870 and
    megatron/training/arguments.py:1235.
    """
    profile, kind = case.scenario.framework, case.scenario.framework.cuda_graphs
    if reason := next(_uncaptured(case), None):
        raise UnsupportedError(f"--option cuda_graphs={kind}: {reason}")
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
    if not case.scenario.model.is_moe or capacity == stash == 1.0:
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


def _uncaptured(case: Writing) -> Iterator[str]:
    """Yield the reasons why a layout's layers cannot be captured one by one."""
    kind, layout, mixture = case.scenario.framework.cuda_graphs, case.layout, case.scenario.model.is_moe
    if kind in ("none", _WHOLE):
        return
    if layout.recompute == "full":
        yield "full recompute is only supported with full iteration CUDA graph"
    if layout.offload == "activations":
        yield "CUDA graphs not supported with CPU offloading"
    if kind == "network" and mixture:
        yield "moe cuda graph is only supported with drop-padding MoE"
    if kind == "attention_router" and not mixture:
        yield "moe cuda graph is only supported for MoE"
    if kind == "attention_router" and layout.recompute == "selective" and "moe" in layout.recompute_modules:
        yield "moe recompute is not supported with moe_router CUDA graph"


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


def add_layers(arguments: Arguments, model: str | None, line: int, file: str = "") -> None:
    """Add the number of layers of a named model, which cuts depend on, unless the recipe states it."""
    if model is not None and not arguments.has("num-layers"):
        layers = models.load_model(model).num_hidden_layers
        arguments.add("--num-layers", [known_value(str(layers), line)], line, file)


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
