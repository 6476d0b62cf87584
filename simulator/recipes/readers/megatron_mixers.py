"""Layers that are not attention by Megatron's and MindSpeed's flags: state spaces, the gated delta rule, patterns."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.recipes.readers.given import Given
from simulator.recipes.readers.megatron_parts import is_gated, written_out
from simulator.recipes.shell.values import text_value

_STACKS: Final = re.compile(r"\.(mamba_layer_specs|hybrid_layer_specs)$")
"""Modules whose stacks a pattern fills (Megatron-LM d98e8a6, megatron/core/models/hybrid/hybrid_layer_specs.py)."""
_PATTERN: Final = ("hybrid-layer-pattern", "hybrid-override-pattern")
_RATIOS: Final = ("hybrid-attention-ratio", "hybrid-mlp-ratio")
_DELTA_SPEC: Final = "qwen3_next_spec"
_CHUNK: Final = 64
"""Tokens that the kernels of the gated delta rule treat at once (fla.ops.gated_delta_rule, which both call)."""
_MOST_LAYERS: Final = 10_000


def has_stack(given: Given) -> bool:
    """Whether a pattern decides what each layer is."""
    return _STACKS.search((given.text("spec", "spec") or "").partition(" ")[0]) is not None


def count_layers(given: Given) -> None:
    """Take the number of layers from a pattern, which replaces `--num-layers` (d98e8a6, training/arguments.py:787)."""
    entry = given.entry(*_PATTERN)
    if entry is not None and not entry.causes and has_stack(given):
        count = len(_main(entry.text))
        given.entries.pop("num_layers", None)
        given.add("--num-layers", [text_value(str(count), entry.value_line)], entry.value_line)


def mixers_of(given: Given, found: dict[str, Any]) -> dict[str, Any]:
    """The fields of layers whose mixer is no attention, or that have a mixer or a network alone."""
    spec = given.text("spec", "spec") or ""
    fields: dict[str, Any] = {}
    if "mamba_spec" in spec and "hidden_size" in found:
        fields = _state_spaces(given, found)
    elif has_stack(given):
        fields = _stack(given, found)
    elif _DELTA_SPEC in spec or _is_delta(given):
        fields = _delta(given, found)
    elif given.has(*_PATTERN, *_RATIOS):
        said = "a pattern of layers without a --spec that builds them"
        given.remark("not-modelled", "error", said, *_PATTERN, *_RATIOS)
    if given.switch("mixers", "attention-output-gate"):
        fields["attention_gate"] = "element"
    given.places.pop("mixers", None)
    return fields


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
        given.remark("not-modelled", "error", said, *_PATTERN)
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
    """Whether linear attention is the gated delta rule; any other variant is not modelled."""
    names = ("experimental-attention-variant", "linear-attention-type")
    variant = given.text("mixers", *names)
    if variant is None or variant.lower() in ("", "none", "null"):
        return False
    if variant == "gated_delta_net":
        return True
    given.remark("not-modelled", "error", f"{variant[:40]}: attention of this kind is not priced", *names)
    return False


def _delta(given: Given, found: dict[str, Any]) -> dict[str, Any]:
    """The gated delta rule but in every n-th layer, or as a list says: `get_linear_attention_pattern` of d98e8a6.

    MindSpeed's Qwen3-Next (MindSpeed-LLM v2.2.0, qwen3_next_feature.py) counts alike and gates the attention's output.
    """
    layers = found.get("num_hidden_layers")
    names = ("linear-attention-freq", "full-attention-interval")
    text = (given.text("mixers", *names) or "").replace(" ", "").strip("\"'")
    every = int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) else 0
    digits = "".join("10"[(i + 1) % every == 0] for i in range(layers or 0)) if every else written_out(text)
    if not layers or len(digits) != layers:
        if layers and "mixers" not in given.incomplete:
            said = f"{text[:40] or 'nothing'}: no list of {layers} layers of which some have linear attention"
            given.remark("not-modelled", "error", said, *names)
        return {}
    own = _DELTA_SPEC in (given.text("spec", "spec") or "")
    if own and not given.switch("mixers", "use-triton-gdn"):
        said = "the gated delta rule without --use-triton-gdn: what its products keep is not priced"
        given.remark("not-modelled", "error", said, "spec")
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
