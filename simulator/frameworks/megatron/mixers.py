"""Layers that are not attention by Megatron's and MindSpeed's flags: state spaces, the gated delta rule, patterns."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.megatron.parts import is_gated, written_out
from simulator.frameworks.values import known_value

_SPECS: Final = re.compile(
    r"(?:mindspeed_llm|modellink)\.tasks\.models\.spec\.(?P<own>qwen3_spec|deepseek_spec|qwen2_moe_spec|bailing_spec"
    r"|hunyuan_spec|mamba_spec|gemma2_spec|qwen3_next_spec|plm_spec|minimax_spec|phi35_moe_spec) layer_spec"
    r"|(?:megatron\.core\.models\.(?:mamba|hybrid))?\.(?P<stack>mamba|hybrid)_layer_specs (?:mamba|hybrid)_stack_spec"
    r"|megatron\.core\.models\.gpt\.gpt_layer_specs (?:get_)?gpt_layer_(?:local|with_transformer_engine)_spec(?:_moe)?"
    r"|local"
)
"""Definitions whose layers are what the other flags say: MindSpeed-LLM v26.1.0, tasks/models/spec, and stacks that a
pattern fills, Megatron-LM d98e8a6, megatron/core/models/hybrid/hybrid_layer_specs.py (NeMo's reader names no package).
"""
_PATTERN: Final = ("hybrid-layer-pattern", "hybrid-override-pattern")
_RATIOS: Final = ("hybrid-attention-ratio", "hybrid-mlp-ratio")
_DELTA_SPEC: Final = "qwen3_next_spec"
_VARIANTS: Final = ("experimental-attention-variant", "linear-attention-type")
_PLACES: Final = ("linear-attention-freq", "full-attention-interval")
_DECIDING: Final = (*_PATTERN, *_RATIOS, *_VARIANTS, *_PLACES)
"""Flags that change what the layers are; sizes of mixers that no layer has change nothing."""
_OFF: Final = re.compile(r"0*\.?0*|none|null|false", re.ASCII | re.IGNORECASE)
_CHUNK: Final = 64
"""Tokens that the kernels of the gated delta rule treat at once (fla.ops.gated_delta_rule, which both call)."""
_MOST_LAYERS: Final = 10_000


def is_known_spec(spec: str) -> bool:
    """Whether the layers of a definition, as `--spec` names it, are what the other flags say."""
    return _SPECS.fullmatch(spec) is not None


def _own_spec(given: Given) -> str | None:
    """MindSpeed's definition of the layers."""
    match = _SPECS.fullmatch(given.text("spec", "spec") or "")
    return match["own"] if match else None


def has_stack(given: Given) -> bool:
    """Whether a pattern decides what each layer is."""
    match = _SPECS.fullmatch(given.text("spec", "spec") or "")
    return match is not None and match["stack"] is not None


def count_layers(given: Given) -> None:
    """Take the number of layers from a pattern, which replaces `--num-layers` (d98e8a6, training/arguments.py:787)."""
    entry = given.entry(*_PATTERN)
    if entry is not None and not entry.causes and has_stack(given):
        count = len(_main(entry.text))
        given.entries.pop("num_layers", None)
        given.add("--num-layers", [known_value(str(count), entry.value_line)], entry.value_line)


def mixers_of(given: Given, found: dict[str, Any]) -> dict[str, Any]:
    """The fields of layers whose mixer is no attention, or that have a mixer or a network alone."""
    spec = _own_spec(given)
    fields: dict[str, Any] = {}
    read: tuple[str, ...] = ()
    if spec == "mamba_spec" and "hidden_size" in found:
        fields = _state_spaces(given, found)
    elif has_stack(given):
        fields, read = _stack(given, found), (*_PATTERN, *_RATIOS)
    elif spec == _DELTA_SPEC or _is_delta(given):
        read = (*(_VARIANTS if _is_delta(given) else ()), next((name for name in _PLACES if given.has(name)), ""))
        fields = _delta(given, found, own=spec == _DELTA_SPEC)
    _remark_others(given, read)
    if given.switch("mixers", "attention-output-gate"):
        fields["attention_gate"] = "element"
    given.places.pop("mixers", None)
    return _agreeing(given, found, fields)


def _remark_others(given: Given, read: tuple[str, ...]) -> None:
    """Refuse what decides on the layers and was not read for those that the other flags build."""
    for name in (*_DECIDING, *(("mamba-expand",) if has_stack(given) else ())):
        text = None if name in read else given.text("mixers", name)
        if text is not None and not _OFF.fullmatch(text.strip("\"'")):
            given.not_modelled(f"--{name} {text[:40]}: not modelled for the layers that the other flags build", name)


def _agreeing(given: Given, found: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, without networks that have experts where the flags give none, or none where they give some."""
    networks = fields.get("feed_forwards")
    count = found.get("num_experts")
    if networks is None or "num_experts" in given.incomplete or ("experts" in networks) == bool(count):
        return fields
    said = (
        f"--num-experts {count}, and no layer has experts" if count else "layers with experts (E) and no --num-experts"
    )
    given.not_modelled(said, *(("num-experts", "num-moe-experts") if count else _PATTERN))
    return {}


def _state_spaces(given: Given, found: dict[str, Any]) -> dict[str, Any]:
    """Mamba-2 in every layer and nothing else: MindSpeed-LLM v2.1.0, tasks/models/spec/mamba_spec.py."""
    inner = (given.integer("mixers", "mamba-expand") or 1) * found["hidden_size"]
    return {"mixers": ("mamba",), "feed_forwards": ("none",), "rotary": False} | _mamba(given, inner, 1, 256)


def _mamba(given: Given, inner: int, groups: int, chunk: int) -> dict[str, Any]:
    """Sizes of Mamba-2 where `inner` features follow from the hidden size; `groups` and `chunk` are the defaults."""
    size = given.integer("mixers", "mamba-head-dim", "mamba-headdim") or 64
    return {
        "architecture": "nemotron_h",
        "mamba_heads": given.integer("mixers", "mamba-num-heads") or inner // size,
        "mamba_head_dim": size,
        "mamba_groups": given.integer("mixers", "mamba-num-groups", "mamba-ngroups") or groups,
        "mamba_state": given.integer("mixers", "mamba-state-dim", "mamba-d-state") or 128,
        "convolution": given.integer("mixers", "mamba-d-conv") or 4,
        "convolution_bias": True,
        "chunk_tokens": given.integer("mixers", "mamba-chunk-size") or chunk,
    }


def _stack(given: Given, found: dict[str, Any]) -> dict[str, Any]:
    """One part a layer, by the pattern's marks; Mamba-2 as megatron/core/ssm/mamba_mixer.py of d98e8a6 has it."""
    layers = found.get("num_hidden_layers")
    if not layers or "hidden_size" not in found:
        return {}
    pattern = given.text("mixers", *_PATTERN)
    marks = _by_ratios(given, layers) if pattern is None else _main(pattern)
    network = "gated" if is_gated(given) else "plain"
    blocks = {"M": ("mamba", "none"), "*": ("grouped_query", "none"), "-": ("none", network), "E": ("none", "experts")}
    if set(marks) - blocks.keys() or "/" in (pattern or "") or "|" in (pattern or "") or len(marks) != layers:
        said = f"pattern {(pattern or marks)[:60]} of {layers} layers: only M, *, - and E are modelled"
        given.not_modelled(said, *_PATTERN)
        return {}
    mixers, networks = zip(*(blocks[mark] for mark in marks), strict=True)
    shapes = _mamba(given, 2 * found["hidden_size"], 8, 128)
    sizes = shapes if "M" in marks else {"architecture": "nemotron_h"}
    return {"mixers": mixers, "feed_forwards": networks} | sizes


def _main(pattern: str) -> str:
    """The decoder's own layers: without those of multi-token prediction and without stages' ends."""
    return pattern.strip("\"'").partition("/")[0].replace("|", "")


def _by_ratios(given: Given, layers: int) -> str:
    """Attention spread evenly, networks evenly among the rest, as `pattern_from_ratios` of d98e8a6 lays them out."""
    shares = [_ratio(given, name) for name in _RATIOS]
    marks = ["M"] * min(layers, _MOST_LAYERS)
    for mark, share, ends in (("*", shares[0], 1), ("-", shares[1], 0)):
        count, left = round(layers * share), marks.count("M")
        if not count:
            continue
        step = place = (left - count) / (count + ends)
        for number, old in enumerate(marks):
            if old != "M":
                continue
            if place < 0.5:
                marks[number] = mark
                place += step
            else:
                place -= 1
    return "".join(marks)


def _ratio(given: Given, name: str) -> float:
    text = given.text("mixers", name) or "0"
    if not re.fullmatch(r"0?\.[0-9]{1,9}|[01](\.0{0,9})?", text, re.ASCII):
        raise given.refusal(given.entry(name), f"'{text[:40]}' given; must be from 0 to 1")
    return float(text)


def _is_delta(given: Given) -> bool:
    """Whether linear attention is the gated delta rule, by each of its flags; no other variant is modelled."""
    variants = {given.text("mixers", name) for name in _VARIANTS if given.has(name)}
    return variants == {"gated_delta_net"}


def _delta(given: Given, found: dict[str, Any], *, own: bool) -> dict[str, Any]:
    """The gated delta rule but in every n-th layer, or as a list says: `get_linear_attention_pattern` of d98e8a6.

    MindSpeed's Qwen3-Next (MindSpeed-LLM v2.2.0, qwen3_next_feature.py) counts alike and gates the attention's output.
    """
    layers = found.get("num_hidden_layers")
    text = (given.text("mixers", *_PLACES) or "").replace(" ", "").strip("\"'")
    every = int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) else 0
    digits = "".join("10"[(i + 1) % every == 0] for i in range(layers or 0)) if every else written_out(text)
    if not layers or len(digits) != layers:
        if layers and "mixers" not in given.incomplete:
            said = f"{text[:40] or 'nothing'}: no list of {layers} layers of which some have linear attention"
            given.not_modelled(said, *_PLACES)
        return {}
    if own and not given.switch("mixers", "use-triton-gdn"):
        said = "the gated delta rule without --use-triton-gdn: what its products keep is not priced"
        given.not_modelled(said, "spec")
    return {
        "architecture": "qwen3_next",
        "mixers": tuple("gated_delta" if digit == "1" else "grouped_query" for digit in digits),
        **({"attention_gate": "element"} if own else {}),
        "linear_key_heads": given.integer("mixers", "linear-num-key-heads") or 16,
        "linear_value_heads": given.integer("mixers", "linear-num-value-heads") or 32,
        "linear_key_head_dim": given.integer("mixers", "linear-key-head-dim") or 128,
        "linear_value_head_dim": given.integer("mixers", "linear-value-head-dim") or 128,
        "convolution": given.integer("mixers", "linear-conv-kernel-dim", "mamba-d-conv") or 4,
        "chunk_tokens": _CHUNK,
    }
