"""Layers other than attention by Megatron's and MindSpeed's flags: state spaces, the gated delta rule, patterns."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.values import known_value

_SPECS: Final = re.compile(
    r"(?:mindspeed_llm|modellink)\.tasks\.models\.spec\.(?P<own>qwen3_spec|deepseek_spec|qwen2_moe_spec|bailing_spec"
    r"|hunyuan_spec|mamba_spec|gemma2_spec|qwen3_next_spec|plm_spec|minimax_spec|phi35_moe_spec) layer_spec"
    r"|(?:megatron\.core\.models\.(?:mamba|hybrid))?\.(?P<stack>mamba|hybrid)_layer_specs (?:mamba|hybrid)_stack_spec"
    r"|megatron\.core\.models\.gpt\.gpt_layer_specs (?:get_)?gpt_layer_(?:local|with_transformer_engine)_spec(?:_moe)?"
    r"|local"
)
"""Definitions whose layers the other flags describe: MindSpeed-LLM v26.1.0, tasks/models/spec, and stacks filled by
a pattern, Megatron-LM d98e8a6, megatron/core/models/hybrid/hybrid_layer_specs.py (NeMo's reader names no package)."""
_PATTERN: Final = "hybrid-layer-pattern"
_RATIOS: Final = ("hybrid-attention-ratio", "hybrid-mlp-ratio")
_DELTA_SPEC: Final = "qwen3_next_spec"
_VARIANT: Final = "experimental-attention-variant"
_PLACES: Final = ("linear-attention-freq", "full-attention-interval")
_DECIDING: Final = (_PATTERN, *_RATIOS, _VARIANT, *_PLACES)
"""Flags that change the kind of layers; sizes of mixers that no layer has change nothing."""
_OFF: Final = re.compile(r"0*\.?0*|none|null|false", re.ASCII | re.IGNORECASE)
_CHUNK: Final = 64
"""Tokens per chunk of the gated delta rule's kernels (fla.ops.gated_delta_rule, which both call)."""
_MOST_LAYERS: Final = 10_000
MixerFields = dict[str, Any]
"""Fields of a model's spec that concern mixers."""


def is_known_spec(spec: str) -> bool:
    """Whether the other flags describe the layers of a definition that `--spec` names."""
    return _SPECS.fullmatch(spec) is not None


def _spec(arguments: Arguments, group: str) -> str | None:
    """Return the layers' definition, if it is MindSpeed's `own` or a `stack` filled by a pattern; None for others."""
    match = _SPECS.fullmatch(arguments.text("spec", "spec") or "")
    return match[group] if match else None


def count_layers(arguments: Arguments) -> None:
    """Set the number of layers from a pattern, which replaces `--num-layers` (d98e8a6, training/arguments.py:787)."""
    entry = arguments.entry(_PATTERN)
    if entry is not None and not entry.causes and _spec(arguments, "stack"):
        count = str(len(_main(entry.text)))
        arguments.entries.pop("num_layers", None)
        arguments.add("--num-layers", [known_value(count, entry.value_line)], entry.value_line)


def mixers_of(arguments: Arguments, fields: MixerFields, sizes: MixerFields) -> MixerFields:
    """Return the fields of layers whose mixer is not attention, or that have only a mixer or only a network.

    `fields` are those of the whole model, `sizes` all sizes that the flags state, those of mixers included.
    """
    own, stack = _spec(arguments, "own"), _spec(arguments, "stack")
    delta = own == _DELTA_SPEC or arguments.text("mixers", _VARIANT) == "gated_delta_net"
    listed: MixerFields = {}
    read: tuple[str, ...] = ()
    if own == "mamba_spec" and "hidden_size" in fields:
        inner = (arguments.integer("mixers", "mamba-expand") or 1) * fields["hidden_size"]
        # Only Mamba in every layer: MindSpeed-LLM v2.1.0, tasks/models/spec/mamba_spec.py.
        listed = {"mixers": ("mamba",), "feed_forwards": ("none",), "rotary": False} | _mamba(sizes, inner, 1, 256)
    elif stack:
        listed, read = _stack(arguments, fields, sizes), (_PATTERN, *_RATIOS)
    elif delta:
        listed = _delta(arguments, fields, sizes, own=own == _DELTA_SPEC)
        named = arguments.text("mixers", _VARIANT) == "gated_delta_net"
        read = (*((_VARIANT,) if named else ()), next((name for name in _PLACES if arguments.has(name)), ""))
    _remark_others(arguments, (*_DECIDING, *(("mamba-expand",) if stack else ())), read)
    arguments.forget("mixers")
    return _agreeing(arguments, fields, listed)


def _remark_others(arguments: Arguments, deciding: tuple[str, ...], read: tuple[str, ...]) -> None:
    """Refuse flags that change the kind of layers but were not read for these layers."""
    for name in deciding:
        entry = None if name in read else arguments.entry(name)
        text = None if entry is None else arguments.text("mixers", name)
        if entry is not None and text is not None and not _OFF.fullmatch(text.strip("\"'")):
            spelled = entry.spelled.lstrip("-").replace("_", "-")
            message = f"--{spelled} {text[:40]}: not modelled for the layers that the other flags build"
            arguments.not_modelled(message, name)


def _agreeing(arguments: Arguments, fields: MixerFields, own: MixerFields) -> MixerFields:
    """Return the fields if layers with experts and a number of experts occur together or not at all; else none."""
    networks, count = own.get("feed_forwards"), fields.get("num_experts")
    if networks is None or "num_experts" in arguments.incomplete or ("experts" in networks) == bool(count):
        return own
    message = "layers with experts (E) and no --num-experts"
    if count:
        message = f"--num-experts {count}, and no layer has experts"
    arguments.not_modelled(message, "num-experts" if count else _PATTERN)
    return {}


def _mamba(sizes: MixerFields, inner: int, groups: int, chunk: int) -> MixerFields:
    """Return the sizes of Mamba-2, `inner` features wide; `groups` and `chunk` are its defaults."""
    size = sizes.get("mamba_head_dim") or 64
    return {
        "architecture": "nemotron_h",
        "mamba_heads": sizes.get("mamba_heads") or inner // size,
        "mamba_head_dim": size,
        "mamba_groups": sizes.get("mamba_groups") or groups,
        "mamba_state": sizes.get("mamba_state") or 128,
        "convolution": sizes.get("convolution") or 4,
        "convolution_bias": True,
        "chunk_tokens": sizes.get("chunk_tokens") or chunk,
    }


def _stack(arguments: Arguments, fields: MixerFields, sizes: MixerFields) -> MixerFields:
    """Return the layers of a pattern, one part each; Mamba-2 as in megatron/core/ssm/mamba_mixer.py of d98e8a6."""
    layers = fields.get("num_hidden_layers")
    if not layers or "hidden_size" not in fields:
        return {}
    pattern = arguments.text("mixers", _PATTERN)
    marks = _by_ratios(arguments, layers) if pattern is None else _main(pattern)
    network = "gated" if fields["gated"] else "plain"
    blocks = {"M": ("mamba", "none"), "*": ("grouped_query", "none"), "-": ("none", network), "E": ("none", "experts")}
    if set(marks) - blocks.keys() or "/" in (pattern or "") or "|" in (pattern or "") or len(marks) != layers:
        message = f"pattern {(pattern or marks)[:60]} of {layers} layers: only M, *, - and E are modelled"
        arguments.not_modelled(message, _PATTERN)
        return {}
    mixers, networks = zip(*(blocks[mark] for mark in marks), strict=True)
    shapes = _mamba(sizes, 2 * fields["hidden_size"], 8, 128) if "M" in marks else {"architecture": "nemotron_h"}
    return {"mixers": mixers, "feed_forwards": networks} | shapes


def _main(pattern: str) -> str:
    """Return the marks of the decoder's own layers: without multi-token prediction and stage boundaries."""
    return pattern.strip("\"'").partition("/")[0].replace("|", "")


def _by_ratios(arguments: Arguments, layers: int) -> str:
    """Return marks with attention spread evenly, and networks among the rest (`pattern_from_ratios` of d98e8a6)."""
    shares = [float(arguments.share("mixers", name) or 0) for name in _RATIOS]
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


def _delta(arguments: Arguments, fields: MixerFields, sizes: MixerFields, *, own: bool) -> MixerFields:
    """Return the gated delta rule in all but every n-th layer, or as listed: `get_linear_attention_pattern` of d98e8a6.

    MindSpeed's Qwen3-Next (MindSpeed-LLM v2.2.0, qwen3_next_feature.py) counts alike and gates the attention's output.
    """
    layers = fields.get("num_hidden_layers")
    text = (arguments.text("mixers", *_PLACES) or "").replace(" ", "").strip("\"'")
    every = int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) else 0
    digits = "".join("10"[(i + 1) % every == 0] for i in range(layers or 0)) if every else layer_digits(text)
    if not layers or len(digits) != layers:
        if layers and "mixers" not in arguments.incomplete:
            message = f"{text[:40] or 'nothing'}: no list of {layers} layers of which some have linear attention"
            arguments.not_modelled(message, *_PLACES)
        return {}
    if own and not arguments.switch("mixers", "use-triton-gdn"):
        message = "the gated delta rule without --use-triton-gdn: what its products keep is not priced"
        arguments.not_modelled(message, "spec")
    usual = {"linear_key_heads": 16, "linear_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    return {
        "architecture": "qwen3_next",
        "mixers": tuple("gated_delta" if digit == "1" else "grouped_query" for digit in digits),
        **({"attention_gate": "element"} if own else {}),
        **{name: sizes.get(name) or size for name, size in (usual | {"convolution": 4}).items()},
        "chunk_tokens": _CHUNK,
    }


_TERM: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", re.ASCII)
_MOST_DIGITS: Final = 100_000


def layer_digits(text: str) -> str:
    """Return `([0]*1+[1,1]*13)` as one digit per layer; empty for other text."""
    digits = ""
    if text.startswith("(") and text.endswith(")") and text.count("(") == text.count(")") == 1:
        text = text[1:-1]
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or len(match[1]) * int(match[2] or 1) + len(digits) > _MOST_DIGITS:
            return ""
        digits += match[1].replace(",", "") * int(match[2] or 1)
    return digits
